"""What holds of every machine, whatever is fired at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.machines import (
    APPROVAL,
    BREAKER,
    JOB,
    TASK,
    WORKER,
    WORKSTREAM,
    Event,
    InvalidTransitionError,
    Machine,
    TaskState,
    WorkstreamState,
    derive,
)

MACHINES = [TASK, WORKSTREAM, APPROVAL, WORKER, JOB, BREAKER]
ENDING = [machine for machine in MACHINES if not machine.endless]


def by_name(machine: Machine) -> str:
    return machine.name


small = st.integers(min_value=0, max_value=4)
moment = st.none() | st.floats(min_value=0, max_value=10)

facts = st.builds(
    SimpleNamespace,
    unmet=small,
    probe=st.booleans(),
    failed_attempts=small,
    lost_attempts=small,
    granted=small,
    max_attempts=small,
    max_losses=small,
    on_loss=st.sampled_from(["rerun", "fail", "park"]),
    on_exhausted=st.sampled_from(["fail", "park"]),
    hold_until=moment,
    wait_until=moment,
    cause=st.sampled_from([None, "failure", "cancel"]),
    assigned=small,
    capacity=small,
    paused=st.booleans(),
    draining=st.booleans(),
    failures=small,
    successes=small,
    failure_threshold=small,
    success_threshold=small,
)
payload = st.builds(
    SimpleNamespace,
    lost=st.booleans(),
    permanent=st.booleans(),
    repeated=st.booleans(),
    at=st.floats(min_value=0, max_value=10),
    missing=small,
    permit=st.booleans(),
)
steps = st.lists(st.tuples(st.sampled_from(Event), facts, payload), max_size=40)


@pytest.mark.parametrize("machine", MACHINES, ids=by_name)
@settings(max_examples=40)  # of up to forty steps each
@given(walk=steps)
def test_any_walk_stays_inside_the_table(machine: Machine, walk: list[tuple[Event, Any, Any]]) -> None:
    state = machine.initial
    for event, known, told in walk:
        possible = machine.can_transition(state, event, known, told)
        if not possible:
            with pytest.raises(InvalidTransitionError) as refusal:
                machine.transition(state, event, known, told)
            assert refusal.value.allowed == machine.valid_events(state)
            continue
        row = machine.transition(state, event, known, told)
        assert row in machine.transitions
        assert (row.source, row.event) == (state, event)
        assert event in machine.valid_events(state)
        state = row.target
        assert state in machine.states


@pytest.mark.parametrize("machine", ENDING, ids=by_name)
@given(event=st.sampled_from(Event), known=facts, told=payload)
def test_a_terminal_state_never_leaves(machine: Machine, event: Event, known: Any, told: Any) -> None:
    for state in machine.states:
        if machine.is_terminal(state):
            assert not machine.can_transition(state, event, known, told)


@pytest.mark.parametrize("machine", MACHINES, ids=by_name)
@given(data=st.data())
def test_a_guard_only_reads_and_always_answers_the_same(machine: Machine, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(machine.transitions))
    known, told = data.draw(facts), data.draw(payload)
    before = (dict(vars(known)), dict(vars(told)))
    answers = {machine.can_transition(row.source, row.event, known, told) for _ in range(2)}
    assert len(answers) == 1
    assert (vars(known), vars(told)) == before


@pytest.mark.parametrize("machine", ENDING, ids=by_name)
def test_every_state_can_reach_an_end(machine: Machine) -> None:
    """By a search of its own, and not by `check`."""
    for state in machine.states:
        seen, frontier = {state}, [state]
        while frontier:
            here = frontier.pop()
            onward = {row.target for row in machine.transitions if row.source == here} - seen
            seen |= onward
            frontier.extend(onward)
        assert any(machine.is_terminal(end) for end in seen)


tasks = st.lists(
    st.builds(
        SimpleNamespace,
        state=st.sampled_from(TaskState),
        optional=st.booleans(),
        standing=st.sampled_from([None, "good", "void", "bad"]),
    ),
    max_size=6,
)


@given(tasks=tasks)
def test_what_tasks_allow_of_their_workstream(tasks: list[SimpleNamespace]) -> None:
    allowed = derive(tasks)
    ended = {state for state in allowed if WORKSTREAM.is_terminal(state)}
    if any(not TASK.is_terminal(task.state) for task in tasks):
        assert not ended
    else:
        assert {WorkstreamState.FAILED, WorkstreamState.CANCELLED} <= ended
    bad = any(task.state in {"failed", "cancelled"} and not task.optional for task in tasks)
    assert not (bad and WorkstreamState.COMPLETED in allowed)
    assert WorkstreamState.CANCELLING in allowed
    assert allowed == derive(reversed(tasks))
