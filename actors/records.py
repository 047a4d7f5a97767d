"""What the runtime knows: one immutable record per entity, and one row per transition, as msgspec Structs.

Rules:
- A record is never changed; `msgspec.structs.replace` makes the next one. So a turn that fails leaves nothing half
  done, and the journal's writer may encode a record while the loop goes on.
- Records hold facts, not objects: what is here is what the journal keeps and what recovery gets back. What can be
  derived from them (counts, queues, free slots) lives in the actors and is rebuilt.
- `key` is the entity's number, unique in its journal; `id` is its name for people. Times are UTC epoch seconds.
- `seq` counts the entity's transitions from 1 (its creation) without a gap; `epoch` is the seq at which it entered its
  present state, so that a timer armed in an earlier state is known to be stale.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from .spec import Approval

if TYPE_CHECKING:
    MaybeRaw = msgspec.Raw | None
else:
    MaybeRaw = msgspec.Raw  # msgspec cannot decode a union with Raw; None is the default, which is never written


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where an entity stands in the lifecycle that it was given, beside the phase that it is in."""

    lifecycle: str
    state: str
    previous: str | None = None
    seq: int = 1  # of its published transitions


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What every entity's record has. Subclasses name their entity kind.

    `state` is the phase that its actor acts on. Where it runs by a lifecycle that is not the runtime's own,
    `published` says where it stands there, and that is what people are shown, and what its transitions tell.
    """

    kind: ClassVar[str] = ""

    key: int
    id: str
    name: str
    state: str
    previous_state: str | None = None
    seq: int = 1
    epoch: int = 1
    run: int = 1
    created_at: float
    updated_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    due_at: float | None = None  # when the present state's timed event fires; armed as long as it stands here
    reason: str | None = None
    published: Published | None = None  # None: by the runtime's own lifecycle

    @property
    def shown(self) -> str:
        """Its state as people are told of it."""
        return self.state if self.published is None else self.published.state

    @property
    def told(self) -> int:
        """The number of its last transition, among its own."""
        return self.seq if self.published is None else self.published.seq


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What somebody said to a hold, or (by nobody) that it expired. `met`: which clauses it met, by their numbers."""

    verdict: str  # approved | rejected | expired
    at: float
    by: str | None = None
    reason: str | None = None
    met: tuple[int, ...] = ()


class JobRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One submission. `fingerprint` binds the caller's id to what was submitted under it.

    A job that is run again is a new incarnation under the same key and id: its `run` is the number of the workstream
    run that it began with, its `seq` counts from 1 again.
    """

    kind: ClassVar[str] = "job"

    fingerprint: str = ""
    caller_id: bool = False
    by: str | None = None  # who submitted it, where that was said
    workstream: str | None = None  # its present workstream's id
    error: str | None = None
    runs: int = 1  # the number of its present workstream's run
    stream: int = 0  # key of its present workstream, given before there is one: its specification is kept under it
    retry_at: float | None = None  # when its failed workstream's next run begins by itself
    worker_count: int = 0  # slots it reserves; 0: none
    archive: bool = False  # it is moved out of the journal once it has ended and its runtime is left
    again: str | None = None  # of a further incarnation: the task that it was asked to run anew,
    skip: tuple[str, str] | None = None  # and the one to do without, and why
    # of a child
    parent: int | None = None  # key of the job whose task submitted it
    parent_id: str | None = None
    parent_task: int | None = None  # key of that task
    depth: int = 0  # 0 for a job that no task submitted


class Cancellation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far a graceful cancel is. Kept when it is over: it says what its hooks did."""

    deadline: float | None = None  # by when all cancel hooks must have ended; None while what ran has still to go
    hook: int = 0  # the number of the one that runs
    token: int = 0  # its fencing token
    late: bool = False  # it took too long, and was told to stop
    failed: list[str] = []  # what went wrong with those that failed
    left: str | None = None  # what did not stop in time


class WorkstreamRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The coordinator of a graph. `job` is its job's key; `first_task` that of its first task: the others follow."""

    kind: ClassVar[str] = "workstream"

    job: int
    job_id: str
    first_task: int
    task_count: int
    tasks_created: int = 0
    cause: str | None = None  # why it is cancelling: "failure" | "cancel"
    forced: bool = False  # its tasks are stopped the harder way, clean-up too
    deadline_at: float | None = None
    hold_until: float | None = None
    wait_until: float | None = None
    decisions: tuple[Decision, ...] = ()  # on its hold
    passed: bool = False  # its hold and its wait are over
    verdict: str | None = None  # what it ends by when its tasks have: "reject" | "expire"; else it is its cause
    checked: int = 0  # final checks passed so far
    cancel: Cancellation | None = None
    error: str | None = None


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
    """What the command of a task left behind when it ended last. `size` of its output, in bytes."""

    exit_code: int | None = None
    path: str | None = None
    size: int | None = None


class Process(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The process of a command that runs. `started`: the kernel's start time of that pid, in clock ticks."""

    pid: int
    started: int | None = None


ALLOWED, NO_TROUBLE, NOTHING_PRODUCED = Allowed(), Trouble(), Produced()


class TaskRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One task. The limits that guards read are copied here from the specification: a guard needs nothing else.

    There may be a hundred thousand of them, and each is copied at every transition: what few tasks have, and what many
    have alike, is in records of its own, and read through properties.
    """

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
    limit: str | None = (
        None  # which limit falls due first, or was reached: attempt, heartbeat, total, queue, unroutable
    )
    routable: bool = True  # whether a worker could run it, while it is queued
    parked: str | None = None  # why it is in circuit_open: tool | exhausted | lost; kept until it starts or is reset
    hold_until: float | None = None
    wait_until: float | None = None
    decisions: tuple[Decision, ...] = ()  # on its hold
    # what came of it
    standing: str | None = None  # how its end counts: good | void | bad
    result: MaybeRaw = None
    checked: int = 0  # acceptance tests passed so far in this attempt
    produced: Produced | None = None
    execution_ms: int | None = None
    validation_ms: int | None = None
    trouble: Trouble | None = None
    circuit_state: str = "closed"
    details: MaybeRaw = None  # of the last heartbeat
    checkpoint: MaybeRaw = None  # what its body saved last: the next attempt, or the next run, goes on from there
    cancel: Cancellation | None = None

    @property
    def max_attempts(self) -> int:
        """Failed attempts after which there is no further one, but for those granted."""
        return self.allowed.max_attempts

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


class WorkerRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One incarnation (`run`) of a worker."""

    kind: ClassVar[str] = "worker"

    engine: str
    capacity: int
    capabilities: list[str] = []
    assigned: int = 0
    paused: bool = False
    pause_reason: str | None = None  # of an operator's pause, which the next incarnation keeps
    draining: bool = False
    missed: int = 0  # health checks not answered, in a row
    drain_until: float | None = None  # when what runs on a draining one is stopped
    resume_at: float | None = None  # when a pause for want of resources is over
    recycle_after: int | None = None  # attempts that one process of it runs


class BreakerRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The circuit breaker of a tool. `generation` numbers its open periods."""

    kind: ClassVar[str] = "breaker"

    failures: int = 0
    successes: int = 0
    failure_threshold: int = 5
    success_threshold: int = 1
    cooldown: float = 60.0
    ignore: list[str] = []  # error types and categories that do not count
    said_by: str | None = None  # whose settings these are: a job's id, or RUNTIME; None: the usual ones
    generation: int = 0
    probe: int | None = None  # the task that holds the permit


class ApprovalRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An approval that a running body asked for, by the name it gave it."""

    kind: ClassVar[str] = "approval"

    task: int  # key
    task_id: str
    workstream: int  # key
    workstream_id: str
    job_id: str
    rule: Approval
    hold_until: float | None = None
    wait_until: float | None = None  # never: it is what the guards of all holds read
    decisions: tuple[Decision, ...] = ()


class MachineRecord(Record, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An entity that runs by a machine of the application's own: a `MachineActor`, under the name it was spawned with.

    Its `due_at` is the earliest of `due`.
    """

    kind: ClassVar[str] = "machine"

    machine: str  # its machine's name
    definitions: tuple[int, ...]  # keys of what it has run by, as it is kept beside the specifications; the last holds
    facts: MaybeRaw = None
    due: dict[str, float] = {}  # when each timed event of the present state fires (UTC epoch seconds)


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One try of a task. A claim without an end, found at start, is lost. `key` is its fencing token."""

    kind: ClassVar[str] = "attempt"

    key: int
    task: int
    task_id: str
    attempt: int
    worker_id: str | None = None
    claimed_at: float
    ended_at: float | None = None
    end: str | None = None  # succeeded | failed | timed_out | lost | cancelled | returned (given back by a drain)
    error: str | None = None
    exit_code: int | None = None
    duration_ms: int | None = None
    output_size: int | None = None
    output_path: str | None = None
    pid: int | None = None
    process_started: int | None = None  # the kernel's start time of that pid, in clock ticks
    traceback: str | None = None  # of a function that raised, bounded


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An effect that no live state implies, kept until it has run: a hook of an ended entity."""

    kind: ClassVar[str] = "outbox"

    key: int
    owner: str  # the ended entity's id
    event: str  # on_completed | on_failed | on_cancelled
    body: msgspec.Raw  # the encoded Hook
    context: msgspec.Raw  # what the hook is told: ids, state, error
    folder: str | None = None  # where its function is found, if not on Python's path
    cwd: str | None = None  # the folder and the variables of its command
    env: dict[str, str] = {}
    secrets: list[str] = []  # their names
    tries: int = 0


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A command that took effect under a user's `request_id`, and its answer. It commits with the effect.

    It is kept until `expires_at`, and as long as `owner` lives.
    """

    kind: ClassVar[str] = "request"

    key: int
    request_id: str
    operation: str
    fingerprint: str  # of the operation and its payload
    at: float
    expires_at: float
    owner: int = 0  # key of the job or worker that it was about; 0 for what never ends
    row: int = 0  # of the inbox that it came by; 0 for none
    answer: msgspec.Raw  # an `Acknowledged`


class Acknowledged(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command left behind: the entity it was about, in its state at the end of the turn.

    workstream: the state of its workstream, where it was about a job. transition: what it fired, at a `MachineActor`.
    """

    kind: str = ""
    id: str = ""
    state: str = ""
    workstream: str = ""
    transition: Transitioned | None = None


AnyRecord = (
    JobRecord
    | WorkstreamRecord
    | TaskRecord
    | ApprovalRecord
    | WorkerRecord
    | BreakerRecord
    | MachineRecord
    | AttemptRecord
    | OutboxRow
    | RequestRecord
)


class Transitioned(msgspec.Struct, frozen=True, gc=False):
    """One transition as it is journaled, logged and told to observers (the event schema of seed 001).

    seq is the transition's number in the journal; entity_seq its number among its entity's; at is UTC epoch seconds.
    """

    seq: int
    kind: str
    entity_id: str
    entity_seq: int
    from_state: str | None
    to_state: str
    event: str
    severity: str
    at: float
    reason: str | None = None
    job_id: str | None = None
    workstream_id: str | None = None
    run: int = 1
    attempt: int | None = None
    worker_id: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def timestamp(self) -> str:
        """The time as ISO 8601 in UTC with milliseconds and a Z."""
        return iso(self.at)

    @property
    def phase(self) -> str:
        """What the state that was entered means to the actor."""
        return self.to_state

    @property
    def from_phase(self) -> str | None:
        """What the state that was left meant to the actor."""
        return self.from_state


class PublishedTransition(Transitioned, frozen=True, gc=False):
    """A transition of an entity that runs by another lifecycle than the runtime's own, in that one's words."""

    phases: tuple[str | None, str] = (None, "")  # of the state left, and of the one entered

    @property
    def phase(self) -> str:
        """What the state that was entered means to the actor."""
        return self.phases[1]

    @property
    def from_phase(self) -> str | None:
        """What the state that was left meant to the actor."""
        return self.phases[0]


def iso(at: float) -> str:
    """Write UTC epoch seconds as ISO 8601 with milliseconds and a Z."""
    second, part = divmod(round(at * 1_000_000), 1_000_000)
    return f"{_second(second)}.{part // 1_000:03d}Z"


@lru_cache(maxsize=64)  # transitions come by the thousand in one second
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:19]
