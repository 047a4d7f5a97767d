"""A pool of parked runner tasks that run coroutines one after another, without a new task for each.

The start of a task costs more than most bodies that run in it (``start_soon`` of anyio: about 20 us). So the tasks are
kept: an idle runner parks, and a submission wakes it. If more bodies wait in the queue, a runner that takes one of them
wakes the next runner first. So wake-ups are few: a few runners run all bodies that never wait, one after another, and
each body that waits has a runner of its own.

Rules:
- A runner runs one body at a time, inside the runner's cancel scope. The runner leaves a cancelled scope before the
  next body begins, so a late cancel never hits another body. A body may leave a timeout open (an unfinished async
  generator does that): the runner closes such scopes at the end of the body, and counts them.
- Each body runs in a ``contextvars.Context`` of its own; ``done`` never sees it.
- ``done`` is called exactly once for each submission, on the loop, never inside ``submit`` or ``cancel``.
  It must not raise: its error would be an error of the runtime, and would end the host's task group.
- All errors of a body are reported to its ``done``, also SystemExit, a KeyboardInterrupt that the body raises, and
  exception groups. Only a genuine cancellation of the host's task group and an interrupt from the terminal pass
  through; then every remaining body ends as cancelled.
- A cancellation is genuine only if a cancel scope around the runner requested it. In asyncio any code may cancel any
  task, and a body may cancel its own task. Such a stray cancel ends that body as failed, and ends its runner without an
  error; other runners run the next bodies.
- A body, or a task that it waits for, may swallow the body's cancellation. The cancellation is delivered a few times at
  once, and then a limited number of times after growing pauses. So such a body costs little: its scope does not deliver
  the cancellation in every turn of the loop.
- An abandoned body stays where it waits: no more of its code runs, except the code that runs when a coroutine is
  closed, and its runner is free. Shields of the body do not protect the body then. A body that waits for an
  operation that cannot be interrupted (under trio a thread, or the body's own nursery) is left to the event loop.
- Other threads must not use this module.

Wake-ups: ``_coming`` counts the runners that will look at the queue without a wake-up: started or woken runners that
have not arrived yet, and runners that let the loop turn between two bodies. While bodies wait, there is always one such
runner. Each runner that takes a body wakes others until there are as many as bodies, or ``_WAKE_AHEAD``.
"""

# The pool, its runners and its handles are one mechanism, and see each other's fields:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextvars
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from ...actors.user_code import from_terminal, is_a
from ..loaded_modules import imported, under_trio
from . import given_up
from .abandoned_threads import AbandonedThreads, running_body
from .body_context import (
    asyncio_scope,
    being_cancelled,
    inside,
    insides,
    scope_around,
    sort_out,
    stray,
    trio_scope,
)
from .detached import present_task, start_detached
from .loop_bridge import LoopBridge

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

T = TypeVar("T")

_WAKE_AHEAD = 4  # runners on their way at once: bodies that wait start this many per turn of the loop
_IN_A_ROW = 16  # bodies that one runner runs before it lets the loop turn
_TURNS = 3  # turns of the loop in which an abandoned body may unwind
_AT_ONCE = 5  # how often a cancellation is delivered to a body without a pause
_DELIVERIES = 8  # how often it is delivered after a pause, each twice as long as the one before
_PAUSE = 0.05  # seconds: the first one


class BodyCancelled(Exception):  # noqa: N818 - it says what happened; nothing went wrong
    """The body was cancelled, by its ``Running.cancel()`` or because the pool's task group was cancelled."""


class PoolClosed(RuntimeError):  # noqa: N818 - a state, as in the standard library's names
    """A body was submitted to a closed pool. Nothing was started; submit it to the next runtime."""


