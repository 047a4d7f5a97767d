"""Reads the kept steps of flows before their bodies start: of several flows in one call of a thread.

To have a thread do something takes longer than to read a short history, and after a restart thousands are read at once.

Rules
- Histories are read about in the order in which they were asked for, in at most `READERS` threads.
- The error of one history concerns its flow only. That of a call concerns the flows of the call only: the others are
  read after a pause. If a call could not be made for lack of a resource (a thread, memory), its flows are read again
  after that pause, too: a start for which there is no resource now is no loss.
- If the runtime closes meanwhile, all waiting flows get the error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ...actors.records.step import StepRecord
from ...actors.user_code import contained
from ..dispatch.runners import BodyCancelled, PoolClosed
from ..engines.shortage import Pauses, is_shortage

if TYPE_CHECKING:
    from ..dispatch.runners import RunnerPool
    from ..journal.contract import Reader

READERS = 2
FLOWS_AT_ONCE, STEPS_AT_ONCE = 32, 1_000
"""A call ends after so many flows or steps: so the first bodies start soon."""

Over: TypeAlias = Callable[[list[StepRecord], BaseException | None], object]
"""Called with the kept steps of a flow, or with the error why they could not be read."""


class Histories:
    """The histories that one runtime reads. read: asks the journal in a thread. after: calls a function later."""

    def __init__(
        self,
        runners: RunnerPool,
        read: Callable[..., Awaitable[Any]],
        reader: Callable[[], Reader],
        after: Callable[[float, Callable[[], object]], object],
    ) -> None:
        self._runners = runners
        self._read = read
        self._reader = reader
        self._after = after
        self._readers = 0
        self._asked: deque[tuple[int, Over]] = deque()
        self._pauses = Pauses()
        self._pausing = False

    def get(self, flow: int, over: Over) -> None:
        """Read the kept steps of a flow."""
        self._asked.append((flow, over))
        self._go_on()

    def _go_on(self) -> None:
        if self._asked and self._readers < READERS and not self._pausing:
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
                self._failed(some, error)
                return
            self._pauses.over()
            self._asked.extendleft(reversed(some[len(found) :]))
            try:
                self._go_on()
            finally:
                for (_, tell), steps in zip(some, found, strict=False):
                    tell(*(([], steps) if isinstance(steps, Exception) else (steps, None)))

        self._readers += 1
        try:
            self._runners.submit(read, over)
        except PoolClosed as closed:
            self._readers -= 1
            self._failed([], closed)

    def _failed(self, some: list[tuple[int, Over]], error: BaseException | None) -> None:
        """A call for some flows has failed. Go on with the others after a pause, unless the runtime closes."""
        if isinstance(error, (PoolClosed, BodyCancelled)):
            some += self._asked
            self._asked.clear()
        else:
            if is_shortage(error):
                self._asked.extendleft(reversed(some))
                some = []
            if not self._pausing:
                self._pausing = True
                self._after(self._pauses.next(), self._pause_over)
        for _, tell in some:
            tell([], error)

    def _pause_over(self) -> None:
        self._pausing = False
        self._go_on()


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
