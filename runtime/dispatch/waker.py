"""Parking and waking, natively on each event loop.

Rules
- Parking does not poll: the task sleeps until it is woken or its time is over.
- A wake-up before the parking is not lost; several wake-ups before it count as one.
- `wake` and `Waiter.set` are for the loop's own thread; `call_threadsafe` is for all others.
- An alarm may ring before the requested time: an earlier alarm stays armed, since this costs less than to arm and
  cancel an alarm for each sleep.
- A waker is made on the event loop to which it belongs. Neither asyncio nor trio is imported unless it is running.
- Code that uses an object of one loop on another loop, or in another thread, is refused before it has any effect: no
  waiting task would be woken there (`OwnLoop`).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from ..loaded_modules import under_trio

if TYPE_CHECKING:
    import asyncio

    import trio

    from ...actors.users.host import Waiter

__all__ = ["OwnLoop", "Waker", "native_waiter", "native_waker"]


ACTORS = "an actor"
"""The name of objects that belong to the event loop of a dispatcher, for an error's text."""


class OwnLoop:
    """The event loop and the thread to which an object belongs: those in which this is made."""

    __slots__ = ("_loop", "_running", "_thread")

    def __init__(self) -> None:
        self._thread = get_ident()
        self._running: Callable[[], object] = _no_loop
        if not under_trio():
            import asyncio  # noqa: PLC0415 - only where it is running, and so imported already

            self._running = asyncio._get_running_loop  # raises nothing without a loop, and is the fastest check
        self._loop = self._running()

    @property
    def here(self) -> bool:
        """Whether the present code runs on this loop, or in its thread between two turns of it."""
        running = self._running()
        return (running is self._loop or running is None) and get_ident() == self._thread

    def check(self, what: str) -> None:
        """Refuse the use of `what` anywhere else. Raises RuntimeError."""
        running = self._running()  # as in `here`: each ask would pay for one more call
        if (running is not self._loop and running is not None) or get_ident() != self._thread:
            raise RuntimeError(
                f"{what} belongs to the event loop on which its runtime was opened, and is used on another one, or in "
                "another thread, where nothing would wake its waiters. From a thread use "
                "runtime.portal.call(func, ...), of an actor's reference also tell_threadsafe; from another asyncio "
                "loop use asyncio.run_coroutine_threadsafe(coroutine, loop)"
            )


def _no_loop() -> None:
    """In place of a loop of trio: only one runs in a thread, so the thread alone is compared."""


class Waker(Protocol):
    """How one task of the present event loop sleeps and is woken."""

    own_loop: OwnLoop
    """The event loop."""

    async def park(self, seconds: float | None) -> None:
        """Sleep until woken, at most `seconds` (None: no limit)."""
        ...

    async def breathe(self) -> None:
        """Let the event loop run all other tasks once. Cancellation is raised here."""
        ...

    def wake(self) -> None:
        """Wake the parked task, or keep the next `park` from sleeping. Raises RuntimeError in another thread."""
        ...

    def alarm(self, seconds: float) -> None:
        """End the present sleep in at most `seconds`. Call it while the task sleeps, or as it begins to."""
        ...

    def call_threadsafe(self, function: Callable[[], object]) -> bool:
        """Call a function in the next turn of the loop. From any thread. False if the loop has ended."""
        ...

    def close(self) -> None:
        """The task will not sleep again."""
        ...

    def waiter(self) -> Waiter:
        """An event that another task of this loop can wait for. Raises RuntimeError where another loop runs."""
        ...


