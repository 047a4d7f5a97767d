"""Starts that must wait because a resource of the system is short; each shortage is reported once.

Rules
-----
- A shortage begins with the first start that has to wait, and ends when none waits. It is reported once; if it begins
  again within a minute, it is the same shortage.
- While a start waits, no time limit of its attempt, check or hook runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..engines.shortage import in_words

if TYPE_CHECKING:
    from ...actors.kernel.kernel import Kernel

_SAME = 60.0  # seconds


class Shortages:
    """The waiting starts of one runtime."""

    def __init__(
        self, kernel: Kernel, notice: Callable[..., None], now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._kernel = kernel
        self._notice = notice
        self._now = now
        self._monotonic = monotonic
        self._over_at: float | None = None  # monotonic seconds: when the last shortage ended
        self.waiting: dict[int, None] = {}  # tokens of waiting starts
        self.reason: str | None = None
        self.since: float | None = None  # UTC epoch seconds

    def began(self, token: int, error: Exception) -> None:
        """Note that a call could not be started yet."""
        self._kernel.unheard(token)
        first = not self.waiting
        self.waiting[token] = None
        self.reason = f"nothing more can be started now: {in_words(error)}"
        if not first:
            return
        self.since = self._now()
        if self._over_at is None or self._monotonic() - self._over_at > _SAME:
            text = f"{self.reason}. The start is retried after growing pauses; no attempt and no loss is counted"
            self._notice("start_delayed", "warning", text, reason=in_words(error))

    def over(self, token: int) -> None:
        """Note that a call was started, or need not be started any more."""
        if token not in self.waiting:
            return
        del self.waiting[token]
        self._kernel.heard(token)
        if not self.waiting:
            self.reason = self.since = None
            self._over_at = self._monotonic()
