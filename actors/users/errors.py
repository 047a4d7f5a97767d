"""The errors of the actor engine.

Each error's text names the operation, the actor, and the allowed operations; its docstring says what to do. The names
say what happened, without the suffix "Error": so N818 is off here.
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
    """The actor has stopped, or stopped while the message waited. Spawn it again; watch it to be notified of its end.

    `__cause__` is the failure that stopped the actor, if it is among the last thousand.
    """


class AskTimeout(ActorError, TimeoutError):
    """No answer came in time. The message may still be handled: ask again only if handling it twice is harmless.

    `__cause__` is the actor's failure during the ask, if it failed.
    """


class AskCycle(ActorError):
    """The asked actor waits, directly or through others, for the asker. Use `tell`, and a message for the answer."""


class MailboxFull(ActorError):
    """The mailbox has no room. Wait for it with `await ref.offer(...)`, or spawn with a larger `mailbox`."""


class NameTaken(ActorError, ValueError):
    """A sibling has this name. Stop it first, or choose another; leave the name out to get a free one."""


class NoEventLoop(ActorError, RuntimeError):
    """The operation needs an event loop, and the dispatcher is driven by `step()`. Use `await dispatcher.run()`."""


class ReceiveFailed(ActorError):
    """The asked actor raised (see `__cause__`). Its supervision handles the failure; the message is a dead letter."""


class ChildFailed(ActorError):
    """A child's failure was escalated (see `__cause__`). The parent fails too, as with an error of its own."""


class RestartLimitReached(ActorError):
    """The actor failed too often within the period. Fix the cause, or allow more in the parent's `Supervision`."""
