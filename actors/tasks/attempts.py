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
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import replace

from ...machines import TASK, Event, Machine, TaskState
from ...machines.builtin.task import parks_when_exhausted
from ..kernel.entity import Entity
from ..kernel.kernel import Kernel
from ..kernel.transaction import Call, StopCall
from ..messages.inputs import Assign, Beat, CallEnded, Drain, ProcessStarted, Release, Rest, Started, Verdict
from ..records.task import NO_TROUBLE, AttemptRecord, Process, Produced, TaskRecord, Trouble
from ..records.transition import iso
from ..spec.backoff import LONGEST_ASKED, delay
from ..spec.error_names import present_name
from ..spec.limits import Limits, effective
from ..spec.model import Task, Tool
from ..workers.scheduler import IN_QUEUE
from .cancelling import hooks_run
from .checks import SAID, still_to_be_told

if TYPE_CHECKING:
    from ..jobs.job import JobActor
    from ..jobs.workstream import WorkstreamActor
    from ..workers.breaker import BreakerActor
    from ..workers.queues import Lane
    from .approval import Asks
    from .slot_lending import Pause

S = TaskState
PENDING, QUEUED, RUNNING, VALIDATING, HALF_OPEN = S.PENDING, S.QUEUED, S.RUNNING, S.VALIDATING, S.HALF_OPEN
TIMED_OUT, CANCELLING = S.TIMED_OUT, S.CANCELLING
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
_PLAIN_TOOL = Tool()
_DIGITS = re.compile(r"0x[0-9a-fA-F]+|\d+|(?:/[^\s:'\"]+)+")


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why an attempt ended badly, as the guards of `fail` ask it."""

    lost: bool = False
    permanent: bool = False
    repeated: bool = False
    deferred: bool = False


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The payload of `trip`: the breaker lets the task through, or not."""

    permit: bool = False