class Running(Generic[T]):
    """One submitted body: the handle by which it is cancelled."""

    __slots__ = ("_context", "_done", "_dropped", "_func", "_runner", "cancelled", "ended")

    def __init__(
        self,
        func: Callable[[], Awaitable[T]],
        done: Callable[[T | None, BaseException | None], None],
        context: contextvars.Context | None,
    ) -> None:
        self._func = func
        self._done = done
        self._context = context
        self._runner: _Runner | None = None  # set exactly while the body runs
        self._dropped = False  # abandon() was called, and its turns are over
        self.cancelled = False  # cancel() was called before the end
        self.ended = False  # `done` was called

    def cancel(self) -> None:
        """Cancel the body. A body that has not started never starts; a body that has ended is not changed."""
        if self.cancelled or self.ended:
            return
        self.cancelled = True
        if self._runner is not None:
            self._runner.pool.abandoned_threads.stopped = True
            self._runner.cancel()

    def abandon(self, turns: int = _TURNS) -> None:
        """Cancel the body, and abandon it where it waits if it has not ended after so many turns of the loop."""
        self.cancel()
        if self.ended or self._runner is None:
            return
        if turns:
            self._runner.pool.line.post(self.abandon, turns - 1)
        elif not self._dropped:
            self._dropped = True
            self._runner.drop()

    def _refused(self, sent: Any) -> bool:
        """Whether an error must not be raised in the body, since the body was abandoned.

        sent: None, or an outcome of trio, which may be an error.
        """
        runner = self._runner
        if runner is None or not self.cancelled or (sent is not None and not hasattr(sent, "error")):
            return False
        if self._dropped and runner.is_free():
            return True
        runner.count_delivery()
        return False

    def _end(self, value: T | None, error: BaseException | None) -> None:
        self._runner = None
        self.ended = True
        self._done(value, error)


class RunnerPool:
    """Runs coroutines on a pool of tasks, inside a running loop and in the host's task group.

    ``keep`` is the number of idle runners that stay parked (a few kB each); more are made on demand and end when idle.
    """

    def __init__(
        self, task_group: TaskGroup, *, keep: int = 256, abandoned_threads: AbandonedThreads | None = None
    ) -> None:
        self._group = task_group
        self.abandoned_threads = abandoned_threads or AbandonedThreads()
        self._keep = keep
        self.line = LoopBridge()
        self._base = contextvars.copy_context()
        self._queue: deque[Running[Any]] = deque()
        self._idle: list[_Runner] = []
        self._coming = 0
        self._runners = 0
        self._finishing = False  # inside a `done` that a runner called: it takes the next body right afterwards
        self._closed = False
        self._tasks: dict[object, _Runner] = {}  # the runners, by their tasks
        self._bases: set[Any] = set()  # the event loop's scopes in which bodies begin
        self.scopes_left_open = 0  # the number of scopes that bodies entered and never left
        trio = under_trio()
        if (sniffio := imported("sniffio")) is not None:
            # Bodies are also submitted by callbacks of the loop: they have no task by which anyio would find the loop.
            self._base.run(sniffio.current_async_library_cvar.set, "trio" if trio else "asyncio")
        self._new_runner = _TrioRunner if trio else _AsyncioRunner
        self._look_for_scopes = trio_scope if trio else asyncio_scope

    @property
    def runners(self) -> int:
        """The number of runner tasks, parked tasks included."""
        return self._runners

    @property
    def idle(self) -> int:
        """The number of parked runners."""
        return len(self._idle)

    def runs_here(self) -> bool:
        """Whether the caller runs on one of the pool's runners, as a body or below one."""
        return present_task() in self._tasks

    def is_alone_here(self) -> bool:
        """Whether the caller is a body itself, with no task group and no time limit around it, but for those of asyncio
        itself (`given_up.held_of_asyncio`).
        """
        runner = self._tasks.get(present_task())
        return runner is not None and runner.is_alone()

    def is_only_task_here(self) -> bool:
        """Whether the caller is a body itself, and no other task runs in the time limits and task groups around it.

        A task that `asyncio.create_task` or a task group of asyncio began is not seen.
        """
        runner = self._tasks.get(present_task())
        return runner is not None and runner.is_only_task()

    async def gave_up_here(self) -> str | None:
        """How the body has given up the call whose cancellation is being raised here (`given_up.py`)."""
        return await given_up.gave_up(self._bases)

    async def limit_here(self, way: str) -> given_up.Limit | None:
        """The limit by which the body gave up this call before; None if there is no such limit now."""
        return await given_up.limit(way, self._bases)

    def context_of(
        self, owner: str, context: contextvars.Context | None = None, adds: object = None
    ) -> contextvars.Context:
        """Make a context for the bodies of one owner, by default from the pool's own.

        owner: the owner's name for people, such as "actor chat"; the bodies' threads have it. adds: what the engine
        wants to find there (`abandoned_threads.whose`).
        """
        context = self._base.copy() if context is None else context
        context.run(running_body.set, (self.abandoned_threads, owner, adds))
        return context

    def submit(
        self,
        func: Callable[[], Awaitable[T]],
        done: Callable[[T | None, BaseException | None], None],
        *,
        context: contextvars.Context | None = None,
    ) -> Running[T]:
        """Run ``await func()`` soon; when it has ended, call ``done(value, None)`` or ``done(None, error)``.

        A body that ended by its cancel gives a ``BodyCancelled``; a body that swallowed the cancel gives its result or
        error. ``context`` is the context of the body, by default a fresh copy of the pool's own.
        Raises ``PoolClosed`` after ``close()``.
        """
        if self._closed:
            raise PoolClosed("the runner pool is closed: no body can be started any more")
        running = Running(func, done, context)
        self._queue.append(running)
        if not self._finishing and self._coming < _WAKE_AHEAD:
            self._call_runners()
        return running

    def close(self) -> None:
        """Take no more bodies. Submitted bodies still run; idle runners end, so that the task group can end."""
        self._closed = True
        while self._idle:
            self._wake_one()

    def _call_runners(self) -> None:
        while self._coming < min(len(self._queue), _WAKE_AHEAD):
            if self._idle:
                self._wake_one()
            else:
                # Started from a body, the runner must not inherit what the body has bound.
                self._base.copy().run(lambda: self._group.start_soon(self._new_runner(self).live))
                self._runners += 1
                self._coming += 1

    def _wake_one(self) -> None:
        runner = self._idle.pop()
        runner._come()
        runner.wake()

    def _take(self) -> Running[Any] | None:
        """Take the next body, and wake other runners for the remaining bodies."""
        queue = self._queue
        while queue:
            running = queue.popleft()
            if not running.cancelled:
                if queue:
                    self._call_runners()
                return running
            self._end(running, None, BodyCancelled("cancelled before it started"))
        return None

    def _end(self, running: Running[T], value: T | None, error: BaseException | None) -> None:
        self._finishing = True
        try:
            running._end(value, error)
        finally:
            self._finishing = False

    def _abandon(self) -> None:
        """End all waiting bodies as cancelled, since the host is being cancelled."""
        self._closed = True
        while self._queue:
            self._end(self._queue.popleft(), None, BodyCancelled("the runtime was cancelled before this started"))


