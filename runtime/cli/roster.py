"""Which workers the program has that ran a journal last: those that `resume` and `serve` start when no file says any.

Rules
-----
- A worker is of the program that started it, whenever that was: at its start, made by an operator or over HTTP while it
  ran, or anew after a crash. The last program is the one that was started last.
  (So the last row of each worker is never removed while no later program has started one.)
- What an operator has shut down or terminated is none of it any more, until somebody starts it again. What crashed, was
  given up, was recycled, or ended with the program, is. Where operators have ended all, somebody wants them now.
- Each is started as its last incarnation was: engine, capacity, capabilities, labels, lifecycle.
- Records of older versions do not say their program: of those it is who lived when it was killed, or was closed with
  it.
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
    """Them, of all records of workers; None where there never was one."""
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
    """The last incarnation of each, in the order in which they first came."""
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
