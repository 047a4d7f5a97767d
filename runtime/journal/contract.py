"""The journal's contract: what every journal promises, and the words it uses.

Rules (DESIGN section 8, "Journal and output commit"):
- An `Entry` is one whole turn. It is committed whole or not at all, and in order: entry n is never durable before n-1.
- `append` and `flush` are called on the loop and never block. All entries flushed when the writer is free form one
  commit.
- `durable` never runs ahead of the disk. Effects wait for it; `on_durable` is called on the loop each time `durable` or
  `health` has changed.
- An entity's creation (a transition with no `from_state`) and its first record are in one entry.
- A batch that could not be written is kept and retried whole, with growing delay; `health` says degraded meanwhile.
- A living entity has no `finished_at`: jobs, workstreams, workers and machines without one are loaded at start.
- A journal has one owner, or several nodes of which each owns a part (`cluster.py`). A corrupt or newer journal is
  refused with a plain error, and never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

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
from ...actors.records.loaded import Loaded
from ...actors.records.message import MessageRecord
from ...actors.records.step import StepRecord
from ...actors.records.task import AttemptRecord, EndedRound, TaskRecord
from ...actors.records.transition import Transitioned
from ..errors import InboxFull

if TYPE_CHECKING:
    from .cluster import Cluster


class Identity(msgspec.Struct, frozen=True):
    """The identity of a journal, wherever it lies. copy: it tells a journal from its copies, which have the same id."""

    id: str  # random, from the journal's creation
    copy: str


class InboxRow(msgspec.Struct, frozen=True):
    """A command that another process has put into the inbox. `arguments` are the arguments of its verb."""

    verb: str
    kind: str  # of the target: job | task | breaker | worker | machine
    target: str  # the target's id, or a breaker's, worker's or machine's name
    request_id: str
    arguments: dict[str, Any] = {}
    sent_at: float = 0.0
    row: int = 0  # the row's number in the inbox, given when the row is put there


NOTICES_KEPT = 10_000
"""Rows of notices that a journal keeps: the latest."""
WAITING_FOR_ONE = 10_000
"""Commands that may wait in the inbox for one target: beyond that a new one is refused, as in every queue."""
WAITING_IN_ALL = 100_000
"""The limit for all events for machines together, and the same limit for all other commands together."""


def refuse_full(where: str, row: InboxRow, for_one: int, in_all: int) -> None:
    """Refuse a command if too many wait for its target, or in its group. Raises InboxFull."""
    if for_one < WAITING_FOR_ONE and in_all < WAITING_IN_ALL:
        return
    event = row.kind == "machine"
    what = f"{for_one:,} commands for {row.kind} {row.target:.80}"
    if for_one < WAITING_FOR_ONE:
        what = f"{in_all:,} {'events for machines' if event else 'commands'}"
    whom = "a program that has the machine runs the journal" if event else "the journal is run again"
    raise InboxFull(
        f"{what} wait in the inbox of {where} already, and it takes no more than {WAITING_FOR_ONE:,} for one target "
        f"and {WAITING_IN_ALL:,} in all: nothing was put there. They take effect when {whom}."
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
    """One turn: its transitions, the records it left (the last one per entity), specs, finished outbox rows."""

    transitions: list[Transitioned]
    records: list[AnyRecord]
    specs: list[tuple[int, bytes]] = []  # (workstream key, its encoded Workstream)
    outbox_done: list[int] = []
    answers: list[InboxAnswer] = []
    specs_done: list[int] = []  # specs that no new entity runs by: deleted with the last entity that ran by them
    tidy: bool = False  # delete superseded records of workers, and records of closed breakers without failures
    pruned_at: float = 0.0  # delete keys of requests and answers that were kept until this time (UTC epoch seconds)
    rounds: list[EndedRound] = []  # whose steps and attempts are deleted
    notices: list[NoticeRecord] = []  # of one key the last counts; the oldest are deleted if there are too many


class Health(msgspec.Struct, frozen=True):
    """Whether the journal can write. `reason` says in words why not, or, if it can, which other problem it has; `since`
    is UTC epoch seconds.

    lost: it cannot be written any more, since others have taken over what this node ran.
    """

    ok: bool = True
    reason: str | None = None
    since: float | None = None
    lost: bool = False


class Commits(msgspec.Struct):
    """Totals since the journal was opened: batches, the transitions in them, and the seconds that commits took."""

    commits: int = 0
    transitions: int = 0
    seconds: float = 0.0
    slowest: float = 0.0


def belongs_to(row: Transitioned) -> str:
    """The owner of a transition's history: its job for jobs, workstreams and tasks, else its own entity.

    Workers and breakers serve many jobs and machines none, so their transitions are in no job's history.
    """
    if row.kind in {"machine", "breaker"}:  # their names may equal those of jobs
        return f"{row.kind}:{row.entity_id}"
    if row.kind == "worker" or row.job_id is None:
        return row.entity_id
    return row.job_id


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Criteria for jobs. states: phases, or states of their lifecycles; name: a part of a job's name, in lower case
    (of ASCII); times: UTC epoch seconds of the job's creation.
    """

    states: Sequence[str] = ()
    name: str = ""
    older_than: float | None = None
    newer_than: float | None = None

    def holds(self, record: Record) -> bool:
        """Whether a job's record meets the criteria."""
        if self.states and not {str(record.state), record.shown} & {*self.states}:
            return False
        if self.older_than is not None and not record.created_at < self.older_than:
            return False
        if self.newer_than is not None and not record.created_at > self.newer_than:
            return False
        return self.name in record.name.lower()


