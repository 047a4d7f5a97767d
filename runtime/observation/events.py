"""The event bus: delivers committed transitions and notices to subscribers, listeners and the log.

Rules
-----
- A subscriber has a bounded buffer. If it does not keep up, it loses the oldest events and receives their number
  (`Dropped`); it never slows the runtime.
- A listener (the event stream of the board) receives every event at once, and keeps what it needs.
- A job's subscriber receives all events of the job from its beginning: those before its subscription are read from the
  journal in pages, the rest is delivered as it happens. No transition comes twice, and none is left out.
- The event loop never waits for the journal. When the runtime closes, the past events that are not read yet are read
  into memory before the journal closes, within a time limit.
- If the application has configured a log, it gets one line per transition, at the level of its severity. Otherwise
  warnings and errors go to standard error (`logs.py`).
- If the runtime breaks, events that are not delivered yet are lost here. The iterators of subscribers then do not end
  normally: after the delivered events they raise RuntimeClosed with the cause. If the runtime closes normally, they
  end.
- An exception of an observer's code stays with that observer: a subscriber's reader gets the exception of its own
  filter; a line that the log refuses is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

import anyio
import msgspec

from ...actors.messages.notices import SEVERITIES, Notice
from ...actors.records.transition import Transitioned, ended_with_runtime, runs_again_after_kill
from ...actors.user_code import called, plain, shown
from ..dispatch.waker import OwnLoop
from ..errors import JournalError, closed
from ..journal.contract import Reader
from ..journal.query_threads import UNREAD
from ..text.logs import LastResort, LogLine, configured, line_about, line_of, takes, tell_lost

if TYPE_CHECKING:
    from .filters import Event, EventFilter

BUFFER = 10_000
"""Events that may wait for a slow subscriber."""
PAGE = 500
"""Transitions that are read from the journal in one page."""


class Dropped(msgspec.Struct, frozen=True):
    """This many events were dropped here, because the subscriber did not keep up."""

    count: int


Ask: TypeAlias = Callable[[Callable[[], list[Transitioned]]], Awaitable[list[Transitioned]]]
"""Runs a question to the journal, in a thread if it may block."""


class EarlierTransitions(msgspec.Struct):
    """A job's transitions in the journal whose number is above `after`, and at most `until`."""

    journal: Reader
    ask: Ask
    job: str
    until: int
    after: int = 0

    def page(self) -> list[Transitioned]:
        """Read the next transitions; an empty list if there are no more. Blocks."""
        rows = self.journal.transitions(job_id=self.job, after=self.after, limit=PAGE)
        return [row for row in rows if row.seq <= self.until]


EventT = TypeVar("EventT", bound="Event")


class Subscription(Generic[EventT]):
    """One subscriber's events, in order: an async iterator that ends when it is closed.

    quiet: whether the iterator also ends normally if the runtime breaks (for readers that learn of it in another way).
    """

    def __init__(
        self,
        hub: EventBus,
        wanted: EventFilter,
        last: EventFilter,
        size: int,
        past: EarlierTransitions | None,
        *,
        quiet: bool = False,
    ) -> None:
        size = _size(size)
        self._quiet = quiet
        self._cut_by: BaseException | None = None  # the error that broke the runtime
        self._hub = hub
        self._past: EarlierTransitions | None = past
        self._before: deque[EventT | Dropped] = deque()  # past events that are read already
        self._wanted = wanted
        self._last = last
        self._events: deque[EventT] = deque()
        self._size = size
        self._dropped = 0
        self._broken: Exception | None = None  # the exception of its filter
        self._closed = False
        self._arrived = anyio.Event()

    @property
    def looks_back(self) -> bool:
        """Whether some past events are not read yet."""
        return self._past is not None

    def take(self, event: EventT) -> None:
        """Offer an event. If a filter raises, the reader gets that exception, after the events before it."""
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
        """Take no more events; those that are here can still be read.

        Raises RuntimeError in a thread other than the event loop's, while the subscription is open.
        """
        if not self._closed:
            self._check_here()
        self._closed = True
        self._hub.forget(self)
        self._arrived.set()

    def cut(self, cause: BaseException | None) -> None:
        """Take no more events, because the runtime has closed, or broke with the error `cause`."""
        if not self._quiet:
            self._cut_by = cause
        self.close()

    async def keep(self, ask: Ask) -> None:
        """Read the rest of the past events, since the journal is about to close. A reader may do the same meanwhile."""
        while (past := self._past) is not None:
            try:
                page = await self._next_page(past, ask)
            except JournalError as error:
                self.lose(error)
                return
            if page is not None:
                self._take_page(past, page)
                self._shorten()
                if len(page) < PAGE:  # the page was the last one: ask no further question, which may take long
                    self._past = None

    def lose(self, error: JournalError) -> None:
        """Give up the other past events. The reader gets `error`, after the events that were read."""
        if self._past is not None:
            self._past, self._broken = None, error

    def _shorten(self) -> None:
        """Drop the oldest past events, for which the buffer has no room."""
        dropped = 0
        while len(self._before) > self._size:
            first = self._before.popleft()
            dropped += first.count if isinstance(first, Dropped) else 1
        if dropped:
            self._before.appendleft(Dropped(dropped))

    async def _turn_page(self, past: EarlierTransitions) -> None:
        page = await self._next_page(past, past.ask)
        if page is not None:
            self._take_page(past, page)

    async def _next_page(self, past: EarlierTransitions, ask: Ask) -> list[Transitioned] | None:
        """Read the next page of past events; None if another reader has read it meanwhile, or given it up."""
        after = past.after
        try:
            page = await ask(past.page)
        except Exception:
            if self._past is past:
                raise
            return None
        return page if self._past is past and past.after == after else None

    def _take_page(self, past: EarlierTransitions, page: list[Any]) -> None:  # Any: the filter decides which types pass
        if page:
            past.after = page[-1].seq
        else:
            self._past = None
        try:
            self._before += [row for row in page if called(self._wanted, row)]
        except Exception as error:
            self._broken, self._past = error, None
            self.close()

    # An iterator, not an async generator: it needs no closing when a reader leaves it before its end.
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
                raise closed("the runtime has closed before all events were delivered", self._cut_by)
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
        if self._hub.own_loop is not None:
            self._hub.own_loop.check("a subscription of events")


