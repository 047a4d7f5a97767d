"""Bodies that do not end when they are cancelled: they cost little, block nothing, and the program ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.lowlevel import checkpoint
from tests.waiting import until

from callboard import Actor, Condition, Hook, Retry, Runtime, Task, Workstream
from callboard.runtime.dispatch.runners import BodyCancelled, RunnerPool

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.laboratory,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
raised: list[str] = []
left: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    raised.clear()
    left.clear()


async def swallows() -> None:
    while True:
        try:
            await anyio.sleep(1_000)
        except BaseException as error:
            raised.append(type(error).__name__)


async def swallows_within_limits() -> None:
    while True:
        try:
            with anyio.move_on_after(1_000):
                await anyio.sleep_forever()
        except BaseException as error:
            raised.append(type(error).__name__)


async def shields() -> None:
    try:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
    finally:
        left.append("shields")


async def shields_and_swallows() -> None:
    with anyio.CancelScope(shield=True), anyio.CancelScope(shield=True):
        await swallows()


STUBBORN = [swallows, swallows_within_limits, shields, shields_and_swallows]


class Ends:
    """Records the ends of bodies."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, BaseException | None]] = []

    def __call__(self, value: Any, error: BaseException | None) -> None:
        self.told.append((value, error))


@pytest.mark.parametrize("body", [swallows, swallows_within_limits], ids=lambda body: body.__name__)
async def test_a_cancellation_that_is_swallowed_is_delivered_a_few_times(body: Callable[[], Awaitable[None]]) -> None:
    async with anyio.create_task_group() as group:
        pool, ends = RunnerPool(group), Ends()
        running = pool.submit(body, ends)
        await anyio.wait_all_tasks_blocked()
        running.cancel()
        for _ in range(500):
            await checkpoint()
        assert 1 <= len(raised) <= 5 + 8, len(raised)  # at once, and after pauses; not once in each turn
        assert ends.told == []
        at_once = len(raised)
        await until(lambda: len(raised) > at_once)  # the cancellation is delivered again after a pause
        running.abandon()
        await until(lambda: ends.told)
        assert isinstance(ends.told[0][1], BodyCancelled)
        pool.submit(checkpoint, ends)
        await until(lambda: len(ends.told) == 2)
        pool.close()
    assert pool.runners == 0