class _Runner(ABC):
    """One task of the pool. Only the way of parking depends on the event loop."""

    __slots__ = ("_coming", "_delivered", "_innermost", "_innermost_scope", "_spent", "brake", "pool", "scope")

    def __init__(self, pool: RunnerPool) -> None:
        self.pool = pool
        self.scope = anyio.CancelScope()
        self.brake = anyio.CancelScope()  # around the body: shields it while a cancellation is not delivered
        self._delivered = 0  # how often the cancellation of the present body was raised in it
        self._coming = True  # counted in the pool's `_coming`
        self._spent = False  # the runner got a stray cancel, and runs no more bodies
        self._innermost_scope: Callable[[], Any]
        self._innermost: Any = None  # the event loop's scope in which each body begins

    @abstractmethod
    def wake(self) -> None:
        """Wake the parked task."""

    @abstractmethod
    async def _sleep(self) -> None:
        """Park the task until `wake`."""

    def _begin(self) -> None:  # noqa: B027 - trio knows its task where it parks
        """The task of this runner has begun."""

    def _was_cancelled(self) -> bool:
        """Whether this task got a cancel that no scope around the task requested."""
        return False

    async def _absorb(self) -> bool:
        """Remove such a stray cancel from this task. Returns whether it had not been raised yet."""
        return False

    async def live(self) -> None:
        """Run bodies until the pool does not need this runner any more."""
        pool = self.pool
        task = present_task()
        pool._tasks[task] = self
        try:
            self._begin()
            await checkpoint()  # an eager task factory would otherwise run a body inside submit()
            self._arrive()
            while await self._use_scope() and not self._was_cancelled():
                self.scope, self.brake = anyio.CancelScope(), anyio.CancelScope()
            if self._was_cancelled():
                await self._absorb()
        except BaseException as error:
            if not (is_a(error, anyio.get_cancelled_exc_class()) and self._was_cancelled()):
                pool._abandon()
                raise
            await self._absorb()
        finally:
            pool._tasks.pop(task, None)
            self._arrive()
            pool._runners -= 1
        pool._call_runners()  # for the bodies that a spent runner leaves

    def _come(self) -> None:
        self._coming = True
        self.pool._coming += 1

    def _arrive(self) -> None:
        if self._coming:
            self._coming = False
            self.pool._coming -= 1

    async def _use_scope(self) -> bool:
        """Run bodies inside one scope until one was cancelled (True) or this runner is not needed (False)."""
        pool = self.pool
        in_a_row = 0
        with self.scope, self.brake:
            self._innermost_scope = pool._look_for_scopes()
            self._innermost = self._innermost_scope()
            pool._bases.add(self._innermost)
            try:
                while not self.scope.cancel_called:
                    running = pool._take()
                    if running is not None:
                        in_a_row += 1
                        await self._run(running)
                        if self._spent:
                            return False
                        if in_a_row % _IN_A_ROW == 0 and not self.scope.cancel_called:
                            self._come()
                            await checkpoint()
                            self._arrive()
                    elif pool._closed or len(pool._idle) >= pool._keep:
                        return False
                    else:
                        await self._park()
            finally:
                pool._bases.discard(self._innermost)
        return True

    async def _park(self) -> None:
        idle = self.pool._idle
        idle.append(self)
        try:
            await self._sleep()
        except BaseException:
            if not self._coming:
                idle.remove(self)
            raise
        self._arrive()

    async def _run(self, running: Running[T]) -> None:
        running._runner = self
        context = running._context or self.pool._base.copy()
        value: T | None = None
        error: BaseException | None = None
        try:
            value = await inside(context, running._func, running._refused)
        except BaseException as raised:
            self._body_is_over()
            cancellation, error = sort_out(raised)
            if cancellation is not None:
                self.pool._end(running, None, error or BodyCancelled("cancelled while it ran"))
                error = None
                if cancellation is raised:
                    raise
                # A scope removes only a cancellation that stands alone; the other errors of the group are recorded.
                raise cancellation from None
            if from_terminal(raised):
                self.pool._end(running, None, BodyCancelled("the program was interrupted while it ran"))
                error = None
                raise
        else:
            if (
                self._delivered or self._innermost_scope() is not self._innermost
            ):  # these checks cost less than the call
                self._body_is_over()
        if self._was_cancelled():
            self._spent = True
            pending = await self._absorb()
            if pending or is_a(error, anyio.get_cancelled_exc_class()):
                value, error = None, stray(error)
        try:
            self.pool._end(running, value, error)
        finally:
            del error  # the error's traceback holds this frame

    # -- a body that does not end when it is cancelled ---------------------------------------------------------------

    def is_free(self) -> bool:
        """Whether the body can be left where it waits."""
        return True

    @abstractmethod
    def later(self, seconds: float, func: Callable[[], None]) -> None:
        """Call a function on the loop after so many seconds."""

    def cancel(self) -> None:
        """Cancel the body."""
        self.scope.cancel()

    def count_delivery(self) -> None:
        """Count a delivery of the body's cancellation. If the body goes on, the next delivery comes after a pause."""
        if self.brake.shield or self._is_shielded():
            return  # another cancellation, of a scope inside the body: trio ends sleeping tasks in this way
        self._delivered = delivered = self._delivered + 1
        if delivered < _AT_ONCE:
            return
        self.brake.shield = True
        if delivered < _AT_ONCE + _DELIVERIES:
            brake = self.brake
            self.later(_PAUSE * 2 ** (delivered - _AT_ONCE), lambda: self._deliver_again(brake))

    def _deliver_again(self, brake: anyio.CancelScope) -> None:
        if brake is self.brake:
            brake.shield = False

    def is_alone(self) -> bool:
        """Whether the present body has opened no cancel scope and no task group around its present point."""
        return self._innermost_scope() is self._innermost

    def is_only_task(self) -> bool:
        """Whether no other task runs in the cancel scopes and task groups around the body's present point."""
        return all(insides(scope) == 1 for scope in self._scopes_of_body())

    def _is_shielded(self) -> bool:
        return any(scope.shield for scope in self._scopes_of_body())

    def drop(self) -> None:
        """Deliver the cancellation to the body even through its shields, to abandon it."""
        for scope in self._scopes_of_body():
            scope.shield = False
        self.brake.shield = False

    def _scopes_of_body(self) -> Iterator[Any]:
        """The scopes around the body's present point, the innermost first."""
        scope = self._innermost_scope()
        while scope is not None and scope is not self._innermost:
            yield scope
            scope = scope_around(scope)

    def _body_is_over(self) -> None:
        if self._delivered:
            self.brake.shield, self._delivered = False, 0
        while (scope := self._innermost_scope()) is not self._innermost:
            self.pool.scopes_left_open += 1
            scope.__exit__(None, None, None)


