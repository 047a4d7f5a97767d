"""How engines' threads talk to the event loop: in order, without waking it more often than it can read.

Each event loop has one native call that other threads may use; it costs 5-20 us and a system call. So
messages lie in a deque, and only the first one rings: the loop takes all that is there when it comes.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from ..loaded_modules import under_trio


class LoopLine:
    """Calls functions on the loop it was made on, in the order they were posted. `post` is for any thread."""

    def __init__(self) -> None:
        self._ring = _native_ring()
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._rung = False

    def post(self, func: Callable[..., None], *args: Any) -> None:
        """Call `func(*args)` on the loop, soon; also from the loop's own thread, and never at once.

        When the loop is closed the call is dropped: nobody is left to hear it.
        """
        self._waiting.append((func, args))
        if not self._rung:
            self._rung = True
            self._ring(self._deliver)

    def _deliver(self) -> None:
        # Before the look: what is posted after it rings again, what was posted before it is seen.
        self._rung = False
        try:
            for _ in range(len(self._waiting)):
                func, args = self._waiting.popleft()
                func(*args)
        finally:
            if self._waiting and not self._rung:
                self._rung = True
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

    def ring(func: Callable[[], None]) -> None:
        with contextlib.suppress(closed):
            native(func)

    return ring
