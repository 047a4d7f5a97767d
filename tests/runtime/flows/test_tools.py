"""Steps with a tool: they keep to its limit, wait for its breaker, and count for it as tasks do."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.runtime.flows import bodies
from tests.runtime.flows.helpers import Open, result, submitted
from tests.waiting import until

from callboard import (
    Breaker,
    JobHandle,
    Retry,
    Runtime,
    Task,
    TaskContext,
    Tool,
    VirtualClock,
    Worker,
    Workstream,
    step,
)
from callboard.errors import RetryAfter
from callboard.runtime.handles.jobs import core_of

pytestmark = pytest.mark.anyio
ONE = {"model": Tool(max_parallel=1)}
SICK = {"model": Tool(breaker=Breaker(failure_threshold=2, cooldown="1h", ignore=["KeyError"]))}


async def uses(job: JobHandle) -> list[tuple[str, str | None]]:
    return [(one.label, one.tool_use) for one in await job.steps("t")]


async def waits(job: JobHandle, steps: int = 1) -> None:
    """Wait until so many steps wait for their tools, durably, and the clock of the attempt stands."""
    lent = core_of(job).services.host.kernel.lent

    async def there() -> bool:
        found = [label for label, use in await uses(job) if use == "waits"]
        return len(found) == steps and job.task("t").record.token in lent

    with anyio.fail_after(300):
        while not await there():
            await anyio.sleep(0.005)


def nothing_is_held(runtime: Runtime) -> bool:
    kernel = runtime._services.host.kernel
    scheduler = runtime._services.host.workforce.scheduler
    return not kernel.uses and not any(gate.used for gate in scheduler.tools.values()) and not kernel.lent


async def test_steps_of_several_flows_keep_to_the_limit_of_their_tool_and_lend_their_slots(open_runtime: Open) -> None:
    running, most = 0, 0
    come = anyio.Event()

    @step(tool="model")
    async def ask(name: str, n: int) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await come.wait()
        await anyio.lowlevel.checkpoint()
        running -= 1
        return f"{name}{n}"

    async def body(task: TaskContext) -> list[str]:
        return await task.gather(*(ask.bind(task.args["name"], n) for n in range(3)))

    async with open_runtime(tools=ONE, workers=[Worker(name="w", engine="loop", capacity=1)]) as runtime:
        jobs = [await submitted(runtime, body, job_id=name, args={"name": name}) for name in "ab"]
        await waits(jobs[0], 2)
        await waits(jobs[1], 3)  # it runs in the slot that the first has lent
        assert nothing_is_held(runtime) is False
        come.set()
        assert [await result(job) for job in jobs] == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
        assert most == 1
        assert {one.tool for job in jobs for one in await job.steps("t")} == {"model"}
        assert {use for job in jobs for _, use in await uses(job)} == {None}
        assert nothing_is_held(runtime)
        assert runtime._services.host.kernel.invocations["model"] == 6


async def test_failed_steps_open_the_breaker_and_the_next_one_waits_for_it_without_a_slot(open_runtime: Open) -> None:
    calls: list[str] = []

    @step(tool="model", retry=Retry(max_attempts=4, base_delay=0.0, jitter=0.0))
    async def ask(n: int) -> int:
        calls.append(f"try {len(calls) + 1}")
        if len(calls) < 4:
            raise (KeyError if len(calls) == 1 else ConnectionError)("no answer")
        return n

    async def body(task: TaskContext) -> int:
        return await ask(7)

    clock = VirtualClock()
    async with open_runtime(clock=clock, tools=SICK) as runtime:
        job = await submitted(runtime, body, timeout="1m")  # the attempt's clock stands while it waits
        await waits(job)
        breaker = runtime.breaker("model")
        assert (len(calls), breaker.state, breaker.parked) == (3, "open", 1)
        row = (await job.steps("t"))[0]
        assert (row.state, row.waits_for_tool, row.tries, row.error) == ("waiting", "model", 3, "no answer")
        clock.advance(3601)
        assert await result(job) == 7
        assert (breaker.state, calls[-1]) == ("closed", "try 4")
        row = (await job.steps("t"))[0]
        assert (row.state, row.waits_for_tool, row.tries) == ("completed", None, 4)
        assert nothing_is_held(runtime)


async def test_a_replayed_step_takes_no_unit_and_calls_no_breaker(open_runtime: Open) -> None:
    @step(tool="model")
    async def ask(n: int) -> int:
        return n

    async def body(task: TaskContext) -> list[int]:
        got = [await ask(1), await ask(2)]
        if task.attempt == 1:
            await runtime.breaker("model").trip(reason="sick")
            raise RuntimeError("interrupted")
        return got

    async with open_runtime() as runtime:
        job = await submitted(runtime, body, retry=Retry(max_attempts=2, base_delay=0.0, jitter=0.0))
        assert await result(job) == [1, 2]
        assert runtime._services.host.kernel.invocations["model"] == 2


async def test_a_step_that_backs_off_holds_no_unit_and_one_that_must_come_later_makes_the_tool_rest(
    open_runtime: Open,
) -> None:
    @step(tool="model", retry=Retry(max_attempts=2))
    async def limited(n: int) -> int:
        if not came:
            came.append(n)
            raise RetryAfter(600)
        return n

    @step(tool="model")
    async def other() -> str:
        return "ran"

    async def body(task: TaskContext) -> int:
        return await limited(1)

    async def second(task: TaskContext) -> str:
        return await other()

    came: list[int] = []
    clock = VirtualClock()
    async with open_runtime(clock=clock, tools=ONE) as runtime:
        job = await submitted(runtime, body)
        await until(lambda: came and not runtime._services.host.kernel.uses)
        later = await submitted(runtime, second, job_id="second")
        await waits(later)
        assert runtime.breaker("model").record.not_before == pytest.approx(clock.time() + 600)
        assert runtime.breaker("model").record.failures == 0
        clock.advance(601)
        assert (await result(later), await result(job)) == ("ran", 1)
        assert nothing_is_held(runtime)


@pytest.mark.parametrize("force", [False, True])
async def test_a_cancel_ends_the_wait_and_the_use_of_a_tool(open_runtime: Open, force: bool) -> None:
    began = anyio.Event()

    @step(tool="model")
    async def ask() -> None:
        began.set()
        await anyio.sleep_forever()

    async def body(task: TaskContext) -> None:
        await ask()

    async with open_runtime(tools=ONE) as runtime:
        holder = await submitted(runtime, body, job_id="holder")
        await began.wait()
        waiter = await submitted(runtime, body, job_id="waiter")
        third = await submitted(runtime, body, job_id="third")
        await waits(waiter)
        await waits(third)
        await waiter.cancel(force=force)
        assert (await waiter.wait()).state == "cancelled"
        began = anyio.Event()
        await holder.cancel(force=force)
        await began.wait()  # the third has the unit
        assert await uses(third) == [("ask", "holds")]
        await third.cancel()
        await third.wait()
        assert nothing_is_held(runtime)
        assert runtime.breaker("model").record.failures == 0


async def test_a_body_that_gives_a_step_up_gives_its_tool_back(open_runtime: Open) -> None:
    @step(tool="model")
    async def ask(n: int) -> int:
        if n < 2:
            await anyio.sleep_forever()
        return n

    async def body(task: TaskContext) -> int:
        async with anyio.create_task_group() as group:
            group.start_soon(ask, 0)
            await until(lambda: runtime._services.host.kernel.uses)
            with anyio.move_on_after(0.01):
                await ask(1)
            group.cancel_scope.cancel()
        return await ask(2)

    async with open_runtime(tools=ONE) as runtime:
        assert await result(await submitted(runtime, body)) == 2
        assert nothing_is_held(runtime)


async def test_the_time_limit_of_a_step_counts_as_that_of_an_attempt(open_runtime: Open) -> None:
    @step(tool="model", timeout="10s")
    async def ask() -> None:
        await anyio.sleep_forever()

    async def body(task: TaskContext) -> None:
        await ask()

    for ignore, failures in (([], 1), (["timed_out"], 0)):
        clock = VirtualClock()
        tools = {"model": Tool(breaker=Breaker(ignore=ignore))}
        async with Runtime(clock=clock, tools=tools) as runtime:
            job = await submitted(runtime, body)
            await until(lambda: runtime._services.host.kernel.uses)
            with anyio.fail_after(300):
                while not job.task("t").record.ended_at:
                    clock.advance(1)
                    await anyio.sleep(0.005)
            assert not (await job.wait()).ok
            assert runtime.breaker("model").record.failures == failures


async def test_a_restart_while_a_step_waits_asks_again_and_leaks_nothing(tmp_path: Path) -> None:
    """A drain stops a body that waits for a tool at once, and that is no loss."""

    @step(tool="model")
    async def ask(n: int) -> int:
        return n

    async def body(task: TaskContext) -> list[int]:
        return [await ask(1), task.attempt]

    async with Runtime(tmp_path / "j.db") as runtime:
        job = await submitted(runtime, body)
        await job.wait()
        await runtime.breaker("model").trip(reason="sick")
        job = await submitted(runtime, body, job_id="second")
        await waits(job)
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body of second")(body)
        job = await runtime.job("second")
        await waits(job)
        assert job.task("t").record.lost_attempts == 0
        await runtime.breaker("model").reset(by="ana", reason="mended")
        assert await result(job) == [1, 2]
        assert nothing_is_held(runtime)
        assert [one.label for one in await job.steps("t")] == ["ask"]


async def test_a_drain_lets_a_body_that_must_not_run_again_wait_for_its_tool_and_use_it(open_runtime: Open) -> None:
    held: list[str] = []
    may_end = anyio.Event()

    @step(tool="model")
    async def ask(name: str) -> str:
        held.append(name)
        if len(held) == 1:
            await may_end.wait()
        return name

    async def body(task: TaskContext) -> str:
        return await ask(task.task)

    async with open_runtime(drain_deadline=600) as runtime:
        runtime.task(name="body")(body)
        tasks = [Task(name, run="body", on_loss="fail") for name in "ab"]
        job = await runtime.submit(Workstream("flow", tasks=tasks, tools=ONE), id="job")
        kernel = runtime._services.host.kernel
        await until(lambda: len(kernel.uses) == 2 and bool(kernel.lent))
        with anyio.fail_after(300):
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.drain)
                await until(lambda: kernel.drain_began is not None)
                may_end.set()
        assert {job.task(name).record.state for name in "ab"} == {"completed"}
        assert sorted(held) == ["a", "b"]


async def test_a_tool_with_an_invalid_name_is_refused_where_the_step_is_made() -> None:
    with pytest.raises(ValueError, match="the tool of a step: the name 'a/b' holds '/'"):
        step(tool="a/b")(bodies.pid)
    with pytest.raises(TypeError, match="the tool of a step"):
        step(bodies.pid, tool=7)  # type: ignore[call-overload]
