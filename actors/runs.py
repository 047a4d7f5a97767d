"""The next run of a workstream: what of the last one it keeps (DESIGN 5.15).

Rules
-----
- What has ended is never changed. A next run is another workstream with tasks of its own, under the same names: JOB@2,
  JOB@2/NAME. The history of the run before stays.
- A task that completed is carried over with its result, unless what it waited for runs again, or it was asked for. One
  that an operator skipped stays skipped. All others run again, with all of their attempts.
- Of a cancelled run nothing is carried over, except where its workstream keeps a checkpoint.
- O(tasks + edges), without recursion.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..machines import Standing, TaskState, WorkstreamState
from .records import TaskRecord, WorkstreamRecord
from .spec import Workstream


class Kept(msgspec.Struct, frozen=True):
    """What a next run begins with, by the names of tasks: records of those completed, and why others are skipped."""

    completed: dict[str, TaskRecord] = {}
    skipped: dict[str, str] = {}


NOTHING = Kept()


def kept_of(
    spec: Workstream,
    stream: WorkstreamRecord | None,
    tasks: Sequence[TaskRecord],
    *,
    again: str | None = None,
    skip: tuple[str, str] | None = None,
) -> Kept:
    """What the run after `stream` keeps of it. again: a task that runs anew. skip: one that does not, and why."""
    completed: dict[str, TaskRecord] = {}
    skipped: dict[str, str] = {}
    if stream is not None and stream.state != WorkstreamState.CANCELLED:
        for task in tasks:
            if task.state == TaskState.COMPLETED:
                completed[task.name] = task
            elif task.state == TaskState.SKIPPED and task.standing == Standing.GOOD:
                skipped[task.name] = task.reason or "skipped in the run before"
    if again is not None:
        completed.pop(again, None)
        skipped.pop(again, None)
    if skip is not None:
        completed.pop(skip[0], None)
        skipped[skip[0]] = skip[1]
    for name in _downstream(spec, [t.name for t in spec.tasks if t.name not in completed and t.name not in skipped]):
        completed.pop(name, None)
    return Kept(completed, skipped)


def _downstream(spec: Workstream, names: list[str]) -> set[str]:
    """These tasks and all that wait for them."""
    dependents: dict[str, list[str]] = {}
    for task in spec.tasks:
        for name in (*task.depends_on, *task.after):
            dependents.setdefault(name, []).append(task.name)
    seen = set(names)
    while names:
        for name in dependents.get(names.pop(), ()):
            if name not in seen:
                seen.add(name)
                names.append(name)
    return seen
