"""The next run of a workstream: the results that it keeps from the last run (DESIGN 5.15).

Rules
-----
- A run that has ended is never changed. The next run is another workstream with tasks of its own, under the same names:
  JOB@2, JOB@2/NAME. The history of the earlier run stays.
- A completed task is carried over with its result, unless a task that it depends on runs again, or a person asked for
  it by name. A task that an operator skipped stays skipped. All other tasks run again, with all of their attempts.
- An automatic run is for failures that another attempt may repair. None begins if a critical task was cancelled by a
  person, or not approved, or failed finally (`Permanent`, the same error too often, a loss after which it must not run
  again). An optional task that ended so is skipped in the automatic run, and counts as void. A command of a person
  (`retry`, `resume`, `skip`) runs all of these tasks again.
- From a cancelled run, a completed task is carried over only if its `checkpoint` is on. The checkpoint that a body
  saved is passed to the next run of its task; but a task that a person asked for by name begins without it.
- A task that did not complete keeps its flow: the completed steps of its body are not run again, and its round and the
  arguments of that round stay. A task that completed, and runs again, begins a new flow. But it keeps its flow if a
  person runs it again from one of its steps on: this step and the later ones were dropped when the run was requested.
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


class KeptResults(msgspec.Struct, frozen=True):
    """The state that a next run begins with, by the names of tasks.

    completed: records of tasks that are carried over. skipped: reasons of skipped tasks. stopped: reasons of optional
    tasks that do not run again, though they did not complete. saved: checkpoints of tasks that run again. flows: the
    records of tasks with flows that run again: their bodies go on after the steps that have completed, in
    the same round.
    """

    completed: dict[str, TaskRecord] = {}
    skipped: dict[str, str] = {}
    stopped: dict[str, str] = {}
    saved: dict[str, msgspec.Raw] = {}
    flows: dict[str, TaskRecord] = {}


NOTHING = KeptResults()


def kept_of(
    spec: Workstream,
    stream: WorkstreamRecord | None,
    tasks: Sequence[TaskRecord],
    defaults: Defaults,
    *,
    again: str | None = None,
    from_step: str | None = None,
    skip: tuple[str, str] | None = None,
    by_itself: bool = False,
) -> KeptResults:
    """The state that the run after `stream` keeps. again: a task that must run again. from_step: the step of that
    task from which on it runs again. skip: a task to skip, and why.

    by_itself: the run is automatic; no person asked for it.
    """
    completed: dict[str, TaskRecord] = {}
    skipped: dict[str, str] = {}
    stopped: dict[str, str] = {}
    saved: dict[str, msgspec.Raw] = {}
    goes_on = None if from_step is None else again
    flows = {
        task.name: task
        for task in tasks
        if (task.flow or task.anew) and (task.state != TaskState.COMPLETED or task.name == goes_on)
    }
    limits = LimitsResolver(spec, defaults)
    cancelled = stream is not None and stream.state == WorkstreamState.CANCELLED
    for task in tasks:
        if task.state == TaskState.SKIPPED and task.standing == Standing.GOOD:
            skipped[task.name] = task.reason or "skipped in the run before"
        elif task.state == TaskState.COMPLETED:
            its = limits.of(spec.tasks[task.index])
            if not cancelled or (its.checkpoint and its.keeps(task.state, task.previous_state)):
                completed[task.name] = task
        elif by_itself and task.optional and task.is_final:
            stopped[task.name] = task.reason or f"it was {task.state} in the run before"
        elif task.raw_checkpoint is not None and limits.of(spec.tasks[task.index]).keeps(
            task.state, task.previous_state
        ):
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
    return KeptResults(completed, skipped, stopped, saved, flows)


def _downstream(spec: Workstream, names: list[str]) -> set[str]:
    """These tasks and all tasks that depend on them, directly or not."""
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
