"""The events of a job that another node runs: read out of the journal, as they come.

Rules
-----
- A job's transitions are committed by whoever owns it, in their order, with rising numbers: so what is read after the
  last number is what is new, also over a take-over.
- They end with the job, and when the runtime closes; where that breaks before the job's end was read, they raise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ...actors.records.transition import Transitioned
from ..handles.outcomes import RuntimeClosed
from ..journal.contract import JournalError
from ..observation.events import EventBus, Past, Subscription
from ..observation.filters import Event, EventFilter
from .node_context import Delays


class Followed(Subscription[Any]):
    """One subscriber's events. last: whether that is the job's end. pause: waits, until the runtime closes."""

    def __init__(
        self,
        hub: EventBus,
        wanted: EventFilter,
        last: EventFilter,
        size: int,
        past: Past,
        *,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        super().__init__(hub, wanted, last, size, past)
        self._pause = pause
        self._delays = Delays()

    def take(self, event: Event) -> None:
        """Offer an event of this node. Its transitions come out of the journal."""
        if not isinstance(event, Transitioned):
            super().take(event)

    async def __anext__(self) -> Any:
        """The next event. Notices of this node come as soon as they are told."""
        if self._past is not None and not self._before and self._events:
            return self._events.popleft()
        return await super().__anext__()

    async def _turn_page(self, past: Past) -> None:
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
        with suppress(RuntimeClosed):  # then it is closed as well, and its last page is to be read
            await self._pause(self._delays())

    def _take_page(self, past: Past, page: list[Any]) -> None:  # Any: as its own
        super()._take_page(past, page)
        if any(map(self._last, page)):
            self._end()

    def _end(self) -> None:
        """All was read, whatever the runtime broke by."""
        self._past = self._cut_by = None
        self.close()
