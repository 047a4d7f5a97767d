"""One owner per journal file: a lock file beside it, and a table of what this process owns.

Rules:
- The lock is on FILE.lock, never on the database: closing any handle of a file drops this process's POSIX locks on
  it, and SQLite needs its own.
- The kernel frees the lock when its owner dies, however it dies. The file stays; the owner's process id is in it.
- Its process id goes into a plain file of that name, never through a link: what a link leads to is not ours. Nor is a
  file with anything else in it than such a number (`poetry.lock`): it is refused, and not touched.
- The handle is not inherited by child processes, and closed at once in those that this process forks (as a body may,
  by `os.fork` or `multiprocessing`): they would keep the lock when their parent has been killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from pathlib import Path

from ..contract import JournalLocked, JournalUnwritable

_LOOK = 0.01
"""Seconds within which somebody who only looks who owns a journal is done."""
_ITSELF = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""What stands under the name, and nothing that it leads to; and without waiting for the other end of a pipe."""
_TAKEN = frozenset({errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})
"""What the system says where somebody else has the lock."""
_LONGEST = 32
"""Bytes of a lock file that are looked at: more than the number of any process has."""
_owned: dict[str, int] = {}  # the handles of the locks of the journals that this process has open, by real paths


class Lock:
    """The right to write one journal file, by its path with all links followed, from its making until `release`.

    Raises JournalLocked if another runtime has it, in this process or another, and JournalUnwritable if the lock
    file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        if self._name in _owned:
            raise JournalLocked(
                f"{path} is already open in this process (process {os.getpid()}). "
                "Leave that runtime first, share it, or use another file."
            )
        beside = path.with_name(path.name + ".lock")
        try:
            self._handle = os.open(beside, os.O_RDWR | os.O_CREAT | _ITSELF, 0o644)
        except OSError as error:
            if beside.is_symlink():
                raise _no_lock_file(beside, path) from error
            raise JournalUnwritable(
                f"Cannot make {beside}, which guards {path}: {error.strerror}. Make the folder writable."
            ) from error
        if not _is_plain(self._handle):
            os.close(self._handle)
            raise _no_lock_file(beside, path)
        try:
            _take_soon(self._handle)
        except OSError as error:
            if error.errno not in _TAKEN:
                os.close(self._handle)
                raise JournalUnwritable(
                    f"Cannot lock {beside}, which guards {path}: {error.strerror}. Where a file system has no locks, "
                    "nothing keeps two runtimes from one file: keep the journal on a disk of this machine."
                ) from error
            owner = os.read(self._handle, _LONGEST).decode("ascii", "replace").strip()
            os.close(self._handle)
            raise _in_use(path, f"process {owner}" if owner else "another process") from error
        if not _is_ours(os.read(self._handle, _LONGEST)):
            os.close(self._handle)
            raise _no_lock_file(beside, path)
        with contextlib.suppress(OSError):  # a full disk: then others are told of "another process"
            os.ftruncate(self._handle, 0)
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, b"%d\n" % os.getpid())
        _owned[self._name] = self._handle

    def release(self) -> None:
        """Let others have it. The lock file stays: removing it would let two owners lock two files of one name."""
        if self._name not in _owned:
            return  # in a fork of the owner
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
        os.close(self._handle)
        del _owned[self._name]


def owner_of(path: Path) -> str | None:
    """The process that owns the journal at `path`, in words; None where nobody does.

    It looks by taking the lock for a moment where it is free; an owner that comes just then tries again.
    """
    try:
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | _ITSELF)
    except OSError:
        return None  # nobody has ever owned it, or it is not ours to look at
    try:
        if not _is_plain(handle):
            return None
        owner = os.read(handle, _LONGEST).decode("ascii", "replace").strip()
        if not owner:
            return None
        try:
            _take(handle)
        except OSError:
            return f"process {owner}"
        return None
    finally:
        os.close(handle)


def refuse_owned(path: Path) -> None:
    """Raises JournalLocked where somebody owns the journal at `path`."""
    if (owner := owner_of(path)) is not None:
        raise _in_use(path, owner)


def _in_use(path: Path, owner: str) -> JournalLocked:
    return JournalLocked(f"{path} is in use by {owner}. Stop that runtime, or use another file.")


def _is_plain(handle: int) -> bool:
    """Whether it is a file with one name: no pipe, no device, and nobody else's under a second name."""
    found = os.fstat(handle)
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _is_ours(text: bytes) -> bool:
    """Whether that may stand in a lock file: nothing, or the number of a process that was killed."""
    return len(text) < _LONGEST and (not text or text.strip().isdigit())


def _no_lock_file(beside: Path, path: Path) -> JournalUnwritable:
    return JournalUnwritable(
        f"{beside}, which guards {path}, is a link, no plain file, or a file of something else. It was not touched: "
        "remove it, or name the journal otherwise."
    )


def _take_soon(handle: int) -> None:
    """Take the lock, also from somebody who only looks. Raises OSError if an owner has it."""
    try:
        _take(handle)
    except OSError:
        time.sleep(_LOOK)
        _take(handle)


if sys.platform == "win32":
    import msvcrt

    def _take(handle: int) -> None:
        """Lock a byte far beyond the text, so that the text can still be read."""
        os.lseek(handle, 1 << 20, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

else:
    import fcntl

    def _take(handle: int) -> None:
        """Lock the whole file, or raise OSError at once."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _forget_forked() -> None:
    """In a forked child: the journals are the parent's. Closing the handle leaves the lock to it."""
    while _owned:
        os.close(_owned.popitem()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_forked)