class InboxNotifier(Protocol):
    """Notifies the reader of the inbox of new rows."""

    async def wait(self) -> None:
        """Wait for a notification, or until it is time to look without one."""
        ...

    def close(self) -> None:
        """Close the notifier and release its resources."""
        ...


class JournalQueries(Protocol):
    """The questions that commands and displays ask a journal. Answers are the newest committed records."""

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id, ended or not."""
        ...

    def jobs(self, *, states: Sequence[str] = (), limit: int = 100) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` (phases) if given."""
        ...

    def children(self, job_id: str) -> list[JobRecord]:
        """The jobs that tasks of that job have submitted, oldest first."""
        ...

    def workstreams(self, job_id: str) -> list[WorkstreamRecord]:
        """The runs of a job, oldest first."""
        ...

    def spec(self, workstream: int) -> bytes | None:
        """The encoded specification of the workstream with that key, or the definition that machines run by."""
        ...

    def tasks(self, workstream: int) -> list[TaskRecord]:
        """The tasks of the workstream with that key, in the order of its specification."""
        ...

    def approvals(self, workstream: int) -> list[ApprovalRecord]:
        """The approvals that bodies of the workstream with that key have requested, oldest first."""
        ...

    def steps(self, flow: int) -> list[StepRecord]:
        """The steps of the flow that began in the task with that key, in the order in which they were first kept,
        without those that a later run has dropped.
        """
        ...

    def publications(self, flow: int) -> list[StepRecord]:
        """The steps of a flow that published a value, oldest first."""
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
        """Every `MachineActor`, newest first; only living ones if `living`."""
        ...

    def inbox(self) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, oldest first."""
        ...

    def outbox(self) -> list[OutboxRow]:
        """Effects still to run, oldest first: hooks of ended entities, alerts and callbacks of machines."""
        ...

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices above info that were kept, latest first.

        about: only notices about that entity, or about an entity in that job. since: UTC epoch seconds. first: how many
        of the newest are skipped.
        """
        ...

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:
        """The jobs that were moved out of the journal; only the job with that id, if given."""
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
        """Close the file."""
        ...


class History(Protocol):
    """Transitions in order, from which a log is filled in."""

    def transitions(self, *, after: int = 0, limit: int | None = None) -> Iterator[Transitioned]:
        """Transitions numbered above `after`."""
        ...

    def archived_numbers(self) -> list[tuple[int, int]]:
        """The numbers of archived transitions, as ranges from first to last."""
        ...


