"""Flows that wait for long: the body is dropped, and made again by replay, without an end of its attempt."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.waiting import until

from callboard import Hook, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream, step
from callboard.errors import FlowAsleep
from callboard.runtime.flows import sleeping
from callboard.runtime.handles.jobs import JobHandle
from callboard.testing import Simulation

pytestmark = pytest.mark.anyio
Open = Callable[..., Runtime]
DAY = 24 * 3600.0
ran: list[Any] = []
"""What bodies and the functions of steps have done, in order."""


@pytest.fixture(autouse=True)
def _anew() -> None:
    ran.clear()


@step
async def note(what: str) -> str:
    ran.append(what)
    return what


def hook() -> None:
    ran.append("hook")


class Thing:
    """What a body holds in memory."""


def asleep(runtime: Runtime) -> int:
    """How many bodies of this runtime were dropped, have ended, and lend their slots."""
    flows, lent = runtime._services.caller._flows.sleeping, runtime._services.host.kernel.lent
    return sum(token not in flows._dropping and token in lent for token in flows._flows)


async def put_to_sleep(runtime: Runtime, body: Any, job_id: str = "j", **options: Any) -> JobHandle:
    """Submit a body, and wait until it was dropped."""
    if not isinstance(body, str):
        runtime.task(name="body")(body)
    job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body", **options)]), id=job_id)
    await until(lambda: asleep(runtime) or job.state not in {"pending", "running"})
    assert asleep(runtime) == 1
    return job


async def test_its_body_is_not_in_memory_and_its_attempt_goes_on(open_runtime: Open) -> None:
    clock = VirtualClock()
    things: list[weakref.ref[Thing]] = []

    async def body(task: TaskContext) -> list[Any]:
        thing = Thing()
        things.append(weakref.ref(thing))
        ran.append("began")
        first = await note("first")
        await task.sleep("3d")
        return [first, await note("second"), task.attempt]

    async with open_runtime(clock=clock, workers=[Worker("w", engine="loop", capacity=1)]) as runtime:
        job = await put_to_sleep(runtime, body, timeout="1m")
        gc.collect()
        assert [thing() for thing in things] == [None]
        record = job.task("t").record
        assert (record.state, record.attempt, runtime.worker("w").assigned) == ("running", 1, 0)
        clock.advance(3 * DAY)
        outcome = await job.wait()
        assert outcome.results == {"t": ["first", "second", 1]}
        assert ran == ["began", "first", "began", "second"]
        record = outcome.tasks["t"]
        assert (record.attempt, record.failed_attempts, record.lost_attempts, record.deferrals) == (1, 0, 0, 0)
        assert [(one.attempt, one.end, one.drained_at) for one in await job.attempts("t")] == [(1, "succeeded", None)]
        assert len(runtime._services.caller._flows.sleeping) == 0


async def test_what_cleans_up_takes_no_step_and_what_it_returns_is_dropped(open_runtime: Open) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> str:
        try:
            await note("first")
            await task.sleep("1h")
            return "slept"  # noqa: TRY300 - as people write it
        except (Exception, anyio.get_cancelled_exc_class()):
            ran.append("it failed or was cancelled")  # it does neither
            raise
        except BaseException as error:
            assert type(error) is FlowAsleep  # noqa: PT017 - the name is public
            ran.append(type(error).__name__)
            for ask in (lambda: note("refund"), lambda: task.step(note, "refund"), lambda: task.sleep(1), task.now):
                with pytest.raises(type(error)):
                    await ask()
            with pytest.raises(type(error)):
                await task.approval("sure?")
            with pytest.raises(type(error)):
                await task.submit(Workstream("child", tasks=[Task("c", run=note)]))
            return "swallowed"
        finally:
            await anyio.lowlevel.checkpoint()  # it may wait
            ran.append("closed")

    async with open_runtime(clock=clock) as runtime:
        job = await put_to_sleep(runtime, body)
        assert ran == ["first", "FlowAsleep", "closed"]
        assert job.state == "running"
        clock.advance(3600)
        assert (await job.wait()).results == {"t": "slept"}
        assert ran[3:] == ["closed"]
        assert [row.label for row in await job.task("t").steps()] == ["note", "task.sleep"]


@pytest.mark.parametrize("force", [False, True])
async def test_a_cancel_is_cleaned_up_as_if_the_body_had_been_there(open_runtime: Open, force: bool) -> None:
    async def body(task: TaskContext) -> None:
        await note("first")
        try:
            await task.sleep("1h")
        except anyio.get_cancelled_exc_class():
            ran.append("cancelled")
            raise
        await note("second")

    async with open_runtime(clock=VirtualClock()) as runtime:
        job = await put_to_sleep(runtime, body, cancel_hooks=[Hook(run=hook)])
        await job.cancel(force=force)
        assert (await job.wait()).state == "cancelled"
        assert ran == (["first"] if force else ["first", "cancelled", "hook"])
        await until(lambda: not runtime._services.host.kernel.calls)
        await runtime._services.host.barrier()
        assert (await job.attempts("t"))[0].end == "cancelled"
        assert len(runtime._services.caller._flows.sleeping) == 0


async def test_a_limit_over_all_attempts_ends_it(open_runtime: Open) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> None:
        try:
            await task.sleep("10d")
        except anyio.get_cancelled_exc_class():
            ran.append("stopped")
            raise

    async with open_runtime(clock=clock) as runtime:
        job = await put_to_sleep(runtime, body, total_timeout="1d")
        clock.advance(DAY)
        record = (await job.wait()).tasks["t"]
        assert (record.state, record.error_type, ran) == ("failed", "timed_out", ["stopped"])


@pytest.mark.parametrize("due", [False, True], ids=["sleeps on", "fell due"])
async def test_leaving_does_not_wait_for_it_and_it_goes_on_once_at_the_next_start(tmp_path: Path, due: bool) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> str:
        await note("first")
        await task.sleep("3d")
        return await note("second")

    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db", clock=clock) as runtime:
            runtime.task(name="body")(body)
            await put_to_sleep(runtime, "body")
    clock.advance(4 * DAY if due else DAY)
    async with Runtime(tmp_path / "state.db", clock=clock) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        if not due:
            assert (ran, runtime._services.host.kernel.calls) == (["first"], {})  # no body runs
            clock.advance(2 * DAY)
        outcome = await job.wait()
    assert (outcome.results, ran) == ({"t": "second"}, ["first", "second"])
    assert (outcome.tasks["t"].lost_attempts, outcome.tasks["t"].attempt) == (0, 2)


async def test_the_end_of_its_worker_is_no_loss_and_another_one_goes_on(open_runtime: Open) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> str:
        await note("first")
        await task.sleep("3d")
        return await note("second")

    async with open_runtime(clock=clock, workers=[Worker("a", engine="loop"), Worker("b", engine="loop")]) as runtime:
        job = await put_to_sleep(runtime, body)
        before = job.task("t").record.worker_id or ""
        await runtime.worker(before.partition("#")[0]).terminate(reason="for good")
        await until(lambda: not runtime._services.host.kernel.calls)
        assert (job.task("t").record.state, ran) == ("running", ["first"])
        clock.advance(3 * DAY)
        outcome = await job.wait()
        assert [row.worker_id == before for row in await job.attempts("t")] == [True, False]
    assert (outcome.results, ran) == ({"t": "second"}, ["first", "second"])
    assert outcome.tasks["t"].lost_attempts == 0


async def test_a_clock_that_is_set_back_meanwhile_lengthens_nothing(open_runtime: Open) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> str:
        ran.append("began")
        await task.sleep("1h")
        return "slept"

    async with open_runtime(clock=clock) as runtime:
        job = await put_to_sleep(runtime, body)
        clock.jump_utc(-2 * 3600)
        clock.advance(3600)
        with anyio.fail_after(300):
            assert (await job.wait()).results == {"t": "slept"}
    assert ran == ["began", "began"]


async def test_a_flow_has_the_version_that_it_began_with_after_its_sleep(open_runtime: Open) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> int:
        await task.sleep("1h")
        return await task.version("later", 2)  # no other code was there before

    async with open_runtime(clock=clock) as runtime:
        job = await put_to_sleep(runtime, body)
        clock.advance(3600)
        assert (await job.wait()).results == {"t": 2}


async def stays(task: TaskContext) -> None:
    ran.append("began")
    await task.sleep(task.args["seconds"])


async def stays_in_a_group(task: TaskContext) -> None:
    ran.append("began")
    async with anyio.create_task_group():
        await task.sleep("1h")


async def stays_in_a_branch(task: TaskContext) -> None:
    ran.append("began")
    async with anyio.create_task_group() as group:
        group.start_soon(task.sleep, "1h")


async def stays_under_a_limit(task: TaskContext) -> None:
    ran.append("began")
    with anyio.move_on_after(1e9):
        await task.sleep("1h")


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (stays, {"args": {"seconds": 600}}),
        (stays, {"args": {"seconds": 3600}, "on_loss": "fail"}),
        (stays_in_a_group, {}),
        (stays_in_a_branch, {}),
        (stays_under_a_limit, {}),
    ],
    ids=["ten minutes", "must not run twice", "in a task group", "in a branch", "under a time limit"],
)
async def test_these_bodies_stay_in_memory(open_runtime: Open, body: Any, options: dict[str, Any]) -> None:
    clock = VirtualClock()
    async with open_runtime(clock=clock) as runtime:
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run=body, **options)]))
        await until(lambda: runtime._services.host.kernel.lent)
        assert len(runtime._services.caller._flows.sleeping) == 0
        clock.advance(3600)
        assert (await job.wait()).state == "completed"
    assert ran == ["began"]


async def test_of_many_that_wait_the_further_ones_are_dropped_though_they_wait_for_less(
    open_runtime: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    monkeypatch.setattr(sleeping, "MOST_AWAKE", 2)
    tasks = [Task(f"t{number}", run=stays, args={"seconds": 31}) for number in range(5)]
    async with open_runtime(clock=clock) as runtime:
        job = await runtime.submit(Workstream("flow", tasks=tasks))
        await until(lambda: len(runtime._services.host.kernel.lent) == 5 and asleep(runtime) == 3)
        clock.advance(31)
        assert (await job.wait()).state == "completed"
    assert len(ran) == 5 + 3


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_body_in_a_task_group_of_asyncio_stays_in_memory(open_runtime: Open) -> None:
    clock = VirtualClock()

    async def body(task: TaskContext) -> str:
        ran.append("began")
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(over.wait())
            await task.sleep("1h")
            over.set()
        return f"cancelled: {beside.cancelled()}"

    async with open_runtime(clock=clock) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("flow", tasks=[Task("t", run="body")]))
        await until(lambda: runtime._services.host.kernel.lent)
        clock.advance(3600)
        assert (await job.wait()).results == {"t": "cancelled: False"}
    assert ran == ["began"]


def test_many_that_sleep_go_on_each_at_its_time_and_leave_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "AT_ONCE", 2)

    async def body(task: TaskContext) -> None:
        await task.sleep(float(task.args["hours"]) * 3600)
        ran.append(task.args["hours"])

    def flows_of(hours: list[int]) -> Workstream:
        return Workstream("w", tasks=[Task(f"t{n}", run="body", args={"hours": one}) for n, one in enumerate(hours)])

    with Simulation(1) as sim:
        sim.task(name="body")(body)
        jobs = [sim.submit(flows_of([4, 2, 3, 2, 3, 4, 2, 3, 2, 4])), sim.submit(flows_of([1, 1, 5, 5, 5, 5]))]
        flows = sim.runtime._services.caller._flows.sleeping
        sim.advance("10m")
        assert (asleep(sim.runtime), len(flows._times)) == (16, 16)
        kernel = sim.runtime._services.host.kernel  # what it keeps of each is small, and no work for the collector
        clocks = [kernel.entities[slot.slot.key].clock for slot in kernel.lent.values()]
        assert not any(gc.is_tracked(one) for one in [*kernel.lent.values(), *clocks])
        jobs[1].cancel(force=True)
        assert (asleep(sim.runtime), flows._times[0].due) == (10, min(one.due for one in flows._times[1:]))
        assert len(flows._times) <= 2 * 10 + 2
        for hours in (1, 2, 3):
            sim.advance("1h")
            assert ran == sorted([2, 2, 2, 2, 3, 3, 3][: {1: 0, 2: 4, 3: 7}[hours]])
        sim.advance("1h")
        assert (ran, flows._times, flows._timer) == ([2] * 4 + [3] * 3 + [4] * 3, [], None)
        assert jobs[0].task("t0").attempt == 1
        sim.check()
