"""The event stream: what is told, as it comes, over restarts of the server and lost connections.

Rules
-----
- Where it was cut off it is opened again after the last transition that came (`Last-Event-ID`), which the server reads
  from its journal: none is missed, and one that comes again is left out. Notices are not kept, so those of meanwhile
  are not told.
- A stream is asked for at once, and every command of the same client waits until it is open: what a command does is
  told to whoever listened before it was given.
- At most `size` events wait here for a slow reader. Then nothing more is read, and the server keeps its own account: it
  goes on from its journal, or says how many it dropped (`Dropped`).
- One that nobody holds any more ends by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
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
"""Seconds without a sign of life after which a stream counts as cut off: several times those between heartbeats."""
FORGOTTEN = 1.0
"""Seconds after which a full one is looked at again: whether anybody holds it still."""
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
        """Take no more; what has come may still be read."""
        self._closed = True
        self._tell()

    # -- for who fills it ----------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it takes no more."""
        return self._closed

    @property
    def full(self) -> bool:
        """Whether its reader has to read first."""
        return len(self._events) >= self._size and not self._closed

    def changing(self) -> anyio.Event:
        """What is set when something about it has changed."""
        if self._changed.is_set():
            self._changed = anyio.Event()
        return self._changed

    def put(self, event: Any) -> None:
        """Add one."""
        self._events.append(event)
        self._tell()

    def fail(self, error: Exception) -> None:
        """End it by an error, which its reader gets after what came before."""
        self._broken, self._closed = error, True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()


class Pump:
    """Fills one `RemoteEvents`, which it does not hold: one that nobody reads is forgotten.

    params: the filters; wanted: all that its reader wants, where they cannot say that; after: the number of the
    transition to begin after, None for what comes from now on; seen: is told each event; last: whether one is the last.
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
        self.opened = anyio.Event()  # or it never will be
        self._link = link
        self._events = ref(events)
        self._params = dict(params)
        self._wanted = wanted
        self._after = after
        self._seen = seen
        self._last = last

    async def run(self) -> None:
        """Read until it is closed."""
        try:
            while not self._is_over():
                await self._read()
                await anyio.sleep(FIRST_PAUSE)  # a server that closes each stream at once is not asked without a pause
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
                return  # it was cut off
            finally:
                await _exhaust(found)

    def _is_over(self) -> bool:
        events = self._events()
        return events is None or events.closed

    async def _take(self, message: Message) -> bool:
        """Pass one on. Returns whether more is wanted."""
        event = message.event()
        if (number := whole(message.id)) is not None:
            if isinstance(event, Transitioned) and self._after is not None and number <= self._after:
                return True  # it came before the stream was cut off
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
        del events  # while it waits here, nobody may hold it but its reader
        await self._wait_for_room()
        return not self._is_over()

    async def _wait_for_room(self) -> None:
        while (events := self._events()) is not None and events.full:
            changing = events.changing()
            del events
            with anyio.move_on_after(FORGOTTEN):
                await changing.wait()


async def _exhaust(found: AsyncIterator[Message]) -> None:
    """End a generator that was left before its end, and those inside of it, as trio wants it: by what ends a read."""
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
        """What it tells; None for what this client does not know."""
        if not self.data:
            return None
        if self.kind == "transition":
            return transition_of(msgspec.json.decode(self.data))
        if self.kind == "notice":
            return notice_of(msgspec.json.decode(self.data))
        if self.kind == "gap":
            told = msgspec.json.decode(self.data)
            return Dropped(told.get("count", 0) + told.get("notices", 0))
        return None


async def messages(chunks: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    """The messages of a stream (WHATWG HTML, "Server-sent events"). Comments are told too: somebody is there."""
    left, fields = b"", dict[str, list[str]]()
    async for chunk in chunks:
        *lines, left = (left + chunk).split(b"\n")  # no text of ours ends a line by CR alone
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
