"""`callboard archive`: move ended jobs out of a journal, each into a file of JSON lines."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..journal.location import Database, store_of
from .command_errors import CommandError
from .options import DEFAULT, AsJson, Journal
from .terminal import echo, echo_json

if TYPE_CHECKING:
    from ...actors.records.entities import JobRecord

OlderThan = Annotated[str, typer.Option("--older-than", metavar="SPAN", help="Time since their end: 30d, 12h, 90m.")]
Folder = Annotated[
    Path | None, typer.Option("--to", metavar="FOLDER", help="Folder (default: JOURNAL.archive).", show_default=False)
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Only print which jobs would be moved.")]


def archive(
    *,
    older_than: OlderThan = "30d",
    to: Folder = None,
    dry_run: Dry = False,
    journal: Journal = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Move ended jobs out of a journal, each into a file of JSON lines that `callboard audit` reads.

    Transitions of workers and breakers of that time go into files of their own. A runtime may use the journal
    meanwhile. The ids of archived jobs are not used again. Transitions that the log does not have yet stay in the
    journal.
    """
    from ...machines.keywords import number_of  # noqa: PLC0415
    from ..journal.archive import LogCoverage, UnmovedJobs, file_of, folder_of, is_movable, move, move_shared  # noqa: PLC0415
    from ..journal.sqlite.reader import SqliteReader  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415
    from .words import took  # noqa: PLC0415

    now = time.time()
    ended_before = now - span(older_than)
    store = _file(journal)
    folder = to if to is not None else folder_of(store)
    moved, left = 0, UnmovedJobs()
    with closing(SqliteReader(store)) as reader:
        busy = {row.owner for row in reader.outbox()}
        logged = LogCoverage.of(reader)
        jobs: list[JobRecord] = []
        for job in reversed(reader.jobs(states=("completed", "failed", "cancelled"), limit=2**31)):
            if job.finished_at is not None and job.finished_at <= ended_before and is_movable(job, reader, busy):
                if logged.has(job, reader):
                    jobs.append(job)
                else:
                    left.add(job.id, logged.reason)
        would = ((job, file_of(folder, job.id)) for job in jobs)
        for job, file in would if dry_run else move(store, reader, jobs, folder, now):
            moved += 1
            if as_json:
                report = {"id": job.id, "state": job.state, "file": str(file), "moved": not dry_run}
                echo_json(report)
            else:
                word = "would go" if dry_run else "moved"
                echo(f"job {job.id} {job.state} {took(now - (job.finished_at or now))} ago: {word} to {file}")
        for file in () if dry_run else move_shared(store, reader, folder, ended_before, now):
            if as_json:
                echo_json({"file": str(file), "moved": True})
            else:
                echo(f"transitions of workers and breakers: moved to {file}")
    if left.jobs:
        echo(f"{number_of(len(left.jobs), 'job stays', 'jobs stay')}: {left.reason}", err=True)
    if not as_json:
        echo(f"{number_of(moved, 'job')} {'to move' if dry_run else 'moved'}")


def _file(journal: str) -> Path:
    store = store_of(journal)
    if isinstance(store, Database):
        raise CommandError("Only jobs of a journal's file can be archived. A database keeps its jobs.")
    return store
