"""Reads the kept steps of flows before their bodies start: of several flows in one call of a thread.

To have a thread do something takes longer than to read a short history, and after a restart thousands are read at once.

Rules
- Histories are read about in the order in which they were asked for, in at most `READERS` threads.
- The error of one history concerns its flow only. If the runtime closes meanwhile, all that wait get the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...actors.records.step import StepRecord
from ...actors.user_code import contained

if TYPE_CHECKING:
    from ..dispatch.runners import RunnerPool
    from ..journal.contract import Reader

READERS = 2
FLOWS_AT_ONCE, STEPS_AT_ONCE = 32, 1_000
"""A call ends after so many flows or steps: so the first bodies start soon."""

Over: TypeAlias = Callable[[list[StepRecord], BaseException | None], object]
"""Called with the kept steps of a flow, or with the error why they could not be read."""


class Histories:
    """The histories that one runtime reads. read: asks the journal in a thread."""

    def __init__(self, runners: RunnerPool, read: Callable[..., Awaitable[Any]], reader: Callable[[], Reader]) -> None:
        self._runners = runners
        self._read = read
        self._reader = reader
        self._readers = 0
        self._asked: deque[tuple[int, Over]] = deque()

    def get(self, flow: int, over: Over) -> None:
        """Read the kept steps of a flow. Raises PoolClosed."""
        self._asked.append((flow, over))
        if self._readers < READERS:
            self._read_some()

    def _read_some(self) -> None:
        some: list[tuple[int, Over]] = []

        async def read() -> list[list[StepRecord] | Exception]:
            while self._asked and len(some) < FLOWS_AT_ONCE:
                some.append(self._asked.popleft())
            found: list[list[StepRecord] | Exception] = []
            if some:
                found = await self._read(_steps_of, self._reader(), [flow for flow, _ in some])
            return found

        def over(found: list[list[StepRecord] | Exception] | None, error: BaseException | None) -> None:
            self._readers -= 1
            if found is None:
                self._give_up(some, error)
                return
            self._asked.extendleft(reversed(some[len(found) :]))
            try:
                if self._asked:
                    self._read_some()
            finally:
                for (_, tell), steps in zip(some, found, strict=False):
                    tell(*(([], steps) if isinstance(steps, Exception) else (steps, None)))

        self._readers += 1
        self._runners.submit(read, over)

    def _give_up(self, some: list[tuple[int, Over]], error: BaseException | None) -> None:
        """Nothing can be read any more."""
        some += self._asked
        self._asked.clear()
        for _, tell in some:
            tell([], error)


def _steps_of(reader: Reader, flows: Sequence[int]) -> list[list[StepRecord] | Exception]:
    """The kept steps of the first of these flows, or the errors. At least one is read."""
    found: list[list[StepRecord] | Exception] = []
    left = STEPS_AT_ONCE
    for flow in flows:
        try:
            steps = reader.steps(flow)
        except Exception as error:  # of this flow: its records may be damaged
            found.append(contained(error))
        else:
            found.append(steps)
            left -= len(steps)
        if left <= 0:
            break
    return found
