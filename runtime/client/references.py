"""References to jobs, tasks, workers and breakers of another process: `EntityRef` there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ...actors.messages.commands import Fire
from ..handles.references import EventRef


class RemoteRef(EventRef):
    """A job, task, worker or breaker of another process, as an actor that events are sent to."""

    def __init__(
        self, kind: str, name: str, handle: Any, send: Callable[[str | None, dict[str, Any]], Awaitable[object]]
    ) -> None:
        """handle: what shows its state. send: posts an event there, under a key, has the handle told, and returns
        what the handle's verb returns.
        """
        super().__init__(kind, name)
        self._handle = handle
        self._send = send

    @property
    def state(self) -> str:
        """Its state, as it was last told."""
        return str(self._handle.record.state)

    async def _fire(self, message: Fire) -> object:
        self._refuse_metadata(message)
        said = {name: getattr(message, name) for name in ("event", "reason", "by", "facts")}
        return await self._send(message.request_id, said)
