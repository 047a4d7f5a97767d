"""The journal's file: how it is opened, made and migrated, or refused in plain words.

Rules:
- Until a file is known to be ours and not newer, it is opened read-only.
- Each migration runs in a transaction, with its number.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Generator
from pathlib import Path

from .contract import JournalCorrupt, JournalError, JournalLocked, JournalMissing, JournalTooNew, JournalUnwritable
from .schema import BATCH, MIGRATIONS

APPLICATION_ID = 0x43616C6C  # "Call"
SMALLEST = 512
"""Bytes of the smallest database."""
LARGEST_CHECKED = 64 * 1024 * 1024
"""Bytes of a file whose every page is looked at before it is opened (about 1 ms per MB)."""
BUSY_TIMEOUT = 1.0
"""Seconds to wait for a client that holds the write lock, before it counts as "cannot write"."""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file as it is, "ro" (read), "rw" (write) or "rwc" (write, made if missing). Raises sqlite3.Error."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
    )


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open a journal that is known to be ours, ready for `COMMIT`. Raises sqlite3.Error."""
    connection = connect(path, "rw")
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -16000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.executescript(BATCH)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def check_place(path: Path) -> None:
    """Refuse a place where no journal can be, before anything is made there. Raises JournalError."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise JournalUnwritable(f"Cannot keep a journal in {path}: there is no folder {folder}. Make it first.")
    if path.is_dir():
        raise JournalUnwritable(f"Cannot keep a journal in {str(path)!r}: it is a folder. Name a file in it.")
    if not os.access(folder, os.W_OK):
        raise JournalUnwritable(f"Cannot write the journal {path}: the folder {folder} is read-only to this user.")
    if path.exists():
        if not path.is_file():
            raise JournalUnwritable(f"Cannot keep a journal in {path}: it is {no_file(path)}. Name a file.")
        if not os.access(path, os.W_OK):
            raise JournalUnwritable(f"Cannot write the journal {path}: the file is read-only to this user.")
        if 0 < path.stat().st_size < SMALLEST:  # which SQLite would take for an empty one, and overwrite
            raise JournalCorrupt(f"{path} is no journal. It was not touched: use another file.")
        if path.stat().st_size:
            with refusing(path), contextlib.closing(connect(path, "ro")) as connection:
                try:
                    version_of(connection, path)
                    if path.stat().st_size <= LARGEST_CHECKED:
                        check_pages(connection, path)
                except sqlite3.Error as error:
                    if code_of(error) != sqlite3.SQLITE_READONLY:  # a half-made file that only a writer can mend
                        raise


def no_file(path: Path) -> str:
    """What stands where a file should be."""
    return "a folder" if path.is_dir() else "a device, a pipe or the like"


def is_half_made(path: Path) -> bool:
    """Whether the file was left while it was made: only then has a journal a rollback log, and nothing is in it yet."""
    log = path.with_name(f"{path.name}-journal")
    return log.is_file() and log.stat().st_size > 0


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the schema, 0 for an empty database. Raises JournalCorrupt, JournalTooNew, sqlite3.Error."""
    application, version, objects = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application != APPLICATION_ID and (application or objects):
        raise JournalCorrupt(
            f"{path} is a database of another application. It was not touched: use another file for the journal."
        )
    if version > len(MIGRATIONS):
        raise JournalTooNew(
            f"{path} was written by a newer Callboard (its version is {version}, this one knows {len(MIGRATIONS)}). "
            "Nothing was changed: upgrade Callboard, or use another file."
        )
    return int(version)


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Look at every page. Raises JournalCorrupt, which names the first that is damaged; sqlite3.Error."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise damage(path, " ".join(str(found).split()))


def prepare(path: Path) -> tuple[int, int]:
    """Make or migrate the file. Returns its versions before (0: new) and after. Raises JournalError."""
    with refusing(path), contextlib.closing(connect(path, "rwc")) as connection:
        # A new file is made in rollback mode: then its main file says whose it is as soon as it holds anything.
        before = version_of(connection, path)
        for number in range(before, len(MIGRATIONS)):
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{MIGRATIONS[number]}\nPRAGMA application_id = {APPLICATION_ID};\n"
                f"PRAGMA user_version = {number + 1};\nCOMMIT;"
            )
        connection.execute("PRAGMA journal_mode = WAL")
    return before, len(MIGRATIONS)


def claim(path: Path) -> tuple[int, int, str]:
    """Begin a session as the file's owner. Returns (the owner's number, last entry, the journal's id). Raises
    JournalError.
    """
    with refusing(path), contextlib.closing(connect(path, "rw")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("UPDATE meta SET session = session + 1, owner = random()")
        owner, entry, journal = connection.execute("SELECT owner, entry, id FROM meta").fetchone()
        return owner, entry, journal


def note_log(path: Path, log: Path) -> None:
    """Have the journal know which log is kept of it. Raises JournalError."""
    folder, place = path.absolute().parent, log.absolute()
    kept = place.relative_to(folder) if place.is_relative_to(folder) else place
    with refusing(path), contextlib.closing(connect(path, "rw")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        named = os.fsencode(kept)
        connection.execute("UPDATE meta SET log = ? WHERE log IS NOT ?", (named, named))


def code_of(error: BaseException) -> int:
    """SQLite's primary result code of an error, 0 if it has none."""
    if isinstance(error, UnicodeDecodeError):  # its text repeats what is damaged
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextlib.contextmanager
def refusing(path: Path) -> Generator[None, None, None]:
    """Turn SQLite's errors about `path` into the journal's, in plain words."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise refusal(path, error) from error


def damage(path: Path, what: str) -> JournalCorrupt:
    """Say that the file is damaged."""
    return JournalCorrupt(
        f"{path} is damaged, or is no journal ({what}). It was not touched: keep it, and restore from a copy, or use "
        "another file."
    )


def refusal(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> JournalError:
    """Say what SQLite's error about the file means, and what to do."""
    code = code_of(error)
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}:  # our statements have no errors
        return damage(path, "its text is none" if isinstance(error, UnicodeDecodeError) else str(error))
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return JournalLocked(f"Another program holds {path} locked ({error}). Let it finish, then try again.")
    if code == sqlite3.SQLITE_CANTOPEN and not path.exists():
        return JournalMissing(f"There is no journal {path}. Check the path.")
    if code == sqlite3.SQLITE_FULL:
        return JournalUnwritable(f"Cannot write the journal {path}: the disk is full. Make room, then try again.")
    return JournalUnwritable(f"Cannot use the journal {path}: {error}. Mend permissions or the disk, then try again.")