class _AsyncioRunner(_Runner):
    __slots__ = ("_asyncio", "_dropped", "_loop", "_task", "_wakeup")

    def __init__(self, pool: RunnerPool) -> None:
        import asyncio  # noqa: PLC0415 - only where it is the loop

        super().__init__(pool)
        self._asyncio = asyncio
        self._loop = asyncio.get_running_loop()
        self._wakeup = self._loop.create_future()
        self._task: asyncio.Task[Any] | None = None
        self._dropped: anyio.CancelScope | None = None  # the brake of an abandoned body

    def _begin(self) -> None:
        self._task = self._asyncio.current_task()

    def _was_cancelled(self) -> bool:
        return self._task is not None and self._task.cancelling() > 0 and not being_cancelled()

    async def _absorb(self) -> bool:
        pending = False
        try:
            await self._asyncio.sleep(0)
        except self._asyncio.CancelledError:
            pending = True
        while self._task is not None and self._task.cancelling():
            self._task.uncancel()
        return pending

    def wake(self) -> None:
        if not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _sleep(self) -> None:
        self._wakeup = self._loop.create_future()
        await self._wakeup

    def later(self, seconds: float, func: Callable[[], None]) -> None:
        self._loop.call_later(seconds, func)

    def cancel(self) -> None:
        super().cancel()
        self._look(self.brake, self._delivered, 0)

    def drop(self) -> None:
        self._dropped = self.brake
        super().drop()
        self._look(self.brake, self._delivered, 0)

    def _deliver_again(self, brake: anyio.CancelScope) -> None:
        super()._deliver_again(brake)
        self._look(brake, self._delivered, 0)

    def _look(self, brake: anyio.CancelScope, delivered: int, turns: int) -> None:
        """Check in each turn whether the delivered cancellation is raised in the body.

        If it is not raised there, a task for which the body waits has swallowed it, and gets it again in every turn:
        that counts as a delivery, too.
        """
        if brake is not self.brake or brake.shield or not self.scope.cancel_called:
            return
        if self._is_shielded():
            self.later(
                _PAUSE, lambda: self._look(brake, self._delivered, 0)
            )  # nothing is delivered while the brake is shielded
        elif self._delivered != delivered or turns < _AT_ONCE:
            again = turns + 1 if self._delivered == delivered else 0
            self.pool.line.post(self._look, brake, self._delivered, again)
        else:
            self._delivered = max(self._delivered, _AT_ONCE - 1)
            self.count_delivery()
            if self._dropped is brake and self._delivered >= _AT_ONCE + _DELIVERIES:
                self.later(_PAUSE * 2**_DELIVERIES, lambda: self._deliver_again(brake))  # until it can be abandoned


class _TrioRunner(_Runner):
    __slots__ = ("_task",)

    def wake(self) -> None:
        import trio  # noqa: PLC0415 - only under trio, where it is loaded already

        trio.lowlevel.reschedule(self._task)

    async def _sleep(self) -> None:
        import trio  # noqa: PLC0415 - only under trio, where it is loaded already

        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)

    def is_free(self) -> bool:
        import trio  # noqa: PLC0415 - only under trio, where it is loaded already

        return not trio.lowlevel.current_task().child_nurseries  # nurseries need the task in which they were opened

    def later(self, seconds: float, func: Callable[[], None]) -> None:
        async def sleep() -> None:
            await anyio.sleep(seconds)
            func()

        start_detached(sleep, "callboard pause")
