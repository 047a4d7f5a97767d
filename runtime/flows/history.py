"""The history of a flow as one JSON document: what a replay of its body needs, without the journal.

Rules
- It holds what the body was given (arguments, results of dependencies, checkpoint) and what was kept for it: its steps,
  the approvals that it has asked for, and its child jobs.
- Values of secrets are masked in it, as in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.records.entities import ApprovalRecord, JobRecord
from ...actors.records.step import StepRecord
from ...actors.records.task import TaskRecord
from ...actors.spec.model import Defaults, Tool, Workstream

if TYPE_CHECKING:
    from ..journal.contract import JournalQueries

VERSION = 1
"""The version of these documents: a program refuses a later one."""


class ChildHistory(msgspec.Struct, frozen=True):
    """A child job, and the tasks of its present run. name: the one under which the body has submitted it.

    workstream: the submitted one, with what it has inherited. Histories of earlier releases lack it.
    """

    name: str
    job: JobRecord
    tasks: list[TaskRecord]
    workstream: Workstream | None = None


class FlowHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The history of the flow of one task. error_type: of its last failure. saved, details: as its body gets them.

    defaults, tools: the settings of its workstream, which child jobs inherit.
    """

    version: int = VERSION
    job_id: str = ""
    workstream_id: str = ""
    task: str = ""
    attempt: int = 1
    error_type: str | None = None
    args: dict[str, Any] = {}
    results: dict[str, Any] = {}
    saved: Any = None
    details: Any = None
    steps: list[StepRecord] = []
    approvals: list[ApprovalRecord] = []
    children: list[ChildHistory] = []
    defaults: Defaults = Defaults()
    tools: dict[str, Tool] = {}


def history_of(reader: JournalQueries, job: JobRecord, tasks: list[TaskRecord], task: TaskRecord) -> FlowHistory:
    """The history of the flow of a task. tasks: all of its run."""
    encoded = reader.spec(job.stream)
    whole = None if encoded is None else msgspec.json.decode(encoded, type=Workstream)
    spec = None if whole is None else whole.tasks[task.index]
    ended = {one.name: one.result for one in tasks}
    before = () if spec is None else (*spec.depends_on, *spec.after)
    approvals = reader.approvals(task.workstream)
    return FlowHistory(
        job_id=job.id, workstream_id=task.workstream_id, task=task.name, attempt=task.attempt,
        error_type=task.error_type, args=_args(task.args, None if spec is None else spec.args),
        results={name: ended.get(name) for name in before}, saved=task.checkpoint, details=task.details,
        steps=reader.steps(task.flow) if task.flow else [],
        approvals=[one for one in approvals if (one.task, one.rounds) == (task.key, task.rounds)],
        children=list(_children(reader, job, task)), defaults=Defaults() if whole is None else whole.defaults,
        tools={} if whole is None else whole.tools,
    )  # fmt: skip


def _args(anew: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict((given or {}) if anew is None else anew)


def _children(reader: JournalQueries, parent: JobRecord, task: TaskRecord) -> list[ChildHistory]:
    """The child jobs of a task in its present round (`runtime/jobs/child_jobs.py` names them)."""
    found: list[ChildHistory] = []
    prefix = f"{task.job_id}/{task.name}/"
    ending = f"~{task.rounds + 1}" if task.rounds else ""
    for job in reader.children(task.job_id):
        name = job.id.removeprefix(prefix)
        if name == job.id or not name.endswith(ending):
            continue
        if job.finished_at is not None and job.parent_run < parent.first:
            continue  # of a job that this one has replaced
        run = job.last_of(reader.workstreams(job.id))
        tasks, encoded = [] if run is None else reader.tasks(run.key), reader.spec(job.stream)
        workstream = None if encoded is None else msgspec.json.decode(encoded, type=Workstream)
        found.append(ChildHistory(name.removesuffix(ending), job, tasks, workstream))
    return found
