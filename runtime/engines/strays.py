"""What commands and bodies left behind: processes in other groups than theirs, known by what their environment carries.

Rules
-----
- A process is known by the fencing token and the marks of its runtime, which it was given, and only while it runs. What
  has cleaned its environment, or is another user's, is not found; where there is no /proc (not Linux), nothing is.
- The kernel gives numbers one after another. So only those are looked at that were given since the command or body
  began: most are short, and few numbers were. Where it took long, or many were, all processes are looked at.
- What lives in a session of somebody known is not looked at further. Nothing is killed here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from .os_processes import JOURNAL, RUNTIME, TOKEN, environment_of, is_process, pids

_LAST = Path("/proc/loadavg")
_HIGHEST = Path("/proc/sys/kernel/pid_max")
_LOWEST = 2  # below it is only the first process
_MOST = 4_000  # numbers that are looked at one by one, some microseconds each
_TOLD = 20  # of one command or body
_LONG = 10.0  # seconds after which numbers may have been given anew from the lowest to where they were


class Beginning:
    """When something began, by the clock and by the numbers of processes."""

    __slots__ = ("_at", "_number")

    def __init__(self, number: int | None = None) -> None:
        """number: that of its own process; None: the last one that was given."""
        self._number = _last_number() if number is None else number
        self._at = time.monotonic()

    def numbers(self) -> Iterable[int] | None:
        """Those of the processes and threads that began since; None: too many, any may be one."""
        last = _last_number()
        if not last:
            return ()
        if time.monotonic() - self._at > _LONG:
            return None
        first = self._number
        if last >= first:
            given: Iterable[int] = range(first + 1, last + 1)
            count = last - first
        else:
            highest = _highest_number()
            given = chain(range(first + 1, highest), range(_LOWEST, last + 1))
            count = highest - first + last
        return None if count > _MOST else given


def marks_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What the runtime gives to all that it starts, in this environment: empty where there is no runtime."""
    return {name: environment[name] for name in (JOURNAL, RUNTIME) if name in environment}


def strays(
    numbers: Iterable[int] | None,
    token: int,
    group: int,
    marks: Mapping[str, str],
    sessions: Callable[[], Collection[int]] = tuple,
) -> tuple[int, ...]:
    """The numbers of the processes outside of `group` that carry this token, and these marks, and run: 20 at most.

    numbers: of those that may be some; None: all are looked at (blocks for some milliseconds). sessions: those of
    others, known to be none.
    """
    if not marks:
        return ()  # a token alone is that of any runtime
    others: Collection[int] | None = None
    found: list[int] = []
    for number in pids() if numbers is None else numbers:
        try:
            session = os.getsid(number)
        except OSError:  # it is not there any more
            continue
        others = sessions() if others is None else others
        if session not in others and _carries(number, token, marks) and _outside(number, group):
            found.append(number)
            if len(found) == _TOLD:
                break
    return tuple(found)


def _carries(number: int, token: int, marks: Mapping[str, str]) -> bool:
    variables = environment_of(number, f"{TOKEN}={token}")
    if variables.get(TOKEN) != str(token) or any(variables.get(name) != value for name, value in marks.items()):
        return False
    return is_process(number)


def _outside(number: int, group: int) -> bool:
    with suppress(OSError):
        return os.getpgid(number) != group
    return False


def _last_number() -> int:
    """The number that was given last; 0 where that cannot be known."""
    try:
        return int(_LAST.read_bytes().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _highest_number() -> int:
    try:
        return int(_HIGHEST.read_bytes())
    except (OSError, ValueError):
        return 2**22
