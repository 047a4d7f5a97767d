"""One feed of events: a shared log for all readers with the same filters, and each reader's position.

Rules
-----
- The feed keeps a log of the events it emitted, as chunks of bytes, until the last reader has had them, but never more
  than a limit of bytes. A reader that falls behind the log reads from the journal until it has caught up. So a reader
  costs a place in a log, and slows no other reader.
- A place in the log corresponds to a transition's number in the journal. A reader joins where all events up to its
  number were emitted before and none after it: so it gets no event twice, and misses none.
- Readers at one place are sent the same bytes, which are joined and compressed once.
- The feed writes directly to a reader's connection (`StreamConnection`) if that accepts data at once. A reader needs
  its own task only while it waits for its connection, or is behind.
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
from .packing import StreamChecksum, packed

CHUNK = 128 * 1024
"""Approximate bytes sent at a time."""
KEPT = 16
"""Cached pieces for readers at the same place."""


class StreamConnection(Protocol):
    """A connection whose response has begun and is sent in chunks (HTTP/1.1): a transport in asyncio's terms."""

    def write(self, data: bytes) -> object:
        """Send the data, or buffer it until it can be sent. Never blocks."""
        ...

    def get_write_buffer_size(self) -> int:
        """Bytes in the buffer."""
        ...

    def is_closing(self) -> bool:
        """Whether the connection can send nothing any more."""
        ...


class Chunk(msgspec.Struct, gc=False):
    """A piece of a feed's log: its transitions begin at number `first`, and it completes all numbers up to `upto`.

    notices, sum: the feed's count of notices, and its checksum, at the end of this chunk.
    """

    data: bytes
    first: int
    upto: int
    notices: int
    sum: StreamChecksum
    packed: bytes | None = None

    def body(self, gzip: bool) -> bytes:
        """The chunk's bytes as they are sent."""
        if not gzip:
            return self.data
        if self.packed is None:
            self.packed = packed(self.data)
        return self.packed


class Piece(msgspec.Struct, gc=False):
    """Consecutive chunks, as they are sent. next: the number of the chunk after the last of them."""

    body: bytes
    next: int
    last: Chunk
    framed: bytes = b""

    def http(self) -> bytes:
        """The piece as a chunk of HTTP/1.1."""
        if not self.framed:
            self.framed = b"%x\r\n%b\r\n" % (len(self.body), self.body)
        return self.framed


class Reader:
    """One reader of a feed. seq: it needs no transition up to that number. gzip: whether its stream is compressed."""

    def __init__(self, feed: Feed, seq: int, *, gzip: bool = False, connection: StreamConnection | None = None) -> None:
        self.feed = feed
        self.seq = seq
        self.gzip = gzip
        self.connection = connection
        self.next: int | None = None  # the number of its next chunk; None while it is behind the log
        self.notices = feed.notices  # the feed's count of notices at the reader's place
        self.scope = anyio.CancelScope()
        self.over: str | None = None  # why its stream ends
        self._sum = StreamChecksum()  # of all bytes sent to it, except those of the log since `_joined`
        self._joined = self._had = feed.sum
        self._waits: anyio.Event | None = None  # the reader's task waits for something to send

    # -- called in its own task

    def own(self, data: bytes, ready: bytes | None = None) -> bytes:
        """Encode data for this reader only, as it is sent. ready: the same data, already compressed."""
        if not self.gzip:
            return data
        self._settle()
        self._sum.add(data)
        return packed(data) if ready is None else ready

    def end(self) -> bytes:
        """The bytes that end its stream."""
        self._settle()
        return self._sum.end() if self.gzip else b""

    def take(self) -> bytes:
        """Return the next bytes to send, or a part of them; nothing if it has had all, or is behind the log."""
        piece = self._piece()
        if piece is None:
            return b""
        self._pass(piece)
        return piece.body

    def join(self) -> int | None:
        """Continue from the log. Returns None on success, else the number up to which it must read the journal first.

        Notices that passed while it was behind are in no journal and are lost to it: `missed` counts them.
        """
        feed = self.feed
        self._settle()
        if self.seq < feed.base:
            return feed.base
        place = len(feed.chunks)
        while place and self.seq < (chunk := feed.chunks[place - 1]).upto:
            if self.seq >= chunk.first:
                return chunk.upto  # a part of this chunk would be sent twice
            place -= 1
        self.next = feed.first + place
        feed.behind -= 1
        self._joined = self._had = feed.chunks[place - 1].sum if place else feed.base_sum
        return None

    def missed(self) -> int:
        """Count the notices that a reader has missed before it joined. Call it once after joining."""
        feed = self.feed
        place = cast("int", self.next) - feed.first
        before, self.notices = self.notices, feed.chunks[place - 1].notices if place else feed.base_notices
        return max(0, self.notices - before)

    async def wait(self) -> None:
        """Wait until there is something to send that `serve` could not send."""
        self._waits = anyio.Event()
        await self._waits.wait()

    def leave(self) -> None:
        """Stop reading: nothing more is sent to the reader, even if a send was about to happen."""
        self.connection = self._waits = None
        self.feed.leave(self)

    # -- called in the feed's task

    def serve(self) -> None:
        """Send the reader new data at once if its connection allows that, else wake its task."""
        if self._waits is None:
            return  # the reader's task is running, and checks for new data before it waits
        if (connection := self.connection) is not None and not connection.is_closing():
            while connection.get_write_buffer_size() == 0 and (piece := self._piece()) is not None:
                connection.write(piece.http())
                self._pass(piece)
                if piece.next == self.feed.end:
                    return
        if self.next != self.feed.end:
            self.wake()

    def wake(self) -> None:
        """Wake its task to check for new data."""
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
    """The events for all readers with the same filters. name: those filters; jobs: the only jobs the filters admit."""

    def __init__(self, name: str, filters: Filters, top: int, *, notices: bool) -> None:
        self.name = name
        self.wanted: EventFilter = wanted_by(filters, notices=notices)
        jobs = filters.get("job")
        self.jobs: tuple[str, ...] | None = None if jobs is None else (jobs,) if isinstance(jobs, str) else tuple(jobs)
        self.chunks: deque[Chunk] = deque()
        self.first = 0  # the number of the first chunk
        self.base = top  # events up to this transition's number are in no chunk
        self.base_notices = 0
        self.base_sum = StreamChecksum()
        self.notices = 0
        self.sum = StreamChecksum()
        self.size = 0  # bytes in the chunks
        self.readers: set[Reader] = set()
        self.behind = 0  # how many readers read from the journal
        self._quiet = False  # no event was emitted since the last heartbeat
        self._pieces: dict[tuple[int, bool], Piece] = {}

    @property
    def end(self) -> int:
        """The number of the next chunk."""
        return self.first + len(self.chunks)

    def enter(self, reader: Reader) -> None:
        """Add a reader, which is behind the log at first."""
        self.readers.add(reader)
        self.behind += 1

    def leave(self, reader: Reader) -> None:
        """Remove a reader."""
        self.readers.discard(reader)
        self.behind -= reader.next is None

    def tell(self, events: Sequence[Event], encoded: list[bytes | None], which: Sequence[int], top: int) -> None:
        """Add the events at the indices `which`; `encoded` caches each for other feeds. This completes `top`."""
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
        """Emit a heartbeat if nothing was emitted since the last one. Returns whether it did."""
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
        """Drop chunks that every reader has had, and the oldest chunks beyond `most` bytes."""
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
