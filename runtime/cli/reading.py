"""Questions of the command line to a journal (also an open one) or a board."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from shlex import quote
from typing import TYPE_CHECKING, TypeAlias, overload

from ...actors.records.entities import ApprovalRecord, JobRecord, WorkstreamRecord
from ...actors.records.task import TaskRecord
from ...machines import JOB
from ...machines.keywords import did_you_mean, number_of
from ..calling import Progress
from ..cluster.live_progress import IN_AN_ATTEMPT
from ..errors import JournalError, JournalMissing
from ..journal import location as places
from ..journal.contract import JournalQueries, Stored
from ..journal.location import Database, Store, reader_of
from ..observation.progress_file import read_progress
from .boards import Board, Place
from .command_errors import CommandError
from .hints import hint
from .machines import A_JOB, A_MACHINE

if TYPE_CHECKING:
    from ..journal.postgres.reader import PostgresReader

LIVING = tuple(str(name) for name, state in JOB.states.items() if not state.terminal)

Nodes: TypeAlias = dict[int, str] | None
"""The names of the nodes that own jobs, by the jobs' keys; None for a journal of one runtime."""


@overload
def reading(place: Store) -> AbstractContextManager[Stored]: ...
@overload
def reading(place: Place) -> AbstractContextManager[JournalQueries]: ...
def reading(place: Place) -> AbstractContextManager[JournalQueries]:
    """Open a journal read-only, or a board. Raises JournalError, CommandError."""
    return closing(place.reader() if isinstance(place, Board) else reader_of(place))


def owner_of(place: Place) -> str | None:
    """Name the program that has it open; None if there is none."""
    return place.owner if isinstance(place, Board) else places.owner_of(place)


def nodes_by_job(place: Place, reader: JournalQueries, jobs: Sequence[JobRecord]) -> Nodes:
    """Find the nodes that own jobs."""
    if not isinstance(place, Database):
        return None
    from ..journal.postgres.reader import PostgresReader  # noqa: PLC0415 - an extra

    assert isinstance(reader, PostgresReader)  # noqa: S101 - `reader_of` makes one
    return reader.owners([job.key for job in jobs])


def progress_at(place: Place, reader: JournalQueries) -> Callable[[TaskRecord], Progress | None]:
    """Return a function that returns the progress that a task's running body has reported; None if nothing is known.

    A runtime that runs a journal's file writes the progress beside the file; nodes write it into their database.
    """
    if isinstance(place, Board):
        from .overhttp import RemoteReader  # noqa: PLC0415 - an extra

        assert isinstance(reader, RemoteReader)  # noqa: S101 - `reading` makes one
        return reader.progress
    if isinstance(place, Database):
        from ..journal.postgres.reader import PostgresReader  # noqa: PLC0415 - an extra

        assert isinstance(reader, PostgresReader)  # noqa: S101 - `reader_of` makes one
        return ProgressInDatabase(reader).told
    kept = read_progress(place)
    if kept and owner_of(place) is None:
        kept = {}  # the file was left by a runtime that was killed

    def told(task: TaskRecord) -> Progress | None:
        token, progress = kept.get(task.id, (0, None))
        return progress if token and token == task.token and task.state in IN_AN_ATTEMPT else None

    return told


class ProgressInDatabase:
    """The progress of running bodies, read on first use."""

    def __init__(self, reader: PostgresReader) -> None:
        self._reader = reader
        self._read: dict[int, tuple[int, Progress]] | None = None

    def told(self, task: TaskRecord) -> Progress | None:
        """The progress that a task's running body has reported; None if nothing is known."""
        if not task.token or task.state not in IN_AN_ATTEMPT:
            return None
        if self._read is None:
            self._read = {}
            with suppress(JournalError):  # for example from a standby: then nothing is known
                self._read = self._reader.all_progress()
        token, progress = self._read.get(task.key, (0, None))
        return progress if token == task.token else None


def node_of(job: JobRecord, nodes: Nodes) -> str:
    """Name the node that runs a job; "" if the job has ended, or the journal has one runtime."""
    if nodes is None or job.finished_at is not None:
        return ""
    return nodes.get(job.key, "no node yet")  # the job's node has ended, and no other node has taken the job over yet


@contextmanager
def reading_if_used(journal: Store) -> Generator[Stored | None]:
    """Open a journal that may be empty; None if no runtime has written to it yet."""
    try:
        reader = reader_of(journal)
    except JournalMissing:
        yield None
        return
    try:
        yield reader
    finally:
        reader.close()


