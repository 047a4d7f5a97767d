"""Journals: the durable record of every transition. `contract.py` says what each of them promises.

The parts that both databases share are here, and the journal in memory. What only one database needs is in its folder.
A journal stores and reads records; their meaning belongs to the actors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .location import is_address

if TYPE_CHECKING:
    from .contract import Journal  # type only: the command line must not load the contract's imports


def open_journal(target: str | Path | None, *, node: str | None = None, lease: float | None = None) -> Journal:
    """Make the journal that `target` names, not yet opened.

    None keeps all in memory, `postgresql://...` is the address of a database, and a path is an SQLite file. node and
    lease (seconds) are for a database only: this node's name, and how long it may be silent before others fence it.
    """
    if target is None:
        from .memory import MemoryJournal  # noqa: PLC0415

        return MemoryJournal()
    if isinstance(target, str) and is_address(target):
        from .cluster import LEASE  # noqa: PLC0415
        from .postgres.journal import PostgresJournal  # noqa: PLC0415 - its driver is loaded only if used

        return PostgresJournal(target, node=node, lease=LEASE if lease is None else lease)
    from .sqlite.journal import SqliteJournal  # noqa: PLC0415 - sqlite3 is loaded only if used

    return SqliteJournal(target)
