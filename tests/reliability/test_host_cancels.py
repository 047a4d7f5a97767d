"""Cancellations from outside, at every step of opening and leaving a runtime, and of every kind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.processes import children, threads

from callboard import Runtime, Task, Workstream

STEPS = range(60) if "CALLBOARD_LABORATORY" in os.environ else range(0, 24, 5)
"""Turns of the event loop after which it is cancelled. All is entered or left after some twenty."""
ASYNCIO = [pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio")]
pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]


@pytest.fixture(autouse=True)
def idle_threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle threads would wait ten seconds for work, and each step here waits until there is no such thread."""
    monkeypatch.setattr("callboard.runtime.dispatch.threads.KEPT", 0.01)


async def endless() -> None:
    await anyio.sleep_forever()


def ours() -> set[object]:
    """The processes that this one has, and the threads of its runtimes."""
    return {*children(), *threads("callboard", "journal")}


async def nothing_is_left(path: Path, had: set[object]) -> None:
    """The journal is free, no thread and no process is left, and no try is counted as lost or failed."""
    with anyio.fail_after(300):
        while ours() - had:
            await anyio.sleep(0.001)
    async with Runtime(path, drain_deadline=0) as runtime:
        for job in runtime.recovered:
            assert [(task.lost_attempts, task.failed_attempts) for task in job.tasks()] == [(0, 0)] * 2
            await job.cancel()
            await job.wait()


async def use(path: Path, inside: Callable[[], None]) -> None:
    async with Runtime(path, drain_deadline=0.01) as runtime:
        tasks = [Task("body", run=endless), Task("command", command=["sleep", "600"])]
        job = await runtime.submit(Workstream("stream", tasks=tasks))
        while {task.state for task in job.tasks()} != {"running"}:
            await anyio.sleep(0.001)
        inside()


async def end(task: asyncio.Task[None]) -> None:
    with anyio.fail_after(300):
        await asyncio.wait([task])


async def cancel_at(step: int, task: asyncio.Task[None]) -> None:
    """Cancel it after so many turns of the loop, once or up to three times."""
    for _ in range(step):
        await asyncio.sleep(0)
    for _ in range(1 + step % 3):
        task.cancel()
        await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()


@pytest.mark.parametrize("anyio_backend", ASYNCIO)
async def test_a_task_that_is_cancelled_while_it_enters_leaves_the_journal_free(tmp_path: Path) -> None:
    had = ours()
    for step in STEPS:
        task = asyncio.create_task(use(tmp_path / "state.db", lambda: None))
        await cancel_at(step, task)
        await nothing_is_left(tmp_path / "state.db", had)


@pytest.mark.parametrize("anyio_backend", ASYNCIO)
async def test_a_task_that_is_cancelled_while_it_leaves_gives_its_tries_back(tmp_path: Path) -> None:
    had = ours()
    for step in STEPS:
        leaving = asyncio.Event()
        task = asyncio.create_task(use(tmp_path / "state.db", leaving.set))
        with anyio.fail_after(300):
            await leaving.wait()
        await cancel_at(step, task)
        await nothing_is_left(tmp_path / "state.db", had)


@pytest.mark.parametrize("anyio_backend", ASYNCIO)
async def test_a_timeout_around_the_entering_leaves_the_journal_free(tmp_path: Path) -> None:
    for milliseconds in range(0, 20, 6):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(milliseconds / 1000), Runtime(tmp_path / "state.db"):
                await asyncio.sleep(60)
        async with Runtime(tmp_path / "state.db"):
            pass


@pytest.mark.parametrize("anyio_backend", [*ASYNCIO, pytest.param(("trio", {}), id="trio")])
async def test_a_scope_that_ends_while_a_runtime_is_entered_leaves_the_journal_free(tmp_path: Path) -> None:
    had = ours()
    for step in STEPS:
        async with anyio.create_task_group() as group:
            group.start_soon(use, tmp_path / "state.db", lambda: None)
            for _ in range(step):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        await nothing_is_left(tmp_path / "state.db", had)
