"""The attempts of a task: claiming one, its limits while it runs, and what its end leads to.

Rules
-----
- An attempt is a call of an engine under a fencing token that is its alone. What comes back under an older token frees
  the slot it held and changes nothing else.
- Two budgets are counted when an attempt ends: failed ones and lost ones. Whether there is another attempt is decided
  by the machine's guards; the delay before it is drawn once, and its due time is journaled.
- A body that raises `RetryAfter` is deferred: that is neither a failure nor a try, up to `max_deferrals` times; the
  next one counts as any other failure. No task of its tool starts before the time that it named.
- The nearest of its limits is armed: the attempt's, the one between heartbeats, the one over all attempts. The record
  says which it was. A body that was stopped gets `kill_grace` seconds, then it is abandoned.
- Its clock begins when its body does: once its start is durable, however long the journal takes.
- Where a timer comes late, it was the runtime that stood still (SIGSTOP, a blocked loop): what ended or beat meanwhile
  may be there unread. That time does not count, and what is there is read first. How late is told by the clock that
  nobody sets, as all limits are but the one over all attempts.
- A stop that the runtime was told of is neither a failure nor a loss: when a drain begins, the row of each running
  attempt says so, so that one which is killed before the drain ends is given back at the next start, too.
- Its slot is free when the body is gone and nothing of it is left to validate, whatever state the task is in by then.
- Every attempt has its row: as claimed, with its process once that is known, and as over.

Silence
-------
- The attempt stays the same, with its number, its token and its slot, until it is known to be lost.
- A worker that comes back and runs it still lets it go on; so does a result that it brings along. Its limits go on from
  where they were, and the time between heartbeats begins anew.
- Silence ends in a loss after the recovery timeout, a known death at once: each attempt is lost once, however often it
  is found dead. A late result of a lost attempt is refused.

Errors that pass (seed 002, "error recovery")
---------------------------------------------
- A transient error (a broken connection, a timeout of the network) of a task that says nothing about retries has three
  attempts in all. DESIGN section 4 lets a task retry failures only when it says so; but a task runs again after a loss
  unless it says `on_loss`, so one that says neither may run twice, and a connection that breaks is no more its fault
  than a worker that dies. `retry=Retry(max_attempts=1)` or `on_loss="fail"` keeps it to one. The further attempts are
  `granted` one by one, so that another error of the same task is final. Where it has a tool, the tool's breaker and its
  `retry` decide.
- Resources that ran out (memory, disk, descriptors) in a body are the worker's trouble: it pauses, and the attempt
  counts as a loss and not as a failure, so that a task which eats up everything is not run for ever. Other workers may
  have no more of them: so the task rests as long, too, and twice as long after each further loss. One that must not run
  twice (`on_loss`) fails by it as by any error. Where there is too little to start it, its start waits.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ...machines import TASK, Event, TaskState
from ...machines.builtin.task import parks_when_exhausted
from ..kernel.transaction import Call, StopCall
from ..messages.inputs import (
    Assign,
    Back,
    Beat,
    CallEnded,
    Drain,
    Exhausted,
    ProcessStarted,
    Release,
    Rest,
    Silent,
    Started,
)  # fmt: skip
from ..records.task import NO_TROUBLE, AttemptRecord, Process, Produced, Trouble
from ..records.transition import iso
from ..spec.backoff import LONGEST_ASKED, delay
from ..spec.error_names import present_name
from ..spec.limits import PASSING_ATTEMPTS
from ..workers.scheduler import IN_QUEUE
from .attempt_clock import RECOVERING, RUNNING, AttemptClock
from .cancelling import hooks_run
from .checks import EARLY, SAID, still_to_be_told

if TYPE_CHECKING:
    from .task import TaskActor

S = TaskState
TIMED_OUT, VALIDATING, CANCELLING = S.TIMED_OUT, S.VALIDATING, S.CANCELLING
START, SUCCEED, FAIL, TIME_OUT, REQUEUE = Event.START, Event.SUCCEED, Event.FAIL, Event.TIME_OUT, Event.REQUEUE
LOSSES = frozenset({"lost", "exhausted"})
"""The ends of an attempt that are no fault of its body's."""
PASSES = frozenset({"transient", "resources"})
"""The categories of errors that may pass by themselves."""
WORKER_LOST = "worker_lost"
"""The `error_type` of an attempt whose worker died, or did not come back."""
INTERNAL = "internal_error"
"""The `error_type` of a task whose own actor failed."""
TOOL, EXHAUSTED, LOST = "tool", "exhausted", "lost"
"""Why a task is parked (`record.parked`); the second is how an attempt ended, too, that ran out of something."""
DOUBLED = 5
"""How often the rest of an exhausted task is doubled at most."""
BEATS = frozenset({RUNNING, TIMED_OUT, CANCELLING})
"""The states in which a body may still say how far it is: also when it has been told to stop."""
STOP_SIGNALS = frozenset({1, 2, 9, 15})
"""HUP, INT, KILL, TERM: what a service manager sends to every process of a service that it stops."""
STOP_MARGIN = 1.0
"""Seconds that an engine has beyond the kill grace to say that the body is gone."""
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+|(?:/[^\s:'\"]+)+")


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt ended badly, as the guards of `fail` ask it."""

    lost: bool = False
    permanent: bool = False
    repeated: bool = False
    deferred: bool = False


# -- beginning ---------------------------------------------------------------------------------------------------------


def assign(task: TaskActor, message: Assign) -> None:
    """A worker took it: start the attempt, unless it was stopped, or its tool fell ill, meanwhile."""
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
    clock = task.clock = AttemptClock(task, token, asked)
    left, limit = clock.left(asked)
    clock.expected = asked + left
    changed = replace(
        record, attempt=record.attempt + 1, token=token, worker=worker.key, worker_id=worker.id, claimed_at=now,
        started_at=record.started_at or now, limit=limit, parked=None, checked=0, test_results=(),
        probe=record.parked == TOOL and breaker is not None and breaker.record.probe == record.key,
        process=None, generation=0 if breaker is None else breaker.record.generation,
    )  # fmt: skip
    if task.spec.tool is not None:
        kernel.count_invocation(task.spec.tool)
    task.fire(START, changed, due_at=now + left)


def entered_running(task: TaskActor) -> None:
    """An attempt runs: claim it durably. The nearest of its limits is armed."""
    journal(task)
    if not task.stream.started:
        task.kernel.send(task.stream, Started(task.record.key))


def beat(task: TaskActor, message: Beat) -> None:
    """The body is alive, and may have said how far it is."""
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
    """A body that is over for us says that it runs: have it killed, unless it is being stopped already."""
    task.kernel.stale += 1
    if not task.holds(token):
        task.kernel.stop_call(token, force=True)


def process_started(task: TaskActor, message: ProcessStarted) -> None:
    """Keep the process's identity, so that one which outlives a crash can be found and killed."""
    if message.token == task.record.token and task.record.claimed_at is not None:
        task.change(process=Process(message.pid, message.started))
        journal(task)


# -- ending ------------------------------------------------------------------------------------------------------------


def body_ended(task: TaskActor, ended: CallEnded) -> None:
    """A body is over: that of the present attempt, or of one before."""
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
        if record.claimed_at is not None:  # else its end was journaled when the body was abandoned, or lost
            journal(task, ended, end="cancelled")
        elif ended.status in SAID and record.error_type == WORKER_LOST:
            _refuse(task, ended)
        if state == CANCELLING and not hooks_run(task):
            _tell_partial(task, ended)
            task.change(claimed_at=None, trouble=_with_detail(record.trouble, ended), produced=produced_by(ended))
            task.stopped()
    if task.record.state != VALIDATING:
        task.validated()


def _ended_badly(task: TaskActor, ended: CallEnded) -> None:
    """A running body did not return."""
    if task.kernel.drain_began is not None and _was_killed(ended):
        give_back(task)
    elif ended.status in SAID:
        fail(task, ended, end="failed")
    elif ended.status == "lost":  # its worker is known to be dead: nobody can come back for it
        task.fire(Event.RECOVER, reason=ended.error)
        fail(task, ended, end="lost")
    elif task.kernel.draining:
        give_back(task)
    else:  # whoever ran it stopped it, unasked
        fail(task, ended, end="lost")


def _refuse(task: TaskActor, ended: CallEnded) -> None:
    """It is the end of an attempt that was given up before."""
    task.kernel.stale += 1
    text = f"an end ({ended.status}) of {task.record.id} under fencing token {ended.token} is stale: refused"
    task.kernel.notice("stale_message", "warning", text, task, message="CallEnded", token=ended.token)


def _tell_partial(task: TaskActor, ended: CallEnded) -> None:
    """What the command had written when it was stopped is kept."""
    path, size = ended.output_path, ended.output_size
    if path is not None and size:
        text = f"{task.record.id} was stopped: the {size} bytes that it had written are in {path}"
        task.kernel.notice("partial_output_saved", "info", text, task, path=path, size=size)


def tell_abandoned(task: TaskActor, token: int, slot: Call) -> None:
    """Its engine has given a body up that did not stop; the worker's place is free for others."""
    record, worker = task.record, task.kernel.workers.get(slot.worker)
    what = f"attempt {record.attempt}" if token == record.token else "an earlier attempt"
    where = "a worker that is gone" if worker is None else worker.record.id
    text = f"{what} of {record.id} did not stop on {where} and was abandoned: its place is given to others"
    facts = {"attempt": record.attempt, "worker": None if worker is None else worker.record.id}
    task.kernel.notice("body_abandoned", "warning", text, task, **facts)


def journal(
    task: TaskActor, ended: CallEnded | None = None, *, end: str | None = None, error: str | None = None
) -> None:
    """Write the row of the present attempt, as claimed or (with `end`) as over."""
    record = task.record
    pid = started = None
    if record.process is not None:
        pid, started = record.process.pid, record.process.started
    row = AttemptRecord(
        key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
        tool=task.spec.tool,
        claimed_at=record.claimed_at or record.updated_at, pid=pid, process_started=started,
        end=end, ended_at=None if end is None else task.kernel.at, error=error,
        drained_at=task.kernel.drain_began if end is None else None,
    ) if ended is None else AttemptRecord(
        key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
        tool=task.spec.tool,
        claimed_at=record.claimed_at or record.updated_at, pid=pid, process_started=started,
        end=end, ended_at=task.kernel.at, error=error or ended.error, exit_code=ended.exit_code,
        duration_ms=round(ended.duration * 1000), output_size=ended.output_size, output_path=ended.output_path,
        traceback=ended.traceback, cpu_seconds=ended.cpu_seconds, peak_memory_bytes=ended.peak_memory_bytes,
        left_behind=ended.left_behind,
    )  # fmt: skip
    task.kernel.turn.extra.append(row)


def _succeeded(task: TaskActor, ended: CallEnded) -> None:
    journal(task, ended, end="succeeded")
    if task.spec.tool is not None:
        task.tell_breaker(SUCCEED)
    record, duration = task.record, ended.duration
    told: dict[str, Any] = {"duration_seconds": round(duration, 3), "retry_count": record.failed_attempts}
    if ended.cpu_seconds is not None or ended.left_behind:
        told |= _used(ended)
    changed = replace(
        record, raw_result=ended.value, execution_ms=round(duration * 1000), ended_at=task.kernel.at,
        claimed_at=None, limit=None, produced=produced_by(ended),
        trouble=None if record.trouble is None else unrepeated(record.trouble), circuit_state="closed",
    )  # fmt: skip
    task.fire(SUCCEED, changed, metadata=told)


def fail(task: TaskActor, ended: CallEnded, *, end: str) -> None:
    """Decide what a bad end leads to: another attempt, the parking place, or the end."""
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
    if record.probe and not counts and not lost:  # it says nothing about the tool: it waits as any other does
        task.change(probe=False)
        record = task.record
    same = kind == present_name(record.error_type) and _shape(error) == _shape(record.last_error or "")
    repeats = record.error_repeats + 1 if same else 1
    allowed = task.limits.max_error_repeats
    permanent = ended.permanent or (end == "timed_out" and record.limit == "total")
    failure = Failure(lost, permanent, allowed is not None and repeats > allowed)
    final = ended.permanent or failure.repeated or (lost and record.on_loss != "rerun")
    failed, losses = record.failed_attempts + (not lost), record.lost_attempts + lost
    told: dict[str, Any] = {
        "end": end, "failed_attempts": failed, "lost_attempts": losses, "granted": record.granted, **_used(ended),
    }  # fmt: skip
    if ended.traceback is not None:
        told["traceback"] = ended.traceback
    row = TASK.transition(record.state, FAIL, record, failure)
    due = parked = None
    if row.target == S.RETRYING:
        port = task.kernel.port
        wait = _rest(task, end, losses)
        if not lost:
            retry = task.limits.retry
            wait = delay(retry, failed, port.random, ended.retry_after, port.resolve, tell=task.wait_failed)
        due = now + wait
        told["retry_at"] = iso(due)
    elif row.target == S.CIRCUIT_OPEN:
        exhausted = LOST if lost and record.on_loss == "park" else EXHAUSTED
        parked = told["parked"] = exhausted if row.guard is parks_when_exhausted else TOOL
    changed = replace(
        record, failed_attempts=failed, lost_attempts=losses,
        trouble=Trouble(
            error=error, type=kind, category=ended.category, count=record.error_count + 1, repeats=repeats
        ),
        produced=produced_by(ended, record.output_path), execution_ms=round(ended.duration * 1000), ended_at=now,
        queued_at=now, claimed_at=None, worker=None, worker_id=None, parked=parked,
        limit=record.limit if end == "timed_out" else None, final=final,
    )  # fmt: skip
    task.fire(FAIL, changed, failure, reason=error, metadata=told, due_at=due)


def _passing(task: TaskActor, ended: CallEnded) -> str:
    """An error that may pass, or resources that ran out: it may run once more. Returns how the attempt ended."""
    record, limits = task.record, task.limits
    if ended.category != "resources":
        if limits.tries_passing and record.failed_attempts + 1 < PASSING_ATTEMPTS and not ended.permanent:
            task.change(granted=record.granted + 1)
        return "failed"
    worker = task.kernel.workers.get(record.worker or 0)
    if worker is not None:
        task.kernel.send(worker, Exhausted(ended.error or ended.status))
    return EXHAUSTED if limits.allowed.on_loss == "rerun" else "failed"


def _rest(task: TaskActor, end: str, losses: int) -> float:
    """Seconds before it is run again after that loss. Where it ran out of something, somebody else is to end first;
    after other losses it need not wait.
    """
    return task.kernel.supervisor.health.cooldown * 2 ** min(losses - 1, DOUBLED) if end == EXHAUSTED else 0.0


def _counts(task: TaskActor, kind: str | None, ended: CallEnded) -> bool:
    """Whether a failure of that type says something about its tool: `ignore` names none of what it is.

    Of several errors, whether one of them does.
    """
    breaker = task.breaker
    if breaker is None:
        return True
    ignored = frozenset(map(present_name, breaker.record.ignore))
    if not ignored.isdisjoint({kind, ended.category, *ended.kinds}):
        return False
    leaves = ended.leaves if kind == ended.error_type else ()  # a limit that was reached is the only error
    return not leaves or any(ignored.isdisjoint(leaf) for leaf in leaves)


def _asks_for_later(task: TaskActor, ended: CallEnded) -> bool:
    """Whether the body raised `RetryAfter` and nothing else, and may be put off once more."""
    asked = ended.retry_after is not None and ended.category in {None, "transient"} and not ended.permanent
    return asked and task.record.deferrals < task.limits.retry.max_deferrals


def _deferred(task: TaskActor, ended: CallEnded) -> None:
    """Run it again when the body said, and keep its tool's other tasks from starting before that."""
    record, now = task.record, task.kernel.at
    due = now + min(ended.retry_after or 0.0, LONGEST_ASKED)
    journal(task, ended, end="deferred")
    task.tell_breaker("returned")
    if (breaker := task.breaker) is not None:
        task.kernel.send(breaker, Rest(due))
    changed = replace(
        record, deferrals=record.deferrals + 1, probe=False, execution_ms=round(ended.duration * 1000),
        ended_at=now, queued_at=now, claimed_at=None, worker=None, worker_id=None, parked=None, limit=None,
    )  # fmt: skip
    told = {"end": "deferred", "deferrals": changed.deferrals, "retry_at": iso(due)}
    task.change(probe=False)
    task.fire(FAIL, changed, Failure(deferred=True), reason=f"deferred: {ended.error}", metadata=told, due_at=due)


def lose(task: TaskActor, reason: str) -> None:
    """The present attempt is lost."""
    ended = CallEnded(task.record.token, "lost", error=reason, error_type=WORKER_LOST, category="transient")
    fail(task, ended, end="lost")


def give_back(task: TaskActor) -> None:
    """A drain stopped the body: the try counts as nothing, unless the body must not simply run twice."""
    if task.record.on_loss != "rerun":
        lose(task, "drained")
        return
    journal(task, end="returned")
    task.tell_breaker("returned")
    changed = replace(
        task.record, worker=None, worker_id=None, claimed_at=None, limit=None, probe=False, queued_at=task.kernel.at
    )
    task.fire(REQUEUE, changed, reason="drained")


def drain(task: TaskActor, message: Drain) -> None:
    """The runtime stops: journal that the attempt is drained; with `stop`, give it back once its body has ended.

    Nobody waits for a worker that does not answer.
    """
    if task.record.state == RECOVERING:
        if message.stop:
            task.kernel.stop_call(task.record.token, force=True)
    elif task.record.state != RUNNING:
        return
    elif message.stop:
        task.kernel.effect(StopCall(task.record.token))
    else:
        journal(task)


# -- taking too long ---------------------------------------------------------------------------------------------------


def due_running(task: TaskActor) -> None:
    """The attempt took too long, or its body was silent for too long."""
    clock, record = task.clock, task.record
    if clock.stands_still:
        task.fire(TIME_OUT, replace(record, limit="total"), reason="the total limit was reached")
        return
    now = task.kernel.port.monotonic()
    left, limit = clock.left(now)
    if left > EARLY:  # it has sent a heartbeat since the timer was armed
        clock.expected = now + left
        task.wait_until(task.kernel.at + left)
        return
    task.fire(TIME_OUT, replace(record, limit=limit), reason=f"the {limit} limit was reached")


def entered_timed_out(task: TaskActor) -> None:
    """Stop the body, and give it the grace to be gone."""
    task.kernel.effect(StopCall(task.record.token))
    task.wait_until(task.kernel.at + task.limits.kill_grace + STOP_MARGIN)


def due_timed_out(task: TaskActor) -> None:
    """The body did not go: abandon it. Its slot is free when the engine has given it up, too."""
    token = task.record.token
    if still_to_be_told(task, token, task.limits.kill_grace + STOP_MARGIN):
        return
    task.kernel.stop_call(token, force=True)
    fail(task, CallEnded(token, "abandoned", error="the body did not stop and was abandoned"), end="timed_out")


# -- its worker is silent ----------------------------------------------------------------------------------------------


def silent(task: TaskActor, message: Silent) -> None:
    """Its worker does not answer."""
    if task.record.state == RUNNING and task.record.token == message.token:
        due = task.kernel.at + task.limits.recovery_timeout
        task.fire(Event.RECOVER, reason=message.reason, due_at=due)


def back(task: TaskActor, message: Back) -> None:
    """Its worker answers again, and runs it still."""
    if task.record.state == RECOVERING and task.record.token == message.token:
        _go_on(task, "its worker answers again")


def _go_on(task: TaskActor, reason: str) -> None:
    """The attempt was never gone."""
    clock = task.clock
    clock.beat_at = task.kernel.port.monotonic()
    due, limit = clock.due(clock.beat_at)
    clock.expected = clock.beat_at + (0.0 if due is None else due - task.kernel.at)
    task.fire(START, replace(task.record, limit=limit), reason=reason, due_at=due)


def _heard_of(task: TaskActor, ended: CallEnded) -> None:
    """What came of the attempt: the worker brings it along, or is known to be dead."""
    if ended.status in SAID:
        _go_on(task, "its worker brought what came of it")
        body_ended(task, ended)
    else:
        fail(task, ended, end="lost")


def due_recovering(task: TaskActor) -> None:
    """Its worker did not come back; unless it was the runtime itself that stood still."""
    kernel, record = task.kernel, task.record
    health = kernel.supervisor.health
    if health.stood_still(kernel.at - (record.due_at or kernel.at)):
        task.wait_until(kernel.at + health.grace)
        return
    lose(task, f"worker {record.worker_id} did not answer for {task.limits.recovery_timeout:g} s more")
    kernel.stop_call(record.token, force=True)  # its slot is free when the engine has given it up


# -- what is told of an end --------------------------------------------------------------------------------------------


def _was_killed(ended: CallEnded) -> bool:
    """Whether its worker has died, or a signal ended its command: as a stop of all processes of a service does."""
    code = ended.exit_code or 0
    return ended.status == "lost" or -code in STOP_SIGNALS or code - 128 in STOP_SIGNALS  # a shell's way to say it


def _shape(error: str) -> str:
    """An error's text with numbers, addresses and paths masked, so that the same error is known again."""
    return _DIGITS.sub("#", error)


def produced_by(ended: CallEnded, path: str | None = None) -> Produced | None:
    """What a body left behind; where it left no file, the one at `path` stays."""
    path = ended.output_path or path
    used = ended.cpu_seconds is not None or ended.peak_memory_bytes is not None
    if path is None and ended.exit_code is None and ended.output_size is None and not used:
        return None
    return Produced(
        exit_code=ended.exit_code, path=path, size=ended.output_size, cpu_seconds=ended.cpu_seconds,
        peak_memory_bytes=ended.peak_memory_bytes,
    )  # fmt: skip


def _used(ended: CallEnded) -> dict[str, Any]:
    """What an attempt used and left behind, as its transition tells it: what is known."""
    cpu, peak = ended.cpu_seconds, ended.peak_memory_bytes
    told: dict[str, Any] = {} if cpu is None else {"cpu_seconds": round(cpu, 6)}
    if peak is not None:
        told["peak_memory_bytes"] = peak
    if ended.left_behind:
        told["left_behind"] = list(ended.left_behind)
    return told


def unrepeated(trouble: Trouble | None) -> Trouble | None:
    """What went wrong before something went well: the same error would be the first of its row."""
    return None if trouble is None else replace(trouble, repeats=0)


def _with_detail(trouble: Trouble | None, ended: CallEnded) -> Trouble | None:
    """What a body said went wrong while it was stopped: a detail, not counted."""
    if ended.error is None and ended.error_type is None:
        return trouble
    known = trouble or NO_TROUBLE
    return replace(known, error=ended.error or known.error, type=ended.error_type or known.type)
