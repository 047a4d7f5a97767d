"""References to jobs, tasks, workers and breakers of another process: `EntityRef` there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from ...actors.actor_errors import AskTimeout
from ...actors.commands import Fire
from ...actors.ref import ASK_TIMEOUT
from ...actors.times import limit_of
from ..references import check_fire


class RemoteRef:
    """A job, task, worker or breaker of another process, as an actor that events are sent to."""

    def __init__(
        self, kind: str, name: str, handle: Any, send: Callable[[str | None, dict[str, Any]], Awaitable[object]]
    ) -> None:
        """handle: what shows its state. send: posts an event there, under a key, and has the handle told."""
        self._handle = handle
        self._send = send
        self.kind = kind
        self.name = name

    def __repr__(self) -> str:
        return f"<RemoteRef {self.kind} {self.name}>"

    @property
    def state(self) -> str:
        """Its state, as it was last told."""
        return str(self._handle.record.state)

    async def ask(self, message: Fire, *, timeout: float | None = ASK_TIMEOUT) -> None:
        """As `EntityRef.ask`, but answered with nothing: the handle shows what came of it."""
        check_fire(message, f"a {self.kind}")
        if message.metadata:
            raise ValueError(f"a {self.kind} keeps no metadata with an event: say it in the reason")
        timeout = limit_of(timeout, "the timeout of an ask")
        said = {name: getattr(message, name) for name in ("event", "reason", "by", "facts")}
        with anyio.move_on_after(timeout):
            await self._send(message.request_id, said)
            return
        raise AskTimeout(f"asked {self.kind} {self.name} {message!r}: no answer within {timeout} s; it may still come")

    async def fire(
        self,
        event: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        facts: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> None:
        """The same as `ask(Fire(...))`, without a timeout."""
        await self.ask(Fire(event, reason, None, facts, request_id, by), timeout=None)
