"""What goes wrong between actors. Each error's text names what was tried, on which actor, and what was allowed;
its docstring says what to do.

The names say what happened, as the standard library's `TimeoutError` does not need to: so N818 is off here.
"""
# ruff: noqa: N818

from __future__ import annotations

__all__ = [
    "ActorError",
    "ActorStopped",
    "AskCycle",
    "AskTimeout",
    "ChildFailed",
    "MailboxFull",
    "NameTaken",
    "NoEventLoop",
    "ReceiveFailed",
    "RestartLimitReached",
]


class ActorError(Exception):
    """The base of all errors of the actor engine."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class ActorStopped(ActorError):
    """The actor has stopped, or stopped while the message waited. Spawn it again; watch it to hear of its end.

    `__cause__` is what it failed by, if it was stopped by a failure that is still known (of the last thousand).
    """


class AskTimeout(ActorError, TimeoutError):
    """No answer came in time. The message may still be handled: ask again only if twice is harmless.

    `__cause__` is what the actor failed by while it was asked, if it did.
    """


class AskCycle(ActorError):
    """The asked actor waits, through others, for the one that asks. Use `tell`, and a message for the answer."""


class MailboxFull(ActorError):
    """The mailbox has no room. Wait for it with `await ref.offer(...)`, or spawn with a larger `mailbox`."""


class NameTaken(ActorError, ValueError):
    """A sibling has this name. Stop it first, or choose another; leave the name out to get a free one."""


class NoEventLoop(ActorError, RuntimeError):
    """It needs an event loop, and the dispatcher is driven by `step()`. Use `await dispatcher.run()`."""


class ReceiveFailed(ActorError):
    """The asked actor raised (see `__cause__`). Its supervision deals with it; the message is a dead letter."""


class ChildFailed(ActorError):
    """A child's failure was escalated (see `__cause__`). The parent fails by it, as by an error of its own."""


class RestartLimitReached(ActorError):
    """It failed too often within the period. Mend its cause, or allow more in the parent's `Supervision`."""
