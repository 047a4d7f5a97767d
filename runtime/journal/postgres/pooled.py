"""Refusing a pooler that gives sessions of the server to whoever asks next.

Rules
-----
- Settings, prepared statements and what is listened to are a session's. Behind a pool whose sessions change hands with
  each transaction they would be left to other programs, and we would have theirs. So such a pool is refused, before
  anything is set: only numbers of processes are asked.
- A pooler is known by the number of the server's process, which is another than the one that the connection was told.
  Of a pooler it is seen whether a session stays ours: a second connection holds one in a transaction meanwhile. If that
  is the first one's, or the first one has another now, sessions change hands.
- A pool of whole sessions passes. A pool that has none left is told so, and not waited for longer than a connection.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..contract import JournalUnwritable

if TYPE_CHECKING:
    from .address import Address
    from .opening import Connection

LOOKS = 3
"""Times that it is looked, since others may have had the session just then."""
_PROCESS = b"SELECT pg_backend_pid()"


def refuse_shared(address: Address, connection: Connection, another: Callable[[], Connection]) -> None:
    """Look whether a pooler's session is ours alone. another: makes a second connection. Raises JournalUnwritable."""
    limit = address.limits.of_client["connect_timeout"]
    with contextlib.closing(another()) as other:
        for _ in range(LOOKS):
            mine = _asked(address, connection, _PROCESS, limit)
            _asked(address, other, b"BEGIN", limit)
            if mine in {None, _asked(address, other, _PROCESS, limit)} or mine != _asked(
                address, connection, _PROCESS, limit
            ):
                raise _shared(address)
            _asked(address, other, b"COMMIT", limit)


def _shared(address: Address) -> JournalUnwritable:
    return JournalUnwritable(
        f"Cannot use {address}: before it stands a pooler that gives a session of the server to whoever asks next, as "
        "PgBouncer does with pool_mode = transaction or statement, and a journal needs sessions of its own. Use the "
        "server's own address, or a pool with pool_mode = session (docs/postgres.md). Nothing was set or changed."
    )


def _asked(address: Address, connection: Connection, question: bytes, limit: float) -> bytes | None:
    """The first value of an answer that comes within `limit` seconds. Raises JournalUnwritable."""
    pgconn, until = connection.pgconn, time.monotonic() + limit
    pgconn.send_query(question)
    with selectors.DefaultSelector() as selector:
        selector.register(pgconn.socket, selectors.EVENT_READ)
        while pgconn.is_busy():
            if not selector.select(until - time.monotonic()):
                raise JournalUnwritable(
                    f"Cannot use {address}: the pooler before it gave no session within {limit} s. Give its pool more "
                    "sessions: each runtime needs five, and one more for a moment (docs/postgres.md)."
                )
            pgconn.consume_input()
    value = None
    while (result := pgconn.get_result()) is not None:
        if result.error_message:  # of one that takes no transaction
            raise _shared(address)
        if result.ntuples:
            value = result.get_value(0, 0)
    return value
