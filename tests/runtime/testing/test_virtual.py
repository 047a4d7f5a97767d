"""The runtime on the test's own event loop, in virtual time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from sqlite3 import connect
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from callboard import Approval, Retry, Runtime, Task, TaskContext, Workstream
from callboard.runtime.testing import real_threads
from callboard.testing import Fails, Hangs, Succeeds, VirtualRuntime

pytestmark = pytest.mark.anyio


def body() -> int:
    return 1


async def double(task: TaskContext) -> int:
    await anyio.lowlevel.checkpoint()
    return 2 * int(task.results["build"])


class Releases:
    """An application: it releases, sends a message about it, and gives up after three days."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.told: list[str] = []

    async def release(self) -> None:
        tasks = [
            Task("build", run=body, retry=Retry(max_attempts=3)),
            Task("test", run=double, depends_on=["build"]),
            Task("deploy", command=["deploy"], depends_on=["test"], hold=Approval(expires="72h")),
        ]
        job = await self.runtime.submit(Workstream("release", tasks=tasks), id="release")
        outcome = await job.wait()
        self.told.append(outcome.state)


@pytest.mark.parametrize("file", [None, "state.db"])
async def test_days_pass_at_once_and_all_they_cause_has_happened(tmp_path: Path, file: str | None) -> None:
    began = time.monotonic()
    async with VirtualRuntime(None if file is None else tmp_path / file) as runtime, anyio.create_task_group() as group:
        application = Releases(runtime)
        runtime.body("build", outcomes=[Fails("x"), Succeeds(21)], takes="2m")
        group.start_soon(application.release)
        await runtime.advance("5m")
        job = await runtime.job("release")
        assert {record.name: str(record.state) for record in job.tasks()} == {
            "build": "completed", "test": "completed", "deploy": "held",
        }  # fmt: skip
        await runtime.advance("71h")
        assert application.told == []
        await runtime.advance("1h")
        assert application.told == ["failed"]
        assert (await job.wait()).results == {"build": 21, "test": 42}
    assert time.monotonic() - began < 240  # the shortest of these times is five minutes


async def test_it_waits_until_a_condition_holds_and_no_longer() -> None:
    async with VirtualRuntime() as runtime:
        runtime.body("build", takes="10m")
        job = await runtime.submit(Workstream("release", tasks=[Task("build", run=body, timeout="1h")]))
        await runtime.run_until(lambda: job.ended, within="1h")
        assert runtime.clock.monotonic() == 600
        with pytest.raises(AssertionError, match="nothing is left to happen"):
            await runtime.run_until(lambda: False, within="1m")


async def test_a_body_sleeps_in_virtual_time_where_it_asks_for_that() -> None:
    async with VirtualRuntime() as runtime:

        async def slow() -> float:
            await runtime.sleep("2m")
            return runtime.clock.monotonic()

        job = await runtime.submit(Workstream("release", tasks=[Task("slow", run=slow)]))
        await runtime.advance("3m")
        assert (await job.wait()).results == {"slow": 120}


async def test_leaving_waits_for_nothing_and_what_ran_goes_on_at_the_next_start(tmp_path: Path) -> None:
    began = time.monotonic()
    async with VirtualRuntime(tmp_path / "state.db") as runtime:
        runtime.body("build", outcomes=[Hangs()], ignores_stop=True)
        await runtime.submit(Workstream("release", tasks=[Task("build", run=body)]), id="job")
        await runtime.settle()
        assert [owner for _, owner, _ in runtime.started] == ["job@1/build"]
    async with VirtualRuntime(tmp_path / "state.db") as runtime:
        (job,) = runtime.recovered
        await runtime.settle()
        assert (await job.wait()).results == {"build": 1}
    assert time.monotonic() - began < 60


async def test_commands_take_effect_at_the_present_moment(tmp_path: Path) -> None:
    async with VirtualRuntime() as runtime:
        job = await runtime.submit(Workstream("release", tasks=[Task("deploy", command=["x"], hold=Approval())]))
        await runtime.advance("5h")
        await job.task("deploy").approve(by="ana")
        await runtime.settle()
        assert job.ended
        decided: Any = job.task("deploy").record.decisions[0]
        assert decided.at == 1_700_000_000 + 5 * 3600


