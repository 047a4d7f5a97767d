"""A journal whose commits are a thread's, and whose questions go to a connection of their own.

Rules:
- The loop's side is here, and never blocks but in `open`, `lend` and `shut`; the writer's side is `writer.py`.
- Questions see what is committed, nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from ...actors.kernel.restore import Loaded
from ...actors.messages.notices import NoticeRecord
from ...actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    RequestRecord,
    WorkerRecord,
    WorkstreamRecord,
)
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from .batch import check
from .contract import ArchivedJob, Commits, Entry, Health, Identity, InboxRow, JobFilter, JournalError, Stored
from .writer import Medium, Writer, asker

R = TypeVar("R", bound=Stored)


class WrittenJournal(ABC, Generic[R]):
    """A journal on a medium. `where` names it for people, `short` the writer's thread.

    pause and clock: how the writer waits between two tries of a batch, and monotonic seconds.
    """

    durable_medium = True

    def __init__(
        self, where: str, short: str, *, pause: Callable[[float], object] | None, clock: Callable[[], float]
    ) -> None:
        self.tail = 0
        self._where = where
        self._short = short
        self._pause = pause
        self._clock = clock
        self._appended = 0  # transitions
        self._pending: list[Entry] = []
        self._writer: Writer | None = None
        self._reader: R | None = None
        self._identity: Identity | None = None

    @abstractmethod
    def _begin(self) -> tuple[R, Loaded, Medium]:
        """Take ownership, learn its identity, and load the living. What raises leaves nothing behind."""

    def _give_up(self) -> None:
        """Give up what `_begin` took beside what it returned. All is written, or will not be."""

    @property
    def identity(self) -> Identity:
        """What it is known by. Raises JournalError when the journal was never open."""
        if self._identity is None:
            raise JournalError(f"{self._where} is not open. Open it before it is asked what it is.")
        return self._identity

    # -- writing

    @property
    def durable(self) -> int:
        """The number of the last entry that is durable."""
        return 0 if self._writer is None else self._writer.durable

    @property
    def backlog(self) -> int:
        """Transitions appended and not yet durable."""
        return 0 if self._writer is None else self._appended - self._writer.written

    @property
    def health(self) -> Health:
        """Whether the journal can write."""
        return Health() if self._writer is None else self._writer.health

    @property
    def committed(self) -> Commits:
        """What was committed."""
        return Commits() if self._writer is None else self._writer.committed

    @property
    def commits(self) -> int:
        """How many batches were committed."""
        return 0 if self._writer is None else self._writer.commits

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Take ownership, migrate, and load the living. Blocks; raises JournalError."""
        if self._writer is not None:
            raise JournalError(f"{self._where} was already opened by this journal. Make another one to open it again.")
        reader, loaded, medium = self._begin()
        writer = Writer(
            medium, self._short, changed=asker(on_durable, call_threadsafe), after_commit=after_commit,
            pause=self._pause, clock=self._clock,
        )  # fmt: skip
        try:
            writer.start()
        except BaseException:
            reader.close()
            medium.close()
            self._give_up()
            raise
        self._reader, self._writer = reader, writer
        return loaded

    def append(self, entry: Entry) -> int:
        """Take one turn. Raises ValueError for one that could not be written. Never blocks."""
        check(entry)
        self._pending.append(entry)
        self._appended += len(entry.transitions)
        self.tail += 1
        return self.tail

    def flush(self) -> None:
        """Hand what is pending to the writer. Never blocks."""
        if self._pending:
            self._opened().hand(self.tail, self._pending)
            self._pending = []

    def lend(self) -> float | None:
        """Let the writer have the interpreter where it needs it: blocks for at most 2 ms."""
        return None if self._writer is None else self._writer.lend()

    def shut(self, deadline: float) -> bool:
        """Write what is pending, for at most `deadline` seconds, and let go of the medium. Blocks."""
        self.close()  # before the writer's connection: of SQLite, the last one to leave folds the log into the file
        if self._writer is None:
            return not self._pending
        self.flush()
        written = self._writer.stop(deadline)
        self._give_up()
        return written

    def _opened(self) -> Writer:
        if self._writer is None:
            raise JournalError(f"{self._where} is not open. Open it before anything is written.")
        return self._writer

    # -- reading

    @property
    def reader(self) -> R:
        """What answers questions. Raises JournalError when the journal is not open."""
        if self._reader is None:
            raise JournalError(f"{self._where} is not open. Open it, or read it with a reader of its own.")
        return self._reader

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id, ended or not."""
        return self.reader.job(job_id)

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        limit: int = 100,
        before: int | None = None,
        wanted: JobFilter | None = None,
    ) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` where given."""
        return self.reader.jobs(states=states, limit=limit, before=before, wanted=wanted)

    def children(self, job_id: str) -> list[JobRecord]:
        """The jobs that tasks of that one have submitted, oldest first."""
        return self.reader.children(job_id)

    def workstreams(self, job_id: str) -> list[WorkstreamRecord]:
        """The runs of a job, oldest first."""
        return self.reader.workstreams(job_id)

    def spec(self, workstream: int) -> bytes | None:
        """The encoded specification of the workstream with that key."""
        return self.reader.spec(workstream)

    def tasks(self, workstream: int, *, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        """The tasks of the workstream with that key, in the order of its specification, from the one of that index."""
        return self.reader.tasks(workstream, first=first, limit=limit)

    def task(self, task_id: str) -> TaskRecord | None:
        """The task of that id."""
        return self.reader.task(task_id)

    def states(self, workstream: int) -> list[tuple[str, str]]:
        """State (as people are told) and phase of the tasks of the workstream with that key, in order."""
        return self.reader.states(workstream)

    def counts(self, workstream: int) -> dict[str, int]:
        """How many tasks of the workstream with that key are in each phase."""
        return self.reader.counts(workstream)

    def approvals(self, workstream: int) -> list[ApprovalRecord]:
        """The approvals that bodies of that workstream have asked for, oldest first."""
        return self.reader.approvals(workstream)

    def workers(self) -> list[WorkerRecord]:
        """Every incarnation of every worker, oldest first."""
        return self.reader.workers()

    def breakers(self) -> list[BreakerRecord]:
        """Every breaker."""
        return self.reader.breakers()

    def machine(self, name: str) -> MachineRecord | None:
        """The `MachineActor` of that name, ended or not."""
        return self.reader.machine(name)

    def machines(self, *, living: bool = False, limit: int | None = None) -> list[MachineRecord]:
        """Every `MachineActor`, newest first; only those that have not ended, where asked for."""
        return self.reader.machines(living=living, limit=limit)

    def attempts(self, task_id: str) -> list[AttemptRecord]:
        """The attempts of a task, oldest first."""
        return self.reader.attempts(task_id)

    def request(self, request_id: str) -> RequestRecord | None:
        """What is kept of the command that was given that key."""
        return self.reader.request(request_id)

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, oldest first, as in the contract."""
        return self.reader.inbox(events=events, limit=limit)

    def outbox(self) -> list[OutboxRow]:
        """What is still to run of hooks, alerts and callbacks, oldest first."""
        return self.reader.outbox()

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices that are kept, those told of last first, as in the contract."""
        return self.reader.notices(about=about, since=since, first=first, limit=limit)

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:
        """The jobs that were moved out of it; only the one of that id, where given."""
        return self.reader.archived(job_id)

    def archived_numbers(self) -> list[tuple[int, int]]:
        """The numbers of the transitions that were moved out of it, as ranges from first to last."""
        return self.reader.archived_numbers()

    def transitions(
        self,
        *,
        entity_id: str | None = None,
        job_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[Transitioned]:
        """Transitions in order, numbered above `after`; of one entity, or of a job and all that is in it."""
        return self.reader.transitions(entity_id=entity_id, job_id=job_id, after=after, limit=limit)

    def close(self) -> None:
        """Let go of the connection that answers questions."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
