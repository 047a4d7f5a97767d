"""The progress and text of bodies of one node, as read on another node."""

from __future__ import annotations

from typing import Any, NoReturn

import anyio
import pytest
from tests.runtime.web.conftest import client_of

from callboard import Dropped, Notice, Progress, Retry, Task, TaskContext, Workstream
from callboard.runtime.cluster.shared_text import SHARED
from callboard.runtime.observation.live import PIECE, TextStream

from .scene import Nodes, quick

pytestmark = pytest.mark.anyio
told: list[Progress] = []  # the next progress of the bodies of the present test
begun: list[TaskContext] = []
go_on: anyio.Event  # for the first attempt
end: anyio.Event  # for the others


@pytest.fixture
def scene() -> Nodes:
    global go_on, end
    told.clear()
    begun.clear()
    go_on, end = anyio.Event(), anyio.Event()
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


# -- emitted text ------------------------------------------------------------------------------------------------------


async def writes(task: TaskContext) -> None:
    """Emit what the test says, until it lets the body end; the first attempt fails."""
    begun.append(task)
    task.emit(f"attempt {task.attempt}: ")
    await (go_on if task.attempt == 1 else end).wait()
    task.emit("the end")
    if task.attempt == 1:
        raise ConnectionError("not yet")


class Reading:
    """A reader of a stream, in a task of its own."""

    def __init__(self, stream: TextStream) -> None:
        self.stream = stream
        self.parts: list[str | Dropped] = []
        self.over = False

    @property
    def text(self) -> str:
        """What it has read."""
        return "".join(part if isinstance(part, str) else f"[{part.count}]" for part in self.parts)

    async def read(self) -> None:
        """Read until the stream ends."""
        async for part in self.stream:
            self.parts.append(part)
        self.over = True


async def test_text_is_streamed_to_readers_on_another_node_and_only_while_somebody_reads(scene: Nodes) -> None:
    base = scene.base
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking(), anyio.create_task_group() as group:
        tasks = [Task("x", run=writes, retry=Retry(max_attempts=2)), Task("y", run=quick, depends_on=["x"])]
        job = await a.submit(Workstream("w", tasks=tasks), id="j")
        await scene.until(lambda: begun)
        begun[0].emit("unheard, ")
        far = await b.job("j")
        assert (base.texts, base.listened) == ({}, [])  # without a listener, nothing is written
        first, second, gone = (Reading(far.task("x").stream()) for _ in range(3))
        for one in (first, second, gone):
            group.start_soon(one.read)
        await scene.until(lambda: second.text == first.text == "attempt 1: unheard, ")
        begun[0].emit("heard, ")
        await scene.until(lambda: first.text == "attempt 1: unheard, heard, ")
        assert (len(base.texts), begun[0].token) == (1, next(iter(base.texts))[1])  # the row has grown
        gone.stream.close()
        await scene.until(lambda: gone.over)
        token, place = first.stream.place
        assert (token, place) == (begun[0].token, len(first.text))
        go_on.set()
        await scene.until(lambda: first.over and second.over)
        end.set()
        assert second.text == "attempt 1: unheard, heard, the end"
        assert (await far.wait()).state == "completed"
        assert [part async for part in far.task("x").stream()] == []  # none runs any more
        await scene.until(lambda: not base.texts)
        count, now = len(base.listened), scene.clock.monotonic()
        await scene.until(lambda: scene.clock.monotonic() > now + 30)
        assert len(base.listened) == count  # there is no reader any more
        assert (await job.wait()).ok


