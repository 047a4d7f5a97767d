"""How a test waits for what a thread, a process or a node does, and tells nobody: it looks again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

LONGEST = 240.0  # seconds; a machine that is busy with other tests takes many for what takes none
PAUSE = 0.005


async def until(holds: Callable[[], object], *, within: float = LONGEST) -> None:
    """Wait until that is true, with the event loop free between two looks. Raises TimeoutError."""
    with anyio.fail_after(within):
        while not holds():
            await anyio.sleep(PAUSE)


def wait_until(holds: Callable[[], object], what: str = "", *, within: float = LONGEST) -> None:
    """Wait until that is true, with nothing else done in this thread. Raises TimeoutError, which says what it was."""
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {within} s: {what or holds}")
        time.sleep(PAUSE)
