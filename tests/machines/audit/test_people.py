"""The events that people may fire: the table in the runtime's words and in those of each published lifecycle."""

from __future__ import annotations

import pytest

from callboard import Lifecycle, Machine, Phase, State, Timed, Transition
from callboard.machines import Event
from callboard.machines.adapt.people import PEOPLE, Asks, asked_of, part_of
from callboard.machines.builtin.table import MACHINES
from callboard.machines.lifecycles import LIFECYCLES

CANCELS = {"cancel": "cancel", "cancel_graceful": "cancel", "cancel_force": "cancel --force"}
EXECUTES = {"CANCEL": "cancel --force", "CANCEL_GRACEFUL": "cancel", "CANCEL_FORCE": "cancel --force"}
OWN = {
    "job": {"cancel": "cancel", "cancel_graceful": "cancel"},
    "workstream": {"approve": "approve", "reject": "reject", "pause": "pause", "resume": "resume", **CANCELS},
    "task": {"approve": "approve", "reject": "reject", "skip": "skip", "reset": "reset", **CANCELS},
    "worker": {"pause": "pause", "resume": "resume", "shut_down": "shut_down", "terminate": "terminate"},
    "breaker": {"reset": "reset", "trip": "trip"},
}
PUBLISHED = {
    ("pipeline", "workstream"): {"abandon": "cancel"},
    ("pipeline", "task"): {},
    ("pipeline", "breaker"): {"reset_circuit": "reset"},
    ("orchestration", "task"): {"user_cancelled": "cancel"},
    ("orchestration", "workstream"): {"user_cancelled": "cancel"},
    ("orchestration", "worker"): {"shutdown_requested": "shut_down"},
    ("fleet", "worker"): {
        "start_task": "start", "pause": "pause", "resume": "resume", "complete_tasks": "shut_down",
        "terminate": "terminate",
    },
    ("fleet", "job"): {"cancel": "cancel"},
    ("guarded", "task"): {
        "optional_step_skipped": "skip", "manual_reset": "reset", "user_cancels": "cancel", "user_interrupt": "cancel",
        "workstream_cancelled": "cancel",
    },
    ("execution", "task"): {"APPROVE": "approve", "REJECT": "reject", "SKIP": "skip", **EXECUTES},
    ("execution", "workstream"): {"APPROVE": "approve", "REJECT": "reject", **EXECUTES},
    ("execution", "job"): EXECUTES,
}  # fmt: skip


def shown(asked: dict[str, Asks]) -> dict[str, str]:
    return {event: f"{asks.verb}{' --force' * asks.force}" for event, asks in asked.items()}


@pytest.mark.parametrize("kind", OWN)
def test_the_own_machines_are_fired_at_by_these(kind: str) -> None:
    assert shown(asked_of(kind)) == OWN[kind]


@pytest.mark.parametrize(("name", "kind"), PUBLISHED)
def test_a_published_lifecycle_is_fired_at_by_its_own_words(name: str, kind: str) -> None:
    assert shown(asked_of(kind, LIFECYCLES[name][kind])) == PUBLISHED[name, kind]


def test_every_published_lifecycle_is_looked_at() -> None:
    assert {(name, kind) for name, kinds in LIFECYCLES.items() for kind in kinds} == set(PUBLISHED)


def test_the_table_names_events_of_the_machines_or_of_a_lifecycle() -> None:
    for kind, events in PEOPLE.items():
        own = {str(row.event) for row in MACHINES[kind].transitions}
        mapped = {own for kinds in LIFECYCLES.values() if kind in kinds for own in kinds[kind].events}
        assert set(events) <= own | mapped, kind


def test_the_present_state_says_which_are_possible() -> None:
    assert set(part_of("task", "held").possible) == {"approve", "reject", "cancel"}
    assert set(part_of("task", "completed").possible) == set()
    assert set(part_of("task", None).possible) == set()
    assert set(part_of("task", "IN_PROGRESS", LIFECYCLES["guarded"]["task"]).possible) == {"user_interrupt"}


def test_a_timer_keeps_its_word_and_people_keep_theirs() -> None:
    """A lifecycle of a user's own, where the timer of the cancel fires what people may fire as well."""
    machine = Machine(
        "own",
        "new",
        states=[
            State("new", Phase.PENDING, bounded_by="its dependencies"),
            State("works", Phase.RUNNING, bounded_by="its body"),
            State("stops", Phase.CANCELLING),
            State("done", Phase.COMPLETED, terminal=True),
            State("gone", Phase.CANCELLED, terminal=True),
        ],
        transitions=[
            Transition("new", "begin", "works"),
            Transition("works", "finish", "done"),
            Transition("works", "stop", "stops"),
            Transition("works", "too_long", "gone"),
            Transition("stops", "kill", "gone"),
        ],
        timed=[Timed("stops", "kill", "patience"), Timed("works", "too_long", "limit")],
    )
    words = {Event.CANCEL_GRACEFUL: ("stop",), Event.CANCEL_FORCE: ("kill", "too_long"), Event.TIME_OUT: ("too_long",)}
    assert shown(asked_of("task", Lifecycle("own", "task", machine, words))) == {
        "stop": "cancel", "kill": "cancel --force",
    }  # fmt: skip
