"""The error reporter: it informs the application about failures of users' actors, and about bugs of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ...actors.user_code import called
from ..text.logs import LogLine, write
from ..text.tracebacks import traceback_of
from .actor_failures import ActorTrouble

__all__ = ["ErrorReporter"]


class ErrorReporter:
    """Where one dispatcher reports to.

    `on_trouble` gets every failure of an actor and its consequence; None: a line in the log reports it. `on_error` gets
    an error of a system cell, a call or a timer; by default it raises the error.
    """

    def __init__(self, on_trouble: Callable[[ActorTrouble], object] | None) -> None:
        self.on_trouble = on_trouble
        self.on_error: Callable[[BaseException], object] = _raise

    def report(self, trouble: ActorTrouble) -> None:
        """Report an actor's failure. Call it outside of any receive, since it may call users' code. Raises nothing."""
        if self.on_trouble is None:
            trace = None if trouble.error is None else traceback_of(trouble.error)
            write(LogLine(trouble.severity, trouble.event, trouble.text, {}, trouble.actor, trace))
            return
        with suppress(Exception):
            called(self.on_trouble, trouble)

    def close(self) -> None:
        """Report no failures of actors any more."""
        self.on_trouble = _ignore


def _raise(error: BaseException) -> None:
    raise error


def _ignore(_: ActorTrouble) -> None:
    """A closed dispatcher reports nothing."""
