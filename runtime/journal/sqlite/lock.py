"""One owner per journal file: a lock file beside it, and a table of what this process owns.

Rules:
- The lock is on FILE.lock, never on the database: closing any handle of a file drops this process's POSIX locks on
  it, and SQLite needs its own.
- The kernel releases the lock when its owner dies, in any way. The file stays; it holds the owner's process id.
- The process id is written to a plain file of that name, never through a link: the link's target is not ours. A file
  with any other content than such a number is not ours either (`poetry.lock`): it is refused, and not changed.
- Child processes do not inherit the handle, and forks of this process close it at once (a body may call `os.fork` or
  `multiprocessing`): else they would keep the lock after their parent was killed. Between its fork and its `exec` a new
  command still has the handle. If the owner is killed just then, the lock is held for a moment by a child of a process
  that does not exist: whoever asks waits for that moment.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from pathlib import Path

from ...errors import JournalLocked, JournalUnwritable

_LOOK = 0.01
"""Seconds after which a process that only looks up the owner has released the lock."""
_EXEC = 1.0
"""Seconds that a new command may take, on a busy machine, from its fork to its `exec`."""
_ITSELF = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Open the file itself, not the target of a link, and do not wait for the other end of a pipe."""
_TAKEN = frozenset({errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})
"""Error codes if another process has the lock."""
_LONGEST = 32
"""Bytes of a lock file that are read: more than any process id has."""
_owned: dict[str, int] = {}  # lock handles of the journals that this process has open, by real paths


class Lock:
    """The right to write one journal file, identified by its resolved path, from its creation until `release`.

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
        with contextlib.suppress(OSError):  # a full disk: then errors name "another process"
            os.ftruncate(self._handle, 0)
            os.lseek(self._handle, 0, os.SEEK_SET)
            os.write(self._handle, b"%d\n" % os.getpid())
        _owned[self._name] = self._handle

    def release(self) -> None:
        """Release the lock. The lock file stays: removing it would let two owners lock two files of one name."""
        if self._name not in _owned:
            return  # in a fork of the owner
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
        os.close(self._handle)
        del _owned[self._name]


def owner_of(path: Path) -> str | None:
    """The process that owns the journal at `path`, in words; None if there is none.

    It takes the lock for a moment if it is free; an owner that starts just then retries.
    """
    try:
        handle = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | _ITSELF)
    except OSError:
        return None  # the file never had an owner, or this user may not read it
    try:
        if not _is_plain(handle):
            return None
        if not _owner_in(handle):
            return None
        try:
            _take_after(handle)
        except OSError:
            return f"process {_owner_in(handle)}"
        return None
    finally:
        os.close(handle)


def refuse_owned(path: Path) -> None:
    """Raises JournalLocked if a process owns the journal at `path`."""
    if (owner := owner_of(path)) is not None:
        raise _in_use(path, owner)


def _in_use(path: Path, owner: str) -> JournalLocked:
    return JournalLocked(f"{path} is in use by {owner}. Stop that runtime, or use another file.")


def _is_plain(handle: int) -> bool:
    """Whether a file has one name: no pipe, no device, and no other program's file with a second name."""
    found = os.fstat(handle)
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _is_ours(text: bytes) -> bool:
    """Whether a lock file of ours may hold that text: nothing, or the id of a process that was killed."""
    return len(text) < _LONGEST and (not text or text.strip().isdigit())


def _no_lock_file(beside: Path, path: Path) -> JournalUnwritable:
    return JournalUnwritable(
        f"{beside}, which guards {path}, is a link, no plain file, or a file of something else. It was not touched: "
        "remove it, or name the journal otherwise."
    )


def _take_soon(handle: int) -> None:
    """Take the lock; wait for a process that only reads the owner. Raises OSError if an owner has it."""
    try:
        _take(handle)
    except OSError:
        time.sleep(_LOOK)
        _take_after(handle)


def _owner_in(handle: int) -> str:
    """The text of a lock file: the id of the process that owns the journal, or owned it last."""
    os.lseek(handle, 0, os.SEEK_SET)
    owner = os.read(handle, _LONGEST).decode("ascii", "replace").strip()
    os.lseek(handle, 0, os.SEEK_SET)
    return owner


def _take_after(handle: int) -> None:
    """Take the lock; if its owner does not exist, wait for its newest child. Raises OSError if another one has it."""
    until = time.monotonic() + _EXEC
    while True:
        try:
            _take(handle)
        except OSError:
            if not _is_gone(_owner_in(handle)) or time.monotonic() >= until:
                raise
            time.sleep(_LOOK)
        else:
            return


def _is_gone(owner: str) -> bool:
    """Whether no process here has that id. An owner in another container looks the same."""
    if not owner.isdigit() or sys.platform == "win32":
        return False
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's process
        return False
    return False


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
    """In a forked child: close the handles of the parent's journals. The parent keeps the locks."""
    while _owned:
        os.close(_owned.popitem()[1])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_forked)
