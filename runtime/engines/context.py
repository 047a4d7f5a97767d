"""`TaskContext`: the facts of a body's attempt, and what the body may do.

Rules:
- A context belongs to one attempt. Heartbeats after the end of the attempt are dropped.
- Only the body's own thread may use it: the loop's thread for async functions, its own for plain ones. In other threads
  and event loops, calls that the loop would not notice are refused.
- structlog is imported when a body first asks for its logger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..text.logs import task_logger
from ..values import checked
from .connection import Connection
from .waiting import rule_of

if TYPE_CHECKING:
    from ...actors.records.base import Decision
    from ...actors.spec.model import Approval, Workstream
    from ..text.secrets import Mask
    from .child_job import ChildJob, ChildJobRequests
    from .waiting import ApprovalRequests


class Checkpoint(msgspec.Struct, frozen=True):
    """A value saved by `TaskContext.checkpoint`, sent to the runtime in the same way as heartbeats."""

    value: Any


class TaskContext:
    """The facts of one attempt, passed to a body that takes an argument.

    results: the values that its dependencies returned, by their names. details: the last heartbeat's details of the
    previous attempt (None: there were none). saved: the last checkpoint of earlier attempts (None: there was none).
    args: the values from its specification. token: its fencing token, for systems that must refuse a late writer.
    secrets: the values of the secrets that its specification names, by their names; they are masked in everything that
    the body returns.
    """

    __slots__ = (
        "_connection", "_log", "args", "attempt", "details", "job_id", "results", "saved", "secrets", "task", "token",
        "workstream_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        task: str,
        token: int,
        attempt: int = 1,
        job_id: str = "",
        workstream_id: str = "",
        results: dict[str, Any] | None = None,
        details: Any = None,
        saved: Any = None,
        args: dict[str, Any] | None = None,
        secrets: dict[str, str] | None = None,
        mask: Mask | None = None,
        child_jobs: ChildJobRequests | None = None,
        approvals: ApprovalRequests | None = None,
    ) -> None:
        self.task = task
        self.token = token
        self.attempt = attempt
        self.job_id = job_id
        self.workstream_id = workstream_id
        self.results: dict[str, Any] = {} if results is None else results
        self.details = details
        self.saved = saved
        self.args: dict[str, Any] = {} if args is None else args
        self.secrets: dict[str, str] = {} if secrets is None else secrets
        self._connection = Connection(task, mask, child_jobs, approvals)
        self._log: Any = None

    def heartbeat(self, details: Any = None) -> None:
        """Report that the body is alive, and keep `details` (any JSON-able value) for the next attempt.

        Raises TaskCancelled in a plain function whose task was cancelled: let it through, or clean up and
        return. (Async functions are cancelled by their event loop.) Raises NotSerialisable for other
        details, RuntimeError in another thread than the body's. A thread that an async body has started uses
        `anyio.from_thread.run_sync(task.heartbeat, details)`, or `loop.call_soon_threadsafe`.
        """
        connection = self._connection
        connection.check_here()
        connection.tell(None if details is None else checked(details, "the heartbeat's details"))

    def checkpoint(self, value: Any) -> None:
        """Save the body's progress (any JSON-able value but None): the next attempt, or run, gets it as `saved`.

        It is stored as soon as the runtime receives it, also while the body is being cancelled, and stays if the task
        is cancelled, fails or is interrupted. Nothing is stored if the task's specification has `checkpoint = false`.
        Counts as a heartbeat, and raises the same errors.
        """
        connection = self._connection
        connection.check_here()
        connection.tell(Checkpoint(checked(value, "the checkpoint")))

    async def submit(self, workstream: Workstream, *, name: str) -> ChildJob:
        """Submit a child job of this task's job, identified by the task and `name`; returns when it is durable.

        A later attempt, or run, of this task that submits it again gets the same job. Its depth is one more than this
        job's (5 is the deepest), and it is cancelled if this task ends other than completed. It may use its parent's
        slots first.

        Raises SpecificationError, JobExists for another workstream under the same name, ValueError for an invalid name,
        or if the name or the workstream contains the value of a secret, AttemptOver if this attempt has been given up,
        RuntimeError where no child can be submitted (in a hook), and in a plain function.
        """
        return await self._connection.known_child_jobs(blocking=False).submit(self, workstream, name)

    def submit_blocking(self, workstream: Workstream, *, name: str) -> ChildJob:
        """`submit` for a plain function, in a thread or in a process. Raises TaskCancelled if its task is cancelled
        meanwhile. In a process, the workstream's functions must have import paths.
        """
        return self._connection.known_child_jobs(blocking=True).submit_blocking(self, workstream, name)

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was told to stop."""
        return self._connection.cancelled

    async def approval(self, name: str, rule: Approval | None = None, **settings: Any) -> tuple[Decision, ...]:
        """Wait until people have approved; returns their decisions. The attempt keeps its worker, and its clock is
        stopped.

        name: the approval's name in its task: a later attempt that asks under the same name gets the same decision.
        rule: who must approve, or its `settings` (`people=2, expires="24h", ...`); see `Approval`. Raises
        ApprovalRejected, ApprovalExpired, SpecificationError for a rule that cannot be met, ValueError for a name that
        is invalid or contains the value of a secret.
        """
        connection = self._connection
        approvals = connection.known_approvals(thread=False)
        connection.keep_out_secrets(name, "the approval's name")
        waiter = approvals.ask(self.token, name, rule_of(rule, settings), thread=False)
        try:
            await waiter.over.wait()  # type: ignore[misc]  # on the loop it is the loop's event
        finally:
            approvals.leave(waiter, thread=False)
        return waiter.result()

    def wait_for_approval(self, name: str, rule: Approval | None = None, **settings: Any) -> tuple[Decision, ...]:
        """`approval` for plain functions, in a thread or in a process: blocks the body. Also raises TaskCancelled."""
        connection = self._connection
        approvals = connection.known_approvals(thread=True)
        connection.keep_out_secrets(name, "the approval's name")
        waiter = approvals.ask(self.token, name, rule_of(rule, settings), thread=True)
        try:
            connection.wait_for(waiter)
        finally:
            approvals.leave(waiter, thread=True)
        return waiter.result()

    @property
    def log(self) -> Any:
        """A structlog logger, bound to workstream_id, task and attempt. (structlog has no single type for it.)

        If structlog is not configured, it writes to standard error: standard output belongs to the program.
        """
        if self._log is None:
            bound = {"workstream_id": self.workstream_id, "task": self.task, "attempt": self.attempt}
            self._log = task_logger(self._connection.mask, bound)
        return self._log


def connection_of(context: TaskContext) -> Connection:
    """The connection of a body to the runtime, for engines and the runtime."""
    return context._connection  # pyright: ignore[reportPrivateUsage]
