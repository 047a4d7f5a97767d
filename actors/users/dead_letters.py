"""Dead letters: every message of users' actors that was not handled, with the reason.

Rules
- No message is dropped silently: a message that is not handled is recorded here, and counted by its reason.
- The newest letters are kept in a ring of fixed size; the counts never stop.
- A subscriber is called with each letter, on the event loop, outside of any receive, soon after the letter came. An
  error of a subscriber is reported (`tell_broken`) and counted; it reaches neither the sender nor other subscribers.
- A dead letter that a subscriber itself causes is recorded, but no subscriber is called with it: else a subscriber
  that forwards letters to a stopped actor would receive its own letters forever.
- A letter holds its recipient's name and no reference, so that the ring keeps no actor alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from ...machines.machine import answers_later
from ..user_code import called, shown

__all__ = ["DeadLetter", "DeadLetters", "Reason"]


class Reason(StrEnum):
    """Why a message was not handled."""

    MAILBOX_FULL = "mailbox_full"  # `tell` found no room and returned False
    STOPPED = "stopped"  # the recipient had stopped, or stopped with the message in its mailbox
    FAILED = "failed"  # `receive` raised on it
    ABANDONED = "abandoned"  # the coroutine `receive` was still running at its time limit
    LATE_REPLY = "late_reply"  # the answer to an ask that had timed out, was cancelled, or had been answered
    REFUSED = "refused"  # `receive` returned a Refusal, and the message was no ask
    STALE_TIMER = "stale_timer"  # a timer armed before the actor was rebuilt


class DeadLetter(Struct, frozen=True, gc=False):
    """One message that was not handled.

    error: the error of its `receive`, or the error that stopped its recipient; None without one.
    """

    recipient: str
    # Any: users' messages are of any type.
    message: Any
    reason: Reason
    error: BaseException | None = None


class DeadLetters:
    """`Runtime.dead_letters`: the newest thousand unhandled messages, and the counts of all."""

    __slots__ = ("_on_broken", "_ring", "_soon", "_subscribers", "_telling", "counts", "subscriber_errors")

    def __init__(self, limit: int = 1000) -> None:
        self._ring: deque[DeadLetter] = deque(maxlen=limit)
        self._subscribers: list[Callable[[DeadLetter], object]] = []
        self._soon: Callable[..., object] | None = None
        self._on_broken: Callable[[Exception, int], object] = _nobody
        self._telling = False
        self.counts: dict[Reason, int] = dict.fromkeys(Reason, 0)
        """The number of all letters, by reason."""
        self.subscriber_errors = 0
        """How often a subscriber has raised."""

    @property
    def count(self) -> int:
        """The number of all letters, also of those that are no longer kept."""
        return sum(self.counts.values())

    def newest(self) -> list[DeadLetter]:
        """The letters that are kept, the oldest first."""
        return list(self._ring)

    def subscribe(self, subscriber: Callable[[DeadLetter], object]) -> Callable[[], None]:
        """Call a plain function with each letter from now on, on the event loop. Returns the function that ends this.

        Raises TypeError for a coroutine function or a generator: no code would await or iterate it.
        """
        if not callable(subscriber) or answers_later(subscriber):
            raise TypeError(f"a subscriber of dead letters is a plain function, not {shown(subscriber)}")
        self._subscribers.append(subscriber)

        def forget() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return forget

    # -- for the dispatcher --------------------------------------------------------------------------------------------

    def wire(self, soon: Callable[..., object]) -> None:
        """Set the function that calls subscribers later, outside of the receive: `soon(function, argument)`."""
        self._soon = soon

    def tell_broken(self, on_broken: Callable[[Exception, int], object]) -> None:
        """Set the function that gets a subscriber's error and the number of such errors: the 1st, 2nd, 4th, ..."""
        self._on_broken = on_broken

    def unwire(self) -> None:
        """Call no subscriber any more; the letters can still be read."""
        self._soon, self._on_broken = None, _nobody
        self._subscribers.clear()

    def add(self, recipient: str, message: Any, reason: Reason, error: BaseException | None = None) -> None:
        """Record a letter."""
        letter = DeadLetter(recipient, message, reason, error)
        self._ring.append(letter)
        self.counts[reason] += 1
        if self._subscribers and not self._telling:
            if self._soon is None:
                self._tell(letter)
            else:
                self._soon(self._tell, letter)

    def _tell(self, letter: DeadLetter) -> None:
        self._telling = True
        try:
            for subscriber in tuple(self._subscribers):
                try:
                    called(subscriber, letter)
                except Exception as error:
                    self.subscriber_errors += 1
                    if self.subscriber_errors.bit_count() == 1:
                        self._on_broken(error, self.subscriber_errors)
        finally:
            self._telling = False


def _nobody(*_: object) -> None:
    """Ignore the arguments."""
