"""The event loop of a simulation: asyncio in virtual time, turned explicitly.

Rules
-----
- Coroutines run here: bodies that are async functions, commands, coroutine receives of actors.
  Everything else of a simulation runs between two turns of this loop, as callbacks of a loop do.
- Its time is the simulation's clock. `turn` runs the ready callbacks, and never waits for time to pass; `next_due`
  returns when its next timer is due.
- Work in threads takes no virtual time: a turn really waits until the threads have finished.
- No socket is read or written here: a coroutine that waits for one never continues, and the simulation says so.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import threading
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import anyio

from ..dispatch import given_up
from ..dispatch.abandoned_threads import AbandonedThreads, running_body
from ..dispatch.body_context import asyncio_scope, insides, scope_around
from ..dispatch.runners import BodyCancelled
from .errors import SimulationError
from .real_threads import LIMIT, functions_in_threads

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
MOST_TURNS = 100_000
"""The most turns of the loop in a row; more mean that a coroutine runs in circles."""


class _NoFiles(selectors.BaseSelector):
    """Stores the files that the loop registers, and never reports one as ready."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:  # noqa: ARG002
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {key.fileobj: key for key in self._keys.values()}

    def close(self) -> None:
        self._keys.clear()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop. `now` returns the time in seconds. Only the thread that made the loop may turn it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._armed = 0
        self._stirred = False  # whether a callback is ready
        self._owner = threading.get_ident()
        self._heard = threading.Event()  # set by another thread
        self._turns = 0
        super().__init__(_NoFiles())

    # -- the interface of asyncio -----------------------------------------------------------------------------------

    def time(self) -> float:
        """The simulation's monotonic time."""
        return self._now()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's."""
        self._stirred = True
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's."""
        handle = self.call_soon(callback, *args, context=context)
        if threading.get_ident() != self._owner:
            self._heard.set()
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        handle = super().call_at(when, callback, *args, context=context)
        self._armed += 1
        heappush(self._timers, (when, self._armed, handle))
        return handle

    def run_in_executor(  # at once: nothing else happens meanwhile in any case
        self,
        executor: Any,  # noqa: ARG002
        func: Callable[[*Ts], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """As asyncio's, without a thread."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # the caller, who waits for it, gets the error
            future.set_exception(error)
        return future

    # -- for the simulation --------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When its next timer is due; None if none is armed."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        return timers[0][0] if timers else None

    @property
    def has_work(self) -> bool:
        """Whether `turn` would run anything at the present time."""
        if self._stirred:
            return True
        due = self.next_due()
        return due is not None and due <= self._now()

    def turn(self) -> None:
        """Run ready callbacks, until none is left. Raises SimulationError if that never ends."""
        now = self._now()
        while self._timers and self._timers[0][0] <= now:
            heappop(self._timers)
        self._stirred = False
        self._turns = 0
        super().call_soon(self._go_round)
        with no_other_loop():
            self.run_forever()
        if self._turns >= MOST_TURNS:
            raise SimulationError(
                f"a coroutine was still busy after {MOST_TURNS} turns of the event loop, at one and the same moment: "
                "it repeats without end. Let it wait for time to pass (`await anyio.sleep(1)` costs nothing here)."
            )

    def _go_round(self) -> None:
        if self._stirred and self._turns < MOST_TURNS:
            self._stirred = False
            self._turns += 1
            super().call_soon(self._go_round)
        else:
            self.stop()

    def wait_for_threads(self) -> bool:
        """Wait until a thread has finished a coroutine's work. False if there was none, or it took too long."""
        if threading.active_count() == 1:
            return False
        looking = self.create_task(_threads_at_work())
        self.turn()
        if not looking.result():
            return False
        heard = self._heard.wait(LIMIT)
        self._heard.clear()
        return heard

    @contextmanager
    def here(self) -> Generator[None]:
        """Let code run as a callback of this loop, without a turn."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(before)


async def _threads_at_work() -> bool:
    return functions_in_threads() > 0


@contextmanager
def no_other_loop() -> Generator[None]:
    """Let a loop be turned, also inside another running loop."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


class SimulatedRunning:
    """The handle of a running coroutine, which cancels it."""

    def __init__(self) -> None:
        self.scope: anyio.CancelScope | None = None  # while it runs
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the coroutine. If it has not started, it never starts; if it has ended, nothing changes."""
        self.cancelled = True
        if self.scope is not None:
            self.scope.cancel()


class SimulatedRunners:
    """Runs coroutines on the loop of a simulation, as a `RunnerPool` does on others."""

    runners = idle = 0

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._base = contextvars.copy_context()
        self._tasks: dict[asyncio.Task[None] | None, SimulatedRunning] = {}
        self._threads = AbandonedThreads()

    def runs_here(self) -> bool:
        """Whether the caller runs as one of these coroutines, or below one."""
        return asyncio.current_task(self._loop) in self._tasks

    def is_alone_here(self) -> bool:
        """Whether the caller is a body itself, with no task group and no time limit around it."""
        running = self._tasks.get(asyncio.current_task(self._loop))
        return running is not None and asyncio_scope()() is running.scope

    def is_only_task_here(self) -> bool:
        """Whether the caller is a body itself, and no other task runs in the time limits and task groups around it."""
        running = self._tasks.get(asyncio.current_task(self._loop))
        if running is None:
            return False
        scope = asyncio_scope()()
        while scope is not None and scope is not running.scope:
            if insides(scope) != 1:
                return False
            scope = scope_around(scope)
        return True

    async def gave_up_here(self) -> str | None:
        """How the body has given up the call whose cancellation is being raised here (`given_up.py`)."""
        return await given_up.gave_up(self._bases())

    async def limit_here(self, way: str) -> given_up.Limit | None:
        """The limit by which the body gave up this call before; None if there is no such limit now."""
        return await given_up.limit(way, self._bases())

    def _bases(self) -> set[Any]:
        return {running.scope for running in self._tasks.values()}

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]

    def context_of(
        self, owner: str, context: contextvars.Context | None = None, adds: object = None
    ) -> contextvars.Context:
        """Make a context for the coroutines of one owner; see `RunnerPool.context_of`."""
        context = self._base.copy() if context is None else context
        context.run(running_body.set, (self._threads, owner, adds))
        return context

    def submit(
        self,
        func: Callable[[], Awaitable[Any]],
        done: Callable[[Any, BaseException | None], None],
        *,
        context: contextvars.Context | None = None,
    ) -> SimulatedRunning:
        """Run `await func()` soon, and call `done(value, None)` or `done(None, error)` when it is over."""
        running = SimulatedRunning()
        task = self._loop.create_task(self._run(running, func, done), context=context or self._base.copy())
        self._tasks[task] = running
        task.add_done_callback(self._over)
        return running

    async def _run(
        self,
        running: SimulatedRunning,
        func: Callable[[], Awaitable[Any]],
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        value: Any = None
        error: BaseException | None = BodyCancelled("it was cancelled")
        try:
            if not running.cancelled:
                with anyio.CancelScope() as running.scope:
                    value = await func()
                    error = None
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
        finally:
            running.scope = None
        done(value, error)
