"""The check of a whole specification before it is journaled (DESIGN, end of section 9).

Rules:
- Pure: nothing is imported, opened or started. Total: nothing is raised half-way, all findings come at once.
- O(tasks + edges), and without recursion: a chain of 10,000 tasks is ordinary.
- Types first (`schema.py`): a value of the wrong type gives one finding, and its field then counts as not set,
  so that values that depend on it give no further finding.
- Names become file names and paths on every system, and must be valid on all of them.
- A tool that a task names need not be declared: it then has the defaults. Its name is checked in the same way.

The parts of a specification are checked here, by `_Checker.workstream` and `.task`; `fields.py` checks single
values, functions and commands, `names.py` names, `holds.py` approvals and waits, `graph.py` edges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ...machines import TaskState
from ...machines.keywords import did_you_mean
from ...machines.machine import answers_later
from ..user_code import contained, message_of
from .backoff import WaitError, decode_wait, encode_wait, is_strategy
from .error_names import name_finding
from .fields import Bodies, Fields
from .graph import edge_findings
from .holds import approval_findings, protection_findings
from .lifecycles import Lifecycles
from .model import (
    LARGEST_METADATA,
    LONGEST_DESCRIPTION,
    MOST_ACTORS,
    MOST_CAPACITY,
    MOST_SLOTS,
    ON_CLUSTER,
    Alert,
    Approval,
    Breaker,
    Check,
    Condition,
    Defaults,
    Hook,
    Retry,
    Task,
    Tool,
    Worker,
    Workstream,
)
from .names import folded, message_name_problem, name_problem
from .schema import (
    MOST_FINDINGS,
    EnoughFindings,
    Finding,
    Path,
    beside,
    note,
    plain_problem,
    read,
    short,
    sound,
)

__all__ = ["Finding", "SpecificationError", "findings", "hook_findings", "name_problem", "worker_findings"]

_TOLD = 100  # findings that an error's text lists

_MODULE = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"

# Duration fields that must be more than 0, and those where 0 means "at once".
_TASK_LIMITS = (
    "timeout", "queue_timeout", "heartbeat_timeout", "total_timeout", "unroutable_timeout", "cancel_timeout",
)  # fmt: skip
_DEFAULT_LIMITS = (*_TASK_LIMITS, "validation_timeout")
_STATES = [str(state) for state in TaskState]
_CHECKS = ("file", "changed", "imports", "imports_js", "command", "run")
_HOOKS = ("cancel_hooks", "on_completed", "on_failed", "on_cancelled")
_COMMAND_ONLY: dict[str, object] = {
    "env": {},
    "cwd": None,
    "expected_exit_codes": [0],
    "max_output": 1_048_576,
}

_NO_BODY = "is for a body, and this task has none: it only receives a message", "remove it"
_ONE_LIMIT = "the only limit of a task that receives a message is its timeout", "give that"
_ONCE = (
    "a task that receives a message waits once: the end of its timeout is final",
    "give a longer timeout, or a body that calls `task.receive`",
)
_NOT_OF_RECEIVES = {
    **dict.fromkeys(
        ("args", "secrets", "tool", "engine", "capabilities", "kill_grace", "max_losses", "on_loss",
         "save_partial_output", "checkpoint", *_COMMAND_ONLY),
        _NO_BODY,
    ),
    **dict.fromkeys(("heartbeat_timeout", "total_timeout"), _ONE_LIMIT),
    **dict.fromkeys(("retry", "max_error_repeats", "on_exhausted"), _ONCE),
}  # fmt: skip
"""Settings that a task with `receive` cannot have, each with the reason and an advice."""


class SpecificationError(ValueError):
    """A specification was refused, nothing was journaled. Correct its `findings`, and submit again."""

    def __init__(self, findings: Sequence[Finding], source: str = "this specification") -> None:
        self.findings = list(findings)
        self.source = source
        super().__init__(self.findings, source)

    def __str__(self) -> str:
        count = len(self.findings)
        head = f"{count} thing{'s are' if count > 1 else ' is'} wrong in {self.source}:"
        more = [f"… and {count - _TOLD:,} more"] if count > _TOLD else []
        return "\n  ".join([head, *map(str, self.findings[:_TOLD]), *more])


def findings(
    workstream: Workstream, *, bodies: Bodies | None = None, lifecycles: Lifecycles | None = None
) -> list[Finding]:
    """All faults of a workstream, in its own order; empty if it can be run.

    bodies: finds the function of an import path or registered name, and raises LookupError, with a text for
    the user, if there is none; without it, only the form of paths is checked. lifecycles: the known lifecycles; the
    published ones, unless given.
    """
    return _checked(workstream, Workstream, lambda checker, value: checker.workstream(value), bodies, lifecycles)[1]


def examined(
    workstream: Workstream, *, bodies: Bodies | None, lifecycles: Lifecycles
) -> tuple[Workstream, list[Finding]]:
    """As `findings`, and the workstream with typed values: tables become the Structs that they describe."""
    return _checked(workstream, Workstream, lambda checker, value: checker.workstream(value), bodies, lifecycles)


def worker_findings(workers: Sequence[Worker], *, lifecycles: Lifecycles | None = None) -> list[Finding]:
    """All faults of a list of workers, with places under `workers`."""

    class Workers(msgspec.Struct):
        workers: list[Worker]

    def check(checker: _Checker, value: Workers) -> None:
        checker.names([worker.name for worker in value.workers], ("workers",), "worker")
        checker.worker_names(value.workers)
        for index, worker in enumerate(value.workers):
            checker.worker(worker, ("workers", index))

    return _checked(Workers(list(workers)), Workers, check, None, lifecycles)[1]


def hook_findings(hook: Hook) -> list[Finding]:
    """All faults of one hook or check, with places under `check`."""
    return _checked(hook, Hook, lambda checker, value: checker.called(value, ("check",)), None)[1]


def retry_findings(retry: Retry) -> list[Finding]:
    """All faults of a retry that is not journaled, such as a step's: its `wait` may be any function."""
    if callable(retry.wait) and not is_strategy(retry.wait) and not answers_later(retry.wait):
        retry = msgspec.structs.replace(retry, wait=None)
    return _checked(retry, Retry, lambda checker, value: checker.retry(value, ("retry",)), None)[1]


