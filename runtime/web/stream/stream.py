"""GET /api/events: events as Server-Sent Events. `frames.py` describes their format on the wire.

A client reads `event: transition` (its `id:` is the transition's number), `notice`, `gap` and `closing`, each with one
line `data:` of JSON. It keeps the last `id:` that it read, also one without data, and sends it as `Last-Event-ID` when
it reconnects.

Rules
-----
- Only durable transitions are sent, in the order of their numbers, each once. A client that reconnects gets the events
  it missed from the journal, and then new ones, without a gap or a repeat. If the journal does not hold some of them
  any more, the stream says so.
- `Last-Event-ID` takes precedence over `?after=`: a browser that reconnects sends both. With neither, the stream begins
  now.
- A reader gets as much as its socket takes: nothing is queued for it, and nothing waits for it.
- A stream ends when the client disconnects, when the runtime has closed, and when the board is told to end its streams.
- Only a few pages of the journal are read at a time, and pages are cached for others at the same place: a thousand
  clients that reconnect at once cost little more than one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from ....actors.spec.digits import whole
from ....machines.keywords import number_of
from ...commands.inflight import InFlight
from ...observation.filters import Filters, wanted_by
from ...observation.live import TextStream
from ...text.logs import write_error
from ..http import connection_limits as room
from ..http.problems import FoundWrong, Problem
from ..http.stopping import told_to_stop
from .feed import Feed, Reader, StreamConnection
from .feeds import Feeds
from .frames import Gap, beginning, closing, frame, gap, missing, position
from .packing import BEGINNING, packed, takes_gzip

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from ....actors.records.transition import Transitioned
    from ...journal.contract import Journal
    from ...services import RuntimeServices

HEARTBEAT = 15.0
"""Seconds without events after which a heartbeat is sent."""
COME_BACK = 10
"""Seconds after which a client may retry if there are too many streams."""
PAGE = 500
"""Transitions of a page of the journal."""
PAGES = 32
"""Pages that are cached for other readers."""
CONNECTION = "callboard.line"
"""The ASGI extension through which a server passes the connection of a request: a `StreamConnection`."""
PATIENCE = 2.0
"""Seconds to wait for a transition that is durable but not yet emitted."""
STOPS = "the server stops. Connect again to continue after the last event"
LAST = 2**63 - 1
"""The greatest possible number of a transition."""

_FILTERS = tuple(Filters.__annotations__)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"vary", b"accept-encoding"),
    (b"x-accel-buffering", b"no"),  # else a proxy would buffer events before it passes them on
]


class Page(msgspec.Struct):
    """Events for a reader from the journal, all up to number `upto`; packed: the same bytes, compressed."""

    data: bytes
    upto: int
    packed: bytes


class StoredEvents:
    """Past events from the journal, page by page, for the readers of feeds."""

    def __init__(self, services: RuntimeServices) -> None:
        self._services = services
        self._kept: OrderedDict[str, Page] = OrderedDict()
        self._reading = InFlight()
        self._few = anyio.CapacityLimiter(2)

    async def page(self, feed: Feed, after: int, upto: int) -> Page:
        """The feed's events numbered above `after`, up to `upto` at most."""
        key = f"{after} {upto} {feed.name}"
        over = await self._reading.enter(key)
        try:
            if (page := self._kept.get(key)) is None:
                async with self._few:
                    page = await self._services.read(_page, self._services.journal, feed, after, upto)
                self._kept[key] = page
                while len(self._kept) > PAGES:
                    self._kept.popitem(last=False)
            return page
        finally:
            over()

    async def holds(self, seq: int) -> bool:
        """Whether the transition of that number is durable."""
        rows = await self._services.read(
            lambda: list(self._services.journal.reader.transitions(after=seq - 1, limit=1))
        )
        return bool(rows) and rows[0].seq == seq


