"""The workers of a journal's last program: `resume` and `serve` start them by default.

Rules
-----
- A worker belongs to the program that started it at any time: at its start, for an operator, over HTTP, or again after
  a crash. The last program is the one that was started last.
  (So the last row of each worker is never removed while no later program has started that worker.)
- A worker that an operator has shut down or terminated is left out, until it is started again. One that crashed, was
  given up, was recycled, or ended with the program, is included. If operators have ended all, all are started.
- Each is started with the settings of its last incarnation: engine, capacity, capabilities, labels, lifecycle.
- Records of older versions have no program: of those, the workers count that were alive when the program was killed, or
  that were closed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...actors.workers.health import spec_of
from ...actors.workers.worker import CLOSED

if TYPE_CHECKING:
    from ...actors.records.entities import WorkerRecord
    from ...actors.spec.model import Worker


def last_workers(records: Sequence[WorkerRecord]) -> list[Worker] | None:
    """Select the last workers from all records of workers; None if there never was a worker."""
    if not records:
        return None
    program = max(record.program for record in records)
    if program:
        last = _last([record for record in records if record.program == program])
        found = [record for record in last if not record.retired] or last
    else:
        found = _of_an_older_version(records)
    return [spec_of(record) for record in found]


def _last(records: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Return the last incarnation of each worker, in the order of their first records."""
    last: dict[str, WorkerRecord] = {}
    for record in sorted(records, key=lambda one: one.key):
        last[record.name] = record
    return [*last.values()]


def _of_an_older_version(records: Sequence[WorkerRecord]) -> list[WorkerRecord]:
    last, newest = _last(records), max(record.created_at for record in records)
    living = [record for record in last if record.finished_at is None]
    closed = [
        record
        for record in last
        if record.finished_at is not None and record.finished_at >= newest and record.reason == CLOSED
    ]
    return living or closed or [record for record in last if record.created_at == newest]
