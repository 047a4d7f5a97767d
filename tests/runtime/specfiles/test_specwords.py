"""Settings in the words of documents 003 and 000: copied from there, in every format, with their effect."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from callboard.actors.spec.backoff import delay
from callboard.actors.spec.limits import LimitsResolver, breaker_of, effective
from callboard.actors.spec.model import Breaker, Defaults, Retry, Task, Workstream
from callboard.actors.spec.validate import SpecificationError
from callboard.runtime.documents import settings as specwords
from callboard.runtime.specfiles import workstream_file as specfile

# Document 003, "Configuration Options", unchanged.
PRINTED = """\
# Task lifecycle configuration
task_lifecycle:
  # Timeouts
  default_timeout: 300  # 5 minutes
  validation_timeout: 30  # 30 seconds per test

  # Retry configuration
  max_attempts: 5
  base_retry_delay: 2  # seconds
  max_retry_delay: 60  # seconds
  jitter_percentage: 25  # ±25%

  # Circuit breaker
  circuit_breaker:
    enabled: true
    max_error_repeats: 2
    cooldown_period: 60  # seconds

  # State persistence
  checkpoint:
    enabled: true
    save_on_states: [COMPLETED, FAILED, CIRCUIT_OPEN]

  # Cleanup
  cleanup_on_cancel: true
  save_partial_output: true
"""
TASKS = "tasks:\n  - {name: a, command: [make], tool: aider}\n  - {name: b, command: [make], timeout: 7}\n"
DATA = {
    "default_timeout": 300, "validation_timeout": 30, "max_attempts": 5, "base_retry_delay": 2, "max_retry_delay": 60,
    "jitter_percentage": 25, "circuit_breaker": {"enabled": True, "max_error_repeats": 2, "cooldown_period": 60},
    "checkpoint": {"enabled": True, "save_on_states": ["COMPLETED", "FAILED", "CIRCUIT_OPEN"]},
    "cleanup_on_cancel": True, "save_partial_output": True,
}  # fmt: skip
JSON = json.dumps({"task_lifecycle": DATA, "tasks": [{"name": "a", "command": ["make"]}]})
TOML = """\
[[tasks]]
name = "a"
command = ["make"]
[task_lifecycle]
default_timeout = 300
validation_timeout = 30
max_attempts = 5
base_retry_delay = 2
max_retry_delay = 60
jitter_percentage = 25
cleanup_on_cancel = true
save_partial_output = true
circuit_breaker = { enabled = true, max_error_repeats = 2, cooldown_period = 60 }
checkpoint = { enabled = true, save_on_states = ["COMPLETED", "FAILED", "CIRCUIT_OPEN"] }
"""
MEANT = Defaults(
    timeout=300, validation_timeout=30, retry=Retry(max_attempts=5, base_delay=2, max_delay=60, jitter=0.25),
    on_exhausted="park", max_error_repeats=2, park_cooldown=60, checkpoint=True,
    checkpoint_on=["completed", "failed", "circuit_open"], cleanup_on_cancel=True, save_partial_output=True,
)  # fmt: skip


def loaded(folder: Path, content: str, name: str = "a.yaml") -> Workstream:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return specfile.load(path).workstream


def told(folder: Path, content: str) -> dict[str, tuple[int | None, str]]:
    with pytest.raises(SpecificationError) as caught:
        loaded(folder, content)
    return {one.where: (one.line, f"{one.message} ({one.suggestion})") for one in caught.value.findings}


@pytest.mark.parametrize(("name", "content"), [("a.yaml", PRINTED + TASKS), ("a.json", JSON), ("a.toml", TOML)])
def test_the_printed_configuration_is_the_defaults_of_the_file_in_every_format(
    tmp_path: Path, name: str, content: str
) -> None:
    assert loaded(tmp_path, content, name).defaults == MEANT


def test_it_holds_under_a_task_s_own_and_over_the_runtime_s(tmp_path: Path) -> None:
    spec = loaded(tmp_path, PRINTED + TASKS)
    resolver = LimitsResolver(spec, Defaults(timeout=1, validation_timeout=1, retry=Retry(max_attempts=9)))
    a, b = map(resolver.of, spec.tasks)
    assert (a.timeout, b.timeout) == (300, 7)
    assert (a.validation_timeout, a.allowed.max_attempts, a.allowed.on_exhausted) == (30, 5, "park")
    assert (a.max_error_repeats, a.park_cooldown) == (2, 60)


def test_the_example_delays_are_drawn(tmp_path: Path) -> None:
    retry = loaded(tmp_path, PRINTED + TASKS).defaults.retry
    assert retry is not None
    rng = Random(1)
    for attempt, about in enumerate((2, 4, 8, 16, 32), start=1):  # "Attempt 1: ~2s" to "Attempt 5: ~32s"
        drawn = [delay(retry, attempt, rng) for _ in range(200)]
        assert about * 0.75 <= min(drawn) < about < max(drawn) <= about * 1.25
    assert 59 < max(delay(retry, 9, rng) for _ in range(200)) < 60  # drawn below "max_retry_delay: 60"


def test_what_it_does_not_say_stays_as_it_is(tmp_path: Path) -> None:
    empty = loaded(tmp_path, "task_lifecycle: {}\n" + TASKS)
    assert empty.defaults == Defaults()
    assert LimitsResolver(empty, Defaults()).of(Task("x", run="m:f")).allowed.max_attempts == 1
    one = loaded(tmp_path, "task_lifecycle: {base_retry_delay: 1}\n" + TASKS)
    assert LimitsResolver(one, Defaults()).of(Task("x", run="m:f")).allowed.max_attempts == 5
    off = loaded(tmp_path, "task_lifecycle: {circuit_breaker: {enabled: false, max_error_repeats: 2}}\n" + TASKS)
    assert off.defaults == Defaults(on_exhausted="fail")
    on = loaded(tmp_path, "task_lifecycle: {circuit_breaker: {}}\n" + TASKS)
    assert on.defaults == Defaults(on_exhausted="park", max_error_repeats=2)


BAD = """\
defaults: {timeout: 100, retry: {max_attempts: 2}}
task_lifecycle:
  default_timeout: 300
  validation_timout: 30
  max_attempts: 5
  jitter_percentage: 125
  circuit_breaker:
    max_error_repeats: 0
    cooldown_period: soon
  checkpoint:
    save_on_states: [COMPLETED, FAILD]
  save_partial_output: "yes"
