"""The watchdog of the event loop: reports a blocked loop, with the stack of the code that blocked it.

Rules
-----
- A thread of its own pings the dispatcher, and waits for the answer, but only while there is work. When the dispatcher
  has done nothing since the last ping and no coroutine runs, the thread sleeps until there is work again.
- The end of the slice that answered decides whether the thread sleeps: so a coroutine that began in that slice counts.
- The pause between two pings is always the same. Work that begins right after an answer wakes the thread by an event
  (`_wake`), but does not make its pings more frequent.
- When half of the threshold has passed without an answer, the thread takes the loop's stack, once. Code that holds the
  interpreter's lock stops this thread, too. Then there is no stack, and the processor time shows whether the
  process ran, or was stopped or suspended.
- The reported duration is a minimum, since the time before the ping is unknown. A loop that was blocked for the
  threshold is always reported, unless this thread was blocked as well. A loop that was blocked for less than three
  quarters of the threshold is never reported.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

FRAMES = 25
"""The number of reported frames of the stack, the innermost ones."""
PINGS = 4
"""Pings within the threshold."""


class Watchdog:
    """Watches one event loop. Make it, and call its methods, on the loop's thread.

    `post` calls a function on the loop from any thread, and returns False if the loop has ended. `busy` returns whether
    any coroutine runs. `tell` gets the report: the seconds, and the stack.
    """

    def __init__(
        self,
        threshold: float,
        *,
        post: Callable[[Callable[[], None]], bool],
        busy: Callable[[], bool],
        tell: Callable[[float, str | None], None],
    ) -> None:
        self.threshold = threshold
        self.asleep = True
        self.pings = 0
        self._post = post
        self._busy = busy
        self._tell = tell
        self._loop_thread = threading.get_ident()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()  # set once, at the end
        self._wake = threading.Event()  # set when there is work, or at the end
        self._answered = threading.Event()
        self._own = False  # the slice that ends now has run the answer
        self._worked = False  # the dispatcher has done something since the last ping
        self._pinged = 0.0
        self._spent = 0.0  # processor time at the last ping
        self._stack: str | None = None

    def turned(self) -> None:
        """The dispatcher calls this after each of its slices, which run only when there is something to do."""
        if self._own:
            self._own = False
            if not self._worked and not self._busy():
                self.asleep = True
            return
        self._worked = True
        if self.asleep and not self._over.is_set():
            self.asleep = False
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="callboard-watchdog", daemon=True)
                self._thread.start()
            self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._wake.set()
        self._answered.set()
        if self._thread is not None:
            self._thread.join(1.0)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self.asleep and self._ping() and not self._over.wait(self.threshold / PINGS):
                pass

    def _ping(self) -> bool:
        """Ping once, and wait for the answer. False at the end, or if the loop has ended."""
        self._answered.clear()
        if self._over.is_set():  # the event that was just cleared may have been set by `close`
            return False
        self._stack = None
        self._worked = False
        self.pings += 1
        self._spent, self._pinged = time.process_time(), time.monotonic()
        if not self._post(self._answer):
            return False
        if not self._answered.wait(self.threshold / 2):
            if time.monotonic() - self._pinged < self.threshold:  # otherwise this thread was blocked itself
                self._stack = self._look()
            self._answered.wait()
        return not self._over.is_set()

    def _look(self) -> str | None:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage] - documented for this
        return None if frame is None else "".join(traceback.format_stack(frame)[-FRAMES:])

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        self._own = True
        took = time.monotonic() - self._pinged
        stack = self._stack
        if took >= self.threshold * (PINGS - 1) / PINGS:
            seen = stack is not None or time.process_time() - self._spent >= took / 2
            if seen:  # otherwise the whole process was stopped
                self._tell(took, stack)
        self._answered.set()
