"""The machine module: queries of a table, refusals, the findings of its check, and drawings."""

from __future__ import annotations

import pickle
from enum import StrEnum
from functools import partial
from typing import Any

import pytest

from callboard.machines import (
    TASK,
    Event,
    Finding,
    GuardRejected,
    InvalidTransitionError,
    Machine,
    State,
    TaskState,
    Timed,
    Transition,
)


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    DARK = "dark"


def nobody_waits(facts: Any, _: object) -> bool:
    return bool(facts == 0)


def in_a_hurry(_: object, payload: Any) -> bool:
    return payload == "hurry"


def light(**changes: Any) -> Machine:
    """A traffic light: red and green until the power fails. Sound, unless `changes` make it otherwise."""
    declared: dict[str, Any] = {
        "name": "light",
        "initial": Light.RED,
        "states": (
            State(Light.RED),
            State(Light.GREEN, bounded_by="whoever waits at the other side"),
            State(Light.DARK, terminal=True),
        ),
        "transitions": (
            Transition(Light.RED, "go", Light.GREEN),
            Transition(Light.GREEN, "stop", Light.GREEN, nobody_waits),
            Transition(Light.GREEN, "stop", Light.RED, in_a_hurry),
            Transition(Light.RED, "fail", Light.DARK, severity="error"),
            Transition(Light.GREEN, "fail", Light.DARK, severity="error"),
        ),
        "timed": (Timed(Light.RED, "go", "red_seconds"),),
    }
    return Machine(**declared | changes)


LIGHT = light()


class TestAsking:
    def test_the_first_row_whose_guard_passes_wins(self) -> None:
        both = LIGHT.transition(Light.GREEN, "stop", facts=0, payload="hurry")
        assert both is LIGHT.transitions[1]
        assert LIGHT.transition(Light.GREEN, "stop", facts=1, payload="hurry").target is Light.RED

    def test_plain_strings_are_as_good_as_members(self) -> None:
        assert LIGHT.transition("red", "go").target is Light.GREEN

    def test_the_compiled_table_is_public(self) -> None:
        (row,) = LIGHT.table["red"]["go"]
        assert row is LIGHT.transitions[0]
        assert LIGHT.table["dark"] == {}

    def test_can_transition_asks_the_guards(self) -> None:
        assert LIGHT.can_transition("red", "go")
        assert not LIGHT.can_transition("red", "stop")
        assert not LIGHT.can_transition("green", "stop", facts=1)
        assert LIGHT.can_transition("green", "stop", facts=1, payload="hurry")

    def test_valid_events_are_those_of_the_state(self) -> None:
        assert LIGHT.valid_events("green") == {"stop", "fail"}
        assert LIGHT.valid_events("dark") == frozenset()

    def test_terminal_states(self) -> None:
        assert LIGHT.is_terminal("dark")
        assert not LIGHT.is_terminal("red")

    def test_timed_events_are_found_by_state(self) -> None:
        assert LIGHT.timed_in["red"] == (Timed(Light.RED, "go", "red_seconds"),)
        assert LIGHT.timed_in["green"] == ()

    def test_what_a_guard_raises_is_not_hidden(self) -> None:
        broken = light(transitions=(Transition("red", "go", "green", lambda facts, _: bool(facts.missing)),))
        with pytest.raises(AttributeError):
            broken.transition("red", "go", facts=1)

    def test_a_row_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            LIGHT.transitions[0].target = "dark"  # type: ignore[misc]


