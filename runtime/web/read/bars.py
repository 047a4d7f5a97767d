"""The bars of a run's timeline, from its transitions: each task's phases, with their times.

Rules
-----
- A transition ends the bar before it; a terminal one begins none. A phase in which nothing happens (`pending`) has no
  bar.
- Only transitions after the last read are read. Reads run in a thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

import msgspec

from ....actors.records.transition import Transitioned
from ....machines.lifecycles import LIFECYCLES
from ...journal.contract import Reader

_NONE = frozenset({"pending", "completed", "failed", "cancelled", "skipped"})


class Bar(msgspec.Struct, rename={"since": "from", "until": "to"}, gc=False):
    """A phase of a task, in that attempt. to: null while the phase lasts."""

    phase: str
    since: float
    until: float | None
    attempt: int


class Bars:
    """The bars of one run."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Bar]] = {}  # by task name
        self.seq = 0  # the last transition that was taken in
        self._attempts: dict[str, int] = {}
        self._lifecycles: dict[str, str] = {}  # of tasks with a published lifecycle
        self._one_at_a_time = Lock()

    def read(self, journal: Reader, job_id: str, workstream_id: str) -> None:
        """Read the transitions since the last read. Blocks."""
        with self._one_at_a_time:
            self.take(journal.transitions(job_id=job_id, after=self.seq), workstream_id)

    def take(self, transitions: Iterable[Transitioned], workstream_id: str) -> None:
        """Add transitions, in their order."""
        start = len(workstream_id) + 1
        for row in transitions:
            self.seq = row.seq
            if row.kind == "task" and row.workstream_id == workstream_id:
                self._enter(row.entity_id[start:], row)

    def _enter(self, name: str, row: Transitioned) -> None:
        bars = self.rows.setdefault(name, [])
        if bars and bars[-1].until is None:
            if row.to_state == row.from_state:
                return
            bars[-1].until = row.at
        if row.attempt:
            self._attempts[name] = row.attempt
        if row.from_state is None and row.metadata and "lifecycle" in row.metadata:
            self._lifecycles[name] = row.metadata["lifecycle"]
        phase = _phase(row, self._lifecycles.get(name))
        if phase not in _NONE:
            bars.append(Bar(phase, row.at, None, self._attempts.get(name, 0)))


def _phase(row: Transitioned, lifecycle: str | None) -> str:
    declared = None if lifecycle is None else LIFECYCLES.get(lifecycle, {}).get("task")
    return str(row.phase) if declared is None else str(declared.phase(row.to_state))
