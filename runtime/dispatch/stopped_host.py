"""What the cell of an ended actor has for a host.

An ended actor's reference may live on in anybody's hands, also in the dispatcher's own dead letters. It must
not keep the dispatcher alive from there: cells are unknown to the garbage collector, and such a circle would
never be freed. So it knows the dispatcher only as long as others do. `Ref` asks its host for nothing but this
once it is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref as weak

if TYPE_CHECKING:
    from ...actors.users.ref import Cell
    from .mailbox import Mailroom

__all__ = ["Grave"]


class Grave:
    """The host of ended actors: nothing is handled any more, everything is recorded."""

    __slots__ = ("_mailroom",)

    turn = None
    current = None

    def __init__(self, mailroom: Mailroom) -> None:
        self._mailroom = weak(mailroom)

    def admit(self, cell: Cell, message: Any) -> bool:
        """Record a dead letter."""
        mailroom = self._mailroom()
        return mailroom is not None and mailroom.admit(cell, message)

    def failure_of(self, cell: Cell, since: float = 0.0) -> BaseException | None:
        """By what it ended, as far as that is still known."""
        mailroom = self._mailroom()
        return None if mailroom is None else mailroom.failure_of(cell, since)

    def tell_threadsafe(self, cell: Cell, message: Any) -> bool:
        """Go on to the loop, where it will be recorded."""
        mailroom = self._mailroom()
        return mailroom is not None and mailroom.tell_threadsafe(cell, message)

    def call_threadsafe(self, function: Callable[..., object], *args: Any) -> bool:
        """Go on to the loop, where it will be recorded."""
        mailroom = self._mailroom()
        return mailroom is not None and mailroom.call_threadsafe(function, *args)