class TestErrors:
    def test_an_unknown_event_lists_what_is_possible(self) -> None:
        with pytest.raises(InvalidTransitionError) as refusal:
            LIGHT.transition("red", "stop")
        assert str(refusal.value) == "light: 'stop' is not possible in state 'red'. Possible there: fail, go."
        assert refusal.value.allowed == {"go", "fail"}

    def test_members_are_shown_as_their_words(self) -> None:
        with pytest.raises(InvalidTransitionError, match="'go' is not possible in state 'green'"):
            LIGHT.transition(Light.GREEN, "go")

    def test_a_terminal_state_says_what_to_do(self) -> None:
        with pytest.raises(InvalidTransitionError) as refusal:
            LIGHT.transition("dark", "go")
        assert str(refusal.value) == (
            "light: 'go' is not possible in state 'dark': nothing leaves it. "
            "An ended entity cannot be changed; start a new run."
        )

    def test_a_refusal_by_guards_names_them(self) -> None:
        with pytest.raises(GuardRejected) as refusal:
            LIGHT.transition("green", "stop", facts=1)
        assert refusal.value.guards == ("nobody waits", "in a hurry")
        assert str(refusal.value) == (
            "light: 'stop' was refused in state 'green', since not 'nobody waits' or 'in a hurry'. "
            "Other events known there, if their guards pass: fail."
        )

    def test_a_refusal_is_a_value_error_and_survives_pickling(self) -> None:
        for state, event in (("red", "stop"), ("green", "stop")):
            with pytest.raises(ValueError, match="light") as refusal:
                LIGHT.transition(state, event)
            copy = pickle.loads(pickle.dumps(refusal.value))
            assert type(copy) is type(refusal.value)
            assert str(copy) == str(refusal.value)
            assert copy.__dict__ == refusal.value.__dict__

    def test_the_text_is_made_only_when_it_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[str] = []
        monkeypatch.setattr(InvalidTransitionError, "__str__", lambda self: read.append(self.event) or "")
        with pytest.raises(InvalidTransitionError) as refusal:
            LIGHT.transition("red", "stop")
        assert read == []
        str(refusal.value)
        assert read == ["stop"]

    @pytest.mark.parametrize("ask", ["transition", "can_transition", "valid_events", "is_terminal"])
    def test_an_unknown_state_is_not_an_ordinary_refusal(self, ask: str) -> None:
        arguments = ("blue", "go") if "transition" in ask else ("blue",)
        with pytest.raises(ValueError, match="no state 'blue'; its states are red, green, dark") as error:
            getattr(LIGHT, ask)(*arguments)
        assert not isinstance(error.value, InvalidTransitionError)


class TestCompiling:
    def test_everything_wrong_is_said_at_once(self) -> None:
        with pytest.raises(ValueError, match="light") as error:
            light(
                initial="blue",
                states=(State("red"), State("red"), State("dark", terminal=True)),
                transitions=(
                    Transition("red", "go", "green"),
                    Transition("amber", "go", "dark", nobody_waits),
                    Transition("red", "fail", "dark", severity="fatal"),  # type: ignore[arg-type]
                ),
                timed=(Timed("white", "go", "seconds"),),
                endless=True,
            )
        text = str(error.value)
        assert text.startswith("machine 'light' cannot be compiled: ")
        for fault in (
            "state red is declared twice",
            "its initial state blue is not declared",
            "the row red go green names the undeclared state green",
            "the row amber go [nobody waits] dark names the undeclared state amber",
            "red fail dark has the severity 'fatal', which is not one of info, warning, error, critical",
            "the timed event go names the undeclared state white",
            "it is declared endless, but has a terminal state",
        ):
            assert fault in text

    @pytest.mark.parametrize(
        ("name", "told"),
        [("", "''"), (" new", "' new'"), ("new\n", "'new\\n'"), ("n\x00w", "'n\\x00w'"), (3, "3")],
    )
    def test_what_is_no_name_names_nothing(self, name: Any, told: str) -> None:
        def refused(**parts: Any) -> str:
            names: dict[str, Any] = {"name": "m", "state": "new", "event": "go", "fact": "late"} | parts
            state, event = names["state"], names["event"]
            with pytest.raises(ValueError, match="cannot be compiled") as refusal:
                Machine(
                    names["name"],
                    state,
                    states=[State(state), State("old", terminal=True)],
                    transitions=[Transition(state, event, "old")],
                    timed=[Timed(state, event, names["fact"])],
                )
            return str(refusal.value)

        wrong = f"{told} is no name: use printable characters, and no space at its ends"
        assert f"its name {wrong}" in refused(name=name)
        assert f"the state {wrong}" in refused(state=name)
        assert f"the event {wrong}" in refused(event=name)
        assert f"the fact {wrong}" in refused(fact=name)

    @pytest.mark.parametrize("guard", ["enough", 3, ["enough"]])
    def test_a_guard_that_is_no_function(self, guard: Any) -> None:
        states = [State("new", bounded_by="it"), State("old", terminal=True)]
        with pytest.raises(ValueError, match="which is no function of facts and payload"):
            Machine("m", "new", states=states, transitions=[Transition("new", "go", "old", guard)])

    @pytest.mark.parametrize("how", ["async", "partial", "object", "generator"])
    def test_a_guard_whose_answer_comes_later(self, how: str) -> None:
        """The guard returns an object at once, which is true: the door would be open to everybody."""

        async def closed(facts: Any, payload: Any) -> bool:
            return False

        def yields(facts: Any, payload: Any) -> Any:
            yield False

        class Asks:
            async def __call__(self, facts: Any, payload: Any) -> bool:
                return False

        guard: Any = {"async": closed, "partial": partial(closed), "object": Asks(), "generator": yields}[how]
        states = [State("new", bounded_by="it"), State("old", terminal=True)]
        with pytest.raises(ValueError, match="is async or a generator: its immediate result is always true"):
            Machine("m", "new", states=states, transitions=[Transition("new", "go", "old", guard)])

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"states": ["a"]}, r"states\[0\] is a State, as State\('open'\), and not 'a'"),
            ({"transitions": [("new", "go", "old")]}, r"transitions\[0\] is a Transition, as .*, and not \('new'"),
            ({"timed": [("new", "go", "at")]}, r"timed\[0\] is a Timed, as .*, and not \('new'"),
        ],
    )
    def test_what_is_no_part_of_a_table(self, given: dict[str, Any], told: str) -> None:
        parts: dict[str, Any] = {"states": [State("new", terminal=True)], "transitions": []}
        with pytest.raises(TypeError, match=told):
            Machine("m", "new", **{**parts, **given})

    def test_it_shows_its_size(self) -> None:
        assert repr(LIGHT) == "<Machine light: 3 states, 5 transitions>"


