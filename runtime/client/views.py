"""Rebuilds records from the views that the server sends.

Rules
-----
- A view has the fields of its record except those that only the runtime has: keys are 0 here, epochs 1.
- The state of a record is its phase. `published` has the state's name in another lifecycle, as in the runtime's
  records.
- Fields that this client does not know are ignored, since the server may be newer.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec

from ...actors.messages.notices import Notice, NoticeRecord
from ...actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    WorkerRecord,
    WorkstreamRecord,
)
from ...actors.records.message import MessageRecord
from ...actors.records.step import StepRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import MachineTransition, PublishedTransition, Transitioned
from ...actors.spec.model import Approval, Hook
from ...machines.lifecycles import LIFECYCLES
from ..calling import Progress

R = TypeVar("R", bound=msgspec.Struct)
View = dict[str, Any]


def job_of(view: View) -> JobRecord:
    """A job's record."""
    return _record(view, JobRecord)


def task_of(view: View) -> TaskRecord:
    """A task's record."""
    facts: View = view.get("facts") or {}
    granted = facts.get("granted") or 0
    allowed = {
        "max_attempts": view["max_attempts"] - granted, "max_losses": view["max_losses"],
        "on_loss": facts.get("on_loss") or "rerun", "on_exhausted": facts.get("on_exhausted") or "fail",
    }  # fmt: skip
    more: View = {"workstream": 0, "allowed": allowed, "first_queued_at": facts.get("queued_at"), "flow": 0}
    if (number := view.get("round") or 1) > 1:
        more["anew"] = {"rounds": number - 1, "args": {}}  # the arguments are not shown
    if view.get("last_error") is not None or view.get("error_count"):
        more["trouble"] = {
            "error": view.get("last_error"), "type": view.get("error_type"),
            "category": view.get("error_category"), "count": view.get("error_count") or 0,
        }  # fmt: skip
    produced = {
        "exit_code": view.get("exit_code"), "size": view.get("output_size"), "cpu_seconds": view.get("cpu_seconds"),
        "peak_memory_bytes": view.get("peak_memory_bytes"),
    }  # fmt: skip
    if any(value is not None for value in produced.values()):
        more["produced"] = produced
    return _record({**facts, **view, **more}, TaskRecord)


def progress_of(view: View) -> Progress | None:
    """The progress that a task's running body has reported; None if nothing is known."""
    progress = view.get("progress")
    return None if progress is None else msgspec.convert(progress, Progress)


class SeenTask(NamedTuple):
    """A task as the server has shown it: its record, and the last progress of its running body."""

    record: TaskRecord
    progress: Progress | None


def seen_task_of(view: View) -> SeenTask:
    """A task's record, and its progress."""
    return SeenTask(task_of(view), progress_of(view))


def attempt_of(view: View) -> AttemptRecord:
    """One attempt of a task."""
    return msgspec.convert({"key": 0, "task": 0, **view}, AttemptRecord)


def step_of(view: View) -> StepRecord:
    """One durable step of a task's body."""
    fields = {"key": 0, "flow": 0, "task": 0, **_given(view)}
    if (given := fields.pop("arguments", None)) is not None:  # in a record these are the arguments of its error
        fields["given"] = given
    return _struct(fields, StepRecord)


def message_of(view: View, job: JobRecord) -> MessageRecord:
    """One message to a job that nothing has received yet."""
    return _struct({"key": 0, "job": 0, "job_id": job.id, "first": job.first, **view}, MessageRecord)


def workstream_of(view: View, key: int = 0) -> WorkstreamRecord:
    """The record of a run of a job."""
    more = {"job": 0, "first_task": 0, "task_count": view.get("total") or view.get("task_count") or 0}
    return _record({**view, **more}, WorkstreamRecord, key)


def worker_of(view: View) -> WorkerRecord:
    """The record of an incarnation of a worker."""
    return _record({**view, "id": view["entity_id"]}, WorkerRecord)


def breaker_of(view: View) -> BreakerRecord:
    """A breaker's record."""
    plain = {name: value for name, value in view.items() if name != "probe"}  # a view's `probe` is a bool
    return _record({**plain, "id": view["entity_id"]}, BreakerRecord)


