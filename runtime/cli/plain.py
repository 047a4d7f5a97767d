"""Progress as plain lines, for logs, pipes and `--plain`: the transitions that matter."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Sequence

from ...actors.records.transition import Transitioned
from ...actors.tasks.attempts import TOOL
from ..handles.outcomes import Outcome
from ..observation.events import Dropped
from . import words
from .hints import hint
from .summary import DisplayedJob, ending
from .terminal import echo

# The text for a task that enters a state. States that end at once, or that do not matter to people, are not here.
_SAID = {
    "held": "waits for an approval",
    "waiting": "waits",
    "running": "started",
    "retrying": "failed, will be retried",
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
        return "was interrupted, will run again"  # the body did not fail
    if event.phase == "circuit_open" and (event.metadata or {}).get("parked", TOOL) != TOOL:
        return f"parked: its attempts are used up, and a person must decide ({hint('stuck')})"
    return _SAID.get(event.phase)


class PlainView:
    """Writes lines to stdout."""

    def __init__(self) -> None:
        self._several = False  # with several jobs, lines name the job
        self._began: dict[str, float] = {}  # when running tasks began, by their ids

    async def follow(self, jobs: Sequence[DisplayedJob], events: AsyncIterable[Transitioned | Dropped]) -> None:
        """Print a line for each transition that matters to people."""
        from ...machines.keywords import number_of  # noqa: PLC0415

        wanted = {job.id: job for job in jobs}
        self._several = len(jobs) > 1
        for job in jobs:
            echo(f"job {job.id}: {job.record.name}, {number_of(len(job.tasks()), 'task')}")
        async for event in events:
            if isinstance(event, Dropped):
                echo(f"({number_of(event.count, 'transition was', 'transitions were')} not shown: they came too fast)")
            elif event.kind == "task" and event.job_id in wanted:
                self._task(wanted[event.job_id].record.name, event)

    def notice(self, text: str) -> None:
        """Print a notice that is not about a task."""
        echo(f"callboard: {text}", err=True)

    def close(self) -> None:
        """Do nothing: there is nothing to restore."""

    def outcomes(self, ended: Sequence[Outcome], unfinished: Sequence[DisplayedJob], code: int) -> None:
        """Print the outcomes of the jobs."""
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