class AttemptedTask(Entity[TaskRecord]):
    """A task as far as its attempts go; `TaskActor` is the whole of it."""

    __slots__ = (
        "asks", "beat_at", "began", "engine", "excused", "expected", "lane", "last_call", "limits", "pause", "spec",
        "stream", "ticket",
    )  # fmt: skip

    machine: ClassVar[Machine] = TASK

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
        self.last_call = 0  # token of the condition, check or hook that runs
        self.stream = stream
        self.spec = spec
        self.limits = limits
        self.engine = engine
        self.ticket = 0  # its place in the scheduler's heap; 0 when it is not in the queue
        self.lane: Lane | None = None  # where it waits when it is in the queue; the scheduler's
        self.began = self.beat_at = 0.0  # the present attempt, and the last sign of life of its body (monotonic)
        self.expected = 0.0  # when the timer of the running attempt should fire (monotonic)
        self.excused = 0.0  # seconds that do not count for the present attempt
        self.pause: Pause | None = None  # when its clock was stopped last for a child
        self.asks: Asks | None = None  # the approvals that its bodies have asked for

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """Its ids for the log."""
        record = self.record
        return record.job_id, record.workstream_id, record.attempt or None, record.worker_id

    @property
    def within(self) -> WorkstreamActor:
        """Its workstream."""
        return self.stream

    def wants(self, token: int) -> bool:
        """Whether what was to start under `token` should still start."""
        state = self.record.state
        return (token == self.record.token and state == RUNNING) or (
            token == self.last_call and state in {PENDING, VALIDATING, CANCELLING}
        )

    def holds(self, token: int) -> bool:
        """Whether the attempt under `token` is its present one, and may run."""
        record = self.record
        return token == record.token and record.worker is not None

    def job_over(self) -> JobActor | None:
        """Its job, if that is over but could not be let go yet."""
        job = self.stream.job
        return job if job.over else None

    @property
    def priority(self) -> int:
        """Its own and its workstream's."""
        return self.spec.priority + self.stream.spec.priority

    # -- the tool ----------------------------------------------------------------------------------------------------

    @property
    def tool(self) -> Tool:
        """The settings of its tool."""
        return effective(self.spec.tool, self.stream.spec.tools, self.kernel.tools) or _PLAIN_TOOL

    @property
    def breaker(self) -> BreakerActor | None:
        """The breaker of its tool, once there is one."""
        tool = self.spec.tool
        return None if tool is None else self.kernel.breakers.get(tool)

    def _tell_breaker(self, event: str) -> None:
        breaker, record = self.breaker, self.record
        if breaker is not None:
            self.kernel.send(breaker, Verdict(record.key, record.generation, event))

    def give_permit_on(self) -> None:
        """It waits for somebody, perhaps for hours: another task may probe the tool. How it ends still counts."""
        if self.record.probe:
            self.change(probe=False)
            self._tell_breaker("waits")

    @property
    def shut_out(self) -> bool:
        """Whether its tool's breaker keeps it from starting."""
        breaker = self.breaker
        return breaker is not None and not breaker.lets_start(self.record)

    def _trip(self, breaker: BreakerActor, queued_at: float | None = None, reason: str | None = None) -> None:
        reason = reason or f"tool {self.spec.tool!r} is not healthy"  # until when, its breaker knows: that changes
        changed = replace(self.record, parked=TOOL, queued_at=queued_at or self.record.queued_at, routable=True)
        self.fire(Event.TRIP, changed, Refusal(), reason=reason, metadata={"retry_in": round(breaker.retry_in(), 3)})

    def _counts(self, kind: str | None, ended: CallEnded) -> bool:
        """Whether a failure of that type says something about its tool: `ignore` names none of what it is.

        Of several errors, whether one of them does.
        """
        breaker = self.breaker
        if breaker is None:
            return True
        ignored = frozenset(map(present_name, breaker.record.ignore))
        if not ignored.isdisjoint({kind, ended.category, *ended.kinds}):
            return False
        leaves = ended.leaves if kind == ended.error_type else ()  # a limit that was reached is the only error
        return not leaves or any(ignored.isdisjoint(leaf) for leaf in leaves)

    # -- limits ------------------------------------------------------------------------------------------------------

    def _total_due(self) -> float | None:
        total = self.limits.total_timeout
        return None if total is None else (self.record.first_queued_at or self.kernel.at) + total

    def _left(self, now: float, stood: float = 0.0) -> tuple[float, str]:
        """Seconds until the nearest limit of the attempt, at `now` (monotonic: somebody may set the wall clock).

        stood: for how many its clock has stood still.
        """
        limits = self.limits
        began = self.began + self.kernel.late(self.record.token, now)
        left, limit = began + stood + limits.timeout - now, "attempt"
        if limits.heartbeat_timeout is not None:
            silent = max(self.beat_at, began) + limits.heartbeat_timeout - now
            if silent < left:
                left, limit = silent, "heartbeat"
        total = self._total_due()
        if total is not None and total - self.kernel.at < left:
            left, limit = total - self.kernel.at, "total"
        return left, limit

    # -- beginning ---------------------------------------------------------------------------------------------------

    def on_assign(self, message: Assign) -> None:
        """A worker took it: start the attempt, unless it was stopped, or its tool fell ill, meanwhile."""
        kernel, record = self.kernel, self.record
        self.ticket = 0
        breaker = None if self.spec.tool is None else self.breaker
        queued = record.state in IN_QUEUE
        ill = queued and breaker is not None and not breaker.lets_start(record)
        if not queued or ill or not self.stream.lets_start(self):
            kernel.send(kernel.workers[message.slot.worker], Release(record.key, message.slot))
            if ill and breaker is not None:
                self._trip(breaker)
            return
        worker = kernel.workers[message.slot.worker].record
        now = kernel.at
        self.excused = 0.0
        token = kernel.begin_call("body", record.key, slot=message.slot)
        self.began = self.beat_at = message.slot.asked
        left, limit = self._left(self.began)
        self.expected = self.began + left
        changed = replace(
            record, attempt=record.attempt + 1, token=token, worker=worker.key, worker_id=worker.id, claimed_at=now,
            started_at=record.started_at or now, limit=limit, parked=None, checked=0, test_results=(),
            probe=record.parked == TOOL and breaker is not None and breaker.record.probe == record.key,
            process=None, generation=0 if breaker is None else breaker.record.generation,
        )  # fmt: skip
        if self.spec.tool is not None:
            kernel.count_invocation(self.spec.tool)
        self.fire(START, changed, due_at=now + left)

    def entered_running(self) -> None:
        """An attempt runs: claim it durably. The nearest of its limits is armed."""
        self._journal_attempt()
        if not self.stream.started:
            self.kernel.send(self.stream, Started(self.record.key))

    def on_beat(self, message: Beat) -> None:
        """The body is alive, and may have said how far it is."""
        record = self.record
        says = message.details is not None or message.saved is not None
        wanted = record.state == RUNNING or (says and record.state in BEATS and record.claimed_at is not None)
        if message.token != record.token or not wanted:
            self._stale_beat(message.token)
            return
        self.beat_at = self.kernel.port.monotonic()
        if message.details is not None:
            self.change(raw_details=message.details)
        if message.saved is not None and self.limits.checkpoint:
            self.change(raw_checkpoint=message.saved)

    def _stale_beat(self, token: int) -> None:
        """A body that is over for us says that it runs: have it killed, unless it is being stopped already."""
        self.kernel.stale += 1
        if not self.holds(token):
            self.kernel.stop_call(token, force=True)

    def on_process_started(self, message: ProcessStarted) -> None:
        """Keep the process's identity, so that one which outlives a crash can be found and killed."""
        if message.token == self.record.token and self.record.claimed_at is not None:
            self.change(process=Process(message.pid, message.started))
            self._journal_attempt()

    # -- ending ------------------------------------------------------------------------------------------------------

    def _body_ended(self, ended: CallEnded) -> None:
        record = self.record
        if ended.token != record.token:
            self._refuse(ended)
            self.kernel.free_slot(ended.token)
            return
        state = record.state
        if state == RUNNING:
            if ended.status == "ok":
                self._succeeded(ended)
            else:
                self._ended_badly(ended)
        elif state == TIMED_OUT:
            self._tell_partial(ended)
            self._failed(ended, end="timed_out")
        elif state == S.RECOVERING:
            self.heard_of(ended)
        else:
            if record.claimed_at is not None:  # else its end was journaled when the body was abandoned, or lost
                self._journal_attempt(ended, end="cancelled")
            elif ended.status in SAID and record.error_type == WORKER_LOST:
                self._refuse(ended)
            if state == CANCELLING and not hooks_run(self):
                self._tell_partial(ended)
                self.change(claimed_at=None, trouble=_with_detail(record.trouble, ended), produced=produced_by(ended))
                self.stopped()
        if self.record.state != VALIDATING:
            self.validated()

    def _ended_badly(self, ended: CallEnded) -> None:
        """A running body did not return."""
        if self.kernel.drain_began is not None and _was_killed(ended):
            self._give_back()
        elif ended.status in SAID:
            self._failed(ended, end="failed")
        elif ended.status == "lost":  # its worker is known to be dead: nobody can come back for it
            self.fire(Event.RECOVER, reason=ended.error)
            self._failed(ended, end="lost")
        elif self.kernel.draining:
            self._give_back()
        else:  # whoever ran it stopped it, unasked
            self._failed(ended, end="lost")

    def _refuse(self, ended: CallEnded) -> None:
        """It is the end of an attempt that was given up before."""
        self.kernel.stale += 1
        text = f"an end ({ended.status}) of {self.record.id} under fencing token {ended.token} is stale: refused"
        self.kernel.notice("stale_message", "warning", text, self, message="CallEnded", token=ended.token)

    def stopped(self) -> None:
        """What ran is gone, or was abandoned."""
        raise NotImplementedError

    def heard_of(self, ended: CallEnded) -> None:
        """What came of an attempt whose worker did not answer."""
        raise NotImplementedError

    def passing(self, ended: CallEnded) -> str:
        """What failed may pass: see what that means. Returns how the attempt ended."""
        raise NotImplementedError

    def _rest(self, end: str, losses: int) -> float:
        """Seconds before it is run again after that loss. Where it ran out of something, somebody else is to end first;
        after other losses it need not wait.
        """
        return self.kernel.supervisor.health.cooldown * 2 ** min(losses - 1, DOUBLED) if end == EXHAUSTED else 0.0

    def _tell_partial(self, ended: CallEnded) -> None:
        """What the command had written when it was stopped is kept."""
        path, size = ended.output_path, ended.output_size
        if path is not None and size:
            text = f"{self.record.id} was stopped: the {size} bytes that it had written are in {path}"
            self.kernel.notice("partial_output_saved", "info", text, self, path=path, size=size)

    def tell_abandoned(self, token: int, slot: Call) -> None:
        """Its engine has given a body up that did not stop; the worker's place is free for others."""
        record, worker = self.record, self.kernel.workers.get(slot.worker)
        what = f"attempt {record.attempt}" if token == record.token else "an earlier attempt"
        where = "a worker that is gone" if worker is None else worker.record.id
        text = f"{what} of {record.id} did not stop on {where} and was abandoned: its place is given to others"
        facts = {"attempt": record.attempt, "worker": None if worker is None else worker.record.id}
        self.kernel.notice("body_abandoned", "warning", text, self, **facts)

    def validated(self) -> None:
        """The attempt is over: its worker may have another task."""
        self.kernel.free_slot(self.record.token)

    def _journal_attempt(
        self, ended: CallEnded | None = None, *, end: str | None = None, error: str | None = None
    ) -> None:
        """Write the row of the present attempt, as claimed or (with `end`) as over."""
        record = self.record
        pid = started = None
        if record.process is not None:
            pid, started = record.process.pid, record.process.started
        row = AttemptRecord(
            key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
            tool=self.spec.tool,
            claimed_at=record.claimed_at or record.updated_at, pid=pid, process_started=started,
            end=end, ended_at=None if end is None else self.kernel.at, error=error,
            drained_at=self.kernel.drain_began if end is None else None,
        ) if ended is None else AttemptRecord(
            key=record.token, task=record.key, task_id=record.id, attempt=record.attempt, worker_id=record.worker_id,
            tool=self.spec.tool,
            claimed_at=record.claimed_at or record.updated_at, pid=pid, process_started=started,
            end=end, ended_at=self.kernel.at, error=error or ended.error, exit_code=ended.exit_code,
            duration_ms=round(ended.duration * 1000), output_size=ended.output_size, output_path=ended.output_path,
            traceback=ended.traceback, cpu_seconds=ended.cpu_seconds, peak_memory_bytes=ended.peak_memory_bytes,
            left_behind=ended.left_behind,
        )  # fmt: skip
        self.kernel.turn.extra.append(row)

    def _succeeded(self, ended: CallEnded) -> None:
        self._journal_attempt(ended, end="succeeded")
        if self.spec.tool is not None:
            self._tell_breaker(SUCCEED)
        record, duration = self.record, ended.duration
        told: dict[str, Any] = {"duration_seconds": round(duration, 3), "retry_count": record.failed_attempts}
        if ended.cpu_seconds is not None or ended.left_behind:
            told |= _used(ended)
        changed = replace(
            record, raw_result=ended.value, execution_ms=round(duration * 1000), ended_at=self.kernel.at,
            claimed_at=None, limit=None, produced=produced_by(ended),
            trouble=None if record.trouble is None else unrepeated(record.trouble), circuit_state="closed",
        )  # fmt: skip
        self.fire(SUCCEED, changed, metadata=told)

    def _failed(self, ended: CallEnded, *, end: str) -> None:
        """Decide what a bad end leads to: another attempt, the parking place, or the end."""
        if end == "failed" and self._asks_for_later(ended):
            self._deferred(ended)
            return
        if end == "failed" and ended.category in PASSES:
            end = self.passing(ended)
        record, now = self.record, self.kernel.at
        lost = end in LOSSES
        error, kind = ended.error or ended.status, ended.error_type
        if end == "timed_out":
            kind = "timed_out"
            error = f"the {record.limit} limit was reached" + (f": {ended.error}" if ended.error else "")
        self._journal_attempt(ended, end=end, error=error)
        counts = not lost and kind != INTERNAL and (self.spec.tool is None or self._counts(kind, ended))
        self._tell_breaker(FAIL if counts else "returned")
        if record.probe and not counts and not lost:  # it says nothing about the tool: it waits as any other does
            self.change(probe=False)
            record = self.record
        same = kind == present_name(record.error_type) and _shape(error) == _shape(record.last_error or "")
        repeats = record.error_repeats + 1 if same else 1
        allowed = self.limits.max_error_repeats
        permanent = ended.permanent or (end == "timed_out" and record.limit == "total")
        failure = Failure(lost, permanent, allowed is not None and repeats > allowed)
        final = ended.permanent or failure.repeated or (lost and record.on_loss != "rerun")
        failed, losses = record.failed_attempts + (not lost), record.lost_attempts + lost
        told: dict[str, Any] = {
            "end": end, "failed_attempts": failed, "lost_attempts": losses, "granted": record.granted, **_used(ended),
        }  # fmt: skip
        if ended.traceback is not None:
            told["traceback"] = ended.traceback
        row = self.machine.transition(record.state, FAIL, record, failure)
        due = parked = None
        if row.target == S.RETRYING:
            port = self.kernel.port
            wait = self._rest(end, losses)
            if not lost:
                retry = self.limits.retry
                wait = delay(retry, failed, port.random, ended.retry_after, port.resolve, tell=self.wait_failed)
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
        self.fire(FAIL, changed, failure, reason=error, metadata=told, due_at=due)

    def _asks_for_later(self, ended: CallEnded) -> bool:
        """Whether the body raised `RetryAfter` and nothing else, and may be put off once more."""
        asked = ended.retry_after is not None and ended.category in {None, "transient"} and not ended.permanent
        return asked and self.record.deferrals < self.limits.retry.max_deferrals

    def _deferred(self, ended: CallEnded) -> None:
        """Run it again when the body said, and keep its tool's other tasks from starting before that."""
        record, now = self.record, self.kernel.at
        due = now + min(ended.retry_after or 0.0, LONGEST_ASKED)
        self._journal_attempt(ended, end="deferred")
        self._tell_breaker("returned")
        if (breaker := self.breaker) is not None:
            self.kernel.send(breaker, Rest(due))
        changed = replace(
            record, deferrals=record.deferrals + 1, probe=False, execution_ms=round(ended.duration * 1000),
            ended_at=now, queued_at=now, claimed_at=None, worker=None, worker_id=None, parked=None, limit=None,
        )  # fmt: skip
        told = {"end": "deferred", "deferrals": changed.deferrals, "retry_at": iso(due)}
        self.change(probe=False)
        self.fire(FAIL, changed, Failure(deferred=True), reason=f"deferred: {ended.error}", metadata=told, due_at=due)

    def _lost(self, reason: str) -> None:
        ended = CallEnded(self.record.token, "lost", error=reason, error_type=WORKER_LOST, category="transient")
        self._failed(ended, end="lost")

    def _give_back(self) -> None:
        """A drain stopped the body: the try counts as nothing, unless the body must not simply run twice."""
        if self.record.on_loss != "rerun":
            self._lost("drained")
            return
        self._journal_attempt(end="returned")
        self._tell_breaker("returned")
        changed = replace(
            self.record, worker=None, worker_id=None, claimed_at=None, limit=None, probe=False, queued_at=self.kernel.at
        )
        self.fire(REQUEUE, changed, reason="drained")

    def entered_timed_out(self) -> None:
        """Stop the body, and give it the grace to be gone."""
        self.kernel.effect(StopCall(self.record.token))
        self.wait_until(self.kernel.at + self.limits.kill_grace + STOP_MARGIN)

    def due_timed_out(self) -> None:
        """The body did not go: abandon it. Its slot is free when the engine has given it up, too."""
        token = self.record.token
        if still_to_be_told(self, token, self.limits.kill_grace + STOP_MARGIN):
            return
        self.kernel.stop_call(token, force=True)
        self._failed(CallEnded(token, "abandoned", error="the body did not stop and was abandoned"), end="timed_out")

    def on_drain(self, message: Drain) -> None:
        """The runtime stops: journal that the attempt is drained; with `stop`, give it back once its body has ended."""
        if self.record.state != RUNNING:
            return
        if message.stop:
            self.kernel.effect(StopCall(self.record.token))
        else:
            self._journal_attempt()


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
