"""The supervisor: the root of the lifecycle actors.

Rules
-----
- The supervisor starts jobs, workers and breakers. It receives the inputs of timers, and passes each one on to its
  entity, which drops it if the state that armed it was left.
- After an undone turn, the supervisor passes `TurnFailed` on to the turn's entity, which fails. No other entity is
  affected.
- `actors/restore.py` restores entities from a journal, at a start or a take-over.
- The ends of hooks of ended entities arrive here: their outbox rows are done when they have run. The row of a hook
  whose function cannot be found stays, until a program that has the function starts and runs it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..machines import WorkerState
from .jobs.handover import hand_over
from .jobs.job import jobs_of
from .jobs.submissions import next_run, submit
from .kernel.kernel import Kernel
from .kernel.publishing import birth
from .kernel.transaction import Answer, StopCall
from .machines import entity as machine_actor
from .messages.commands import Barrier, Cancel, HandOver, Lend, NextRun, Regain, SpawnMachine, StartWorkers, Submit
from .messages.errors import AttemptOver
from .messages.inputs import (
    Adopt,
    CallEnded,
    ClockSet,
    Drain,
    InboxTaken,
    Message,
    NewEpoch,
    Rebuilt,
    Recover,
    Registered,
    StopWorkers,
    TimerFired,
    ToolHeard,
    ToolShares,
    TurnFailed,
    WorkerBeat,
    WorkerDied,
    WorkerFits,
    WorkerUnfit,
)
from .records.entities import WorkerRecord
from .spec.model import HealthChecks, Worker
from .tasks.attempt_clock import lend, regain
from .tasks.holds import HELD
from .workers import tools
from .workers.worker import CLOSED, WorkerActor, lives
from .workers.workforce import Workforce


class SupervisorActor:
    """The root of the actors. It has no lifecycle of its own."""

    def __init__(self, kernel: Kernel, health: HealthChecks) -> None:
        self.kernel = kernel
        self.workforce = Workforce(kernel, health)
        self.paused: Mapping[str, str] = {}  # from the journal at start: reasons of paused workers, by name

    def receive(self, message: Message) -> None:  # noqa: PLR0912, PLR0915 - one branch per input
        """Act on an input that addresses no other actor directly."""
        match message:
            case TimerFired(key=-1, epoch=key):
                self.workforce.health.due(key)
            case TimerFired(key=key) | TurnFailed(key=key) | Recover(key=key) if key:
                if (entity := self.kernel.entities.get(key)) is not None:
                    entity.receive(message)
            case Submit() | NextRun():
                self._take_job(message)
            case CallEnded(token=token):
                self.kernel.end_call(token)
                if message.status != "waits" and not (self.kernel.draining and message.status == "cancelled"):
                    self.kernel.turn.outbox_done.append(token)
            case StartWorkers():
                self._start_workers(message)
            case (
                WorkerBeat(worker=name, incarnation=run)
                | WorkerDied(worker=name, incarnation=run)
                | WorkerUnfit(worker=name, incarnation=run)
            ):
                self._about_worker(name, run, message)
            case WorkerFits():
                self._start_fitting(message)
            case StopWorkers():
                self.workforce.scheduler.stopped = True
                for worker in list(self.workforce.workers.values()):
                    self.kernel.send(worker, Cancel(CLOSED))
            case SpawnMachine():
                machine_actor.spawn(self.kernel, message)
            case ToolHeard():
                tools.heard(self.workforce, message)
            case Barrier():
                self.kernel.effect(Answer(message.reply))
            case Drain():
                self._drain(message)
            case HandOver(reply=reply):
                self.kernel.effect(Answer(reply, hand_over(self.kernel)))
            case Adopt(loaded=loaded):
                self.kernel.recovery.adopt(loaded)
            case Recover():
                self.kernel.recovery.recover()
            case NewEpoch(key=key, seq=seq):
                self.kernel.count_from(key, seq)
            case Lend():
                lend(self.kernel, message)
            case Regain():
                if regain(self.kernel, message):
                    self.workforce.scheduler.reservations.wants_back(message.token)
            case TimerFired(key=0) | ToolShares():
                self.workforce.scheduler.receive(message)
            case InboxTaken():
                self._expire_put_off()
            case Rebuilt():
                self._go_on()
            case ClockSet():
                pass
            case Registered():
                for job in jobs_of(self.kernel).values():
                    if job.stream is not None:
                        job.stream.look_again()
            case _:
                raise TypeError(f"the supervisor is never sent a {type(message).__name__}")

    def _go_on(self) -> None:
        """After an undone turn: release the slots of stuck entities, and go on matching."""
        kernel, workforce = self.kernel, self.workforce
        for token, slot in list(kernel.slots.items()):
            if slot.key in kernel.stuck and token not in kernel.calls:
                kernel.free_slot(token)
        workforce.scheduler.reservations.tell_short()
        workforce.scheduler.reservations.collect()
        workforce.scheduler.match_soon()
        for breaker in workforce.breakers.values():
            breaker.go_on()
        for job in jobs_of(self.kernel).values():
            if job.stream is not None:
                job.stream.go_on()

    def _expire_put_off(self) -> None:
        """Expire the overdue holds that waited for the inbox: all decisions made in time are handled now."""
        kernel = self.kernel
        for entity in filter(None, map(kernel.entities.get, sorted(kernel.put_off))):
            if entity.record.state == HELD and entity.record.due_at <= kernel.at:
                kernel.port.later(TimerFired(entity.record.key, entity.record.epoch))
        kernel.awaited, kernel.put_off = {}, set()

    def _take_job(self, message: Submit | NextRun) -> None:
        """Create a job or its next run; refuse it if the submitting attempt is over."""
        try:
            if isinstance(message, Submit):
                submit(self.workforce, message)
            else:
                next_run(self.workforce, message)
        except AttemptOver as refusal:
            self.kernel.effect(Answer(message.reply, None, refusal))

    def _start_workers(self, message: StartWorkers) -> None:
        kernel, workforce = self.kernel, self.workforce
        specs = [one for worker in message.workers for one in worker.each()]
        for spec in specs:
            before = workforce.named.get(spec.name)
            if before is not None and not before.ended:
                refusal = lives(before)
                if message.reply is None:
                    raise refusal
                kernel.effect(Answer(message.reply, None, refusal))
                return
        metadata = {name: said for name, said in (("reason", message.reason), ("by", message.by)) if said is not None}
        for spec in specs:
            self._start_worker(spec, None if message.reply is not None else self._pause_of(spec.name), metadata)
        workforce.scheduler.tell_unroutable()
        if message.reply is not None:
            for spec in specs:
                workforce.health.forgive(spec.name)
            kernel.done(message.reply, workforce.named[specs[0].name])

    def _pause_of(self, name: str) -> str | None:
        """The reason of an operator's pause of the earlier incarnation, if it was not resumed."""
        before = self.workforce.named.get(name)
        return self.paused.get(name) if before is None else before.record.pause_reason

    def _start_worker(self, spec: Worker, pause: str | None, told: Mapping[str, str]) -> None:
        kernel, workforce = self.kernel, self.workforce
        before = workforce.named.get(spec.name)
        workforce.gone.pop(spec.name, None)
        run = workforce.incarnations.get(spec.name, workforce.last_dropped_run) + 1
        workforce.incarnations[spec.name] = run
        capacity = spec.capacity or 1
        key = kernel.number()
        workforce.program = workforce.program or key
        record = WorkerRecord(
            key=key, program=workforce.program, id=f"{kernel.placed(spec.name)}#{run}", name=spec.name,
            state=WorkerState.INITIALIZING, run=run, created_at=kernel.at, updated_at=kernel.at, engine=spec.engine,
            capacity=capacity, capabilities=spec.abilities(), recycle_after=spec.recycle_after,
            resources=spec.resources, labels=spec.labels, metadata=spec.metadata,
            paused=pause is not None, pause_reason=pause,
            published=birth(kernel.lifecycles, "worker", kernel.lifecycles.of("worker", spec.lifecycle)),
        )  # fmt: skip
        worker = WorkerActor(workforce, record)
        workforce.workers[record.key] = workforce.named[spec.name] = worker
        if before is not None and before.before is not None:  # the incarnation ended long ago
            kernel.forget(before.before)
            before.before = None
        worker.before = before
        workforce.health.started(spec.name)
        worker.born({"capacity": capacity, **told})
        worker.begin()

    def _about_worker(self, name: str, run: int, message: Message) -> None:
        """Pass an engine's message on to the worker's incarnation; it is stale if that incarnation is over."""
        worker = self.workforce.named.get(name)
        if worker is None or worker.record.run != run or worker.ended:
            self.kernel.stale += 1
        else:
            worker.receive(message)

    def _start_fitting(self, message: WorkerFits) -> None:
        """Start a worker that a node can hold now, unless it was started or released meanwhile."""
        worker = self.workforce.named.get(message.worker)
        if worker is None or worker.record.run != message.incarnation or worker.unfit is None:
            self.kernel.stale += 1
        elif not (self.kernel.draining or self.workforce.scheduler.stopped):
            self._start_workers(StartWorkers((worker.spec,)))

    def _drain(self, message: Drain) -> None:
        """Claim nothing more. With `stop`, give bodies back, and stop checks and hooks, which run again later."""
        kernel = self.kernel
        self.workforce.scheduler.stopped = True
        if not message.stop:
            if kernel.drain_began is None:
                kernel.drain_began = kernel.at
                for call in kernel.calls.values():
                    if call.kind == "body":
                        kernel.send(kernel.entities[call.key], message)
            return
        kernel.draining = True
        for token, call in kernel.calls.items():
            if call.kind == "body":
                kernel.send(kernel.entities[call.key], message)
            elif call.kind != "step":  # the body stops its steps; if they ended here, the body would see a lost worker
                kernel.effect(StopCall(token))
