"""What the database has acknowledged to a node, held against what it has: a database can go back in time.

Rules
-----
- A standby that was promoted without the last commits, a copy that was restored, a dump that was read back: such a
  database lacks what it has acknowledged. A node that goes on there runs what others may run, too, and gives numbers
  that others get again. So it counts as fenced (`WentBack`).
- Compared are: the node's session, which is random, since numbers of nodes come again; its epoch; the last entry that
  it committed; and how often it acted beside its commits (reserved, adopted, gave back, sent, or decided about tools).
  Each of these is acknowledged in the order in which it was done, so one number says whether any is missing.
- It is compared on each new connection, before anything is asked there, and with each renewal of the lease. A commit
  compares entries inside its own call (`schema.py`).
- A standby is no database that has gone back. It is not written, and not asked: the next try may find the primary.
- More than was acknowledged is no fault: the acknowledgement was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..cluster import LeaseLost
from .opening import refuse_standby

if TYPE_CHECKING:
    from .address import Address
    from .opening import Connection

STATE = """
SELECT nodes.session, coalesce(nodes.epoch, 0), coalesce(commits.entry, 0), coalesce(acts.number, 0)
FROM (SELECT %(me)s::bigint AS node) AS me
  LEFT JOIN nodes USING (node) LEFT JOIN commits USING (node) LEFT JOIN acts USING (node)
"""
_ANEW = "Start this node anew (docs/postgres.md, under what is promised)"
_ACT = "UPDATE acts SET number = number + 1 WHERE node = %(me)s RETURNING number"
_MAY_ASK = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
_SYSTEM = "SELECT system_identifier FROM pg_control_system()"


class WentBack(LeaseLost):
    """The database lacks what it has acknowledged to this node."""


class Known:
    """What was acknowledged to one session of a node. Any thread may ask and tell it: numbers only rise."""

    def __init__(self, address: Address, name: str, node: int, session: str, epoch: int, system: int | None) -> None:  # noqa: PLR0917 - what a joining gives
        self.node = node
        self.session = session
        self.epoch = epoch
        self.entry = 0
        self.acts = 0
        self._address = address
        self._name = name
        self._system = system  # None where this role may not ask for it

    def committed(self, entry: int) -> None:
        """An entry is durable."""
        self.entry = max(self.entry, entry)

    def acted(self, acts: int | None) -> None:
        """An act of that number is durable. None: there was none."""
        self.acts = max(self.acts, acts or 0)

    def act(self, connection: Connection) -> int:
        """Count an act, in the transaction that does it. Returns its number, for `acted` once that is committed."""
        row = connection.execute(_ACT, {"me": self.node}).fetchone()
        return row[0] if row else 0

    def rise(self, epoch: int) -> None:
        """An epoch was begun."""
        self.epoch = max(self.epoch, epoch)

    def check(self, connection: Connection) -> None:
        """Compare what a new connection leads to. Raises WentBack, JournalUnwritable for a standby."""
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
        """The epoch, the entry and the acts that are acknowledged. What is asked after this has them at least."""
        return self.epoch, self.entry, self.acts

    def compare(self, acknowledged: tuple[int, int, int], found: tuple[int, int, int]) -> None:
        """Raises WentBack where less was found than was acknowledged."""
        for what, mine, theirs in zip(("epoch", "entry", "act"), acknowledged, found, strict=True):
            if theirs < mine:
                raise WentBack(
                    f"node {self._name!r} counts as fenced, since {self._address} went back in time: it has "
                    f"acknowledged {what} {mine} of this node, and ends with {what} {theirs} now, as a standby does "
                    "that was promoted without the last commits, or a copy that was restored. What is missing there is "
                    f"lost, and others go on with what is there. {_ANEW}"
                )

    def _another(self) -> WentBack:
        return WentBack(
            f"node {self._name!r} is not known to {self._address} any more: its database is another, or an older copy, "
            f"so the node counts as fenced. {_ANEW}"
        )


def system_of(connection: Connection) -> int | None:
    """Which server it is, by what it was given when it was made; None where this role may not ask."""
    may = connection.execute(_MAY_ASK).fetchone()
    row: tuple[Any, ...] | None = connection.execute(_SYSTEM).fetchone() if may and may[0] else None
    return None if row is None else int(row[0])
