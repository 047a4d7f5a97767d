"""Journals: the durable record of every transition. `contract.py` says what each of them promises."""

from __future__ import annotations

from pathlib import Path

from .contract import Journal
from .memory import MemoryJournal
from .postgres.address import is_address


def open_journal(target: str | Path | None) -> Journal:
    """Make the journal that `target` names, not yet opened.

    None keeps all in memory, `postgresql://...` is the address of a database, and a path is an SQLite file.
    """
    if target is None:
        return MemoryJournal()
    if isinstance(target, str) and is_address(target):
        from .postgres.journal import PostgresJournal  # noqa: PLC0415 - what it needs is loaded by those who use it

        return PostgresJournal(target)
    from .sqlite import SqliteJournal  # noqa: PLC0415 - sqlite3 is loaded by those who use it

    return SqliteJournal(target)
