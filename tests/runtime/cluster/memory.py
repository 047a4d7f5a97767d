"""The database in memory of the simulation, for runtimes that really run: what they append is written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
from tests.reliability.simulation.cluster import MemoryCluster, NodeJournal
from tests.reliability.simulation.server import Server, Session

from callboard.actors.records.loaded import Loaded
from callboard.actors.records.transition import Transitioned
from callboard.runtime.errors import JournalError, LeaseLost
from callboard.runtime.journal.cluster import ToolDemand
from callboard.runtime.journal.contract import Health, InboxRow, belongs_to
from callboard.runtime.journal.sharing import ToolClaim


def wrong(kind: str, text: str) -> None:
    """Raise the error that the database finds in a node's act."""
    raise AssertionError(f"{kind}: {text}")


class Shared(Server):
    """The database of all nodes. clock: seconds that never go back."""

    def __init__(self, clock: Callable[[], float], lease: float = 15.0) -> None:
        super().__init__(clock, wrong)
        self.lease = lease
        self.notifiers: list[MemoryNotifier] = []
        self.ring = self._ring

    def node(self, name: str) -> MemoryNode:
        """A journal of this database, for a runtime."""
        return MemoryNode(self, name)

    def fenced_at(self, name: str) -> float:
        """The time when a node of that name was fenced; 0 if none was."""
        return max((one.ended_at for one in self.sessions if one.name == name and one.ended_as == "fenced"), default=0)

    def _ring(self, _: Session) -> None:
        for notifier in self.notifiers:
            notifier.changed.set()


class MemoryNotifier:
    """Waits for changes of the common database."""

    def __init__(self, base: Shared) -> None:
        self.changed = anyio.Event()
        self._base = base
        base.notifiers.append(self)

    async def wait(self) -> None:
        """Wait for the next change."""
        await self.changed.wait()
        self.changed = anyio.Event()

    def close(self) -> None:
        """Stop waiting."""
        self._base.notifiers.remove(self)


class ControlledCluster(MemoryCluster):
    """A node's membership, whose answers can be lost."""

    answers_lost = False  # the answers of `share`, which has taken effect then

    def share(self, wants: Mapping[str, ToolDemand]) -> dict[str, ToolClaim]:
        """State the wanted slots of these tools."""
        told = super().share(wants)
        if self.answers_lost:
            raise JournalError("the answer did not come")
        return told


class MemoryNode(NodeJournal):
    """One node's journal. Its membership exists once it is open."""

    def __init__(self, base: Shared, name: str) -> None:
        super().__init__(base)
        self.base = base
        self.name = name
        self.lost = False

    def open(self, *, on_durable: Callable[[], None], **_: Any) -> Loaded:
        """Join the nodes."""
        self.cluster = ControlledCluster(self.base, self.name, "here", self.base.lease)
        return super().open(on_durable=on_durable, call_threadsafe=on_durable)

    @property
    def reader(self) -> MemoryNode:
        """The journal itself."""
        return self

    @property
    def health(self) -> Health:
        """Whether the journal can write."""
        return Health(not self.sick, self.sick or None, 0.0, self.lost)

    @property
    def fenced(self) -> bool:
        """Whether other nodes have fenced it."""
        return self._joined.session.ended_as == "fenced"

    @property
    def given_back(self) -> set[int]:
        """The jobs that it has given back."""
        return self._joined.session.given_back

    def fence(self) -> None:
        """Fence this node, whatever its state is."""
        self.base._fence(self._joined.session)

    def cut_off(self, cut: bool = True) -> None:
        """Set whether it reaches the database from now on."""
        session = self._joined.session
        session.reaches, session.out_of_reach = not cut, self.base.clock() if cut else None

    def notifier(self) -> MemoryNotifier:
        """A notifier of changes of the common database."""
        return MemoryNotifier(self.base)

    def flush(self) -> None:
        """Write all waiting entries."""
        was = self.sick, self.lost
        try:
            if self.waiting:
                self.commit(len(self.waiting))
            elif self.sick:
                self.base.reach(self._joined.session)
                self.sick = ""
        except JournalError as error:
            self.sick, self.lost = str(error), isinstance(error, LeaseLost)
        if (self.sick, self.lost) != was:
            self._moved()

    def shut(self, deadline: float) -> bool:
        """Leave the nodes, if they are reached."""
        try:
            self._joined.leave()
        except JournalError:
            return False
        return True

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands that this node has to answer."""
        return self.base.inbox(self._joined.session, events=events, limit=limit)

    def transitions(
        self, *, entity_id: str | None = None, job_id: str | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[Transitioned]:
        """The transitions of all nodes, in the order of their numbers."""
        self._reach()
        rows = sorted((row for row in self.base.disk.transitions if row.seq > after), key=lambda row: row.seq)
        found = [
            row
            for row in rows
            if (entity_id is None or row.entity_id == entity_id) and (job_id is None or belongs_to(row) == job_id)
        ]
        return iter(found[:limit])

    def _reach(self) -> None:
        if not self.base.up or (self.cluster is not None and not self.cluster.session.reaches):
            raise JournalError("the database is not reached")

    def __getattr__(self, name: str) -> Any:  # the queries of a reader
        if name.startswith("_"):
            raise AttributeError(name)

        def ask(*args: Any, **more: Any) -> Any:
            self._reach()
            return getattr(self.base.disk.journal, name)(*args, **more)

        return ask
