"""Questions to a journal file: from any process, while a runtime writes it or when none does.

Rules:
- Read-only: the file is never changed, and never created.
- No question holds a transaction longer than a page of rows, so that the writer's log can be folded.
- Rows are decoded from the JSON that was stored; they come back exactly.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from ....actors.messages.notices import NoticeRecord
from ....actors.records.entities import JobRecord, WorkstreamRecord
from ....actors.records.loaded import Loaded
from ....actors.records.message import MessageRecord
from ....actors.records.step import StepRecord
from ....actors.records.transition import Transitioned
from ...errors import JournalCorrupt, JournalError, JournalMissing
from .. import decoding
from ..contract import ArchivedJob, InboxRow
from ..decoding import LONGEST_COMMAND, UNREADABLE
from ..location import file_of, in_words
from ..stored_reader import PAGE, StoredReader
from .opening import (
    SMALLEST,
    check_pages,
    connect_reader,
    damage,
    no_file,
    refuse_name,
    refuse_second_name,
    refusing,
    settled_version_of,
)

_LAST_INCARNATIONS = "(SELECT name, max(run) FROM worker_records GROUP BY name)"
_EVENT = "coalesce(CASE WHEN json_valid(command) THEN json_extract(command, '$.kind') = 'machine' END, false)"
_OF_LIVING = "job IN (SELECT key FROM job_records WHERE living) ORDER BY key"
_LIVING_WORKSTREAMS = f"workstream_records WHERE {_OF_LIVING}"


class SqliteReader(StoredReader):
    """The journal at `path`, read-only. Raises JournalMissing, JournalCorrupt, JournalTooNew, JournalUnwritable."""

    _record = "CAST(record AS BLOB)"  # bytes, as the decoder needs them
    _unlimited = -1
    _name_has = "instr(lower(json_extract(record, '$.name')), ?)"

    def __init__(self, path: str | Path) -> None:
        self._path = file_of(path)
        self._is_closed = False
        self._is_aside = False  # the file was replaced or repaired: it must be opened anew
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
            if settled_version_of(self._connection, self._path) == 0:
                raise JournalMissing(f"{in_words(self._path)} is empty: no runtime has used it as its journal yet.")
            undo.pop_all()

    # -- questions

    def spec(self, workstream: int) -> bytes | None:
        """The encoded specification of the workstream with that key."""
        rows = self._rows("SELECT CAST(spec AS BLOB) FROM specs WHERE workstream = ?", workstream)
        return rows[0][0] if rows else None

    def states(self, workstream: int) -> list[tuple[str, str]]:
        """State (as shown to people) and phase of the tasks of the workstream with that key, in order."""
        run = self._run(workstream)
        if run is None:
            return []
        sql = (
            "SELECT coalesce(json_extract(record, '$.published.state'), json_extract(record, '$.state')),"
            " json_extract(record, '$.state') FROM task_records WHERE key >= ? AND key < ? ORDER BY key"
        )
        return self._rows(sql, run.first_task, run.first_task + run.task_count)

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that are not answered yet, oldest first, as in the contract.

        A command that cannot be read, or is too long, is skipped: it is not for this version.
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
                    rows.append(msgspec.structs.replace(decoding.INBOX.decode(text), row=number))
            after = found[-1][0]
            left = 0 if limit is None else limit - len(rows)
        return rows

    def sent(self, request_id: str) -> list[tuple[InboxRow, bytes | None]]:
        """The rows put into the inbox under that key and still there, with answers as JSON, oldest first."""
        found: list[tuple[InboxRow, bytes | None]] = []
        for number, text, answer in self._rows(
            "SELECT key, CAST(command AS BLOB), CAST(answer AS BLOB) FROM inbox_rows WHERE length(command) <= ?"
            " ORDER BY key",
            LONGEST_COMMAND,
        ):
            with contextlib.suppress(*UNREADABLE):
                row = msgspec.structs.replace(decoding.INBOX.decode(text), row=number)
                if row.request_id == request_id:
                    found.append((row, answer))
        return found

    def answer(self, row: int) -> bytes | None:
        """The answer to a row of the inbox, as JSON; None if there is none yet."""
        found = self._rows("SELECT CAST(answer AS BLOB) FROM inbox_rows WHERE key = ?", row)
        return found[0][0] if found else None

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:
        """The jobs that were moved out of the journal; only the job with that id, if given."""
        only, values = ("", ()) if job_id is None else ("WHERE id = ?", (job_id,))
        rows = self._rows(f"SELECT id, state, archived_at, file FROM archived_jobs {only}", *values)
        return [ArchivedJob(*row) for row in rows]

    def archived_numbers(self) -> list[tuple[int, int]]:
        """The numbers of the transitions that were moved out of the journal, as ranges from first to last."""
        return self._rows("SELECT first, last FROM archived_numbers ORDER BY first")

    def log(self) -> Path | None:
        """The log of transitions that was kept of this journal, the last one if there were several."""
        kept = self._rows("SELECT log FROM meta")[0][0]
        return None if kept is None else self._path.absolute().parent / os.fsdecode(kept)

    def last_seq(self, job_id: str) -> int:
        """The number of the last transition of a job and all that is in it, 0 if it has none."""
        sql = "SELECT CAST(transitions AS BLOB) FROM transition_chunks WHERE owner = ? ORDER BY seq DESC LIMIT 1"
        rows = self._rows(sql, job_id)
        return self._transitions(rows[0][0])[-1].seq if rows else 0

    def shared_chunks(self, before: float, last: int, most: int) -> list[tuple[int, list[Transitioned]]]:
        """The oldest chunks of the history of workers and breakers, up to the first that ends at `before` or later.

        Each with its key. (No job's id holds a "#" or ":".) None goes beyond the transition numbered `last`.
        """
        sql = (
            "SELECT seq, CAST(transitions AS BLOB) FROM transition_chunks"
            " WHERE (owner LIKE '%#%' OR owner LIKE 'breaker:%') AND owner NOT LIKE 'machine:%'"
            " AND seq <= ? ORDER BY seq LIMIT ?"
        )
        chunks = ((key, self._transitions(text)) for key, text in self._rows(sql, last, most))
        return list(takewhile(lambda one: one[1][-1].at < before and one[1][-1].seq <= last, chunks))

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices that are kept, latest first, as in the contract. An older file has none."""
        if not self._has("notice_records"):
            return []
        return super().notices(about=about, since=since, first=first, limit=limit)

    def steps(self, flow: int) -> list[StepRecord]:
        """The steps of a flow, in the order in which they were first kept, without dropped ones. An older file has
        none.
        """
        return super().steps(flow) if self._has("step_records") else []

    def publications(self, flow: int) -> list[StepRecord]:
        """The steps of a flow that published a value, oldest first. An older file has none."""
        return super().publications(flow) if self._has("step_records") else []

    def page_of_steps(self, flow: int, limit: int, beyond: int | None, *, newest_first: bool) -> list[StepRecord]:
        """At most `limit` of the steps of a flow, from either end, as in the contract. An older file has none."""
        if not self._has("step_records"):
            return []
        return super().page_of_steps(flow, limit, beyond, newest_first=newest_first)

    def messages(
        self, job_id: str, *, unread: bool = False, beyond: int = 0, limit: int | None = None
    ) -> list[MessageRecord]:
        """The messages to that job and its tasks, as in the contract. An older file has none."""
        if not self._has("message_records"):
            return []
        return super().messages(job_id, unread=unread, beyond=beyond, limit=limit)

    def flows(self) -> list[int]:
        """The keys of the tasks in which flows began, in order. An older file has none."""
        return super().flows() if self._has("step_records") else []

    def all_steps(self, run: WorkstreamRecord) -> list[StepRecord]:
        """The steps of all flows that began in tasks of a run, also those that do not count any more."""
        if not self._has("step_records"):
            return []
        source = "step_records WHERE flow >= ? AND flow < ? ORDER BY flow, key"
        return self._records(decoding.STEP, source, run.first_task, run.first_task + run.task_count)

    def to_archive(self, limit: int = -1) -> list[JobRecord]:
        """Ended jobs that are to be moved out, oldest first."""
        only = "WHERE NOT living AND json_extract(record, '$.archive')"
        return self._records(decoding.JOB, f"job_records {only} ORDER BY key LIMIT ?", limit)

    def check_pages(self) -> None:
        """Check every page, also those that no question reads. Raises JournalCorrupt."""
        with self._one_at_a_time, refusing(self._path):
            check_pages(self._connection, self._path)

    @contextlib.contextmanager
    def aside(self) -> Generator[None]:
        """Close the file during the block: no question is answered meanwhile. The next question opens it anew."""
        with self._one_at_a_time:
            self._connection.close()
            self._is_aside = True
            yield

    def close(self) -> None:
        """Close the file: later questions raise JournalError."""
        with self._one_at_a_time:
            self._is_closed = True
            self._connection.close()

    # -- recovery

    def load(self) -> Loaded:
        """Load the living entities."""
        loaded = Loaded(
            jobs=self._records(decoding.JOB, "job_records WHERE living ORDER BY key"),
            workers=self._records(decoding.WORKER, "worker_records WHERE living ORDER BY key"),
            breakers=self.breakers(),
            attempts=self._records(decoding.ATTEMPT, "attempt_records WHERE living ORDER BY key"),
            outbox=self.outbox(),
        )
        last = f"worker_records WHERE (name, run) IN {_LAST_INCARNATIONS}"
        for worker in self._records(decoding.WORKER, last):
            loaded.incarnations[worker.name] = worker.run
            if worker.pause_reason is not None:
                loaded.paused[worker.name] = worker.pause_reason
        runs = self._records(decoding.WORKSTREAM, _LIVING_WORKSTREAMS)
        loaded.workstreams = list({run.job: run for run in runs}.values())
        for run in loaded.workstreams:
            loaded.tasks += self._tasks_of(run)
            loaded.approvals += self.approvals(run.key)
        loaded.messages = self._records(decoding.MESSAGE, f"message_records WHERE unread AND {_OF_LIVING}")
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

    def _has(self, table: str) -> bool:
        """Whether the file has that table, which files of older versions lack."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", table))

    def _rows(self, sql: str, *values: object) -> list[Any]:  # Any: rows are tuples of what SQLite holds
        with self._one_at_a_time, refusing(self._path):
            if self._is_closed:
                raise JournalError(f"{in_words(self._path)} is not open any more.")
            if self._is_aside:
                self._connection = connect_reader(self._path)
                self._is_aside = False
            return self._connection.execute(sql, values).fetchall()

    def chunks(self, after: int, *, owners: set[str] | None = None) -> Iterator[tuple[int, list[Transitioned]]]:
        """Chunks of transitions by their first numbers; see `StoredReader`."""
        rows = self._rows("SELECT base FROM transition_chunks WHERE seq <= ? ORDER BY seq DESC LIMIT 1", after + 1)
        first = rows[0][0] if rows else 0
        named = list(owners or ())
        only = f"owner IN ({', '.join('?' * len(named))}) AND" if named else ""
        sql = (
            f"SELECT seq, CAST(transitions AS BLOB) FROM transition_chunks WHERE {only} seq >= ?"
            f" ORDER BY seq LIMIT {PAGE}"
        )
        while page := self._rows(sql, *named, first):
            for seq, text in page:
                yield seq, self._transitions(text)
            first = page[-1][0] + 1

    def _damage(self, what: str) -> JournalCorrupt:
        return damage(self._path, what)

    def _field(self, *path: str) -> str:
        return f"json_extract(record, '$.{'.'.join(path)}')"

    def _number(self, name: str) -> str:
        return self._field(name)
