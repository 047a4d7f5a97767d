"""What a user asks for: workstreams, tasks and their policies, as frozen msgspec Structs.

Rules:
- One schema for Python, TOML, YAML and JSON: these Structs are it. Unknown keys are refused.
- Every duration is a number of seconds or a text such as "1.5s", "30m", "72h", "2d", "1h30m" (`seconds()`
  reads it).
- `None` means "not said here": the value then comes from the tool, the workstream's defaults, the runtime's
  defaults, in that order (`resolve()`).
- A specification holds no state and is never changed; what happens to it is in the records.
- Structure (names, cycles, contradictions) is checked by `validate.py`, whole, before anything is journaled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec

from ..users.strategy import Supervision
from .times import Duration, seconds

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:  # a default is for type checkers only, and `TypeVar` of Python 3.11 has none
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

Body = Any
"""A function, or its import path "module:function". (msgspec knows no union with a callable; validate.py checks.)"""
LifecycleName = Any
"""The name of a lifecycle, the import path of one, or a `Lifecycle` itself. (As for bodies, validate.py checks.)"""
OnLoss = Literal["rerun", "fail", "park"]
OnExhausted = Literal["fail", "park"]
EngineName = Literal["loop", "thread", "process", "command", "ray"]
AlertSeverity = Literal["error", "critical"]
ON_CLUSTER: EngineName = "ray"
"""The engine whose workers are on other machines, and take what names no engine and nobody here can do."""

MOST_SLOTS = 10
"""The most slots that a job may reserve (seed 002)."""
MOST_CAPACITY = {"loop": 100_000, "thread": 1_000, "process": 1_000, "command": 1_000, "ray": 100_000}
"""The largest capacity of a worker, by its engine: a thread or a process each costs what a machine has few of."""
LONGEST_DESCRIPTION = 10_000
"""Characters of a workstream's description: its job's record has it, which is written at each transition."""
LARGEST_METADATA = 16_384
"""Bytes of a worker's metadata as JSON: so is its record."""
MOST_ACTORS = 10_000
"""The most workers that one on a cluster may stand for."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of every specification Struct: frozen, unknown keys refused."""


class Named(Spec, frozen=True):
    """A specification with a name, which may be given without its keyword."""

    name: str


class Retry(Spec, frozen=True, kw_only=True):
    """When and how often a failed attempt is tried again (DESIGN 5.7 and 5.8; seed 003).

    max_attempts: tries in all, the first included; max_retries: the same counted as seed 001 does
    (`max_attempts - 1`); give one of them at most. Backoff before retry n is `min(max_delay, base_delay *
    2**(n-1))`, times 1 +- jitter (0..1), never above max_delay; delays are durations. wait: another way to
    draw the delay: a tenacity wait strategy, or "module:function" of one number (the retry's number, from
    1) that returns seconds; the result is still held to max_delay. max_deferrals: how often a body may raise
    `RetryAfter` without that counting as a try; what it raises beyond that is a failure as any other.
    """

    max_attempts: int | None = None
    max_retries: int | None = None
    base_delay: Duration = 2.0
    max_delay: Duration = 60.0
    jitter: float = 0.25
    wait: Any = None  # a tenacity strategy, its encoded form (see backoff.py), or an import path
    max_deferrals: int = 100


class Breaker(Spec, frozen=True, kw_only=True):
    """The circuit breaker of a tool: failures in a row that open it, cooldown, successes that close it.

    ignore: failures that say nothing about the tool, by the error's type (`record.error_type`, as "ValueError",
    "package.Refused", "exit_code" or "timed_out"), one that this derives from, or its category ("transient",
    "resources", "permanent", "unknown"). Of a group of errors all have to be such. What the names may be:
    `error_names.py`.
    """

    failure_threshold: int = 5
    cooldown: Duration = 60.0
    success_threshold: int = 1
    ignore: list[str] = []
    lifecycle: LifecycleName = None


class Tool(Spec, frozen=True, kw_only=True):
    """A named external dependency of tasks, with one circuit breaker and its own limits.

    max_parallel: attempts that use the tool at the same time, over all workstreams of the runtime.
    """

    max_parallel: int | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    breaker: Breaker | None = None


