"""The report of a simulation in which an awaited event does not come: the present state, since when, and advice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from callboard import Approval, Fire, MachineActor, Runtime, Task, Workstream
from callboard.machines import Machine, State, Transition
from callboard.machines.builtin.table import MACHINES
from callboard.runtime.testing.entity_states import WAITS
from callboard.testing import Fails, Simulation, VirtualRuntime

DOOR = Machine(
    "door", "shut", [State("shut", bounded_by="a test"), State("open", terminal=True)],
    [Transition("shut", "push", "open")],
)  # fmt: skip


def body() -> None:
    """A body that a script replaces."""


def flow() -> Workstream:
    return Workstream(
        "flow",
        tasks=[
            Task("build", run=body),
            Task("deploy", run=body, depends_on=["build"], hold=Approval(people=2, expires="9h")),
            Task("tell", run=body, depends_on=["deploy"]),
        ],
    )


def failure(wait: Callable[[], object]) -> list[str]:
    """The text of the raised error, line by line."""
    with pytest.raises(AssertionError) as raised:
        wait()
    return str(raised.value).splitlines()


def test_every_state_that_something_may_wait_in_says_what_for() -> None:
    living = {kind: {str(one) for one in it.states if not it.is_terminal(one)} for kind, it in MACHINES.items()}
    assert {kind: set(told) for kind, told in WAITS.items()} == living


def test_where_a_task_is_since_when_and_what_to_do() -> None:
    with Simulation() as sim:
        sim.body("build", takes="90s")
        job = sim.submit(flow(), id="r1")
        why = job.task("deploy").until("held").record.reason
        told = [
            (
                "task r1/deploy is 'held' since 00:01:30.000 (00:58:30.000 ago), and waits for an approval, "
                f"or until 09:01:30.000: {why}. To have it go on: sim.job('r1').task('deploy').approve(by=\"ana\")."
            ),
            "Its last transitions: 00:00:00.000 new -> pending (create); 00:01:30.000 pending -> held (hold).",
        ]
        sim.advance(3600 - sim.now)
        first, *rest = failure(lambda: job.task("deploy").until("completed", within="0s"))
        assert first == "waited 0s for task r1/deploy to be completed: it did not come"
        assert rest == told
        assert failure(lambda: sim.until("r1/deploy", "completed", within="0s"))[1:] == [
            told[0].removeprefix("task "), told[1],
        ]  # fmt: skip
        assert failure(lambda: sim.expect_transition("r1/deploy", to="completed"))[1:] == [
            told[0].removeprefix("task "), told[1],
        ]  # fmt: skip
        _, after, _, its = failure(lambda: job.task("tell").until("running", within="0s"))
        assert after.startswith("task r1/tell is 'pending' since 00:00:00.000 (01:00:00.000 ago), and waits for what")
        assert after.endswith("To have it go on: see where that is: sim.job('r1').states().")
        assert its == "task r1@1/deploy" + told[0].removeprefix("task r1/deploy")
        # an entity that waits for others is described by their states
        assert failure(lambda: job.run(within="0s"))[1:] == [
            "task r1@1/deploy" + told[0].removeprefix("task r1/deploy")
        ]
        assert (
            failure(lambda: sim.run_until(lambda: False, within="0s"))[1:] == failure(lambda: job.run(within="0s"))[1:]
        )


def test_what_has_ended_says_why_and_that_nothing_leaves_it() -> None:
    with Simulation() as sim:
        sim.body("build", outcomes=[Fails("no memory")])
        job = sim.submit(flow(), id="r1")
        text = failure(lambda: job.until("completed"))
        assert text[1].startswith("job 'r1' is 'failed' since 00:00:00.000 (00:00:00.000 ago): task 'build' failed")
        assert text[1].endswith("; that state is final: expect it, or change the test before it.")
        assert text[2].endswith("pending -> running (allocate); 00:00:00.000 running -> failed (fail).")


def test_workers_breakers_machines_and_what_there_is_not() -> None:
    with Simulation() as sim:
        sim.spawn(MachineActor(DOOR), name="front")
        text = failure(lambda: sim.until("front", "open", within="1h"))
        assert text[1] == (
            "front is 'shut' since 00:00:00.000 (00:00:00.000 ago), and waits for an event. To have it go on: "
            "sim.ask(sim.machine('front'), Fire(...))."
        )
        sim.worker("loop").until("idle")
        assert failure(lambda: sim.worker("loop").until("busy", within="1h"))[1].startswith(
            "worker 'loop' is 'idle' since"
        )
        assert failure(lambda: sim.until("back", "open", within="1h"))[1:] == [
            "back does not exist: nothing had that name; there are: "
            + ", ".join(dict.fromkeys(row.entity_id for row in sim.transitions))
        ]
        sim.crash(restart=False)
        assert failure(lambda: sim.until("front", "open", within="1h"))[1].startswith(
            "front is 'shut' since 00:00:00.000"
        )
        sim.restart()
        sim.ask(sim.machine("front"), Fire("push"))
        text = failure(lambda: sim.until("front", "shut", within="1h"))
        assert text[1].startswith("front is 'open' since ")


@pytest.mark.anyio
async def test_on_the_tests_own_loop_what_waits_is_told() -> None:
    async with VirtualRuntime() as runtime:
        assert isinstance(runtime, Runtime)
        await runtime.submit(Workstream("w", tasks=[Task("deploy", run=body, hold=Approval())]), id="r1")
        with pytest.raises(AssertionError, match=r"task r1@1/deploy is 'held' since 00:00:00.000 \(01:00:00"):
            await runtime.run_until(lambda: False, within="1h")
