"""A limit ends while something of the body is being persisted: what the body does then, its replay does, too."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.runtime.flows.helpers import result
from tests.runtime.flows.test_decisions import WORKERS, endless, start, waits_for
from tests.runtime.handles.test_jobs import audited
from tests.waiting import until

from callboard import Runtime, TaskContext, step
from callboard.runtime.journal.sqlite import medium

pytestmark = pytest.mark.anyio
ran: list[str] = []


@step
async def quick() -> str:
    ran.append("quick")
    return "quick"


@step(capabilities={"gpu"})
async def train() -> str:
    ran.append("train")
    return "trained"


class Disk:
    """A disk whose next commit takes until `free`, once it was told to `stop`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stops, self.in_commit, self.free = False, threading.Event(), threading.Event()
        before: Callable[..., None] = medium._commit

        def commit(connection: Any, parts: Any) -> None:
            if self.stops:
                self.stops = False
                self.in_commit.set()
                assert self.free.wait(240)
            before(connection, parts)

        monkeypatch.setattr(medium, "_commit", commit)


CALLS: dict[str, Callable[[TaskContext], Any]] = {
    "a message": lambda task: task.receive("x"),
    "a sleep": lambda task: task.sleep(60),
    "a step": lambda _: quick(),
    "a step on a worker": lambda _: train(),
    "an id": lambda task: task.uuid(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("native", [False, True])
async def test_the_body_and_its_replay_come_to_one_decision(
    call: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    if native and anyio_backend_name != "asyncio":
        pytest.skip("asyncio has these limits")
    disk, decided, ends = Disk(monkeypatch), list[Any](), list[Callable[[], object]]()
    ran.clear()

    async def body(task: TaskContext) -> Any:
        got: Any = "late"
        await task.receive("go")
        disk.stops = not disk.in_commit.is_set()  # in the first run
        if native:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3600) as limit:
                    ends.append(lambda: limit.reschedule(asyncio.get_running_loop().time()))
                    got = str(await CALLS[call](task))
        else:
            with anyio.CancelScope() as scope:
                ends.append(scope.cancel)
                got = str(await CALLS[call](task))
        decided.append(got)
        await task.receive("on")
        return got

    path = tmp_path / "j.db"
    async with Runtime(path, workers=WORKERS) as runtime:
        job = await start(runtime, body)
        await waits_for(job, "go")
        await job.send("x", "a message")
        await job.send("go")
        await until(disk.in_commit.is_set)
        ends[0]()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        disk.free.set()
        await waits_for(job, "on")
        assert (decided == ["late"]) == (call in {"a sleep", "a step on a worker"})  # the others had come, or ended
    async with Runtime(path, workers=WORKERS) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        await job.send("on")
        with anyio.fail_after(300):
            assert await result(job) == decided[0]
    assert decided == [decided[0]] * len(decided)
    assert len(ran) <= 1
    assert audited(path) == []


async def test_nothing_follows_a_decision_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, scopes = Disk(monkeypatch), list[anyio.CancelScope]()
    ran.clear()

    async def body(task: TaskContext) -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await endless()
        ran.append("the body goes on")
        await task.receive("on")

    async with Runtime(tmp_path / "j.db") as runtime:
        job = await start(runtime, body)
        await until(lambda: bool(scopes))
        disk.stops = True
        scopes[0].cancel()
        await until(disk.in_commit.is_set)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert ran == []
        disk.free.set()
        await waits_for(job, "on")
        assert ran == ["the body goes on"]
