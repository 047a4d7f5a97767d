"""Threads for what blocks: questions to the journal, files, a node's lease.

Rules
-----
- The application's threads are its own. anyio gives 40 to all who ask without a limit of theirs, and a program may keep
  them all busy for as long as it likes: nothing of ours waits for one of those.
- What may wait for others of its kind has a lane: so many at a time, the rest in the order of their coming. Lanes of a
  runtime are a `Lane` each; what belongs to no runtime has one for the whole event loop (`in_lane`).
- What others must never hold up has a thread at once: opening and closing a journal, and the lease.
- What may be left to itself, since it may never end (a function of the application's), runs in daemon threads of ours:
  Python waits for those of anyio before a program ends.
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
from .loop_bridge import LoopLine

T = TypeVar("T")

Name: TypeAlias = Literal["work", "files", "people"]
_MOST: dict[Name, int] = {"work": 4, "files": 8, "people": 16}
"""work: what only costs time. files: the output of bodies. people: functions that say who is in a team."""


KEPT = 10.0
"""Seconds that a thread waits for more to do: starting one costs three times as much as giving it something."""


class _Apart:
    """Daemon threads: no program waits for them when it ends."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._changing = threading.Lock()

    def run(self, job: Callable[[], None]) -> None:
        """Do it in one of them. It raises nothing. Raises RuntimeError where there can be no more threads for now."""
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
                    if queue in self._idle:  # else it is about to be given something
                        self._idle.remove(queue)
                        return
                continue
            job()
            del job  # while it waits it holds nothing
            with self._changing:
                self._idle.append(queue)


class _Here:
    """What there is on one event loop."""

    def __init__(self) -> None:
        self.apart = _Apart()
        self.lanes = {name: Lane(most) for name, most in _MOST.items()}
        self.at_work = 0


_here: RunVar[_Here] = RunVar("callboard threads")


class GivenUp(Exception):  # noqa: N818 - what has happened
    """Nobody waits any more for what a lane runs."""


class Lane:
    """So many threads at a time."""

    def __init__(self, most: int) -> None:
        self._limiter = anyio.CapacityLimiter(most)
        self._waits: set[anyio.CancelScope] = set()
        self._given_up = False

    def give_up(self) -> None:
        """Leave what runs, and what waits, to itself: whoever waits for it gets GivenUp, and so does who comes."""
        self._given_up = True
        for scope in self._waits:
            scope.cancel()

    async def patiently(self, func: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread, whoever is cancelled meanwhile. Raises GivenUp."""
        return await self._until_given_up(func, args, shield=True)

    async def unless_cancelled(self, func: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread, and leave it to itself where who asks is cancelled. Raises GivenUp.

        It keeps its place until it is over: so whoever asks again and again has no more threads than others.
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
        raise GivenUp

    async def run(self, func: Callable[..., T], *args: Any, abandon: bool = False) -> T:
        """Run a function in a thread. abandon: whether who is cancelled leaves it to itself."""
        here = _of_this_loop()
        here.at_work += 1
        try:
            if abandon:
                return await self._run_apart(here.apart, func, args)
            return await anyio.to_thread.run_sync(func, *args, limiter=self._limiter)
        finally:
            here.at_work -= 1

    async def _run_apart(self, apart: _Apart, func: Callable[..., T], args: tuple[Any, ...]) -> T:
        """Run it in a thread that no program waits for when it ends. It has its place in the lane until it is over."""
        line, over, place = LoopLine(), anyio.Event(), object()
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
                returned.append(asked.pop()())  # and when that is told, the thread holds nothing of who asked
            except BaseException as error:
                raised.append(error)
            line.post(free)

        await self._limiter.acquire_on_behalf_of(place)
        try:
            apart.run(work)
        except BaseException:
            self._limiter.release_on_behalf_of(place)
            raise
        await over.wait()
        try:
            if raised:
                raise raised[0]
            return returned[0]
        finally:
            raised.clear()  # an error's traceback holds this frame


async def at_once(func: Callable[..., T], *args: Any, abandon: bool = False) -> T:
    """Run a function in a thread that nobody else could have. abandon: as for `Lane.run`."""
    return await Lane(1).run(func, *args, abandon=abandon)


async def in_lane(name: Name, func: Callable[..., T], *args: Any, abandon: bool = False) -> T:
    """Run a function in the lane of that name of the present event loop. abandon: as for `Lane.run`."""
    return await _of_this_loop().lanes[name].run(func, *args, abandon=abandon)


def at_work() -> int:
    """How many such functions run, or wait for a thread, on the present event loop."""
    return _of_this_loop().at_work


def _of_this_loop() -> _Here:
    here = _here.get(None)
    if here is None:
        here = _Here()
        _here.set(here)
    return here


def on_no_loop() -> None:
    """In a context that was copied on an event loop: let what runs in a thread run a loop of its own, of any kind."""
    if (sniffio := imported("sniffio")) is not None:
        sniffio.current_async_library_cvar.set(None)
