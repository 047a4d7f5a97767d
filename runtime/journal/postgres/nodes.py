"""A node's membership among the nodes of a journal in PostgreSQL: implements `Cluster` (`runtime/journal/cluster.py`).

Rules
-----
- All times come from the database's clock, so the nodes' own clocks do not matter.
- Every statement that acts for this node first locks its row against fencing. If the node was fenced, the statement
  does nothing: then LeaseLost is raised, now and from then on.
- The lease has its own connection, so that nothing else can delay its renewal.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from ....actors.records.loaded import Loaded
from ...errors import JournalError, JournalLocked, LeaseLost
from ..cluster import EPOCH, LEASE, LeaseRenewal, Node, ToolDemand, ToolState
from ..contract import InboxRow
from . import inbox, live, statements, taking, tools
from .address import Address, parse
from .link import Link
from .opening import HOLD_STILL, check_version, connect, opened, refusing
from .place import Place, here
from .reader import LoadScope
from .rows import plain
from .went_back import AcknowledgedState, DatabaseWentBack, system_of

if TYPE_CHECKING:
    from ...calling import Progress
    from ..live import LiveProgress, LiveText, TextPlace
    from ..sharing import ToolClaim
    from .opening import Connection

T = TypeVar("T")

LOOK_AT_HOLDER = 0.25
"""Seconds between two checks whether the node that has our name still renews its lease."""
FIRST_PRUNE = 5.0
PRUNE_EVERY = 600.0
"""Seconds between two deletions of rows that are not needed any more."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]")
_MANY = 1000
"""Maximum number of names that are tried for a node without a given name."""


