"""Progress as JSON lines: the transitions, in the log's form, and last the outcome."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Sequence
from typing import Any

import msgspec

from ...actors.records.transition import Transitioned
from ...actors.user_code import written
from ..handles.outcomes import Outcome
from ..journal.jsonl import log_line
from ..observation.events import Dropped
from ..text.printable import printable_json
from . import words
from .command_errors import print_to_stderr
from .summary import DisplayedJob


class JsonView:
    """Writes JSON lines to stdout, and notices to stderr."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder(enc_hook=written).encode
        self._out = sys.stdout
        sys.stdout = sys.stderr  # the output of bodies must not mix with the lines

    async def follow(self, jobs: Sequence[DisplayedJob], events: AsyncIterable[Transitioned | Dropped]) -> None:
        """Write each transition of the jobs."""
        wanted = {job.id for job in jobs}
        async for event in events:
            if isinstance(event, Dropped):
                self._write({"event_type": "dropped", "count": event.count})
            elif event.job_id in wanted:
                self._write(log_line(event))

    def notice(self, text: str) -> None:
        """Print a notice that is not about a task."""
        print_to_stderr(text)

    def close(self) -> None:
        """Restore stdout."""
        sys.stdout = self._out

    def outcomes(self, ended: Sequence[Outcome], unfinished: Sequence[DisplayedJob], code: int) -> None:
        """Write the last line, with the outcomes."""
        jobs = [_job(outcome.job_id, outcome.state, outcome.error, list(outcome.tasks.values())) for outcome in ended]
        for line, outcome in zip(jobs, ended, strict=True):
            line["results"] = outcome.results
        jobs += [_job(job.id, job.state, None, job.tasks()) for job in unfinished]
        self._write({"event_type": "outcome", "exit_code": code, "jobs": jobs})

    def _write(self, value: object) -> None:
        self._out.write(f"{printable_json(self._encode(value))}\n")
        self._out.flush()


def _job(job_id: str, state: str, error: str | None, tasks: Sequence[Any]) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "state": state,
        "error": error,
        "tasks": {
            task.name: {
                "state": task.shown,
                **words.phase(task),
                "attempt": task.attempt,
                "optional": task.optional,
                "exit_code": task.exit_code,
                "execution_ms": task.execution_ms,
                "error": task.last_error,
                "output_path": task.output_path,
            }
            for task in tasks
        },
    }
