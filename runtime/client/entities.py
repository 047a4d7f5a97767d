"""Handles of workers, breakers and machines in another process.

Rules
-----
- A handle is made from a name without a request. If nothing has this name, the first verb raises LookupError.
- A handle shows the record that it received last: from a list, from one of its verbs, or from `await refresh()`. If it
  has received no record yet, its properties raise LookupError, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from ...actors.messages.commands import Fire
from ...actors.records.entities import BreakerRecord, MachineRecord, WorkerRecord
from ...actors.records.transition import Transitioned
from ..handles.base import Arguments, BreakerVerbs, MachineVerbs, WorkerVerbs
from ..handles.references import check_fire
from .link import place
from .references import RemoteRef
from .views import breaker_of, machine_of, transition_of, worker_of

if TYPE_CHECKING:
    from .core import ClientCore

R = TypeVar("R", WorkerRecord, BreakerRecord, MachineRecord)


class NamedHandle(Generic[R]):
    """A handle of an entity that is addressed by its name."""

    kind: ClassVar[str]
    _list: ClassVar[str]  # the path of the list that contains it
    _record_of: Callable[[dict[str, Any]], R]

    def __init__(self, core: ClientCore, name: str, view: dict[str, Any] | None = None) -> None:
        self._core = core
        self._view = view
        self.name = name

    def __repr__(self) -> str:
        state = "" if self._view is None else f" {self._view['state']}"
        return f"<{type(self).__name__} {self.name}{state}>"

    @property
    def record(self) -> R:
        """The record, as last received."""
        return type(self)._record_of(self._told)

    @property
    def state(self) -> str:
        """The state, as last received."""
        return self.record.state

    async def refresh(self) -> None:
        """Request the record. Raises LookupError if nothing has this name."""
        self._view = await self._core.link.get(self._path)

    @property
    def _path(self) -> str:
        return f"{self._list}/{place(self.name)}"

    @property
    def _told(self) -> dict[str, Any]:
        if self._view is None:
            raise LookupError(f"{self.kind} {self.name!r} was not read yet: `await refresh()` reads it")
        return self._view

    async def _say(self, verb: str, said: Arguments, request_id: str | None) -> dict[str, Any]:
        answer: dict[str, Any] = await self._core.act(f"{self._path}/{verb}", said, request_id)
        await self.refresh()
        return answer

    async def _fire(self, request_id: str | None, said: Arguments) -> None:
        await self._say("fire", said, request_id)


class RemoteWorker(NamedHandle[WorkerRecord], WorkerVerbs):
    """A worker in another process, with the verbs of `WorkerHandle`."""

    kind = "worker"
    _list = "workers"
    _record_of = staticmethod(worker_of)

    @property
    def ref(self) -> RemoteRef:
        """The reference by which people fire events at the entity."""
        return RemoteRef(self.kind, self.name, self, self._fire)

    @property
    def last_seen(self) -> float:
        """When the worker last answered or sent a heartbeat (UTC epoch seconds)."""
        return float(self._told["last_seen"])


class RemoteBreaker(NamedHandle[BreakerRecord], BreakerVerbs):
    """The circuit breaker of a tool in another process, with the verbs of `BreakerHandle`."""

    kind = "breaker"
    _list = "breakers"
    _record_of = staticmethod(breaker_of)

    @property
    def ref(self) -> RemoteRef:
        """The reference by which people fire events at the entity."""
        return RemoteRef(self.kind, self.name, self, self._fire)

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.name

    @property
    def retry_in(self) -> float:
        """Seconds until the breaker lets one task probe the tool; 0 if the breaker is not open."""
        return max(0.0, (self.record.due_at or 0.0) - time.time())

    @property
    def parked(self) -> int:
        """How many tasks wait for the breaker."""
        return int(self._told["parked"])

    async def _say(self, verb: str, said: Arguments, request_id: str | None) -> dict[str, Any]:
        if "check" in said:
            raise TypeError("a breaker of another process is reset without a check: run it here first")
        return await super()._say(verb, said, request_id)


class RemoteMachine(NamedHandle[MachineRecord], MachineVerbs):
    """A `MachineActor` in another process, with the verbs of `MachineRef`."""

    kind = "machine"
    _list = "machines"
    _record_of = staticmethod(machine_of)

    @property
    def facts(self) -> Any:
        """The machine's facts, as last received: JSON values by name. None if it has none."""
        raw = self.record.facts
        return None if raw is None else msgspec.json.decode(raw)

    def _checked(self, message: Fire) -> Fire:
        return check_fire(message, "a MachineActor")

    async def _answer(self, message: Fire) -> Transitioned:
        said = {name: getattr(message, name) for name in ("event", "reason", "metadata", "facts", "by")}
        answer = await self._say("fire", said, message.request_id)
        return transition_of(answer["transition"])
