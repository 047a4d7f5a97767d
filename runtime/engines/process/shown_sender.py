"""Sends what a body in a worker process shows: in a thread, at most once in `EVERY` seconds, the last at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...calling import Shown
from ..heartbeats import ShownBuffer

EVERY = 0.05
"""Seconds between two messages to the runtime."""


class ShownSender:
    """The sender of one body. send: sends a message, from any thread. Raises RuntimeError if no thread can be made."""

    def __init__(self, send: Callable[[Shown], object]) -> None:
        self._send = send
        self._buffer = ShownBuffer()
        self._sending = threading.Lock()  # messages leave in the order in which they were taken
        self._some = threading.Event()
        self._over = threading.Event()
        threading.Thread(target=self._work, name="callboard-shown", daemon=True).start()

    def add(self, shown: Shown) -> None:
        """Have something sent soon."""
        if self._buffer.add(shown):
            self._some.set()

    def end(self) -> None:
        """Send the rest now. What is added from now on is dropped."""
        self._over.set()
        self._some.set()
        self._flush()

    def _work(self) -> None:
        while not self._over.is_set():
            self._some.wait()
            self._some.clear()
            if not self._over.is_set():
                self._flush()
                self._over.wait(EVERY)

    def _flush(self) -> None:
        with self._sending:
            if (shown := self._buffer.take()) is not None:
                self._send(shown)
