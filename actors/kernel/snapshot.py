"""What comes to a kernel from a journal: the lifecycle actors, made again of their records, at the start or later.

Rules
-----
- Nothing is fired or armed here. Afterwards the kernel holds what its records said at the end of the last durable turn,
  except that what ran is gone; `Recover` (at the start) or `Adopt` then derive the rest, and say what became of it.
- What a kernel has already is left alone: it knows more of it than any journal.
- At the start, what cannot be made again is an error of the whole. Later it is left out, and told: it stays this
  node's, and whoever takes that over, perhaps with another program, tries it anew.
- A living worker of another node has died with that. It is made to be ended, and is nobody's `named` worker: this
  node's own may have its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..jobs.job import JobActor
from ..jobs.runs import kept_of
from ..jobs.workstream import WorkstreamActor
from ..machines.entity import MachineEntity, take_up
from ..machines.kind import Definition, MachineKind, MachineNotFound, digest_of, revived, unfit
from ..records.base import Record
from ..records.entities import JobRecord, OutboxRow, WorkerRecord, WorkstreamRecord
from ..records.task import AttemptRecord, TaskRecord
from ..spec.model import Workstream
from ..tasks.task import TaskActor
from ..workers.breaker import BreakerActor
from ..workers.worker import WorkerActor
from .kernel import Kernel
from .transaction import Port

if TYPE_CHECKING:
    from .restore import Loaded


class Arrived(msgspec.Struct):
    """What has come, and has still to be told that what ran it is gone."""

    jobs: list[JobActor] = []
    machines: list[MachineEntity] = []
    workers: list[WorkerActor] = []
    attempts: list[AttemptRecord] = []  # claims without an end
    drained: frozenset[int] = frozenset()  # the tokens of those that a drain let run on
    outbox: list[OutboxRow] = []
    refused: list[tuple[JobRecord | WorkerRecord, Exception]] = []  # what could not be made again


def take_in(kernel: Kernel, loaded: Loaded, *, late: bool = False) -> Arrived:
    """Make the actors of what was loaded. late: the kernel runs, and goes on without what cannot be made again."""
    drained = frozenset(attempt.key for attempt in loaded.attempts if attempt.drained_at is not None)
    arrived = Arrived(attempts=list(loaded.attempts), drained=drained, outbox=list(loaded.outbox))
    for record in loaded.workers:
        if record.key in kernel.entities:
            continue
        try:
            _check(kernel, record)
        except LookupError as error:
            if not late:
                raise
            arrived.refused.append((record, error))
            continue
        worker = WorkerActor(kernel, record)
        worker.foreign = late or record.id != f"{kernel.placed(record.name)}#{record.run}"
        kernel.entities[record.key] = worker
        arrived.workers.append(worker)
        if not worker.foreign:
            kernel.workers[record.key] = kernel.named[record.name] = worker
    for breaker in loaded.breakers:
        if breaker.id == kernel.placed(breaker.name) and breaker.name not in kernel.breakers:
            kernel.entities[breaker.key] = kernel.breakers[breaker.name] = BreakerActor(kernel, breaker)
    _take_machines(kernel, loaded, arrived)
    _take_jobs(kernel, loaded, arrived, late=late)
    for approval in loaded.approvals:
        asking = kernel.entities.get(approval.task)
        if isinstance(asking, TaskActor) and approval.key not in kernel.entities:
            asking.asks_of().load(approval)
    return arrived


def _check(kernel: Kernel, record: Record) -> None:
    """Refuse what runs by a lifecycle that is not known here. Raises LookupError."""
    if record.published is not None:
        kernel.lifecycles.get(record.published.lifecycle, record.kind)


def _take_machines(kernel: Kernel, loaded: Loaded, arrived: Arrived) -> None:
    kinds: dict[int, MachineKind | MachineNotFound] = {}
    for record in loaded.machines:
        if record.key in kernel.entities:
            continue
        key = record.definitions[-1]
        if key not in kinds:
            kinds[key] = _kind(loaded.specs.get(key), kernel.port)
        kind = kinds[key]
        missing = str(kind) if isinstance(kind, MachineNotFound) else unfit(record, kind)
        if missing or isinstance(kind, MachineNotFound):
            arrived.machines.append(take_up(kernel, record, None, missing))
        else:
            arrived.machines.append(take_up(kernel, record, kind))
            kernel.kinds.setdefault(digest_of(loaded.specs[key]), key)


def _kind(encoded: bytes | None, port: Port) -> MachineKind | MachineNotFound:
    if encoded is None:
        return MachineNotFound("what it ran by is not in the journal")
    try:
        return revived(msgspec.json.decode(encoded, type=Definition), port)
    except MachineNotFound as error:
        return error


def _take_jobs(kernel: Kernel, loaded: Loaded, arrived: Arrived, *, late: bool) -> None:
    streams = {record.job: record for record in sorted(loaded.workstreams, key=lambda run: run.key)}
    tasks: dict[int, list[TaskRecord]] = {}
    for task in loaded.tasks:
        tasks.setdefault(task.workstream, []).append(task)
    for record in loaded.jobs:
        known = kernel.entities.get(record.key)
        if isinstance(known, JobActor) and not known.over:
            continue
        stream = streams.get(record.key)
        mine = [] if stream is None else sorted(tasks.get(stream.key, []), key=lambda task: task.index)
        try:
            arrived.jobs.append(_take_job(kernel, record, stream, loaded.specs, mine))
        except Exception as error:
            if not late:
                raise
            for key in (record.key, *(() if stream is None else (stream.key,)), *(task.key for task in mine)):
                kernel.entities.pop(key, None)
            kernel.jobs.pop(record.id, None)
            arrived.refused.append((record, error))


def _take_job(
    kernel: Kernel,
    record: JobRecord,
    stream: WorkstreamRecord | None,
    specs: dict[int, bytes],
    tasks: list[TaskRecord],
) -> JobActor:
    for one in (record, *(() if stream is None else (stream,)), *tasks):
        _check(kernel, one)
    spec = kernel.port.placed(msgspec.json.decode(specs[record.stream], type=Workstream))
    job = JobActor(kernel, record, spec)
    kernel.entities[record.key] = kernel.jobs[record.id] = job
    if stream is None or stream.key != record.stream:  # it is still to begin, perhaps with what the run before left it
        if stream is not None and stream.run < record.first:  # of a job that it has replaced
            stream, tasks = None, []
        job.kept = kept_of(spec, stream, tasks, kernel.defaults, again=record.again, skip=record.skip)
        return job
    job.stream = WorkstreamActor(kernel, stream, job, spec)
    kernel.entities[stream.key] = job.stream
    job.stream.load(tasks)
    return job
