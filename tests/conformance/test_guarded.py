"""Document 003 word by word: the arrows of its diagram, the exits in its text, its figures."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from callboard import Retry
from callboard.actors.spec.backoff import delay
from callboard.machines import GuardRejected, InvalidTransitionError
from callboard.machines.lifecycles import LIFECYCLES
from callboard.machines.lifecycles.guarded import TASK, TaskState

# The diagram's arrows, with the words beside them as the events are called.
ARROWS = """
PENDING IN_PROGRESS executor_starts
PENDING SKIPPED dependency_failed
PENDING CANCELLED user_cancels
IN_PROGRESS VALIDATING tool_execution_complete
IN_PROGRESS FAILED tool_execution_error
IN_PROGRESS TIMEOUT execution_timeout
IN_PROGRESS CANCELLED user_interrupt
VALIDATING COMPLETED tests_pass
VALIDATING FAILED tests_fail
FAILED CIRCUIT_OPEN max_retries_reached
FAILED RETRYING retry_available
RETRYING IN_PROGRESS backoff_complete
RETRYING CIRCUIT_OPEN circuit_opens
CIRCUIT_OPEN HALF_OPEN cooldown_expires
HALF_OPEN IN_PROGRESS test_retry
HALF_OPEN CIRCUIT_OPEN test_fails
TIMEOUT RETRYING retry_available
TIMEOUT FAILED no_retries_left
"""
IN_THE_TEXT_ONLY = """
PENDING SKIPPED optional_step_skipped
PENDING SKIPPED conditional_not_met
FAILED CIRCUIT_OPEN permanent_error
FAILED CIRCUIT_OPEN same_error_repeated
CIRCUIT_OPEN PENDING manual_reset
CIRCUIT_OPEN CANCELLED workstream_cancelled
"""


def facts(
    retry_count: int = 0, max_retries: int = 4, permanent: bool = False, repeated: bool = False
) -> SimpleNamespace:
    return SimpleNamespace(
        retry_count=retry_count, max_retries=max_retries, permanent=permanent, repeated=repeated, unmet=0
    )


def test_the_arrows_and_the_exits_in_the_text_are_the_rows() -> None:
    rows = sorted(" ".join((row.source, row.target, row.event)) for row in TASK.transitions)
    assert rows == sorted([*ARROWS.split("\n")[1:-1], *IN_THE_TEXT_ONLY.split("\n")[1:-1]])


def test_every_pair_of_states_without_an_arrow_is_refused() -> None:
    joined = {tuple(line.split()[:2]) for line in (ARROWS + IN_THE_TEXT_ONLY).split("\n") if line}
    rows = {(row.source.value, row.target.value) for row in TASK.transitions}  # type: ignore[attr-defined]
    assert rows == joined
    assert len(TaskState) ** 2 - len(rows) == 101


def test_failed_and_circuit_open_are_not_ends() -> None:
    assert not TASK.is_terminal("FAILED")
    assert not TASK.is_terminal("CIRCUIT_OPEN")
    assert not TASK.is_terminal("TIMEOUT")


WAYS_OUT = ("retry_available", "permanent_error", "same_error_repeated", "max_retries_reached")


@pytest.mark.parametrize(
    ("known", "passing"),
    [
        (facts(), {"retry_available"}),
        (facts(retry_count=3), {"retry_available"}),
        (facts(retry_count=4), {"max_retries_reached"}),
        (facts(max_retries=0), {"max_retries_reached"}),
        (facts(permanent=True), {"permanent_error"}),
        (facts(repeated=True), {"same_error_repeated"}),
        (facts(retry_count=4, permanent=True), {"permanent_error", "max_retries_reached"}),
    ],
)
def test_what_becomes_of_a_failure(known: SimpleNamespace, passing: set[str]) -> None:
    assert {event for event in WAYS_OUT if TASK.can_transition("FAILED", event, known)} == passing


def test_a_timeout_is_retried_or_fails() -> None:
    assert TASK.transition("TIMEOUT", "retry_available", facts()).target == "RETRYING"
    assert TASK.transition("TIMEOUT", "no_retries_left", facts(retry_count=4)).target == "FAILED"
    with pytest.raises(GuardRejected):
        TASK.transition("TIMEOUT", "retry_available", facts(retry_count=4))
    with pytest.raises(GuardRejected):
        TASK.transition("TIMEOUT", "no_retries_left", facts())


def test_a_task_with_dependencies_to_come_does_not_start() -> None:
    with pytest.raises(GuardRejected):
        TASK.transition("PENDING", "executor_starts", SimpleNamespace(unmet=2))


@pytest.mark.parametrize("state", ["COMPLETED", "SKIPPED", "CANCELLED"])
def test_nothing_leaves_a_terminal_state(state: str) -> None:
    assert TASK.valid_events(state) == frozenset()
    with pytest.raises(InvalidTransitionError):
        TASK.transition(state, "user_cancels")


def test_five_attempts_then_the_circuit() -> None:
    """The walk that its retry behaviour draws: attempts 1 to 5, and then CIRCUIT_OPEN."""
    state, attempts = "PENDING", 0
    walk = []
    while state != "CIRCUIT_OPEN":
        start = "executor_starts" if state == "PENDING" else "backoff_complete"
        state = TASK.transition(state, start, facts()).target
        attempts += 1
        state = TASK.transition(state, "tool_execution_error", facts()).target
        known = facts(retry_count=attempts - 1)
        event = next(event for event in WAYS_OUT if TASK.can_transition(state, event, known))
        state = TASK.transition(state, event, known).target
        walk.append(state)
    assert walk == ["RETRYING"] * 4 + ["CIRCUIT_OPEN"]
    assert TASK.transition(state, "cooldown_expires").target == "HALF_OPEN"


@pytest.mark.parametrize(("retry", "seconds"), [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32)])
def test_its_example_delays(retry: int, seconds: int) -> None:
    """Base 2 s, jitter 25 %, at most 60 s: about 2, 4, 8, 16 and 32 s."""
    settings = Retry(max_attempts=5, base_delay=2, max_delay=60, jitter=0.25)
    drawn = [delay(settings, retry, Random(seed)) for seed in range(200)]
    assert all(seconds * 0.75 <= wait <= seconds * 1.25 for wait in drawn)
    assert max(drawn) - min(drawn) > seconds * 0.3
    assert delay(Retry(max_attempts=5, base_delay=2, max_delay=60, jitter=0), retry, Random(0)) == seconds


def test_no_delay_is_longer_than_the_longest() -> None:
    settings = Retry(max_attempts=5, base_delay=2, max_delay=60, jitter=0.25)
    assert max(delay(settings, retry, Random(retry)) for retry in range(1, 2000)) <= 60


def test_what_holds_under_it_unless_it_is_said() -> None:
    assert LIFECYCLES["guarded"]["task"].defaults == {"max_error_repeats": 2, "on_exhausted": "park"}
