"""A stage for the lifecycle actors: the kernel with time moved by hand and engines that do as they are told.

What a body, condition, check or hook does is scripted by name; without a script it succeeds at once. Everything the
kernel commits is kept, so a test can kill it at any turn and load the rest again (`Stage.after_crash`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import msgspec

from callboard.actors.job import JobActor
from callboard.actors.kernel import (
    Answer,
    Effect,
    Entity,
    JobOver,
    Kernel,
    RunHook,
    StartCall,
    StopCall,
    Turn,
)
from callboard.actors.loading import Loaded, make_kernel
from callboard.actors.messages import (
    RECOVER,
    CallEnded,
    Cancel,
    Command,
    Message,
    Reply,
    StartWorkers,
    Submit,
    TimerFired,
)
from callboard.actors.records import (
    AttemptRecord,
    BreakerRecord,
    JobRecord,
    OutboxRow,
    TaskRecord,
    Transitioned,
    WorkerRecord,
    WorkstreamRecord,
)
from callboard.actors.spec import Defaults, Task, Worker, Workstream

Script = Callable[["StartCall", Any], dict[str, Any] | None]
WORKERS = (Worker("loop", engine="loop", capacity=100), Worker("command", engine="command", capacity=2))


class StageTimer:
    """An armed timer of the stage."""

    def __init__(self) -> None:
        self.armed = True


class Kept:
    """What was committed, as a journal would keep it."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], Any] = {}
        self.specs: dict[int, bytes] = {}
        self.transitions: list[Transitioned] = []

    def take(self, turn: Turn) -> None:
        for record in turn.records:
            kind = type(record)
            copy = msgspec.json.decode(msgspec.json.encode(record), type=kind)
            self.records[record.kind, record.key] = copy
        self.specs |= dict(turn.specs)
        for token in turn.outbox_done:
            del self.records["outbox", token]
        self.transitions += turn.transitions

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records.values() if isinstance(record, kind)]


