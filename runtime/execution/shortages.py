"""What cannot be started for now, since there is too little of something: whose start waits, and that it is told once.

Rules
-----
- A shortage begins with the first start that has to wait, and is over when none waits. It is told once; begun again
  within a minute, it is the same one.
- A start that waits has not been heard of: no limit of its attempt, check or hook runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engines.shortage import in_words

if TYPE_CHECKING:
    from ...actors.kernel.kernel import Kernel

_SAME = 60.0  # seconds


class Shortages:
    """The starts of one runtime that wait."""

    def __init__(
        self, kernel: Kernel, notice: Callable[..., None], now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._kernel = kernel
        self._notice = notice
        self._now = now
        self._monotonic = monotonic
        self._over_at: float | None = None  # monotonic: when the last one was over
        self.waiting: dict[int, None] = {}  # the tokens
        self.reason: str | None = None
        self.since: float | None = None  # UTC epoch seconds

    def began(self, token: int, error: Exception) -> None:
        """A call could not be started for now."""
        self._kernel.unheard(token)
        first = not self.waiting
        self.waiting[token] = None
        self.reason = f"nothing more can be started for now: {in_words(error)}"
        if not first:
            return
        self.since = self._now()
        if self._over_at is None or self._monotonic() - self._over_at > _SAME:
            text = f"{self.reason}. It is tried again, with growing pauses; no try and no loss is counted"
            self._notice("start_delayed", "warning", text, reason=in_words(error))

    def over(self, token: int) -> None:
        """It was started, or is not to be."""
        if token not in self.waiting:
            return
        del self.waiting[token]
        self._kernel.heard(token)
        if not self.waiting:
            self.reason = self.since = None
            self._over_at = self._monotonic()
