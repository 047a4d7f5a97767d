"""`TaskContext`: the facts of a body's attempt, and its connection to the runtime.

Rules:
- A context belongs to one attempt. Heartbeats after the end of the attempt are dropped.
- Only the body's own thread may use it: the loop's thread for async functions, its own for plain ones. In other threads
  and event loops, calls that the loop would not notice are refused.
- structlog is imported when a body first asks for its logger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.messages.errors import TaskCancelled
from ..dispatch.waker import Home
from ..text.logs import task_logger
from ..text.secrets import Mask
from .values import checked
from .waiting import Desk, Waiter, rule_of

if TYPE_CHECKING:
    from ...actors.records.base import Decision
    from ...actors.spec.model import Approval, Workstream
    from .child_job import ChildJob, Family


def _nowhere(details: Any) -> None:
    """Drop a heartbeat before the start or after the end of the attempt."""


class Saved(msgspec.Struct, frozen=True):
    """A value saved by `TaskContext.checkpoint`, sent to the runtime in the same way as heartbeats."""

    value: Any


class TaskContext:
    """The facts of one attempt, passed to a body that takes an argument.

    results: the values that its dependencies returned, by their names. details: the last heartbeat's details of the
    previous attempt (None: there were none). saved: the last checkpoint of earlier attempts (None: there was none).
    args: the values from its specification. token: its fencing token, for systems that must refuse a late writer.
    secrets: the values of the secrets that its specification names, by their names; they are masked in everything that
    the body returns (`mask`).
    """

    __slots__ = (
        "_beat", "_cancelled", "_cannot_wait", "_desk", "_family", "_home", "_log", "_raises", "_waiters",
        "_when_cancelled", "args", "attempt", "details", "job_id", "mask", "results", "saved", "secrets", "task",
        "token", "workstream_id",
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
        family: Family | None = None,
        desk: Desk | None = None,
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
        self.mask = mask
        self._cancelled = False
        self._waiters: list[Waiter] = []  # what the body waits for in its threads
        self._desk = desk
        self._beat: Callable[[Any], None] = _nowhere
        self._home: Home | None = None  # the event loop that the body runs on
        self._raises = False
        self._cannot_wait: str | None = None
        self._log: Any = None
        self._family = family
        self._when_cancelled: Callable[[], object] | None = None

    def heartbeat(self, details: Any = None) -> None:
        """Report that the body is alive, and keep `details` (any JSON-able value) for the next attempt.

        Raises TaskCancelled in a plain function whose task was cancelled: let it through, or clean up and
        return. (Async functions are cancelled by their event loop.) Raises NotSerialisable for other
        details, RuntimeError in another thread than the body's. A thread that an async body has started uses
        `anyio.from_thread.run_sync(task.heartbeat, details)`, or `loop.call_soon_threadsafe`.
        """
        self._check_here()
        self._beat(None if details is None else checked(details, "the heartbeat's details"))
        self._stop_if_cancelled()

    def checkpoint(self, value: Any) -> None:
        """Save the body's progress (any JSON-able value but None): the next attempt, or run, gets it as `saved`.

        It is stored as soon as the runtime receives it, also while the body is being cancelled, and stays if the task
        is cancelled, fails or is interrupted. Nothing is stored if the task's specification has `checkpoint = false`.
        Counts as a heartbeat, and raises the same errors.
        """
        self._check_here()
        self._beat(Saved(checked(value, "the checkpoint")))
        self._stop_if_cancelled()

    def _stop_if_cancelled(self) -> None:
        if self.cancelled and self._raises:
            raise TaskCancelled(f"the task {self.task!r} was cancelled")

    async def submit(self, workstream: Workstream, *, name: str) -> ChildJob:
        """Submit a child job of this task's job, identified by the task and `name`; returns when it is durable.

        A later attempt, or run, of this task that submits it again gets the same job. Its depth is one more than this
        job's (5 is the deepest), and it is cancelled if this task ends other than completed. It may use its parent's
        slots first.

        Raises SpecificationError, JobExists for another workstream under the same name, ValueError for an invalid name,
        or if the name or the workstream contains the value of a secret, AttemptOver if this attempt has been given up,
        RuntimeError where no child can be submitted (in a hook), and in a plain function.
        """
        return await self._known_family(blocking=False).submit(self, workstream, name)

    def submit_blocking(self, workstream: Workstream, *, name: str) -> ChildJob:
        """`submit` for a plain function, in a thread or in a process. Raises TaskCancelled if its task is cancelled
        meanwhile. In a process, the workstream's functions must have import paths.
        """
        return self._known_family(blocking=True).submit_blocking(self, workstream, name)

    def keep_out_secrets(self, value: Any, what: str) -> None:
        """For the runtime: raise ValueError if a value that would be journaled unmasked contains a secret."""
        if self.mask is not None and self.mask.finds(value):
            raise ValueError(
                f"{what} holds the value of a secret, and would be journaled: say the secret's name under `secrets` of "
                "what needs it"
            )

    def _known_family(self, *, blocking: bool) -> Family:
        if self._family is None:
            raise RuntimeError(f"{self.task!r} cannot submit jobs here: the body of a task can")
        self._check_place(blocking, "await task.submit(...)", "task.submit_blocking(...)")
        return self._family

    def when_cancelled(self, do: Callable[[], object]) -> None:
        """For the runtime: call `do` on the loop when the attempt is told to stop (at once if it has been), and when it
        is over.
        """
        self._when_cancelled = do
        if self.cancelled:
            do()

    def cancel(self) -> None:
        """For engines, on the loop: tell the attempt to stop."""
        self.cancelled = True
        if self._when_cancelled is not None:
            self._when_cancelled()

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was told to stop."""
        return self._cancelled

    @cancelled.setter
    def cancelled(self, told: bool) -> None:
        self._cancelled = told
        for waiter in list(self._waiters):
            waiter.over.set()

    async def approval(self, name: str, rule: Approval | None = None, **settings: Any) -> tuple[Decision, ...]:
        """Wait until people have approved; returns their decisions. The attempt keeps its worker, and its clock is
        stopped.

        name: the approval's name in its task: a later attempt that asks under the same name gets the same decision.
        rule: who must approve, or its `settings` (`people=2, expires="24h", ...`); see `Approval`. Raises
        ApprovalRejected, ApprovalExpired, SpecificationError for a rule that cannot be met, ValueError for a name that
        is invalid or contains the value of a secret.
        """
        desk = self._asked(thread=False)
        self.keep_out_secrets(name, "the approval's name")
        waiter = desk.ask(self.token, name, rule_of(rule, settings), thread=False)
        try:
            await waiter.over.wait()  # type: ignore[misc]  # on the loop it is the loop's event
        finally:
            desk.leave(waiter, thread=False)
        return waiter.result()

    def wait_for_approval(self, name: str, rule: Approval | None = None, **settings: Any) -> tuple[Decision, ...]:
        """`approval` for plain functions, in a thread or in a process: blocks the body. Also raises TaskCancelled."""
        desk = self._asked(thread=True)
        self.keep_out_secrets(name, "the approval's name")
        waiter = desk.ask(self.token, name, rule_of(rule, settings), thread=True)
        try:
            self.wait_for(waiter)
        finally:
            desk.leave(waiter, thread=True)
        return waiter.result()

    def wait_for(self, waiter: Waiter) -> None:
        """For the runtime: block the body's thread until the waiter, or the attempt, is over."""
        self._waiters.append(waiter)
        try:
            if not self._cancelled:
                waiter.over.wait()
        finally:
            self._waiters.remove(waiter)

    def _asked(self, *, thread: bool) -> Desk:
        if self._desk is None:
            raise RuntimeError("approvals can be asked for by bodies of tasks, and nowhere else")
        self._check_place(thread, "await task.approval(...)", "task.wait_for_approval(...)")
        return self._desk

    def _check_place(self, blocks: bool, on_loop: str, in_thread: str) -> None:
        """Refuse a call that is for another kind of body: an async one on the loop, or a plain one in a thread."""
        if self._cannot_wait is not None:
            raise RuntimeError(self._cannot_wait)
        self._check_here()
        if blocks != self._raises:
            place, better = ("on the loop", on_loop) if blocks else ("in a thread or process", in_thread)
            raise RuntimeError(f"this body runs {place}: use {better}")

    def _check_here(self) -> None:
        if self._home is not None:
            self._home.check("a task's context")

    @property
    def log(self) -> Any:
        """A structlog logger, bound to workstream_id, task and attempt. (structlog has no single type for it.)

        If structlog is not configured, it writes to standard error: standard output belongs to the program.
        """
        if self._log is None:
            self._log = task_logger(self.mask, self.bound)
        return self._log

    @property
    def bound(self) -> dict[str, Any]:
        """The fields of this attempt's log lines."""
        return {"workstream_id": self.workstream_id, "task": self.task, "attempt": self.attempt}

    def attach(self, beat: Callable[[Any], None], *, raises: bool, cannot_wait: str | None = None) -> None:
        """For engines: set the receiver of heartbeats, and whether they raise when the task is cancelled. cannot_wait:
        why the body cannot wait for anything, if it cannot.
        """
        self._beat = beat
        self._home = None if raises else Home()
        self._raises = raises
        self._cannot_wait = cannot_wait

    def detach(self) -> None:
        """For engines: the attempt is over; drop further heartbeats."""
        self._beat = _nowhere
        self._home = None
        for waiter in list(self._waiters):
            waiter.over.set()
        if self._when_cancelled is not None:
            self._when_cancelled()
