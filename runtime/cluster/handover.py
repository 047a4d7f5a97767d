"""What a node does for others while it drains: it hands over at once what runs no body, and what has ended its last.

Rules
-----
- Others are told first that it takes nothing any more: so shares are among those who go on.
- A job is handed over in two steps: the kernel forgets it, and once all that it did is durable the database is told.
  What could not be told is tried again with the next one, and otherwise goes to others when this node leaves.
- Nothing is handed over where no other node lives that takes it: that is asked again after `AGAIN`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...actors.kernel.handover import idle_jobs
from ...actors.messages.commands import HandOver
from ..journal.contract import JournalError

if TYPE_CHECKING:
    from ..host import Host
    from .node_context import NodeContext

AGAIN = 0.5
"""Seconds until it is asked again whether anybody takes what this node hands over, where nobody did."""


class HandingOver:
    """See the module."""

    def __init__(self, seat: NodeContext, host: Host) -> None:
        self._seat = seat
        self._host = host
        self._asked_at: float | None = None  # when nobody was there last
        self._owed: list[int] = []  # forgotten here, and not given to others yet

    async def look(self) -> bool:
        """Hand over what may go. Returns whether there was something. Raises RuntimeClosed."""
        host, now = self._host, self._host.monotonic()
        if self._asked_at is not None and (now - self._asked_at < AGAIN or not (self._owed or idle_jobs(host.kernel))):
            return False
        try:
            if not await self._seat.ask_own(self._seat.cluster.step_aside):
                self._asked_at = now
                return False
            self._asked_at = now - AGAIN
            gone: list[int] = await host.ask(HandOver)
            self._owed += gone
            if self._owed:
                await self._seat.ask_own(self._seat.cluster.give_back, self._owed)
                self._owed = []
        except JournalError:
            self._asked_at = now
            return False
        return bool(gone)