def machine_of(view: View) -> MachineRecord:
    """The record of a `MachineActor`."""
    return _record({"definitions": [], **view}, MachineRecord)


def outbox_of(view: View) -> OutboxRow:
    """An owed hook, alert or callback, with the fields that a view has."""
    hook, context = Hook(run=view["runs"]), {"job_id": view["job_id"]}
    return OutboxRow(
        key=view["id"], owner=view["owner"], event=view["event"], body=msgspec.Raw(msgspec.json.encode(hook)),
        context=msgspec.Raw(msgspec.json.encode(context)), tries=view["tries"], at=view["since"],
        callback=view["event"] if view["kind"] == "callback" else None,
    )  # fmt: skip


def approval_of(view: View) -> ApprovalRecord:
    """The record of an approval that a running body waits for, with the fields that a view has."""
    task_id = view["entity_id"].rpartition("/")[0]
    return ApprovalRecord(
        key=0, id=view["entity_id"], name=view["approval"], state="held", created_at=view["since"],
        updated_at=view["since"], due_at=view["expires_at"], task=0, task_id=task_id, workstream=0,
        workstream_id=task_id.rpartition("/")[0], job_id=view["job_id"], rule=Approval(),
        hold_until=view["expires_at"], reason=f"waits for approval by {', '.join(view['missing'])}",
    )  # fmt: skip


def transition_of(told: View) -> Transitioned:
    """The transition of a received event."""
    kind: type[Transitioned] = Transitioned
    if told.get("phases") is not None:
        kind = PublishedTransition
    elif told.get("machine"):
        kind = MachineTransition
    return msgspec.convert(told, kind)


def notice_of(told: View) -> Notice:
    """The notice of a received event. Of an error only its text is sent."""
    return msgspec.convert({name: value for name, value in told.items() if name != "error"}, Notice)


def kept_notice_of(view: View) -> NoticeRecord:
    """A notice from the runtime's journal."""
    return msgspec.convert({"key": view["id"], **view}, NoticeRecord)


def _record(view: View, kind: type[R], key: int = 0) -> R:
    given = _given(view)
    given["key"] = key
    if view.get("lifecycle") is not None:
        given["published"] = {"lifecycle": view["lifecycle"], "state": view["state"]}
    given["state"] = view.get("phase") or view["state"]
    return _struct(given, kind)


def _given(view: View) -> View:
    """The values of a view that are not None. Missing fields get the defaults of the record."""
    return {name: value for name, value in view.items() if value is not None}


def _struct(given: View, kind: type[R]) -> R:
    names = set(kind.__struct_encode_fields__)
    # by way of JSON: a record keeps a result encoded, and a view has it decoded
    return msgspec.json.decode(
        msgspec.json.encode({name: value for name, value in given.items() if name in names}), type=kind
    )


def moved(record: Any, told: Transitioned) -> Any:
    """The record of a job or a task after a transition, as far as the transition has the values."""
    state, published = told.phase, record.published
    if published is not None:
        state = _phase(published.lifecycle, record.kind, told) or record.state
        published = msgspec.structs.replace(published, state=told.to_state, previous=published.state)
    changed: View = {
        "state": state, "published": published, "previous_state": record.state, "reason": told.reason,
        "updated_at": told.at, "finished_at": told.at if state in ENDED else None,
    }  # fmt: skip
    if state == "running" and record.started_at is None:
        changed["started_at"] = told.at
    if isinstance(record, TaskRecord):
        changed |= {"attempt": told.attempt or record.attempt, "worker_id": told.worker_id}
        if state == "queued" and record.first_queued_at is None:
            changed["first_queued_at"] = told.at
    return msgspec.structs.replace(record, **changed)


def _phase(lifecycle: str, kind: str, told: Transitioned) -> str | None:
    """The phase of a state of a published lifecycle; None for a lifecycle that only the application has."""
    if isinstance(told, PublishedTransition):
        return told.phase
    own = LIFECYCLES.get(lifecycle, {}).get(kind)
    return None if own is None or told.to_state not in own.machine.states else str(own.phase(told.to_state))


ENDED = frozenset({"completed", "failed", "cancelled", "skipped"})
"""The phases in which a job or a task has ended."""
