"""Temporary shortages of descriptors, processes, threads or memory: whatever has to be started waits.

A shortage is a problem of the program or the machine, not of the work to start: it counts as no try and no loss.
"""

from __future__ import annotations

import errno

from ...actors.user_code import is_a

NOT_NOW = 75
"""The exit code of a process that could not begin because of a shortage (EX_TEMPFAIL)."""
_NUMBERS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
_FIRST, _LONGEST = 0.1, 5.0  # seconds


def is_shortage(error: BaseException | None) -> bool:
    """Whether a start failed for lack of a resource that may be available later."""
    if type(error) is RuntimeError:  # Python raises this if it cannot start a thread
        return str(error) == "can't start new thread"
    if is_a(error, OSError):
        return getattr(error, "errno", None) in _NUMBERS
    return is_a(error, MemoryError)


class Pauses:
    """The pauses before retries after a shortage: longer each time."""

    def __init__(self) -> None:
        self._next = _FIRST

    def next(self) -> float:
        """The next pause in seconds."""
        pause, self._next = self._next, min(self._next * 2, _LONGEST)
        return pause

    def over(self) -> None:
        """Reset the pauses after a success."""
        self._next = _FIRST


def in_words(error: BaseException) -> str:
    """Name the missing resource in words."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "out of memory" if isinstance(error, MemoryError) else str(error)
