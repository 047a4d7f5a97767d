"""A database in memory that several nodes share, for the simulation and all tests of several nodes. What a node sees of
it is in `cluster.py`.

Rules
-----
- It keeps what `runtime/journal/cluster.py` promises: leases, fencing, epochs, shares. The server has a clock of its
  own, which no test sets.
- A call fails if the server is down, or the node does not reach it. A call that took effect may fail as well, if its
  answer was lost. Then the node repeats the call, which takes effect once.
- The invariants of every write are checked here: `wrong` gets each violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from callboard.actors.records.entities import (
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    RequestRecord,
    WorkerRecord,
)
from callboard.actors.records.loaded import Loaded
from callboard.actors.records.task import AttemptRecord
from callboard.actors.spec.names import node_of
from callboard.actors.workers.tool_limits import RUNTIME
from callboard.runtime.errors import JournalError, LeaseLost
from callboard.runtime.journal.cluster import EPOCH, LeaseRenewal, Node, ToolDemand, ToolState
from callboard.runtime.journal.contract import Entry, InboxRow, belongs_to
from callboard.runtime.journal.live import LiveProgress, LiveText
from callboard.runtime.journal.sharing import ToolClaim, portion

if TYPE_CHECKING:
    from .cluster import MemoryCluster

from .disk import Disk

OWNED = frozenset({"job", "machine", "worker", "outbox"})
"""Kinds of records that belong to a node."""


@dataclass(eq=False)
class Session:
    """A node's session, as the database has it."""

    number: int
    name: str
    place: str
    epoch: int
    lease: float
    seen_at: float
    awake_at: float  # the time since which it has renewed its lease without a pause
    epochs: set[int] = field(default_factory=set)
    ended_as: str = ""  # fenced | left; "" while it is alive
    ended_at: float = 0.0
    given_back: set[int] = field(default_factory=set)  # jobs that it takes only if no other node is alive
    share: int | None = None  # its share of the jobs without an owner; None until a node has computed it
    buried: bool = False  # another node has taken its workers over
    batch: int = 0  # the last batch that it has written
    took: Loaded | None = None  # jobs that it has taken, while the answer with them was lost
    reaches: bool = True
    loses: bool = False  # the answer to its next call is lost
    dead: bool = False  # its process has ended
    out_of_reach: float | None = (
        None  # the time since which it could not have renewed its lease while the server was up
    )


