"""The last lines of a run: the jobs' outcomes, and the tasks that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ...actors.records.entities import JobRecord
from ...actors.records.task import TaskRecord
from ..calling import Progress
from ..engines.files import open_file
from ..execution.outputs import as_kept
from ..handles.outcomes import Outcome
from . import words
from .hints import hint

_MOST = 20  # tasks whose failure is explained
_LAST_LINES = 15  # of a failed command's output
_LAST_BYTES = 8192


class DisplayedJob(Protocol):
    """A job as views show it: its present state, and that of its tasks."""

    @property
    def id(self) -> str:
        """The id of the job."""
        ...

    @property
    def state(self) -> str:
        """The state of the job."""
        ...

    @property
    def record(self) -> JobRecord:
        """The record of the job."""
        ...

    def tasks(self) -> list[TaskRecord]:
        """The records of its tasks."""
        ...

    def progress(self, name: str) -> Progress | None:
        """The progress that a task's running body has reported; None if it has reported none."""
        ...

    def output(self, name: str) -> str:
        """The last line that a task's running command has written; empty if there is none."""
        ...


def ending(ended: Sequence[Outcome], unfinished: Sequence[DisplayedJob]) -> Iterator[str]:
    """Yield the last lines of a run, for people."""
    for outcome in ended:
        tasks = list(outcome.tasks.values())
        bad = [task for task in tasks if task.state in {"failed", "cancelled"} and task.last_error is not None]
        for task in bad[:_MOST]:
            yield from _explained(task)
        if len(bad) > _MOST:
            yield f"… and {len(bad) - _MOST} more tasks that failed or were cancelled"
        why = f": {words.one_line(outcome.error)}" if outcome.error and not outcome.ok else ""
        yield f"job {outcome.job_id} {outcome.shown or outcome.state} ({summary(tasks)}){why}"
    for job in unfinished:
        yield f"job {job.id} is unfinished ({summary(job.tasks())}): {hint('resume')} continues it"


def summary(tasks: Sequence[TaskRecord]) -> str:
    """Count the tasks in each state: "3 completed, 1 failed"."""
    counts = Counter(map(words.counted, tasks))
    return ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "no tasks"


def _explained(task: TaskRecord) -> Iterator[str]:
    optional = " (optional)" if task.optional else ""
    lines = [] if task.output_path is None else _last_lines(Path(task.output_path))
    yield f"{task.name}{optional} {words.state(task)}: {words.explained(task)}"
    if lines:
        yield f"  the end of its output ({task.output_path}):"
        yield from (f"  | {words.one_line(line)}" for line in lines)


def _last_lines(path: Path) -> list[str]:
    try:
        at = as_kept(path)
        with open(open_file(at.path, at.root), "rb") as file:  # noqa: PTH123 - it opens a handle
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []  # the file may have been deleted
    return text.splitlines()[-_LAST_LINES:]
