"""How a workstream is stopped: what may still start, its deadline, and the cancelling of its tasks.

Rules
-----
- Once it has a `cause`, no task starts but for clean-up after a failure: tasks whose edges are all `after`. Where the
  workstream is still held, or waits, there is nothing to be cleaned up: nothing starts at all.
- Its tasks are stopped `CHUNK` at a time, a turn each. After a failure that begins in the turn after, so that what
  depends on the task that failed is skipped first.
- A check that does not go when it is stopped is abandoned after a grace.
- The deadline's timer outlives every state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...machines import WORKSTREAM, Event, TaskState, WorkstreamState
from ..kernel.kernel import Kernel
from ..kernel.transaction import Armed
from ..messages.commands import Cancel
from ..messages.inputs import READY, Continue, Stop, TimerFired
from ..records.entities import WorkstreamRecord
from ..spec.limits import Limits, LimitsResolver
from ..spec.model import Hook, Task, Workstream
from ..tasks.attempts import AttemptedTask
from ..tasks.cancelling import CancellableEntity
from ..workers.alerts import Watches

if TYPE_CHECKING:
    from ..tasks.task import TaskActor
    from .job import JobActor

S = WorkstreamState
PLANNED, PAUSED = S.PLANNED, S.PAUSED
PROTECTED = frozenset({S.HELD, S.WAITING})
STARTS_NOTHING = PROTECTED | {PLANNED, PAUSED}
_SAYS_NOTHING = Task("")
CHUNK = 500
CHECK_GRACE = 11.0
"""Seconds that a check of the final validation has to be gone once it was stopped: the usual grace and a margin."""
DEADLINE_EPOCH = 0
"""The epoch of the deadline's timer, which outlives every state."""


