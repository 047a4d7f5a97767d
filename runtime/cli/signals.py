"""The signals that a run takes, and a terminal that has gone.

Rules:
- A signal is counted where it arrives, in its handler, and not on the event loop: one that is blocked, by a body that
  does not let it turn, could not even be left.
- A signal that was ignored when we were started (nohup, a background job) stays ignored. SIGCHLD does not: without it
  no command's exit status could be had.
- A terminal that has gone takes no more output, which is no reason to end: it has been told by SIGHUP, and that drains.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

import anyio

_TAKEN = ("SIGINT", "SIGTERM", "SIGHUP")


class Signals:
    """The signals taken from its making until `close`, in the main thread.

    `on_last` is called with the one of that number, in the handler: anything may have been interrupted.
    """

    def __init__(self, last: int, on_last: Callable[[], object]) -> None:
        self._left = last
        self._on_last = on_last
        self._heard, self._told = socket.socketpair()
        self._heard.setblocking(False)
        self._told.setblocking(False)
        wanted = [getattr(signal, name) for name in _TAKEN if hasattr(signal, name)]
        self._before = {
            number: signal.signal(number, self._take)
            for number in wanted
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    async def next(self) -> int:
        """Wait for signals. Returns how many have come since the last time."""
        await anyio.wait_readable(self._heard)
        return len(self._heard.recv(64))

    def close(self) -> None:
        """Have them handled as before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._heard.close()
        self._told.close()

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._left -= 1
        if self._left <= 0:
            self._on_last()
        with contextlib.suppress(OSError):
            self._told.send(b"!")


def hear_children() -> None:
    """Have the ends of commands told to us, whoever started us with SIGCHLD ignored."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def is_gone(error: BaseException) -> bool:
    """Whether that is what writing to a terminal raises that has been closed."""
    return isinstance(error, OSError) and error.errno == errno.EIO


def write_nowhere() -> None:
    """Let stdout and stderr lead nowhere where they lead to a terminal that has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and _is_dead(stream.fileno()):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_dead(descriptor: int) -> bool:
    try:
        os.write(descriptor, b"")  # of a terminal also that raises; of anything else it does nothing
    except OSError as error:
        return error.errno == errno.EIO
    return False
