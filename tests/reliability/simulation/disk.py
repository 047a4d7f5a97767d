"""The simulated disk: durable entries, entries that wait for a commit, and the history of all durable entries.

Rules
-----
- `commit` makes entries durable, in order, several at a time. A crash loses the others.
- While the disk is sick, nothing becomes durable, and its health shows that, like a journal on a full disk.
- A restart loads records that were encoded and decoded: a record that this changes is a finding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from callboard.actors.records.entities import AnyRecord, RequestRecord
from callboard.actors.records.loaded import Loaded
from callboard.actors.records.transition import Transitioned
from callboard.runtime.journal.contract import Commits, Entry, Health, Identity
from callboard.runtime.journal.memory import MemoryJournal


class Disk:
    """The data that outlive a runtime: the present records, and every transition so far."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.records: dict[tuple[str, int], AnyRecord] = {}
        self.transitions: list[Transitioned] = []
        self.requests: dict[str, RequestRecord] = {}
        self.entries = 0
        self.row_done: Callable[[int], object] = _nothing  # gets each row of the outbox that is done

    def write(self, entry: Entry) -> None:
        """Make an entry durable."""
        self.entries += 1
        self.journal.append(entry)
        self.transitions += entry.transitions
        for record in entry.records:
            self.records[record.kind, record.key] = record
            if isinstance(record, RequestRecord):
                self.requests[record.request_id] = record
        for key in entry.outbox_done:
            self.records.pop(("outbox", key), None)
            self.row_done(key)

    def of(self, kind: type) -> list[Any]:
        """The records of a type."""
        return [record for record in self.records.values() if isinstance(record, kind)]

    def load(self) -> Loaded:
        """The data with which a new runtime begins."""
        loaded = self.journal.open(on_durable=_nothing, call_threadsafe=_nothing)
        return msgspec.json.decode(msgspec.json.encode(loaded), type=Loaded)


class SimulatedJournal:
    """The journal of one runtime, from its start to its crash or end, on a disk."""

    durable_medium = False
    identity = Identity("", "")
    shared = None

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.waiting: deque[Entry] = deque()
        self.tail = self.durable = disk.entries
        self.backlog = 0
        self.sick = False
        self.committed = Commits()
        self._moved: Callable[[], None] = _nothing

    @property
    def health(self) -> Health:
        """Whether the journal can write."""
        return Health(ok=not self.sick, reason="no space is left" if self.sick else None)

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Load the living entities."""
        self._moved = on_durable
        return self.disk.load()

    def append(self, entry: Entry) -> int:
        """Append the entry of one turn."""
        self.tail += 1
        self.backlog += len(entry.transitions)
        self.waiting.append(entry)
        return self.tail

    def commit(self, entries: int) -> None:
        """Make the next entries durable, and report them."""
        for _ in range(entries):
            entry = self.waiting.popleft()
            self.backlog -= len(entry.transitions)
            self.disk.write(entry)
            self.durable += 1
        self._moved()

    def fall_sick(self, sick: bool) -> None:
        """Set whether writes fail from now on."""
        self.sick = sick
        self._moved()

    def flush(self) -> None:
        """Do nothing: the simulation decides when an entry is written."""

    def lend(self) -> None:
        """Do nothing: there is no writer thread."""

    def __getattr__(self, name: str) -> Any:  # a reader's queries, which are answered from the durable data
        return getattr(self.disk.journal, name)


def _nothing(*_: object, **__: object) -> None:
    """Do nothing: there is no listener."""
