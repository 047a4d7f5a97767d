"""References to jobs, tasks, workers and breakers in another process, as `EntityRef` in the runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...actors.messages.commands import Fire
from ..handles.references import EventRef


class RemoteRef(EventRef):
    """A reference by which people fire events at a job, task, worker or breaker in another process."""

    def __init__(
        self, kind: str, name: str, handle: Any, send: Callable[[str | None, dict[str, Any]], Awaitable[object]]
    ) -> None:
        """handle: the handle that shows the state. send: posts an event under a key, updates the handle, and returns
        the result of the handle's verb.
        """
        super().__init__(kind, name)
        self._handle = handle
        self._send = send

    @property
    def state(self) -> str:
        """The state, as last received."""
        return str(self._handle.record.state)

    async def _fire(self, message: Fire) -> object:
        self._refuse_metadata(message)
        said = {name: getattr(message, name) for name in ("event", "reason", "by", "facts")}
        return await self._send(message.request_id, said)
