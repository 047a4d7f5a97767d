"""Progress as plain lines: for logs, pipes and `--plain`. A line per thing that people wait for, not per transition."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Sequence

from ...actors.records.transition import Transitioned
from ...actors.tasks.attempts import TOOL
from ..handles.outcomes import Outcome
from ..observation.events import Dropped
from . import words
from .ending import Shown, ending
from .terminal import echo

# What is said of a task that enters a state; states that follow at once, or that nobody waits for, are not here.
_SAID = {
    "held": "waits for an approval",
    "waiting": "waits",
    "running": "started",
    "retrying": "failed, will be tried again",
    "circuit_open": "parked: its tool's breaker is open",
    "recovering": "lost its worker",
    "timed_out": "timed out",
    "cancelling": "is being cancelled",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "skipped": "skipped",
}


def _said(event: Transitioned) -> str | None:
    if event.phase == "retrying" and event.from_phase == "recovering":
        return "was interrupted, will be run again"  # its body did nothing wrong
    if event.phase == "circuit_open" and (event.metadata or {}).get("parked", TOOL) != TOOL:
        return "parked: its tries are used up, and somebody has to look at it (`callboard stuck`)"
    return _SAID.get(event.phase)


class PlainView:
    """Writes lines to stdout."""

    def __init__(self) -> None:
        self._several = False  # jobs are told apart where there are more than one
        self._began: dict[str, float] = {}  # when the tasks that run began, by their ids

    async def follow(self, jobs: Sequence[Shown], events: AsyncIterable[Transitioned | Dropped]) -> None:
        """Write a line for each transition that people wait for."""
        wanted = {job.id: job for job in jobs}
        self._several = len(jobs) > 1
        for job in jobs:
            echo(f"job {job.id}: {job.record.name}, {len(job.tasks()):,} tasks")
        async for event in events:
            if isinstance(event, Dropped):
                echo(f"({event.count} transitions came too fast to be shown)")
            elif event.kind == "task" and event.job_id in wanted:
                self._task(wanted[event.job_id].record.name, event)

    def notice(self, text: str) -> None:
        """Say something that is not about a task."""
        echo(f"callboard: {text}", err=True)

    def close(self) -> None:
        """There is nothing to put in order."""

    def outcomes(self, ended: Sequence[Outcome], unfinished: Sequence[Shown], code: int) -> None:
        """Tell what came of the jobs."""
        del code
        for line in ending(ended, unfinished):
            echo(line)

    def _task(self, job: str, event: Transitioned) -> None:
        said = _said(event)
        if event.phase == "running":
            self._began.setdefault(event.entity_id, event.at)
        if said is None:
            return
        name = event.entity_id.rpartition("/")[2]
        facts = "".join(f" ({fact})" for fact in self._facts(event))
        echo(f"{words.clock(event.at)} {f'{job}/{name}' if self._several else name} {said}{facts}")

    def _facts(self, event: Transitioned) -> Iterator[str]:
        if event.phase == "running" and (event.attempt or 0) > 1:
            yield f"attempt {event.attempt}"
        began = self._began.pop(event.entity_id, None) if event.phase in words.ENDED else None
        if began is not None:
            yield words.took(event.at - began)
        if event.reason and event.phase not in {"running", "completed"}:
            yield words.brief(event.reason)
        if until := words.until(event):
            yield until
