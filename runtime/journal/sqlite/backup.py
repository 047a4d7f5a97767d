"""Copies of a journal's file: backups, also of a journal in use, and journals that are restored from them.

Rules
-----
- A copy gets its name only once it is complete and on disk: a crash leaves nothing, or a file `NAME.part`.
- No existing file is replaced.
- A restored journal lacks what was committed after the backup, but the world has seen it, fencing tokens too. So a
  restored journal continues with keys and tokens above all that the other one can have given: those of the next epoch.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from ....machines.audit.log import EPOCH
from ...errors import JournalMissing, JournalUnwritable
from .opening import check_pages, connect, connect_reader, refusal, refusing, settled_version_of

_RAISE_KEYS = f"UPDATE meta SET last_key = (last_key / {EPOCH} + 1) * {EPOCH}"  # noqa: S608 - our own number


def back_up(journal: Path, to: Path) -> None:
    """Write a copy of a journal to a new file, as of one moment. A runtime may use the journal meanwhile. Blocks.

    Raises JournalError, also if `to` exists or cannot be written, or the journal is damaged.
    """
    _copy(journal, to, "backup", ())


def restore(copy: Path, journal: Path) -> None:
    """Make a new journal from a backup; it continues above all keys and tokens that were given since. Blocks.

    Raises JournalError as `back_up` does, and if the backup is damaged, no journal, or of a newer version.
    """
    _copy(copy, journal, "journal", (_RAISE_KEYS,))


def _copy(source: Path, to: Path, what: str, changes: tuple[str, ...]) -> None:
    to = to.absolute()  # "." has no name
    if not to.name:
        raise JournalUnwritable(f"Cannot make the {what} {to}: it is a folder. Name a new file in it.")
    part = to.with_name(f"{to.name}.part")
    for path in (to, part, to.with_name(f"{to.name}-wal"), to.with_name(f"{to.name}-journal")):
        if os.path.lexists(path):
            raise JournalUnwritable(
                f"Cannot make the {what} {to}: {path} is there already. Move it away, or name another."
            )
    if not source.is_file():
        raise JournalMissing(f"There is no journal {source}. Check the path.")
    try:
        with refusing(source), contextlib.closing(connect_reader(source)) as connection:
            if not settled_version_of(connection, source):
                raise JournalMissing(f"{source} is empty: there is no journal in it. Check the path.")
            check_pages(connection, source)
            _write(connection, part)
        with refusing(part), contextlib.closing(connect(part, "rw")) as connection:
            for change in changes:
                connection.execute(change)
        _sync(part)
        os.link(part, to)  # unlike a rename it fails if the name exists
    except FileExistsError:
        raise JournalUnwritable(f"Cannot make the {what} {to}: another program has just made it.") from None
    except OSError as error:
        raise JournalUnwritable(
            f"Cannot make the {what} {to}: {error.strerror}. Make room, or name another place."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    _sync(to.absolute().parent)


def _write(connection: sqlite3.Connection, part: Path) -> None:
    try:
        connection.execute("VACUUM INTO ?", (os.fspath(part.absolute()),))
    except sqlite3.Error as error:
        raise refusal(part, error) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
