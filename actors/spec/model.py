"""The specification of work: workstreams, tasks and their policies, as frozen msgspec Structs.

Rules:
- These Structs are the one schema for Python, TOML, YAML and JSON. Unknown keys are refused.
- Every duration is a number of seconds or a text such as "1.5s", "30m", "72h", "2d", "1h30m" (`seconds()`
  reads it).
- `None` means "not set": the value then comes from the tool, the workstream's defaults, the runtime's
  defaults, in that order (`limits.py`).
- A specification holds no state and never changes; records hold the state.
- `validate.py` checks its structure (names, cycles, contradictions) as a whole, before anything is journaled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec

from ...machines.keywords import KeywordsChecked
from ..times import Duration, seconds
from ..user_code import is_a, plain, shown
from ..users.strategy import Supervision

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
OF_PROCESSES = frozenset({"process", ON_CLUSTER})
"""The engines that run functions in processes of their workers."""
"""The engine with workers on other machines. They also take tasks without an engine that no local worker can run."""

MOST_SLOTS = 10
"""The most slots that a job may reserve (seed 002)."""
MOST_CAPACITY = {"loop": 100_000, "thread": 1_000, "process": 1_000, "command": 1_000, "ray": 100_000}
"""The largest capacity of a worker, by its engine: threads and processes are limited on a machine."""
LONGEST_DESCRIPTION = 10_000
"""The most characters of a description: each transition of a job writes its record, which contains it."""
LARGEST_METADATA = 16_384
"""The most bytes of a worker's metadata as JSON: each transition of a worker writes its record."""
MOST_ACTORS = 10_000
"""The most workers that one cluster `Worker` may start."""


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, metaclass=KeywordsChecked):
    """The base of every specification Struct: frozen, refuses unknown keys."""


class NamedSpec(Spec, frozen=True):
    """A specification with a name, which may be a positional argument."""

    name: str


class Retry(Spec, frozen=True, kw_only=True):
    """When and how often a failed attempt is retried (DESIGN 5.7 and 5.8; seed 003).

    max_attempts: tries in all, the first included; max_retries: the same counted as seed 001 does
    (`max_attempts - 1`); give one of them at most. Backoff before retry n is `min(max_delay, base_delay *
    2**(n-1))`, times 1 +- jitter (0..1), never above max_delay; delays are durations. wait: another way to
    draw the delay: a tenacity wait strategy, or "module:function" of one number (the retry's number, from
    1) that returns seconds; max_delay still limits the result. max_deferrals: how often a body may raise
    `RetryAfter` without that counting as a try; a further one counts as a failure.
    """

    max_attempts: int | None = None
    max_retries: int | None = None
    base_delay: Duration = 2.0
    max_delay: Duration = 60.0
    jitter: float = 0.25
    wait: Any = None  # a tenacity strategy, its encoded form (see backoff.py), or an import path
    max_deferrals: int = 100


class Allowed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A task's budgets, and what follows when they are used up. Its record has a copy, shared by equal ones."""

    max_attempts: int = 1
    max_losses: int = 3
    on_loss: str = "rerun"
    on_exhausted: str = "fail"


ALLOWED = Allowed()


