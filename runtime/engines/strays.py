"""Finds processes that commands and bodies left behind in other process groups, by their environment.

Rules
-----
- A process is recognised by the fencing token and the marks of its runtime in its environment, and only while it runs.
  A process with a cleaned environment, or of another user, is not found; without /proc (not Linux), none is.
- The kernel gives process ids in sequence. So only the ids given since the command or body began are checked: most are
  short, and few ids were given. If it took long, or many ids were given, all processes are checked.
- Processes in a session of a known owner are not checked further. Nothing is killed here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from ..processes.os_processes import JOURNAL, RUNTIME, TOKEN, environment_of, is_process, pids

_LAST = Path("/proc/loadavg")
_HIGHEST = Path("/proc/sys/kernel/pid_max")
_LOWEST = 2  # the lowest id after the first process's
_MOST = 4_000  # ids that are checked one by one, some microseconds each
_TOLD = 20  # reported strays of one command or body
_LONG = 10.0  # seconds after which ids may have wrapped around, past the first one


class Beginning:
    """The beginning of a command or body, by the clock and by process ids."""

    __slots__ = ("_at", "_number")

    def __init__(self, number: int | None = None) -> None:
        """number: the id of its own process; None: the last id that was given."""
        self._number = _last_number() if number is None else number
        self._at = time.monotonic()

    def numbers(self) -> Iterable[int] | None:
        """The ids of processes and threads that began since; None: too many, check all."""
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
        return None if count > _MOST else _with_newer(given, last)


def marks_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The marks that the runtime gives to all that it starts, from this environment: empty without a runtime."""
    return {name: environment[name] for name in (JOURNAL, RUNTIME) if name in environment}


def strays(
    numbers: Iterable[int] | None,
    token: int,
    group: int,
    marks: Mapping[str, str],
    sessions: Callable[[], Collection[int]] = tuple,
) -> tuple[int, ...]:
    """The ids of running processes outside of `group` that have this token and these marks: 20 at most.

    numbers: the ids to check; None: all processes are checked (blocks for some milliseconds). sessions: sessions of
    other owners, whose processes are no strays.
    """
    if not marks:
        return ()  # a token alone could be any runtime's
    others: Collection[int] | None = None
    found: list[int] = []
    for number in pids() if numbers is None else numbers:
        try:
            session = os.getsid(number)
        except OSError:  # the process has ended
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


def _with_newer(numbers: Iterable[int], last: int) -> Iterator[int]:
    """These numbers, and those that are given while they are checked: a process that forks and ends meanwhile is seen
    in what it leaves.
    """
    yield from numbers
    for number in range(last + 1, last + _MOST):
        if number > last:
            last = _last_number()
            if number > last:
                return
        yield number


def _outside(number: int, group: int) -> bool:
    with suppress(OSError):
        return os.getpgid(number) != group
    return False


def _last_number() -> int:
    """The last process id that was given; 0 if it is not known."""
    try:
        return int(_LAST.read_bytes().split()[-1])
    except (OSError, ValueError, IndexError):
        return 0


def _highest_number() -> int:
    try:
        return int(_HIGHEST.read_bytes())
    except (OSError, ValueError):
        return 2**22
