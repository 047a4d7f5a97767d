"""Growing delays between two looks at the database."""

from __future__ import annotations

FIRST_LOOK = 0.02
LAST_LOOK = 1.0
"""Seconds between two looks at another node's work: each delay is half as long again, up to the last."""


class Delays:
    """Growing delays between checks, in seconds."""

    def __init__(self, first: float = FIRST_LOOK, last: float = LAST_LOOK) -> None:
        self._next = first
        self._last = last

    def __call__(self) -> float:
        """Return the next delay."""
        delay, self._next = self._next, min(self._next * 1.5, self._last)
        return delay