class Stage:
    """A kernel under a test's hand. It is its own `Port`."""

    def __init__(
        self,
        *,
        workers: tuple[Worker, ...] = WORKERS,
        defaults: Defaults | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.random = Random(7)
        self.time = (
            1_000_000.0 if kept is None else max((t.at for t in kept.transitions), default=1_000_000.0)
        )
        self.inputs: deque[Message] = deque()
        self.timers: list[tuple[float, int, StageTimer, TimerFired]] = []
        self.armed = 0
        self.scripts: dict[str, Script] = {}
        self.running: dict[int, StartCall] = {}
        self.stops: list[tuple[int, bool]] = []
        self.hooks: list[OutboxRow] = []
        self.over: list[str] = []
        self.reports: list[str] = []
        self.answers: list[tuple[Any, Exception | None]] = []
        self.kept = kept or Kept()
        self.kernel: Kernel = make_kernel(
            self, defaults or Defaults(), Loaded() if kept is None else self._living(kept)
        )
        if kept is not None:
            self.kernel.run(RECOVER)
        self.kernel.run(StartWorkers(workers))
        self.settle()

    @staticmethod
    def _living(kept: Kept) -> Loaded:
        live = {job.key for job in kept.of(JobRecord) if job.finished_at is None}
        streams = [stream for stream in kept.of(WorkstreamRecord) if stream.job in live]
        keys = {stream.key for stream in streams}
        ended = {"shutdown", "failed", "terminated"}
        return Loaded(
            jobs=[job for job in kept.of(JobRecord) if job.key in live],
            workstreams=streams,
            specs={key: spec for key, spec in kept.specs.items() if key in keys},
            tasks=[task for task in kept.of(TaskRecord) if task.workstream in keys],
            workers=[worker for worker in kept.of(WorkerRecord) if worker.state not in ended],
            breakers=kept.of(BreakerRecord),
            outbox=kept.of(OutboxRow),
            last_key=max((key for _, key in kept.records), default=0),
            last_seq=max((t.seq for t in kept.transitions), default=0),
            incarnations={worker.name: worker.run for worker in kept.of(WorkerRecord)},
        )

    def after_crash(self) -> Stage:
        """The stage after a kill -9: what was committed is loaded, everything else is gone."""
        stage = Stage.__new__(Stage)
        kept, scripts = self.kept, self.scripts
        stage.__init__(kept=kept)  # type: ignore[misc]
        stage.scripts = scripts
        return stage

    # -- Port ------------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.time

    def arm(self, due: float, fire: TimerFired, *, by_utc: bool) -> StageTimer:
        timer = StageTimer()
        self.armed += 1
        heappush(self.timers, (due, self.armed, timer, fire))
        return timer

    def disarm(self, timer: Any) -> None:
        timer.armed = False

    def later(self, message: Message) -> None:
        self.inputs.append(message)

    def engine_of(self, task: Task) -> str:
        return "command" if task.command is not None else "loop"

    def report(self, text: str, error: Exception | None = None) -> None:
        self.reports.append(text)

    def commit(self, turn: Turn) -> None:
        self.kept.take(turn)
        for effect in turn.effects:
            self._release(effect)

    def _release(self, effect: Effect) -> None:
        match effect:
            case StartCall(token=token):
                entity = self.kernel.entities[effect.key]
                if effect.kind == "body" and (
                    entity.record.token != token or entity.record.state != "running"
                ):
                    self.inputs.append(CallEnded(token, "gone"))
                    return
                self.running[token] = effect
                script = self.scripts.get(f"{entity.record.name}.{effect.kind}") or self.scripts.get(
                    entity.record.name
                )
                if script is None or (
                    effect.kind != "body" and f"{entity.record.name}.{effect.kind}" not in self.scripts
                ):
                    outcome: dict[str, Any] | None = {"value": True if effect.kind != "body" else None}
                else:
                    outcome = script(effect, entity)
                if outcome is not None:
                    self.end(token, **outcome)
            case StopCall(token=token, force=force):
                self.stops.append((token, force))
                if force and token in self.running:
                    self.end(token, status="abandoned")
            case Answer():
                self.answers.append((effect.value, effect.error))
            case RunHook():
                self.hooks.append(effect.row)
                self.inputs.append(CallEnded(effect.token, "ok"))
            case JobOver():
                self.over.append(effect.job.record.id)
                self.kernel.let_go(effect.job)

    # -- what a test does ------------------------------------------------------------------------------------------

    def submit(self, spec: Workstream, job_id: str = "job") -> JobActor:
        encoded = msgspec.json.encode(spec)
        self.send(Submit(job_id, True, spec, encoded, "", Reply(None)))
        return self.kernel.jobs.get(job_id) or self.answers[-1][0]

    def send(self, message: Message) -> None:
        self.inputs.append(message)
        self.settle()

    def command(self, entity: Entity[Any], message: Message) -> Exception | None:
        self.send(Command(entity.record.key, message, Reply(None)))
        return self.answers[-1][1]

    def cancel(self, entity: Entity[Any], *, force: bool = False) -> Exception | None:
        return self.command(entity, Cancel("asked to", force))

    def end(self, token: int, status: str = "ok", **more: Any) -> None:
        """Have what runs under a token end."""
        self.running.pop(token, None)
        self.inputs.append(CallEnded(token, status, **more))

    def settle(self) -> None:
        """Run inputs until none is left."""
        while self.inputs:
            self.kernel.run(self.inputs.popleft())

    def advance(self, seconds: float) -> None:
        """Let time pass, firing what falls due in order."""
        until = self.time + seconds
        while self.timers and self.timers[0][0] <= until:
            due, _, timer, fire = heappop(self.timers)
            if timer.armed:
                self.time = max(self.time, due)
                self.kernel.run(fire)
                self.settle()
        self.time = until

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

    def state(self, job_id: str = "job") -> str:
        return next(j.state for j in self.kept.of(JobRecord) if j.id == job_id)

    def attempts(self, name: str) -> list[AttemptRecord]:
        return [a for a in self.kept.of(AttemptRecord) if a.task == self.task(name).key]


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