class Breaker(Spec, frozen=True, kw_only=True):
    """The circuit breaker of a tool: failures in a row that open it, cooldown, successes that close it.

    ignore: failures that do not count, named by the error's type (`record.error_type`, as "ValueError",
    "package.Refused", "exit_code" or "timed_out"), a base class of it, or its category ("transient",
    "resources", "permanent", "unknown"). A group of errors is ignored if every error in it is. Valid names:
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
    """A function (`run`) or a `command` that runs on an event, with its limit."""

    run: Body = None
    command: list[str] | str | None = None
    shell: bool = False
    timeout: Duration = 30.0


class Alert(Spec, frozen=True, kw_only=True):
    """A function (`run`) or a `command` that is called for each transition of a severity.

    severity: the lowest severity that is alerted. max_alerts per period (duration): further alerts are counted, and the
    next alert carries their number.
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

    If the condition is not met, the task is skipped. If it breaks (it raises, cannot start, or exceeds its limit), the
    task fails. A command is met with exit code 0, and not met with any other.
    """

    run: Body = None
    command: list[str] | str | None = None
    shell: bool = False
    timeout: Duration = 30.0


class Clause(Spec, frozen=True, kw_only=True):
    """One condition of an approval: a named `person`, or a number of `people`: of a `team`, or any.

    members: the function that returns a team's people: it takes the team's name and returns names. It is called at
    each decision; a function that raises, is missing, or takes over 10 s counts as an empty team.
    """

    person: str | None = None
    people: int | None = None
    team: str | None = None
    members: Body = None


class Approval(Spec, frozen=True, kw_only=True):
    """The people who must approve, and until when. One rejection rejects.

    people: that many different people, whoever they are (1 if no clauses are given either). clauses: all of them must
    be met as well; one person may meet several. expires (duration, from the beginning of the hold): then it counts as
    rejected. self_approval: whether the submitter of the job (`submit(by=...)`) may approve, too.
    """

    people: int | None = None
    clauses: list[Clause] = []
    expires: Duration = "72h"
    self_approval: bool = False


class Check(Spec, frozen=True, kw_only=True):
    """One acceptance test, run after the body; exactly one of its kinds is given.

    file: a path that must exist; changed: a path that must have been written since the attempt (for a workstream: its
    first task) began; imports: a module that must import (in its own Python process); imports_js: a module that must
    import in Node.js; command: must exit with 0; run: a function that must not return False and must not raise.
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


class Task(NamedSpec, Generic[T_co], frozen=True, kw_only=True):
    """One unit of work: a function (`run`), a command (`command`), or nothing but a message to wait for (`receive`).

    depends_on: tasks that must end good before it starts; after: tasks that must only have ended. The four limits
    (durations): queue_timeout (queued until started), timeout (one attempt), heartbeat_timeout (between two heartbeats
    of a body), total_timeout (all attempts together, from first queueing). priority: higher first. args: JSON values
    that a function reads as `task.args` (never pasted into a command line). secrets: names of values that it receives
    at its start (`task.secrets`, or environment variables), and that are stored nowhere. hold: the approval that it
    needs before it is queued; wait: the least time until then (a duration, or a point in time as ISO 8601 with its
    zone). Both begin when its dependencies are satisfied and its condition is met; both must pass.

    cancel_hooks run, in order, when it is cancelled gracefully while it runs: after its body has ended, and before it
    becomes cancelled; together they have cancel_timeout (duration, 30 s unless set). cleanup_on_cancel: whether they
    run (seed 003; yes unless set). save_partial_output: whether the output of a stopped command is kept (yes unless
    set). checkpoint: whether the data that the body saves (`TaskContext.checkpoint`) are kept, so that a cancelled task
    can be resumed (yes unless set). lifecycle: the lifecycle that gives its states and events (DESIGN 5): the name of a
    published lifecycle or of one that the runtime was given, an import path, or a `Lifecycle`; "own" is the runtime's
    own, whatever its workstream sets.

    receive: the name of the message that it waits for, without a slot; its result is the message's value. `timeout` is
    then how long it waits from its start, without a limit unless set, and the end of that time is final: the task fails
    with ReceiveTimeout, and no default of its workstream or runtime limits the wait or tries it again.

    For type checkers it is `Task[T]` with the type that its function returns, and `Outcome.result(task)` is a T; with a
    path, a command or a message it is `Task[Any]`.
    """

    if TYPE_CHECKING:
        run: Callable[..., T_co] | str | None = None
    else:
        run: Body = None
    command: list[str] | str | None = None
    shell: bool = False
    env: dict[str, str] = {}
    cwd: str | None = None
    expected_exit_codes: list[int] = msgspec.field(default_factory=[0].copy)
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
    receive: str | None = None


