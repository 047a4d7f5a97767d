"""Who reads the stream of events, and what is told to them: encoded once for all who want the same.

Rules
-----
- A feed is one set of filters, with all its readers. It keeps what it told in a log, as chunks of bytes, until its last
  reader has had them, but never more than so many bytes: who is further behind is left behind, and reads on from the
  journal until it has caught up. So a reader costs a place in a log, and slows nobody.
- A place in the log is a number of the journal too. A reader joins where all up to its number was told before and
  nothing after it: so it gets nothing twice, and misses nothing.
- What is told waits for a moment where there are many readers: `PAUSE` for each. What comes after a quiet time is told
  at once.
- With no reader there is no feed, and nothing here is called.
- Time is the runtime's: a test moves it by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import anyio
import msgspec

from ...actors.notices import Notice
from ..filters import Event, Filters, Wanted, everything, wanted_by
from .frames import frame, heartbeat

if TYPE_CHECKING:
    from ..runtime import Runtime

CHUNK = 128 * 1024
"""Bytes that are sent at a time, about."""
LOG = 4 * 1024 * 1024
LEAST_LOG = 64 * 1024
LOGS = 64 * 1024 * 1024
"""Bytes that a feed keeps for those behind, at most and at least, and all feeds together."""
PAUSE = 0.0005
LONGEST_PAUSE = 0.5
"""Seconds between two rounds of telling: for each reader, and at most."""
AT_ONCE = 5_000
"""Events that are told without waiting for the end of the pause."""
LINGER = 5.0
"""Seconds that a reader has to take what is left once all is closed."""


class Chunk(msgspec.Struct, gc=False):
    """A piece of a feed's log: of transitions what was told from the number `first` on, and of all up to `upto`.

    notices: how many the feed had told with its end.
    """

    data: bytes
    first: int
    upto: int
    notices: int


class Reader:
    """One who reads a feed. seq: all up to that number it has had, or does not want."""

    def __init__(self, feed: Feed, seq: int) -> None:
        self.feed = feed
        self.seq = seq
        self.next: int | None = None  # the number of the chunk that it has next; None while it is behind the log
        self.notices = feed.notices  # of those, how many it has had or came after
        self.scope = anyio.CancelScope()

    def take(self) -> bytes:
        """What it has not had yet, about `CHUNK` bytes; nothing if that is all, or if it was left behind."""
        feed, number = self.feed, self.next
        if number is None:
            return b""
        if number < feed.first:
            self.next = None
            feed.behind += 1
            return b""
        chunks, place = feed.chunks, number - feed.first
        taken: list[bytes] = []
        size = 0
        while place < len(chunks) and (not taken or size + len(chunks[place].data) <= CHUNK):
            chunk = chunks[place]
            taken.append(chunk.data)
            size += len(chunk.data)
            place += 1
            self.seq, self.notices = max(self.seq, chunk.upto), chunk.notices
        self.next = feed.first + place
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def join(self) -> int | None:
        """Go on with what the log holds. Returns None if it does, else the number up to which it must read first.

        What came since it was left behind, or came, and is in no journal is missed: `missed`.
        """
        feed = self.feed
        if self.seq < feed.base:
            return feed.base
        place = len(feed.chunks)
        while place and self.seq < (chunk := feed.chunks[place - 1]).upto:
            if self.seq >= chunk.first:
                return chunk.upto  # a part of it would come twice
            place -= 1
        self.next = feed.first + place
        feed.behind -= 1
        return None

    def missed(self) -> int:
        """How many notices it has missed up to where it has joined. Asked once."""
        feed = self.feed
        place = cast("int", self.next) - feed.first
        before, self.notices = self.notices, feed.chunks[place - 1].notices if place else feed.base_notices
        return max(0, self.notices - before)


class Feed:
    """What is told to all who want the same. name: those filters; job: the only one whose events they let pass."""

    def __init__(self, name: str, filters: Filters, top: int, *, notices: bool) -> None:
        self.name = name
        self.wanted: Wanted = wanted_by(filters, notices=notices)
        jobs = filters.get("job")
        self.jobs: tuple[str, ...] | None = None if jobs is None else (jobs,) if isinstance(jobs, str) else tuple(jobs)
        self.chunks: deque[Chunk] = deque()
        self.first = 0  # the number of the first of them
        self.base = top  # what was told up to that number is in none of them
        self.base_notices = 0
        self.notices = 0
        self.size = 0  # bytes in the chunks
        self.readers: set[Reader] = set()
        self.behind = 0  # how many of them read from the journal
        self.arrived = anyio.Event()
        self.quiet = False  # nothing was told since the last heartbeat

    def enter(self, seq: int) -> Reader:
        """Have one more reader, who is behind yet."""
        reader = Reader(self, seq)
        self.readers.add(reader)
        self.behind += 1
        return reader

    def leave(self, reader: Reader) -> None:
        """Forget a reader."""
        self.readers.discard(reader)
        self.behind -= reader.next is None

    def tell(self, events: Sequence[Event], encoded: list[bytes | None], which: Sequence[int], top: int) -> None:
        """Tell these of the events; `encoded` keeps each for other feeds. All up to `top` is told with that."""
        pieces: list[bytes] = []
        size, first, upto = 0, 0, self.chunks[-1].upto if self.chunks else self.base
        for index in which:
            event = events[index]
            data = encoded[index]
            if data is None:
                data = encoded[index] = frame(event)
            if pieces and size + len(data) > CHUNK:
                self._add(Chunk(b"".join(pieces), first or upto + 1, upto, self.notices))
                pieces, size, first = [], 0, 0
            pieces.append(data)
            size += len(data)
            if isinstance(event, Notice):
                self.notices += 1
            else:
                first, upto = first or event.seq, event.seq
        self._add(Chunk(b"".join(pieces), first or top + 1, top, self.notices))

    def beat(self, top: int) -> None:
        """Let readers know that the stream lives, if they were told nothing lately."""
        if self.quiet:
            self._add(Chunk(heartbeat(top), top + 1, top, self.notices))
            self.wake()
        self.quiet = True

    def _add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk.data)
        self.quiet = False

    def trim(self, most: int) -> None:
        """Let go of what everybody has had, and of what is above `most` bytes."""
        had = self.first if self.behind else min((reader.next or 0 for reader in self.readers), default=0)
        while len(self.chunks) > 1 and (self.first < had or self.size > most):
            chunk = self.chunks.popleft()
            self.first += 1
            self.size -= len(chunk.data)
            self.base, self.base_notices = chunk.upto, chunk.notices

    def wake(self) -> None:
        """Have the readers look."""
        arrived, self.arrived = self.arrived, anyio.Event()
        arrived.set()


class Feeds:
    """All feeds of a runtime: what the hub tells, for whoever reads. heartbeat: seconds."""

    def __init__(self, runtime: Runtime, heartbeat: float) -> None:
        self._runtime = runtime
        self._heartbeat = heartbeat
        self._feeds: dict[str, Feed] = {}
        self._by_job: dict[str, list[Feed]] = {}  # those that want the events of some jobs only
        self._others: list[Feed] = []
        self._fresh: list[Event] = []  # told by the hub, and not to readers yet
        self._pausing = False  # the next round of telling is armed
        self._beating = False
        self._moved: anyio.Event | None = None  # somebody waits for `top` to move
        self.readers = 0
        self.top = 0  # the number up to which all is told
        self.closed: str | None = None  # why nothing more is told

    def enter(self, filters: Mapping[str, object], *, notices: bool, after: int | None) -> Reader:
        """Have one more reader of what these filters let pass, from the number `after` on (None: from now on)."""
        if not self._feeds:
            self._runtime.hub.listen(self)
            self.top = self._runtime.hub.told
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
            self._runtime.after(self._heartbeat, self._beat)
        return feed.enter(self.top if after is None else after)

    def leave(self, reader: Reader) -> None:
        """Forget a reader; and all that was kept for it, if it was the last one."""
        self.readers -= 1
        feed = reader.feed
        feed.leave(reader)
        if feed.readers:
            return
        del self._feeds[feed.name]
        for kept in self._places(feed):
            kept.remove(feed)
        for job in feed.jobs or ():
            if not self._by_job[job]:
                del self._by_job[job]
        if not self._feeds:
            self._runtime.hub.unlisten(self)
            self._fresh.clear()

    def _places(self, feed: Feed) -> list[list[Feed]]:
        if feed.jobs is None:
            return [self._others]
        return [self._by_job.setdefault(job, []) for job in feed.jobs]

    # -- telling -------------------------------------------------------------------------------------------------------

    def heard(self, events: Sequence[Event]) -> None:
        """What the hub tells, in order."""
        fresh = self._fresh
        fresh += events
        if not self._pausing:
            self._pausing = True
            self._runtime.after(0.0, self._round)
        elif len(fresh) >= AT_ONCE:
            self.flush()

    async def reach(self, seq: int, limit: float) -> bool:
        """Wait until all up to that number is told; False if that takes longer than `limit` seconds."""
        with anyio.move_on_after(limit):
            while self.top < seq and self.closed is None:
                self._moved = self._moved or anyio.Event()
                await self._moved.wait()
        return self.top >= seq

    def _round(self) -> None:
        """Tell what has come, and let as much time pass as that costs the readers many times over."""
        self._pausing = bool(self._fresh) and self.closed is None
        if self._pausing:
            self.flush()
            self._runtime.after(min(LONGEST_PAUSE, PAUSE * self.readers), self._round)

    def flush(self) -> None:
        """Tell what has come."""
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
            feed.wake()

    def _wanted(self, events: list[Event]) -> list[tuple[Feed, Sequence[int]]]:
        """Which of the events each feed wants, of those that want any."""
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
                feed.beat(self.top)
            self._runtime.after(self._heartbeat, self._beat)

    # -- closing -------------------------------------------------------------------------------------------------------

    def hub_closed(self) -> None:
        """The runtime has closed."""
        self.close("the runtime has closed. What it does from its next start on is told then: come back")

    def close(self, text: str) -> None:
        """End every stream, with what was told so far; what is not taken within `LINGER` is not told any more."""
        if self.closed is None:
            self.flush()
            self.closed = text
            for feed in self._feeds.values():
                for reader in feed.readers:
                    reader.scope.deadline = min(reader.scope.deadline, anyio.current_time() + LINGER)
                feed.wake()
