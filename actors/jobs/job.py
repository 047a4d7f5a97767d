"""The job: one submission, and the durable handle of an embedding application.

Rules
-----
- A job is terminal only when its workstream and its children are, and ends as its workstream did.
- A job's id comes from the caller or the runtime; a workstream's id is "JOB@RUN", a task's "JOB@RUN/NAME". A child is
  submitted by a task of its parent: its id is "PARENT/TASK/NAME", and its depth is one more.
- Before a job runs it reserves its slots (`actors/workers/reservations.py`), all or none; until then it is pending, and
  its reason says for which slots it waits. If no worker could provide them any more, the job fails after
  `unroutable_timeout`, unless such a worker starts.
- If a task ends without completing, its child jobs are cancelled; if the workstream does, all children are.
- After a failed workstream an automatic next run follows if the specification has `retry` and another attempt may help:
  the job stays running meanwhile, and the due time is in its record. A run that has ended is never changed: `runs.py`.
- A job that a person cancelled, or whose failure no other attempt can repair, is `final`: its parent's body does not
  run it again by submitting it again, until a person runs the parent again.
- The deadline cancels the job in any state. While the workstream runs it has the deadline's timer, else the job has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

import msgspec
from msgspec.structs import replace

from ...machines import JOB, Event, InvalidTransitionError, JobState, WorkstreamState
from ..kernel.entity import Entity, Receivers, States
from ..kernel.mailbox import Mailbox
from ..kernel.publishing import birth
from ..kernel.recent import keep_last
from ..kernel.transaction import NO_ENGINE, Effect
from ..messages.commands import Approve, Cancel, LeaveMessages, Pause, Reject, Resume, Send
from ..messages.inputs import Allocated, ChildOver, Ended, Recover, Stop, TimerFired, TurnFailed, Unroutable, WaitOver
from ..records.entities import JobRecord, WorkstreamRecord
from ..records.message import to_present
from ..spec.backoff import delay
from ..spec.limits import LimitsResolver, attempts
from ..spec.model import Task, Workstream
from ..tasks.durable_waits import rests_for
from ..tasks.task import TaskActor
from ..times import seconds
from .runs import NOTHING, KeptResults, kept_of
from .workstream import WorkstreamActor

if TYPE_CHECKING:
    from ..kernel.alerts import LimitedAlerts
    from ..kernel.kernel import Kernel
    from ..records.message import MessageRecord
    from ..records.task import TaskRecord
    from ..tasks.task import TaskActor
    from ..workers.workforce import Workforce

DEEPEST = 5
"""The greatest depth of a job (seed 002); a job that no task submitted has depth 0."""
DEADLINE = "the deadline is over"
RERUNS = 100
"""Number of rerun and ended jobs whose last record is kept: it shows that a record loaded earlier is out of date."""
_SAYS_NOTHING = Task("")


class JobOver(Effect, frozen=True):
    """A job is terminal: callers that wait may go on, and its actors may be released."""

    job: JobActor


class JobsTakenOver(Effect, frozen=True):
    """These jobs of another node go on here. seq: the highest number of any transition of them so far."""

    jobs: list[JobActor]
    seq: int


class JobActor(Entity[JobRecord]):
    """One job."""

    __slots__ = ("_mailbox", "children", "kept", "over", "parent", "past", "spec", "stream", "workforce")

    machine = JOB
    by_utc = frozenset({JobState.PENDING, JobState.RUNNING})
    moments = ("deadline_at", "retry_at")

    def __init__(self, workforce: Workforce, record: JobRecord, spec: Workstream) -> None:
        super().__init__(workforce.kernel, record)
        self.workforce = workforce
        self.spec = spec
        self.stream: WorkstreamActor | None = None
        self.past: list[WorkstreamActor] = []  # earlier runs of which something may still run
        self.kept = NOTHING  # the state that its first run begins with
        self.parent: JobActor | None = None
        self.children: dict[int, JobActor] = {}  # children that have not ended, by key
        self._mailbox: Mailbox | None = None  # made with the first message, or wait for one
        self.over = False  # the job has ended durably: its actors are released once none of its calls runs

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """The id of the job, for the log."""
        return self.record.id, None, None, None

    @property
    def mailbox(self) -> Mailbox:
        """The messages to the job and its tasks that nothing has received."""
        if self._mailbox is None:
            self._mailbox = Mailbox(self.kernel)
        return self._mailbox

    @property
    def watches(self) -> LimitedAlerts | None:
        """The alerts that its workstream declares, once it runs."""
        return None if self.stream is None else self.stream.watches

    # -- beginning -----------------------------------------------------------------------------------------------------

    def begin(self, parent: TaskActor | None = None, kept: KeptResults = NOTHING) -> None:
        """Validate the job, reserve its slots, and run it. parent: the task that submits it."""
        self.kept = kept
        if self.spec.deadline is not None:
            self.change(deadline_at=self.deadline)
        if parent is not None and (why := why_not(parent)):
            self.fire(Event.CANCEL, reason=why)
        elif problem := self._problem():
            self.fire(Event.REJECT, replace(self.record, error=problem), reason=problem)
        elif not self.record.worker_count:
            self.fire(Event.VALIDATE)
            self._allocate()
        else:
            lacks = self.workforce.scheduler.reservations.ask(self)
            self.fire(Event.VALIDATE, reason=lacks, due_at=self.deadline if lacks else None)
            if not lacks:
                self._allocate()

    def _problem(self) -> str | None:
        """The reason why the job could never run; None if it could."""
        record = self.record
        if record.depth > DEEPEST:
            return f"it would be at depth {record.depth}, and {DEEPEST} is the deepest"
        if record.run > 1 or record.worker_count:
            engine_of = self.kernel.port.engine_of
            for task in self.spec.tasks:
                if task.name not in self.kept.completed and engine_of(task) == NO_ENGINE:
                    return f"the function of task {task.name!r} cannot be found: {task.run}"
        return self.workforce.scheduler.reservations.beyond(self) if record.worker_count else None

    @property
    def deadline(self) -> float | None:
        """When the deadline cancels the job (UTC epoch seconds); None if it has no deadline."""
        said, record = self.spec.deadline, self.record
        if said is None or record.deadline_at is not None:
            return record.deadline_at
        return record.created_at + seconds(said)  # an old record has no `deadline_at`

    def _allocate(self) -> None:
        self.fire(Event.ALLOCATE, replace(self.record, started_at=self.kernel.at))

    def on_allocated(self, _: Allocated) -> None:
        """Run the job: all its slots are reserved."""
        if self.record.state == JobState.PENDING:
            self._allocate()

    def on_unroutable(self, message: Unroutable) -> None:
        """Limit the job's wait, since no worker could provide its slots; or end that limit, since one could now."""
        routable = message.reason is None
        if self.record.state != JobState.PENDING or routable == self.record.routable:
            return
        self.disarm()
        waits = self.workforce.scheduler.reservations.why_it_waits(self)
        self.change(routable=routable, reason=waits if routable else f"unroutable: {message.reason}", due_at=None)
        limit = LimitsResolver(self.spec, self.kernel.defaults).of(_SAYS_NOTHING).unroutable_timeout
        dues = [self.deadline, None if routable else self.kernel.at + limit]
        if said := [due for due in dues if due is not None]:
            self.wait_until(min(said))

    def _give_up(self) -> None:
        """Fail the job: no worker started that could provide its slots."""
        error = self.record.reason
        self.fire(Event.FAIL, replace(self.record, error=error), reason=error)

    def entered_running(self) -> None:
        """Begin the first run of the workstream."""
        self._run(self.kept)
        self.kept = NOTHING

    def _run(self, kept: KeptResults) -> None:
        kernel, record = self.kernel, self.record
        run = WorkstreamRecord(
            key=record.stream, id=f"{record.id}@{record.runs}", name=self.spec.name, state=WorkstreamState.PLANNED,
            run=record.runs, created_at=kernel.at, updated_at=kernel.at, job=record.key, job_id=record.id,
            first_task=kernel.numbers(len(self.spec.tasks)), task_count=len(self.spec.tasks),
            published=birth(kernel.lifecycles, "workstream", kernel.lifecycles.of("workstream", self.spec.lifecycle)),
        )  # fmt: skip
        self.change(workstream=run.id)
        stream = self.stream = WorkstreamActor(kernel, run, self, self.spec)
        stream.born({"tasks": run.task_count})
        stream.begin(kept)

    # -- children ------------------------------------------------------------------------------------------------------

    def adopt(self, child: JobActor) -> None:
        """Add a child job that one of this job's tasks submitted."""
        child.parent = self
        self.children[child.record.key] = child

    def link(self) -> None:
        """Connect the job with its parent again, after recovery."""
        parent = self.kernel.entities.get(self.record.parent or 0)
        self.parent = parent if isinstance(parent, JobActor) else None
        if self.parent is not None and not self.ended:
            self.parent.children[self.record.key] = self

    def task_ended(self, task: Entity[TaskRecord]) -> None:
        """Stop the children of a task that ended without completing."""
        reason = f"task {task.record.name!r} of its parent {'failed' if task.record.state == 'failed' else 'ended'}"
        for child in self.children.values():
            if child.record.parent_task == task.record.key:
                self.kernel.send(child, Stop(reason))

    def on_child_over(self, message: ChildOver) -> None:
        """Remove a child that has ended."""
        self.children.pop(message.key, None)
        self._settle()

    # -- being stopped -------------------------------------------------------------------------------------------------

    def on_cancel(self, message: Cancel) -> None:
        """Cancel the job for a person. Raises InvalidTransitionError if it is being cancelled or has ended."""
        self._cancel(message, final=True)

    def _cancel(self, message: Cancel, *, final: bool) -> None:
        """Cancel the job with its workstream and its children."""
        if not (self.record.state == JobState.CANCELLING and message.force):
            at_once = message.force or not self.knows(Event.CANCEL_GRACEFUL)
            metadata = None if message.by is None else {"by": message.by}
            changed = replace(self.record, final=final)
            event = Event.CANCEL if at_once else Event.CANCEL_GRACEFUL
            self.fire(event, changed, reason=message.reason, metadata=metadata)
        stop = Stop(message.reason, message.force)
        if self.stream is not None:
            self.kernel.send(self.stream, stop)
        self._stop_children(stop)
        self._settle()

    def on_stop(self, message: Stop) -> None:
        """Stop the job with its parent or the parent's task, or at its deadline; do nothing if it is being stopped."""
        if not self.ended and (message.force or self.record.state != JobState.CANCELLING):
            self._cancel(Cancel(message.reason, message.force), final=self.record.final)

    def _stop_children(self, stop: Stop) -> None:
        for child in self.children.values():
            self.kernel.send(child, stop)

    # -- messages ------------------------------------------------------------------------------------------------------

    def load_messages(self, records: Iterable[MessageRecord]) -> None:
        """Put unread messages of the journal into the mailbox, without those to an earlier job of this id."""
        mine = to_present(records, self.record.first)
        if mine:
            self.mailbox.load(mine)

    def sort_messages(self) -> None:
        """Put the mailbox in order, after an undone turn."""
        if self._mailbox is not None:
            self._mailbox.sort()

    def on_send(self, message: Send) -> None:
        """Put a message into the mailbox. Raises InvalidTransitionError if the job has ended."""
        if self.ended:
            raise InvalidTransitionError(self.machine.name, str(self.record.state), "send", frozenset())
        self.mailbox.put(self.record, None, message)

    def wake_others(self) -> None:
        """Wake other bodies that wait for unread messages: the body that was woken for these messages has ended."""
        if self._mailbox is not None:
            self._mailbox.wake_others()

    def on_leave_messages(self, message: LeaveMessages) -> None:
        """A body of the job has stopped waiting for a message."""
        self.mailbox.leave(message.name, message.number)

    # -- the end of a run ----------------------------------------------------------------------------------------------

    def on_pause(self, message: Pause | Resume) -> None:
        """Pause or resume the workstream. Raises InvalidTransitionError if that is not possible."""
        if self.stream is None:
            self.fire(Event.PAUSE if isinstance(message, Pause) else Event.RESUME)  # raises: not possible
        else:
            self.stream.receive(message)

    def on_decision(self, message: Approve | Reject) -> None:
        """Apply a person's decision about the workstream's hold. Raises InvalidTransitionError."""
        if self.stream is None:
            self.fire(Event.APPROVE if isinstance(message, Approve) else Event.REJECT)  # raises: the job is not held
        else:
            self.stream.receive(message)

    def on_ended(self, _: Ended) -> None:
        """Handle the end of the workstream: stop the children, and plan the next run or end the job."""
        assert self.stream is not None  # noqa: S101 - the workstream sent the message
        record = self.stream.record
        if record.state != WorkstreamState.COMPLETED:
            self._stop_children(Stop(f"workstream {record.id} {record.state}"))
        if record.state == WorkstreamState.FAILED and self.may_retry():
            self._back_off(self.record.runs - self.record.run + 1)
        self._settle()
        self._watch()

    def may_retry(self) -> bool:
        """Whether an automatic run follows if the present run fails."""
        record = self.record
        began = record.runs - record.run + 1
        if record.state != JobState.RUNNING or began >= attempts(self.spec.retry):
            return False
        return self._no_other_try is None

    @property
    def _no_other_try(self) -> str | None:
        """The reason why an automatic next run would not help; None if it may."""
        return None if self.stream is None else self.stream.no_other_try()

    def _back_off(self, n: int) -> None:
        port, policy = self.kernel.port, self.spec.retry
        assert policy is not None  # noqa: S101 - else there is one attempt
        wait = delay(policy, n, port.random, None, port.resolve, tell=self.wait_failed)
        self.change(retry_at=self.kernel.at + wait)

    def _settle(self) -> None:
        """End as the workstream did, if it and all children have ended and no run follows."""
        stream, state = self.stream, self.record.state
        if self.ended or self.children or (stream is not None and not stream.ended):
            return
        retry_at = self.record.retry_at
        if state == JobState.CANCELLING:
            if stream is not None and stream.record.state == WorkstreamState.FAILED and retry_at is None:
                self.fire(Event.FAIL, replace(self.record, error=stream.record.error), reason=stream.record.error)
            else:
                self.fire(Event.COMPLETE, reason=self.record.reason)
        elif state != JobState.RUNNING or stream is None:
            return
        elif retry_at is not None:
            if retry_at <= self.kernel.at:
                self._run_again()
        elif stream.record.state == WorkstreamState.COMPLETED:
            self.fire(Event.SUCCEED)
        elif stream.record.state == WorkstreamState.FAILED:
            why = None if self.spec.retry is None else self._no_other_try
            metadata = None if why is None else {"no_other_try": why}
            error = stream.record.error
            self.fire(Event.FAIL, replace(self.record, error=error), reason=error, metadata=metadata)
        else:
            self.fire(Event.CANCEL, reason=stream.record.reason)
            self.fire(Event.COMPLETE, reason=stream.record.reason)

    def _run_again(self) -> None:
        """Begin the automatic next run of the workstream."""
        kernel, stream = self.kernel, self.stream
        assert stream is not None  # noqa: S101 - it has failed
        records = [task.record for task in stream.tasks]
        kept = kept_of(self.spec, stream.record, records, kernel.defaults, by_itself=True)
        if not stream.drop():
            self.past.append(stream)
        self.disarm()
        self.change(runs=self.record.runs + 1, stream=kernel.number(), retry_at=None, due_at=None)
        kernel.turn.specs.append((self.record.stream, msgspec.json.encode(self.spec)))
        self._run(kept)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Arm the timer of the next run or the deadline, if only the workstream has ended."""
        if self.record.state != JobState.RUNNING or self.stream is None or not self.stream.ended:
            return
        dues = [due for due in (self.record.retry_at, self.deadline) if due is not None and due > self.kernel.at]
        if dues:
            self.wait_until(min(dues))

    def on_timer(self, message: TimerFired) -> None:
        """Receive the timer of the deadline, the wait for slots, or the backoff."""
        if message.epoch != self.record.epoch or self.record.due_at is None:
            self.kernel.stale += 1
            return
        deadline = self.deadline
        self.change(due_at=None)
        if deadline is not None and deadline <= self.kernel.at:
            self.on_stop(Stop(DEADLINE))
        elif self.record.state == JobState.PENDING:
            self._give_up()
        else:
            self._settle()  # if children still run, the end of the last one settles the job
            self._watch()

    # -- the end -------------------------------------------------------------------------------------------------------

    def entered_end(self) -> None:
        """End the job: release its slots, and inform its parent."""
        final = self.record.final or (self.record.state != JobState.COMPLETED and self._no_other_try is not None)
        self.change(finished_at=self.kernel.at, final=final)
        self.workforce.tool_limits.ended(self)
        if self.record.worker_count:
            self.workforce.scheduler.reservations.release(self)
        if self.parent is not None:
            self.kernel.send(self.parent, ChildOver(self.record.key))
            task = self.kernel.entities.get(self.record.parent_task or 0)
            if isinstance(task, TaskActor) and rests_for(task, "child", self.record.id):
                self.kernel.send(task, WaitOver())
        self.kernel.effect(JobOver(self))

    def release_actors(self) -> None:
        """Release the actors of the durably ended job, once nothing of it runs."""
        kernel, record = self.kernel, self.record
        self.over = True
        self.past = [stream for stream in self.past if not stream.drop()]
        if self.past or (self.stream is not None and not self.stream.drop()):
            return
        kernel.forget(self)
        kernel.jobs.pop(record.id, None)
        if record.run > 1:
            keep_last(kernel.reruns, record.id, record, RERUNS)

    # -- recovery ------------------------------------------------------------------------------------------------------

    def rebuild(self, asked: Mapping[int, int]) -> None:
        """Derive the derived state again. asked: tokens of running conditions, checks and cancel hooks, by entity."""
        if self.stream is not None:
            self.stream.rebuild(asked)
        self.arm_again()

    def on_recover(self, message: Recover) -> None:
        """Continue after the end of the process that ran the job. Its workers are looked for again."""
        if not self.record.routable:
            self.on_unroutable(Unroutable(None))
        if self.stream is not None and not self.stream.ended:
            self.kernel.send(self.stream, message)

    def on_turn_failed(self, message: TurnFailed) -> None:
        """Fail the workstream, and so the job: recovery or one of the job's turns raised."""
        if self.stream is not None and not self.stream.ended:
            self.kernel.send(self.stream, message)
        else:
            self.on_stop(Stop(f"internal error: {message.error}", force=True))

    # -- tables --------------------------------------------------------------------------------------------------------

    receivers: ClassVar[Receivers] = {
        Allocated: on_allocated, Approve: on_decision, Cancel: on_cancel, ChildOver: on_child_over, Ended: on_ended,
        LeaveMessages: on_leave_messages, Pause: on_pause, Recover: on_recover, Reject: on_decision, Resume: on_pause,
        Send: on_send, Stop: on_stop,
        TimerFired: on_timer, TurnFailed: on_turn_failed, Unroutable: on_unroutable,
    }  # fmt: skip

    when_entered: ClassVar[States] = {
        JobState.RUNNING: entered_running, JobState.COMPLETED: entered_end, JobState.FAILED: entered_end,
        JobState.CANCELLED: entered_end,
    }  # fmt: skip


def why_not(task: TaskActor) -> str | None:
    """The reason why a task may not submit a child any more; None if it may."""
    if task.stream.job.record.state != JobState.RUNNING:
        return f"its parent job is {task.stream.job.record.state}"
    return None if task.record.state == "running" else f"task {task.record.name!r} of its parent is {task.record.state}"


def jobs_of(kernel: Kernel) -> dict[str, JobActor]:
    """The jobs of a kernel that have not been released, by id."""
    return cast("dict[str, JobActor]", kernel.jobs)
