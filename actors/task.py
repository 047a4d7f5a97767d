"""The task: one unit of work, from its dependencies to its end.

Rules
-----
- Its attempts are calls of an engine, each under a fencing token that is the attempt's alone. What comes back under an
  older token frees the slot it held and changes nothing else.
- Two budgets are counted when an attempt ends: failed ones and lost ones. Whether there is another attempt is decided
  by the machine's guards; the delay before it is drawn once, and its due time is journaled.
- The nearest of its limits is armed: the attempt's, the one between heartbeats, the one over all attempts. The record
  says which it was. A body that was stopped gets `kill_grace` seconds, then it is abandoned.
- Its slot is free when the body is gone and nothing of it is left to validate, whatever state the task is in by then.
- How it ended counts for its dependents as good, void or bad; the workstream is told once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..machines import TASK, Event, Standing, TaskState
from .backoff import delay
from .checks import CheckedEntity
from .kernel import Call, Kernel, StopCall
from .limits import Limits
from .messages import (
    READY,
    Assign,
    Beat,
    CallEnded,
    Cancel,
    Drain,
    Ended,
    Message,
    Permit,
    ProcessStarted,
    Queued,
    Ready,
    Recover,
    Release,
    Reset,
    Skip,
    Started,
    Stop,
    TimerFired,
    Trip,
    TurnFailed,
    Unroutable,
    Verdict,
)  # fmt: skip
from .records import AttemptRecord, TaskRecord, iso
from .spec import Check, Hook, Task, Tool, seconds

if TYPE_CHECKING:
    from .breaker import BreakerActor
    from .job import JobActor
    from .workstream import WorkstreamActor

S = TaskState
PENDING, QUEUED, RUNNING, VALIDATING, HALF_OPEN = S.PENDING, S.QUEUED, S.RUNNING, S.VALIDATING, S.HALF_OPEN
ENQUEUE, START, SUCCEED, FAIL = Event.ENQUEUE, Event.START, Event.SUCCEED, Event.FAIL
VALIDATION_PASSED, TIME_OUT, REQUEUE = Event.VALIDATION_PASSED, Event.TIME_OUT, Event.REQUEUE
GOOD = Standing.GOOD
EXHAUSTED = "exhausted"
"""The `limit` of a task that is parked because it has no attempt left."""
STOP_MARGIN = 1.0
"""Seconds that an engine has beyond the kill grace to say that the body is gone."""
UNPARK_AFTER = 60.0
"""Seconds after which a task parked by exhaustion gets its one more attempt (the breaker's default cooldown)."""
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+|(?:/[^\s:'\"]+)+")


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt ended badly, as the guards of `fail` ask it."""

    lost: bool = False
    permanent: bool = False
    repeated: bool = False


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The payload of `trip`: the breaker lets the task through, or not."""

    permit: bool = False


class TaskActor(CheckedEntity[TaskRecord]):
    """One task of a workstream."""

    __slots__ = ("beat_at", "engine", "limits", "priority", "slot", "spec", "stream", "ticket", "tool")

    machine = TASK
    receivers: ClassVar[dict[type[Message], str]] = {
        Assign: "on_assign", Beat: "on_beat", CallEnded: "on_call_ended", Cancel: "on_cancel", Drain: "on_drain",
        Permit: "on_permit", ProcessStarted: "on_process_started", Ready: "on_ready", Recover: "on_recover",
        Reset: "on_reset", Skip: "on_skip", Stop: "on_stop", TimerFired: "on_timer", Trip: "on_trip", TurnFailed: "on_turn_failed",
        Unroutable: "on_unroutable",
    }  # fmt: skip

    def __init__(
        self,
        kernel: Kernel,
        record: TaskRecord,
        stream: WorkstreamActor,
        spec: Task,
        limits: Limits,
        engine: str,
    ) -> None:
        super().__init__(kernel, record)
        self.stream = stream
        self.spec = spec
        self.limits = limits
        self.engine = engine
        self.priority = spec.priority + stream.spec.priority
        self.tool: Tool = stream.spec.tools.get(spec.tool or "", _PLAIN_TOOL)
        self.ticket = 0  # its place in the scheduler's heap; 0 when it is not in the queue
        self.slot: Call | None = None
        self.beat_at = 0.0

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """Its ids for the log."""
        record = self.record
        return record.job_id, record.workstream_id, record.attempt or None, record.worker_id

    def wants(self, token: int) -> bool:
        """Whether what was to start under `token` should still start."""
        state = self.record.state
        return (token == self.record.token and state == RUNNING) or (
            token == self.last_call and state in {PENDING, VALIDATING}
        )

    def job_over(self) -> JobActor | None:
        """Its job, if that is over but could not be let go yet."""
        job = self.stream.job
        return job if job.over else None

    # -- getting going -------------------------------------------------------------------------------------------------

    def on_ready(self, _: Ready) -> None:
        """Its dependencies are satisfied: ask its condition, else queue."""
        if self.record.state != PENDING:
            return
        if self.record.unmet or not self.record.ready:
            self.change(unmet=0, ready=True)
        if self.spec.condition is None:
            self._enqueue()
        else:
            self.ask("condition", seconds(self.spec.condition.timeout))

    def _enqueue(self) -> None:
        record, now = self.record, self.kernel.at
        self.fire(
            ENQUEUE,
            queued_at=now,
            first_queued_at=record.first_queued_at or now,
            place=record.place or self.kernel.seq + 1,
        )

    def entered_queued(self) -> None:
        """Wait for a worker, unless the tool is known to be ill."""
        breaker = self.breaker
        if breaker is not None and not breaker.closed:
            self.fire(
                Event.TRIP,
                Refusal(),
                reason=f"tool {self.spec.tool!r} is not healthy; retry in {breaker.retry_in():.0f} s",
            )
            return
        self._arm_queue()
        self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    def _arm_queue(self, unroutable: bool = False) -> None:
        record, limits = self.record, self.limits
        since = record.queued_at or self.kernel.at
        dues = [(since + limits.unroutable_timeout, "unroutable")] if unroutable else []
        if limits.queue_timeout is not None:
            dues.append((since + limits.queue_timeout, "queue"))
        if (total := self._total_due()) is not None:
            dues.append((total, "total"))
        if dues:
            due, limit = min(dues)
            self.change(due_at=due, limit=limit)
            self.arm(due)

    def _total_due(self) -> float | None:
        total = self.limits.total_timeout
        return None if total is None else (self.record.first_queued_at or self.kernel.at) + total

    def on_unroutable(self, message: Unroutable) -> None:
        """No worker could ever run it: say so at once, and do not wait for ever."""
        if self.ticket:
            self.change(reason=f"unroutable: {message.reason}")
            self._arm_queue(unroutable=True)

    # -- attempts ------------------------------------------------------------------------------------------------------

    def on_assign(self, message: Assign) -> None:
        """A worker took it: start the attempt, unless it was stopped meanwhile."""
        record = self.record
        if record.state not in {QUEUED, HALF_OPEN} or not self.stream.lets_start(self):
            self.kernel.send(self.kernel.workers[message.slot.worker], Release(record.key, message.slot))
            return
        self.ticket = 0
        self.slot = message.slot
        worker = self.kernel.workers[message.slot.worker].record
        now = self.kernel.at
        token = self.kernel.begin_call("body", record.key, slot=message.slot)
        breaker = self.breaker
        due, limit = self._attempt_due(now, now)
        self.beat_at = now
        self.fire(
            START, attempt=record.attempt + 1, token=token, probe=record.state == HALF_OPEN and record.limit != EXHAUSTED, worker=worker.key,
            worker_id=worker.id, claimed_at=now, started_at=record.started_at or now, due_at=due, limit=limit, checked=0,
            generation=0 if breaker is None else breaker.record.generation,
        )  # fmt: skip

    def entered_running(self) -> None:
        """An attempt runs: claim it durably, and arm the nearest of its limits."""
        record = self.record
        self.kernel.turn.extra.append(
            AttemptRecord(
                key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
                claimed_at=record.claimed_at or record.updated_at,
            )
        )  # fmt: skip
        if record.due_at is not None:
            self.arm(record.due_at)
        if not self.stream.started:
            self.kernel.send(self.stream, Started(record.key))

    def _attempt_due(self, began: float, beat: float) -> tuple[float, str]:
        limits = self.limits
        due, limit = began + limits.timeout, "attempt"
        if limits.heartbeat_timeout is not None and beat + limits.heartbeat_timeout < due:
            due, limit = beat + limits.heartbeat_timeout, "heartbeat"
        total = self._total_due()
        if total is not None and total < due:
            due, limit = total, "total"
        return due, limit

    def on_beat(self, message: Beat) -> None:
        """The body is alive, and may have said how far it is."""
        if message.token != self.record.token or self.record.state != RUNNING:
            self.kernel.stale += 1
            return
        self.beat_at = self.kernel.at
        if message.details is not None:
            self.change(details=message.details)

    def on_process_started(self, message: ProcessStarted) -> None:
        """Keep the process's identity, so that one which outlives a crash can be found and killed."""
        record = self.record
        if message.token == record.token:
            self._journal_attempt(pid=message.pid, process_started=message.started)

    def on_call_ended(self, message: CallEnded) -> None:
        """Its body, condition or check is over."""
        call = self.kernel.end_call(message.token)
        if call is None or call.kind == "body":
            self._body_ended(message, call)
        elif message.token == self.last_call:
            self.last_call = 0
            if call.kind == "condition":
                self._condition_ended(message)
            else:
                self.check_ended(message)

    def _body_ended(self, ended: CallEnded, call: Call | None) -> None:
        record = self.record
        if ended.token != record.token:
            self.kernel.stale += 1
            self._free(call)
            return
        self.slot = call
        state = record.state
        if state == RUNNING:
            if ended.status == "ok":
                self._succeeded(ended)
            elif self.kernel.draining and ended.status in {"cancelled", "abandoned"}:
                self._give_back()
            else:
                self._failed(ended, end="failed")
        elif state == S.TIMED_OUT:
            self._failed(ended, end="timed_out")
        elif state == S.CANCELLING:
            self._journal_attempt(ended, end="cancelled")
            self.fire(Event.COMPLETE, reason=record.reason, last_error=ended.error or record.last_error)
        else:
            self._journal_attempt(ended, end="cancelled")
        if self.record.state != VALIDATING:
            self.validated()

    def validated(self) -> None:
        """The attempt is over: its worker may have another task."""
        slot, self.slot = self.slot, None
        self._free(slot)

    def _free(self, slot: Call | None) -> None:
        if slot is not None and (worker := self.kernel.workers.get(slot.worker)) is not None:
            self.kernel.send(worker, Release(self.record.key, slot))

    def _journal_attempt(self, ended: CallEnded | None = None, **changes: Any) -> None:
        record = self.record
        if ended is not None:
            changes |= {
                "ended_at": self.kernel.at, "error": ended.error, "exit_code": ended.exit_code,
                "duration_ms": round(ended.duration * 1000), "output_size": ended.output_size,
                "output_path": ended.output_path,
            }  # fmt: skip
        self.kernel.turn.extra.append(
            AttemptRecord(
                key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
                claimed_at=record.claimed_at or record.created_at, **changes,
            )
        )  # fmt: skip

    def _succeeded(self, ended: CallEnded) -> None:
        self._journal_attempt(ended, end="succeeded")
        self._tell_breaker(SUCCEED)
        failed = self.record.failed_attempts
        self.fire(
            SUCCEED, metadata={"duration_seconds": round(ended.duration, 3), "retry_count": failed},
            result=ended.value, exit_code=ended.exit_code, output_path=ended.output_path, output_size=ended.output_size,
            execution_ms=round(ended.duration * 1000), ended_at=self.kernel.at, due_at=None, limit=None, error_repeats=0,
        )  # fmt: skip

    def _failed(self, ended: CallEnded, *, end: str) -> None:
        """Decide what a bad end leads to: another attempt, the parking place, or the end."""
        record, limits = self.record, self.limits
        self._journal_attempt(ended, end=end)
        self._tell_breaker("returned" if end == "lost" else FAIL)
        lost = end == "lost"
        error = ended.error or (
            f"the {record.limit} limit was reached" if end == "timed_out" else ended.status
        )
        same = ended.error_type == record.error_type and _shape(error) == _shape(record.last_error or "")
        repeats = record.error_repeats + 1 if same else 1
        allowed = limits.max_error_repeats
        permanent = ended.permanent or (end == "timed_out" and record.limit == "total")
        failure = Failure(lost, permanent, allowed is not None and repeats > allowed)
        failed, losses = record.failed_attempts + (not lost), record.lost_attempts + lost
        due = self._retry_at(failed, ended.retry_after, lost)
        told = {"end": end, "failed_attempts": failed, "lost_attempts": losses, "granted": record.granted}
        if self.machine.transition(record.state, FAIL, record, failure).target == S.RETRYING:
            told["retry_at"] = iso(due)
        self.fire(
            FAIL, failure, reason=error, metadata=told, failed_attempts=failed, lost_attempts=losses, last_error=error,
            error_type=ended.error_type, error_category=ended.category, error_count=record.error_count + 1,
            error_repeats=repeats, exit_code=ended.exit_code, output_path=ended.output_path or record.output_path,
            output_size=ended.output_size, execution_ms=round(ended.duration * 1000), ended_at=self.kernel.at,
            worker=None, worker_id=None, due_at=due,
        )  # fmt: skip

    def _retry_at(self, failed: int, retry_after: float | None, lost: bool) -> float:
        if lost:
            return self.kernel.at
        return self.kernel.at + delay(self.limits.retry, failed, self.kernel.port.random, retry_after)

    def entered_retrying(self) -> None:
        """Wait for the backoff to be over; the limit over all attempts still holds."""
        due, total = self.record.due_at or self.kernel.at, self._total_due()
        self.arm(due if total is None else min(due, total), by_utc=True)

    def entered_timed_out(self) -> None:
        """Stop the body, and give it the grace to be gone."""
        self.kernel.effect(StopCall(self.record.token))
        self.arm(self.kernel.at + self.limits.kill_grace + STOP_MARGIN)

    def _give_back(self) -> None:
        """A drain stopped the body: the try counts as nothing, unless the body must not simply run twice."""
        if self.record.on_loss != "rerun":
            self._lost("drained")
            return
        self._journal_attempt(end="returned", ended_at=self.kernel.at)
        self._tell_breaker("returned")
        self.fire(
            REQUEUE,
            reason="drained",
            worker=None,
            worker_id=None,
            due_at=None,
            limit=None,
            queued_at=self.kernel.at,
        )

    # -- validation ----------------------------------------------------------------------------------------------------

    @property
    def checks(self) -> list[Check]:
        """Its acceptance tests."""
        return self.spec.checks

    @property
    def check_limit(self) -> float:
        """Seconds that one of its checks has."""
        return self.limits.validation_timeout

    def passed(self) -> None:
        """Every acceptance test was met."""
        record, now = self.record, self.kernel.at
        spent = round((now - (record.ended_at or now)) * 1000)
        self.fire(
            VALIDATION_PASSED,
            finished_at=now,
            standing=GOOD,
            validation_ms=spent,
            worker=None,
            worker_id=None,
            due_at=None,
        )

    def not_passed(self, error: str) -> None:
        """An acceptance test was not met."""
        self.fire(
            Event.VALIDATION_FAILED, reason=error, last_error=error, error_type="validation_failed", worker=None, worker_id=None,
            error_count=self.record.error_count + 1, due_at=None,
        )  # fmt: skip

    def _condition_ended(self, ended: CallEnded) -> None:
        if self.record.state != PENDING or self.kernel.draining:
            return
        self.disarm()
        if ended.status != "ok":
            self._broken(f"its condition broke: {ended.error or ended.status}")
        elif ended.value:
            self._enqueue()
        else:
            self.on_skip(Skip(Standing.VOID, "its condition was not met"))

    def _broken(self, error: str) -> None:
        self.fire(
            FAIL,
            Failure(permanent=True),
            reason=error,
            last_error=error,
            error_count=self.record.error_count + 1,
        )

    # -- breaker and parking -------------------------------------------------------------------------------------------

    @property
    def breaker(self) -> BreakerActor | None:
        """The breaker of its tool, once there is one."""
        return None if self.spec.tool is None else self.kernel.breakers.get(self.spec.tool)

    @property
    def parked_at_tool(self) -> bool:
        """Whether it waits for its tool's breaker (and not because its attempts are exhausted)."""
        return self.record.state == S.CIRCUIT_OPEN and self.record.limit != EXHAUSTED

    def _tell_breaker(self, event: str) -> None:
        breaker, record = self.breaker, self.record
        if breaker is not None:
            self.kernel.send(breaker, Verdict(record.key, record.generation, event))

    def on_trip(self, _: Trip) -> None:
        """Its tool's breaker opened while it was queued."""
        if self.record.state == QUEUED:
            self.fire(Event.TRIP, Refusal(), reason=f"the circuit of tool {self.spec.tool!r} opened")

    def entered_circuit_open(self) -> None:
        """Park: at the tool's breaker, or until one more attempt is granted."""
        self.ticket = 0
        previous = self.record.previous_state
        exhausted = previous not in {QUEUED, S.RETRYING, HALF_OPEN} and not self.record.probe
        self.change(circuit_state="open", limit=EXHAUSTED if exhausted else None, due_at=None, probe=False)
        self._park()

    def _park(self) -> None:
        record, total = self.record, self._total_due()
        due = total
        if record.limit != EXHAUSTED:
            if (breaker := self.breaker) is not None:
                breaker.park(self)
        elif not record.granted:
            again = record.updated_at + UNPARK_AFTER
            due = again if total is None else min(again, total)
        if due is not None:
            self.change(due_at=due)
            self.arm(due, by_utc=True)

    def on_permit(self, _: Permit) -> None:
        """It may probe its tool."""
        if self.parked_at_tool:
            self.fire(Event.COOL_DOWN)
        else:
            self._tell_breaker("returned")

    def entered_half_open(self) -> None:
        """Queue for the probe."""
        self.change(circuit_state="half_open")
        self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    def on_reset(self, _: Reset) -> None:
        """Its tool is healthy again."""
        if self.record.state == S.CIRCUIT_OPEN:
            self.fire(Event.RESET, circuit_state="closed", limit=None, due_at=None)
            self._enqueue()

    # -- being stopped -------------------------------------------------------------------------------------------------

    def on_skip(self, message: Skip) -> None:
        """It does not run, unless it has ended already."""
        if self.record.state != PENDING:
            return
        self.fire(
            Event.SKIP,
            reason=message.reason,
            standing=message.standing,
            finished_at=self.kernel.at,
            metadata={"standing": message.standing},
        )

    def on_cancel(self, message: Cancel) -> None:
        """Cancel: gracefully where the state knows it, else at once; `force` is the harder stop."""
        if message.force:
            event = Event.CANCEL_FORCE if self.knows(Event.CANCEL_FORCE) else Event.CANCEL
        else:
            event = Event.CANCEL_GRACEFUL if self.knows(Event.CANCEL_GRACEFUL) else Event.CANCEL
        self.fire(event, reason=message.reason)

    def on_stop(self, message: Stop) -> None:
        """Its workstream is cancelled: as `on_cancel`, but where that says nothing new it does nothing."""
        if self.ended or (self.record.state == S.CANCELLING and not message.force):
            return
        self.on_cancel(Cancel(message.reason, message.force))

    def entered_cancelling(self) -> None:
        """Stop the body, or the check that runs, and wait for it to be gone."""
        token = self.last_call or self.record.token
        if token not in self.kernel.calls:
            self.fire(Event.COMPLETE, reason=self.record.reason)
            self.validated()
            return
        due = self.kernel.at + self.limits.kill_grace + STOP_MARGIN
        self.change(due_at=due)
        self.kernel.effect(StopCall(token))
        self.arm(due)

    def on_drain(self, message: Drain) -> None:
        """The runtime stops: give the try back, once the body is gone."""
        if message.stop and self.record.state == RUNNING:
            self.kernel.effect(StopCall(self.record.token))

    # -- limits --------------------------------------------------------------------------------------------------------

    def on_timer(self, message: TimerFired) -> None:
        """One of its limits was reached, or a wait is over."""
        if message.epoch != self.record.epoch:
            self.kernel.stale += 1
            return
        getattr(self, f"due_{self.record.state}")()

    def due_pending(self) -> None:
        """Its condition took too long."""
        self.kernel.effect(StopCall(self.last_call, force=True))
        self.last_call = 0
        self._broken("its condition took too long")

    def due_queued(self) -> None:
        """It waited too long for a worker."""
        record = self.record
        why = record.reason if record.limit == "unroutable" else f"the {record.limit} limit was reached"
        self._broken(why or "it waited too long")

    def due_running(self) -> None:
        """The attempt took too long, or its body was silent for too long."""
        record, now = self.record, self.kernel.at
        due, limit = self._attempt_due(record.updated_at, self.beat_at)
        if due > now:  # it has sent a heartbeat since the timer was armed
            self.arm(due)
            return
        self.fire(TIME_OUT, limit=limit, reason=f"the {limit} limit was reached", due_at=None)

    def due_timed_out(self) -> None:
        """The body did not go: abandon it."""
        self.kernel.effect(StopCall(self.record.token, force=True))
        self._failed(
            CallEnded(
                self.record.token,
                "abandoned",
                error=f"the {self.record.limit} limit was reached; the body did not stop",
            ),
            end="timed_out",
        )

    def due_retrying(self) -> None:
        """The backoff is over, or the limit over all attempts was reached."""
        total = self._total_due()
        if total is not None and total <= self.kernel.at:
            self._broken("the total limit was reached")
        else:
            self.fire(REQUEUE, queued_at=self.kernel.at, due_at=None)

    def due_circuit_open(self) -> None:
        """It gets one more attempt, or the limit over all attempts was reached."""
        total = self._total_due()
        if total is not None and total <= self.kernel.at:
            self._broken("the total limit was reached")
        else:
            self.fire(Event.COOL_DOWN, granted=self.record.granted + 1)

    def due_cancelling(self) -> None:
        """The body did not go: abandon it."""
        self.fire(
            Event.CANCEL_FORCE,
            reason=f"{self.record.reason}; the body did not stop in time and was abandoned",
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    def entered_completed(self) -> None:
        """It is done."""
        self._end(self.spec.on_completed, "on_completed")

    def entered_failed(self) -> None:
        """It is given up."""
        self._bad()
        self._end(self.spec.on_failed, "on_failed")

    def entered_cancelled(self) -> None:
        """It was stopped; what still runs of it must go."""
        token = self.last_call or self.record.token
        if token in self.kernel.calls:
            self.kernel.effect(StopCall(token, force=True))
        if self.record.token not in self.kernel.calls:
            self.validated()
        self._bad()
        self._end(self.spec.on_cancelled, "on_cancelled")

    def entered_skipped(self) -> None:
        """It never runs."""
        self._end([], "")

    def _bad(self) -> None:
        self.ticket = 0
        if self.record.probe or self.record.previous_state == HALF_OPEN:
            self._tell_breaker("returned")
        self.change(
            standing=Standing.BAD, finished_at=self.kernel.at, worker=None, worker_id=None, due_at=None
        )

    def _end(self, hooks: list[Hook], event: str) -> None:
        for hook in hooks:
            self.kernel.keep_hook(self, hook, event)
        self.kernel.send(self.stream, Ended(self.record.key))

    # -- coming back ---------------------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Derive again what is derived: its place in the queue, its slot, its timer."""
        record, state = self.record, self.record.state
        self.ticket = 0
        self.slot = self.kernel.calls.get(record.token) or (
            self.slot if state in {VALIDATING, S.CANCELLING} else None
        )
        if state in {QUEUED, HALF_OPEN}:
            self.kernel.scheduler.restore(self)
        elif self.parked_at_tool and (breaker := self.breaker) is not None:
            breaker.keep(self)
        if record.due_at is not None and not self.ended:
            self.arm(record.due_at, by_utc=state in {S.RETRYING, S.CIRCUIT_OPEN})

    def on_recover(self, _: Recover) -> None:
        """The process that ran it is gone: end what it left unfinished."""
        state = self.record.state
        if state == RUNNING:
            self.fire(Event.RECOVER, reason="runtime_restarted")
            self._lost()
        elif state == S.RECOVERING:
            self._lost()
        elif state == S.TIMED_OUT:
            self._failed(
                CallEnded(self.record.token, "gone", error="the body ended with the runtime"), end="timed_out"
            )
        elif state == VALIDATING:
            self.fire(Event.RECOVER, reason="runtime_restarted")
            self.entered_validating()
        elif state == S.CANCELLING:
            self._journal_attempt(end="cancelled", ended_at=self.kernel.at)
            self.fire(Event.COMPLETE, reason=self.record.reason)
        elif state == PENDING and self.record.ready:
            self.on_ready(READY)
        elif state == QUEUED:
            self.kernel.scheduler.check_routable(self)

    def _lost(self, reason: str = "runtime_restarted") -> None:
        ended = CallEnded(
            self.record.token, "lost", error=reason, error_type="worker_lost", category="transient"
        )
        self._failed(ended, end="lost")

    def on_turn_failed(self, message: TurnFailed) -> None:
        """A turn of this task raised and was undone: it cannot go on."""
        if message.token:
            self.slot = self.kernel.end_call(message.token) or self.slot
        elif self.record.token in self.kernel.calls:
            self.kernel.effect(StopCall(self.record.token, force=True))
        reason = f"internal error: {message.error}"
        if self.record.state == VALIDATING:
            self.not_passed(reason)
        elif self.knows(FAIL):
            self._broken(reason)
        elif not self.ended:
            self.on_cancel(Cancel(reason))
        if message.token:
            self.validated()


_PLAIN_TOOL = Tool()


def _shape(error: str) -> str:
    """An error's text with numbers, addresses and paths masked, so that the same error is known again."""
    return _DIGITS.sub("#", error)
