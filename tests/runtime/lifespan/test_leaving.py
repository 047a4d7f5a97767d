"""Leaving a runtime by a cancellation from outside, and by a failure of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from callboard import Actor, Runtime, Task, Workstream
from callboard.errors import ActorStopped
from callboard.runtime.errors import RuntimeClosed
from callboard.runtime.journal.sqlite.journal import SqliteReader

pytestmark = pytest.mark.anyio

running = anyio.Event()


async def endless() -> None:
    running.set()
    await anyio.sleep_forever()


async def test_a_cancelled_host_gives_back_what_ran(tmp_path: Path) -> None:
    global running  # noqa: PLW0603 - the body is found by its path, and so by its module
    running = anyio.Event()
    path = tmp_path / "state.db"
    with anyio.fail_after(300), anyio.CancelScope() as host:
        async with Runtime(path, drain_deadline=1000) as runtime:
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

    with anyio.fail_after(300), pytest.raises(RuntimeClosed) as raised:
        async with Runtime(tmp_path / "state.db", drain_deadline=1000) as runtime:
            runtime._services.host.commit = broken  # type: ignore[method-assign] # there is no such bug to be had otherwise
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
            if task.get_name().endswith("Lifespan._serve"):
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
    with anyio.fail_after(300), pytest.raises(RuntimeClosed) as raised:
        async with Runtime(tmp_path / "state.db", drain_deadline=1000) as runtime:
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
        with pytest.raises(RuntimeClosed, match=r"all events were delivered .*its own tasks were cancelled") as cut:
            await last_of(events)
        assert cut.value.__cause__ is not None


async def test_a_dispatcher_that_breaks_while_the_runtime_is_left_holds_nobody_up(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with anyio.fail_after(300), pytest.raises(RuntimeClosed) as raised:
        async with Runtime(tmp_path / "state.db", drain_deadline=1000) as runtime:
            job = await runtime.submit(Workstream("stream", tasks=[Task("endless", run=endless)]))
            runtime._services.dispatcher.timers.arm(0.0, broken)
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


let_go = threading.Event()
begun: list[str] = []
ended_well: list[str] = []


async def stubborn() -> None:
    begun.append("stubborn")
    while True:
        try:
            await anyio.sleep(99)
        except BaseException:
            continue


def deaf() -> None:
    begun.append("deaf")
    let_go.wait(600)


async def polite() -> None:
    begun.append("polite")
    try:
        await anyio.sleep_forever()
    finally:
        ended_well.append("polite")


async def tidies_up() -> None:
    begun.append("tidies up")
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.5)
        ended_well.append("tidied up")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["close", "cancelled", "cancelled late", "drain", "drain meanwhile", "leave"])
async def test_leaving_waits_for_no_body_longer_than_its_own_grace(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The event that it would wait for instead.
    for name in ("draining.LONGEST_GRACE", "opening.LONGEST_STOP", "closing.CLOSING"):
        monkeypatch.setattr(f"callboard.runtime.lifespan.{name}", 600.0)
    begun.clear()
    ended_well.clear()
    let_go.clear()
    path, pids = tmp_path / "state.db", tmp_path / "pids"
    ignores = ["sh", "-c", f"trap '' TERM; echo begun >> {pids}; while :; do sleep 0.05; echo on >> {pids}; done"]
    bodies = Workstream(
        "stream",
        tasks=[
            Task("stubborn", run=stubborn, kill_grace="0.2s"),
            Task("deaf", run=deaf, kill_grace="0.2s"),
            Task("command", command=ignores, kill_grace="0.2s"),
            Task("polite", run=polite, kill_grace="0.2s"),
        ],
    )
    runtime = Runtime(path, drain_deadline=0 if way in ("close", "leave", "cancelled late") else 1000)
    try:
        with anyio.fail_after(300):
            async with runtime:
                await runtime.submit(bodies, id="one")
                while not pids.exists() or len(begun) < 3:
                    await anyio.sleep(0.01)
                if way == "drain":
                    await runtime.drain(0)
                if way.startswith("cancelled"):
                    with anyio.move_on_after(0.1):
                        await runtime.close()
                elif way == "drain meanwhile":
                    async with anyio.create_task_group() as group:
                        await group.start(runtime.drain, 0)
                        group.start_soon(runtime.close)
                elif way != "leave":
                    await runtime.close()
    finally:
        let_go.set()
    assert ended_well == ["polite"]
    written = pids.stat().st_size
    await anyio.sleep(0.2)
    assert pids.stat().st_size == written, "the command was killed"
    reader = SqliteReader(path)
    tasks = reader.tasks(reader.workstreams("one")[0].key)
    assert {(task.state, task.failed_attempts, task.lost_attempts) for task in tasks} == {("queued", 0, 0)}
    assert [attempt.end for task in tasks for attempt in reader.attempts(task.id)] == ["returned"] * 4
    reader.close()


async def test_a_body_that_goes_within_its_grace_is_not_abandoned_when_the_runtime_is_left(tmp_path: Path) -> None:
    told: list[str] = []
    begun.clear()
    ended_well.clear()

    async with Runtime(tmp_path / "state.db", drain_deadline=0) as runtime:
        runtime.on_trouble = lambda notice: told.append(notice.event)
        await runtime.submit(Workstream("stream", tasks=[Task("tidy", run=tidies_up, kill_grace="10m")]))
        while not begun:
            await anyio.sleep(0.01)
    assert ended_well == ["tidied up"]
    assert "body_abandoned" not in told
