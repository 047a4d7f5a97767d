"""Calls from other threads into the event loop: in order, and with few wake-ups.

Each event loop has one native call that other threads may use; it costs 5-20 us and a system call. So calls are put
into a deque, and only the first one wakes the loop, which then runs all calls in the deque.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from ..loaded_modules import under_trio


class LoopBridge:
    """Calls functions on the event loop on which it was made, in the order of `post`. Any thread may call `post`."""

    def __init__(self) -> None:
        self._ring = _native_ring()
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake_pending = False

    def post(self, func: Callable[..., None], *args: Any) -> None:
        """Call `func(*args)` on the loop soon, never at once. The loop's own thread may use it, too.

        The call is dropped if the loop is closed.
        """
        self._waiting.append((func, args))
        if not self._wake_pending:
            self._wake_pending = True
            try:
                self._ring(self._deliver)
            except BaseException:  # a handler of signals has raised: the loop may know nothing of it
                self._wake_pending = False
                raise

    def _deliver(self) -> None:
        # Reset first: a call that is posted from now on wakes the loop again, and earlier ones are run below.
        self._wake_pending = False
        try:
            for _ in range(len(self._waiting)):
                func, args = self._waiting.popleft()
                func(*args)
        finally:
            if self._waiting and not self._wake_pending:
                self._wake_pending = True
                self._ring(self._deliver)


def _native_ring() -> Callable[[Callable[[], None]], None]:
    native: Callable[[Callable[[], None]], object]
    closed: type[Exception]
    if under_trio():
        import trio  # noqa: PLC0415 - only where it is the loop, and imported already

        native, closed = trio.lowlevel.current_trio_token().run_sync_soon, trio.RunFinishedError
    else:
        import asyncio  # noqa: PLC0415 - only where it is the loop

        native, closed = asyncio.get_running_loop().call_soon_threadsafe, RuntimeError

    def schedule(func: Callable[[], None]) -> None:
        with contextlib.suppress(closed):
            native(func)

    return schedule
