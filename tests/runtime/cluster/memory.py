"""A database in memory that several runtimes of one process share: `Cluster` and `Journal` without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import anyio
import msgspec

from callboard.actors.records.entities import JobRecord, MachineRecord
from callboard.actors.records.loaded import Loaded
from callboard.actors.records.transition import Transitioned
from callboard.actors.workers.tool_limits import RUNTIME
from callboard.runtime.journal.cluster import EPOCH, LeaseLost, Node, Pulse, ToolState, Want
from callboard.runtime.journal.contract import Commits, Entry, Health, Identity, InboxRow, JournalError, belongs_to
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.sharing import Claim, portion

ENDED_STATES = ("fenced", "left")


class Shared(MemoryJournal):
    """What all nodes see. clock: seconds that never go back."""

    def __init__(self, clock: Callable[[], float], lease: float = 15.0) -> None:
        super().__init__()
        self.clock = clock
        self.lease = lease
        self.reached = True  # whether anybody reaches it
        self.epochs = count(1)
        self.seats: list[MemoryNode] = []
        self.owners: dict[tuple[str, int], str] = {}  # of records, by kind and key; "" is nobody
        self.reserved: dict[tuple[str, str], str] = {}
        self.reservations: dict[tuple[str, str], int] = {}  # the number of the last one of each
        self.numbers = count(1)
        self.rows: dict[int, InboxRow] = {}
        self.answers: dict[int, str] = {}
        self.claimed: dict[int, str] = {}
        self.tools: dict[str, ToolState] = {}
        self.changes: list[ToolState] = []
        self.claims: dict[str, dict[str, Claim]] = {}
        self.said: dict[str, dict[str, Claim]] = {}  # claims of nodes that are gone
        self.shares_asked = 0
        self.fenced_at: dict[str, float] = {}
        self.portions: dict[str, int] = {}  # what a share is of what is nobody's, by kind

    def node(self, name: str) -> MemoryNode:
        """A journal of this database, for a runtime."""
        return MemoryNode(self, name)

    def living(self) -> list[MemoryNode]:
        return [seat for seat in self.seats if seat.state == "living"]

    def orphans(self) -> list[tuple[str, int]]:
        return [key for key, owner in self.owners.items() if owner == ""]

    def ring(self) -> None:
        for seat in self.living():
            for bell in seat.bells:
                bell.rung.set()

    def release(self, name: str) -> None:
        """What that node owned is nobody's."""
        self.portions.clear()
        for key, owner in self.owners.items():
            if owner == name:
                self.owners[key] = ""
        self.reserved = {key: owner for key, owner in self.reserved.items() if owner != name}
        for tool, claims in self.claims.items():
            if (claim := claims.pop(name, None)) is not None:
                self.said.setdefault(tool, {})[name] = claim
        self.claimed = {row: owner for row, owner in self.claimed.items() if owner != name}

    def fence_silent(self) -> None:
        for seat in self.living():
            if self.clock() >= seat.until:
                seat.state = "fenced"
                self.fenced_at[seat.name] = self.clock()
                self.release(seat.name)


class RungBell:
    def __init__(self, seat: MemoryNode) -> None:
        self.rung = anyio.Event()
        self._seat = seat
        seat.bells.append(self)

    async def heard(self) -> None:
        await self.rung.wait()
        self.rung = anyio.Event()

    def close(self) -> None:
        self._seat.bells.remove(self)


