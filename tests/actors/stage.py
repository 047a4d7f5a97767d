"""A stage for the lifecycle actors: a real kernel, a clock that tests move, and engines that follow scripts.

The script of a body, condition, check or hook is found by its name; without a script it succeeds at once. Everything
that the kernel commits is kept, so a test can stop it after any turn and load the commits again (`Stage.after_crash`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any
from weakref import WeakSet

import msgspec

from callboard.actors.jobs.job import JobActor, JobOver
from callboard.actors.kernel.entity import Entity
from callboard.actors.kernel.kernel import Kernel
from callboard.actors.kernel.transaction import (
    Answer,
    ApprovalDecided,
    Effect,
    KillWorker,
    MachineOver,
    ReleaseResources,
    RunHook,
    StartCall,
    StartWorker,
    StopCall,
    StopWorker,
    Tell,
    Transaction,
)
from callboard.actors.machines.entity import retire
from callboard.actors.messages.commands import Cancel, Command, Reply, StartWorkers, Submit
from callboard.actors.messages.inputs import RECOVER, Adopt, CallEnded, Message, TimerFired, ToolShares, WorkerBeat
from callboard.actors.messages.notices import Notice
from callboard.actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    WorkerRecord,
    WorkstreamRecord,
)
from callboard.actors.records.loaded import Loaded
from callboard.actors.records.task import AttemptRecord, TaskRecord
from callboard.actors.records.transition import Transitioned, as_event
from callboard.actors.restore import make_supervisor
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.actors.spec.model import Alert, Defaults, HealthChecks, Task, Tool, Worker, Workstream
from callboard.actors.workers.queues import NO_LIMIT
from callboard.actors.workers.worker import WorkerActor
from callboard.machines.adapt.lifecycle import Lifecycle
from callboard.machines.audit.audit import audit
from callboard.machines.audit.auditor import AuditFinding
from callboard.machines.audit.log import EPOCH

Script = Callable[["StartCall", Any], dict[str, Any] | None]
HARNESSES: WeakSet[KernelHarness] = WeakSet()
"""The stages of the present test, which are cleared when it ends."""
WORKERS = (Worker("loop", engine="loop", capacity=100), Worker("command", engine="command", capacity=2))


class HarnessTimer:
    """An armed timer of the stage."""

    def __init__(self) -> None:
        self.armed = True


class Kept:
    """The commits, as a journal would keep them, turn by turn, so that any prefix of them can be loaded."""

    def __init__(self, *, copies: bool = True, before: Kept | None = None) -> None:
        self.copies = copies  # False for large graphs: then no prefix can be loaded
        self.before: Kept | None = None  # commits of other nodes
        self.records: dict[tuple[str, int], Any] = {}
        self.specs: dict[int, bytes] = {}
        self.transitions: list[Transitioned] = []
        self.turns: list[Transaction] = []
        self._written: list[list[tuple[type, bytes]]] = []
        if before is not None:
            self.have(before)

    def have(self, before: Kept) -> None:
        """Add the commits of other nodes."""
        self.before = before
        self.records = before.records | self.records
        self.specs = before.specs | self.specs
        self.transitions = before.transitions + self.transitions

    def take(self, turn: Transaction) -> None:
        if self.copies:
            self._keep(turn, [(type(record), msgspec.json.encode(record)) for record in turn.records])
            return
        self.records |= {(record.kind, record.key): record for record in turn.records}
        self._keep(turn, [])

    def _keep(self, turn: Transaction, written: list[tuple[type, bytes]]) -> None:
        for kind, encoded in written:
            record = msgspec.json.decode(encoded, type=kind)
            self.records[kind.kind, record.key] = record  # type: ignore[attr-defined]
        self.specs |= dict(turn.specs)
        for token in turn.outbox_done:
            del self.records["outbox", token]
        self.transitions += turn.transitions
        self.turns.append(turn)
        self._written.append(written)

    def first(self, turns: int) -> Kept:
        """The commits of the first turns."""
        kept = Kept(before=self.before)
        for turn, written in zip(self.turns[:turns], self._written, strict=False):
            kept._keep(turn, written)
        return kept

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records.values() if isinstance(record, kind)]


def _pauses(workers: list[WorkerRecord]) -> dict[str, str | None]:
    """The reasons why the last incarnations of workers are paused, by name."""
    return {worker.name: worker.pause_reason for worker in sorted(workers, key=lambda worker: worker.run)}


class KernelHarness:
    """A kernel that a test controls. It is its own `Port`."""

    def __init__(
        self,
        *,
        workers: tuple[Worker, ...] = WORKERS,
        defaults: Defaults | None = None,
        tools: dict[str, Tool] | None = None,
        alerts: tuple[Alert, ...] = (),
        kept: Kept | None = None,
        scripts: dict[str, Script] | None = None,
        health: HealthChecks | None = None,
        lifecycles: Lifecycles | None = None,
        time: float = 1_000_000.0,
        copies: bool = True,
        functions: dict[str, Any] | None = None,
        node: str = "",
        epoch: int = 0,
    ) -> None:
        HARNESSES.add(self)
        self.node = node
        self.random = Random(7)
        self.time = time
        self.skew = 0.0  # seconds by which the wall clock was set forward
        self.seen = 0.0  # the last seen value of `skew`
        self.set_back = 0.0  # seconds by which the wall clock was set back in all, as far as it was seen
        self.workers = workers
        self.defaults = defaults or Defaults()
        self.inputs: deque[Message] = deque()
        self.timers: list[tuple[float, int, HarnessTimer, TimerFired]] = []
        self.armed = 0
        self.scripts: dict[str, Script] = {} if scripts is None else scripts
        self.stubborn: set[str] = set()  # names of tasks whose calls continue when they are asked to stop
        self.deaf: set[str] = set()  # names of tasks whose calls do not even end when abandoned; a test ends them
        self.running: dict[int, StartCall] = {}
        self.where: dict[int, str | None] = {}  # the worker of each call that began
        self.health = health
        self.lifecycles = lifecycles
        self.released = 0
        self.started: list[tuple[str, str, int]] = []  # (kind, entity id, token) of every call that really began
        self.stops: list[tuple[int, bool]] = []
        self.decided: list[tuple[int, str, str]] = []
        self.hooks: list[OutboxRow] = []
        self.hooks_hang = False
        self.over: list[str] = []
        self.probes: list[tuple[str, int]] = []
        self.silent: set[str] = set()  # names of workers that do not answer
        self.orders: list[StartWorker | StopWorker | KillWorker] = []  # to workers' processes
        self.notices: list[Notice] = []
        self.functions: dict[str, Any] = {} if functions is None else functions  # the functions, by path
        self.answers: list[tuple[Any, Exception | None]] = []
        self.kept = kept or Kept(copies=copies)
        self.tools = tools or {}
        self.alerts = alerts
        loaded = Loaded() if kept is None else self._living(kept)
        supervisor = make_supervisor(
            self, self.defaults, loaded, tools=self.tools, alerts=alerts, health=health, lifecycles=lifecycles,
            node=node,
        )  # fmt: skip
        self.kernel: Kernel = supervisor.kernel
        self.workforce = supervisor.workforce
        self.kernel.notify_nodes = self.notified
        self.notified()  # a restored task may have requested a share already
        self.kernel.count_from(epoch * EPOCH, epoch * EPOCH)
        if kept is not None or tools:
            self.kernel.run(RECOVER)
        if workers:
            self.kernel.run(StartWorkers(workers))
        self.settle()

    @staticmethod
    def _living(kept: Kept) -> Loaded:
        live = {job.key: job for job in kept.of(JobRecord) if job.finished_at is None}
        runs = sorted((stream for stream in kept.of(WorkstreamRecord) if stream.job in live), key=lambda run: run.key)
        streams = list({stream.job: stream for stream in runs}.values())
        keys = {stream.key for stream in streams}
        ended = {"shutdown", "failed", "terminated"}
        machines = [machine for machine in kept.of(MachineRecord) if machine.finished_at is None]
        kinds = {machine.definitions[-1] for machine in machines}
        attempts = [attempt for attempt in kept.of(AttemptRecord) if attempt.ended_at is None]
        return Loaded(
            jobs=list(live.values()),
            workstreams=streams,
            specs={key: kept.specs[key] for key in {*kinds, *(job.stream for job in live.values())}},
            tasks=[task for task in kept.of(TaskRecord) if task.workstream in keys],
            approvals=[record for record in kept.of(ApprovalRecord) if record.workstream in keys],
            workers=[worker for worker in kept.of(WorkerRecord) if worker.state not in ended],
            breakers=kept.of(BreakerRecord),
            machines=machines,
            attempts=attempts,
            outbox=kept.of(OutboxRow),
            last_key=max((*(key for _, key in kept.records), *kept.specs), default=0),
            last_seq=max((t.seq for t in kept.transitions), default=0),
            incarnations={worker.name: worker.run for worker in kept.of(WorkerRecord)},
            paused={name: why for name, why in _pauses(kept.of(WorkerRecord)).items() if why is not None},
        )

    def after_crash(self, turns: int | None = None, *, down: float = 0.0) -> KernelHarness:
        """The stage after a kill -9, with the first turns (by default all) durable, and `down` seconds later."""
        kept = self.kept if turns is None else self.kept.first(turns)
        time = self.time if turns is None else max((t.at for t in kept.transitions), default=self.time)
        return KernelHarness(
            workers=self.workers, defaults=self.defaults, tools=self.tools, alerts=self.alerts, kept=kept,
            scripts=self.scripts, health=self.health, time=time + down, lifecycles=self.lifecycles,
            functions=self.functions, node=self.node,
        )  # fmt: skip

    def take_over(self, left: Kept, *, awaited: dict[str, float] | None = None) -> Loaded:
        """Take over the commits of fenced nodes, in a new epoch. The caller still has to send `InboxTaken`."""
        self.time = max(self.time, max((t.at for t in left.transitions), default=0.0))
        self.kept.have(left)
        loaded = self._living(left)
        top = max(loaded.last_key, loaded.last_seq, self.kernel.key, self.kernel.seq)
        loaded.last_key = loaded.last_seq = (top // EPOCH + 1) * EPOCH
        loaded.awaited = awaited or {}
        self.send(Adopt(loaded=loaded))
        return loaded

    # -- Port ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        self.set_back += max(0.0, self.seen - self.skew)
        self.seen = self.skew
        return self.time + self.skew

    def monotonic(self) -> float:
        return self.time - 999_000.0

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool, named: bool = False) -> HarnessTimer:
        timer = HarnessTimer()
        self.armed += 1
        heappush(self.timers, (due - self.skew, self.armed, timer, fire))
        return timer

    def disarm(self, timer: Any) -> None:
        timer.armed = False

    def later(self, message: Message) -> None:
        self.inputs.append(message)

    def engine_of(self, task: Task) -> str:
        return task.engine or ("command" if task.command is not None else "loop")

    def placed(self, spec: Workstream) -> Workstream:
        return spec

    def located(self, path: str, folder: str) -> str:
        return path

    def travels(self, task: Task) -> bool:
        return task.run is None or ":" in task.run

    def missing(self, task: Task) -> str:
        return f"there is no {task.run!r}"

    def resolve(self, name: str) -> Any:
        return self.find(name)

    def find(self, path: str) -> Any:
        if path not in self.functions:
            raise LookupError(f"there is no {path!r}")
        return self.functions[path]

    def probe(self, engine: str, worker: str, incarnation: int) -> None:
        self.probes.append((worker, incarnation))
        if worker not in self.silent:
            run = f"{worker}#{incarnation}"
            self.inputs.append(WorkerBeat(worker, incarnation, tuple(t for t in self.running if self.ran_by(t) == run)))

    def ran_by(self, token: int) -> str | None:
        """The id of the worker that runs the call with this token."""
        return self.where.get(token)

    def tell_notice(self, notice: Notice) -> None:
        self.notices.append(notice)

    @property
    def reports(self) -> list[str]:
        """The texts of the notices above info, except those about abandoned bodies, which tests cause on purpose."""
        notices = [notice for notice in self.notices if notice.event != "body_abandoned"]
        return [notice.text for notice in notices if notice.severity != "info"]

    def commit(self, turn: Transaction) -> None:
        self.kept.take(turn)
        for effect in turn.effects:
            self._release(effect)

    def _release(self, effect: Effect) -> None:  # noqa: PLR0912 - one branch per effect
        match effect:
            case StartCall():
                self._start(effect)
            case StopCall(token=token, force=force):
                self.stops.append((token, force))
                self._stop(token, force)
            case Answer():
                self.answers.append((effect.value, effect.error))
                if effect.reply.answer is not None:
                    effect.reply.answer(effect.value, effect.error)
            case ApprovalDecided():
                self.decided.append((effect.token, effect.name, str(effect.record.state)))
            case RunHook():
                self.hooks.append(effect.row)
                if not self.hooks_hang:
                    self.inputs.append(CallEnded(effect.token, "ok"))
            case StartWorker(engine=engine, worker=worker, incarnation=incarnation):
                self.orders.append(effect)
                self.probe(engine, worker, incarnation)
            case StopWorker():
                self.orders.append(effect)
            case KillWorker(worker=worker, incarnation=incarnation):
                self.orders.append(effect)
                for token in [token for token in self.running if self.ran_by(token) == f"{worker}#{incarnation}"]:
                    self.end(token, status="lost", error="it was killed", error_type="worker_lost")
            case ReleaseResources():
                self.released += 1
            case Tell():
                self.notices.append(effect.notice)
            case MachineOver(name=name):
                retire(self.kernel, name)
            case JobOver():
                self.over.append(effect.job.record.id)
                effect.job.release_actors()

    def _start(self, call: StartCall) -> None:
        entity = self.kernel.entities.get(call.key)
        if entity is None or not entity.wants(call.token):
            self.inputs.append(CallEnded(call.token, "gone"))
            return
        self.kernel.heard(call.token)
        self.running[call.token] = call
        self.where[call.token] = getattr(entity.record, "worker_id", None)
        self.started.append((call.kind, entity.record.id, call.token))
        name = entity.record.name if call.kind == "body" else f"{entity.record.name}.{call.kind}"
        script = self.scripts.get(name)
        if script is None:
            outcome: dict[str, Any] | None = {"value": None if call.kind == "body" else True}
        else:
            outcome = script(call, entity)
        if outcome is not None:
            self.end(call.token, **outcome)

    def _stop(self, token: int, force: bool) -> None:
        self.kernel.told(token)
        call = self.running.get(token)
        if call is None:
            return
        name = self.kernel.entities[call.key].record.name
        if name not in self.deaf and (force or name not in self.stubborn):
            self.end(token, status="abandoned" if force else "cancelled", error="it was stopped")

    # -- for tests ---------------------------------------------------------------------------------------------------

    def submit(self, spec: Workstream, job_id: str = "job", by: str | None = None) -> JobActor:
        encoded = msgspec.json.encode(spec)
        self.send(Submit(job_id, True, spec, encoded, "", Reply(None), by))
        return self.kernel.jobs.get(job_id) or self.answers[-1][0]

    def send(self, message: Message) -> None:
        self.inputs.append(message)
        self.settle()

    def submit_silently(self, spec: Workstream) -> None:
        """Submit, without running the inputs that follow."""
        self.kernel.run(Submit("job", True, spec, msgspec.json.encode(spec), "", Reply(None)))

    def cancel_silently(self, entity: Entity[Any], *, force: bool = True) -> None:
        """Cancel, without running the inputs that follow."""
        self.kernel.run(Command(entity.record.key, Cancel("asked to", force), Reply(None)))

    def command_silently(self, entity: Entity[Any]) -> Exception | None:
        """Cancel gracefully, without running the inputs that follow. Returns the answer."""
        self.cancel_silently(entity, force=False)
        return self.answers[-1][1]

    def command(self, entity: Entity[Any], message: Message) -> Exception | None:
        self.send(Command(entity.record.key, message, Reply(None)))
        return self.answers[-1][1]

    def cancel(self, entity: Entity[Any], *, force: bool = False) -> Exception | None:
        return self.command(entity, Cancel("asked to", force))

    def end(self, token: int, status: str = "ok", **more: Any) -> None:
        """Let the call with this token end."""
        self.running.pop(token, None)
        self.inputs.append(CallEnded(token, status, **more))

    def notified(self) -> None:
        """As a node: no other node sets a limit for a tool without one here."""
        shares = self.kernel.scheduler.tool_quotas
        if shares is not None:
            wants = shares.wants().items()
            free = {tool: NO_LIMIT for tool, want in wants if want.most == NO_LIMIT != want.share}
            if free:
                self.inputs.append(ToolShares(free))

    def settle(self) -> None:
        """Run inputs until none is left."""
        while self.inputs:
            self.kernel.run(self.inputs.popleft())

    def advance(self, seconds: float) -> None:
        """Let time pass, and fire due timers in order."""
        until = self.time + seconds
        while self.timers and self.timers[0][0] <= until:
            due, _, timer, fire = heappop(self.timers)
            if timer.armed:
                self.time = max(self.time, due)
                self.kernel.run(fire)
                self.settle()
        self.time = until

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which no timer fires, as while the process is stopped."""
        self.time += seconds

    def worker(self, name: str) -> WorkerActor:
        """The actor of the last incarnation of a worker."""
        return self.workforce.named[name]

    def task(self, name: str, job_id: str = "job") -> TaskRecord:
        """The committed record of a task."""
        found = [t for t in self.kept.of(TaskRecord) if t.name == name and t.job_id == job_id]
        return found[-1]

    def token(self, name: str) -> int:
        """The token of the task's running body."""
        return self.task(name).token

    def path(self, entity_id: str) -> list[str]:
        """The states an entity went through."""
        return [t.to_state for t in self.kept.transitions if t.entity_id == entity_id]

    def steps(self, name: str, job_id: str = "job") -> list[str]:
        """The states a task went through, run 1."""
        return self.path(f"{job_id}@1/{name}")

    def state(self, job_id: str = "job") -> str:
        return next(j.state for j in self.kept.of(JobRecord) if j.id == job_id)

    def states(self, job_id: str = "job") -> dict[str, str]:
        """The present state of each task."""
        return {t.name: str(t.state) for t in self.kept.of(TaskRecord) if t.job_id == job_id}

    @property
    def stream(self) -> WorkstreamRecord:
        """The committed record of the workstream of the job "job"."""
        return next(w for w in self.kept.of(WorkstreamRecord) if w.job_id == "job")

    @property
    def breaker(self) -> BreakerRecord:
        """The committed record of the only breaker."""
        (breaker,) = self.kept.of(BreakerRecord)
        return breaker  # type: ignore[no-any-return]

    def actor(self, name: str, job_id: str = "job") -> Entity[Any]:
        """The actor of a task."""
        return self.kernel.entities[self.task(name, job_id).key]

    def attempts(self, name: str) -> list[AttemptRecord]:
        return [a for a in self.kept.of(AttemptRecord) if a.task == self.task(name).key]

    def bodies(self) -> list[str]:
        """The names of the tasks whose bodies began, in order."""
        return [entity.rpartition("/")[2] for kind, entity, _ in self.started if kind == "body"]

    def audit(self) -> list[AuditFinding]:
        """The auditor's findings in all commits."""
        rows = sorted(self.kept.transitions, key=lambda row: row.seq)  # rows of other nodes may be in between
        return audit((as_event(row) for row in rows), lifecycles=self.own_lifecycles)

    @property
    def own_lifecycles(self) -> list[Lifecycle]:
        """The lifecycles that a test has given."""
        return [] if self.lifecycles is None else self.lifecycles.own


def fails(error: str = "boom", **more: Any) -> Script:
    """A script that always fails."""
    return lambda call, entity: {"status": "failed", "error": error, "error_type": "RuntimeError", **more}


def fails_until(attempt: int, error: str = "boom") -> Script:
    """A script that fails before the given attempt."""

    def script(call: StartCall, entity: Any) -> dict[str, Any]:
        if entity.record.attempt < attempt:
            return {"status": "failed", "error": error, "error_type": "RuntimeError"}
        return {}

    return script


def hangs(call: StartCall, entity: Any) -> None:
    """A script that never ends by itself."""


def flow(*tasks: Task, **more: Any) -> Workstream:
    """A workstream of these tasks."""
    return Workstream("flow", tasks=list(tasks), **more)


def task(name: str, *needs: str, **more: Any) -> Task:
    """A task that depends on others."""
    return Task(name, run="m:f", depends_on=list(needs), **more)
