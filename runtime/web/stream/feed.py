"""One feed of events: what is told to all who want the same, and how far each of them is.

Rules
-----
- What was told is kept in a log, as chunks of bytes, until the last reader has had them, but never more than so many
  bytes: who is further behind is left behind, and reads on from the journal until it has caught up. So a reader costs a
  place in a log, and slows nobody.
- A place in the log is a number of the journal too. A reader joins where all up to its number was told before and
  nothing after it: so it gets nothing twice, and misses nothing.
- Readers at one place are sent the same bytes, which are joined and packed once.
- A reader whose connection can be written to at once is served right there (`Line`); only who has to wait for its
  connection, or is behind, needs its own task for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

import anyio
import msgspec

from ....actors.messages.notices import Notice
from ...observation.filters import Event, EventFilter, Filters, wanted_by
from .frames import frame, heartbeat
from .packing import Sum, packed

CHUNK = 128 * 1024
"""Bytes that are sent at a time, about."""
KEPT = 16
"""Pieces that are kept for readers at the same place."""


class Line(Protocol):
    """A connection whose answer has begun and is sent in chunks (HTTP/1.1): what asyncio calls a transport."""

    def write(self, data: bytes) -> object:
        """Send that, or keep it until it can be sent. Never blocks."""
        ...

    def get_write_buffer_size(self) -> int:
        """Bytes that are kept."""
        ...

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        ...


class Chunk(msgspec.Struct, gc=False):
    """A piece of a feed's log: of transitions what was told from the number `first` on, and of all up to `upto`.

    notices, sum: how many, and of what, the feed had told with its end.
    """

    data: bytes
    first: int
    upto: int
    notices: int
    sum: Sum
    packed: bytes | None = None

    def body(self, gzip: bool) -> bytes:
        """It as it is sent."""
        if not gzip:
            return self.data
        if self.packed is None:
            self.packed = packed(self.data)
        return self.packed


class Piece(msgspec.Struct, gc=False):
    """Chunks that follow one another, as they are sent. next: the number of the one after the last of them."""

    body: bytes
    next: int
    last: Chunk
    framed: bytes = b""

    def http(self) -> bytes:
        """It as a chunk of HTTP/1.1."""
        if not self.framed:
            self.framed = b"%x\r\n%b\r\n" % (len(self.body), self.body)
        return self.framed


class Reader:
    """One who reads a feed. seq: all up to that number it has had, or does not want. gzip: whether it is sent so."""

    def __init__(self, feed: Feed, seq: int, *, gzip: bool = False, line: Line | None = None) -> None:
        self.feed = feed
        self.seq = seq
        self.gzip = gzip
        self.line = line
        self.next: int | None = None  # the number of the chunk that it has next; None while it is behind the log
        self.notices = feed.notices  # of those, how many it has had or came after
        self.scope = anyio.CancelScope()
        self.over: str | None = None  # why it is told nothing more
        self._sum = Sum()  # of all that it was sent, but for what it had of the log since `_joined`
        self._joined = self._had = feed.sum
        self._waits: anyio.Event | None = None  # its task waits for something to be there

    # -- in its own task

    def own(self, data: bytes, ready: bytes | None = None) -> bytes:
        """What is for this one only, as it is sent; `ready` is it packed, where somebody has done that."""
        if not self.gzip:
            return data
        self._settle()
        self._sum.add(data)
        return packed(data) if ready is None else ready

    def end(self) -> bytes:
        """What its stream ends with."""
        self._settle()
        return self._sum.end() if self.gzip else b""

    def take(self) -> bytes:
        """What it has not had yet, as it is sent, or a part; nothing if it has had all, or was left behind."""
        piece = self._piece()
        if piece is None:
            return b""
        self._pass(piece)
        return piece.body

    def join(self) -> int | None:
        """Go on with what the log holds. Returns None if it does, else the number up to which it must read first.

        What came since it was left behind, or came, and is in no journal is missed: `missed`.
        """
        feed = self.feed
        self._settle()
        if self.seq < feed.base:
            return feed.base
        place = len(feed.chunks)
        while place and self.seq < (chunk := feed.chunks[place - 1]).upto:
            if self.seq >= chunk.first:
                return chunk.upto  # a part of it would come twice
            place -= 1
        self.next = feed.first + place
        feed.behind -= 1
        self._joined = self._had = feed.chunks[place - 1].sum if place else feed.base_sum
        return None

    def missed(self) -> int:
        """How many notices it has missed up to where it has joined. Asked once."""
        feed = self.feed
        place = cast("int", self.next) - feed.first
        before, self.notices = self.notices, feed.chunks[place - 1].notices if place else feed.base_notices
        return max(0, self.notices - before)

    async def wait(self) -> None:
        """Wait until there is something that `serve` could not send."""
        self._waits = anyio.Event()
        await self._waits.wait()

    def leave(self) -> None:
        """It reads no more: nothing is sent to it, also where that was about to be."""
        self.line = self._waits = None
        self.feed.leave(self)

    # -- in the feed's

    def serve(self) -> None:
        """Send it what there is, if that can be done at once, or have its task do so."""
        if self._waits is None:
            return  # its task is at it, and looks again before it waits
        if (line := self.line) is not None and not line.is_closing():
            while line.get_write_buffer_size() == 0 and (piece := self._piece()) is not None:
                line.write(piece.http())
                self._pass(piece)
                if piece.next == self.feed.end:
                    return
        if self.next != self.feed.end:
            self.wake()

    def wake(self) -> None:
        """Have its task look."""
        if self._waits is not None:
            self._waits.set()
            self._waits = None

    def _piece(self) -> Piece | None:
        feed, number = self.feed, self.next
        if number is None or number == feed.end:
            return None
        if number < feed.first:
            self.next = None
            feed.behind += 1
            return None
        return feed.piece(number, self.gzip)

    def _pass(self, piece: Piece) -> None:
        last = piece.last
        self.next = piece.next
        self.seq = max(self.seq, last.upto)
        self.notices = last.notices
        self._had = last.sum

    def _settle(self) -> None:
        if self._had is not self._joined:
            self._sum.add_part(self._joined, self._had)
            self._joined = self._had


class Feed:
    """What is told to all who want the same. name: those filters; jobs: the only ones whose events they let pass."""

    def __init__(self, name: str, filters: Filters, top: int, *, notices: bool) -> None:
        self.name = name
        self.wanted: EventFilter = wanted_by(filters, notices=notices)
        jobs = filters.get("job")
        self.jobs: tuple[str, ...] | None = None if jobs is None else (jobs,) if isinstance(jobs, str) else tuple(jobs)
        self.chunks: deque[Chunk] = deque()
        self.first = 0  # the number of the first of them
        self.base = top  # what was told up to that number is in none of them
        self.base_notices = 0
        self.base_sum = Sum()
        self.notices = 0
        self.sum = Sum()
        self.size = 0  # bytes in the chunks
        self.readers: set[Reader] = set()
        self.behind = 0  # how many of them read from the journal
        self._quiet = False  # nothing was told since the last heartbeat
        self._pieces: dict[tuple[int, bool], Piece] = {}

    @property
    def end(self) -> int:
        """The number of the chunk that comes next."""
        return self.first + len(self.chunks)

    def enter(self, reader: Reader) -> None:
        """Have one more reader, who is behind yet."""
        self.readers.add(reader)
        self.behind += 1

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
                self._add(b"".join(pieces), first or upto + 1, upto)
                pieces, size, first = [], 0, 0
            pieces.append(data)
            size += len(data)
            if isinstance(event, Notice):
                self.notices += 1
            else:
                first, upto = first or event.seq, event.seq
        self._add(b"".join(pieces), first or top + 1, top)

    def beat(self, top: int) -> bool:
        """Say that the stream lives, if nothing was told lately. Returns whether that was so."""
        quiet = self._quiet
        if quiet:
            self._add(heartbeat(top), top + 1, top)
        self._quiet = True
        return quiet

    def _add(self, data: bytes, first: int, upto: int) -> None:
        self.sum = self.sum.copy()
        self.sum.add(data)
        self.chunks.append(Chunk(data, first, upto, self.notices, self.sum))
        self.size += len(data)
        self._quiet = False
        self._pieces.clear()

    def trim(self, most: int) -> None:
        """Let go of what everybody has had, and of what is above `most` bytes."""
        had = self.first if self.behind else min((reader.next or 0 for reader in self.readers), default=0)
        while len(self.chunks) > 1 and (self.first < had or self.size > most):
            chunk = self.chunks.popleft()
            self.first += 1
            self.size -= len(chunk.data)
            self.base, self.base_notices, self.base_sum = chunk.upto, chunk.notices, chunk.sum

    def piece(self, number: int, gzip: bool) -> Piece:
        """The chunks from that number on, as many as are sent at a time."""
        piece = self._pieces.get((number, gzip))
        if piece is None:
            place = number - self.first
            bodies: list[bytes] = []
            size = 0
            while place < len(self.chunks) and (not bodies or size < CHUNK):
                bodies.append(self.chunks[place].body(gzip))
                size += len(bodies[-1])
                place += 1
            body = bodies[0] if len(bodies) == 1 else b"".join(bodies)
            piece = Piece(body, self.first + place, self.chunks[place - 1])
            if len(self._pieces) < KEPT:
                self._pieces[number, gzip] = piece
        return piece