class StoppableStream(CancellableEntity[WorkstreamRecord]):
    """A workstream as far as its stopping goes; `WorkstreamActor` is the whole of it."""

    __slots__ = (
        "by_priority",
        "cursor",
        "deadline",
        "dependents",
        "job",
        "names",
        "open",
        "resolver",
        "spec",
        "tasks",
        "unmet",
        "unsettled",
        "watches",
    )

    machine = WORKSTREAM
    receivers = {}  # noqa: RUF012 - WorkstreamActor's

    def __init__(self, kernel: Kernel, record: WorkstreamRecord, job: JobActor, spec: Workstream) -> None:
        super().__init__(kernel, record)
        self.job = job
        self.spec: Workstream = spec
        self.resolver = LimitsResolver(spec, kernel.defaults, kernel.tools, kernel.lifecycles)
        self.tasks: list[TaskActor] = []
        self.names = {task.name: index for index, task in enumerate(spec.tasks)}
        self.unmet: list[int] = []
        self.dependents: dict[int, list[tuple[int, bool]]] = {}
        self.open = 0
        self.cursor = 0  # the next task to start or to cancel
        # tasks that have ended, with which of its edges is the next to be settled, and the first task that is too new
        self.unsettled: list[tuple[TaskActor, int, int]] = []
        self.deadline: Armed | None = None
        self.watches = Watches(spec.alerts) if spec.alerts else None
        if spec.alerts:
            kernel.alerting = True
        # The most urgent task first: a large graph is started a part at a time, and so are many dependents of one.
        self.by_priority: Sequence[int] = range(len(spec.tasks))
        if any(task.priority for task in spec.tasks):
            self.by_priority = sorted(self.by_priority, key=lambda index: -spec.tasks[index].priority)
        for index in self.by_priority:
            task = spec.tasks[index]
            for name in task.depends_on:
                self.dependents.setdefault(self.names[name], []).append((index, True))
            for name in task.after:
                self.dependents.setdefault(self.names[name], []).append((index, False))

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """Its ids for the log."""
        return self.record.job_id, self.record.id, None, None

    @property
    def within(self) -> JobActor:
        """Its job."""
        return self.job

    def _all_ended(self) -> None:
        """Every task of it has ended."""
        raise NotImplementedError

    def lets_start(self, task: AttemptedTask) -> bool:
        """Whether an attempt of `task` may start now."""
        if self.record.cause is None:
            return self.record.state not in STARTS_NOTHING
        return self._cleans_up and is_clean_up(task.spec)

    @property
    def _cleans_up(self) -> bool:
        """Whether clean-up still runs, now that it is stopped: after a failure, unless nobody let it begin at all."""
        record = self.record
        return record.cause == "failure" and not record.forced and record.state not in PROTECTED

    def _fail(self, error: str, *, forced: bool = False) -> None:
        """Begin to fail: its tasks are stopped."""
        if self.record.state in {S.EXECUTING, S.PAUSED}:
            self.fire(Event.FAIL, replace(self.record, cause="failure", error=error, forced=forced), reason=error)
            return
        self.change(cause="failure", error=error, forced=forced)
        if self.record.state != PLANNED:
            self._begin_cancelling()

    # -- being stopped -------------------------------------------------------------------------------------------------

    def on_cancel(self, message: Cancel) -> None:
        """Cancel it and its tasks. Raises InvalidTransitionError if that is done already, or it has ended."""
        record = self.record
        if self.ended or (record.cause is not None and not message.force):
            self.fire(Event.CANCEL_GRACEFUL, reason=message.reason)  # which says that it is not possible
        elif record.state == S.CANCELLING:
            if self.hooks_run:
                self.force_over(f"{message.reason}; {self.drop_hooks('it was forced')}")
            else:
                self.fire(Event.CANCEL_FORCE, replace(record, forced=True), reason=message.reason)
                self._begin_cancelling()
        elif self.knows(Event.CANCEL_GRACEFUL):
            event = Event.CANCEL if message.force else Event.CANCEL_GRACEFUL
            self.fire(event, replace(record, cause="cancel", forced=message.force), reason=message.reason)
        else:
            self.change(cause=record.cause or "cancel", reason=message.reason, forced=message.force)
            self._begin_cancelling()

    def on_stop(self, message: Stop) -> None:
        """Its job is cancelled, or its deadline is over: as `on_cancel`, but silent where that says nothing new."""
        if not self.ended and (message.force or self.record.cause is None):
            self.on_cancel(Cancel(message.reason, message.force))

    def claim_again(self) -> None:
        """It was paused: have the scheduler look at its tasks, and its tools offer them their permits."""
        self.kernel.scheduler.resume(self.record.key)
        for tool in {task.spec.tool for task in self.tasks if task.parked_at_tool}:
            self.kernel.breakers[str(tool)].offer_again()

    def entered_cancelling(self) -> None:
        """Stop its tasks, or the check that runs."""
        if self.record.previous_state == PAUSED:
            self.claim_again()
            self._start_clean_up()
        if self.last_call:
            self.kernel.stop_call(self.last_call, force=self.record.forced)
            self.wait_until(self.kernel.at + CHECK_GRACE)
        self._begin_cancelling()

    def _start_clean_up(self) -> None:
        """Start the clean-up that became ready while it was paused."""
        for index, task in enumerate(self.tasks):
            waits = task.record.state == TaskState.PENDING and not task.last_call
            if waits and not self.unmet[index] and self.lets_start(task):
                self.kernel.send(task, READY)

    def _begin_cancelling(self) -> None:
        self.cursor = 0
        if not self.open:
            if not self.last_call:
                self._all_ended()
        elif self.record.cause == "failure":
            self.kernel.port.later(Continue(self.record.key))
        else:
            self._cancel_some()

    def _cancel_some(self) -> None:
        end = min(self.cursor + CHUNK, len(self.tasks))
        record = self.record
        reason = record.error if record.cause == "failure" else record.reason
        spared = self._cleans_up
        for index in range(self.cursor, end):
            task = self.tasks[index]
            if not task.ended and not (spared and is_clean_up(task.spec)):
                self.kernel.send(task, Stop(f"workstream cancelled: {reason}", record.forced))
        self.cursor = end
        if end < len(self.tasks):
            self.kernel.port.later(Continue(record.key))

    # -- its own hooks -------------------------------------------------------------------------------------------------

    @property
    def cancel_hooks(self) -> list[Hook]:
        """The hooks that are to run before it is cancelled, its tasks being over."""
        record = self.record
        wanted = record.cause == "cancel" and not record.forced and self._limits.cleanup_on_cancel
        return self.spec.cancel_hooks if wanted else []

    @property
    def cancel_timeout(self) -> float:
        """Seconds that all of them have together."""
        return self._limits.cancel_timeout

    @property
    def _limits(self) -> Limits:
        """Those of a task that says nothing itself."""
        return self.resolver.of(_SAYS_NOTHING)

    def force_over(self, reason: str) -> None:
        """The deadline is over, or somebody forced it: its tasks have ended already."""
        self.fire(Event.CANCEL_FORCE, replace(self.record, forced=True), reason=reason)
        self.fire(Event.COMPLETE, reason=reason)

    def broken_off(self, error: str) -> WorkstreamRecord:
        """Its record, with what its hooks say went wrong."""
        return replace(self.record, error=error)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _arm_deadline(self) -> None:
        if self.record.deadline_at is not None:
            fired = TimerFired(self.record.key, DEADLINE_EPOCH)
            self.deadline = self.kernel.port.arm(self.record.deadline_at, fired, by_utc=True)

    def on_timer(self, message: TimerFired) -> None:
        """Its deadline is over, or the time of the state that it is in."""
        if message.epoch == DEADLINE_EPOCH:
            self.deadline = None
            self.on_stop(Stop("the deadline is over"))
        elif message.epoch != self.record.epoch:
            self.kernel.stale += 1
        else:
            getattr(self, f"due_{self.record.state}")()

    def due_cancelling(self) -> None:
        """A hook took too long; or the check that was stopped did not go: abandon it."""
        if self.hooks_run:
            self.due_hook()
            return
        if self.still_to_be_told(self.last_call, CHECK_GRACE):
            return
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0
        self._begin_cancelling()

    def disarm_all(self) -> None:
        """Forget its timers."""
        self.disarm()
        if self.deadline is not None:
            self.kernel.port.disarm(self.deadline)
            self.deadline = None


def is_clean_up(spec: Task) -> bool:
    """Whether a task is clean-up: it waits for others only to have ended."""
    return bool(spec.after) and not spec.depends_on
