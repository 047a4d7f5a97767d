"""The answers' contents: one Struct for each kind of entity, made from its record.

Rules
-----
- Fields have the names, units and meanings of the records (`actors/records/entities.py`); times are UTC epoch seconds.
  Fields that only the runtime needs (keys, epochs, tokens, environments) are left out.
- Every view of an entity is a `View`. `state` is in the words of its lifecycle, and `status` is the same, as document
  002 calls it; `phase` is its meaning for the runtime; `actions` are the verbs that it takes now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ....actors.records.base import CheckResult, Decision, Record
from ....actors.records.entities import BreakerRecord, JobRecord, MachineRecord, WorkerRecord, WorkstreamRecord
from ....actors.records.message import MessageRecord
from ....actors.records.step import StepRecord, of_present
from ....actors.records.task import AttemptRecord, TaskRecord
from ....actors.records.transition import Transitioned
from ...calling import Progress
from ...handles.approvals import PendingApproval
from .bars import Bar

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list. next: the `cursor` of the following page, null at the end."""

    items: list[T]
    next: str | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of every entity. lifecycle: its name, if it is not the runtime's own."""

    kind: str
    id: str
    name: str
    state: str
    status: str
    phase: str
    lifecycle: str | None
    actions: list[str]
    run: int
    reason: str | None
    created_at: float
    updated_at: float
    started_at: float | None
    finished_at: float | None
    due_at: float | None


class JobView(View, frozen=True, kw_only=True):
    """A job. workstream: its run's id; workstream_state: the run's state.

    waits_until: when the run's wait for people or for its time ends; test_results: of its final checks that have ended;
    counts: its tasks by phase, `total` in all.
    """

    error: str | None
    by: str | None
    description: str | None
    workstream: str | None
    workstream_state: str | None
    waits_until: float | None
    test_results: Sequence[CheckResult]
    parent_id: str | None
    retry_at: float | None
    depth: int
    runs: int
    first: int
    worker_count: int
    counts: dict[str, int]
    total: int
    children: list[str]


