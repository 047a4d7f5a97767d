"""Workers, breakers and machines of another process: names, and what was last told of them.

Rules
-----
- A handle is made of a name, without a question: that there is none of it is told by the first verb (LookupError).
- What it shows is what it was last told: by the list that it came from, by each of its verbs, by `await refresh()`.
  Before that there is nothing to show, which raises LookupError, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from ...actors.messages.commands import Fire
from ...actors.records.entities import BreakerRecord, MachineRecord, WorkerRecord
from ...actors.records.transition import Transitioned
from ..handles.base import BreakerVerbs, MachineVerbs, Said, WorkerVerbs
from ..handles.references import check_fire
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

    async def _say(self, verb: str, said: Said, request_id: str | None) -> dict[str, Any]:
        answer: dict[str, Any] = await self._client.act(f"{self._path}/{verb}", said, request_id)
        await self.refresh()
        return answer

    async def _fire(self, request_id: str | None, said: Said) -> None:
        await self._say("fire", said, request_id)


class RemoteWorker(Named[WorkerRecord], WorkerVerbs):
    """A worker of another process: `WorkerHandle` there."""

    kind = "worker"
    _list = "workers"
    _record_of = staticmethod(worker_of)

    @property
    def ref(self) -> RemoteRef:
        """It as an actor, which takes the events that people may fire at it."""
        return RemoteRef(self.kind, self.name, self, self._fire)

    @property
    def last_seen(self) -> float:
        """When it last gave a sign of life (UTC epoch seconds)."""
        return float(self._told["last_seen"])


class RemoteBreaker(Named[BreakerRecord], BreakerVerbs):
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

    async def _say(self, verb: str, said: Said, request_id: str | None) -> dict[str, Any]:
        if "check" in said:
            raise TypeError("a breaker of another process is reset without a check: run it here first")
        return await super()._say(verb, said, request_id)


class RemoteMachine(Named[MachineRecord], MachineVerbs):
    """A `MachineActor` of another process: its `MachineRef` there."""

    kind = "machine"
    _list = "machines"
    _record_of = staticmethod(machine_of)

    @property
    def facts(self) -> Any:
        """Its facts, as they were last told: JSON values by name. None where it has none."""
        raw = self.record.facts
        return None if raw is None else msgspec.json.decode(raw)

    def _checked(self, message: Fire) -> Fire:
        return check_fire(message, "a MachineActor")

    async def _answer(self, message: Fire) -> Transitioned:
        said = {name: getattr(message, name) for name in ("event", "reason", "metadata", "facts", "by")}
        answer = await self._say("fire", said, message.request_id)
        return transition_of(answer["transition"])
