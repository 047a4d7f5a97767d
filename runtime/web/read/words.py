"""Refusals of a state, in words for people. Programs read the fields of the problem."""

from __future__ import annotations

from ....actors.messages.errors import CircuitOpen, retry_in
from ....actors.tasks.holds import DecisionRefused
from ....machines import GuardRejected, InvalidTransitionError

_DONE = {
    "cancel": "be cancelled", "cancel_graceful": "be cancelled", "cancel_force": "be cancelled by force",
    "approve": "be approved", "reject": "be rejected", "pause": "be paused", "resume": "be resumed",
    "skip": "be skipped", "reset": "be reset", "retry": "be retried", "trip": "be tripped",
    "shut_down": "be shut down", "terminate": "be terminated", "start": "be started",
}  # fmt: skip
"""The words for an event, after "cannot"."""


def in_words(error: InvalidTransitionError) -> str:
    """Return the reason of the refusal, and what to do."""
    if isinstance(error, DecisionRefused):
        return error.why
    if isinstance(error, CircuitOpen):
        return f"Its tool {error.tool!r} is not healthy: {retry_in(error.retry_in)}, or reset the breaker of the tool."
    kind = _spoken(error.kind)
    who = f"This {kind}" if error.subject is None else f"{kind.capitalize()} {error.subject!r:.200}"
    done = _DONE.get(error.in_own_words.event, f"take {_spoken(error.event)!r}")
    said = f"{who} is {_spoken(error.state)}, and cannot {done}"
    if isinstance(error, GuardRejected):
        return f"{said} now, since not {' or '.join(map(repr, error.guards))}."
    ended = "" if error.allowed else "An ended entity cannot be changed; start a new run."
    advice = error.advice.replace(" (`--force`)", "")  # an option of the command line
    return " ".join(filter(None, [f"{said}.", advice or ended]))


def _spoken(word: str) -> str:
    """Write one of our words for people; a word of another lifecycle, mostly capitals, stays unchanged."""
    return str(word).replace("_", " ") if word.islower() else str(word)
