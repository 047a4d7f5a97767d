"""The last lines of a run: what came of each job, and what is worth knowing about the tasks that did not end well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ...actors.records.entities import JobRecord
from ...actors.records.task import TaskRecord
from ..engines.files import open_file
from ..execution.outputs import as_kept
from ..handles.outcomes import Outcome
from . import words

_MOST = 20  # tasks that are explained
_LAST_LINES = 15  # of a failed command's output
_LAST_BYTES = 8192


class Shown(Protocol):
    """What views show of a job: its present state, and that of its tasks."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def state(self) -> str:
        """Its state."""
        ...

    @property
    def record(self) -> JobRecord:
        """Its record."""
        ...

    def tasks(self) -> list[TaskRecord]:
        """The records of its tasks."""
        ...

    def output(self, name: str) -> str:
        """The last line that the running command of a task has written; empty if it has none."""
        ...


def ending(ended: Sequence[Outcome], unfinished: Sequence[Shown]) -> Iterator[str]:
    """Lines for people."""
    for outcome in ended:
        tasks = list(outcome.tasks.values())
        bad = [task for task in tasks if task.state in {"failed", "cancelled"} and task.last_error is not None]
        for task in bad[:_MOST]:
            yield from _explained(task)
        if len(bad) > _MOST:
            yield f"… and {len(bad) - _MOST} more tasks that did not end well"
        why = f": {words.one_line(outcome.error)}" if outcome.error and not outcome.ok else ""
        yield f"job {outcome.job_id} {outcome.shown or outcome.state} ({summary(tasks)}){why}"
    for job in unfinished:
        yield f"job {job.id} is unfinished ({summary(job.tasks())}): `callboard resume` goes on"


def summary(tasks: Sequence[TaskRecord]) -> str:
    """How many tasks are in which state: "3 completed, 1 failed"."""
    counts = Counter(map(words.counted, tasks))
    return ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "no tasks"


def _explained(task: TaskRecord) -> Iterator[str]:
    optional = " (optional)" if task.optional else ""
    lines = [] if task.output_path is None else _last_lines(Path(task.output_path))
    yield f"{task.name}{optional} {words.state(task)}: {words.brief(task.last_error)}"
    if lines:
        yield f"  the end of its output ({task.output_path}):"
        yield from (f"  | {words.one_line(line)}" for line in lines)


def _last_lines(path: Path) -> list[str]:
    try:
        with open(open_file(*as_kept(path)), "rb") as file:  # noqa: PTH123 - a handle
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []  # it may have been tidied away
    return text.splitlines()[-_LAST_LINES:]
