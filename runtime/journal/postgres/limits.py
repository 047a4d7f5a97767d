"""How long a node's questions to its database may take: fractions of its lease, so that nothing outlasts that.

Rules
-----
- A wait that may end only after the lease has run out costs a node all that it runs. So connecting, waiting for a lock,
  a statement, a transaction that its client has forgotten, and a peer that is gone without a word end before.
- What only reads, and a commit, may take longer: the lease has a connection of its own, and a node whose commit is
  under way is fenced by nobody. A large batch that were given up at the server would only begin again.
- Whoever is no node has those of a usual lease.
- What the address says holds instead, for all: `connect_timeout` (seconds) and TCP's, as PostgreSQL's clients know
  them, and the server's own `statement_timeout`, `lock_timeout`, `idle_in_transaction_session_timeout`.
"""

from __future__ import annotations

import msgspec

OF_SERVER = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
"""Settings of the server's that an address may say: milliseconds, or with a unit, as the server reads them."""
READ = 30.0
COMMIT = 300.0
"""Seconds that a statement which only reads, and a commit, may take at least."""
LEAST_CONNECT = 2
"""Seconds in which to connect that PostgreSQL's client takes at least."""


class Limits(msgspec.Struct, frozen=True):
    """Seconds."""

    connect: float  # to one of the hosts
    statement: float
    lock: float
    idle: float  # in a transaction
    silent: float  # a peer that answers no packet
    read: float  # a statement that only reads
    commit: float

    @property
    def of_client(self) -> dict[str, int]:
        """What PostgreSQL's client is told."""
        return {
            "connect_timeout": max(LEAST_CONNECT, round(self.connect)),
            "keepalives": 1, "keepalives_idle": max(1, round(self.silent / 2)),
            "keepalives_interval": max(1, round(self.silent / 4)), "keepalives_count": 2,
            "tcp_user_timeout": round(self.silent * 1000),
        }  # fmt: skip


def limits_of(lease: float) -> Limits:
    """Those of a node with that lease, in seconds."""
    return Limits(
        connect=lease / 5, statement=lease * 2 / 3, lock=lease / 3, idle=lease / 3, silent=lease / 2,
        read=max(READ, lease * 2 / 3), commit=max(COMMIT, lease * 20),
    )  # fmt: skip