class PostgresCluster:
    """A node, from its creation until `close`. Its creation joins the nodes: raises JournalError, JournalLocked if its
    name is taken, ValueError for an invalid name.

    load: reads what was taken. progress: reads the progress of tasks. name: None for a name made from this machine and
    process. is_dead: whether the process at a place is known to have ended.
    """

    def __init__(
        self,
        address: Address,
        load: Callable[[LoadScope], Loaded],
        progress: Callable[[Sequence[int]], dict[int, tuple[int, Progress]]],
        *,
        name: str | None = None,
        lease: float = LEASE,
        place: Place | None = None,
        is_dead: Callable[[Place], bool] = Place.is_dead,
        connect: Callable[[Address, str], Connection] = connect,
        pause: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if name is not None and not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.80} cannot be a node's name. Use up to 64 letters, digits, and . _ -")
        self._address = address
        self._load = load
        self._progress = progress
        self._lease = lease
        self._place = place or here()
        self._is_dead = is_dead
        self._pause = pause
        self._clock = clock
        self._known: AcknowledgedState | None = None  # set once it has joined
        self._lost: LeaseLost | None = None
        self._attempt: taking.TakeoverResult | None = None  # a taking whose commit may or may not have succeeded
        self._owed: taking.TakeoverResult | None = None  # taken, and not returned to the caller yet
        self._left: frozenset[int] = frozenset()  # jobs that this node gave back, for others to take
        self._called = False
        self._renewed_on = 0  # number of the connection on which the lease was last renewed
        self._pruned = clock() - PRUNE_EVERY + FIRST_PRUNE
        self._connect = connect
        self.on_listened: Callable[[Sequence[int]], object] = lambda _: None
        self.others: list[Link] = []  # links that `cut` cuts as well
        self._lease_link = Link(address, "lease", self._connect_known)
        self._link = Link(address, "node", self._connect_known)
        self._live_link = Link(address, "live", self._connect_live)  # connects once something is shown
        try:
            self._name, joined = self._join(name)
            self._known = AcknowledgedState(address, self._name, *joined, self._link.ask(system_of))
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """This node's name."""
        return self._name

    @property
    def known(self) -> AcknowledgedState:
        """The state that the database has acknowledged to this node."""
        assert self._known is not None  # noqa: S101 - set when it joined, at its creation
        return self._known

    @property
    def node(self) -> int:
        """The number of its session."""
        return self.known.node

    @property
    def epoch(self) -> int:
        """The present epoch of the node."""
        return self.known.epoch

    @property
    def lease(self) -> float:
        """The duration of its lease in seconds."""
        return self._lease

    # -- joining

    def _join(self, name: str | None) -> tuple[str, _Joined]:
        if name is not None:
            return name, self._join_in_time(name)
        usual = f"{_UNUSUAL.sub('-', self._place.host)[:50]}-{self._place.pid}"
        for one in (usual, *(f"{usual}-{number}" for number in range(2, _MANY))):
            joined, holder = self._join_as(one)
            if joined is None and holder is not None and self._is_dead(holder.place):
                self._replace(holder)
                joined, _ = self._join_as(one)
            if joined is not None:
                return one, joined
        raise JournalLocked(f"{self._address} has too many nodes of this process. Leave some of them.")

    def _join_in_time(self, name: str) -> _Joined:
        """Join. If a node has that name, wait whether it stays silent for a whole lease."""
        began, first = self._clock(), None
        while True:
            joined, holder = self._join_as(name)
            if joined is not None:
                return joined
            if holder is None:
                continue
            first = first or holder
            left = began + first.lease - self._clock()
            if self._is_dead(holder.place) or (holder == first and left <= 0):
                self._replace(holder)
            elif holder == first:
                self._pause(min(LOOK_AT_HOLDER, left))
            else:
                raise JournalLocked(
                    f"{self._address} has a node {name!r} already ({holder.shown}), which is alive. Stop that one, or "
                    "give this one another name."
                )

    def _join_as(self, name: str) -> tuple[_Joined | None, _Holder | None]:
        """Try to join with that name. Returns the new session, or else the node that has the name."""
        place = self._place
        values = {
            "name": name, "lease": self._lease, "place": place.shown, "kernel": place.kernel, "pid": place.pid,
            "started": place.started,
        }  # fmt: skip

        def join(connection: Connection) -> tuple[_Joined | None, _Holder | None]:
            with connection.transaction():
                connection.execute(HOLD_STILL, [self._address.schema])
                check_version(connection, self._address)
                joined = connection.execute(statements.JOIN, values).fetchone()
            if joined is not None:
                return (joined[0], joined[2], joined[1]), None
            row = connection.execute(statements.HOLDER, values).fetchone()
            if row is None:
                return None, None
            node, shown, kernel, pid, started, seen, lease = row
            return None, _Holder(node, shown, Place(place.host, kernel, pid, started), seen, lease)

        return self._link.ask(join)

    def _replace(self, holder: _Holder) -> None:
        values = {"node": holder.node, "seen": holder.seen}
        self._link.ask(lambda connection: connection.execute(statements.REPLACE, values))

    # -- living and leaving

    def renew(self, last: int) -> LeaseRenewal:
        """Renew the lease. last: the highest number given so far."""
        renewal = self._ask(partial(self._renew, last), self._lease_link)
        if self._clock() - self._pruned >= PRUNE_EVERY:
            self._pruned = self._clock()
            self._ask(_prune)
            with contextlib.suppress(JournalError):  # nothing depends on it
                self._ask(live.sweep)
        return renewal

    def _renew(self, last: int, connection: Connection) -> LeaseRenewal:
        view, before = self.known, self.known.numbers
        values = {
            "me": view.node, "session": view.session, "last": last, "anew": self._lease_link.made != self._renewed_on,
        }  # fmt: skip
        row = connection.execute(statements.BEAT.encode(), values).fetchone()
        if row is None:
            raise LeaseLost
        awake, epoch, entry, acts = row
        view.compare(before, (epoch, entry, acts))
        view.rise(epoch)
        self._renewed_on = self._lease_link.made
        dead = self._dead(connection)
        values = {"me": self.node, "lease": self._lease, "awake": awake, "dead": dead}
        found = connection.execute(statements.PULSE, values).fetchone()
        living, orphans, due_in, silent = found or (1, 0, None, 0)
        return LeaseRenewal(living, orphans, 0.0 if dead else due_in, silent)

    def _dead(self, connection: Connection) -> list[int]:
        """The nodes of this machine whose processes have ended."""
        found = taking.neighbours(connection, self.node, self._place)
        return [node for node, place in found.items() if self._is_dead(place)]

    def leave(self) -> None:
        """Release everything at the end: others take what is left at once."""
        values = {"me": self.node, "session": self.known.session, "channel": self._address.channel}

        def leave(connection: Connection) -> None:
            connection.execute(statements.LEAVE, values)

        try:
            self._link.ask(leave)
        except DatabaseWentBack:  # other nodes may have at once what that database has of this node
            with contextlib.closing(Link(self._address, "node", self._connect)) as link:
                link.ask(leave)

    def close(self) -> None:
        """Close the connections. The lease runs out, unless the node has left."""
        self._lease_link.close()
        self._live_link.close()
        self._link.close()

    def cut(self) -> None:
        """Stop answering and waiting; running questions are abandoned. Does not block."""
        for link in (self._lease_link, self._live_link, self._link, *self.others):
            link.cut()

    # -- taking over

    def take(self) -> Loaded | None:
        """Fence silent nodes, then take this node's share of what has no owner; None if there is nothing."""
        if self._owed is None:
            self._ask(self._fence)
            self._ask(self._take)
        taken = self._owed
        if taken is None:
            return None
        loaded = self._load(LoadScope(taken.jobs, taken.machines, taken.outbox, taken.nodes))
        loaded.last_key = loaded.last_seq = taken.epoch * EPOCH
        self._owed = None
        return loaded

    def _fence(self, connection: Connection) -> None:
        taking.fence(connection, self.node, self._address.channel, self._dead(connection))
        taking.share_out(connection, self.node)

    def _take(self, connection: Connection) -> None:
        if self._attempt is not None:  # the answer to its commit was lost
            row = connection.execute(statements.TAKEN, {"me": self.node}).fetchone()
            if row and row[0] == self._attempt.epoch:
                self._hand_out(self._attempt)
                return
            self._attempt = None
        with connection.transaction():
            taken = taking.take(connection, self.node, self._left)
            self._attempt = taken or None
        if taken:
            self._hand_out(taken)

    def _hand_out(self, taken: taking.TakeoverResult) -> None:
        self.known.rise(taken.epoch)
        self._owed, self._attempt = taken, None
        self._left -= frozenset(taken.jobs)

    def give_back(self, jobs: Sequence[int]) -> None:
        """Release the ownership of these jobs and their children: others take them."""
        self._left |= frozenset(jobs)

        def give(connection: Connection) -> None:
            with connection.transaction():
                taking.give_back(connection, self.node, jobs, self._address.channel)
                acted = self.known.act(connection)
            self.known.acted(acted)

        self._ask(give)

    def step_aside(self) -> int:
        """Take nothing any more: the others share without this node. Returns how many other nodes take."""
        return int(self._row(statements.STEP_ASIDE, {"me": self.node})[0])

    def called(self) -> bool:
        """Whether another node has offered this one its returned jobs since the last call."""
        called, self._called = self._called, False
        return called

    def call(self, favoured: Sequence[int]) -> None:
        """For the notifier: these nodes may take returned jobs at once; all nodes if the list is empty."""
        self._called |= not favoured or self.node in favoured

    def hear(self, tasks: Sequence[int]) -> None:
        """For the notifier: another process listens to the text of these tasks."""
        self.on_listened(tasks)

    def want_again(self) -> None:
        """Allow this node to take jobs that it gave back."""
        self._left = frozenset()

    # -- ownership

    def nodes(self) -> list[Node]:
        """All living nodes, and those that were fenced or have left lately: the last one of each name."""
        return [Node(*row) for row in self._ask(lambda connection: connection.execute(statements.NODES).fetchall())]

    def reserve(self, kind: str, name: str) -> int:
        """Reserve a job's id or a machine's name for this node. 0 if such an entity exists, ended or not."""
        living, reservation, acts = self._row(statements.RESERVE, self._about(kind, name))
        if not living:
            raise self._fenced()
        self.known.acted(acts)
        return int(reservation or 0)

    def release(self, kind: str, name: str, reservation: int) -> None:
        """Release a reservation, unless something was committed under it or the name was reserved again since."""
        about = {**self._about(kind, name), "reservation": reservation}
        living, acts = self._row(statements.RELEASE, about)
        if not living:
            raise self._fenced()
        self.known.acted(acts)

    def owner_of(self, kind: str, name: str) -> str | None:
        """The name of the node that owns a living job or machine; None if it has ended or has no owner."""
        sql = statements.OWNER[kind]
        row = self._ask(lambda connection: connection.execute(sql.encode(), self._about(kind, name)).fetchone())
        return None if row is None else row[0]

    def adopt(self, kind: str, name: str, request: str = "", now: float = 0.0) -> bool:
        """Own an ended job or machine that is about to continue here. False if it lives, another node has adopted it,
        or the command with that key has taken effect.
        """
        about = {**self._about(kind, name), "request": request, "now": now}
        living, moved, epoch, acts = self._row(statements.ADOPT[kind], about)
        if not living:
            raise self._fenced()
        self.known.rise(epoch or 0)
        self.known.acted(acts)
        return bool(moved)

    # -- the inbox, and tools

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands that this node has to run, oldest first; the same again until they are answered.

        events and limit: as in the journal's contract. Commands beyond the limit may go to other nodes.
        """
        if self._attempt or self._owed:
            return []  # the rows may concern entities that this node owns and has not loaded yet
        return self._ask(lambda connection: inbox.claimed(connection, self.node, events=events, limit=limit))

    def send(self, row: InboxRow) -> int:
        """Put a command into the inbox, and notify. Returns its number there."""
        return self._ask(lambda connection: inbox.send_as(connection, self.known, row, self._address.channel))

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None if there is none yet."""
        return self._ask(lambda connection: inbox.answer(connection, row))

    def tools(self) -> list[ToolState]:
        """Every tool whose breaker was ever opened, in its present state."""
        return self._ask(tools.states)

    def set_tool(self, tool: ToolState) -> ToolState:
        """Change the state of a tool's breaker, if it still has the generation before, and notify."""
        return self._ask(lambda connection: tools.change(connection, self.known, tool, self._address.channel))

    def share(self, wants: Mapping[str, ToolDemand]) -> dict[str, ToolClaim]:
        """Set what this node wants of these tools; returns what it may use of each until it asks again."""
        return self._ask(
            lambda connection: tools.share(connection, self.known, self._name, wants, self._address.channel)
        )

    def limited(self, named: Sequence[str]) -> frozenset[str]:
        """The given tools for which any node, or one that has ended, states a limit."""
        return self._ask(lambda connection: tools.limited(connection, named))

    def renew_words(self) -> None:
        """Drop the limits stated by earlier runtimes of this node's name."""
        self._ask(lambda connection: tools.renew_words(connection, self.known))

    # -- what bodies show

    def write_progress(self, told: Sequence[LiveProgress], over: Sequence[int]) -> int:
        """Write the progress of bodies of this node. Returns the number of the connection."""
        self._ask(lambda connection: live.write_progress(connection, self.node, told, over), self._live_link)
        return self._live_link.made

    def read_progress(self, tasks: Sequence[int]) -> dict[int, tuple[int, Progress]]:
        """The progress of these tasks, whichever node runs them, each with the token of its attempt."""
        return self._progress(tasks)

    def write_text(self, parts: Sequence[LiveText], cuts: Sequence[TextPlace]) -> int:
        """Write text that bodies of this node have emitted. Returns the number of the connection."""
        self._ask(lambda connection: live.write_text(connection, self.node, parts, cuts), self._live_link)
        return self._live_link.made

    def read_text(self, after: Sequence[TextPlace]) -> list[LiveText]:
        """The text of bodies of other nodes after these places."""
        return self._ask(lambda connection: live.read_text(connection, after), self._live_link)

    def listen(self, tasks: Sequence[int]) -> None:
        """Notify the nodes that this one listens to the text of these tasks."""
        self._ask(lambda connection: live.listen(connection, tasks, self._address.channel), self._live_link)

    def hide(self) -> None:
        """Remove the progress and text of all bodies of this node."""
        if self._live_link.made:
            self._ask(lambda connection: live.hide(connection, self.node), self._live_link)

    # -- questions

    def _connect_live(self, address: Address, purpose: str) -> Connection:
        """Connect for writes that need not be durable."""
        connection = self._connect_known(address, purpose)
        try:
            with refusing(address):
                connection.execute("SET synchronous_commit = off")
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_known(self, address: Address, purpose: str) -> Connection:
        """Connect, and check that it is still the same database."""
        connection = self._connect(address, purpose)
        try:
            if self._known is not None:
                self._known.check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _about(self, kind: str, name: str) -> dict[str, object]:
        return {"me": self.node, "name": plain(f"{kind}:{name}")}

    def _row(self, sql: str, values: dict[str, object]) -> tuple[Any, ...]:  # Any: columns of several types
        return self._ask(lambda connection: connection.execute(sql.encode(), values).fetchall())[0]

    def _ask(self, question: Callable[[Connection], T], link: Link | None = None) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            return (link or self._link).ask(question)
        except DatabaseWentBack as lost:
            self._lost = lost
            raise
        except LeaseLost:
            raise self._fenced() from None

    def _fenced(self) -> LeaseLost:
        """Make the error with the reason why this node was fenced. Raises DatabaseWentBack, JournalError."""
        row = self._link.ask(lambda connection: connection.execute(statements.FATE, {"me": self.node}).fetchone())
        if row is None:
            text = (
                f"node {self._name!r} is not known to {self._address} any more: its database is another, or an older "
                "copy. Start it anew"
            )
        elif row[0] is None:
            text = f"node {self._name!r} has left {self._address}"
        else:
            text = (
                f"node {self._name!r} was fenced by {row[0]!r} after {row[1]:.1f} s in which it did not renew its "
                f"lease of {self._lease:g} s. Others have taken over what it ran: start it anew"
            )
        self._lost = LeaseLost(text)
        return self._lost


_Joined: TypeAlias = tuple[int, str, int]
"""The number of a session, its random name, and its epoch."""


class _Holder(msgspec.Struct, frozen=True):
    """The node that currently has a name."""

    node: int
    shown: str
    place: Place
    seen: datetime
    lease: float


def nodes_of(address: str) -> list[Node]:
    """For a process that is no node: all nodes of a journal, as they see one another. Raises JournalError."""
    with opened(parse(address), "client") as connection:
        return [Node(*row) for row in connection.execute(statements.NODES)]


def _prune(connection: Connection) -> None:
    with connection.transaction():
        for sql in statements.PRUNE:
            connection.execute(sql.encode())
