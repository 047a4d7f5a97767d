"""Failures of users' actors: the notices about them, and the last error of each actor.

| event | severity | what happened |
| --- | --- | --- |
| actor_failed | error | the actor raised: on a message, in `started` or `stopped`, when built again; a child failed |
| actor_restarted | error | the actor was built again, and its state is lost (info: the actor requested the restart) |
| actor_stopped | error, critical | the actor stopped after its failure; critical: no supervision has decided it |
| actor_abandoned | critical | the actor did not end within its `stop_timeout`, and its code was left where it waits |

Rules
-----
- A notice has only the type of a message: its content belongs to the application.
- The dispatcher keeps the errors. The cell and its ended reference do not: an error references its frames, the frames
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
    """A failure of a user's actor, as a notice. The module lists the events.

    actor: the actor's name. text: the failure in words, for people. message: the type of the message that the actor
    handled. error: the error that was raised.
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
        """Keep the error of an actor that has failed."""
        keep_last(self._last, cell, (error, now), FAILURES_KEPT)

    def of(self, cell: Cell, since: float = 0.0) -> BaseException | None:
        """The last error of an actor, if it is not older than `since` (monotonic seconds)."""
        error, at = self._last.get(cell, (None, 0.0))
        return error if at >= since else None

    def forget(self, cell: Cell) -> None:
        """Remove the error of an actor that has stopped itself."""
        self._last.pop(cell, None)

    def clear(self) -> None:
        """Remove all errors."""
        self._last.clear()
