"""The attempts of a task: claiming an attempt, its limits while it runs, and the consequences of its end.

Rules
-----
- An attempt is a call of an engine under a fencing token of its own. A result under an older token releases the slot
  of its attempt and changes nothing else.
- Two counters grow when attempts end: failed attempts and lost attempts. The machine's guards decide whether there is
  another attempt; the delay before it is drawn once, and its due time is journaled.
- A body that raises `RetryAfter` is deferred: up to `max_deferrals` times that counts neither as a failure nor as an
  attempt; the next one counts as any other failure. No task of its tool starts before the time that the body named.
- The timer is armed for the nearest limit: of the attempt, between heartbeats, or over all attempts. The record says
  which one it is. A body that is told to stop gets `kill_grace` seconds, then it is abandoned.
- The attempt's clock begins when its start is durable, however long the journal takes: the body begins then.
- If a timer fires late, the runtime itself stood still (SIGSTOP, a blocked loop), and ends or heartbeats of that time
  may be unread. That time does not count, and the unread messages are read first. The monotonic clock measures the
  lateness, and all limits but the one over all attempts.
- An announced stop of the runtime is neither a failure nor a loss: when a drain begins, it is noted in the row of each
  running attempt, so that an attempt that is killed before the drain ends is given back at the next start.
- The slot is free when the body has ended and its validation is over, whatever state the task is in by then.
- Every attempt has a row in the journal: written when it is claimed, when its process is known, and when it is over.

Rounds (DESIGN section 10, "For ever")
--------------------------------------
- A body that returns `task.again(...)` begins anew: in one commit its steps and its attempts leave the journal, the
  counters, limits, checkpoint and approvals of its attempts begin anew, and the next round has a call of its own. The
  number of the attempt stays.
- The next round runs in the same slot, without a transition, so that a body which never ends leaves no history that
  grows. If something says that no attempt may start there now (a drain, a pause, a tool, a worker that takes no tasks),
  the task is queued, and the attempt's row stays.

Silent workers
--------------
- The attempt stays the same, with its number, its token and its slot, until it is known to be lost.
- The attempt goes on if its worker answers again and still runs it, or brings its result. Its limits go on from where
  they were, but the time between heartbeats begins again.
- A silent worker's attempt is lost after the recovery timeout, a dead worker's attempt at once. Each attempt is lost
  only once, however often its worker is found dead. A late result of a lost attempt is refused.

Transient errors (seed 002, "error recovery")
---------------------------------------------
- A task that sets no retries has three attempts in all for transient errors (a broken connection, a network timeout).
  DESIGN section 4 lets a task retry failures only if it says so; but a task runs again after a loss unless it sets
  `on_loss`. So a task that sets neither may run twice anyway, and its code causes neither a broken connection nor a
  dead worker. `retry=Retry(max_attempts=1)` or `on_loss="fail"` limits it to one attempt. The further attempts are
  `granted` one by one, so that another kind of error of the same task is final. If the task has a tool, the tool's
  breaker and `retry` decide.
- If a body runs out of resources (memory, disk, descriptors), the worker is treated as the cause: it pauses, and the
  attempt counts as a loss, not as a failure; so a task that uses up all resources does not run for ever. Other workers
  may lack the same resources: so the task waits for the same time, too, and twice as long after each further loss. A
  task that must not run twice (`on_loss`) fails as after any other error. If there are too few resources to start it,
  its start waits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ...machines import TASK, Event, TaskState, WorkerState
from ...machines.builtin.task import parks_when_exhausted
from ..kernel.transaction import CallOrder, StopCall
from ..messages.errors import WORKER_LOST
from ..messages.inputs import (
    Assign,
    Beat,
    CallEnded,
    Drain,
    Exhausted,
    ProcessStarted,
    Regained,
    Release,
    RestTool,
    Started,
    WaitOver,
    WorkerBack,
    WorkerSilent,
)  # fmt: skip
from ..records.base import Cancellation
from ..records.task import NO_TROUBLE, Anew, AttemptRecord, EndedRound, Process, Produced, Trouble
from ..records.transition import iso
from ..spec.backoff import LONGEST_ASKED, delay
from ..spec.error_names import present_name
from ..spec.limits import PASSING_ATTEMPTS
from .attempt_clock import ALIVE, RECOVERING, RUNNING, AttemptClock, stands_still
from .cancelling import hooks_run
from .checks import EARLY, SAID, still_to_be_told
from .durable_waits import is_over, listen, may_rest, rests

if TYPE_CHECKING:
    from ..records.entities import BreakerRecord
    from .task import TaskActor

S = TaskState
TIMED_OUT, VALIDATING, CANCELLING = S.TIMED_OUT, S.VALIDATING, S.CANCELLING
START, SUCCEED, FAIL, TIME_OUT, REQUEUE = Event.START, Event.SUCCEED, Event.FAIL, Event.TIME_OUT, Event.REQUEUE
LOSSES = frozenset({"lost", "exhausted"})
"""The ends of an attempt that its body did not cause."""
PASSES = frozenset({"transient", "resources"})
"""The categories of errors after which another attempt may succeed."""
INTERNAL = "internal_error"
"""The `error_type` of a task whose own actor failed."""
TOOL, EXHAUSTED, LOST = "tool", "exhausted", "lost"
"""Reasons why a task is parked (`record.parked`). EXHAUSTED is also the end of an attempt that ran out of resources."""
DOUBLED = 5
"""How often, at most, the waiting time after attempts that ran out of resources is doubled."""
TAKING = frozenset({WorkerState.IDLE, WorkerState.BUSY})
"""The states in which a worker takes tasks."""
IN_QUEUE = frozenset({S.QUEUED, S.HALF_OPEN})
BEATS = frozenset({RUNNING, TIMED_OUT, CANCELLING})
"""The states in which a body may still report progress: also after it was told to stop."""
STOP_SIGNALS = frozenset({1, 2, 9, 15})
"""HUP, INT, KILL, TERM: a service manager sends them to every process of a service that it stops."""
STOP_MARGIN = 1.0
"""Seconds that an engine has after the kill grace to report that the body has ended."""
_DIGITS = r"0x[0-9a-fA-F]+|\d+|(?:/[^\s:'\"]+)+"


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt ended badly: the payload that the guards of `fail` read."""

    lost: bool = False
    permanent: bool = False
    repeated: bool = False
    deferred: bool = False


