"""`callboard status JOB --plan`: which tasks of a job can run at the same time.

Rules
-----
- A wave holds the tasks that can begin when all waves before it have ended: each task is in the first wave that its
  dependencies allow. A task waits only for its dependencies, not for the whole wave before.
- The plan is that of the specification of the job's present run, with each task's state.
- Only limits that the specification sets are shown. The workers and tools of the runtime are not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.spec.graph import waves_of
from ...actors.spec.model import Task, Workstream
from . import words
from .command_errors import CommandError
from .terminal import echo, echo_json

if TYPE_CHECKING:
    from ...actors.records.entities import JobRecord
    from ...actors.records.task import TaskRecord
    from ..journal.contract import JournalQueries


def show(reader: JournalQueries, job: JobRecord, tasks: list[TaskRecord], *, as_json: bool) -> None:
    """Print the execution plan of a job. Raises CommandError if the journal does not have its specification."""
    spec = _spec_of(reader, job)
    waves = waves_of(spec.tasks)
    if as_json:
        states = {task.name: str(task.shown) for task in tasks}
        echo_json(_head(job, spec, waves))
        for number, wave in enumerate(waves, 1):
            for task in wave:
                echo_json(_task(task, number, states.get(task.name)))
        return
    _print(job, spec, waves, {task.name: words.state(task) for task in tasks})


def show_dag(reader: JournalQueries, job: JobRecord) -> None:
    """Print the DAG file of a job (document 001), for `run --dag`. Raises CommandError without a specification."""
    spec = _spec_of(reader, job)
    edges = {task.name: list(task.depends_on) for task in spec.tasks}
    echo_json({"task_count": len(spec.tasks), "depends_on": edges})


def _spec_of(reader: JournalQueries, job: JobRecord) -> Workstream:
    encoded = reader.spec(job.stream)
    if encoded is None:
        raise CommandError(f"The specification of job {job.id} is not in this journal.")
    return msgspec.json.decode(encoded, type=Workstream)


def _print(job: JobRecord, spec: Workstream, waves: list[list[Task]], states: dict[str, str]) -> None:
    from ...machines.keywords import number_of  # noqa: PLC0415
    from .status import table  # noqa: PLC0415 - it imports this module

    most = "" if spec.max_parallel is None else f", at most {spec.max_parallel} at a time"
    count = len(spec.tasks)
    echo(f"job {job.id}: {job.name}, {number_of(count, 'task')} in {number_of(len(waves), 'wave')}{most}")
    for name, limit in _tool_limits(spec).items():
        users = sum(task.tool == name for task in spec.tasks)
        echo(f"tool {name}: at most {limit} at a time, of {number_of(users, 'task')}")
    rows = [
        [str(number), f"{job.id}/{task.name}", states.get(task.name, ""), ", ".join(_awaited(task)), _told(task)]
        for number, wave in enumerate(waves, 1)
        for task in wave
    ]
    table(("wave", "task", "state", "waits for", "notes"), rows)


def _awaited(task: Task) -> list[str]:
    return [*task.depends_on, *(f"the end of {name}" for name in task.after)]


def _told(task: Task) -> str:
    """List other settings that decide when a task runs, or whether it does."""
    facts = [
        "" if task.receive is None else f"receives {task.receive}",
        "" if task.tool is None else f"tool {task.tool}",
        "" if not task.priority else f"priority {task.priority}",
        "" if task.condition is None else "conditional",
        "" if task.hold is None else "needs approval",
        "" if task.wait is None else f"waits {task.wait}",
        "optional" if task.optional else "",
    ]
    return ", ".join(filter(None, facts))


def _tool_limits(spec: Workstream) -> dict[str, int]:
    used = {task.tool for task in spec.tasks}
    tools = ((name, tool.max_parallel) for name, tool in spec.tools.items() if name in used)
    return {name: limit for name, limit in tools if limit is not None}


def _head(job: JobRecord, spec: Workstream, waves: list[list[Task]]) -> dict[str, Any]:
    return {
        "kind": "plan",
        "id": job.id,
        "name": job.name,
        "tasks": len(spec.tasks),
        "waves": [[task.name for task in wave] for wave in waves],
        "max_parallel": spec.max_parallel,
        "tools": _tool_limits(spec),
    }


def _task(task: Task, wave: int, state: str | None) -> dict[str, Any]:
    names = ("name", "receive", "depends_on", "after", "tool", "priority", "optional", "wait")
    given = {name: getattr(task, name) for name in names}
    more = {"conditional": task.condition is not None, "needs_approval": task.hold is not None}
    return {"kind": "planned", "wave": wave, "state": state, **given, **more}
