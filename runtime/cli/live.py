"""Progress on a terminal: a tree of the tasks, redrawn as they change.

Rules:
- A frame shows the present state, not events: so its cost does not depend on how much happens. It is redrawn eight
  times a second, and less often if drawing is slow.
- It fits on the screen: running and failed tasks come first, the others are only counted.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Sequence

import anyio
from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from ...actors.records.task import TaskRecord
from ...actors.records.transition import Transitioned
from ..handles.outcomes import Outcome
from ..observation.events import Dropped
from ..text.printable import printable
from . import words
from .summary import DisplayedJob, ending, summary

_FRAME = 0.125  # seconds
_SHARE = 10  # drawing may take one tenth of the time
_SIGNS = {
    "completed": "✔", "failed": "✘", "timed_out": "✘", "cancelled": "⊘", "cancelling": "⊘", "skipped": "↷",
    "running": "▶", "validating": "▶", "retrying": "↻", "circuit_open": "⏸", "held": "⏸", "recovering": "?",
}  # fmt: skip
_FIRST = (
    "running",
    "validating",
    "recovering",
    "cancelling",
    "timed_out",
    "retrying",
    "failed",
    "circuit_open",
    "held",
)


class LiveView:
    """Draws jobs on the terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._plain_signs = "utf" not in self.console.encoding.lower()
        self._live: Live | None = None
        self._jobs: Sequence[DisplayedJob] = ()

    async def follow(self, jobs: Sequence[DisplayedJob], events: AsyncIterable[Transitioned | Dropped]) -> None:
        """Draw the jobs until the events end."""
        self._jobs = jobs
        self._live = Live(self.drawn(), console=self.console, auto_refresh=False)
        self._live.start()
        async with anyio.create_task_group() as drawing:
            drawing.start_soon(self._draw)
            async for _ in events:
                pass
            drawing.cancel_scope.cancel()

    async def _draw(self) -> None:
        while self._live is not None:
            before = time.perf_counter()
            self._live.update(self.drawn(), refresh=True)
            await anyio.sleep(max(_FRAME, _SHARE * (time.perf_counter() - before)))

    def notice(self, text: str) -> None:
        """Print a notice that is not about a task."""
        self.console.print(Text(printable(f"callboard: {text}"), style="bold"))

    def close(self) -> None:
        """Draw the last frame, and release the terminal."""
        live, self._live = self._live, None
        if live is not None:
            live.update(self.drawn(), refresh=True)
            live.stop()

    def outcomes(self, ended: Sequence[Outcome], unfinished: Sequence[DisplayedJob], code: int) -> None:
        """Print the outcomes of the jobs."""
        del code
        for line in ending(ended, unfinished):
            self.console.print(Text(printable(line)))

    def drawn(self) -> Tree:
        """Make one frame."""
        now = time.time()
        room = max(self.console.height - 3, 5) // max(len(self._jobs), 1)
        root = Tree("", hide_root=True)
        for job in self._jobs:
            tasks = job.tasks()
            branch = root.add(self._head(job, tasks, now))
            width = max((len(task.name) for task in tasks[:1000]), default=0)
            for task in self._shown(tasks, room):
                branch.add(self._row(job, task, min(width, 40), now))
            if len(tasks) > room:
                branch.add(Text(f"… of {len(tasks):,}: {summary(tasks)}", style="dim"))
        return root

    def _head(self, job: DisplayedJob, tasks: Sequence[TaskRecord], now: float) -> Text:
        done = sum(task.state in words.ENDED for task in tasks)
        started = min((task.first_queued_at for task in tasks if task.first_queued_at is not None), default=now)
        ended = max((task.finished_at or now for task in tasks), default=now)
        text = Text.assemble(
            (job.record.name, "bold"),
            "  ",
            (job.id, "dim"),
            "  ",
            (job.record.shown, words.COLOURS.get(job.state, "dim")),
        )
        return text.append(f"  {done:,}/{len(tasks):,}  {words.took(ended - started)}")

    def _shown(self, tasks: Sequence[TaskRecord], room: int) -> Sequence[TaskRecord]:
        if len(tasks) <= room:
            return tasks
        first = [task for task in tasks if task.state in _FIRST]
        return sorted(first, key=lambda task: _FIRST.index(task.state))[: room - 1]

    def _row(self, job: DisplayedJob, task: TaskRecord, width: int, now: float) -> Text:
        style = words.COLOURS.get(task.state, "dim")
        sign = "*" if self._plain_signs else _SIGNS.get(task.state, "·")
        spent = words.duration(task, now)
        time_spent = "" if spent is None else words.took(spent)
        parts = [words.attempts(task)]
        if task.state not in words.ENDED:
            parts.append(_shown(job, task.name) or (words.brief(task.last_error) if task.state == "retrying" else ""))
        elif task.state != "completed":
            parts.append(words.explained(task))
        line = words.one_line("  ".join(part for part in parts if part.strip()), 500)
        text = Text.assemble(
            (f"{sign} ", style),
            f"{task.name:<{width}}  ",
            (f"{words.state(task):<12}", style),
            f"{time_spent:>9}  {line}",
        )
        text.no_wrap = True
        text.overflow = "ellipsis"
        return text


def _shown(job: DisplayedJob, name: str) -> str:
    """What a running task shows of itself: its progress, or its last line of output."""
    progress = job.progress(name)
    return job.output(name) if progress is None else words.progress(progress)
