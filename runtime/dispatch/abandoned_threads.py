"""Threads that nothing can end, which async bodies have left behind.

Rules
-----
- An async body may wait for a plain function in a thread (`to_thread` of asyncio, of anyio, of trio). The body can be
  stopped, or abandoned; the thread cannot, and the event loop or Python waits for it before the program ends.
- Whose a thread is, is not told in public. asyncio, anyio and trio run the function in a copy of the context of who
  asked for it, which their own frames in that thread hold. Where it is not found there, the thread is not told of:
  nothing else follows from it.
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


class Left:
    """What the bodies of one runtime have left."""

    def __init__(self) -> None:
        self.stopped = False  # a body that ran was told to end: no such thread is waited for but by Python

    def threads(self) -> list[str]:
        """Whose threads still run: "the body of w@1/t"."""
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented for this
        here = threading.get_ident()
        found = {text for thread, frame in frames.items() if thread != here for text in self._of(frame)}
        return sorted(found)

    def _of(self, frame: FrameType | None) -> Iterator[str]:
        while frame is not None:
            if frame.f_globals.get("__name__") in _FRAMES:
                context = _context_in(frame.f_locals)
                left, about = (None, "") if context is None else context.get(whose, (None, ""))
                if left is self:
                    yield about
            frame = frame.f_back


whose: ContextVar[tuple[Left, str]] = ContextVar("callboard body")
"""Whose the present code is, as it is told to people."""


def _context_in(there: dict[str, Any]) -> Context | None:
    """The context that something of a thread's runs in, by the names that its frame has."""
    if there.get("task_register") == [None]:
        return None  # under trio: it was left to itself, and nobody waits for it
    context: object = there.get("context")
    if (item := there.get("work_item")) is not None:  # `asyncio.to_thread` gives a partial of `Context.run`
        func = getattr(item, "fn", None) or getattr(item, "task", (None,))[0]
        context = getattr(getattr(func, "func", None), "__self__", None)
    return context if isinstance(context, Context) else None
