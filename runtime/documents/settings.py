"""Settings in the words of the published documents: `task_lifecycle` of 003, `tool_profiles` of 000, `dag` of 001.

Rules
-----
- They set the same values as the file's own `defaults` and `tools`, and nothing else: a task's own settings override
  them, and they override the runtime's. Both may be copied from the documents unchanged.
- They are translated before anything is checked. Findings then use the words of the file.
- A value is set once: a section that contradicts the file's own settings gives a finding.
- 003: a file that sets any retry retries. Its circuit is the task's: a task whose attempts are used up, or
  whose error is permanent, or repeated more than `max_error_repeats` times, is parked, and gets one more attempt after
  `cooldown_period`. With `enabled: false` it fails.
- 001 generates a DAG file after all tasks, compares their number with the specification, and does not define it
  further. Here it is a table from each task to its dependencies, and the number of tasks, if wanted. It names every
  task, so that none is left out by mistake. Lists of edges are refused: nothing says which end of an edge depends on
  the other.
- 000: `retry_on_failure` sets whether a failed attempt is retried; `expected_exit_codes` apply to the tool's commands
  that set none themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from ...actors.spec.model import Breaker, Retry, Spec, Tool, Workstream
from ...actors.spec.schema import Finding, short, where
from ...actors.times import Duration
from ...machines.keywords import did_you_mean, number_of

_RETRY = {
    "max_attempts": "max_attempts",
    "base_retry_delay": "base_delay",
    "max_retry_delay": "max_delay",
    "jitter_percentage": "jitter",
}
_PLAIN = {
    "default_timeout": "timeout",
    "validation_timeout": "validation_timeout",
    "cleanup_on_cancel": "cleanup_on_cancel",
    "save_partial_output": "save_partial_output",
}
_STATES = {
    "PENDING": "pending", "IN_PROGRESS": "running", "VALIDATING": "validating", "COMPLETED": "completed",
    "FAILED": "failed", "RETRYING": "retrying", "CIRCUIT_OPEN": "circuit_open", "HALF_OPEN": "half_open",
    "TIMEOUT": "timed_out", "SKIPPED": "skipped", "CANCELLED": "cancelled",
}  # fmt: skip
_ERROR_REPEATS = 2
"""The most repeats of one error in a row under document 003, unless it is set."""


class CircuitSettings(Spec, frozen=True, kw_only=True):
    """Document 003: when a task is parked, and how long."""

    enabled: bool = True
    max_error_repeats: int | None = None
    cooldown_period: Duration | None = None


class CheckpointSettings(Spec, frozen=True, kw_only=True):
    """Document 003: whether a task's checkpoint is kept, and in which states."""

    enabled: bool = True
    save_on_states: list[str] | None = None


class TaskLifecycle(Spec, frozen=True, kw_only=True):
    """Document 003's configuration of tasks. Durations, counts, and a percentage."""

    default_timeout: Duration | None = None
    validation_timeout: Duration | None = None
    max_attempts: int | None = None
    base_retry_delay: Duration | None = None
    max_retry_delay: Duration | None = None
    jitter_percentage: float | None = None
    circuit_breaker: CircuitSettings | None = None
    checkpoint: CheckpointSettings | None = None
    cleanup_on_cancel: bool | None = None
    save_partial_output: bool | None = None


class ToolProfile(Spec, frozen=True, kw_only=True):
    """Document 000's profile of a tool, with the settings of its circuit breaker."""

    tool_id: str
    retry_on_failure: bool | None = None
    max_retries: int | None = None
    expected_exit_codes: list[int] | None = None
    failure_threshold: int | None = None
    cooldown_seconds: Duration | None = None
    success_threshold: int | None = None


class Dag(Spec, frozen=True, kw_only=True):
    """Document 001's DAG file: the dependencies of each task, and the number of tasks.

    edges, nodes and links exist to be refused with a message.
    """

    depends_on: dict[str, list[str]] | None = None
    task_count: int | None = None
    edges: Any = None
    nodes: Any = None
    links: Any = None


class Sections(Workstream, frozen=True, kw_only=True):
    """A workstream as a file has it: with the three sections."""

    task_lifecycle: TaskLifecycle | None = None
    tool_profiles: list[ToolProfile] | None = None
    dag: Dag | None = None


