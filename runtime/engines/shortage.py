"""What there may be too little of for now: descriptors, processes, threads, memory. Who starts something waits then.

It is the program's trouble, or the machine's, and that of nobody who was to be started: no try and no loss is counted.
"""

from __future__ import annotations

import errno

from ...actors.user_code import is_a

NOT_NOW = 75
"""What a process exits with that could not begin for a shortage (EX_TEMPFAIL)."""
_NUMBERS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
_FIRST, _LONGEST = 0.1, 5.0  # seconds


def is_shortage(error: BaseException | None) -> bool:
    """Whether something could not be started for what may be there later."""
    if type(error) is RuntimeError:  # Python's own word for it
        return str(error) == "can't start new thread"
    if is_a(error, OSError):
        return getattr(error, "errno", None) in _NUMBERS
    return is_a(error, MemoryError)


class Pauses:
    """How long to wait before something is tried again that failed by a shortage: longer each time."""

    def __init__(self) -> None:
        self._next = _FIRST

    def next(self) -> float:
        """Seconds from now."""
        pause, self._next = self._next, min(self._next * 2, _LONGEST)
        return pause

    def over(self) -> None:
        """It went well: begin anew."""
        self._next = _FIRST


def in_words(error: BaseException) -> str:
    """What there is too little of."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "out of memory" if isinstance(error, MemoryError) else str(error)
