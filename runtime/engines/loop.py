"""The engine for async functions: bodies on the runtime's own event loop, on its pool of runners.

A stop is a cancellation of the body's scope. A forced stop waits a few iterations of the loop, so that a body that
reacts at once still ends as cancelled. Then it abandons the body, which stays where it waits
(`runtime/dispatch/runners.py`). Plain functions are run as well, directly on the loop: only for cheap ones (conditions,
hooks).
"""

from __future__ import annotations

import contextvars
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ...actors.messages.errors import FlowAsleep
from ...actors.user_code import is_a
from ..calling import Ended
from ..dispatch.loop_bridge import LoopBridge
from ..dispatch.runners import BodyCancelled, RunnerPool, Running
from .base import BaseEngine, Run
from .context import connection_of
from .contract import Beat, Call
from .invocation import bind, bind_logging

_TURNS = 3  # iterations of the loop, for a cancelled body to unwind
_STOPS_AT_ONCE = 100  # bodies stopped in one iteration of the loop: all of them unwind in the next


class _LoopRun(Run, kw_only=True, eq=False):
    engine: LoopEngine
    running: Running[Any] | None = None

    async def body(self) -> Any:
        self.began = self.engine.clock()
        value: object = bind(self.call)()
        if not hasattr(type(value), "__await__"):
            return value
        awaitable: Any = value  # no cast: this is the hot path
        return await awaitable

    def over(self, value: Any, error: BaseException | None) -> None:
        self.engine.over(self, value, error)


class LoopEngine(BaseEngine[_LoopRun]):
    """Runs async functions on `pool`, in the task group of the pool."""

    name = "loop"

    def __init__(self, pool: RunnerPool, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock=clock)
        self._pool = pool
        self._base = contextvars.copy_context()
        self._stops = 0  # in this iteration of the loop
        self._stopping = False  # a call of `_stop_more` is scheduled
        self._to_stop: deque[tuple[_LoopRun, bool]] = deque()

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call's function. Raises EngineClosed, or ValueError for a token that is running."""
        line = self._admit(call)
        run = _LoopRun(call=call, ended=ended, beat=beat, engine=self)
        context = self._base.copy()
        if call.context is not None:
            connection_of(call.context).attach(partial(beat, call.token), raises=False, line=line)
        if call.bound is not None:
            bind_logging(context, call.bound)
        run.running = self._pool.submit(run.body, run.over, context=self._pool.context_of(call.about, context, call))
        self._runs[call.token] = run

    def over(self, run: _LoopRun, value: Any, error: BaseException | None) -> None:
        """Report the end of a run's body."""
        run.running = None  # the handle references the run: without this cycle, the end of the call frees both
        if error is None:
            self._end(run, self._returned(run, value))
        elif is_a(error, FlowAsleep):  # without its traceback, which nobody reads
            self._end(run, self._cancelled(run, "it fell asleep"))
        elif is_a(error, BodyCancelled):
            self._end(run, self._cancelled(run, str(error)))
        else:
            self._end(run, self._raised(run, error))

    def _stop(self, run: _LoopRun, *, force: bool) -> None:
        line = self._line or LoopBridge()
        if self._stops < _STOPS_AT_ONCE:
            self._stop_now(line, run, force)
        else:
            self._to_stop.append((run, force))
        if not self._stopping:
            self._stopping = True
            line.post(self._stop_more, line)

    def _stop_more(self, line: LoopBridge) -> None:
        """In the next iteration of the loop: stop the next bodies."""
        self._stops = 0
        self._stopping = bool(self._to_stop)
        while self._to_stop and self._stops < _STOPS_AT_ONCE:
            self._stop_now(line, *self._to_stop.popleft())
        if self._stopping:
            line.post(self._stop_more, line)

    def _stop_now(self, line: LoopBridge, run: _LoopRun, force: bool) -> None:
        self._stops += 1
        if run.running is not None:
            run.running.cancel()
        if force:
            line.post(self._abandon_after, line, run, _TURNS)

    def _abandon(self, run: _LoopRun) -> None:
        super()._abandon(run)
        if run.running is not None:
            run.running.abandon(0)

    def _abandon_after(self, line: LoopBridge, run: _LoopRun, turns: int) -> None:
        if turns and self._runs.get(run.call.token) is run:
            line.post(self._abandon_after, line, run, turns - 1)
        else:
            self._abandon(run)
