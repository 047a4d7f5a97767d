"""Questions to a journal in PostgreSQL: from any process, while nodes write it or when none does.

Rules
-----
- One read-only connection, used by one thread at a time (`link.py`).
- No question holds a transaction longer than a page of rows.
- Rows are decoded from the JSON that was stored; they come back exactly.
- Transitions come in the order of their numbers. In a job's history they happened in that order; between jobs of
  several nodes they may not have: each epoch has its own numbers (`runtime/journal/cluster.py`).
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ....actors.records.entities import WorkstreamRecord
from ....actors.records.loaded import Loaded
from ....actors.records.transition import Transitioned
from ...errors import JournalCorrupt, JournalUnwritable
from .. import decoding
from ..contract import ArchivedJob, InboxRow
from ..decoding import LONGEST_COMMAND, UNREADABLE, Decoder
from ..stored_reader import PAGE, StoredReader
from . import live
from .address import Address, parse
from .link import Link
from .opening import check_version, connect, names_several, refuse_standby
from .rows import plain

if TYPE_CHECKING:
    from ...calling import Progress
    from ..live import LiveText, TextPlace
    from .opening import Connection

T = TypeVar("T")

_TASKS_OF = """
unnest(%s::bigint[], %s::bigint[]) AS run (first, last)
  JOIN task_records ON key >= first AND key < last ORDER BY key
"""
_ATTEMPTS_OF = """
unnest(%s::bigint[], %s::bigint[]) AS run (first, last)
  JOIN attempt_records ON living AND task >= first AND task < last ORDER BY key
