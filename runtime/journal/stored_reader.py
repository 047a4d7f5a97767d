"""Questions to a journal in a database, as both databases answer them.

Rules:
- Records are decoded from the JSON that was stored; they come back exactly.
- The databases differ in small parts only: how a record and its fields are read, and how rows are fetched. Questions
  that need a database's own SQL are in `sqlite/reader.py` and `postgres/reader.py`.
- Values are bound at a `?`.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar

from ...actors.messages.notices import NoticeRecord
from ...actors.records import entities
from ...actors.records.message import MessageRecord
from ...actors.records.step import PUBLISH, StepRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from ..errors import JournalCorrupt
from . import decoding
from .contract import JobFilter
from .decoding import UNREADABLE, Decoder

PAGE = 64
"""Chunks of transitions read at a time."""

T = TypeVar("T")


class StoredReader(ABC):
    """Answers questions from the tables that `schema.py` of each database makes."""

    _record: ClassVar[str]
    """The SQL of the record's column, in the type that the decoder needs."""
    _unlimited: ClassVar[int | None]
    """The SQL value that means no limit."""
    _name_has: ClassVar[str]
    """The SQL condition that the name in a record contains a text, in lower case (of ASCII)."""

    # -- the parts that each database implements

    @abstractmethod
    def _rows(self, sql: str, *values: object) -> list[Any]:  # Any: rows are tuples of what a database holds
        """Run a query. Raises JournalError."""

    @abstractmethod
    def _damage(self, what: str) -> JournalCorrupt:
        """Make the error for damaged data."""

    @abstractmethod
    def _field(self, *path: str) -> str:
        """The SQL of a field of a record, or a field of a field, as text."""

    @abstractmethod
    def _number(self, name: str) -> str:
        """The SQL of a field of a record, as a number."""

    @abstractmethod
    def chunks(self, after: int, *, owners: set[str] | None = None) -> Iterator[tuple[int, list[Transitioned]]]:
        """Chunks of transitions with their first numbers, from the commit of number `after` on; only of these owners,
        if given.
        """

    def _plain(self, text: str) -> str:
        """A text in the form that a column stores."""
        return text

    # -- questions

    def job(self, job_id: str) -> entities.JobRecord | None:
        """The job of that id, ended or not."""
        return self._one(decoding.JOB, "job_records WHERE key = ?", self._key("job", job_id))

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        limit: int = 100,
        before: int | None = None,
        wanted: JobFilter | None = None,
    ) -> list[entities.JobRecord]:
        """Jobs, newest first; only those in `states` (phases) if given, with keys below `before`, matching `wanted`."""
        only, values = self._where(wanted or JobFilter())
        if states:
            only.append(f"state IN ({_marks(states)})")
            values += states
        if before is not None:
            only.append("key < ?")
            values.append(before)
        source = f"job_records WHERE {' AND '.join(['true', *only])} ORDER BY key DESC LIMIT ?"
        return self._records(decoding.JOB, source, *values, limit)

    def children(self, job_id: str) -> list[entities.JobRecord]:
        """The jobs that tasks of that job have submitted, oldest first."""
        named = "SELECT key FROM names WHERE name > ? AND name < ?"  # ids that begin with "JOB/": "0" is next to "/"
        source = f"job_records WHERE key IN ({named}) ORDER BY key"
        ends = self._plain(f"job:{job_id}/"), self._plain(f"job:{job_id}0")
        return [job for job in self._records(decoding.JOB, source, *ends) if job.parent_id == job_id]

    def workstreams(self, job_id: str) -> list[entities.WorkstreamRecord]:
        """The runs of a job, oldest first."""
        source = "workstream_records WHERE job = ? ORDER BY key"
        return self._records(decoding.WORKSTREAM, source, self._key("job", job_id))

    def tasks(self, workstream: int, *, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        """Tasks of the workstream with that key, in the order of its specification, from index `first` on."""
        run = self._run(workstream)
        return [] if run is None else self._tasks_of(run, first, limit)

    def task(self, task_id: str) -> TaskRecord | None:
        """The task of that id."""
        return self._one(decoding.TASK, "task_records WHERE key = ?", self._key("task", task_id))

    def counts(self, workstream: int) -> dict[str, int]:
        """How many tasks of the workstream with that key are in each phase."""
        run = self._run(workstream)
        if run is None:
            return {}
        sql = f"SELECT {self._field('state')}, count(*) FROM task_records WHERE key >= ? AND key < ? GROUP BY 1"
        return dict(self._rows(sql, run.first_task, run.first_task + run.task_count))

    def approvals(self, workstream: int) -> list[entities.ApprovalRecord]:
        """The approvals that bodies of that workstream have requested, oldest first."""
        return self._records(decoding.APPROVAL, "approval_records WHERE workstream = ? ORDER BY key", workstream)

    def workers(self) -> list[entities.WorkerRecord]:
        """Every incarnation of every worker, of every node, oldest first."""
        return self._records(decoding.WORKER, "worker_records ORDER BY key")

    def breakers(self) -> list[entities.BreakerRecord]:
        """Every breaker of every node."""
        return self._records(decoding.BREAKER, "breaker_records ORDER BY key")

    def machine(self, name: str) -> entities.MachineRecord | None:
        """The `MachineActor` of that name, ended or not."""
        return self._one(decoding.MACHINE, "machine_records WHERE key = ?", self._key("machine", name))

    def machines(self, *, living: bool = False, limit: int | None = None) -> list[entities.MachineRecord]:
        """Every `MachineActor`, newest first; only living ones if `living`."""
        source = f"machine_records {'WHERE living' if living else ''} ORDER BY key DESC LIMIT ?"
        return self._records(decoding.MACHINE, source, self._unlimited if limit is None else limit)

    def attempts(self, task_id: str) -> list[AttemptRecord]:
        """The attempts of a task, oldest first."""
        return self._records(
            decoding.ATTEMPT, "attempt_records WHERE task = ? ORDER BY key", self._key("task", task_id)
        )

    def steps(self, flow: int) -> list[StepRecord]:
        """The steps of a flow, in the order in which they were first kept, without dropped ones."""
        found = self._records(decoding.STEP, "step_records WHERE flow = ? ORDER BY key", flow)
        return [step for step in found if not step.dropped]

    def publications(self, flow: int) -> list[StepRecord]:
        """The steps of a flow that published a value, oldest first."""
        only = f"flow = ? AND {self._field('dropped')} IS NULL AND {self._field('name')} LIKE ?"
        return self._records(decoding.STEP, f"step_records WHERE {only} ORDER BY key", flow, f"{PUBLISH}%")

    def page_of_steps(self, flow: int, limit: int, beyond: int | None, *, newest_first: bool) -> list[StepRecord]:
        """At most `limit` of the steps of a flow, from either end, as in the contract."""
        compared, order = ("<", "DESC") if newest_first else (">", "ASC")
        only, values = f"flow = ? AND {self._field('dropped')} IS NULL", [flow]
        if beyond is not None:
            only += f" AND key {compared} ?"
            values.append(beyond)
        return self._records(decoding.STEP, f"step_records WHERE {only} ORDER BY key {order} LIMIT ?", *values, limit)

    def messages(
        self, job_id: str, *, unread: bool = False, beyond: int = 0, limit: int | None = None
    ) -> list[MessageRecord]:
        """The messages to that job and its tasks, oldest first, as in the contract."""
        source = f"message_records WHERE job = ? AND key > ? {'AND unread' if unread else ''} ORDER BY key"
        values = [self._key("job", job_id), beyond]
        if limit is not None:
            source += " LIMIT ?"
            values.append(limit)
        return self._records(decoding.MESSAGE, source, *values)

    def flows(self) -> list[int]:
        """The keys of the tasks in which flows began, in order."""
        return [flow for (flow,) in self._rows("SELECT DISTINCT flow FROM step_records ORDER BY flow")]

    def request(self, request_id: str) -> entities.RequestRecord | None:
        """The stored result of the command with that key."""
        return self._one(decoding.REQUEST, "request_records WHERE request_id = ?", self._plain(request_id))

    def outbox(self) -> list[entities.OutboxRow]:
        """Effects that are still to run, oldest first."""
        return self._records(decoding.OUTBOX, "outbox_rows ORDER BY key")

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices that are kept, latest first, as in the contract."""
        only, values = ["at >= ?"], list[object]([since])
        if about is not None:
            only.append(f"? IN ({self._field('entity_id')}, {self._field('job_id')})")
            values.append(about)
        source = f"notice_records WHERE {' AND '.join(only)} ORDER BY at DESC, key DESC LIMIT ? OFFSET ?"
        return self._records(decoding.NOTICE, source, *values, limit, first)

    def transitions(
        self,
        *,
        entity_id: str | None = None,
        job_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[Transitioned]:
        """Transitions in order, numbered above `after`; of one entity, or of a job and all that is in it."""
        owners = None if job_id is None else {job_id}
        if job_id is None and entity_id is not None:
            owners = self._owners(entity_id)
        rows = (
            row
            for row in decoding.ordered(self.chunks(after, owners=owners))
            if row.seq > after and (entity_id is None or row.entity_id == entity_id)
        )
        return islice(rows, limit)

    # -- rows

    def _records(self, decoder: Decoder[T], source: str, *values: object) -> list[T]:
        try:
            return [decoder.decode(row[0]) for row in self._rows(f"SELECT {self._record} FROM {source}", *values)]
        except UNREADABLE as error:
            raise self._damage(f"a record cannot be read: {error}") from error

    def _one(self, decoder: Decoder[T], source: str, *values: object) -> T | None:
        found = self._records(decoder, source, *values)
        return found[0] if found else None

    def _transitions(self, text: bytes | str) -> list[Transitioned]:
        try:
            return decoding.transitions_of(text)
        except UNREADABLE as error:
            raise self._damage(str(error)) from error

    def _run(self, workstream: int) -> entities.WorkstreamRecord | None:
        return self._one(decoding.WORKSTREAM, "workstream_records WHERE key = ?", workstream)

    def _tasks_of(self, run: entities.WorkstreamRecord, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        keys = run.first_task + first, run.first_task + run.task_count
        source = "task_records WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return self._records(decoding.TASK, source, *keys, self._unlimited if limit is None else limit)

    def _key(self, kind: str, entity_id: str) -> int | None:
        rows = self._rows("SELECT key FROM names WHERE name = ?", self._plain(f"{kind}:{entity_id}"))
        return rows[0][0] if rows else None

    def _owners(self, entity_id: str) -> set[str]:
        """The owners whose chunks hold the transitions of an entity (`contract.belongs_to`)."""
        owners = {entity_id, f"machine:{entity_id}", f"breaker:{entity_id}"}
        for table in ("task", "workstream", "approval"):
            sql = f"SELECT {self._field('job_id')} FROM {table}_records WHERE key = ?"
            owners.update(row[0] for row in self._rows(sql, self._key(table, entity_id)))
        return owners

    def _where(self, wanted: JobFilter) -> tuple[list[str], list[object]]:
        only: list[str] = []
        values: list[object] = []
        if wanted.states:
            marks = _marks(wanted.states)
            only.append(f"(state IN ({marks}) OR {self._field('published', 'state')} IN ({marks}))")
            values += [*wanted.states, *wanted.states]
        if wanted.name:
            only.append(self._name_has)
            values.append(wanted.name)
        for mark, limit in (("<", wanted.older_than), (">", wanted.newer_than)):
            if limit is not None:
                only.append(f"{self._number('created_at')} {mark} ?")
                values.append(limit)
        return only, values


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
