"""Errors of journals, of nodes and of closed runtimes.

Other errors are in the modules of their subjects; `callboard.errors` has all public ones.
"""

from __future__ import annotations

from ..actors.user_code import shown


class JournalError(Exception):
    """The base of errors from opening or reading a journal. The text says what to do."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class JournalLocked(JournalError):  # noqa: N818 - it names the state of the file
    """Another runtime owns the file; the text names its process. Stop it, or use another file."""


class JournalCorrupt(JournalError):  # noqa: N818 - it names the state of the file
    """The file is damaged or is no journal. It was not touched: keep it, and restore from a copy."""


class JournalTooNew(JournalError):  # noqa: N818 - it names the state of the file
    """The file was written by a newer Callboard. Upgrade; nothing was changed."""


class JournalUnwritable(JournalError):  # noqa: N818 - it names the state of the file
    """The file or its folder cannot be written. Nothing was changed: correct permissions, or free space."""


class InboxFull(JournalError):  # noqa: N818 - it names the state of the inbox
    """Too many commands wait in the inbox: this one was not added. The text says for which target or group."""


class JournalMissing(JournalError):  # noqa: N818 - it names the state of the file
    """There is no journal at that path. No file was created: check the path."""


class LeaseLost(JournalError):  # noqa: N818 - it names what happened
    """Others have taken over what this node ran, since it was silent for too long, or its database went back in time.
    In SQLite: another runtime has claimed the file, whose lock was lost, or the file was overwritten. This runtime
    cannot write any more.
    """


class JobExists(ValueError):  # noqa: N818 - it says what is the matter
    """A job with that id exists, and is neither joined nor replaced. Use another id, or submit the same workstream.

    The text names the first difference: a task, or a field with its old and new value (for `args`, `env` and commands
    only the place). If `existing` refuses the job or cannot replace it, the text says so, with the job's state.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class RuntimeClosed(RuntimeError):  # noqa: N818 - a state, as in the standard library's names
    """The runtime is not open, or has closed meanwhile. Durable work goes on at the next start, or on another node.

    If the runtime broke, the error has the cause in its text and as its `__cause__`.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class EventLoopEnded(RuntimeError):  # noqa: N818 - the name says what happened
    """All tasks of an event loop were cancelled while a runtime was open there, as at the end of `asyncio.run`."""

    def __init__(self) -> None:
        super().__init__("it was cut short: its event loop ended, or all tasks of the loop were cancelled")


def goes_on(*, shared: bool) -> str:
    """How an unfinished job of a closed runtime goes on. shared: whether other nodes share the journal."""
    return "it continues on another node, or at the next start" if shared else "it continues at the next start"


def closed(text: str, cause: BaseException | None) -> RuntimeClosed:
    """The error of a runtime that has closed, or that `cause` broke."""
    if isinstance(cause, LeaseLost):
        text = f"{text}, since it was fenced: others take over its jobs ({cause})"
    elif isinstance(cause, EventLoopEnded):
        text = f"{text} ({cause})"
    elif cause is not None:
        text = f"{text} (it broke: {shown(cause)})"
    error = RuntimeClosed(text)
    error.__cause__ = cause
    return error
