"""Bodies that do something else while they wait: the record names the wait only while they do nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.runtime.flows.test_sleeping import asleep, note, ran

from callboard import Task, TaskContext, Tool, Worker, Workstream, step
from callboard.runtime.flows.lent_slots import QUIET
from callboard.runtime.flows.sleeping import LONG
from callboard.testing import SimulatedJob, Simulation

go: asyncio.Event
done: asyncio.Event
HALF = QUIET / 2


@pytest.fixture(autouse=True)
def _anew() -> None:
    global go, done
    ran.clear()
    go, done = asyncio.Event(), asyncio.Event()


@step
async def works() -> str:
    """A step that runs as long as the test wants."""
    ran.append("works")
    await done.wait()
    return "worked"


async def branch(task: TaskContext) -> None:
    """The work of the body beside its wait, as its arguments say."""
    kind = task.args["beside"]
    if kind == "sleeps at first":
        await task.sleep(task.args["seconds"])
        return
    if kind == "works at first":
        await works()
        return
    await go.wait()
    if kind == "receives":
        await task.receive("other")
        await note("received")
    else:
        await works()


async def order(task: TaskContext) -> Any:
    ran.append("began")
    beside = asyncio.create_task(branch(task))
    await asyncio.sleep(0)
    got = await task.receive("paid", timeout="7d")
    await beside
    return got


def begun(sim: Simulation, beside: str, **args: Any) -> tuple[SimulatedJob, Callable[[], str | None]]:
    """Submit the flow, and let it wait. Returns the job, and the wait that its record names."""
    job = sim.submit(Workstream("w", tasks=[Task("t", run=order, args={"beside": beside, **args})]), id="j")
    sim.advance("1m")

    def waits_for() -> str | None:
        wait = job.task("t").record.durable_wait
        return None if wait is None else wait.name

    return job, waits_for


def lost(sim: Simulation, job: SimulatedJob) -> int:
    """Kill the runtime three times; how many losses that were."""
    for _ in range(3):
        sim.crash()
        sim.advance("1s")
    return job.task("t").record.lost_attempts


@pytest.mark.parametrize("beside", ["works", "receives"])
def test_a_body_that_does_something_beside_its_wait_does_not_rest_when_its_process_dies(beside: str) -> None:
    with Simulation(1) as sim:
        job, waits_for = begun(sim, beside)
        assert waits_for() == "paid"
        go.set()
        sim.advance("1s")
        assert waits_for() is None
        done.set()  # nothing runs before the crash
        sim.crash()
        sim.advance("10m")
        assert job.task("t").record.lost_attempts == 1
        assert ran.count("began") == 2  # not only when the message comes
        job.send("other", 1)
        job.send("paid", 12)
        assert job.run().results["t"] == 12
        sim.check()


def test_once_its_step_has_ended_and_it_was_quiet_for_a_while_it_is_no_loss_again() -> None:
    with Simulation(1) as sim:
        job, waits_for = begun(sim, "works")
        go.set()
        sim.advance("5m")
        assert waits_for() is None
        done.set()
        sim.advance(HALF)
        assert waits_for() is None
        sim.advance(HALF + 1)
        assert waits_for() == "paid"
        assert lost(sim, job) == 0
        job.send("paid", 12)
        assert job.run().results["t"] == 12
        sim.check()


@pytest.mark.parametrize("beside", ["works at first", "sleeps at first"])
def test_a_wait_that_began_beside_something_is_no_loss_once_it_is_alone(beside: str) -> None:
    with Simulation(1) as sim:
        job, waits_for = begun(sim, beside, seconds=120.0)
        assert waits_for() is None
        done.set()
        sim.advance(60.0 + HALF)
        sim.advance(QUIET)
        assert waits_for() == "paid"
        assert lost(sim, job) == 0
        sim.check()


def test_a_body_that_is_dropped_says_for_what_it_waits_at_once() -> None:
    with Simulation(1) as sim:
        job, waits_for = begun(sim, "sleeps at first", seconds=595.0)
        sim.advance(541.0)
        assert waits_for() == "paid"
        assert lost(sim, job) == 0
        sim.check()


async def busy() -> None:
    await done.wait()


async def waits_twice(task: TaskContext) -> None:
    async def receives() -> None:
        await task.receive("first")
        await note("received")

    beside = asyncio.create_task(receives())
    await go.wait()
    await task.sleep("2d")
    await beside


def test_a_wait_that_begins_before_the_slot_is_back_lends_it_and_is_alone_only_when_the_branch_is_quiet() -> None:
    with Simulation(1, workers=[Worker("w", engine="loop", capacity=1)]) as sim:
        job = sim.submit(Workstream("w", tasks=[Task("t", run=waits_twice)]), id="j")
        sim.advance("1m")
        other = sim.submit(Workstream("w", tasks=[Task("t", run=busy)]), id="busy")
        sim.advance("1m")
        job.send("first", 1)
        sim.advance("1m")
        assert ran == []  # its branch has the message, and asks for the slot, which another task has
        go.set()
        sim.advance(HALF)
        assert ran == ["received"]
        assert job.task("t").record.durable_wait is None  # the branch went on beside the sleep
        sim.advance(QUIET)
        assert job.task("t").record.durable_wait is not None
        done.set()
        assert other.run().results == {"t": None}
        third = sim.submit(Workstream("w", tasks=[Task("t", run=busy)]), id="third")
        assert third.run().results == {"t": None}  # in the slot that the sleep lends
        assert lost(sim, job) == 0
        assert job.run().results == {"t": None}
        sim.check()


async def sleeps_beside(task: TaskContext) -> None:
    ran.append("began")
    beside = asyncio.create_task(branch(task))
    await asyncio.sleep(0)
    await task.sleep("2d")
    await beside


@pytest.mark.parametrize("body", [order, sleeps_beside])
def test_a_body_that_was_busy_when_its_wait_had_lasted_long_is_dropped_later(body: Any) -> None:
    with Simulation(1) as sim:
        args = {"beside": "works at first"}
        job = sim.submit(Workstream("w", tasks=[Task("t", run=body, args=args)]), id="j")
        sim.advance(1.1 * LONG)
        done.set()
        sim.advance(0.8 * LONG)
        assert not asleep(sim.runtime)
        sim.advance(0.2 * LONG)
        assert asleep(sim.runtime)
        if body is order:
            job.send("paid", 12)
        job.run()
        assert ran.count("began") == 2
        sim.check()


async def under_a_limit(task: TaskContext) -> Any:
    ran.append("began")
    if task.args["around"] == "group":
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 7200)
            await task.receive("paid")
            group.cancel_scope.cancel()
    with anyio.move_on_after(3600):
        async with anyio.create_task_group() as group:
            await task.receive("paid")
    return "late"


@pytest.mark.parametrize(("around", "losses"), [("limit", 0), ("group", 1)])
def test_a_wait_under_a_time_limit_is_no_loss_but_its_body_runs_again_at_once(around: str, losses: int) -> None:
    with Simulation(1) as sim:
        job = sim.submit(Workstream("w", tasks=[Task("t", run=under_a_limit, args={"around": around})]), id="j")
        sim.advance("11m")
        assert ran == ["began"]
        sim.crash()
        sim.advance("1m")
        assert (job.task("t").record.lost_attempts, ran) == (losses, ["began"] * 2)
        if around == "group":
            job.send("paid", 1)
        sim.advance("58m")
        assert job.state == "running"  # its limit began anew
        assert job.run().results == {"t": "late"}
        sim.check()


@pytest.mark.parametrize("how", ["while it waits", "while it asks for its slot"])
def test_a_kill_is_a_loss_while_a_body_works_whose_cancelled_wait_has_lent_its_slot(how: str) -> None:
    """The other body has the slot: the first one goes on without it, and is no body that only waits."""

    async def gives_up(task: TaskContext) -> None:
        ran.append("began")
        with anyio.move_on_after(60):
            await task.receive("paid")
        ran.append("works")  # a step would wait for the slot
        await done.wait()

    async def stays() -> None:
        await anyio.sleep(250)  # shorter than the limit of an attempt

    with Simulation(1, workers=[Worker("one", engine="loop", capacity=1)]) as sim:
        for name, function in (("gives up", gives_up), ("stays", stays)):
            sim.task(name=name)(function)
        job = sim.submit(Workstream("w", tasks=[Task("t", run="gives up")]), id="j")
        sim.submit(Workstream("w", tasks=[Task("t", run="stays")]), id="beside")
        sim.advance("10s")
        if how == "while it asks for its slot":
            job.send("paid", 1)
            sim.advance("10s")
            assert ran == ["began"]  # it has its message, and waits for its slot until its limit ends
        sim.advance("1m")
        assert ran == ["began", "works"]
        assert job.task("t").record.durable_wait is None
        sim.crash()
        sim.advance("1s")
        assert job.task("t").record.lost_attempts == 1


def test_a_wait_for_a_tool_is_no_loss_and_is_asked_for_again_at_once() -> None:
    answers = [asyncio.Event()]

    @step(tool="model")
    async def asks() -> str:
        ran.append("asks")
        await answers[-1].wait()
        return "answer"

    async def body(task: TaskContext) -> str:
        ran.append("began")
        return await asks()

    with Simulation(1, tools={"model": Tool(max_parallel=1)}) as sim:
        sim.task(name="body")(body)
        first = sim.submit(Workstream("w", tasks=[Task("t", run="body")]), id="first")
        second = sim.submit(Workstream("w", tasks=[Task("t", run="body")]), id="second")
        sim.advance("1s")
        assert ran == ["began", "asks", "began"]
        sim.crash()
        answers.append(asyncio.Event())  # of the next loop
        sim.advance("1s")
        assert (first.task("t").record.lost_attempts, second.task("t").record.lost_attempts) == (1, 0)
        assert ran.count("began") == 4
        answers[-1].set()
        assert second.run().results == {"t": "answer"}
        sim.check()
