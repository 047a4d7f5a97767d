"""The translation of the runtime's events into those of a lifecycle, and of its records into facts for guards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from callboard.machines import Event, Machine, Phase, State, Transition
from callboard.machines.adapt.lifecycle import Lifecycle, retries
from callboard.machines.adapt.refinement import Refinement
from callboard.machines.builtin.task import TASK
from callboard.machines.lifecycles import LIFECYCLES

T = Transition

DOOR = Machine(
    "door",
    "ajar",
    (State("ajar", "running"), State("shut", "deciding"), State("locked", "failed", terminal=True), State("odd")),
    (
        T("ajar", "close", "shut"),
        T("shut", "open", "ajar", lambda facts, _: facts.retry_count < facts.max_retries),
        T("shut", "lock", "locked", lambda facts, _: facts.retry_count >= facts.max_retries),
    ),
)
BY_DOOR = Lifecycle("door", "task", DOOR, {Event.FAIL: ("close", "open", "lock")}, facts=retries)


def record(state: str = "ajar", **changed: Any) -> SimpleNamespace:
    known = {
        "unmet": 0,
        "failed_attempts": 0,
        "lost_attempts": 0,
        "granted": 0,
        "max_attempts": 3,
        "max_losses": 3,
        "on_loss": "rerun",
    }
    return SimpleNamespace(state=state, **(known | changed))


def failure(
    lost: bool = False, permanent: bool = False, repeated: bool = False, deferred: bool = False
) -> SimpleNamespace:
    return SimpleNamespace(lost=lost, permanent=permanent, repeated=repeated, deferred=deferred)


@pytest.mark.parametrize(
    ("known", "told", "left"),
    [
        (record(failed_attempts=1), failure(), True),
        (record(failed_attempts=3), failure(), False),
        (record(failed_attempts=3, granted=1), failure(), True),
        (record(failed_attempts=1, max_attempts=1), failure(), False),
        (record(failed_attempts=1), failure(permanent=True), False),
        (record(failed_attempts=1), failure(repeated=True), False),
        (record(), failure(deferred=True), True),
        (record(failed_attempts=3, max_attempts=3), failure(deferred=True), True),
        (record(failed_attempts=9, lost_attempts=1), failure(lost=True), True),  # losses have a budget of their own
        (record(lost_attempts=3), failure(lost=True), False),
        (record(lost_attempts=1, on_loss="fail"), failure(lost=True), False),
        (record(lost_attempts=1), failure(lost=True, permanent=True), True),  # a lost attempt shows nothing of its body
        (record(), None, True),
    ],
)
def test_whether_a_task_has_a_retry_left(known: Any, told: object, left: bool) -> None:
    facts = retries(known, told)
    assert (facts.retry_count < facts.max_retries) == left


def test_facts_say_why_there_is_no_retry() -> None:
    facts = retries(record(unmet=2), failure(permanent=True, repeated=True))
    assert (facts.permanent, facts.repeated, facts.unmet) == (True, True, 2)


def test_a_machine_of_several_kinds_has_phases_for_each() -> None:
    as_task, as_stream, as_job = (LIFECYCLES["execution"][kind] for kind in ("task", "workstream", "job"))
    assert [as_task.phase("pending"), as_task.phase("queued")] == [Phase.PENDING, Phase.QUEUED]
    assert [as_stream.phase("pending"), as_stream.phase("queued"), as_stream.phase("running")] == [
        Phase.PLANNED,
        Phase.READY,
        Phase.EXECUTING,
    ]
    assert [as_job.phase("pending"), as_job.phase("queued")] == [Phase.SUBMITTED, Phase.PENDING]
    assert as_stream.phase("success") is Phase.COMPLETED


def test_a_state_without_a_phase_is_told() -> None:
    with pytest.raises(ValueError, match="the state odd has no phase"):
        BY_DOOR.phase("odd")


def test_a_table_that_names_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no event slam, no own event knock, no state window"):
        Lifecycle("door", "task", DOOR, {Event.FAIL: ("slam",), "knock": ("close",)}, {"window": Phase.RUNNING})
    with pytest.raises(TypeError, match=r"events\[fail\] is a tuple of events: \('slam',\)"):
        Lifecycle("door", "task", DOOR, {Event.FAIL: "slam"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("name", "kind", "optional"),
    [
        ("pipeline", "task", "refused"),
        ("pipeline", "workstream", "refused"),
        ("orchestration", "workstream", "fails"),
        ("guarded", "task", "allowed"),
        ("execution", "workstream", "allowed"),
    ],
)
def test_what_a_lifecycle_says_of_optional_tasks(name: str, kind: str, optional: str) -> None:
    assert LIFECYCLES[name][kind].optional == optional


def told(target: str, known: SimpleNamespace) -> list[str]:
    """The published events that report a failure after which the runtime's own task is in `target`."""
    row = next(row for row in TASK.transitions if (row.source, row.event, row.target) == ("running", "fail", target))
    whole = Lifecycle("door", "task", DOOR, BY_DOOR.events, {"odd": Phase.HELD}, facts=retries)
    return [str(one.event) for one in Refinement(whole).follow("ajar", row, known, failure())]


def test_a_failure_that_is_not_final_is_told_with_what_came_of_it() -> None:
    assert told("failed", record(failed_attempts=3)) == ["close", "lock"]
    assert told("retrying", record(failed_attempts=1)) == []  # the lifecycle has no state for that: it stays in `ajar`