# -- beginning ---------------------------------------------------------------------------------------------------------


def assign(task: TaskActor, message: Assign) -> None:
    """Start an attempt on the assigned worker; release the slot if the task cannot start any more."""
    kernel, record = task.kernel, task.record
    task.ticket = 0
    breaker = None if task.spec.tool is None else task.breaker
    queued = record.state in IN_QUEUE
    ill = queued and breaker is not None and not breaker.lets_start(record)
    if not queued or ill or not task.stream.lets_start(task):
        kernel.send(kernel.workers[message.slot.worker], Release(record.key, message.slot))
        if ill and breaker is not None:
            task.trip(breaker)
        return
    worker = kernel.workers[message.slot.worker].record
    now = kernel.at
    token = kernel.begin_call("body", record.key, slot=message.slot)
    asked = message.slot.asked
    clock = task.clock = AttemptClock(asked, asked)
    left, limit = clock.left(task, token, asked)
    clock.expected = asked + left
    changed = replace(
        record, attempt=record.attempt + 1, token=token, worker=worker.key, worker_id=worker.id, claimed_at=now,
        started_at=record.started_at or now, limit=limit,
    )  # fmt: skip
    tool = task.spec.tool
    if record.attempt or tool is not None:  # without a tool, only an earlier attempt can have set these
        changed = replace(
            changed, parked=None, checked=0, durable_wait=None, test_results=(), process=None,
            probe=record.parked == TOOL and breaker is not None and breaker.record.probe == record.key,
            generation=0 if breaker is None else breaker.record.generation,
        )  # fmt: skip
    if tool is not None:
        kernel.count_invocation(tool)
    task.fire(START, changed, due_at=now + left)


