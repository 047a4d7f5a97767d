"""Leaving a runtime by a cancellation from outside, and by a failure of its own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from callboard import Actor, ActorStopped, Runtime, Task, Workstream
from callboard.runtime.journal.sqlite import SqliteReader
from callboard.runtime.outcomes import RuntimeClosed

pytestmark = pytest.mark.anyio

running = anyio.Event()


async def endless() -> None:
    running.set()
    await anyio.sleep_forever()


async def test_a_cancelled_host_gives_back_what_ran(tmp_path: Path) -> None:
    global running  # noqa: PLW0603 - the body is found by its path, and so by its module
    running = anyio.Event()
    path = tmp_path / "state.db"
    with anyio.fail_after(25), anyio.CancelScope() as host:
        async with Runtime(path) as runtime:
            job = await runtime.submit(Workstream("stream", tasks=[Task("endless", run=endless)]), id="one")
            await running.wait()
            host.cancel()
            await job.wait()
    assert host.cancelled_caught
    reader = SqliteReader(path)
    run = reader.workstreams("one")[0]
    task = reader.tasks(run.key)[0]
    assert (task.state, task.failed_attempts, task.lost_attempts) == ("queued", 0, 0)
    assert [attempt.end for attempt in reader.attempts(task.id)] == ["returned"]
    reader.close()


async def test_a_broken_dispatcher_ends_the_host_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with anyio.fail_after(25), pytest.raises(RuntimeClosed) as raised:
        async with Runtime(tmp_path / "state.db") as runtime:
            runtime._host.commit = broken  # type: ignore[method-assign] # there is no such bug to be had otherwise
            with pytest.raises(RuntimeClosed):
                await runtime.submit(Workstream("stream", tasks=[Task("endless", run=endless)]))
            await anyio.sleep_forever()
    assert str(raised.value.__cause__) == "broken"


async def ends_the_group_around_it() -> None:
    if "trio" in sys.modules and (trio := sys.modules["trio"]).lowlevel.in_trio_run():
        nursery = trio.lowlevel.current_task().parent_nursery
        nursery.cancel_scope.cancel()
    else:
        import asyncio

        for task in asyncio.all_tasks():
            if task.get_name().endswith("RuntimeLife._serve"):
                task.cancel()
    await anyio.sleep_forever()


async def last_of(events: AsyncIterator[object]) -> object:
    last = None
    async for event in events:
        last = event
    return last


class Sleeper(Actor):
    async def receive(self, message: object, ctx: object) -> None:
        await anyio.sleep_forever()


@pytest.mark.parametrize("waiting", ["for the job", "in ask", "at all"])
async def test_a_runtime_whose_tasks_are_ended_by_something_inside_says_so(waiting: str, tmp_path: Path) -> None:
    with anyio.fail_after(25), pytest.raises(RuntimeClosed) as raised:
        async with Runtime(tmp_path / "state.db") as runtime:
            sleeper = runtime.spawn(Sleeper, name="sleeper")
            everything = runtime.events()
            job = await runtime.submit(Workstream("stream", tasks=[Task("odd", run=ends_the_group_around_it)]))
            its_own = job.events()
            if waiting == "for the job":
                with pytest.raises(RuntimeClosed, match="its own tasks were cancelled") as told:
                    await job.wait()
                assert told.value.__cause__ is not None
            elif waiting == "in ask":
                with pytest.raises(ActorStopped):
                    await sleeper.ask("anything")
            else:
                await anyio.sleep_forever()
            with pytest.raises(RuntimeClosed, match="its own tasks were cancelled"):
                await runtime.submit(Workstream("stream", tasks=[Task("more", run=endless)]))
    assert raised.value.__cause__ is not None
    with pytest.raises(RuntimeClosed, match="its own tasks were cancelled"):
        await job.wait()
    for events in (everything, its_own, job.events()):
        with pytest.raises(RuntimeClosed, match=r"before all was told .*its own tasks were cancelled") as cut:
            await last_of(events)
        assert cut.value.__cause__ is not None


async def test_a_dispatcher_that_breaks_while_the_runtime_is_left_holds_nobody_up(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with anyio.fail_after(25), pytest.raises(RuntimeClosed) as raised:
        async with Runtime(tmp_path / "state.db", drain_deadline=1000) as runtime:
            job = await runtime.submit(Workstream("stream", tasks=[Task("endless", run=endless)]))
            runtime._dispatcher.timers.arm(0.0, broken)
    assert str(raised.value.__cause__) == "broken"
    with pytest.raises(RuntimeClosed, match="broken"):
        await job.wait()


async def quick() -> int:
    return 1


@pytest.mark.parametrize("removed", [False, True])
async def test_who_leaves_a_journal_that_cannot_be_written_to_the_end_is_told(tmp_path: Path, removed: bool) -> None:
    told: list[str] = []
    runtime = Runtime(tmp_path / "state.db", drain_deadline=0.1)
    runtime.on_trouble = lambda notice: told.append(notice.event)
    async with runtime:
        job = await runtime.submit(Workstream("stream", tasks=[Task("quick", run=quick)]))
        await job.wait()
        if removed:
            for file in tmp_path.glob("state.db*"):
                if file.is_file():
                    file.unlink()
    assert ("journal_incomplete" in told) == removed
