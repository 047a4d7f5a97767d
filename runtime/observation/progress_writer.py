"""Writes the progress of running bodies where other processes read it: into a file, or into the database of the nodes.

Rules
-----
- Nothing waits for a write, and nothing that is written is durable. It is written in a thread, at most once in `EVERY`
  seconds, and less often if writing is slow.
- Only the last progress of each task is written. A failed write is repeated, with growing delays; a notice reports
  failures that last.
- The written progress is removed when the runtime closes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import JournalError
from .lasting_failure import LastingFailure

if TYPE_CHECKING:
    from ..dispatch.timers import Timer, Timers
    from ..journal.live import LiveProgress
    from .live import LiveTasks

EVERY = 1.0
"""Seconds between two writes."""
LATEST = 60.0
"""Seconds between two tries, at most, while writing fails: doubled each time."""
SHARE = 20
"""Writing takes at most this part of the time: one twentieth."""
MOST = 10_000
"""Tasks whose progress is written."""


class ProgressMedium(Protocol):
    """Where the progress of one runtime's bodies is written. Both methods block."""

    def write(self, progress: Sequence[LiveProgress]) -> None:
        """Write the progress of all bodies, and remove that of other tasks. Raises JournalError."""
        ...

    def remove(self) -> None:
        """Remove the written progress; later writes do nothing. Raises JournalError."""
        ...


class ProgressWriter:
    """Writes the progress of one runtime's bodies.

    ask: runs a blocking function in a thread, and waits for it. start: runs a coroutine function in a task of the
    runtime. notice: emits a notice.
    """

    def __init__(
        self,
        medium: ProgressMedium,
        live: LiveTasks,
        timers: Timers,
        monotonic: Callable[[], float],
        *,
        ask: Callable[..., Awaitable[Any]],
        start: Callable[[Callable[[], Any]], object],
        notice: Callable[..., Any],
    ) -> None:
        self._medium = medium
        self._live = live
        self._timers = timers
        self._monotonic = monotonic
        self._ask = ask
        self._start = start
        self._failure = LastingFailure(notice, "the progress of bodies cannot be written for other processes")
        self._timer: Timer | None = None
        self._writing = False
        self._changed = False  # since the write that is under way has begun
        self._next = float("-inf")  # monotonic: the earliest time of the next write
        self._delay = EVERY  # until the next try, after one that failed
        self._closed = False
        live.on_change = self.changed

    def changed(self) -> None:
        """Have the progress written soon: a body has reported its progress, or has ended."""
        self._changed = True
        if self._timer is None and not self._writing and not self._closed:
            self._timer = self._timers.arm(max(self._next, self._monotonic()), self._begin)

    def _begin(self) -> None:
        self._timer, self._writing = None, True
        self._start(self._write)

    async def _write(self) -> None:
        self._changed = False
        delay = EVERY
        try:
            delay = max(EVERY, SHARE * await self._ask(self._timed, self._live.all_progress(MOST)))
            self._delay = EVERY
            self._failure.succeeded()
        except JournalError as error:
            self._failure.failed(error)
            self._changed = True
            delay, self._delay = self._delay, min(self._delay * 2, LATEST)
        finally:
            self._writing = False
            self._next = self._monotonic() + delay
        if self._changed:
            self.changed()

    def _timed(self, progress: Sequence[LiveProgress]) -> float:
        """Write, and return the seconds that it took."""
        began = time.perf_counter()
        self._medium.write(progress)
        return time.perf_counter() - began

    async def close(self) -> None:
        """Write no more, and remove the written progress."""
        self._closed, self._live.on_change = True, None
        if self._timer is not None:
            self._timers.cancel(self._timer)
        with suppress(JournalError):  # the rest is never taken for another attempt's
            await self._ask(self._medium.remove)
