"""Observation: who wants to hear of transitions hears of them here, once they are durable.

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
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import anyio
import msgspec

from ..actors.records import Transitioned
from .imported import imported

BUFFER = 10_000
"""Events that wait for a slow subscriber."""


class Dropped(msgspec.Struct, frozen=True):
    """So many events were dropped here, since the subscriber did not keep up."""

    count: int


class Subscription:
    """One subscriber's events, in order: an async iterator that ends when it is closed."""

    def __init__(
        self, hub: Hub, wanted: Callable[[Transitioned], bool], last: Callable[[Transitioned], bool], size: int
    ) -> None:
        self._hub = hub
        self._wanted = wanted
        self._last = last
        self._events: deque[Transitioned] = deque()
        self._size = size
        self._dropped = 0
        self._broken: Exception | None = None  # what its filter raised
        self._closed = False
        self._arrived = anyio.Event()

    def take(self, event: Transitioned) -> None:
        """Offer an event. Should a filter raise, its reader gets that, after what came before."""
        if self._closed:
            return
        try:
            wanted = self._wanted(event)
            last = wanted and self._last(event)
        except Exception as error:
            self._broken = error
            self.close()
            return
        if not wanted:
            return
        if len(self._events) >= self._size:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        if last:
            self.close()
        self._arrived.set()

    def close(self) -> None:
        """Take no more; what has come may still be read."""
        self._closed = True
        self._hub.forget(self)
        self._arrived.set()

    # An iterator and not an async generator: one that is left before its end needs no closing.
    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Transitioned | Dropped:
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
        self._subscriptions: WeakSet[Subscription] = WeakSet()  # one that nobody holds any more is forgotten
        self.unlogged = 0  # lines that the application's log would not take
        self._log: Any = None  # structlog gives its loggers no one type

    def subscribe(
        self,
        wanted: Callable[[Transitioned], bool],
        *,
        last: Callable[[Transitioned], bool] = lambda _: False,
        size: int = BUFFER,
    ) -> Subscription:
        """Have the wanted events from now on, up to and with the `last` one."""
        subscription = Subscription(self, wanted, last, size)
        self._subscriptions.add(subscription)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Stop telling a subscriber."""
        self._subscriptions.discard(subscription)

    @property
    def wanted(self) -> bool:
        """Whether anybody wants to be told."""
        return bool(self._subscriptions) or _configured() is not None

    def publish(self, transitions: Sequence[Transitioned]) -> None:
        """Tell everybody. Raises nothing."""
        if self._subscriptions:
            for subscription in list(self._subscriptions):
                for event in transitions:
                    subscription.take(event)
        if (structlog := _configured()) is not None:
            for event in transitions:
                try:
                    if self._log is None:
                        self._log = structlog.get_logger("callboard")
                    self._write(event)
                except Exception:
                    self.unlogged += 1

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


def _configured() -> Any:
    """structlog, if the application has configured it."""
    structlog = imported("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None
