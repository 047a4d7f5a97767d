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
- In `circuit_open` it is parked: at its tool's breaker, or because its attempts are exhausted (it gets one more after a
  cooldown, once), or because one was lost and must not simply run again (then only somebody's word frees it).
- How it ended counts for its dependents as good, void or bad; the workstream is told once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..machines import TASK, Event, Standing, TaskState
from ..machines.task import parks_when_exhausted
from .backoff import delay
from .checks import SAID, CheckedEntity
from .kernel import Kernel, StopCall
from .limits import Limits, breaker_of
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
    from .scheduler import Lane
    from .workstream import WorkstreamActor

S = TaskState
PENDING, QUEUED, RUNNING, VALIDATING, HALF_OPEN = S.PENDING, S.QUEUED, S.RUNNING, S.VALIDATING, S.HALF_OPEN
ENQUEUE, START, SUCCEED, FAIL = Event.ENQUEUE, Event.START, Event.SUCCEED, Event.FAIL
VALIDATION_PASSED, TIME_OUT, REQUEUE = Event.VALIDATION_PASSED, Event.TIME_OUT, Event.REQUEUE
TIMED_OUT, CANCELLING = S.TIMED_OUT, S.CANCELLING
GOOD = Standing.GOOD
RUNS = frozenset({RUNNING, TIMED_OUT, S.RECOVERING})
"""The states in which it is still to be decided how an attempt ended."""
INTERNAL = "internal_error"
"""The `error_type` of a task whose own actor failed."""
TOOL, EXHAUSTED, LOST = "tool", "exhausted", "lost"
"""Why a task is parked (`record.parked`)."""
STOP_MARGIN = 1.0
"""Seconds that an engine has beyond the kill grace to say that the body is gone."""
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

    __slots__ = ("beat_at", "engine", "lane", "limits", "priority", "spec", "stream", "ticket", "tool")

    machine = TASK
    by_utc = frozenset({S.RETRYING, S.CIRCUIT_OPEN})
    receivers: ClassVar[dict[type[Message], str]] = {
        Assign: "on_assign", Beat: "on_beat", CallEnded: "on_call_ended", Cancel: "on_cancel", Drain: "on_drain",
        Permit: "on_permit", ProcessStarted: "on_process_started", Ready: "on_ready", Recover: "on_recover",
        Reset: "on_reset", Skip: "on_skip", Stop: "on_stop", TimerFired: "on_timer", Trip: "on_trip",
        TurnFailed: "on_turn_failed", Unroutable: "on_unroutable",
    }  # fmt: skip

    def __init__(
        self,
        kernel: Kernel,
        record: TaskRecord,
        stream: WorkstreamActor,
        spec: Task,
        *,
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
        self.lane: Lane | None = None  # where it waits when it is in the queue; the scheduler's
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
        record = self.record
        if record.state != PENDING:
            return
        if record.unmet or not record.ready:
            self.change(unmet=0, ready=True)
        if self.spec.condition is None:
            self._enqueue()
        elif not self.kernel.draining:
            self.ask("condition", seconds(self.spec.condition.timeout))

    def _enqueue(self, queued_at: float | None = None) -> None:
        record, now = self.record, self.kernel.at
        self.fire(
            ENQUEUE, queued_at=queued_at or now, first_queued_at=record.first_queued_at or now,
            place=record.place or self.kernel.seq + 1,
        )  # fmt: skip

    def entered_queued(self) -> None:
        """Wait for a worker, unless the tool is known to be ill."""
        if (breaker := self.breaker) is not None and not breaker.closed:
            self._trip(breaker)
            return
        self._arm_queue()
        self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    def _arm_queue(self) -> None:
        """Arm the nearest of the limits that hold while it waits for a worker."""
        limits, record = self.limits, self.record
        if limits.queue_timeout is None and limits.total_timeout is None and record.routable:
            return
        dues = self._waiting_dues()
        if not record.routable:
            dues.append((self.kernel.at + limits.unroutable_timeout, "unroutable"))
        due, limit = min(dues)
        self.change(limit=limit)
        self.wait_until(due)

    def _waiting_dues(self) -> list[tuple[float, str]]:
        """The limits that hold while it waits for a worker or at its tool, and when they are reached."""
        dues: list[tuple[float, str]] = []
        if (queue := self.limits.queue_timeout) is not None:
            dues.append(((self.record.queued_at or self.kernel.at) + queue, "queue"))
        if (total := self._total_due()) is not None:
            dues.append((total, "total"))
        return dues

    def _total_due(self) -> float | None:
        total = self.limits.total_timeout
        return None if total is None else (self.record.first_queued_at or self.kernel.at) + total

    def on_unroutable(self, message: Unroutable) -> None:
        """No worker could ever run it: say so at once, and do not wait for ever. Or one has come."""
        routable = message.reason is None
        if not self.ticket or routable == self.record.routable:
            return
        self.disarm()
        self.change(
            routable=routable, reason=None if routable else f"unroutable: {message.reason}", due_at=None, limit=None
        )
        self._arm_queue()

    # -- attempts ------------------------------------------------------------------------------------------------------

    def on_assign(self, message: Assign) -> None:
        """A worker took it: start the attempt, unless it was stopped, or its tool fell ill, meanwhile."""
        kernel, record = self.kernel, self.record
        self.ticket = 0
        breaker = self.breaker
        queued = record.state == QUEUED
        ill = queued and breaker is not None and not breaker.closed
        if not (queued or record.state == HALF_OPEN) or ill or not self.stream.lets_start(self):
            kernel.send(kernel.workers[message.slot.worker], Release(record.key, message.slot))
            if ill and breaker is not None:
                self._trip(breaker)
            return
        worker = kernel.workers[message.slot.worker].record
        now = self.beat_at = kernel.at
        token = kernel.begin_call("body", record.key, slot=message.slot)
        due, limit = self._attempt_due(now, now)
        changes: dict[str, Any] = {}
        if breaker is not None:
            changes = {"probe": record.parked == TOOL, "generation": breaker.record.generation}
        if record.attempt or record.parked:
            changes |= {"parked": None, "checked": 0, "pid": None, "process_started": None}
        self.fire(
            START, attempt=record.attempt + 1, token=token, worker=worker.key, worker_id=worker.id, claimed_at=now,
            started_at=record.started_at or now, due_at=due, limit=limit, **changes,
        )  # fmt: skip

    def entered_running(self) -> None:
        """An attempt runs: claim it durably. The nearest of its limits is armed."""
        self._journal_attempt()
        if not self.stream.started:
            self.kernel.send(self.stream, Started(self.record.key))

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
        if message.token == self.record.token and self.record.claimed_at is not None:
            self.change(pid=message.pid, process_started=message.started)
            self._journal_attempt()

    def on_call_ended(self, message: CallEnded) -> None:
        """Its body, condition or check is over."""
        call = self.kernel.end_call(message.token)
        if call is not None and call.kind == "body":
            self._body_ended(message)
        elif call is not None and message.token == self.last_call:
            self.last_call = 0
            if call.kind == "condition":
                self._condition_ended(message)
            else:
                self.check_ended(message)

    def _body_ended(self, ended: CallEnded) -> None:
        record = self.record
        if ended.token != record.token:
            self.kernel.stale += 1
            self.kernel.free_slot(ended.token)
            return
        state = record.state
        if state == RUNNING:
            if ended.status == "ok":
                self._succeeded(ended)
            elif ended.status in SAID:
                self._failed(ended, end="failed")
            elif self.kernel.draining:
                self._give_back()
            else:  # whoever ran it stopped it, unasked
                self._failed(ended, end="lost")
        elif state == TIMED_OUT:
            self._failed(ended, end="timed_out")
        else:
            if record.claimed_at is not None:  # else its end was journaled when the body was abandoned
                self._journal_attempt(ended, end="cancelled")
            if state == CANCELLING:
                self.fire(Event.COMPLETE, reason=record.reason, last_error=ended.error or record.last_error)
        if self.record.state != VALIDATING:
            self.validated()

    def validated(self) -> None:
        """The attempt is over: its worker may have another task."""
        self.kernel.free_slot(self.record.token)

    def _journal_attempt(
        self, ended: CallEnded | None = None, *, end: str | None = None, error: str | None = None
    ) -> None:
        """Write the row of the present attempt, as claimed or (with `end`) as over."""
        record = self.record
        row = AttemptRecord(
            key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
            claimed_at=record.claimed_at or record.updated_at, pid=record.pid, process_started=record.process_started,
            end=end, ended_at=None if end is None else self.kernel.at, error=error,
        ) if ended is None else AttemptRecord(
            key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
            claimed_at=record.claimed_at or record.updated_at, pid=record.pid, process_started=record.process_started,
            end=end, ended_at=self.kernel.at, error=error or ended.error, exit_code=ended.exit_code,
            duration_ms=round(ended.duration * 1000), output_size=ended.output_size, output_path=ended.output_path,
        )  # fmt: skip
        self.kernel.turn.extra.append(row)

    def _succeeded(self, ended: CallEnded) -> None:
        self._journal_attempt(ended, end="succeeded")
        self._tell_breaker(SUCCEED)
        record, duration = self.record, ended.duration
        told = {"duration_seconds": round(duration, 3), "retry_count": record.failed_attempts}
        changes: dict[str, Any] = {}
        if self.spec.command is not None:
            changes = {
                "exit_code": ended.exit_code, "output_path": ended.output_path, "output_size": ended.output_size,
            }  # fmt: skip
        if record.error_count or record.circuit_state != "closed":
            changes |= {"error_repeats": 0, "circuit_state": "closed"}
        self.fire(
            SUCCEED, metadata=told, result=ended.value, execution_ms=round(duration * 1000), ended_at=self.kernel.at,
            claimed_at=None, limit=None, **changes,
        )  # fmt: skip

    def _failed(self, ended: CallEnded, *, end: str) -> None:
        """Decide what a bad end leads to: another attempt, the parking place, or the end."""
        record, now = self.record, self.kernel.at
        lost = end == "lost"
        error, kind = ended.error or ended.status, ended.error_type
        if end == "timed_out":
            kind = "timed_out"
            error = f"the {record.limit} limit was reached" + (f": {ended.error}" if ended.error else "")
        self._journal_attempt(ended, end=end, error=error)
        self._tell_breaker("returned" if lost or kind == INTERNAL else FAIL)
        same = kind == record.error_type and _shape(error) == _shape(record.last_error or "")
        repeats = record.error_repeats + 1 if same else 1
        allowed = self.limits.max_error_repeats
        permanent = ended.permanent or (end == "timed_out" and record.limit == "total")
        failure = Failure(lost, permanent, allowed is not None and repeats > allowed)
        failed, losses = record.failed_attempts + (not lost), record.lost_attempts + lost
        told = {"end": end, "failed_attempts": failed, "lost_attempts": losses, "granted": record.granted}
        row = self.machine.transition(record.state, FAIL, record, failure)
        due = parked = None
        if row.target == S.RETRYING:
            port = self.kernel.port
            wait = 0.0 if lost else delay(self.limits.retry, failed, port.random, ended.retry_after, port.resolve)
            due = now + wait
            told["retry_at"] = iso(due)
        elif row.target == S.CIRCUIT_OPEN:
            exhausted = LOST if lost and record.on_loss == "park" else EXHAUSTED
            parked = exhausted if row.guard is parks_when_exhausted else TOOL
        self.fire(
            FAIL, failure, reason=error, metadata=told, failed_attempts=failed, lost_attempts=losses, last_error=error,
            error_type=kind, error_category=ended.category, error_count=record.error_count + 1, error_repeats=repeats,
            exit_code=ended.exit_code, output_path=ended.output_path or record.output_path,
            output_size=ended.output_size, execution_ms=round(ended.duration * 1000), ended_at=now, claimed_at=None,
            queued_at=now, worker=None,
            worker_id=None, due_at=due, parked=parked, limit=record.limit if end == "timed_out" else None,
        )  # fmt: skip

    def entered_retrying(self) -> None:
        """Wait for the backoff to be over; the limit over all attempts still holds."""
        due, total = self.record.due_at, self._total_due()
        if due is not None and total is not None and total < due:
            self.wait_until(total)

    def entered_timed_out(self) -> None:
        """Stop the body, and give it the grace to be gone."""
        self.kernel.effect(StopCall(self.record.token))
        self.wait_until(self.kernel.at + self.limits.kill_grace + STOP_MARGIN)

    def _give_back(self) -> None:
        """A drain stopped the body: the try counts as nothing, unless the body must not simply run twice."""
        if self.record.on_loss != "rerun":
            self._lost("drained")
            return
        self._journal_attempt(end="returned")
        self._tell_breaker("returned")
        self.fire(
            REQUEUE, reason="drained", worker=None, worker_id=None, claimed_at=None, limit=None, probe=False,
            queued_at=self.kernel.at,
        )  # fmt: skip

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
        )

    def not_passed(self, error: str) -> None:
        """An acceptance test was not met."""
        self.fire(
            Event.VALIDATION_FAILED, reason=error, last_error=error, error_type="validation_failed", worker=None,
            worker_id=None, error_count=self.record.error_count + 1,
        )  # fmt: skip

    def _condition_ended(self, ended: CallEnded) -> None:
        if self.record.state != PENDING:
            return
        if self.kernel.draining and ended.status not in SAID:
            self.unasked()
        elif ended.status != "ok":
            self._broken(f"its condition broke: {ended.error or ended.status}", "condition_broken")
        elif ended.value:
            self._enqueue()
        else:
            self.on_skip(Skip(Standing.VOID, "its condition was not met"))

    def _broken(self, error: str, kind: str) -> None:
        """It fails while no attempt of it runs."""
        self.fire(FAIL, reason=error, last_error=error, error_type=kind, error_count=self.record.error_count + 1)

    def _limit_reached(self, limit: str) -> None:
        """It waited for too long."""
        self.change(limit=limit)
        reason = self.record.reason if limit == "unroutable" else f"the {limit} limit was reached"
        self._broken(reason or "unroutable", f"{limit}_timeout")

    # -- breaker and parking -------------------------------------------------------------------------------------------

    @property
    def breaker(self) -> BreakerActor | None:
        """The breaker of its tool, once there is one."""
        tool = self.spec.tool
        return None if tool is None else self.kernel.breakers.get(tool)

    @property
    def parked_at_tool(self) -> bool:
        """Whether it waits for its tool's breaker."""
        return self.record.state == S.CIRCUIT_OPEN and self.record.parked == TOOL

    def _tell_breaker(self, event: str) -> None:
        breaker, record = self.breaker, self.record
        if breaker is not None:
            self.kernel.send(breaker, Verdict(record.key, record.generation, event))

    def on_trip(self, _: Trip) -> None:
        """Its tool's breaker opened while it was in the queue."""
        state, breaker = self.record.state, self.breaker
        if breaker is not None and (state == QUEUED or (state == HALF_OPEN and self.record.parked != TOOL)):
            self._trip(breaker)

    def _trip(self, breaker: BreakerActor, **changes: Any) -> None:
        reason = f"tool {self.spec.tool!r} is not healthy; retry in {breaker.retry_in():.0f} s"
        self.fire(Event.TRIP, Refusal(), reason=reason, parked=TOOL, **changes)

    def entered_circuit_open(self) -> None:
        """Park: at the tool's breaker, or until one more attempt is granted, or until somebody decides."""
        self.ticket = 0
        self.change(circuit_state="open", probe=False, limit=None)
        if self.parked_at_tool:
            dues = self._waiting_dues()
        else:
            total = self._total_due()
            dues = [] if total is None else [(total, "total")]
            if self.record.parked == EXHAUSTED and not self.record.granted:
                dues.append((self.kernel.at + seconds(breaker_of(self.tool).cooldown), "cooldown"))
        if dues:
            due, limit = min(dues)
            self.change(limit=limit)
            self.wait_until(due)
        if self.parked_at_tool and (breaker := self.breaker) is not None:
            breaker.park(self)

    def on_permit(self, _: Permit) -> None:
        """It may probe its tool."""
        if self.parked_at_tool:
            self.fire(Event.COOL_DOWN)
        else:
            self._tell_breaker("returned")

    def entered_half_open(self) -> None:
        """Queue for one attempt: the tool's probe, or the one more that it was granted."""
        breaker = self.breaker
        if self.record.parked != TOOL and breaker is not None and not breaker.closed:
            self._trip(breaker)
            return
        self.change(circuit_state="half_open")
        self._arm_queue()
        self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    def on_reset(self, _: Reset) -> None:
        """Its tool is healthy again."""
        if self.record.state == S.CIRCUIT_OPEN:
            queued_at = self.record.queued_at  # it has waited since then, whatever for
            self.fire(Event.RESET, circuit_state="closed", limit=None, parked=None)
            self._enqueue(queued_at)

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
            at_once = self.knows(Event.CANCEL) and not self.knows(Event.CANCEL_GRACEFUL)
            event = Event.CANCEL if at_once else Event.CANCEL_GRACEFUL
        self.fire(event, reason=message.reason)

    def on_stop(self, message: Stop) -> None:
        """Its workstream is cancelled: as `on_cancel`, but where that says nothing new it does nothing."""
        if self.ended or (self.record.state == CANCELLING and not message.force):
            return
        self.on_cancel(Cancel(message.reason, message.force))

    def entered_cancelling(self) -> None:
        """Stop the body, or the check that runs, and wait for it to be gone."""
        token = self.last_call or self.record.token
        if token not in self.kernel.calls:
            self.fire(Event.COMPLETE, reason=self.record.reason)
            self.validated()
            return
        self.kernel.effect(StopCall(token))
        self.wait_until(self.kernel.at + self.limits.kill_grace + STOP_MARGIN)

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
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0
        self._broken("its condition took too long", "condition_broken")

    def due_queued(self) -> None:
        """It waited too long for a worker."""
        self._limit_reached(self.record.limit or "queue")

    def due_half_open(self) -> None:
        """It waited too long for a worker."""
        self._limit_reached(self.record.limit or "queue")

    def due_running(self) -> None:
        """The attempt took too long, or its body was silent for too long."""
        record, now = self.record, self.kernel.at
        due, limit = self._attempt_due(record.claimed_at or now, self.beat_at)
        if due > now:  # it has sent a heartbeat since the timer was armed
            self.wait_until(due)
            return
        self.fire(TIME_OUT, limit=limit, reason=f"the {limit} limit was reached")

    def due_timed_out(self) -> None:
        """The body did not go: abandon it. Its slot is free when the engine has given it up, too."""
        token = self.record.token
        self.kernel.stop_call(token, force=True)
        self._failed(CallEnded(token, "abandoned", error="the body did not stop and was abandoned"), end="timed_out")

    def due_retrying(self) -> None:
        """The backoff is over, or the limit over all attempts was reached."""
        total, now = self._total_due(), self.kernel.at
        if total is not None and total <= now:
            self._limit_reached("total")
        elif (breaker := self.breaker) is not None and not breaker.closed:
            self._trip(breaker, queued_at=now)
        else:
            self.fire(REQUEUE, queued_at=now)

    def due_circuit_open(self) -> None:
        """It gets one more attempt, or it waited too long."""
        limit = self.record.limit
        if limit == "cooldown":
            self.fire(Event.COOL_DOWN, granted=self.record.granted + 1, queued_at=self.kernel.at)
        else:
            self._limit_reached(limit or "total")

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
        self.kernel.stop_call(self.last_call or self.record.token, force=True)
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
        self.change(standing=Standing.BAD, finished_at=self.kernel.at, worker=None, worker_id=None)

    def _end(self, hooks: list[Hook], event: str) -> None:
        for hook in hooks:
            self.kernel.keep_hook(self, hook, event)
        self.kernel.send(self.stream, Ended(self.record.key))

    # -- coming back ---------------------------------------------------------------------------------------------------

    def rebuild(self, asked: Mapping[int, int]) -> None:
        """Derive again what is derived: its place in the queue or at the breaker, its open question, its timer."""
        self.ticket = 0
        self.lane = None
        self.last_call = asked.get(self.record.key, 0)
        if self.record.key in self.kernel.stuck:
            return
        if self.record.state in {QUEUED, HALF_OPEN}:
            self.kernel.scheduler.restore(self)
        elif self.parked_at_tool and (breaker := self.breaker) is not None:
            breaker.keep(self)
        self.arm_again()

    def on_recover(self, _: Recover) -> None:
        """The process that ran it is gone: end what it left unfinished."""
        state = self.record.state
        if state == RUNNING:
            self.fire(Event.RECOVER, reason="runtime_restarted")
            self._lost()
        elif state == S.RECOVERING:
            self._lost()
        elif state == TIMED_OUT:
            self._failed(CallEnded(self.record.token, "gone", error="the body ended with the runtime"), end="timed_out")
        elif state == VALIDATING:
            self.fire(Event.RECOVER, reason="runtime_restarted", checked=0)
            self.entered_validating()
        elif state == CANCELLING:
            if self.record.claimed_at is not None:
                self._journal_attempt(end="cancelled")
            self.fire(Event.COMPLETE, reason=self.record.reason)
        elif state == PENDING and self.record.ready:
            self.on_ready(READY)

    def _lost(self, reason: str = "runtime_restarted") -> None:
        ended = CallEnded(self.record.token, "lost", error=reason, error_type="worker_lost", category="transient")
        self._failed(ended, end="lost")

    def on_turn_failed(self, message: TurnFailed) -> None:
        """A turn of this task raised and was undone: it cannot go on."""
        kernel, token, state = self.kernel, self.record.token, self.record.state
        reason = f"internal error: {message.error}"
        if message.token:
            kernel.end_call(message.token)
            if message.token == token and self.record.claimed_at is not None and state not in RUNS:
                self._journal_attempt(end="cancelled")
        elif state != CANCELLING:
            kernel.stop_call(self.last_call or token, force=True)
        if state in RUNS:
            self._failed(CallEnded(token, "failed", error=reason, error_type=INTERNAL, permanent=True), end="failed")
        elif state == VALIDATING:
            self.not_passed(reason)
        elif state == CANCELLING:
            self.fire(Event.CANCEL_FORCE, reason=reason)
        elif self.knows(FAIL):
            self._broken(reason, INTERNAL)
        elif not self.ended:
            self.on_cancel(Cancel(reason))
        self.last_call = 0
        kernel.free_slot(message.token)
        if token not in kernel.calls:
            self.validated()


_PLAIN_TOOL = Tool()


def _shape(error: str) -> str:
    """An error's text with numbers, addresses and paths masked, so that the same error is known again."""
    return _DIGITS.sub("#", error)
