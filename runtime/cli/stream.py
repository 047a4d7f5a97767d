"""`callboard stream JOB/TASK`: print the text that a body emits, as it comes.

If nodes share a database, the text is read from the database; from any other program it is read over HTTP (`--url`).
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

import typer

from .boards import Board, Place
from .command_errors import CommandError
from .options import JOURNAL

if TYPE_CHECKING:
    from ...actors.records.task import TaskRecord
    from ..journal.postgres.reader import PostgresReader
    from ..observation.events import Dropped

Target = Annotated[str, typer.Argument(metavar="JOB/TASK", help="The task.")]


def stream(target: Target, *, journal: Place = JOURNAL) -> None:
    """Print the text that a body emits (`task.emit`) until its attempt ends: of the running one, or the next one."""
    from ..journal.location import Database  # noqa: PLC0415 - heavy
    from ..observation.live import TASK_ENDED  # noqa: PLC0415
    from .reading import find_job, find_task, nodes_by_job, reading, task_named  # noqa: PLC0415

    if not isinstance(journal, Board | Database):
        raise CommandError(
            "What bodies emit stays in the program that runs a journal's file: ask its board, with --url. "
            "`callboard serve` serves one."
        )
    with reading(journal) as reader:
        task = task_named(reader, target)
        if task is None:
            job, _, name = target.rpartition("/")
            if not job:
                raise CommandError(f"{target!r:.80} names no task: give JOB/TASK.")
            task = find_task(reader, find_job(reader, job), name)
        if task.state in TASK_ENDED:
            raise CommandError(f"{target} has ended ({task.shown}): a stream is the text of a running attempt.")
        shown = Shown()
        if isinstance(journal, Board):
            _from_board(journal, task, shown)
        else:
            record = reader.job(task.job_id)
            nodes = nodes_by_job(journal, reader, [] if record is None else [record])
            if record is not None and not (nodes and record.key in nodes):
                typer.echo(f"No node runs job {record.id} now: its text comes once one does.", err=True)
            from ..journal.postgres.reader import PostgresReader  # noqa: PLC0415 - an extra

            assert isinstance(reader, PostgresReader)  # noqa: S101 - `reading` makes one
            for part in parts_of(reader, task):
                shown.add(part)
        shown.end()


class Shown:
    """The text on standard output. Missing text is reported on standard error."""

    def __init__(self) -> None:
        self._in_line = False  # whether the last line has not ended

    def add(self, part: str | Dropped) -> None:
        """Print the next part at once."""
        from ...machines.keywords import number_of  # noqa: PLC0415
        from ..text.printable import printable  # noqa: PLC0415

        if isinstance(part, str):
            sys.stdout.write(printable(part))
            sys.stdout.flush()
            self._in_line = not part.endswith("\n")
        else:
            typer.echo(f"[{number_of(part.count, 'character is', 'characters are')} missing here]", err=True)

    def end(self) -> None:
        """End the last line."""
        if self._in_line:
            typer.echo()


def parts_of(reader: PostgresReader, task: TaskRecord) -> Generator[str | Dropped]:
    """Read the text from the database until the attempt is over. An outage after the first answer does not end this."""
    import time  # noqa: PLC0415

    from ..cluster.delays import Delays  # noqa: PLC0415 - heavy
    from ..cluster.text_copy import CHECKS, EVERY, IDLE, RENEWS, TextCopy  # noqa: PLC0415
    from ..errors import JournalCorrupt, JournalError, JournalMissing, JournalTooNew  # noqa: PLC0415
    from ..observation.events import Dropped  # noqa: PLC0415

    answered = lost = False
    copy, delays, place = TextCopy(task), Delays(EVERY, IDLE), 0
    renews_at = checks_at = float("-inf")
    while True:
        now = time.monotonic()
        try:
            if now >= renews_at:
                reader.listen(task.key)
                renews_at = now + RENEWS
            for part in reader.text(copy.place):
                copy.take(part)
            record = reader.task(task.id) if now >= checks_at else None
        except JournalError as error:
            if not answered or isinstance(error, JournalCorrupt | JournalMissing | JournalTooNew):
                raise
            if not lost:
                typer.echo(f"{error} The stream goes on once it answers again.", err=True)
            lost, renews_at = True, float("-inf")
            time.sleep(delays())
            continue
        answered, lost = True, False
        missing, text = copy.live.text.after(place)
        if missing:
            yield Dropped(missing)
        if text:
            yield text
            delays = Delays(EVERY, IDLE)
        place += missing + len(text)
        if copy.live.over:
            return
        if now >= checks_at:
            copy.compare(record)
            checks_at = now + CHECKS
        time.sleep(delays())


def _from_board(board: Board, task: TaskRecord, shown: Shown) -> None:
    """Read the text from a board until the attempt is over."""
    import anyio  # noqa: PLC0415 - heavy

    from ..client.client import Client  # noqa: PLC0415 - an extra
    from .overhttp import told_by  # noqa: PLC0415

    async def follow() -> None:
        async with Client(board.url, token=board.token) as runtime:
            job = await runtime.job(task.job_id)
            async for part in job.task(task.name).stream():
                shown.add(part)

    told_by(board, lambda: anyio.run(follow))
