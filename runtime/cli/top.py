"""`callboard top`: the running jobs of a journal, on a live screen of any terminal.

Rules:
- It only reads the journal's file, while a runtime may write it. It asks again only after a commit.
- q, Ctrl+C and any signal that ends a program end it; the terminal is then restored.
- `--once`, and output to anything but a capable terminal, print one picture as plain text.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Annotated

import typer

from ..journal.location import in_words
from ..text.printable import printable
from .boards import Place
from .options import JOURNAL, LONGEST
from .terminal import draws, echo

if TYPE_CHECKING:
    from anyio import CancelScope

    from ...actors.records.entities import BreakerRecord
    from ...actors.records.task import TaskRecord
    from ..calling import Progress
    from ..journal.contract import JournalQueries

Once = Annotated[bool, typer.Option("--once", help="Print one picture, and exit.")]
Every = Annotated[
    float,
    typer.Option("--every", metavar="SECONDS", min=0.1, max=LONGEST, help="Seconds between two looks."),
]
_JOBS = 12
_TASKS = 24
_SHOWN_FIRST = ("running", "validating", "timed_out", "cancelling", "recovering", "half_open")
_THEN = ("held", "waiting", "circuit_open", "retrying", "queued")


def top(*, once: Once = False, every: Every = 0.5, journal: Place = JOURNAL) -> None:
    """Show the running jobs of a journal, live. q or Ctrl+C ends it. Nothing is changed."""
    from .reading import reading  # noqa: PLC0415

    with reading(journal) as reader:
        if once or not draws():
            echo("\n".join(_lines(reader, journal, time.time())))
        else:
            import anyio  # noqa: PLC0415 - heavy

            anyio.run(_live, reader, journal, every)


async def _live(reader: JournalQueries, journal: Place, every: float) -> None:
    import anyio  # noqa: PLC0415 - heavy
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    async with anyio.create_task_group() as group:
        group.start_soon(_until_told, group.cancel_scope)
        with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            pressed = False
            while not pressed:
                began = time.monotonic()
                room = console.size
                lines = [line[: room.width] for line in _lines(reader, journal, time.time())][: room.height - 1]
                live.update(Text("\n".join(lines)), refresh=True)
                # a journal that is slow to read is read less often
                pressed = await _pressed(keys, max(every, 4 * (time.monotonic() - began)))
        group.cancel_scope.cancel()


async def _until_told(scope: CancelScope) -> None:
    """End the screen at a signal, so that the terminal is restored."""
    import anyio  # noqa: PLC0415

    ends = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    with anyio.open_signal_receiver(*ends) as signals:
        async for _ in signals:
            scope.cancel()


@contextlib.contextmanager
def _keys() -> Generator[int | None]:
    """The keyboard, one key at a time and without echo; None if there is none."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios  # noqa: PLC0415 - not on every system
    import tty  # noqa: PLC0415

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        mode = termios.tcgetattr(keyboard)
        mode[6][termios.VMIN] = 0  # a read never waits: Ctrl+C discards earlier keys
        termios.tcsetattr(keyboard, termios.TCSANOW, mode)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


async def _pressed(keys: int | None, seconds: float) -> bool:
    """Wait for so many seconds, or for q. Returns whether q was pressed, or the terminal has closed."""
    import anyio  # noqa: PLC0415

    with anyio.move_on_after(seconds):
        while keys is not None:
            await anyio.wait_readable(keys)
            pressed = os.read(keys, 1024)
            if b"q" in pressed.lower() or (not pressed and _has_gone(keys)):
                return True
        await anyio.sleep_forever()
    return False


def _has_gone(keys: int) -> bool:
    """Whether the terminal has closed."""
    look = select.poll()
    look.register(keys, select.POLLIN)
    return any(event & ~select.POLLIN for _, event in look.poll(0))


