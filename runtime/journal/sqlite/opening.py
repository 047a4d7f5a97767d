"""The journal's file: how it is opened, made and migrated, or refused with a plain error.

Rules:
- Until a file is known to be ours and not newer, it is opened read-only.
- Each migration runs in a transaction, with its number.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
from collections.abc import Generator
from pathlib import Path

import msgspec

from ...errors import JournalCorrupt, JournalError, JournalLocked, JournalMissing, JournalTooNew, JournalUnwritable
from ...processes.identity import Origin
from ...processes.os_processes import this_process
from ..location import MADE_BESIDE, in_words, name_too_long
from .lock import Lock
from .schema import BATCH, FIRST_COLUMNS, VERSION

APPLICATION_ID = 0x43616C6C  # "Call"
_COLUMNS = (
    "SELECT found.name || '.' || listed.name FROM sqlite_master AS found JOIN pragma_table_info(found.name) AS listed"
    " WHERE found.type = 'table'"
)
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = rb"\\([0-7]{3})"  # such as a space in a path
SMALLEST = 512
"""Bytes of the smallest possible database."""
LARGEST_CHECKED = 64 * 1024 * 1024
"""Files up to so many bytes have every page checked before they are opened (about 1 ms per MB)."""
BUSY_TIMEOUT = 1.0
"""Seconds to wait for a client that holds the write lock, before it counts as "cannot write"."""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file as it is, "ro" (read), "rw" (write) or "rwc" (write, made if missing). Raises sqlite3.Error.

    While an owner runs, no other process folds the log: the owner checks that the file has not changed.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a journal to read it, also if nothing can be written. Raises JournalMissing, sqlite3.Error."""
    connection = connect(path, "ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        connection.close()
        if code_of(error) == sqlite3.SQLITE_READONLY and is_half_made(path):
            raise JournalMissing(
                f"{path} is half-made: the runtime that began it was killed. The next runtime that "
                "opens it completes it; it holds no data yet."
            ) from None
        log = path.with_name(path.name + "-wal")
        if code_of(error) not in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY} or log.exists():
            raise
        # The journal is stopped, in a folder where SQLite can make no files: then no process writes it.
        return connect(path, "ro&immutable=1")
    return connection


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open a journal that is known to be ours, ready for the statements of commits. Raises sqlite3.Error."""
    connection = connect(path, "rw")
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 1000")
        connection.execute("PRAGMA cache_size = -16000")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        connection.executescript(BATCH)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def take(path: Path) -> Lock:
    """Lock a journal's file, or the place of a new one, after all checks. Only the lock file is made. Raises
    JournalError.
    """
    _refuse_place(path)
    with refusing(path), contextlib.ExitStack() as until:
        opened = None
        if path.exists() and path.stat().st_size:
            opened = until.enter_context(contextlib.closing(connect(path, "ro")))
            _check(opened, path)
        lock = Lock(path)
        try:
            refuse_held(path, opened)
        except BaseException:
            lock.release()
            raise
        return lock


def _check(connection: sqlite3.Connection, path: Path) -> None:
    try:
        settled_version_of(connection, path)
        if path.stat().st_size <= LARGEST_CHECKED:
            check_pages(connection, path)
    except sqlite3.Error as error:
        if code_of(error) != sqlite3.SQLITE_READONLY:  # a half-made file, which only a writer can complete
            raise


def _refuse_place(path: Path) -> None:
    """Raises JournalError for a path where no journal can be."""
    refuse_name(path)
    refuse_second_name(path)
    folder = path.absolute().parent
    if not folder.is_dir():
        raise JournalUnwritable(
            f"Cannot keep a journal in {in_words(path)}: there is no folder {folder}. Make it first."
        )
    if path.is_dir():
        raise JournalUnwritable(f"Cannot keep a journal in {in_words(path)!r}: it is a folder. Name a file in it.")
    if path.is_symlink():  # all links have been followed
        raise JournalUnwritable(
            f"Cannot keep a journal in {in_words(path)!r}: it is a link that leads to itself, or through too many "
            "others. Name a file."
        )
    if not os.access(folder, os.W_OK):
        raise JournalUnwritable(f"Cannot write the journal {path}: the folder {folder} is read-only to this user.")
    _refuse_beside(path)
    if path.exists():
        if not path.is_file():
            raise JournalUnwritable(f"Cannot keep a journal in {path}: it is {no_file(path)}. Name a file.")
        if not os.access(path, os.W_OK):
            raise JournalUnwritable(f"Cannot write the journal {path}: the file is read-only to this user.")
        if 0 < path.stat().st_size < SMALLEST:  # SQLite would take it for an empty one, and overwrite it
            raise JournalCorrupt(f"{path} is no journal. It was not touched: use another file.")


def _refuse_beside(path: Path) -> None:
    """Refuse a file if its other files cannot be made beside it. Raises JournalUnwritable."""
    for suffix in MADE_BESIDE:
        beside = path.with_name(f"{path.name}{suffix}")
        if os.path.lexists(beside) and (beside.is_symlink() or not beside.is_file()):
            raise JournalUnwritable(
                f"Cannot keep a journal in {path}: {beside}, which it needs beside it, is {no_file(beside)}. It was "
                "not touched: remove it, or name another file."
            )


def refuse_name(path: Path) -> None:
    """Refuse a name that is too long, for readers too. Raises JournalUnwritable."""
    longest = max(MADE_BESIDE, key=len)
    if name_too_long(Path(f"{path}{longest}")):
        raise JournalUnwritable(
            f"There can be no journal at {str(path)[:300]!r}: that is too long for a path, as a file beside it has "
            f"{len(longest)} characters more. Name it shorter."
        )


def refuse_second_name(path: Path) -> None:
    """Refuse a file that has several names (hard links, a mount of its own), for readers too: its lock and its log
    depend on one of them. Raises JournalUnwritable.
    """
    with contextlib.suppress(OSError):
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise JournalUnwritable(
                f"{path} has {found.st_nlink} names (hard links), and a journal has one: a program that opens "
                f"another name finds neither its owner nor its data in {path.name}-wal. Remove the other names (`find "
                "DIR -samefile FILE` lists them)."
            )
        if stat.S_ISREG(found.st_mode) and _is_mounted(path):
            raise JournalUnwritable(
                f"{path} is mounted by itself (a bind mount of one file, as `docker run -v FILE:FILE` makes), so "
                f"{path.name}-wal would stay outside of the mount: its data would be lost, or damage the file. "
                "Mount the folder that contains the file."
            )


def _is_mounted(path: Path) -> bool:
    """Whether a file is a mount of its own. Only Linux has this information."""
    with contextlib.suppress(OSError):
        for line in _MOUNTS.read_bytes().splitlines():
            place = line.split(b" ")[4]
            if re.sub(_ESCAPED, lambda found: bytes([int(found[1], 8)]), place) == os.fsencode(path.absolute()):
                return True
    return False


def no_file(path: Path) -> str:
    """The kind of thing at a path where a file should be, in words."""
    if path.is_symlink():
        return "a link"
    return "a folder" if path.is_dir() else "a device, a pipe or the like"


def is_half_made(path: Path) -> bool:
    """Whether the file's creation was interrupted: only then a journal has a rollback log, and it is still empty."""
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
    if version > VERSION:
        raise JournalTooNew(
            f"{path} was written by a newer Callboard (its version is {version}, this one knows {VERSION}). "
            "Nothing was changed: upgrade Callboard, or use another file."
        )
    return int(version)