class Defaults(Spec, frozen=True, kw_only=True):
    """Default values for the tasks of a workstream or of a whole runtime. Durations.

    checkpoint_on: the states in which a task's checkpoint or result is kept for its next attempt or run (all, unless
    set); an interrupted task keeps it always. park_cooldown: the time until a task that is parked with its
    attempts used up gets one more attempt (its tool's cooldown, unless set).
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


class Workstream(NamedSpec, frozen=True, kw_only=True):
    """A graph of tasks that runs as one.

    max_parallel: attempts of this workstream at the same time. worker_count: slots (1 to 10) that its job reserves for
    itself and its children before it begins, all or none. deadline (duration, from its job's creation): it is cancelled
    then, with that reason. retry: a failed run is followed by another one, after a backoff. hold, wait: as a task's,
    before any task of it begins. checks: the final validation, run when every task has ended well enough. cancel_hooks:
    run, in order, when it is cancelled gracefully (not when it fails), after all its tasks have ended and before it
    becomes cancelled; together they have the cancel_timeout of its defaults. folder: where the modules of its functions
    are looked for first; loading a specification file sets its folder. lifecycle: as a task's, for itself, its job and
    its tasks, as far as the lifecycle has states for them. archive: whether its job, with its children, is moved from
    the journal into a file, after it has ended and the runtime was left (seed 001). request_id_headers: the headers
    that name the deliveries of its webhooks (`["X-GitHub-Delivery"]`, in any case): a message that comes by HTTP under
    the same value of the first of these that it has is sent once. description: its purpose, for
    people (seed 002's `task_description`): at most `LONGEST_DESCRIPTION` characters. Workstreams that differ in it only
    count as the same.
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
    request_id_headers: list[str] = []


class Worker(NamedSpec, frozen=True, kw_only=True):
    """A worker that the runtime starts: its engine, its capacity (attempts at the same time), and its abilities.

    With the engine "process" it stands for as many workers as its capacity, each with a process of its own: `name-1`,
    `name-2`, ... recycle_after: attempts that one such process runs before a new one replaces it (no limit, unless
    set).

    With the engine "ray" it is an actor on a Ray cluster. resources: the resources that it reserves there, by Ray's
    names ("CPU", "GPU", "memory" in bytes, or one of the cluster's own); labels: labels of its node. Each of them is an
    ability, too: the name of a resource, and "label=value". count: the number of workers that it stands for, as of
    processes.

    metadata: data for people and their tools (seed 002), at most `LARGEST_METADATA` bytes as JSON.
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
        """The workers for which this one stands."""
        number = self.count if self.engine == "ray" else self.capacity if self.engine == "process" else 1
        if (number or 1) == 1:
            return [self]
        capacity = 1 if self.engine == "process" else self.capacity
        return [
            msgspec.structs.replace(self, name=f"{self.name}-{one}", capacity=capacity, count=None)
            for one in range(1, (number or 1) + 1)
        ]

    def abilities(self) -> list[str]:
        """All its abilities: its capabilities, resources and labels."""
        if not self.resources and not self.labels:
            return self.capabilities
        more = [*self.resources, *(f"{name}={value}" for name, value in self.labels.items())]
        return [*self.capabilities, *(one for one in more if one not in self.capabilities)]


class HealthChecks(Spec, frozen=True, kw_only=True):
    """How a runtime watches its workers. All but `misses` and `restarts` are durations.

    interval: between two health checks of a worker that has a process of its own; misses: unanswered checks in a row
    that make it unresponsive; expire: how long it may stay unresponsive before it fails. start_timeout: until a worker
    is ready (on a Ray cluster at least 300 s); drain_deadline: how long the attempts of a worker that shuts down may go
    on. cooldown: how long a worker that ran out of memory, disk or descriptors takes no new attempt. loop_blocked: a
    notice reports an event loop that did not turn for this long (0: never). restarts: how often, and after what delays,
    dead workers are replaced.
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
        """Check the values. Raises ValueError."""
        if type(plain(self.misses)) is not int or self.misses < 1:
            raise ValueError(f"HealthChecks: misses={shown(self.misses)}: a whole number, at least 1")
        if not is_a(self.restarts, Supervision):
            raise TypeError(f"HealthChecks: restarts={shown(self.restarts)}: a Supervision(intensity=..., period=...)")
        for name in ("interval", "expire", "start_timeout", "drain_deadline", "cooldown", "loop_blocked"):
            try:
                seconds(getattr(self, name))
            except (TypeError, ValueError) as error:
                raise ValueError(f"HealthChecks: {name}: {error}") from None
        if seconds(self.interval) <= 0:
            raise ValueError(f"HealthChecks: interval={self.interval!r}: above 0 seconds")
