"""`callboard history [JOB [TASK]]`: the transitions that a journal keeps, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .boards import Board, Place
from .options import JOURNAL, AsJson, MaybeJobId, MaybeTask
from .terminal import echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...actors.records.transition import Transitioned
    from ..journal.contract import JournalQueries


Flow = Annotated[
    bool, typer.Option("--flow", help="Print the kept steps of a task as JSON, for callboard.testing.check_replay.")
]


def history(
    job_id: MaybeJobId = None,
    task: MaybeTask = None,
    journal: Place = JOURNAL,
    as_json: AsJson = False,
    flow: Flow = False,
) -> None:
    """Print the transitions of a journal, of one job, of one task, or of one machine."""
    from ..journal.jsonl import log_line  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    if flow:
        _flow(journal, job_id, task)
        return
    with reading(journal) as reader:
        for event in _events(reader, job_id, task):
            if as_json:
                echo_json(log_line(event))
            else:
                echo(_line(event))


def _flow(place: Place, job_id: str | None, task: str | None) -> None:
    """Print the history of a task's flow as one JSON document."""
    from ..flows.history import history_of  # noqa: PLC0415
    from .command_errors import CommandError  # noqa: PLC0415
    from .reading import find_job, find_task, reading, task_named, tasks_of  # noqa: PLC0415

    if isinstance(place, Board):
        raise CommandError(
            "A board does not tell all that a replay needs, such as the digests of long arguments: name the journal by "
            "--journal, on the machine that has it."
        )
    if job_id is None:
        raise CommandError("--flow prints the history of one task: name it, as `callboard history JOB/TASK --flow`.")
    with reading(place) as reader:
        record = None if task is not None else task_named(reader, job_id)
        if record is None and task is None:
            raise CommandError(f"There is no task {job_id!r:.80} in this journal: --flow takes JOB/TASK.")
        job = find_job(reader, job_id if record is None else record.job_id)
        if record is None:
            record = find_task(reader, job, task or "")
        found = history_of(reader, job, tasks_of(reader, job), record)
        if not (found.steps or found.approvals or found.children):
            raise CommandError(
                f"Task {record.id} has taken no step yet, asked for no approval and submitted no child job: there is "
                "nothing to replay."
            )
        echo_json(found)


def _events(reader: JournalQueries, job_id: str | None, task: str | None) -> Iterator[Transitioned]:
    from .machines import named  # noqa: PLC0415
    from .reading import find_job, find_task, task_named  # noqa: PLC0415

    if job_id is None:
        return reader.transitions()
    if task is None and (machine := named(reader, job_id)) is not None:
        return (row for row in reader.transitions(entity_id=machine.name) if row.kind == "machine")
    record = None if task is not None else task_named(reader, job_id)
    if record is None:
        job = find_job(reader, job_id)
        if task is None:
            return reader.transitions(job_id=job.id)
        record = find_task(reader, job, task)
    if record.published is None:
        return reader.transitions(entity_id=record.id)
    return (
        row
        for row in reader.transitions(job_id=record.job_id)
        if row.entity_id == record.id or _tells_of(row, record.id)
    )


def _tells_of(event: Transitioned, entity_id: str) -> bool:
    """Whether a row reports another entity's end that its lifecycle has no row for."""
    return any(one.get("entity_id") == entity_id for one in (event.metadata or {}).get("decided", ()))


def _line(event: Transitioned) -> str:
    from . import words  # noqa: PLC0415

    states = f"{event.from_state or '·'} -> {event.to_state}"
    ours = None if event.kind == "machine" else event.metadata  # a machine's metadata is the application's
    ended_as = (ours or {}).get("ended_as")  # the state for which its lifecycle has no word
    facts = [
        f"ended as {ended_as}" if ended_as else "",
        f"attempt {event.attempt}" if event.attempt else "",
        event.worker_id or "",
        event.reason or "",
        *words.deciders(event),
        words.used(ours or {}),
        words.left_behind(ours or {}),
        "" if event.kind == "machine" else words.until(event),
    ]
    text = words.one_line("; ".join(fact for fact in facts if fact), 300)
    start = f"{event.seq:>6}  {words.moment(event.at)}  {event.kind:<10}  {event.entity_id}  {states}  [{event.event}]"
    return f"{start}  {text}".rstrip()
