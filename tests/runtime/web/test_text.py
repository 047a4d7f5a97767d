"""Output of bodies over HTTP: the stream of emitted text, progress, and published values."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from tests.runtime.web.conftest import client_of
from tests.waiting import until

from callboard import Progress, Runtime, Task, TaskContext, Workstream
from callboard.runtime.observation.live import KEPT
from callboard.runtime.runtime import services_of
from callboard.runtime.web.http.context import Board
from callboard.runtime.web.stream import text as module
from callboard.runtime.web.stream.text import EmittedText
from callboard.web import Token

pytestmark = pytest.mark.anyio
PATH = "/api/jobs/j/tasks/t/stream"


class Reader:
    """A client of one stream, called as a server calls an application."""

    def __init__(self) -> None:
        self.data = b""
        self.ended = False
        self.status = 0
        self.held = anyio.Event()  # what is sent waits for this
        self.held.set()

    async def receive(self) -> Any:
        await anyio.sleep_forever()

    async def send(self, message: Any) -> None:
        await self.held.wait()
        self.status = message.get("status", self.status)
        self.data += message.get("body", b"")
        self.ended = self.ended or (message["type"] == "http.response.body" and not message["more_body"])

    @property
    def messages(self) -> list[tuple[str, str, Any]]:
        """The messages so far: event, id, data."""
        found: list[tuple[str, str, Any]] = []
        for block in self.data.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith((":", "retry")))
            if "data" in fields:
                found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
        return found

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(data["text"] for event, _, data in self.messages if event == "text")


class Steered:
    """A body that emits the texts of the test."""

    def __init__(self) -> None:
        self.task: TaskContext | None = None
        self.over = anyio.Event()

    async def body(self, task: TaskContext) -> None:
        self.task = task
        await self.over.wait()

    async def running(self) -> TaskContext:
        await until(lambda: self.task is not None)
        assert self.task is not None
        return self.task


@pytest.fixture
def steered() -> Steered:
    return Steered()


async def begun(runtime: Runtime, steered: Steered) -> TaskContext:
    await runtime.submit(Workstream("w", tasks=[Task("t", run=steered.body)]), id="j")
    return await steered.running()


async def opened(runtime: Runtime, board: Board, place: str | None = None) -> EmittedText:
    job = await runtime.job("j")
    token, at = module._place(place)  # pyright: ignore[reportPrivateUsage]
    return EmittedText(board.streams, module.core_of(job).emitted("t", token, at))


async def test_text_comes_as_it_is_emitted_with_its_place_and_the_end(runtime: Runtime, steered: Steered) -> None:
    task, board, reader = await begun(runtime, steered), Board(runtime), Reader()
    task.emit("kept")
    async with anyio.create_task_group() as group:
        group.start_soon(await opened(runtime, board), {}, reader.receive, reader.send)
        await until(lambda: reader.text == "kept")
        task.emit(" live\n\ndata: no\r")
        await until(lambda: reader.text == "kept live\n\ndata: no\r")
        steered.over.set()
    assert reader.status == 200
    assert reader.ended
    assert reader.messages[-1] == ("end", "", {"text": "the attempt is over"})
    assert [place for _, place, _ in reader.messages[:2]] == [f"{task.token}-4", f"{task.token}-20"]
    assert not board.streams.texts


async def test_a_reader_that_comes_back_goes_on_at_its_place_unless_the_attempt_is_another(
    runtime: Runtime, steered: Steered
) -> None:
    task, board = await begun(runtime, steered), Board(runtime)
    task.emit("0123456789")
    same, other, wrong = Reader(), Reader(), Reader()
    async with anyio.create_task_group() as group:
        for reader, place in ((same, f"{task.token}-4"), (other, f"{task.token + 1}-4"), (wrong, "no-place")):
            group.start_soon(await opened(runtime, board, place), {}, reader.receive, reader.send)
        await until(lambda: (same.text, other.text, wrong.text) == ("456789", "0123456789", "0123456789"))
        steered.over.set()


async def test_a_reader_that_is_slow_is_told_what_it_has_missed(runtime: Runtime, steered: Steered) -> None:
    task, board, reader = await begun(runtime, steered), Board(runtime), Reader()
    async with anyio.create_task_group() as group:
        group.start_soon(await opened(runtime, board), {}, reader.receive, reader.send)
        task.emit("first")
        await until(lambda: reader.text == "first")
        reader.held = anyio.Event()
        task.emit("x")
        await anyio.lowlevel.checkpoint()
        task.emit("y" * (KEPT + 7))
        reader.held.set()
        await until(lambda: len(reader.text) >= KEPT)
        steered.over.set()
    (told,) = [data for event, _, data in reader.messages if event == "gap"]
    assert told["text"] == f"{told['count']:,} characters are missing here"
    assert len(reader.text) + told["count"] == len("firstx") + KEPT + 7


async def test_the_server_ends_streams_when_it_stops_and_says_so(runtime: Runtime, steered: Steered) -> None:
    task, board, reader = await begun(runtime, steered), Board(runtime), Reader()
    async with anyio.create_task_group() as group:
        group.start_soon(await opened(runtime, board), {}, reader.receive, reader.send)
        task.emit("on")
        await until(lambda: reader.text == "on")
        board.streams.close()
    event, _, data = reader.messages[-1]
    assert (event, data["text"][:16]) == ("closing", "the server stops")
    steered.over.set()


async def test_a_stream_that_is_silent_gets_heartbeats(
    runtime: Runtime, steered: Steered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT", 0.01)
    await begun(runtime, steered)
    board, reader = Board(runtime), Reader()
    async with anyio.create_task_group() as group:
        group.start_soon(await opened(runtime, board), {}, reader.receive, reader.send)
        await until(lambda: reader.data.count(b": heartbeat\n\n") > 1)
        steered.over.set()


async def test_requests_for_streams_are_checked_as_others(runtime: Runtime, steered: Steered) -> None:
    await begun(runtime, steered)
    steered.over.set()
    await (await runtime.job("j")).wait()
    tokens = [Token("ana", "secret-token-of-ana", scopes={"read"})]
    async with client_of(runtime, tokens=tokens) as client:
        assert (await client.get(PATH)).status_code == 401
        client.headers["Authorization"] = "Bearer secret-token-of-ana"
        answer = await client.get(PATH)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.text.endswith('event: end\ndata: {"text":"the attempt is over"}\n\n')
        assert (await client.get("/api/jobs/j/tasks/none/stream")).status_code == 404
        assert (await client.get("/api/jobs/none/tasks/t/stream")).status_code == 404
        assert (await client.get("/api/jobs/none/published")).status_code == 404
        assert (await client.get(f"{PATH}?after=1")).status_code == 422


async def test_a_task_tells_its_progress_and_a_job_what_was_published(
    runtime: Runtime, steered: Steered, client: httpx.AsyncClient
) -> None:
    task = await begun(runtime, steered)
    assert (await client.get("/api/jobs/j/tasks/t")).json()["progress"] is None
    task.progress(3, 10, "reading")
    await task.publish("stage", {"of": 3})
    answer = (await client.get("/api/jobs/j/tasks/t")).json()["progress"]
    assert answer == {"done": 3, "of": 10, "text": "reading"}
    assert (await client.get("/api/jobs/j/graph")).json()["progress"] == {"t": answer}
    assert services_of(runtime).live.progress("j@1/t") == Progress(3, 10, "reading")
    found = (await client.get("/api/jobs/j/published")).json()
    assert found.keys() == {"stage"}
    assert (found["stage"]["value"], found["stage"]["task_id"], found["stage"]["attempt"]) == ({"of": 3}, "j@1/t", 1)
    steered.over.set()
    await (await runtime.job("j")).wait()
    assert (await client.get("/api/jobs/j/tasks/t")).json()["progress"] is None
    assert (await client.get("/api/jobs/j/graph")).json()["progress"] == {}
    assert (await client.get("/api/jobs/j/published")).json() == found
