"""The worker: executes attempts, up to its capacity.

Rules
-----
- A worker takes tasks while it is `idle` or `busy`; every assigned task and every released slot is a transition.
- `used` counts slots from the scheduler's decision on, `record.assigned` from the assignment on; both until the body
  has ended.
- Each start is a new incarnation (`run`) under the same name. An incarnation whose process has ended has failed.
- An operator's pause belongs to the name, over incarnations and restarts of the runtime, until an operator resumes or
  starts the worker.
- A worker with a process of its own is `initializing` until its first answer, and is watched (`health.py`) after its
  first task. A worker that does not answer is `unresponsive`, and its attempts are `recovering`. When it answers again,
  the tokens that it reports are compared with the known ones: attempts that it should not run any more are killed.
- A worker that cannot answer, but whose process is seen to work, counts as alive: one notice reports that, until the
  worker itself answers again.
- A worker that runs out of memory, disk or descriptors pauses, and goes on after a cooldown.
- If an operator terminates a worker, its attempts are lost: its process is killed, or its bodies are stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec.structs import replace

from ...machines import WORKER, Event, InvalidTransitionError, Phase, WorkerState
from ..kernel.entity import Entity, Receivers, States, timer_fired
from ..kernel.publishing import publish_row, published_row
from ..kernel.transaction import CallOrder, KillWorker, ReleaseResources, StartWorker, StopCall, StopWorker
from ..messages.commands import BeginWork, Cancel, PauseWorker, ResumeWorker, ShutDownWorker, TerminateWorker
from ..messages.inputs import (
    Assign,
    Exhausted,
    Recover,
    Regained,
    Release,
    TimerFired,
    WorkerBack,
    WorkerBeat,
    WorkerDied,
    WorkerSilent,
    WorkerUnfit,
)
from ..records.entities import WorkerRecord
from ..spec.model import ON_CLUSTER
from ..tasks.attempts import TAKING
from .health import IN_PROCESS, spec_of

if TYPE_CHECKING:
    from ..messages.commands import CommandWithReason
    from ..spec.model import Worker
    from .queues import Pool
    from .workforce import Workforce

S = WorkerState
ASSIGN, RELEASE, REGISTER, SHUT_DOWN, FAIL = (
    Event.ASSIGN, Event.RELEASE, Event.REGISTER, Event.SHUT_DOWN, Event.FAIL,
)  # fmt: skip
COMES_BACK = frozenset({S.INITIALIZING, S.IDLE, S.BUSY, S.PAUSED, S.UNRESPONSIVE})
STOP_MARGIN = 1.0
"""Seconds that an engine has after a deadline to end a process itself."""
CLUSTER_START = 300.0
"""Seconds that a worker on a cluster has at least until it is ready. The cluster itself reports failed starts. To kill
a slow start would only begin it anew, and a cluster may have to grow first."""
CLOSED = "the runtime closed"
_LIVES = "It has not ended: shut it down or terminate it, then start it again."


class WorkerActor(Entity[WorkerRecord]):
    """One incarnation of a worker."""

    __slots__ = (
        "before", "busy_bodies", "capabilities", "foreign", "pools", "seen", "strays", "unfit", "used", "watched",
        "workforce",
    )  # fmt: skip

    machine = WORKER
    moments = ("drain_until", "resume_at")

    def __init__(self, workforce: Workforce, record: WorkerRecord) -> None:
        super().__init__(workforce.kernel, record)
        self.workforce = workforce
        self.capabilities = frozenset(record.capabilities)
        self.used = 0
        self.pools: list[Pool] = []  # pools of the scheduler that it belongs to, while it takes tasks
        self.watched = record.engine in IN_PROCESS  # in-process workers need no watching
        self.seen = self.kernel.at  # when it last gave a sign of life (UTC epoch seconds)
        self.busy_bodies: frozenset[int] | None = None  # tokens of bodies with a notice that the worker is busy
        self.unfit: str | None = None  # the reason why no node of its cluster could hold it
        self.strays: frozenset[int] = frozenset()  # tokens of stale bodies with a notice already
        self.before: WorkerActor | None = None  # the earlier incarnation
        self.foreign = False  # the worker belonged to another node, and is restored only to be ended

    @property
    def takes_tasks(self) -> bool:
        """Whether the scheduler may assign tasks to the worker."""
        return self.record.state in TAKING

    @property
    def comes_back(self) -> bool:
        """Whether the worker takes tasks, or may take tasks again."""
        return self.record.state in COMES_BACK

    @property
    def in_process(self) -> bool:
        """Whether the worker has no process of its own."""
        return self.record.engine in IN_PROCESS

    @property
    def spec(self) -> Worker:
        """The specification that the worker was started with."""
        record = self.record
        return spec_of(record)

    def slots(self) -> list[tuple[int, CallOrder]]:
        """The worker's slots that attempts and steps occupy, or attempts have lent, each with its token."""
        kernel, key = self.kernel, self.record.key
        mine = [(token, slot) for token, slot in kernel.slots.items() if slot.worker == key]
        return mine + [(token, lent.slot) for token, lent in kernel.lent.items() if lent.slot.worker == key]

    def begin(self) -> None:
        """Register the worker at once, or start its process and wait for its answer."""
        record = self.record
        if self.in_process:
            self._register()
            return
        self.wait_until(self.kernel.at + self._start_limit)
        self.kernel.effect(StartWorker(record.engine, record.name, record.run))

    @property
    def _start_limit(self) -> float:
        """The number of seconds that the worker has until it is ready."""
        limit = self.workforce.health.start_timeout
        return max(limit, CLUSTER_START) if self.record.engine == ON_CLUSTER else limit

    def _register(self) -> None:
        self.fire(REGISTER, reason=self.record.pause_reason)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def assign(self, message: Assign) -> None:
        """Take a task, and pass the assignment on to it."""
        self.take(message.slot)
        self.kernel.send(self.kernel.entities[message.key], message)

    def take(self, slot: CallOrder) -> None:
        """Take an attempt, or a step of a body, that has a slot."""
        assigned = self.record.assigned + 1
        metadata = {"task_id": slot.task_id, "assigned": assigned}
        self.fire(ASSIGN, replace(self.record, assigned=assigned), metadata=metadata)
        if not self.watched:
            self.watched = True
            self.workforce.health.watch(self)

    def on_regained(self, message: Regained) -> None:
        """Take an attempt that had lent its slot again.

        If the worker has just stopped taking tasks, the attempt goes on without its slot.
        """
        kernel = self.kernel
        if self.takes_tasks:
            self.assign(message)
        elif kernel.leave_slot(message.slot):
            kernel.send(kernel.entities[message.key], message)
            kernel.send(self.workforce.scheduler, Release(message.key, message.slot))
        elif not self.ended:  # the attempt has ended in the same turn: its release comes next
            self.change(assigned=self.record.assigned + 1)

    def on_release(self, message: Release) -> None:
        """Take back a released slot, and give it back to the scheduler."""
        assigned = self.record.assigned - 1
        if self.knows(RELEASE):
            metadata = {"task_id": message.slot.task_id, "assigned": assigned}
            self.fire(RELEASE, replace(self.record, assigned=assigned), metadata=metadata)
        elif not self.ended:
            self.change(assigned=assigned)
        scheduler = self.workforce.scheduler
        if scheduler.reservations.at_work:  # else a waiting job could begin before the end here is handled
            self.kernel.send(scheduler, message)
        else:
            scheduler.free(message.slot)

    # -- health --------------------------------------------------------------------------------------------------------

    def on_beat(self, message: WorkerBeat) -> None:
        """Receive a sign of life."""
        self.seen = self.kernel.at
        if self.in_process:
            return
        self.workforce.health.heard(self)
        if message.busy and (self.busy_bodies is None or not self.busy_bodies.issuperset(message.tokens)):
            self.busy_bodies = frozenset(message.tokens)
            self._tell_busy()
        if self.record.missed:
            self.change(missed=0)
        if self.record.state == S.INITIALIZING:
            self._register()
        elif self.record.state == S.UNRESPONSIVE:
            self._come_back(message)
        self._kill_strays(message.tokens)

    def _tell_busy(self) -> None:
        """Tell it once for the same bodies: on a busy machine a worker may answer in time now and then."""
        text = (
            f"worker {self.record.id} cannot answer, but its process works: a call in its body holds Python's "
            "lock. The process is not killed; the limits of its attempt apply"
        )
        self.kernel.notice("worker_busy", "warning", text, self, assigned=self.record.assigned)

    def missed(self) -> None:
        """Count a missed health check; after too many in a row the worker is unresponsive."""
        record, health = self.record, self.workforce.health
        if record.state == S.UNRESPONSIVE or not self.knows(Event.HEALTH_CHECK_TIMEOUT):
            return
        missed = record.missed + 1
        if missed < health.settings.misses:
            self.change(missed=missed)
            return
        self.fire(
            Event.HEALTH_CHECK_TIMEOUT,
            replace(record, missed=missed),
            reason=f"it did not answer {missed} health checks in a row",
            metadata={"missed": missed, "assigned": record.assigned},
            due_at=self.kernel.at + health.expire,
        )

    def entered_unresponsive(self) -> None:
        """Retire the worker, and inform its tasks that it does not answer."""
        self.workforce.scheduler.retire(self)
        reason = f"worker {self.record.id} does not answer"
        for token, slot in self.slots():
            self.kernel.send(self.kernel.entities[slot.key], WorkerSilent(token, reason))

    def _come_back(self, message: WorkerBeat) -> None:
        tokens = message.tokens
        record, now = self.record, self.kernel.at
        due = record.drain_until if record.draining else record.resume_at if record.paused else None
        self.fire(
            Event.RECOVER,
            reason="its process works" if message.busy else "it answers again",
            metadata={"assigned": record.assigned},
            due_at=None if due is None else max(due, now),
        )
        for token, slot in self.slots():
            if token in tokens:
                self.kernel.send(self.kernel.entities[slot.key], WorkerBack(token))
        if self.record.state == S.DRAINING and not self.record.assigned:
            self.fire(RELEASE, metadata={"assigned": 0})

    def _kill_strays(self, tokens: tuple[int, ...]) -> None:
        """Kill the worker's bodies whose tokens are not valid any more. One notice for each body."""
        kernel, strays = self.kernel, [token for token in tokens if self._is_stray(token)]
        for token in strays:
            if token not in self.strays:
                text = (
                    f"worker {self.record.id} still runs a body under fencing token {token}, though that call has "
                    "ended: the body is killed"
                )
                kernel.notice("stray_body", "warning", text, self, token=token)
            kernel.effect(StopCall(token, force=True))
        self.strays = frozenset(strays)

    def _is_stray(self, token: int) -> bool:
        """Whether a body has ended for its entity, and runs on though its engine was told to stop it before the
        worker was asked. An answer from before the stop, or from the same moment, says nothing about it.
        """
        call = self.kernel.calls.get(token)
        if call is None:
            return True
        task = self.kernel.entities.get(call.key)
        if call.kind != "body" or (task is not None and task.holds(token)):
            return False
        return call.told is not None and call.told < self.workforce.health.asked_at

    def on_died(self, message: WorkerDied) -> None:
        """Fail the incarnation, since its process died unexpectedly, and plan the next one.

        A worker on a cluster first becomes unresponsive: others reported its death, not the worker itself.
        """
        if self.record.engine == ON_CLUSTER and self.record.assigned and self.knows(Event.HEALTH_CHECK_TIMEOUT):
            metadata = {"missed": self.record.missed, "assigned": self.record.assigned}
            self.fire(Event.HEALTH_CHECK_TIMEOUT, reason=message.reason, metadata=metadata)
        self.fire(FAIL, replace(self.record, assigned=0), reason=message.reason)
        self.workforce.health.replace(self)
        self._leave()

    def on_unfit(self, message: WorkerUnfit) -> None:
        """Fail the incarnation: no node of the cluster can hold the worker. Tasks that wait for it get the reason."""
        self.unfit = message.reason
        self.fire(FAIL, replace(self.record, assigned=0), reason=message.reason)
        self._leave()

    def on_recover(self, _: Recover) -> None:
        """Fail the incarnation after a restart: its process has ended."""
        self.fire(FAIL, replace(self.record, assigned=0), reason=self.kernel.left_by(self.record.id))

    # -- commands of operators -----------------------------------------------------------------------------------------

    def on_begin_work(self, message: BeginWork) -> None:
        """Publish the worker as working. Raises InvalidTransitionError if its lifecycle has no such row."""
        row = None if self.ended else published_row(self, Event.START)
        if row is None:
            raise lives(self)
        publish_row(self, row, message.reason, _said_by(message))

    def on_pause(self, message: PauseWorker) -> None:
        """Take no new tasks; running attempts go on. An idle worker cannot be paused, since it runs nothing, unless its
        lifecycle publishes it as running between its tasks, too.
        """
        changed = replace(self.record, paused=True, pause_reason=message.reason, resume_at=None)
        payload = _Pause(told_as_running=self._shown_phase == Phase.BUSY)
        self.fire(Event.PAUSE, changed, payload, reason=message.reason, metadata=_said_by(message))

    @property
    def _shown_phase(self) -> str:
        """The phase of the published state."""
        published = self.record.published
        if published is None:
            return self.record.state
        return self.kernel.lifecycles.refinement(published.lifecycle, self.record.kind).phases[published.state]

    def on_resume(self, message: ResumeWorker) -> None:
        """Resume the worker: it takes tasks again."""
        changed = replace(self.record, paused=False, pause_reason=None, resume_at=None)
        self.fire(Event.RESUME, changed, reason=message.reason, metadata=_said_by(message))

    def on_shut_down(self, message: ShutDownWorker) -> None:
        """Shut down: at once if nothing runs, else when its attempts have ended, at the latest at the deadline."""
        record, health = self.record, self.workforce.health
        deadline = health.drain_deadline if message.deadline is None else message.deadline
        until = self.kernel.at + deadline if record.assigned else None
        changed = replace(record, draining=True, drain_until=until, retired=True)
        self.fire(SHUT_DOWN, changed, reason=message.reason, metadata=_said_by(message), due_at=until)
        self._stop_process(deadline)
        self._leave()

    def on_terminate(self, message: TerminateWorker) -> None:
        """Terminate at once; an ended worker is published as terminated, if its lifecycle has such a row."""
        row = published_row(self, Event.TERMINATE) if self.ended else None
        if row is not None:
            publish_row(self, row, message.reason, _said_by(message))
            self.change(retired=True)
            return
        changed = replace(self.record, assigned=0, retired=True)
        self.fire(Event.TERMINATE, changed, reason=message.reason, metadata=_said_by(message))
        self._leave()

    def on_cancel(self, message: Cancel) -> None:
        """End with the runtime, as gracefully as the state allows. The engine is closed after that."""
        if self.knows(SHUT_DOWN):
            self.fire(SHUT_DOWN, replace(self.record, draining=True), reason=message.reason)
        elif self.record.state != S.DRAINING:
            self.fire(Event.TERMINATE, replace(self.record, assigned=0), reason=message.reason)

    def on_exhausted(self, message: Exhausted) -> None:
        """Free resources and pause for a cooldown: a body ran out of memory, disk or descriptors."""
        self.kernel.effect(ReleaseResources())
        if self.record.state != S.BUSY:
            return
        until = self.kernel.at + self.workforce.health.cooldown
        reason = f"resources ran out: {message.reason}"
        self.fire(Event.PAUSE, replace(self.record, paused=True, resume_at=until), reason=reason, due_at=until)

    # -- time ----------------------------------------------------------------------------------------------------------

    def due_initializing(self) -> None:
        """Fail and replace the incarnation: it was not ready in time."""
        self.fire(FAIL, reason=f"it was not ready within {self._start_limit:g} s")
        self._kill_process()
        self.workforce.health.replace(self)
        self._leave()

    def due_paused(self) -> None:
        """Resume the worker: its cooldown is over."""
        self.on_resume(ResumeWorker("the cooldown is over"))

    def due_draining(self) -> None:
        """End the worker at the drain deadline: its attempts did not end in time."""
        self.fire(Event.DRAIN_DEADLINE, replace(self.record, assigned=0), reason="the drain deadline was reached")
        self._leave()

    def due_unresponsive(self) -> None:
        """Expire a worker that did not answer in time; wait longer if the runtime itself was suspended."""
        health = self.workforce.health
        if health.stood_still(self.kernel.at - (self.record.due_at or self.kernel.at)):
            self.wait_until(self.kernel.at + health.grace)
            return
        reason = f"it did not come back within {health.expire:g} s"
        self.fire(Event.EXPIRE, replace(self.record, assigned=0), reason=reason)
        self._kill_process()
        health.replace(self)
        self._leave()

    # -- states --------------------------------------------------------------------------------------------------------

    def entered_idle(self) -> None:
        """Enrol the worker, if it took no tasks before."""
        self._enrol()

    def entered_busy(self) -> None:
        """Enrol the worker, if it took no tasks before."""
        if self.record.previous_state != S.IDLE:
            self._enrol()

    def _enrol(self) -> None:
        """Enrol with the scheduler, if the previous state took no tasks."""
        previous = self.record.previous_state
        if previous == S.INITIALIZING:
            self.workforce.health.up(self)
        elif previous not in {S.PAUSED, S.UNRESPONSIVE}:
            return
        self.workforce.scheduler.enrol(self)

    def entered_paused(self) -> None:
        """Retire the worker from the scheduler until it is resumed."""
        if self.record.previous_state == S.INITIALIZING:
            self.workforce.health.up(self)
        self.workforce.scheduler.retire(self)

    def entered_draining(self) -> None:
        """Retire the worker from the scheduler for good."""
        self.workforce.scheduler.retire(self)

    def entered_shutdown(self) -> None:
        """End the incarnation as shut down."""
        self._gone()

    def entered_failed(self) -> None:
        """End the incarnation as failed."""
        self._gone()

    def entered_terminated(self) -> None:
        """End the incarnation as terminated, and kill all that it runs."""
        self._gone()
        self._kill_process()

    def _gone(self) -> None:
        self.change(finished_at=self.kernel.at)
        self.workforce.scheduler.retire(self)
        self.workforce.workers.pop(self.record.key, None)
        self.workforce.health.unwatch(self)
        if not self.foreign:
            self.workforce.gone_worker(self.record.name)

    def _leave(self) -> None:
        """Inform queued tasks that no other worker can run, unless the scheduler is stopped."""
        if not self.workforce.scheduler.stopped:
            self.workforce.scheduler.tell_unroutable()

    def _kill_process(self) -> None:
        """Kill the worker's process, or stop its bodies by force. Their ends arrive later as inputs."""
        record = self.record
        if not self.in_process:
            self.kernel.effect(KillWorker(record.engine, record.name, record.run))
            return
        for token, _ in self.slots():
            self.kernel.stop_call(token, force=True)

    def _stop_process(self, deadline: float) -> None:
        record = self.record
        if not self.in_process:
            self.kernel.effect(StopWorker(record.engine, record.name, record.run, deadline + STOP_MARGIN))

    # -- tables --------------------------------------------------------------------------------------------------------

    receivers: ClassVar[Receivers] = {
        Regained: on_regained, Release: on_release, Cancel: on_cancel, Recover: on_recover,
        WorkerBeat: on_beat, WorkerDied: on_died, WorkerUnfit: on_unfit, BeginWork: on_begin_work,
        PauseWorker: on_pause, ResumeWorker: on_resume, ShutDownWorker: on_shut_down, TerminateWorker: on_terminate,
        Exhausted: on_exhausted, TimerFired: timer_fired,
    }  # fmt: skip

    when_entered: ClassVar[States] = {
        S.IDLE: entered_idle, S.BUSY: entered_busy, S.PAUSED: entered_paused, S.DRAINING: entered_draining,
        S.UNRESPONSIVE: entered_unresponsive, S.SHUTDOWN: entered_shutdown, S.FAILED: entered_failed,
        S.TERMINATED: entered_terminated,
    }  # fmt: skip

    when_due: ClassVar[States] = {
        S.INITIALIZING: due_initializing, S.PAUSED: due_paused, S.DRAINING: due_draining,
        S.UNRESPONSIVE: due_unresponsive,
    }  # fmt: skip


class _Pause(msgspec.Struct, frozen=True):
    """The payload that the guard of `pause` reads."""

    told_as_running: bool


def lives(worker: WorkerActor) -> InvalidTransitionError:
    """The error for the start of a living worker, or of one that has just ended."""
    state = worker.record.state
    advice = "It has ended only now: start it again." if worker.ended else _LIVES
    return InvalidTransitionError(WORKER.name, state, "start", WORKER.valid_events(state), advice)


def _said_by(message: CommandWithReason) -> dict[str, str] | None:
    return None if message.by is None else {"by": message.by}
