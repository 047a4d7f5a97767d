"""Workers, breakers and machines of another process: names, and what was last told of them.

Rules
-----
- A handle is made of a name, without a question: that there is none of it is told by the first verb (LookupError).
- What it shows is what it was last told: by the list that it came from, by each of its verbs, by `await refresh()`.
  Before that there is nothing to show, which raises LookupError, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import anyio
import msgspec

from ...actors.messages.commands import Fire
from ...actors.records.entities import BreakerRecord, MachineRecord, WorkerRecord
from ...actors.records.transition import Transitioned
from ...actors.spec.model import Hook
from ...actors.spec.times import Duration, limit_of, seconds
from ...actors.user_code import shown
from ...actors.users.errors import AskTimeout
from ...actors.users.ref import ASK_TIMEOUT
from ..handles.references import check_fire
from .handles import worded
from .link import place
from .references import RemoteRef
from .views import breaker_of, machine_of, transition_of, worker_of

if TYPE_CHECKING:
    from .client import Client

R = TypeVar("R", WorkerRecord, BreakerRecord, MachineRecord)


class Named(Generic[R]):
    """What is addressed by its name."""

    kind: ClassVar[str]
    _list: ClassVar[str]  # the list that it is in, of the paths
    _record_of: Callable[[dict[str, Any]], R]

    def __init__(self, client: Client, name: str, view: dict[str, Any] | None = None) -> None:
        self._client = client
        self._view = view
        self.name = name

    def __repr__(self) -> str:
        told = "" if self._view is None else f" {self._view['state']}"
        return f"<{type(self).__name__} {self.name}{told}>"

    @property
    def record(self) -> R:
        """Its record, as it was last told."""
        return type(self)._record_of(self._told)

    @property
    def state(self) -> str:
        """Its state, as it was last told."""
        return self.record.state

    async def refresh(self) -> None:
        """Ask for it. Raises LookupError if there is none of that name."""
        self._view = await self._client.link.get(self._path)

    @property
    def _path(self) -> str:
        return f"{self._list}/{place(self.name)}"

    @property
    def _told(self) -> dict[str, Any]:
        if self._view is None:
            raise LookupError(f"nothing was told of {self.kind} {self.name!r} yet: `await refresh()` asks for it")
        return self._view

    async def _do(self, verb: str, request_id: str | None, **said: Any) -> Any:
        answer = await self._client.act(f"{self._path}/{verb}", said, request_id)
        await self.refresh()
        return answer

    async def _fire(self, request_id: str | None, said: dict[str, Any]) -> None:
        await self._do("fire", request_id, **said)


class RemoteWorker(Named[WorkerRecord]):
    """A worker of another process: `WorkerHandle` there."""

    kind = "worker"
    _list = "workers"
    _record_of = staticmethod(worker_of)

    @property
    def ref(self) -> RemoteRef:
        """It as an actor, which takes the events that people may fire at it."""
        return RemoteRef(self.kind, self.name, self, self._fire)

    @property
    def engine(self) -> str:
        """What it executes on."""
        return self.record.engine

    @property
    def capacity(self) -> int:
        """How many attempts it may run at the same time."""
        return self.record.capacity

    @property
    def capabilities(self) -> list[str]:
        """What it can do."""
        return list(self.record.capabilities)

    @property
    def assigned(self) -> int:
        """How many attempts it runs."""
        return self.record.assigned

    @property
    def missed(self) -> int:
        """How many health checks in a row it has not answered."""
        return self.record.missed

    @property
    def last_seen(self) -> float:
        """When it last gave a sign of life (UTC epoch seconds)."""
        return float(self._told["last_seen"])

    async def pause(
        self, reason: str = "paused by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """As `WorkerHandle.pause`."""
        await self._do("pause", request_id, **worded(reason, by))

    async def resume(
        self, reason: str = "resumed by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """As `WorkerHandle.resume`."""
        await self._do("resume", request_id, **worded(reason, by))

    async def shut_down(
        self,
        reason: str = "shut down by an operator",
        *,
        deadline: Duration | None = None,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """As `WorkerHandle.shut_down`."""
        limit = None if deadline is None else seconds(deadline)
        await self._do("shut_down", request_id, deadline=limit, **worded(reason, by))

    async def terminate(
        self, reason: str = "terminated by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """As `WorkerHandle.terminate`."""
        await self._do("terminate", request_id, **worded(reason, by))

    async def start(
        self, reason: str = "started by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """As `WorkerHandle.start`."""
        await self._do("start", request_id, **worded(reason, by))


class RemoteBreaker(Named[BreakerRecord]):
    """The circuit breaker of a tool of another process: `BreakerHandle` there."""

    kind = "breaker"
    _list = "breakers"
    _record_of = staticmethod(breaker_of)

    @property
    def ref(self) -> RemoteRef:
        """It as an actor, which takes the events that people may fire at it."""
        return RemoteRef(self.kind, self.name, self, self._fire)

    @property
    def tool(self) -> str:
        """Its tool's name."""
        return self.name

    @property
    def retry_in(self) -> float:
        """Seconds until it lets a task see whether the tool is back; 0 where it is not open."""
        return max(0.0, (self.record.due_at or 0.0) - time.time())

    @property
    def parked(self) -> int:
        """How many tasks wait for it."""
        return int(self._told["parked"])

    async def reset(
        self,
        *,
        check: Hook | Sequence[str] | str | None = None,
        by: str | None = None,
        reason: str = "reset by an operator",
        request_id: str | None = None,
    ) -> None:
        """As `BreakerHandle.reset`, but without a check: what would run there is said there, or run here before."""
        if check is not None:
            raise TypeError("a breaker of another process is reset without a check: run it here first")
        await self._do("reset", request_id, **worded(reason, by))

    async def trip(
        self,
        *,
        by: str | None = None,
        reason: str = "tripped by an operator",
        cooldown: Duration | None = None,
        request_id: str | None = None,
    ) -> None:
        """As `BreakerHandle.trip`."""
        length = None if cooldown is None else seconds(cooldown)
        await self._do("trip", request_id, cooldown=length, **worded(reason, by))


class RemoteMachine(Named[MachineRecord]):
    """A `MachineActor` of another process: its `MachineRef` there."""

    kind = "machine"
    _list = "machines"
    _record_of = staticmethod(machine_of)

    @property
    def facts(self) -> Any:
        """Its facts, as they were last told: JSON values by name. None where it has none."""
        raw = self.record.facts
        return None if raw is None else msgspec.json.decode(raw)

    @property
    def ended(self) -> bool:
        """Whether it is in a terminal state."""
        return self.record.finished_at is not None

    async def ask(self, message: Fire, *, timeout: float | None = ASK_TIMEOUT) -> Transitioned:
        """As `MachineRef.ask`."""
        check_fire(message, "a MachineActor")
        timeout = limit_of(timeout, "the timeout of an ask")
        said = {name: getattr(message, name) for name in ("event", "reason", "metadata", "facts", "by")}
        with anyio.move_on_after(timeout):
            answer = await self._do("fire", message.request_id, **said)
            return transition_of(answer["transition"])
        raise AskTimeout(f"asked {self.name} {shown(message)}: no answer within {timeout} s; it may still come")

    async def fire(
        self,
        event: str,
        *,
        reason: str | None = None,
        metadata: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None,
        request_id: str | None = None,
        by: str | None = None,
    ) -> Transitioned:
        """The same as `ask(Fire(...))`, without a timeout."""
        return await self.ask(Fire(event, reason, metadata, facts, request_id, by), timeout=None)
