"""The record of a task, its rare or shared parts, and the record of an attempt.

There may be a hundred thousand tasks, and each record is copied at every transition and encoded several times: so its
parts are Structs of their own, None or shared if they have no data, and are read through properties.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ..spec.model import ALLOWED, Allowed
from .base import Cancellation, CheckResult, Decision, MaybeRaw, Record


class Trouble(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task's last error, and the number of all errors. `repeats`: the same error in a row."""

    error: str | None = None
    type: str | None = None
    category: str | None = None
    count: int = 0
    repeats: int = 0


class Produced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The output and resource use of a task's last attempt, if known. `size` of its output in bytes."""

    exit_code: int | None = None
    path: str | None = None
    size: int | None = None
    cpu_seconds: float | None = None  # user and system time
    peak_memory_bytes: int | None = None  # resident


class Process(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The process of a running command. `started`: the kernel's start time of that pid, in clock ticks."""

    pid: int
    started: int | None = None


class Anew(msgspec.Struct, frozen=True, gc=False):
    """The present round of a flow that has begun anew (`task.again`)."""

    rounds: int  # the number of ended rounds
    raw_args: msgspec.Raw = msgspec.field(name="args")  # the arguments of the present round, as JSON


class DurableWait(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the body of a running attempt waits for, while it does nothing else.

    until: UTC epoch seconds; None: there is no such time. kind: "message", "approval" or "child"; "" if it waits for
    the time only. name: of the message or the approval, or the id of the child job.
    """

    until: float | None = None
    kind: str = ""
    name: str = ""


NO_TROUBLE = Trouble()
APPROVED = "approved"
"""The verdict that lets an entity go on; all other verdicts stop it."""


def decoded(raw: msgspec.Raw | None) -> Any:
    """The value that a journal holds as JSON."""
    return None if raw is None else msgspec.json.decode(raw)


class TaskRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One task. The limits that guards read are copied here from the specification."""

    kind: ClassVar[str] = "task"

    workstream: int  # key
    workstream_id: str
    job_id: str
    index: int  # the task's place in the specification
    unmet: int = 0  # dependencies not yet satisfied
    optional: bool = False
    ready: bool = False  # the dependencies are satisfied (its condition may not be decided yet)
    # attempts and their two budgets
    attempt: int = 0
    token: int = 0
    probe: bool = False
    failed_attempts: int = 0
    lost_attempts: int = 0
    granted: int = 0
    deferrals: int = 0  # how often its body asked to be run later (`RetryAfter`)
    allowed: Allowed = ALLOWED
    worker: int | None = None  # key
    worker_id: str | None = None
    generation: int = 0  # the generation of the tool's breaker when the attempt began
    # times
    claimed_at: float | None = None  # of the present attempt; None without one, or if its end is journaled
    process: Process | None = None  # of the present attempt, if it is a command
    place: int = 0  # the task's place in the queue, kept when it is re-queued
    queued_at: float | None = None
    first_queued_at: float | None = None
    ended_at: float | None = None  # the last attempt's end
    limit: str | None = None  # the limit due first, or reached: attempt, heartbeat, total, queue, unroutable
    routable: bool = True  # whether a worker can run it, while it is queued
    parked: str | None = None  # why it is in circuit_open: tool | exhausted | lost; kept until it starts or is reset
    hold_until: float | None = None
    wait_until: float | None = None
    decisions: tuple[Decision, ...] = ()  # on its hold
    # results
    standing: str | None = None  # how its end counts: good | void | bad
    final: bool = False  # no automatic retry: its last failure says so, or a person stopped it
    raw_result: MaybeRaw = msgspec.field(default=None, name="result")  # as JSON; the journal's name of this field
    checked: int = 0  # acceptance tests passed so far in this attempt
    test_results: tuple[CheckResult, ...] = ()  # of the tests that have ended in this attempt
    produced: Produced | None = None
    execution_ms: int | None = None
    validation_ms: int | None = None
    trouble: Trouble | None = None
    circuit_state: str = "closed"
    raw_details: MaybeRaw = msgspec.field(default=None, name="details")  # of the last heartbeat
    # the body's last checkpoint, from which the next attempt or run goes on
    raw_checkpoint: MaybeRaw = msgspec.field(default=None, name="checkpoint")
    cancel: Cancellation | None = None
    flow: int = 0  # key of the task under which its body's steps are kept; 0: its body has taken none
    anew: Anew | None = None  # its present round; None: its body has not begun anew
    durable_wait: DurableWait | None = None  # of the present attempt; None: it does not only wait

    @property
    def result(self) -> Any:
        """The return value of the task's body, decoded at each call; None before the task has completed, too."""
        return decoded(self.raw_result)

    @property
    def rounds(self) -> int:
        """How often its body has begun anew."""
        return 0 if self.anew is None else self.anew.rounds

    @property
    def args(self) -> dict[str, Any] | None:
        """The arguments with which its body has begun anew, decoded at each call; None if it has not."""
        found: dict[str, Any] | None = None if self.anew is None else msgspec.json.decode(self.anew.raw_args)
        return found

    @property
    def details(self) -> Any:
        """The last heartbeat's details, decoded at each call."""
        return decoded(self.raw_details)

    @property
    def checkpoint(self) -> Any:
        """The last checkpoint of the task's body, decoded at each call."""
        return decoded(self.raw_checkpoint)

    @property
    def is_final(self) -> bool:
        """Whether an automatic next run keeps its bad end: also if its hold was not approved."""
        return self.final or (bool(self.decisions) and self.decisions[-1].verdict != APPROVED)

    @property
    def max_attempts(self) -> int:
        """The most failed attempts, without granted ones."""
        return self.allowed.max_attempts

    @property
    def most_attempts(self) -> int:
        """The highest number that its last attempt can have at present.

        Lost and deferred attempts have numbers, but do not count against `max_attempts`.
        """
        return max(self.attempt, self.max_attempts + self.granted + self.lost_attempts + self.deferrals)

    @property
    def max_losses(self) -> int:
        """The most lost attempts."""
        return self.allowed.max_losses

    @property
    def on_loss(self) -> str:
        """The next step after a lost attempt: "rerun", "fail" or "park"."""
        return self.allowed.on_loss

    @property
    def on_exhausted(self) -> str:
        """The next step after the last attempt: "fail" or "park"."""
        return self.allowed.on_exhausted

    @property
    def pid(self) -> int | None:
        """The pid of the present attempt's command; None for a function."""
        return None if self.process is None else self.process.pid

    @property
    def process_started(self) -> int | None:
        """The kernel's start time of the command's process, in clock ticks."""
        return None if self.process is None else self.process.started

    @property
    def exit_code(self) -> int | None:
        """The exit code of its command's last run."""
        return None if self.produced is None else self.produced.exit_code

    @property
    def output_path(self) -> str | None:
        """The path of the file with its command's output."""
        return None if self.produced is None else self.produced.path

    @property
    def output_size(self) -> int | None:
        """The number of bytes that its command wrote; the file may hold fewer."""
        return None if self.produced is None else self.produced.size

    @property
    def cpu_seconds(self) -> float | None:
        """CPU seconds of its last attempt, if it was a command or ran in a worker process."""
        return None if self.produced is None else self.produced.cpu_seconds

    @property
    def peak_memory_bytes(self) -> int | None:
        """The peak memory of its last attempt in bytes, if known."""
        return None if self.produced is None else self.produced.peak_memory_bytes

    @property
    def last_error(self) -> str | None:
        """The text of its last error."""
        return None if self.trouble is None else self.trouble.error

    @property
    def error_type(self) -> str | None:
        """The type of its last error."""
        return None if self.trouble is None else self.trouble.type

    @property
    def error_category(self) -> str | None:
        """The category of its last error: transient, permanent, resources."""
        return None if self.trouble is None else self.trouble.category

    @property
    def error_count(self) -> int:
        """The number of its errors."""
        return 0 if self.trouble is None else self.trouble.count

    @property
    def error_repeats(self) -> int:
        """How often the last error came in a row."""
        return 0 if self.trouble is None else self.trouble.repeats


class EndedRound(msgspec.Struct, frozen=True, gc=False):
    """A round that has ended since its body has begun anew: its steps and its attempts leave the journal.

    last: the last number that was assigned in it: the new round's keys are greater.
    """

    task: int  # key; 0: its attempts stay
    flow: int  # key; 0: it took no step
    last: int


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One try of a task. An attempt without an end, found at a start, is lost. `key` is its fencing token."""

    kind: ClassVar[str] = "attempt"

    key: int
    task: int
    task_id: str
    attempt: int
    worker_id: str | None = None
    tool: str | None = None  # the tool at its start
    claimed_at: float
    ended_at: float | None = None
    end: str | None = None  # succeeded | failed | timed_out | lost | cancelled | deferred | returned (by a drain)
    error: str | None = None
    exit_code: int | None = None
    duration_ms: int | None = None
    output_size: int | None = None
    output_path: str | None = None
    pid: int | None = None
    process_started: int | None = None  # the kernel's start time of that pid, in clock ticks
    drained_at: float | None = None  # when a drain began: a later kill is no loss
    traceback: str | None = None  # of a function that raised, bounded
    # of a command, or a body in a worker process; None if unknown
    cpu_seconds: float | None = None  # user and system time
    peak_memory_bytes: int | None = None  # resident
    left_behind: tuple[int, ...] = ()  # pids of processes that left its group, and still ran at its end
