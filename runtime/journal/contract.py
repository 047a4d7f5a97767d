"""The journal's contract: what every journal promises, and the words it uses.

Rules (DESIGN section 8, "Journal and output commit"):
- An `Entry` is one whole turn. It is committed whole or not at all, and in order: entry n is never durable
  before n-1.
- `append` and `flush` are called on the loop and never block. What was flushed when the writer is free forms
  one commit.
- `durable` never runs ahead of the disk. Effects wait for it; `on_durable` is called on the loop each time it
  has moved, and when `health` has.
- An entity's creation (a transition with no `from_state`) and its first record are in one entry.
- A batch that could not be written is kept and tried again whole, with growing delay; `health` says degraded
  meanwhile.
- Living is what has no `finished_at`: jobs, workstreams, workers and machines without one are loaded at start.
- A journal has one owner, or several nodes of which each owns a part (`cluster.py`). A corrupt or newer one is refused
  in plain words and never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from ...actors.kernel.restore import Loaded
from ...actors.messages.notices import NoticeRecord
from ...actors.records.base import Record
from ...actors.records.entities import (
    AnyRecord,
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

if TYPE_CHECKING:
    from .cluster import Cluster


class Identity(NamedTuple):
    """What a journal is known by, wherever it lies. copy: which of those of that id, of which one was copied."""

    id: str  # random, of its making
    copy: str


class InboxRow(msgspec.Struct, frozen=True):
    """A command that another process has put into the inbox. `arguments` are those of its verb."""

    verb: str
    kind: str  # of the target: job | task | breaker | worker | machine
    target: str  # its id, or a breaker's, worker's or machine's name
    request_id: str
    arguments: dict[str, Any] = {}
    sent_at: float = 0.0
    row: int = 0  # its number in the inbox, given when it is put there


NOTICES_KEPT = 10_000
"""Rows of notices that a journal keeps: those that were told of last."""
WAITING_FOR_ONE = 10_000
"""Commands that may wait in the inbox for one target: beyond that a new one is refused, as by every queue."""
WAITING_IN_ALL = 100_000
"""The same of all events for machines together, and of all else."""


def refuse_full(where: str, row: InboxRow, for_one: int, in_all: int) -> None:
    """Refuse a command for whose target, or of whose sort, so many wait already. Raises InboxFull."""
    if for_one < WAITING_FOR_ONE and in_all < WAITING_IN_ALL:
        return
    event = row.kind == "machine"
    what = f"{for_one:,} commands for {row.kind} {row.target:.80}"
    if for_one < WAITING_FOR_ONE:
        what = f"{in_all:,} {'events for machines' if event else 'commands'}"
    whom = "a program that has the machine runs the journal" if event else "the journal is run again"
    raise InboxFull(
        f"{what} wait in the inbox of {where} already, and it takes no more than {WAITING_FOR_ONE:,} for one target "
        f"and {WAITING_IN_ALL:,} in all: nothing was put there. They are done when {whom}."
    )


class InboxAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a row of the inbox, as JSON."""

    row: int
    answer: str
    at: float


class ArchivedJob(msgspec.Struct, frozen=True):
    """A job that was moved out of the journal, into `file`."""

    id: str
    state: str
    archived_at: float
    file: str


class Entry(msgspec.Struct, gc=False):
    """One turn: its transitions, the records it left (the last one per entity), specs, outbox rows done."""

    transitions: list[Transitioned]
    records: list[AnyRecord]
    specs: list[tuple[int, bytes]] = []  # (workstream key, its encoded Workstream)
    outbox_done: list[int] = []
    answers: list[InboxAnswer] = []
    specs_done: list[int] = []  # the keys of what nothing new will run by: it may go with the last that ran by it
    tidy: bool = False  # forget records of workers and breakers of which there are newer ones, or that say nothing
    pruned_at: float = 0.0  # forget what was kept only until then (UTC epoch seconds): keys of requests, answers
    notices: list[NoticeRecord] = []  # of one key the last holds; the oldest go where there are too many


class Health(msgspec.Struct, frozen=True):
    """Whether the journal can write. `reason` says in words why not, or, where it can, what else is the matter; `since`
    is UTC epoch seconds.

    lost: it cannot be written any more, since others have taken over what this node ran.
    """

    ok: bool = True
    reason: str | None = None
    since: float | None = None
    lost: bool = False


class Commits(msgspec.Struct):
    """What was committed since the journal was opened: batches, the transitions in them, seconds that it took."""

    commits: int = 0
    transitions: int = 0
    seconds: float = 0.0
    slowest: float = 0.0


