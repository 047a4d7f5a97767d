"""The errors that bodies raise to classify a failure, that are raised in bodies, and those of machines' events.

| error | says | what the runtime does |
| --- | --- | --- |
| `Permanent` | another try cannot help | fails the task at once, whatever its retry policy |
| `RetryAfter` | run the task again after so many seconds | does so; that counts as neither a failure nor a try |
| `CircuitOpen` | the command came while the tool is not healthy | is raised by `TaskHandle.reset`, never in a body |
| `AttemptOver` | too late: this attempt has ended already | is raised inside a body, by `task.submit()` |
| `StepFailed` | a step failed | is raised inside a body, by its steps: it may be caught |
| `FlowChanged` | the body's code does not fit its kept steps | as `Permanent` |
| `ReceiveTimeout` | no message came in time | is raised by `task.receive()` |
| `MessageInvalid` | a message is not of the type that its receiver takes | is raised by `task.receive()` |
| `ApprovalRejected`, `ApprovalExpired` | are raised by `task.approval()` | as `Permanent`: the decision stands |
| `FlowAsleep` | the body waits for long: it is dropped, and runs again | is raised inside a body, where it waits |
| `TaskCancelled` | stop: the task was cancelled | is raised inside a body, by `task.heartbeat()` |
| `FireFailed`, `MachineNotFound`, `MachineConflict` | an event, or a spawn, was refused | changes nothing |
"""

from __future__ import annotations

from ...machines import InvalidTransitionError
from ..times import number


class Permanent(Exception):  # noqa: N818 - it describes the failure
    """Raise it from a body when a retry cannot help: the task fails at once."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class ApprovalRejected(Permanent):
    """An approval that the body asked for was rejected. `by`: the person; `reason`: the reason, if given."""

    def __init__(self, message: str, by: str | None = None, reason: str | None = None) -> None:
        super().__init__(message)
        self.by = by
        self.reason = reason


class ApprovalExpired(Permanent):
    """An approval that the body asked for expired without enough decisions."""


class RetryAfter(Exception):  # noqa: N818 - it describes the request
    """Raise it from a body to run the task again in `seconds` (a day at most): neither a failure nor a try.

    No task of the same tool starts before that either. `Retry.max_deferrals` bounds how often; a further one is a
    failure.
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
    """The advice in the error of a command while a tool is not healthy."""
    if not seconds:
        return "wait until the task that probes it now has ended"
    return f"retry in {seconds:.0f} s" if seconds >= 10 else f"retry in {seconds:.1f} s"


class CircuitOpen(InvalidTransitionError):  # noqa: N818 - the common name of the state
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


class AttemptOver(RuntimeError):  # noqa: N818 - the name says what happened
    """A body submits a job after its attempt has ended: the job is refused, since no attempt could use its result."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


WORKER_LOST = "worker_lost"
"""The `error_type` of an attempt, or of a step, whose worker died, or did not come back."""


class StepFailed(Exception):  # noqa: N818 - the name says what happened
    """A step failed for good, with an error that cannot be made again from the journal.

    step: its label, as "charge#2". error_type: the class of its error, text: its text, traceback: the traceback of the
    function, as text.
    """

    def __init__(self, message: str, step: str = "", error_type: str = "", text: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.step = step
        self.error_type = error_type
        self.text = text
        self.traceback = traceback


class FlowChanged(Permanent):
    """A body asks for another function under the name of a step that its flow has kept: its code has changed.

    Give the new function a name of its own, or decide by `task.version` which of them runs.
    """


class ReceiveTimeout(TimeoutError):  # noqa: N818 - it says what happened
    """No message of that name came in time. A new attempt of the task waits for a message again."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class MessageInvalid(ValueError):  # noqa: N818 - it says what is the matter
    """A message has another type than its receiver takes. It counts as received: the next receive gets the next one."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class TooManyMessages(ValueError):  # noqa: N818 - it says what is the matter
    """Too many messages to a job are unread, so this one was not sent. Send it again when the job has received some."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class FlowAsleep(BaseException):
    """The body of a flow that waits for a long time is dropped, and runs again when the wait is over.

    It is no cancellation. Clean up and do not suppress it: steps, child jobs and approvals raise it again.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class TaskCancelled(BaseException):
    """The task of this body was cancelled: clean up and do not suppress it.

    Like the event loops' own cancellation it is no `Exception`, so that `except Exception` does not stop it.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class MachineNotFound(LookupError):  # noqa: N818 - the name says what happened
    """The machine of an entity cannot be found, or has changed. The entity takes no event, and keeps its data.

    Make the named object importable again, or spawn the entity again under its name with the machine.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class MachineConflict(ValueError):  # noqa: N818 - the name says what happened
    """The entity of that name runs by another machine, or its state does not exist any more."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class FireFailed(ValueError):  # noqa: N818 - the name says what happened
    """A guard or `on_event` of a machine raised, or the facts do not fit the machine. Nothing has changed."""

    by_function = False
    """Whether a function of the application caused the failure, and not the sender of the event."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
