"""What bodies show on one node, as seen from another."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.runtime.web.conftest import client_of

from callboard import Progress, Retry, Task, TaskContext, Workstream

from .scene import Nodes, quick

pytestmark = pytest.mark.anyio
told: list[Progress] = []  # what the bodies of the present test say next
begun: list[TaskContext] = []
go_on: anyio.Event


@pytest.fixture
def scene() -> Nodes:
    global go_on  # noqa: PLW0603 - bodies are found by their import path
    told.clear()
    begun.clear()
    go_on = anyio.Event()
    return Nodes()


async def reads(task: TaskContext) -> None:
    """Say how far it is, until the test lets it end; the first attempt fails."""
    begun.append(task)
    task.progress(1, 4, "reading")
    await go_on.wait()
    if task.attempt == 1:
        raise ConnectionError("not yet")


async def test_the_progress_of_a_body_is_seen_from_another_node_while_its_attempt_runs(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        tasks = [Task("x", run=reads, retry=Retry(max_attempts=2)), Task("y", run=quick, depends_on=["x"])]
        job = await a.submit(Workstream("w", tasks=tasks), id="j")
        await scene.until(lambda: begun)
        far = await b.job("j")
        assert far.elsewhere
        await scene.until(lambda: far.task("x").progress == Progress(1, 4, "reading"))
        assert (far.progress("y"), far.task("y").progress) == (None, None)
        with pytest.raises(LookupError, match="no task 'z'"):
            far.progress("z")
        begun[0].progress(3, 4)
        await scene.until(lambda: far.progress("x") == Progress(3, 4))
        assert (await b.job("j")).progress("x") == Progress(3, 4)  # at the first look
        scene.base.restart()
        assert scene.base.progress == {}
        begun[0].progress(4, 4)  # all is written again where the database has lost it
        await scene.until(lambda: far.progress("x") == Progress(4, 4))
        go_on.set()
        assert (await far.wait()).state == "completed"
        assert (far.progress("x"), [task.attempt for task in begun]) == (None, [1, 2])
        await scene.until(lambda: not scene.base.progress)
        assert (await job.wait()).ok


async def test_who_leaves_removes_what_its_bodies_have_shown(scene: Nodes) -> None:
    async with scene.runtime("b") as b, scene.ticking():
        async with scene.runtime("a") as a:
            await a.submit(Workstream("w", tasks=[Task("x", run=reads)]), id="j")
            await scene.until(lambda: scene.base.progress)
            far = await b.job("j")
            assert far.progress("x") == Progress(1, 4, "reading")
        assert scene.base.progress == {}
        await scene.until(lambda: len(begun) == 2 and not far.elsewhere)  # b runs it now
        await scene.until(lambda: far.progress("x") == Progress(1, 4, "reading"))


async def test_a_database_that_does_not_answer_holds_up_no_body(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        job = await a.submit(Workstream("w", tasks=[Task("x", run=reads)]), id="j")
        await scene.until(lambda: begun)
        far = await b.job("j")
        await scene.until(lambda: far.progress("x") is not None)
        scene.nodes["a"].cut_off()
        begun[0].progress(2, 4)
        await scene.until(lambda: job.progress("x") == Progress(2, 4))
        assert far.progress("x") == Progress(1, 4, "reading")
        scene.nodes["a"].cut_off(False)
        await scene.until(lambda: far.progress("x") == Progress(2, 4))
        await job.cancel()


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
async def test_the_board_of_another_node_shows_it(scene: Nodes, anyio_backend: Any) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, client_of(b) as client, scene.ticking():
        job = await a.submit(Workstream("w", tasks=[Task("v", run=quick), Task("x", run=reads)]), id="j")
        await scene.until(lambda: scene.base.progress)
        said = {"done": 1.0, "of": 4.0, "text": "reading"}
        assert (await client.get("/api/jobs/j/tasks/x")).json()["progress"] == said
        tasks = (await client.get("/api/jobs/j/tasks")).json()["items"]
        assert {one["name"]: one["progress"] for one in tasks} == {"v": None, "x": said}
        assert (await client.get("/api/jobs/j/graph")).json()["progress"] == {"x": said}
        await job.cancel()
