"""The limits of a task, with unset values filled in: task over tool over workstream over runtime.

Rules:
- Numbers are seconds and counts; every value that has a default (DESIGN section 4) is filled in.
- A failure is retried only if the task, its tool or its workstream sets `retry`; otherwise there is one attempt. The
  one exception are transient errors (a broken connection): three attempts in all, unless the task must not run twice,
  or has a tool, whose breaker handles them.
- `max_attempts = max_retries + 1` (DESIGN 5.7).
- A task that only receives a message has one attempt without a limit of its own: no defaults limit its wait, and the
  deadline of the receive is final.
- Equal inputs give the same object, so that 100,000 tasks without settings of their own share one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from ..times import LONGEST, Duration, seconds
from .lifecycles import Lifecycles
from .model import ALLOWED, Allowed, Breaker, Defaults, OnExhausted, OnLoss, Retry, Task, Tool, Workstream

ATTEMPT_TIMEOUT = 300.0
VALIDATION_TIMEOUT = 30.0
UNROUTABLE_TIMEOUT = 600.0
KILL_GRACE = 10.0
RECOVERY_TIMEOUT = 60.0
MAX_ATTEMPTS = 5
MAX_LOSSES = 3
MOST_LOSSES = 1_000_000_000
"""The losses allowed to a task that only receives a message: a crash interrupts nothing in such a task."""
PASSING_ATTEMPTS = 3
CANCEL_TIMEOUT = 30.0
NO_TOOLS: Mapping[str, Tool] = MappingProxyType({})


class Limits(msgspec.Struct, frozen=True):
    """One task's limits, in seconds and counts; None means there is no such limit."""

    retry: Retry
    allowed: Allowed
    timeout: float
    queue_timeout: float | None
    heartbeat_timeout: float | None
    total_timeout: float | None
    unroutable_timeout: float
    validation_timeout: float
    kill_grace: float
    recovery_timeout: float
    max_error_repeats: int | None
    tries_passing: bool  # `retry` is not set, and the task may run twice: transient errors are retried
    cancel_timeout: float
    cleanup_on_cancel: bool
    save_partial_output: bool
    checkpoint: bool
    checkpoint_on: frozenset[str] | None  # the states in which a checkpoint is kept; None: all
    park_cooldown: float | None  # seconds until an exhausted task gets one more attempt; None: as its tool's breaker
    lifecycle: str | None = None  # None: the runtime's own

    def keeps(self, state: str, previous: str | None) -> bool:
        """Whether a task's checkpoint and result are kept when it enters `state` from the state `previous`."""
        if self.checkpoint_on is None or previous == "recovering":
            return True
        states = {str(state)}
        if state in {"retrying", "failed"}:
            states.add("timed_out" if previous == "timed_out" else "failed")
        return not self.checkpoint_on.isdisjoint(states)


class LimitsResolver:
    """Computes the limits of one workstream's tasks, under a runtime's defaults."""

    def __init__(
        self,
        workstream: Workstream,
        runtime: Defaults,
        tools: Mapping[str, Tool] = NO_TOOLS,
        lifecycles: Lifecycles | None = None,
    ) -> None:
        self._workstream = workstream
        self._runtime = runtime
        self._tools = tools  # the runtime's
        self._lifecycles = lifecycles or Lifecycles()
        self._shared: dict[tuple[str | None, str | None, bool], Limits] = {}

    def of(self, task: Task) -> Limits:
        """The limits of `task`."""
        if task.lifecycle is None:
            return self.under(task, self._lifecycle)
        return self.under(task, self._lifecycles.of("task", task.lifecycle, self._workstream.lifecycle))

    @cached_property
    def _lifecycle(self) -> str | None:
        """The lifecycle of the tasks that name none."""
        return self._lifecycles.of("task", self._workstream.lifecycle)

    def under(self, task: Task, lifecycle: str | None) -> Limits:
        """The limits of `task`, which runs by the lifecycle of that name."""
        if _said_by(task) != _NOTHING:
            return self._resolve(task, lifecycle)
        key = task.tool, lifecycle, lifecycle is not None and task.optional
        if key not in self._shared:
            self._shared[key] = self._resolve(task, lifecycle)
        return self._shared[key]

    def _resolve(self, task: Task, lifecycle: str | None) -> Limits:
        tool = effective(task.tool, self._workstream.tools, self._tools)
        sources: tuple[Any, ...] = (task, tool, self._workstream.defaults, self._runtime)
        if lifecycle is not None:
            its = self._lifecycles.defaults(lifecycle, "task")
            # An optional task does not park: its workstream would wait for an operator, perhaps forever.
            sources = (*sources, replace(its, on_exhausted=None) if task.optional else its)

        def declared(field: str) -> Any:  # the fields differ in type; each use below states its own
            for source in sources:  # a loop, since a generator costs twice as much, twenty times a workstream
                value = getattr(source, field, None)
                if value is not None:
                    return value
            return None

        retry: Retry | None = declared("retry")
        limits = Limits(
            retry=retry or Retry(),
            allowed=_allowed(
                attempts(retry),
                MAX_LOSSES if (losses := declared("max_losses")) is None else losses,
                declared("on_loss") or "rerun",
                declared("on_exhausted") or "fail",
            ),
            timeout=_number(declared("timeout"), ATTEMPT_TIMEOUT),
            queue_timeout=_optional(declared("queue_timeout")),
            heartbeat_timeout=_optional(declared("heartbeat_timeout")),
            total_timeout=_optional(declared("total_timeout")),
            unroutable_timeout=_number(declared("unroutable_timeout"), UNROUTABLE_TIMEOUT),
            validation_timeout=_number(declared("validation_timeout"), VALIDATION_TIMEOUT),
            kill_grace=_number(declared("kill_grace"), KILL_GRACE),
            recovery_timeout=_number(declared("recovery_timeout"), RECOVERY_TIMEOUT),
            max_error_repeats=declared("max_error_repeats"),
            tries_passing=retry is None and task.tool is None and declared("on_loss") in {None, "rerun"},
            cancel_timeout=_number(declared("cancel_timeout"), CANCEL_TIMEOUT),
            cleanup_on_cancel=declared("cleanup_on_cancel") is not False,
            save_partial_output=declared("save_partial_output") is not False,
            checkpoint=declared("checkpoint") is not False,
            checkpoint_on=None if (kept := declared("checkpoint_on")) is None else frozenset(kept),
            park_cooldown=_optional(declared("park_cooldown")),
            lifecycle=lifecycle,
        )
        return limits if task.receive is None else replace(limits, **_OF_RECEIVES)


