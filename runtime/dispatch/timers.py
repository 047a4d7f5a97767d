"""Timers: one heap for all timers of a runtime.

Rules
- One heap of (due, sequence, timer): the timer with the smallest `due` fires first; of two with the same `due`, the one
  that was armed first.
- Cancelling leaves a tombstone in the heap and costs no search. When the heap has more tombstones than armed timers, it
  is rebuilt: so memory depends on the number of armed timers only.
- A timer fires at most once. `due` is in seconds of the clock's `monotonic()`.
- The heap reads no clock and fires nothing by itself: its owner passes the time and the most timers that may fire. So
  a million timers due at once do not block the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

from msgspec import Struct

__all__ = ["Timer", "Timers"]

# Below this many tombstones a rebuild costs more than it frees.
_FEW_TOMBSTONES = 1024


class Timer(Struct, gc=False, eq=False):
    """One armed timer. It is armed as long as `action` is set; cancelled and fired ones have none."""

    action: Callable[..., object] | None
    # Any: the arguments are passed to `action` only. A single argument that is no tuple is stored without a tuple. That
    # saves memory: ten thousand waiting tasks have one each.
    args: Any

    @property
    def armed(self) -> bool:
        """Whether the timer will still fire."""
        return self.action is not None


class Timers:
    """The heap of timers. Not safe to use from other threads.

    `on_earliest` is called when a timer was armed that is due before all others: code that sleeps until the next timer
    is due must then sleep for less time.
    """

    __slots__ = ("_kind", "_on_earliest", "_sequence", "_tombstones", "fired", "heap", "late", "latest")

    def __init__(self, on_earliest: Callable[[], object] | None = None, kind: type[Timer] = Timer) -> None:
        self._on_earliest = on_earliest
        self._kind = kind
        # Public, so that other code can read its first entry without the cost of a call.
        self.heap: list[tuple[float, int, Timer]] = []
        self._sequence = 0
        self.fired = 0
        self.late = 0.0  # the sum of the seconds between `due` and firing
        self.latest = 0.0  # the most such seconds of one timer
        self._tombstones = 0

    def __len__(self) -> int:
        """How many are armed."""
        return len(self.heap) - self._tombstones

    def arm(self, due: float, action: Callable[..., object], *args: Any) -> Timer:
        """Call `action(*args)` once `due` (monotonic seconds) has come. A due time in the past fires next."""
        timer = self._kind(action, args[0] if len(args) == 1 and type(args[0]) is not tuple else args)
        self._sequence = sequence = self._sequence + 1
        heap = self.heap
        heappush(heap, (due, sequence, timer))
        if heap[0][2] is timer and self._on_earliest is not None:
            self._on_earliest()
        return timer

    def cancel(self, timer: Timer) -> bool:
        """Disarm `timer`. False if it had fired or been cancelled before: then nothing changes."""
        if timer.action is None:
            return False
        timer.action = None
        timer.args = ()
        self._tombstones += 1
        if self._tombstones > _FEW_TOMBSTONES and self._tombstones * 2 > len(self.heap):
            self._compact()
        return True

    def next_due(self) -> float | None:
        """When the next armed timer is due, in monotonic seconds; None if none is armed."""
        heap = self.heap
        while heap:
            due, _, timer = heap[0]
            if timer.action is not None:
                return due
            heappop(heap)
            self._tombstones -= 1
        return None

    def fire_due(self, now: float, limit: int) -> int:
        """Fire the timers that are due at `now`, at most `limit`. Returns the number of fired timers.

        An exception of an action goes to the caller; that timer has fired, the others wait for the next call.
        """
        heap = self.heap
        fired = 0
        while heap and fired < limit and heap[0][0] <= now:
            due, _, timer = heappop(heap)
            action = timer.action
            if action is None:
                self._tombstones -= 1
                continue
            args = timer.args
            timer.action = None
            timer.args = ()
            fired += 1
            late = now - due
            self.late += late
            self.latest = max(self.latest, late)
            self.fired += 1
            if type(args) is tuple:
                action(*args)
            else:
                action(args)
        return fired

    def clear(self) -> None:
        """Disarm all."""
        for _, _, timer in self.heap:
            timer.action = None
            timer.args = ()
        self.heap.clear()
        self._tombstones = 0

    def _compact(self) -> None:
        # In place: fire_due uses this list while an action may cancel other timers.
        self.heap[:] = [entry for entry in self.heap if entry[2].action is not None]
        heapify(self.heap)
        self._tombstones = 0
