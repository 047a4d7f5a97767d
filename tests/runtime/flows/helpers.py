"""What the tests of flows share: a job of one task with a body, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callboard import JobHandle, Runtime, Task, Workstream

Open = Callable[..., Runtime]


async def submitted(runtime: Runtime, body: Any, *, job_id: str = "job", **options: Any) -> JobHandle:
    """Submit a job of the one task `t` with that body."""
    runtime.task(name=f"body of {job_id}")(body)
    tasks = [Task("t", run=f"body of {job_id}", **options)]
    return await runtime.submit(Workstream("flow", tasks=tasks), id=job_id)


async def result(job: JobHandle) -> Any:
    """The result of the task `t` of that job. Raises the job's error."""
    return (await job.wait()).raise_for_state().results["t"]
