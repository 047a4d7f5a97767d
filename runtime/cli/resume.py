"""`callboard resume`: continue every unfinished job of a journal, or one job.

One job may be paused; or failed or cancelled: then it continues in its next run. If a runtime has the journal open,
that one continues the job. If none has, the command is put into the inbox, and all unfinished jobs run here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..journal.location import Store, in_words, target_of
from .acting import (
    TIMEOUT,
    By,
    JournalCommand,
    Reason,
    RequestId,
    SentCommand,
    Timeout,
    acting,
    address,
    find,
    meant_by,
)
from .boards import Board, Place
from .command_errors import FAILED, CommandError
from .control import job_or_task
from .hints import hint
from .nodes import node_settings
from .onray import Address
from .options import DRAIN, JOURNAL, AsJson, DrainDeadline, JsonLog, Lease, Node, Plain
from .spans import span
from .terminal import echo

if TYPE_CHECKING:
    from ..handles.jobs import JobHandle
    from ..runtime import Runtime


MaybeTarget = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="A job's id; only one that Callboard made may be short.", show_default=False),
]


def resume(
    target: MaybeTarget = None,
    *,
    journal: Place = JOURNAL,
    jsonl: JsonLog = None,
    as_json: AsJson = False,
    plain: Plain = False,
    reason: Reason = "resumed by the user",
    by: By = None,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    node: Node = None,
    lease: Lease = None,
    address: Address = None,
    drain_deadline: DrainDeadline = DRAIN,
) -> None:
    """Continue a job that is paused, failed or was cancelled; without JOB, all unfinished jobs of a journal."""
    if target is not None:
        act = acting(journal, "resume", request_id=request_id, timeout=timeout, as_json=as_json)
        if not _said(act, target, reason, by):
            return
    if isinstance(journal, Board):
        raise CommandError("The runtime behind a board runs its unfinished jobs by itself. Name the JOB to resume.")
    settings = {**node_settings(journal, node, lease), "drain_deadline": span(drain_deadline)}
    _see_all(journal, jsonl, address, settings, as_json=as_json, plain=plain)


def _said(act: SentCommand, target: str, reason: str, by: str | None) -> bool:
    """Tell a runtime, or the next one, to continue a job. Returns whether this program is the next one."""
    from .reading import owner_of, reading  # noqa: PLC0415
    from .words import ENDED  # noqa: PLC0415

    arguments = {"reason": reason, "by": act.who(by)}
    act.check(f"job {target}", arguments)  # also where no command is left: for a job that is neither paused nor ended
    if not isinstance(act, JournalCommand) or owner_of(act.place) is not None:
        with reading(act.place) as reader:
            kind, name, shown = job_or_task(reader, "resume", target)
        act.on(kind, name, shown, arguments, detail=reason)
        return False
    with reading(act.journal) as reader:
        named = find(reader, target)
        paused = any(one.state == "paused" for one in meant_by(reader, named.kind, address(named)))
        paused |= any(row.verb == "pause" and row.target == named.id for row in reader.inbox())  # or will be
    if named.state == "completed":
        raise CommandError(
            f"{named.kind} {named.id} has ended already: completed. {hint('retry JOB/TASK')} runs a task again.",
            FAILED,
        )
    if paused or named.state in ENDED:
        act.leave(named.kind, address(named), f"{named.kind} {named.id}", arguments)
    return True


def _see_all(
    journal: Store, jsonl: Path | None, ray: str | None, settings: dict[str, Any], *, as_json: bool, plain: bool
) -> None:
    from ..runtime import Runtime  # noqa: PLC0415 - heavy
    from .functions import refuse_unless_found  # noqa: PLC0415
    from .owed import lines, owed  # noqa: PLC0415
    from .reading import LIVING, reading, reading_if_used  # noqa: PLC0415
    from .roster import last_workers  # noqa: PLC0415
    from .session import Session, see_through, view  # noqa: PLC0415

    with reading(journal) if _is_missing(journal) else reading_if_used(journal) as reader:
        owing = [] if reader is None else owed(reader)
        unfinished = reader is not None and bool(reader.jobs(states=LIVING, limit=1) or reader.inbox() or owing)
        workers = last_workers(reader.workers()) if reader is not None else None
        if reader is not None and unfinished:
            refuse_unless_found(reader, journal)
        elif reader is not None:
            reader.check_pages()  # damaged pages may hold unfinished jobs
    if not unfinished:
        if not as_json:
            unused = f"{in_words(journal)} is empty: no runtime has written to it yet."
            echo(unused if reader is None else f"Nothing is unfinished in {in_words(journal)}.")
        return

    if not as_json:
        for line in lines(owing):
            echo(line)

    async def begin(runtime: Runtime) -> list[JobHandle]:
        return list(runtime.recovered)

    def opened() -> Runtime:
        return Runtime(target_of(journal), workers=workers, jsonl=jsonl, ray=ray, **settings)

    session = Session(view(as_json=as_json, plain=plain), settings["drain_deadline"])
    raise typer.Exit(see_through(opened, begin, session))


def _is_missing(journal: Store) -> bool:
    return isinstance(journal, Path) and not journal.is_file()
