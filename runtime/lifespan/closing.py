"""How a runtime closes the parts that it has opened, and how long each step may take.

Rules
-----
- Every opened part goes onto `stack`, and is closed in the reverse order, however far the opening came.
- If the journal cannot be written or does not answer, each step has half of the time until `leave_by`. Then all waits
  for an answer of the journal are ended.
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
"""The limit of each step of closing in seconds, after the waits have ended."""
HOPELESS = 0.5
"""This limit in seconds, if the journal could not be written for as long before."""
REST = 2.0
"""Seconds for all steps of closing together, if the journal cannot be written or does not answer.

They begin after the drain deadline and the grace of running calls. Each step gets at most half of the remaining time.
"""
SHORTEST_STEP = 0.1
"""Seconds that each step has at least."""


class Closing:
    """The closing of one runtime."""

    group: TaskGroup
    """The task group of all tasks of the runtime."""

    def __init__(self, services: RuntimeServices) -> None:
        self.stack = AsyncExitStack()
        self.hopeless = False
        """Whether the journal has not answered in time while the runtime closed."""
        self.leave_by: float | None = None
        """The time, by the event loop's clock, at which the runtime should be closed if the journal does not work."""
        self._services = services
        self._engines_over: float | None = None  # the same for the engines

    def in_time(self, limit: float) -> None:
        """Limit the closing to so many seconds from now. An earlier limit stays."""
        leave_by = anyio.current_time() + limit + REST
        self.leave_by = leave_by if self.leave_by is None else min(leave_by, self.leave_by)

    @property
    def answers(self) -> bool:
        """Whether the journal can be written and answers."""
        return self._services.journal.health.ok and not self.hopeless

    @property
    def patience(self) -> float:
        """The limit of a step of closing in seconds: less if the journal could not be written for long."""
        if self.answers:
            return CLOSING
        since = self._services.journal.health.since
        failing = CLOSING if since is None else self._services.host.now() - since
        step = min(CLOSING, max(HOPELESS, CLOSING - failing))
        left = REST if self.leave_by is None else self.leave_by - anyio.current_time()
        return max(SHORTEST_STEP, min(step, left / 2))

    @contextmanager
    def cut_off(self, limit: float) -> Generator[None]:
        """End all waits for an answer of the journal after so many seconds."""
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
            self._services.queries.give_up()

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Add a close function to the stack, for a part that queries the journal."""
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