def _size(said: object) -> int:
    size = plain(said)
    if type(size) is not int:
        raise TypeError(f"the size of a subscription is an int, not {shown(size, 60)}")
    if size < 1:
        raise ValueError(f"a subscription needs room for at least one event, not size={size}")
    return size


class Listener(Protocol):
    """A receiver of every event. Its methods raise nothing, and return at once."""

    def heard(self, events: Sequence[Event]) -> None:
        """Receive transitions that were committed, or a notice, in this order."""
        ...

    def hub_closed(self) -> None:
        """Take note that no more events come, and that the journal closes."""
        ...


class EventBus:
    """Delivers committed transitions and notices to subscribers, listeners and the application's log."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription[Any]] = WeakSet()  # weak: a subscription without a reader is dropped
        self._looking_back: WeakSet[Subscription[Any]] = WeakSet()  # the subscriptions with past events to read
        self._listeners: list[Listener] = []
        self.told = 0  # the number of the last transition that was delivered
        self.unlogged = 0  # lines that the application's log refused
        self.on_unlogged: Callable[[Exception, int], object] | None = None  # gets the log's exceptions, counted
        self.last_resort: LastResort | None = LastResort()
        """Writes warnings and errors where no log is configured; None where the program shows them in another way."""
        self.own_loop: OwnLoop | None = None  # the event loop of the runtime, once it is open
        self._closed = False
        self._cause: BaseException | None = None  # the error that broke the runtime

    def subscribe(
        self,
        wanted: EventFilter = lambda _: True,
        *,
        last: EventFilter = lambda _: False,
        size: int = BUFFER,
        past: EarlierTransitions | None = None,
        quiet: bool = False,
    ) -> Subscription[Any]:
        """Subscribe to the wanted events: past ones, then new ones up to the `last` one.

        The `last` event is delivered if it is wanted too.

        size: events that may wait for a slow reader. Raises ValueError if it is below 1, TypeError if it is no int.
        quiet: as for `Subscription`.
        """
        return self.add(Subscription[Any](self, wanted, last, size, None if self._closed else past, quiet=quiet))

    def add(self, subscription: Subscription[Any]) -> Subscription[Any]:
        """Deliver events to a subscriber from now on, until it is closed."""
        self._subscriptions.add(subscription)
        if self._closed:
            subscription.cut(self._cause)
        elif subscription.looks_back:
            self._looking_back.add(subscription)
        return subscription

    def forget(self, subscription: Subscription[Any]) -> None:
        """Deliver no more events to a subscriber."""
        self._subscriptions.discard(subscription)

    def listen(self, listener: Listener) -> None:
        """Deliver every event to a listener from now on: transitions with a number above `told`."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Deliver no more events to a listener."""
        self._listeners.remove(listener)

    @property
    def wanted(self) -> bool:
        """Whether anybody receives events."""
        return bool(self._subscriptions or self._listeners) or configured() is not None

    def publish(self, transitions: Sequence[Transitioned]) -> None:
        """Deliver transitions to all receivers. Raises nothing."""
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
        """Write the warnings and errors among transitions where no log is configured. Raises nothing."""
        if self.last_resort is None:
            return
        for event in transitions:
            if event.severity == "info" or ended_with_runtime(event) or runs_again_after_kill(event):
                continue  # a start after a kill would write a line for everything that ran
            self.last_resort.write(line_of(event))

    def tell_notice(self, notice: Notice, *, secret: bool = False) -> bool:
        """Deliver a notice to subscribers, listeners and the log. Returns whether the log took it. Raises nothing.

        secret: whether there are secrets, which the notice's error may contain.
        """
        self.tell_readers(notice)
        write = configured()
        return write is not None and self._write(write, line_about(notice, secret=secret))

    def tell_readers(self, notice: Notice) -> None:
        """Deliver a notice to subscribers and listeners, but not to the log. Raises nothing."""
        for listener in self._listeners:
            listener.heard((notice,))
        for subscription in list(self._subscriptions):
            subscription.take(notice)

    def say_notice(self, notice: Notice) -> None:
        """Write a notice to standard error, since nothing else shows it. Raises nothing."""
        if self.last_resort is not None:
            self.last_resort.write(line_about(notice), past_logs=configured() is not None)

    def _write(self, write: Callable[[LogLine], None], line: LogLine) -> bool:
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
        """End every subscription: no more events are delivered. cause: the error that broke the runtime.

        Their readers can still read past events, until `keep` has read them.
        """
        if not self._closed:
            self._closed, self._cause, self.on_unlogged = True, cause, None
        for subscription in list(self._subscriptions):
            subscription.cut(self._cause)
        for listener in list(self._listeners):
            listener.hub_closed()

    async def keep(self, ask: Ask, limit: float) -> None:
        """Read the rest of all subscribers' past events: after `close`, and before the journal closes.

        limit: seconds for all of them; a reader whose events were not all read by then gets an error that says so.
        """
        looking_back = list(self._looking_back)
        try:
            with anyio.move_on_after(limit):
                for subscription in looking_back:
                    await subscription.keep(ask)
        finally:
            for subscription in looking_back:
                subscription.lose(JournalError(UNREAD))