def entered_running(task: TaskActor) -> None:
    """Claim the attempt durably. The timer of its nearest limit is armed already."""
    journal(task)
    if not task.stream.started:
        task.kernel.send(task.stream, Started(task.record.key))


def beat(task: TaskActor, message: Beat) -> None:
    """Receive a heartbeat of the body, perhaps with progress details or a checkpoint."""
    record = task.record
    says = message.details is not None or message.saved is not None
    wanted = record.state == RUNNING or (says and record.state in BEATS and record.claimed_at is not None)
    if message.token != record.token or not wanted:
        _stale_beat(task, message.token)
        return
    task.clock.beat_at = task.kernel.port.monotonic()
    if message.details is not None:
        task.change(raw_details=message.details)
    if message.saved is not None and task.limits.checkpoint:
        task.change(raw_checkpoint=message.saved)


def _stale_beat(task: TaskActor, token: int) -> None:
    """Drop a stale heartbeat, and kill its body unless the body is being stopped already."""
    task.kernel.stale += 1
    if not task.holds(token):
        task.kernel.stop_call(token, force=True)


def process_started(task: TaskActor, message: ProcessStarted) -> None:
    """Persist the identity of the body's process. After a crash of the runtime, the process can be found and killed."""
    if message.token == task.record.token and task.record.claimed_at is not None:
        task.change(process=Process(message.pid, message.started))
        journal(task)


def regained(task: TaskActor, _: Regained) -> None:
    """Let the clock of a task go on whose body has its slot back."""
    if task.record.state in ALIVE:
        if task.record.durable_wait is not None:
            task.change(durable_wait=None)
            if task.kernel.drain_began is not None:
                journal(task)  # from now on a kill interrupts it: that is no loss, since the runtime is being drained
        task.clock.set(task)


# -- ending ------------------------------------------------------------------------------------------------------------


def body_ended(task: TaskActor, ended: CallEnded) -> None:
    """Receive the end of a body, of the present attempt or an earlier one."""
    record = task.record
    if ended.token != record.token:
        _refuse(task, ended)
        task.kernel.free_slot(ended.token)
        return
    state = record.state
    if state == RUNNING:
        if ended.status == "ok":
            _succeeded(task, ended)
        else:
            _ended_badly(task, ended)
    elif state == TIMED_OUT:
        _tell_partial(task, ended)
        fail(task, ended, end="timed_out")
    elif state == RECOVERING:
        _heard_of(task, ended)
    else:
        if record.claimed_at is not None:  # else its end was journaled when the body was abandoned or lost
            journal(task, ended, end="cancelled")
        elif ended.status in SAID and record.error_type == WORKER_LOST:
            _refuse(task, ended)
        if state == CANCELLING and not hooks_run(task):
            _tell_partial(task, ended)
            cancel, used = record.cancel, _used(ended)
            if used:
                cancel = replace(cancel or Cancellation(), used=used)
            trouble = _with_detail(record.trouble, ended)
            task.change(claimed_at=None, trouble=trouble, produced=produced_by(ended), cancel=cancel)
            task.stopped()
    if task.record.state != VALIDATING and task.record.token == ended.token:  # else its slot is the next round's
        task.validated()


def _ended_badly(task: TaskActor, ended: CallEnded) -> None:
    """Handle the end of a running body that did not return a result."""
    if ended.status == "again":
        begin_anew(task, ended)
    elif ended.status in SAID and not (task.kernel.drain_began is not None and _was_killed(ended)):
        fail(task, ended, end="failed")
    elif may_rest(task):  # the body only waited: nothing was interrupted
        rest(task)
    elif task.kernel.drain_began is not None and _was_killed(ended):
        give_back(task, ended)
    elif ended.status == "lost":  # the worker has ended, so it would be useless to wait for it
        task.fire(Event.RECOVER, reason=ended.error)
        fail(task, ended, end="lost")
    elif task.kernel.draining:
        give_back(task, ended)
    else:  # the engine stopped the body without an order
        fail(task, ended, end="lost")


