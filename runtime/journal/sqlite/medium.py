"""The file that the writer commits to: one statement per batch, and recovery if the file was replaced.

Rules:
- A commit fails unless the file still belongs to this owner and ends with the entry before; the statement checks this
  itself. If another runtime has claimed the file, this one has lost it for good (`LeaseLost`).
- After any error the file is opened anew, and its last entry's number tells whether a batch was committed before it.
- If an older copy was copied over the file (`files.py`), the file is lost in the same way, and its log is not folded
  into the new content.
- A write to a file that has lost its name is not durable (`files.py`). A removed log or index is repaired. The writer
  waits for a removed or replaced database; another file is accepted only if it holds all acknowledged entries.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from ...errors import LeaseLost
from ..batch import Batch, Parameters, parts_of
from .files import Damaged, Files, FilesMoved, Overwritten
from .lock import Lock
from .opening import FileClaim, code_of, connect, connect_writer, end_session, refusing
from .schema import INSERTS

_DAMAGED = "the file is damaged: stop this runtime, keep the file, and restore it from a copy"
_UNREADABLE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TELLS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_BUSY: "another program holds the file locked",
    sqlite3.SQLITE_READONLY: "the file has become read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "this user may not write the file any more",
    sqlite3.SQLITE_IOERR: "the disk fails (an error of reading or writing)",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}

_FOREIGN = (
    "another file is in its place, an older copy of it, or another runtime has used it. "
    "Put back the one that was in use"
)


class SqliteMedium:
    """The file at `path`; `lock` makes this process its owner.

    connect: opens the file. aside: a block in which no part of this process reads the file.
    """

    answers = "the disk"

    def __init__(
        self,
        path: Path,
        lock: Lock,
        claimed: FileClaim,
        *,
        aside: Callable[[], AbstractContextManager[None]],
        connect: Callable[[Path], sqlite3.Connection] = connect_writer,
    ) -> None:
        self.name = str(path)
        self._path = path
        self._lock = lock
        self._owner = claimed.owner
        self._session = claimed.session
        self._base = claimed.entry
        self._last = claimed.entry  # the last acknowledged entry
        self._aside = aside
        self._connect = connect
        self._files = Files(path, self._owner)
        self._astray = False  # a file of the journal has lost its name; the connection still has it open
        self._folds = True  # the log belongs to the file's content
        self._connection: sqlite3.Connection | None = None
        self._beside: sqlite3.Connection | None = None  # keeps the file open: so closing the other folds no log
        self._encoded: tuple[Batch, list[Parameters]] | None = None  # for the batch that is being tried

    def open(self) -> None:
        """Open the file. Raises JournalError."""
        with refusing(self._path):
            self._open()

    def has(self, batch: Batch) -> bool:
        """Whether the batch was committed before an error came. Raises LeaseLost, FilesMoved, OSError,
        sqlite3.Error.
        """
        if self._connection is not None and not self._astray:
            return False
        number = self._base + batch.number
        try:
            if self._last_entry(self._come_back()) < number:
                return False
        except Overwritten as error:
            raise self._gone(error) from error
        self._acknowledge(number)
        return True

    def commit(self, batch: Batch, away: Callable[[], None]) -> None:
        """Commit a batch. Raises LeaseLost, FilesMoved, sqlite3.Error."""
        if self._connection is None:
            raise sqlite3.ProgrammingError("it is not open")
        parts = self._parts(batch)
        try:
            self._files.look()
            away()  # only now: each look at a file would hand the interpreter to the loop, and wait for it afterwards
            _commit(self._connection, parts)
            self._files.check()
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
                self._last_entry(self._connection)
            raise
        except Overwritten as error:
            raise self._gone(error) from error
        self._acknowledge(self._base + batch.number)

    def failed(self, error: Exception) -> str:
        """Return the reason in words. Keep the connection only if no other file has its commits."""
        if isinstance(error, FilesMoved):
            self._astray = True
        else:
            self._folds = self._folds and code_of(error) not in _UNREADABLE and not isinstance(error, Damaged)
            self._close()
        return _TELLS.get(code_of(error), str(error) or type(error).__name__)

    def close(self) -> None:
        """Close the file, and release the right to write it."""
        if self._connection is not None and not self._astray:
            try:
                self._files.look()
                end_session(self._connection, self._owner)
            except Overwritten as error:
                self._gone(error)
            except sqlite3.Error as error:  # the next owner finds that this process has ended
                self.failed(error)
        self._close()
        self._lock.release()

    def _acknowledge(self, number: int) -> None:
        self._last, self._encoded = number, None

    def _parts(self, batch: Batch) -> list[Parameters]:
        """The parameters of the statements that write a batch. Encoded once, however many tries it takes."""
        if self._encoded is None or self._encoded[0] is not batch:
            self._encoded = batch, parts_of(batch, self._owner, self._last, self._base + batch.number)
        return self._encoded[1]

    def _open(self) -> sqlite3.Connection:
        connection = self._connection = self._connect(self._path)
        self._folds = True
        self._beside = connect(self._path, "ro")
        self._beside.execute("PRAGMA user_version").fetchall()  # the query opens the log, and reads no table
        self._files = Files(self._path, self._owner, self._files.floor)
        self._files.note(connection)
        return connection

    def _come_back(self) -> sqlite3.Connection:
        """Connect to the journal by its path. Raises FilesMoved, OSError, sqlite3.Error."""
        if not self._files.is_in_place:
            connection = self._adopt()
        elif self._connection is None:
            connection = self._open()
        else:
            connection = self._mend(self._connection)
        self._astray = False
        return connection

    def _mend(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Repair a log or an index that was removed. Files that are back in their places are accepted as they are."""
        with contextlib.suppress(FilesMoved):
            self._files.check()
            return connection
        with self._aside():
            self._files.fold(connection)
            self._close()
            return self._open()

    def _adopt(self) -> sqlite3.Connection:
        """Accept the file at the database's path, if it holds all that was acknowledged."""
        if self._files.database is None:
            text = "it was removed or moved away while it was in use. Put it back"
            if self._connection is not None:
                text += f", or rename {self._files.save(self._connection).name}, which holds all of it"
            raise FilesMoved(text)
        owner, entry = self._files.stands_in()
        if owner != self._owner or entry < self._last:
            raise FilesMoved(_FOREIGN)
        with self._aside():
            self._close()
            self._files.leave()
            return self._open()

    def _last_entry(self, connection: sqlite3.Connection) -> int:
        """The number of the last entry in the file. Raises LeaseLost, FilesMoved, sqlite3.Error."""
        owner, session, entry = connection.execute("SELECT owner, session, entry FROM meta").fetchone()
        if owner != self._owner and session > self._session:
            raise LeaseLost(
                "another runtime has taken it over, as it can where the lock file was removed or the file system has "
                "no locks. Its jobs continue there"
            )
        if owner != self._owner or entry < self._last:
            self._close()
            raise FilesMoved(_FOREIGN)
        return int(entry)

    def _gone(self, error: Overwritten) -> LeaseLost:
        """Give up an overwritten file without folding the log into it. Returns why: a copy, or a new owner."""
        self._folds = False
        try:
            if self._connection is not None:
                self._last_entry(self._connection)
        except LeaseLost as lost:
            return lost
        except (sqlite3.Error, FilesMoved):
            pass
        with contextlib.suppress(OSError):
            self._files.part()
        return LeaseLost(str(error))

    def _close(self) -> None:
        """Close both connections. The last one folds the log into the file, if it may write."""
        first, last = (self._beside, self._connection) if self._folds else (self._connection, self._beside)
        for connection in (first, last):
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
        self._connection = self._beside = None


def _commit(connection: sqlite3.Connection, parts: list[Parameters]) -> None:
    if len(parts) == 1:
        _write(connection, parts[0])
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for part in parts:
            _write(connection, part)
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _write(connection: sqlite3.Connection, part: Parameters) -> None:
    connection.execute(INSERTS[len(part)], part)
