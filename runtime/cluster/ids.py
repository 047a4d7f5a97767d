"""Ids that must be one job's, or one machine's, over all nodes: reserved before they are used.

Rules
-----
- Who reserves an id first has it. Whoever comes later waits until the first has committed what it is for, and gets
  that; if the first dies before, the id is free again, and is had by who asks next.
- While the database is not reached, it is asked again, with growing delay: as all that is new waits for the journal.
- A job that has ended is run again by the node that adopts it first; others are refused as if it had begun.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from .seat import Delays

if TYPE_CHECKING:
    from .seat import Seat

T = TypeVar("T")


async def reserve(seat: Seat | None, kind: str, name: str, known: Callable[[], Awaitable[T | None]]) -> T | None:
    """Reserve a name for this node, unless there is something of that name, or will be: then returns it.

    known: looks for it. Without a seat nobody else could have it. Raises RuntimeClosed, and what `known` raises.
    """
    if seat is None:
        return await known()
    if (found := await seat.again(known)) is not None:
        return found
    delays = Delays()
    while not await seat.patiently(seat.cluster.reserve, kind, name):
        if (found := await seat.again(known)) is not None:
            return found
        await seat.pause(delays())
    return None


async def adopt(seat: Seat | None, kind: str, name: str, request_id: str | None = None) -> bool:
    """Own an ended job, or machine, that is about to go on. False where another node was faster, or the command with
    that key has taken effect.

    What comes of it is numbered above all that its former owner has numbered.
    """
    if seat is None:
        return True
    mine = await seat.patiently(seat.cluster.adopt, kind, name, request_id or "", seat.host.now())
    seat.count_on()
    return mine
