"""Leaving a runtime by a cancellation from outside, and by a failure of its own."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard import Runtime, Task, Workstream
from callboard.runtime.handles import RuntimeClosed
from callboard.runtime.journal.sqlite import SqliteReader

pytestmark = pytest.mark.anyio

running = anyio.Event()


async def endless() -> None:
    running.set()
    await anyio.sleep_forever()


async def test_a_cancelled_host_gives_back_what_ran(tmp_path: Path) -> None:
    global running  # noqa: PLW0603 - the body is found by its path, and so by its module
    running = anyio.Event()
    path = tmp_path / "state.db"
    with anyio.fail_after(10), anyio.CancelScope() as host:
        async with Runtime(path) as runtime:
            job = await runtime.submit(Workstream("stream", tasks=[Task("endless", run=endless)]), id="one")
            await running.wait()
            host.cancel()
            await job.wait()
    assert host.cancelled_caught
    reader = SqliteReader(path)
    run = reader.workstreams("one")[0]
    task = reader.tasks(run.key)[0]
    assert (task.state, task.failed_attempts, task.lost_attempts) == ("queued", 0, 0)
    assert [attempt.end for attempt in reader.attempts(task.id)] == ["returned"]
    reader.close()


async def test_a_broken_dispatcher_ends_the_host_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with anyio.fail_after(10), pytest.raises(BaseExceptionGroup) as raised:
        async with Runtime(tmp_path / "state.db") as runtime:
            runtime._host.commit = broken  # type: ignore[method-assign] # there is no such bug to be had otherwise
            with pytest.raises(RuntimeClosed):
                await runtime.submit(Workstream("stream", tasks=[Task("endless", run=endless)]))
            await anyio.sleep_forever()
    assert raised.value.split(RuntimeError)[1] is None