class WorkstreamView(View, frozen=True, kw_only=True):
    """A run of a job. cause: why it is cancelling; decisions: on its hold; deadline_at: when it is cancelled.

    test_results: of its final checks that have ended.
    """

    job_id: str
    task_count: int
    cause: str | None
    error: str | None
    deadline_at: float | None
    hold_until: float | None
    wait_until: float | None
    decisions: Sequence[Decision]
    test_results: Sequence[CheckResult]


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a task. end: succeeded, failed, timed_out, lost, cancelled or returned; null while it runs.

    cpu_seconds: user and system time of a command, or of a body in a worker process; peak_memory_bytes: its most
    resident memory; both null if not known. tool: the one with which it began. left_behind: numbers of processes that
    left its group, and were running at its end.
    """

    task_id: str
    attempt: int
    worker_id: str | None
    claimed_at: float
    ended_at: float | None
    end: str | None
    error: str | None
    exit_code: int | None
    duration_ms: int | None
    output_size: int | None
    traceback: str | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    tool: str | None
    left_behind: tuple[int, ...]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One durable step of a task's body. label: its name, with its number if that is not 1: "charge#2".

    state: completed, failed, cancelled (while it waited, or ran on a worker), or waiting, for its next try if it has an
    error. tool: the one that its function uses; tool_use: "waits" while it waits for the tool, then "holds". engine,
    capabilities: of the worker on which its function runs; worker_use: "waits" while it waits for one, then "holds";
    unroutable: why no worker can run it; these and tool_use are null once the attempt has ended. task_id, attempt,
    worker_id: where it ran last; an earlier run of the task, too. tries: how often its function was called; began_at:
    of the first try; duration_ms: from there to its end; due_at: when its wait is over; cancelled_at: when its body has
    cancelled it while it waited, or ran on a worker, or when its task ended meanwhile. arguments: of the call, by
    position and by name; null if there were none, or JSON cannot hold them, or they have more than 2,048 bytes.
    """

    task_id: str
    label: str
    name: str
    number: int
    function: str
    state: str
    attempt: int
    tries: int
    worker_id: str | None
    tool: str | None
    tool_use: str | None
    engine: str | None
    capabilities: tuple[str, ...]
    worker_use: str | None
    unroutable: str | None
    began_at: float
    ended_at: float | None
    duration_ms: int | None
    due_at: float | None
    cancelled_at: float | None
    arguments: Any
    result: Any
    error: str | None
    error_type: str | None
    category: str | None
    traceback: str | None


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that no body has received yet. task: the only task that may receive it; null: whichever asks first."""

    name: str
    task: str | None
    value: Any
    sent_at: float
    by: str | None


class WorkerView(View, frozen=True, kw_only=True):
    """A worker's last incarnation. id: the worker's name, which stays; entity_id: the incarnation's id in events.

    last_seen: its last sign of life; missed: failed health checks in a row.
    """

    entity_id: str
    engine: str
    capacity: int
    capabilities: list[str]
    assigned: int
    paused: bool
    pause_reason: str | None
    draining: bool
    missed: int
    last_seen: float
    drain_until: float | None
    resume_at: float | None
    metadata: dict[str, Any]


class BreakerView(View, frozen=True, kw_only=True):
    """The circuit breaker of a tool. id: the tool; entity_id: its id in transitions and events.

    cooldown: seconds; retry_in: seconds until it allows a trial attempt; parked: tasks that wait for it; probe: whether
    a trial attempt runs. max_parallel: attempts that may use the tool at the same time, over all workstreams and nodes;
    limit_by and said_by: what sets the limit, and the breaker's settings: a job, "runtime", or another node's runtime;
    not_before: no task of the tool starts before this time, which the tool has asked for.
    """

    entity_id: str
    tool: str
    failures: int
    successes: int
    failure_threshold: int
    success_threshold: int
    cooldown: float
    generation: int
    retry_in: float
    parked: int
    probe: bool
    said_by: str | None
    max_parallel: int | None
    limit_by: str | None
    not_before: float | None


class MachineView(View, frozen=True, kw_only=True):
    """A machine of the application. machine: its machine's name; events: its state's; due: times of timed events."""

    machine: str
    events: list[str]
    facts: Any
    due: dict[str, float]


class ApprovalView(PendingApproval, frozen=True, kw_only=True):
    """A hold or approval: `PendingApproval`, and its verbs. yours: whether the caller can decide it, null if unknown.

    why_not: the reason, if the caller cannot.
    """

    name: str
    actions: list[str]
    yours: bool | None
    why_not: str | None


class TransitionPage(msgspec.Struct, frozen=True):
    """Transitions in order. next: the `after` (or `before`) of the following page; null if there is none yet."""

    items: list[Transitioned]
    next: int | None = None


class Graph(msgspec.Struct, frozen=True):
    """All tasks of a run, as parallel lists. layers: the length of the longest path to each; edges are task numbers.

    progress: the progress that running bodies have reported, by the names of their tasks.
    """

    run: int
    names: list[str]
    states: list[str]
    phases: list[str]
    layers: list[int]
    depends_on: list[list[int]]
    after: list[list[int]]
    optional: list[bool]
    progress: dict[str, Progress] = {}


class Row(msgspec.Struct, frozen=True):
    """The bars of the task with that number."""

    task: int
    bars: list[Bar]


class Timeline(msgspec.Struct, frozen=True):
    """The phases of tasks, with times. now: the runtime's clock."""

    run: int
    now: float
    rows: list[Row]