def approval_problems(rule: Approval, *, bodies: Bodies | None = None) -> list[Finding]:
    """All faults of an approval; `bodies` as for `findings`."""
    return _checked(rule, Approval, lambda checker, value: approval_findings(checker, value, ()), bodies)[1]


def _checked(
    value: Any,
    kind: type[Any],
    check: Callable[[_Checker, Any], None],
    bodies: Bodies | None,
    lifecycles: Lifecycles | None = None,
) -> tuple[Any, list[Finding]]:
    """The value with the right types throughout, and its faults."""
    try:
        return _looked_at(value, kind, check, bodies, lifecycles)
    except BaseException as error:  # the value may run code of its own, as for its class
        return value, [Finding("", f"it cannot be read: its own code raised {message_of(contained(error))}")]


def _looked_at(
    value: Any,
    kind: type[Any],
    check: Callable[[_Checker, Any], None],
    bodies: Bodies | None,
    lifecycles: Lifecycles | None,
) -> tuple[Any, list[Finding]]:
    if _sound(value):
        try:
            checker = _Checker(bodies, lifecycles)
            with suppress(EnoughFindings):
                check(checker, value)
        except (TypeError, AttributeError):
            pass  # a date or the like is encoded as the expected text: read() reports it
        else:
            return value, checker.findings
    cleaned, found = read(value, kind)
    checker = _Checker(bodies, lifecycles)
    if len(found) < MOST_FINDINGS:
        with suppress(EnoughFindings):
            check(checker, cleaned)
    return cleaned, found + beside(found, checker.findings)


