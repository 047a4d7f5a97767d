"""Parking: the dispatcher's task sleeps while there is nothing to do, and is woken on its own event loop only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .cell_host import CellHost
from .waker import ACTORS, Waker, native_waiter, native_waker

if TYPE_CHECKING:
    from ...actors.users.host import Waiter

__all__ = ["Parking"]


class Parking:
    """How the task of one dispatcher sleeps. Without an event loop there is no such task, and nothing to wake."""

    def __init__(self, host: CellHost) -> None:
        self._host = host
        self.waker: Waker | None = None  # set while a task runs the dispatcher
        self.called: Callable[[], None] = self.wake  # on the loop, after `wake_threadsafe`

    def open(self) -> Waker:
        """Begin on the present event loop, in the task that will sleep. Raises RuntimeError if another task runs it."""
        if self.waker is not None:
            msg = "the dispatcher is running already; one task runs it"
            raise RuntimeError(msg)
        self.waker = native_waker()
        return self.waker

    def close(self) -> None:
        """The task has ended."""
        if self.waker is not None:
            self.waker.close()
        self.waker = None

    def wake(self) -> None:
        """End the sleep, or keep the next one from beginning."""
        if self.waker is not None:
            self.waker.wake()  # first, since it refuses other threads
        self._host.parked = False

    def wake_threadsafe(self) -> bool:
        """`wake` from any thread, by `called` on the loop. False if the event loop has ended."""
        waker = self.waker  # read once: the loop may close meanwhile
        return True if waker is None else waker.call_threadsafe(self.called)

    def check_here(self) -> None:
        """Refuse other threads and event loops, where no wake-up works. Raises RuntimeError."""
        if self.waker is not None:
            self.waker.own_loop.check(ACTORS)

    def waiter(self) -> Waiter:
        """A waiter for the present task."""
        return native_waiter() if self.waker is None else self.waker.waiter()
