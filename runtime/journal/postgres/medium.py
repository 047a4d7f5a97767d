"""The database that a node's writer commits to: one call of `commit_batch` a batch, which is one round trip.

Rules
-----
- A commit is durable when it is acknowledged: `synchronous_commit` is on, whatever the server's default is.
- It is called by libpq's blocking function: so the interpreter is given away once per commit, and taken back once.
- After any error the connection is made anew, and the batch is sent again. What the database has of it already it does
  not do twice, also where the one before is still under way in a session that has lost its client.
- A node that was fenced is told so by its commit, and never connects again. So is one whose database went back in time
  (`known.py`): no commit goes into a database that lacks an earlier one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ..batch import Batch
from ..cluster import LeaseLost
from .address import Address
from .known import Known, WentBack
from .opening import connect, driver, refusal, refusing
from .rows import Parameters, parts_of
from .schema import COMMIT, LEASE_LOST, WENT_BACK

if TYPE_CHECKING:
    from psycopg import Error
    from psycopg.pq.abc import PGresult

    from .opening import Connection

_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local')"  # what is stricter stays
)
_BY_INDEX = "SET enable_seqscan = off"  # plans are kept for the session: those for tables that are still small too
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
    """The journal at an address, which a node writes. known: of that node. connect: for tests."""

    answers = "the database"

    def __init__(
        self, address: Address, known: Known, *, connect: Callable[[Address], Connection] = connect_writer
    ) -> None:
        self.name = str(address)
        self._address = address
        self._known = known
        self._connect = connect
        self._connection: Connection | None = None
        self._encoded: tuple[Batch, list[Parameters]] | None = None  # of the batch that is tried

    def open(self) -> None:
        """Connect. Raises JournalError, LeaseLost where the database is not the one that it was."""
        connection = self._connect(self._address)
        try:
            with refusing(self._address):
                self._known.check(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def has(self, batch: Batch) -> bool:  # noqa: ARG002 - the commit itself finds out
        """Connect again where that is needed. Raises JournalError, LeaseLost."""
        if self._connection is None:
            self.open()
        return False

    def commit(self, batch: Batch, away: Callable[[], None]) -> None:
        """Commit a batch, if that is not done. Raises LeaseLost, psycopg.Error."""
        assert self._connection is not None  # noqa: S101 - `has` was asked before
        parts = self._parts(batch)
        away()
        _commit(self._connection, parts)
        self._known.committed(batch.number)
        self._encoded = None

    def failed(self, error: Exception) -> str:
        """Say why. The connection is not used any more: the next one may be to another server."""
        self._close()
        told = refusal(self._address, cast("Error", error)) if isinstance(error, driver().Error) else error
        return str(told).removeprefix(f"Cannot use {self._address}: ").rstrip(".") or type(error).__name__

    def close(self) -> None:
        """Let go of the connection."""
        self._close()

    def _parts(self, batch: Batch) -> list[Parameters]:
        """The parameters of the calls that write it. Encoded once, however often it is tried."""
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
    """The first value of a result. Raises what it says."""
    psycopg = driver()
    pq = psycopg.pq
    if result.status in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
        return result.get_value(0, 0) if result.ntuples else None
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    if state == WENT_BACK.encode():
        raise WentBack(
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
