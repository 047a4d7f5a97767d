"""What a body gave up waiting for: people see that nothing waits for it any more."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.waiting import until

from callboard import JobHandle, Retry, Runtime, Task, TaskContext, Tool, VirtualClock, Worker, Workstream, step
from callboard.errors import Permanent
from callboard.runtime.cli import status, stuck, words
from callboard.runtime.web.read.shapes import step_view

pytestmark = pytest.mark.anyio
WEEK = 7 * 24 * 3600.0
WORKERS = [Worker("loop", engine="loop", capacity=1), Worker("gpu", engine="loop", capacity=1, capabilities=["gpu"])]
MODEL = {"model": Tool(max_parallel=1)}


@step(capabilities={"gpu"})
async def train() -> None:
    await anyio.sleep_forever()


@step(tool="model")
async def ask_model() -> None:
    await anyio.sleep_forever()


@step(retry=Retry(max_attempts=2, base_delay=40.0, jitter=0.0))
async def call(begun: list[str]) -> None:
    begun.append("call")
    if len(begun) == 1:
        raise ConnectionError
    await anyio.sleep_forever()


async def order(task: TaskContext) -> list[Any]:
    async def go() -> None:
        await task.receive("go", timeout=WEEK)

    async def sign() -> None:
        await task.approval("sign", people=2)

    child = await task.submit(Workstream("child", tasks=[Task("c", receive="end")]), name="child")
    async with anyio.create_task_group() as group:
        for one in (go, sign, child.wait, train, train, ask_model, ask_model):
            group.start_soon(one)
        await task.receive("enough")
        group.cancel_scope.cancel()
    await task.receive("on")
    signed = await task.approval("sign")
    got = await task.receive("go")
    await child.send("end")
    return [got, [one.by for one in signed], (await child.wait()).state]


async def all_are(job: JobHandle, state: str, *names: str) -> None:
    """Wait until there are steps of these names, durably, and all of them are in that state."""

    async def there() -> bool:
        steps = [one for one in await job.steps("t") if one.label in names]
        return {one.label for one in steps} == set(names) and {one.state for one in steps} == {state}

    with anyio.fail_after(120):
        while not await there():
            await anyio.sleep(0.005)


async def some_wait(job: JobHandle, *names: str) -> None:
    """Wait until a step of each name waits, durably."""
    with anyio.fail_after(120):
        while not {*names} <= {one.name for one in await job.steps("t") if one.state == "waiting"}:
            await anyio.sleep(0.005)


async def test_a_wait_that_its_body_gave_up_is_told_so_for_good(tmp_path: Path) -> None:
    clock, path = VirtualClock(), tmp_path / "state.db"
    given_up = ("task.receive go", "train", "ask_model", "train#2", "ask_model#2")
    async with Runtime(path, clock=clock, workers=WORKERS, tools=MODEL) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=order)]), id="j")
        await all_are(job, "waiting", "task.receive go", "task.receive enough")
        await some_wait(job, "train", "ask_model")  # for the worker, and the tool, that the others have
        await until(lambda: bool(job.approvals()))
        assert job.approvals()[0].left_at is None
        await job.task("t").approve(approval="sign", by="ana")
        await job.send("enough")
        await all_are(job, "waiting", "task.receive on")
        await all_are(job, "cancelled", *given_up)
        steps = [one for one in await job.steps("t") if one.label in given_up]
        assert None not in {one.cancelled_at for one in steps}
        assert {(one.tool_use, one.worker_use, one.awaits) for one in steps} == {(None, None, None)}
        (went,) = [one for one in steps if one.name == "task.receive go"]
        assert (went.due_at or 0.0) - went.began_at == WEEK
        assert words.step(went).startswith("it would have waited until ")
        (asked,) = job.approvals()
        assert asked.left_at is not None
        assert (asked.approved_by, asked.missing) == (["ana"], ["1 of 2 people"])
        wait = job.task("t").record.durable_wait
        assert wait is None or wait.name == "on"  # and no child job
        found = {
            (one["kind"], one["target"]): one["waits_for"] for one in stuck._found(runtime._services.journal.reader)
        }
        assert found["approval", "j/t"].startswith("an approval for which its body waits no longer (until ")
        assert "which waits for message 'on'" in found["task", "j/t"]
    async with Runtime(path, clock=clock, workers=WORKERS, tools=MODEL) as runtime:
        job = await runtime.job("j")
        await job.send("on")
        await until(lambda: job.approvals()[0].left_at is None)
        await job.task("t").approve(approval="sign", by="ben")
        await all_are(job, "waiting", "task.receive go#2")
        await job.send("go", 1)
        assert (await job.wait()).results == {"t": [1, ["ana", "ben"], "completed"]}
        await all_are(job, "completed", "task.receive go#2")
        await all_are(job, "cancelled", *given_up)  # as its body decided, also in the replay


async def test_a_step_that_is_cancelled_in_its_next_try_waits_for_it_no_longer(open_runtime: Any) -> None:
    begun: list[str] = []

    async def body(task: TaskContext) -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(call, begun)
            await until(lambda: len(begun) == 2)
            group.cancel_scope.cancel()
        return "done"

    clock = VirtualClock()
    async with open_runtime(clock=clock) as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run="body")]), id="j")
        await all_are(job, "waiting", "call")
        clock.advance(40.0)
        assert (await job.wait()).results == {"t": "done"}
        await all_are(job, "cancelled", "call")
        (step,) = await job.steps("t")
        assert step.tries == 1  # the one that was cancelled does not count


async def test_the_warning_of_what_nobody_awaits_names_it_as_it_was_called(open_runtime: Any) -> None:
    async def body(task: TaskContext) -> list[str]:
        texts: set[str] = set()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for call in (
                train, partial(task.sleep, 1), partial(task.receive, "go"), task.now, partial(task.uuid, "key"),
                partial(task.gather, train.bind()), partial(task.publish, "at", 1), partial(task.approval, "go"),
            ):  # fmt: skip
                call()
                while told:  # a warning holds the coroutine, and that another one
                    texts.update(str(one.message) for one in told)
                    told.clear()
        return sorted(texts)

    async with open_runtime() as runtime:
        runtime.task(name="body")(body)
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run="body")]), id="j")
        names = ("step train", "task.approval go", "task.gather", "task.now", "task.publish at", "task.receive go",
            "task.sleep", "task.uuid key")  # fmt: skip
        assert (await job.wait()).results == {"t": [f"coroutine '{name}' was never awaited" for name in names]}


async def leaves(task: TaskContext) -> Any:
    """Leaves tasks that wait, and ends at a message: at first badly."""
    left.extend(asyncio.create_task(task.receive(name)) for name in ("go", "other"))
    left.append(asyncio.create_task(task.sleep(WEEK)))
    await task.receive("fail")
    if len(left) == len(LEFT):
        raise Permanent("as asked")
    return await task.receive("end")


LEFT = ("task.receive go", "task.receive other", "task.sleep")
left: list[asyncio.Task[Any]] = []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_a_body_left_waiting_waits_no_longer_once_the_task_has_ended(
    tmp_path: Path, anyio_backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.db"
    async with Runtime(path, clock=VirtualClock()) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=leaves)]), id="j")
        reader = runtime._services.journal.reader

        async def are(state: str) -> None:
            await all_are(job, state, *LEFT)
            record = reader.task(job.task("t").record.id)
            assert record is not None
            shown = [step_view(one, record) for one in reader.steps(record.flow) if one.name in LEFT]
            assert {(one.state, one.cancelled_at is None) for one in shown} == {(state, state == "waiting")}
            await until(lambda: in_sql() == dict.fromkeys(LEFT, state))
            status._show_task(reader, record, None, as_json=False)
            assert len([line for line in capsys.readouterr().out.splitlines() if state in line.split()]) >= len(LEFT)

        def in_sql() -> dict[str, str]:
            with closing(sqlite3.connect(path)) as database:
                found = dict(database.execute("SELECT name, state FROM task_steps"))
            return {name: state for name, state in found.items() if name in LEFT}

        await are("waiting")
        await job.send("fail")
        assert (await job.wait()).state == "failed"
        await are("cancelled")
        assert {one.awaits for one in await job.steps("t")} == {None}
        former, job = job, await job.retry()
        await are("waiting")  # the next run goes on with them
        await all_are(job, "waiting", "task.receive end")
        assert {one.name: one.state for one in await former.steps("t")}["task.receive end"] == "waiting"
        await job.send("end", "well")
        assert (await job.wait()).results == {"t": "well"}
        await are("cancelled")
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    left.clear()
