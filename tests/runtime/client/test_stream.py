"""The event stream: it is read at once, opened again after a cut, and closed if it has no reader."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from callboard import Dropped, Notice, Transitioned
from callboard.client import Client, ServerUnreachable
from callboard.runtime.client import link, stream
from callboard.runtime.client.stream import Message, messages

pytestmark = pytest.mark.anyio


def told(seq: int, entity: str = "j", to: str = "running", kind: str = "job") -> bytes:
    row = {
        "seq": seq, "kind": kind, "entity_id": entity, "entity_seq": seq, "from_state": "pending", "to_state": to,
        "event": "start", "severity": "info", "at": 1.0, "job_id": "j",
    }  # fmt: skip
    return f"event: transition\nid: {seq}\ndata: {json.dumps(row)}\n\n".encode()


BEGIN = b"retry: 2000\nid: 3\n\n"
NOTICE = b'event: notice\ndata: {"event":"hook_failed","severity":"error","text":"","at":1,"kind":"job","error":""}\n\n'


class Chunks(httpx.AsyncByteStream):
    """A stream of these chunks, which then ends (an error is raised; ... never ends)."""

    def __init__(self, *chunks: Any) -> None:
        self.chunks = chunks
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            if chunk is ...:
                await anyio.sleep_forever()
            if isinstance(chunk, Exception):
                raise chunk
            await anyio.lowlevel.checkpoint()
            yield chunk

    async def aclose(self) -> None:
        self.closed = True


class Streams(httpx.MockTransport):
    """A server that answers with these streams, one after another."""

    def __init__(self, *streams: Chunks | Exception) -> None:
        self.asked: list[httpx.Request] = []
        self.left: Iterator[Chunks | Exception] = iter(streams)
        super().__init__(self.answer)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/health":
            return httpx.Response(200, json={"status": "ok"})
        self.asked.append(request)
        stream = next(self.left)
        if isinstance(stream, Exception):
            raise stream
        return httpx.Response(200, stream=stream, headers={"Content-Type": "text/event-stream"})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(_: float) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(link, "_sleep", sleep)


async def read(chunks: list[bytes]) -> list[Message]:
    async def all_of() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [message async for message in messages(all_of())]


async def test_messages_are_read_however_they_are_cut() -> None:
    whole = BEGIN + b": heartbeat\n\n" + "event: x\r\ndata: a\r\ndata:b\u2028c\nid: 7\r\n\r\n".encode()
    expected = [Message(id="3"), Message(), Message("x", "a\nb\u2028c", "7")]
    assert await read([whole]) == expected
    assert await read([whole[index : index + 1] for index in range(len(whole))]) == expected


async def test_what_was_cut_off_goes_on_after_the_last_that_came() -> None:
    server = Streams(
        Chunks(BEGIN, told(4), NOTICE, told(5)[:30], httpx.ReadError("cut off")), httpx.ConnectError("restarting"),
        Chunks(b"id: 4\n\n", told(4), told(5), b"id: 8\n\n"), Chunks(told(9), ...),
    )  # fmt: skip
    async with Client("http://board", transport=server) as runtime:
        events = runtime.events(kind="job", severity=["info", "error"])
        seen = [await anext(events) for _ in range(3)]
        last = await anext(events)
    assert isinstance(seen[1], Notice)
    assert [event.seq for event in (seen[0], seen[2], last) if isinstance(event, Transitioned)] == [4, 5, 9]
    assert str(server.asked[0].url.query, "ascii") == "kind=job&severity=error&severity=info"
    assert [request.headers.get("Last-Event-ID") for request in server.asked] == [None, "4", "4", "8"]


async def test_what_a_filter_cannot_say_there_is_left_out_here() -> None:
    transition = told(4).replace(b'"info"', b'"warning"')
    server = Streams(Chunks(BEGIN, transition, told(5), NOTICE, told(6).replace(b'"info"', b'"error"'), ...))
    async with Client("http://board", transport=server) as runtime:
        events = runtime.events(severity=["error"], notices=False)
        assert isinstance(event := await anext(events), Transitioned)
    assert event.seq == 6


async def test_what_the_server_dropped_is_told() -> None:
    server = Streams(Chunks(BEGIN, b'event: gap\ndata: {"text":"archived","count":7,"notices":1}\n\n', ...))
    async with Client("http://board", transport=server) as runtime:
        assert await anext(runtime.events()) == Dropped(8)


async def test_emitted_text_goes_on_after_a_cut_and_ends_where_another_attempt_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "FIRST_PAUSE", 0.0)
    server = Streams(
        Chunks(b"retry: 2000\n\n", emit("7-5", "the q"), httpx.ReadError("cut off")),
        Chunks(emit("7-9", "uick"), httpx.ReadError("killed")),
        Chunks(emit("9-4", "the "), b"event: end\ndata: {}\n\n"),
    )
    opened = link.Link("http://board", token=None, timeout=30, patience=None, transport=server)
    async with opened.client:
        assert [part async for part in stream.emitted(opened, "jobs/j/tasks/t/stream")] == ["the q", "uick"]
    assert [request.headers.get("Last-Event-ID") for request in server.asked] == [None, "7-5", "7-9"]


def emit(place: str, text: str) -> bytes:
    return f"event: text\nid: {place}\ndata: {json.dumps({'text': text})}\n\n".encode()


async def test_a_slow_reader_has_no_more_read_than_it_has_room_for() -> None:
    stream = Chunks(BEGIN, *(told(seq) for seq in range(4, 10)), ...)
    async with Client("http://board", transport=Streams(stream)) as runtime:
        events = runtime.events(size=2)
        await anyio.wait_all_tasks_blocked()
        assert len(events._events) == 2
        seen = [await anext(events) for _ in range(6)]
    assert [event.seq for event in seen if isinstance(event, Transitioned)] == list(range(4, 10))


async def test_a_command_waits_for_the_streams_that_were_asked_for_before_it() -> None:
    server = Streams(Chunks(BEGIN, ...), httpx.ReadError("no matter"))
    async with Client("http://board", transport=server, patience=0) as runtime:
        events = runtime.events()
        with pytest.raises(ServerUnreachable):
            await runtime._core.act("jobs/j/cancel", {}, None)
        assert [request.url.path for request in server.asked] == ["/api/events", "/api/jobs/j/cancel"]
        events.close()
    assert [event async for event in events] == []


async def test_an_outage_beyond_patience_is_told_after_what_came() -> None:
    server = Streams(Chunks(BEGIN, told(4)), httpx.ConnectError("gone"))
    async with Client("http://board", transport=server, patience=0) as runtime:
        events = runtime.events()
        assert isinstance(await anext(events), Transitioned)
        with pytest.raises(ServerUnreachable, match="gone"):
            await anext(events)
        assert [event async for event in events] == []


async def test_a_stream_that_nobody_holds_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FORGOTTEN", 0.01)
    served = Chunks(BEGIN, *[told(seq) for seq in range(4, 1000)])
    async with Client("http://board", transport=Streams(served)) as runtime:
        events = runtime.events(size=1)
        await runtime._core.opened()
        del events
        gc.collect()
        with anyio.fail_after(300):
            while not served.closed:
                await anyio.lowlevel.checkpoint()


async def test_leaving_ends_all_streams() -> None:
    stream = Chunks(BEGIN, ...)
    async with Client("http://board", transport=Streams(stream)) as runtime:
        events = runtime.events()
        await runtime._core.opened()
    assert [event async for event in events] == []
    assert stream.closed
