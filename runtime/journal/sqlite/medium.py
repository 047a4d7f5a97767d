"""The file that the writer commits to: one statement per batch, and what to do when the file is not what it was.

Rules:
- A commit fails unless the file is this owner's still and ends with the entry before, which it looks at itself. Where
  another runtime has claimed it, this one has lost it for good (`LeaseLost`).
- After any error the file is opened anew, and its last entry's number says whether a batch did commit before it.
- Nor has it anything to write to where an older copy was copied over the file (`files.py`): that is lost in the same
  way, and its log is not folded into what is there.
- What went to a file that has lost its name is not durable (`files.py`). A removed log or index is mended; a removed or
  replaced database is waited for, and one comes in its place only if it holds all that was acknowledged.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from ..batch import Batch, Parameters, parts_of
from ..cluster import LeaseLost
from .files import Damaged, Files, FilesMoved, Overwritten
from .lock import Lock
from .opening import Claim, code_of, connect, connect_writer, let_go, refusing
from .schema import COMMIT

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
    """The file at `path`, of which this owns `lock`.

    connect: opens the file. aside: while it lasts nobody of this process reads the file.
    """

    answers = "the disk"

    def __init__(
        self,
        path: Path,
        lock: Lock,
        claimed: Claim,
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
        self._last = claimed.entry  # the last entry that is acknowledged
        self._aside = aside
        self._connect = connect
        self._files = Files(path, self._owner)
        self._astray = False  # a file of the journal has lost its name; the connection has it still
        self._folds = True  # the log belongs to what the file holds
        self._connection: sqlite3.Connection | None = None
        self._beside: sqlite3.Connection | None = None  # holds the file, so that closing the other need not fold
        self._encoded: tuple[Batch, list[Parameters]] | None = None  # of the batch that is tried

    def open(self) -> None:
        """Open the file. Raises JournalError."""
        with refusing(self._path):
            self._open()

    def has(self, batch: Batch) -> bool:
        """Whether the batch was committed, and the error came after. Raises LeaseLost, FilesMoved, OSError,
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
        away()
        try:
            self._files.look()
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
        """Say why; the connection is kept where nobody else has what was committed."""
        if isinstance(error, FilesMoved):
            self._astray = True
        else:
            self._folds = self._folds and code_of(error) not in _UNREADABLE and not isinstance(error, Damaged)
            self._close()
        return _TELLS.get(code_of(error), str(error) or type(error).__name__)

    def close(self) -> None:
        """Let go of the file, and of the right to write it."""
        if self._connection is not None and not self._astray:
            try:
                self._files.look()
                let_go(self._connection, self._owner)
            except Overwritten as error:
                self._gone(error)
            except sqlite3.Error as error:  # who comes next finds this process ended
                self.failed(error)
        self._close()
        self._lock.release()

    def _acknowledge(self, number: int) -> None:
        self._last, self._encoded = number, None

    def _parts(self, batch: Batch) -> list[Parameters]:
        """The parameters of the statements that write it. Encoded once, however often it is tried."""
        if self._encoded is None or self._encoded[0] is not batch:
            self._encoded = batch, parts_of(batch, self._owner, self._last, self._base + batch.number)
        return self._encoded[1]

    def _open(self) -> sqlite3.Connection:
        connection = self._connection = self._connect(self._path)
        self._folds = True
        self._beside = connect(self._path, "ro")
        self._beside.execute("SELECT 1 FROM sqlite_master").fetchall()
        self._files = Files(self._path, self._owner, self._files.floor)
        return connection

    def _come_back(self) -> sqlite3.Connection:
        """Get a connection to the journal by its name. Raises FilesMoved, OSError, sqlite3.Error."""
        if not self._files.is_in_place:
            connection = self._adopt()
        elif self._connection is None:
            connection = self._open()
        else:
            connection = self._mend(self._connection)
        self._astray = False
        return connection

    def _mend(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Make up for a log or an index that was removed. Those that are back in their places are good as they are."""
        with contextlib.suppress(FilesMoved):
            self._files.check()
            return connection
        with self._aside():
            self._files.fold(connection)
            self._close()
            return self._open()

    def _adopt(self) -> sqlite3.Connection:
        """Take what stands in the database's place, if it holds all that was acknowledged."""
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
                "no locks. What this one ran goes on there"
            )
        if owner != self._owner or entry < self._last:
            self._close()
            raise FilesMoved(_FOREIGN)
        return int(entry)

    def _gone(self, error: Overwritten) -> LeaseLost:
        """What it held is gone, and nothing is folded into what is there now; or another owner has folded its own."""
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
        connection.execute(COMMIT, parts[0])
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for part in parts:
            connection.execute(COMMIT, part)
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
