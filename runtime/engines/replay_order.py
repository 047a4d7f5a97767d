"""The order of a replay with branches: when a kept step returns, and when a call is given up again.

Rules
- Branches of a body come in another order each time, and what one of them does next (it cancels the others, perhaps)
  came after what the others had done before. So in a replay a branch waits until the others have come as far.
- A kept step returns once the kept steps are called that had begun before it ended, and the calls are given up that
  were given up before: or once no branch goes on for `TURNS` turns of the loop, since changed code may not call them.
- A call is given up again once all is called that had been decided before, or after `QUIET` seconds without a call.
- Nothing here is I/O, and a body without branches and given-up calls waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

import anyio
import anyio.lowlevel

from .kept_steps import KeptSteps

TURNS = 5
"""Turns of the loop for which a replay lets other branches of the body call their kept steps."""
QUIET = 1.0
"""Seconds without a call after which a call is given up again, though not all is called that was decided before."""


class _Suspended(NamedTuple):
    """A call that is to be given up again, as it was `at` that time. over: set when it may be."""

    at: float
    over: anyio.Event


class ReplayOrder:
    """The order in which the calls of one body return in a replay.

    kept: the kept steps that it has not called yet. first_decided: when the first of them was decided in this round.
    after: calls a function after so many seconds.
    """

    def __init__(
        self,
        kept: KeptSteps,
        first_decided: Callable[[], float],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._kept = kept
        self._first_decided = first_decided
        self._after = after
        self._suspended: list[_Suspended] = []  # calls that are to be given up again
        self._busy = self._watching = False  # the body has called a step meanwhile; a timer looks whether it does
        self._released_to = 0.0  # up to this time all that had been decided was called
        self._waiters: list[tuple[float, int, anyio.Event]] = []  # kept steps that let others be called first, by end
        self._arrivals = count()

    def called(self, *, step: bool = True) -> None:
        """Note that the body has called a kept step, or (step=False) what may be one."""
        if self._suspended:
            self._busy = self._busy or step
            self._release()

    async def until_given_up(self, at: float) -> None:
        """Wait until the body has called all that had been decided before that time, and its branches have gone on."""
        suspended = _Suspended(at, anyio.Event())
        self._suspended.append(suspended)
        try:
            if at > self._first_decided():
                if not self._watching:
                    self._watching = True
                    self._after(QUIET, self._release_unless_busy)
                await suspended.over.wait()
            suspended.over.set()
            for _ in range(TURNS):
                await anyio.lowlevel.checkpoint()
        finally:
            self._suspended.remove(suspended)

    async def let_branches_catch_up(self, ended_at: float) -> None:
        """Let other branches call first the kept steps that had begun before that time, as far as they come to them at
        once.
        """
        if not self._kept.begun_before(ended_at):
            return
        waiter = ended_at, next(self._arrivals), anyio.Event()
        heappush(self._waiters, waiter)
        quiet = 0
        try:
            with anyio.CancelScope(shield=True):  # what has ended is returned
                while quiet < TURNS and self._kept.begun_before(ended_at):
                    if self._waiters[0] is not waiter:  # only the first one looks, since there may be thousands
                        await waiter[2].wait()
                        continue
                    left = len(self._kept)
                    await anyio.lowlevel.checkpoint()
                    goes_on = len(self._kept) != left or self._gives_up_before(ended_at)
                    quiet = 0 if goes_on else quiet + 1
        finally:
            if self._waiters[0] is waiter:
                heappop(self._waiters)
            else:
                self._waiters.remove(waiter)
                heapify(self._waiters)
            if self._waiters:
                self._waiters[0][2].set()
        self._kept.pass_over(ended_at)

    def _gives_up_before(self, time: float) -> bool:
        """Whether a call is about to be given up that was given up before that time: its branch goes on then."""
        return any(one.at < time and one.over.is_set() for one in self._suspended)

    def _release(self) -> None:
        """Let calls be given up again if all that had been decided before was called."""
        first = self._first_decided()
        if first > self._released_to:
            self._released_to = first
            for one in self._suspended:
                if one.at <= first:
                    one.over.set()

    def _release_unless_busy(self) -> None:
        """Let them be given up, though not all is called that had been decided before, if nothing was called lately."""
        busy, self._busy = self._busy, False
        self._watching = busy and bool(self._suspended)
        if self._watching:
            self._after(QUIET, self._release_unless_busy)
        else:
            for one in self._suspended:
                one.over.set()
