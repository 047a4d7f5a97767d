"""Queries of tests about the processes of this machine."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process runs. A dead process that its parent has not reaped does not run."""
    return _state(pid) not in "ZX"


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return _state(pid) == "T"


def children() -> set[int]:
    """The child processes of this process, started by any thread; also zombies."""
    while True:
        found: set[int] = set()
        threads = os.listdir("/proc/self/task")  # noqa: PTH208
        try:
            for thread in threads:
                found.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
        except OSError:
            continue  # the thread has ended: its children belong to another thread now, which may have been read before
        return found


def carrying(variable: str) -> list[int]:
    """All running processes with this variable in their environment (`NAME=value`)."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # the process has ended meanwhile, or belongs to another user
                if variable.encode() in (entry / "environ").read_bytes().split(b"\0") and runs(int(entry.name)):
                    found.append(int(entry.name))
    return found


def threads(*beginnings: str) -> set[threading.Thread]:
    """The threads of this process whose names begin with `prefix`. Earlier tests may have left running threads."""
    return {one for one in threading.enumerate() if one.name.startswith(beginnings)}


def descriptors() -> int:
    """The number of files, sockets and pipes that this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return text.rpartition(")")[2].split()[0]
