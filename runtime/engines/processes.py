"""What the kernel knows about processes and their groups: finding, recognising and killing them.

A number alone never identifies a process: numbers are reused. So a process that was left behind is
recognised by its start time and by the token in its environment, and a group is signalled only while a
member of it is known. Without /proc (systems other than Linux) nothing can be recognised, and nothing is
killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

from .contract import ProcessInfo

TOKEN = "CALLBOARD_FENCING_TOKEN"  # noqa: S105 - a fencing token, not a secret
"""The environment variable that carries the fencing token."""
WORKER = "CALLBOARD_WORKER"
"""The environment variable that a worker's process carries, and what its bodies start does not: its worker."""
START_PATH = "CALLBOARD_START_PATH"
"""What PYTHONPATH was before a worker's process was started, for what its bodies start."""

_PROC = Path("/proc")


def start_time(pid: int) -> int:
    """The process's start in clock ticks since boot; 0 if that cannot be known."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_running(pid: int, started: int) -> bool:
    """Whether the process that began at that time still runs: one that is dead but not yet reaped does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and int(fields[19]) == started


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group whose leader is known to be there, or not yet reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_name(number: int) -> str:
    """What people call a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill_leftover(info: ProcessInfo, *, wait: float = 2.0, mark: str | None = None) -> bool:
    """Kill the process group of what outlived its runtime, if it is still its group: a member carries the token, or
    the variable `mark` ("NAME=value"), in its environment.

    Waits up to `wait` seconds for its end (blocking). True if there was something to kill, and it was killed.
    """
    if info.pgid <= 1:
        return False
    members = [pid for pid in _group_members(info.pgid) if pid != os.getpid()]
    if info.pid in members and start_time(info.pid) not in (
        info.started,
        0,
    ):  # 0: it ended meanwhile, the group did not
        return False
    if not any(_carries(pid, mark or f"{TOKEN}={info.token}") for pid in members):
        return False
    watched = [fd for pid in members if (fd := _open_pidfd(pid)) is not None]
    try:
        signal_group(info.pgid, signal.SIGKILL)
        _wait_for(watched, wait)
    finally:
        for fd in watched:
            os.close(fd)
    return True


def _group_members(group: int) -> Iterator[int]:
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            fields = _stat(int(entry.name))
            if fields and int(fields[2]) == group and fields[0] not in "ZX":
                yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on; the second may hold anything, also brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("ascii", "replace")
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _carries(pid: int, mark: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return mark.encode() in environment.split(b"\0")


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _wait_for(watched: list[int], limit: float) -> None:
    poll = select.poll()
    for fd in watched:
        poll.register(fd, select.POLLIN)
    left = len(watched)
    while left and (ready := poll.poll(limit * 1000)):
        for fd, _event in ready:
            poll.unregister(fd)
        left -= len(ready)
