"""GET /api/events: what happens, as Server-Sent Events. How they look on the wire stands in `frames.py`.

A client reads `event: transition` (its `id:` is the transition's number), `notice`, `gap` and `closing`, each with one
line `data:` of JSON. It keeps the last `id:` that it read, also one without data, and comes back with that as
`Last-Event-ID`.

Rules
-----
- Only what is durable is told, in the order of its numbers, each once. Who comes back is told what it missed out of the
  journal, and goes on with what is new, without a gap or a repeat. What the journal does not hold any more is said.
- `Last-Event-ID` counts for more than `?after=`: a browser that comes back sends both. With neither it is from now on.
- A reader has what its socket takes: nothing is queued for it, and nobody waits for it.
- A stream ends when the client goes, when the runtime has closed, and when the board is told to end its streams.
- Pages of the journal are read by few at a time, and kept for a while for others at the same place: a thousand clients
  that come back at once cost little more than one.
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
from ...commands.inflight import InFlight
from ...observation.filters import Filters, wanted_by
from ...text.logs import write_error
from ..http import connection_limits as room
from ..http.problems import FoundWrong, Problem
from ..http.stopping import told_to_stop
from .feed import Feed, Line, Reader
from .feeds import Feeds
from .frames import Gap, beginning, closing, frame, gap, missing, position
from .packing import BEGINNING, packed, takes_gzip

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from ....actors.records.transition import Transitioned
    from ...journal.contract import Journal
    from ...services import RuntimeServices

HEARTBEAT = 15.0
"""Seconds after which a stream that tells nothing says that it lives."""
COME_BACK = 10
"""Seconds after which it may be tried again where there are too many."""
PAGE = 500
"""Transitions of a page of the journal."""
PAGES = 32
"""Pages that are kept for others."""
LINE = "callboard.line"
"""The ASGI extension by which a server gives the connection of a request: a `Line`."""
PATIENCE = 2.0
"""Seconds to wait for what is about to be told."""
STOPS = "the server stops. Come back to go on where you were"
LAST = 2**63 - 1
"""The greatest number that a transition could have."""

_FILTERS = tuple(Filters.__annotations__)
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"vary", b"accept-encoding"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects before it passes on
]


class Page(msgspec.Struct):
    """What a reader is told out of the journal, all up to the number `upto`; packed: the same, in a gzip stream."""

    data: bytes
    upto: int
    packed: bytes


class Past:
    """The journal, as the readers of feeds are told it, page by page."""

    def __init__(self, services: RuntimeServices) -> None:
        self._services = services
        self._kept: OrderedDict[str, Page] = OrderedDict()
        self._reading = InFlight()
        self._few = anyio.CapacityLimiter(2)

    async def page(self, feed: Feed, after: int, upto: int) -> Page:
        """What that feed tells of the numbers above `after`, up to `upto` at most."""
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
        """Whether a transition of that number is durable."""
        rows = await self._services.read(
            lambda: list(self._services.journal.reader.transitions(after=seq - 1, limit=1))
        )
        return bool(rows) and rows[0].seq == seq


def _page(journal: Journal, feed: Feed, after: int, upto: int) -> Page:
    """Read one. Where only one job is wanted, its part of the journal is read. Blocks."""
    if feed.jobs is not None and len(feed.jobs) == 1 and journal.durable_medium:
        job = feed.jobs[0]
        rows = list(journal.reader.transitions(job_id=job, after=after, limit=PAGE))
        if not journal.reader.archived(job):  # whatever was there has been read
            if len(rows) == PAGE:
                upto = min(upto, rows[-1].seq)
            return _packed(_told(feed, takewhile(lambda row: row.seq <= upto, rows)), upto)
    end = min(upto, (after // PAGE + 1) * PAGE)  # the same pages for all, wherever they begin
    rows = list(journal.reader.transitions(after=after, limit=PAGE))
    if not rows or rows[0].seq > end:  # what is not there is passed over in one step
        end = min(upto, rows[0].seq - 1) if rows else upto
    rows = [row for row in rows if row.seq <= end]
    absent = list(_absent(rows, after, end))
    said = gap(missing(absent)) if absent else b""
    return _packed(said + _told(feed, rows), end)


def _packed(data: bytes, upto: int) -> Page:
    return Page(data, upto, packed(data))


def _absent(rows: Sequence[Transitioned], after: int, upto: int) -> Iterator[tuple[int, int]]:
    """The numbers that are in no row, as ranges: numbers have no gaps, so those were there once."""
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
    """The streams of one board. heartbeat: seconds between signs of life; most: streams at a time (as many as
    there is room for)."""

    def __init__(self, services: RuntimeServices, *, heartbeat: float = HEARTBEAT, most: int | None = None) -> None:
        self.services = services
        self.feeds = Feeds(services, heartbeat)
        self.past = Past(services)
        self._most = room.streams() if most is None else most

    def open(self, query: Mapping[str, Sequence[str]], last_event_id: str | None = None) -> Stream:
        """The stream that a query asks for, which begins when it is called. Raises Problem for what cannot be."""
        filters, notices, after, found = _asked(query, last_event_id)
        if found:
            raise Problem(422, "specification", "; ".join(one.text for one in found), findings=found)
        if not self.services.is_open or self.feeds.closed is not None or told_to_stop():
            raise Problem(503, "closed", "the runtime has closed", headers={"Retry-After": str(COME_BACK)})
        if self.feeds.readers >= self._most:
            text = f"{self._most} streams are open already, and there may not be more. End one, or come back later"
            raise Problem(429, "too-many-streams", text, headers={"Retry-After": str(COME_BACK)})
        return Stream(self, filters, notices=notices, after=after)

    def close(self, text: str = STOPS) -> None:
        """End all streams: what was told so far is sent, then `closing`."""
        self.feeds.close(text)

    def end(self, text: str = STOPS) -> None:
        """End the streams that there are, as `close` does; others may still be opened."""
        self.feeds.end(text)


def _asked(
    query: Mapping[str, Sequence[str]], last_event_id: str | None
) -> tuple[dict[str, Any], bool, int | None, list[FoundWrong]]:
    """Filters, whether notices are wanted, the number to begin after, and what is wrong with them."""
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
            known = ", ".join((*_FILTERS, "notices", "after"))
            found.append(FoundWrong(name, f"there is no filter {name[:60]!r}; there are: {known}"))
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
        """Tell until somebody ends it."""
        gzip = takes_gzip(_header(scope, b"accept-encoding"))
        reader = self._feeds.enter(
            self._filters, notices=self._notices, after=self._after, gzip=gzip, line=line_of(scope)
        )  # fmt: skip
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_watch, receive, group.cancel_scope)
                with suppress(OSError), reader.scope:  # the client has gone
                    await self._answer(reader, send)
                group.cancel_scope.cancel()
        finally:
            self._feeds.leave(reader)

    async def _answer(self, reader: Reader, send: Send) -> None:
        headers = [*_HEADERS, (b"content-encoding", b"gzip")] if reader.gzip else _HEADERS
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send(send, (BEGINNING if reader.gzip else b"") + reader.own(beginning(reader.seq)))
        try:
            await self._tell(reader, send)
            text = reader.over or ""
        except OSError:
            raise
        except Exception as error:  # whatever it was, the client is told to come back: its place is in the journal
            write_error("stream_ended", "a stream of events has ended early", error)
            text = reader.over or "the journal cannot be read now. Come back later"
        await send({"type": "http.response.body", "body": reader.own(closing(text)) + reader.end(), "more_body": False})

    async def _tell(self, reader: Reader, send: Send) -> None:
        """Tell what there is, from the journal first, until all is closed."""
        while True:
            if reader.next is None:
                if reader.over is not None:
                    return
                await self._catch_up(reader, send)
            if data := reader.take():
                await _send(send, data)
            elif reader.next is not None:
                if reader.over is not None:
                    return
                await reader.wait()

    async def _catch_up(self, reader: Reader, send: Send) -> None:
        """Tell what the journal holds, up to what the feed still has."""
        feeds, began = self._feeds, reader.seq
        if reader.seq > feeds.top:
            await self._wait_for(reader, send)
        while (upto := reader.join()) is not None:
            page = await self._streams.past.page(reader.feed, reader.seq, upto)
            if reader.over is not None:
                return
            reader.seq = page.upto
            if page.data:
                await _send(send, reader.own(page.data, page.packed))
            await checkpoint()
        if missed := reader.missed():
            text = f"{missed} notices came meanwhile, which are kept nowhere"
            await _send(send, reader.own(gap(Gap(text=text, notices=missed))))
        if reader.seq != began:
            await _send(send, reader.own(position(reader.seq)))

    async def _wait_for(self, reader: Reader, send: Send) -> None:
        """Come to a number that was not told yet, as of what a client has read of the journal just now."""
        feeds = self._feeds
        if not (await self._streams.past.holds(reader.seq) and await feeds.reach(reader.seq, PATIENCE)):
            text = (
                f"there is no transition numbered {reader.seq} in this journal, the last one of which is {feeds.top}: "
                "it is another journal, or an older copy of it. What comes from now on is told"
            )
            await _send(send, reader.own(gap(Gap(text=text))))
            reader.seq = feeds.top


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
    """Notice at once that the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def line_of(scope: Any) -> Line | None:  # Any: the extension is none that the framework knows
    """The connection, where the server gives it (`runtime/web/http/serve.py`), and its answer is sent in chunks."""
    if scope.get("http_version") != "1.1":
        return None
    extensions: dict[str, Any] = scope.get("extensions") or {}
    line: Line | None = extensions.get(LINE)
    return line


def _header(scope: Any, name: bytes) -> str:
    return ",".join(value.decode("latin-1") for one, value in scope.get("headers", ()) if one == name)
