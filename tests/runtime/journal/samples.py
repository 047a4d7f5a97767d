"""Records for tests of journals: small jobs with their tasks and attempts; and a loop for these tests."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from callboard.actors.records.base import Record
from callboard.actors.records.entities import AnyRecord, BreakerRecord, JobRecord, WorkerRecord, WorkstreamRecord
from callboard.actors.records.message import MessageRecord
from callboard.actors.records.step import StepRecord
from callboard.actors.records.task import AttemptRecord, TaskRecord
from callboard.actors.records.transition import Transitioned
from callboard.runtime.journal.contract import Entry, Journal, Loaded

R = TypeVar("R")


class Loop:
    """Takes the place of the event loop: calls of other threads are executed when the test orders it."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.told = 0

    def call_threadsafe(self, call: Callable[[], None]) -> None:
        self.calls.put(call)

    def on_durable(self) -> None:
        self.told += 1

    def open(self, journal: Journal, after_commit: Callable[[Sequence[Transitioned]], None] | None = None) -> Loaded:
        return journal.open(on_durable=self.on_durable, call_threadsafe=self.call_threadsafe, after_commit=after_commit)

    def until_durable(self, journal: Journal, number: int | None = None) -> None:
        """Flush, and execute the calls of other threads until entry `number` (the last one unless given) is durable."""
        wanted = journal.tail if number is None else number
        journal.flush()
        while journal.durable < wanted:
            self.calls.get(timeout=600)()
            journal.flush()
        while not self.calls.empty():
            self.calls.get()()


def job(key: int, **changes: object) -> JobRecord:
    return _made(JobRecord, changes, key=key, id=f"job-{key}", name="release", state="running", created_at=1.0)


def workstream(key: int, of_job: int, tasks: int, **changes: object) -> WorkstreamRecord:
    return _made(
        WorkstreamRecord, changes, key=key, id=f"ws-{key}", name="release", state="executing", created_at=1.0,
        job=of_job, job_id=f"job-{of_job}", first_task=key + 1, task_count=tasks, tasks_created=tasks,
    )  # fmt: skip


def task(key: int, ws: WorkstreamRecord, **changes: object) -> TaskRecord:
    return _made(
        TaskRecord, changes, key=key, id=f"{ws.id}/t{key}", name=f"t{key}", state="queued", created_at=1.0,
        workstream=ws.key, workstream_id=ws.id, job_id=ws.job_id, index=key - ws.first_task,
    )  # fmt: skip


def worker(key: int, **changes: object) -> WorkerRecord:
    return _made(
        WorkerRecord, changes, key=key, id=f"loop-{key}", name="loop", state="idle", created_at=1.0,
        engine="loop", capacity=4,
    )  # fmt: skip


def breaker(key: int, **changes: object) -> BreakerRecord:
    return _made(BreakerRecord, changes, key=key, id=f"tool-{key}", name=f"tool-{key}", state="closed", created_at=1.0)


def attempt(key: int, of: TaskRecord, **changes: object) -> AttemptRecord:
    return _made(
        AttemptRecord,
        changes,
        key=key,
        task=of.key,
        task_id=of.id,
        attempt=1,
        worker_id="loop-1",
        claimed_at=3.5,
    )


def step(key: int, of: TaskRecord, name: str = "ask", **changes: object) -> StepRecord:
    """A step of the flow that began in that task."""
    return _made(
        StepRecord, changes, key=key, flow=of.key, task=of.key, task_id=of.id, name=name, began_at=3.5, ended_at=4.5,
    )  # fmt: skip


def moved(seq: int, record: Record, event: str = "start", **changes: object) -> Transitioned:
    return _made(
        Transitioned, changes, seq=seq, kind=record.kind, entity_id=record.id, entity_seq=record.seq,
        from_state=record.previous_state, to_state=record.state, event=event, severity="info",
        at=1_700_000_000.25, job_id=getattr(record, "job_id", None),
    )  # fmt: skip


def entry(*records: AnyRecord, seq: int = 0, **rest: object) -> Entry:
    """The entry of a turn with these records; with `seq`, also with a transition of each, numbered from there."""
    entities = [record for record in records if isinstance(record, Record)] if seq else []
    rows = [moved(seq + n, record) for n, record in enumerate(entities)]
    return Entry(rows, list(records), **rest)  # type: ignore[arg-type]


def message(key: int, **changes: object) -> MessageRecord:
    fields: dict[str, object] = {
        "job": 1,
        "job_id": "job-1",
        "name": "paid",
        "raw_value": raw({"n": key}),
        "sent_at": 5.0,
    }
    return _made(MessageRecord, changes, key=key, **fields)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _made(make: Callable[..., R], changes: dict[str, object], **fields: object) -> R:
    return make(**{**fields, **changes})
