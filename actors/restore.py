"""Recovery: restores a kernel and its actors from the living entities of a journal.

1. At a start, `make_supervisor` makes the kernel and its actors from the loaded records (`Loaded`). `take_in` makes
   the actors.
2. The input `Recover` derives the derived state (`rebuild`), and ends all that ran in the process that has ended. Each
   job then receives `Recover` (`on_recover` of its actors) in a turn of its own.
3. A node that takes over the jobs of another node does the same with the input `Adopt`, while its own jobs run on.
4. After an undone turn, `rebuild` derives all derived state again.

Rules
-----
- `take_in` fires no event and arms no timer. Afterwards the kernel is in the state of the last durable turn, except
  that no calls run; `Recover` or `Adopt` then derive the rest, and journal how the interrupted work ended.
- An entity that the kernel has already is not replaced: the kernel's state is newer than the journal's.
- At a start, a record that cannot be restored is an error of the whole start. Later it is left out, with a notice: it
  still belongs to this node, and a node that takes it over, perhaps with another program, tries to restore it again.
- A living worker of another node died with that node. It is restored only to be ended, and does not enter
  `Workforce.named`: this node may have a worker of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from msgspec.structs import replace

from .jobs.job import JobActor, JobsTakenOver
from .jobs.runs import kept_of
from .jobs.workstream import WorkstreamActor
from .kernel.alerts import Alerter
from .kernel.kernel import ASKED, Kernel
from .kernel.transaction import Port, Tell
from .machines.entity import MachineEntity, take_up, tell_missing
from .machines.kind import Definition, MachineKind, digest_of, revived, unfit
from .messages.errors import MachineNotFound
from .messages.inputs import REBUILT, RECOVER, Adopt, Recover
from .messages.notices import Notice
from .records.base import Record
from .records.entities import JobRecord, OutboxRow, WorkerRecord, WorkstreamRecord
from .records.loaded import Loaded
from .records.message import MessageRecord
from .records.task import AttemptRecord, TaskRecord
from .spec.lifecycles import Lifecycles
from .spec.limits import NO_TOOLS
from .spec.model import Alert, Defaults, HealthChecks, Tool, Workstream
from .supervisor import SupervisorActor
from .tasks.task import TaskActor
from .user_code import message_of
from .workers import tools as breakers
from .workers.breaker import BreakerActor
from .workers.worker import WorkerActor
from .workers.workforce import WORKERS_KEPT, Workforce


class RestoredEntities(msgspec.Struct):
    """Restored entities that have not yet received `Recover`."""

    jobs: list[JobActor] = []
    machines: list[MachineEntity] = []
    workers: list[WorkerActor] = []
    attempts: list[AttemptRecord] = []  # claims without an end
    drained: frozenset[int] = frozenset()  # the tokens of attempts that were running when a drain began
    outbox: list[OutboxRow] = []
    refused: list[tuple[JobRecord | WorkerRecord, Exception]] = []  # records that could not be restored


def make_supervisor(
    port: Port,
    defaults: Defaults,
    loaded: Loaded,
    *,
    tools: Mapping[str, Tool] = NO_TOOLS,
    alerts: Sequence[Alert] = (),
    health: HealthChecks | None = None,
    lifecycles: Lifecycles | None = None,
    node: str = "",
) -> SupervisorActor:
    """Make a kernel with its scheduler and the loaded entities, under their supervisor.

    node: the name of this node among those that share the journal; "" if no other node shares it.
    """
    kernel = Kernel(port, defaults, tools, lifecycles, node)
    kernel.alerter = Alerter(kernel, alerts)
    kernel.supervisor = supervisor = SupervisorActor(kernel, health or HealthChecks())
    workforce = supervisor.workforce
    kernel.key = loaded.last_key
    kernel.seq = loaded.last_seq
    workforce.incarnations = dict(loaded.incarnations)
    if len(workforce.incarnations) >= WORKERS_KEPT:  # the journal may have dropped older workers
        workforce.last_dropped_run = max(workforce.incarnations.values())
    supervisor.paused = loaded.paused
    kernel.awaited = loaded.awaited
    kernel.recovery = recovery = JournalRecovery(workforce)
    recovery.arrived = take_in(workforce, loaded)
    return supervisor


class JournalRecovery:
    """Restores a kernel: at a start, when it takes over jobs of another node, and after an undone turn."""

    def __init__(self, workforce: Workforce) -> None:
        self.kernel = workforce.kernel
        self.workforce = workforce
        self.arrived = RestoredEntities()  # restored entities that have not yet received `Recover`

    @property
    def drained(self) -> frozenset[int]:
        """The tokens of attempts that were running when a drain began, of entities that are being restored."""
        return self.arrived.drained

    def take_over(self, message: Recover) -> None:
        """Continue the work of another process. A job that cannot be recovered does not affect other jobs."""
        kernel, scheduler = self.kernel, self.workforce.scheduler
        if isinstance(message, Adopt):
            kernel.count_from(message.loaded.last_key, message.loaded.last_seq)
            self.arrived = take_in(self.workforce, message.loaded, late=True)
        arrived, stopped = self.arrived, scheduler.stopped
        scheduler.stopped = True  # else recovery would treat an attempt that starts here as one that ran there
        kernel.run_turn(message)
        for job in arrived.jobs:
            kernel.run_turn(Recover(job.record.key))
        scheduler.stopped = stopped
        for worker in arrived.workers:
            if worker.foreign:  # the worker belonged to another node, and has ended with that node
                kernel.forget(worker)
        self.arrived = RestoredEntities()
        if isinstance(message, Adopt):
            kernel.run_turn(REBUILT)

    def recover(self) -> None:
        """Derive the derived state, and end the calls of the earlier process. Jobs receive `Recover` afterwards."""
        kernel = self.kernel
        if kernel.node:
            self._provide_tools()
        self.rebuild()
        breakers.settle(self.workforce)
        self._end_what_ran()

    def adopt(self, loaded: Loaded) -> None:
        """Restore entities that were taken over, while the other entities of the kernel run on."""
        kernel = self.kernel
        kernel.awaited = {**kernel.awaited, **loaded.awaited}
        self._provide_tools()
        self._join(self.arrived.jobs, self.arrived.machines)
        kernel.effect(JobsTakenOver(self.arrived.jobs, loaded.last_seq))
        self._end_what_ran()
        for record, error in self.arrived.refused:
            text = f"{record.kind} {record.id} was taken over, but cannot continue here; nothing was changed"
            kernel.effect(
                Tell(
                    Notice(
                        event="not_taken_over", severity="error", text=f"{text}: {message_of(error)}",
                        at=kernel.at, kind=record.kind, entity_id=record.id,
                        job_id=record.id if record.kind == "job" else None, error=error,
                    )
                )
            )  # fmt: skip

    def _provide_tools(self) -> None:
        """Create the breakers that restored jobs need: each node has its own breakers."""
        for job in self.arrived.jobs:
            breakers.provide(self.workforce, job, again=True)

    def _end_what_ran(self) -> None:
        kernel, arrived = self.kernel, self.arrived
        for breaker in self.workforce.breakers.values():
            breaker.go_on()
        for worker in arrived.workers:
            worker.receive(RECOVER)
        for attempt in arrived.attempts:
            task = kernel.entities.get(attempt.task)
            if task is None or task.ended:  # the task was cancelled, and its body had not stopped yet
                kernel.turn.extra.append(replace(attempt, ended_at=kernel.at, end="cancelled"))
        for row in arrived.outbox:
            if row.key not in kernel.calls:
                kernel.run_hook(replace(row, tries=row.tries + 1))
        for machine in arrived.machines:
            machine.receive(RECOVER)
        tell_missing(kernel, arrived.machines)

    def rebuild(self) -> None:
        """Derive from the records all derived state again: after recovery or an undone turn."""
        kernel, workforce = self.kernel, self.workforce
        scheduler, reservations = workforce.scheduler, workforce.scheduler.reservations
        scheduler.clear()
        entities = list(kernel.entities.values())
        jobs = {entity.record.id: entity for entity in entities if isinstance(entity, JobActor)}
        kernel.jobs = {**jobs}
        workforce.breakers = {entity.record.name: entity for entity in entities if isinstance(entity, BreakerActor)}
        kernel.machines = {entity.record.name: entity for entity in entities if isinstance(entity, MachineEntity)}
        workers = [entity for entity in entities if isinstance(entity, WorkerActor) and not entity.foreign]
        workforce.workers = {worker.record.key: worker for worker in workers if not worker.ended}
        kernel.workers = workforce.workers
        workers.sort(key=lambda worker: worker.record.run)
        workforce.named = {worker.record.name: worker for worker in workers}  # the last incarnation of each
        asked = {call.key: token for token, call in kernel.calls.items() if call.kind in ASKED}
        for entity in entities:
            entity.disarm_all()
        for worker in workforce.workers.values():
            worker.used, worker.pools = 0, []
        for breaker in workforce.breakers.values():
            breaker.clear()
        for job in jobs.values():
            job.children.clear()
            job.sort_messages()
        workforce.tool_limits.rebuild(jobs.values())
        for job in jobs.values():
            job.link()
        reservations.rebuild(jobs.values())
        for job in jobs.values():
            job.rebuild(asked)
        for slot in kernel.slots.values():
            scheduler.occupy(cast("TaskActor", kernel.entities[slot.key]), slot)
        scheduler.tool_uses.rebuild()
        scheduler.step_calls.rebuild()
        reservations.rebuild_line(jobs.values())
        reservations.take_all()
        for machine in kernel.machines.values():
            machine.arm_again()
        for key in kernel.stuck:
            kernel.entities[key].disarm_all()

    def _join(self, jobs: list[JobActor], machines: list[MachineEntity]) -> None:
        """Derive the derived state of these new entities only; `rebuild` does it for all."""
        reservations = self.workforce.scheduler.reservations
        for job in jobs:
            job.link()
        reservations.rebuild(jobs)
        for job in jobs:
            job.rebuild({})
        reservations.rebuild_line(jobs)
        for machine in machines:
            machine.arm_again()


# -- making the actors again -------------------------------------------------------------------------------------------


def take_in(workforce: Workforce, loaded: Loaded, *, late: bool = False) -> RestoredEntities:
    """Make the actors of the loaded records. late: the kernel already runs; leave out what cannot be restored."""
    kernel = workforce.kernel
    drained = frozenset(attempt.key for attempt in loaded.attempts if attempt.drained_at is not None)
    arrived = RestoredEntities(attempts=list(loaded.attempts), drained=drained, outbox=list(loaded.outbox))
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
        worker = WorkerActor(workforce, record)
        worker.foreign = late or record.id != f"{kernel.placed(record.name)}#{record.run}"
        kernel.entities[record.key] = worker
        arrived.workers.append(worker)
        if not worker.foreign:
            workforce.workers[record.key] = workforce.named[record.name] = worker
    for breaker in loaded.breakers:
        if breaker.id == kernel.placed(breaker.name) and breaker.name not in workforce.breakers:
            kernel.entities[breaker.key] = workforce.breakers[breaker.name] = BreakerActor(workforce, breaker)
    _take_machines(kernel, loaded, arrived)
    _take_jobs(workforce, loaded, arrived, late=late)
    for approval in loaded.approvals:
        asking = kernel.entities.get(approval.task)
        if isinstance(asking, TaskActor) and approval.key not in kernel.entities:
            asking.asks_of().load(approval)
    return arrived


def _check(kernel: Kernel, record: Record) -> None:
    """Check that this node knows the lifecycle of the record. Raises LookupError if it does not."""
    if record.published is not None:
        kernel.lifecycles.get(record.published.lifecycle, record.kind)


def _take_machines(kernel: Kernel, loaded: Loaded, arrived: RestoredEntities) -> None:
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
        return MachineNotFound("its definition is not in the journal")
    try:
        return revived(msgspec.json.decode(encoded, type=Definition), port)
    except MachineNotFound as error:
        return error


def _take_jobs(workforce: Workforce, loaded: Loaded, arrived: RestoredEntities, *, late: bool) -> None:
    kernel = workforce.kernel
    streams = {record.job: record for record in sorted(loaded.workstreams, key=lambda run: run.key)}
    tasks: dict[int, list[TaskRecord]] = {}
    for task in loaded.tasks:
        tasks.setdefault(task.workstream, []).append(task)
    messages: dict[int, list[MessageRecord]] = {}
    for message in loaded.messages:
        messages.setdefault(message.job, []).append(message)
    for record in loaded.jobs:
        before = kernel.entities.get(record.key)
        if isinstance(before, JobActor) and not before.over:
            continue
        stream = streams.get(record.key)
        mine = [] if stream is None else sorted(tasks.get(stream.key, []), key=lambda task: task.index)
        try:
            job = _take_job(workforce, record, stream, loaded.specs, mine)
            job.load_messages(messages.get(record.key, ()))
            arrived.jobs.append(job)
        except Exception as error:
            if not late:
                raise
            for key in (record.key, *(() if stream is None else (stream.key,)), *(task.key for task in mine)):
                kernel.entities.pop(key, None)
            kernel.jobs.pop(record.id, None)
            arrived.refused.append((record, error))


def _take_job(
    workforce: Workforce,
    record: JobRecord,
    stream: WorkstreamRecord | None,
    specs: dict[int, bytes],
    tasks: list[TaskRecord],
) -> JobActor:
    kernel = workforce.kernel
    for one in (record, *(() if stream is None else (stream,)), *tasks):
        _check(kernel, one)
    spec = kernel.port.placed(msgspec.json.decode(specs[record.stream], type=Workstream))
    job = JobActor(workforce, record, spec)
    kernel.entities[record.key] = kernel.jobs[record.id] = job
    if stream is None or stream.key != record.stream:  # the run has not begun; it may reuse results of the run before
        if stream is not None and stream.run < record.first:  # a run of an earlier job that this job has replaced
            stream, tasks = None, []
        job.kept = kept_of(
            spec, stream, tasks, kernel.defaults, again=record.again, from_step=record.from_step, skip=record.skip
        )
        return job
    job.stream = WorkstreamActor(kernel, stream, job, spec)
    kernel.entities[stream.key] = job.stream
    job.stream.load(tasks)
    return job