def _lines(reader: JournalQueries, journal: Place, now: float) -> list[str]:
    from . import words  # noqa: PLC0415
    from .reading import LIVING, node_of, nodes_by_job, owner_of, progress_at, tasks_of  # noqa: PLC0415

    owner = owner_of(journal)
    lines = [f"{in_words(journal)}  {words.clock(now)}  {f'run by {owner}' if owner else 'no runtime has it open'}", ""]
    living = reader.jobs(states=LIVING, limit=1000)
    shown = living[:_JOBS] or reader.jobs(limit=3)
    tasks = {job.id: tasks_of(reader, job) for job in shown}
    nodes = nodes_by_job(journal, reader, shown)
    rows = [["JOB", "WORKSTREAM", "STATE", "DONE", "TASKS", "TOOK", *(() if nodes is None else ("NODE",))]]
    for job in shown:
        own = tasks[job.id]
        done = sum(task.state in words.ENDED for task in own)
        spent = words.duration(job, now)
        took = words.took(spent) if spent else ""
        node = () if nodes is None else (node_of(job, nodes),)
        rows.append([job.id, job.name, str(job.shown), f"{done}/{len(own)}", _counts(own), took, *node])
    lines += _columns(rows)
    if len(living) > _JOBS:
        lines.append(f"… and {len(living) - _JOBS} more that have not ended")
    lines += _tasks(tasks, progress_at(journal, reader), now)
    lines += _others(reader, now)
    return [printable(line) for line in lines]


def _counts(tasks: list[TaskRecord]) -> str:
    from collections import Counter  # noqa: PLC0415

    from . import words  # noqa: PLC0415

    counts = Counter(map(words.counted, tasks))
    return " ".join(f"{count} {state}" for state, count in counts.most_common())


def _tasks(
    tasks: dict[str, list[TaskRecord]], progress: Callable[[TaskRecord], Progress | None], now: float
) -> list[str]:
    from . import words  # noqa: PLC0415

    order = {state: place for place, state in enumerate((*_SHOWN_FIRST, *_THEN))}
    busy = [(job, task) for job, own in tasks.items() for task in own if task.state in order]
    busy.sort(key=lambda one: (order[one[1].state], one[1].updated_at))
    rows = [["TASK", "STATE", "FOR", "ATTEMPT", "WORKER", "REASON"]]
    for job, task in busy[:_TASKS]:
        notes = "; ".join(filter(None, (words.progress(progress(task)), words.explained(task))))
        if task.due_at is not None:
            notes = f"until {words.due(task.due_at, now)}{f'; {notes}' if notes else ''}"
        spent = words.took(now - task.updated_at)
        rows.append([f"{job}/{task.name}", str(task.shown), spent, words.tried(task), task.worker_id or "", notes])
    if not busy:
        return []
    more = [f"… and {len(busy) - _TASKS} more"] if len(busy) > _TASKS else []
    return ["", *_columns(rows), *more]


def _others(reader: JournalQueries, now: float) -> list[str]:
    from . import words  # noqa: PLC0415

    workers = [
        [worker.id, str(worker.shown), f"{worker.assigned}/{worker.capacity}", worker.engine]
        for worker in reader.workers()
        if worker.finished_at is None
    ]
    breakers = [
        [breaker.id, str(breaker.shown), words.took(now - breaker.updated_at), _told(breaker, now)]
        for breaker in reader.breakers()
        if breaker.state != "closed"
    ]
    lines: list[str] = []
    if workers:
        lines += ["", *_columns([["WORKER", "STATE", "RUNS", "ENGINE"], *workers])]
    if breakers:
        lines += ["", *_columns([["BREAKER", "STATE", "FOR", "REASON"], *breakers])]
    return lines


def _told(record: BreakerRecord, now: float) -> str:
    from . import words  # noqa: PLC0415

    until = "" if record.due_at is None else f"until {words.due(record.due_at, now)}"
    return "; ".join(part for part in (until, words.one_line(record.reason or "")) if part)


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
