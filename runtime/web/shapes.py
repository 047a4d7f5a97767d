"""What goes over the wire: one Struct for each kind of thing, made from its record.

Rules
-----
- Fields have the names, units and meanings of the records (`actors/records.py`); times are UTC epoch seconds. What is
  only for the runtime (keys, epochs, tokens, environments) is not here.
- Every view of an entity is a `View`. `state` is the state in the words of its lifecycle, and `status` the same, as
  document 002 calls it; `phase` is what it means to the runtime; `actions` are the verbs that it takes now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from ...actors.base_record import Decision, Record
from ...actors.records import JobRecord
from ...actors.task_record import TaskRecord

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list. next: the `cursor` of the part that follows, null at the end."""

    items: list[T]
    next: str | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What every entity shows. lifecycle: the one that it runs by, where that is not the runtime's own."""

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
    """A job. workstream: its run's id; workstream_state: where that stands; counts: its tasks by phase, of `total`."""

    error: str | None
    by: str | None
    workstream: str | None
    workstream_state: str | None
    parent_id: str | None
    retry_at: float | None
    depth: int
    runs: int
    worker_count: int
    counts: dict[str, int]
    total: int
    children: list[str]


class TaskView(View, frozen=True, kw_only=True):
    """A task of a job's present run. output_size: bytes that its command wrote; facts: what else its record says."""

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
    result: Any
    details: Any
    depends_on: list[str]
    after: list[str]
    optional: bool
    hold_until: float | None
    wait_until: float | None
    decisions: Sequence[Decision]
    output_size: int | None
    facts: dict[str, Any]


def entity(record: Record) -> dict[str, Any]:
    """The fields of `View` but `actions`."""
    published = record.published
    state = record.shown
    return {
        "kind": record.kind, "id": record.id, "name": record.name, "state": state, "status": state,
        "phase": record.state, "lifecycle": None if published is None else published.lifecycle, "run": record.run,
        "reason": record.reason, "created_at": record.created_at, "updated_at": record.updated_at,
        "started_at": record.started_at, "finished_at": record.finished_at, "due_at": record.due_at,
    }  # fmt: skip


def job_view(
    job: JobRecord,
    *,
    workstream_state: str | None,
    actions: list[str],
    counts: dict[str, int],
    children: list[str],
) -> JobView:
    """A job as it is shown."""
    return JobView(
        **entity(job), actions=actions, error=job.error, by=job.by, workstream=job.workstream,
        workstream_state=workstream_state, parent_id=job.parent_id, retry_at=job.retry_at, depth=job.depth,
        runs=job.runs, worker_count=job.worker_count, counts=counts, total=sum(counts.values()), children=children,
    )  # fmt: skip


def task_view(
    task: TaskRecord,
    *,
    actions: list[str],
    tool: str | None = None,
    depends_on: Sequence[str] = (),
    after: Sequence[str] = (),
) -> TaskView:
    """A task as it is shown. What its specification says of it stands in no record."""
    return TaskView(
        **entity(task), actions=actions, job_id=task.job_id, workstream_id=task.workstream_id, index=task.index,
        attempt=task.attempt, max_attempts=task.max_attempts + task.granted, max_losses=task.max_losses,
        last_error=task.last_error, error_type=task.error_type, error_category=task.error_category,
        error_count=task.error_count, exit_code=task.exit_code, execution_ms=task.execution_ms,
        worker_id=task.worker_id, tool=tool, result=task.result, details=task.details, depends_on=list(depends_on),
        after=list(after), optional=task.optional, hold_until=task.hold_until, wait_until=task.wait_until,
        decisions=task.decisions, output_size=task.output_size,
        facts={
            "failed_attempts": task.failed_attempts, "lost_attempts": task.lost_attempts, "granted": task.granted,
            "limit": task.limit, "routable": task.routable, "parked": task.parked, "standing": task.standing,
            "queued_at": task.queued_at, "claimed_at": task.claimed_at, "ended_at": task.ended_at,
            "validation_ms": task.validation_ms, "circuit_state": task.circuit_state, "on_loss": task.on_loss,
            "on_exhausted": task.on_exhausted, "checked": task.checked,
        },
    )  # fmt: skip
