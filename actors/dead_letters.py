"""Dead letters: every message of users' actors that was not handled, with the reason.

Rules
- Nothing is dropped in silence: what is not handled is recorded here, counted by its reason.
- The newest letters are kept in a ring of fixed size; the counts go on for ever.
- A subscriber sees each letter as it arrives, on the event loop. One that raises loses only that letter: it is
  counted (`subscriber_errors`), and nobody who sends is ever hurt by it.
- A letter names its recipient and does not refer to it, so that the ring keeps no actor alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct

from .theirs import called

__all__ = ["DeadLetter", "DeadLetters", "Reason"]


class Reason(StrEnum):
    """Why a message was not handled."""

    MAILBOX_FULL = "mailbox_full"  # `tell` found no room and returned False
    STOPPED = "stopped"  # the recipient had stopped, or stopped with the message in its mailbox
    FAILED = "failed"  # `receive` raised on it
    ABANDONED = "abandoned"  # its coroutine `receive` was still running when its limit was over
    LATE_REPLY = "late_reply"  # the answer to an ask that had timed out, was cancelled, or had been answered
    REFUSED = "refused"  # `receive` returned a Refusal, and nobody had asked
    STALE_TIMER = "stale_timer"  # a timer armed before the actor was rebuilt


class DeadLetter(Struct, frozen=True, gc=False):
    """One message that was not handled.

    error: what was raised on it, or by what its recipient had failed. None where nothing had.
    """

    recipient: str
    # Any: users' messages are of any type.
    message: Any
    reason: Reason
    error: BaseException | None = None


class DeadLetters:
    """The ring of the newest `limit` letters, and the counts of all."""

    __slots__ = ("_ring", "_subscribers", "counts", "subscriber_errors")

    def __init__(self, limit: int = 1000) -> None:
        self._ring: deque[DeadLetter] = deque(maxlen=limit)
        self._subscribers: list[Callable[[DeadLetter], object]] = []
        self.counts: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.subscriber_errors = 0

    @property
    def count(self) -> int:
        """How many there were, those no longer in the ring too."""
        return sum(self.counts.values())

    def newest(self) -> list[DeadLetter]:
        """The letters in the ring, the oldest first."""
        return list(self._ring)

    def subscribe(self, subscriber: Callable[[DeadLetter], object]) -> Callable[[], None]:
        """Call `subscriber` with each letter from now on. Returns the function that ends this."""
        self._subscribers.append(subscriber)

        def forget() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return forget

    def add(self, recipient: str, message: Any, reason: Reason, error: BaseException | None = None) -> None:
        """Record one."""
        letter = DeadLetter(recipient, message, reason, error)
        self._ring.append(letter)
        self.counts[reason] += 1
        for subscriber in tuple(self._subscribers):
            try:
                called(subscriber, letter)
            except Exception:
                self.subscriber_errors += 1

    def clear(self) -> None:
        """Forget the letters and the subscribers; the counts stay."""
        self._ring.clear()
        self._subscribers.clear()
