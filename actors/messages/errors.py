"""The errors that bodies raise to say more than "it failed", and the one that tells a body that it was
cancelled.

| error | says | what the runtime does |
| --- | --- | --- |
| `Permanent` | another try cannot help | fails the task at once, whatever its retry policy |
| `RetryAfter` | run me again, but not before so many seconds | does so; that counts as neither a failure nor a try |
| `CircuitOpen` | your command came while the tool is not healthy | is raised by `TaskHandle.reset`, never in a body |
| `AttemptOver` | too late: this attempt was given up | is raised inside a body, by `task.submit()` |
| `ApprovalRejected`, `ApprovalExpired` | are raised by `task.approval()` | as `Permanent`: the decision stands |
| `TaskCancelled` | stop: your task was cancelled | is raised inside a body, by `task.heartbeat()` |
"""

from __future__ import annotations

from ...machines import InvalidTransitionError
from ..spec.times import number


class Permanent(Exception):  # noqa: N818 - it reads as what is said about the failure
    """Raise it from a body when another try cannot help: the task fails at once, retries or not."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class ApprovalRejected(Permanent):
    """Somebody rejected what the body asked approval for: `by` whom, and `reason`, if one was given."""

    def __init__(self, message: str, by: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.by = by
        self.reason = reason


class ApprovalExpired(Permanent):
    """Nobody approved in time what the body asked approval for."""


class RetryAfter(Exception):  # noqa: N818 - it reads as what is asked for
    """Raise it from a body to be run again, `seconds` from now (a day at most): that is neither a failure nor a try.

    No task of the same tool starts before that either. `Retry.max_deferrals` bounds how often; once more is a failure.
    Raises ValueError when `seconds` is negative or not finite, TypeError when it is no number.
    """

    def __init__(self, seconds: float, message: str = "") -> None:
        try:
            delay = number(seconds)
        except (TypeError, ValueError) as error:
            text = f"RetryAfter: the delay must be a number of seconds, 0 or more: {error}"
            raise type(error)(text) from None
        if delay < 0:
            raise ValueError(f"RetryAfter({delay!r}): the delay must be a number of seconds, 0 or more")
        super().__init__(message or f"try again in {delay:g} s")
        self.seconds = delay


def retry_in(seconds: float) -> str:
    """What is said to who comes while a tool is not healthy."""
    if not seconds:
        return "wait until the task that probes it now has ended"
    return f"retry in {seconds:.0f} s" if seconds >= 10 else f"retry in {seconds:.1f} s"


class CircuitOpen(InvalidTransitionError):  # noqa: N818 - a state, as people call it
    """A parked task cannot be reset: its tool is not healthy. Try again in `retry_in` seconds, or reset the breaker."""

    def __init__(self, state: str, allowed: frozenset[str], tool: str, retry_in: float) -> None:
        super().__init__("task", state, "reset", allowed)
        self.args = (state, allowed, tool, retry_in)
        self.tool = tool
        self.retry_in = retry_in

    def __str__(self) -> str:
        return (
            f"{self.machine}: {str(self.event)!r} was refused in state {str(self.state)!r}, since its tool "
            f"{self.tool!r} is not healthy. "
            f"{retry_in(self.retry_in).capitalize()}, or reset the breaker of the tool."
        )


class AttemptOver(RuntimeError):  # noqa: N818 - it says what is the matter
    """A body submits a job although its attempt is over: its result would go nowhere, so nothing of it is taken."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class TaskCancelled(BaseException):
    """The task of this body was cancelled: clean up and let it through.

    Like the event loops' own cancellation it is no `Exception`, so that `except Exception` does not stop it.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
