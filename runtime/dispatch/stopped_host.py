"""The host of stopped cells, in place of the dispatcher's own (`CellHost`).

Rules
- The reference of a stopped actor may be kept for long: by the application, and by the dispatcher's own dead letters.
  The garbage collector does not track cells, so a cell that referenced its dispatcher would keep it for ever. This host
  has a weak reference.
- Cells that have stopped use only the part of `ActorHost` that is here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref as weak

if TYPE_CHECKING:
    from ...actors.users.ref import Cell
    from .cell_host import CellHost

__all__ = ["StoppedHost"]


class StoppedHost:
    """Handles no message, and records each as a dead letter."""

    __slots__ = ("_host",)

    turn = None
    current = None

    def __init__(self, host: CellHost) -> None:
        self._host = weak(host)

    def admit(self, cell: Cell, message: Any) -> bool:
        """Record a dead letter."""
        host = self._host()
        return host is not None and host.admit(cell, message)

    def failure_of(self, cell: Cell, since: float = 0.0) -> BaseException | None:
        """The error by which the actor ended, if it is still kept."""
        host = self._host()
        return None if host is None else host.failure_of(cell, since)

    def tell_threadsafe(self, cell: Cell, message: Any) -> bool:
        """Pass the message on to the event loop, which records it as a dead letter. Returns False."""
        host = self._host()
        if host is not None:
            host.tell_threadsafe(cell, message)
        return False

    def call_threadsafe(self, function: Callable[..., object], *args: Any) -> bool:
        """Pass the call on to the event loop."""
        host = self._host()
        return host is not None and host.call_threadsafe(function, *args)
