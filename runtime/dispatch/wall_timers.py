"""Timers that are due by the wall clock, and that stay right when this clock is set.

Rules
- A sleep until a point in time may end too early or too late: somebody can set the wall clock, and a machine can be
  suspended. So the clock is read when the first timer is due, and every `LONGEST_SLEEP` seconds at the latest. Ten
  thousand timers far in the future together cost one reading of the clock a minute.
- A *moment* (9 o'clock) is due when the wall clock shows it, and not before. A *span* (an hour from now: a backoff, an
  expiry, a deadline) is over when the wall clock shows its end, or when that much monotonic time has passed, whichever
  is first. So a clock that is set back makes no span longer. A clock that is set forward counts as time that has
  passed, since a machine that was suspended looks the same.
- At most `MOST` timers fire at one reading. If more are due, the next one follows at once, after other due timers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .clock import Clock
from .timers import Timer, Timers

LONGEST_SLEEP = 60.0
"""The most seconds without a look at the wall clock, while a timer is armed."""
MOST = 256
LEAST = 1.0
"""Seconds by which a wall clock must go back to count as set back: time services correct it by less."""
SAME = 0.001
"""Seconds by which spans with one end may differ, since the two clocks are read one after the other. They share one
number: ten thousand tasks that wait for an hour hold one, not ten thousand.
"""


class WallClock:
    """The wall clock. It notices when the clock is set back."""

    __slots__ = ("_clock", "_frame", "_on_set_back", "set_back")

    def __init__(self, clock: Clock, on_set_back: Callable[[], object]) -> None:
        self._clock = clock
        self._on_set_back = on_set_back
        self._frame = clock.time() - clock.monotonic()  # wall minus monotonic: the most since it was set back
        self.set_back = 0.0  # the sum of the seconds by which it was set back

    def now(self) -> float:
        """UTC epoch seconds."""
        now = self._clock.time()  # read first: a pause before the other reading can only make the frame smaller
        frame = now - self._clock.monotonic()
        if frame > self._frame:
            self._frame = frame
        elif frame < self._frame - LEAST:
            self.set_back += self._frame - frame
            self._frame = frame
            self._on_set_back()
        return now

    def steady(self) -> float:
        """Seconds that measure spans: they never go back, and never run slower than the monotonic clock."""
        self.now()
        return self._clock.monotonic() + self._frame + self.set_back


class UtcTimer(Timer):
    """A timer that is due in UTC epoch seconds."""


class SpanTimer(UtcTimer):
    """A timer that is due in seconds of `WallClock.steady`."""


class UtcTimers:
    """Timers by the wall clock. They use one timer of the monotonic clock for the next look.

    on_set_back: called when a look finds that the wall clock was set back.
    """

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        longest_sleep: float = LONGEST_SLEEP,
        on_set_back: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock = clock
        self.wall = WallClock(clock, on_set_back)
        self._longest_sleep = longest_sleep
        self._timers = timers
        self._moments = Timers(self._plan, kind=UtcTimer)
        self._spans = Timers(self._plan, kind=SpanTimer)
        self._look: Timer | None = None
        self._look_at = 0.0  # the due time of that timer
        self._last = 0.0, 0.0  # the last span: its end by the wall clock, and by `WallClock.steady`

    def __len__(self) -> int:
        """How many are armed."""
        return len(self._moments) + len(self._spans)

    @property
    def heaps(self) -> tuple[Timers, Timers]:
        """For tests: the heaps of moments and of spans."""
        return self._moments, self._spans

    def arm(self, due: float, action: Callable[..., object], *args: Any) -> Timer:
        """Call `action(*args)` once the moment `due` (UTC epoch seconds) has come."""
        return self._moments.arm(due, action, *args)

    def arm_span(self, due: float, action: Callable[..., object], *args: Any) -> Timer:
        """Call `action(*args)` once the span from now until `due` (UTC epoch seconds) is over."""
        steady = self.wall.steady()
        end = steady + (due - self._clock.time())
        if self._last[0] == due and abs(self._last[1] - end) < SAME:
            end = self._last[1]
        else:
            self._last = due, end
        return self._spans.arm(end, action, *args)

    def cancel(self, timer: Timer) -> None:
        """Disarm one of these timers."""
        (self._spans if isinstance(timer, SpanTimer) else self._moments).cancel(timer)

    def _plan(self) -> None:
        """Arm the timer for the next look at the clock, in time for the first of these timers."""
        moment, span = self._moments.next_due(), self._spans.next_due()
        if moment is None and span is None:
            return
        left = self._longest_sleep
        if span is not None:
            left = min(left, span - self.wall.steady())
        if moment is not None:
            left = min(left, moment - self._clock.time())
        at = self._clock.monotonic() + left
        look = self._look
        if look is not None and look.armed:
            if self._look_at <= at:
                return
            self._timers.cancel(look)
        self._look, self._look_at = self._timers.arm(at, self.look), at

    def look(self) -> None:
        """Read the wall clock, fire the due timers, and plan the next reading."""
        try:
            fired = self._spans.fire_due(self.wall.steady(), MOST)
            self._moments.fire_due(self._clock.time(), MOST - fired)
        finally:
            self._plan()
