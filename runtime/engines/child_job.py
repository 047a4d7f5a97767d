"""A child job in the view of the body that submitted it, in any process.

Requests are carried by `runtime/jobs/child_jobs.py` in the runtime's process, and by
`runtime/engines/process/runtime_proxy.py` in a worker process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...actors.records.step import CHILD
from .context import connection_of

if TYPE_CHECKING:
    from ...actors.spec.model import Workstream
    from ..handles.jobs import JobHandle
    from ..handles.outcomes import Outcome
    from .context import TaskContext


class ChildJobRequests(Protocol):
    """Submits child jobs and waits for them, for bodies."""

    async def submit(self, context: TaskContext, workstream: Workstream, name: str) -> ChildJob:
        """`TaskContext.submit`."""
        ...

    def submit_blocking(self, context: TaskContext, workstream: Workstream, name: str) -> ChildJob:
        """`TaskContext.submit_blocking`."""
        ...

    async def wait(self, context: TaskContext, child: ChildJob) -> Outcome:
        """`ChildJob.wait`."""
        ...

    def wait_blocking(self, context: TaskContext, child: ChildJob) -> Outcome:
        """`ChildJob.wait_blocking`."""
        ...

    def state_of(self, context: TaskContext, child: ChildJob) -> str:
        """The state of a child job without a handle, for `ChildJob.state`."""
        ...


class ChildJob:
    """A child job, in the view of the body that submitted it."""

    def __init__(
        self, requests: ChildJobRequests, job_id: str, context: TaskContext, job: JobHandle | None = None
    ) -> None:
        self._requests = requests
        self._context = context
        self._job = job
        self.id = job_id
        """The id of the child job: "PARENT/TASK/NAME"."""

    def __repr__(self) -> str:
        return f"<ChildJob {self.id}>"

    @property
    def job(self) -> JobHandle:
        """The handle of the child job. Raises RuntimeError in a worker process, which has no handles."""
        if self._job is None:
            raise RuntimeError(f"there is no handle of {self.id!r} in a worker process: use state and wait_blocking()")
        return self._job

    @property
    def state(self) -> str:
        """The present state of the child job. In a worker process it raises TaskCancelled as `wait` does."""
        return self._requests.state_of(self._context, self) if self._job is None else self._job.state

    async def send(self, name: str, value: Any = None, *, task: str | None = None) -> None:
        """Send the child job a message, as `TaskContext.send`: once, as a durable step."""
        await self._context.send(self.id, name, value, task=task)

    def send_blocking(self, name: str, value: Any = None, *, task: str | None = None) -> None:
        """`send` for a plain function. Raises TaskCancelled if its task is cancelled meanwhile."""
        self._context.send_blocking(self.id, name, value, task=task)

    async def wait(self) -> Outcome:
        """Wait for the end of the child job. Meanwhile this body occupies no slot, and its clock is stopped."""
        ask, name = partial(self._requests.wait, self._context, self), self.id.rpartition("/")[2]
        return await connection_of(self._context).awaiting(self._context.token, f"{CHILD}{name}", ask)

    def wait_blocking(self) -> Outcome:
        """`wait` for a plain function. Raises TaskCancelled if its task is cancelled meanwhile."""
        return self._requests.wait_blocking(self._context, self)