class Hook(Spec, frozen=True, kw_only=True):
    """Something run because of what happened: a function (`run`) or a `command`, with its limit."""

    run: Body = None
    command: list[str] | str | None = None
    shell: bool = False
    timeout: Duration = 30.0


class Alert(Spec, frozen=True, kw_only=True):
    """Whom to tell of what goes wrong: a function (`run`) or a `command`, run for each transition of that severity.

    severity: the least that is told. max_alerts per period (duration): what is above that is counted, and the count
    told with the next alert.
    """

    run: Body = None
    command: list[str] | str | None = None
    shell: bool = False
    timeout: Duration = 30.0
    severity: AlertSeverity = "error"
    max_alerts: int = 10
    period: Duration = 60.0


class Condition(Spec, frozen=True, kw_only=True):
    """Whether a task runs at all: a function that returns true, or a command that exits with 0.

    Not met: the task is skipped. Broken (it raises, cannot be started, or takes too long): the task fails.
    A command answers by its exit code: 0 is met, any other is not met.
    """

    run: Body = None
    command: list[str] | str | None = None
    shell: bool = False
    timeout: Duration = 30.0


class Clause(Spec, frozen=True, kw_only=True):
    """One condition of an approval: a named `person`, or so many `people`: of a `team`, or any.

    members: of a team, the function that says who is in it: it takes the team's name and returns the names of its
    people. It is asked at each decision; one that raises, is not there, or takes over 10 s counts as "nobody".
    """

    person: str | None = None
    people: int | None = None
    team: str | None = None
    members: Body = None


class Approval(Spec, frozen=True, kw_only=True):
    """Who must approve before something goes on, and until when. One rejection rejects.

    people: that many different people, whoever they are (1 where no clauses are given either). clauses: all of which
    must be met as well; one person may meet several. expires (duration, from the moment it is held): then it counts as
    refused. self_approval: whether whoever submitted the job (`submit(by=...)`) may approve, too.
    """

    people: int | None = None
    clauses: list[Clause] = []
    expires: Duration = "72h"
    self_approval: bool = False


class Check(Spec, frozen=True, kw_only=True):
    """One acceptance test, run after the body; exactly one of its kinds is given.

    file: a path that must exist; changed: one that must have been written since the attempt (of a workstream: its first
    task) began; imports: a module that must import (in a Python process of its own); imports_js: one that must import
    in Node.js; command: must exit with 0; run: a function that must not return False and must not raise.
    Each has its own limit (duration, 30 s unless set).
    """

    file: str | None = None
    changed: str | None = None
    imports: str | None = None
    imports_js: str | None = None
    command: list[str] | str | None = None
    shell: bool = False
    run: Body = None
    timeout: Duration | None = None