class TestCheck:
    def test_a_sound_machine_has_no_findings(self) -> None:
        assert LIGHT.check() == []

    def test_a_state_that_nothing_reaches(self) -> None:
        machine = light(
            states=(*LIGHT.states.values(), State("blue", bounded_by="nobody")),
            transitions=(*LIGHT.transitions, Transition("blue", "go", "red")),
        )
        assert machine.check() == [Finding("unreachable", "blue", "no path from red reaches blue")]

    def test_a_state_that_no_end_can_be_reached_from(self) -> None:
        machine = light(
            states=(*LIGHT.states.values(), State("stuck", bounded_by="nobody")),
            transitions=(
                *LIGHT.transitions,
                Transition("red", "jam", "stuck"),
                Transition("stuck", "wait", "stuck"),
            ),
        )
        assert machine.check() == [Finding("dead_end", "stuck", "no path from stuck reaches a terminal state")]

    def test_a_machine_without_an_end_must_say_so(self) -> None:
        rows = (Transition("red", "go", "green"), Transition("green", "stop", "red"))
        states = (State("red", bounded_by="x"), State("green", bounded_by="x"))
        assert {finding.kind for finding in light(states=states, transitions=rows).check()} == {"dead_end"}
        assert light(states=states, transitions=rows, endless=True).check() == []

    def test_an_endless_machine_may_not_get_stuck(self) -> None:
        rows = (Transition("red", "go", "green"), Transition("green", "stay", "green"))
        states = (State("red", bounded_by="x"), State("green", bounded_by="x"))
        machine = light(states=states, transitions=rows, endless=True)
        assert machine.check() == [Finding("dead_end", "green", "no path from green reaches any other state")]

    @pytest.mark.parametrize(
        ("rows", "text"),
        [
            (
                (Transition("red", "go", "green"), Transition("red", "go", "dark", nobody_waits)),
                "the row red go [nobody waits] dark is never taken: an earlier row has no guard",
            ),
            (
                (Transition("red", "go", "green"), Transition("red", "go", "dark")),
                "the row red go dark is never taken: an earlier row has no guard",
            ),
            (
                (
                    Transition("red", "go", "green", nobody_waits),
                    Transition("red", "go", "dark", nobody_waits),
                ),
                "the row red go [nobody waits] dark is never taken: an earlier row has the same guard",
            ),
        ],
    )
    def test_a_row_that_can_never_win(self, rows: tuple[Transition, ...], text: str) -> None:
        machine = light(transitions=(*rows, *LIGHT.transitions[1:]))
        assert machine.check() == [Finding("ambiguous", "red go", text)]

    def test_a_row_out_of_a_terminal_state(self) -> None:
        row = Transition("dark", "repair", "red")
        (finding,) = light(transitions=(*LIGHT.transitions, row)).check()
        assert (finding.kind, finding.subject) == ("terminal_exit", "dark")

    def test_a_forced_row_may_leave_a_terminal_state(self) -> None:
        row = Transition("dark", "repair", "red", forced=True)
        machine = light(transitions=(*LIGHT.transitions, row))
        assert machine.check() == []
        assert machine.transition("dark", "repair").target == "red"

    def test_a_state_that_nothing_bounds(self) -> None:
        (finding,) = light(timed=()).check()
        assert finding == Finding("unbounded", "red", "`bounded_by` names nothing that ends a long stay in red")

    def test_a_timed_event_that_its_state_does_not_know(self) -> None:
        (finding,) = light(timed=(*LIGHT.timed, Timed("green", "go", "seconds"))).check()
        assert (finding.kind, finding.subject) == ("timed_without_row", "green")

    def test_a_guard_that_does_not_take_facts_and_payload(self) -> None:
        def always() -> bool:
            return True

        row = Transition("green", "inspect", "green", always)  # type: ignore[arg-type]
        (finding,) = light(transitions=(*LIGHT.transitions, row)).check()
        assert (finding.kind, finding.subject) == ("bad_guard", "always")
        assert light(transitions=(*LIGHT.transitions, Transition("green", "inspect", "green", max))).check() == []


