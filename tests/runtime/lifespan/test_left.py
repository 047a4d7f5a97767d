"""A runtime that was left is freed: no object that the garbage collector cannot see keeps a part of it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.runtime.cluster.scene import Nodes
from tests.runtime.lifespan.test_trouble import Disk
from tests.waiting import until

from callboard import Actor, Approval, Retry, Runtime, Task, TaskContext, Tool, Workstream
from callboard.actors.jobs.job import JobActor
from callboard.actors.kernel.kernel import Kernel
from callboard.actors.tasks.task import TaskActor
from callboard.errors import RuntimeClosed
from callboard.runtime.dispatch.dispatcher import Dispatcher
from callboard.runtime.host import KernelHost
from callboard.runtime.journal.sqlite.journal import SqliteJournal

pytestmark = pytest.mark.anyio
KINDS = (Runtime, KernelHost, Kernel, Dispatcher, JobActor, TaskActor)
TIMES = 3


def living() -> Counter[str]:
    """The numbers of living objects of a runtime's classes, over all tests."""
    for _ in range(3):
        gc.collect()
    kinds = [type(one) for one in gc.get_objects()]  # never isinstance: tests leave objects that lie about their class
    return Counter(kind.__name__ for kind in kinds if kind in KINDS)


async def quick() -> int:
    return 1


async def breaks() -> None:
    raise ValueError("no")


async def endless() -> None:
    await anyio.sleep_forever()


async def asks(task: TaskContext) -> None:
    await task.approval("go", people=1)


class Sleeper(Actor):
    async def receive(self, message: object, ctx: object) -> None:
        await anyio.sleep_forever()


def all_kinds() -> Workstream:
    """Tasks that have ended, run, wait for people, for a slot, for their next try and for their tool."""
    return Workstream(
        "w", max_parallel=3,
        tools={"t": Tool(max_parallel=1)},
        tasks=[
            Task("quick", run=quick), Task("endless", run=endless, tool="t"), Task("waits", run=quick, tool="t"),
            Task("asks", run=asks), Task("held", run=quick, hold=Approval(people=1)),
            Task("again", run=breaks, optional=True, retry=Retry(max_attempts=3, base_delay="1h", max_delay="1h")),
            Task("after", run=quick, depends_on=["endless"]),
        ],
    )  # fmt: skip


async def at_work(runtime: Runtime) -> None:
    """Have the runtime at work with all of them."""
    runtime.on_trouble = lambda _: None
    job = await runtime.submit(all_kinds())
    runtime.spawn(Sleeper, name="sleeper", stop_timeout=0.01).tell("sleep")
    await until(lambda: job.approvals() and job.task("again").record.state == "retrying")


async def left(path: Path) -> None:
    async with Runtime(path, drain_deadline=0) as runtime:
        await at_work(runtime)


async def left_in_memory(path: Path) -> None:
    async with Runtime(drain_deadline=0) as runtime:
        await at_work(runtime)


async def left_by_an_error(path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Runtime(path) as runtime:
            await at_work(runtime)
            raise ZeroDivisionError


async def closed_elsewhere(path: Path) -> None:
    runtime = await Runtime(path, drain_deadline=0).open()
    await at_work(runtime)
    async with anyio.create_task_group() as group:
        group.start_soon(runtime.close)


async def broken(path: Path) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeClosed):
        async with Runtime(path) as runtime:
            await at_work(runtime)
            runtime._services.dispatcher.timers.arm(0.0, fails)
            await anyio.sleep_forever()


async def disk_full(path: Path) -> None:
    disk = Disk()
    journal = SqliteJournal(path, connect=disk.connect, pause=lambda _: disk.room.wait(0.01))
    async with Runtime(journal, drain_deadline=0) as runtime:
        await at_work(runtime)
        disk.full = True


@asynccontextmanager
async def of_a_node() -> AsyncGenerator[tuple[Nodes, Runtime]]:
    scene = Nodes()
    with pytest.raises(RuntimeClosed):
        async with scene.runtime("a") as runtime, scene.ticking():
            await at_work(runtime)
            yield scene, runtime
            await anyio.sleep_forever()


async def fenced(path: Path) -> None:
    async with of_a_node() as (scene, _):
        scene.nodes["a"].fence()


WAYS: list[Callable[[Path], Awaitable[None]]] = [
    left, left_in_memory, left_by_an_error, closed_elsewhere, broken, disk_full, fenced,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_of_a_runtime_that_was_left_is_kept(
    way: Callable[[Path], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "callboard.runtime.lifespan.opening.REST", 0.2
    )  # with a full disk: how long that takes is test_trouble's
    await way(tmp_path / "first.db")  # objects that are made only once
    before = living()
    for n in range(TIMES):
        await way(tmp_path / f"{n}.db")
        await anyio.wait_all_tasks_blocked()  # the task that it lived in may have its last step to do
    after = living()
    assert {name: (before[name], number) for name, number in after.items() if number > before[name] + 1} == {}
