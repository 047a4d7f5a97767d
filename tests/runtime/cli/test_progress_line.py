"""The live view of `callboard run` shows the progress of running bodies."""

from __future__ import annotations

import io

import anyio
import pytest
from rich.console import Console
from tests.waiting import until

from callboard import Runtime, Task, TaskContext, Workstream
from callboard.runtime.cli.live import LiveView

pytestmark = pytest.mark.anyio


async def test_a_running_task_shows_its_progress_in_one_harmless_line() -> None:
    on = anyio.Event()

    async def body(task: TaskContext) -> None:
        task.progress(3, 10, "reading\x1b[2J\nmore")
        await on.wait()

    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=body)]))
        await until(lambda: job.task("t").progress is not None)
        console = Console(file=io.StringIO(), width=120, force_terminal=False)
        view = LiveView(console)
        view._jobs = [job]  # pyright: ignore[reportPrivateUsage]
        console.print(view.drawn())
        assert isinstance(console.file, io.StringIO)
        assert "3 of 10 (30 %), reading\\x1b[2J more" in console.file.getvalue()
        on.set()
        await job.wait()
