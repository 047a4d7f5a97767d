"""Document 004 word by word: 11 states, 16 events, 25 transitions, two functions and one error."""

from __future__ import annotations

from itertools import product

import pytest

import callboard
from callboard.machines.lifecycles.execution import (
    EXECUTION,
    TERMINAL_STATES,
    ExecutionEvent,
    ExecutionState,
    InvalidTransitionError,
    can_transition,
    is_terminal,
    transition,
    valid_events,
)

TABLE = """
pending ENQUEUE queued
pending CANCEL cancelled
pending SKIP skipped
pending HOLD held
pending WAIT waiting
held APPROVE queued
held REJECT cancelled
held EXPIRE cancelled
held CANCEL cancelled
waiting TIMER_DONE queued
waiting CANCEL cancelled
queued START running
queued FAIL failed
queued CANCEL cancelled
running SUCCEED success
running FAIL failed
running CANCEL cancelled
running CANCEL_GRACEFUL cancelling
running RECOVER recovering
cancelling CANCEL_FORCE cancelled
cancelling COMPLETE cancelled
cancelling FAIL failed
recovering START running
recovering FAIL failed
recovering CANCEL cancelled
"""
LEADS = {(state, event): target for state, event, target in map(str.split, TABLE.split("\n")[1:-1])}
STATES = "pending queued running recovering cancelling held waiting success failed cancelled skipped".split()  # noqa: SIM905
EVENTS = (  # noqa: SIM905
    "ENQUEUE START SUCCEED FAIL CANCEL CANCEL_GRACEFUL CANCEL_FORCE COMPLETE SKIP RECOVER HOLD APPROVE REJECT EXPIRE "
    "WAIT TIMER_DONE"
).split()
TERMINAL = {"success", "failed", "cancelled", "skipped"}


def knowing(event: str) -> set[str]:
    return {state for state in STATES if event in valid_events(state)}


def test_the_counts() -> None:
    assert [str(state) for state in ExecutionState] == STATES
    assert [str(event) for event in ExecutionEvent] == EVENTS
    assert (len(STATES), len(EVENTS), len(LEADS), len(EXECUTION.transitions)) == (11, 16, 25, 25)
    assert (len(TERMINAL_STATES), len(set(STATES) - TERMINAL)) == (4, 7)


@pytest.mark.parametrize("state", STATES)
def test_every_pair_leads_where_the_table_says_or_raises(state: str) -> None:
    for event in EVENTS:
        target = LEADS.get((state, event))
        assert can_transition(state, event) == (target is not None)
        if target is not None:
            entered = transition(state, event)
            assert entered == target
            assert type(entered) is ExecutionState
            continue
        with pytest.raises(InvalidTransitionError) as refusal:
            transition(state, event)
        assert (refusal.value.state, refusal.value.event) == (state, event)
        assert refusal.value.allowed == {known for known in EVENTS if (state, known) in LEADS}


def test_members_of_the_enums_do_as_well_as_their_text() -> None:
    for state, event in product(ExecutionState, ExecutionEvent):
        assert can_transition(state, event) == can_transition(str(state), str(event))


def test_what_is_terminal() -> None:
    assert {state for state in STATES if is_terminal(state)} == TERMINAL == TERMINAL_STATES
    with pytest.raises(ValueError, match="has no state 'done'"):
        is_terminal("done")


def test_a_terminal_state_has_no_events() -> None:
    assert all(valid_events(state) == frozenset() for state in TERMINAL)


def test_the_key_patterns() -> None:
    assert knowing("CANCEL") == {"pending", "queued", "running", "recovering", "held", "waiting"}
    assert knowing("CANCEL_GRACEFUL") == {"running"}
    assert knowing("CANCEL_FORCE") == knowing("COMPLETE") == {"cancelling"}
    assert knowing("FAIL") == {"queued", "running", "cancelling", "recovering"}
    assert knowing("SKIP") == knowing("HOLD") == knowing("WAIT") == {"pending"}
    assert knowing("SUCCEED") == knowing("RECOVER") == {"running"}
    assert knowing("APPROVE") == knowing("REJECT") == knowing("EXPIRE") == {"held"}
    assert knowing("TIMER_DONE") == {"waiting"}


def test_a_job_does_not_run_without_having_been_queued() -> None:
    with pytest.raises(InvalidTransitionError):
        transition("pending", "START")


def test_an_agent_vanishes_and_comes_back_or_does_not() -> None:
    assert transition(transition("running", "RECOVER"), "START") == "running"
    assert transition(transition("running", "RECOVER"), "FAIL") == "failed"


def test_its_error_is_the_one_that_the_library_raises_everywhere() -> None:
    assert InvalidTransitionError is callboard.errors.InvalidTransitionError
    assert issubclass(InvalidTransitionError, Exception)
