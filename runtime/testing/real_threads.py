"""Real work in threads: virtual time does not advance while it runs.

Rules
-----
- What counts is what threads of the event loop's pools run: those of the library, of anyio and trio, and of asyncio's
  default executor. A thread that an application starts by itself is not known here.
- A thread that waits for the event loop (`anyio.from_thread`, a portal) may wait for virtual time: it does not count.
- Work that never ends must not stop a test for ever: after `LIMIT` real seconds a warning names it, and time goes on.
"""

from __future__ import annotations

import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from ..dispatch import threads
from ..loaded_modules import imported

LIMIT = 30.0
"""Real seconds for which threads are waited for."""
_LOOK = 0.001  # real seconds between two looks
_POOLS = {"anyio._backends._asyncio", "concurrent.futures.thread", "trio._threads", threads.__name__}
"""The modules whose functions run what was given to a thread."""
_WAITS = {"call", "run", "run_sync", "start_task"}
"""The functions and methods of `anyio.from_thread` that wait for the event loop."""


class RealThreads:
    """The threads that work for the code on the present event loop."""

    def __init__(self) -> None:
        self._given_up = 0  # the number of busy threads that were given up

    @property
    def busy(self) -> bool:
        """Whether a thread has work that must end before time advances."""
        count = functions_in_threads()
        self._given_up = min(self._given_up, count)
        return count > self._given_up and count - _waiting() > self._given_up

    async def until_done(self) -> None:
        """Let the threads work until none is busy, for at most `LIMIT`: a warning names the threads that still are."""
        with anyio.move_on_after(LIMIT) as limit:
            while self.busy:
                await self.let_run()
        if limit.cancelled_caught:
            self._given_up = functions_in_threads()
            warnings.warn(
                f"a thread has worked for {LIMIT:g} real seconds: from now on virtual time advances while it works",
                stacklevel=2,
            )

    async def let_run(self) -> None:
        """Let the threads run for a moment, if there are any."""
        if functions_in_threads():
            await anyio.sleep(_LOOK)


def functions_in_threads() -> int:
    """How many functions run in threads of the present event loop's pools, or wait for a thread."""
    return threads.at_work() + anyio.to_thread.current_default_thread_limiter().borrowed_tokens + _in_executor()


_made_here: RunVar[ThreadPoolExecutor] = RunVar("callboard executor")


def see_executor() -> None:
    """Let the threads of `asyncio.to_thread` be counted on the present event loop, before any of them runs.

    uvloop does not show its default executor: this sets one.
    """
    loop = _asyncio_loop()
    if loop is not None and not hasattr(loop, "_default_executor") and _made_here.get(None) is None:
        executor = ThreadPoolExecutor()
        loop.set_default_executor(executor)
        _made_here.set(executor)


def _asyncio_loop() -> Any:
    asyncio = imported("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


def _in_executor() -> int:
    """The busy threads of asyncio's default executor (`asyncio.to_thread`), which no public function tells."""
    loop = _asyncio_loop()
    executor: Any = getattr(loop, "_default_executor", None) or (None if loop is None else _made_here.get(None))
    started, idle = getattr(executor, "_threads", ()), getattr(executor, "_idle_semaphore", None)
    return max(0, len(started) - getattr(idle, "_value", len(started)))


def _waiting() -> int:
    """How many threads of the pools wait for the event loop."""
    here = threading.get_ident()
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented for this
    return sum(_waits(frame) for thread, frame in frames.items() if thread != here)


def _waits(frame: FrameType | None) -> bool:
    waits = pooled = False
    while frame is not None:
        module = frame.f_globals.get("__name__")
        waits = waits or (module == "anyio.from_thread" and frame.f_code.co_name in _WAITS)
        pooled = pooled or module in _POOLS
        frame = frame.f_back
    return waits and pooled
