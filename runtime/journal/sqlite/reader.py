"""Questions to a journal file: while a runtime writes it, from any process, and when none does.

Rules:
- Read-only: the file is never changed, and never made.
- No question holds a transaction longer than a page of rows, so that the writer's log can be folded back.
- Rows are decoded from the JSON they were written as; they come back exactly.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ....actors.kernel.restore import Loaded
from ....actors.messages.notices import NoticeRecord
from ....actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    RequestRecord,
    WorkerRecord,
    WorkstreamRecord,
)
from ....actors.records.task import AttemptRecord, TaskRecord
from ....actors.records.transition import Transitioned
from ..contract import ArchivedJob, InboxRow, JobFilter, JournalCorrupt, JournalError, JournalMissing
from ..decoding import (  # fmt: skip
    APPROVAL,
    ATTEMPT,
    BREAKER,
    INBOX,
    JOB,
    LONGEST_COMMAND,
    MACHINE,
    NOTICE,
    OUTBOX,
    REQUEST,
    TASK,
    UNREADABLE,
    WORKER,
    WORKSTREAM,
    ordered,
    transitions_of,
)
from ..location import file_of, in_words
from .opening import (
    SMALLEST,
    check_pages,
    connect_reader,
    damage,
    no_file,
    refuse_name,
    refuse_second_name,
    refusing,
    version_of,
)

PAGE = 64
"""Chunks of transitions read at a time."""

T = TypeVar("T")

_RECORD = "CAST(record AS BLOB)"  # bytes, as the decoder wants them
_LAST_INCARNATIONS = "(SELECT name, max(run) FROM worker_records GROUP BY name)"
_EVENT = "coalesce(CASE WHEN json_valid(command) THEN json_extract(command, '$.kind') = 'machine' END, false)"
_LIVING_WORKSTREAMS = "workstream_records WHERE job IN (SELECT key FROM job_records WHERE living)"


class SqliteReader:
    """The journal at `path`, read-only. Raises JournalMissing, JournalCorrupt, JournalTooNew, JournalUnwritable."""

    def __init__(self, path: str | Path) -> None:
        self._path = file_of(path)
        self._is_closed = False
        self._is_aside = False  # the file was replaced or mended: it must be opened anew
        self._one_at_a_time = threading.Lock()  # a connection keeps statements: two threads must not use one at once
        refuse_name(self._path)
        if not self._path.exists():
            raise JournalMissing(f"There is no journal {in_words(self._path)}. Check the path.")
        if not self._path.is_file():
            raise JournalCorrupt(f"{in_words(self._path)!r} is {no_file(self._path)}, and no journal. Name a file.")
        if 0 < self._path.stat().st_size < SMALLEST:
            raise JournalCorrupt(f"{in_words(self._path)} is no journal. It was not touched: check the path.")
        refuse_second_name(self._path)
        with refusing(self._path), contextlib.ExitStack() as undo:
            self._connection = connect_reader(self._path)
            undo.callback(self._connection.close)
            if version_of(self._connection, self._path) == 0:
                raise JournalMissing(f"{in_words(self._path)} is empty: no runtime has used it as its journal yet.")
            undo.pop_all()

    # -- questions

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id, ended or not."""
        key = self._key("job", job_id)
        found = self._records(JOB, f"SELECT {_RECORD} FROM job_records WHERE key = ?", key)
        return found[0] if found else None

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        limit: int = 100,
        before: int | None = None,
        wanted: JobFilter | None = None,
    ) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` (phases) where given, with a key below `before`, and `wanted`."""
        only = ["true", *([f"state IN ({', '.join('?' * len(states))})"] if states else [])]
        values: list[object] = [*states]
        if before is not None:
            only.append("key < ?")
            values.append(before)
        if wanted is not None:
            more, given = _where(wanted)
            only += more
            values += given
        sql = f"SELECT {_RECORD} FROM job_records WHERE {' AND '.join(only)} ORDER BY key DESC LIMIT ?"
        return self._records(JOB, sql, *values, limit)

    def children(self, job_id: str) -> list[JobRecord]:
        """The jobs that tasks of that one have submitted, oldest first."""
        named = "SELECT key FROM names WHERE name > ? AND name < ?"  # ids that begin with "JOB/": "0" is next to "/"
        sql = f"SELECT {_RECORD} FROM job_records WHERE key IN ({named}) ORDER BY key"
        found = self._records(JOB, sql, f"job:{job_id}/", f"job:{job_id}0")
        return [job for job in found if job.parent_id == job_id]

    def workstreams(self, job_id: str) -> list[WorkstreamRecord]:
        """The runs of a job, oldest first."""
        sql = f"SELECT {_RECORD} FROM workstream_records WHERE job = ? ORDER BY key"
        return self._records(WORKSTREAM, sql, self._key("job", job_id))

    def spec(self, workstream: int) -> bytes | None:
        """The encoded specification of the workstream with that key."""
        rows = self._rows("SELECT CAST(spec AS BLOB) FROM specs WHERE workstream = ?", workstream)
        return rows[0][0] if rows else None

    def tasks(self, workstream: int, *, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        """The tasks of the workstream with that key, in the order of its specification, from the one of that index."""
        run = self._run(workstream)
        return [] if run is None else self._tasks_of(run, first, limit)

    def task(self, task_id: str) -> TaskRecord | None:
        """The task of that id."""
        sql = f"SELECT {_RECORD} FROM task_records WHERE key = ?"
        found = self._records(TASK, sql, self._key("task", task_id))
        return found[0] if found else None

    def states(self, workstream: int) -> list[tuple[str, str]]:
        """State (as people are told) and phase of the tasks of the workstream with that key, in order."""
        run = self._run(workstream)
        if run is None:
            return []
        sql = (
            "SELECT coalesce(json_extract(record, '$.published.state'), json_extract(record, '$.state')),"
            " json_extract(record, '$.state') FROM task_records WHERE key >= ? AND key < ? ORDER BY key"
        )
        return self._rows(sql, run.first_task, run.first_task + run.task_count)

    def counts(self, workstream: int) -> dict[str, int]:
        """How many tasks of the workstream with that key are in each phase."""
        run = self._run(workstream)
        if run is None:
            return {}
        sql = "SELECT json_extract(record, '$.state'), count(*) FROM task_records WHERE key >= ? AND key < ? GROUP BY 1"
        return dict(self._rows(sql, run.first_task, run.first_task + run.task_count))

    def approvals(self, workstream: int) -> list[ApprovalRecord]:
        """The approvals that bodies of that workstream have asked for, oldest first."""
        sql = f"SELECT {_RECORD} FROM approval_records WHERE workstream = ? ORDER BY key"
        return self._records(APPROVAL, sql, workstream)

    def workers(self) -> list[WorkerRecord]:
        """Every incarnation of every worker, oldest first."""
        return self._records(WORKER, f"SELECT {_RECORD} FROM worker_records ORDER BY key")

    def breakers(self) -> list[BreakerRecord]:
        """Every breaker."""
        return self._records(BREAKER, f"SELECT {_RECORD} FROM breaker_records ORDER BY key")

    def machine(self, name: str) -> MachineRecord | None:
        """The `MachineActor` of that name, ended or not."""
        sql = f"SELECT {_RECORD} FROM machine_records WHERE key = ?"
        found = self._records(MACHINE, sql, self._key("machine", name))
        return found[0] if found else None

    def machines(self, *, living: bool = False, limit: int | None = None) -> list[MachineRecord]:
        """Every `MachineActor`, newest first; only those that have not ended, where asked for."""
        only = "WHERE living" if living else ""
        sql = f"SELECT {_RECORD} FROM machine_records {only} ORDER BY key DESC LIMIT ?"
        return self._records(MACHINE, sql, -1 if limit is None else limit)

    def attempts(self, task_id: str) -> list[AttemptRecord]:
        """The attempts of a task, oldest first."""
        sql = f"SELECT {_RECORD} FROM attempt_records WHERE task = ? ORDER BY key"
        return self._records(ATTEMPT, sql, self._key("task", task_id))

    def request(self, request_id: str) -> RequestRecord | None:
        """What is kept of the command that was given that key."""
        found = self._records(REQUEST, f"SELECT {_RECORD} FROM request_records WHERE request_id = ?", request_id)
        return found[0] if found else None

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, oldest first, as in the contract.

        One that cannot be read, or is too long, is passed over: it is not for this version.
        """
        only = {None: "", True: f"AND {_EVENT}", False: f"AND NOT {_EVENT}"}[events]
        sql = (
            f"SELECT key, CAST(command AS BLOB) FROM inbox_rows WHERE answer IS NULL AND length(command) <= ? {only}"
            " AND key > ? ORDER BY key LIMIT ?"
        )
        rows: list[InboxRow] = []
        left, after = -1 if limit is None else limit, 0
        while left and (found := self._rows(sql, LONGEST_COMMAND, after, left)):
            for number, text in found:
                with contextlib.suppress(*UNREADABLE):
                    rows.append(msgspec.structs.replace(INBOX.decode(text), row=number))
            after = found[-1][0]
            left = 0 if limit is None else limit - len(rows)
        return rows

    def sent(self, request_id: str) -> list[tuple[InboxRow, bytes | None]]:
        """What was put into the inbox under that key and is still there, with its answer as JSON, oldest first."""
        found: list[tuple[InboxRow, bytes | None]] = []
        for number, text, answer in self._rows(
            "SELECT key, CAST(command AS BLOB), CAST(answer AS BLOB) FROM inbox_rows WHERE length(command) <= ?"
            " ORDER BY key",
            LONGEST_COMMAND,
        ):
            with contextlib.suppress(*UNREADABLE):
                row = msgspec.structs.replace(INBOX.decode(text), row=number)
                if row.request_id == request_id:
                    found.append((row, answer))
        return found

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None while there is none."""
        found = self._rows("SELECT CAST(answer AS BLOB) FROM inbox_rows WHERE key = ?", row)
        return found[0][0] if found else None

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:
        """The jobs that were moved out of it; only the one of that id, where given."""
        only, values = ("", ()) if job_id is None else ("WHERE id = ?", (job_id,))
        rows = self._rows(f"SELECT id, state, archived_at, file FROM archived_jobs {only}", *values)
        return [ArchivedJob(*row) for row in rows]

    def archived_numbers(self) -> list[tuple[int, int]]:
        """The numbers of the transitions that were moved out of it, as ranges from first to last."""
        return self._rows("SELECT first, last FROM archived_numbers ORDER BY first")

    def log(self) -> Path | None:
        """The log of transitions that was kept of it, the last one if there were several."""
        kept = self._rows("SELECT log FROM meta")[0][0]
        return None if kept is None else self._path.absolute().parent / os.fsdecode(kept)

    def last_seq(self, job_id: str) -> int:
        """The number of the last transition of a job and all that is in it, 0 if it has none."""
        sql = "SELECT CAST(transitions AS BLOB) FROM transition_chunks WHERE owner = ? ORDER BY seq DESC LIMIT 1"
        rows = self._rows(sql, job_id)
        return _transitions(rows[0][0], self._path)[-1].seq if rows else 0

    def shared_chunks(self, before: float, last: int, most: int) -> list[tuple[int, list[Transitioned]]]:
        """The oldest chunks of what workers and breakers did, up to the first that ends at `before` or later.

        Each with its key. (No job's id holds a "#" or ":".) None goes beyond the transition numbered `last`.
        """
        sql = (
            "SELECT seq, CAST(transitions AS BLOB) FROM transition_chunks"
            " WHERE (owner LIKE '%#%' OR owner LIKE 'breaker:%') AND owner NOT LIKE 'machine:%'"
            " AND seq <= ? ORDER BY seq LIMIT ?"
        )
        chunks = ((key, _transitions(text, self._path)) for key, text in self._rows(sql, last, most))
        return list(takewhile(lambda one: one[1][-1].at < before and one[1][-1].seq <= last, chunks))

    def outbox(self) -> list[OutboxRow]:
        """The hooks of ended entities that are still to run."""
        return self._records(OUTBOX, f"SELECT {_RECORD} FROM outbox_rows ORDER BY key")

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices that are kept, those told of last first, as in the contract. An older file has none."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'notice_records'"):
            return []
        only, values = ["at >= ?"], list[object]([since])
        if about is not None:
            only.append("? IN (json_extract(record, '$.entity_id'), json_extract(record, '$.job_id'))")
            values.append(about)
        where = " AND ".join(only)
        sql = f"SELECT {_RECORD} FROM notice_records WHERE {where} ORDER BY at DESC, key DESC LIMIT ? OFFSET ?"
        return self._records(NOTICE, sql, *values, limit, first)

    def to_archive(self, limit: int = -1) -> list[JobRecord]:
        """The jobs that have ended and are to be moved out, oldest first."""
        only = "WHERE NOT living AND json_extract(record, '$.archive')"
        return self._records(JOB, f"SELECT {_RECORD} FROM job_records {only} ORDER BY key LIMIT ?", limit)

    def transitions(
        self,
        *,
        entity_id: str | None = None,
        job_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[Transitioned]:
        """Transitions in order, numbered above `after`; of one entity, or of a job and all that is in it."""
        owners: set[str | None] = {job_id}
        if job_id is None and entity_id is not None:
            owners = self._owners(entity_id)
        rows = (
            row
            for row in ordered(self._chunks(owners, after))
            if row.seq > after and (entity_id is None or row.entity_id == entity_id)
        )
        return islice(rows, limit)

    def check_pages(self) -> None:
        """Look at every page, also those that no question reads. Raises JournalCorrupt."""
        with self._one_at_a_time, refusing(self._path):
            check_pages(self._connection, self._path)

    @contextlib.contextmanager
    def aside(self) -> Generator[None]:
        """Let go of the file while this lasts: no question is answered meanwhile. The next one opens it anew."""
        with self._one_at_a_time:
            self._connection.close()
            self._is_aside = True
            yield

    def close(self) -> None:
        """Let go of the file: who asks from now on gets a JournalError."""
        with self._one_at_a_time:
            self._is_closed = True
            self._connection.close()

    # -- recovery

    def load(self) -> Loaded:
        """What the journal holds of the living."""
        loaded = Loaded(
            jobs=self._records(JOB, f"SELECT {_RECORD} FROM job_records WHERE living ORDER BY key"),
            workers=self._records(WORKER, f"SELECT {_RECORD} FROM worker_records WHERE living ORDER BY key"),
            breakers=self.breakers(),
            attempts=self._records(ATTEMPT, f"SELECT {_RECORD} FROM attempt_records WHERE living ORDER BY key"),
            outbox=self.outbox(),
        )
        last = f"SELECT {_RECORD} FROM worker_records WHERE (name, run) IN {_LAST_INCARNATIONS}"
        for worker in self._records(WORKER, last):
            loaded.incarnations[worker.name] = worker.run
            if worker.pause_reason is not None:
                loaded.paused[worker.name] = worker.pause_reason
        runs = self._records(WORKSTREAM, f"SELECT {_RECORD} FROM {_LIVING_WORKSTREAMS} ORDER BY key")
        loaded.workstreams = list({run.job: run for run in runs}.values())
        for run in loaded.workstreams:
            loaded.tasks += self._tasks_of(run)
            loaded.approvals += self.approvals(run.key)
        loaded.machines = self.machines(living=True)
        loaded.archiving = bool(self.to_archive(limit=1))
        kinds = {machine.definitions[-1] for machine in loaded.machines}
        for key in [*(job.stream for job in loaded.jobs), *sorted(kinds)]:
            if (spec := self.spec(key)) is not None:
                loaded.specs[key] = spec
        loaded.last_key, loaded.last_seq = self._rows("SELECT last_key, last_seq FROM meta")[0]
        (loaded.last_command,) = self._rows("SELECT coalesce(max(key), 0) FROM inbox_rows")[0]
        return loaded

    # -- rows

    def _rows(self, sql: str, *values: object) -> list[Any]:  # Any: rows are tuples of what SQLite holds
        with self._one_at_a_time, refusing(self._path):
            if self._is_closed:
                raise JournalError(f"{in_words(self._path)} is not open any more.")
            if self._is_aside:
                self._connection = connect_reader(self._path)
                self._is_aside = False
            return self._connection.execute(sql, values).fetchall()

    def _records(self, decoder: msgspec.json.Decoder[T], sql: str, *values: object) -> list[T]:
        try:
            return [decoder.decode(row[0]) for row in self._rows(sql, *values)]
        except UNREADABLE as error:
            raise damage(self._path, f"a record cannot be read: {error}") from error

    def _run(self, workstream: int) -> WorkstreamRecord | None:
        found = self._records(WORKSTREAM, f"SELECT {_RECORD} FROM workstream_records WHERE key = ?", workstream)
        return found[0] if found else None

    def _tasks_of(self, run: WorkstreamRecord, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        sql = f"SELECT {_RECORD} FROM task_records WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        last = run.first_task + run.task_count
        return self._records(TASK, sql, run.first_task + first, last, -1 if limit is None else limit)

    def _key(self, kind: str, entity_id: str) -> int | None:
        rows = self._rows("SELECT key FROM names WHERE name = ?", f"{kind}:{entity_id}")
        return rows[0][0] if rows else None

    def _owners(self, entity_id: str) -> set[str | None]:
        """In whose chunks the transitions of an entity are (`contract.belongs_to`)."""
        owners: set[str | None] = {entity_id, f"machine:{entity_id}", f"breaker:{entity_id}"}
        for table in ("task", "workstream", "approval"):
            sql = f"SELECT json_extract(record, '$.job_id') FROM {table}_records WHERE key = ?"
            owners.update(row[0] for row in self._rows(sql, self._key(table, entity_id)))
        return owners

    def _chunks(self, owners: set[str | None], after: int) -> Iterator[tuple[int, list[Transitioned]]]:
        """The chunks of these owners (None: of all), from the commit of number `after` on."""
        rows = self._rows("SELECT base FROM transition_chunks WHERE seq <= ? ORDER BY seq DESC LIMIT 1", after + 1)
        first = rows[0][0] if rows else 0
        named = [owner for owner in owners if owner is not None]
        only = f"owner IN ({', '.join('?' * len(named))}) AND" if named else ""
        sql = (
            f"SELECT seq, CAST(transitions AS BLOB) FROM transition_chunks WHERE {only} seq >= ?"
            f" ORDER BY seq LIMIT {PAGE}"
        )
        while page := self._rows(sql, *named, first):
            for seq, text in page:
                yield seq, _transitions(text, self._path)
            first = page[-1][0] + 1


def _where(wanted: JobFilter) -> tuple[list[str], list[object]]:
    only: list[str] = []
    values: list[object] = []
    if wanted.states:
        marks = ", ".join("?" * len(wanted.states))
        only.append(f"(state IN ({marks}) OR json_extract(record, '$.published.state') IN ({marks}))")
        values += [*wanted.states, *wanted.states]
    if wanted.name:
        only.append("instr(lower(json_extract(record, '$.name')), ?)")
        values.append(wanted.name)
    for mark, limit in (("<", wanted.older_than), (">", wanted.newer_than)):
        if limit is not None:
            only.append(f"json_extract(record, '$.created_at') {mark} ?")
            values.append(limit)
    return only, values


def _transitions(text: bytes, path: Path) -> list[Transitioned]:
    try:
        return transitions_of(text)
    except UNREADABLE as error:
        raise damage(path, str(error)) from error