_OF_RECEIVES: dict[str, Any] = {
    "retry": Retry(), "allowed": Allowed(max_losses=MOST_LOSSES), "timeout": LONGEST, "heartbeat_timeout": None,
    "total_timeout": None, "max_error_repeats": None, "tries_passing": False,
}  # fmt: skip
"""The limits of a task that only receives a message: the deadline of that wait is in its step (`task.receive`)."""
_said_by = attrgetter(
    "retry", "timeout", "queue_timeout", "heartbeat_timeout", "total_timeout", "unroutable_timeout", "kill_grace",
    "max_error_repeats", "max_losses", "on_loss", "on_exhausted", "cancel_timeout", "cleanup_on_cancel",
    "save_partial_output", "checkpoint", "receive",
)  # fmt: skip
_NOTHING = (None,) * 16


@lru_cache(maxsize=64)  # ten thousand tasks share a few values
def _allowed(max_attempts: int, max_losses: int, on_loss: OnLoss, on_exhausted: OnExhausted) -> Allowed:
    said = Allowed(max_attempts=max_attempts, max_losses=max_losses, on_loss=on_loss, on_exhausted=on_exhausted)
    return ALLOWED if said == ALLOWED else said  # the default is not written to the record


def attempts(retry: Retry | None) -> int:
    """How many attempts a retry policy allows; one without a policy."""
    if retry is None:
        return 1
    if retry.max_attempts is not None:
        return retry.max_attempts
    return MAX_ATTEMPTS if retry.max_retries is None else retry.max_retries + 1


def effective(name: str | None, said: Mapping[str, Tool], over: Mapping[str, Tool]) -> Tool | None:
    """The settings of a tool for the tasks of one workstream: `said` is its own tools, `over` the runtime's.

    The breaker, which all tasks share, comes from the runtime first, the rest from the workstream first. Of two
    `max_parallel` the lower applies; `actors/workers/tool_limits.py` compares those of other workstreams.
    """
    if name is None:
        return None
    own, shared = said.get(name), over.get(name)
    if own is None or shared is None:
        return own or shared
    return Tool(
        max_parallel=min((n for n in (own.max_parallel, shared.max_parallel) if n is not None), default=None),
        breaker=shared.breaker or own.breaker,
        retry=own.retry or shared.retry,
        timeout=shared.timeout if own.timeout is None else own.timeout,
    )


def inheriting(child: Workstream, parent: Workstream) -> Workstream:
    """The workstream of a child job, with unset values taken from its parent's.

    These are each setting of `defaults`, and `retry` and `timeout` of each tool, also of tools that only a child of the
    child will use. `max_parallel` and the breaker of a tool apply to all workstreams anyway.
    """
    defaults = replace(child.defaults, **_unsaid(child.defaults, parent.defaults, Defaults.__struct_fields__))
    tools = dict(child.tools)
    for name, over in parent.tools.items():
        own = tools.get(name, Tool())
        if more := _unsaid(own, over, ("retry", "timeout")):
            tools[name] = replace(own, **more)
    if defaults == child.defaults and tools == child.tools:
        return child
    return replace(child, defaults=defaults, tools=tools)


def _unsaid(own: Defaults | Tool, over: Defaults | Tool, fields: Iterable[str]) -> dict[str, Any]:
    """The values of these fields that only `over` sets."""
    said = {name: getattr(over, name) for name in fields if getattr(own, name) is None}
    return {name: value for name, value in said.items() if value is not None}


def breaker_of(tool: Tool | None) -> Breaker:
    """The breaker settings of a tool, declared or not."""
    return (tool and tool.breaker) or Breaker()


def _number(value: Duration | None, default: float) -> float:
    return default if value is None else seconds(value)


def _optional(value: Duration | None) -> float | None:
    return None if value is None else seconds(value)