def _sound(value: Any) -> bool:
    """Check task by task: temporary objects are freed at once, which spares the garbage collector."""
    if not isinstance(value, Workstream) or type(value.tasks) is not list:
        return sound(value)
    tasks = value.tasks
    if not all(type(task) is Task and sound(task) for task in tasks):
        return False
    return sound(msgspec.structs.replace(value, tasks=[]))


class _Checker(Fields):
    """One check of one specification, whose values have the right types."""

    def __init__(self, bodies: Bodies | None, lifecycles: Lifecycles | None = None) -> None:
        super().__init__(bodies)
        self._lifecycles = lifecycles or Lifecycles()
        self._over: str | None = None  # the workstream's

    def workstream(self, spec: Workstream) -> None:
        if problem := name_problem(spec.name):
            self.bad(("name",), f"the name {short(spec.name)} {problem}")
        if len(spec.description or "") > LONGEST_DESCRIPTION:
            text = f"has {len(spec.description or ''):,} characters, and may have {LONGEST_DESCRIPTION:,}"
            self.bad(("description",), text, "keep the rest in `args`, or in a file")
        self.at_least(("max_parallel",), spec.max_parallel, 1)
        if spec.worker_count is not None and not 1 <= spec.worker_count <= MOST_SLOTS:
            self.bad(("worker_count",), f"must be 1 to {MOST_SLOTS}, not {spec.worker_count}")
        self.limit(("deadline",), spec.deadline)
        protection_findings(self, spec, ())
        self._over = self.lifecycle(spec.lifecycle, (), ("workstream", "task", "job"))
        if spec.retry is not None:
            self.retry(spec.retry, ("retry",))
        self.defaults(spec.defaults, ("defaults",))
        self.names(list(spec.tools), ("tools",), "tool", keyed=True)
        for name, tool in spec.tools.items():
            self.tool(tool, ("tools", name))
        self.environment(spec.env, ("env",))
        if spec.secrets:
            self.secrets(spec.secrets, spec.env, ("secrets",))
        self.folder(spec.cwd, ("cwd",))
        self.folder(spec.folder, ("folder",))
        self.headers(spec.request_id_headers, ("request_id_headers",))
        for index, check in enumerate(spec.checks):
            self.check(check, ("checks", index))
        self.hooks(spec, ())
        self.alerts(spec.alerts, ("alerts",))
        self.names([task.name for task in spec.tasks], ("tasks",), "task")
        for index, task in enumerate(spec.tasks):
            if task.run is not None and _says_no_more(task):
                self.function(task.run, ("tasks", index, "run"))
            else:
                self.task(task, ("tasks", index))
        for finding in edge_findings(spec.tasks):
            note(self.findings, finding)

    def task(self, task: Task, at: Path) -> None:
        self.body(task, at, engine=task.engine)
        if task.receive is not None:
            self.receive_settings(task, at)
        elif task.command is None:
            self.function_settings(task, at)
        else:
            self.command_settings(task, at)
        if task.secrets:
            self.secrets(task.secrets, {**task.args, **task.env}, (*at, "secrets"))
        if task.args and (problem := plain_problem(task.args)):
            self.bad((*at, "args"), f"not a JSON value: {problem}", "use text, numbers, lists and tables")
        if task.tool is not None and (problem := name_problem(task.tool)):
            self.bad((*at, "tool"), f"the name {short(task.tool)} {problem}")
        for index, capability in enumerate(task.capabilities):
            if not capability.strip():
                self.bad((*at, "capabilities", index), "is empty")
        if task.condition is not None:
            self.called(task.condition, (*at, "condition"))
        protection_findings(self, task, at)
        if task.lifecycle is not None or task.optional:
            self.by_lifecycle(task, at)
        self.policies(task, at, _TASK_LIMITS)
        for index, check in enumerate(task.checks):
            self.check(check, (*at, "checks", index))
        self.hooks(task, at)

    def function_settings(self, task: Task, at: Path) -> None:
        if task.run is None:
            return
        for name, default in _COMMAND_ONLY.items():
            if getattr(task, name) != default:
                self.bad((*at, name), "is for commands, and this task runs a function", "remove it")

    def receive_settings(self, task: Task, at: Path) -> None:
        """Check the name of the message, and that the settings make sense for a task without a body."""
        if (problem := message_name_problem(task.receive or "")) is not None:
            self.bad((*at, "receive"), f"{short(task.receive)} {problem}", 'write a name as "payment"')
        if task.run is not None or task.command is not None:
            return  # which of them is meant is not known
        for name, (text, advice) in _NOT_OF_RECEIVES.items():
            if getattr(task, name) != getattr(_NOTHING_SAID, name):
                self.bad((*at, name), text, advice)

    def command_settings(self, task: Task, at: Path) -> None:
        if task.heartbeat_timeout is not None:
            self.bad((*at, "heartbeat_timeout"), "a command sends no heartbeats", "use timeout, or remove it")
        self.environment(task.env, (*at, "env"))
        self.folder(task.cwd, (*at, "cwd"))
        self.at_least((*at, "max_output"), task.max_output, 0)
        if not task.expected_exit_codes:
            self.bad((*at, "expected_exit_codes"), "is empty: no exit code would mean success", "write [0]")
        for index, code in enumerate(task.expected_exit_codes):
            if not -64 <= code <= 0xFFFFFFFF:
                self.bad(
                    (*at, "expected_exit_codes", index),
                    f"{code} is no exit code",
                    "0 to 255, or minus a signal",
                )

    def lifecycle(self, given: object, at: Path, kinds: Sequence[str]) -> str | None:
        """Check that a lifecycle exists and has states for one of these kinds. Returns its name, if so."""
        if given is None:
            return None
        here = (*at, "lifecycle")
        try:
            name, lifecycles = self._lifecycles.find(given)
        except (LookupError, ValueError) as error:
            self.bad(here, str(error.args[0] if error.args else error))
            return None
        if lifecycles and not any(kind in lifecycles for kind in kinds):
            self.bad(here, f"{short(name)} has no states for a {kinds[0]}, but for a {' and a '.join(lifecycles)}")
            return None
        return name

    def by_lifecycle(self, task: Task, at: Path) -> None:
        """The lifecycle of a task, and whether that lets it be optional."""
        name = self.lifecycle(task.lifecycle, at, ("task",))
        if not task.optional:
            return
        over, default = self._over, self._lifecycles.default
        found = self._lifecycles.of("task", name, over, default)
        around = self._lifecycles.of("workstream", over, default)
        for kind, its in (("task", found), ("workstream", around if around == found else None)):
            if its is not None and self._lifecycles.get(its, kind).optional == "refused":
                text = f"the lifecycle {short(its)} has no optional tasks: a workstream completes only with all of them"
                self.bad((*at, "optional"), text, 'remove it, or give the task another, as lifecycle = "own"')
                return

    def policies(self, spec: Task | Defaults, at: Path, limits: Iterable[str]) -> None:
        """Check the fields that tasks and defaults have in common."""
        for name in limits:
            if (value := getattr(spec, name)) is not None:
                self.limit((*at, name), value)
        if spec.retry is not None:
            self.retry(spec.retry, (*at, "retry"))
        if spec.kill_grace is not None:
            self.duration((*at, "kill_grace"), spec.kill_grace)
        if spec.max_error_repeats is not None:
            self.at_least((*at, "max_error_repeats"), spec.max_error_repeats, 1)
        if spec.max_losses is not None:
            self.at_least((*at, "max_losses"), spec.max_losses, 0)

    def defaults(self, spec: Defaults, at: Path) -> None:
        self.policies(spec, at, _DEFAULT_LIMITS)
        self.duration((*at, "recovery_timeout"), spec.recovery_timeout)
        self.duration((*at, "park_cooldown"), spec.park_cooldown)
        for index, state in enumerate(spec.checkpoint_on or ()):
            if state not in _STATES:
                advice = did_you_mean(state, _STATES) or f"there are: {', '.join(_STATES)}"
                self.bad((*at, "checkpoint_on", index), f"{short(state)} is no state of a task", advice)

    def tool(self, spec: Tool, at: Path) -> None:
        self.at_least((*at, "max_parallel"), spec.max_parallel, 1)
        self.limit((*at, "timeout"), spec.timeout)
        if spec.retry is not None:
            self.retry(spec.retry, (*at, "retry"))
        if spec.breaker is not None:
            self.breaker(spec.breaker, (*at, "breaker"))

    def breaker(self, spec: Breaker, at: Path) -> None:
        self.at_least((*at, "failure_threshold"), spec.failure_threshold, 1)
        self.at_least((*at, "success_threshold"), spec.success_threshold, 1)
        for index, kind in enumerate(spec.ignore):
            if (found := name_finding(kind, self.finder)) is not None:
                self.bad((*at, "ignore", index), *found)
        self.duration((*at, "cooldown"), spec.cooldown)
        self.lifecycle(spec.lifecycle, at, ("breaker",))

    def retry(self, spec: Retry, at: Path) -> None:
        if spec.max_attempts is not None and spec.max_retries is not None:
            self.bad(
                (*at, "max_retries"),
                "max_attempts and max_retries are both given",
                "give one: tries are retries + 1",
            )
        self.at_least((*at, "max_attempts"), spec.max_attempts, 1, "write 1 for a single try")
        self.at_least((*at, "max_deferrals"), spec.max_deferrals, 0)
        self.at_least((*at, "max_retries"), spec.max_retries, 0)
        if not 0 <= spec.jitter <= 1:
            self.bad(
                (*at, "jitter"),
                f"must be between 0 and 1, not {spec.jitter}",
                "0.25 means plus or minus 25 %",
            )
        base = self.duration((*at, "base_delay"), spec.base_delay)
        longest = self.duration((*at, "max_delay"), spec.max_delay)
        if base is not None and longest is not None and base > longest:
            self.bad(
                (*at, "base_delay"),
                f"the first delay ({base:g} s) is above max_delay ({longest:g} s)",
                "raise max_delay",
            )
        self.wait(spec.wait, (*at, "wait"))

    def wait(self, wait: object, at: Path) -> None:
        if wait is None:
            return
        try:
            if is_strategy(wait):
                encode_wait(wait)
            elif answers_later(wait):
                self.bad(at, "is async or a generator, but must return seconds at once", "write a plain function")
            elif isinstance(wait, str) or callable(wait):
                self.function(wait, at)
            else:
                decode_wait(wait)
        except WaitError as error:
            self.bad(at, str(error))

    def hooks(self, spec: Task | Workstream, at: Path) -> None:
        for name in _HOOKS:
            for index, hook in enumerate(getattr(spec, name)):
                self.called(hook, (*at, name, index))
        cleanup = spec.cleanup_on_cancel if isinstance(spec, Task) else spec.defaults.cleanup_on_cancel
        if spec.cancel_hooks and cleanup is False:
            self.bad((*at, "cancel_hooks"), "would never run, since cleanup_on_cancel is off", "remove one of the two")

    def alerts(self, alerts: Sequence[Alert], at: Path) -> None:
        for index, alert in enumerate(alerts):
            here = (*at, index)
            self.called(alert, here)
            self.at_least((*here, "max_alerts"), alert.max_alerts, 1)
            self.limit((*here, "period"), alert.period)

    def called(self, spec: Hook | Condition | Alert, at: Path) -> None:
        self.body(spec, at)
        self.limit((*at, "timeout"), spec.timeout)

    def check(self, spec: Check, at: Path) -> None:
        given = [name for name in _CHECKS if getattr(spec, name) is not None]
        if len(given) != 1:
            kinds = f"{', '.join(_CHECKS[:-1])} and {_CHECKS[-1]}"
            self.bad(at, f"a check has exactly one of {kinds}, not {_listed(given)}")
        for name in ("file", "changed", "imports_js"):
            self.folder(getattr(spec, name), (*at, name))
        if spec.imports is not None and not re.fullmatch(_MODULE, spec.imports):
            self.bad((*at, "imports"), f"{short(spec.imports)} is no module's name", 'write it as "package.module"')
        if spec.run is not None:
            self.function(spec.run, (*at, "run"))
        self.command(spec.command, spec.shell, at)
        self.limit((*at, "timeout"), spec.timeout)

    def worker(self, spec: Worker, at: Path) -> None:
        most = MOST_CAPACITY.get(spec.engine, MOST_CAPACITY["loop"])
        self.at_least((*at, "capacity"), spec.capacity, 1)
        if spec.capacity is not None and most < spec.capacity <= 2**53:
            self.bad((*at, "capacity"), f"must be at most {most:,} of engine {spec.engine!r}, not {spec.capacity:,}")
        self.at_least((*at, "recycle_after"), spec.recycle_after, 1)
        self.lifecycle(spec.lifecycle, at, ("worker",))
        if spec.recycle_after is not None and spec.engine not in ("process", ON_CLUSTER):
            self.bad((*at, "recycle_after"), f"is for processes, and engine {spec.engine!r} has none", "remove it")
        for index, capability in enumerate(spec.capabilities):
            if not capability.strip():
                self.bad((*at, "capabilities", index), "is empty")
        self._metadata(spec.metadata, (*at, "metadata"))
        self._on_cluster(spec, at)

    def _metadata(self, given: dict[str, Any], at: Path) -> None:
        if not given:
            return
        if problem := plain_problem(given):
            self.bad(at, f"not a JSON value: {problem}", "use text, numbers, lists and tables")
        elif (size := len(msgspec.json.encode(given))) > LARGEST_METADATA:
            self.bad(at, f"has {size:,} bytes as JSON, and may have {LARGEST_METADATA:,}", "name a place with the rest")

    def _on_cluster(self, spec: Worker, at: Path) -> None:
        """Check the fields that only workers on a cluster have."""
        for name in ("resources", "labels", "count"):
            if getattr(spec, name) and spec.engine != ON_CLUSTER:
                self.bad((*at, name), f"is for workers on a cluster, and engine {spec.engine!r} has none", "remove it")
        self.at_least((*at, "count"), spec.count, 1)
        if spec.count is not None and MOST_ACTORS < spec.count <= 2**53:
            self.bad((*at, "count"), f"must be at most {MOST_ACTORS:,}, not {spec.count:,}")
        for name, amount in spec.resources.items():
            if not name.strip() or not 0 < amount < float("inf"):
                self.bad((*at, "resources", name), f"needs a name and a number above 0, not {amount:g}")
        for name in spec.labels:
            if not name.strip():
                self.bad((*at, "labels"), "has a label without a name")

    def worker_names(self, workers: Sequence[Worker]) -> None:
        """Check that the workers of a `Worker` with several processes have unused names."""
        given = {folded(worker.name): worker.name for worker in workers}
        for index, worker in enumerate(workers):
            if (worker.capacity or 1) > MOST_CAPACITY["process"] and worker.engine == "process":
                continue  # a finding reports it already
            if (worker.count or 1) > MOST_ACTORS:
                continue
            for one in worker.each():
                if one.name != worker.name and (same := given.get(folded(one.name))) is not None:
                    part = "an actor" if worker.engine == ON_CLUSTER else "a process"
                    text = f"{short(worker.name)} has {part} named {short(one.name)}, as has {short(same)}"
                    self.bad(("workers", index, "name"), text, "give one of them another name")


def _says_no_more(task: Task) -> bool:
    """Whether a task has only a name, a function and edges, as most tasks: there is nothing else to check."""
    return msgspec.structs.replace(task, name="", run=None, depends_on=[], after=[]) == _NOTHING_SAID


_NOTHING_SAID = Task("")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if names else "none"