class JournalError(Exception):
    """The base of what opening or reading a journal can raise. Its text says what to do."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class JournalLocked(JournalError):  # noqa: N818 - it names the state of the file
    """Another runtime owns the file; the text names its process. Stop that one, or use another file."""


class JournalCorrupt(JournalError):  # noqa: N818 - it names the state of the file
    """The file is damaged or is no journal. It was not touched: keep it, and restore from a copy."""


class JournalTooNew(JournalError):  # noqa: N818 - it names the state of the file
    """The file was written by a newer Callboard. Upgrade; nothing was changed."""


class JournalUnwritable(JournalError):  # noqa: N818 - it names the state of the file
    """The file or its folder cannot be written. Nothing was changed: mend permissions or space."""


class InboxFull(JournalError):  # noqa: N818 - it names the state of the inbox
    """So many commands wait in the inbox that no more are taken: nothing was put there. The text says of what."""


class JournalMissing(JournalError):  # noqa: N818 - it names the state of the file
    """There is no journal at that path. Nothing was made there: check the path."""


def belongs_to(row: Transitioned) -> str:
    """Whose history a transition is in: its job's for jobs, workstreams and tasks, else its own entity's.

    Workers and breakers serve many jobs and machines none, so their transitions are in no job's history.
    """
    if row.kind in {"machine", "breaker"}:  # whose names may be those of jobs
        return f"{row.kind}:{row.entity_id}"
    if row.kind == "worker" or row.job_id is None:
        return row.entity_id
    return row.job_id


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are looked for. states: phases, or states of their lifecycles; name: a part of theirs, in lower case
    (of ASCII); times: UTC epoch seconds of their making.
    """

    states: Sequence[str] = ()
    name: str = ""
    older_than: float | None = None
    newer_than: float | None = None

    def holds(self, record: Record) -> bool:
        """Whether that is one."""
        if self.states and not {str(record.state), record.shown} & {*self.states}:
            return False
        if self.older_than is not None and not record.created_at < self.older_than:
            return False
        if self.newer_than is not None and not record.created_at > self.newer_than:
            return False
        return self.name in record.name.lower()


class Bell(Protocol):
    """Heard by whoever takes what stands in the inbox."""

    async def heard(self) -> None:
        """Wait until somebody has rung, or it is time to look without that."""
        ...

    def close(self) -> None:
        """Take it away."""
        ...


