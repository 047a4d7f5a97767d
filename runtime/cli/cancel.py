"""`callboard cancel JOB [TASK]`: cancel a job, or one of its tasks, durably.

It opens the journal without workers, so that nothing is run meanwhile, and refuses where a runtime has it open.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import JOURNAL, JobId, Journal, MaybeTask
from .trouble import Trouble

if TYPE_CHECKING:
    from ..runtime import Runtime

_LONGEST = 60.0  # seconds that a cancelled job may take to end: its hooks have their own limits
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the transition.")]


def cancel(
    job_id: JobId, task: MaybeTask = None, journal: Journal = JOURNAL, reason: Reason = "cancelled by the user"
) -> None:
    """Cancel a job, or one task of it; nothing of the journal's other jobs is run meanwhile."""
    import anyio  # noqa: PLC0415 - heavy

    from ..journal.contract import JournalLocked  # noqa: PLC0415
    from .reading import find_job, find_task, reading  # noqa: PLC0415
    from .words import ENDED  # noqa: PLC0415

    with reading(journal) as reader:
        job = find_job(reader, job_id)
        named = job if task is None else find_task(reader, job, task)
        if named.state in ENDED:
            raise Trouble(f"{named.kind} {named.id} has ended already: {named.state}.")
    try:
        anyio.run(_cancel, journal, job.id, task, reason)
    except JournalLocked as error:
        raise Trouble(
            f"{error} To cancel what it runs, press Ctrl+C there (or send it SIGTERM), then cancel again and resume."
        ) from None


async def _cancel(journal: Path, job_id: str, task: str | None, reason: str) -> None:
    from ..runtime import Runtime  # noqa: PLC0415

    async with Runtime(journal, workers=()) as runtime:
        await _cancelled(runtime, job_id, task, reason)


async def _cancelled(runtime: Runtime, job_id: str, task: str | None, reason: str) -> None:
    import anyio  # noqa: PLC0415

    from ...machines import InvalidTransitionError  # noqa: PLC0415
    from .ending import summary  # noqa: PLC0415

    job = await runtime.job(job_id)
    try:
        if task is None:
            await job.cancel(reason)
        else:
            await job.task(task).cancel(reason)
    except InvalidTransitionError as error:
        raise Trouble(str(error)) from None
    if task is not None:
        record = job.task(task).record
        typer.echo(f"task {record.id} {record.state} ({record.reason or reason})")
        return
    with anyio.move_on_after(_LONGEST):
        await job.wait()
    typer.echo(f"job {job.id} {job.state} ({summary(job.tasks())})")