def _page(journal: Journal, feed: Feed, after: int, upto: int) -> Page:
    """Read a page. If the feed wants only one job, only that job's history is read. Blocks."""
    if feed.jobs is not None and len(feed.jobs) == 1 and journal.durable_medium:
        job = feed.jobs[0]
        rows = list(journal.reader.transitions(job_id=job, after=after, limit=PAGE))
        if not journal.reader.archived(job):  # the job is not archived, so its history was complete
            if len(rows) == PAGE:
                upto = min(upto, rows[-1].seq)
            return _packed(_told(feed, takewhile(lambda row: row.seq <= upto, rows)), upto)
    end = min(upto, (after // PAGE + 1) * PAGE)  # the same page bounds for all readers, wherever they begin
    rows = list(journal.reader.transitions(after=after, limit=PAGE))
    if not rows or rows[0].seq > end:  # missing numbers are skipped in one step
        end = min(upto, rows[0].seq - 1) if rows else upto
    rows = [row for row in rows if row.seq <= end]
    absent = list(_absent(rows, after, end))
    said = gap(missing(absent)) if absent else b""
    return _packed(said + _told(feed, rows), end)


def _packed(data: bytes, upto: int) -> Page:
    return Page(data, upto, packed(data))


def _absent(rows: Sequence[Transitioned], after: int, upto: int) -> Iterator[tuple[int, int]]:
    """Ranges of the numbers that are in no row. Numbers are given without gaps, so these transitions existed once."""
    for row in rows:
        if row.seq > after + 1:
            yield after + 1, row.seq - 1
        after = row.seq
    if upto > after:
        yield after + 1, upto


def _told(feed: Feed, rows: Any) -> bytes:
    wanted = feed.wanted
    return b"".join([frame(row) for row in rows if wanted(row)])


class Streams:
    """The streams of one board. heartbeat: seconds between heartbeats; most: streams at a time (by default as many as
    there is room for).
    """

    def __init__(self, services: RuntimeServices, *, heartbeat: float = HEARTBEAT, most: int | None = None) -> None:
        self.services = services
        self.feeds = Feeds(services, heartbeat)
        self.stored = StoredEvents(services)
        self.texts: set[TextStream] = set()
        """The open streams of emitted text (`text.py`)."""
        self.stopped: str | None = None  # why these were ended last
        self._most = room.streams() if most is None else most

    def open(self, query: Mapping[str, Sequence[str]], last_event_id: str | None = None) -> Stream:
        """Make the stream that a query describes; it begins when it is called. Raises Problem for an invalid query."""
        filters, notices, after, found = _asked(query, last_event_id)
        if found:
            raise Problem(422, "specification", "; ".join(one.text for one in found), findings=found)
        self.check_room()
        return Stream(self, filters, notices=notices, after=after)

    def check_room(self) -> None:
        """Raise Problem if no further stream can be opened."""
        if not self.services.is_open or self.feeds.closed is not None or told_to_stop():
            raise Problem(503, "closed", "the runtime has closed", headers={"Retry-After": str(COME_BACK)})
        if self.feeds.readers + len(self.texts) >= self._most:
            text = f"{self._most} streams are open already, which is the most. Close one, or try again later"
            raise Problem(429, "too-many-streams", text, headers={"Retry-After": str(COME_BACK)})

    def close(self, text: str = STOPS) -> None:
        """End all streams: send the events so far, then `closing`."""
        self.feeds.close(text)
        self._end_texts(text)

    def end(self, text: str = STOPS) -> None:
        """End the present streams, as `close` does. New streams may still be opened."""
        self.feeds.end(text)
        self._end_texts(text)

    def _end_texts(self, text: str) -> None:
        self.stopped = text
        texts, self.texts = self.texts, set()
        for one in texts:
            one.close()


def _asked(
    query: Mapping[str, Sequence[str]], last_event_id: str | None
) -> tuple[dict[str, Any], bool, int | None, list[FoundWrong]]:
    """Parse the filters, whether notices are wanted, the number to begin after, and the errors in the query."""
    found: list[FoundWrong] = []
    filters: dict[str, Any] = {}
    for name, values in sorted(query.items()):
        if name in _FILTERS:
            filters[name] = values[0] if len(values) == 1 else tuple(values)
            try:
                wanted_by({name: filters[name]})  # type: ignore[misc]
            except ValueError as error:
                found.append(FoundWrong(name, str(error)))
        elif name not in {"after", "notices"}:
            allowed = ", ".join((*_FILTERS, "notices", "after"))
            found.append(FoundWrong(name, f"there is no filter {name[:60]!r}; there are: {allowed}"))
    if not found:
        try:
            wanted_by(filters)  # type: ignore[arg-type]
        except ValueError as error:
            found.append(FoundWrong("to_state" if "to_state" in filters else "from_state", str(error)))
    said = query.get("notices", ["true"])[-1]
    if said not in {"true", "false"}:
        found.append(FoundWrong("notices", f"notices is true or false, not {said[:60]!r}"))
    where, number = "Last-Event-ID", last_event_id
    if not number and "after" in query:
        where, number = "after", query["after"][-1]
    after = whole(number)
    if number and (after is None or after > LAST):
        found.append(FoundWrong(where, f"{where} is the number of a transition, not {number[:60]!r}"))
    return filters, said == "true", after, found


class Stream:
    """One stream: an ASGI application that answers one request."""

    def __init__(self, streams: Streams, filters: dict[str, Any], *, notices: bool, after: int | None) -> None:
        self._streams = streams
        self._feeds = streams.feeds
        self._filters = filters
        self._notices = notices
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends."""
        gzip = takes_gzip(_header(scope, b"accept-encoding"))
        reader = self._feeds.enter(
            self._filters, notices=self._notices, after=self._after, gzip=gzip, connection=connection_of(scope)
        )  # fmt: skip
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(watch, receive, group.cancel_scope)
                with suppress(OSError), reader.scope:  # the client may have disconnected
                    await self._answer(reader, send)
                group.cancel_scope.cancel()
        finally:
            self._feeds.leave(reader)

    async def _answer(self, reader: Reader, send: Send) -> None:
        headers = [*HEADERS, (b"content-encoding", b"gzip")] if reader.gzip else HEADERS
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send_more(send, (BEGINNING if reader.gzip else b"") + reader.own(beginning(reader.seq)))
        try:
            await self._tell(reader, send)
            text = reader.over or ""
        except OSError:
            raise
        except Exception as error:  # any error: the client can reconnect and resume from the journal
            write_error("stream_ended", "a stream of events has ended early", error)
            text = reader.over or "the journal cannot be read now. Try again later"
        await send({"type": "http.response.body", "body": reader.own(closing(text)) + reader.end(), "more_body": False})

    async def _tell(self, reader: Reader, send: Send) -> None:
        """Send events, first from the journal, until the stream is closed."""
        while True:
            if reader.next is None:
                if reader.over is not None:
                    return
                await self._catch_up(reader, send)
            if data := reader.take():
                await send_more(send, data)
            elif reader.next is not None:
                if reader.over is not None:
                    return
                await reader.wait()

    async def _catch_up(self, reader: Reader, send: Send) -> None:
        """Send events from the journal, up to those that the feed's log still holds."""
        feeds, began = self._feeds, reader.seq
        if reader.seq > feeds.top:
            await self._wait_for(reader, send)
        while (upto := reader.join()) is not None:
            page = await self._streams.stored.page(reader.feed, reader.seq, upto)
            if reader.over is not None:
                return
            reader.seq = page.upto
            if page.data:
                await send_more(send, reader.own(page.data, page.packed))
            await checkpoint()
        if missed := reader.missed():
            text = f"{number_of(missed, 'notice was', 'notices were')} emitted meanwhile, and not stored"
            await send_more(send, reader.own(gap(Gap(text=text, notices=missed))))
        if reader.seq != began:
            await send_more(send, reader.own(position(reader.seq)))

    async def _wait_for(self, reader: Reader, send: Send) -> None:
        """Wait for a number that was not emitted yet: the client may have just read it in the journal."""
        feeds = self._feeds
        if not (await self._streams.stored.holds(reader.seq) and await feeds.reach(reader.seq, PATIENCE)):
            text = (
                f"there is no transition numbered {reader.seq} in this journal, the last one of which is {feeds.top}: "
                "it is another journal, or an older copy of it. New events are sent from now on"
            )
            await send_more(send, reader.own(gap(Gap(text=text))))
            reader.seq = feeds.top


async def send_more(send: Send, data: bytes) -> None:
    """Send a part of an answer."""
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def watch(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel at once when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def connection_of(scope: Any) -> StreamConnection | None:  # Any: the framework does not know this extension
    """The connection, if the server passes it (`runtime/web/http/serve.py`) and the response is sent in chunks."""
    if scope.get("http_version") != "1.1":
        return None
    extensions: dict[str, Any] = scope.get("extensions") or {}
    connection: StreamConnection | None = extensions.get(CONNECTION)
    return connection


def _header(scope: Any, name: bytes) -> str:
    return ",".join(value.decode("latin-1") for one, value in scope.get("headers", ()) if one == name)
