"""The sender's side of the inbox: inserts a command, notifies the owner, and waits for the answer.

Rules:
- One short transaction inserts the row. It does not conflict with the owner, whose lock is on another file.
- The sender reads the row until it has an answer. The answer is there only after the effect is durable.
- A row stays in the inbox: if no answer comes in time, the command may still take effect.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import msgspec

from ..errors import JournalError
from ..journal import contract
from ..journal.contract import InboxRow
from ..journal.location import Database, Store, owner_of, reader_of
from ..journal.notify import notify
from ..journal.sqlite.opening import connect, refusing, settled_version_of
from ..journal.sqlite.reader import SqliteReader
from ..journal.sqlite.schema import VERSION
from .wire_errors import CommandAnswer

_WAITING = """
SELECT coalesce(sum(kind = :kind AND target = :target), 0),
       coalesce(sum((kind = 'machine') = (:kind = 'machine')), 0) FROM (
  SELECT json_extract(command, '$.kind') AS kind, json_extract(command, '$.target') AS target
  FROM inbox_rows WHERE answer IS NULL AND json_valid(command))
"""
FIRST_LOOK = 0.005
LAST_LOOK = 0.1
"""The longest pause in seconds between two reads of the answer; the pause doubles each time."""
OWNER_EVERY = 0.5
"""Seconds between two checks whether a runtime still runs the journal."""


def put(journal: Store, row: InboxRow) -> int:
    """Insert a command into the inbox of a journal. Returns the number of its row.

    Raises JournalError, and InboxFull if too many rows wait there. The caller must still notify the owner of a file; a
    database does so by itself.
    """
    if isinstance(journal, Database):
        from ..journal.postgres.inbox import put as put_there  # noqa: PLC0415 - an extra

        return put_there(journal.address, row)
    SqliteReader(journal).close()  # refuses a file that is not a journal, in plain words
    with refusing(journal), contextlib.closing(connect(journal, "rw")) as connection:
        version = settled_version_of(connection, journal)
        if version < VERSION:
            raise JournalError(
                f"{journal} was written by an older Callboard. Open it once with this one (`callboard resume --journal "
                f"{quote(str(journal))}`)."
            )
        _refuse_full(connection, journal, row)
        connection.execute("PRAGMA synchronous = FULL")
        text = msgspec.json.encode(row).decode()
        number = connection.execute("INSERT INTO inbox_rows (command) VALUES (?)", (text,)).lastrowid
    assert number is not None  # noqa: S101 - a row was inserted
    return number


def _refuse_full(connection: sqlite3.Connection, journal: Path, row: InboxRow) -> None:
    (waiting,) = connection.execute("SELECT count(*) FROM inbox_rows WHERE answer IS NULL").fetchone()
    if waiting < min(contract.WAITING_FOR_ONE, contract.WAITING_IN_ALL):
        return  # few rows in all: no need to count those of the target
    found = connection.execute(_WAITING, {"kind": row.kind, "target": row.target})
    contract.refuse_full(str(journal), row, *found.fetchone())


def answer_of(
    journal: Store,
    row: int,
    timeout: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> CommandAnswer | None:
    """Wait up to `timeout` seconds for the answer. None if no answer came, also if no runtime runs the journal."""
    until = clock() + timeout
    with contextlib.closing(reader_of(journal)) as reader:
        look, asked = FIRST_LOOK, clock()
        while (text := reader.answer(row)) is None:
            now = clock()
            if now >= until:
                return None
            if now - asked >= OWNER_EVERY:
                asked = now
                if owner_of(journal) is None:
                    text = reader.answer(row)  # the runtime may have answered just before it ended
                    break
            pause(min(look, max(until - now, 0.0)))
            look = min(look * 2, LAST_LOOK)
    return None if text is None else msgspec.json.decode(text, type=CommandAnswer)


def command(journal: Store, row: InboxRow, timeout: float) -> CommandAnswer | None:
    """Send a command to a running runtime, and wait up to `timeout` seconds for the answer. Raises JournalError."""
    number = put(journal, row)
    if isinstance(journal, Path):
        notify(journal)
    return answer_of(journal, number, timeout)
