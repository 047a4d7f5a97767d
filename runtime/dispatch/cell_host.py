"""The part of the dispatcher that the cells of actors read and call: `ActorHost` in actors/users/host.py.

Rules
- A sender reads these fields for each message. So they are the fields of one object, which every cell references.
- The functions are methods of the dispatcher's parts, bound once. A method here that only passes its call on to a part
  would cost one more frame for each ask.
- `current` and `turn` say which receive runs now. Only code that starts, interrupts or ends a receive sets them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...actors.users.actor import After, Later
from ...actors.users.ref import Cell, PendingOffer, Request, Turn

if TYPE_CHECKING:
    from ...actors.users.dead_letters import DeadLetters
    from ...actors.users.host import Waiter
    from .timers import Timers

__all__ = ["CellHost"]


class CellHost:
    """The dispatcher, as cells use it."""

    def __init__(self, timers: Timers, dead_letters: DeadLetters) -> None:
        self.timers = timers
        self.dead_letters = dead_letters
        self.ready: deque[Any] = deque()  # the run queue: Cell and SystemRef
        self.log: list[Any] = []  # the effects of the plain receive that runs: see runtime/dispatch/effects.py
        self.current: Cell | None = None
        self.turn: Turn | None = None
        self.parked = False
        # The dispatcher sets these functions when it has made its parts. The parts document them.
        self.wake: Callable[[], None]
        self.check_here: Callable[[], None]
        self.waiter: Callable[[], Waiter]
        self.now: Callable[[], float]
        self.admit: Callable[[Cell, Any], bool]
        self.handled: Callable[[Cell], int]
        self.wait_for_room: Callable[[Cell, PendingOffer], None]
        self.failure_of: Callable[..., BaseException | None]
        self.hold: Callable[[Cell, Any], bool]
        self.stage: Callable[..., None]
        self.release: Callable[[Turn], None]
        self.put_off: Callable[[Cell], Later]
        self.after: Callable[[Cell, int, float, Any], After]
        self.tell_threadsafe: Callable[[Cell, Any], bool]
        self.call_threadsafe: Callable[..., bool]
        self.lend: Callable[[Request], None]
        self.spawn_child: Callable[..., Cell]
        self.stop: Callable[[Cell], None]
        self.leave: Callable[[Cell], None]
        self.watch: Callable[[Cell, Cell], None]
        self.unwatch: Callable[[Cell, Cell], None]

    def enter_receive(self, turn: Turn) -> None:
        """Begin a step of a coroutine receive: later effects belong to this receive."""
        self.turn = turn
        self.current = turn.cell

    def leave_receive(self) -> None:
        """End or interrupt the present receive: later effects happen at once, and belong to no receive."""
        self.turn = None
        self.current = None

    def at_once(self, do: Callable[..., object], *args: Any) -> None:
        """Do something now, even while a receive runs, without staging it."""
        turn, current = self.turn, self.current
        self.turn = self.current = None
        try:
            do(*args)
        finally:
            self.turn, self.current = turn, current

    def send_now(self, cell: Cell, message: Any) -> bool:
        """`tell`, but not held back by the coroutine receive that sends."""
        turn, current = self.turn, self.current
        self.turn = self.current = None
        try:
            return cell.tell(message)
        finally:
            self.turn, self.current = turn, current
