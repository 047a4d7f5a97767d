"""The stream of events: every reader, from any position and at any speed, gets each event of the journal once."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint
from tests.runtime.web.conftest import client_of

from callboard import Runtime, Task, Workstream
from callboard.actors.records.transition import Transitioned
from callboard.errors import RuntimeClosed
from callboard.runtime.journal.archive import folder_of, move
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.observation.filters import EventFilter, wanted_by
from callboard.runtime.web.http.problems import Problem
from callboard.runtime.web.http.serve import listening, serving, url_of
from callboard.runtime.web.stream import feed as feed_module
from callboard.runtime.web.stream import feeds, stream
from callboard.runtime.web.stream.feed import Reader
from callboard.runtime.web.stream.packing import BEGINNING, StreamChecksum, packed, takes_gzip
from callboard.runtime.web.stream.stream import CONNECTION, Streams
from callboard.testing import VirtualRuntime
from callboard.web import board

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The stream itself needs no framework, and runs on both."""
    return request.param


async def one() -> int:
    return 1


async def fails() -> None:
    raise ValueError("no")


class Connection:
    """The transport that a server writes to, for a client whose answer comes in the chunks of HTTP/1.1."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.written = 0

    def write(self, data: bytes) -> None:
        while data:
            head, _, data = data.partition(b"\r\n")
            size = int(head, 16)
            assert data[size : size + 2] == b"\r\n"
            self._client.take(data[:size])
            data = data[size + 2 :]
            self.written += 1

    def get_write_buffer_size(self) -> int:
        return 0 if self._client.is_free else 1

    def is_closing(self) -> bool:
        return False


class Client:
    """Reads one stream. Its socket takes nothing while it is stuck. line: it is written to directly."""

    def __init__(
        self,
        streams: Streams,
        query: Mapping[str, Any],
        last_event_id: int | None = None,
        *,
        zipped: bool = False,
        line: bool = False,
    ) -> None:
        several = {name: [value] if isinstance(value, str | int) else value for name, value in query.items()}
        said = {name: [str(value) for value in values] for name, values in several.items()}
        self._stream = streams.open(said, None if last_event_id is None else str(last_event_id))
        self.line = Connection(self)
        self._scope: dict[str, Any] = {"http_version": "1.1", "extensions": {CONNECTION: self.line} if line else {}}
        self._scope["headers"] = [(b"accept-encoding", b"br, gzip;q=0.5")] if zipped else []
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if zipped else None
        self._left = b""
        self._moved = anyio.Event()
        self._gone = anyio.Event()
        self._free = anyio.Event()
        self._free.set()
        self.last_id: int | None = None
        self.began: int | None = None
        self.events: list[tuple[str, int | None, Any]] = []
        self.comments = 0
        self.sent = 0
        self.over = False

    async def run(self) -> None:
        await cast("Any", self._stream)(self._scope, self._receive, self._send)
        self.over = True
        self._moved.set()

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self._free.wait()
        if self._gone.is_set():
            raise OSError("the client has gone")
        self.take(message.get("body", b""))
        if message["type"].endswith("body") and not message["more_body"]:
            assert self._unpack is None or self._unpack.eof, "the checksum, too, was right"

    def take(self, data: bytes) -> None:
        self.sent += len(data)
        data = data if self._unpack is None else self._unpack.decompress(data)
        *blocks, self._left = (self._left + data).split(b"\n\n")
        for block in blocks:
            self._read(block.decode())
        self._moved.set()
        self._moved = anyio.Event()

    def _read(self, block: str) -> None:
        name, number, data = None, None, None
        for line in block.split("\n"):
            field, _, value = line.partition(": ")
            if not field:
                self.comments += 1
            elif field == "event":
                name = value
            elif field == "id":
                number = self.last_id = int(value)
                self.began = number if self.began is None else self.began
            elif field == "data":
                data = json.loads(value)
        if data is not None:
            self.events.append((name or "", number, data))

    def leave(self) -> None:
        self._gone.set()
        self._free.set()

    def stick(self) -> None:
        self._free = anyio.Event()

    @property
    def is_free(self) -> bool:
        return self._free.is_set()

    def go_on(self) -> None:
        self._free.set()

    def named(self, name: str) -> list[Any]:
        return [data for what, _, data in self.events if what == name]

    @property
    def numbers(self) -> list[int]:
        return [data["seq"] for data in self.named("transition")]

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(300):
            while not condition():
                await self._moved.wait()

    async def caught_up(self, streams: Streams) -> None:
        await all_told(streams)
        await self.until(lambda: self.last_id is not None and self.last_id >= streams.feeds.top)


@asynccontextmanager
async def reading(
    streams: Streams,
    last_event_id: int | None = None,
    *,
    zipped: bool = False,
    line: bool = False,
    **query: str | int | Sequence[str],
) -> AsyncIterator[Client]:
    client = Client(streams, query, last_event_id, zipped=zipped, line=line)
    async with anyio.create_task_group() as group:
        group.start_soon(client.run)
        await client.until(lambda: client.last_id is not None)
        try:
            yield client
        finally:
            client.leave()


def readers(streams: Streams) -> list[Reader]:
    return [reader for feed in vars(streams.feeds)["_feeds"].values() for reader in feed.readers]


def history(runtime: Runtime) -> list[Transitioned]:
    return list(runtime.journal.reader.transitions())


async def all_told(streams: Streams) -> None:
    """Wait until the feeds have sent all events of the journal: they pause between two rounds."""
    assert await streams.services.settled(60)
    assert await streams.feeds.reach(history(cast("Any", streams.services))[-1].seq, 20)


async def work(runtime: Runtime, name: str = "w", count: int = 2) -> None:
    tasks = [Task(f"t{number}", run=one) for number in range(count)]
    await (await runtime.submit(Workstream(name, tasks=tasks), id=name)).wait()
    assert await runtime._services.settled(60)  # what its workers did is in the journal, too


FILTERS: list[dict[str, Any]] = [
    {},
    {"job": "a"},
    {"job": ["a", "b"]},
    {"job": "nobody"},
    {"kind": "task"},
    {"kind": ["worker", "job"]},
    {"task": "t1"},
    {"severity": "error"},
    {"to_state": ["completed", "failed"], "kind": "task"},
    {"job": "a", "to_state": "running"},
    {"workstream": "b"},
    {"entity": "a"},
]


@pytest.mark.parametrize("file", [True, False])
async def test_from_every_number_and_by_every_filter_it_is_the_filtered_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: bool
) -> None:
    monkeypatch.setattr(stream, "PAGE", 7)
    monkeypatch.setattr(feed_module, "CHUNK", 2000)
    async with Runtime(tmp_path / "state.db" if file else None) as runtime:
        streams = Streams(runtime._services)
        await work(runtime, "a", 1)
        async with reading(streams, after=0) as stuck:  # keeps what comes in the log of the feed
            stuck.stick()
            await work(runtime, "b", 2)
            await all_told(streams)
            rows = history(runtime)
            for number, filters in enumerate(FILTERS):
                zipped = number % 2 == 0
                wanted = wanted_by(cast("Any", filters))
                for after in range(0, rows[-1].seq + 1, 1 if not filters else 3):
                    async with reading(streams, after=after, zipped=zipped, **filters) as client:
                        await client.caught_up(streams)
                    assert client.numbers == [row.seq for row in rows if row.seq > after and wanted(row)], filters
                    assert len(client.events) == len(client.numbers)
        assert streams.feeds.readers == 0


async def test_what_is_read_from_the_journal_and_what_comes_live_are_the_same_bytes(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "state.db") as runtime:
        streams = Streams(runtime._services)
        async with reading(streams) as live:
            await work(runtime)
            await live.until(lambda: live.last_id == history(runtime)[-1].seq)
        assert live.last_id is not None
        async with reading(streams, after=live.numbers[0] - 1) as past:
            await past.caught_up(streams)
    assert past.events == live.events
    assert [name for name, _, _ in live.events] == ["transition"] * len(live.events)


async def test_who_reads_before_during_and_after_a_job_misses_nothing_at_the_seam(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "PAGE", 5)
    async with Runtime() as runtime, anyio.create_task_group() as group:
        streams = Streams(runtime._services)
        clients = [Client(streams, {"after": 0}) for _ in range(20)]
        group.start_soon(work, runtime, "w", 100)
        for client in clients:
            group.start_soon(client.run)
            for _ in range(7):
                await checkpoint()
        last = clients[-1]
        await last.until(
            lambda: any(one["kind"] == "job" and one["to_state"] == "completed" for _, _, one in last.events)
        )
        for client in clients:
            await client.caught_up(streams)
            assert client.numbers == [row.seq for row in history(runtime)]
            client.leave()


@pytest.mark.parametrize("how", [{}, {"zipped": True, "line": True}], ids=["plain", "packed"])
async def test_a_slow_reader_is_refilled_from_the_journal_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    monkeypatch.setattr(feed_module, "CHUNK", 2_000)
    monkeypatch.setattr(feeds, "LOG", 20_000)
    monkeypatch.setattr(feeds, "LEAST_LOG", 5_000)
    async with Runtime() as runtime:
        streams = Streams(runtime._services)
        async with reading(streams, after=0, **how) as slow, reading(streams, after=0) as quick:
            slow.stick()
            await work(runtime, "w", 200)
            await quick.caught_up(streams)
            (feed,) = {reader.feed for reader in readers(streams)}
            assert feed.size <= 20_000 + 2_000  # whatever there is, no more than this is kept
            assert len(slow.numbers) < len(history(runtime)) / 2
            slow.go_on()
            await slow.caught_up(streams)
            numbers = [row.seq for row in history(runtime)]
            await quick.caught_up(streams)
            assert slow.numbers == quick.numbers == numbers
            await work(runtime, "more", 10)
            await slow.until(lambda: slow.numbers == [row.seq for row in history(runtime)])
            streams.close()
            await slow.until(lambda: slow.over)
        assert not slow.named("gap")


async def test_notices_have_no_ids_and_those_that_a_slow_reader_missed_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "CHUNK", 500)
    monkeypatch.setattr(feeds, "LOG", 1_000)
    monkeypatch.setattr(feeds, "LEAST_LOG", 1_000)
    async with Runtime() as runtime:
        runtime.on_trouble = lambda notice: None
        streams = Streams(runtime._services)
        host = cast("Any", runtime)._services.host
        async with reading(streams) as client, reading(streams, notices="false") as other:
            host.notice("inbox_unreadable", "info", "first", raised=ValueError("why"), path=Path("x"))
            await client.until(lambda: client.events)
            name, number, data = client.events[0]
            assert (name, number, data["text"], data["error"]) == ("notice", None, "first", "ValueError: why")
            client.stick()
            for number in range(10):
                host.notice("inbox_unreadable", "info", f"n{number}" + "x" * 400)
                streams.feeds.flush()
            client.go_on()
            await client.until(lambda: client.named("gap"))
            host.notice("inbox_unreadable", "info", "last")
            await client.until(lambda: client.named("notice")[-1]["text"] == "last")
            (gap,) = client.named("gap")
            assert gap["notices"] == 12 - len(client.named("notice"))
            assert "and not stored" in gap["text"]
        assert not other.events


async def test_an_unreadable_error_of_a_notice_stops_no_stream() -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    async with Runtime() as runtime:
        streams = Streams(runtime._services)
        async with reading(streams) as client:
            cast("Any", runtime)._services.host.notice(
                "alert_broken", "info", "told all the same \ud800", raised=UnreadableError()
            )
            await client.until(lambda: client.events)
    assert client.named("notice")[0]["text"].startswith("told all the same")


async def test_after_a_restart_a_client_comes_back_with_its_last_id_and_misses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    async with Runtime(file) as runtime:
        streams = Streams(runtime._services)
        async with reading(streams, after=0) as before:
            await work(runtime, "a")
            await before.caught_up(streams)
            before.stick()
            await work(runtime, "b")
    numbers = before.numbers
    async with Runtime(file) as runtime:
        await work(runtime, "c")
        streams = Streams(runtime._services)
        async with reading(streams, before.last_id, after=0) as again:  # a browser sends the first number too
            await again.caught_up(streams)
            await work(runtime, "d")
            await again.until(lambda: again.last_id == history(runtime)[-1].seq)
            assert [*numbers, *again.numbers] == [row.seq for row in history(runtime)]
    assert not again.named("gap")


async def test_it_ends_with_a_last_event_when_the_runtime_is_left() -> None:
    async with anyio.create_task_group() as group:
        async with Runtime() as runtime:
            streams = Streams(runtime._services)
            client = Client(streams, {"after": 0})
            group.start_soon(client.run)
            await work(runtime)
            await client.until(lambda: client.last_id)
        await client.until(lambda: client.over)
    assert [name for name, _, _ in client.events[-2:]] == ["transition", "closing"]
    assert client.numbers == [row.seq for row in history(runtime)]
    assert "Connect again" in client.named("closing")[0]["text"]
    with pytest.raises(Problem, match="closed"):
        streams.open({})
    assert streams.feeds.readers == 0


async def test_it_ends_with_the_same_last_event_when_the_runtime_breaks() -> None:
    def broken() -> None:
        raise RuntimeError("broken")

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            with pytest.raises(RuntimeClosed, match="broken"):
                async with Runtime() as runtime:
                    client = Client(Streams(runtime._services), {"after": 0})
                    group.start_soon(client.run)
                    await work(runtime)
                    await client.until(lambda: client.last_id)
                    runtime._services.dispatcher.timers.arm(0.0, broken)
                    await anyio.sleep_forever()
            await client.until(lambda: client.over)
    assert [name for name, _, _ in client.events[-2:]] == ["transition", "closing"]


async def test_it_ends_when_the_board_is_told_to_end_it() -> None:
    async with Runtime() as runtime:
        streams = Streams(runtime._services)
        async with reading(streams) as client:
            await work(runtime)
            streams.close("it stops")
            await client.until(lambda: client.over)
            assert client.named("closing") == [{"text": "it stops"}]
            assert client.numbers == [row.seq for row in history(runtime) if row.seq >= client.numbers[0]]


async def test_at_the_end_who_takes_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LINGER", 0.0)
    async with Runtime() as runtime:
        streams = Streams(runtime._services)
        async with reading(streams) as stuck:
            stuck.stick()
            await work(runtime)
            streams.close("it stops")
            await stuck.until(lambda: stuck.over)
    assert not stuck.named("closing")


async def test_a_client_that_goes_frees_everything_at_once() -> None:
    async with Runtime() as runtime:
        streams = Streams(runtime._services)
        async with reading(streams, job="w") as stuck, reading(streams, after=0):
            stuck.stick()
            await work(runtime)
            assert runtime._services.hub.wanted
        assert streams.feeds.readers == 0
        assert vars(streams.feeds)["_feeds"] == {}
        assert vars(streams.feeds)["_by_job"] == {}
        assert vars(streams.feeds)["_others"] == []
        assert vars(runtime._services.hub)["_listeners"] == []


async def test_many_readers_of_the_same_share_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    frame = feed_module.frame

    def counted(event: Any) -> bytes:
        encoded.append(event.seq)
        return frame(event)

    monkeypatch.setattr(feed_module, "frame", counted)
    async with Runtime() as runtime, anyio.create_task_group() as group:
        streams = Streams(runtime._services)
        queries: list[dict[str, Any]] = [{}, {"job": "w"}, {"kind": "task"}]
        clients = [Client(streams, queries[n % 3], zipped=n % 2 == 0, line=n % 5 > 1) for n in range(60)]
        for client in clients:
            group.start_soon(client.run)
        for client in clients:
            await client.until(lambda client=client: client.last_id is not None)
        await work(runtime, "w", 20)
        for client, query in zip(clients, queries * 20, strict=True):
            wanted = wanted_by(cast("Any", query))

            def complete(client: Client = client, wanted: EventFilter = wanted) -> bool:
                rows = [row.seq for row in history(runtime) if row.seq > (client.began or 0) and wanted(row)]
                return client.numbers == rows

            await client.until(complete)
        for client in clients:
            client.leave()
        assert len(encoded) == len(set(encoded))


async def test_clients_that_come_back_together_read_the_journal_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PAGE", 50)
    asked: list[int] = []

    class Counting(MemoryJournal):
        def transitions(self, **which: Any) -> Any:
            asked.append(which["after"])
            return super().transitions(**which)

    async with Runtime(Counting()) as runtime, anyio.create_task_group() as group:
        await work(runtime, "w", 20)
        streams = Streams(runtime._services)
        clients = [Client(streams, {"after": 0}) for _ in range(30)]
        for client in clients:
            group.start_soon(client.run)
        for client in clients:
            await client.until(lambda client=client: len(client.numbers) >= 140)
            client.leave()
        assert len(asked) == len(set(asked))


async def test_what_was_archived_is_said_in_words_and_numbers(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    async with Runtime(file) as runtime:
        await work(runtime, "a", 3)
        await work(runtime, "b", 1)
        await runtime._services.settled(5)
        whole = history(runtime)
        reader = SqliteReader(file)
        job = reader.job("a")
        assert job is not None
        assert list(move(file, reader, [job], folder_of(file), 1.0))
        reader.close()
        left = [row.seq for row in history(runtime)]
        gone = sorted({row.seq for row in whole} - set(left))
        streams = Streams(runtime._services)
        for query in ({}, {"job": "a"}):
            async with reading(streams, after=0, **query) as client:
                await client.caught_up(streams)
            assert client.numbers == ([] if query else left)
            (gap,) = client.named("gap")
            told = [number for first, last in gap["numbers"] for number in range(first, last + 1)]
            assert told == gone
            assert gap["count"] == len(gone)
            assert f"{len(gone)} transitions are not in this journal any more" in gap["text"]
        async with reading(streams, after=0, job="b") as client:
            await client.caught_up(streams)
        assert not client.named("gap")
        assert client.numbers == [row.seq for row in whole if row.job_id == "b"]


async def test_what_a_journal_in_memory_has_forgotten_is_said() -> None:
    async with Runtime(MemoryJournal(history=10)) as runtime:
        await work(runtime, "w", 5)
        streams = Streams(runtime._services)
        async with reading(streams, after=3) as client:
            await client.caught_up(streams)
        first = history(runtime)[0].seq
    (gap,) = client.named("gap")
    assert gap["numbers"] == [[4, first - 1]]
    assert client.numbers == [*range(first, first + 10)]


async def test_a_number_of_another_journal_is_said_and_one_that_is_about_to_be_told_is_waited_for() -> None:
    async with Runtime() as runtime:
        await work(runtime, "a")
        streams = Streams(runtime._services)
        top = history(runtime)[-1].seq
        async with reading(streams, top + 500) as client:
            await client.until(lambda: client.last_id == top)
            await work(runtime, "b")
            await client.until(lambda: len(client.numbers) > 10)
            assert client.numbers[0] == top + 1
        assert f"no transition numbered {top + 500}" in client.named("gap")[0]["text"]
        row = history(runtime)[-1]
        late = Transitioned(row.seq + 1, "worker", "w", 1, None, "idle", "create", "info", 1.0)
        cast("Any", runtime.journal)._history.append(late)  # durable, and not reported yet
        async with reading(streams, after=late.seq) as client:
            runtime._services.hub.told = late.seq
            runtime._services.hub.publish([late])
            with anyio.fail_after(300):
                while readers(streams)[0].next is None:
                    await checkpoint()
            assert streams.feeds.top == late.seq
        assert client.events == []


async def test_a_quiet_stream_says_that_it_lives_and_up_to_where_it_told(no_logs: object) -> None:
    async with VirtualRuntime() as runtime:
        streams = Streams(runtime._services, heartbeat=15.0)
        async with reading(streams, job="nobody") as client:
            await runtime.advance(14)
            assert client.comments == 0
            await work(runtime)
            await runtime.advance(1)
            await runtime.advance(15)
            await client.until(lambda: client.comments)
            assert client.last_id == runtime._services.hub.told
            await runtime.advance(30)
            assert client.comments == 3
        await runtime.advance(60)
        assert runtime._services.hub.wanted is False


async def test_rounds_are_rarer_with_many_readers_and_at_once_after_a_quiet_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "PAUSE", 2.0)
    monkeypatch.setattr(feeds, "LONGEST_PAUSE", 3.0)
    async with VirtualRuntime() as runtime:
        streams = Streams(runtime._services)
        notice = cast("Any", runtime)._services.host.notice
        async with reading(streams) as client, reading(streams):
            notice("alert", "info", "at once")
            await runtime.settle()
            assert len(client.events) == 1
            notice("alert", "info", "later")
            await runtime.advance(2.9)
            assert len(client.events) == 1
            await runtime.advance(0.1)
            assert len(client.events) == 2
            await runtime.advance(3)
            notice("alert", "info", "at once")
            await runtime.settle()
            assert len(client.events) == 3


async def test_a_journal_that_cannot_be_read_ends_the_stream_and_says_so() -> None:
    class Broken(MemoryJournal):
        def transitions(self, **which: Any) -> Any:
            raise ValueError("a secret path")

    async with Runtime(Broken()) as runtime:
        await work(runtime)
        streams = Streams(runtime._services)
        async with reading(streams, after=0) as client:
            await client.until(lambda: client.over)
    assert client.named("closing") == [{"text": "the journal cannot be read now. Try again later"}]


@pytest.mark.parametrize("query", ["", "?job=w&job=x&severity=error&after=0&notices=false"])
async def test_over_http_it_is_an_event_stream(anyio_backend_name: str, query: str) -> None:
    if anyio_backend_name != "asyncio":
        return
    answers: list[httpx.Response] = []
    runtime = Runtime()

    async def ask(client: httpx.AsyncClient) -> None:
        answers.append(await client.get(f"/api/events{query}", headers={"Last-Event-ID": ""}))

    async with client_of(runtime) as client, anyio.create_task_group() as group, runtime:
        group.start_soon(ask, client)
        while not runtime._services.hub.wanted:
            await checkpoint()
    (answer,) = answers
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.startswith("retry: 2000\nid: ")
    assert answer.text.split("\n\n")[-2].startswith('event: closing\ndata: {"text":"the runtime has closed.')


@pytest.mark.parametrize(
    ("query", "last", "said"),
    [
        (
            "colour=red&kind=house",
            None,
            ["there is no filter 'colour'; there are: job", "'house' is no kind; there are: job"],
        ),
        ("severity=bad", None, ["'bad' is no severity; there are: info, warning"]),
        ("after=99999999999999999999", None, ["after must be a whole number from 0 on, not '9999"]),
        ("", "abc", ["Last-Event-ID is the number of a transition, not 'abc'"]),
    ],
)
async def test_what_it_cannot_be_asked_for_is_refused_with_what_there_is(
    anyio_backend_name: str, query: str, last: str | None, said: list[str]
) -> None:
    if anyio_backend_name != "asyncio":
        return
    async with Runtime() as runtime, client_of(runtime) as client:
        headers = {} if last is None else {"Last-Event-ID": last}
        answer = await client.get(f"/api/events?{query}", headers=headers)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    texts = [one["text"] for one in answer.json()["findings"]]
    assert len(texts) == len(said)
    assert all(text.startswith(one) for text, one in zip(texts, said, strict=True)), texts


async def test_a_server_that_stops_ends_its_streams_at_once_and_says_so(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        return
    listener = listening("127.0.0.1", 0)
    async with Runtime() as runtime:
        app = board(runtime)
        async with (
            httpx.AsyncClient(base_url=url_of(listener), timeout=600) as client,
            AsyncExitStack() as server,
        ):
            await server.enter_async_context(serving(app, listener))
            told = b""
            async with client.stream("GET", "/api/events?after=0") as answer:
                assert answer.headers["content-encoding"] == "gzip"
                async for data in answer.aiter_bytes():
                    if b"event: transition" not in told and b"event: transition" in told + data:
                        await work(runtime)
                    told += data
                    if b'"kind":"job"' in told and b'"to_state":"completed"' in told:
                        await server.aclose()
    rows = history(runtime)
    assert all(told.count(b"event: transition\nid: %d\n" % row.seq) == 1 for row in rows if row.job_id)
    assert told.endswith(
        b'event: closing\ndata: {"text":"the server stops. Connect again to continue after the last event"}\n\n'
    )


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [("", False), ("gzip, deflate, br", True), ("GZIP;q=0.3", True), ("br, gzip; q=0", False), ("identity", False)],
)
def test_it_is_packed_for_whoever_takes_that(accepted: str, takes: bool) -> None:
    assert takes_gzip(accepted) is takes


def test_the_checksum_of_parts_that_were_told_elsewhere_is_that_of_the_whole() -> None:
    log, own = StreamChecksum(), StreamChecksum()
    log.add(b"before")
    joined = log.copy()
    told = [b"x" * size for size in (0, 1, 255, 70_000)]
    for part in told:
        log.add(part)
    own.add(b"first")
    own.add_part(joined, log)
    whole = b"first" + b"".join(told)
    assert (own.crc, own.length) == (zlib.crc32(whole), len(whole))
    packed_whole = BEGINNING + packed(b"first") + b"".join(packed(part) for part in told) + own.end()
    assert gzip.decompress(packed_whole) == whole


async def test_there_is_a_limit_to_their_number() -> None:
    async with Runtime() as runtime:
        streams = Streams(runtime._services, most=2)
        async with reading(streams), reading(streams):
            with pytest.raises(Problem) as refused:
                streams.open({})
        assert refused.value.status == 429
        assert refused.value.headers["Retry-After"]
        async with reading(streams):
            pass
