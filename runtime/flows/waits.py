"""What the body of a flow waits for: a time, an event, or whichever of them comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from ..dispatch.timers import Timer, Timers

Listen: TypeAlias = Callable[[Callable[[], object]], Callable[[], object]]
"""Subscribes to an event (a message, a decision, the end of a child job), and calls the given function when the event
has come, once or more often. Returns the function that ends the subscription.
"""


class Wait(msgspec.Struct, eq=False):
    """One wait, of a body in memory or of one that was dropped.

    token: of the attempt. until: UTC epoch seconds, None if it waits for an event only. tell: called with the token
    once the wait is over. The garbage collector has to see it: of a runtime that was abandoned, nobody ends its waits.
    """

    token: int
    until: float | None
    tell: Callable[[int], object]
    over: bool = False
    in_time: bool = False  # the wait is over because its time has come
    timer: Timer | None = None
    stop: Callable[[], object] | None = None  # ends the subscription to the event
    began_empty: bool = False  # of a flow whose body was dropped: none of its steps was kept when its body began

    def begin(self, timers: Timers, due: float | None, listen: Listen | None) -> None:
        """Wait from now on. due: `until` in seconds of the monotonic clock."""
        if due is not None:
            self.timer = timers.arm(due, _time_has_come, self)
        if listen is not None:
            self.stop = listen(self._event_is_there)

    def end(self, timers: Timers) -> None:
        """Wait no longer."""
        self.over = True
        if self.timer is not None:
            timers.cancel(self.timer)
            self.timer = None
        if self.stop is not None:
            stop, self.stop = self.stop, None
            stop()

    def _event_is_there(self) -> None:
        if not self.over:
            self.over = True
            self.tell(self.token)


def _time_has_come(wait: Wait) -> None:
    wait.timer = None
    if not wait.over:
        wait.over = wait.in_time = True
        wait.tell(wait.token)
