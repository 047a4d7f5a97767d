"""Moves ended jobs out of a journal's file, each into a file of JSON lines.

Rules:
- Jobs are first written to the archive, synced, and then deleted in one transaction: a crash in between leaves them in
  both places, and the next run writes them again. A runtime that uses the journal meanwhile is not disturbed: it holds
  nothing of ended jobs, and waits for the transaction as for that of any other client.
- Nothing is lost: the first line holds the records, the specification and the number of transitions. They follow, one a
  line, in the format of the log. `callboard audit` reads it.
- The journal keeps the job's id, so that it is not given again, and the numbers of the moved transitions, as ranges
  that merge: readers do not report them as gaps. Keys of commands stay until they expire.
- Workers and breakers serve all jobs, and live for long: the older part of their history is moved separately.
- A job is moved only when it, its children and its parent have ended, and its hooks and its children's hooks have run.
- A transition is moved only after the journal's log of transitions has it on disk: the log is filled in from the
  journal. This means the log that was last kept, even if later runtimes kept none. A deleted log holds nothing back.
- A runtime moves jobs with `archive` set when it is left. A job that cannot be moved stays until the next time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ...actors.records.entities import JobRecord, WorkstreamRecord
from ...actors.records.message import MessageRecord
from ...actors.records.step import StepRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.user_code import written
from ...machines.audit.auditor import merged
from ..errors import JournalError, JournalUnwritable
from .jsonl import last_written, log_line
from .sqlite.opening import connect, refusing
from .sqlite.reader import SqliteReader

AT_ONCE = 10
"""Jobs deleted in one transaction."""
SHARED_AT_ONCE = 2_000
"""Chunks of the history of workers and breakers in one file."""

_encode_lines = msgspec.json.Encoder(enc_hook=written).encode_lines


class Archive(msgspec.Struct):
    """The first line of an archived job's file."""

    job: JobRecord
    workstreams: list[WorkstreamRecord]
    specs: list[msgspec.Raw]  # of each workstream
    tasks: list[TaskRecord]
    attempts: list[AttemptRecord]
    archived_at: float
    transitions: int  # number of transitions that follow
    steps: list[StepRecord] = []  # of all flows, also those that a later run has dropped
    messages: list[MessageRecord] = []  # received or not


class SharedArchive(msgspec.Struct):
    """The first line of a file with the history of workers and breakers."""

    archived_at: float
    transitions: int  # number of transitions that follow


class UnmovedJobs(msgspec.Struct):
    """Jobs that should have been moved and were not: their ids, and the reason for the first of them."""

    jobs: list[str] = []
    reason: str | None = None

    def add(self, job_id: str, reason: str) -> None:
        """Add a job."""
        self.jobs.append(job_id)
        self.reason = self.reason or reason


class LogCoverage(msgspec.Struct, frozen=True):
    """How much of a journal its log has: transitions up to number `last`; all if no log is kept."""

    last: int = sys.maxsize
    reason: str = ""  # why later transitions stay

    @classmethod
    def of(cls, reader: SqliteReader) -> LogCoverage:
        """Read the log's present state. A log that exists but cannot be read counts as empty."""
        path = reader.log()
        try:
            last = None if path is None else last_written(path)
        except JournalError as error:
            return cls(0, str(error))
        if last is None:
            return cls()
        reason = (
            f"the log {path} has only the transitions up to number {last}. Start a runtime with this log, which adds "
            "the missing ones. If the log is no longer used, move it away"
        )
        return cls(last, reason)

    def has(self, job: JobRecord, reader: SqliteReader) -> bool:
        """Whether the log has all transitions of an ended job."""
        return reader.last_seq(job.id) <= self.last


class _First(msgspec.Struct):
    archive: Archive | SharedArchive


def is_movable(job: JobRecord, reader: SqliteReader, busy: set[str]) -> bool:
    """Whether all of a job has ended. busy: the ids of the entities whose hooks are still to run."""
    if job.finished_at is None or job.id in busy:
        return False
    if job.parent_id is not None and (parent := reader.job(job.parent_id)) is not None and parent.finished_at is None:
        return False  # a further attempt of its parent's task may ask for it
    if any(owner.startswith(f"{job.id}/") for owner in busy):
        return False
    runs = reader.workstreams(job.id)
    return not any(owner.startswith(f"{run.id}/") or owner == run.id for run in runs for owner in busy)


def folder_of(journal: Path) -> Path:
    """The default archive folder of a journal."""
    return journal.with_name(f"{journal.name}.archive")


