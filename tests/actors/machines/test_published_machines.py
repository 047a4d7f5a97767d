"""Each published machine as a `MachineActor`: every row is taken, with its guards."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
import pytest
from tests.actors.machines_help import fire, kind, spawn
from tests.actors.stage import KernelHarness

from callboard.actors.kernel import observing
from callboard.actors.records.transition import Transitioned
from callboard.machines import InvalidTransitionError, Machine, Transition
from callboard.machines.lifecycles import PUBLISHED

by_each = pytest.mark.parametrize("machine", PUBLISHED.values(), ids=list(PUBLISHED))


class Known(msgspec.Struct, frozen=True):
    """The facts that the published guards read."""

    unmet: int = 0
    retry_count: int = 0
    max_retries: int = 1
    permanent: bool = False
    repeated: bool = False
    assigned: int = 0
    failures: int = 0
    failure_threshold: int = 2
    successes: int = 0
    success_threshold: int = 2


CHOICES = [
    Known(retry_count=retries, permanent=permanent, repeated=repeated, failures=counted, successes=counted)
    for retries, permanent, repeated, counted in product((0, 1), (False, True), (False, True), (0, 1))
]
Step = tuple[Transition, Known]


def facts_for(machine: Machine, row: Transition) -> Known:
    """Facts under which an event takes that row and no other."""
    for facts in CHOICES:
        try:
            if machine.transition(row.source, row.event, facts) is row:
                return facts
        except InvalidTransitionError:
            continue
    raise AssertionError(f"nothing takes {row}")


def way_to(machine: Machine, state: str) -> list[Step]:
    """The shortest way from the start to a state."""
    ways: deque[tuple[str, list[Step]]] = deque([(machine.initial, [])])
    seen = {machine.initial}
    while ways:
        here, way = ways.popleft()
        if here == state:
            return way
        for row in machine.transitions:
            if row.source == here and row.target not in seen:
                seen.add(row.target)
                ways.append((row.target, [*way, (row, facts_for(machine, row))]))
    raise AssertionError(f"no way to {state}")


def drive(stage: KernelHarness, name: str, machine: Machine, steps: list[Step]) -> Iterator[Transitioned]:
    """Make an actor of the machine take these steps: the event before each step sets the facts for it."""
    functions: dict[str, Any] = {f"m:{machine.name.upper()}": machine, "m:Known": Known}
    spawn(stage, name, kind(machine, Known, functions=functions), steps[0][1])
    following: list[Known | None] = [facts for _, facts in steps[1:]]
    for (row, _), then in zip(steps, [*following, None], strict=True):
        yield fire(stage, name, row.event, facts=None if then is None else msgspec.to_builtins(then))


@by_each
def test_every_row_is_taken_by_an_actor_of_its_own(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Transition] = []
    before = observing.observe_transition

    def observe(of: Machine, row: Transition) -> None:
        taken.append(row)
        if before is not None:
            before(of, row)

    monkeypatch.setattr(observing, "observe_transition", observe)
    stage = KernelHarness(workers=())
    for number, row in enumerate(machine.transitions):
        steps = [*way_to(machine, row.source), (row, facts_for(machine, row))]
        answers = list(drive(stage, f"run-{number}", machine, steps))
        assert [(one.from_state, one.event, one.to_state, one.severity) for one in answers] == [
            (step.source, step.event, step.target, step.severity) for step, _ in steps
        ]
        assert taken[-1] is row
    assert set(map(id, taken)) == set(map(id, machine.transitions))
    assert stage.reports == []


@by_each
def test_what_a_state_does_not_know_is_refused_with_what_it_does(machine: Machine) -> None:
    events = {row.event for row in machine.transitions}
    stage = KernelHarness(workers=())
    for state in machine.states:
        steps = way_to(machine, state)
        if not steps:
            continue
        assert list(drive(stage, f"at-{state}", machine, steps))[-1].to_state == state
        allowed = machine.valid_events(state)
        for event in sorted(events - allowed):
            refusal = fire(stage, f"at-{state}", event)
            assert isinstance(refusal, InvalidTransitionError)
            assert refusal.allowed == allowed
