"""A runtime and its board, served on a real socket from a thread, so that a client may run on any event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from callboard import Runtime, Worker, Workstream
from callboard.runtime.web.http.serve import listening, serving, url_of
from callboard.web import board

T = TypeVar("T")


class Served:
    """A runtime that is served on a socket."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime, url: str) -> None:
        self.runtime = runtime
        self.url = url
        self._portal = portal

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the runtime's thread."""
        return self._portal.call(function)

    def submit(self, workstream: Workstream, *, id: str, until: str = "held") -> None:  # noqa: A002 - as there
        """Submit a job, and wait until it, or a task of it, is in a state."""

        async def submitted() -> None:
            job = await self.runtime.submit(workstream, id=id)
            async for event in job.events(notices=False):
                if event.to_state == until:
                    break

        self._portal.call(submitted)

    def wait_for_steps(self, job_id: str, task: str, many: int) -> None:
        """Wait until a task has so many steps."""

        async def waiting() -> None:
            job = await self.runtime.job(job_id)
            while len(await job.steps(task)) < many:
                await anyio.sleep(0.01)

        self._portal.call(waiting)

    def start_worker(self, worker: Worker) -> None:
        """Start a worker there."""
        self._portal.call(self.runtime.start_worker, worker)


@contextmanager
def serve(*args: Any, port: int = 0, options: dict[str, Any] | None = None, **given: Any) -> Iterator[Served]:
    """A runtime, open and served, while the block runs."""

    @asynccontextmanager
    async def both() -> Any:
        async with Runtime(*args, **{"drain_deadline": 0, **given}) as runtime:
            listener = listening("127.0.0.1", port)
            async with serving(board(runtime, commands=True, **(options or {})), listener):
                yield runtime, url_of(listener)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(both()) as (runtime, url):
        yield Served(portal, runtime, url)