class TaskView(View, frozen=True, kw_only=True):
    """A task of a job's present run. command: whether it is a command, which has an output from its first attempt on.

    receive: the name of the message that it receives, if it does nothing else;
    output_size: bytes that its command wrote; cpu_seconds, peak_memory_bytes: used by its last attempt, if known;
    test_results: of its acceptance tests that have ended; flow: whether its body has taken durable steps; round: more
    than 1 if its body has begun anew (`task.again`);
    progress: the last one that its running body has reported; facts: other fields of its record.
    """

    job_id: str
    workstream_id: str
    index: int
    attempt: int
    max_attempts: int
    max_losses: int
    last_error: str | None
    error_type: str | None
    error_category: str | None
    error_count: int
    exit_code: int | None
    execution_ms: int | None
    worker_id: str | None
    tool: str | None
    command: bool
    receive: str | None
    result: Any
    details: Any
    depends_on: list[str]
    after: list[str]
    optional: bool
    hold_until: float | None
    wait_until: float | None
    decisions: Sequence[Decision]
    output_size: int | None
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    test_results: Sequence[CheckResult]
    flow: bool
    round: int
    progress: Progress | None
    facts: dict[str, Any]


class PublishedView(msgspec.Struct, frozen=True):
    """The last value that was published under a name: by which task, in which attempt of it, and when."""

    value: Any
    task_id: str
    attempt: int
    at: float


def published_view(step: StepRecord) -> PublishedView:
    """Make the view of a published value."""
    return PublishedView(step.raw_result, step.task_id, step.attempt, step.began_at)


def entity(record: Record) -> dict[str, Any]:
    """Return the fields of `View`, without `actions`."""
    published = record.published
    state = record.shown
    return {
        "kind": record.kind, "id": record.id, "name": record.name, "state": state, "status": state,
        "phase": record.state, "lifecycle": None if published is None else published.lifecycle, "run": record.run,
        "reason": record.reason, "created_at": record.created_at, "updated_at": record.updated_at,
        "started_at": record.started_at, "finished_at": record.finished_at, "due_at": record.due_at,
    }  # fmt: skip


def by_name(record: WorkerRecord | BreakerRecord) -> dict[str, Any]:
    """Return the same for an entity whose name is its id here."""
    return {**entity(record), "id": record.name, "entity_id": record.id}


def job_view(
    job: JobRecord,
    *,
    run: WorkstreamRecord | None,
    actions: list[str],
    counts: dict[str, int],
    children: list[str],
) -> JobView:
    """Make the view of a job."""
    return JobView(
        **entity(job), actions=actions, error=job.error, by=job.by, description=job.description,
        workstream=job.workstream,
        workstream_state=None if run is None else run.shown, waits_until=None if run is None else run.waits_until,
        test_results=() if run is None else run.test_results,
        parent_id=job.parent_id, retry_at=job.retry_at, depth=job.depth, runs=job.runs, first=job.first,
        worker_count=job.worker_count, counts=counts, total=sum(counts.values()), children=children,
    )  # fmt: skip


def workstream_view(run: WorkstreamRecord, actions: list[str]) -> WorkstreamView:
    """Make the view of a run."""
    return WorkstreamView(
        **entity(run), actions=actions, job_id=run.job_id, task_count=run.task_count, cause=run.cause, error=run.error,
        deadline_at=run.deadline_at, hold_until=run.hold_until, wait_until=run.wait_until, decisions=run.decisions,
        test_results=run.test_results,
    )  # fmt: skip


def attempt_view(record: AttemptRecord) -> AttemptView:
    """Make the view of an attempt."""
    return AttemptView(**{name: getattr(record, name) for name in AttemptView.__struct_fields__})


def step_view(record: StepRecord, task: TaskRecord) -> StepView:
    """Make the view of a step. task: in which its flow goes on."""
    record = of_present(record, task)
    raw: dict[str, Any] = {"arguments": record.raw_given, "result": record.raw_result}
    return StepView(**{name: getattr(record, name) for name in StepView.__struct_fields__ if name not in raw}, **raw)