def _refuse(task: TaskActor, ended: CallEnded) -> None:
    """Refuse the end of an attempt that is no longer the present one."""
    task.kernel.stale += 1
    text = f"an end ({ended.status}) of {task.record.id} under fencing token {ended.token} is stale, and was refused"
    task.kernel.notice("stale_message", "warning", text, task, message="CallEnded", token=ended.token)


def _tell_partial(task: TaskActor, ended: CallEnded) -> None:
    """Emit a notice with the path of the output that a stopped command had written."""
    path, size = ended.output_path, ended.output_size
    if path is not None and size:
        text = f"{task.record.id} was stopped: the {size} bytes that it had written are in {path}"
        task.kernel.notice("partial_output_saved", "info", text, task, path=path, size=size)


def tell_abandoned(task: TaskActor, token: int, slot: CallOrder) -> None:
    """Emit a notice that the engine abandoned a body that did not stop; its slot is free now."""
    record, worker = task.record, task.kernel.workers.get(slot.worker)
    what = f"attempt {record.attempt}" if token == record.token else "an earlier attempt"
    where = "a worker that has ended" if worker is None else worker.record.id
    text = f"{what} of {record.id} did not stop on {where} and was abandoned: its slot is free for others"
    facts = {"attempt": record.attempt, "worker": None if worker is None else worker.record.id}
    task.kernel.notice("body_abandoned", "warning", text, task, **facts)


def journal(
    task: TaskActor, ended: CallEnded | None = None, *, end: str | None = None, error: str | None = None
) -> None:
    """Write the row of the present attempt, as claimed or (with `end`) as over."""
    record, kernel = task.record, task.kernel
    pid = started = None
    if record.process is not None:
        pid, started = record.process.pid, record.process.started
    row = AttemptRecord(  # Python makes a dict of more than 15 keywords, which costs more than a second record
        key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
        tool=task.spec.tool, claimed_at=record.claimed_at or record.updated_at, pid=pid, process_started=started,
        end=end, ended_at=None if end is None else kernel.at, error=error,
        drained_at=None if end is not None else kernel.drain_began,
    )  # fmt: skip
    if ended is not None:
        row = replace(
            row, error=error or ended.error, exit_code=ended.exit_code, duration_ms=round(ended.duration * 1000),
            output_size=ended.output_size, output_path=ended.output_path, traceback=ended.traceback,
            cpu_seconds=ended.cpu_seconds, peak_memory_bytes=ended.peak_memory_bytes, left_behind=ended.left_behind,
        )  # fmt: skip
    kernel.turn.extra.append(row)


def _succeeded(task: TaskActor, ended: CallEnded) -> None:
    journal(task, ended, end="succeeded")
    if task.spec.tool is not None:
        task.tell_breaker(SUCCEED)
    record, duration = task.record, ended.duration
    metadata: dict[str, Any] = {"duration_seconds": round(duration, 3), "retry_count": record.failed_attempts}
    if ended.cpu_seconds is not None or ended.left_behind:
        metadata |= _used(ended)
    changed = replace(
        record, raw_result=ended.value, execution_ms=round(duration * 1000), ended_at=task.kernel.at,
        claimed_at=None, limit=None, produced=produced_by(ended),
        trouble=None if record.trouble is None else unrepeated(record.trouble), circuit_state="closed",
    )  # fmt: skip
    task.fire(SUCCEED, changed, metadata=metadata)


