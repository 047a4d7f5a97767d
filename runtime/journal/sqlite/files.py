"""Detects that a file of an open journal was removed or replaced: the database, its log or its index.

Rules:
- A file that is removed or replaced while it is open continues to exist without its name: what is committed there is
  lost when the process ends, and a process that opens the name meanwhile uses another file. SQLite does not notice. So
  the writer checks after each commit, before it acknowledges anything: three system calls, a thousandth of the commit.
- SQLite does not notice either if another file is copied over the database's content: it would mix the two when it
  folds its log into the database. So the writer also checks before each commit whether the database has changed since
  its last one (one call). Changes are allowed: others fold the log as well. But folding never goes back, so the last
  entry in the database, read without the log, tells whether it is still the same. An older copy cannot be told from it
  if the copy ends with the same entry as at the last check, or a later one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from .opening import connect

_SUFFIXES = ("", "-wal", "-shm")
_EVERY = 0.5
"""Seconds between two checks of the last folded entry."""
_LOOKS = 4
_BETWEEN = 0.1
"""How often a database that seems overwritten is read, and seconds between: the log may be just being folded."""

Identity = tuple[int, int]  # device and inode
Stamp = tuple[int, int]  # time of the last write, and size


class FilesMoved(Exception):  # noqa: N818 - it names the problem
    """A file of the journal was removed, moved or replaced while it was in use. The text says what to do."""


class Overwritten(Exception):  # noqa: N818 - it names the problem
    """An older copy was copied over the content of the database while it was in use: later commits are lost."""


class Damaged(sqlite3.DatabaseError):
    """The database cannot be read any more: pages of it were overwritten while it was in use."""


class Files:
    """The files of the journal at `path`, as a connection has them open.

    owner: the number of the present owner. floor: the last entry that the database is known to have had.
    """

    def __init__(self, path: Path, owner: int, floor: int = 0) -> None:
        self.floor = floor
        self._path = path
        self._names = [f"{path}{suffix}" for suffix in _SUFFIXES]
        self._known: list[Identity | None] = [_identity(_stat(self._names[0])), None, None]
        self._owners = {owner}
        self._stamp: Stamp | None = None
        self._held_at = 0.0

    def note(self, connection: sqlite3.Connection) -> None:
        """Note which content the database has. Call it when the connection is open.

        While the log is empty, the connection reads just that: another one would read all tables and views anew.
        """
        found = _stat(self._names[0])
        with contextlib.suppress(sqlite3.Error):
            before, entry = _held(connection)
            log = _stat(self._names[1])
            if log is None or log.st_size:
                before, entry = self.stands_in()
            self._owners.add(before)  # the file names this owner while this one's writes are in the log only
            self.floor = max(self.floor, entry)
            self._stamp = None if found is None else (found.st_mtime_ns, found.st_size)

    def look(self) -> None:
        """Check that the database still has its content. Call it before a commit.

        Raises Overwritten, Damaged.
        """
        found = _stat(self._names[0])
        if found is not None and _identity(found) == self._known[0]:  # else `check` reports it
            stamp = found.st_mtime_ns, found.st_size
            if stamp != self._stamp:
                self._hold()
                self._stamp = stamp

    def check(self) -> None:
        """Check that all files are in their places. Call it after a commit. Raises FilesMoved, and as `look`.

        A file that did not exist at the last check is accepted as found: SQLite creates the log and the index late.
        """
        for number, name in enumerate(self._names):
            status, opened = _stat(name), self._known[number]
            found = _identity(status)
            if opened is None:
                self._known[number] = found
            elif found != opened:
                raise FilesMoved(f"{Path(name).name} was removed or replaced while it was in use")
            if number == 0 and status is not None:
                self._folded((status.st_mtime_ns, status.st_size))

    def _folded(self, stamp: Stamp) -> None:
        """Note that the commit folded the log, if the database has changed. The last folded entry is read only now and
        then: that takes a millisecond.
        """
        if stamp != self._stamp:
            self._stamp = stamp
            if (now := time.monotonic()) - self._held_at >= _EVERY:
                self._held_at = now
                self._hold()

    def _hold(self) -> None:
        """Compare the database, without its log, with its known owner and entry. Raises Overwritten, Damaged."""
        entry: int | None = None
        for look in range(_LOOKS):
            if look:
                time.sleep(_BETWEEN)
            with contextlib.suppress(sqlite3.Error):
                owner, entry = self.stands_in()
                if owner in self._owners and entry >= self.floor:
                    self.floor = entry
                    return
        if entry is None:
            raise Damaged("the file is damaged: stop this runtime, keep the file, and restore it from a copy")
        raise Overwritten(
            "it was overwritten while it was in use, by an older copy or another journal: what was committed since is "
            "lost. The next start goes on from what the file holds now"
        )

    def part(self) -> None:
        """Rename the log of the overwritten database: SQLite would mix it into the present one. Raises OSError."""
        log, index = self._names[1:]
        if _identity(_stat(log)) == self._known[1] is not None:
            Path(log).replace(f"{self._names[0]}.overwritten-wal")
            Path(index).unlink(missing_ok=True)

    @property
    def database(self) -> Identity | None:
        """The file that is at the database's path now."""
        return _identity(_stat(self._names[0]))

    @property
    def is_in_place(self) -> bool:
        """Whether the database is at its path; its log and index are not checked."""
        return self._known[0] is not None and self.database == self._known[0]

    def save(self, connection: sqlite3.Connection) -> Path:
        """Copy all commits to a file beside the database, once. Raises OSError, sqlite3.Error."""
        saved = self._path.with_name(f"{self._path.name}.saved")
        if not saved.exists():
            part = saved.with_name(f"{saved.name}.part")
            part.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(part)) as copy:
                connection.backup(copy)
            part.rename(saved)
        return saved

    def stands_in(self) -> tuple[int, int]:
        """Owner and last entry of the file at the database's path, read without a log.

        While others read, only some pages of the log are folded: the file may be shorter than its header says. SQLite
        takes this for damage unless the schema is writable. Raises sqlite3.Error if the file is no journal.
        """
        with contextlib.closing(connect(self._path, "ro&immutable=1")) as connection:
            connection.execute("PRAGMA writable_schema = ON")  # nothing is written: the connection is read-only
            return _held(connection)

    def leave(self) -> None:
        """Remove the log and the index of a database that was replaced. Raises OSError.

        SQLite would leave them, and use them for the present database.
        """
        for name, opened in zip(self._names[1:], self._known[1:], strict=True):
            if opened is not None and _identity(_stat(name)) == opened:
                Path(name).unlink()

    def fold(self, connection: sqlite3.Connection) -> None:
        """Fold the log, which may have no name any more, into the database.

        Raises FilesMoved, sqlite3.Error.
        """
        busy, pages, done = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy or pages != done:
            raise FilesMoved("its log was removed while another program reads the file; it is repaired after that")


def _held(connection: sqlite3.Connection) -> tuple[int, int]:
    """Owner and last entry, as the connection reads them."""
    owner, entry = connection.execute("SELECT owner, entry FROM meta").fetchone()
    return int(owner), int(entry)


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116 - runs at each commit: Path's takes twice as long
    except OSError:
        return None


def _identity(found: os.stat_result | None) -> Identity | None:
    return None if found is None else (found.st_dev, found.st_ino)
