"""The signals that ask a program to stop.

Rules
-----
- Signals are counted in the signal handler and not on the event loop. So the last signal ends the program even if a
  body blocks the event loop. No event loop's own handling of signals is used, so all event loops behave the same.
- A signal that was ignored when the program started (nohup, a background job) stays ignored.
- A runtime handles only signals whose handler is the default one, or the one that `asyncio.run` or `trio.run` sets for
  Ctrl+C. It does not touch the application's own handlers.
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
"""The modules of the handlers that `asyncio.run` and `trio.run` set for Ctrl+C."""


class Signals:
    """Handles the signals of these numbers until `close`. It is made in the main thread.

    `on_last` is called with the number of the signal that arrives as the `last`-th one. It runs in the signal handler,
    so it may interrupt any code.
    """

    def __init__(self, numbers: Iterable[int], last: int, on_last: Callable[[int], object]) -> None:
        self._left = last
        self._on_last = on_last
        self._heard, self._told = socket.socketpair()
        self._heard.setblocking(False)
        self._told.setblocking(False)
        self._before = {number: signal.signal(number, self._take) for number in numbers}

    async def next(self) -> int:
        """Wait for signals. Returns how many have arrived since the last call."""
        await anyio.wait_readable(self._heard)
        return len(self._heard.recv(64))

    def restore(self) -> None:
        """Set the handlers from before again, except for signals whose handler was changed meanwhile."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, handler)

    def close(self) -> None:
        """Restore the handlers, and close the sockets. `next` must not be waiting."""
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
    """Return the numbers of the signals that this system has and that are not ignored."""
    numbers: list[int] = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def taken_for_a_runtime() -> Signals:
    """Handle SIGTERM and SIGINT for a runtime, if the application does not: the third signal acts as before.

    Raises RuntimeError outside of the main thread, and if another runtime handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "Runtime(signals=True) has to be opened in the main thread, the only one in which Python handles signals: "
            "leave it out, and close the runtime in the program's own handling of signals"
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
