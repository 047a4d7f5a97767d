"""The three files of a journal in use, by what they are and not by their names: the database, its log, its index.

Rules:
- A file that is removed or replaced while it is open goes on without its name: what is committed there is gone when the
  process ends, and who opens the name meanwhile reads and writes something else. SQLite does not notice. So the writer
  looks after each commit, before it acknowledges anything: three calls of the system, a thousandth of the commit.
- Nor does it notice that another file was copied over the database's content: it would mix the two when it folds its
  log into it. So the writer looks before each commit, too, whether the database has changed since its last one (one
  call). It may: others fold the log as well. But what is folded never goes back, so the entry that the database ends
  with, read without the log, says whether it is the same still. A copy that ends as it did when that was last looked
  at, or later, cannot be told from it.
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
"""Seconds between two looks at how far the log was folded."""
_LOOKS = 4
_BETWEEN = 0.1
"""How often the database is read that seems overwritten, and seconds between: somebody may be folding the log."""

Identity = tuple[int, int]  # device and inode
Stamp = tuple[int, int]  # when it was written last, and its size


class FilesMoved(Exception):  # noqa: N818 - it says what is the matter
    """A file of the journal was removed, moved or replaced while it was in use. The text says what to do."""


class Overwritten(Exception):  # noqa: N818 - it says what is the matter
    """An older copy was copied over the content of the database while it was in use: what was committed is gone."""


class Damaged(sqlite3.DatabaseError):
    """The database cannot be read any more: pages of it were overwritten while it was in use."""


class Files:
    """The files of the journal at `path`, as a connection has them open.

    owner: the number of the present owner. floor: the entry that its database had at least, if it was seen before.
    """

    def __init__(self, path: Path, owner: int, floor: int = 0) -> None:
        self.floor = floor
        self._path = path
        self._names = [f"{path}{suffix}" for suffix in _SUFFIXES]
        self._known: list[Identity | None] = [_identity(_stat(self._names[0])), None, None]
        self._owners = {owner}
        self._stamp: Stamp | None = None
        self._held_at = 0.0
        with contextlib.suppress(sqlite3.Error):
            before, entry = self.stands_in()
            self._owners.add(before)  # as long as what this one writes is in the log only
            self.floor = max(floor, entry)

    def look(self) -> None:
        """Look whether the database's content is the one that it was. Call it before a commit.

        Raises Overwritten, Damaged.
        """
        found = _stat(self._names[0])
        if found is not None and _identity(found) == self._known[0]:  # else `check` tells of it
            stamp = found.st_mtime_ns, found.st_size
            if stamp != self._stamp:
                self._hold()
                self._stamp = stamp

    def check(self) -> None:
        """Look whether all are in their places. Call it after a commit. Raises FilesMoved, and as `look`.

        A name that was not there the last time is taken as it is found: SQLite makes the log and the index late.
        """
        for number, name in enumerate(self._names):
            status, known = _stat(name), self._known[number]
            found = _identity(status)
            if known is None:
                self._known[number] = found
            elif found != known:
                raise FilesMoved(f"{Path(name).name} was removed or replaced while it was in use")
            if number == 0 and status is not None:
                self._folded((status.st_mtime_ns, status.st_size))

    def _folded(self, stamp: Stamp) -> None:
        """The log was folded by the commit, if the database has changed. How far is looked at now and then: it takes
        a millisecond.
        """
        if stamp != self._stamp:
            self._stamp = stamp
            if (now := time.monotonic()) - self._held_at >= _EVERY:
                self._held_at = now
                self._hold()

    def _hold(self) -> None:
        """Hold the database by itself against what it was. Raises Overwritten, Damaged."""
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
        """Put the log of what was overwritten aside: SQLite would mix it into what is there now. Raises OSError."""
        log, index = self._names[1:]
        if _identity(_stat(log)) == self._known[1] is not None:
            Path(log).replace(f"{self._names[0]}.overwritten-wal")
            Path(index).unlink(missing_ok=True)

    @property
    def database(self) -> Identity | None:
        """What stands in the place of the database now."""
        return _identity(_stat(self._names[0]))

    @property
    def is_in_place(self) -> bool:
        """Whether the database, if not its log and index, is where it was."""
        return self._known[0] is not None and self.database == self._known[0]

    def save(self, connection: sqlite3.Connection) -> Path:
        """Copy all that is committed to a file beside, once. Raises OSError, sqlite3.Error."""
        saved = self._path.with_name(f"{self._path.name}.saved")
        if not saved.exists():
            part = saved.with_name(f"{saved.name}.part")
            part.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(part)) as copy:
                connection.backup(copy)
            part.rename(saved)
        return saved

    def stands_in(self) -> tuple[int, int]:
        """Owner and last entry of the file that is in the database's place, read without its log or ours.

        Where others read, only some pages of the log are folded: the file may be shorter then than it says it is, which
        SQLite takes for damage where its schema cannot be written. Raises sqlite3.Error where it is no journal.
        """
        with contextlib.closing(connect(self._path, "ro&immutable=1")) as connection:
            connection.execute("PRAGMA writable_schema = ON")  # nothing is written: it is opened to be read
            owner, entry = connection.execute("SELECT owner, entry FROM meta").fetchone()
            return int(owner), int(entry)

    def leave(self) -> None:
        """Remove the log and the index that belonged to a database which has lost its place. Raises OSError.

        SQLite leaves them where they are: they would be taken for those of the database that is there now.
        """
        for name, known in zip(self._names[1:], self._known[1:], strict=True):
            if known is not None and _identity(_stat(name)) == known:
                Path(name).unlink()

    def fold(self, connection: sqlite3.Connection) -> None:
        """Bring what is in the log, which may have no name any more, into the database.

        Raises FilesMoved, sqlite3.Error.
        """
        busy, pages, done = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy or pages != done:
            raise FilesMoved("its log was removed while somebody reads the file; it is mended when they are done")


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name)  # noqa: PTH116 - at each commit: Path's takes twice as long
    except OSError:
        return None


def _identity(found: os.stat_result | None) -> Identity | None:
    return None if found is None else (found.st_dev, found.st_ino)
