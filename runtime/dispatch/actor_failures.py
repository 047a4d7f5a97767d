"""Failures of users' actors: the notices about them, and the last error of each actor.

| event | severity | what happened |
| --- | --- | --- |
| actor_failed | error | it raised: on a message, in `started` or `stopped`, when it was built anew; or by a child |
| actor_restarted | error | it was built anew, and what it knew is lost (info: it asked for that itself) |
| actor_stopped | error, critical | it ended by its failure; critical: no supervision has decided so |
| actor_abandoned | critical | it did not end within its `stop_timeout`, and is left where it is |

Rules
-----
- A notice has only the type of a message: its content belongs to the application.
- The dispatcher keeps the errors, and not the cell or its ended reference: an error references its frames, these
  reference the cell, and the garbage collector does not track cells. Only the newest `FAILURES_KEPT` are kept.
"""

from __future__ import annotations

from msgspec import Struct

from ...actors.kernel.recent import keep_last
from ...actors.messages.notices import Severity
from ...actors.users.ref import Cell

__all__ = ["ActorTrouble", "Failures"]

FAILURES_KEPT = 1_000
"""The number of actors whose last error is kept."""


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
    """The errors of the actors that failed last."""

    def __init__(self) -> None:
        self._last: dict[Cell, tuple[BaseException, float]] = {}

    def note(self, cell: Cell, error: BaseException, now: float) -> None:
        """Keep the error of a failed actor."""
        keep_last(self._last, cell, (error, now), FAILURES_KEPT)

    def of(self, cell: Cell, since: float = 0.0) -> BaseException | None:
        """The last error of an actor, if it is not older than `since` (monotonic seconds)."""
        error, at = self._last.get(cell, (None, 0.0))
        return error if at >= since else None

    def forget(self, cell: Cell) -> None:
        """Forget the error of an actor that has ended by itself."""
        self._last.pop(cell, None)

    def clear(self) -> None:
        """Forget all errors."""
        self._last.clear()
