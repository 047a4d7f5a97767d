"""The watchdog of the event loop: tells of a loop that did not turn, with the stack of what blocked it.

Rules
-----
- A thread of its own pings the dispatcher, and waits for the answer. Only while there is work: once the dispatcher has
  rested since the last ping and no coroutine runs here, the thread sleeps until there is work again, without a limit.
- Whether to sleep is seen at the end of the slice that answered: a coroutine that began in that slice runs, too.
- Between two pings there is always the same pause, whatever comes meanwhile: work that begins just as an answer said
  that there is none rings the bell, and no bell makes this thread faster.
- Once an answer is overdue by half of the threshold, it takes the loop's stack, once. What holds the interpreter's lock
  cannot be seen: then there is no stack, and the processor time tells it from a process that was stopped or suspended.
- What is told is at least as long as is said: what was before the ping is not known. A loop that was blocked for the
  threshold is always told of, unless this thread was held up as well; one that was blocked for less than three
  quarters of it never.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

FRAMES = 25
"""Frames of the stack that are told, the innermost ones."""
PINGS = 4
"""Pings within the threshold."""


class Watchdog:
    """Made and told on the loop's thread. `post` calls a function on the loop from any thread, False if it has ended;
    `busy` says whether any coroutine runs; `tell` hears how long (seconds), and the stack.
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
        self._bell = threading.Event()  # there is work, or it is over
        self._answered = threading.Event()
        self._own = False  # the slice that ends now was for the answer
        self._worked = False  # since the last ping
        self._pinged = 0.0
        self._spent = 0.0  # processor time at the last ping
        self._stack: str | None = None

    def turned(self) -> None:
        """The dispatcher did something. Called after each of its slices."""
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
            self._bell.set()

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self._bell.set()
        self._answered.set()
        if self._thread is not None:
            self._thread.join(1.0)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.is_set():
            self._bell.wait()
            self._bell.clear()
            while not self.asleep and self._ping() and not self._over.wait(self.threshold / PINGS):
                pass

    def _ping(self) -> bool:
        """Ask once, and wait for the answer. False if there is nobody to ask."""
        self._answered.clear()
        if self._over.is_set():  # what was just cleared may have been the end's
            return False
        self._stack = None
        self._worked = False
        self.pings += 1
        self._spent, self._pinged = time.process_time(), time.monotonic()
        if not self._post(self._answer):
            return False
        if not self._answered.wait(self.threshold / 2):
            if time.monotonic() - self._pinged < self.threshold:  # else this thread was held up itself
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
            if seen:  # else the whole process stood still
                self._tell(took, stack)
        self._answered.set()