def settled_version_of(connection: sqlite3.Connection, path: Path) -> int:
    """As `version_of`, and raises JournalError for a journal from before its tables were settled."""
    if version := version_of(connection, path):
        _refuse_unsettled(connection, path)
    return version


def _refuse_unsettled(connection: sqlite3.Connection, path: Path) -> None:
    """Raises JournalError for a journal from a Callboard that did not yet distinguish versions of its tables."""
    there = {name for (name,) in connection.execute(_COLUMNS)}
    lacks = [f"{table}.{name}" for table, names in FIRST_COLUMNS.items() for name in names.split()]
    lacks = [name for name in lacks if name not in there]
    if lacks:
        raise JournalError(
            f"{path} was written by an older Callboard, whose tables had another form (it lacks {lacks[0]}), and "
            "this one cannot read it. It is not damaged, and was not touched: let the Callboard that wrote it finish "
            "what is in it, and use another file for this one."
        )


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Check every page. Raises JournalCorrupt, which names the first damaged page; sqlite3.Error."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise damage(path, " ".join(str(found).split()))


def prepare(path: Path) -> tuple[int, int]:
    """Make or migrate the file. Returns its versions before (0: new) and after. Raises JournalError."""
    with refusing(path), contextlib.closing(connect(path, "rwc")) as connection:
        return _prepare(connection, path)


def _prepare(connection: sqlite3.Connection, path: Path) -> tuple[int, int]:
    # A new file is made in rollback mode: then its main file identifies it as ours as soon as it holds anything.
    before = version_of(connection, path)
    for version, sql in _steps(before) if before < VERSION else ():
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{sql}\nPRAGMA application_id = {APPLICATION_ID};\n"
            f"PRAGMA user_version = {version};\nCOMMIT;"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    return before, VERSION


def _steps(before: int) -> list[tuple[int, str]]:
    """The statements that make a new file, or each further version of an older one."""
    from .migrations import fresh, migrations  # noqa: PLC0415 - most files have the present version

    return list(enumerate(migrations()[before:], start=before + 1)) if before else [(VERSION, fresh())]


class FileClaim(msgspec.Struct, frozen=True):
    """An owner's claim on a file."""

    owner: int  # a random number of this session
    session: int  # how often the file was opened by an owner
    entry: int  # the last committed entry
    journal: str  # the journal's id
    copy: str  # the identity of the file among copies of that journal

    @property
    def holder(self) -> str:
        """This process, in the form that the file records as its holder."""
        return Origin.here(self.journal, self.copy).mark


