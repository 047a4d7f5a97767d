"""A body's wait for the event loop from its thread, where a handler of signals raises as the wait begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from callboard.runtime.dispatch.loop_bridge import LoopBridge
from callboard.runtime.dispatch.runners import RunnerPool
from callboard.runtime.engines.from_thread import await_on_loop

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("begins", [True, False])
async def test_a_handler_that_raises_as_a_wait_begins_ends_the_wait(begins: bool) -> None:
    bridge, begun, seen = LoopBridge(), threading.Event(), list[str]()

    async def waits() -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("cancelled")

    def post(func: Callable[..., None], *args: Any) -> None:
        seen.append("posted")
        if len(seen) > 1:
            bridge.post(func, *args)
            return
        if begins:
            bridge.post(func, *args)
            assert begun.wait(300)
        raise TimeoutError("by a handler of signals")

    with anyio.fail_after(300):
        async with anyio.create_task_group() as group:
            pool = RunnerPool(group)
            with pytest.raises(TimeoutError, match="handler"):
                await anyio.to_thread.run_sync(await_on_loop, post, pool, waits, None)
            group.cancel_scope.cancel()
    assert seen == (["posted", "posted", "cancelled"] if begins else ["posted", "posted"])


async def test_a_call_whose_ring_was_interrupted_is_made_with_the_next_one() -> None:
    bridge, made, done = LoopBridge(), list[str](), anyio.Event()
    ring, rings = bridge._ring, list[int]()

    def interrupted(func: Callable[[], None]) -> None:
        rings.append(1)
        if len(rings) == 1:
            raise TimeoutError("by a handler of signals")
        ring(func)

    bridge._ring = interrupted
    with pytest.raises(TimeoutError):
        bridge.post(made.append, "first")
    bridge.post(made.append, "second")
    bridge.post(done.set)
    with anyio.fail_after(300):
        await done.wait()
    assert made == ["first", "second"]