def begin_anew(task: TaskActor, ended: CallEnded) -> None:
    """Begin the next round of the body, with an empty history and the arguments that it returned."""
    kernel, record = task.kernel, task.record
    slot = kernel.slots.get(record.token)
    worker = None if slot is None else kernel.workers.get(slot.worker)
    stays = (
        worker is not None and worker.record.state in TAKING and task.spec.tool is None
        and kernel.drain_began is None and task.stream.lets_start(task)
    )  # fmt: skip
    kernel.turn.rounds.append(EndedRound(record.key if stays else 0, record.flow, kernel.key))
    if task.asks is not None:
        task.asks.end("has begun anew")
    changed = replace(
        record, anew=Anew(record.rounds + 1, ended.value), flow=0, failed_attempts=0, lost_attempts=0, granted=0,
        deferrals=0, trouble=None, raw_details=None, raw_checkpoint=None, process=None, limit=None,
        first_queued_at=kernel.at, execution_ms=round(ended.duration * 1000),
        produced=produced_by(ended, record.output_path), ended_at=kernel.at,
    )  # fmt: skip
    if task.spec.tool is not None:
        task.tell_breaker(SUCCEED)
    if not stays:
        journal(task, ended, end="succeeded")
        changed = replace(changed, worker=None, worker_id=None, claimed_at=None, probe=False, queued_at=kernel.at)
        task.fire(REQUEUE, changed, reason=f"round {changed.rounds + 1}", metadata=_used(ended) or None)
        return
    token = kernel.begin_again(record.token)
    kernel.turn.before.setdefault(task, record)
    task.record = replace(changed, token=token, claimed_at=kernel.at)
    began = kernel.port.monotonic()
    task.clock = AttemptClock(began, began)
    task.clock.set(task)
    journal(task)


def fail(task: TaskActor, ended: CallEnded, *, end: str) -> None:
    """Handle a bad end of an attempt: retry the task, park it, or end it."""
    if end == "failed" and _asks_for_later(task, ended):
        _deferred(task, ended)
        return
    if end == "failed" and ended.category in PASSES:
        end = _passing(task, ended)
    record, now = task.record, task.kernel.at
    lost = end in LOSSES
    error, kind = ended.error or ended.status, ended.error_type
    if end == "timed_out":
        kind = "timed_out"
        error = f"the {record.limit} limit was reached" + (f": {ended.error}" if ended.error else "")
    journal(task, ended, end=end, error=error)
    counts = not lost and kind != INTERNAL and (task.spec.tool is None or _counts(task, kind, ended))
    task.tell_breaker(FAIL if counts else "returned")
    if record.probe and not counts and not lost:  # the end says nothing about the tool: the task is no probe any more
        task.change(probe=False)
        record = task.record
    same = kind == present_name(record.error_type) and _shape(error) == _shape(record.last_error or "")
    repeats = record.error_repeats + 1 if same else 1
    allowed = task.limits.max_error_repeats
    permanent = ended.permanent or (end == "timed_out" and record.limit == "total")
    failure = Failure(lost, permanent, allowed is not None and repeats > allowed)
    final = ended.permanent or failure.repeated or (lost and record.on_loss != "rerun")
    failed, losses = record.failed_attempts + (not lost), record.lost_attempts + lost
    metadata: dict[str, Any] = {
        "end": end, "failed_attempts": failed, "lost_attempts": losses, "granted": record.granted, **_used(ended),
    }  # fmt: skip
    if ended.traceback is not None:
        metadata["traceback"] = ended.traceback
    row = TASK.transition(record.state, FAIL, record, failure)
    due = parked = None
    if row.target == S.RETRYING:
        port = task.kernel.port
        wait = _rest(task, end, losses)
        if not lost:
            retry = task.limits.retry
            wait = delay(retry, failed, port.random, ended.retry_after, port.resolve, tell=task.wait_failed)
        due = now + wait
        metadata["retry_at"] = iso(due)
    elif row.target == S.CIRCUIT_OPEN:
        exhausted = LOST if lost and record.on_loss == "park" else EXHAUSTED
        parked = metadata["parked"] = exhausted if row.guard is parks_when_exhausted else TOOL
    changed = replace(
        record, failed_attempts=failed, lost_attempts=losses,
        trouble=Trouble(
            error=error, type=kind, category=ended.category, count=record.error_count + 1, repeats=repeats
        ),
        produced=produced_by(ended, record.output_path), execution_ms=round(ended.duration * 1000), ended_at=now,
        queued_at=now, claimed_at=None, worker=None, worker_id=None, parked=parked,
        limit=record.limit if end == "timed_out" else None, final=final,
    )  # fmt: skip
    task.fire(FAIL, changed, failure, reason=error, metadata=metadata, due_at=due)