class Claiming:
    """A file that is about to get a new owner: made or migrated, and not yet claimed."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection

    @property
    def entry(self) -> int:
        """The number of the last committed entry."""
        with refusing(self._path):
            return int(self._connection.execute("SELECT entry FROM meta").fetchone()[0])

    def claim(self) -> FileClaim:
        """Begin a session as its owner: earlier owners can commit no more. Raises JournalError."""
        connection, copy = self._connection, copy_of(self._path)
        with refusing(self._path):
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE meta SET session = session + 1, owner = random()")
            owner, session, entry, journal = connection.execute("SELECT owner, session, entry, id FROM meta").fetchone()
            claimed = FileClaim(owner, session, entry, journal, copy)
            connection.execute("UPDATE meta SET holder = ?", (claimed.holder,))
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so the file itself names its owner
        return claimed


@contextlib.contextmanager
def claiming(path: Path) -> Generator[Claiming, None, None]:
    """Make or migrate the file, to be claimed. Raises JournalError."""
    with contextlib.ExitStack() as stack:
        with refusing(path):
            connection = stack.enter_context(contextlib.closing(connect(path, "rwc")))
            _prepare(connection, path)
        yield Claiming(path, connection)


def end_session(connection: sqlite3.Connection, owner: int) -> None:
    """End a session cleanly: the file has no holder, unless another owner has it. Raises sqlite3.Error."""
    connection.execute("UPDATE meta SET holder = '' WHERE owner = ?", (owner,))


def copy_of(path: Path) -> str:
    """An identifier that differs between a file and its copies, which have the same id."""
    found = path.stat()
    return f"{found.st_dev}:{found.st_ino}"


def holder_of(path: Path, opened: sqlite3.Connection | None = None) -> int | None:
    """The id of the process that the file records as its owner, if that is known to run; None for this process.

    It works also if the lock file was removed, or the file system has no locks. opened: the file, if it is already
    open: a further connection would read all tables and views again.
    """
    try:
        with contextlib.nullcontext(opened) if opened else contextlib.closing(connect(path, "ro")) as connection:
            journal, mark = connection.execute("SELECT id, holder FROM meta").fetchone()
        origin, copy = Origin.read(journal, mark), copy_of(path)
    except (sqlite3.Error, OSError, TypeError):  # no journal yet, or an older one
        return None
    if origin is None or origin.copy != copy or origin.process == this_process():
        return None
    return origin.process.pid if origin.process.is_there else None


def refuse_held(path: Path, opened: sqlite3.Connection | None = None) -> None:
    """Raises JournalLocked if the file records a process as its owner that is known to run. opened: as `holder_of`."""
    if (holder := holder_of(path, opened)) is not None:
        raise JournalLocked(
            f"{path} is in use by process {holder}, although its lock file is gone or holds no lock. Stop that "
            "runtime, or use another file."
        )


def note_log(path: Path, log: Path) -> None:
    """Record in the journal which log is kept of it. Raises JournalError."""
    folder, place = path.absolute().parent, log.absolute()
    kept = place.relative_to(folder) if place.is_relative_to(folder) else place
    with refusing(path), contextlib.closing(connect(path, "rw")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        named = os.fsencode(kept)
        connection.execute("UPDATE meta SET log = ? WHERE log IS NOT ?", (named, named))


def code_of(error: BaseException) -> int:
    """SQLite's primary result code of an error, 0 if it has none."""
    if isinstance(error, UnicodeDecodeError):  # the error's text contains the damaged bytes
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextlib.contextmanager
def refusing(path: Path) -> Generator[None, None, None]:
    """Turn SQLite's errors about `path` into JournalErrors with plain texts."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise refusal(path, error) from error


def damage(path: Path, what: str) -> JournalCorrupt:
    """Make the error for a damaged file."""
    return JournalCorrupt(
        f"{path} is damaged, or is no journal ({what}). It was not touched: keep it, and restore from a copy, or use "
        "another file."
    )


def refusal(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> JournalError:
    """Make the error that explains SQLite's error about the file: its meaning, and what to do."""
    code = code_of(error)
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}:  # our statements are correct
        return damage(path, "its text is none" if isinstance(error, UnicodeDecodeError) else str(error))
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return JournalLocked(f"Another program holds {path} locked ({error}). Let it finish, then try again.")
    if code == sqlite3.SQLITE_CANTOPEN and not path.exists():
        return JournalMissing(f"There is no journal {path}. Check the path.")
    if code == sqlite3.SQLITE_FULL:
        return JournalUnwritable(f"Cannot write the journal {path}: the disk is full. Make room, then try again.")
    return JournalUnwritable(f"Cannot use the journal {path}: {error}. Check permissions and the disk, then try again.")
