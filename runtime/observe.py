"""Observation: who wants to hear of transitions and notices hears of them here, once they are durable.

Rules
-----
- A subscriber has a bounded buffer. One that does not keep up loses the oldest events and is told how many (`Dropped`);
  it never slows the runtime.
- structlog gets a line per transition, at the level of its severity, if the application has configured it: a library
  does not print into a program that did not ask. Nothing of it is imported before that.
- What an observer's code raises stays with the observer: a subscriber gets its own filter's error where it reads, a
  line that the log would not take is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakSet

import anyio
import msgspec

from ..actors.notices import Notice
from ..actors.records import Transitioned
from .filters import Event, Wanted, everything
from .logs import configured, write_notice

BUFFER = 10_000
"""Events that wait for a slow subscriber."""


class Dropped(msgspec.Struct, frozen=True):
    """So many events were dropped here, since the subscriber did not keep up."""

    count: int


EventT = TypeVar("EventT", bound=Event)


class Subscription(Generic[EventT]):
    """One subscriber's events, in order: an async iterator that ends when it is closed."""

    def __init__(self, hub: Hub, wanted: Wanted, last: Wanted, size: int) -> None:
        self._hub = hub
        self._wanted = wanted
        self._last = last
        self._events: deque[EventT] = deque()
        self._size = size
        self._dropped = 0
        self._broken: Exception | None = None  # what its filter raised
        self._closed = False
        self._arrived = anyio.Event()

    def take(self, event: EventT) -> None:
        """Offer an event. Should a filter raise, its reader gets that, after what came before."""
        if self._closed:
            return
        try:
            wanted, last = self._wanted(event), self._last(event)
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
        """Take no more; what has come may still be read."""
        self._closed = True
        self._hub.forget(self)
        self._arrived.set()

    # An iterator and not an async generator: one that is left before its end needs no closing.
    def __aiter__(self) -> Subscription[EventT]:
        return self

    async def __anext__(self) -> EventT | Dropped:
        while not self._events and not self._dropped:
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


class Hub:
    """Where durable transitions are told to subscribers and to the application's log."""

    def __init__(self) -> None:
        self._subscriptions: WeakSet[Subscription[Any]] = WeakSet()  # one that nobody holds any more is forgotten
        self.unlogged = 0  # lines that the application's log would not take
        self._log: Any = None  # structlog gives its loggers no one type

    def subscribe(
        self,
        wanted: Wanted = everything,
        *,
        last: Wanted = lambda _: False,
        size: int = BUFFER,
    ) -> Subscription[Any]:
        """Have the wanted events from now on, up to the `last` one, and that one too if it is wanted."""
        subscription: Subscription[Any] = Subscription(self, wanted, last, size)
        self._subscriptions.add(subscription)
        return subscription

    def forget(self, subscription: Subscription[Any]) -> None:
        """Stop telling a subscriber."""
        self._subscriptions.discard(subscription)

    @property
    def wanted(self) -> bool:
        """Whether anybody wants to be told."""
        return bool(self._subscriptions) or configured() is not None

    def publish(self, transitions: Sequence[Transitioned]) -> None:
        """Tell everybody. Raises nothing."""
        if self._subscriptions:
            for subscription in list(self._subscriptions):
                for event in transitions:
                    subscription.take(event)
        if (structlog := configured()) is not None:
            for event in transitions:
                try:
                    if self._log is None:
                        self._log = structlog.get_logger("callboard")
                    self._write(event)
                except Exception:
                    self.unlogged += 1

    def tell_notice(self, notice: Notice) -> bool:
        """Tell subscribers and the application's log of a notice. Returns whether there is that log. Raises nothing."""
        for subscription in list(self._subscriptions):
            subscription.take(notice)
        structlog = configured()
        if structlog is None:
            return False
        try:
            write_notice(notice, structlog.get_logger("callboard"))
        except Exception:
            self.unlogged += 1
        return True

    def _write(self, event: Transitioned) -> None:
        told = {
            "from_state": event.from_state,
            "reason": event.reason,
            "attempt": event.attempt,
            "worker_id": event.worker_id,
        }
        getattr(self._log, event.severity)(
            f"{event.kind}_state_transition", entity_id=event.entity_id, to_state=str(event.to_state),
            trigger=str(event.event), workstream_id=event.workstream_id,
            **{name: value for name, value in told.items() if value is not None}, **(event.metadata or {}),
        )  # fmt: skip

    def close(self) -> None:
        """End every subscription."""
        for subscription in list(self._subscriptions):
            subscription.close()
