"""The signals by which a program is told to stop.

Rules
-----
- A signal is counted where it arrives, in its handler, and not on the event loop: one that is blocked, by a body that
  does not let it turn, could not even be left. Nothing of an event loop's own is used: it is the same under all.
- A signal that was ignored when we were started (nohup, a background job) stays ignored.
- A runtime takes what nobody else has taken: whose handler is Python's own, or that of `asyncio.run` and `trio.run` for
  Ctrl+C. What the application handles is left to it.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from types import FrameType

import anyio

_RUNNERS = frozenset({"asyncio.runners", "trio._core._ki"})
"""The modules whose handlers of Ctrl+C do what Python's does, on an event loop."""


class Signals:
    """The signals of those numbers, taken from its making until `close`, in the main thread.

    `on_last` is called with the one of that number, in the handler: anything may have been interrupted.
    """

    def __init__(self, numbers: Iterable[int], last: int, on_last: Callable[[int], object]) -> None:
        self._left = last
        self._on_last = on_last
        self._heard, self._told = socket.socketpair()
        self._heard.setblocking(False)
        self._told.setblocking(False)
        self._before = {number: signal.signal(number, self._take) for number in numbers}

    async def next(self) -> int:
        """Wait for signals. Returns how many have come since the last time."""
        await anyio.wait_readable(self._heard)
        return len(self._heard.recv(64))

    def restore(self) -> None:
        """Have them handled as before, but for those that somebody else has taken meanwhile."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, handler)

    def close(self) -> None:
        """Restore, and let go of all. Nobody may wait for the next one then."""
        self.restore()
        self._heard.close()
        self._told.close()

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._left -= 1
        if self._left <= 0:
            self._on_last(number)
        with contextlib.suppress(OSError):
            self._told.send(b"!")


def not_ignored(*names: str) -> list[int]:
    """Those of the signals that there are here, and that are not ignored."""
    numbers: list[int] = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def taken_for_a_runtime() -> Signals:
    """SIGTERM and SIGINT, if nobody has taken them: two are to be heard, the third does what it did before.

    Raises RuntimeError outside of the main thread, and where another runtime has them.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "Runtime(signals=True) has to be opened in the main thread, the only one in which Python handles signals: "
            "leave it out, and have whoever is told to stop close the runtime"
        )
    numbers = not_ignored("SIGTERM", "SIGINT")
    if any(isinstance(getattr(signal.getsignal(number), "__self__", None), Signals) for number in numbers):
        raise RuntimeError(
            "another runtime of this program takes its signals already: give signals=True to one of them, the one that "
            "is opened last"
        )
    taken: Signals

    def as_before(number: int) -> None:
        taken.restore()
        signal.raise_signal(number)

    taken = Signals([number for number in numbers if _is_free(number)], 3, as_before)
    return taken


def _is_free(number: int) -> bool:
    handler = signal.getsignal(number)
    if handler is signal.SIG_DFL or handler is signal.default_int_handler:
        return True
    func = handler.func if isinstance(handler, functools.partial) else handler
    return getattr(func, "__module__", "") in _RUNNERS