_MADE = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")  # a ULID, which Callboard made


def find_job(reader: JournalQueries, text: str, *, to_act: bool = False) -> JobRecord:
    """Find the job whose id is `text`, or begins with it, also after "job:".

    Raises CommandError if there is not exactly one.

    to_act: whether a command is for the job. Then only an id that Callboard made may be shortened: `cancel order-1`
    must never reach `order-10`, even if `order-1` does not exist any more.
    """
    job = reader.job(text)
    if job is not None:
        return job
    if text.startswith(A_JOB):
        return find_job(reader, text.removeprefix(A_JOB), to_act=to_act)
    for archived in reader.archived(text):
        raise CommandError(f"Job {archived.id} ({archived.state}) was archived in {archived.file}.")
    near = [job for job in reader.jobs(limit=10_000) if text and job.id.startswith(text)]
    meant = [job for job in near if _MADE.fullmatch(job.id)] if to_act else near
    if len(meant) == 1:
        return meant[0]
    if near:
        more = "more of the" if meant else "the whole"
        raise CommandError(
            f"{number_of(len(near), 'job begins', 'jobs begin')} with {text!r:.80}: "
            f"{', '.join(job.id for job in near[:5])}. Give {more} id."
        )
    name = text.removeprefix(A_MACHINE) if reader.machine(text) is None else text
    if reader.machine(name) is not None:
        raise CommandError(f"{name!r:.80} is a machine, not a job: use {hint(f'fire {quote(name)} EVENT')}.")
    if text.startswith(A_MACHINE):
        raise CommandError(f"There is no machine {name!r:.80} in this journal. {hint('status')} lists them.")
    _refuse_task(reader, text)
    nearest = did_you_mean(text, [job.id for job in reader.jobs(limit=10_000)])
    advice = f"; {nearest}" if nearest else f". {hint('status')} lists them."
    raise CommandError(f"There is no job {text!r:.80} in this journal{advice}")


def task_named(reader: JournalQueries, target: str) -> TaskRecord | None:
    """Find the task that "JOB/TASK" or "JOB@RUN/TASK" names; None if it names something else."""
    job, run, name = _job_and_task(reader, target)
    if job is None or run not in {"", str(job.run)}:
        return None
    return next((task for task in tasks_of(reader, job) if task.name == name), None)


def _job_and_task(reader: JournalQueries, target: str) -> tuple[JobRecord | None, str, str]:
    """Read "JOB/TASK" or "JOB@RUN/TASK": the job, if there is one, the run ("" if none is named), and the task."""
    head, slash, name = target.rpartition("/")
    if not slash or reader.job(target) is not None:  # a child job's id has slashes, too
        return None, "", ""
    job = reader.job(head)
    if job is not None:
        return job, "", name
    job_id, _, run = head.rpartition("@")
    return (reader.job(job_id) if run.isdecimal() else None), run, name


def _refuse_task(reader: JournalQueries, text: str) -> None:
    """Raise CommandError if a text that names no job names a task, or would name one if its job had it."""
    job, run, name = _job_and_task(reader, text)
    if job is None:
        return
    if run not in {"", str(job.run)}:
        raise CommandError(
            f"{text!r:.80} is of run {run:.10}, but job {job.id} is in run {job.run}, whose tasks are shown."
        )
    find_task(reader, job, name)
    raise CommandError(f"{text!r:.80} is a task: name its job, {job.id}.")


def tasks_of(reader: JournalQueries, job: JobRecord) -> list[TaskRecord]:
    """The tasks of a job's present run, in the order of its specification."""
    run = run_of(reader, job)
    return [] if run is None else reader.tasks(run.key)


def run_of(reader: JournalQueries, job: JobRecord) -> WorkstreamRecord | None:
    """Return a job's present run; None before it has one."""
    return job.last_of(reader.workstreams(job.id))


def find_task(reader: JournalQueries, job: JobRecord, name: str) -> TaskRecord:
    """Find the task of that name. Raises CommandError if there is none."""
    tasks = tasks_of(reader, job)
    for task in tasks:
        if task.name == name:
            return task
    names = [task.name for task in tasks]
    advice = did_you_mean(name, names) or f"it has: {', '.join(names[:20])}"
    raise CommandError(f"Job {job.id} has no task {name!r:.80}; {advice}")


def approvals_of(reader: JournalQueries, job: JobRecord) -> list[ApprovalRecord]:
    """The approvals that bodies of a job's present run have asked for."""
    run = run_of(reader, job)
    return [] if run is None else reader.approvals(run.key)
