"""Flows that wait when their process, or their worker, ends: nothing is interrupted, and no body runs too early."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.runtime.flows.test_sleeping import note, ran
from tests.waiting import until

from callboard import Runtime, Task, TaskContext, VirtualClock, Worker, Workstream
from callboard.runtime.cli import words
from callboard.testing import SimulatedJob, Simulation, Succeeds

pytestmark = pytest.mark.anyio
MINUTES = 300.0
"""Seconds for which a body waits in memory."""


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()


async def pack(task: TaskContext) -> None:
    await task.sleep("20m")


async def busy() -> None: ...


async def order(task: TaskContext) -> list[Any]:
    """A body that waits in memory for each kind of event."""
    await note("began")
    await task.sleep(MINUTES)
    await note("slept")
    paid = await task.receive("payment")
    people = [decision.by for decision in await task.approval("ship")]
    made = await task.submit(Workstream("pack", tasks=[Task("pack", run=pack, max_losses=0)]), name="pack")
    late = await task.receive("complaint", timeout=MINUTES, default="none")
    return [paid, people, (await made.wait()).state, late]


def crash_often(sim: Simulation, job: SimulatedJob, attempt: int) -> None:
    """Kill the runtime again and again while the flow waits: nothing runs, and nothing is counted."""
    for _ in range(3):
        seen = list(ran)
        sim.crash()
        sim.advance("1s")
        record = job.task("t").record
        assert (record.state, record.attempt, record.lost_attempts, ran) == ("running", attempt, 0, seen)


def test_it_is_never_lost_however_often_its_process_dies_and_goes_on_once() -> None:
    with Simulation(1, workers=[Worker("w", engine="loop", capacity=1)]) as sim:
        job = sim.submit(Workstream("order", tasks=[Task("t", run=order, max_losses=0)]), id="j")
        sim.advance("1m")
        crash_often(sim, job, 1)
        assert ran == ["began"]
        sim.advance(MINUTES)
        assert ran == ["began", "slept"]
        crash_often(sim, job, 2)
        job.send("payment", 12)
        sim.advance("1s")
        crash_often(sim, job, 3)
        job.task("t").approve(by="ana")
        sim.advance("1s")
        crash_often(sim, job, 4)
        sim.advance(MINUTES)
        crash_often(sim, job, 5)
        outcome = job.run()
        sim.check()
        assert outcome.results["t"] == [12, ["ana"], "completed", "none"]
        assert ran == ["began", "slept"]


def test_what_fell_due_while_nothing_ran_goes_on_alone() -> None:
    async def sleeps(task: TaskContext) -> str:
        await note(task.task)
        await task.sleep(task.args["for"])
        return await note(f"{task.task} slept")

    tasks = [Task(f"t{hours}", run=sleeps, args={"for": f"{hours}h"}, max_losses=0) for hours in (1, 2, 3)]
    with Simulation(1) as sim:
        job = sim.submit(Workstream("w", tasks=tasks), id="j")
        sim.advance("1m")
        ran.clear()
        sim.crash(down="2h")
        sim.advance("1m")
        assert sorted(ran) == ["t1 slept", "t2 slept"]
        assert [job.task(one.name).record.state for one in tasks] == ["completed", "completed", "running"]
        job.run()
        assert ran[2:] == ["t3 slept"]
        sim.check()


def test_a_message_wakes_one_of_those_that_rest_and_the_next_one_if_that_is_cancelled_first() -> None:
    async def waits(task: TaskContext) -> Any:
        await note(task.task)
        return await task.receive("go")

    tasks = [Task(name, run=waits, optional=True) for name in ("a", "b", "c")]
    with Simulation(1, workers=[Worker("w", engine="loop", capacity=1)]) as sim:
        sim.body("busy", outcomes=[Succeeds(None)], takes="10m")
        job = sim.submit(Workstream("w", tasks=[*tasks, Task("busy", run=busy, timeout="2h")]), id="j")
        sim.advance("1m")
        sim.crash()
        sim.advance("1m")  # the one slot is taken
        job.send("go", 1)
        sim.advance("1s")
        assert [job.task(one.name).record.state for one in tasks] == ["queued", "running", "running"]
        job.task("a").cancel()
        sim.advance("1s")
        assert [job.task(one.name).record.state for one in tasks] == ["cancelled", "queued", "running"]
        sim.advance("10m")
        assert job.task("b").record.result == 1
        job.send("go", 2)
        outcome = job.run()
        assert (outcome.results["b"], outcome.results["c"]) == (1, 2)
        sim.check()


async def cancels(task: TaskContext) -> str:
    """A body that cancels a sleep, and goes on."""
    async with anyio.create_task_group() as group:
        group.start_soon(task.sleep, "3d")
        await note("beside")
        group.cancel_scope.cancel()
    return str(await task.receive("go"))


async def test_a_sleep_that_its_body_has_cancelled_does_not_wait_any_more(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "state.db"
    async with Runtime(path, clock=clock) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=cancels)]), id="j")
        await until(lambda: job.task("t").record.durable_wait is not None)
        (slept,) = [step for step in await job.steps("t") if step.name == "task.sleep"]
        assert (slept.state, slept.ended_at, slept.due_at) == ("cancelled", None, slept.began_at + 3 * 24 * 3600)
        assert words.step(slept).startswith("it would have waited until ")
        with closing(sqlite3.connect(path)) as database:
            states = dict(database.execute("SELECT name, state FROM task_steps"))
        assert states == {"task.sleep": "cancelled", "note": "completed", "task.receive go": "waiting"}
    async with Runtime(path, clock=clock) as runtime:
        job = await runtime.job("j")
        await job.send("go", 1)
        assert (await job.wait()).results == {"t": "1"}
        assert {step.name: step.state for step in await job.steps("t")} == {
            "task.sleep": "cancelled", "note": "completed", "task.receive go": "completed"
        }  # fmt: skip
    assert ran == ["beside"]


def blocks(task: TaskContext) -> str:
    ran.append("began")
    task.step_blocking(os.getpid)
    task.sleep_blocking(MINUTES)
    return "slept"


async def test_a_body_in_a_thread_rests_as_well(tmp_path: Path) -> None:
    clock, workers = VirtualClock(), [Worker("w", engine="thread", capacity=1)]
    async with Runtime(tmp_path / "state.db", clock=clock, workers=workers) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=blocks, max_losses=0)]), id="j")
        await until(lambda: job.task("t").record.durable_wait is not None)
    for seconds in (0.0, MINUTES):
        clock.advance(seconds)
        async with Runtime(tmp_path / "state.db", clock=clock, workers=workers) as runtime:
            job = await runtime.job("j")
            if not seconds:
                assert (job.task("t").record.state, runtime._services.host.kernel.calls) == ("running", {})
                assert ran == ["began"]
            else:
                assert (await job.wait()).results == {"t": "slept"}
    assert ran == ["began", "began"]


def asks(task: TaskContext) -> list[str | None]:
    ran.append(task.task)
    return [decision.by for decision in task.wait_for_approval("sure")]


async def test_a_body_in_a_thread_that_waits_for_people_lends_its_slot_and_rests(tmp_path: Path) -> None:
    workers = [Worker("w", engine="thread", capacity=1)]
    tasks = [Task(name, run=asks, max_losses=0) for name in ("a", "b")]
    async with Runtime(tmp_path / "state.db", workers=workers) as runtime:
        job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
        await until(lambda: all(job.task(name).record.durable_wait is not None for name in "ab"))
        await job.task("a").approve(by="ana")
        await until(lambda: job.task("a").record.state == "completed")
    async with Runtime(tmp_path / "state.db", workers=workers) as runtime:
        job = await runtime.job("j")
        assert (job.task("b").record.state, ran) == ("running", ["a", "b"])
        await job.task("b").approve(by="ben")
        assert (await job.wait()).results == {"a": ["ana"], "b": ["ben"]}
    assert ran == ["a", "b", "b"]
