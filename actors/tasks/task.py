"""The task: one unit of work, from its dependencies to its end.

Rules
-----
- A task is queued once its dependencies are satisfied, its condition (if it has one) is met, and its hold and its wait
  (`holds.py`) are over.
- The waiting states (for a worker, the next attempt, the tool) are in `queue.py`, the attempts in `attempts.py`. The
  tables at the end of this file name the function for each message, each entered state and each timer.
- For its dependents, a task's end counts as good, void or bad; the task reports its end to the workstream once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
from msgspec.structs import replace

from ...machines import TASK, Event, Machine, Standing, TaskState
from ..kernel.entity import Entity, Receivers, States
from ..kernel.kernel import Kernel
from ..kernel.transaction import StopCall
from ..messages.commands import (
    Approve,
    AskApproval,
    AwaitMessage,
    Cancel,
    KeepStep,
    LeaveApproval,
    Reject,
    ResetTask,
    RunStep,
    Send,
    SkipTask,
    TakeMessage,
    UseTool,
)
from ..messages.inputs import (
    READY,
    Assign,
    Beat,
    CallEnded,
    Drain,
    Ended,
    Permit,
    ProcessStarted,
    Queued,
    Ready,
    Recover,
    Regained,
    Reset,
    Skip,
    Stop,
    TimerFired,
    Trip,
    TurnFailed,
    Unroutable,
    Verdict,
    WaitOver,
    WorkerBack,
    WorkerSilent,
)
from ..records.base import Cancellation, Decision
from ..records.task import NO_TROUBLE, TaskRecord
from ..spec.limits import Limits, effective
from ..spec.model import Approval, Check, Hook, Task, Tool, Workstream
from ..times import Duration, seconds
from . import attempts, queue, receiving
from .approval import ApprovalActor, RequestedApprovals
from .attempt_clock import ALIVE, PATIENCE, RUNNING, AttemptClock
from .attempts import CANCELLING, EXHAUSTED, FAIL, IN_QUEUE, INTERNAL, STOP_MARGIN, TIMED_OUT, TOOL, VALIDATING, Failure
from .cancelling import drop_hooks, hook_due, hook_ended, hooks_run, run_hooks, set_back_hooks
from .checks import SAID, ask, check_due, check_ended, kept_waiting, still_to_be_told, traced, unasked, validate
from .durable_waits import arm, may_rest, rests
from .holds import (
    approve,
    hold_due,
    overdue,
    protect,
    refused,
    reject,
    spans_of,
    told_at_end,
    wait_due,
    waits_for_named,
)  # fmt: skip
from .steps import keep_step, run_step, use_tool

if TYPE_CHECKING:
    from ..kernel.contract import Job
    from ..records.entities import WorkstreamRecord
    from .contract import Breaker, OwningWorkstream, WaitingQueue

S = TaskState
PENDING, HALF_OPEN = S.PENDING, S.HALF_OPEN
ENQUEUE, VALIDATION_PASSED, GOOD = Event.ENQUEUE, Event.VALIDATION_PASSED, Standing.GOOD
NOT_STOPPED = "the body did not stop in time and was abandoned"
RUNS = frozenset({RUNNING, TIMED_OUT, S.RECOVERING})
"""The states in which the present attempt has no end yet."""
ANSWERED = frozenset({PENDING, RUNNING, TIMED_OUT, VALIDATING, CANCELLING})
"""The states whose limits are about a message from an engine."""
PROTECTED = frozenset({S.HELD, S.WAITING})
_PLAIN_TOOL = Tool()


class TripPayload(msgspec.Struct, frozen=True, gc=False):
    """The payload of `trip`: whether the breaker permits the task to start."""

    permit: bool = False


class TaskActor(Entity[TaskRecord]):
    """One task of a workstream."""

    __slots__ = (
        "asks", "clock", "engine", "last_call", "limits", "spec", "stream", "task_queue", "ticket",
    )  # fmt: skip

    machine: ClassVar[Machine] = TASK
    by_utc = frozenset({S.HELD, S.WAITING, S.RETRYING, S.CIRCUIT_OPEN})

    clock: AttemptClock
    """The clock of the present attempt. Not set before the first attempt."""

    def __init__(
        self, kernel: Kernel, record: TaskRecord, stream: OwningWorkstream, spec: Task, *, limits: Limits, engine: str
    ) -> None:
        super().__init__(kernel, record)
        self.last_call = 0  # token of the running condition, check or hook
        self.stream = stream
        self.spec = spec
        self.limits = limits
        self.engine = engine
        self.ticket = 0  # the task's place in the scheduler's heap; 0 if the task is not in the queue
        self.task_queue: WaitingQueue | None = None  # the queue of the scheduler in which it waits
        self.asks: RequestedApprovals | None = None  # the approvals that its bodies have requested

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """The ids of the task's job and workstream, its attempt and its worker, for the log."""
        record = self.record
        return record.job_id, record.workstream_id, record.attempt or None, record.worker_id

    @property
    def within(self) -> Entity[WorkstreamRecord]:
        """The workstream of the task."""
        return cast("Entity[WorkstreamRecord]", self.stream)

    def wants(self, token: int) -> bool:
        """Whether the call that was requested under `token` should still start."""
        state = self.record.state
        return (token == self.record.token and state == RUNNING) or (
            token == self.last_call and state in {PENDING, VALIDATING, CANCELLING}
        )

    def holds(self, token: int) -> bool:
        """Whether the attempt under `token` is the present one, and may run."""
        record = self.record
        return token == record.token and record.worker is not None

    def job_over(self) -> Job | None:
        """The task's job, if it is over but its actors could not be released yet."""
        job = self.stream.job
        return job if job.over else None

    @property
    def priority(self) -> int:
        """The sum of the task's and its workstream's priorities."""
        return self.spec.priority + self.stream.spec.priority

    # -- getting ready -----------------------------------------------------------------------------------------------

    def on_ready(self, _: Ready) -> None:
        """Check the condition, or go on to the queue: the dependencies are satisfied."""
        record, spec = self.record, self.spec
        if record.state != PENDING:
            return
        goes_on = spec.condition is None and spec.hold is None and spec.wait is None
        if record.unmet or not (record.ready or goes_on):  # else the record that is enqueued says so
            self.change(unmet=0, ready=True)
        if goes_on:
            self.enqueue()
        elif spec.condition is None:
            self._pass_on()
        elif not self.kernel.draining:
            ask(self, "condition", seconds(spec.condition.timeout))

    def _pass_on(self) -> None:
        """Begin the hold and the wait, if the task has any that have not passed; else enqueue the task."""
        spec, passed = self.spec, self.record.first_queued_at is not None
        if passed or not protect(self, spec.hold, spec.wait):
            self.enqueue()

    def enqueue(self, queued_at: float | None = None) -> None:
        """Enqueue the task for a worker. It counts as waiting since `queued_at` (None: now)."""
        self.fire(ENQUEUE, self.through(self.record, queued_at))

    def through(self, record: TaskRecord, queued_at: float | None = None) -> TaskRecord:
        """The record with the fields that change when the task is enqueued."""
        now = self.kernel.at
        return replace(
            record, ready=True, queued_at=queued_at or now, first_queued_at=record.first_queued_at or now,
            place=record.place or self.kernel.seq + 1,
        )  # fmt: skip

    @property
    def approval(self) -> Approval:
        """The approval that the task's hold requires."""
        assert self.spec.hold is not None  # noqa: S101 - called only for a task that was held
        return self.spec.hold

    @property
    def wait(self) -> Duration | None:
        """The task's wait, if it has one."""
        return self.spec.wait

    @property
    def waits_for_named(self) -> bool:
        """Whether the task waits for a given point in time, and not for a duration."""
        return waits_for_named(self)

    def refuse(self, event: Event, decision: Decision, reason: str) -> None:
        """End the task: its hold was rejected, or has expired."""
        changed = replace(self.record, decisions=(*self.record.decisions, decision))
        self.fire(event, changed, reason=reason, metadata=told_at_end(self, changed))

    def set_back(self, by: float) -> None:
        """Follow a wall clock that was set back `by` seconds. Limits over all attempts do not become longer."""
        super().set_back(by)
        limited = self.limits.total_timeout is not None or self.limits.queue_timeout is not None
        self.earlier(by, spans_of(self.spec.wait), ("first_queued_at", "queued_at") if limited else ())
        set_back_hooks(self, by)

    @property
    def submitter(self) -> str | None:
        """The person who submitted the task's job, if known."""
        return self.stream.job.record.by

    def on_call_ended(self, message: CallEnded) -> None:
        """Receive the end of the task's body, condition, check or cancel hook."""
        call = self.kernel.end_call(message.token)
        if call is not None and call.kind == "body":
            if message.status == "abandoned":
                attempts.tell_abandoned(self, message.token, call)
            attempts.body_ended(self, message)
        elif call is not None and message.token == self.last_call:
            self.last_call = 0
            if call.kind == "condition":
                self._condition_ended(message)
            elif call.kind == "cancel_hook":
                hook_ended(self, message)
            else:
                check_ended(self, message)

    # -- the tool ----------------------------------------------------------------------------------------------------

    @property
    def tool(self) -> Tool:
        """The settings of the task's tool."""
        return effective(self.spec.tool, self.stream.spec.tools, self.kernel.tools) or _PLAIN_TOOL

    @property
    def breaker(self) -> Breaker | None:
        """The breaker of the task's tool, if it exists."""
        tool = self.spec.tool
        return None if tool is None else self.stream.workforce.breakers.get(tool)

    def tell_breaker(self, event: str) -> None:
        """Send the tool's breaker the result of the task's attempt."""
        breaker, record = self.breaker, self.record
        if breaker is not None:
            self.kernel.send(breaker, Verdict(record.key, record.generation, event))

    def give_permit_on(self) -> None:
        """Pass the permit to probe on: this task may wait for hours. Its result still counts for the breaker."""
        if self.record.probe:
            self.change(probe=False)
            self.tell_breaker("waits")

    @property
    def shut_out(self) -> bool:
        """Whether the tool's breaker does not let the task start."""
        breaker = self.breaker
        return breaker is not None and not breaker.lets_start(self.record)

    def trip(self, breaker: Breaker, queued_at: float | None = None, reason: str | None = None) -> None:
        """Park the task: its tool is not healthy."""
        reason = reason or f"tool {self.spec.tool!r} is not healthy"  # no time: the breaker's due time may change
        changed = replace(self.record, parked=TOOL, queued_at=queued_at or self.record.queued_at, routable=True)
        self.fire(
            Event.TRIP, changed, TripPayload(), reason=reason, metadata={"retry_in": round(breaker.retry_in(), 3)}
        )

    @property
    def parked_at_tool(self) -> bool:
        """Whether the task is parked at its tool's breaker."""
        return self.record.state == S.CIRCUIT_OPEN and self.record.parked == TOOL

    @property
    def put_off(self) -> bool:
        """Whether the task was removed from the queue and will get the breaker's message about it."""
        return not self.ticket and self.record.state in IN_QUEUE

    def step_back(self, reason: str) -> None:
        """Return the permit to probe, so that another task can use it: this task cannot start now."""
        breaker = self.breaker
        if breaker is not None and self.record.parked == TOOL:
            self.trip(breaker, reason=reason)
            self.tell_breaker("returned")

    def reroute(self, engine: str) -> None:
        """Wait for a worker with this engine: the task's function has been registered."""
        self.engine = engine
        self.task_queue = None
        if self.ticket:
            queue.unroutable(self, Unroutable(None))
            self.ticket = 0
            self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    # -- validation --------------------------------------------------------------------------------------------------

    @property
    def checks(self) -> list[Check]:
        """The task's acceptance tests."""
        return self.spec.checks

    @property
    def check_limit(self) -> float:
        """Seconds that each check of the task has."""
        return self.limits.validation_timeout

    def passed(self) -> None:
        """Complete the task: all acceptance tests have passed."""
        record, now = self.record, self.kernel.at
        spent = round((now - (record.ended_at or now)) * 1000)
        changed = replace(record, finished_at=now, standing=GOOD, validation_ms=spent, worker=None, worker_id=None)
        self.fire(VALIDATION_PASSED, changed)

    def not_passed(self, error: str, traceback: str | None = None) -> None:
        """Fail or park the task: an acceptance test has not passed."""
        changed = replace(self.with_error(error, "validation_failed"), worker=None, worker_id=None)
        failure = Failure(permanent=True)  # the same result would not pass in another attempt
        metadata: dict[str, Any] | None = traced(traceback)
        if self.machine.transition(S.VALIDATING, Event.VALIDATION_FAILED, changed, failure).target == S.CIRCUIT_OPEN:
            changed = replace(changed, parked=EXHAUSTED, queued_at=self.kernel.at)
            metadata = {**(metadata or {}), "parked": EXHAUSTED}
        self.fire(Event.VALIDATION_FAILED, changed, failure, error, metadata)

    def _condition_ended(self, ended: CallEnded) -> None:
        if self.record.state != PENDING:
            return
        if self.kernel.draining and ended.status not in SAID:
            unasked(self)
        elif ended.status != "ok":
            error = f"its condition broke: {ended.error or ended.status}"
            self.broken(error, "condition_broken", ended.traceback)
        elif not ended.value:
            self.on_skip(Skip(Standing.VOID, "its condition was not met"))
        elif self.stream.lets_start(self):
            self._pass_on()
        else:  # the condition runs again when the workstream goes on
            unasked(self)

    # -- skipping and cancelling -------------------------------------------------------------------------------------

    def on_skip(self, message: Skip) -> None:
        """Skip the task, if it is pending."""
        if self.record.state != PENDING:
            return
        changed = replace(self.record, standing=message.standing, finished_at=self.kernel.at)
        self.fire(Event.SKIP, changed, reason=message.reason, metadata={"standing": message.standing})

    def on_skip_task(self, message: SkipTask) -> None:
        """Skip the task for an operator. Raises InvalidTransitionError unless it is pending."""
        changed = replace(self.record, standing=GOOD, finished_at=self.kernel.at)
        metadata = {"standing": GOOD} | ({} if message.by is None else {"by": message.by})
        self.fire(Event.SKIP, changed, reason=message.reason or "skipped by an operator", metadata=metadata)
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0

    def on_cancel(self, message: Cancel) -> None:
        """Cancel the task for a person: no automatic run starts it again."""
        self._cancel(message, final=self.record.final or self.record.state != CANCELLING)

    def _cancel(self, message: Cancel, *, final: bool) -> None:
        """Cancel the task: gracefully if its state allows that, else at once. `force` stops it at once."""
        reason = message.reason
        if message.force:
            event = Event.CANCEL_FORCE if self.knows(Event.CANCEL_FORCE) else Event.CANCEL
            if self.record.state == CANCELLING and hooks_run(self):
                reason = f"{reason}; {drop_hooks(self, 'it was forced')}"
        else:
            at_once = self.knows(Event.CANCEL) and not self.knows(Event.CANCEL_GRACEFUL)
            event = Event.CANCEL if at_once else Event.CANCEL_GRACEFUL
        metadata = None if message.by is None else {"by": message.by}
        record = self.record
        self.fire(event, record if final == record.final else replace(record, final=final), None, reason, metadata)

    def on_stop(self, message: Stop) -> None:
        """Stop the task with its workstream. Does nothing if it has ended, or is in `cancelling` without `force`."""
        if self.ended or (self.record.state == CANCELLING and not message.force):
            return
        self._cancel(Cancel(message.reason, message.force), final=self.record.final)

    def entered_cancelling(self) -> None:
        """Stop the running body or check, and wait for its end."""
        token = self.last_call or self.record.token
        if token not in self.kernel.calls:
            self._end_claim()
            self.stopped()
            self.validated()
            return
        self.kernel.effect(StopCall(token))
        self.wait_until(self.kernel.at + self.limits.kill_grace + STOP_MARGIN)

    # -- approvals that the task's bodies request --------------------------------------------------------------------

    @property
    def asked(self) -> list[ApprovalActor]:
        """The approvals that the task's bodies have requested."""
        return [] if self.asks is None else list(self.asks.actors.values())

    def asks_of(self) -> RequestedApprovals:
        """The task's collection of requested approvals; made at first use."""
        if self.asks is None:
            self.asks = RequestedApprovals(self)
        return self.asks

    def on_ask(self, message: AskApproval) -> None:
        """Receive the running body's request for an approval."""
        if message.token == self.record.token and self.record.state in ALIVE:
            self.asks_of().ask(message)

    def on_leave(self, message: LeaveApproval) -> None:
        """Note that the body does not wait for an approval any more."""
        if self.asks is not None:
            self.asks.leave(message.token, message.name)

    def decider(self, name: str | None, event: Event) -> TaskActor | ApprovalActor:
        """The entity that a decision addresses: the task, or an approval with this name that its body requested.

        Raises DecisionRefused if there is no approval of that name, or if `name` is None and several are possible.
        """
        asked = self.asked
        if name is None and (self.record.state == S.HELD or not asked):
            return self
        open_ = [one for one in asked if not one.ended] if name is None else []
        found = [one for one in asked if one.record.name == name] if name is not None else open_ or asked[-1:]
        if len(found) == 1:
            return found[0]
        names = ", ".join(repr(one.record.name) for one in open_ or asked) or "none"
        why = f"it asks for no approval {name!r:.80}, but for {names}"
        if name is None:
            why = f"say which approval; it asks for {names}"
        raise refused(self, event, why)

    def on_approve(self, message: Approve) -> None:
        """Apply a person's approval. Raises DecisionRefused or InvalidTransitionError."""
        approve(self.decider(message.approval, Event.APPROVE), message)

    def on_reject(self, message: Reject) -> None:
        """Apply a person's rejection. Raises DecisionRefused or InvalidTransitionError."""
        reject(self.decider(message.approval, Event.REJECT), message)

    # -- failing without an attempt ----------------------------------------------------------------------------------

    def broken(self, error: str, kind: str, traceback: str | None = None) -> None:
        """Fail the task while none of its attempts runs. traceback: of a function that raised."""
        self.fire(FAIL, self.with_error(error, kind), reason=error, metadata=traced(traceback))

    def with_error(self, error: str, kind: str) -> TaskRecord:
        """The task's record with this error added."""
        before = self.record.trouble or NO_TROUBLE
        return replace(self.record, trouble=replace(before, error=error, type=kind, count=before.count + 1))

    def limit_reached(self, limit: str) -> None:
        """Fail a task that has waited longer than `limit` allows."""
        self.change(limit=limit)
        waited = None if self.record.routable else self.record.reason  # the reason says what is missing
        if limit == "unroutable":
            reason = waited or "unroutable"
        else:
            reason = f"the {limit} limit was reached" + (f" ({waited})" if waited else "")
        self.broken(reason, f"{limit}_timeout")

    def total_due(self) -> float | None:
        """When the limit over all attempts is reached (UTC epoch seconds); None if there is no such limit."""
        total = self.limits.total_timeout
        return None if total is None else (self.record.first_queued_at or self.kernel.at) + total

    # -- limits ------------------------------------------------------------------------------------------------------

    def on_timer(self, message: TimerFired) -> None:
        """Receive the timer of the present state: a limit was reached, or a wait is over."""
        if message.epoch != self.record.epoch:
            self.kernel.stale += 1
            return
        if rests(self):
            attempts.due_resting(self)
        elif self.record.state not in ANSWERED or not self._excuse(self.kernel.at):
            self.when_due[self.record.state](self)

    def _excuse(self, now: float) -> bool:
        """Whether the timer fired so late that the runtime stood still; then the timer is armed again."""
        running = self.record.state == RUNNING
        steady = self.kernel.port.monotonic()
        late = steady - self.clock.expected if running else now - (self.record.due_at or now)
        if not self.stream.workforce.health.stood_still(late):
            return False
        if running:
            self.clock.excuse(steady, late)
        self.wait_until(now + PATIENCE)
        return True

    def due_pending(self) -> None:
        """Fail the task: its condition took too long."""
        if kept_waiting(self, self.last_call):
            return
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0
        self.broken("its condition took too long", "condition_broken")

    def due_cancelling(self) -> None:
        """Handle a hook that took too long, or abandon a body that did not stop."""
        if hooks_run(self):
            hook_due(self)
        elif still_to_be_told(self, self.last_call or self.record.token, self.limits.kill_grace + STOP_MARGIN):
            return
        elif self.cancel_hooks:
            self._abandon_body()
        else:
            self.force_over(f"{self.record.reason}; {NOT_STOPPED}")

    # -- graceful cancelling -----------------------------------------------------------------------------------------

    @property
    def cancel_hooks(self) -> list[Hook]:
        """The hooks that run before the task is cancelled."""
        return self.spec.cancel_hooks if self.limits.cleanup_on_cancel else []

    @property
    def cancel_timeout(self) -> float:
        """Seconds that all cancel hooks have together."""
        return self.limits.cancel_timeout

    def force_over(self, reason: str) -> None:
        """End the task by `cancel_force`: the deadline of its hooks is over."""
        cancel = self.record.cancel
        self.fire(Event.CANCEL_FORCE, reason=reason, metadata=None if cancel is None else cancel.used or None)

    def broken_off(self, error: str) -> TaskRecord:
        """The task's record with the errors of its cancel hooks."""
        return self.with_error(error, "cancel_hook_failed")

    def stopped(self) -> None:
        """Run the hooks: the body or check has ended or was abandoned. Hooks say nothing about the tool."""
        self.give_permit_on()
        run_hooks(self)

    def _abandon_body(self) -> None:
        """Abandon the body and run the hooks. The slot is free when the engine has abandoned the body."""
        token = self.record.token
        self.kernel.stop_call(self.last_call or token, force=True)
        self.last_call = 0
        if self.record.claimed_at is not None:
            attempts.journal(self, end="cancelled", error=NOT_STOPPED)
        self.change(claimed_at=None, cancel=Cancellation(left=NOT_STOPPED))
        self.stopped()
        if token not in self.kernel.calls:
            self.validated()

    def validated(self) -> None:
        """Release the slot: the attempt is over."""
        self.kernel.free_slot(self.record.token)

    # -- the end -----------------------------------------------------------------------------------------------------

    def entered_completed(self) -> None:
        """End the task as completed."""
        self._end(self.spec.on_completed, "on_completed")

    def entered_failed(self) -> None:
        """End the task as failed."""
        self._bad()
        self._end(self.spec.on_failed, "on_failed")

    def entered_cancelled(self) -> None:
        """End the task as cancelled, and stop its running call."""
        self.kernel.stop_call(self.last_call or self.record.token, force=True)
        if self.record.token not in self.kernel.calls:
            self._end_claim()
            self.validated()
        self._bad()
        self._end(self.spec.on_cancelled, "on_cancelled")

    def _end_claim(self) -> None:
        """Journal the end of a claimed attempt whose body does not run any more, as cancelled."""
        if self.record.claimed_at is not None:
            attempts.journal(self, end="cancelled")
            self.change(claimed_at=None)

    def entered_skipped(self) -> None:
        """End the task as skipped."""
        self._end([], "")

    def _bad(self) -> None:
        self.ticket = 0
        if self.record.probe or self.record.previous_state == HALF_OPEN:
            self.tell_breaker("returned")
        self.change(standing=Standing.BAD, finished_at=self.kernel.at, worker=None, worker_id=None)
        if (job := self.stream.job).children:
            job.task_ended(self)

    def _end(self, hooks: list[Hook], event: str) -> None:
        for hook in hooks:
            self.kernel.keep_hook(self, hook, event, self.stream.spec, self.spec)
        if self.asks is not None:
            self.asks.end()
        if self.record.flow:
            self.stream.job.wake_others()
        self.kernel.send(self.stream, Ended(self.record.key))

    # -- recovery ----------------------------------------------------------------------------------------------------

    def rebuild(self, asked: Mapping[int, int]) -> None:
        """Derive again the task's place in the queue or at its breaker, its call and its timer.

        asked: the tokens of running conditions, checks and cancel hooks, by the keys of their entities.
        """
        self.ticket = 0
        self.task_queue = None
        self.last_call = asked.get(self.record.key, 0)
        if self.asks is not None:
            self.asks.rebuild()
        if self.record.key in self.kernel.stuck:
            return
        if self.record.state in IN_QUEUE:
            if (breaker := self.breaker) is not None and self.shut_out:
                breaker.put_off(self)
            else:
                self.stream.workforce.scheduler.put_into_queue(self)
        elif self.parked_at_tool and (breaker := self.breaker) is not None:
            breaker.keep(self)
        if (wait := self.record.durable_wait) is not None and rests(self):
            arm(self, wait)
        else:
            self.arm_again()

    def on_recover(self, _: Recover) -> None:
        """Recover after the end of the process that ran the task: end its interrupted work."""
        state, reason = self.record.state, self.kernel.left_by(self.record.worker_id)
        if self.asks is not None:
            self.asks.recover()
        if state == RUNNING and may_rest(self):
            attempts.rest(self)
        elif state == RUNNING and self.record.token in self.kernel.recovery.drained:
            attempts.give_back(self)
        elif state == RUNNING:
            self.fire(Event.RECOVER, reason=reason)
            attempts.lose(self, reason)
        elif state == S.RECOVERING:
            attempts.lose(self, reason)
        elif state == TIMED_OUT:
            attempts.fail(
                self, CallEnded(self.record.token, "gone", error="the body ended with the runtime"), end="timed_out"
            )
        elif state == VALIDATING:
            self.fire(Event.RECOVER, replace(self.record, checked=0, test_results=()), reason=reason)
            validate(self)
        elif state == CANCELLING:
            self._end_claim()
            self.stopped()
        elif state == PENDING and self.record.ready:
            if self.stream.lets_start(self):
                self.on_ready(READY)
            else:
                unasked(self)
        elif state in PROTECTED:
            overdue(self)

    def on_turn_failed(self, message: TurnFailed) -> None:
        """Fail the task: one of its turns raised and was undone."""
        kernel, token, state = self.kernel, self.record.token, self.record.state
        reason = f"internal error: {message.error}"
        if message.token:
            kernel.end_call(message.token)
            if message.token == token and self.record.claimed_at is not None and state not in RUNS:
                attempts.journal(self, end="cancelled")
        if message.token != token and state != CANCELLING:  # no call, or a step's: the body may run on
            kernel.stop_call(self.last_call or token, force=True)
        if state in RUNS:
            attempts.fail(
                self, CallEnded(token, "failed", error=reason, error_type=INTERNAL, permanent=True), end="failed"
            )
        elif state == VALIDATING:
            self.not_passed(reason)
        elif state == CANCELLING:
            self.fire(Event.CANCEL_FORCE, reason=reason)
        elif self.knows(FAIL):
            self.broken(reason, INTERNAL)
        elif not self.ended:
            self._cancel(Cancel(reason), final=self.record.final)
        self.last_call = 0
        kernel.free_slot(message.token)
        if token not in kernel.calls:
            self.validated()

    # -- tables ------------------------------------------------------------------------------------------------------

    receivers: ClassVar[Receivers] = {
        Approve: on_approve, AskApproval: on_ask, Assign: attempts.assign,
        AwaitMessage: receiving.await_one, WorkerBack: attempts.back,
        Beat: attempts.beat, CallEnded: on_call_ended, Cancel: on_cancel, Drain: attempts.drain,
        KeepStep: keep_step, LeaveApproval: on_leave, Permit: queue.permit,
        ProcessStarted: attempts.process_started,
        Ready: on_ready, Recover: on_recover, Regained: attempts.regained, Reject: on_reject,
        Reset: queue.reset, ResetTask: queue.reset_by_operator, RunStep: run_step, Send: receiving.on_send,
        TakeMessage: receiving.take, WorkerSilent: attempts.silent,
        Skip: on_skip, SkipTask: on_skip_task, Stop: on_stop, TimerFired: on_timer, Trip: queue.tripped,
        TurnFailed: on_turn_failed, Unroutable: queue.unroutable, UseTool: use_tool,
        WaitOver: attempts.wake,
    }  # fmt: skip

    when_entered: ClassVar[States] = {
        S.QUEUED: queue.entered_queued, S.RUNNING: attempts.entered_running,
        S.TIMED_OUT: attempts.entered_timed_out, S.VALIDATING: validate,
        S.RETRYING: queue.entered_retrying, S.CIRCUIT_OPEN: queue.entered_circuit_open,
        S.HALF_OPEN: queue.entered_half_open, S.CANCELLING: entered_cancelling, S.COMPLETED: entered_completed,
        S.FAILED: entered_failed, S.CANCELLED: entered_cancelled, S.SKIPPED: entered_skipped,
    }  # fmt: skip

    when_due: ClassVar[States] = {
        S.PENDING: due_pending, S.HELD: hold_due, S.WAITING: wait_due,
        S.QUEUED: queue.due_queued, S.RUNNING: attempts.due_running,
        S.TIMED_OUT: attempts.due_timed_out, S.VALIDATING: check_due,
        S.RECOVERING: attempts.due_recovering, S.RETRYING: queue.due_retrying,
        S.CIRCUIT_OPEN: queue.due_circuit_open, S.HALF_OPEN: queue.due_queued,
        S.CANCELLING: due_cancelling,
    }  # fmt: skip


def spec_of(kernel: Kernel, token: int) -> Workstream | None:
    """The specification of the workstream whose task's body runs under `token`; None if no body does."""
    call = kernel.calls.get(token)
    task = None if call is None else kernel.entities.get(call.key)
    return task.stream.spec if isinstance(task, TaskActor) else None


def spec_folder_of(kernel: Kernel, token: int) -> str | None:
    """The folder of that specification; None if no body runs under `token`, or the specification has no folder."""
    spec = spec_of(kernel, token)
    return None if spec is None else spec.folder
