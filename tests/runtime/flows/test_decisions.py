"""What a body gives up by a limit of its own is a decision: a replay gives up the same calls, at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.runtime.flows.helpers import result
from tests.runtime.handles.test_jobs import audited
from tests.waiting import until

from callboard import (
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
from callboard.errors import FlowChanged
from callboard.runtime.flows.flows import Flows
from callboard.runtime.flows.lent_slots import AT_ONCE
from callboard.testing import Simulation, check_replay

pytestmark = pytest.mark.anyio
HOUR = 3600.0
WORKERS = [Worker("loop", engine="loop", capacity=4), Worker("gpu", engine="loop", capacity=1, capabilities=["gpu"])]
TOOLS = {"model": Tool(max_parallel=1)}
ran: list[str] = []


@step
async def endless() -> None:
    ran.append("endless")
    await anyio.sleep_forever()


@step(capabilities={"gpu"})
async def train() -> None:
    ran.append("train")
    await anyio.sleep_forever()


@step(tool="model")
async def ask_model() -> None:
    ran.append("ask")
    await anyio.sleep_forever()


@step(retry=Retry(max_attempts=2, base_delay=40.0, jitter=0.0))
async def refused() -> None:
    ran.append("refused")
    raise ConnectionError


async def child(task: TaskContext) -> Any:
    return await task.submit(Workstream("c", tasks=[Task("t", receive="go")]), name="child")


CALLS: dict[str, Callable[[TaskContext], Any]] = {
    "a receive": lambda task: task.receive("paid"),
    "a sleep": lambda task: task.sleep(HOUR),
    "an approval": lambda task: task.approval("sign"),
    "a child job": child,
    "a step": lambda _: endless(),
    "a step on a worker": lambda _: train(),
    "a step that uses its tool": lambda _: ask_model(),
    "a step that waits for its next try": lambda _: refused(),
}


@asynccontextmanager
async def scope(seconds: float) -> AsyncIterator[None]:
    with anyio.move_on_after(seconds):
        yield


@asynccontextmanager
async def no_limit(_: float) -> AsyncIterator[None]:
    yield


@asynccontextmanager
async def error(seconds: float) -> AsyncIterator[None]:
    with contextlib.suppress(TimeoutError), anyio.fail_after(seconds):
        yield


@asynccontextmanager
async def outer_scope(seconds: float) -> AsyncIterator[None]:
    with anyio.move_on_after(seconds), anyio.move_on_after(2 * HOUR), anyio.CancelScope():
        yield


@asynccontextmanager
async def of_asyncio(seconds: float) -> AsyncIterator[None]:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


@asynccontextmanager
async def beside_others(seconds: float) -> AsyncIterator[None]:
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            yield


LIMITS = [scope, error, outer_scope, of_asyncio, beside_others]


def order(call: Callable[[TaskContext], Any], limit: Callable[[float], Any], seconds: list[float]) -> Any:
    async def body(task: TaskContext) -> list[Any]:
        got = ["nothing"]
        job = await child(task) if call is child else None  # only the wait is given up
        async with limit(seconds[0]):
            got = [await (call(task) if job is None else job.wait())]
        await task.receive("on")
        return [*got, await task.receive("paid", timeout=HOUR, default="no more")]

    return body


async def start(runtime: Runtime, body: Any, **options: Any) -> JobHandle:
    runtime.task(name="body")(body)
    return await runtime.submit(Workstream("w", tasks=[Task("t", run="body", **options)]), id="j")


async def waits_for(job: JobHandle, name: str) -> None:
    with anyio.fail_after(300):
        while name not in {one.awaits for one in await job.steps("t")}:
            await anyio.sleep(0.005)


@pytest.mark.parametrize("call", CALLS)
async def test_a_replay_gives_up_what_the_body_gave_up(call: str, tmp_path: Path, anyio_backend_name: str) -> None:
    for number, limit in enumerate(LIMITS):
        if limit is of_asyncio and anyio_backend_name != "asyncio":
            continue
        ran.clear()
        seconds, path, clock = [0.01], tmp_path / f"{number}.db", VirtualClock()
        body = order(CALLS[call], limit, seconds)
        async with Runtime(path, clock=clock, workers=WORKERS, tools=TOOLS) as runtime:
            job = await start(runtime, body)
            await waits_for(job, "on")
            given_up = (await job.steps("t"))[0]
            assert (given_up.state, given_up.given_up is None) == ("cancelled", False)
            await job.send("paid", 7)
            if call == "an approval":
                await job.task("t").approve(approval="sign", by="ana")
            if call == "a child job":
                late = await runtime.job("j/t/child")
                await late.send("go")
                await late.wait()
        seconds[0], before = HOUR, list(ran)  # a replay does not wait for this limit
        async with Runtime(path, clock=clock, workers=WORKERS, tools=TOOLS) as runtime:
            runtime.task(name="body")(body)
            job = await runtime.job("j")
            await job.send("on")
            with anyio.fail_after(300):
                assert await result(job) == ["nothing", 7]
            assert ran == before  # no function ran again
            steps = await job.steps("t")
            assert [one.state for one in steps if one.key == given_up.key] == ["cancelled"]
            assert job.task("t").record.lost_attempts == 0


async def test_a_kept_history_is_checked_against_code_that_gives_up_again(tmp_path: Path) -> None:
    seconds = [0.01]
    body = order(CALLS["a receive"], scope, seconds)
    async with Runtime(tmp_path / "j.db") as runtime:
        job = await start(runtime, body)
        await waits_for(job, "on")
        kept = await job.steps("t")
    seconds[0] = HOUR
    found = await anyio.to_thread.run_sync(check_replay, kept, body)
    assert (found.asked, found.at, found.not_asked) == (("task.receive paid",), ("task.receive on",), ())
    with pytest.raises(FlowChanged, match="was given up by its body"):
        await anyio.to_thread.run_sync(check_replay, kept, order(CALLS["a receive"], no_limit, seconds))


async def test_a_limit_of_asyncio_that_no_variable_holds_begins_anew_at_a_start(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio has these limits")
    seconds = [HOUR]

    async def body(task: TaskContext) -> Any:
        async with asyncio.timeout(seconds[0]):
            return await task.receive("paid")

    async def waits_for_its_time(task: TaskContext) -> Any:
        return await task.receive("paid")

    async with Runtime(tmp_path / "j.db") as runtime:
        job = await start(runtime, body)
        await waits_for(job, "paid")
        runtime.task(name="other")(waits_for_its_time)
        other = await runtime.submit(Workstream("w", tasks=[Task("t", run="other")]), id="other")
        await until(lambda: getattr(other.task("t").record.durable_wait, "name", None) == "paid")
        assert job.task("t").record.durable_wait == AT_ONCE
    seconds[0] = 0.01
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        assert (await job.wait()).state == "failed"  # nobody sent a message: the limit was over
        assert "TimeoutError" in str(job.task("t").record.reason)
        assert job.task("t").record.lost_attempts == 0


async def test_branches_replay_all_their_steps_before_their_limit_ends_again(tmp_path: Path) -> None:
    ends, counted, path = [True], [], tmp_path / "j.db"

    async def count(name: str) -> str:
        ran.append(name)
        return name

    async def body(task: TaskContext) -> list[str]:
        async def branch(name: str) -> None:
            for number in range(3):
                counted.append(await task.step(count, f"{name}{number}"))
                await anyio.lowlevel.checkpoint()
            if ends[0] and len(counted) == 6:
                limit.deadline = anyio.current_time() + 0.01
            await task.receive(f"never {name}")

        with anyio.move_on_after(HOUR) as limit:
            async with anyio.create_task_group() as group:
                group.start_soon(branch, "a")
                group.start_soon(branch, "b")
                await task.receive("never")
        await task.receive("on")
        return sorted(counted)

    ran.clear()
    async with Runtime(path) as runtime:
        await waits_for(await start(runtime, body), "on")
    counted.clear()
    ends[0] = False
    async with Runtime(path) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        with anyio.fail_after(300):
            assert await result(job) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert sorted(ran) == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("how", ["limit", "branch"])
async def test_a_branch_beside_the_limit_does_first_what_it_did_then(how: str, tmp_path: Path) -> None:
    """The limit is around the body's own wait only, and what the body does next depends on the branch."""
    path, ends = tmp_path / "j.db", [True]

    async def body(task: TaskContext) -> list[Any]:
        got: list[Any] = []

        async def collect() -> None:
            for _ in range(3):
                got.append(await task.receive("item"))
                await anyio.lowlevel.checkpoint()
            if how == "branch":
                limit.cancel()
            elif ends[0]:
                limit.deadline = anyio.current_time() + 0.01

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(HOUR) as limit:
                group.start_soon(collect)
                await task.receive("never")
            await task.publish("collected", got)
        await task.receive("on")
        return got

    async with Runtime(path) as runtime:
        job = await start(runtime, body)
        for number in range(3):
            await job.send("item", number)
        await waits_for(job, "on")
        assert await job.published() == {"collected": [0, 1, 2]}
    ends[0] = False
    async with Runtime(path) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        with anyio.fail_after(300):
            assert await result(job) == [0, 1, 2]