class MemoryNode:
    """One node's journal, and its seat."""

    durable_medium = False
    identity = Identity("", "")
    shared = None

    def __init__(self, base: Shared, name: str) -> None:
        self.base = base
        self.name = name
        self.lease = base.lease
        self.state = "new"
        self.reached = True
        self.answers_lost = False  # those of `share`, which then has been done
        self.epoch = 0
        self.left: set[int] = set()  # jobs that it has given back
        self.until = 0.0
        self.bells: list[RungBell] = []
        self.cluster: MemoryNode | None = None
        self.tail = self.durable = self.backlog = 0
        self.health = Health()
        self.committed = Commits()
        self._waiting: list[Entry] = []
        self._told = 0
        self._on_durable: Callable[[], None] = lambda: None

    @property
    def reader(self) -> MemoryNode:
        return self

    def __getattr__(self, name: str) -> Any:  # Any: the questions of a reader
        def ask(*args: Any, **more: Any) -> Any:
            self._reach()
            return getattr(self.base, name)(*args, **more)

        return ask

    # -- the journal

    def open(self, *, on_durable: Callable[[], None], **_: Any) -> Loaded:
        self._on_durable = on_durable
        self.cluster = self
        self.epoch = next(self.base.epochs)
        self.state, self.until = "living", self.base.clock() + self.lease
        self.base.seats.append(self)
        last = max(self.base.rows, default=0)
        return Loaded(last_key=self.epoch * EPOCH, last_seq=self.epoch * EPOCH, last_command=last)

    def bell(self) -> RungBell:
        return RungBell(self)

    def append(self, entry: Entry) -> int:
        self.tail += 1
        self._waiting.append(entry)
        return self.tail

    def flush(self) -> None:
        before = self.health
        try:
            self._check()
            for entry in self._waiting:
                self.base.append(entry)
                for record in entry.records:
                    kind, key = record.kind, record.key
                    if kind in {"job", "machine", "worker"}:
                        self.base.owners[kind, key] = self.name
                        if getattr(record, "finished_at", None) is not None:
                            del self.base.owners[kind, key]
                for answer in entry.answers:
                    self.base.answers[answer.row] = answer.answer
                for record in entry.records:
                    if record.kind == "request" and record.row:  # type: ignore[union-attr]
                        self.base.answers[record.row] = bytes(record.answer).decode()  # type: ignore[union-attr]
            self._waiting.clear()
            self.durable, self.health = self.tail, Health()
        except JournalError as error:
            self.health = Health(False, str(error), 0.0, isinstance(error, LeaseLost))
        if self._told != self.durable or before.ok != self.health.ok:
            self._told = self.durable
            self._on_durable()

    def lend(self) -> float | None:
        return None

    def shut(self, deadline: float) -> bool:
        if self.state == "living" and self.base.reached and self.reached:
            self.leave()
        return True

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        self._check()
        base, found = self.base, []
        for number, row in base.rows.items():
            if number in base.answers or events not in {None, row.kind == "machine"}:
                continue
            owner = base.owner_of(row)
            if owner is None:
                owner = base.claimed.setdefault(number, self.name)
            if owner == self.name:
                found.append(row)
        return found[:limit]

    def transitions(
        self, *, entity_id: str | None = None, job_id: str | None = None, after: int = 0, limit: int | None = None
    ) -> Iterator[Transitioned]:
        self._reach()
        rows = sorted((row for row in self.base._history if row.seq > after), key=lambda row: row.seq)
        found = [
            row
            for row in rows
            if (entity_id is None or row.entity_id == entity_id) and (job_id is None or belongs_to(row) == job_id)
        ]
        return iter(found[:limit])

    # -- the seat

    def _reach(self) -> None:
        if not (self.base.reached and self.reached):
            raise JournalError("the database is not reached")

    def _check(self) -> None:
        self._reach()
        if self.state in ENDED_STATES:
            raise LeaseLost(f"node {self.name} was fenced")

    def cut(self) -> None:
        """Nobody waits here."""

    def beat(self, last: int) -> Pulse:
        self._check()
        now = self.base.clock()
        self.until = now + self.lease
        if last > self.epoch * EPOCH + EPOCH // 2:
            self.epoch = next(self.base.epochs)
        others = [seat.until - now for seat in self.base.living() if seat is not self]
        return Pulse(len(others) + 1, len(self.base.orphans()), min(others, default=None))

    def take(self) -> Loaded | None:
        self._check()
        base = self.base
        base.fence_silent()
        all_of = base._load()
        left = base.orphans()
        living = len(base.living())
        mine: set[tuple[str, int]] = set()
        for kind in ("job", "machine", "worker"):
            these = [key for key in left if key[0] == kind]
            portion = base.portions.setdefault(kind, max(1, -(-len(these) // living)))
            if kind == "job" and living > 1:
                these = [key for key in these if key[1] not in self.left]
            mine |= set(these[:portion])
        jobs = [job for job in all_of.jobs if ("job", job.key) in mine]
        family = {job.id for job in jobs}
        jobs += [job for job in all_of.jobs if job.parent_id in family and job not in jobs]
        if not mine:
            return None
        self.epoch = next(base.epochs)
        for kind, key in [*mine, *(("job", job.key) for job in jobs)]:
            base.owners[kind, key] = self.name
        keys = {job.key for job in jobs}
        streams = [run for run in all_of.workstreams if run.job in keys]
        runs = {run.key for run in streams}
        tasks = [task for task in all_of.tasks if task.workstream in runs]
        names = {task.key for task in tasks}
        machines = [one for one in all_of.machines if ("machine", one.key) in mine]
        return Loaded(
            jobs=jobs, workstreams=streams, specs=all_of.specs, tasks=tasks,
            approvals=[one for one in all_of.approvals if one.task in names],
            workers=[one for one in all_of.workers if ("worker", one.key) in mine], machines=machines,
            attempts=[one for one in all_of.attempts if one.task in names],
            last_key=self.epoch * EPOCH, last_seq=self.epoch * EPOCH,
        )  # fmt: skip

    def give_back(self, jobs: Sequence[int]) -> None:
        self.left |= set(jobs)
        self._check()
        for key in jobs:
            if self.base.owners.get(("job", key)) == self.name:
                self.base.owners["job", key] = ""
        self.base.portions.clear()
        self.base.ring()

    def step_aside(self) -> int:
        self._check()
        return 0

    def called(self) -> bool:
        return False

    def want_again(self) -> None:
        self.left.clear()

    def nodes(self) -> list[Node]:
        self._reach()
        return [
            Node(seat.name, seat.epoch, seat.state, "here", 0.0, seat.until - seat.lease) for seat in self.base.seats
        ]

    def reserve(self, kind: str, name: str) -> int:
        self._check()
        if (self.base.job(name) if kind == "job" else self.base.machine(name)) is not None:
            return 0
        if self.base.reserved.setdefault((kind, name), self.name) != self.name:
            return 0
        number = self.base.reservations[kind, name] = next(self.base.numbers)
        return number

    def release(self, kind: str, name: str, reservation: int) -> None:
        self._check()
        if (self.base.job(name) if kind == "job" else self.base.machine(name)) is not None:
            return
        mine = self.base.reserved.get((kind, name)) == self.name
        if mine and self.base.reservations[kind, name] == reservation:
            del self.base.reserved[kind, name]

    def owner_of(self, kind: str, name: str) -> str | None:
        return self.base.owner_of(InboxRow("", kind, name, ""))

    def adopt(self, kind: str, name: str, request: str = "", now: float = 0.0) -> bool:
        self._check()
        known = self.base.request(request) if request else None
        if known is not None and known.expires_at > now:
            return False
        record: JobRecord | MachineRecord | None = self.base.job(name) if kind == "job" else self.base.machine(name)
        if record is None or record.finished_at is None:
            return False
        mine = self.base.reserved.setdefault((f"{kind} {record.run}", name), self.name) == self.name
        if mine:
            self.epoch = next(self.base.epochs)
        return mine

    def send(self, row: InboxRow) -> int:
        self._check()
        number = len(self.base.rows) + 1
        self.base.rows[number] = msgspec.structs.replace(row, row=number)
        self.base.ring()
        return number

    def answer(self, row: int) -> bytes | None:
        self._reach()
        found = self.base.answers.get(row)
        return None if found is None else found.encode()

    def tools(self) -> list[ToolState]:
        self._reach()
        return [*self.base.tools.values()]

    def set_tool(self, tool: ToolState) -> ToolState:
        self._check()
        before = self.base.tools.get(tool.tool)
        if before is not None and before.generation + 1 != tool.generation:
            return before
        self.base.tools[tool.tool] = tool
        self.base.changes.append(tool)
        self.base.ring()
        return tool

    def share(self, wants: Mapping[str, Want]) -> dict[str, Claim]:
        self._check()
        told: dict[str, Claim] = {}
        for tool, want in wants.items():
            claims = self.base.claims.setdefault(tool, {})
            gone = self.base.said.get(tool, {}).items()
            claim, ring = portion(self.name, want, claims, self.base.clock(), gone)
            claims[self.name] = claim
            if claim.empty:
                del claims[self.name]
            told[tool] = claim
            if ring:
                self.base.ring()
        self.base.shares_asked += 1
        if self.answers_lost:
            raise JournalError("the answer did not come")
        return told

    def limited(self, named: Sequence[str]) -> frozenset[str]:
        self._check()
        every = (self.base.claims, self.base.said)
        return frozenset(t for t in named for of in every if any(one.want.says for one in of.get(t, {}).values()))

    def renew_words(self) -> None:
        self._check()
        for said in self.base.said.values():
            if self.name in said and said[self.name].want.said_by == RUNTIME:
                del said[self.name]

    def leave(self) -> None:
        self.state = "left"
        self.base.release(self.name)
        self.base.ring()


def _owner_of(base: Shared, row: InboxRow) -> str | None:
    name = row.target.rpartition("/")[0] if row.kind == "task" else row.target
    record = base.machine(name) if row.kind == "machine" else base.job(name)
    if record is None or record.finished_at is not None:
        return None
    return base.owners.get((record.kind, record.key), "")


Shared.owner_of = _owner_of  # type: ignore[attr-defined]
_ = Sequence