def file_of(folder: Path, job_id: str) -> Path:
    """The file of an archived job. A child job's file name begins with its parent's id, with "+" for "/"."""
    return folder / f"{job_id.replace('/', '+')}.jsonl"


class _Written(msgspec.Struct):
    """A job that is written to its file, and not deleted from the journal yet."""

    job: JobRecord
    runs: list[WorkstreamRecord]
    tasks: list[TaskRecord]
    steps: list[StepRecord]
    messages: list[MessageRecord]
    rows: list[Transitioned]
    file: Path


def move(
    journal: Path, reader: SqliteReader, jobs: Iterable[JobRecord], folder: Path, now: float
) -> Iterator[tuple[JobRecord, Path]]:
    """Move ended jobs into files of that folder, several at a time. Yields each with its file when it is done.

    A job that runs again meanwhile, or that another process moves, is skipped. Raises JournalError.
    """
    waiting = iter(jobs)
    while some := list(islice(waiting, AT_ONCE)):
        _make(folder)
        written = [_written(reader, job, folder.absolute(), now) for job in some]
        _sync(folder)
        with _taking_out(journal) as connection:
            moved = [one for one in written if _is_as_it_was(connection, one.job)]
            for one in moved:
                _take_out(connection, one)
                _add_numbers(connection, one.rows)
                values = (one.job.id, one.job.state, now, str(one.file))
                connection.execute("INSERT OR REPLACE INTO archived_jobs VALUES (?, ?, ?, ?)", values)
        yield from ((one.job, one.file) for one in moved)


def _written(reader: SqliteReader, job: JobRecord, folder: Path, now: float) -> _Written:
    runs = reader.workstreams(job.id)
    tasks = [task for run in runs for task in reader.tasks(run.key)]
    attempts = [attempt for task in tasks if task.attempt for attempt in reader.attempts(task.id)]
    steps = [step for run in runs for step in reader.all_steps(run)]
    messages = reader.messages(job.id)
    rows = list(reader.transitions(job_id=job.id))
    specs = [msgspec.Raw(reader.spec(run.key) or b"null") for run in runs]
    file = file_of(folder, job.id)
    first = Archive(job, runs, specs, tasks, attempts, now, len(rows), steps, messages)
    _write(file, _First(first), rows)
    return _Written(job, runs, tasks, steps, messages, rows, file)


def _is_as_it_was(connection: sqlite3.Connection, job: JobRecord) -> bool:
    found = connection.execute("SELECT CAST(record AS BLOB) FROM job_records WHERE key = ?", (job.key,)).fetchone()
    return found is not None and msgspec.json.decode(found[0], type=JobRecord) == job


def move_shared(journal: Path, reader: SqliteReader, folder: Path, before: float, now: float) -> Iterator[Path]:
    """Move the history of workers and breakers before a time (UTC epoch seconds) into files of that folder.

    Yields each file when it is done. Raises JournalError.
    """
    last = LogCoverage.of(reader).last
    while chunks := reader.shared_chunks(before, last, SHARED_AT_ONCE):
        rows = sorted((row for _, chunk in chunks for row in chunk), key=lambda row: row.seq)
        _make(folder)
        file = folder.absolute() / f"+shared-{rows[0].seq}-{rows[-1].seq}.jsonl"
        _write(file, _First(SharedArchive(now, len(rows))), rows)
        _sync(folder)
        with _taking_out(journal) as connection:
            keys = [(key,) for key, _ in chunks]
            connection.executemany("DELETE FROM transition_chunks WHERE seq = ?", keys)
            _add_numbers(connection, rows)
        yield file