async def test_durable_steps_follow_scripts_here_too() -> None:
    async def charge(order: str) -> str:
        raise AssertionError(order)

    async def order(task: TaskContext) -> list[str]:
        first = await task.step(charge, "A")
        await task.sleep("3d")  # the coroutine is dropped, and made again
        return [first, await task.step(charge, "B")]

    async with VirtualRuntime() as runtime:
        runtime.step_body("charge", returns="paid", takes="2h")
        runtime.step_body("charge#2", outcomes=Succeeds("free"))
        job = await runtime.submit(Workstream("order", tasks=[Task("order", run=order, timeout="1d")]))
        await runtime.advance("2h")
        await runtime.advance("3d")
        await runtime.settle()
        assert (await job.wait()).results["order"] == ["paid", "free"]


class Work:
    """Blocks its thread for a moment of real time, and says whether virtual time advanced meanwhile."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._advanced = threading.Event()
        runtime.clock.on_advance(self._advanced.set)

    def __call__(self) -> bool:
        self._advanced.clear()
        return self._advanced.wait(0.05)


async def test_time_stands_still_while_a_thread_works(anyio_backend_name: str) -> None:
    ways: list[Callable[[Work], Awaitable[bool]]] = [anyio.to_thread.run_sync]
    if anyio_backend_name == "asyncio":
        ways += [asyncio.to_thread, lambda work: asyncio.get_running_loop().run_in_executor(None, work)]
    async with VirtualRuntime() as runtime:
        work = Work(runtime)

        async def by_step(task: TaskContext) -> list[bool]:
            return [await task.step(work.__call__), await task.step(work.__call__)]

        async def by_itself() -> list[bool]:
            return [await way(work) for way in ways]

        tasks = [Task("step", run=by_step, timeout="1m"), Task("thread", run=by_itself, timeout="1m")]
        job = await runtime.submit(Workstream("work", tasks=tasks))
        await runtime.advance("2h")
        assert (await job.wait()).results == {"step": [False, False], "thread": [False for _ in ways]}


async def test_a_thread_that_waits_for_virtual_time_holds_nothing_up() -> None:
    async with VirtualRuntime() as runtime:
        job = await runtime.submit(
            Workstream("release", tasks=[Task("deploy", command=["x"], hold=Approval(expires="72h"))])
        )

        async def wait() -> str:
            return (await job.wait()).state

        async def body() -> str:
            return await anyio.to_thread.run_sync(partial(anyio.from_thread.run, wait))

        waits = await runtime.submit(Workstream("waits", tasks=[Task("waits", run=body, timeout="100h")]))
        await runtime.advance("73h")
        assert (await waits.wait()).results == {"waits": "failed"}


async def test_time_goes_on_beside_a_thread_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_threads, "LIMIT", 0.0)
    over = threading.Event()
    async with VirtualRuntime() as runtime, anyio.create_task_group() as group:
        group.start_soon(anyio.to_thread.run_sync, over.wait)
        try:
            with pytest.warns(UserWarning, match="a thread has worked for 0 real seconds"):
                await runtime.advance("1h")
            await runtime.advance("1h")  # without a second warning, which would be an error here
        finally:
            over.set()


async def test_time_goes_on_where_the_journal_ends(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    held = Workstream("release", tasks=[Task("deploy", command=["x"], hold=Approval(expires="72h"))])
    async with VirtualRuntime(file) as runtime:
        first = await runtime.submit(held)
        await runtime.advance("71h")
        left = runtime.clock.time()
    async with VirtualRuntime(file) as runtime:
        assert left < runtime.clock.time() < left + 1
        (job,) = runtime.recovered
        second = await runtime.submit(held)
        assert second.id > first.id
        await runtime.advance("1h")
        assert (await job.wait()).state == "failed"
        assert not second.ended
    with closing(connect(file)) as journal:
        times = [at for (at,) in journal.execute("SELECT at FROM state_transitions ORDER BY seq")]
    assert times == sorted(times)
    async with VirtualRuntime(file, start=2_000_000_000.0) as runtime:
        assert runtime.clock.time() == 2_000_000_000.0
