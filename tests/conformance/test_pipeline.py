"""Document 000 word by word: its valid and invalid transitions, its examples, its functions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from callboard.machines import GuardRejected, InvalidTransitionError
from callboard.machines.lifecycles.pipeline import (
    CIRCUIT_BREAKER,
    OPERATOR_ROWS,
    STEP,
    VALID_TRANSITIONS,
    WORKSTREAM,
    WORKSTREAM_PAIRS,
    StepState,
    WorkstreamState,
    can_execute_step,
    transition_workstream,
)

VALID = [
    ("S_PENDING", "S_RUNNING"),
    ("S_RUNNING", "S_SUCCESS"),
    ("S_RUNNING", "S_FAILED"),
    ("S_RUNNING", "S_ABANDONED"),
    ("S_FAILED", "S_RETRYING"),
    ("S_FAILED", "S_ABANDONED"),
    ("S_RETRYING", "S_RUNNING"),
]
INVALID = [
    *(("S_SUCCESS", state.value) for state in WorkstreamState),
    *(("S_ABANDONED", state.value) for state in WorkstreamState),
    ("S_PENDING", "S_SUCCESS"),
    ("S_PENDING", "S_FAILED"),
    ("S_RUNNING", "S_PENDING"),
    ("S_SUCCESS", "S_RUNNING"),
]


@pytest.mark.parametrize(("from_state", "to_state"), VALID)
def test_each_published_transition_is_valid(from_state: str, to_state: str) -> None:
    entered = transition_workstream(from_state, to_state)
    assert entered == to_state
    assert isinstance(entered, WorkstreamState)


@pytest.mark.parametrize(("from_state", "to_state"), INVALID)
def test_each_transition_published_as_invalid_raises(from_state: str, to_state: str) -> None:
    with pytest.raises(InvalidTransitionError, match=f"cannot transition from {from_state} to {to_state}"):
        transition_workstream(from_state, to_state)


def test_the_error_names_what_is_allowed() -> None:
    with pytest.raises(InvalidTransitionError) as refusal:
        transition_workstream("S_FAILED", "S_SUCCESS")
    assert str(refusal.value) == (
        "pipeline.workstream: cannot transition from S_FAILED to S_SUCCESS. Allowed: S_ABANDONED, S_RETRYING."
    )
    assert refusal.value.allowed == {"S_ABANDONED", "S_RETRYING"}
    with pytest.raises(InvalidTransitionError, match="Allowed: none, it is terminal"):
        transition_workstream("S_SUCCESS", "S_RUNNING")


def test_a_state_of_no_workstream_is_refused() -> None:
    with pytest.raises(ValueError, match="S_PAUSED"):
        transition_workstream("S_PAUSED", "S_RUNNING")


def test_the_map_of_its_code_example() -> None:
    expected: dict[str, set[str]] = {
        "S_PENDING": {"S_RUNNING"},
        "S_RUNNING": {"S_SUCCESS", "S_FAILED", "S_ABANDONED"},
        "S_FAILED": {"S_RETRYING", "S_ABANDONED"},
        "S_RETRYING": {"S_RUNNING"},
        "S_SUCCESS": set(),
        "S_ABANDONED": set(),
    }
    assert dict(VALID_TRANSITIONS) == expected


def test_it_says_in_words_what_is_wrong() -> None:
    told = WORKSTREAM_PAIRS.validate_transition
    assert told(WorkstreamState.S_PENDING, WorkstreamState.S_RUNNING) is None
    assert told(WorkstreamState.S_RUNNING, WorkstreamState.S_RUNNING) == "Workstream already in S_RUNNING state"
    assert told(WorkstreamState.S_PENDING, WorkstreamState.S_FAILED) == (
        "Invalid state transition: S_PENDING → S_FAILED. Allowed from S_PENDING: S_RUNNING."
    )


def test_three_machines_have_fourteen_states_and_sixteen_transitions() -> None:
    machines = (WORKSTREAM, STEP, CIRCUIT_BREAKER)
    assert sum(len(machine.states) for machine in machines) == 14
    assert sum(len(machine.transitions) for machine in machines) - len(OPERATOR_ROWS) == 16


def test_its_example_of_a_history() -> None:
    """Of WS-001: it runs, a step fails, it is retried, and succeeds."""
    facts = SimpleNamespace(retry_count=0, max_retries=3)
    state, history = WORKSTREAM.initial, [WORKSTREAM.initial]
    for event in ("start_execution", "step_fails", "retry_eligible", "retry_attempt", "all_steps_succeed"):
        state = WORKSTREAM.transition(state, event, facts).target
        history.append(state)
    assert history == ["S_PENDING", "S_RUNNING", "S_FAILED", "S_RETRYING", "S_RUNNING", "S_SUCCESS"]


@pytest.mark.parametrize(
    ("retry_count", "max_retries", "event"), [(0, 1, 0), (2, 3, 0), (0, 0, 1), (3, 3, 1), (4, 3, 1)]
)
def test_what_becomes_of_a_failed_workstream_is_the_count_of_its_retries(
    retry_count: int, max_retries: int, event: int
) -> None:
    facts = SimpleNamespace(retry_count=retry_count, max_retries=max_retries)
    events = ["retry_eligible", "max_retries_exceeded"]
    assert WORKSTREAM.can_transition("S_FAILED", events.pop(event), facts)
    assert not WORKSTREAM.can_transition("S_FAILED", events.pop(), facts)


def test_a_step_without_a_retry_rests_in_its_failure() -> None:
    exhausted = SimpleNamespace(retry_count=3, max_retries=3, unmet=0)
    with pytest.raises(GuardRejected) as refusal:
        STEP.transition("S_FAILED", "retry_eligible", exhausted)
    assert refusal.value.guards == ("retry count below max retries",)
    assert STEP.transition("S_FAILED", "retry_eligible", SimpleNamespace(retry_count=2, max_retries=3))


def test_a_step_runs_when_its_dependencies_are_met() -> None:
    assert STEP.can_transition("S_PENDING", "dependencies_met", SimpleNamespace(unmet=0))
    assert not STEP.can_transition("S_PENDING", "dependencies_met", SimpleNamespace(unmet=1))


@pytest.mark.parametrize("state", list(StepState))
def test_only_a_step_in_success_lets_its_dependents_run(state: StepState) -> None:
    assert can_execute_step(["s1"], {"s1": state}) == (state == "S_SUCCESS")


def test_whether_a_step_can_be_executed() -> None:
    assert can_execute_step([], {})
    assert can_execute_step(["s1", "s2"], {"s1": "S_SUCCESS", "s2": "S_SUCCESS", "s3": "S_FAILED"})
    assert not can_execute_step(["s1", "s2"], {"s1": "S_SUCCESS", "s2": "S_RUNNING"})
    with pytest.raises(KeyError, match="`states` lacks the state of step 's9', a dependency"):
        can_execute_step(["s9"], {})
    with pytest.raises(ValueError, match="step 's2' has no state 'SUCCESS'; the states of a step are S_PENDING, "):
        can_execute_step(["s1", "s2"], {"s1": "S_FAILED", "s2": "SUCCESS"})
    with pytest.raises(TypeError, match=r"is not one: write \['s12'\]"):
        can_execute_step("s12", {"s": "S_SUCCESS", "1": "S_SUCCESS", "2": "S_SUCCESS"})


def test_its_example_of_a_breaker_opens_at_the_fifth_failure_and_closes_after_one_success() -> None:
    facts = SimpleNamespace(failures=0, successes=0, failure_threshold=5, success_threshold=1)
    opened = []
    for failures in range(5):
        facts.failures = failures
        opened.append(CIRCUIT_BREAKER.can_transition("CLOSED", "failure_threshold_exceeded", facts))
    assert opened == [False, False, False, False, True]
    assert CIRCUIT_BREAKER.transition("HALF_OPEN", "success", facts).target == "CLOSED"
    assert CIRCUIT_BREAKER.transition("HALF_OPEN", "failure", facts).target == "OPEN"
    facts.success_threshold = 2
    assert not CIRCUIT_BREAKER.can_transition("HALF_OPEN", "success", facts)


def test_an_operator_closes_an_open_breaker_by_hand() -> None:
    assert CIRCUIT_BREAKER.transition("OPEN", "reset_circuit").target == "CLOSED"