async def test_a_reader_that_waits_for_an_attempt_gets_the_next_one_and_a_place_is_found_again(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking(), anyio.create_task_group() as group:
        held = Task("x", run=writes, retry=Retry(max_attempts=2), depends_on=["v"])
        await a.submit(Workstream("w", tasks=[Task("v", run=reads), held]), id="j")
        await scene.until(lambda: begun)
        far = await b.job("j")
        before = Reading(far.task("x").stream())  # it has not begun
        group.start_soon(before.read)
        await scene.until(lambda: scene.base.listened)
        go_on.set()
        await scene.until(lambda: before.over)
        assert before.text == "attempt 1: the end"
        far = await b.job("j")
        after = Reading(far.task("x").stream())
        group.start_soon(after.read)
        end.set()
        await scene.until(lambda: after.over)
        assert after.text == "attempt 2: the end"


async def test_a_handle_that_has_not_looked_for_long_streams_the_attempt_that_runs_now(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking(), anyio.create_task_group() as group:
        tasks = [Task("x", run=writes, retry=Retry(max_attempts=2))]
        job = await a.submit(Workstream("w", tasks=tasks), id="j")
        await scene.until(lambda: begun)
        far = await b.job("j")
        go_on.set()
        await scene.until(lambda: len(begun) == 2)
        reading = Reading(far.task("x").stream())
        group.start_soon(reading.read)
        await scene.until(lambda: reading.text == "attempt 2: ")
        end.set()
        await scene.until(lambda: reading.over)
        assert reading.text == "attempt 2: the end"
        assert (await job.wait()).ok


async def test_an_error_of_the_display_does_not_break_the_reading_node(
    scene: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[Notice] = []
    broken: list[object] = []

    def breaks(after: object) -> NoReturn:
        monkeypatch.undo()
        broken.append(after)
        raise ValueError("a row of another version")

    async with (
        scene.runtime("a") as a,
        scene.runtime("b") as b,
        scene.ticking(),
        anyio.create_task_group() as group,
    ):
        b.on_trouble = notices.append
        job = await a.submit(Workstream("w", tasks=[Task("x", run=writes)]), id="j")
        await scene.until(lambda: begun)
        reading = Reading((await b.job("j")).task("x").stream())
        monkeypatch.setattr(scene.nodes["b"].cluster, "read_text", breaks)
        group.start_soon(reading.read)
        await scene.until(lambda: reading.text == "attempt 1: ")
        assert (len(broken), [one.event for one in notices].count("not_shared")) == (1, 1)
        await job.cancel(force=True)
        await scene.until(lambda: reading.over)


async def test_more_than_is_kept_is_counted_and_rows_are_bounded(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking(), anyio.create_task_group() as group:
        job = await a.submit(Workstream("w", tasks=[Task("x", run=writes)]), id="j")
        await scene.until(lambda: begun)
        sent = "".join(f"{number} " for number in range(100_000))
        begun[0].emit(sent)
        far = await b.job("j")
        late = Reading(far.task("x").stream())
        group.start_soon(late.read)
        kept = f"attempt 1: {sent}"
        await scene.until(lambda: late.text == f"[{len(kept) - SHARED}]{kept[-SHARED:]}")
        begun[0].emit("more")
        await scene.until(lambda: late.text.endswith("more"))
        for number in range(3):
            begun[0].emit(f"{number}" * SHARED)
            await scene.until(lambda last=str(number): late.text.count(last) > SHARED)  # type: ignore[misc]
        late.stream.close()
        await scene.until(lambda: not scene.base.texts)  # soon after the last listener has ended
        assert scene.base.most_texts <= 2 * (SHARED // PIECE + 2)
        await job.cancel(force=True)


async def test_a_stream_goes_on_over_an_outage_and_a_restart_and_ends_with_its_node(scene: Nodes) -> None:
    async with scene.runtime("b") as b, scene.ticking(), anyio.create_task_group() as group:
        async with scene.runtime("a") as a:
            await a.submit(Workstream("w", tasks=[Task("x", run=writes)]), id="j")
            await scene.until(lambda: begun)
            far = await b.job("j")
            reading = Reading(far.task("x").stream())
            group.start_soon(reading.read)
            await scene.until(lambda: reading.text == "attempt 1: ")
            for node in ("a", "b"):
                scene.nodes[node].cut_off()
                begun[0].emit(f"{node} was cut off, ")
                now = scene.clock.monotonic()
                await scene.until(lambda since=now: scene.clock.monotonic() > since + 3)  # type: ignore[misc]
                scene.nodes[node].cut_off(False)
                await scene.until(lambda last=node: reading.text.endswith(f"{last} was cut off, "))  # type: ignore[misc]
            scene.base.restart()
            begun[0].emit("restarted")
            await scene.until(lambda: reading.text == "attempt 1: a was cut off, b was cut off, restarted")
            assert not reading.over
        await scene.until(lambda: reading.over)  # a has left: b runs it now, in a new attempt
        await scene.until(lambda: not scene.base.texts)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
async def test_the_board_of_another_node_streams_it(scene: Nodes, anyio_backend: Any) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, client_of(b) as client, scene.ticking():
        job = await a.submit(Workstream("w", tasks=[Task("x", run=writes)]), id="j")
        await scene.until(lambda: begun)
        token = begun[0].token
        go_on.set()
        response = await client.get("/api/jobs/j/tasks/x/stream", headers={"Last-Event-ID": f"{token}-8"})
        assert response.status_code == 200
        assert f'event: text\nid: {token}-18\ndata: {{"text":"1: the end"}}' in response.text
        assert "event: end" in response.text
        await job.wait()
