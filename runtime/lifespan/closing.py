"""How what a runtime has opened is closed again, and how long each step of that may take.

Rules
-----
- What was opened goes onto `stack`, and is closed in the reverse order, however far opening came.
- With a journal that cannot be written, or does not answer, a step has half of what is left until `leave_by`. Who still
  waits for an answer of the journal then is cut off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from ..engines.contract import Engine

if TYPE_CHECKING:
    from ..services import RuntimeServices

CLOSING = 5.0
"""Seconds that each step of closing may take once nothing is waited for any more."""
HOPELESS = 0.5
"""The same, where the journal could not be written for as long before."""
REST = 2.0
"""Seconds that leaving may take beyond the drain deadline, and the time that what runs has to go, where the journal
cannot be written or does not answer: all of its steps together, each at most half of what is left."""
SHORTEST_STEP = 0.1
"""Seconds that each of them has nevertheless."""


class Closing:
    """The closing of one runtime."""

    group: TaskGroup
    """Of all its tasks."""

    def __init__(self, services: RuntimeServices) -> None:
        self.stack = AsyncExitStack()
        self.hopeless = False
        """The journal has not answered in time while the runtime was left."""
        self.leave_by: float | None = None
        """By the event loop's clock: when the runtime should be left, with a journal that is no help."""
        self._services = services
        self._engines_over: float | None = None  # the same of its engines

    def in_time(self, limit: float) -> None:
        """Have the runtime left so many seconds from now, and no later than was said before."""
        leave_by = anyio.current_time() + limit + REST
        self.leave_by = leave_by if self.leave_by is None else min(leave_by, self.leave_by)

    @property
    def answers(self) -> bool:
        """Whether the journal is of any help."""
        return self._services.journal.health.ok and not self.hopeless

    @property
    def patience(self) -> float:
        """Seconds that a step of closing may take: less where it is for a journal that cannot be written for long."""
        if self.answers:
            return CLOSING
        since = self._services.journal.health.since
        failing = CLOSING if since is None else self._services.host.now() - since
        step = min(CLOSING, max(HOPELESS, CLOSING - failing))
        left = REST if self.leave_by is None else self.leave_by - anyio.current_time()
        return max(SHORTEST_STEP, min(step, left / 2))

    @contextmanager
    def cut_off(self, limit: float) -> Generator[None]:
        """Have nobody wait longer than so many seconds from now for an answer of the journal's."""
        scope = anyio.CancelScope()
        self.group.start_soon(self._cut_after, limit, scope)
        try:
            yield
        finally:
            scope.cancel()

    async def _cut_after(self, limit: float, scope: anyio.CancelScope) -> None:
        with scope:
            await anyio.sleep(limit)
            self.hopeless = True
            if self._services.journal.cluster is not None:
                self._services.journal.cluster.cut()
            self._services.questions.give_up()

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have closed at its turn what asks the journal."""
        self.stack.push_async_callback(self._end, close)

    async def _end(self, close: Callable[[], Awaitable[None]]) -> None:
        with self.cut_off(self.patience):
            await close()

    async def open_engine(self, engine: Engine) -> None:
        """Open an engine. All engines together have `CLOSING` seconds to close."""
        await engine.open()
        self.stack.push_async_callback(self._close_engine, engine)

    async def _close_engine(self, engine: Engine) -> None:
        now = anyio.current_time()
        if self._engines_over is None:
            self._engines_over = now + CLOSING
        await engine.close(max(0.0, self._engines_over - now))