class JournalQueries(Protocol):
    """What commands ask a journal, or what shows one: newest committed records."""

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id, ended or not."""
        ...

    def jobs(self, *, states: Sequence[str] = (), limit: int = 100) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` (phases) where given."""
        ...

    def children(self, job_id: str) -> list[JobRecord]:
        """The jobs that tasks of that one have submitted, oldest first."""
        ...

    def workstreams(self, job_id: str) -> list[WorkstreamRecord]:
        """The runs of a job, oldest first."""
        ...

    def spec(self, workstream: int) -> bytes | None:
        """The encoded specification of the workstream with that key, or what machines run by under it."""
        ...

    def tasks(self, workstream: int) -> list[TaskRecord]:
        """The tasks of the workstream with that key, in the order of its specification."""
        ...

    def approvals(self, workstream: int) -> list[ApprovalRecord]:
        """The approvals that bodies of the workstream with that key have asked for, oldest first."""
        ...

    def workers(self) -> list[WorkerRecord]:
        """Every incarnation of every worker, oldest first."""
        ...

    def breakers(self) -> list[BreakerRecord]:
        """Every breaker."""
        ...

    def machine(self, name: str) -> MachineRecord | None:
        """The `MachineActor` of that name, ended or not."""
        ...

    def machines(self, *, living: bool = False, limit: int | None = None) -> list[MachineRecord]:
        """Every `MachineActor`, newest first; only those that have not ended, where asked for."""
        ...

    def inbox(self) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, oldest first."""
        ...

    def outbox(self) -> list[OutboxRow]:
        """What is owed: hooks of what has ended, alerts and callbacks of machines, still to run, oldest first."""
        ...

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices above info that were kept, those told of last first.

        about: only those about that entity, or about what is in that job. since: UTC epoch seconds. first: how many of
        the newest are passed over.
        """
        ...

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:
        """The jobs that were moved out of it; only the one of that id, where given."""
        ...

    def transitions(
        self,
        *,
        entity_id: str | None = None,
        job_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[Transitioned]:
        """Transitions in order, numbered above `after`; of one entity, or of a job and all that is in it."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class History(Protocol):
    """Transitions in order, which a log is filled in from."""

    def transitions(self, *, after: int = 0, limit: int | None = None) -> Iterator[Transitioned]:
        """Those numbered above `after`."""
        ...

    def archived_numbers(self) -> list[tuple[int, int]]:
        """The numbers of those that were moved out, as ranges from first to last."""
        ...


class Reader(JournalQueries, Protocol):
    """Read-only questions to a journal, also while a runtime is writing it. Newest committed records."""

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        limit: int = 100,
        before: int | None = None,
        wanted: JobFilter | None = None,
    ) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` (phases) where given, with a key below `before`, and `wanted`."""
        ...

    def tasks(self, workstream: int, *, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        """The tasks of the workstream with that key, in the order of its specification, from the one of that index."""
        ...

    def task(self, task_id: str) -> TaskRecord | None:
        """The task of that id."""
        ...

    def states(self, workstream: int) -> list[tuple[str, str]]:
        """State (as people are told) and phase of the tasks of the workstream with that key, in order."""
        ...

    def counts(self, workstream: int) -> dict[str, int]:
        """How many tasks of the workstream with that key are in each phase."""
        ...

    def attempts(self, task_id: str) -> list[AttemptRecord]:
        """The attempts of a task, oldest first."""
        ...

    def request(self, request_id: str) -> RequestRecord | None:
        """What is kept of the command that was given that key. It may be past its time."""
        ...

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, oldest first: only events of machines, or only the
        rest, where asked for, and so many of the oldest at most.
        """
        ...

    def archived_numbers(self) -> list[tuple[int, int]]:
        """The numbers of the transitions that were moved out of it, as ranges from first to last."""
        ...


class Stored(Reader, Protocol):
    """What is asked of a journal on a medium by programs that do not run it: the commands, mostly."""

    def load(self) -> Loaded:
        """What the journal holds of the living, whoever runs it."""
        ...

    def sent(self, request_id: str) -> list[tuple[InboxRow, bytes | None]]:
        """What was put into the inbox under that key and is still there, with its answer as JSON, oldest first."""
        ...

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None while there is none."""
        ...

    def check_pages(self) -> None:
        """Look at all that is stored, also what no question reads, where that can be. Raises JournalCorrupt."""
        ...


class Journal(Protocol):
    """The durable, ordered record of every transition, with the entities' present state beside it."""

    durable_medium: bool
    """Whether it survives the process. A volatile journal accepts bodies that no restart could find again."""

    @property
    def identity(self) -> Identity:
        """What it is known by. Raises JournalError where it is not open."""
        ...

    @property
    def reader(self) -> Reader:
        """What answers questions until the journal is shut. Raises JournalError where it was never open."""
        ...

    @property
    def shared(self) -> Path | None:
        """The file that other processes can put commands into; None where none can."""
        ...

    @property
    def cluster(self) -> Cluster | None:
        """Its seat among the nodes that share the journal, once it is open; None where it is owned alone."""
        ...

    @property
    def own(self) -> History:
        """What a log of this runtime is filled in from: all of it, or what this node of several commits."""
        ...

    def again(self) -> Reader:
        """What reads it on its own account, also after it was shut; to be closed. Raises JournalError."""
        ...

    def bell(self) -> Bell | None:
        """What rings when there may be something new in the inbox; None where nobody else can put anything there."""
        ...

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that this runtime has to do and has not answered yet, oldest first: only
        events of machines, or only the rest, where asked for, and so many of the oldest at most.
        """
        ...

    @property
    def tail(self) -> int:
        """The number of the last entry appended (0 before the first)."""
        ...

    @property
    def durable(self) -> int:
        """The number of the last entry that is durable."""
        ...

    @property
    def backlog(self) -> int:
        """Transitions appended and not yet durable. Above a limit the runtime takes no new input from outside."""
        ...

    @property
    def health(self) -> Health:
        """Whether the journal can write."""
        ...

    @property
    def committed(self) -> Commits:
        """What was committed. A volatile journal commits nothing."""
        ...

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Take ownership, migrate, and load the living. Blocks; raises the errors above.

        on_durable is called on the loop (through call_threadsafe); after_commit in the writer, with what was
        just committed.
        """
        ...

    def append(self, entry: Entry) -> int:
        """Take one turn. Returns its number. Never blocks."""
        ...

    def flush(self) -> None:
        """Hand what is pending to the writer, if it is free. Never blocks."""
        ...

    def lend(self) -> float | None:
        """Let the writer have the interpreter where it needs it: blocks for at most 2 ms.

        It needs it to take up what it was handed, and is starved if a batch is older than 2 ms. Returns in how many
        seconds to call again while a batch is being written, None when all is durable.
        """
        ...

    def shut(self, deadline: float) -> bool:
        """Write what is pending, for at most `deadline` seconds, and let go of the file. Blocks.

        True if all was written. No questions are answered after it.
        """
        ...
