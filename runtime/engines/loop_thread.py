"""An event loop in its own thread, for the lifetime of its process."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any

import anyio
from anyio.abc import TaskGroup

from ..dispatch.loop_bridge import LoopBridge


class LoopThread:
    """The thread. `opened` is awaited on the loop, with a task group that lives as long; then the loop is ready."""

    def __init__(self, name: str, opened: Callable[[TaskGroup], Awaitable[None]]) -> None:
        self._opened = opened
        self._line: LoopBridge
        self._context: Context
        self._ready = threading.Event()
        self._broke: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()
        self._ready.wait()
        if self._broke is not None:
            raise self._broke

    def post(self, func: Callable[..., None], *args: Any) -> None:
        """Call `func(*args)` on the loop, soon. From any thread."""
        self._line.post(self._call, func, *args)

    def _call(self, func: Callable[..., None], *args: Any) -> None:
        self._context.run(func, *args)

    def _run(self) -> None:
        try:
            anyio.run(self._main)
        except BaseException as error:
            self._broke = error
            self._ready.set()
            raise

    async def _main(self) -> None:
        async with anyio.create_task_group() as group:
            self._line = LoopBridge()
            self._context = copy_context()  # from it later calls find their event loop
            await self._opened(group)
            self._ready.set()
            await anyio.sleep_forever()
