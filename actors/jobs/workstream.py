"""The workstream: coordinates a graph of tasks, pauses and stops it.

Rules
-----
- Which task waits for which, and for how many still, is in its part `graph`.
- Work on many tasks (creating, starting, skipping, cancelling them) is done `CHUNK` at a time, a turn each; what is
  not done yet follows from the records, so a crash in between loses nothing.
- The first critical bad end fails it: what runs is cancelled, nothing else starts, except clean-up tasks: those whose
  edges are all `after`. It ends when every task has.
- A further run creates its tasks in one turn, those first that it has of the run before.
- What fails while its tasks are still being created fails it when they are; a cancel ends it at once, with those it
  has.

Stopping
--------
- Once it has a `cause`, no task starts but for clean-up after a failure: tasks whose edges are all `after`. Where the
  workstream is still held, or waits, there is nothing to be cleaned up: nothing starts at all.
- After a failure the cancelling of its tasks begins in the turn after, so that what depends on the task that failed is
  skipped first.
- A check that does not go when it is stopped is abandoned after a grace.
- The deadline's timer outlives every state.

Pausing
-------
- Pausing stops enqueueing and claiming, and nothing else: attempts that run end and are counted, timers run (a backoff
  that is over queues its task, limits are reached), a critical failure or a cancel acts at once.
- A task whose condition was being asked when the pause came is asked again after the resume: what it was about may
  have changed.
- A task that waits for its turn to probe its tool gives the permit back: the tool must not wait for a pause.
- With all its tasks over it waits for the resume, and validates then.
- One whose tasks all wait still, for people or a time or a worker, is paused as well; after the resume it is ready, as
  it was.
- That it is paused is its state, nothing more: after a restart it is paused as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from ...machines import WORKSTREAM, Event, Machine, Standing, TaskState, WorkstreamState
from ..kernel.entity import Entity, Receivers, States, timer_fired
from ..kernel.kernel import Kernel
from ..kernel.transaction import NO_ENGINE, Armed
from ..messages.commands import Approve, Cancel, Pause, Reject, Resume
from ..messages.inputs import (
    READY,
    CallEnded,
    Continue,
    Ended,
    Recover,
    Skip,
    Started,
    Stop,
    TimerFired,
    TurnFailed,
)
from ..records.base import Decision
from ..records.entities import WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.limits import VALIDATION_TIMEOUT, Limits, LimitsResolver
from ..spec.model import Approval, Check, Hook, Task, Workstream
from ..spec.times import Duration, seconds
from ..tasks.cancelling import drop_hooks, hook_due, hook_ended, hooks_run, run_hooks, set_back_hooks
from ..tasks.checks import check_due, check_ended, still_to_be_told, traced, validate
from ..tasks.holds import (
    approve,
    hold_due,
    how_it_ended,
    overdue,
    protect,
    reject,
    spans_of,
    told_at_end,
    wait_due,
    waits_for_named,
)  # fmt: skip
from ..tasks.task import TaskActor
from ..workers.alerts import Watches
from .graph import Graph
from .runs import NOTHING, Kept

if TYPE_CHECKING:
    from .job import JobActor

S = WorkstreamState
PLANNED, UNBEGUN, PAUSED = S.PLANNED, S.READY, S.PAUSED
PROTECTED = frozenset({S.HELD, S.WAITING})
STARTS_NOTHING = PROTECTED | {PLANNED, PAUSED}
_SAYS_NOTHING = Task("")
CHUNK = 500
CHECK_GRACE = 11.0
"""Seconds that a check of the final validation has to be gone once it was stopped: the usual grace and a margin."""
DEADLINE_EPOCH = 0
"""The epoch of the deadline's timer, which outlives every state."""
GOOD, VOID, BAD = Standing.GOOD, Standing.VOID, Standing.BAD


