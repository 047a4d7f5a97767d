"""The engine for plain functions: its own threads, which are reused and take calls from one queue.

A thread cannot be killed. A stop sets the flag that `heartbeat()` checks, and `TaskCancelled` raised there ends the
body. A forced stop abandons it at once: its late result is dropped and counted, and another thread takes its place
until it returns. The threads are daemons, so that a body which never ends cannot delay the interpreter's exit.

The caller limits how many calls run at once (a worker's capacity): a call that finds no free thread gets a new one. All
counting happens on the loop; threads only take, run and post.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import CoroutineType
from typing import Any

import msgspec

from ...actors.messages.errors import TaskCancelled
from ...actors.user_code import is_a, text_of
from ..calling import Ended
from ..dispatch.abandoned_threads import AbandonedThreads, running_body
from ..dispatch.loop_bridge import LoopBridge
from ..dispatch.threads import on_no_loop
from .base import BaseEngine, Run
from .context import connection_of
from .contract import Beat, Call
from .heartbeats import Heartbeats
from .invocation import bind, bind_logging

_IDLE = 32  # maximum of free threads


class _ThreadRun(Run, kw_only=True, eq=False):
    context: contextvars.Context
    line: LoopBridge
    heartbeats: Heartbeats = msgspec.field(default_factory=Heartbeats)
    abandoned: bool = False


class ThreadEngine(BaseEngine[_ThreadRun]):
    """Runs plain functions in daemon threads."""

    name = "thread"

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, abandoned_threads: AbandonedThreads | None = None
    ) -> None:
        super().__init__(clock=clock)
        self._abandoned_threads = abandoned_threads or AbandonedThreads()  # a body may have started threads of its own
        self._base = contextvars.copy_context()
        self._base.run(on_no_loop)
        self._queue: SimpleQueue[_ThreadRun | None] = SimpleQueue()
        self._threads = 0  # the number of threads that take calls, without those of abandoned bodies
        self._busy = 0

    @property
    def threads(self) -> int:
        """The number of threads that take calls."""
        return self._threads

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call's function. Raises EngineClosed, or ValueError for a token that is running."""
        line = self._admit(call)
        run = _ThreadRun(call=call, ended=ended, beat=beat, context=self._base.copy(), line=line)
        run.context.run(running_body.set, (self._abandoned_threads, call.about, call))
        if call.context is not None:
            connection_of(call.context).attach(partial(self._beat, run), raises=True)
        if call.bound is not None:
            bind_logging(run.context, call.bound)
        if self._busy >= self._threads:
            threading.Thread(target=self._work, name="callboard-thread", daemon=True).start()  # raises on a shortage
            self._threads += 1
        self._busy += 1
        self._runs[call.token] = run
        self._queue.put(run)

    async def open(self) -> None:
        """Prepare to run calls on the running event loop."""
        await super().open()
        self._queue = SimpleQueue()  # threads from before the last `close` keep their old queue
        self._threads = self._busy = 0

    async def close(self, deadline: float) -> None:
        """Stop all calls, wait at most `deadline` seconds, abandon the rest; free threads end."""
        await super().close(deadline)
        while self._threads > self._busy:
            self._dismiss()

    def _work(self) -> None:
        """The loop of a thread: take a call, run it, post its result."""
        queue = self._queue
        while (run := queue.get()) is not None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = self._run(run)
            except BaseException as raised:
                error = raised
            run.line.post(self._done, run, value, error)
            del run, value, error  # keep no references while waiting for the next call
            if self._line is None:
                return  # closed: the loop may have ended, so no order to end would come

    def _run(self, run: _ThreadRun) -> Any:
        if run.stopped:
            raise TaskCancelled("cancelled before it started")
        run.began = self.clock()
        value = run.context.run(bind(run.call))
        if type(value) is CoroutineType:
            value.close()
            raise TypeError(
                "the function returned a coroutine, which a thread cannot run; declare the function `async def`"
            )
        return value

    def _done(self, run: _ThreadRun, value: Any, error: BaseException | None) -> None:
        if run.abandoned:
            self._threads += 1  # the call's thread has returned
        else:
            self._busy -= 1
        if self._line is None or self._threads - self._busy > _IDLE:
            self._dismiss()
        if error is None:
            self._end(run, self._returned(run, value))
        elif is_a(error, TaskCancelled) and run.stopped:
            self._end(run, self._cancelled(run, text_of(error)))
        else:
            self._end(run, self._raised(run, error))

    def _dismiss(self) -> None:
        self._threads -= 1
        self._queue.put(None)

    def _stop(self, run: _ThreadRun, *, force: bool) -> None:
        self._abandoned_threads.stopped = True
        if force:
            run.line.post(self._abandon, run)

    def _abandon(self, run: _ThreadRun) -> None:
        if self._runs.get(run.call.token) is run:
            run.abandoned = True
            self._threads -= 1
            self._busy -= 1
            super()._abandon(run)

    def _beat(self, run: _ThreadRun, details: Any) -> None:
        """Handle a heartbeat, in the body's thread."""
        if run.heartbeats.take(details):
            run.line.post(self._pass_on, run)

    def _pass_on(self, run: _ThreadRun) -> None:
        if self._runs.get(run.call.token) is run:
            run.heartbeats.pass_on(partial(run.beat, run.call.token))
