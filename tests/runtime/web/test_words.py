"""The messages about events that a state does not allow."""

from __future__ import annotations

import pytest

from callboard.machines import GuardRejected, InvalidTransitionError
from callboard.runtime.web.read.words import in_words

FORCE = "The cancel has begun already: cancel with force to end it at once."
_CANCELLING = frozenset({"cancel_force", "complete"})
_NAMED = InvalidTransitionError("fleet.worker", "idle", "pause", frozenset({"assign"}))
_NAMED.subject = "w1"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            InvalidTransitionError("task", "completed", "cancel_graceful", frozenset()),
            "This task is completed, and cannot be cancelled. An ended entity cannot be changed; start a new run.",
        ),
        (
            InvalidTransitionError("task", "cancelling", "cancel_graceful", _CANCELLING),
            f"This task is cancelling, and cannot be cancelled. {FORCE}",
        ),
        (_NAMED, "Worker 'w1' is idle, and cannot be paused."),
        (
            GuardRejected("door", "half_open", "push_hard", frozenset({"push_hard"}), ("is_strong", "is_oiled")),
            "This door is half open, and cannot take 'push hard' now, since not 'is_strong' or 'is_oiled'.",
        ),
    ],
)
def test_a_conflict_is_told_in_words(error: InvalidTransitionError, told: str) -> None:
    assert in_words(error) == told
