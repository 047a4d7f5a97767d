"""The events of another node's job, read from the journal as they come.

Rules
-----
- A job's owner commits its transitions in order, with rising numbers: so everything above the last number read is new,
  also after a take-over.
- The events end with the job, and when the runtime closes; if it breaks before the job's end was read, they raise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ...actors.records.transition import Transitioned
from ..errors import JournalError, RuntimeClosed
from ..observation.events import EarlierTransitions, EventBus, Subscription
from ..observation.filters import Event, EventFilter
from .delays import Delays


class PolledSubscription(Subscription[Any]):
    """The events of one subscriber. last: whether an event ends the job. pause: waits, until the runtime closes."""

    def __init__(
        self,
        hub: EventBus,
        wanted: EventFilter,
        last: EventFilter,
        size: int,
        past: EarlierTransitions,
        *,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        super().__init__(hub, wanted, last, size, past)
        self._pause = pause
        self._delays = Delays()

    def take(self, event: Event) -> None:
        """Offer a notice of this node. Transitions come from the journal instead."""
        if not isinstance(event, Transitioned):
            super().take(event)

    async def __anext__(self) -> Any:
        """Return the next event. Notices of this node are delivered at once."""
        if self._past is not None and not self._before and self._events:
            return self._events.popleft()
        return await super().__anext__()

    async def _turn_page(self, past: EarlierTransitions) -> None:
        try:
            page = await self._next_page(past, past.ask)
        except JournalError as error:
            if self._closed:
                self.lose(error)
                return
            page = []
        if page is None:
            return
        if page:
            self._delays = Delays()
            self._take_page(past, page)
            return
        if self._closed:
            self._past = None
            return
        with suppress(RuntimeClosed):  # then these events are closed, too, and the next turn reads the last page
            await self._pause(self._delays())

    def _take_page(self, past: EarlierTransitions, page: list[Any]) -> None:  # Any: as in the base class
        super()._take_page(past, page)
        if any(map(self._last, page)):
            self._end()

    def _end(self) -> None:
        """End: all events were read, so an error of the runtime does not matter."""
        self._past = self._cut_by = None
        self.close()
