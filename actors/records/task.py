"""The record of a task, the parts that few tasks have or that many have alike, and the record of each attempt.

There may be a hundred thousand tasks, and each record is copied at every transition and encoded several times: so the
parts are Structs of their own, None or shared where there is nothing to say, and are read through properties.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from .base import Cancellation, CheckResult, Decision, MaybeRaw, Record


class Allowed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a task may use up, and what it means when it has: copied from its specification. Tasks share them."""

    max_attempts: int = 1
    max_losses: int = 3
    on_loss: str = "rerun"
    on_exhausted: str = "fail"


class Trouble(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What went wrong with a task last, and how often anything did. `repeats`: the same error, in a row."""

    error: str | None = None
    type: str | None = None
    category: str | None = None
    count: int = 0
    repeats: int = 0


class Produced(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What the last attempt of a task left behind. `size` of its output, in bytes; what it used, where it is known."""

    exit_code: int | None = None
    path: str | None = None
    size: int | None = None
    cpu_seconds: float | None = None  # user and system time
    peak_memory_bytes: int | None = None  # resident


class Process(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The process of a command that runs. `started`: the kernel's start time of that pid, in clock ticks."""

    pid: int
    started: int | None = None


ALLOWED, NO_TROUBLE = Allowed(), Trouble()
APPROVED = "approved"
"""The verdict of a decision that lets something go on; all others stop it."""


def decoded(raw: msgspec.Raw | None) -> Any:
    """The value that a journal holds as JSON."""
    return None if raw is None else msgspec.json.decode(raw)


class TaskRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One task. The limits that guards read are copied here from the specification: a guard needs nothing else."""

    kind: ClassVar[str] = "task"

    workstream: int  # key
    workstream_id: str
    job_id: str
    index: int  # its place in the specification
    unmet: int = 0  # dependencies not yet satisfied
    optional: bool = False
    ready: bool = False  # its dependencies are satisfied (its condition may still be asked)
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
    generation: int = 0  # of the tool's breaker when the attempt began
    # times
    claimed_at: float | None = None  # when the present attempt was; None while there is none, or its end is journaled
    process: Process | None = None  # of the present attempt, where it is a command
    place: int = 0  # its place in the queue, kept when it is re-queued
    queued_at: float | None = None
    first_queued_at: float | None = None
    ended_at: float | None = None  # the last attempt's end
    limit: str | None = None  # that falls due first, or was reached: attempt, heartbeat, total, queue, unroutable
    routable: bool = True  # whether a worker could run it, while it is queued
    parked: str | None = None  # why it is in circuit_open: tool | exhausted | lost; kept until it starts or is reset
    hold_until: float | None = None
    wait_until: float | None = None
    decisions: tuple[Decision, ...] = ()  # on its hold
    # what came of it
    standing: str | None = None  # how its end counts: good | void | bad
    final: bool = False  # no try by itself can help: its last failure says so, or a person stopped it
    raw_result: MaybeRaw = msgspec.field(default=None, name="result")  # as JSON: the journal's word for it
    checked: int = 0  # acceptance tests passed so far in this attempt
    test_results: tuple[CheckResult, ...] = ()  # of those that have ended in it
    produced: Produced | None = None
    execution_ms: int | None = None
    validation_ms: int | None = None
    trouble: Trouble | None = None
    circuit_state: str = "closed"
    raw_details: MaybeRaw = msgspec.field(default=None, name="details")  # of the last heartbeat
    # what its body saved last: the next attempt, or the next run, goes on from there
    raw_checkpoint: MaybeRaw = msgspec.field(default=None, name="checkpoint")
    cancel: Cancellation | None = None

    @property
    def result(self) -> Any:
        """What its body returned, decoded anew each time; None before it has completed, too."""
        return decoded(self.raw_result)

    @property
    def details(self) -> Any:
        """What the last heartbeat told, decoded anew each time."""
        return decoded(self.raw_details)

    @property
    def checkpoint(self) -> Any:
        """What its body saved last, decoded anew each time."""
        return decoded(self.raw_checkpoint)

    @property
    def is_final(self) -> bool:
        """Whether a next run by itself leaves its bad end as it is: also where its hold was not approved."""
        return self.final or (bool(self.decisions) and self.decisions[-1].verdict != APPROVED)

    @property
    def max_attempts(self) -> int:
        """Failed attempts after which there is no further one, but for those granted."""
        return self.allowed.max_attempts

    @property
    def most_attempts(self) -> int:
        """The number that its last attempt may have, as things stand: those that were lost or put off are not counted
        against `max_attempts`.
        """
        return max(self.attempt, self.max_attempts + self.granted + self.lost_attempts + self.deferrals)

    @property
    def max_losses(self) -> int:
        """Lost attempts after which there is no further one."""
        return self.allowed.max_losses

    @property
    def on_loss(self) -> str:
        """What a lost attempt means: "rerun", "fail" or "park"."""
        return self.allowed.on_loss

    @property
    def on_exhausted(self) -> str:
        """What it means that there is no further attempt: "fail" or "park"."""
        return self.allowed.on_exhausted

    @property
    def pid(self) -> int | None:
        """Of the present attempt's process, where it is a command."""
        return None if self.process is None else self.process.pid

    @property
    def process_started(self) -> int | None:
        """The kernel's start time of that process, in clock ticks."""
        return None if self.process is None else self.process.started

    @property
    def exit_code(self) -> int | None:
        """Of its command, when that ended last."""
        return None if self.produced is None else self.produced.exit_code

    @property
    def output_path(self) -> str | None:
        """The file with its command's output."""
        return None if self.produced is None else self.produced.path

    @property
    def output_size(self) -> int | None:
        """Bytes that its command wrote; the file may hold fewer."""
        return None if self.produced is None else self.produced.size

    @property
    def cpu_seconds(self) -> float | None:
        """CPU seconds that its last attempt used, where it was a command or ran in a worker process."""
        return None if self.produced is None else self.produced.cpu_seconds

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most memory that it had, in bytes, where that is known."""
        return None if self.produced is None else self.produced.peak_memory_bytes

    @property
    def last_error(self) -> str | None:
        """What went wrong last."""
        return None if self.trouble is None else self.trouble.error

    @property
    def error_type(self) -> str | None:
        """The type of what went wrong last."""
        return None if self.trouble is None else self.trouble.type

    @property
    def error_category(self) -> str | None:
        """Its category: transient, permanent, resources."""
        return None if self.trouble is None else self.trouble.category

    @property
    def error_count(self) -> int:
        """How often anything went wrong."""
        return 0 if self.trouble is None else self.trouble.count

    @property
    def error_repeats(self) -> int:
        """How often the last error came, in a row."""
        return 0 if self.trouble is None else self.trouble.repeats


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One try of a task. A claim without an end, found at start, is lost. `key` is its fencing token."""

    kind: ClassVar[str] = "attempt"

    key: int
    task: int
    task_id: str
    attempt: int
    worker_id: str | None = None
    tool: str | None = None  # that it began with
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
    drained_at: float | None = None  # when a drain began that let it run on: killed later, it is given back, not lost
    traceback: str | None = None  # of a function that raised, bounded
    # of a command, or a body in a worker process; None where it is not known
    cpu_seconds: float | None = None  # user and system time
    peak_memory_bytes: int | None = None  # resident
    left_behind: tuple[int, ...] = ()  # the processes that left its group, and ran when it ended
