"""The readers of the stream of events, and when events are sent to them: encoded once for all.

Rules
-----
- With many readers, new events wait for a pause before they are sent: `PAUSE` for each reader. Events after a quiet
  time are sent at once. Readers are served some at a time, so that the event loop can run other tasks in between.
- With no reader there is no feed, and nothing here is called.
- Time is the runtime's: a test advances it by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import anyio

from ....actors.messages.notices import Notice
from ...observation.filters import Event, Filters, everything
from .feed import Feed, Reader, StreamConnection

if TYPE_CHECKING:
    from ...services import RuntimeServices

LOG = 4 * 1024 * 1024
LEAST_LOG = 64 * 1024
LOGS = 64 * 1024 * 1024
"""Bytes that a feed keeps for readers that are behind: at most, at least, and the limit for all feeds together."""
PAUSE = 0.002
LONGEST_PAUSE = 2.0
"""Seconds between two rounds of sending: for each reader, and at most. A reader costs about 20 us a round."""
AT_ONCE = 5_000
"""Number of waiting events that are sent without waiting for the end of the pause."""
SERVED = 50
"""Readers served before the event loop runs other tasks."""
LINGER = 5.0
"""Seconds that a reader has to take the rest once its stream is closed."""


class Feeds:
    """All feeds of a runtime: they pass the hub's events to the readers. heartbeat: seconds."""

    def __init__(self, services: RuntimeServices, heartbeat: float) -> None:
        self._services = services
        self._heartbeat = heartbeat
        self._feeds: dict[str, Feed] = {}
        self._by_job: dict[str, list[Feed]] = {}  # feeds that want the events of some jobs only
        self._others: list[Feed] = []
        self._fresh: list[Event] = []  # received from the hub, not yet passed to the feeds
        self._pausing = False  # the timer of the next round is set
        self._beating = False
        self._to_serve: deque[Reader] = deque()  # readers with new data
        self._serving = False
        self._moved: anyio.Event | None = None  # set when `top` moves, if a task waits for that
        self.readers = 0
        self.top = 0  # all transitions up to this number were emitted
        self.closed: str | None = None  # why nothing more is emitted

    def enter(
        self,
        filters: Mapping[str, object],
        *,
        notices: bool,
        after: int | None,
        gzip: bool = False,
        connection: StreamConnection | None = None,
    ) -> Reader:
        """Add a reader of the events that match these filters, after the number `after` (None: from now on)."""
        if not self._feeds:
            self._services.hub.listen(self)
            self.top = self._services.hub.told
        self.flush()
        name = repr((sorted(filters.items()), notices))
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = Feed(name, cast("Filters", filters), self.top, notices=notices)
            for kept in self._places(feed):
                kept.append(feed)
        self.readers += 1
        if not self._beating:
            self._beating = True
            self._services.after(self._heartbeat, self._beat)
        reader = Reader(feed, self.top if after is None else after, gzip=gzip, connection=connection)
        reader.over = self.closed
        feed.enter(reader)
        return reader

    def leave(self, reader: Reader) -> None:
        """Remove a reader. Its feed is dropped with its last reader."""
        self.readers -= 1
        feed = reader.feed
        reader.leave()
        if feed.readers:
            return
        del self._feeds[feed.name]
        for kept in self._places(feed):
            kept.remove(feed)
        for job in feed.jobs or ():
            if not self._by_job[job]:
                del self._by_job[job]
        if not self._feeds:
            self._services.hub.unlisten(self)
            self._fresh.clear()

    def _places(self, feed: Feed) -> list[list[Feed]]:
        if feed.jobs is None:
            return [self._others]
        return [self._by_job.setdefault(job, []) for job in feed.jobs]

    # -- sending ---------------------------------------------------------------------------------------------------

    def heard(self, events: Sequence[Event]) -> None:
        """Receive events from the hub, in order."""
        fresh = self._fresh
        fresh += events
        if not self._pausing:
            self._pausing = True
            self._services.after(0.0, self._round)
        elif len(fresh) >= AT_ONCE:
            self.flush()

    async def reach(self, seq: int, limit: float) -> bool:
        """Wait until all up to that number is emitted; False if that takes longer than `limit` seconds."""
        with anyio.move_on_after(limit):
            while self.top < seq and self.closed is None:
                self._moved = self._moved or anyio.Event()
                await self._moved.wait()
        return self.top >= seq

    def _round(self) -> None:
        """Send the waiting events, then pause for many times as long as serving the readers costs."""
        self._pausing = bool(self._fresh) and self.closed is None
        if self._pausing:
            self.flush()
            self._services.after(min(LONGEST_PAUSE, PAUSE * self.readers), self._round)

    def flush(self) -> None:
        """Pass the waiting events to the feeds."""
        events, self._fresh = self._fresh, []
        if not events:
            return
        self.top = next((event.seq for event in reversed(events) if not isinstance(event, Notice)), self.top)
        if self._moved is not None:
            self._moved.set()
            self._moved = None
        encoded: list[bytes | None] = [None] * len(events)
        most = max(LEAST_LOG, min(LOG, LOGS // len(self._feeds)))
        for feed, which in self._wanted(events):
            feed.tell(events, encoded, which, self.top)
            feed.trim(most)
            self._to_serve.extend(feed.readers)
        self._serve_soon()

    def _serve_soon(self) -> None:
        if self._to_serve and not self._serving:
            self._serving = True
            self._services.after(0.0, self._serve)

    def _serve(self) -> None:
        """Serve some readers."""
        self._serving = False
        for _ in range(min(SERVED, len(self._to_serve))):
            self._to_serve.popleft().serve()
        self._serve_soon()

    def _wanted(self, events: list[Event]) -> list[tuple[Feed, Sequence[int]]]:
        """The indices of the events that each feed wants, for feeds that want any."""
        found: list[tuple[Feed, Sequence[int]]] = []
        for feed in self._others:
            wanted = feed.wanted
            if wanted is everything:
                found.append((feed, range(len(events))))
            elif which := [index for index, event in enumerate(events) if wanted(event)]:
                found.append((feed, which))
        if self._by_job:
            touched: dict[str, tuple[Feed, list[int]]] = {}
            for index, event in enumerate(events):
                for feed in self._by_job.get(event.job_id or "", ()):
                    if feed.wanted(event):
                        touched.setdefault(feed.name, (feed, []))[1].append(index)
            found += touched.values()
        return found

    def _beat(self) -> None:
        self._beating = bool(self._feeds) and self.closed is None
        if self._beating:
            self.flush()
            for feed in self._feeds.values():
                if feed.beat(self.top):
                    self._to_serve.extend(feed.readers)
            self._serve_soon()
            self._services.after(self._heartbeat, self._beat)

    # -- closing -------------------------------------------------------------------------------------------------------

    def hub_closed(self) -> None:
        """End all streams: the runtime has closed."""
        self.close("the runtime has closed. Connect again: the stream continues after the next start")

    def close(self, text: str) -> None:
        """End every stream after the events so far. After `LINGER` seconds, the rest is not sent."""
        if self.closed is None:
            self.end(text)
            self.closed = text

    def end(self, text: str) -> None:
        """End the present streams in the same way. New streams may be opened."""
        self.flush()
        for feed in self._feeds.values():
            for reader in feed.readers:
                if reader.over is None:
                    reader.over = text
                    reader.scope.deadline = min(reader.scope.deadline, anyio.current_time() + LINGER)
                    reader.wake()
