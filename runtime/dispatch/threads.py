"""Threads for blocking functions: queries of the journal, files, a node's lease.

Rules
-----
- The library never waits for a thread of anyio's default limiter. That limiter has 40 threads for all code, and an
  application may keep all of them busy for any time.
- A function that may wait for others of its kind runs under a `ThreadLimit`: in one of a limited number of threads,
  first come, first served. A runtime has limits of its own; a function that belongs to no runtime uses one of the event
  loop (`in_thread`).
- A function that must never wait for others gets a thread at once: opening and closing a journal, and the lease.
- A function that may have to be abandoned, since it may never end (a function of the application), runs in a daemon
  thread of the library: Python waits for the threads of anyio before a program ends.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from ..loaded_modules import imported
from .loop_bridge import LoopBridge

T = TypeVar("T")

Name: TypeAlias = Literal["work", "files", "people"]
_MOST: dict[Name, int] = {"work": 4, "files": 8, "people": 16}
"""The most threads for each purpose. work: calculations. files: the output of bodies. people: questions
about the members of teams.
"""


KEPT = 10.0
"""Seconds that an idle thread is kept: to start a thread costs three times as much as to use an idle one."""


class _DaemonThreads:
    """Daemon threads: Python does not wait for them when a program ends."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._changing = threading.Lock()

    def run(self, job: Callable[[], None]) -> None:
        """Run a job, which must raise nothing, in such a thread. Raises RuntimeError if no thread can be started."""
        with self._changing:
            queue = self._idle.pop() if self._idle else None
        if queue is None:
            queue = SimpleQueue[Callable[[], None]]()
            threading.Thread(target=self._work, args=(queue,), name="callboard-apart", daemon=True).start()
        queue.put(job)

    def _work(self, queue: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                job = queue.get(timeout=KEPT)
            except Empty:
                with self._changing:
                    if queue in self._idle:  # else `run` is about to put a job into it
                        self._idle.remove(queue)
                        return
                continue
            job()
            del job  # an idle thread references no job
            with self._changing:
                self._idle.append(queue)


class _ThreadsOfLoop:
    """The threads and limits of one event loop."""

    def __init__(self) -> None:
        self.daemons = _DaemonThreads()
        self.limits = {name: ThreadLimit(most) for name, most in _MOST.items()}
        self.at_work = 0


_of_loop: RunVar[_ThreadsOfLoop] = RunVar("callboard threads")


class WaitAbandoned(Exception):  # noqa: N818 - what has happened
    """The functions under a limit were abandoned: no caller waits for them any more."""


class ThreadLimit:
    """A limited number of threads at a time."""

    def __init__(self, most: int) -> None:
        self._limiter = anyio.CapacityLimiter(most)
        self._waits: set[anyio.CancelScope] = set()
        self._given_up = False

    def give_up(self) -> None:
        """Abandon all functions that run or wait. Their callers get WaitAbandoned, and so do all later callers."""
        self._given_up = True
        for scope in self._waits:
            scope.cancel()

    async def patiently(self, func: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread, and wait for it also if the caller is cancelled. Raises WaitAbandoned."""
        return await self._until_given_up(func, args, shield=True)

    async def unless_cancelled(self, func: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread, and abandon it if the caller is cancelled. Raises WaitAbandoned.

        The function keeps its place under the limit until it returns: so a caller that tries again and again gets no
        more threads than others.
        """
        return await self._until_given_up(func, args, shield=False)

    async def _until_given_up(self, func: Callable[..., T], args: tuple[Any, ...], *, shield: bool) -> T:
        with anyio.CancelScope(shield=shield) as scope:
            self._waits.add(scope)
            try:
                if not self._given_up:
                    return await self.run(func, *args, abandon=True)
            finally:
                self._waits.discard(scope)
        raise WaitAbandoned

    async def run(self, func: Callable[..., T], *args: Any, abandon: bool = False) -> T:
        """Run a function in a thread. abandon: whether a cancelled caller abandons the function."""
        here = _of_this_loop()
        here.at_work += 1
        try:
            if abandon:
                return await self._run_in_daemon(here.daemons, func, args)
            return await anyio.to_thread.run_sync(func, *args, limiter=self._limiter)
        finally:
            here.at_work -= 1

    async def _run_in_daemon(self, daemons: _DaemonThreads, func: Callable[..., T], args: tuple[Any, ...]) -> T:
        """Run a call in a daemon thread. The call keeps its place under the limit until it returns."""
        line, over, place = LoopBridge(), anyio.Event(), object()
        context = contextvars.copy_context()
        context.run(on_no_loop)
        asked = [partial(context.run, func, *args)]
        del context
        returned: list[T] = []
        raised: list[BaseException] = []

        def free() -> None:
            self._limiter.release_on_behalf_of(place)
            over.set()

        def work() -> None:
            try:
                returned.append(asked.pop()())  # when the caller goes on, the thread references nothing of it
            except BaseException as error:
                raised.append(error)
            line.post(free)

        await self._limiter.acquire_on_behalf_of(place)
        try:
            daemons.run(work)
        except BaseException:
            self._limiter.release_on_behalf_of(place)
            raise
        await over.wait()
        try:
            if raised:
                raise raised[0]
            return returned[0]
        finally:
            raised.clear()  # an error's traceback references this frame


async def at_once(func: Callable[..., T], *args: Any, abandon: bool = False) -> T:
    """Run a function in a thread at once, whatever other functions run. abandon: as for `ThreadLimit.run`."""
    return await ThreadLimit(1).run(func, *args, abandon=abandon)


async def in_thread(name: Name, func: Callable[..., T], *args: Any, abandon: bool = False) -> T:
    """Run a function in a thread, under a limit of the present event loop. abandon: as for `ThreadLimit.run`."""
    return await _of_this_loop().limits[name].run(func, *args, abandon=abandon)


def at_work() -> int:
    """The number of functions that run, or wait for a thread, on the present event loop."""
    return _of_this_loop().at_work


def _of_this_loop() -> _ThreadsOfLoop:
    here = _of_loop.get(None)
    if here is None:
        here = _ThreadsOfLoop()
        _of_loop.set(here)
    return here


def on_no_loop() -> None:
    """Call this in a context copied on an event loop: code in a thread may then run a loop of its own, of any kind."""
    if (sniffio := imported("sniffio")) is not None:
        sniffio.current_async_library_cvar.set(None)