@contextlib.contextmanager
def _taking_out(journal: Path) -> Generator[sqlite3.Connection]:
    """A transaction that deletes rows. It is rolled back if the block raises."""
    with refusing(journal), contextlib.closing(connect(journal, "rw")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")  # closing without a commit rolls back


def _add_numbers(connection: sqlite3.Connection, rows: Sequence[Transitioned]) -> None:
    """Record the numbers of these transitions as moved out."""
    for first, last in merged((row.seq, row.seq) for row in rows):
        before = "SELECT first, last FROM archived_numbers WHERE first < ? ORDER BY first DESC LIMIT 1"
        left = connection.execute(before, (first,)).fetchone()
        right = connection.execute("SELECT last FROM archived_numbers WHERE first = ?", (last + 1,)).fetchone()
        connection.execute("DELETE FROM archived_numbers WHERE first = ?", (last + 1,))
        begin = left[0] if left is not None and left[1] == first - 1 else first
        connection.execute(
            "INSERT OR REPLACE INTO archived_numbers VALUES (?, ?)", (begin, right[0] if right else last)
        )


def move_all(journal: Path, *, living: Container[str], now: float, may_go_on: Callable[[], bool]) -> UnmovedJobs:
    """Move ended jobs with `archive` set into the default folder, when a runtime is left. Returns those not moved.

    living: the ids of jobs that the runtime still has work for. `may_go_on` is called now and then: whether there is
    time left. Raises no error of a disk or a file.
    """
    left = UnmovedJobs()
    try:
        with contextlib.closing(SqliteReader(journal)) as reader:
            busy = {row.owner for row in reader.outbox()}
            ended = [job for job in reader.to_archive() if job.id not in living and is_movable(job, reader, busy)]
            logged = LogCoverage.of(reader)
            jobs: list[JobRecord] = []
            for job in ended:
                if logged.has(job, reader):
                    jobs.append(job)
                else:
                    left.add(job.id, logged.reason)
            for first in range(0, len(jobs), AT_ONCE):
                some = jobs[first : first + AT_ONCE]
                reasons = _moved(journal, reader, some, now) if may_go_on() else _all(some, "there was no time left")
                for job_id, reason in reasons.items():
                    left.add(job_id, reason)
    except (JournalError, OSError) as error:
        left.reason = left.reason or str(error)
    return left


def _moved(journal: Path, reader: SqliteReader, jobs: list[JobRecord], now: float) -> dict[str, str]:
    """Move jobs into the default folder, one by one if they cannot be moved together. Returns failures with reasons."""
    try:
        moved = {job.id for job, _ in move(journal, reader, jobs, folder_of(journal), now)}
    except JournalError as error:
        if len(jobs) == 1:
            return _all(jobs, str(error))
        return {name: why for job in jobs for name, why in _moved(journal, reader, [job], now).items()}
    return _all([job for job in jobs if job.id not in moved], "it has changed meanwhile")


def _all(jobs: list[JobRecord], reason: str) -> dict[str, str]:
    return {job.id: reason for job in jobs}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise JournalUnwritable(f"Cannot make the folder {folder}: {error.strerror}. Nothing was moved.") from error


def _take_out(connection: sqlite3.Connection, one: _Written) -> None:
    job, runs, tasks = one.job, one.runs, one.tasks
    connection.execute("DELETE FROM transition_chunks WHERE owner = ?", (job.id,))
    connection.execute("DELETE FROM job_records WHERE key = ?", (job.key,))
    if one.messages:  # a file of an older version has no table of them
        connection.execute("DELETE FROM message_records WHERE job = ?", (job.key,))
    for run in runs:
        keys = (run.first_task, run.first_task + run.task_count)
        connection.execute("DELETE FROM task_records WHERE key >= ? AND key < ?", keys)
        gone = connection.execute(
            "SELECT json_extract(record, '$.id') FROM approval_records WHERE workstream = ?", (run.key,)
        )
        connection.executemany("DELETE FROM names WHERE name = ?", [(f"approval:{row[0]}",) for row in gone.fetchall()])
        connection.execute("DELETE FROM approval_records WHERE workstream = ?", (run.key,))
        connection.execute("DELETE FROM attempt_records WHERE task >= ? AND task < ?", keys)
        if one.steps:  # a file of an older version has no table of them
            connection.execute("DELETE FROM step_records WHERE flow >= ? AND flow < ?", keys)
        connection.execute("DELETE FROM specs WHERE workstream = ?", (run.key,))
        connection.execute("DELETE FROM workstream_records WHERE key = ?", (run.key,))
    named = [("job", job.id), *(("workstream", run.id) for run in runs), *(("task", task.id) for task in tasks)]
    connection.executemany("DELETE FROM names WHERE name = ?", [(f"{kind}:{name}",) for kind, name in named])


def _write(file: Path, first: _First, rows: Iterable[Transitioned]) -> None:
    """Write the file completely before it gets its name. The caller still has to sync its folder."""
    lines: list[Any] = [first, *(log_line(row) for row in rows)]
    beside = file.with_name(f".{file.name}.new")
    try:
        with beside.open("wb") as new:
            new.write(_encode_lines(lines))
            new.flush()
            os.fsync(new.fileno())
        beside.replace(file)
    except OSError as error:
        raise JournalUnwritable(f"Cannot write the archive {file}: {error.strerror}. Nothing was taken out.") from error


def _sync(folder: Path) -> None:
    """Sync a folder, so that files written there survive a power failure."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise JournalUnwritable(f"Cannot write into {folder}: {error.strerror}. Nothing was taken out.") from error