def _passing(task: TaskActor, ended: CallEnded) -> str:
    """Grant another attempt after a transient error or a lack of resources. Returns the attempt's end."""
    record, limits = task.record, task.limits
    if ended.category != "resources":
        if record.flow:  # the steps have retries of their own, which a retry of the task would multiply
            return "failed"
        if limits.tries_passing and record.failed_attempts + 1 < PASSING_ATTEMPTS and not ended.permanent:
            task.change(granted=record.granted + 1)
        return "failed"
    worker = task.kernel.workers.get(record.worker or 0)
    if worker is not None:
        task.kernel.send(worker, Exhausted(ended.error or ended.status))
    return EXHAUSTED if ran_short(task, ended) else "failed"


def _rest(task: TaskActor, end: str, losses: int) -> float:
    """Seconds before the task runs again after a loss. After a lack of resources it waits, so that other tasks can end
    and free resources; after other losses it does not wait.
    """
    return task.stream.workforce.health.cooldown * 2 ** min(losses - 1, DOUBLED) if end == EXHAUSTED else 0.0


def _counts(task: TaskActor, kind: str | None, ended: CallEnded) -> bool:
    """Whether the breaker counts this failure: `ignore` contains none of its error types and categories.

    A group of errors counts if at least one of its errors does.
    """
    return task.breaker is None or counts_for(task.breaker.record, kind, ended)


def counts_for(breaker: BreakerRecord, kind: str | None, ended: CallEnded) -> bool:
    """`_counts`, for the breaker with this record."""
    ignored = frozenset(map(present_name, breaker.ignore))
    if not ignored.isdisjoint({kind, ended.category, *ended.kinds}):
        return False
    leaves = ended.leaves if kind == ended.error_type else ()  # after a reached limit, the limit is the only error
    return not leaves or any(ignored.isdisjoint(leaf) for leaf in leaves)


def _asks_for_later(task: TaskActor, ended: CallEnded) -> bool:
    """Whether the body raised only `RetryAfter`, and may be deferred once more."""
    return asks_for_later(ended) and task.record.deferrals < task.limits.retry.max_deferrals


def asks_for_later(ended: CallEnded) -> bool:
    """Whether a function raised only `RetryAfter`."""
    return ended.retry_after is not None and ended.category in {None, "transient"} and not ended.permanent


def ran_short(task: TaskActor, ended: CallEnded) -> bool:
    """Whether a function ran out of resources: then its worker is treated as the cause."""
    return ended.category == "resources" and task.limits.allowed.on_loss == "rerun"


def _deferred(task: TaskActor, ended: CallEnded) -> None:
    """Defer the task to the time that the body named; no other task of its tool starts before that."""
    record, now = task.record, task.kernel.at
    due = now + min(ended.retry_after or 0.0, LONGEST_ASKED)
    journal(task, ended, end="deferred")
    task.tell_breaker("returned")
    if (breaker := task.breaker) is not None:
        task.kernel.send(breaker, RestTool(due))
    changed = replace(
        record, deferrals=record.deferrals + 1, probe=False, execution_ms=round(ended.duration * 1000),
        ended_at=now, queued_at=now, claimed_at=None, worker=None, worker_id=None, parked=None, limit=None,
    )  # fmt: skip
    metadata = {"end": "deferred", "deferrals": changed.deferrals, "retry_at": iso(due), **_used(ended)}
    task.change(probe=False)
    task.fire(FAIL, changed, Failure(deferred=True), reason=f"deferred: {ended.error}", metadata=metadata, due_at=due)


def rest(task: TaskActor, reason: str | None = None) -> None:
    """Let the attempt wait without a body, if its engine has none any more. Give it back if the wait is over."""
    wait = task.record.durable_wait
    assert wait is not None  # noqa: S101 - as `may_rest` says
    if task.record.state == RECOVERING:
        task.fire(START, reason=reason)
    if task.record.token in task.kernel.calls:  # its engine reports its end next
        return
    if is_over(task, wait):
        wake(task)
    elif not task.kernel.draining:
        listen(task, wait)


def wake(task: TaskActor, _: WaitOver | None = None) -> None:
    """Queue the task: what its attempt has waited for without a body has come."""
    if rests(task):
        give_back(task, reason="its wait is over")