class Task(Named, Generic[T_co], frozen=True, kw_only=True):
    """One unit of work: a function (`run`) or a command (`command`).

    depends_on must end good before it starts; after must only have ended. The four limits (durations):
    queue_timeout (queued until started), timeout (one attempt), heartbeat_timeout (between two heartbeats
    of a body), total_timeout (all attempts together, from first queueing). priority: higher first. args:
    JSON-able values handed to a function as `task.args` (never pasted into a command line). secrets: names of values
    that it is handed when it starts (`task.secrets`, or environment variables), and that are kept nowhere. hold: who
    must approve before it is queued; wait: how long that takes at least (a duration, or a point in time as ISO 8601
    with its zone). Both begin when its dependencies are satisfied and its condition is met; both must pass.

    cancel_hooks run, in order, when it is cancelled gracefully while it runs, once its body is gone, and before it is
    cancelled; together they have cancel_timeout (duration, 30 s unless set). cleanup_on_cancel: whether they do (seed
    003; yes unless set). save_partial_output: whether the output of a command that was stopped is kept (yes unless
    set). checkpoint: whether what the body saves (`TaskContext.checkpoint`) is kept, so that a cancelled task can be
    resumed (yes unless set). lifecycle: what its states and events are called, and which there are (DESIGN 5): the
    name of a published lifecycle or of one that the runtime was given, an import path, or a `Lifecycle`; "own" is the
    runtime's own, whatever its workstream says.

    For type checkers it is `Task[T]` by what its function returns, and `Outcome.result(task)` is a T; by a path or a
    command it is `Task[Any]`.
    """

    if TYPE_CHECKING:
        run: Callable[..., T_co] | str | None = None
    else:
        run: Body = None
    command: list[str] | str | None = None
    shell: bool = False
    env: dict[str, str] = {}
    cwd: str | None = None
    expected_exit_codes: list[int] = msgspec.field(default_factory=lambda: [0])
    max_output: int = 1_048_576
    args: dict[str, Any] = {}
    secrets: list[str] = []
    depends_on: list[str] = []
    after: list[str] = []
    condition: Condition | None = None
    hold: Approval | None = None
    wait: Duration | None = None
    optional: bool = False
    priority: int = 0
    tool: str | None = None
    engine: EngineName | None = None
    capabilities: list[str] = []
    retry: Retry | None = None
    timeout: Duration | None = None
    queue_timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    total_timeout: Duration | None = None
    unroutable_timeout: Duration | None = None
    kill_grace: Duration | None = None
    max_error_repeats: int | None = None
    max_losses: int | None = None
    on_loss: OnLoss | None = None
    on_exhausted: OnExhausted | None = None
    cancel_timeout: Duration | None = None
    cleanup_on_cancel: bool | None = None
    save_partial_output: bool | None = None
    checkpoint: bool | None = None
    checks: list[Check] = []
    cancel_hooks: list[Hook] = []
    on_completed: list[Hook] = []
    on_failed: list[Hook] = []
    on_cancelled: list[Hook] = []
    lifecycle: LifecycleName = None


class Defaults(Spec, frozen=True, kw_only=True):
    """What tasks of a workstream, or of a whole runtime, use where they and their tool say nothing. Durations.

    checkpoint_on: the states in which what a task saved, or completed, is kept for its next attempt or run (any, unless
    set); one that was interrupted keeps it always. park_cooldown: after how long a task that is parked with its
    attempts used up gets one more (its tool's cooldown, unless set).
    """

    retry: Retry | None = None
    timeout: Duration | None = None
    queue_timeout: Duration | None = None
    heartbeat_timeout: Duration | None = None
    total_timeout: Duration | None = None
    unroutable_timeout: Duration | None = None
    validation_timeout: Duration | None = None
    kill_grace: Duration | None = None
    max_error_repeats: int | None = None
    max_losses: int | None = None
    on_loss: OnLoss | None = None
    on_exhausted: OnExhausted | None = None
    cancel_timeout: Duration | None = None
    cleanup_on_cancel: bool | None = None
    save_partial_output: bool | None = None
    checkpoint: bool | None = None
    checkpoint_on: list[str] | None = None
    park_cooldown: Duration | None = None
    recovery_timeout: Duration | None = None


class Workstream(Named, frozen=True, kw_only=True):
    """A graph of tasks that is run as one.

    max_parallel: attempts of this workstream at the same time. worker_count: slots (1 to 10) that its job reserves
    for itself and its children before it begins, all or none. deadline (duration, from its job's creation): it is
    cancelled then, with that reason. retry: a failed run is followed by another by itself, after a backoff. hold,
    wait: as a task's, before any task of it begins. checks: the final validation, run when every task has ended well
    enough. cancel_hooks: run, in order, when it is cancelled gracefully (not when it fails), once all its tasks have
    ended and before it is cancelled; together they have the cancel_timeout of its defaults. folder: where the modules
    of its functions are looked for first; a specification file's own folder, set on loading. lifecycle: as a task's,
    for itself, its job and its tasks, as far as that has states for them. archive: whether its job, with its children,
    is moved out of the journal, into a file, once it has ended and the runtime is left (seed 001). description: what it
    is for, for people (seed 002's `task_description`): at most `LONGEST_DESCRIPTION` characters; it says nothing about
    what runs, so the same workstream with another one is the same.
    """

    description: str | None = None
    tasks: list[Task] = []
    folder: str | None = None
    max_parallel: int | None = None
    worker_count: int | None = None
    deadline: Duration | None = None
    hold: Approval | None = None
    wait: Duration | None = None
    retry: Retry | None = None
    priority: int = 0
    defaults: Defaults = Defaults()
    tools: dict[str, Tool] = {}
    env: dict[str, str] = {}
    secrets: list[str] = []
    cwd: str | None = None
    checks: list[Check] = []
    cancel_hooks: list[Hook] = []
    on_completed: list[Hook] = []
    on_failed: list[Hook] = []
    on_cancelled: list[Hook] = []
    alerts: list[Alert] = []
    lifecycle: LifecycleName = None
    archive: bool = False


