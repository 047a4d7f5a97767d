"""Finds the threads that async bodies have started and that still run after the bodies were stopped.

Rules
-----
- An async body may wait for a plain function in a thread (`to_thread` of asyncio, of anyio, of trio). The body can be
  stopped, or abandoned. The thread cannot, and the event loop or Python waits for it before the program ends.
- No public function says which body started a thread. asyncio, anyio and trio run the function in a copy of the
  caller's context, and their own frames in that thread reference it. If the context is not found there, the thread is
  not reported; that has no other consequence.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextvars import Context, ContextVar
from types import FrameType
from typing import Any

_FRAMES = {"anyio._backends._asyncio", "concurrent.futures.thread", "trio._threads"}
"""The modules whose functions run what was given to a thread."""


class AbandonedThreads:
    """The threads that the bodies of one runtime have left running."""

    def __init__(self) -> None:
        self.stopped = False  # a running body was cancelled: from now on only Python waits for such threads

    def threads(self) -> list[str]:
        """The bodies whose threads still run, as texts for people: "the body of w@1/t"."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented for this
        here = threading.get_ident()
        found = {text for thread, frame in frames.items() if thread != here for text in self._of(frame)}
        return sorted(found)

    def _of(self, frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            if frame.f_globals.get("__name__") in _FRAMES:
                context = _context_in(frame.f_locals)
                left, about, _ = (None, "", None) if context is None else context.get(running_body, (None, "", None))
                if left is self:
                    yield about
            frame = frame.f_back


running_body: ContextVar[tuple[AbandonedThreads, str, object]] = ContextVar("callboard body")
"""The runtime whose code runs here, the name of the body for people, and what its engine adds: one variable for all,
since each that is set costs the start of every body.
"""


def _context_in(there: dict[str, Any]) -> Context | None:
    """The context in which a frame of a thread runs its function, found by the names of the frame's variables."""
    if there.get("task_register") == [None]:
        return None  # under trio: the thread was abandoned, and no task waits for it
    context: object = there.get("context")
    if (item := there.get("work_item")) is not None:  # `asyncio.to_thread` gives a partial of `Context.run`
        func = getattr(item, "fn", None) or getattr(item, "task", (None,))[0]
        context = getattr(getattr(func, "func", None), "__self__", None)
    return context if isinstance(context, Context) else None
