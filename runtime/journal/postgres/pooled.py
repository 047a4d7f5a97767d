"""Refuses a pooler that gives one server session to several clients in turn.

Rules
-----
- Settings, prepared statements and LISTEN belong to a session. Behind a pool whose sessions change hands with each
  transaction, other programs would get ours, and we would get theirs. So such a pool is refused before anything is set:
  only process ids are queried.
- A pooler is detected by the process id of the server, which differs from the id that the connection was told. Then a
  test shows whether a session stays ours: a second connection holds one in a transaction meanwhile. If that is the
  first one's session, or the first one has another now, sessions change hands.
- A pool of whole sessions passes. If a pool has no session left, the error says so, after no longer than a connection
  timeout.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import JournalUnwritable

if TYPE_CHECKING:
    from .address import Address
    from .opening import Connection

LOOKS = 3
"""Number of tests, since other clients may have had the session just then."""
_PROCESS = b"SELECT pg_backend_pid()"


def refuse_shared(address: Address, connection: Connection, another: Callable[[], Connection]) -> None:
    """Check that a pooler's session is ours alone. another: makes a second connection. Raises JournalUnwritable."""
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
        f"Cannot use {address}: it is behind a pooler that shares each session of the server among several clients, as "
        "PgBouncer does with pool_mode = transaction or statement, and a journal needs sessions of its own. Use the "
        "server's own address, or a pool with pool_mode = session (docs/postgres.md). Nothing was set or changed."
    )


def _asked(address: Address, connection: Connection, question: bytes, limit: float) -> bytes | None:
    """The first value of the answer to a query, within `limit` seconds. Raises JournalUnwritable."""
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
        if result.error_message:  # from a pool that accepts no transaction
            raise _shared(address)
        if result.ntuples:
            value = result.get_value(0, 0)
    return value
