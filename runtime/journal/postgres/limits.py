"""Timeouts for a node's questions to its database: fractions of its lease, so that none outlasts the lease.

Rules
-----
- A wait that outlasts the lease costs a node all that it runs. So these end before: connecting, waiting for a lock, a
  statement, an idle transaction, and waiting for a peer that has silently disappeared.
- Statements that only read, and commits, may take longer: the lease has its own connection, and no node is fenced while
  its commit is in progress. If the server cancelled a large batch, it would only begin again.
- A process that is no node uses the limits of the default lease.
- Settings in the address take precedence, for all: `connect_timeout` (seconds) and those of TCP, as in PostgreSQL's
  clients, and the server's own `statement_timeout`, `lock_timeout`, `idle_in_transaction_session_timeout`.
"""

from __future__ import annotations

import msgspec

OF_SERVER = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
"""Server settings that an address may give: milliseconds, or with a unit, as the server reads them."""
READ = 30.0
COMMIT = 300.0
"""Minimum timeout in seconds for a statement that only reads, and for a commit."""
LEAST_CONNECT = 2
"""The smallest connection timeout in seconds that PostgreSQL's client accepts."""


class Limits(msgspec.Struct, frozen=True):
    """Timeouts in seconds."""

    connect: float  # to one of the hosts
    statement: float
    lock: float
    idle: float  # idle in a transaction
    silent: float  # a peer that answers no packet
    read: float  # a statement that only reads
    commit: float

    @property
    def of_client(self) -> dict[str, int]:
        """The options for PostgreSQL's client."""
        return {
            "connect_timeout": max(LEAST_CONNECT, round(self.connect)),
            "keepalives": 1, "keepalives_idle": max(1, round(self.silent / 2)),
            "keepalives_interval": max(1, round(self.silent / 4)), "keepalives_count": 2,
            "tcp_user_timeout": round(self.silent * 1000),
        }  # fmt: skip


def limits_of(lease: float) -> Limits:
    """The timeouts of a node with that lease, in seconds."""
    return Limits(
        connect=lease / 5, statement=lease * 2 / 3, lock=lease / 3, idle=lease / 3, silent=lease / 2,
        read=max(READ, lease * 2 / 3), commit=max(COMMIT, lease * 20),
    )  # fmt: skip
