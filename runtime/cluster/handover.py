"""The hand-over: a draining node gives its jobs without running bodies to other nodes.

Rules
-----
- First it announces that it takes no more jobs: so shares are computed for the other nodes only.
- A job is handed over in two steps: the kernel removes it; when all its changes are committed, the node gives it up in
  the database. If that fails, it is retried with the next job; at the latest, other nodes get the job when this node
  leaves.
- If no other living node takes jobs, nothing is handed over; it checks again after `AGAIN`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...actors.jobs.handover import idle_jobs
from ...actors.messages.commands import HandOver
from ..errors import JournalError

if TYPE_CHECKING:
    from ..host import KernelHost
    from .node_context import NodeContext

AGAIN = 0.5
"""Seconds until the next look for a node that takes jobs, after there was none."""


class HandingOver:
    """Hands over jobs while its node drains. See the module."""

    def __init__(self, node: NodeContext, host: KernelHost) -> None:
        self._node = node
        self._host = host
        self._asked_at: float | None = None  # monotonic: when no node took jobs last
        self._owed: list[int] = []  # jobs that the kernel forgot, and the database does not know of yet

    async def look(self) -> bool:
        """Hand over the jobs that can go. Returns whether there were any. Raises RuntimeClosed."""
        host, now = self._host, self._host.monotonic()
        if self._asked_at is not None and (now - self._asked_at < AGAIN or not (self._owed or idle_jobs(host.kernel))):
            return False
        try:
            if not await self._node.ask_own(self._node.cluster.step_aside):
                self._asked_at = now
                return False
            self._asked_at = now - AGAIN
            gone: list[int] = await host.ask(HandOver)
            self._owed += gone
            if self._owed:
                await self._node.ask_own(self._node.cluster.give_back, self._owed)
                self._owed = []
        except JournalError:
            self._asked_at = now
            return False
        return bool(gone)