class Server:
    """The database. clock: its own clock. wrong: gets each broken invariant, as kind and text."""

    def __init__(self, clock: Callable[[], float], wrong: Callable[[str, str], object]) -> None:
        self.clock = clock
        self.wrong = wrong
        self.disk = Disk()
        self.up = True
        self.sessions: list[Session] = []
        self.epochs = 0
        self.owners: dict[tuple[str, int], Session] = {}
        self.claimed_by: dict[int, Session] = {}  # attempts
        self.reserved: dict[tuple[str, str], Session] = {}
        self.reservations: Counter[tuple[str, str]] = Counter()  # the last number of each
        self.readopted: dict[tuple[str, str], tuple[int, Session]] = {}
        self.claims: dict[str, dict[str, ToolClaim]] = {}
        self.said: dict[str, dict[str, ToolClaim]] = {}  # claims of nodes that have ended
        self.progress: dict[int, tuple[Session, LiveProgress]] = {}  # what bodies show: a restart loses it
        self.texts: dict[tuple[int, int, int], tuple[Session, LiveText]] = {}
        self.most_texts = 0
        self.listened: list[list[int]] = []  # the notifications, so far
        self.clusters: list[MemoryCluster] = []
        self.restarts = 0
        self.tools: dict[str, ToolState] = {}
        self.tool_changes: list[ToolState] = []
        self.shares_asked = 0
        self.rows: dict[int, InboxRow] = {}
        self.answers: dict[int, bytes] = {}
        self.asked: dict[int, Session] = {}  # rows that have no owner: the node that answers
        self.nobody = Session(
            0, "", "", 0, 0.0, 0.0, 0.0, ended_as="left", buried=True
        )  # the owner of jobs that were given back
        self.last: dict[str, int] = {}  # the highest number in each history
        self.ring: Callable[[Session], object] = nobody  # notifies all nodes except that one
        self.lost: Callable[[Session], object] = nobody  # gets each node that is fenced

    def restart(self) -> None:
        """Lose the data that are not durable."""
        self.restarts += 1
        self.progress, self.texts = {}, {}

    # -- reaching it ---------------------------------------------------------------------------------------------------

    def join(self, name: str, place: str, lease: float) -> Session:
        """Add a node. Raises JournalError, also while a living node has that name."""
        self._check_up()
        now = self.clock()
        for other in self.living():
            if other.name == name:
                if not other.dead and other.seen_at + other.lease >= now:
                    raise JournalError(f"there is a node {name!r} already")
                self._fence(other)
        session = Session(len(self.sessions) + 1, name, place, self._epoch(), lease, now, now)
        session.epochs.add(session.epoch)
        self.sessions.append(session)
        return session

    def living(self) -> list[Session]:
        """The nodes that are not fenced."""
        return [session for session in self.sessions if not session.ended_as]

    def reach(self, session: Session) -> None:
        """Check the connection. Raises JournalError if a node does not reach the server, LeaseLost if it was fenced."""
        self._check_up()
        if not session.reaches:
            raise JournalError("the server is not reached")
        if session.ended_as:
            raise LeaseLost(f"node {session.name!r} was fenced")

    def _check_up(self) -> None:
        if not self.up:
            raise JournalError("the server is down")

    @staticmethod
    def answered(session: Session) -> None:
        """Raise JournalError if the answer to the last operation is lost."""
        if session.loses:
            session.loses = False
            raise JournalError("the connection was lost")

    def _epoch(self) -> int:
        self.epochs += 1
        return self.epochs

    def rise(self, session: Session) -> None:
        """Begin a new epoch of a node."""
        session.epoch = self._epoch()
        session.epochs.add(session.epoch)

    # -- leases --------------------------------------------------------------------------------------------------------

    def renew(self, session: Session, last: int) -> LeaseRenewal:
        """Renew a lease."""
        self.reach(session)
        now = self.clock()
        if now - session.seen_at > session.lease / 2:
            session.awake_at = now
        session.seen_at, session.out_of_reach = now, None
        if last > session.epoch * EPOCH + EPOCH // 2:
            self.rise(session)
        others = [one for one in self.living() if one is not session]
        due = [0.0 if self._known_dead(one, session) else one.seen_at + one.lease - now for one in others]
        orphans = len(self.orphans()) + len(self._rows_left()) + len(self._claims_left())
        orphans += sum(not one.buried for one in self.sessions if one.ended_as)
        self.answered(session)
        return LeaseRenewal(1 + len(others), orphans, min(due, default=None))

    @staticmethod
    def _known_dead(other: Session, by: Session) -> bool:
        return other.dead and other.place == by.place

    def fence(self, session: Session) -> None:
        """Fence the nodes whose lease has run out, or whose process has ended."""
        now = self.clock()
        for other in self.living():
            if other is session:
                continue
            silent = other.seen_at + other.lease < now
            awake = session.awake_at + max(session.lease, other.lease) < now
            if (silent and awake) or self._known_dead(other, session):
                since = other.out_of_reach
                if not other.dead and (since is None or now - since < other.lease / 2):
                    self.wrong("fenced_alive", f"{other.name} was fenced by {session.name}, and was well all the time")
                self._fence(other)

    def _fence(self, session: Session, how: str = "fenced") -> None:
        session.ended_as, session.ended_at = how, self.clock()
        self.lost(session)
        for tool, claims in self.claims.items():
            if (claim := claims.pop(session.name, None)) is not None:
                self.said.setdefault(tool, {})[session.name] = claim
        self.ring(session)

    def leave(self, session: Session) -> None:
        """Remove a node that leaves."""
        self.reach(session)
        self._fence(session, "left")

    # -- taking --------------------------------------------------------------------------------------------------------

    def take(self, session: Session) -> Loaded | None:
        """Give a node its share of the jobs without an owner."""
        self.reach(session)
        if session.took is None:
            self.fence(session)
            session.took = self._take(session)
        self.answered(session)
        loaded, session.took = session.took, None
        return loaded

    def _take(self, session: Session) -> Loaded | None:
        now = self.clock()
        living = [one for one in self.living() if one is session or one.seen_at + one.lease >= now]
        jobs = [job for job in self._jobs_left() if len(living) == 1 or job.key not in session.given_back]
        keys = {job.key for job in jobs}
        roots = [job for job in jobs if job.parent not in keys]
        gone = {self.owners["job", job.key] for job in roots}
        for one in gone:
            if one.share is None:
                its = sum(self.owners["job", job.key] is one for job in roots)
                one.share = -(-its // len(living))
        mine = {job.key for job in roots[: sum(one.share or 1 for one in gone)]}
        while more := {job.key for job in jobs if job.parent in mine} - mine:
            mine |= more
        outbox = {row.key for row in self._rows_left()}
        claims = self._claims_left()
        machines = self._machines_left()
        machines = {one.key for one in machines[: -(-len(machines) // len(living))]}
        dead = [one for one in self.sessions if one.ended_as and not one.buried]
        if not (mine or outbox or claims or dead or machines):
            return None
        workers = {
            worker.key for worker in self.disk.of(WorkerRecord)
            if worker.finished_at is None and self.owners["worker", worker.key] in dead
        }  # fmt: skip
        for kind, keys in (("job", mine), ("outbox", outbox), ("worker", workers), ("machine", machines)):
            for key in keys:
                self.owners[kind, key] = session
        for one in dead:
            one.buried = True
        for _, job in claims:
            if self._is_orphan("job", job):
                self.owners["job", job] = session
        self.rise(session)
        loaded = self.load(mine, outbox, workers, machines)
        loaded.attempts += [attempt for attempt, _ in claims]
        loaded.last_key = loaded.last_seq = session.epoch * EPOCH
        return loaded

    def _is_orphan(self, kind: str, key: int) -> bool:
        owner = self.owners.get((kind, key))
        return owner is not None and bool(owner.ended_as)

    def orphans(self) -> list[tuple[str, int]]:
        """The living jobs and machines that have no owner."""
        return [(one.kind, one.key) for one in (*self._jobs_left(), *self._machines_left())]

    def _machines_left(self) -> list[MachineRecord]:
        machines = self.disk.of(MachineRecord)
        return [one for one in machines if one.finished_at is None and self._is_orphan("machine", one.key)]

    def give_back(self, session: Session, jobs: Sequence[int]) -> None:
        """Release these jobs: they have no owner then."""
        session.given_back |= set(jobs)
        self.reach(session)
        for key in jobs:
            if self.owners.get(("job", key)) is session:
                self.owners["job", key] = self.nobody
        self.nobody.share = None  # it is computed for the remaining jobs now
        self.ring(session)
        self.answered(session)

    def _jobs_left(self) -> list[JobRecord]:
        """The living jobs without an owner."""
        return [job for job in self.disk.of(JobRecord) if job.finished_at is None and self._is_orphan("job", job.key)]

    def _rows_left(self) -> list[OutboxRow]:
        return [row for row in self.disk.of(OutboxRow) if self._is_orphan("outbox", row.key)]

    def _claims_left(self) -> list[tuple[AttemptRecord, int]]:
        """Return attempts without an end of ended nodes, with the keys of their jobs.

        These jobs have ended, or are at a later run.
        """
        found = []
        for attempt in self.disk.of(AttemptRecord):
            if attempt.ended_at is not None or not self.claimed_by[attempt.key].ended_as:
                continue
            task: Any = self.disk.records["task", attempt.task]
            job = self.disk.journal.job(task.job_id)
            if job is not None and (job.finished_at is not None or job.stream != task.workstream):
                found.append((attempt, job.key))
        return found

    def load(
        self, jobs: Iterable[int], outbox: Iterable[int], workers: Iterable[int], machines: Iterable[int] = ()
    ) -> Loaded:
        """Load the records of these from the database."""
        mine, rows, fleet, those = set(jobs), set(outbox), set(workers), set(machines)
        every = self.disk.load()
        runs = [run for run in every.workstreams if run.job in mine]
        streams = {run.key for run in runs}
        tasks = [task for task in every.tasks if task.workstream in streams]
        names = {task.key for task in tasks}
        taken = [job for job in every.jobs if job.key in mine]
        kept = [one for one in every.machines if one.key in those]
        specs = {job.stream for job in taken} | {one.definitions[-1] for one in kept}
        return Loaded(
            jobs=taken, workstreams=runs, specs={key: every.specs[key] for key in specs}, tasks=tasks,
            approvals=[one for one in every.approvals if one.workstream in streams],
            workers=[one for one in every.workers if one.key in fleet],
            attempts=[one for one in every.attempts if one.task in names],
            outbox=[row for row in every.outbox if row.key in rows],
            machines=kept,
        )  # fmt: skip

    def begin(self, session: Session) -> Loaded:
        """Load the records with which a node begins: the breakers of its name, and the numbers of its workers."""
        workers = [one for one in self.disk.of(WorkerRecord) if node_of(one.id) == session.name]
        breakers = [one for one in self.disk.of(BreakerRecord) if one.id == f"{one.name}@{session.name}"]
        return Loaded(
            breakers=breakers, last_key=session.epoch * EPOCH, last_seq=session.epoch * EPOCH,
            last_command=max(self.rows, default=0),
            incarnations={one.name: one.run for one in sorted(workers, key=lambda one: one.run)},
        )  # fmt: skip

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, session: Session, batch: int, entries: Sequence[Entry]) -> None:
        """Write a batch. However often a node repeats it, it is written once."""
        self.reach(session)
        if batch > session.batch:
            session.batch = batch
            for entry in entries:
                self._look(session, entry)
                self.disk.write(entry)
                for answer in entry.answers:
                    self.answers[answer.row] = answer.answer.encode()
                for record in entry.records:
                    if isinstance(record, RequestRecord) and record.row:
                        self.answers[record.row] = bytes(record.answer)
        self.answered(session)

    def _look(self, session: Session, entry: Entry) -> None:
        """Check an entry against the invariants of all entries."""
        for row in entry.transitions:
            history = belongs_to(row)
            if row.seq <= self.last.get(history, 0):
                self.wrong("numbers", f"{history}: number {row.seq} is written after {self.last[history]}")
            if row.seq // EPOCH not in session.epochs:
                self.wrong("numbers", f"{session.name} writes number {row.seq} of an epoch that is not its own")
            self.last[history] = row.seq
        for record in entry.records:
            key = record.kind, record.key
            if record.kind == "attempt":
                self.claimed_by.setdefault(record.key, session)
            if record.kind in OWNED:
                owner = self.owners.setdefault(key, session)
                if owner is not session:
                    self.wrong("two_owners", f"{session.name} writes {key}, which is of {owner.name} ({owner.number})")
            elif (job_id := getattr(record, "job_id", None)) is not None:
                job = self.disk.journal.job(job_id)
                owner = session if job is None else self.owners["job", job.key]
                if owner is not session:
                    self.wrong("two_owners", f"{session.name} writes {record.kind} of {job_id}, of {owner.name}")

    # -- names, commands, tools ----------------------------------------------------------------------------------------

    def _entity(self, kind: str, name: str) -> JobRecord | MachineRecord | None:
        return self.disk.journal.machine(name) if kind == "machine" else self.disk.journal.job(name)

    def owner_of(self, kind: str, name: str) -> Session | None:
        """The owner of a living job or machine, or its last one; None if there is none."""
        record = self._entity(kind, name)
        return None if record is None or record.finished_at is not None else self.owners[record.kind, record.key]

    def send(self, session: Session, row: InboxRow) -> int:
        """Put a command into the inbox."""
        self.reach(session)
        number = len(self.rows) + 1
        self.rows[number] = msgspec.structs.replace(row, row=number)
        self.ring(session)
        return number

    def inbox(self, session: Session, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands that this node answers: those about its entities, and others that it reads first."""
        self.reach(session)
        found: list[InboxRow] = []
        for number, row in self.rows.items():
            if number in self.answers or events not in {None, row.kind == "machine"}:
                continue
            name = row.target.rpartition("/")[0] if row.kind == "task" else row.target
            owner = self.owner_of(row.kind, name)
            if owner is None:
                owner = self.asked.get(number)
                if owner is None or owner.ended_as:
                    owner = self.asked[number] = session
            if owner is session:
                found.append(row)
        return found[:limit]

    def reserve(self, session: Session, kind: str, name: str) -> int:
        """Reserve a name."""
        self.reach(session)
        if self._entity(kind, name) is not None:
            return 0
        holder = self.reserved.get((kind, name))
        if holder is not None and holder is not session and not holder.ended_as:
            return 0
        self.reserved[kind, name] = session
        self.reservations[kind, name] += 1
        self.answered(session)
        return self.reservations[kind, name]

    def release(self, session: Session, kind: str, name: str, reservation: int) -> None:
        """Release a name that no entity has."""
        self.reach(session)
        is_last = self.reservations[kind, name] == reservation
        if self._entity(kind, name) is None and self.reserved.get((kind, name)) is session and is_last:
            del self.reserved[kind, name]
        self.answered(session)

    def adopt(self, session: Session, kind: str, name: str, request: str = "", now: float = 0.0) -> bool:
        """Own an ended job or machine."""
        self.reach(session)
        known = self.disk.requests.get(request) if request else None
        record = self._entity(kind, name)
        if (known is not None and known.expires_at > now) or record is None or record.finished_at is None:
            return False
        run, holder = self.readopted.get((kind, name), (0, session))
        if run == record.run and holder is not session and not holder.ended_as:
            return False
        self.readopted[kind, name] = record.run, session
        if self.owners[kind, record.key] is not session:
            self.owners[kind, record.key] = session
            self.rise(session)
        self.answered(session)
        return True

    def set_tool(self, session: Session, tool: ToolState) -> ToolState:
        """Change the row of a tool."""
        self.reach(session)
        before = self.tools.get(tool.tool)
        if before is None or before.generation == tool.generation - 1:
            self.tools[tool.tool] = tool
            self.tool_changes.append(tool)
            self.ring(session)
        self.answered(session)
        return self.tools[tool.tool]

    def share(self, session: Session, wants: Mapping[str, ToolDemand]) -> dict[str, ToolClaim]:
        """Share the limits of tools."""
        self.reach(session)
        self.shares_asked += 1
        told, rings = {}, False
        for tool, want in wants.items():
            claims = self.claims.setdefault(tool, {})
            gone = self.said.get(tool, {}).items()
            claims[session.name], ring = portion(session.name, want, claims, self.clock(), gone)
            told[tool] = claims[session.name]
            if told[tool].empty:
                del claims[session.name]
            rings |= ring
        if rings:
            self.ring(session)
        self.answered(session)
        return told

    def limited(self, session: Session, tools: Sequence[str]) -> frozenset[str]:
        """The tools for which a node states a limit, or has stated one."""
        self.reach(session)
        every = (self.claims, self.said)
        return frozenset(t for t in tools for of in every if any(one.want.says for one in of.get(t, {}).values()))

    def renew_words(self, session: Session) -> None:
        """Drop the limits that earlier runtimes of that name have stated."""
        self.reach(session)
        for said in self.said.values():
            if session.name in said and said[session.name].want.said_by == RUNTIME:
                del said[session.name]

    def nodes(self) -> list[Node]:
        """All nodes."""
        now = self.clock()
        return [
            Node(
                one.name, one.epoch, one.ended_as or ("living" if one.seen_at + one.lease >= now else "silent"),
                one.place, 0.0, one.seen_at,
            )
            for one in self.sessions
        ]  # fmt: skip


def nobody(*_: object) -> None:
    """Do nothing: there is no listener."""