class TestDrawing:
    def test_mermaid(self) -> None:
        assert LIGHT.mermaid().splitlines() == [
            "stateDiagram-v2",
            "    [*] --> red",
            "    red --> green: go after red_seconds",
            "    green --> green: stop [nobody waits]",
            "    green --> red: stop [in a hurry]",
            "    red --> dark: fail",
            "    green --> dark: fail",
            "    dark --> [*]",
        ]

    def test_dot(self) -> None:
        text = LIGHT.dot()
        assert text.startswith('digraph "light" {')
        assert text.endswith("}")
        assert '    "dark" [peripheries=2];' in text
        assert '    "" -> "red";' in text
        assert '    "red" -> "green" [label="go after red_seconds"];' in text

    def test_rows_between_the_same_states_share_an_arrow(self) -> None:
        machine = light(transitions=(*LIGHT.transitions, Transition("red", "cut", "dark")))
        assert "red --> dark: fail / cut" in machine.mermaid()
        assert '"red" -> "dark" [label="fail\\ncut"]' in machine.dot()

    def test_a_forced_row_says_so(self) -> None:
        machine = light(transitions=(*LIGHT.transitions, Transition("dark", "repair", "red", forced=True)))
        assert "dark --> red: repair (forced)" in machine.mermaid()

    def test_names_that_are_no_identifiers(self) -> None:
        machine = Machine(
            'a "quoted" name',
            "not begun",
            (State("not begun", bounded_by="x"), State('it\'s "over"', terminal=True)),
            (Transition("not begun", "end: now", 'it\'s "over"'),),
        )
        assert machine.mermaid().splitlines() == [
            "stateDiagram-v2",
            '    state "not begun" as state0',
            '    state "it\'s  over " as state1',
            "    [*] --> state0",
            "    state0 --> state1: end  now",
            "    state1 --> [*]",
        ]
        assert '"it\'s \\"over\\"" [peripheries=2]' in machine.dot()
        assert machine.dot().startswith('digraph "a \\"quoted\\" name" {')


def test_a_second_cancel_is_told_what_cuts_the_first_one_short() -> None:
    with pytest.raises(InvalidTransitionError) as refusal:
        TASK.transition(TaskState.CANCELLING, Event.CANCEL)
    assert "Possible there: cancel_force, " in str(refusal.value)
    assert "cancel with force (`--force`)" in str(refusal.value)
    again = pickle.loads(pickle.dumps(refusal.value))
    assert str(again) == str(refusal.value)
    with pytest.raises(InvalidTransitionError) as refusal:
        TASK.transition(TaskState.CANCELLING, Event.START)
    assert "force (" not in str(refusal.value)
