"""Moves ended jobs out of a journal's file, each into a file of JSON lines.

Rules:
- A job is written first, to the disk, and then taken out in one transaction: a crash in between leaves it in both, and
  the next time it is written again. A runtime that uses the journal meanwhile is not disturbed: it holds nothing of
  jobs that have ended, and waits for the transaction as for any other client's.
- Nothing is lost: the first line holds the records, the specification and how many transitions follow, one a line, as
  the log tells them. `callboard audit` reads it.
- The journal keeps the job's id, so that it is not given again, and the numbers of its transitions, which are then no
  gap. Keys of commands stay for their time.
- A job is moved only when all that belongs to it has ended, its hooks and those of its children too, and its parent.
- What says `archive` is moved by its runtime when that is left. It stays where it cannot be moved, until the next time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ...actors.records import JobRecord, WorkstreamRecord
from ...actors.task_record import AttemptRecord, TaskRecord
from ...actors.transitions import Transitioned
from ...machines.auditor import merged
from ..jsonl import log_line
from .contract import JournalError, JournalUnwritable
from .opening import connect, refusing
from .reader import SqliteReader

_encode_lines = msgspec.json.Encoder(enc_hook=ascii).encode_lines


class Archive(msgspec.Struct):
    """The first line of an archived job's file."""

    job: JobRecord
    workstreams: list[WorkstreamRecord]
    specs: list[msgspec.Raw]  # of each workstream
    tasks: list[TaskRecord]
    attempts: list[AttemptRecord]
    archived_at: float
    transitions: int  # that follow


class Left(msgspec.Struct):
    """What should have been moved and was not: the ids of the jobs, and why, of the first of them."""

    jobs: list[str] = []
    reason: str | None = None

    def add(self, job_id: str, reason: str) -> None:
        """One more."""
        self.jobs.append(job_id)
        self.reason = self.reason or reason


class _First(msgspec.Struct):
    archive: Archive


def is_movable(job: JobRecord, reader: SqliteReader, busy: set[str]) -> bool:
    """Whether all of a job has ended. `busy`: the ids of the entities whose hooks are still to run."""
    if job.finished_at is None or job.id in busy:
        return False
    if job.parent_id is not None and (parent := reader.job(job.parent_id)) is not None and parent.finished_at is None:
        return False  # a further attempt of the task that submitted it asks for it
    if any(owner.startswith(f"{job.id}/") for owner in busy):
        return False
    runs = reader.workstreams(job.id)
    return not any(owner.startswith(f"{run.id}/") or owner == run.id for run in runs for owner in busy)


def folder_of(journal: Path) -> Path:
    """The folder that jobs are moved into where nothing else is said."""
    return journal.with_name(f"{journal.name}.archive")


def file_of(folder: Path, job_id: str) -> Path:
    """The file that a job is moved into. That of a child job has its parent's id in front, with "+" for "/"."""
    return folder / f"{job_id.replace('/', '+')}.jsonl"


def move(journal: Path, reader: SqliteReader, job: JobRecord, folder: Path, now: float) -> Path:
    """Move an ended job into a file of that folder. Returns the file. Raises JournalError."""
    runs = reader.workstreams(job.id)
    tasks = [task for run in runs for task in reader.tasks(run.key)]
    attempts = [attempt for task in tasks if task.attempt for attempt in reader.attempts(task.id)]
    rows = list(reader.transitions(job_id=job.id))
    specs = [msgspec.Raw(reader.spec(run.key) or b"null") for run in runs]
    file = file_of(folder.absolute(), job.id)
    first = _First(Archive(job, runs, specs, tasks, attempts, now, len(rows)))
    _write(file, first, rows)
    numbers = merged((row.seq, row.seq) for row in rows)
    with refusing(journal), contextlib.closing(connect(journal, "rw")) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        _take_out(connection, job, runs, tasks)
        values = (job.id, job.state, now, str(file), msgspec.json.encode(numbers).decode())
        connection.execute("INSERT OR REPLACE INTO archived_jobs VALUES (?, ?, ?, ?, ?)", values)
        connection.execute("COMMIT")  # closed without it, all is undone
    return file


def move_all(journal: Path, *, living: Container[str], now: float, may_go_on: Callable[[], bool]) -> Left:
    """Move what has ended and says `archive` into the usual folder; for a runtime that is left. Gives what is left.

    living: the ids of jobs that it still has something to do with. Asked before each job, `may_go_on` says whether
    there is time. Raises nothing that a disk or a file can be the reason of.
    """
    left = Left()
    try:
        with contextlib.closing(SqliteReader(journal)) as reader:
            busy = {row.owner for row in reader.outbox()}
            for job in reader.to_archive():
                if job.id in living or not is_movable(job, reader, busy):
                    continue
                if not may_go_on():
                    left.add(job.id, "there was no time left")
                    continue
                try:
                    make_folder(folder_of(journal))
                    move(journal, reader, job, folder_of(journal), now)
                except JournalError as error:
                    left.add(job.id, str(error))
    except (JournalError, OSError) as error:
        left.reason = left.reason or str(error)
    return left


def make_folder(folder: Path) -> None:
    """Make the folder that jobs are moved into. Raises JournalUnwritable."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise JournalUnwritable(f"Cannot make the folder {folder}: {error.strerror}. Nothing was moved.") from error


def _take_out(
    connection: sqlite3.Connection, job: JobRecord, runs: list[WorkstreamRecord], tasks: list[TaskRecord]
) -> None:
    connection.execute("DELETE FROM transition_chunks WHERE owner = ?", (job.id,))
    connection.execute("DELETE FROM job_records WHERE key = ?", (job.key,))
    for run in runs:
        keys = (run.first_task, run.first_task + run.task_count)
        connection.execute("DELETE FROM task_records WHERE key >= ? AND key < ?", keys)
        gone = connection.execute(
            "SELECT json_extract(record, '$.id') FROM approval_records WHERE workstream = ?", (run.key,)
        )
        connection.executemany("DELETE FROM names WHERE name = ?", [(f"approval:{row[0]}",) for row in gone.fetchall()])
        connection.execute("DELETE FROM approval_records WHERE workstream = ?", (run.key,))
        connection.execute("DELETE FROM attempt_records WHERE task >= ? AND task < ?", keys)
        connection.execute("DELETE FROM specs WHERE workstream = ?", (run.key,))
        connection.execute("DELETE FROM workstream_records WHERE key = ?", (run.key,))
    named = [("job", job.id), *(("workstream", run.id) for run in runs), *(("task", task.id) for task in tasks)]
    connection.executemany("DELETE FROM names WHERE name = ?", [(f"{kind}:{name}",) for kind, name in named])


def _write(file: Path, first: _First, rows: Iterable[Transitioned]) -> None:
    """Write the file as a whole, so that what has its name is complete."""
    lines: list[Any] = [first, *(log_line(row) for row in rows)]
    beside = file.with_name(f".{file.name}.new")
    try:
        with beside.open("wb") as new:
            new.write(_encode_lines(lines))
            new.flush()
            os.fsync(new.fileno())
        beside.replace(file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise JournalUnwritable(f"Cannot write the archive {file}: {error.strerror}. Nothing was taken out.") from error
