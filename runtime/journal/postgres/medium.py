"""The database that a node's writer commits to: one call of `commit_batch` a batch, which is one round trip.

Rules
-----
- A commit is durable when it is acknowledged: `synchronous_commit` is on, whatever the server's default is.
- libpq's blocking function makes the call: so the interpreter is released once per commit, and taken back once.
- After any error the connection is made anew, and the batch is sent again. A batch that the database already has is not
  written twice, even if the first call is still running in a session that has lost its client.
- A node that was fenced learns it from its commit, and never connects again. The same holds if its database went back
  in time (`went_back.py`): no commit goes into a database that lacks an earlier one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ...errors import LeaseLost
from ..batch import Batch
from .address import Address
from .opening import connect, driver, refusal, refusing
from .rows import Parameters, parts_of
from .schema import COMMIT, LEASE_LOST, WENT_BACK
from .went_back import AcknowledgedState, DatabaseWentBack

if TYPE_CHECKING:
    from psycopg import Error
    from psycopg.pq.abc import PGresult

    from .opening import Connection

_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local')"  # a stricter setting stays
)
_BY_INDEX = "SET enable_seqscan = off"  # plans live as long as the session: plan for tables that are still small, too
_STATEMENT = b"commit"


def connect_writer(address: Address) -> Connection:
    """Connect for commits. Raises JournalError."""
    connection = connect(address, "writer", statement_timeout=address.limits.commit)
    try:
        connection.execute(_DURABLE)
        connection.execute(_BY_INDEX)
        _checked(connection, connection.pgconn.prepare(_STATEMENT, COMMIT.encode()))
    except BaseException:
        connection.close()
        raise
    return connection


class PostgresMedium:
    """The writer's medium for a node's journal. known: the node's acknowledged state. connect: for tests."""

    answers = "the database"

    def __init__(
        self, address: Address, known: AcknowledgedState, *, connect: Callable[[Address], Connection] = connect_writer
    ) -> None:
        self.name = str(address)
        self._address = address
        self._known = known
        self._connect = connect
        self._connection: Connection | None = None
        self._encoded: tuple[Batch, list[Parameters]] | None = None  # for the batch that is being tried

    def open(self) -> None:
        """Connect. Raises JournalError, LeaseLost if it is a different database."""
        connection = self._connect(self._address)
        try:
            with refusing(self._address):
                self._known.check(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def has(self, batch: Batch) -> bool:  # noqa: ARG002 - the commit itself detects a repeated batch
        """Connect again if needed. Raises JournalError, LeaseLost."""
        if self._connection is None:
            self.open()
        return False

    def commit(self, batch: Batch, away: Callable[[], None]) -> None:
        """Commit a batch, unless it is already committed. Raises LeaseLost, psycopg.Error."""
        assert self._connection is not None  # noqa: S101 - `has` was called before
        parts = self._parts(batch)
        away()
        _commit(self._connection, parts)
        self._known.committed(batch.number)
        self._encoded = None

    def failed(self, error: Exception) -> str:
        """Return the reason in words. The connection is dropped: the next one may be to another server."""
        self._close()
        reason = refusal(self._address, cast("Error", error)) if isinstance(error, driver().Error) else error
        return str(reason).removeprefix(f"Cannot use {self._address}: ").rstrip(".") or type(error).__name__

    def close(self) -> None:
        """Close the connection."""
        self._close()

    def _parts(self, batch: Batch) -> list[Parameters]:
        """The parameters of the calls that write a batch. Encoded once, however many tries it takes."""
        if self._encoded is None or self._encoded[0] is not batch:
            self._encoded = batch, parts_of(batch, self._known.node, self._known.entry)
        return self._encoded[1]

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None


def _commit(connection: Connection, parts: list[Parameters]) -> None:
    if len(parts) == 1:
        _call(connection, parts[0])
        return
    _checked(connection, connection.pgconn.exec_(b"BEGIN"))
    for part in parts:
        if _call(connection, part) == b"f":
            break  # all of it was committed before
    _checked(connection, connection.pgconn.exec_(b"COMMIT"))


def _call(connection: Connection, part: Parameters) -> bytes | None:
    values = cast("list[bytes]", part)  # None is NULL, which psycopg's annotation leaves out
    return _checked(connection, connection.pgconn.exec_prepared(_STATEMENT, values))


def _checked(connection: Connection, result: PGresult) -> bytes | None:
    """The first value of a result. Raises the error in it."""
    psycopg = driver()
    pq = psycopg.pq
    if result.status in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
        return result.get_value(0, 0) if result.ntuples else None
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    if state == WENT_BACK.encode():
        raise DatabaseWentBack(
            "The database lacks what it has acknowledged to this node before. Make a new Runtime: it is a new node"
        )
    if state == LEASE_LOST.encode():
        raise LeaseLost(
            "This node was silent for too long, and others have taken over what it ran. Make a new Runtime: it is a "
            "new node"
        )
    if connection.pgconn.status == pq.ConnStatus.BAD:
        raise psycopg.OperationalError(result.error_message.decode(errors="replace").strip())
    raise psycopg.errors.error_from_result(result)
