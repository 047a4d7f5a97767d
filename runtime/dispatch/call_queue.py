"""The call queue: functions, and messages from other threads, that wait for the dispatcher.

Rules
- A function runs before the next message of any actor, never inside a receive.
- A message from another thread gets into its mailbox on the loop. At most `MESSAGES` wait here; further ones are
  refused, and become dead letters on the loop.
- Only the first of many entries wakes the loop (`wake_pending`). Code that looks for entries sets it to False before:
  so an entry that comes during the look wakes the loop again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

from ...actors.users.dead_letters import Reason
from ...actors.users.ref import Cell
from .cell_host import CellHost
from .parking import Parking
from .reports import ErrorReporter

__all__ = ["CallQueue"]

MESSAGES = 100_000
"""The most messages of other threads that may wait for the loop; further ones are refused."""
REFUSED = 1_000
"""The most refused messages that are kept as dead letters for the loop; further ones are only counted."""


class CallQueue:
    """The calls that one dispatcher makes between the messages of actors."""

    def __init__(self, host: CellHost, parking: Parking, reports: ErrorReporter) -> None:
        self.waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.messages: deque[tuple[Cell, Any]] = deque()
        self.closed = False
        self._host = host
        self._parking = parking
        self._reports = reports
        self.wake_pending = False  # a wake-up from another thread is on its way
        self._refused: list[tuple[str, Any]] = []
        self._more_refused = 0
        self._lock = Lock()  # for the refused messages

    # -- on the loop -----------------------------------------------------------------------------------------------

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(*args)` before the next message of any actor, never inside a receive."""
        if self._host.parked:
            self._parking.wake()
        self.waiting.append((function, args))

    def run(self, limit: int) -> None:
        """Call up to `limit` functions. Their errors are bugs of the runtime."""
        self.wake_pending = False
        calls = self.waiting
        while calls and limit:
            limit -= 1
            function, args = calls.popleft()
            try:
                function(*args)
            except Exception as error:
                self._reports.on_error(error)

    def deliver(self, limit: int) -> None:
        """Put up to `limit` messages of other threads into their mailboxes."""
        self.wake_pending = False
        messages = self.messages
        while messages and limit:
            limit -= 1
            cell, message = messages.popleft()
            cell.tell(message)

    def clear(self) -> None:
        """Remove all waiting functions and messages."""
        self.waiting.clear()
        self.messages.clear()

    # -- from any thread -------------------------------------------------------------------------------------------

    def call_threadsafe(self, function: Callable[..., object], *args: Any) -> bool:
        """`soon`, from any thread. False if the dispatcher is closed: then it is never called."""
        if self.closed:
            return False
        self.waiting.append((function, args))
        return self._ring()

    def tell_threadsafe(self, cell: Cell, message: Any) -> bool:
        """`Ref.tell_threadsafe`. If `MESSAGES` messages wait, this one is refused, and becomes a dead letter later."""
        if self.closed:
            return False
        if len(self.messages) < MESSAGES:
            self.messages.append((cell, message))
            return self._ring()
        with self._lock:
            if len(self._refused) < REFUSED:
                self._refused.append((cell.name, message))
            else:
                self._more_refused += 1
            first = len(self._refused) == 1 and not self._more_refused
        if first:
            self.call_threadsafe(self._record_refused)
        return False

    def _ring(self) -> bool:
        if self.wake_pending:
            return True
        self.wake_pending = True
        return self._parking.wake_threadsafe()

    def _record_refused(self) -> None:
        with self._lock:
            refused, more = self._refused, self._more_refused
            self._refused, self._more_refused = [], 0
        letters = self._host.dead_letters
        for name, message in refused:
            letters.add(name, message, Reason.MAILBOX_FULL)
        letters.counts[Reason.MAILBOX_FULL] += more