async def test_of_two_limits_of_asyncio_the_one_that_was_over_ends_again(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio has these limits")
    seconds, path = [0.02, HOUR], tmp_path / "j.db"

    async def body(task: TaskContext) -> str:
        which = "neither"
        try:
            async with asyncio.timeout(seconds[0]):
                try:
                    async with asyncio.timeout(seconds[1]):
                        await task.receive("paid")
                except TimeoutError:
                    which = "the inner one"
        except TimeoutError:
            which = "the outer one"
        await task.receive("on")
        return which

    async with Runtime(path) as runtime:
        await waits_for(await start(runtime, body), "on")
    seconds[:] = [2 * HOUR, HOUR]  # in the replay the inner one would end first
    async with Runtime(path) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        with anyio.fail_after(300):
            assert await result(job) == "the outer one"


async def test_the_branch_that_cancelled_the_others_does_so_again(tmp_path: Path) -> None:
    path = tmp_path / "j.db"

    async def body(task: TaskContext) -> list[Any]:
        first: list[Any] = []

        async def race(name: str) -> None:
            first.append((name, await task.receive(name)))
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for name in ("card", "cash"):
                group.start_soon(race, name)
        await task.receive("on")
        return [*first, await task.receive("card")]

    async with Runtime(path) as runtime:
        job = await start(runtime, body)
        await waits_for(job, "card")
        await job.send("cash", 1)
        await waits_for(job, "on")
        await job.send("card", 2)  # too late for the race, and in time for the next receive
    async with Runtime(path) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        assert await result(job) == [["cash", 1], 2]


@pytest.mark.parametrize("turns", range(9))
async def test_whether_a_message_came_in_time_is_decided_once(turns: int, tmp_path: Path) -> None:
    decided: list[Any] = []
    scopes: list[anyio.CancelScope] = []
    path = tmp_path / "j.db"

    async def body(task: TaskContext) -> Any:
        got = None
        with anyio.CancelScope() as limit:
            scopes.append(limit)
            got = await task.receive("paid")
        decided.append(got)
        await task.receive("on")
        return [got, await task.receive("paid", timeout=HOUR, default=None)]

    clock = VirtualClock()
    async with Runtime(path, clock=clock) as runtime:
        job = await start(runtime, body)
        await waits_for(job, "paid")
        async with anyio.create_task_group() as group:
            group.start_soon(job.send, "paid", 7)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            scopes[0].cancel()
        await waits_for(job, "on")
    async with Runtime(path, clock=clock) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        if decided[0] is not None:
            await until(lambda: job.task("t").record.durable_wait is not None)
            await waits_for(job, "paid")
            clock.advance(HOUR)
        assert await result(job) == ([None, 7] if decided[0] is None else [7, None])
    assert decided == [decided[0]] * len(decided)


async def test_a_later_attempt_asks_anew_for_what_an_earlier_one_gave_up(tmp_path: Path) -> None:
    seconds = [0.01]

    async def body(task: TaskContext) -> Any:
        with anyio.move_on_after(seconds[0]):
            return await task.receive("paid")
        seconds[0] = HOUR
        raise ConnectionError

    async with Runtime(tmp_path / "j.db") as runtime:
        job = await start(runtime, body, retry=Retry(max_attempts=2, base_delay=0.0))
        await until(lambda: job.task("t").record.attempt == 2)
        await waits_for(job, "paid")
        await job.send("paid", 7)
        assert await result(job) == 7


async def test_a_body_without_the_limit_by_which_it_gave_up_has_changed(tmp_path: Path) -> None:
    path, limited = tmp_path / "j.db", [True]

    async def body(task: TaskContext) -> Any:
        with contextlib.nullcontext() if not limited[0] else anyio.move_on_after(0.01):
            await task.receive("paid")
        await task.receive("on")
        return "done"

    async with Runtime(path) as runtime:
        await waits_for(await start(runtime, body), "on")
    limited[0] = False
    async with Runtime(path) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("paid", 7)
        await job.send("on")
        assert (await job.wait()).state == "failed"
        assert "'task.receive paid' of this flow was given up by its body" in str(job.task("t").record.reason)


async def test_a_limit_of_asyncio_that_was_left_before_is_not_the_one_that_is_over(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("asyncio has these limits")
    seconds, path = [0.01], tmp_path / "j.db"

    async def body(task: TaskContext) -> list[str]:
        late: list[str] = []
        try:
            async with asyncio.timeout(seconds[0]) as first:
                await task.receive("a")
        except TimeoutError:
            late.append(f"first: {first.expired()}")
        try:
            async with asyncio.timeout(seconds[0]) as second:
                await task.receive("b")
        except TimeoutError:
            late.append(f"second: {second.expired()}")
        await task.receive("on")
        return late

    async with Runtime(path) as runtime:
        job = await start(runtime, body)
        await waits_for(job, "on")
        assert [one.given_up for one in await job.steps("t")] == ["asyncio 0", "asyncio 0", None]
    seconds[0] = HOUR
    async with Runtime(path) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        with anyio.fail_after(300):
            assert await result(job) == ["first: True", "second: True"]


async def test_branches_and_bodies_without_the_limit_of_asyncio_have_changed(
    tmp_path: Path, anyio_backend_name: str
) -> None:
    for number, limit in enumerate((scope, of_asyncio)):
        if limit is of_asyncio and anyio_backend_name != "asyncio":
            continue
        path, limits, seconds = tmp_path / f"{number}.db", [limit], [0.01]

        async def body(task: TaskContext, limits: Any = limits, seconds: Any = seconds) -> None:
            async def branch() -> None:
                async with limits[0](seconds[0]):
                    await task.receive("paid")

            async with anyio.create_task_group() as group:
                group.start_soon(branch)
            await task.receive("on")

        async with Runtime(path) as runtime:
            await waits_for(await start(runtime, body), "on")
        limits[0] = no_limit
        async with Runtime(path) as runtime:
            runtime.task(name="body")(body)
            job = await runtime.job("j")
            await job.send("on")
            with anyio.fail_after(300):
                assert (await job.wait()).state == "failed"
            assert "was given up by its body" in str(job.task("t").record.reason)


async def test_a_send_that_was_given_up_and_is_made_again_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, scopes, sent = tmp_path / "j.db", list[anyio.CancelScope](), list[Any]()
    send = Flows.send

    async def sends_and_hangs(self: Flows, token: int, message: Any) -> None:
        await send(self, token, message)
        sent.append(message.request_id)
        if len(sent) == 1:
            await anyio.sleep_forever()

    async def body(task: TaskContext) -> str:
        for _ in range(2):
            with anyio.CancelScope() as limit:
                scopes.append(limit)
                await task.send("other", "paid", 7)
        await task.receive("on")
        return "sent"

    async def other(task: TaskContext) -> list[Any]:
        return [await task.receive("paid"), await task.receive("paid", timeout=HOUR, default="no more")]

    monkeypatch.setattr(Flows, "send", sends_and_hangs)
    clock = VirtualClock()
    async with Runtime(path, clock=clock) as runtime:
        runtime.task(name="other")(other)
        receiver = await runtime.submit(Workstream("o", tasks=[Task("t", run="other")]), id="other")
        job = await start(runtime, body)
        await until(lambda: bool(sent))
        scopes[0].cancel()
        await waits_for(job, "on")
        assert sent == [sent[0]] * 2  # under one request
    async with Runtime(path, clock=clock) as runtime:
        runtime.task(name="body")(body)
        runtime.task(name="other")(other)
        job = await runtime.job("j")
        await job.send("on")
        assert await result(job) == "sent"
        receiver = await runtime.job("other")
        await waits_for(receiver, "paid")
        clock.advance(HOUR)
        assert await result(receiver) == [7, "no more"]
    assert audited(path) == []


async def test_parallel_steps_that_have_all_ended_are_returned_though_their_limit_is_over(tmp_path: Path) -> None:
    path, decided = tmp_path / "j.db", []
    entered, goes_on = threading.Event(), threading.Event()

    def slow(number: int) -> int:
        entered.set()
        goes_on.wait(300)
        return number

    async def body(task: TaskContext) -> str:
        got: list[int] = []
        with anyio.CancelScope() as limit:
            async with anyio.create_task_group() as group:
                if not decided:  # else it would end it while the steps are replayed
                    group.start_soon(end, limit)
                got = await task.gather(step(slow).bind(1), step(slow).bind(2))
        decided.append(got)
        await task.receive("on")
        return "done"

    async def end(limit: anyio.CancelScope) -> None:
        await until(entered.is_set)
        limit.cancel()
        goes_on.set()

    async with Runtime(path) as runtime:
        await waits_for(await start(runtime, body), "on")
    async with Runtime(path) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        assert await result(job) == "done"
    assert decided == [[1, 2], [1, 2]]


async def test_a_branch_that_sleeps_and_then_cancels_the_others_does_so_after_their_kept_steps(tmp_path: Path) -> None:
    path, clock = tmp_path / "j.db", VirtualClock()

    async def body(task: TaskContext) -> list[Any]:
        seen: list[Any] = []

        async def timer() -> None:
            await task.sleep(60)
            group.cancel_scope.cancel()

        async def branch() -> None:
            seen.append(await task.receive("paid"))
            await anyio.lowlevel.checkpoint()
            seen.append(await task.receive("paid"))
            await task.receive("never")

        async with anyio.create_task_group() as group:
            group.start_soon(timer)
            group.start_soon(branch)
        await task.receive("on")
        return [*seen, await task.receive("paid")]

    async with Runtime(path, clock=clock) as runtime:
        job = await start(runtime, body)
        await job.send("paid", 1)
        await job.send("paid", 2)
        await waits_for(job, "never")
        clock.advance(60)
        await waits_for(job, "on")
    async with Runtime(path, clock=clock) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("paid", 3)
        await job.send("on")
        assert await result(job) == [1, 2, 3]


async def test_a_sleep_that_an_earlier_attempt_gave_up_begins_anew(tmp_path: Path) -> None:
    clock, limits = VirtualClock(), [0.01, HOUR]

    async def body(task: TaskContext) -> str:
        with anyio.move_on_after(limits.pop(0)):
            await task.sleep(20)
            return "slept"
        raise ConnectionError

    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        job = await start(runtime, body, retry=Retry(max_attempts=2, base_delay=0.0))
        await until(lambda: job.task("t").record.attempt == 2)
        clock.advance(10)
        with anyio.fail_after(300):
            while [one.state for one in await job.steps("t")] != ["waiting"]:
                await anyio.sleep(0.005)
        (row,) = await job.steps("t")
        assert (row.due_at or 0.0) - row.began_at == 20
        clock.advance(20)
        assert await result(job) == "slept"


@pytest.mark.parametrize("call", CALLS)
def test_the_limit_that_is_over_when_the_decision_is_durable_is_the_one_that_ends_again(call: str) -> None:
    """A further limit is over while a slow journal persists that the inner one was."""
    ended: list[str] = []

    async def body(task: TaskContext) -> str:
        job = await child(task) if call == "a child job" else None
        which = "outer"
        with anyio.move_on_after(30):
            with anyio.move_on_after(20):
                await (CALLS[call](task) if job is None else job.wait())
            which = "inner"
        ended.append(which)
        await task.receive("on")
        return which

    with Simulation(7, workers=WORKERS, tools=TOOLS) as sim:
        sim.task(body, name="body")  # the second one waits for the tool, or the worker, of the first one's step
        sim.submit(Workstream("w", tasks=[Task(name, run="body", timeout="1d") for name in "tu"]), id="j")
        sim.advance(10)
        sim.slow_journal(200)
        sim.advance(HOUR)
        sim.slow_journal(0)
        sim.advance(HOUR)
        assert ended == ["outer", "outer"]  # else nothing came between
        sim.crash()
        for name in "tu":
            sim.job("j").task(name).send("on")
            if call == "a child job":
                sim.job(f"j/{name}/child").send("go")
        assert sim.job("j").run().results == {"t": "outer", "u": "outer"}
        sim.check()


async def test_what_a_new_first_step_returned_late_does_not_let_branches_forget_their_order(tmp_path: Path) -> None:
    """The new code is the same in both of its replays."""
    path, clock, is_new = tmp_path / "j.db", VirtualClock(), [False]

    async def added() -> None:
        """A step that the code has got later."""

    async def body(task: TaskContext) -> list[Any]:
        if is_new[0]:
            await task.step(added)
        seen: list[Any] = []

        async def timer() -> None:
            await task.sleep(60)
            group.cancel_scope.cancel()

        async def branch() -> None:
            seen.append(await task.receive("paid"))
            await anyio.lowlevel.checkpoint()
            seen.append(await task.receive("paid"))
            await task.receive("never")

        async with anyio.create_task_group() as group:
            group.start_soon(timer)
            group.start_soon(branch)
        await task.receive("on")
        return [*seen, await task.receive("paid")]

    async with Runtime(path, clock=clock) as runtime:
        job = await start(runtime, body)
        await job.send("paid", 1)
        await job.send("paid", 2)
        await waits_for(job, "never")
        clock.advance(60)
        await waits_for(job, "on")
    is_new[0] = True
    async with Runtime(path, clock=clock) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        await waits_for(job, "paid")
        assert "added" in {one.name for one in await job.steps("t")}
    async with Runtime(path, clock=clock) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("paid", 3)
        with anyio.fail_after(300):
            assert await result(job) == [1, 2, 3]


def test_a_limit_and_a_branch_that_cancels_take_their_turns_again_as_they_did() -> None:
    async def note(what: str) -> str:
        return what

    async def body(task: TaskContext) -> list[str]:
        seen: list[str] = []

        async def timer(scope: anyio.CancelScope, seconds: float) -> None:
            await task.sleep(seconds)
            scope.cancel()

        with anyio.move_on_after(30):  # it is over when it is durable that the branch has cancelled a scope in it
            async with anyio.create_task_group() as group:
                group.start_soon(timer, group.cancel_scope, 20)
                await task.receive("never")
            seen.append("the branch came alone")
        async with anyio.create_task_group() as group:
            group.start_soon(timer, group.cancel_scope, HOUR)
            with anyio.move_on_after(3):
                await task.receive("never")
            seen.append(await task.step(note, "the limit came first"))
            await task.receive("never")
        await task.receive("on")
        return seen

    with Simulation(7) as sim:
        sim.task(body, name="body")
        sim.submit(Workstream("w", tasks=[Task("t", run="body", timeout="1d")]), id="j")
        sim.advance(10)
        sim.slow_journal(200)
        sim.advance(600)
        sim.slow_journal(0)
        sim.advance(2 * HOUR)
        assert [one.awaits for one in sim.job("j").task("t").steps() if one.awaits] == ["on"]
        sim.crash()
        sim.job("j").send("on")
        assert sim.job("j").run().results == {"t": ["the limit came first"]}
        sim.check()
