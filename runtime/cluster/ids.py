"""Ids that must be one job's, or one machine's, over all nodes: reserved before they are used.

Rules
-----
- Who reserves an id first has it. Whoever comes later waits until the first has committed what it is for, and gets
  that; if the first dies before, the id is free again, and is had by who asks next.
- Where nothing comes of it, the id is given back at once: where what it was reserved for was never given to the kernel
  (its caller was cancelled, say), or the kernel has refused it. Where neither is certain it stays reserved, or two
  nodes could have it. What could not be given back is free once this node has used it, or ends.
- While the database is not reached, it is asked again, with growing delay: as all that is new waits for the journal.
- A job that has ended is run again by the node that adopts it first; others are refused as if it had begun.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..handles.outcomes import RuntimeClosed
from ..journal.contract import JournalError
from .node_context import Delays

if TYPE_CHECKING:
    from ...actors.messages.commands import Reply
    from .node_context import NodeContext

T = TypeVar("T")


class Held:
    """The id of one command on its way, which may be reserved for it. Of one id there is one at a time on this node.

    seat: None where nobody else could have it. over: lets the next one of that id go, which relies on what this one has
    reserved; it is called when that is known to be of use, or was given back, or the runtime closes.
    """

    def __init__(self, seat: NodeContext | None, kind: str, name: str, over: Callable[[], None] = lambda: None) -> None:
        self.seat = seat
        self._kind = kind
        self._name = name
        self._over = over
        self._asked = False  # it may be reserved
        self._refused = False  # by the kernel
        self._giving = False
        self._one_at_a_time = threading.Lock()  # who was cancelled leaves a question behind, in its thread
        self._number = 0  # of the reservation
        self._given_back = False

    async def reserve(self, known: Callable[[], Awaitable[T | None]]) -> T | None:
        """Reserve it for this node, unless there is something of that name, or will be: then returns it.

        known: looks for it. Raises RuntimeClosed, and what `known` raises.
        """
        seat = self.seat
        if seat is None:
            return await known()
        if (found := await seat.again(known)) is not None:
            return found
        delays = Delays()
        while not await self._is_reserved(seat):
            if (found := await seat.again(known)) is not None:
                return found
            await seat.pause(delays())
        return None

    async def _is_reserved(self, seat: NodeContext) -> bool:
        self._asked = True
        self._asked = await seat.again(partial(seat.ask_cluster, self._reserve, seat))
        return self._asked

    def heed(self, reply: Reply) -> None:
        """Note how the kernel answers, which is given the command now: a refusal of its own is certain."""
        if self.seat is None:
            return
        answer = reply.answer

        def told(value: Any, error: Exception | None) -> None:
            self._refused = error is not None
            answer(value, error)

        reply.answer = told

    def answered(self) -> None:
        """The command has been answered, or the runtime closes."""
        if self._refused:
            self.give_back()
        else:
            self._over()

    def give_back(self) -> None:
        """Nothing was, and nothing will be made under it: have others reserve it. Does not wait for that."""
        seat = self.seat
        if self._giving:
            return
        if seat is None or seat.closed or not self._asked:  # who closes gives back all that it has
            self._over()
            return
        self._giving = True
        seat.start(partial(self._give_back, seat))

    async def _give_back(self, seat: NodeContext) -> None:
        try:
            with suppress(JournalError, RuntimeClosed):  # then it stays this node's
                await seat.ask_own(self._release, seat)
        finally:
            self._over()

    # -- in threads, where each may come first

    def _reserve(self, seat: NodeContext) -> bool:
        with self._one_at_a_time:
            if self._given_back:
                return False
            self._number = seat.cluster.reserve(self._kind, self._name)
            return self._number != 0

    def _release(self, seat: NodeContext) -> None:
        with self._one_at_a_time:
            self._given_back = True
            if self._number:
                seat.cluster.release(self._kind, self._name, self._number)


async def adopt(seat: NodeContext | None, kind: str, name: str, request_id: str | None = None) -> bool:
    """Own an ended job, or machine, that is about to go on. False where another node was faster, or the command with
    that key has taken effect.

    What comes of it is numbered above all that its former owner has numbered.
    """
    if seat is None:
        return True
    mine = await seat.patiently(seat.cluster.adopt, kind, name, request_id or "", seat.host.now())
    seat.count_on()
    return mine
