"""Ends everything that a Ray actor leaves: a small process beside it, run by its path, without our package.

    python warden.py MARK PID LEASE FOLDER          its standard input: a byte for each message of the runtime

FOLDER/word is a named pipe for the same purpose: for a process that observes the actor for the runtime, when the actor
itself cannot receive messages.

Rules:
- When its input ends, the actor has ended. If nothing arrives for LEASE seconds, the runtime has ended: the actor is
  killed. This also ends an actor that is frozen, or cut off from its runtime, before another one repeats its work.
- Then every process with MARK ("NAME=value") in its environment is killed, with its process group, until none is left:
  the actor's children, and theirs. Without /proc, none can be found.
- Ray kills an actor's child processes with it. So the warden is no child of it, and has its own session.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

_PROC = Path("/proc")
_PATIENCE = 5.0  # seconds in which new processes may still appear


def watch(actor: int, lease: float, word: int) -> None:
    """Return when the actor has ended; kill it if no message arrives for `lease` seconds."""
    try:
        pidfd = os.pidfd_open(actor)
    except (OSError, AttributeError):
        pidfd = None
    while said := select.select([0, word], [], [], lease)[0]:
        if word in said:
            os.read(word, 4096)
        if 0 in said and not os.read(0, 4096):
            return
    if pidfd is not None:
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def sweep(mark: bytes) -> None:
    """Kill all processes with the mark, until none is found."""
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and (found := _carriers(mark)):
        for pid in found:
            with contextlib.suppress(OSError):
                group = os.getpgid(pid)
                if group in found:  # the group's leader has the mark, too: the group is ours
                    os.killpg(group, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _carriers(mark: bytes) -> set[int]:
    found: set[int] = set()
    for place in _PROC.iterdir() if _PROC.is_dir() else ():
        if not place.name.isdecimal() or int(place.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if mark in (place / "environ").read_bytes().split(b"\0") and not _dead(place):
                found.add(int(place.name))
    return found


def _dead(place: Path) -> bool:
    return (place / "stat").read_bytes().rpartition(b") ")[2][:1] in b"ZX"


def main() -> None:
    """Run as the warden."""
    mark, actor, lease, folder = sys.argv[1:]
    pipe = Path(folder) / "word"
    os.mkfifo(pipe, 0o600)
    word = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # for writing, too: so the reader never gets an end of file
    if os.fork():
        os._exit(0)
    os.setsid()
    watch(int(actor), float(lease), word)
    sweep(mark.encode())
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