"""


def test_all_that_is_wrong_is_told_at_once_in_the_words_of_the_file(tmp_path: Path) -> None:
    found = told(tmp_path, BAD + TASKS)
    assert {place: line for place, (line, _) in found.items()} == {
        "task_lifecycle.default_timeout": 3,
        "task_lifecycle.validation_timout": 4,
        "task_lifecycle.max_attempts": 5,
        "task_lifecycle.jitter_percentage": 6,
        "task_lifecycle.circuit_breaker.max_error_repeats": 8,
        "task_lifecycle.circuit_breaker.cooldown_period": 9,
        "task_lifecycle.checkpoint.save_on_states[1]": 11,
        "task_lifecycle.save_partial_output": 12,
    }
    assert found["task_lifecycle.default_timeout"][1] == "contradicts defaults.timeout (keep one of them)"
    assert "did you mean 'validation_timeout'?" in found["task_lifecycle.validation_timout"][1]
    assert "did you mean 'FAILED'?" in found["task_lifecycle.checkpoint.save_on_states[1]"][1]


def test_a_first_delay_above_the_longest_is_told_where_it_stands(tmp_path: Path) -> None:
    found = told(tmp_path, "task_lifecycle: {max_attempts: 0, base_retry_delay: 90}\n" + TASKS)
    assert set(found) == {"task_lifecycle.max_attempts", "task_lifecycle.base_retry_delay"}


# -- tool profiles -----------------------------------------------------------------------------------------------------

PROFILES: list[dict[str, Any]] = [
    {
        "tool_id": "aider", "retry_on_failure": True, "max_retries": 2, "expected_exit_codes": [0, 3],
        "failure_threshold": 5, "cooldown_seconds": 60, "success_threshold": 1,
    },
    {"tool_id": "git", "retry_on_failure": False},
]  # fmt: skip


def profiled(folder: Path, profiles: list[dict[str, Any]], **more: Any) -> Workstream:
    tasks: list[dict[str, Any]] = [
        {"name": "a", "command": ["aider"], "tool": "aider"},
        {"name": "b", "command": ["aider"], "tool": "aider", "expected_exit_codes": [0]},
        {"name": "c", "command": ["git"], "tool": "git"},
        {"name": "d", "run": "m:f", "tool": "aider"},
    ]
    return loaded(folder, json.dumps({"tool_profiles": profiles, "tasks": tasks, **more}), "a.json")


def test_a_profile_is_the_settings_of_its_tool(tmp_path: Path) -> None:
    spec = profiled(tmp_path, PROFILES, defaults={"retry": {"max_attempts": 9}})
    limits = {task.name: LimitsResolver(spec, Defaults()).of(task) for task in spec.tasks}
    assert {name: one.allowed.max_attempts for name, one in limits.items()} == {"a": 3, "b": 3, "c": 1, "d": 3}
    assert [task.expected_exit_codes for task in spec.tasks] == [[0, 3], [0], [0], [0]]
    assert breaker_of(effective("aider", spec.tools, {})) == Breaker(
        failure_threshold=5, cooldown=60, success_threshold=1
    )


def test_what_is_wrong_with_a_profile_is_told_in_its_words(tmp_path: Path) -> None:
    bad: dict[str, Any] = {
        "cooldown_seconds": "soon",
        "failure_threshold": 0,
        "expected_exit_codes": [],
        "max_retries": -1,
    }
    with pytest.raises(SpecificationError) as caught:
        profiled(
            tmp_path, [{**PROFILES[0], **bad}, *PROFILES, {"tool_id": "x", "retry": 1}], tools={"git": {}}
        )  # fmt: skip
    assert {one.where for one in caught.value.findings} == {
        "tool_profiles[0].cooldown_seconds",
        "tool_profiles[0].failure_threshold",
        "tool_profiles[0].expected_exit_codes",
        "tool_profiles[0].max_retries",
        "tool_profiles[1].tool_id",
        "tool_profiles[2].tool_id",
        "tool_profiles[3].retry",
    }


def test_no_retries_and_a_number_of_them_is_a_contradiction(tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match="retry_on_failure is off"):
        profiled(tmp_path, [{"tool_id": "aider", "retry_on_failure": False, "max_retries": 2}])


def test_the_sections_hold_what_the_documents_print() -> None:
    assert {field.name for field in msgspec.structs.fields(specwords.TaskLifecycle)} == set(DATA)


# -- document 001's DAG file -------------------------------------------------------------------------------------------

HARNESSES = [{"name": name, "command": ["true"]} for name in ("build", "test", "ship")]
EDGES = {"build": [], "test": ["build"], "ship": ["build", "test"]}


def needs(workstream: Workstream) -> dict[str, list[str]]:
    return {task.name: task.depends_on for task in workstream.tasks}


def written(path: Path, **table: Any) -> Path:
    path.write_text(json.dumps(table))
    return path


def by_place(found: pytest.ExceptionInfo[SpecificationError]) -> dict[str, str]:
    return {finding.where: f"{finding.message} ({finding.suggestion})" for finding in found.value.findings}


def test_a_dag_says_what_depends_on_what_in_a_section_or_in_a_file(tmp_path: Path) -> None:
    dag = {"task_count": 3, "depends_on": EDGES}
    inside = written(tmp_path / "inside.json", tasks=HARNESSES, dag=dag)
    assert needs(specfile.load(inside).workstream) == EDGES
    plain = written(tmp_path / "plain.json", tasks=HARNESSES)
    beside = written(tmp_path / "dag.json", **dag)
    assert needs(specfile.load(plain, dag=beside).workstream) == EDGES
    said = [{**task, "depends_on": EDGES[str(task["name"])][::-1]} for task in HARNESSES]
    assert needs(specfile.load(written(tmp_path / "both.json", tasks=said, dag=dag)).workstream) == EDGES
    with pytest.raises(SpecificationError, match="is given here and in"):
        specfile.load(inside, dag=beside)


@pytest.mark.parametrize(
    ("dag", "place", "says"),
    [
        (
            {"depends_on": {**EDGES, "tset": []}},
            "dag.depends_on.tset",
            "there is no task 'tset' (did you mean 'test'?)",
        ),
        ({"depends_on": {"build": []}}, "dag.depends_on", "lacks task 'test', and 1 more (name each task"),
        ({"depends_on": EDGES, "task_count": 4}, "dag.task_count", "it says 4 tasks, and the workstream has 3"),
        ({"depends_on": {**EDGES, "ship": ["biuld"]}}, "dag.depends_on.ship[0]", "which does not exist"),
        ({"depends_on": {**EDGES, "ship": ["test", "test"]}}, "dag.depends_on.ship[1]", "is twice in"),
        ({"depends_on": {**EDGES, "build": ["ship"]}}, "tasks[0]", "these wait for each other: build -> "),
        ({"edges": [["build", "test"]]}, "dag.edges", "which of its two tasks waits for the other (write depends_on"),
        ({"nodes": [], "links": []}, "dag.links", "which of its two tasks waits for the other (write depends_on"),
        ({}, "dag", "has no dependencies"),
        ({"depends_on": [["build", "test"]]}, "dag.depends_on", ""),
        ({"dependson": EDGES}, "dag.dependson", ""),
    ],
)
def test_what_is_wrong_with_a_dag_is_told_where_it_is(
    tmp_path: Path, dag: dict[str, Any], place: str, says: str
) -> None:
    path = written(tmp_path / "wrong.json", tasks=HARNESSES, dag=dag)
    with pytest.raises(SpecificationError) as found:
        specfile.load(path)
    assert says in by_place(found)[place]
    assert all(finding.line is not None for finding in found.value.findings)


def test_a_dag_that_contradicts_a_task_is_refused(tmp_path: Path) -> None:
    tasks = [HARNESSES[0], {**HARNESSES[1], "depends_on": ["build"]}, HARNESSES[2]]
    path = written(tmp_path / "both.json", tasks=tasks, dag={"depends_on": {**EDGES, "test": []}})
    with pytest.raises(SpecificationError) as found:
        specfile.load(path)
    assert by_place(found) == {"dag.depends_on.test": "contradicts depends_on of task 'test' (keep one of them)"}


def test_a_dag_file_that_is_none_by_itself_is_told_by_its_own_name(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain.json", tasks=HARNESSES)
    beside = written(tmp_path / "dag.json", depends_on={"build": "test"}, more=1)
    with pytest.raises(SpecificationError, match=r"dag\.json") as found:
        specfile.load(plain, dag=beside)
    assert set(by_place(found)) == {"depends_on.build", "more"}
    with pytest.raises(SpecificationError, match="does not exist"):
        specfile.load(plain, dag=tmp_path / "nowhere.json")
