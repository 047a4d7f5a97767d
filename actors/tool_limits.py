"""How often a tool may be used at the same time: the strictest number that anybody says who may.

Rules
-----
- Heard are the runtime, and every workstream that has not ended and declares the tool, whether its own tasks use it
  or not. The smallest `max_parallel` of all these binds every task of the tool, also those of workstreams that say
  nothing of it.
- Where none of them says a number, the one that held last goes on to hold, over restarts too: it is kept in the record
  of the tool's breaker. So whoever changes a number gets the new one as soon as nothing runs that says the old one.
- Which workstreams say what is derived from the jobs, and made again with everything else that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import JobActor
    from .kernel import Kernel

RUNTIME = "runtime"
"""What a breaker's record holds as who said something, where that is the runtime itself."""


class ToolLimits:
    """What is said of the limits of tools, and the limit of each that follows from it."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._said: dict[str, dict[int, dict[str, None]]] = {}  # by tool and number: the jobs that say it, in order

    def rebuild(self, jobs: Iterable[JobActor]) -> None:
        """Derive again what workstreams say: those of the jobs that have not ended."""
        self._said.clear()
        for job in jobs:
            if not job.ended:
                self.hear(job)

    def hear(self, job: JobActor) -> None:
        """Count what the workstream of a living job says. Saying it twice counts once."""
        for tool, declared in job.spec.tools.items():
            if declared.max_parallel is not None:
                self._said.setdefault(tool, {}).setdefault(declared.max_parallel, {})[job.record.id] = None

    def ended(self, job: JobActor) -> None:
        """Count no more what the workstream of a job says: it has ended."""
        for tool, declared in job.spec.tools.items():
            said = self._said.get(tool, {})
            jobs = said.get(declared.max_parallel or 0, {})
            jobs.pop(job.record.id, None)
            if declared.max_parallel is not None and not jobs:
                said.pop(declared.max_parallel, None)
                if not said:
                    self._said.pop(tool, None)
                self.settle(tool)

    def of(self, tool: str) -> int | None:
        """The limit that holds of a tool; None where it has none."""
        return self._strictest(tool)[0]

    def settle(self, tool: str) -> None:
        """Write into the breaker's record which limit holds, and let the scheduler keep to it."""
        limit, by = self._strictest(tool)
        breaker = self._kernel.breakers.get(tool)
        if breaker is not None and (breaker.record.max_parallel, breaker.record.limit_by) != (limit, by):
            breaker.change(max_parallel=limit, limit_by=by)
        self._kernel.scheduler.limit_tool(tool, limit)

    def _strictest(self, tool: str) -> tuple[int | None, str | None]:
        """The limit, and who says it: a job's id, or RUNTIME."""
        said = self._said.get(tool)
        lowest = min(said) if said else None
        runtime = self._kernel.tools.get(tool)
        mine = None if runtime is None else runtime.max_parallel
        if mine is not None and (lowest is None or mine <= lowest):
            return mine, RUNTIME
        if said and lowest is not None:
            return lowest, next(iter(said[lowest]))
        known = self._kernel.breakers.get(tool)
        if known is None or known.record.limit_by == RUNTIME:  # which says nothing any more
            return None, None
        return known.record.max_parallel, known.record.limit_by