"""
_OWNERS = """
SELECT job.key, nodes.name FROM job_records AS job JOIN nodes USING (node)
WHERE job.key = ANY (%s::bigint[]) AND job.living AND NOT nodes.fenced
"""
_ATTEMPTS_LEFT = """
attempt_records WHERE living AND node = ANY (%s::bigint[]) AND NOT EXISTS (
  SELECT FROM task_records JOIN names ON name = 'job:' || (as_json(task_records.record)->>'job_id')
    JOIN job_records ON job_records.key = names.key
  WHERE task_records.key = task AND job_records.living
    AND as_json(job_records.record)->>'stream' = as_json(task_records.record)->>'workstream'
) ORDER BY key
"""
"""Attempts without an end whose jobs have ended, or are at a later run, perhaps on another node: processes that
outlived their node are killed by these.
"""


class LoadScope(msgspec.Struct):
    """The part of a journal to load: the keys of jobs, machines and rows of the outbox, and the numbers of the nodes
    whose workers and breakers are loaded.
    """

    jobs: Sequence[int] = ()
    machines: Sequence[int] = ()
    outbox: Sequence[int] = ()
    nodes: Sequence[int] = ()


class PostgresReader(StoredReader):
    """The journal at an address. Raises JournalError if there is none, or it cannot be reached or read.

    anywhere: whether a standby is acceptable, which may be behind: not for a node, which acts on what it reads.
    """

    _record = "record"
    _unlimited = None
    _name_has = """strpos(lower(as_json(record)->>'name' COLLATE "C"), ?) > 0"""

    def __init__(self, address: Address | str, purpose: str = "reader", *, anywhere: bool = True) -> None:
        self._address = parse(address) if isinstance(address, str) else address
        self.link = Link(self._address, purpose, partial(_connect, anywhere=anywhere))
        try:
            self.link.ask(lambda connection: check_version(connection, self._address))
        except BaseException:
            self.close()
            raise

    # -- questions

    def owners(self, jobs: Sequence[int]) -> dict[int, str]:
        """The names of the nodes that own jobs, by the jobs' keys. Ended jobs have no owner, nor have jobs that a node
        left and no other has taken over yet.
        """
        return dict(self._rows(_OWNERS, [*jobs]))

    def spec(self, workstream: int) -> bytes | None:
        """The encoded specification of the workstream with that key."""
        rows = self._rows("SELECT spec FROM specs WHERE workstream = %s", workstream)
        return rows[0][0].encode() if rows else None

    def states(self, workstream: int) -> list[tuple[str, str]]:
        """State (as shown to people) and phase of the tasks of the workstream with that key, in order."""
        return [(task.shown, str(task.state)) for task in self.tasks(workstream)]

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, for whichever node, oldest first.

        A command that cannot be read, or is too long, is skipped: it is not for this version.
        """
        left = (row for row, _ in self._sent("AND answer IS NULL"))
        return [*islice((row for row in left if events in {None, row.kind == "machine"}), limit)]

    def sent(self, request_id: str) -> list[tuple[InboxRow, bytes | None]]:
        """The rows put into the inbox under that key and still there, with answers as JSON, oldest first."""
        return [(row, answer) for row, answer in self._sent() if row.request_id == request_id]

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None if there is none yet."""
        found = self._rows("SELECT answer FROM inbox_rows WHERE key = %s", row)
        return found[0][0].encode() if found and found[0][0] is not None else None

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:  # noqa: ARG002 - none can be moved yet
        """None: ended jobs stay in the database."""
        return []

    def archived_numbers(self) -> list[tuple[int, int]]:
        """None: transitions stay in the database."""
        return []

    def check_pages(self) -> None:
        """Do nothing: the server checks its own pages (`pg_amcheck`, data checksums)."""

    def id(self) -> str:
        """The journal's random id."""
        return str(self._rows("SELECT id FROM callboard")[0][0])

    def progress(self, tasks: Sequence[int]) -> dict[int, tuple[int, Progress]]:
        """The progress that the running bodies of these tasks (by key) have reported, with the tokens of the attempts.

        Raises JournalError, also for a standby: then the progress is not known.
        """
        return self.link.ask(lambda connection: live.read_progress(connection, tasks))

    def all_progress(self) -> dict[int, tuple[int, Progress]]:
        """The progress that running bodies have reported, by their tasks, as `progress` returns it for some tasks."""
        return self.link.ask(live.read_all_progress)

    def text(self, after: TextPlace) -> list[LiveText]:
        """The text that a body has emitted after a place, as for `Cluster.read_text`."""
        return self.link.ask(lambda connection: live.read_text(connection, [after]))

    def listen(self, task: int) -> None:
        """Notify the nodes that this process listens to the text of a task (by key). Callers have to repeat this."""
        self.link.ask(lambda connection: live.listen(connection, [task], self._address.channel))

    def close(self) -> None:
        """Close the connection."""
        self.link.close()

    # -- recovery

    def load(self, part: LoadScope | None = None) -> Loaded:
        """Load the living entities, whichever node runs them; only a part of them, if given.

        A part has the workers and breakers that its nodes have written; for each name, only the last breaker.
        """
        if part is None:
            loaded = Loaded(
                jobs=self._records(decoding.JOB, "job_records WHERE living ORDER BY key"),
                machines=self.machines(living=True),
                outbox=self.outbox(),
                workers=self._records(decoding.WORKER, "worker_records WHERE living ORDER BY key"),
                breakers=self.breakers(),
                attempts=self._records(decoding.ATTEMPT, "attempt_records WHERE living ORDER BY key"),
            )
        else:
            loaded = Loaded(
                jobs=self._keyed(decoding.JOB, "job_records WHERE living AND", part.jobs),
                machines=self._keyed(decoding.MACHINE, "machine_records WHERE living AND", part.machines),
                outbox=self._keyed(decoding.OUTBOX, "outbox_rows WHERE", part.outbox),
            )
            self._load_nodes(loaded, [*part.nodes])
        self._load_streams(loaded, all_attempts=part is None)
        for name, last in self._rows("SELECT name, max(run) FROM worker_records GROUP BY name"):
            loaded.incarnations[name] = last
        (loaded.last_command,) = self._rows("SELECT coalesce(max(key), 0) FROM inbox_rows")[0]
        return loaded

    def _load_nodes(self, loaded: Loaded, nodes: list[int]) -> None:
        mine = "WHERE node = ANY (%s::bigint[])"
        workers = self._records(decoding.WORKER, f"worker_records {mine} ORDER BY key", nodes)
        loaded.workers = [worker for worker in workers if worker.finished_at is None]
        last = {worker.name: worker.pause_reason for worker in sorted(workers, key=lambda worker: worker.run)}
        loaded.paused = {name: reason for name, reason in last.items() if reason is not None}
        breakers = self._records(decoding.BREAKER, f"breaker_records {mine} ORDER BY key", nodes)
        loaded.breakers = list({breaker.name: breaker for breaker in breakers}.values())
        loaded.attempts = self._records(decoding.ATTEMPT, _ATTEMPTS_LEFT, nodes)

    def _load_streams(self, loaded: Loaded, *, all_attempts: bool) -> None:
        sql = "workstream_records WHERE job = ANY (%s::bigint[]) ORDER BY key"
        runs = self._records(decoding.WORKSTREAM, sql, [job.key for job in loaded.jobs])
        if runs and not all_attempts:
            more = self._records(decoding.ATTEMPT, _ATTEMPTS_OF, *_ranges(runs))
            loaded.attempts = [*{attempt.key: attempt for attempt in (*loaded.attempts, *more)}.values()]
        loaded.workstreams = list({run.job: run for run in runs}.values())
        if loaded.workstreams:
            loaded.tasks = self._records(decoding.TASK, _TASKS_OF, *_ranges(loaded.workstreams))
            sql = "approval_records WHERE workstream = ANY (%s::bigint[]) ORDER BY key"
            loaded.approvals = self._records(decoding.APPROVAL, sql, [run.key for run in loaded.workstreams])
        sql = "message_records WHERE unread AND job = ANY (%s::bigint[]) ORDER BY key"
        loaded.messages = self._records(decoding.MESSAGE, sql, [job.key for job in loaded.jobs])
        specs = {*(job.stream for job in loaded.jobs), *(machine.definitions[-1] for machine in loaded.machines)}
        if specs:
            rows = self._rows("SELECT workstream, spec FROM specs WHERE workstream = ANY (%s::bigint[])", [*specs])
            loaded.specs = {key: spec.encode() for key, spec in rows}

    # -- rows

    def _rows(self, sql: str, *values: object) -> list[Any]:  # Any: rows are tuples of what columns hold
        return self.link.ask(lambda connection: connection.execute(sql.replace("?", "%s").encode(), values).fetchall())

    def _keyed(self, decoder: Decoder[T], source: str, keys: Sequence[int]) -> list[T]:
        sql = f"{source} key = ANY (%s::bigint[]) ORDER BY key"
        return self._records(decoder, sql, [*keys]) if keys else []

    def _plain(self, text: str) -> str:
        return plain(text)

    def _field(self, *path: str) -> str:
        *folders, name = (f"'{one}'" for one in path)
        return f"{'->'.join(['as_json(record)', *folders])}->>{name}"

    def _number(self, name: str) -> str:
        return f"({self._field(name)})::double precision"

    def _damage(self, what: str) -> JournalCorrupt:
        return JournalCorrupt(
            f"{self._address} is damaged, or is no journal ({what}). Nothing was changed: restore it from a copy."
        )

    def _sent(self, only: str = "") -> Iterator[tuple[InboxRow, bytes | None]]:
        sql = f"SELECT key, command, answer FROM inbox_rows WHERE octet_length(command) <= %s {only} ORDER BY key"
        for number, text, answer in self._rows(sql, LONGEST_COMMAND):
            with contextlib.suppress(*UNREADABLE):
                row = msgspec.structs.replace(decoding.INBOX.decode(text), row=number)
                yield row, None if answer is None else answer.encode()

    def chunks(
        self, after: int, *, owners: set[str] | None = None, by_node: int | None = None
    ) -> Iterator[tuple[int, list[Transitioned]]]:
        """Chunks of transitions with their first numbers, from the commit of number `after` on; only of these owners,
        or of this node and the one that committed number `after`, if given.
        """
        rows = self._rows(
            "SELECT base, node FROM transition_chunks WHERE seq <= %s ORDER BY seq DESC LIMIT 1", after + 1
        )
        first, only, values = rows[0][0] if rows else 0, "", list[object]()
        if owners is not None:
            only, values = "owner = ANY (%s) AND", [[plain(owner) for owner in owners]]
        elif by_node is not None:
            only, values = "node = ANY (%s::bigint[]) AND", [[by_node, *(row[1] for row in rows)]]
        sql = f"SELECT seq, transitions FROM transition_chunks WHERE {only} seq >= %s ORDER BY seq LIMIT {PAGE}"
        while page := self._rows(sql, *values, first):
            for seq, text in page:
                yield seq, self._transitions(text)
            first = page[-1][0] + 1


def _connect(address: Address, purpose: str, *, anywhere: bool = True) -> Connection:
    """Connect to the server that accepts writes, since others may be behind; if there is none, to any, if that is
    acceptable.
    """
    try:
        connection = connect(address, purpose, statement_timeout=address.limits.read)
    except JournalUnwritable:
        if not (anywhere and names_several(address)):
            raise
        connection = connect(address, purpose, statement_timeout=address.limits.read, writes=False)
    try:
        if not anywhere:
            refuse_standby(connection, address)
        connection.execute("SET default_transaction_read_only = on")
    except BaseException:
        connection.close()
        raise
    return connection


def _ranges(runs: Sequence[WorkstreamRecord]) -> tuple[list[int], list[int]]:
    """The keys of the runs' tasks: the beginnings of their ranges, and the ends."""
    return [run.first_task for run in runs], [run.first_task + run.task_count for run in runs]
