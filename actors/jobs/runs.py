"""The next run of a workstream: what of the last one it keeps (DESIGN 5.15).

Rules
-----
- What has ended is never changed. A next run is another workstream with tasks of its own, under the same names: JOB@2,
  JOB@2/NAME. The history of the run before stays.
- A task that completed is carried over with its result, unless what it waited for runs again, or it was asked for. One
  that an operator skipped stays skipped. All others run again, with all of their attempts.
- A run that begins by itself is for failures that another try can help: none begins where a critical task was cancelled
  by a person, or not approved, or failed in a way that says of itself that no other try can help (`Permanent`, the
  same error too often, a loss after which it must not run again). An optional task of that kind is skipped in it,
  as what has not worked. A person's word (`retry`, `resume`, `skip`) runs all of that again.
- Of a cancelled run it is carried over only where its `checkpoint` is on. What a body saved as its checkpoint is given
  to the next run of its task, unless that was asked for by name: then it begins from nothing.
- O(tasks + edges), without recursion.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...machines import Standing, TaskState, WorkstreamState
from ..records.entities import WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.limits import LimitsResolver
from ..spec.model import Defaults, Workstream


class Kept(msgspec.Struct, frozen=True):
    """What a next run begins with, by the names of tasks.

    completed: the records of those that are carried over; skipped: why; stopped: optional ones that stay as they ended,
    and how that was; saved: checkpoints of others.
    """

    completed: dict[str, TaskRecord] = {}
    skipped: dict[str, str] = {}
    stopped: dict[str, str] = {}
    saved: dict[str, msgspec.Raw] = {}


NOTHING = Kept()


def kept_of(
    spec: Workstream,
    stream: WorkstreamRecord | None,
    tasks: Sequence[TaskRecord],
    defaults: Defaults,
    *,
    again: str | None = None,
    skip: tuple[str, str] | None = None,
    by_itself: bool = False,
) -> Kept:
    """What the run after `stream` keeps of it. again: a task that runs anew. skip: one that does not, and why.

    by_itself: nobody asked for that run.
    """
    completed: dict[str, TaskRecord] = {}
    skipped: dict[str, str] = {}
    stopped: dict[str, str] = {}
    saved: dict[str, msgspec.Raw] = {}
    limits = LimitsResolver(spec, defaults)
    cancelled = stream is not None and stream.state == WorkstreamState.CANCELLED
    for task in tasks:
        if task.state == TaskState.SKIPPED and task.standing == Standing.GOOD:
            skipped[task.name] = task.reason or "skipped in the run before"
        elif task.state == TaskState.COMPLETED:
            its = limits.of(spec.tasks[task.index])
            if not cancelled or (its.checkpoint and its.keeps(task)):
                completed[task.name] = task
        elif by_itself and task.optional and task.is_final:
            stopped[task.name] = task.reason or f"it was {task.state} in the run before"
        elif task.raw_checkpoint is not None and limits.of(spec.tasks[task.index]).keeps(task):
            saved[task.name] = task.raw_checkpoint
    if again is not None:
        for kept in (completed, skipped, saved):
            kept.pop(again, None)
    if skip is not None:
        completed.pop(skip[0], None)
        skipped[skip[0]] = skip[1]
    stays = completed.keys() | skipped.keys() | stopped.keys()
    for name in _downstream(spec, [task.name for task in spec.tasks if task.name not in stays]):
        completed.pop(name, None)
    return Kept(completed, skipped, stopped, saved)


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