class WorkstreamActor(Entity[WorkstreamRecord]):
    """One run of a graph of tasks."""

    __slots__ = (
        "cursor", "deadline", "graph", "job", "last_call", "open", "resolver", "spec", "tasks", "unsettled", "watches",
    )  # fmt: skip

    machine: ClassVar[Machine] = WORKSTREAM
    by_utc = PROTECTED
    moments = ("deadline_at",)

    def __init__(self, kernel: Kernel, record: WorkstreamRecord, job: JobActor, spec: Workstream) -> None:
        super().__init__(kernel, record)
        self.last_call = 0  # token of the check or hook that runs
        self.job = job
        self.spec: Workstream = spec
        self.resolver = LimitsResolver(spec, kernel.defaults, kernel.tools, kernel.lifecycles)
        self.tasks: list[TaskActor] = []
        self.graph = Graph(spec.tasks)
        self.open = 0
        self.cursor = 0  # the next task to start or to cancel
        # tasks that have ended, with which of its edges is the next to be settled, and the first task that is too new
        self.unsettled: list[tuple[TaskActor, int, int]] = []
        self.deadline: Armed | None = None
        self.watches = Watches(spec.alerts) if spec.alerts else None
        if spec.alerts:
            kernel.alerting = True

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """Its ids for the log."""
        return self.record.job_id, self.record.id, None, None

    @property
    def within(self) -> JobActor:
        """Its job."""
        return self.job

    # -- tasks come into being -----------------------------------------------------------------------------------------

    def begin(self, kept: Kept = NOTHING) -> None:
        """Create the tasks, and start what can start. `kept`: what a further run has of the one before."""
        if self.spec.deadline is not None:
            self.change(deadline_at=self.job.deadline)
            self._arm_deadline()
        self._create_some(kept)

    def _create_some(self, kept: Kept = NOTHING) -> None:
        first = len(self.tasks)
        last = len(self.spec.tasks) if self.record.run > 1 else min(first + CHUNK, len(self.spec.tasks))
        for index in range(first, last):
            spec = self.spec.tasks[index]
            limits = self.resolver.of(spec)
            if (done := kept.completed.get(spec.name)) is not None:
                self._carry_over(spec, limits, done)
                continue
            record = self._new_record(spec, limits)
            if spec.name in kept.stopped:
                record = replace(record, final=True)
            if (saved := kept.saved.get(spec.name)) is not None:
                record = replace(record, raw_checkpoint=saved)
            task = self._make(record, limits)
            told = {
                "depends_on": len(spec.depends_on) + len(spec.after), "optional": spec.optional,
                "max_attempts": limits.allowed.max_attempts, "max_losses": limits.allowed.max_losses,
            }  # fmt: skip
            task.born(told)
        self.change(tasks_created=len(self.tasks))
        if self.open < len(self.tasks):  # some were carried over, or cancelled already while these were being made
            for ended in (task for task in self.tasks if task.ended):
                self._settle_all(ended, first)
        for name, why in kept.skipped.items():
            self.kernel.send(self.tasks[self.graph.names[name]], Skip(GOOD, why))
        for name, why in kept.stopped.items():
            self.kernel.send(self.tasks[self.graph.names[name]], Skip(VOID, why))
        if len(self.tasks) < len(self.spec.tasks):
            self.kernel.port.later(Continue(self.record.key))
        else:
            self.fire(Event.TASKS_CREATED)

    def _new_record(self, spec: Task, limits: Limits) -> TaskRecord:
        record, index = self.record, self.graph.names[spec.name]  # the number itself: a record keeps no other one
        return TaskRecord(
            key=record.first_task + index, id=f"{record.id}/{spec.name}", name=spec.name, state=TaskState.PENDING,
            run=record.run, created_at=self.kernel.at, updated_at=self.kernel.at, workstream=record.key,
            workstream_id=record.id, job_id=record.job_id, index=index, unmet=len(spec.depends_on) + len(spec.after),
            optional=spec.optional, allowed=limits.allowed,
            published=None if (name := limits.lifecycle) is None else self.kernel.lifecycles.birth("task", name),
        )  # fmt: skip

    def _carry_over(self, spec: Task, limits: Limits, done: TaskRecord) -> None:
        """A task that completed in the run before stands as completed in this one."""
        record = replace(
            self._new_record(spec, limits), state=TaskState.COMPLETED, standing=GOOD, ready=True, unmet=0,
            finished_at=self.kernel.at, reason=f"carried over from {done.id}", raw_result=done.raw_result,
            produced=done.produced, test_results=done.test_results, execution_ms=done.execution_ms,
            validation_ms=done.validation_ms,
            published=self.kernel.lifecycles.birth("task", limits.lifecycle, TaskState.COMPLETED),
        )  # fmt: skip
        self._make(record, limits).born({"carried_over": done.id, "optional": spec.optional})
        self.open -= 1

    def _make(self, record: TaskRecord, limits: Limits) -> TaskActor:
        """The actor of a task, new or loaded, counted as not ended and waiting for all its edges."""
        spec = self.spec.tasks[record.index]
        task = TaskActor(self.kernel, record, self, spec, limits=limits, engine=self.kernel.port.engine_of(spec))
        self.tasks.append(task)
        self.graph.add(spec)
        self.open += 1
        return task

    def entered_ready(self) -> None:
        """Every task is there: once its hold and its wait are over, start those that wait for nothing."""
        self.cursor = 0
        if not self.open:
            self._all_ended()
        elif self.record.cause is not None:
            self._begin_cancelling()
        elif self.record.passed or not protect(self, self.spec.hold, self.spec.wait):
            self._start_some()

    @property
    def approval(self) -> Approval:
        """What its hold asks for."""
        assert self.spec.hold is not None  # noqa: S101 - it has been held
        return self.spec.hold

    @property
    def wait(self) -> Duration | None:
        """Its wait, if it has one."""
        return self.spec.wait

    @property
    def submitter(self) -> str | None:
        """Who submitted its job, if that was said."""
        return self.job.record.by

    @property
    def waits_for_named(self) -> bool:
        """Whether what it waits for now is a moment that somebody named, and no span."""
        return waits_for_named(self)

    def set_back(self, by: float) -> None:
        """The wall clock was set back by so many seconds."""
        super().set_back(by)
        self.earlier(by, spans_of(self.spec.wait))
        set_back_hooks(self, by)

    def through(self, record: WorkstreamRecord) -> WorkstreamRecord:
        """The record, once its hold and its wait are over."""
        return replace(record, passed=True)

    def refuse(self, event: Event, decision: Decision, reason: str) -> None:
        """It was rejected, or has expired: it ends when its tasks have."""
        self.disarm()
        self.change(
            decisions=(*self.record.decisions, decision), cause="cancel", verdict=str(event), reason=reason, due_at=None
        )
        self._begin_cancelling()

    def _start_some(self) -> None:
        end = min(self.cursor + CHUNK, len(self.tasks))
        for index in self.graph.by_priority[self.cursor : end]:
            if not self.graph.unmet[index] and not self.tasks[index].record.ready and not self.tasks[index].ended:
                self.kernel.send(self.tasks[index], READY)
        self.cursor = end
        if end < len(self.tasks):
            self.kernel.port.later(Continue(self.record.key))

    def on_continue(self, _: Continue) -> None:
        """Go on with the tasks that are left."""
        if self.record.cause == "cancel":
            self.unsettled.clear()  # they are cancelled, too
        if self.unsettled:
            self._settle_some()
            return
        if self.record.state == PLANNED and self.record.cause != "cancel":
            self._create_some()
        elif self.record.cause is not None:
            self._cancel_some()
        elif self.cursor < len(self.tasks) and self.record.state not in STARTS_NOTHING:
            self._start_some()

    # -- tasks run and end ---------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether a task of it has started."""
        return self.record.state != UNBEGUN

    def on_started(self, _: Started) -> None:
        """The first task started."""
        if self.record.state == UNBEGUN:
            self.fire(Event.START, replace(self.record, started_at=self.kernel.at))
            if self.record.cause is not None:
                self.fire(Event.FAIL, reason=self.record.error)

    def on_ended(self, message: Ended) -> None:
        """A task is terminal: settle its dependents, then its effect on the whole."""
        record = self.record
        task = self.tasks[message.key - record.first_task]
        self.open -= 1
        if task.record.index in self.graph.dependents:
            waited = bool(self.unsettled)
            self._settle_edges(task, 0, len(self.tasks))
            if self.unsettled and not waited:
                self.kernel.port.later(Continue(record.key))
        if task.record.standing == BAD and not task.spec.optional and record.cause is None:
            self._critical(task)
        if not self.open and not self.ended:
            self._all_ended()

    def _settle_edges(self, ended: TaskActor, place: int, last: int) -> None:
        """Settle the edges of a task that has ended from number `place` on, to tasks before `last`: a turn's worth."""
        turn, edges = self.kernel.turn, self.graph.dependents[ended.record.index]
        while place < len(edges):
            if len(turn.queue) + len(turn.transitions) >= CHUNK:
                self.unsettled.append((ended, place, last))
                return
            index, strict = edges[place]
            if index < last:
                self._settle(self.tasks[index], ended, strict)
            place += 1

    def _settle_some(self) -> None:
        """Go on with the edges that are left. What follows from that comes before anything is cancelled."""
        left, self.unsettled = self.unsettled, []
        for ended, place, last in left:
            self._settle_edges(ended, place, last)
        self.kernel.port.later(Continue(self.record.key))

    def _settle_all(self, ended: TaskActor, first: int = 0) -> None:
        """Tell the tasks that wait for one that has ended, from number `first` on, as far as they exist."""
        for index, strict in self.graph.dependents.get(ended.record.index, ()):
            if first <= index < len(self.tasks):
                self._settle(self.tasks[index], ended, strict)

    def _settle(self, dependent: TaskActor, ended: TaskActor, strict: bool) -> None:
        if dependent.ended:
            return
        record = ended.record
        if strict and record.standing != GOOD:
            bad = record.standing == BAD and not ended.spec.optional
            reason = f"dependency {record.name!r} {how_it_ended(record)}"
            self.kernel.send(dependent, Skip(BAD if bad else VOID, reason))
            return
        index = dependent.record.index
        if self.graph.settle(index) and not dependent.record.ready and self.lets_start(dependent):
            self.kernel.send(dependent, READY)

    def _critical(self, task: TaskActor) -> None:
        """The first critical bad end."""
        record = task.record
        error = f"task {record.name!r} {how_it_ended(record)}"
        if record.last_error or record.reason:
            error = f"{error}: {record.last_error or record.reason}"
        self._fail(error)

    def _all_ended(self) -> None:
        state, cause = self.record.state, self.record.cause
        if state == S.CANCELLING:
            run_hooks(self)
        elif state in PROTECTED:
            if cause is not None:
                self._end_held()
        elif cause == "cancel":
            self.fire(Event.CANCEL, reason=self.record.reason)
        elif cause == "failure":
            if state != PLANNED:  # else when the others have been made, too
                self.fire(Event.FAIL, reason=self.record.error)
        elif state in {UNBEGUN, S.EXECUTING}:
            if (short := self._short_of_all()) is not None:
                self._fail(short)
            else:
                self.fire(Event.SUCCEED)

    def _short_of_all(self) -> str | None:
        """Why it does not complete by its lifecycle though no critical task ended badly: it wants all of its own."""
        published = self.record.published
        if published is None or self.kernel.lifecycles.get(published.lifecycle, "workstream").optional == "allowed":
            return None
        bad = (task.record for task in self.tasks if task.record.standing != GOOD)
        its = (record for record in bad if record.published and record.published.lifecycle == published.lifecycle)
        short = next(its, None)
        if short is None:
            return None
        return f"task {short.name!r} {how_it_ended(short)}: under {published.lifecycle} all have to complete"

    def _end_held(self) -> None:
        """It was stopped before it began: by a decision, a cancel, or since one of its tasks was."""
        record = self.record
        told = None if record.verdict is None else told_at_end(self, record)
        self.fire(record.verdict or Event.CANCEL, reason=record.error or record.reason, metadata=told)

    # -- being paused --------------------------------------------------------------------------------------------------

    def on_pause(self, message: Pause) -> None:
        """Start nothing more. Raises InvalidTransitionError where it would start nothing anyway."""
        self.fire(Event.PAUSE, reason=message.reason, metadata=_by(message))

    def entered_paused(self) -> None:
        """Have the scheduler pass its tasks over."""
        self.kernel.scheduler.pause(self.record.key)
        for task in self.tasks:
            if task.record.state == TaskState.HALF_OPEN:
                task.step_back("its workstream is paused")

    def on_resume(self, message: Resume) -> None:
        """Go on. Raises InvalidTransitionError where it is not paused."""
        self.fire(Event.RESUME, reason=message.reason, metadata=_by(message))
        self.claim_again()
        if not self.open:
            self._all_ended()
            return
        for task in self.tasks:
            if task.record.ready and task.record.state == TaskState.PENDING and not task.last_call:
                self.kernel.send(task, READY)
        self.cursor = 0
        self._start_some()

    def lets_start(self, task: TaskActor) -> bool:
        """Whether an attempt of `task` may start now."""
        if self.record.cause is None:
            return self.record.state not in STARTS_NOTHING
        return self._cleans_up and is_clean_up(task.spec)

    @property
    def _cleans_up(self) -> bool:
        """Whether clean-up still runs, now that it is stopped: after a failure, unless nobody let it begin at all."""
        record = self.record
        return record.cause == "failure" and not record.forced and record.state not in PROTECTED

    def _fail(self, error: str, *, forced: bool = False) -> None:
        """Begin to fail: its tasks are stopped."""
        if self.record.state in {S.EXECUTING, S.PAUSED}:
            self.fire(Event.FAIL, replace(self.record, cause="failure", error=error, forced=forced), reason=error)
            return
        self.change(cause="failure", error=error, forced=forced)
        if self.record.state != PLANNED:
            self._begin_cancelling()

    # -- being stopped -------------------------------------------------------------------------------------------------

    def on_cancel(self, message: Cancel) -> None:
        """Cancel it and its tasks. Raises InvalidTransitionError if that is done already, or it has ended."""
        record = self.record
        if self.ended or (record.cause is not None and not message.force):
            self.fire(Event.CANCEL_GRACEFUL, reason=message.reason)  # which says that it is not possible
        elif record.state == S.CANCELLING:
            if hooks_run(self):
                self.force_over(f"{message.reason}; {drop_hooks(self, 'it was forced')}")
            else:
                self.fire(Event.CANCEL_FORCE, replace(record, forced=True), reason=message.reason)
                self._begin_cancelling()
        elif self.knows(Event.CANCEL_GRACEFUL):
            event = Event.CANCEL if message.force else Event.CANCEL_GRACEFUL
            self.fire(event, replace(record, cause="cancel", forced=message.force), reason=message.reason)
        else:
            self.change(cause=record.cause or "cancel", reason=message.reason, forced=message.force)
            self._begin_cancelling()

    def on_stop(self, message: Stop) -> None:
        """Its job is cancelled, or its deadline is over: as `on_cancel`, but silent where that says nothing new."""
        if not self.ended and (message.force or self.record.cause is None):
            self.on_cancel(Cancel(message.reason, message.force))

    def claim_again(self) -> None:
        """It was paused: have the scheduler look at its tasks, and its tools offer them their permits."""
        self.kernel.scheduler.resume(self.record.key)
        for tool in {task.spec.tool for task in self.tasks if task.parked_at_tool}:
            self.kernel.breakers[str(tool)].offer_again()

    def entered_cancelling(self) -> None:
        """Stop its tasks, or the check that runs."""
        if self.record.previous_state == PAUSED:
            self.claim_again()
            self._start_clean_up()
        if self.last_call:
            self.kernel.stop_call(self.last_call, force=self.record.forced)
            self.wait_until(self.kernel.at + CHECK_GRACE)
        self._begin_cancelling()

    def _start_clean_up(self) -> None:
        """Start the clean-up that became ready while it was paused."""
        for index, task in enumerate(self.tasks):
            waits = task.record.state == TaskState.PENDING and not task.last_call
            if waits and not self.graph.unmet[index] and self.lets_start(task):
                self.kernel.send(task, READY)

    def _begin_cancelling(self) -> None:
        self.cursor = 0
        if not self.open:
            if not self.last_call:
                self._all_ended()
        elif self.record.cause == "failure":
            self.kernel.port.later(Continue(self.record.key))
        else:
            self._cancel_some()

    def _cancel_some(self) -> None:
        end = min(self.cursor + CHUNK, len(self.tasks))
        record = self.record
        reason = record.error if record.cause == "failure" else record.reason
        spared = self._cleans_up
        for index in range(self.cursor, end):
            task = self.tasks[index]
            if not task.ended and not (spared and is_clean_up(task.spec)):
                self.kernel.send(task, Stop(f"workstream cancelled: {reason}", record.forced))
        self.cursor = end
        if end < len(self.tasks):
            self.kernel.port.later(Continue(record.key))

    # -- its own hooks -------------------------------------------------------------------------------------------------

    @property
    def cancel_hooks(self) -> list[Hook]:
        """The hooks that are to run before it is cancelled, its tasks being over."""
        record = self.record
        wanted = record.cause == "cancel" and not record.forced and self._limits.cleanup_on_cancel
        return self.spec.cancel_hooks if wanted else []

    @property
    def cancel_timeout(self) -> float:
        """Seconds that all of them have together."""
        return self._limits.cancel_timeout

    @property
    def _limits(self) -> Limits:
        """Those of a task that says nothing itself."""
        return self.resolver.of(_SAYS_NOTHING)

    def force_over(self, reason: str) -> None:
        """The deadline is over, or somebody forced it: its tasks have ended already."""
        self.fire(Event.CANCEL_FORCE, replace(self.record, forced=True), reason=reason)
        self.fire(Event.COMPLETE, reason=reason)

    def broken_off(self, error: str) -> WorkstreamRecord:
        """Its record, with what its hooks say went wrong."""
        return replace(self.record, error=error)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _arm_deadline(self) -> None:
        if self.record.deadline_at is not None:
            fired = TimerFired(self.record.key, DEADLINE_EPOCH)
            self.deadline = self.kernel.port.arm(self.record.deadline_at, fired, by_utc=True)

    def on_timer(self, message: TimerFired) -> None:
        """Its deadline is over, or the time of the state that it is in."""
        if message.epoch == DEADLINE_EPOCH:
            self.deadline = None
            self.on_stop(Stop("the deadline is over"))
        else:
            timer_fired(self, message)

    def due_cancelling(self) -> None:
        """A hook took too long; or the check that was stopped did not go: abandon it."""
        if hooks_run(self):
            hook_due(self)
            return
        if still_to_be_told(self, self.last_call, CHECK_GRACE):
            return
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0
        self._begin_cancelling()

    def disarm_all(self) -> None:
        """Forget its timers."""
        self.disarm()
        if self.deadline is not None:
            self.kernel.port.disarm(self.deadline)
            self.deadline = None

    # -- validation ----------------------------------------------------------------------------------------------------

    @property
    def checks(self) -> list[Check]:
        """Its acceptance tests."""
        return self.spec.checks

    @property
    def check_limit(self) -> float:
        """Seconds that one of its checks has."""
        said = self.spec.defaults.validation_timeout
        return VALIDATION_TIMEOUT if said is None else seconds(said)

    def passed(self) -> None:
        """Its final validation passed."""
        self.fire(Event.VALIDATION_PASSED)

    def not_passed(self, error: str, traceback: str | None = None) -> None:
        """Its final validation did not pass."""
        self.fire(Event.VALIDATION_FAILED, replace(self.record, error=error), reason=error, metadata=traced(traceback))

    def stopped(self) -> None:
        """What ran of it is gone."""
        run_hooks(self)

    def validated(self) -> None:
        """Its validation is over: nothing else waits for that."""

    def look_again(self) -> None:
        """Let the tasks run whose functions have become known."""
        for task in self.tasks:
            if task.engine == NO_ENGINE and (engine := self.kernel.port.engine_of(task.spec)) != NO_ENGINE:
                task.reroute(engine)

    def wants(self, token: int) -> bool:
        """Whether the check or hook that was to start under `token` should still start."""
        return token == self.last_call and self.record.state in {S.VALIDATING, S.CANCELLING}

    def on_call_ended(self, message: CallEnded) -> None:
        """A check of its final validation is over, or a hook."""
        call = self.kernel.end_call(message.token)
        if call is not None and message.token == self.last_call:
            self.last_call = 0
            if call.kind == "cancel_hook":
                hook_ended(self, message)
            else:
                check_ended(self, message)

    # -- the end -------------------------------------------------------------------------------------------------------

    def entered_completed(self) -> None:
        """All is well."""
        self._end(self.spec.on_completed, "on_completed")

    def entered_failed(self) -> None:
        """It did not work."""
        self._end(self.spec.on_failed, "on_failed")

    def entered_cancelled(self) -> None:
        """It was stopped."""
        self._end(self.spec.on_cancelled, "on_cancelled")

    def _end(self, hooks: list[Hook], event: str) -> None:
        self.disarm_all()
        self.change(finished_at=self.kernel.at)
        for hook in hooks:
            self.kernel.keep_hook(self, hook, event, self.spec)
        self.kernel.send(self.job, Ended(self.record.key))

    @property
    def is_final(self) -> bool:
        """Whether its end is one: else its job runs it again by itself."""
        return not self.job.may_retry()

    def no_other_try(self) -> str | None:
        """Why a next run by itself would not help, if so: a critical task that must not simply run again, or a person's
        word about the whole.
        """
        if self.record.verdict is not None:
            return f"it was not approved: {self.record.reason}"
        for task in self.tasks:
            record = task.record
            if record.is_final and record.standing == BAD and not record.optional:
                return f"task {record.name!r} {how_it_ended(record)}, and no other try by itself can help"
        return None

    # -- coming back ---------------------------------------------------------------------------------------------------

    def load(self, records: list[TaskRecord]) -> None:
        """Take the tasks that the journal holds."""
        for record in records:
            published = record.published
            limits = self.resolver.under(
                self.spec.tasks[record.index], None if published is None else published.lifecycle
            )
            if record.allowed == limits.allowed:  # one for all of them again
                record = replace(record, allowed=limits.allowed)  # noqa: PLW2901 - it says the same
            self.kernel.entities[record.key] = self._make(record, limits)

    def rebuild(self, asked: Mapping[int, int]) -> None:
        """Derive again what is derived, from its tasks' records."""
        del self.tasks[self.record.tasks_created :]
        self.last_call = asked.get(self.record.key, 0)
        self.cursor = 0
        self.open = sum(not task.ended for task in self.tasks)
        self.unsettled = [(task, 0, len(self.tasks)) for task in self.graph.rebuild(self.tasks)]
        for task in self.tasks:
            task.rebuild(asked)
        self.arm_again()
        if not self.ended:
            self._arm_deadline()

    def job_over(self) -> JobActor | None:
        """Its job, if that is over but could not be let go yet."""
        return self.job if self.job.over else None

    def on_recover(self, message: Recover) -> None:
        """The process that ran it is gone: have its tasks end what they left unfinished, and go on."""
        for task in self.tasks:
            if not task.ended:
                self.kernel.send(task, message)
        state = self.record.state
        if state == PLANNED and self.record.cause != "cancel":
            self.kernel.port.later(Continue(self.record.key))
        elif self.record.cause is not None:
            self._begin_cancelling()
        elif state == S.VALIDATING:
            why = "runtime_restarted" if not self.kernel.node else "taken_over"
            self.fire(Event.RECOVER, replace(self.record, checked=0, test_results=()), reason=why)
            validate(self)
        elif state in PROTECTED:
            overdue(self)
        elif state != PAUSED:
            self._start_some()
        self.go_on()

    def go_on(self) -> None:
        """After a restart, or a turn that was undone: go on with what was left off."""
        if self.unsettled:
            self.kernel.port.later(Continue(self.record.key))

    def on_turn_failed(self, message: TurnFailed) -> None:
        """A turn of this workstream raised and was undone: it cannot go on."""
        if message.token:
            self.kernel.end_call(message.token)
            self.last_call = 0
        reason = f"internal error: {message.error}"
        if self.record.state == S.VALIDATING:
            self.kernel.stop_call(self.last_call, force=True)
            self.not_passed(reason)
        elif self.record.cause is not None:
            self.on_stop(Stop(reason, force=True))
        elif not self.ended:
            self._fail(reason, forced=True)

    # -- who does what -------------------------------------------------------------------------------------------------

    receivers: ClassVar[Receivers] = {
        Approve: approve, CallEnded: on_call_ended, Cancel: on_cancel,
        Continue: on_continue, Ended: on_ended, Pause: on_pause, Recover: on_recover,
        Reject: reject, Resume: on_resume, Started: on_started,
        Stop: on_stop, TimerFired: on_timer, TurnFailed: on_turn_failed,
    }  # fmt: skip

    when_entered: ClassVar[States] = {
        S.READY: entered_ready, S.PAUSED: entered_paused,
        S.VALIDATING: validate, S.CANCELLING: entered_cancelling,
        S.COMPLETED: entered_completed, S.FAILED: entered_failed, S.CANCELLED: entered_cancelled,
    }  # fmt: skip

    when_due: ClassVar[States] = {
        S.HELD: hold_due, S.WAITING: wait_due, S.VALIDATING: check_due,
        S.CANCELLING: due_cancelling,
    }  # fmt: skip


def is_clean_up(spec: Task) -> bool:
    """Whether a task is clean-up: it waits for others only to have ended."""
    return bool(spec.after) and not spec.depends_on


def _by(message: Pause | Resume) -> dict[str, str] | None:
    return None if message.by is None else {"by": message.by}
