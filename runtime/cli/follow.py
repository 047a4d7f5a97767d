"""`callboard run FILE --url URL`: submit a specification to a board, and show its progress.

Rules
-----
- The view is that of `callboard run`. It shows the events of the board's stream, also over restarts of the server.
- Ctrl+C leaves the view, and stops nothing: the job goes on there. The exit code is then 130. The view is also left if
  the output cannot be written any more, because its reader has closed it.
- The job runs there: the file's workers are not started, and functions are looked up there.
"""

from __future__ import annotations

import signal
from shlex import quote
from typing import TYPE_CHECKING

import anyio

from ...actors.records.task import TaskRecord
from ...actors.spec.validate import SpecificationError
from ..client.client import Client
from ..client.handles import RemoteJob
from ..errors import JobExists
from ..handles.outcomes import Outcome
from ..specfiles.workstream_file import read_table, with_lines
from .command_errors import INTERRUPTED, CommandError
from .hints import hint
from .output import Printing
from .overhttp import told_by
from .session import View, code_of, code_unshown, view

if TYPE_CHECKING:
    from ...actors.records.entities import JobRecord
    from ..calling import Progress
    from ..jobs.submissions import Existing
    from ..specfiles.workstream_file import RunFile
    from .boards import Board

_ENDS = ("SIGINT", "SIGTERM", "SIGHUP")


class BoardJob:
    """A job of a board, for views. Events do not carry the output of commands, so none is shown."""

    def __init__(self, job: RemoteJob) -> None:
        self.id = job.id
        self._job = job

    @property
    def state(self) -> str:
        """The state of the job, as it was received last."""
        return self._job.state

    @property
    def record(self) -> JobRecord:
        """The record of the job, as it was received last."""
        return self._job.record

    def tasks(self) -> list[TaskRecord]:
        """The records of its tasks, as they were received last."""
        return self._job.tasks()

    def progress(self, name: str) -> Progress | None:
        """The progress that a task's running body has reported, as it was received last."""
        return self._job.progress(name)

    def output(self, name: str) -> str:
        """Return no output."""
        del name
        return ""


def see_there(
    board: Board, asked: RunFile, job_id: str | None, existing: Existing, *, as_json: bool, plain: bool
) -> int:
    """Run a file on a board's runtime, and show it until the end. Returns the exit code."""
    shown = view(as_json=as_json, plain=plain)
    with Printing() as printing:
        try:
            return told_by(board, lambda: anyio.run(_see, shown, printing, board, asked, job_id, existing))
        finally:
            shown.close()


async def _see(  # noqa: PLR0917 - `anyio.run` passes these
    shown: View, printing: Printing, board: Board, asked: RunFile, job_id: str | None, existing: Existing
) -> int:
    ended: list[Outcome] = []
    async with Client(board.url, token=board.token) as runtime:
        job = await _submitted(runtime, asked, job_id, existing)
        await job.refresh()  # a view shows the tasks, however many there are
        if asked.workers is not None:
            shown.notice("the workers of the file are not started: the runtime there has its own")
        async with anyio.create_task_group() as watching:
            watching.start_soon(_until_told, watching.cancel_scope)
            watching.start_soon(_until_lost, watching.cancel_scope, printing)
            await shown.follow([BoardJob(job)], job.events(notices=False))
            ended.append(await job.wait())
            watching.cancel_scope.cancel()
    shown.close()
    code = code_of(ended, []) if ended else INTERRUPTED
    if not ended:
        shown.notice(f"job {job.id} goes on at {board}: {hint(f'cancel {quote(job.id)}')} cancels it")
    shown.outcomes(ended, [], code)
    return code if printing.lost is None else code_unshown(printing.lost, code, explained=False)


async def _submitted(runtime: Client, asked: RunFile, job_id: str | None, existing: Existing) -> RemoteJob:
    try:
        return await runtime.submit(asked.workstream, id=job_id, existing=existing)
    except JobExists as error:
        raise CommandError(str(error)) from None
    except SpecificationError as error:
        lines = read_table(asked.path)[1]
        raise SpecificationError(with_lines(error.findings, lines), str(asked.path)) from None


async def _until_lost(scope: anyio.CancelScope, printing: Printing) -> None:
    """Leave if the output has no reader any more."""
    await printing.until_lost()
    scope.cancel()


async def _until_told(scope: anyio.CancelScope) -> None:
    """Leave at a signal."""
    with anyio.open_signal_receiver(*(getattr(signal, name) for name in _ENDS if hasattr(signal, name))) as signals:
        async for _ in signals:
            scope.cancel()