class Worker(Named, frozen=True, kw_only=True):
    """A worker that the runtime starts: its engine, how many attempts at once, and what it can do.

    Of the engine "process" it is as many workers as its capacity, each with a process of its own: `name-1`, `name-2`,
    ... recycle_after: attempts that one such process runs before another takes its place (as many as come, unless set).

    Of the engine "ray" it is an actor on a Ray cluster. resources: what that reserves there, by Ray's names ("CPU",
    "GPU", "memory" in bytes, or one of the cluster's own); labels: what its node is called. Each of them is something
    that it can do, too: the name of a resource, and "label=value". count: it is so many workers, as of processes.

    metadata: what people or their tools want to find with it (seed 002), at most `LARGEST_METADATA` bytes as JSON.
    """

    engine: EngineName
    capacity: int | None = None
    capabilities: list[str] = []
    recycle_after: int | None = None
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    count: int | None = None
    lifecycle: LifecycleName = None
    metadata: dict[str, Any] = {}

    def each(self) -> list[Worker]:
        """The workers that it stands for."""
        number = self.count if self.engine == "ray" else self.capacity if self.engine == "process" else 1
        if (number or 1) == 1:
            return [self]
        capacity = 1 if self.engine == "process" else self.capacity
        return [
            msgspec.structs.replace(self, name=f"{self.name}-{one}", capacity=capacity, count=None)
            for one in range(1, (number or 1) + 1)
        ]

    def abilities(self) -> list[str]:
        """All that it can do: its capabilities, resources and labels."""
        if not self.resources and not self.labels:
            return self.capabilities
        more = [*self.resources, *(f"{name}={value}" for name, value in self.labels.items())]
        return [*self.capabilities, *(one for one in more if one not in self.capabilities)]


class HealthChecks(Spec, frozen=True, kw_only=True):
    """How a runtime watches its workers. All but `misses` and `restarts` are durations.

    interval: between two health checks of a worker that has a process of its own; misses: checks in a row that it may
    not answer before it is unresponsive; expire: how long it may stay so before it is given up. start_timeout: until a
    worker is ready; drain_deadline: what runs on one that is shut down has so long. cooldown: a worker that ran out of
    memory, disk or descriptors takes nothing new for so long. loop_blocked: an event loop that did not turn for so long
    is told of (0: never). restarts: how often, and after what delays, dead workers are replaced.
    """

    interval: Duration = 10.0
    misses: int = 3
    expire: Duration = 300.0
    start_timeout: Duration = 30.0
    drain_deadline: Duration = 30.0
    cooldown: Duration = 10.0
    loop_blocked: Duration = 1.0
    restarts: Supervision = Supervision()

    def __post_init__(self) -> None:
        """Refuse what cannot be meant. Raises ValueError."""
        if self.misses < 1:
            raise ValueError(f"HealthChecks: misses={self.misses}: at least 1")
        for name in ("interval", "expire", "start_timeout", "drain_deadline", "cooldown", "loop_blocked"):
            try:
                seconds(getattr(self, name))
            except (TypeError, ValueError) as error:
                raise ValueError(f"HealthChecks: {name}: {error}") from None
        if seconds(self.interval) <= 0:
            raise ValueError(f"HealthChecks: interval={self.interval!r}: above 0 seconds")
