"""Notifies the owner of a journal file of a new command in the inbox, through a Unix socket beside the file.

Rules:
- A notification carries no data: the command is in the file, whose permissions say who may write it. A superfluous one
  costs one look at the inbox; a missing one is made good by the next one, or by the next start.
- Only the socket's owner can use it (0600). A leftover socket belongs to a runtime that was killed: the owner of the
  journal's lock replaces it.
- A socket's path may have about a hundred bytes. The socket is reached through the handle of its folder if the system
  has /proc, so that only its name counts.
- Where no socket can be made, the owner looks once a second.
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
"""Seconds between two looks if there is no socket."""
_FOLDERS = "/proc/self/fd"


def socket_of(journal: Path) -> Path:
    """The path of a journal's socket."""
    return journal.with_name(f"{journal.name}.sock")


class SocketNotifier:
    """The owner's side, from its creation until `close`. Only the owner of the journal's lock creates it."""

    def __init__(self, journal: Path) -> None:
        self._path = socket_of(journal)
        self._socket = self._listen()

    @property
    def works(self) -> bool:
        """Whether there is a socket: without one, `wait` returns once a second."""
        return self._socket is not None

    def _listen(self) -> socket.socket | None:
        if not hasattr(socket, "AF_UNIX"):
            return None
        with contextlib.suppress(FileNotFoundError, OSError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                return None  # another kind of file with that name, which is not ours to remove
            self._path.unlink()
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            made.setblocking(False)
            with contextlib.suppress(OSError):
                os.fchmod(made.fileno(), 0o600)  # Linux creates the file with these: nobody can connect before
            with _short(self._path) as path:
                made.bind(path)
            self._path.chmod(0o600)
        except OSError:
            made.close()
            return None
        return made

    async def wait(self) -> None:
        """Wait for a notification, or for a second if there is no socket."""
        if self._socket is None:
            await anyio.sleep(LOOK_EVERY)
            return
        await anyio.wait_readable(self._socket)
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while True:
                self._socket.recv(64)

    def close(self) -> None:
        """Close and remove the socket."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            self._socket.close()
            self._socket = None


def notify(journal: Path) -> bool:
    """Signal the owner of a journal to look into its inbox. Returns whether a socket accepted the notification."""
    if not hasattr(socket, "AF_UNIX"):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.setblocking(False)
        try:
            with _short(socket_of(journal)) as path:
                made.sendto(b"!", path)
        except BlockingIOError:
            return True  # the socket's queue is full, so the owner will look anyway
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
