"""The bell: a Unix socket beside the journal, by which a client says that there is something in the inbox.

Rules:
- A ring carries nothing: what is to be done stands in the file, whose permissions say who may write it. A ring too many
  costs one look, one too few is made good by the next one, or by the next start.
- The socket is of its owner only (0600). One that is left over belongs to a runtime that was killed: whoever owns the
  journal's lock replaces it.
- A socket's path may have about a hundred bytes. It is reached through the handle of its folder where the system has
  /proc, so that only its name counts.
- Where there can be no socket, the owner looks once a second.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Generator
from pathlib import Path

import anyio

LOOK_EVERY = 1.0
"""Seconds between two looks where there is no socket."""
_FOLDERS = "/proc/self/fd"


def bell_of(journal: Path) -> Path:
    """Where the socket of a journal is."""
    return journal.with_name(f"{journal.name}.sock")


class Bell:
    """The owner's side: heard by `heard` from its making until `close`. Made by the owner of the journal's lock."""

    def __init__(self, journal: Path) -> None:
        self._path = bell_of(journal)
        self._socket = self._listen()

    @property
    def works(self) -> bool:
        """Whether there is a socket: without one, `heard` returns once a second."""
        return self._socket is not None

    def _listen(self) -> socket.socket | None:
        if not hasattr(socket, "AF_UNIX"):
            return None
        with contextlib.suppress(FileNotFoundError, OSError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                return None  # something else of that name, which is not ours to remove
            self._path.unlink()
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bell.setblocking(False)
            with contextlib.suppress(OSError):
                os.fchmod(bell.fileno(), 0o600)  # Linux makes the file with these, so that nobody gets in between
            with _short(self._path) as path:
                bell.bind(path)
            self._path.chmod(0o600)
        except OSError:
            bell.close()
            return None
        return bell

    async def heard(self) -> None:
        """Wait until somebody has rung, or for a second where there is no socket."""
        if self._socket is None:
            await anyio.sleep(LOOK_EVERY)
            return
        await anyio.wait_readable(self._socket)
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while True:
                self._socket.recv(64)

    def close(self) -> None:
        """Take it away."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._socket.close()
            self._socket = None


def ring(journal: Path) -> bool:
    """Tell the owner of a journal to look into its inbox. Returns whether there is a bell that took it."""
    if not hasattr(socket, "AF_UNIX"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.setblocking(False)
        try:
            with _short(bell_of(journal)) as path:
                bell.sendto(b"!", path)
        except BlockingIOError:
            return True  # it has been rung so often that it will look anyway
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _short(path: Path) -> Generator[str]:
    """A short path of the same file."""
    if not Path(_FOLDERS).is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_FOLDERS}/{folder}/{path.name}"
    finally:
        os.close(folder)
