"""Observation: who wants to hear of transitions and notices hears of them here, once they are durable.

Rules
-----
- A subscriber has a bounded buffer. One that does not keep up loses the oldest events and is told how many (`Dropped`);
  it never slows the runtime.
- A listener (the event stream of the board) is told everything as it comes, and keeps what it needs of it.
- A job's subscriber hears of the job from its beginning: what had happened before it subscribed is read from the
  journal by pages, the rest is told as it comes. No transition is in both, and none between them.
- The journal is never asked on the event loop. What is left of the past when the runtime is left is read into memory
  before the journal closes, within a limit.
- The application's log gets a line per transition, at the level of its severity, if it has configured one; where it has
  not, those that tell of trouble go to standard error (`logs.py`).
- Where the runtime breaks, what is not told yet is told by nobody here: its subscribers do not end as if all were
  told, but raise RuntimeClosed with the cause, after what has come. Left in good order, they end.
- What an observer's code raises stays with the observer: a subscriber gets its own filter's error where it reads, a
  line that the log would not take is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

import anyio
import msgspec

from ...actors.messages.notices import SEVERITIES, Notice
from ...actors.records.transition import Transitioned, ended_with_runtime
from ...actors.user_code import called, plain, shown
from ..dispatch.waker import Home
from ..handles.outcomes import closed
from ..journal.contract import JournalError, Reader
from ..text.logs import LastResort, Line, configured, line_about, line_of, takes, tell_lost
from .filters import Event, EventFilter, everything

_ORDINARY, _severity = frozenset({"info"}), attrgetter("severity")
BUFFER = 10_000
"""Events that wait for a slow subscriber."""
PAGE = 500
"""Transitions that are read from the journal at once."""


UNREAD = (
    "the runtime has closed, and the journal did not answer in time: some of what it has of this job was not read. "
    "Subscribe again in the next runtime: what happened before is told from the beginning"
)


class Dropped(msgspec.Struct, frozen=True):
    """So many events were dropped here, since the subscriber did not keep up."""

    count: int


Ask: TypeAlias = Callable[[Callable[[], list[Transitioned]]], Awaitable[list[Transitioned]]]
"""Asks the journal, in a thread where that may block."""


class Past(msgspec.Struct):
    """What the journal holds of a job up to the transition of number `until`, from after that of number `after` on."""

    journal: Reader
    ask: Ask
    job: str
    until: int
    after: int = 0

    def page(self) -> list[Transitioned]:
        """Its next transitions; none if that is all. Blocks."""
        rows = self.journal.transitions(job_id=self.job, after=self.after, limit=PAGE)
        return [row for row in rows if row.seq <= self.until]


EventT = TypeVar("EventT", bound=Event)


class Subscription(Generic[EventT]):
    """One subscriber's events, in order: an async iterator that ends when it is closed.

    quiet: whether it ends as well where the runtime breaks: for who hears of that otherwise.
    """

    def __init__(
        self,
        hub: EventBus,
        wanted: EventFilter,
        last: EventFilter,
        size: int,
        past: Past | None,
        *,
        quiet: bool = False,
    ) -> None:
        size = _size(size)
        self._quiet = quiet
        self._cut_by: BaseException | None = None  # what the runtime broke by, before it was closed
        self._hub = hub
        self._past: Past | None = past
        self._before: deque[EventT | Dropped] = deque()  # of the past, read already
        self._wanted = wanted
        self._last = last
        self._events: deque[EventT] = deque()
        self._size = size
        self._dropped = 0
        self._broken: Exception | None = None  # what its filter raised
        self._closed = False
        self._arrived = anyio.Event()

    @property
    def looks_back(self) -> bool:
        """Whether it has not read all of the past yet."""
        return self._past is not None

    def take(self, event: EventT) -> None:
        """Offer an event. Should a filter raise, its reader gets that, after what came before."""
        if self._closed:
            return
        try:
            wanted, last = called(self._wanted, event), called(self._last, event)
        except Exception as error:
            self._broken = error
            self.close()
            return
        if wanted:
            if len(self._events) >= self._size:
                self._events.popleft()
                self._dropped += 1
            self._events.append(event)
            self._arrived.set()
        if last:
            self.close()

    def close(self) -> None:
        """Take no more; what has come may still be read. Raises RuntimeError in another thread, where it is open."""
        if not self._closed:
            self._check_here()
        self._closed = True
        self._hub.forget(self)
        self._arrived.set()

    def cut(self, cause: BaseException | None) -> None:
        """The runtime has closed, or broken by `cause`: take no more."""
        if not self._quiet:
            self._cut_by = cause
        self.close()

    async def keep(self, ask: Ask) -> None:
        """Read what is left of the past, since the journal is about to close. Somebody may be reading it as well."""
        while (past := self._past) is not None:
            try:
                page = await self._next_page(past, ask)
            except JournalError as error:
                self.lose(error)
                return
            if page is not None:
                self._take_page(past, page)
                self._shorten()
                if len(page) < PAGE:  # a further question may take long
                    self._past = None

    def lose(self, error: JournalError) -> None:
        """What is left of the past cannot be read any more: its reader gets that, after what has come."""
        if self._past is not None:
            self._past, self._broken = None, error

    def _shorten(self) -> None:
        """Drop the oldest of the past that has no room."""
        dropped = 0
        while len(self._before) > self._size:
            first = self._before.popleft()
            dropped += first.count if isinstance(first, Dropped) else 1
        if dropped:
            self._before.appendleft(Dropped(dropped))

    async def _turn_page(self, past: Past) -> None:
        page = await self._next_page(past, past.ask)
        if page is not None:
            self._take_page(past, page)

    async def _next_page(self, past: Past, ask: Ask) -> list[Transitioned] | None:
        """The next page of the past; None where somebody else has read it meanwhile, or given it up."""
        after = past.after
        try:
            page = await ask(past.page)
        except Exception:
            if self._past is past:
                raise
            return None
        return page if self._past is past and past.after == after else None

    def _take_page(self, past: Past, page: list[Any]) -> None:  # Any: of a type that its filter lets pass
        if page:
            past.after = page[-1].seq
        else:
            self._past = None
        try:
            self._before += [row for row in page if called(self._wanted, row)]
        except Exception as error:
            self._broken, self._past = error, None
            self.close()

    # An iterator and not an async generator: one that is left before its end needs no closing.
    def __aiter__(self) -> Subscription[EventT]:
        return self

    async def __anext__(self) -> EventT | Dropped:
        self._check_here()
        while not self._before and (past := self._past) is not None:
            await self._turn_page(past)
        if self._before:
            return self._before.popleft()
        while not self._events and not self._dropped:
            if self._cut_by is not None:
                raise closed("the runtime has closed before all was told", self._cut_by)
            if self._broken is not None:
                error, self._broken = self._broken, None
                raise error
            if self._closed:
                raise StopAsyncIteration
            self._arrived = anyio.Event()
            await self._arrived.wait()
        if self._dropped:
            count, self._dropped = self._dropped, 0
            return Dropped(count)
        return self._events.popleft()

    def _check_here(self) -> None:
        if self._hub.home is not None:
            self._hub.home.check("a subscription of events")


def _size(said: object) -> int:
    size = plain(said)
    if type(size) is not int:
        raise TypeError(f"the size of a subscription is an int, not {shown(size, 60)}")
    if size < 1:
        raise ValueError(f"a subscription needs room for at least one event, not size={size}")
    return size


class Listener(Protocol):
    """Who is told everything. It raises nothing, and returns at once."""

    def heard(self, events: Sequence[Event]) -> None:
        """These have become durable, or were noticed, in this order."""
        ...

    def hub_closed(self) -> None:
        """Nothing more is told, and the journal closes."""
        ...


class EventBus:
    """Where durable transitions are told to subscribers, to listeners and to the application's log."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription[Any]] = WeakSet()  # one that nobody holds any more is forgotten
        self._looking_back: WeakSet[Subscription[Any]] = WeakSet()  # those that may not have read all of the past yet
        self._listeners: list[Listener] = []
        self.told = 0  # the number of the last transition that was told, to whoever wanted it
        self.unlogged = 0  # lines that the application's log would not take
        self.on_unlogged: Callable[[Exception, int], object] | None = None  # told what the log raised, and how often
        self.last_resort: LastResort | None = LastResort()
        """What writes trouble where no log is configured; None where somebody shows it to people in another way."""
        self.home: Home | None = None  # the event loop of the runtime, once that is opened
        self._closed = False
        self._cause: BaseException | None = None  # what the runtime broke by

    def subscribe(
        self,
        wanted: EventFilter = everything,
        *,
        last: EventFilter = lambda _: False,
        size: int = BUFFER,
        past: Past | None = None,
        quiet: bool = False,
    ) -> Subscription[Any]:
        """Have the wanted events of the past, and from now on up to the `last` one (it too, if it is wanted).

        size: events that wait for a slow reader. Raises ValueError where none could, TypeError for what is no int.
        quiet: as for `Subscription`.
        """
        return self.add(Subscription[Any](self, wanted, last, size, None if self._closed else past, quiet=quiet))

    def add(self, subscription: Subscription[Any]) -> Subscription[Any]:
        """Tell a subscriber from now on, until it is closed."""
        self._subscriptions.add(subscription)
        if self._closed:
            subscription.cut(self._cause)
        elif subscription.looks_back:
            self._looking_back.add(subscription)
        return subscription

    def forget(self, subscription: Subscription[Any]) -> None:
        """Stop telling a subscriber."""
        self._subscriptions.discard(subscription)

    def listen(self, listener: Listener) -> None:
        """Tell a listener everything from now on: what is numbered above `told`."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Stop telling it."""
        self._listeners.remove(listener)

    @property
    def wanted(self) -> bool:
        """Whether anybody wants to be told."""
        return bool(self._subscriptions or self._listeners) or configured() is not None

    def publish(self, transitions: Sequence[Transitioned]) -> None:
        """Tell everybody. Raises nothing."""
        for listener in self._listeners:
            listener.heard(transitions)
        if self._subscriptions:
            for subscription in list(self._subscriptions):
                for event in transitions:
                    subscription.take(event)
        if (write := configured()) is None:
            self.publish_trouble(transitions)
            return
        taken: dict[str, bool] = {severity: takes(severity) for severity in SEVERITIES}
        for event in transitions:
            if taken[event.severity]:
                self._write(write, line_of(event))

    def publish_trouble(self, transitions: Sequence[Transitioned]) -> None:
        """Tell of those that are trouble where nobody has asked to be told of any. Raises nothing."""
        if self.last_resort is None or _ORDINARY.issuperset(map(_severity, transitions)):
            return
        for event in transitions:
            if event.severity != "info" and not ended_with_runtime(event):
                self.last_resort.write(line_of(event))

    def tell_notice(self, notice: Notice, *, secret: bool = False) -> bool:
        """Tell subscribers and the application's log of a notice. Returns whether that log took it. Raises nothing.

        secret: whether there are secrets, which its error may hold.
        """
        self.tell_readers(notice)
        write = configured()
        return write is not None and self._write(write, line_about(notice, secret=secret))

    def tell_readers(self, notice: Notice) -> None:
        """Tell subscribers and listeners of a notice, and not the log. Raises nothing."""
        for listener in self._listeners:
            listener.heard((notice,))
        for subscription in list(self._subscriptions):
            subscription.take(notice)

    def say_notice(self, notice: Notice) -> None:
        """Tell of trouble that nobody else was told of. Raises nothing."""
        if self.last_resort is not None:
            self.last_resort.write(line_about(notice), past_logs=configured() is not None)

    def _write(self, write: Callable[[Line], None], line: Line) -> bool:
        try:
            called(write, line)
        except Exception as error:
            self.unlogged += 1
            tell_lost(error)
            if self.on_unlogged is not None and self.unlogged.bit_count() == 1:  # the 1st, 2nd, 4th, ...
                self.on_unlogged(error, self.unlogged)
            return False
        return True

    def close(self, cause: BaseException | None = None) -> None:
        """End every subscription: nothing more is told. cause: what the runtime broke by.

        What they have still to read of the past they may, until `keep` has read it for them.
        """
        if not self._closed:
            self._closed, self._cause, self.on_unlogged = True, cause, None
        for subscription in list(self._subscriptions):
            subscription.cut(self._cause)
        for listener in list(self._listeners):
            listener.hub_closed()

    async def keep(self, ask: Ask, limit: float) -> None:
        """Once it is closed, and before the journal is: have every subscriber read what is left of the past.

        limit: seconds for all of them; whoever has not read it all by then is told that it was not.
        """
        looking_back = list(self._looking_back)
        try:
            with anyio.move_on_after(limit):
                for subscription in looking_back:
                    await subscription.keep(ask)
        finally:
            for subscription in looking_back:
                subscription.lose(JournalError(UNREAD))
