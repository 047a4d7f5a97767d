"""Actors under a test's control: probes, and expectations about them and about transitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import msgspec
import pytest

from callboard import (
    Actor,
    Approval,
    Context,
    Fire,
    Machine,
    MachineActor,
    Ref,
    State,
    Task,
    Timed,
    Transition,
    Workstream,
)
from callboard.errors import AskTimeout
from callboard.testing import Simulation


class Remind(msgspec.Struct, frozen=True):
    after: float
    whom: Ref


class Reminded(msgspec.Struct, frozen=True):
    count: int


class Reminder(Actor):
    """Sends a `Reminded` to the given actor, after so many seconds."""

    def __init__(self) -> None:
        self.count = 0

    def receive(self, message: Any, ctx: Context) -> Any:
        match message:
            case Remind(after=after):
                ctx.after(after, message.whom)
            case Ref():
                self.count += 1
                message.tell(Reminded(self.count))
            case "count":
                return self.count
            case _:
                raise ValueError(message)
        return None


class Slow(Actor):
    """Takes an hour for each message, by the event loop."""

    async def receive(self, message: Any, ctx: Context) -> Any:
        await anyio.sleep(3_600)
        return message * 2


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation() as simulation:
        yield simulation


def test_a_probe_is_sent_what_an_actor_sends_on_the_same_clock(sim: Simulation) -> None:
    reminder, probe = sim.spawn(Reminder), sim.probe()
    sim.tell(reminder, Remind(60, probe.ref))
    probe.expect_nothing(within="59s")
    assert probe.expect(Reminded, within="1s").count == 1
    assert (sim.now, probe.messages) == (60, [Reminded(1)])
    assert sim.ask(reminder, "count") == 1


def test_a_value_or_a_function_may_be_expected(sim: Simulation) -> None:
    reminder, probe = sim.spawn(Reminder), sim.probe()
    for _ in range(2):
        sim.tell(reminder, Remind(1, probe.ref))
    probe.expect(Reminded(1), within=2)
    probe.expect(lambda message: message.count == 2, within=2)


def test_what_came_instead_is_said_with_the_seed(sim: Simulation) -> None:
    probe = sim.probe("mine")
    sim.tell(probe.ref, "something")
    with pytest.raises(
        AssertionError, match=r"expected mine to be sent one of type int, and it was sent 'something'"
    ) as raised:
        probe.expect(int)
    assert "seed 0" in raised.value.__notes__[0]
    with pytest.raises(AssertionError, match=r"mine to be sent 7 \(it was sent 'something'\)"):
        probe.expect(7, within="1h")
    sim.tell(probe.ref, "more")
    with pytest.raises(AssertionError, match=r"sent nothing within 1; it was sent 'more'"):
        probe.expect_nothing(within=1)


def test_a_probe_answers_what_it_is_asked(sim: Simulation) -> None:
    probe = sim.probe()
    probe.answer(int, lambda number: number + 1)
    probe.answer("name", "ana")
    assert (sim.ask(probe.ref, 2), sim.ask(probe.ref, "name")) == (3, "ana")
    with pytest.raises(AskTimeout, match="no answer within 5"):
        sim.ask(probe.ref, "else")
    probe.answer(object, None)
    assert sim.ask(probe.ref, "else") is None


def test_a_coroutine_receive_runs_in_virtual_time(sim: Simulation) -> None:
    slow = sim.spawn(Slow, name="slow")
    assert sim.ask(slow, 4, timeout=None) == 8
    assert sim.now == 3_600


def test_an_actor_that_raises_leaves_a_dead_letter(sim: Simulation) -> None:
    sim.tell(sim.spawn(Reminder, name="reminder"), "nonsense")
    (letter,) = sim.dead_letters
    assert (letter.recipient, letter.message) == ("reminder", "nonsense")


OVEN = Machine(
    "oven",
    initial="cold",
    states=[State("cold"), State("warm"), State("off", terminal=True)],
    transitions=[
        Transition("cold", "heat", "warm"),
        Transition("warm", "cool", "cold"),
        Transition("cold", "end", "off"),
    ],
    timed=[Timed("warm", "cool", "cools_after")],
)


class Oven(msgspec.Struct):
    cools_after: float = 0.0


def test_a_machine_actor_is_timed_by_the_same_clock_and_outlives_a_crash(sim: Simulation) -> None:
    oven = sim.spawn(MachineActor(OVEN, facts=Oven(600.0)), name="oven")
    assert sim.ask(oven, Fire("heat")).to_state == "warm"
    sim.advance(300)
    sim.crash()
    assert sim.machine("oven").state == "warm"
    sim.expect_transition("oven", to="warm")
    sim.expect_transition("oven", event="cool", within="6m")
    assert sim.now == 600


def test_transitions_are_expected_in_order_and_each_once(sim: Simulation) -> None:
    job = sim.submit(Workstream("flow", tasks=[Task("deploy", command=["x"], hold=Approval(expires="2h"))]), id="job")
    assert sim.expect_transition("job/deploy", to="held").event == "hold"
    with pytest.raises(AssertionError, match=r"job/deploy to take -> held \(it went: pending -> held\)"):
        sim.expect_transition("job/deploy", to="held", within="1h")
    job.task("deploy").approve(by="ana")
    assert sim.expect_transition("job@1/deploy", to="completed").from_state == "validating"
    sim.expect_transition("job", to="completed")


def test_waiting_for_a_state_says_which_ones_came(sim: Simulation) -> None:
    job = sim.submit(Workstream("flow", tasks=[Task("deploy", command=["x"], hold=Approval(expires="2h"))]), id="job")
    with pytest.raises(AssertionError, match="waited for task job/deploy to be running, and nothing is left") as raised:
        job.task("deploy").until("running", within="3h")
    assert "\ntask job/deploy is 'cancelled' since 02:00:00.000 (" in str(raised.value)
    assert "ago): no approval in time by 1 person; that state is final" in str(raised.value)
    assert job.until("failed").state == "failed"
    assert sim.worker("loop").until("idle").state == "idle"
