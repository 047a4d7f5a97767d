"""The event stream of a server, which survives restarts of the server and lost connections.

Rules
-----
- If the stream is cut off, the client opens it again after the last received transition (`Last-Event-ID`). The server
  reads the following transitions from its journal, so none is missed; the client drops duplicates. The server does not
  keep notices for streams, so notices of the time between are lost.
- A stream is requested at once, and later commands of the same client wait until it is open. So a reader that
  subscribed before a command gets all events of that command.
- At most `size` events wait here for a slow reader. Then the client reads no more. The server later continues from its
  journal, or sends the number of events that it dropped (`Dropped`).
- A stream that no code references any more ends by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

import anyio
import httpx
import msgspec

from ...actors.records.transition import Transitioned
from ...actors.spec.digits import whole
from ..observation.events import Dropped
from ..observation.filters import Event, EventFilter
from .link import FIRST_PAUSE
from .views import notice_of, transition_of

if TYPE_CHECKING:
    from .link import Link

SILENCE = 60.0
"""Seconds without data after which a stream counts as cut off: several times the interval of heartbeats."""
FORGOTTEN = 1.0
"""Seconds between two checks whether any code still references a full stream."""
EventT = TypeVar("EventT", bound=Event)
Last = Callable[[Event], Awaitable[bool]]


class RemoteEvents(Generic[EventT]):
    """Events of a server, in order: an async iterator that ends when it is closed, as `Subscription` does."""

    def __init__(self, size: int) -> None:
        self._events: deque[EventT | Dropped] = deque()
        self._size = size
        self._closed = False
        self._broken: Exception | None = None
        self._changed = anyio.Event()

    def __aiter__(self) -> RemoteEvents[EventT]:
        return self

    async def __anext__(self) -> EventT | Dropped:
        while not self._events:
            if self._broken is not None:
                error, self._broken = self._broken, None
                raise error
            if self._closed:
                raise StopAsyncIteration
            await self.changing().wait()
        event = self._events.popleft()
        self._tell()
        return event

    def close(self) -> None:
        """Take no more events. Events that have arrived can still be read."""
        self._closed = True
        self._tell()

    # -- for the pump --------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the stream takes no more events."""
        return self._closed

    @property
    def full(self) -> bool:
        """Whether the buffer is full, so that the reader has to read first."""
        return len(self._events) >= self._size and not self._closed

    def changing(self) -> anyio.Event:
        """An event that is set at the next change of the stream."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        return self._changed

    def put(self, event: Any) -> None:
        """Add an event to the buffer."""
        self._events.append(event)
        self._tell()

    def fail(self, error: Exception) -> None:
        """End the stream by an error, which the reader gets after the buffered events."""
        self._broken, self._closed = error, True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()


class Pump:
    """Fills one `RemoteEvents`. It has only a weak reference, so that a stream without a reader ends.

    params: the filters of the request; wanted: the full filter of the reader, which the parameters may not express;
    after: the number of the transition after which the stream begins, None: it begins now; seen: a function that gets
    each event; last: a function that tells whether an event is the last.
    """

    def __init__(  # noqa: PLR0917 - the parts of a question
        self,
        link: Link,
        events: RemoteEvents[Any],
        params: Mapping[str, Any],
        wanted: EventFilter,
        after: int | None,
        seen: Callable[[Event], object],
        last: Last | None,
    ) -> None:
        self.opened = anyio.Event()  # also set if the stream cannot be opened
        self._link = link
        self._events = ref(events)
        self._params = dict(params)
        self._wanted = wanted
        self._after = after
        self._seen = seen
        self._last = last

    async def run(self) -> None:
        """Read until the stream is closed."""
        try:
            while not self._is_over():
                await self._read()
                await anyio.sleep(FIRST_PAUSE)  # a server may close each stream at once: do not repeat without a pause
        except Exception as error:
            if (events := self._events()) is not None:
                events.fail(error)
        finally:
            self.opened.set()
            if (events := self._events()) is not None:
                events.close()

    async def _read(self) -> None:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        params = self._params
        if self.opened.is_set() and self._after is not None:
            headers["Last-Event-ID"] = str(self._after)
        elif self._after is not None:
            params = {**params, "after": self._after}
        async with self._link.opened("events", params, headers, SILENCE) as response:
            self.opened.set()
            found = messages(response.aiter_raw())
            try:
                async for message in found:
                    if self._is_over() or not await self._take(message):
                        return
            except httpx.TransportError:
                return  # the stream was cut off
            finally:
                await _exhaust(found)

    def _is_over(self) -> bool:
        events = self._events()
        return events is None or events.closed

    async def _take(self, message: Message) -> bool:
        """Deliver a message. Returns whether the reader wants more."""
        event = message.event()
        if (number := whole(message.id)) is not None:
            if isinstance(event, Transitioned) and self._after is not None and number <= self._after:
                return True  # a duplicate: it arrived before the stream was cut off
            self._after = number
        events = self._events()
        if event is None or events is None:
            return events is not None
        if isinstance(event, Dropped):
            events.put(event)
        else:
            self._seen(event)
            if self._wanted(event):
                events.put(event)
            if self._last is not None and await self._last(event):
                events.close()
        del events  # during the wait only the reader may hold a reference
        await self._wait_for_room()
        return not self._is_over()

    async def _wait_for_room(self) -> None:
        while (events := self._events()) is not None and events.full:
            changing = events.changing()
            del events
            with anyio.move_on_after(FORGOTTEN):
                await changing.wait()


async def _exhaust(found: AsyncIterator[Message]) -> None:
    """End an unfinished generator and its inner generators by a cancellation, as trio requires."""
    with anyio.CancelScope() as over:
        over.cancel()
        with suppress(Exception):
            async for _ in found:
                pass


class Message(msgspec.Struct, frozen=True):
    """One message of a stream of Server-Sent Events; a comment is one without data."""

    kind: str = "message"
    data: str = ""
    id: str | None = None

    def event(self) -> Event | Dropped | None:
        """The event of the message; None if this client does not know its kind."""
        if not self.data:
            return None
        if self.kind == "transition":
            return transition_of(msgspec.json.decode(self.data))
        if self.kind == "notice":
            return notice_of(msgspec.json.decode(self.data))
        if self.kind == "gap":
            gap = msgspec.json.decode(self.data)
            return Dropped(gap.get("count", 0) + gap.get("notices", 0))
        return None


async def messages(chunks: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    """The messages of a stream (WHATWG HTML, "Server-sent events"), comments too: they show that the server lives."""
    left, fields = b"", dict[str, list[str]]()
    async for chunk in chunks:
        *lines, left = (left + chunk).split(b"\n")  # our server never ends a line by CR alone
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line.startswith(":"):
                yield Message()
            elif line:
                name, _, value = line.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
            elif fields:
                number = fields["id"][-1] if "id" in fields else None
                yield Message(fields.get("event", ["message"])[-1], "\n".join(fields.get("data", [])), number)
                fields = {}


async def emitted(link: Link, path: str) -> AsyncGenerator[str | Dropped]:
    """The text that a body emits: the stream at a path of the server, until its end. A lost stream is opened again.

    It also ends if the server runs another attempt when the stream is opened again: the text of that attempt begins
    anew.
    """
    last = ""
    while True:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if last:
            headers["Last-Event-ID"] = last
        async with link.opened(path, {}, headers, SILENCE) as response:
            found = messages(response.aiter_raw())
            try:
                async for message in found:
                    if message.kind == "end" or (last and message.id and _attempt(message.id) != _attempt(last)):
                        return
                    last = message.id or last
                    event: dict[str, Any] = msgspec.json.decode(message.data) if message.data else {}
                    if message.kind == "text":
                        yield event["text"]
                    elif message.kind == "gap":
                        yield Dropped(event["count"])
            except httpx.TransportError:
                pass  # the stream was cut off
            finally:
                await _exhaust(found)
        await anyio.sleep(FIRST_PAUSE)


def _attempt(place: str) -> str:
    """The attempt that the id of a message names: the id is a place in the attempt's text."""
    return place.partition("-")[0]