def due_resting(task: TaskActor) -> None:
    """Queue the task: the time for which its attempt has waited is over. Or time it out."""
    total = task.total_due()
    if total is not None and total - task.kernel.at <= EARLY:
        task.fire(TIME_OUT, replace(task.record, limit="total"), reason="the total limit was reached")
    else:
        wake(task)


def lose(task: TaskActor, reason: str, stopped: CallEnded | None = None) -> None:
    """End the present attempt as lost, unless it only waits. stopped: the end of its body, if that is known."""
    if may_rest(task):
        rest(task, reason)
        return
    ended = CallEnded(task.record.token, "lost", error=reason, error_type=WORKER_LOST, category="transient")
    fail(task, ended if stopped is None else _with_use_of(stopped, ended), end="lost")


def give_back(task: TaskActor, stopped: CallEnded | None = None, *, reason: str = "drained") -> None:
    """Give back an attempt that a drain stopped, or that has waited without a body: it is not counted, unless `on_loss`
    forbids to run the body again. stopped: the end of its body, if that is known.
    """
    if task.record.on_loss != "rerun":
        lose(task, "drained", stopped)
        return
    used = None
    if stopped is not None:  # how it was stopped is no error of the attempt
        used = _used(stopped) or None
        stopped = _with_use_of(stopped, CallEnded(stopped.token, stopped.status, duration=stopped.duration))
    journal(task, stopped, end="returned")
    task.tell_breaker("returned")
    changed = replace(
        task.record, worker=None, worker_id=None, claimed_at=None, limit=None, probe=False, queued_at=task.kernel.at
    )
    task.fire(REQUEUE, changed, reason=reason, metadata=used)


def drain(task: TaskActor, message: Drain) -> None:
    """Journal that the runtime drains the attempt; with `stop`, stop its body to give the attempt back.

    The runtime does not wait for a worker that does not answer.
    """
    if task.record.state == RECOVERING:
        if message.stop:
            task.kernel.stop_call(task.record.token, force=True)
    elif task.record.state != RUNNING:
        return
    elif message.stop:
        task.kernel.stop_call(task.record.token)
    elif task.record.durable_wait is None:
        journal(task)


# -- limits of a running attempt ---------------------------------------------------------------------------------------


def due_running(task: TaskActor) -> None:
    """Time the attempt out, if its nearest limit is really reached."""
    clock, record = task.clock, task.record
    if stands_still(task):
        task.fire(TIME_OUT, replace(record, limit="total"), reason="the total limit was reached")
        return
    now = task.kernel.port.monotonic()
    left, limit = clock.left(task, record.token, now)
    if left > EARLY:  # the body has sent a heartbeat since the timer was armed
        clock.expected = now + left
        task.wait_until(task.kernel.at + left)
        return
    task.fire(TIME_OUT, replace(record, limit=limit), reason=f"the {limit} limit was reached")


def entered_timed_out(task: TaskActor) -> None:
    """Tell the body to stop, and wait for its end until the grace is over."""
    if task.record.token not in task.kernel.calls:  # the attempt has waited without a body
        fail(task, CallEnded(task.record.token, "gone"), end="timed_out")
        return
    task.kernel.effect(StopCall(task.record.token))
    task.wait_until(task.kernel.at + task.limits.kill_grace + STOP_MARGIN)


def due_timed_out(task: TaskActor) -> None:
    """Abandon a body that did not stop. Its slot is free when the engine has abandoned it, too."""
    token = task.record.token
    if still_to_be_told(task, token, task.limits.kill_grace + STOP_MARGIN):
        return
    task.kernel.stop_call(token, force=True)
    fail(task, CallEnded(token, "abandoned", error="the body did not stop and was abandoned"), end="timed_out")


# -- silent workers ----------------------------------------------------------------------------------------------------


def silent(task: TaskActor, message: WorkerSilent) -> None:
    """Put the task into `recovering`: the attempt's worker does not answer."""
    if task.record.state == RUNNING and task.record.token == message.token:
        due = task.kernel.at + task.limits.recovery_timeout
        task.fire(Event.RECOVER, reason=message.reason, due_at=due)


