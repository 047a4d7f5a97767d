"""Failures of users' actors: what is told of them, and by what each failed last.

| event | severity | what happened |
| --- | --- | --- |
| actor_failed | error | it raised: on a message, in `started` or `stopped`, when it was built anew; or by a child |
| actor_restarted | error | it was built anew, and what it knew is lost (info: it asked for that itself) |
| actor_stopped | error, critical | it ended by its failure; critical: no supervision has decided so |
| actor_abandoned | critical | it did not end within its `stop_timeout`, and is left where it is |

Rules
-----
- Of messages only the type is told: what is in them is the application's.
- A failure is kept by the dispatcher, and not by the cell or its ended reference: an error holds the frames that it
  came through, these hold the cell, and cells are unknown to the collector. Only so many are kept, the newest.
"""

from __future__ import annotations

from msgspec import Struct

from ...actors.kernel.recent import keep_last
from ...actors.messages.notices import Severity
from ...actors.users.ref import Cell

__all__ = ["ActorTrouble", "Failures"]

FAILURES_KEPT = 1_000
"""Actors of which it is kept by what they failed."""


class ActorTrouble(Struct, frozen=True):
    """Something that went wrong with a user's actor. See the module.

    actor is its name, text says it to people, message is the type of what it handled, error what was raised.
    """

    event: str
    severity: Severity
    actor: str
    text: str
    message: str | None = None
    error: BaseException | None = None


class Failures:
    """By what the actors that failed last have failed."""

    def __init__(self) -> None:
        self._last: dict[Cell, tuple[BaseException, float]] = {}

    def note(self, cell: Cell, error: BaseException, now: float) -> None:
        """It has failed."""
        keep_last(self._last, cell, (error, now), FAILURES_KEPT)

    def of(self, cell: Cell, since: float = 0.0) -> BaseException | None:
        """By what it failed last, if that was not before `since` (monotonic seconds)."""
        error, at = self._last.get(cell, (None, 0.0))
        return error if at >= since else None

    def forget(self, cell: Cell) -> None:
        """It has ended by itself."""
        self._last.pop(cell, None)

    def clear(self) -> None:
        """Forget all."""
        self._last.clear()
