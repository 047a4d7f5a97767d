"""How often a tool may be used at the same time: the strictest number that anybody says who may.

Rules
-----
- Heard are the runtime, and every workstream that has not ended and declares the tool, whether its own tasks use it
  or not. The smallest `max_parallel` of all these binds every task of the tool, also those of workstreams that say
  nothing of it.
- Where none of them says a number, the one that held last goes on to hold, over restarts too: it is kept in the record
  of the tool's breaker. So whoever changes a number gets the new one as soon as nothing runs that says the old one.
- Which workstreams say what is derived from the jobs, and made again with everything else that is.
- Where nodes share a journal, what is said here (`words`) is one word of several: it is told to the others, and what
  follows from all of them is heard (`heard`) and holds here too (`over_all` in the record of the breaker). A stricter
  word that is said here holds at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from .queues import NO_LIMIT

if TYPE_CHECKING:
    from ..jobs.job import JobActor
    from ..kernel.kernel import Kernel

RUNTIME = "runtime"
"""What a breaker's record holds as who said something, where that is the runtime itself."""


class Word(msgspec.Struct, frozen=True):
    """A number that is said of a tool's limit. by: a job's id, or RUNTIME. last: nobody says it any more."""

    limit: int
    by: str
    last: bool = False


NO_WORD = Word(NO_LIMIT, "")
"""Nothing is said."""


class ToolLimits:
    """What is said of the limits of tools, and the limit of each that follows from it."""

    def __init__(self, kernel: Kernel) -> None:
        self.words: dict[str, Word] = {}
        """What is said here of each tool of which something is, or was: what other nodes have to know."""
        self._kernel = kernel
        self._said: dict[str, dict[int, dict[str, None]]] = {}  # by tool and number: the jobs that say it, in order

    def rebuild(self, jobs: Iterable[JobActor]) -> None:
        """Derive again what workstreams say: those of the jobs that have not ended."""
        self._said.clear()
        for job in jobs:
            if not job.ended:
                self.hear(job)
        for tool in {**self.words, **self._said}:
            self._tell(tool)

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
        word, breaker = self._word(tool), self._kernel.breakers.get(tool)
        over_all = None if breaker is None else breaker.record.over_all
        if word is None or (over_all is not None and (word.last or over_all < word.limit)):
            return over_all
        return word.limit

    def settle(self, tool: str) -> None:
        """Write into the breaker's record which limit holds, and let the scheduler keep to it."""
        word, limit = self._word(tool), self.of(tool)
        breaker, scheduler = self._kernel.breakers.get(tool), self._kernel.scheduler
        if breaker is not None:
            record = breaker.record
            mine, by = (None, None) if word is None else (word.limit, word.by)
            over_all = None if limit == mine else record.over_all
            over_all_by = None if over_all is None else record.over_all_by
            if (record.max_parallel, record.limit_by, record.over_all) != (mine, by, over_all):
                breaker.change(max_parallel=mine, limit_by=by, over_all=over_all, over_all_by=over_all_by)
        scheduler.limit_tool(tool, limit)
        self._tell(tool)

    def heard(self, tool: str, over_all: Word) -> None:
        """This follows from what all nodes say of a tool: NO_WORD where none of them says anything."""
        breaker = self._kernel.breakers.get(tool)
        if breaker is None:
            return
        word, record = self._word(tool), breaker.record
        is_mine = over_all.limit == (NO_LIMIT if word is None else word.limit)
        limit, by = (None, None) if is_mine or over_all.limit == NO_LIMIT else (over_all.limit, over_all.by)
        if (record.over_all, record.over_all_by) != (limit, by):
            breaker.change(over_all=limit, over_all_by=by)
        self.settle(tool)

    def forget(self, tool: str) -> None:
        """Nothing uses a tool any more, and its breaker was let go, with what held last."""
        self._tell(tool)

    def _tell(self, tool: str) -> None:
        """Have the other nodes told what is said here, where that is not what they were told."""
        shares, word = self._kernel.scheduler.shares, self._word(tool)
        if shares is None or self.words.get(tool) == word:
            return
        if word is None:
            del self.words[tool]
        else:
            self.words[tool] = word
        shares.call()

    def _word(self, tool: str) -> Word | None:
        """The strictest that is said here; else what held last; None where that is nothing."""
        said = self._said.get(tool)
        lowest = min(said) if said else None
        runtime = self._kernel.tools.get(tool)
        mine = None if runtime is None else runtime.max_parallel
        if mine is not None and (lowest is None or mine <= lowest):
            return Word(mine, RUNTIME)
        if said and lowest is not None:
            return Word(lowest, next(iter(said[lowest])))
        known = self._kernel.breakers.get(tool)
        if known is None or known.record.max_parallel is None or known.record.limit_by == RUNTIME:
            return None  # a runtime that says nothing any more is not heard on
        return Word(known.record.max_parallel, known.record.limit_by or "", last=True)
