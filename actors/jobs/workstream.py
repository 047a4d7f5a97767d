"""The workstream: coordinates a graph of tasks, pauses and stops it.

Rules
-----
- The edges between tasks, and the counts of unsettled edges, are in its part `graph`.
- Work on many tasks (creating, starting, skipping, cancelling) is done for `CHUNK` tasks in a turn. The remaining work
  follows from the records, so a crash in between loses nothing.
- The first critical task that ends badly fails the workstream: running tasks are cancelled, and no task starts, except
  clean-up tasks: tasks whose edges are all `after`. The workstream ends when every task has ended.
- A further run creates all its tasks in one turn, since it carries over results of the run before.
- A failure while the tasks are still being created takes effect when all are created; a cancel ends the workstream at
  once, with the tasks created so far.

Stopping
--------
- Once the workstream has a `cause`, no task starts, except clean-up tasks after a failure. If the workstream is still
  held or waits, there is nothing to clean up, so no task starts at all.
- After a failure, the cancelling of tasks begins in the next turn, so that dependents of the failed task are skipped
  first.
- A check that does not end after it was stopped is abandoned after a grace.
- The deadline's timer stays armed in every state.

Pausing
-------
- Pausing stops only enqueueing and claiming: running attempts end and are counted, timers run (a task whose backoff is
  over is queued, limits are reached), a critical failure or a cancel takes effect at once.
- If a condition runs when the pause begins, it runs again after the resume, since its result may have changed.
- A task that waits to probe its tool returns the permit: the tool must not wait for the end of a pause.
- If all its tasks are over, the workstream waits for the resume, and then validates.
- A workstream whose tasks all still wait, for people, a time or a worker, can be paused as well; after the resume it is
  ready, as before.
- The pause is only a state of the record: after a restart the workstream is paused as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from ...machines import WORKSTREAM, Event, Machine, Standing, TaskState, WorkstreamState
from ..kernel.alerts import LimitedAlerts
from ..kernel.entity import Entity, Receivers, States, timer_fired
from ..kernel.kernel import Kernel
from ..kernel.publishing import birth
from ..kernel.transaction import NO_ENGINE, ArmedTimer
from ..messages.commands import Approve, Cancel, Pause, Reject, Resume
from ..messages.inputs import (
    READY,
    CallEnded,
    Continue,
    Ended,
    Leave,
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
from ..times import Duration, seconds
from .graph import Graph
from .runs import NOTHING, KeptResults

if TYPE_CHECKING:
    from .job import JobActor

S = WorkstreamState
PLANNED, UNBEGUN, PAUSED = S.PLANNED, S.READY, S.PAUSED
PROTECTED = frozenset({S.HELD, S.WAITING})
STARTS_NOTHING = PROTECTED | {PLANNED, PAUSED}
_SAYS_NOTHING = Task("")
CHUNK = 500
CHECK_GRACE = 11.0
"""Seconds that a check of the final validation has to end after it was stopped: the usual grace and a margin."""
DEADLINE_EPOCH = 0
"""The epoch of the deadline's timer, which stays armed in every state."""
GOOD, VOID, BAD = Standing.GOOD, Standing.VOID, Standing.BAD