class _AsyncioWaker:
    __slots__ = ("_alarm", "_alarm_at", "_breathe", "_future", "_loop", "_woken", "own_loop")

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - only where it is running, and so imported already

        self.own_loop = OwnLoop()
        self._breathe = asyncio.sleep
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._woken = False

    async def park(self, seconds: float | None) -> None:
        if self._woken:
            self._woken = False
            await self._breathe(0)
            return
        self._future = future = self._loop.create_future()
        if seconds is not None:
            self.alarm(seconds)
        try:
            await future
        finally:
            self._future = None
            self._woken = False

    def alarm(self, seconds: float) -> None:
        due = self._loop.time() + seconds
        if self._alarm is None or due < self._alarm_at:
            self.close()
            self._alarm, self._alarm_at = self._loop.call_at(due, self._ring), due

    def _ring(self) -> None:
        self._alarm = None
        if self._future is not None:
            self.wake()

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def breathe(self) -> None:
        await self._breathe(0)

    def wake(self) -> None:
        self.own_loop.check(ACTORS)
        future = self._future
        if future is None:
            self._woken = True
        elif not future.done():
            future.set_result(None)

    def call_threadsafe(self, function: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop is closed: asyncio has no other error for it
            return False
        return True

    def waiter(self) -> Waiter:
        self.own_loop.check(ACTORS)
        return _AsyncioWaiter(self._loop)


class _TrioWaker:
    __slots__ = ("_scope", "_task", "_token", "_trio", "_woken", "own_loop")

    def __init__(self) -> None:
        import trio  # noqa: PLC0415 - only where it is running, and so imported already

        self.own_loop = OwnLoop()
        self._trio = trio
        self._token = trio.lowlevel.current_trio_token()
        self._scope: trio.CancelScope | None = None
        self._task: trio.lowlevel.Task | None = None
        self._woken = False

    async def park(self, seconds: float | None) -> None:
        if self._woken:
            self._woken = False
            await self._trio.lowlevel.checkpoint()
            return
        self._scope = scope = self._trio.CancelScope()
        with scope:
            if seconds is not None:
                self.alarm(seconds)
            try:
                await self._sleep()
            finally:
                self._scope = None

    def alarm(self, seconds: float) -> None:
        if self._scope is not None:
            self._scope.deadline = min(self._scope.deadline, self._trio.current_time() + seconds)

    async def breathe(self) -> None:
        await self._trio.lowlevel.checkpoint()

    async def _sleep(self) -> None:
        lowlevel = self._trio.lowlevel
        self._task = lowlevel.current_task()
        try:
            await lowlevel.wait_task_rescheduled(self._abort)
        finally:
            self._task = None
            self._woken = False

    def _abort(self, _: Callable[[], object]) -> trio.lowlevel.Abort:
        self._task = None
        return self._trio.lowlevel.Abort.SUCCEEDED

    def wake(self) -> None:
        self.own_loop.check(ACTORS)
        task = self._task
        if task is None:
            self._woken = True
        else:
            self._task = None
            self._trio.lowlevel.reschedule(task)

    def call_threadsafe(self, function: Callable[[], object]) -> bool:
        try:
            self._token.run_sync_soon(function, idempotent=True)
        except self._trio.RunFinishedError:
            return False
        return True

    def close(self) -> None:
        """Nothing to do: the alarm ends with the sleep."""

    def waiter(self) -> Waiter:
        self.own_loop.check(ACTORS)
        return _TrioWaiter(self._trio)


class _AsyncioWaiter:
    __slots__ = ("_future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._future: asyncio.Future[None] = loop.create_future()

    def wait(self) -> asyncio.Future[None]:
        return self._future

    def set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class _TrioWaiter:
    __slots__ = ("_set", "_task", "_trio")

    # Any: a module that type checkers know only by its import, which happens under trio alone.
    def __init__(self, trio: Any) -> None:
        self._trio = trio
        self._task: Any = None
        self._set = False

    async def wait(self) -> None:
        lowlevel = self._trio.lowlevel
        if self._set:
            await lowlevel.checkpoint()
            return
        self._task = lowlevel.current_task()
        await lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: Callable[[], object]) -> Any:
        self._task = None
        return self._trio.lowlevel.Abort.SUCCEEDED

    def set(self) -> None:
        self._set = True
        task = self._task
        if task is not None:
            self._task = None
            self._trio.lowlevel.reschedule(task)


def native_waker() -> Waker:
    """A waker for the event loop that runs here."""
    return _TrioWaker() if under_trio() else _AsyncioWaker()


def native_waiter() -> Waiter:
    """A waiter for the event loop that runs here. Raises `RuntimeError` if none does."""
    return native_waker().waiter()
