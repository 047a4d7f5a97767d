"""Values that bodies publish: durable, readable from outside, the last of each name."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.runtime.flows import bodies
from tests.runtime.flows.test_processes import WORKERS

from callboard import JobHandle, Retry, Runtime, Task, TaskContext, Workstream
from callboard.errors import NotSerialisable
from callboard.runtime.values import LARGEST

pytestmark = pytest.mark.anyio
Open = Callable[..., Runtime]
AT_ONCE = Retry(max_attempts=2, base_delay=0.0, jitter=0.0)


async def submit(runtime: Runtime, body: Any, **options: Any) -> JobHandle:
    if callable(body) and "<locals>" in body.__qualname__:
        runtime.task(body)
    return await runtime.submit(Workstream("flow", tasks=[Task("t", run=body, **options)]), id="j")


async def test_the_last_value_of_each_name_is_read_while_the_body_runs_and_after_its_end(open_runtime: Open) -> None:
    published, on = anyio.Event(), anyio.Event()

    async def body(task: TaskContext) -> None:
        await task.publish("stage", "reading")
        await task.publish("stage", "writing")
        await task.publish("pages", [1, 2])
        await task.publish("nothing", None)
        published.set()
        await on.wait()
        await task.publish("stage", "reading")

    async with open_runtime() as runtime:
        job = await submit(runtime, body)
        assert await job.published() == {}
        await published.wait()
        assert await job.published() == {"stage": "writing", "pages": [1, 2], "nothing": None}
        on.set()
        await job.wait()
        assert await job.published() == {"stage": "reading", "pages": [1, 2], "nothing": None}
        assert await job.task("t").published() == await job.published()


async def test_a_replay_publishes_no_older_value_over_a_newer_one(open_runtime: Open) -> None:
    on = anyio.Event()
    seen: list[Any] = []

    async def body(task: TaskContext) -> None:
        await task.publish("stage", "first")
        seen.append(await job.published())
        await task.publish("stage", "second")
        if task.attempt == 1:
            raise OSError
        await on.wait()

    async with open_runtime() as runtime:
        job = await submit(runtime, body, retry=AT_ONCE)
        on.set()
        await job.wait()
        steps = await job.steps("t")
    assert seen == [{"stage": "first"}, {"stage": "second"}]
    assert [step.label for step in steps] == ["task.publish stage", "task.publish stage#2"]


async def test_published_values_outlive_the_runtime_and_are_kept_by_a_further_run(tmp_path: Path) -> None:
    async def body(task: TaskContext) -> None:
        await task.publish("stage", "first")
        if "on" not in went:
            raise OSError
        await task.publish("more", True)

    went: list[str] = []
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body")(body)
        job = await submit(runtime, "body")
        await job.wait()
    with closing(sqlite3.connect(tmp_path / "j.db")) as db, db:
        sql = "SELECT job_id, name, result FROM task_steps WHERE name LIKE 'task.publish %'"
        assert db.execute(sql).fetchall() == [("j", "task.publish stage", '"first"')]
    db.close()
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(name="body")(body)
        job = await runtime.job("j")
        assert await job.published() == {"stage": "first"}
        went.append("on")
        job = await job.retry()
        await job.wait()
        assert await job.published() == {"stage": "first", "more": True}


async def test_all_tasks_of_a_job_publish_into_one_place_and_each_has_its_own(open_runtime: Open) -> None:
    async def first(task: TaskContext) -> None:
        await task.publish("who", "first")
        await task.publish("only", 1)

    async def second(task: TaskContext) -> None:
        await task.publish("who", "second")

    async with open_runtime() as runtime:
        tasks = [
            Task("first", run=runtime.task(first)),
            Task("second", run=runtime.task(second), depends_on=["first"]),
            Task("third", run="platform:node"),
        ]
        job = await runtime.submit(Workstream("two", tasks=tasks))
        await job.wait()
        assert await job.published() == {"who": "second", "only": 1}
        assert await job.task("first").published() == {"who": "first", "only": 1}
        assert await job.task("third").published() == {}


async def test_what_cannot_be_published_is_refused_and_the_body_may_go_on() -> None:
    async def body(task: TaskContext) -> None:
        for name in ("", "a#2", "x" * 200, "line\nend"):
            with pytest.raises(ValueError, match="cannot be the name of a published value"):
                await task.publish(name, 1)
        with pytest.raises(TypeError, match="the name of a published value is a str"):
            await task.publish(1, 1)  # type: ignore[arg-type]
        with pytest.raises(NotSerialisable, match="the published value 'lock'"):
            await task.publish("lock", object())
        with pytest.raises(NotSerialisable, match=r"has [\d,]+ bytes; at most .* are allowed"):
            await task.publish("large", "x" * LARGEST)
        with pytest.raises(RuntimeError, match="this body runs on the loop"):
            task.publish_blocking("late", 1)

    async with Runtime() as runtime:
        job = await submit(runtime, body)
        assert (await job.wait()).error is None
        assert await job.published() == {}


async def test_secrets_are_masked_in_values_and_refused_in_names() -> None:
    async def body(task: TaskContext) -> None:
        await task.publish("with", ["key", task.secrets["KEY"]])
        with pytest.raises(ValueError, match="holds the value of a secret"):
            await task.publish(task.secrets["KEY"], 1)

    async with Runtime(secrets={"KEY": "hunter-2-hunter-2"}.__getitem__) as runtime:
        job = await submit(runtime, body, secrets=["KEY"])
        assert (await job.wait()).error is None
        assert "hunter" not in repr(await job.published())


@pytest.mark.parametrize("engine", ["thread", "process"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_plain_functions_publish_elsewhere(engine: str) -> None:
    async with Runtime(workers=[WORKERS[engine]]) as runtime:
        job = await submit(runtime, bodies.publishes, engine=engine, retry=AT_ONCE)
        assert (await job.wait()).state == "completed"
        assert await job.published() == {"stage": "two", "total": 3}
        assert len(await job.steps("t")) == 3
