"""Timers by the wall clock: one heap of them, and one look at the clock for all.

Rules
- Whoever sleeps until a point in time may not believe in the length of the sleep: the wall clock can be set, and a
  machine can be suspended. So the clock is looked at when the first of them is due, and every `LONGEST_SLEEP` seconds
  at the latest. Ten thousand that are far away cost one look a minute together.
- At most `MOST` fire at one look; the next one comes at once then, after what else is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .clock import Clock
from .timers import Timer, Timers

LONGEST_SLEEP = 60.0
"""Seconds without a look at the wall clock, while anything is armed."""
MOST = 256


class UtcTimer(Timer):
    """A timer whose `due` is in UTC epoch seconds."""


class UtcTimers:
    """What is due by the wall clock, on top of the timers that are due by the monotonic one."""

    def __init__(self, clock: Clock, timers: Timers, longest_sleep: float = LONGEST_SLEEP) -> None:
        self._clock = clock
        self._longest_sleep = longest_sleep
        self._timers = timers
        self._heap = Timers(self._plan, kind=UtcTimer)
        self._look: Timer | None = None

    def __len__(self) -> int:
        """How many are armed."""
        return len(self._heap)

    def arm(self, due: float, action: Callable[..., object], *args: Any) -> Timer:
        """Call `action(*args)` once `due` (UTC epoch seconds) has come."""
        return self._heap.arm(due, action, *args)

    def cancel(self, timer: Timer) -> None:
        """Disarm one of these timers."""
        self._heap.cancel(timer)

    def _plan(self) -> None:
        """See that the clock is looked at in time for the first one."""
        due = self._heap.next_due()
        if due is None:
            return
        left = min(due - self._clock.time(), self._longest_sleep)
        at = self._clock.monotonic() + left
        look = self._look
        if look is not None and look.armed:
            if look.due <= at:
                return
            self._timers.cancel(look)
        self._look = self._timers.arm(at, self.look)

    def look(self) -> None:
        """Look at the wall clock: fire what is due, and plan the next look."""
        try:
            self._heap.fire_due(self._clock.time(), MOST)
        finally:
            self._plan()