class WorkstreamActor(Entity[WorkstreamRecord]):
    """One run of a graph of tasks."""

    __slots__ = (
        "cursor", "deadline", "graph", "job", "last_call", "open", "resolver", "spec", "tasks", "unsettled", "watches",
        "workforce",
    )  # fmt: skip

    machine: ClassVar[Machine] = WORKSTREAM
    by_utc = PROTECTED
    moments = ("deadline_at",)

    def __init__(self, kernel: Kernel, record: WorkstreamRecord, job: JobActor, spec: Workstream) -> None:
        super().__init__(kernel, record)
        self.last_call = 0  # token of the running check or hook
        self.job = job
        self.workforce = job.workforce
        self.spec: Workstream = spec
        self.resolver = LimitsResolver(spec, kernel.defaults, kernel.tools, kernel.lifecycles)
        self.tasks: list[TaskActor] = []
        self.graph = Graph(spec.tasks)
        self.open = 0
        self.cursor = 0  # the next task to start or to cancel
        # ended tasks with unsettled edges: the task, its next edge, and the number after the last task to inform
        self.unsettled: list[tuple[TaskActor, int, int]] = []
        self.deadline: ArmedTimer | None = None
        self.watches = LimitedAlerts(spec.alerts) if spec.alerts else None
        if spec.alerts:
            kernel.alerting = True

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """The ids of the job and the workstream, for the log."""
        return self.record.job_id, self.record.id, None, None

    @property
    def within(self) -> JobActor:
        """The job of the workstream."""
        return self.job

    # -- creating and starting tasks -----------------------------------------------------------------------------------

    def begin(self, kept: KeptResults = NOTHING) -> None:
        """Create the tasks, and start those that can start. kept: the results of the run before."""
        if self.spec.deadline is not None:
            self.change(deadline_at=self.job.deadline)
            self._arm_deadline()
        self._create_some(kept)

    def _create_some(self, kept: KeptResults = NOTHING) -> None:
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
            if (flow := kept.flows.get(spec.name)) is not None:
                record = replace(record, flow=flow.flow, anew=flow.anew)
            task = self._make(record, limits)
            metadata = {
                "depends_on": len(spec.depends_on) + len(spec.after), "optional": spec.optional,
                "max_attempts": limits.allowed.max_attempts, "max_losses": limits.allowed.max_losses,
            }  # fmt: skip
            task.born(metadata)
        self.change(tasks_created=len(self.tasks))
        if self.open < len(self.tasks):  # some were carried over, or cancelled before these were created
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
        record, index = self.record, self.graph.names[spec.name]  # one shared int object for all records
        return TaskRecord(
            key=record.first_task + index, id=f"{record.id}/{spec.name}", name=spec.name, state=TaskState.PENDING,
            run=record.run, created_at=self.kernel.at, updated_at=self.kernel.at, workstream=record.key,
            workstream_id=record.id, job_id=record.job_id, index=index, unmet=len(spec.depends_on) + len(spec.after),
            optional=spec.optional, allowed=limits.allowed,
            published=None if (name := limits.lifecycle) is None else birth(self.kernel.lifecycles, "task", name),
        )  # fmt: skip

    def _carry_over(self, spec: Task, limits: Limits, done: TaskRecord) -> None:
        """Create a task as completed, with its result from the run before."""
        record = replace(
            self._new_record(spec, limits), state=TaskState.COMPLETED, standing=GOOD, ready=True, unmet=0,
            finished_at=self.kernel.at, reason=f"carried over from {done.id}", raw_result=done.raw_result,
            produced=done.produced, test_results=done.test_results, execution_ms=done.execution_ms,
            validation_ms=done.validation_ms, flow=done.flow, anew=done.anew,
            published=birth(self.kernel.lifecycles, "task", limits.lifecycle, TaskState.COMPLETED),
        )  # fmt: skip
        self._make(record, limits).born({"carried_over": done.id, "optional": spec.optional})
        self.open -= 1

    def _make(self, record: TaskRecord, limits: Limits) -> TaskActor:
        """Make the actor of a new or loaded task. It counts as not ended, with all its edges unsettled."""
        spec = self.spec.tasks[record.index]
        task = TaskActor(self.kernel, record, self, spec, limits=limits, engine=self.kernel.port.engine_of(spec))
        self.tasks.append(task)
        self.graph.add(spec)
        self.open += 1
        return task

    def entered_ready(self) -> None:
        """Begin the hold and the wait; if there are none, start the tasks without unsettled edges. All tasks exist."""
        self.cursor = 0
        if not self.open:
            self._all_ended()
        elif self.record.cause is not None:
            self._begin_cancelling()
        elif self.record.passed or not protect(self, self.spec.hold, self.spec.wait):
            self._start_some()

    @property
    def approval(self) -> Approval:
        """The approval that the workstream's hold requires."""
        assert self.spec.hold is not None  # noqa: S101 - called only for a workstream that was held
        return self.spec.hold

    @property
    def wait(self) -> Duration | None:
        """The workstream's wait, if it has one."""
        return self.spec.wait

    @property
    def submitter(self) -> str | None:
        """The person who submitted the job, if known."""
        return self.job.record.by

    @property
    def waits_for_named(self) -> bool:
        """Whether the workstream waits for a given point in time, and not for a duration."""
        return waits_for_named(self)

    def set_back(self, by: float) -> None:
        """Follow a wall clock that was set back `by` seconds."""
        super().set_back(by)
        self.earlier(by, spans_of(self.spec.wait))
        set_back_hooks(self, by)

    def through(self, record: WorkstreamRecord) -> WorkstreamRecord:
        """The record with the fields that change when the hold and the wait are over."""
        return replace(record, passed=True)

    def refuse(self, event: Event, decision: Decision, reason: str) -> None:
        """Cancel the tasks, and then end: the hold was rejected, or has expired."""
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
        """Go on with the next chunk of tasks."""
        if self.record.cause == "cancel":
            self.unsettled.clear()  # the dependents are cancelled, too
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
        """Whether a task of the workstream has started."""
        return self.record.state != UNBEGUN

    def on_started(self, _: Started) -> None:
        """Start the workstream: its first task has started."""
        if self.record.state == UNBEGUN:
            self.fire(Event.START, replace(self.record, started_at=self.kernel.at))
            if self.record.cause is not None:
                self.fire(Event.FAIL, reason=self.record.error)

    def on_ended(self, message: Ended) -> None:
        """Handle the end of a task: settle its edges, then its effect on the workstream."""
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
        """Settle a chunk of an ended task's edges: from index `place` on, to tasks with numbers below `last`."""
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
        """Go on with the unsettled edges. They are settled before any task is cancelled."""
        left, self.unsettled = self.unsettled, []
        for ended, place, last in left:
            self._settle_edges(ended, place, last)
        self.kernel.port.later(Continue(self.record.key))

    def _settle_all(self, ended: TaskActor, first: int = 0) -> None:
        """Settle the edges of an ended task to all created tasks from number `first` on."""
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
        """Fail the workstream: its first critical task has ended badly."""
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
            if state != PLANNED:  # else it fails once all tasks are created
                self.fire(Event.FAIL, reason=self.record.error)
        elif state in {UNBEGUN, S.EXECUTING}:
            if (short := self._short_of_all()) is not None:
                self._fail(short)
            else:
                self.fire(Event.SUCCEED)

    def _short_of_all(self) -> str | None:
        """The error if the lifecycle requires all its tasks to complete, and one did not; else None."""
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
        """End a workstream that was stopped while held or waiting: by a decision, a cancel, or one of its tasks."""
        record = self.record
        metadata = None if record.verdict is None else told_at_end(self, record)
        self.fire(record.verdict or Event.CANCEL, reason=record.error or record.reason, metadata=metadata)

    # -- pausing -------------------------------------------------------------------------------------------------------

    def on_pause(self, message: Pause) -> None:
        """Pause: start no more tasks. Raises InvalidTransitionError if the state cannot be paused."""
        self.fire(Event.PAUSE, reason=message.reason, metadata=_by(message))

    def entered_paused(self) -> None:
        """Have the scheduler skip the workstream's tasks."""
        self.workforce.scheduler.pause(self.record.key)
        for task in self.tasks:
            if task.record.state == TaskState.HALF_OPEN:
                task.step_back("its workstream is paused")

    def on_resume(self, message: Resume) -> None:
        """Resume the workstream. Raises InvalidTransitionError if it is not paused."""
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
        """Whether clean-up tasks may run: after a failure, but not if forced, or still held or waiting."""
        record = self.record
        return record.cause == "failure" and not record.forced and record.state not in PROTECTED

    def _fail(self, error: str, *, forced: bool = False) -> None:
        """Begin to fail: stop the tasks."""
        if self.record.state in {S.EXECUTING, S.PAUSED}:
            self.fire(Event.FAIL, replace(self.record, cause="failure", error=error, forced=forced), reason=error)
            return
        self.change(cause="failure", error=error, forced=forced)
        if self.record.state != PLANNED:
            self._begin_cancelling()

    # -- stopping ------------------------------------------------------------------------------------------------------

    def on_cancel(self, message: Cancel) -> None:
        """Cancel the workstream and its tasks. Raises InvalidTransitionError if it is being stopped or has ended."""
        record = self.record
        if self.ended or (record.cause is not None and not message.force):
            self.fire(Event.CANCEL_GRACEFUL, reason=message.reason)  # raises: not possible
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
        """Stop with the job or at the deadline: as `on_cancel`, but without an error if it is stopped already."""
        if not self.ended and (message.force or self.record.cause is None):
            self.on_cancel(Cancel(message.reason, message.force))

    def claim_again(self) -> None:
        """After a pause: have the scheduler match the tasks, and the breakers offer them their permits."""
        self.workforce.scheduler.resume(self.record.key)
        for tool in {task.spec.tool for task in self.tasks if task.parked_at_tool}:
            self.workforce.breakers[str(tool)].offer_again()

    def entered_cancelling(self) -> None:
        """Stop the tasks, or the running check."""
        if self.record.previous_state == PAUSED:
            self.claim_again()
            self._start_clean_up()
        if self.last_call:
            self.kernel.stop_call(self.last_call, force=self.record.forced)
            self.wait_until(self.kernel.at + CHECK_GRACE)
        self._begin_cancelling()

    def _start_clean_up(self) -> None:
        """Start the clean-up tasks that became ready during the pause."""
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

    # -- cancel hooks --------------------------------------------------------------------------------------------------

    @property
    def cancel_hooks(self) -> list[Hook]:
        """The hooks that run before the workstream is cancelled, after its tasks have ended."""
        record = self.record
        wanted = record.cause == "cancel" and not record.forced and self._limits.cleanup_on_cancel
        return self.spec.cancel_hooks if wanted else []

    @property
    def cancel_timeout(self) -> float:
        """Seconds that all cancel hooks have together."""
        return self._limits.cancel_timeout

    @property
    def _limits(self) -> Limits:
        """The limits of a task that sets none itself."""
        return self.resolver.of(_SAYS_NOTHING)

    def force_over(self, reason: str) -> None:
        """End at once: the hooks' deadline is over, or the cancel was forced. The tasks have ended already."""
        self.fire(Event.CANCEL_FORCE, replace(self.record, forced=True), reason=reason)
        self.fire(Event.COMPLETE, reason=reason)

    def broken_off(self, error: str) -> WorkstreamRecord:
        """The record with the errors of the cancel hooks."""
        return replace(self.record, error=error)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _arm_deadline(self) -> None:
        if self.record.deadline_at is not None:
            fired = TimerFired(self.record.key, DEADLINE_EPOCH)
            self.deadline = self.kernel.port.arm(self.record.deadline_at, fired, by_utc=True)

    def on_timer(self, message: TimerFired) -> None:
        """Receive the timer of the deadline, or of the present state."""
        if message.epoch == DEADLINE_EPOCH:
            self.deadline = None
            self.on_stop(Stop("the deadline is over"))
        else:
            timer_fired(self, message)

    def due_cancelling(self) -> None:
        """Handle a hook that took too long, or abandon a stopped check that did not end."""
        if hooks_run(self):
            hook_due(self)
            return
        if still_to_be_told(self, self.last_call, CHECK_GRACE):
            return
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0
        self._begin_cancelling()

    def disarm_all(self) -> None:
        """Cancel the workstream's timers."""
        self.disarm()
        if self.deadline is not None:
            self.kernel.port.disarm(self.deadline)
            self.deadline = None

    # -- validation ----------------------------------------------------------------------------------------------------

    @property
    def checks(self) -> list[Check]:
        """The workstream's acceptance tests."""
        return self.spec.checks

    @property
    def check_limit(self) -> float:
        """Seconds that each check of the workstream has."""
        said = self.spec.defaults.validation_timeout
        return VALIDATION_TIMEOUT if said is None else seconds(said)

    def passed(self) -> None:
        """Complete the workstream: its final validation has passed."""
        self.fire(Event.VALIDATION_PASSED)

    def not_passed(self, error: str, traceback: str | None = None) -> None:
        """Fail the workstream: its final validation has not passed."""
        self.fire(Event.VALIDATION_FAILED, replace(self.record, error=error), reason=error, metadata=traced(traceback))

    def stopped(self) -> None:
        """Run the cancel hooks: the running check has ended."""
        run_hooks(self)

    def validated(self) -> None:
        """Do nothing: a workstream's validation holds no slot."""

    def look_again(self) -> None:
        """Route the tasks whose functions have been registered meanwhile."""
        for task in self.tasks:
            if task.engine == NO_ENGINE and (engine := self.kernel.port.engine_of(task.spec)) != NO_ENGINE:
                task.reroute(engine)

    def wants(self, token: int) -> bool:
        """Whether the check or hook that was requested under `token` should still start."""
        return token == self.last_call and self.record.state in {S.VALIDATING, S.CANCELLING}

    def on_call_ended(self, message: CallEnded) -> None:
        """Receive the end of a check of the final validation, or of a cancel hook."""
        call = self.kernel.end_call(message.token)
        if call is not None and message.token == self.last_call:
            self.last_call = 0
            if call.kind == "cancel_hook":
                hook_ended(self, message)
            else:
                check_ended(self, message)

    # -- the end -------------------------------------------------------------------------------------------------------

    def entered_completed(self) -> None:
        """End the workstream as completed."""
        self._end(self.spec.on_completed, "on_completed")

    def entered_failed(self) -> None:
        """End the workstream as failed."""
        self._end(self.spec.on_failed, "on_failed")

    def entered_cancelled(self) -> None:
        """End the workstream as cancelled."""
        self._end(self.spec.on_cancelled, "on_cancelled")

    def _end(self, hooks: list[Hook], event: str) -> None:
        self.disarm_all()
        self.change(finished_at=self.kernel.at)
        for hook in hooks:
            self.kernel.keep_hook(self, hook, event, self.spec)
        self.kernel.send(self.job, Ended(self.record.key))

    @property
    def is_final(self) -> bool:
        """Whether the workstream's end is final: False if its job may run it again automatically."""
        return not self.job.may_retry()

    def no_other_try(self) -> str | None:
        """The reason why an automatic next run would not help: a final end of a critical task, or a person's decision
        about the workstream. None if it may help.
        """
        if self.record.verdict is not None:
            return f"it was not approved: {self.record.reason}"
        for task in self.tasks:
            record = task.record
            if record.is_final and record.standing == BAD and not record.optional:
                return f"task {record.name!r} {how_it_ended(record)}, and no other try by itself can help"
        return None

    def drop(self) -> bool:
        """Release the actors of the ended run. False if something of it still runs: then nothing is released."""
        kernel, record = self.kernel, self.record
        first, last = record.first_task, record.first_task + record.task_count
        if any(first <= call.key < last or call.key == record.key for call in kernel.calls.values()):
            return False
        kernel.forget(self)
        self.workforce.scheduler.forget(record.key)
        kernel.leave(Leave(self.tasks))
        return True

    # -- recovery ------------------------------------------------------------------------------------------------------

    def load(self, records: list[TaskRecord]) -> None:
        """Restore the tasks from the journal."""
        for record in records:
            published = record.published
            limits = self.resolver.under(
                self.spec.tasks[record.index], None if published is None else published.lifecycle
            )
            if record.allowed == limits.allowed:  # share one object among the records again, to save memory
                record = replace(record, allowed=limits.allowed)  # noqa: PLW2901 - an equal record
            self.kernel.entities[record.key] = self._make(record, limits)

    def rebuild(self, asked: Mapping[int, int]) -> None:
        """Derive the derived state again, from the tasks' records. asked: as in `JobActor.rebuild`."""
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
        """The job, if the job has ended but its actors could not be released yet."""
        return self.job if self.job.over else None

    def on_recover(self, message: Recover) -> None:
        """Recover the tasks after the end of the process that ran the workstream, and go on."""
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
        """Go on with unsettled edges after a restart or an undone turn."""
        if self.unsettled:
            self.kernel.port.later(Continue(self.record.key))

    def on_turn_failed(self, message: TurnFailed) -> None:
        """Fail the workstream: one of its turns raised and was undone."""
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

    # -- tables --------------------------------------------------------------------------------------------------------

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
    """Whether a task is a clean-up task: all its edges are `after`, and it has at least one."""
    return bool(spec.after) and not spec.depends_on


def _by(message: Pause | Resume) -> dict[str, str] | None:
    return None if message.by is None else {"by": message.by}
