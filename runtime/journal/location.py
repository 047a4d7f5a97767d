"""The place of a journal as a user types it: a file's path or a database's address; and how to read it there.

Rules
-----
- The beginning of an address tells a `Database` from a path. Shown to people, it has no password.
- A text that looks like an address but is none of ours is refused, and never taken for a file's name: each machine
  would have its own. Errors do not repeat it, since it may hold a password. `./NAME`, or a `Path`, is always a file.
- A file's path is resolved when it is first named: absolute, with all links followed (`file_of`). So one file has one
  path, even if the program changes its folder later; and the files beside it lie beside the file, not beside a link.
- The modules for each kind are imported when they are first needed: most commands are about a file.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

if TYPE_CHECKING:
    from .contract import Stored


class Database(NamedTuple):
    """A journal in PostgreSQL, by its address. shown: the address without its password."""

    address: str
    shown: str

    def __str__(self) -> str:
        return self.shown


Store: TypeAlias = Path | Database
"""Where a journal is."""


MADE_BESIDE = ("-journal", "-wal", "-shm", ".lock")
"""Suffixes of the files that are made beside a journal's file."""
_OF_IT = ("", *MADE_BESIDE, ".sock", ".progress", ".progress.part", ".saved", ".saved.part", ".overwritten-wal")
"""Suffixes of all files of a journal, its own name included."""
_OURS = r"(?i)postgres(?:ql)?://"
_WITH_SCHEME = r"(?P<scheme>[^/]{2,}?)://"
_OF_WORDS = r"(?is)(?![./~])(?:.*\s)?(?:host|hostaddr|dbname|user|password|passfile|service)\s*="
"""PostgreSQL's other spelling: `host=... dbname=...`."""


def is_address(text: object) -> bool:
    """Whether that is the address of a database, not a path. Raises JournalMissing for another kind of address."""
    if not isinstance(text, str):
        return False
    if not looks_like_address(text):
        return False
    if re.match(_OURS, text):
        return True
    from ..errors import JournalMissing

    found = re.match(_WITH_SCHEME, text)
    scheme = f", which begins with {found[0]}," if found and re.fullmatch(r"[\w+.-]{2,40}", found["scheme"]) else ""
    raise JournalMissing(
        f"What was given{scheme} is no address of a journal. That of a database is "
        "postgresql://USER:PASSWORD@HOST:PORT/DATABASE?schema=NAME; a file whose name looks like an address is ./NAME."
    )


def looks_like_address(text: str) -> bool:
    """Whether a text may be an address of any form: one that may hold a password."""
    if "://" in text and re.match(_WITH_SCHEME, text):
        return True
    return "=" in text and re.match(_OF_WORDS, text) is not None


def _text_of(path: str | Path) -> str:
    from ...actors.user_code import called, is_a, shown

    path_text: object = None
    with contextlib.suppress(Exception):
        path_text = called(lambda: os.fspath(path))
    if not is_a(path_text, str):
        raise TypeError(f"the path of a file is a str or a Path, not {shown(path, 60)}")
    return cast("str", path_text)


def file_of(path: str | Path) -> Path:
    """The path of a file, resolved once: absolute, with `~` and all links followed, whether it exists or not.

    Raises JournalMissing for a text that can be no path, or that other programs would read differently.
    """
    text = _text_of(path)
    if path is text and text.lower().startswith(("file:", ":memory:")):
        from ..errors import JournalMissing

        kind = "a URL" if text[0] != ":" else "SQLite's word for a database in memory"
        raise JournalMissing(
            f"{text!r:.80} is {kind}, and no path. Give the path of a file, or None to `Runtime` for a journal in "
            "memory; a file of that name is ./NAME."
        )
    if "\0" in text:
        from ..errors import JournalMissing

        raise JournalMissing(f"{text!r:.80} is no path: no path has a NUL character in it.")
    return Path(os.path.realpath(os.path.expanduser(text)))  # noqa: PTH111 - of an unknown user's it stays as it is


def name_too_long(path: Path) -> bool:
    """Whether the path is too long for any file."""
    try:
        path.lstat()
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    return False


def belongs_to(place: Path, journal: Path) -> bool:
    """Whether a file is the journal at that path, or one of the files that the journal makes beside it."""
    return place.parent == journal.parent and place.name in {f"{journal.name}{suffix}" for suffix in _OF_IT}


def in_words(place: object) -> str:
    """A place, for people: a file in the current folder or below it by its relative path."""
    if isinstance(place, Path):
        with contextlib.suppress(OSError):
            here = Path.cwd()
            if place.is_relative_to(here):
                return str(place.relative_to(here))
    return str(place)


def store_of(text: str) -> Store:
    """Parse a place that a user has typed. Raises JournalMissing if it cannot be read, or is not ours."""
    if not is_address(text):
        return file_of(text)
    from .postgres.address import parse

    return Database(text, str(parse(text)))


def target_of(store: Store) -> Path | str:
    """The place in the form that `Runtime` takes."""
    return store.address if isinstance(store, Database) else store


def reader_of(store: Store) -> Stored:
    """Open the journal there read-only. Raises JournalError."""
    if isinstance(store, Database):
        from .postgres.reader import PostgresReader

        return PostgresReader(store.address)
    from .sqlite.reader import SqliteReader

    return SqliteReader(store)


def owner_of(store: Store) -> str | None:
    """Name the process that runs the journal, if any. Raises JournalError if a database cannot be asked.

    Every command calls this before it acts. For a file, it is the holder of its lock, or the owner recorded in it.
    """
    if isinstance(store, Database):
        from .postgres.inbox import who_runs

        return who_runs(store.address)
    from .sqlite import lock
    from .sqlite.opening import holder_of

    owner = lock.owner_of(store)
    if owner is None and (holder := holder_of(store)) is not None:
        return f"process {holder}"
    return owner


def refuse_in_use(file: Path) -> None:
    """Raises JournalLocked, as opening the file would, if a process runs its journal."""
    from .sqlite import lock
    from .sqlite.opening import refuse_held

    lock.refuse_owned(file)
    refuse_held(file)
