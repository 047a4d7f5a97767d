"""The journal of a simulation: in memory, with slow, failing and lost commits.

Rules
-----
- An appended entry is durable when a commit has written it. Commits are happenings of the simulation: they come
  in any order with other happenings of that moment, take as long as the test sets, and fail while the test says so.
- As in a file, entries that are appended during a commit go with the next one, and a commit is whole or not done.
- `crash` drops the entries that are not durable. The next runtime loads the rest, decoded from its encoded form, so
  that only persisted data survives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...actors.records.entities import RequestRecord
from ...actors.records.loaded import Loaded
from ...actors.records.step import StepRecord
from ...actors.records.transition import Transitioned
from ..journal.contract import Entry, Health, InboxRow
from ..journal.memory import MemoryJournal

if TYPE_CHECKING:
    from .world import World

UNBOUNDED = 1 << 60
FIRST_RETRY, LONGEST_RETRY = 0.1, 5.0
"""Seconds between two tries of a batch that cannot be written."""


class SimulatedJournal(MemoryJournal):
    """A journal that a simulation controls. It outlives the runtimes that are opened on it."""

    shared = Path("simulated.db")  # type: ignore[assignment]  # gives the journal an inbox

    def __init__(self, world: World) -> None:
        super().__init__(history=UNBOUNDED, ended_jobs=UNBOUNDED, ended_tasks=UNBOUNDED)
        self.latency = 0.0
        """The longest time of a commit, in seconds; the seed decides each time."""
        self.commits = 0
        self._world = world
        self._pending: list[Entry] = []
        self._batch: list[Entry] = []  # the batch that is being written
        self._broken: str | None = None  # the reason of failing commits
        self._retry = FIRST_RETRY
        self._inbox: dict[int, InboxRow] = {}
        self._answers: dict[int, str] = {}
        self._call: Callable[[Callable[[], None]], object] = _never

    # -- the contract --------------------------------------------------------------------------------------------------

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Load the live entities from their encoded form."""
        loaded = super().open(on_durable=on_durable, call_threadsafe=call_threadsafe, after_commit=after_commit)
        self._call = call_threadsafe
        loaded.last_command = len(self._inbox)
        return msgspec.json.decode(msgspec.json.encode(loaded), type=Loaded)

    def append(self, entry: Entry) -> int:
        """Append one turn."""
        self._pending.append(entry)
        self.backlog += len(entry.transitions)
        self.tail += 1
        self._plan()
        return self.tail

    def flush(self) -> None:
        """Do nothing: the seed decides when pending entries are written."""

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, oldest first, as in the contract."""
        left = (row for number, row in self._inbox.items() if number not in self._answers)
        return [*islice((row for row in left if events in {None, row.kind == "machine"}), limit)]

    # -- other processes ---------------------------------------------------------------------------------------

    def put(self, row: InboxRow) -> int:
        """Put a command into the inbox, durably, as another process would. Returns its number."""
        number = len(self._inbox) + 1
        self._inbox[number] = msgspec.structs.replace(row, row=number)
        return number

    def answer(self, row: int) -> str | None:
        """The answer to a row of the inbox, as JSON; None before the answer."""
        return self._answers.get(row)

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Let every commit fail from now on, until `mend`."""
        self._broken = reason

    def mend(self) -> None:
        """Let commits succeed again; waiting entries are retried automatically."""
        self._broken = None

    def crash(self) -> int:
        """Drop the entries that are not durable. Returns their number."""
        lost = len(self._pending) + len(self._batch)
        self._pending, self._batch = [], []
        self.tail, self.backlog = self.durable, 0
        self.health, self._retry = Health(), FIRST_RETRY
        self._on_durable, self._after_commit, self._call = _nothing, None, _never
        return lost

    # -- writing -------------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        if self._batch or not self._pending:
            return
        self._batch, self._pending = self._pending, []
        world = self._world
        world.later(world.random.uniform(0.0, self.latency) if self.latency else 0.0, "commit", self._write)

    def _write(self) -> None:
        if self._broken is not None:
            if self.health.ok:
                self.health = Health(False, self._broken, self._world.clock.time())
                self._call(self._on_durable)
            self._world.note("journal", "cannot write", self._broken)
            self._world.later(self._retry, "commit", self._write)
            self._retry = min(self._retry * 2, LONGEST_RETRY)
            return
        tail = self.tail
        for entry in self._batch:
            self.tail = self.durable
            super().append(entry)
            self.backlog -= len(entry.transitions)
            self._answer(entry)
        self.tail = tail
        self.commits += 1
        self.health, self._retry = Health(), FIRST_RETRY
        steps = [record for entry in self._batch for record in entry.records if isinstance(record, StepRecord)]
        self._batch = []
        self._world.note("durable", self.durable)
        if self._world.kept(steps):
            return
        self._call(self._on_durable)
        self._plan()

    def _answer(self, entry: Entry) -> None:
        for answer in entry.answers:
            self._answers.setdefault(answer.row, answer.answer)
        for record in entry.records:
            if isinstance(record, RequestRecord) and record.row:
                self._answers.setdefault(record.row, bytes(record.answer).decode())


def _nothing() -> None:
    """Do nothing: there is no receiver."""


def _never(_: Callable[[], None]) -> None:
    """Do nothing: there is no loop to call."""
