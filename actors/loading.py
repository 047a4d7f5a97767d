"""Loading: makes the lifecycle actors again from what a journal holds of living jobs and of workers.

Nothing is fired or armed here. Afterwards the kernel holds what it did at the end of its last durable turn, except that
what ran is gone; the input `Recover` then derives the rest, and says what became of what ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from .alerts import Alerter
from .breaker import BreakerActor
from .checks import CANCELLING
from .job import JobActor
from .kernel import Kernel
from .lifecycles import Lifecycles
from .limits import NO_TOOLS
from .machine_actor import take_up
from .machine_kind import Definition, MachineKind, MachineNotFound, digest_of, revived, unfit
from .records import ApprovalRecord, BreakerRecord, JobRecord, MachineRecord, OutboxRow, WorkerRecord, WorkstreamRecord
from .runs import kept_of
from .scheduler import SchedulerActor
from .spec import Alert, Defaults, HealthChecks, Tool, Workstream
from .supervisor import SupervisorActor
from .task import TaskActor
from .task_record import AttemptRecord, TaskRecord
from .turn import Port
from .worker import WorkerActor
from .workstream import WorkstreamActor


class Loaded(msgspec.Struct):
    """What a journal holds of the loaded."""

    jobs: list[JobRecord] = []  # not terminal
    workstreams: list[WorkstreamRecord] = []  # the last run of each of those jobs, if it has begun one
    specs: dict[int, bytes] = {}  # of those jobs, by `JobRecord.stream`; and what those machines run by
    tasks: list[TaskRecord] = []  # all tasks of those workstreams, ended ones too: dependents need their results
    approvals: list[ApprovalRecord] = []  # that bodies of those tasks have asked for, ended ones too
    workers: list[WorkerRecord] = []  # not terminal
    breakers: list[BreakerRecord] = []
    machines: list[MachineRecord] = []  # not terminal
    attempts: list[AttemptRecord] = []  # without an end
    outbox: list[OutboxRow] = []
    last_key: int = 0  # the highest key and fencing token ever given
    last_seq: int = 0  # the highest transition number
    incarnations: dict[str, int] = {}  # the last incarnation by worker name
    paused: dict[str, str] = {}  # why an operator paused the last incarnation, by worker name
    archiving: bool = False  # whether jobs that have ended are still to be moved out
    awaited: dict[str, float] = {}  # "JOB" or "JOB/TASK" of each decision in the inbox: when the first was made

    @property
    def cancel_hooks(self) -> set[int]:
        """The tokens of the cancel hooks that ran when the process ended: they are run again."""
        records: list[TaskRecord | WorkstreamRecord] = [*self.workstreams, *self.tasks]
        return {one.cancel.token for one in records if one.cancel is not None and one.state == CANCELLING}


def make_kernel(
    port: Port,
    defaults: Defaults,
    loaded: Loaded,
    *,
    tools: Mapping[str, Tool] = NO_TOOLS,
    alerts: Sequence[Alert] = (),
    health: HealthChecks | None = None,
    lifecycles: Lifecycles | None = None,
    node: str = "",
) -> Kernel:
    """Make a kernel with its root and its scheduler, and with what was loaded.

    node: its name among those that share its journal; "" where it has that alone.
    """
    kernel = Kernel(port, defaults, tools, lifecycles, node)
    kernel.alerter = Alerter(kernel, alerts)
    kernel.supervisor = SupervisorActor(kernel, health or HealthChecks())
    kernel.scheduler = SchedulerActor(kernel)
    kernel.key = loaded.last_key
    kernel.seq = loaded.last_seq
    kernel.incarnations = dict(loaded.incarnations)
    kernel.supervisor.paused = loaded.paused
    kernel.awaited = loaded.awaited
    kernel.supervisor.outbox = list(loaded.outbox)
    kernel.supervisor.attempts = list(loaded.attempts)
    for worker in loaded.workers:
        actor = WorkerActor(kernel, worker)
        kernel.entities[worker.key] = kernel.workers[worker.key] = kernel.named[worker.name] = actor
    for breaker in loaded.breakers:
        kernel.entities[breaker.key] = kernel.breakers[breaker.name] = BreakerActor(kernel, breaker)
    _load_machines(kernel, loaded)
    streams = {record.job: record for record in sorted(loaded.workstreams, key=lambda run: run.key)}
    tasks: dict[int, list[TaskRecord]] = {}
    for task in loaded.tasks:
        tasks.setdefault(task.workstream, []).append(task)
    for job in loaded.jobs:
        stream = streams.get(job.key)
        mine = [] if stream is None else sorted(tasks.get(stream.key, []), key=lambda task: task.index)
        _load_job(kernel, job, stream, loaded.specs[job.stream], mine)
    for approval in loaded.approvals:
        asking = kernel.entities.get(approval.task)
        if isinstance(asking, TaskActor):
            asking.asks_of().load(approval)
    return kernel


def _load_machines(kernel: Kernel, loaded: Loaded) -> None:
    kinds: dict[int, MachineKind | MachineNotFound] = {}
    for record in loaded.machines:
        key = record.definitions[-1]
        if key not in kinds:
            kinds[key] = _kind(loaded.specs.get(key), kernel.port)
        kind = kinds[key]
        missing = str(kind) if isinstance(kind, MachineNotFound) else unfit(record, kind)
        if missing or isinstance(kind, MachineNotFound):
            take_up(kernel, record, None, missing)
        else:
            take_up(kernel, record, kind)
            kernel.kinds.setdefault(digest_of(loaded.specs[key]), key)


def _kind(encoded: bytes | None, port: Port) -> MachineKind | MachineNotFound:
    if encoded is None:
        return MachineNotFound("what it ran by is not in the journal")
    try:
        return revived(msgspec.json.decode(encoded, type=Definition), port)
    except MachineNotFound as error:
        return error


def _load_job(
    kernel: Kernel, record: JobRecord, stream: WorkstreamRecord | None, encoded: bytes, tasks: list[TaskRecord]
) -> None:
    spec = msgspec.json.decode(encoded, type=Workstream)
    job = JobActor(kernel, record, spec)
    kernel.entities[record.key] = kernel.jobs[record.id] = job
    if stream is None or stream.key != record.stream:  # it is still to begin, perhaps with what the run before left it
        job.kept = kept_of(spec, stream, tasks, kernel.defaults, again=record.again, skip=record.skip)
        return
    job.stream = WorkstreamActor(kernel, stream, job, spec)
    kernel.entities[stream.key] = job.stream
    job.stream.load(tasks)
