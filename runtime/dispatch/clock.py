"""Clocks and sources of ids: all code of Callboard gets the time and new ids from these.

Rules
- The library reads the time and makes ids only through the `Clock` and the `Ids` that it was given. So a test moves
  time by hand and never sleeps, and a simulation with the same seed makes the same ids.
- Durations and due times inside one process use `monotonic()`; times that are persisted use `time()`. The two are
  never compared with each other: UTC may jump, monotonic time may not.
- A `VirtualClock` stands still until somebody moves it. Code that waits for it registers a listener (`on_advance`).
- Ids sort by the time they were made. Each id of one `TimeOrderedIds` is greater than all before it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "Ids", "SystemClock", "TimeOrderedIds", "VirtualClock"]

# Crockford's base 32 (no I, L, O, U), two characters at a time: 10 bits per look-up.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_PAIR_SHIFTS = tuple(range(120, -1, -10))
_RANDOM_BITS = 80


class Clock(Protocol):
    """A source of time for a runtime."""

    def monotonic(self) -> float:
        """Seconds since a fixed moment; it never goes back. For durations and due times in this process."""
        ...

    def time(self) -> float:
        """Seconds since the epoch, UTC; it may jump. For times that are persisted."""
        ...


class Ids(Protocol):
    """A source of new ids."""

    def new(self) -> str:
        """A new, unique id that sorts after all earlier ones."""
        ...


class SystemClock:
    """The clock of the operating system."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class VirtualClock:
    """A clock whose time changes only when a test moves it.

    `start` is the UTC time in seconds at which it begins; its monotonic time begins at 0.
    """

    __slots__ = ("_listeners", "_now", "_start")

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._start = start
        self._now = 0.0
        self._listeners: list[Callable[[], object]] = []

    def monotonic(self) -> float:
        """Seconds moved so far."""
        return self._now

    def time(self) -> float:
        """The UTC start plus the seconds moved so far."""
        return self._start + self._now

    def advance(self, seconds: float) -> None:
        """Move both times forward by `seconds` and call the listeners. Raises `ValueError` if `seconds` is negative."""
        if seconds < 0:
            msg = f"cannot move a clock back by {-seconds} s; monotonic time only rises"
            raise ValueError(msg)
        self._now += seconds
        for listener in tuple(self._listeners):
            listener()

    def jump_utc(self, seconds: float) -> None:
        """Shift UTC alone, as a corrected system clock does. `seconds` may be negative."""
        self._start += seconds

    def on_advance(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` after each move. Returns the function that ends this."""
        self._listeners.append(listener)

        def forget() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return forget


class TimeOrderedIds:
    """ULIDs: 48 bits of UTC milliseconds and 80 random bits, as 26 characters of base 32.

    Within one millisecond, and when UTC goes back, the last id is counted up, so that ids always rise.
    """

    __slots__ = ("_clock", "_last", "_random")

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._random = rng
        self._last = 0

    def new(self) -> str:
        """The next id: 26 characters, sorting after every earlier one of this source."""
        number = int(self._clock.time() * 1000) << _RANDOM_BITS | self._random.getrandbits(_RANDOM_BITS)
        if number >> _RANDOM_BITS <= self._last >> _RANDOM_BITS:
            number = self._last + 1
        self._last = number
        return "".join([_PAIRS[number >> shift & 1023] for shift in _PAIR_SHIFTS])
