"""How the runtime's own events become those of a lifecycle, and its records the facts that guards read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from callboard.machines import Event, Machine, Phase, State, Transition
from callboard.machines.lifecycle import Lifecycle, Retries, retries
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
BY_DOOR = Lifecycle("door", "task", DOOR, {Event.FAIL: ("close", "open", "lock")}, facts=retries(DOOR))


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


def failure(lost: bool = False, permanent: bool = False, repeated: bool = False) -> SimpleNamespace:
    return SimpleNamespace(lost=lost, permanent=permanent, repeated=repeated)


def event(state: str, known: SimpleNamespace, payload: object = None) -> str | None:
    row = BY_DOOR.find(state, Event.FAIL, known, payload)
    return None if row is None else row.event


def test_the_first_event_that_the_state_knows_and_that_passes_is_taken() -> None:
    assert event("ajar", record()) == "close"
    assert event("shut", record("shut", failed_attempts=1), failure()) == "open"
    assert event("shut", record("shut", failed_attempts=3), failure()) == "lock"


def test_an_event_that_the_lifecycle_lacks_finds_no_row() -> None:
    assert BY_DOOR.find("ajar", Event.RECOVER, record()) is None
    assert BY_DOOR.find("locked", Event.FAIL, record("locked")) is None


def test_a_step_whose_retries_are_used_up_is_settled_where_it_is() -> None:
    step = LIFECYCLES["pipeline"]["task"]
    exhausted = record("S_FAILED", failed_attempts=3)
    assert step.find("S_FAILED", Event.FAIL, exhausted, failure()) is None
    assert step.phase("S_FAILED") is Phase.DECIDING


@pytest.mark.parametrize(
    ("known", "told", "counted", "left"),
    [
        (record(), failure(), False, True),  # the first of three is about to be counted
        (record(failed_attempts=2), failure(), False, False),
        (record(failed_attempts=1), failure(), True, True),  # it has been counted
        (record(failed_attempts=3), failure(), True, False),
        (record(failed_attempts=3, granted=1), failure(), True, True),
        (record(max_attempts=1), failure(), False, False),
        (record(), failure(permanent=True), False, False),
        (record(), failure(repeated=True), False, False),
        (record(failed_attempts=9), failure(lost=True), False, True),  # losses have a budget of their own
        (record(lost_attempts=2), failure(lost=True), False, False),
        (record(lost_attempts=1, on_loss="fail"), failure(lost=True), False, False),
        (record(), failure(lost=True, permanent=True), False, True),  # what was lost says nothing of the body
        (record(), None, False, True),
    ],
)
def test_whether_a_task_has_a_retry_left(known: Any, told: object, counted: bool, left: bool) -> None:
    facts = Retries.of(known, told, counted=counted)
    assert (facts.retry_count < facts.max_retries) == left


def test_facts_say_why_there_is_no_retry() -> None:
    facts = Retries.of(record(unmet=2), failure(permanent=True, repeated=True), counted=False)
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


@pytest.mark.parametrize(
    "lifecycle", [pytest.param(it, id=f"{it.name}-{it.kind}") for kinds in LIFECYCLES.values() for it in kinds.values()]
)
def test_the_runtimes_own_events_take_only_rows_whose_guard_passes(lifecycle: Lifecycle) -> None:
    failed = [record(failed_attempts=number, unmet=unmet, assigned=unmet) for number in (0, 3) for unmet in (0, 1)]
    for known in failed:
        known.__dict__.update(failures=4, successes=0, failure_threshold=5, success_threshold=1)
        known.__dict__.update(retry_count=known.failed_attempts, max_retries=3)
        for state in lifecycle.machine.states:
            known.state = state
            for own in Event:
                row = lifecycle.find(state, own, known, failure())
                facts = lifecycle.facts(known, failure())
                passing = [
                    published
                    for published in lifecycle.events.get(own, ())
                    if lifecycle.machine.can_transition(state, published, facts)
                ]
                assert (None if row is None else row.event) == (passing[0] if passing else None)
