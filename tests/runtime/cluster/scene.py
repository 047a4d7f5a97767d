"""Helpers for tests of several nodes: bodies, workers, and a clock that moves when everything waits for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import checkpoint
from anyio.to_thread import current_default_thread_limiter
from tests.waiting import LONGEST

from callboard import Runtime, Task, TaskContext, Worker, Workstream
from callboard.runtime.dispatch.clock import VirtualClock
from callboard.runtime.dispatch.threads import at_work

from .memory import MemoryNode, Shared

WORKERS = (Worker("loop", engine="loop", capacity=10),)
STEP = 0.05
"""Seconds of virtual time in one step."""
STEPS = 4000


class Ran:
    """The bodies of the present test: attempts that began, that were stopped, and that wait to end."""

    def __init__(self) -> None:
        self.began: list[tuple[str, int]] = []  # job and attempt
        self.stopped: list[str] = []
        self.ended: list[str] = []
        self.go_on = anyio.Event()


ran: Ran


async def quick(task: TaskContext) -> str:
    """End at once."""
    ran.began.append((task.job_id, task.attempt))
    return f"{task.task} of {task.job_id}"


async def waits(task: TaskContext) -> str:
    """Wait until the test lets this body end."""
    ran.began.append((task.job_id, task.attempt))
    try:
        await ran.go_on.wait()
    except anyio.get_cancelled_exc_class():
        ran.stopped.append(task.job_id)
        raise
    ran.ended.append(task.job_id)
    return f"{task.task} of {task.job_id}"


class Nodes:
    """One database, one clock, and the nodes."""

    def __init__(self, lease: float = 15.0) -> None:
        self.clock = VirtualClock()
        self.base = Shared(self.clock.monotonic, lease)
        self.nodes: dict[str, MemoryNode] = {}
        global ran  # noqa: PLW0603 - bodies are found by their import path
        self.ran = ran = Ran()

    def runtime(self, name: str, **settings: object) -> Runtime:
        journal = self.nodes[name] = self.base.node(name)
        more: dict[str, object] = {"workers": WORKERS, "drain_deadline": 0.0, **settings}
        return Runtime(journal, clock=self.clock, **more)  # type: ignore[arg-type]

    @staticmethod
    def waiting(*names: str) -> Workstream:
        return Workstream("waiting", tasks=[Task(name, run=waits) for name in names or ("x",)])

    @asynccontextmanager
    async def ticking(self) -> AsyncGenerator[None]:
        """Let time pass while the block runs."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._tick)
            yield
            group.cancel_scope.cancel()

    async def _tick(self) -> None:
        while True:
            await self._pass()

    async def _pass(self) -> bool:
        """Let some time pass after all due events; threads get real time. Returns whether time passed."""
        for _ in range(6):
            await checkpoint()
        if current_default_thread_limiter().borrowed_tokens or at_work():
            await anyio.sleep(0.001)
            return False
        self.clock.advance(STEP)
        return True

    async def until(self, holds: Callable[[], object]) -> None:
        """Let time pass until the condition is true."""
        steps = 0
        with anyio.fail_after(LONGEST):
            while not holds():
                steps += await self._pass()
                assert steps < STEPS, "it never came to that"
