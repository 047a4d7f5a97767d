"""What tests ask of the machine's processes."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process runs: one that is dead but not yet reaped by its parent does not."""
    return _state(pid) not in "ZX"


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return _state(pid) == "T"


def children() -> set[int]:
    """The processes that this one has started, by whatever thread; zombies, too."""
    while True:
        found: set[int] = set()
        threads = os.listdir("/proc/self/task")  # noqa: PTH208
        try:
            for thread in threads:
                found.update(map(int, Path(f"/proc/self/task/{thread}/children").read_text().split()))
        except OSError:
            continue  # the thread has ended: what it had started is another's now, which may have been read before
        return found


def carrying(variable: str) -> list[int]:
    """The processes, whoever has started them, that run with that variable of the environment (`NAME=value`)."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile, or is somebody else's
                if variable.encode() in (entry / "environ").read_bytes().split(b"\0") and runs(int(entry.name)):
                    found.append(int(entry.name))
    return found


def threads(*beginnings: str) -> set[threading.Thread]:
    """The threads of this process whose names begin so. Earlier tests may have left some that go on."""
    return {one for one in threading.enumerate() if one.name.startswith(beginnings)}


def descriptors() -> int:
    """How many files, sockets and pipes this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return text.rpartition(")")[2].split()[0]