async def test_a_cancellation_that_a_task_of_the_body_swallows_is_delivered_a_few_times(
    anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation is raised in the task that the body waits for, and never in the body."""
    if anyio_backend_name != "asyncio":
        pytest.skip("a task of asyncio's own")
    import asyncio

    monkeypatch.setattr("callboard.runtime.dispatch.runners._PAUSE", 0.0005)
    tasks: list[asyncio.Task[None]] = []
    stubborn = True

    async def child() -> None:
        while stubborn:
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                raised.append("child")

    async def body() -> None:
        tasks.append(asyncio.create_task(child()))
        await asyncio.wait_for(tasks[0], None)
        left.append("body")
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        pool, ends = RunnerPool(group), Ends()
        running = pool.submit(body, ends)
        await until(lambda: tasks)
        await anyio.wait_all_tasks_blocked()
        running.cancel()
        await until(lambda: raised)
        at_once = len(raised)
        await until(lambda: len(raised) > at_once)  # the cancellation is delivered again after a pause
        running.abandon()
        for _ in range(2_000):
            await checkpoint()
        stubborn = False
        assert len(raised) < 500, len(raised)  # and not in each turn
        await until(lambda: ends.told)  # once that task gives up, the body is cancelled as any other
        assert isinstance(ends.told[0][1], BodyCancelled)
        pool.submit(checkpoint, ends)
        await until(lambda: len(ends.told) == 2)
        pool.close()
    assert pool.runners == 0
    await tasks[0]


@pytest.mark.parametrize("body", STUBBORN, ids=lambda body: body.__name__)
async def test_one_that_is_abandoned_is_left_and_its_runner_is_free(body: Callable[[], Awaitable[None]]) -> None:
    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            pool, ends = RunnerPool(group), Ends()
            running = pool.submit(body, ends)
            await anyio.wait_all_tasks_blocked()
            running.abandon()
            await until(lambda: ends.told)
            assert isinstance(ends.told[0][1], BodyCancelled)
            told = len(raised)
            for _ in range(50):
                await checkpoint()
            assert len(raised) <= told + 1  # nothing of it runs any more
            pool.close()
    assert left == (["shields"] if body is shields else [])  # its clean-up runs where that is possible


async def test_one_that_is_shielded_for_a_while_hears_of_its_cancel_right_after() -> None:
    async def body() -> None:
        with anyio.CancelScope(shield=True):
            raised.append("began")
            for _ in range(200):
                await anyio.sleep(0.001)
        left.append("shield")
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        pool, ends = RunnerPool(group), Ends()
        running = pool.submit(body, ends)
        await until(lambda: raised)
        running.cancel()
        await until(lambda: ends.told)
        assert left == ["shield"]
        pool.close()


async def test_what_cleans_up_within_several_waits_is_cancelled_in_each() -> None:
    async def body() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            for n in range(4):
                try:
                    await anyio.sleep_forever()
                except anyio.get_cancelled_exc_class():
                    left.append(str(n))

    async with anyio.create_task_group() as group:
        pool, ends = RunnerPool(group), Ends()
        running = pool.submit(body, ends)
        await anyio.wait_all_tasks_blocked()
        running.cancel()
        await until(lambda: ends.told)
        assert left == ["0", "1", "2", "3"]
        pool.submit(checkpoint, ends)
        await until(lambda: len(ends.told) == 2)
        pool.close()


@pytest.mark.parametrize("body", STUBBORN, ids=lambda body: body.__name__)
async def test_a_runtime_is_left_that_has_run_them(
    body: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("execution.calls", "lifespan.draining"):
        monkeypatch.setattr(f"callboard.runtime.{module}.CHECK_GRACE", 0.1)  # the program below has the real one
    with anyio.fail_after(300):
        async with Runtime(drain_deadline=0.1) as runtime:
            limits: dict[str, Any] = {"timeout": 0.2, "kill_grace": 0.1, "retry": Retry(max_attempts=1)}
            job = await runtime.submit(Workstream("w", tasks=[Task("t", run=body, **limits)]))
            assert (await job.wait()).tasks["t"].state == "failed"
            hook = Hook(run=body, timeout=0.2)
            await (
                await runtime.submit(
                    Workstream("w", tasks=[Task("t", run=anyio.lowlevel.checkpoint, on_completed=[hook])])
                )
            ).wait()
            await runtime.submit(Workstream("w", tasks=[Task("t", run=body, kill_grace=0.1)]))  # runs on
            condition = Condition(run=body, timeout=1_000)
            await runtime.submit(Workstream("w", tasks=[Task("t", run=checkpoint, condition=condition)]))

            class Slow(Actor):
                async def receive(self, message: Any, ctx: Any) -> None:
                    await body()

            for timeout in (0.1, 0.3):
                runtime.spawn(Slow, stop_timeout=timeout).tell("go")
            ref = runtime.spawn(Slow, stop_timeout=0.1)
            ref.tell("go")
            await anyio.sleep(0.05)
            ref.stop()
            await until(lambda: ref.stopped)


async def test_a_runtime_is_left_whose_body_waits_for_a_thread_that_cannot_be_interrupted() -> None:
    gate, began = threading.Event(), threading.Event()

    def blocks() -> None:
        began.set()
        gate.wait()

    async def body() -> None:
        await anyio.to_thread.run_sync(blocks)

    try:
        with anyio.fail_after(300):
            async with Runtime(drain_deadline=0.1) as runtime:
                await runtime.submit(Workstream("w", tasks=[Task("t", run=body, kill_grace=0.1)]))
                await until(began.is_set)
    finally:
        gate.set()


PROGRAM = """
import sys, time, threading
import anyio
from callboard import Retry, Runtime, Task, Worker, Workstream

async def swallows():
    while True:
        try:
            await anyio.sleep(1)
        except BaseException:
            pass

async def shields():
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()

def never():
    threading.Event().wait()

async def main():
    workers = [Worker("loop", engine="loop", capacity=5), Worker("threads", engine="thread", capacity=5)]
    async with Runtime(workers=workers, drain_deadline=0.1) as runtime:
        for body in (swallows, shields, never):
            limits = {"timeout": 0.3, "kill_grace": 0.1, "retry": Retry(max_attempts=1)}
            job = await runtime.submit(Workstream("w", tasks=[Task("t", run=body, **limits)]))
            assert not (await job.wait()).ok
            await runtime.submit(Workstream("w", tasks=[Task("t", run=body, kill_grace=1)]))
        spent = time.process_time()
        await anyio.sleep(1)
        print("spent", time.process_time() - spent)
    print("left")

anyio.run(main, backend=sys.argv[1])
print("over")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_ends_that_has_run_them(backend: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(file), backend], capture_output=True, text=True, timeout=600, check=False
    )
    spent, *rest = done.stdout.split("\n")
    assert rest == ["left", "over", ""], done.stderr[-2_000:]
    assert float(spent.split()[1]) < 0.3
    assert done.returncode == 0