def message_view(record: MessageRecord) -> MessageView:
    """Make the view of a message."""
    return MessageView(name=record.name, task=record.task, value=record.raw_value, sent_at=record.sent_at, by=record.by)


def worker_view(record: WorkerRecord, *, last_seen: float, actions: list[str]) -> WorkerView:
    """Make the view of a worker."""
    return WorkerView(
        **by_name(record), actions=actions, engine=record.engine, capacity=record.capacity,
        capabilities=list(record.capabilities), assigned=record.assigned, paused=record.paused,
        pause_reason=record.pause_reason, draining=record.draining, missed=record.missed, last_seen=last_seen,
        drain_until=record.drain_until, resume_at=record.resume_at, metadata=record.metadata,
    )  # fmt: skip


def breaker_view(record: BreakerRecord, *, retry_in: float, parked: int, actions: list[str]) -> BreakerView:
    """Make the view of a breaker."""
    return BreakerView(
        **by_name(record), actions=actions, tool=record.name, failures=record.failures, successes=record.successes,
        failure_threshold=record.failure_threshold, success_threshold=record.success_threshold,
        cooldown=record.cooldown, generation=record.generation, retry_in=retry_in, parked=parked,
        probe=record.probe is not None, said_by=record.said_by,
        max_parallel=record.limit[0], limit_by=record.limit[1], not_before=record.not_before,
    )  # fmt: skip


def machine_view(record: MachineRecord, *, events: list[str], actions: list[str]) -> MachineView:
    """Make the view of a machine."""
    return MachineView(
        **entity(record), actions=actions, machine=record.machine, events=events, facts=record.facts, due=record.due
    )


def approval_view(one: PendingApproval, *, yours: bool | None, why_not: str | None) -> ApprovalView:
    """Make the view of a hold or approval."""
    fields = {name: getattr(one, name) for name in PendingApproval.__struct_fields__}
    name = one.approval or one.task or one.job_name
    return ApprovalView(**fields, name=name, actions=["approve", "reject"], yours=yours, why_not=why_not)


def task_view(
    task: TaskRecord,
    *,
    actions: list[str],
    tool: str | None = None,
    command: bool = False,
    receive: str | None = None,
    depends_on: Sequence[str] = (),
    after: Sequence[str] = (),
    progress: Progress | None = None,
) -> TaskView:
    """Make the view of a task. Its specification's fields are not in its record."""
    return TaskView(
        **entity(task), actions=actions, job_id=task.job_id, workstream_id=task.workstream_id, index=task.index,
        attempt=task.attempt, max_attempts=task.max_attempts + task.granted, max_losses=task.max_losses,
        last_error=task.last_error, error_type=task.error_type, error_category=task.error_category,
        error_count=task.error_count, exit_code=task.exit_code, execution_ms=task.execution_ms,
        worker_id=task.worker_id, tool=tool, command=command, receive=receive, result=task.raw_result,
        details=task.raw_details, depends_on=list(depends_on), after=list(after), optional=task.optional,
        hold_until=task.hold_until, wait_until=task.wait_until, decisions=task.decisions, output_size=task.output_size,
        cpu_seconds=task.cpu_seconds, peak_memory_bytes=task.peak_memory_bytes, test_results=task.test_results,
        flow=bool(task.flow), round=task.rounds + 1, progress=progress,
        facts={
            "failed_attempts": task.failed_attempts, "lost_attempts": task.lost_attempts, "granted": task.granted,
            "deferrals": task.deferrals,
            "limit": task.limit, "routable": task.routable, "parked": task.parked, "standing": task.standing,
            "queued_at": task.queued_at, "claimed_at": task.claimed_at, "ended_at": task.ended_at,
            "validation_ms": task.validation_ms, "circuit_state": task.circuit_state, "on_loss": task.on_loss,
            "on_exhausted": task.on_exhausted, "checked": task.checked,
        },
    )  # fmt: skip
