"""Detects that a database went back in time: it lacks changes that it has acknowledged to a node.

Rules
-----
- Such a database may be a standby that was promoted without the last commits, a restored copy, or a loaded dump. A node
  that continued there would run what others may run, too, and give numbers that others get again. So such a node counts
  as fenced (`DatabaseWentBack`).
- Compared are: the node's session, which is random, since numbers of nodes may repeat; its epoch; the last entry that
  it committed; and the count of its acts, which are its other changes (reserve, adopt, give back, send, tool
  decisions). Each of these is acknowledged in the order in which it was done, so one number tells whether any is
  missing.
- They are compared on each new connection, before its first question, and with each renewal of the lease. A commit
  compares entries inside its own call (`schema.py`).
- A standby is no database that went back. It is not used: the next try may find the primary.
- More than was acknowledged is no fault: the acknowledgement was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import LeaseLost
from .opening import refuse_standby

if TYPE_CHECKING:
    from .address import Address
    from .opening import Connection

STATE = """
SELECT nodes.session, coalesce(nodes.epoch, 0), coalesce(commits.entry, 0), coalesce(acts.number, 0)
FROM (SELECT %(me)s::bigint AS node) AS me
  LEFT JOIN nodes USING (node) LEFT JOIN commits USING (node) LEFT JOIN acts USING (node)
"""
_ANEW = 'Start this node anew (docs/postgres.md, under "What is promised")'
_ACT = "UPDATE acts SET number = number + 1 WHERE node = %(me)s RETURNING number"
_MAY_ASK = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
_SYSTEM = "SELECT system_identifier FROM pg_control_system()"


class DatabaseWentBack(LeaseLost):
    """The database lacks changes that it has acknowledged to this node."""


class AcknowledgedState:
    """The state that was acknowledged to one session of a node. Safe for any thread: numbers only rise."""

    def __init__(self, address: Address, name: str, node: int, session: str, epoch: int, system: int | None) -> None:  # noqa: PLR0917 - what a joining gives
        self.node = node
        self.session = session
        self.epoch = epoch
        self.entry = 0
        self.acts = 0
        self._address = address
        self._name = name
        self._system = system  # None if this role may not read it

    def committed(self, entry: int) -> None:
        """Record that an entry is durable."""
        self.entry = max(self.entry, entry)

    def acted(self, acts: int | None) -> None:
        """Record that the act with that number is durable. None: there was no act."""
        self.acts = max(self.acts, acts or 0)

    def act(self, connection: Connection) -> int:
        """Count an act, in the transaction that does it. Returns its number, for `acted` after the commit."""
        row = connection.execute(_ACT, {"me": self.node}).fetchone()
        return row[0] if row else 0

    def rise(self, epoch: int) -> None:
        """Record that an epoch was begun."""
        self.epoch = max(self.epoch, epoch)

    def check(self, connection: Connection) -> None:
        """Check the database of a new connection. Raises DatabaseWentBack, JournalUnwritable for a standby."""
        refuse_standby(connection, self._address)
        before = self.numbers
        row = connection.execute(STATE, {"me": self.node}).fetchone()
        assert row is not None  # noqa: S101 - it is a join from one row
        session, *numbers = row
        system = system_of(connection)
        if None not in {system, self._system} and system != self._system:
            raise self._another()
        if session != self.session:
            raise self._another()
        self.compare(before, (numbers[0], numbers[1], numbers[2]))

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The acknowledged epoch, entry and acts. A later query must find at least these."""
        return self.epoch, self.entry, self.acts

    def compare(self, acknowledged: tuple[int, int, int], found: tuple[int, int, int]) -> None:
        """Raises DatabaseWentBack if less was found than was acknowledged."""
        for what, mine, theirs in zip(("epoch", "entry", "act"), acknowledged, found, strict=True):
            if theirs < mine:
                raise DatabaseWentBack(
                    f"node {self._name!r} counts as fenced, since {self._address} went back in time: it has "
                    f"acknowledged {what} {mine} of this node, and ends with {what} {theirs} now, as a standby does "
                    "that was promoted without the last commits, or a copy that was restored. What is missing there is "
                    f"lost, and others go on with what is there. {_ANEW}"
                )

    def _another(self) -> DatabaseWentBack:
        return DatabaseWentBack(
            f"node {self._name!r} is not known to {self._address} any more: its database is another, or an older copy, "
            f"so the node counts as fenced. {_ANEW}"
        )


def system_of(connection: Connection) -> int | None:
    """The server's identifier from its creation; None if this role may not read it."""
    may = connection.execute(_MAY_ASK).fetchone()
    row: tuple[Any, ...] | None = connection.execute(_SYSTEM).fetchone() if may and may[0] else None
    return None if row is None else int(row[0])
