"""Where a journal is, as it is typed: the path of a file, or the address of a database; and who may be asked there.

A `Database` is told from a path by how its address begins. Shown to people, it has no password.
What each of them needs is imported when it is first needed: most commands are about a file.
"""
# ruff: noqa: PLC0415 - see above

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from .journal.contract import Stored


class Database(NamedTuple):
    """A journal in PostgreSQL, by its address. shown: that without its password."""

    address: str
    shown: str

    def __str__(self) -> str:
        return self.shown


Store: TypeAlias = Path | Database
"""Where a journal is."""


def is_address(text: object) -> bool:
    """Whether that is meant as the address of a database, rather than as a path."""
    return isinstance(text, str) and text.startswith(("postgresql://", "postgres://"))


def store_of(text: str) -> Store:
    """The place that somebody has typed. Raises JournalMissing for an address that cannot be read."""
    if not is_address(text):
        return Path(text)
    from .journal.postgres.address import parse

    return Database(text, str(parse(text)))


def target_of(store: Store) -> Path | str:
    """It, as a `Runtime` is told of it."""
    return store.address if isinstance(store, Database) else store


def reader_of(store: Store) -> Stored:
    """The journal there, opened read-only. Raises JournalError."""
    if isinstance(store, Database):
        from .journal.postgres.reader import PostgresReader

        return PostgresReader(store.address)
    from .journal.reader import SqliteReader

    return SqliteReader(store)


def owner_of(store: Store) -> str | None:
    """Who runs it, in words; None if nobody does. Raises JournalError for a database that cannot be asked."""
    if isinstance(store, Database):
        from .journal.postgres.outside import who_runs

        return who_runs(store.address)
    from .journal import lock

    return lock.owner_of(store)