class Reader(JournalQueries, Protocol):
    """Read-only questions to a journal, also while a runtime writes it. Answers are the newest committed records."""

    def flows(self) -> list[int]:
        """The keys of the tasks in which flows began, in order."""
        ...

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        limit: int = 100,
        before: int | None = None,
        wanted: JobFilter | None = None,
    ) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` (phases) if given, with keys below `before`, matching `wanted`."""
        ...

    def tasks(self, workstream: int, *, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        """Tasks of the workstream with that key, in the order of its specification, from index `first` on."""
        ...

    def task(self, task_id: str) -> TaskRecord | None:
        """The task of that id."""
        ...

    def states(self, workstream: int) -> list[tuple[str, str]]:
        """State (as shown to people) and phase of the tasks of the workstream with that key, in order."""
        ...

    def counts(self, workstream: int) -> dict[str, int]:
        """How many tasks of the workstream with that key are in each phase."""
        ...

    def page_of_steps(self, flow: int, limit: int, beyond: int | None, *, newest_first: bool) -> list[StepRecord]:
        """At most `limit` of the steps of a flow, from either end. beyond: the key of the last step before the page."""
        ...

    def attempts(self, task_id: str) -> list[AttemptRecord]:
        """The attempts of a task, oldest first."""
        ...

    def messages(
        self, job_id: str, *, unread: bool = False, beyond: int = 0, limit: int | None = None
    ) -> list[MessageRecord]:
        """The messages to that job and its tasks, oldest first; only those that nothing has received, if `unread`.

        beyond: the key of the last message before these. limit: how many, at most.
        """
        ...

    def request(self, request_id: str) -> RequestRecord | None:
        """The stored result of the command with that key. It may have expired."""
        ...

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The unanswered commands of other processes, oldest first: only events of machines, or only the
        others, if `events` is given, and at most `limit` of them.
        """
        ...

    def archived_numbers(self) -> list[tuple[int, int]]:
        """The numbers of the transitions that were moved out of the journal, as ranges from first to last."""
        ...


class Stored(Reader, Protocol):
    """Questions to a stored journal from programs that do not run it: mostly the commands."""

    def load(self) -> Loaded:
        """Load the living entities, whichever runtime runs them."""
        ...

    def sent(self, request_id: str) -> list[tuple[InboxRow, bytes | None]]:
        """The rows put into the inbox under that key and still there, with answers as JSON, oldest first."""
        ...

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None if there is none yet."""
        ...

    def check_pages(self) -> None:
        """Check all stored pages, also those that no question reads, if the medium allows it. Raises JournalCorrupt."""
        ...


class Journal(Protocol):
    """The durable, ordered record of every transition, with the present state of each entity."""

    durable_medium: bool
    """Whether it survives the process. A volatile journal accepts bodies that no restart could find again."""

    @property
    def identity(self) -> Identity:
        """The journal's identity. Raises JournalError if it is not open."""
        ...

    @property
    def reader(self) -> Reader:
        """The reader that answers questions until the journal is shut. Raises JournalError if it was never open."""
        ...

    @property
    def shared(self) -> Path | None:
        """The file that other processes can put commands into; None if none can."""
        ...

    @property
    def cluster(self) -> Cluster | None:
        """This node's membership among the nodes that share the journal, once it is open; None for a single owner."""
        ...

    @property
    def own(self) -> History:
        """The source for this runtime's log: all transitions, or only those that this node of several commits."""
        ...

    def again(self) -> Reader:
        """A reader with its own connection, usable also after `shut`; the caller closes it. Raises JournalError."""
        ...

    def notifier(self) -> InboxNotifier | None:
        """The notifier of new rows in the inbox; None if no other process can put any there."""
        ...

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The unanswered commands of other processes that this runtime has to run, oldest first: only events of
        machines, or only the others, if `events` is given, and at most `limit` of them.
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
        """Totals of commits. A volatile journal commits nothing."""
        ...

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Take ownership, migrate, and load the living entities. Blocks; raises the errors above.

        on_durable is called on the loop (through call_threadsafe); after_commit in the writer, with the transitions
        that it has just committed.
        """
        ...

    def append(self, entry: Entry) -> int:
        """Add one turn. Returns its number. Never blocks."""
        ...

    def flush(self) -> None:
        """Hand pending entries to the writer, if it is free. Never blocks."""
        ...

    def lend(self) -> float | None:
        """Yield the interpreter (the GIL) to the writer if the writer needs it: blocks for at most 2 ms.

        The writer needs it to take the entries handed to it, and is starved if a batch is older than 2 ms. Returns in
        how many seconds to call again while a batch is being written, None if all is durable.
        """
        ...

    def shut(self, deadline: float) -> bool:
        """Write pending entries, for at most `deadline` seconds, and close the file. Blocks.

        True if all was written. The journal answers no questions afterwards.
        """
        ...
