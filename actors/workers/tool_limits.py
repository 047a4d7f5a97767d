"""The limit of parallel uses of each tool: the strictest declared limit holds.

Rules
-----
- A limit may be declared by the runtime, and by every living workstream that declares the tool, whether its own tasks
  use the tool or not. The smallest `max_parallel` of all these limits every task of the tool, also tasks of workstreams
  that declare no limit.
- If none of them declares a limit, the last one stays in force, over restarts too: the record of the tool's breaker
  keeps it. So a changed number takes effect as soon as no living workstream declares the old number.
- The declared limits of workstreams are derived from the jobs, and rebuilt with all other derived state.
- If nodes share a journal, this node's limit (`words`) is one of several: it is sent to the other nodes, and the limit
  over all nodes comes back (`heard`) and holds here too (`over_all` in the breaker's record). A stricter limit that is
  declared here takes effect at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from .queues import NO_LIMIT

if TYPE_CHECKING:
    from ..kernel.contract import Job
    from .workforce import Workforce

RUNTIME = "runtime"
"""The name of the runtime in `limit_by` and `said_by` of a breaker's record."""


class DeclaredLimit(msgspec.Struct, frozen=True):
    """A declared limit of a tool. by: a job's id, or RUNTIME. last: it is not declared any more, but in force."""

    limit: int
    by: str
    last: bool = False


NONE_DECLARED = DeclaredLimit(NO_LIMIT, "")
"""No limit is declared."""


class ToolLimits:
    """The declared limits of tools, and the limit in force of each tool."""

    def __init__(self, workforce: Workforce) -> None:
        self.words: dict[str, DeclaredLimit] = {}
        """This node's limit of each tool, if it has one: the other nodes must know it."""
        self._workforce = workforce
        self._said: dict[str, dict[int, dict[str, None]]] = {}  # by tool and number: the declaring jobs, in order

    def rebuild(self, jobs: Iterable[Job]) -> None:
        """Derive the declared limits again, from the jobs that have not ended."""
        self._said.clear()
        for job in jobs:
            if not job.ended:
                self.hear(job)
        for tool in {**self.words, **self._said}:
            self._tell(tool)

    def hear(self, job: Job) -> None:
        """Add the limits that a living job's workstream declares. Adding them twice has no effect."""
        for tool, declared in job.spec.tools.items():
            if declared.max_parallel is not None:
                self._said.setdefault(tool, {}).setdefault(declared.max_parallel, {})[job.record.id] = None

    def ended(self, job: Job) -> None:
        """Remove the limits that an ended job's workstream declared."""
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
        """The limit in force of a tool; None if it has none."""
        word, breaker = self._word(tool), self._workforce.breakers.get(tool)
        over_all = None if breaker is None else breaker.record.over_all
        if word is None or (over_all is not None and (word.last or over_all < word.limit)):
            return over_all
        return word.limit

    def declared(self, tool: str) -> int | None:
        """The limit in force of a tool, unless it is only the last one, which nobody declares any more."""
        word, limit = self._word(tool), self.of(tool)
        return None if word is not None and word.last and word.limit == limit else limit

    def settle(self, tool: str) -> None:
        """Persist the limit in force in the breaker's record, and apply it in the scheduler."""
        word, limit = self._word(tool), self.of(tool)
        breaker, scheduler = self._workforce.breakers.get(tool), self._workforce.scheduler
        if breaker is not None:
            record = breaker.record
            mine, by = (None, None) if word is None else (word.limit, word.by)
            over_all = None if limit == mine else record.over_all
            over_all_by = None if over_all is None else record.over_all_by
            if (record.max_parallel, record.limit_by, record.over_all) != (mine, by, over_all):
                breaker.change(max_parallel=mine, limit_by=by, over_all=over_all, over_all_by=over_all_by)
        scheduler.limit_tool(tool, limit)
        self._tell(tool)

    def heard(self, tool: str, over_all: DeclaredLimit) -> None:
        """Receive the limit of a tool over all nodes: NO_WORD if no node declares one."""
        breaker = self._workforce.breakers.get(tool)
        if breaker is None:
            return
        word, record = self._word(tool), breaker.record
        is_mine = over_all.limit == (NO_LIMIT if word is None else word.limit)
        limit, by = (None, None) if is_mine or over_all.limit == NO_LIMIT else (over_all.limit, over_all.by)
        if (record.over_all, record.over_all_by) != (limit, by):
            breaker.change(over_all=limit, over_all_by=by)
        self.settle(tool)

    def forget(self, tool: str) -> None:
        """Drop the last limit of a tool that nothing uses: its breaker was released."""
        self._tell(tool)

    def _tell(self, tool: str) -> None:
        """Have this node's limit sent to the other nodes, if it has changed."""
        shares, word = self._workforce.scheduler.tool_quotas, self._word(tool)
        if shares is None or self.words.get(tool) == word:
            return
        if word is None:
            del self.words[tool]
        else:
            self.words[tool] = word
        shares.signal()

    def _word(self, tool: str) -> DeclaredLimit | None:
        """The strictest limit declared on this node; else the last one in force; None if there is none."""
        said = self._said.get(tool)
        lowest = min(said) if said else None
        runtime = self._workforce.kernel.tools.get(tool)
        mine = None if runtime is None else runtime.max_parallel
        if mine is not None and (lowest is None or mine <= lowest):
            return DeclaredLimit(mine, RUNTIME)
        if said and lowest is not None:
            return DeclaredLimit(lowest, next(iter(said[lowest])))
        breaker = self._workforce.breakers.get(tool)
        if breaker is None or breaker.record.max_parallel is None or breaker.record.limit_by == RUNTIME:
            return None  # the runtime's own limit ends with its declaration
        return DeclaredLimit(breaker.record.max_parallel, breaker.record.limit_by or "", last=True)