class TranslatedSections:
    """The translation of a file's sections: the resulting `workstream`, and the findings."""

    def __init__(self, said: Sections, given: Mapping[str, Any]) -> None:
        self.workstream = Workstream(**{name: getattr(said, name) for name in Workstream.__struct_fields__})
        self.findings: list[Finding] = []
        self._given = given
        self._places: list[tuple[str, str]] = []  # (place in the workstream, place in the file)
        self._task_lifecycle(said.task_lifecycle)
        self._tool_profiles(said.tool_profiles or [])
        self._dag(said.dag)

    def renamed(self, found: Iterable[Finding]) -> list[Finding]:
        """Findings about the workstream, with their places in the file."""
        findings: dict[tuple[str, str], Finding] = {}
        for finding in found:
            finding = self._renamed(finding)  # noqa: PLW2901 - it is the same finding
            findings.setdefault((finding.where, finding.message), finding)
        return list(findings.values())

    def _task_lifecycle(self, said: TaskLifecycle | None) -> None:
        """Translate a section `task_lifecycle`."""
        if said is None:
            return
        at = "task_lifecycle"
        for theirs, ours in _PLAIN.items():
            self._default(ours, getattr(said, theirs), f"{at}.{theirs}")
        self._retry(said, at)
        if (circuit := said.circuit_breaker) is not None:
            self._circuit(circuit, f"{at}.circuit_breaker")
        if (checkpoint := said.checkpoint) is not None:
            self._default("checkpoint", checkpoint.enabled, f"{at}.checkpoint.enabled")
            self._states(checkpoint.save_on_states, f"{at}.checkpoint.save_on_states")

    def _tool_profiles(self, profiles: Sequence[ToolProfile]) -> None:
        """Translate a section `tool_profiles`."""
        seen: set[str] = set()
        for index, profile in enumerate(profiles):
            at, name = f"tool_profiles[{index}]", profile.tool_id
            if name in seen or name in self.workstream.tools:
                place = "tool_profiles" if name in seen else "tools"
                self._bad(f"{at}.tool_id", f"the tool {short(name)} is in {place} already", "keep one")
                continue
            seen.add(name)
            self._tool(profile, at)

    # -- task_lifecycle ------------------------------------------------------------------------------------------------

    def _retry(self, said: TaskLifecycle, at: str) -> None:
        given = {theirs: getattr(said, theirs) for theirs in _RETRY if getattr(said, theirs) is not None}
        if not given:
            return
        first = next(iter(given))
        percent = given.pop("jitter_percentage", None)
        settings: dict[str, Any] = {_RETRY[theirs]: value for theirs, value in given.items()}
        if percent is not None and 0 <= percent <= 100:
            settings["jitter"] = percent / 100
        elif percent is not None:
            self._bad(f"{at}.jitter_percentage", f"must be between 0 and 100, not {percent:g}", "25 means ±25 %")
        retry = Retry(**settings)
        self._default("retry", retry, f"{at}.{first}")
        self._places += [(f"defaults.retry.{ours}", f"{at}.{theirs}") for theirs, ours in _RETRY.items()]

    def _circuit(self, said: CircuitSettings, at: str) -> None:
        if not said.enabled:
            self._default("on_exhausted", "fail", f"{at}.enabled")
            return
        self._default("on_exhausted", "park", f"{at}.enabled")
        repeats = said.max_error_repeats
        if repeats is not None or self.workstream.defaults.max_error_repeats is None:
            self._default(
                "max_error_repeats", _ERROR_REPEATS if repeats is None else repeats, f"{at}.max_error_repeats"
            )
        self._default("park_cooldown", said.cooldown_period, f"{at}.cooldown_period")

    def _states(self, said: Sequence[str] | None, at: str) -> None:
        if said is None:
            return
        kept: list[str] = []
        for index, state in enumerate(said):
            ours = _STATES.get(state) or (state if state in _STATES.values() else None)
            if ours is None:
                advice = did_you_mean(state, list(_STATES)) or f"there are: {', '.join(_STATES)}"
                self._bad(f"{at}[{index}]", f"{short(state)} is no state of a task", advice)
            else:
                kept.append(ours)
        self._default("checkpoint_on", kept, at)

    def _default(self, name: str, value: object, at: str) -> None:
        """Set a default of the file; a different value of its own gives a finding."""
        if value is None:
            return
        defaults = self.workstream.defaults
        own = getattr(defaults, name)
        if own is not None and own != value:
            self._bad(at, f"contradicts defaults.{name}", "keep one of them")
            return
        self.workstream = replace(self.workstream, defaults=replace(defaults, **{name: value}))
        self._places.append((f"defaults.{name}", at))

    # -- tool_profiles -------------------------------------------------------------------------------------------------

    def _tool(self, profile: ToolProfile, at: str) -> None:
        settings: dict[str, Any] = {
            "failure_threshold": profile.failure_threshold,
            "cooldown": profile.cooldown_seconds,
            "success_threshold": profile.success_threshold,
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        retry: Retry | None = None
        if profile.retry_on_failure is False:
            retry = Retry(max_attempts=1)
            if profile.max_retries:
                text = "retry_on_failure is off, so there are no retries"
                self._bad(f"{at}.max_retries", text, "remove one of the two")
        elif profile.retry_on_failure or profile.max_retries is not None:
            retry = Retry(max_retries=profile.max_retries)
        tool = Tool(retry=retry, breaker=Breaker(**settings) if settings else None)
        tools = {**self.workstream.tools, profile.tool_id: tool}
        self.workstream = replace(self.workstream, tools=tools)
        name = profile.tool_id
        self._places += [
            (where(("tools", name, "breaker", "cooldown")), f"{at}.cooldown_seconds"),
            (where(("tools", name, "breaker")), at),
            (where(("tools", name, "retry")), at),
            (where(("tools", name)), f"{at}.tool_id"),
        ]
        if profile.expected_exit_codes is not None:
            self._exit_codes(name, profile.expected_exit_codes, f"{at}.expected_exit_codes")

    def _exit_codes(self, tool: str, codes: list[int], at: str) -> None:
        """Set the exit codes for the tool's commands that set none themselves."""
        given: object = self._given.get("tasks")
        said = cast("list[object]", given) if isinstance(given, list) else []
        tasks = list(self.workstream.tasks)
        for index, (task, own) in enumerate(zip(tasks, said, strict=False)):
            if task.tool == tool and task.command is not None:
                if isinstance(own, Mapping) and "expected_exit_codes" in own:
                    continue
                tasks[index] = replace(task, expected_exit_codes=codes)
                self._places.append((f"tasks[{index}].expected_exit_codes", at))
        self.workstream = replace(self.workstream, tasks=tasks)

    # -- dag -----------------------------------------------------------------------------------------------------------

    def _dag(self, said: Dag | None) -> None:
        """Translate a section `dag`: set the dependencies of each task."""
        if said is None:
            return
        unclear = [name for name in ("edges", "nodes", "links") if getattr(said, name) is not None]
        for name in unclear:
            text = "an edge does not say which of its two tasks waits for the other"
            self._bad(f"dag.{name}", text, 'write depends_on: {"test": ["build"]}: test waits for build')
        tasks = list(self.workstream.tasks)
        if said.task_count is not None and said.task_count != len(tasks):
            text = f"it says {number_of(said.task_count, 'task')}, and the workstream has {len(tasks):,}"
            self._bad("dag.task_count", text, "the DAG is of another workstream, or of an older one")
        if said.depends_on is None:
            if not unclear:
                self._bad("dag", "has no dependencies", 'give it depends_on: {"test": ["build"]}')
            return
        numbers = {task.name: index for index, task in enumerate(tasks)}
        for name, needed in said.depends_on.items():
            at = where(("dag", "depends_on", name))
            index = numbers.pop(name, None)
            if index is None:
                self._bad(at, f"there is no task {short(name)}", did_you_mean(name, [task.name for task in tasks]))
                continue
            own = tasks[index].depends_on
            if own and set(own) != set(needed):
                self._bad(at, f"contradicts depends_on of task {short(name)}", "keep one of them")
                continue
            tasks[index] = replace(tasks[index], depends_on=needed)
            self._places.append((f"tasks[{index}].depends_on", at))
        if numbers:
            first, more = next(iter(numbers)), len(numbers) - 1
            text = f"lacks task {short(first)}" + (f", and {more:,} more" if more else "")
            self._bad("dag.depends_on", text, "name each task, also one that depends on none: []")
        self.workstream = replace(self.workstream, tasks=tasks)

    # -- findings ------------------------------------------------------------------------------------------------------

    def _bad(self, at: str, message: str, advice: str | None) -> None:
        self.findings.append(Finding(at, message, advice))

    def _renamed(self, finding: Finding) -> Finding:
        for ours, theirs in sorted(self._places, key=lambda place: -len(place[0])):
            rest = finding.where.removeprefix(ours)
            if finding.where.startswith(ours) and rest[:1] in {"", ".", "["}:
                return msgspec.structs.replace(finding, where=theirs + rest)
        return finding
