"""Properties of every published machine under any events."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.machines import InvalidTransitionError, Machine, Phase
from callboard.machines.lifecycles import PUBLISHED

MACHINES = [pytest.param(machine, id=name) for name, machine in PUBLISHED.items()]
EVENTS = sorted({str(row.event) for machine in PUBLISHED.values() for row in machine.transitions})

NUMBERS = (  # noqa: SIM905
    "retry_count max_retries unmet assigned failures successes failure_threshold success_threshold"
).split()


def drawn_facts(seed: int) -> SimpleNamespace:
    """The facts that any guard reads, with small numbers. A seed draws them: to draw each field takes seconds."""
    rng = Random(seed)
    return SimpleNamespace(
        **{name: rng.randint(0, 4) for name in NUMBERS},
        permanent=rng.random() < 0.5,
        repeated=rng.random() < 0.5,
    )


facts = st.integers(0, 9999).map(drawn_facts)
few = settings(max_examples=10)


@pytest.mark.parametrize("machine", MACHINES)
@few
@given(walk=st.lists(st.tuples(st.sampled_from(EVENTS), facts), max_size=15))
def test_any_walk_stays_inside_the_table(machine: Machine, walk: list[tuple[str, Any]]) -> None:
    state = machine.initial
    for event, known in walk:
        if not machine.can_transition(state, event, known):
            with pytest.raises(InvalidTransitionError) as refusal:
                machine.transition(state, event, known)
            assert refusal.value.allowed == machine.valid_events(state)
            continue
        row = machine.transition(state, event, known)
        assert row in machine.transitions
        assert (row.source, row.event) == (state, event)
        state = row.target


@pytest.mark.parametrize("machine", MACHINES)
@few
@given(data=st.data())
def test_a_guard_only_reads_and_always_answers_the_same(machine: Machine, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(machine.transitions))
    known = data.draw(facts)
    before = dict(vars(known))
    assert len({machine.can_transition(row.source, row.event, known) for _ in range(2)}) == 1
    assert vars(known) == before


@pytest.mark.parametrize("machine", MACHINES)
@few
@given(known=facts)
def test_what_is_decided_after_a_failure_is_always_one_thing(machine: Machine, known: Any) -> None:
    """If all rows of a failure have guards, at least one guard passes, or the failure is final."""
    for state, declared in machine.states.items():
        if declared.phase != Phase.DECIDING:
            continue
        rows = [row for row in machine.transitions if row.source == state]
        passing = {row.target for row in rows if row.guard is None or row.guard(known, None)}
        assert len(passing) == 1 or machine.name == "pipeline.step"