def back(task: TaskActor, message: WorkerBack) -> None:
    """Continue the attempt: its worker answers again, and still runs it."""
    if task.record.state == RECOVERING and task.record.token == message.token:
        _go_on(task, "its worker answers again")


def _go_on(task: TaskActor, reason: str) -> None:
    """Return from `recovering` to `running` with the same attempt."""
    clock = task.clock
    clock.beat_at = task.kernel.port.monotonic()
    due, limit = clock.due(task, clock.beat_at)
    clock.expected = clock.beat_at + (0.0 if due is None else due - task.kernel.at)
    task.fire(START, replace(task.record, limit=limit), reason=reason, due_at=due)


def _heard_of(task: TaskActor, ended: CallEnded) -> None:
    """Receive the attempt's end while its worker did not answer: a result, or the loss of the worker."""
    if ended.status in SAID:
        _go_on(task, "its worker delivered its result")
        body_ended(task, ended)
    elif may_rest(task):
        rest(task, ended.error)
    else:
        fail(task, ended, end="lost")


def due_recovering(task: TaskActor) -> None:
    """Lose the attempt of a worker that did not answer in time; wait longer if the runtime itself was suspended."""
    kernel, record = task.kernel, task.record
    health = task.stream.workforce.health
    if health.stood_still(kernel.at - (record.due_at or kernel.at)):
        task.wait_until(kernel.at + health.grace)
        return
    lose(task, f"worker {record.worker_id} did not answer for {task.limits.recovery_timeout:g} s more")
    kernel.stop_call(record.token, force=True)  # the slot is free when the engine has abandoned the body


# -- facts about an end ------------------------------------------------------------------------------------------------


def _was_killed(ended: CallEnded) -> bool:
    """Whether the worker died or a signal ended the command. A service manager stops all processes so."""
    code = ended.exit_code or 0
    return ended.status == "lost" or -code in STOP_SIGNALS or code - 128 in STOP_SIGNALS  # a shell reports 128 + signal


def _shape(error: str) -> str:
    """An error's text with numbers, addresses and paths masked, so that a repeated error is recognized."""
    return re.sub(_DIGITS, "#", error)


def produced_by(ended: CallEnded, path: str | None = None) -> Produced | None:
    """The exit code, output file and used resources of a body. path: the output file if this body left none."""
    path = ended.output_path or path
    used = ended.cpu_seconds is not None or ended.peak_memory_bytes is not None
    if path is None and ended.exit_code is None and ended.output_size is None and not used:
        return None
    return Produced(
        exit_code=ended.exit_code, path=path, size=ended.output_size, cpu_seconds=ended.cpu_seconds,
        peak_memory_bytes=ended.peak_memory_bytes,
    )  # fmt: skip


def _used(ended: CallEnded) -> dict[str, Any]:
    """The known resource use and leftovers of an attempt, as metadata of its transition."""
    cpu, peak = ended.cpu_seconds, ended.peak_memory_bytes
    usage: dict[str, Any] = {} if cpu is None else {"cpu_seconds": round(cpu, 6)}
    if peak is not None:
        usage["peak_memory_bytes"] = peak
    if ended.left_behind:
        usage["left_behind"] = list(ended.left_behind)
    return usage


def _with_use_of(body: CallEnded, ended: CallEnded) -> CallEnded:
    """An end with what the body used and left behind."""
    return replace(
        ended, cpu_seconds=body.cpu_seconds, peak_memory_bytes=body.peak_memory_bytes, left_behind=body.left_behind
    )


def unrepeated(trouble: Trouble | None) -> Trouble | None:
    """The task's trouble with its count of repeats set to 0: after a success, the same error counts as new."""
    return None if trouble is None else replace(trouble, repeats=0)


def _with_detail(trouble: Trouble | None, ended: CallEnded) -> Trouble | None:
    """The task's trouble with the error that a body reported while it was stopped. The error is not counted."""
    if ended.error is None and ended.error_type is None:
        return trouble
    earlier = trouble or NO_TROUBLE
    return replace(earlier, error=ended.error or earlier.error, type=ended.error_type or earlier.type)
