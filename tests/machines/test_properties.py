"""Properties of every machine under any events."""

from __future__ import annotations

from random import Random
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
from callboard.machines.lifecycles import PUBLISHED

MACHINES = [TASK, WORKSTREAM, APPROVAL, WORKER, JOB, BREAKER]
ENDING = [machine for machine in MACHINES if not machine.endless]
ALL_ENDING = ENDING + [machine for machine in PUBLISHED.values() if not machine.endless]


def by_name(machine: Machine) -> str:
    return machine.name


def drawn_facts(seed: int) -> SimpleNamespace:
    """The facts that any guard reads of an entity, with small numbers. A seed draws them: fields take seconds."""
    random = Random(seed)
    return SimpleNamespace(
        **{name: random.randint(0, 4) for name in COUNTS},
        **{name: random.random() < 0.5 for name in ("probe", "paused", "draining")},
        **{
            name: random.choice([None, 0.0, random.uniform(0, 10)])
            for name in ("hold_until", "wait_until", "started_at")
        },
        on_loss=random.choice(["rerun", "fail", "park"]),
        on_exhausted=random.choice(["fail", "park"]),
        cause=random.choice([None, "failure", "cancel"]),
    )


def drawn_payload(seed: int) -> SimpleNamespace:
    """The fields that any guard reads of an event's payload."""
    random = Random(seed)
    return SimpleNamespace(
        **{name: random.random() < 0.5 for name in ("lost", "permanent", "repeated", "deferred", "permit")},
        at=random.choice([0.0, random.uniform(0, 10)]),
        missing=random.randint(0, 4),
    )


COUNTS = (  # noqa: SIM905
    "unmet failed_attempts lost_attempts granted max_attempts max_losses assigned capacity failures successes"
    " failure_threshold success_threshold"
).split()
facts = st.integers(0, 9999).map(drawn_facts)
payload = st.integers(0, 9999).map(drawn_payload)
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


@pytest.mark.parametrize("machine", ALL_ENDING, ids=by_name)
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
