"""Ids that are unique over all nodes: each is reserved before it is used.

Rules
-----
- The first node to reserve an id has it. A later one waits until the first has committed the job or machine, and gets
  that; if the first node dies before, the id is free again for the next one that asks.
- If no job or machine comes of it, the id is released at once: if the kernel never got the command (its caller was
  cancelled, for example), or refused it. If neither is certain, the id stays reserved, since otherwise two nodes could
  have it. An id that could not be released is free when this node has used it, or ends.
- While the database cannot be reached, a question is repeated with growing delays, as all new work waits for the
  journal.
- An ended job is run again by the first node that adopts it; the others are refused as if the run had begun already.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import JournalError, RuntimeClosed

if TYPE_CHECKING:
    from ...actors.messages.commands import Reply
    from .node_context import NodeContext

T = TypeVar("T")


class IdReservation:
    """The id of one command, which may be reserved for it. A node has one at a time of each id.

    node: None if there are no other nodes. over: lets the next command with that id go on, which relies on this one's
    reservation; it is called when the reservation was used or released, or the runtime closes.
    """

    def __init__(self, node: NodeContext | None, kind: str, name: str, over: Callable[[], None] = lambda: None) -> None:
        self.node = node
        self._kind = kind
        self._name = name
        self._over = over
        self._asked = False  # the database may have reserved it
        self._refused = False  # the kernel has refused the command
        self._giving = False
        self._one_at_a_time = threading.Lock()  # a cancelled caller's question goes on in its thread
        self._number = 0  # the reservation's number
        self._given_back = False

    async def reserve(self, known: Callable[[], Awaitable[T | None]]) -> T | None:
        """Reserve the id for this node. If a job or machine has it, or gets it meanwhile, return that instead.

        known: looks for that job or machine. Raises RuntimeClosed, and whatever `known` raises.
        """
        node = self.node
        if node is None:
            return await known()
        if (found := await node.again(known)) is not None:
            return found
        from .delays import Delays  # noqa: PLC0415 - only among nodes

        delays = Delays()
        while not await self._is_reserved(node):
            if (found := await node.again(known)) is not None:
                return found
            await node.pause(delays())
        return None

    async def _is_reserved(self, node: NodeContext) -> bool:
        self._asked = True
        self._asked = await node.again(partial(node.ask_cluster, self._reserve, node))
        return self._asked

    def heed(self, reply: Reply) -> None:
        """Watch the kernel's answer to the command: after a refusal the id can be released."""
        if self.node is None:
            return
        answer = reply.answer

        def told(value: Any, error: Exception | None) -> None:
            self._refused = error is not None
            answer(value, error)

        reply.answer = told

    def answered(self) -> None:
        """Note that the command was answered, or that the runtime closes."""
        if self._refused:
            self.give_back()
        else:
            self._over()

    def give_back(self) -> None:
        """Release the id, since no job or machine will have it. Does not wait for the database."""
        node = self.node
        if self._giving:
            return
        if node is None or node.closed or not self._asked:  # a closing node releases all its ids anyway
            self._over()
            return
        self._giving = True
        node.start(partial(self._give_back, node))

    async def _give_back(self, node: NodeContext) -> None:
        try:
            with suppress(JournalError, RuntimeClosed):  # then the id stays reserved for this node
                await node.ask_own(self._release, node)
        finally:
            self._over()

    # -- in threads: either of the two may come first

    def _reserve(self, node: NodeContext) -> bool:
        with self._one_at_a_time:
            if self._given_back:
                return False
            self._number = node.cluster.reserve(self._kind, self._name)
            return self._number != 0

    def _release(self, node: NodeContext) -> None:
        with self._one_at_a_time:
            self._given_back = True
            if self._number:
                node.cluster.release(self._kind, self._name, self._number)


async def adopt(node: NodeContext | None, kind: str, name: str, request_id: str | None = None) -> bool:
    """Adopt an ended job or machine that goes on here.

    Returns False if another node was faster, or the command took effect before.

    request_id: the command's key. New numbers are higher than all of the former owner's.
    """
    if node is None:
        return True
    mine = await node.patiently(node.cluster.adopt, kind, name, request_id or "", node.host.now())
    node.count_on()
    return mine
