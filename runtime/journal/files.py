"""The three files of a journal in use, by what they are and not by their names: the database, its log, its index.

A file that is removed or replaced while it is open goes on without its name: what is committed there is gone when the
process ends, and who opens the name meanwhile reads and writes something else. SQLite does not notice. So the writer
looks after each commit, before it acknowledges anything: three calls of the system, a thousandth of the commit.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from .opening import connect

_SUFFIXES = ("", "-wal", "-shm")

Identity = tuple[int, int]  # device and inode


class FilesMoved(Exception):  # noqa: N818 - it says what is the matter
    """A file of the journal was removed, moved or replaced while it was in use. The text says what to do."""


class Files:
    """The files of the journal at `path`, as a connection has them open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = [f"{path}{suffix}" for suffix in _SUFFIXES]
        self._known: list[Identity | None] = [_identity(self._names[0]), None, None]

    def check(self) -> None:
        """Look whether all are in their places. Call it after a commit. Raises FilesMoved.

        A name that was not there the last time is taken as it is found: SQLite makes the log and the index late.
        """
        for number, name in enumerate(self._names):
            found, known = _identity(name), self._known[number]
            if known is None:
                self._known[number] = found
            elif found != known:
                raise FilesMoved(f"{Path(name).name} was removed or replaced while it was in use")

    @property
    def database(self) -> Identity | None:
        """What stands in the place of the database now."""
        return _identity(self._names[0])

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

        Raises sqlite3.Error where it is no journal.
        """
        with contextlib.closing(connect(self._path, "ro&immutable=1")) as connection:
            owner, entry = connection.execute("SELECT owner, entry FROM meta").fetchone()
            return int(owner), int(entry)

    def leave(self) -> None:
        """Remove the log and the index that belonged to a database which has lost its place. Raises OSError.

        SQLite leaves them where they are: they would be taken for those of the database that is there now.
        """
        for name, known in zip(self._names[1:], self._known[1:], strict=True):
            if known is not None and _identity(name) == known:
                Path(name).unlink()

    def fold(self, connection: sqlite3.Connection) -> None:
        """Bring what is in the log, which may have no name any more, into the database.

        Raises FilesMoved, sqlite3.Error.
        """
        busy, pages, done = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy or pages != done:
            raise FilesMoved("its log was removed while somebody reads the file; it is mended when they are done")


def _identity(name: str) -> Identity | None:
    try:
        found = os.stat(name)  # noqa: PTH116 - at each commit: Path's takes twice as long
    except OSError:
        return None
    return found.st_dev, found.st_ino
