"""Waits of tests for threads, processes and nodes that send no event: they check a condition repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

LONGEST = 240.0  # seconds; on a machine that is busy with other tests, quick steps may take long
PAUSE = 0.005


async def until(holds: Callable[[], object], *, within: float = LONGEST) -> None:
    """Wait until a condition is true; the event loop runs between two checks. Raises TimeoutError."""
    with anyio.fail_after(within):
        while not holds():
            await anyio.sleep(PAUSE)


def wait_until(holds: Callable[[], object], what: str = "", *, within: float = LONGEST) -> None:
    """Wait until a condition is true, and block this thread. Raises TimeoutError, which names the condition."""
    end = time.monotonic() + within
    while not holds():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {within} s: {what or holds}")
        time.sleep(PAUSE)
