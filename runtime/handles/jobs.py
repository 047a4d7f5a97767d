"""Handles: what an application holds of its jobs.

Rules
-----
- A handle is a name, not a state: any number of them may be made, kept and dropped. Dropping one stops nothing.
- What a handle shows of a living job is its present record, what `wait` and `events` tell is durable.
- The answer to a command (`cancel`) comes when it took effect, durably; what the state does not allow is
  `InvalidTransitionError`.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import anyio

from ...actors.machines.refusals import in_its_words
from ...actors.messages.commands import Approve, Cancel, Pause, Reject, ResetTask, Resume, SkipTask
from ...actors.messages.errors import CircuitOpen
from ...actors.messages.inputs import Message
from ...actors.records.entities import JobRecord, WorkstreamRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.tasks.holds import refusal
from ...actors.user_code import plain_text, shown
from ...machines import InvalidTransitionError
from ...machines.builtin.task import TASK
from ...machines.builtin.workstream import WORKSTREAM
from ..commands.author import name_of, reason_of, words
from ..commands.verbs import commands_of
from ..journal.contract import JournalError
from ..observation.events import BUFFER, Subscription
from ..observation.filters import Event, EventFilter, Filters, wanted_by
from .approvals import PendingApproval, pending_of
from .outcomes import CutShort, Outcome, RuntimeClosed, closed, explained, goes_on, no_task

if TYPE_CHECKING:
    from ...actors.jobs.job import JobActor
    from ..runtime import Runtime
    from .references import EntityRef


_ENDED = ("completed", "failed", "cancelled")
_TASK_NAME = "the name of a task"
_NOT_PARKED = "A task of a job that has not ended is tried again only where it is parked."
_NOT_PENDING = "A task of a job that has not ended is skipped only while it is pending."
RECOVERED_KEPT = 100
"""Of the jobs that were recovered, so many that have ended are still told of (`Runtime.recovered`)."""


def _in_words(refused: InvalidTransitionError, word: str, rule: str) -> InvalidTransitionError:
    """What a task refused, by the word that was tried, and with those that it takes."""
    can = ", ".join(commands_of("task", refused.in_own_words.allowed))
    advice = f"{rule} Commands there: {can}." if can else ""
    error = InvalidTransitionError(refused.machine, refused.state, word, refused.allowed, advice)
    if refused.own is not None:
        error.own = refused.own
    return error


class JobHandle:
    """A job of a runtime."""

    def __init__(
        self, runtime: Runtime, record: JobRecord, actor: JobActor | None, outcome: Outcome | None = None
    ) -> None:
        self._runtime = runtime
        self._last = record  # the one that counts where it had ended before, and its actor is gone
        self._actor: JobActor | None = actor
        self._stream: WorkstreamRecord | None = None  # of its last run, once it has ended
        self._outcome = outcome
        self._over = anyio.Event()
        self._cause: BaseException | None = None  # what the runtime broke by
        self.id = record.id
        if outcome is not None:
            self._over.set()

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.state}>"

    @property
    def state(self) -> str:
        """The job's present state."""
        return str(self.record.state) if self._outcome is None else self._outcome.state

    @property
    def record(self) -> JobRecord:
        """The job's present record; of one that has ended, its last."""
        return self._last if self._actor is None else self._actor.record

    def tasks(self) -> list[TaskRecord]:
        """The present records of its tasks, in the order of the specification."""
        if self._outcome is not None:
            return list(self._outcome.tasks.values())
        stream = None if self._actor is None else self._actor.stream
        return [] if stream is None else [task.record for task in stream.tasks]

    @property
    def ref(self) -> EntityRef:
        """It as an actor, which takes the events that people may fire at it and at its workstream."""
        return self.reference("job", self.id, self)

    @property
    def stream(self) -> WorkstreamRecord | None:
        """The present record of its workstream, where that is at hand: it has begun, and was seen to end."""
        return self._stream if self._actor is None or self._actor.stream is None else self._actor.stream.record

    def reference(self, kind: str, name: str, handle: JobHandle | TaskHandle) -> EntityRef:
        """For its own reference, and those of its workstream and tasks."""
        return self._runtime.reference(kind, name, handle)

    def task(self, name: str) -> TaskHandle:
        """One of its tasks. Raises LookupError if it has none of that name."""
        return TaskHandle(self, self.task_record(name).name)

    def task_record(self, name: str) -> TaskRecord:
        """The present record of one of its tasks. Raises LookupError if it has none of that name."""
        name, names = plain_text(name, _TASK_NAME), list[str]()
        for record in self.tasks():
            if record.name == name:
                return record
            names.append(record.name)
        raise LookupError(no_task(self.record, name, names))

    def output(self, name: str) -> str:
        """The last line that the running command of a task has written so far; empty if it has none.

        Raises LookupError if there is no such task.
        """
        return self._runtime.tail(self.task_record(name).token)

    async def cancel(
        self,
        reason: str = "cancelled by the user",
        *,
        force: bool = False,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Cancel it and all its tasks; returns when that took effect.

        request_id: the same again is the same command (RequestIdReused if it was given to another one before).
        What was refused is judged anew.
        Raises InvalidTransitionError if it has ended.
        """
        await self.command(None, _cancel(reason, force, by), "cancel", request_id)

    async def pause(
        self, reason: str = "paused by the user", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """Start nothing more of it until `resume`; what runs goes on, limits and deadlines hold.

        Returns when that is durable. request_id: as for `cancel`. Raises InvalidTransitionError unless its workstream
        is executing.
        """
        await self.command(None, Pause(*words(reason, by)), "pause", request_id)

    async def resume(
        self, reason: str = "resumed by the user", *, by: str | None = None, request_id: str | None = None
    ) -> JobHandle:
        """Go on with it: with a paused one, or, in its next run, with one that failed or was cancelled.

        Returns the handle of what goes on, when that is durable. request_id: as for `cancel`. Raises
        InvalidTransitionError for a job that is neither.
        """
        if self._living:
            await self.command(None, Resume(*words(reason, by)), "resume", request_id)
            return self
        return await self._run_again("resume", reason=reason, by=by, request_id=request_id)

    async def retry(
        self,
        task: str | None = None,
        reason: str = "retried by the user",
        *,
        by: str | None = None,
        request_id: str | None = None,
    ) -> JobHandle:
        """Run it again, once it has ended: a next run in which completed tasks are carried over with their results.

        task: run this one anew, completed or not, with all that waits for it; of a living job, give it one more attempt
        where it is parked. Returns the handle of the next run, when it is durable; this one stays that of the run it
        was. request_id: as for `cancel`. Raises InvalidTransitionError while it lives (but for a parked task), or if
        it completed and no task is named; LookupError for a task that it does not have.
        """
        task = None if task is None else plain_text(task, _TASK_NAME)
        if task is not None and self._living:
            try:
                await self.command(task, ResetTask(*words(reason, by)), "retry", request_id)
            except CircuitOpen:
                raise
            except InvalidTransitionError as refused:
                raise _in_words(refused, "retry", _NOT_PARKED) from None
            return self
        return await self._run_again("retry", again=task, reason=reason, by=by, request_id=request_id)

    async def skip(
        self,
        task: str,
        reason: str = "skipped by an operator",
        *,
        by: str | None = None,
        request_id: str | None = None,
    ) -> JobHandle:
        """Do without a task, as if it had completed: in this run while it is pending, else in a next one.

        Returns the handle of the run that does, when it is durable. request_id: as for `cancel`. Raises
        InvalidTransitionError for a task that is under way in a living job, LookupError if there is none of that name.
        """
        task = plain_text(task, _TASK_NAME)
        if self._living:
            try:
                await self.command(task, SkipTask(*words(reason, by)), "skip", request_id)
            except InvalidTransitionError as refused:
                raise _in_words(refused, "skip", _NOT_PENDING) from None
            return self
        return await self._run_again("skip", skip=task, reason=reason, by=by, request_id=request_id)

    async def _run_again(self, word: str, *, reason: str, by: str | None, **asked: Any) -> JobHandle:
        reason, by = words(reason, by)
        return await self._runtime.run_again(self.id, word, reason=reason, by=by, **asked)

    @property
    def elsewhere(self) -> bool:
        """Whether another node of the journal runs it."""
        return False

    async def refresh(self) -> None:
        """Read it again, where another node of the journal runs it; what runs here is always shown as it is."""

    @property
    def _living(self) -> bool:
        return self._outcome is None and self._actor is not None and not self._actor.over and not self._actor.ended

    @property
    def ended(self) -> bool:
        """Whether it has ended, durably."""
        return self._outcome is not None

    @property
    def parent(self) -> str | None:
        """The id of the job whose task submitted it; None if none did."""
        return self.id.rsplit("/", 2)[0] if "/" in self.id else None

    async def children(self) -> list[JobHandle]:
        """The jobs that its tasks have submitted, living and ended, oldest first."""
        return await self._runtime.children_of(self.id)

    async def command(self, task: str | None, message: Message, event: str, request_id: str | None) -> Any:
        """For its own verbs and those of its tasks: give it, or one of them, a command. `event` is what it tries."""

        def ended() -> Exception | None:
            over = self._outcome is not None or self._actor is None or self._actor.over
            return self._refusal(task, event) if over else None

        key = self.record.key if task is None else self.task_record(task).key
        what: object = message
        if isinstance(message, Resume | ResetTask | SkipTask):  # in a next run the same may be said otherwise
            what = message.reason, message.by
        said = event, (self.id, task, what)  # a key may be used again in a next run, where the task has another number
        try:
            return await self._runtime.command(key, message, request_id=request_id, said=said, refuse=ended)
        except LookupError:
            if (error := ended()) is not None:
                raise error from None  # it was let go meanwhile
            if not self._runtime.handed_over(self.id):
                raise
            job = await self._runtime.job(self.id)
            return await job.command(task, message, event, request_id)

    def _refusal(self, task: str | None, event: str) -> InvalidTransitionError:
        """What a command gets when it has ended: its actors are gone, and cannot say so themselves."""
        stream = None if self._actor is None else self._actor.stream
        if event in {"approve", "reject"}:
            if task is not None:
                held = self.task_record(task)
                return in_its_words(refusal(TASK, held, event), held, self._runtime.lifecycles)
            if (record := self._stream if stream is None else stream.record) is not None:
                return in_its_words(refusal(WORKSTREAM, record, event), record, self._runtime.lifecycles)
        ended = self.record if task is None else self.task_record(task)
        error = InvalidTransitionError(ended.kind, str(ended.state), event, frozenset())
        return in_its_words(error, ended, self._runtime.lifecycles)

    def approvals(self) -> list[PendingApproval]:
        """What of it waits for people now: for whom, and until when."""
        return [] if self._actor is None or self._outcome is not None else list(pending_of(self._actor))

    async def approve(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """Approve the hold of its workstream; returns when that took effect. `request_id` is as for `cancel`.

        Raises DecisionConflict if it was decided before, DecisionRefused if `by` cannot decide it, or it is too late,
        and InvalidTransitionError if it is not held.
        """
        await self.command(None, Approve(name_of(by), _why(reason)), "approve", request_id)

    async def reject(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """Reject the hold of its workstream, which cancels it. Raises as `approve`."""
        await self.command(None, Reject(name_of(by), _why(reason)), "reject", request_id)

    async def wait(self) -> Outcome:
        """Wait for its end. The runtime must stay open; raises RuntimeClosed if it does not."""
        if self._outcome is None:
            self._runtime.check_here("a job")
        await self._over.wait()
        if self._outcome is None:
            text = f"the runtime closed before job {self.id!r} ended"
            if self._cause is None or isinstance(self._cause, CutShort):
                text = f"{text}; {goes_on(shared=self._runtime.seat is not None)}"
            raise closed(text, self._cause)
        with suppress(RuntimeClosed, JournalError):
            if self._runtime.is_open:
                stream = self.record.workstream
                self._outcome = await explained(self._outcome, stream, self.attempts, self._transitions_of)
        return self._outcome

    async def _transitions_of(self, entity_id: str) -> list[Transitioned]:
        """Those of the job, its workstream or a task, that are durable."""

        def read() -> list[Transitioned]:
            return list(self._runtime.journal.reader.transitions(entity_id=entity_id, job_id=self.id))

        found: list[Transitioned] = await self._runtime.read(read)
        return found

    async def attempts(self, task: str) -> list[AttemptRecord]:
        """The attempts of a task in the present run, oldest first: how each ended, and the traceback of what raised.

        Those that are durable; of one that runs, its beginning. Raises LookupError if it has no task of that name.
        """
        record = self.task_record(task)
        found: list[AttemptRecord] = await self._runtime.read(self._runtime.journal.reader.attempts, record.id)
        return found

    @overload
    def events(
        self, *, notices: Literal[True] = True, size: int = BUFFER, **filters: Unpack[Filters]
    ) -> Subscription[Event]: ...
    @overload
    def events(
        self, *, notices: Literal[False], size: int = BUFFER, **filters: Unpack[Filters]
    ) -> Subscription[Transitioned]: ...
    def events(self, *, notices: bool = True, size: int = BUFFER, **filters: Unpack[Filters]) -> Subscription[Any]:
        """Its transitions and those of all that is in it, from its submission until its end; its notices from now on.

        What happened before it was asked for is read from the journal. The filters are those of `Runtime.events`, and
        so is what it raises.
        """
        filters["job"] = self.id
        return self._subscribe(wanted_by(filters, notices=notices), size)

    def _subscribe(self, wanted: EventFilter, size: int) -> Subscription[Any]:
        self._runtime.check_here("a job")
        past = self._runtime.past_of(self.id)
        events = self._runtime.hub.subscribe(wanted, last=self._is_its_end, size=size, past=past)
        if self._over.is_set():
            events.close()
        return events

    def _is_its_end(self, event: Event) -> bool:
        ends = isinstance(event, Transitioned) and event.kind == "job" and event.phase in _ENDED
        return ends and event.entity_id == self.id

    def _let_go(self) -> None:
        """Keep what it still shows, and not the actors of all that was in it."""
        if self._actor is not None:
            self._last = self._actor.record
            if self._actor.stream is not None:
                self._stream = self._actor.stream.record
            self._actor = None

    def settle(self, outcome: Outcome | None, cause: BaseException | None = None) -> None:
        """For the runtime: it has ended (or the runtime closes: None, and what it broke by)."""
        if outcome is not None:
            self._outcome = outcome
            self._let_go()
        self._cause = cause
        self._over.set()


class Recovered:
    """The handles of jobs that were found unfinished; of those that have ended since, only the last ones."""

    def __init__(self) -> None:
        self.handles: dict[str, JobHandle] = {}  # by their ids
        self._ended: deque[str] = deque()  # oldest first

    def add(self, handle: JobHandle) -> None:
        """One more was found."""
        self.handles[handle.id] = handle

    def lacks(self, job_id: str) -> bool:
        """Whether none of that job is there but of a run that has ended."""
        held = self.handles.get(job_id)
        return held is None or held.ended

    def over(self, job_id: str) -> None:
        """A job has ended."""
        if job_id not in self.handles:
            return
        self._ended.append(job_id)
        if len(self._ended) > RECOVERED_KEPT:
            oldest = self.handles.get(self._ended.popleft())
            if oldest is not None and oldest.ended:  # and was not found again
                del self.handles[oldest.id]


class TaskHandle:
    """A task of a job."""

    def __init__(self, job: JobHandle, name: str) -> None:
        self._job = job
        self.name = name

    @property
    def record(self) -> TaskRecord:
        """Its present record."""
        return self._job.task_record(self.name)

    @property
    def ref(self) -> EntityRef:
        """It as an actor, which takes the events that people may fire at it."""
        return self._job.reference("task", f"{self._job.id}/{self.name}", self)

    @property
    def elsewhere(self) -> bool:
        """Whether another node of the journal runs it."""
        return self._job.elsewhere

    async def attempts(self) -> list[AttemptRecord]:
        """Its attempts: `JobHandle.attempts` with its name."""
        return await self._job.attempts(self.name)

    async def cancel(
        self,
        reason: str = "cancelled by the user",
        *,
        force: bool = False,
        by: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """Cancel it; returns when that took effect.

        request_id: the same again is the same command (RequestIdReused if it was given to another one before).
        What was refused is judged anew.
        Raises InvalidTransitionError if its state does not allow it.
        """
        await self._job.command(self.name, _cancel(reason, force, by), "cancel", request_id)

    async def approve(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """Approve its hold, or what its body asks for (by its name, if it asks for more). Raises as for the job."""
        said = Approve(name_of(by), _why(reason), _approval(approval))
        await self._job.command(self.name, said, "approve", request_id)

    async def reject(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """Reject its hold, which cancels it, or what its body asks for. Raises as `JobHandle.approve`."""
        said = Reject(name_of(by), _why(reason), _approval(approval))
        await self._job.command(self.name, said, "reject", request_id)

    async def reset(
        self, *, by: str | None = None, reason: str = "reset by an operator", request_id: str | None = None
    ) -> None:
        """Give it one more attempt, where it is parked for itself; returns when that took effect.

        request_id: as for `cancel`. Raises CircuitOpen (which says `retry_in`) where it waits for its tool,
        InvalidTransitionError where it is not parked.
        """
        await self._job.command(self.name, ResetTask(*words(reason, by)), "reset", request_id)

    async def retry(
        self, reason: str = "retried by the user", *, by: str | None = None, request_id: str | None = None
    ) -> JobHandle:
        """Run it again: `JobHandle.retry` with its name."""
        return await self._job.retry(self.name, reason, by=by, request_id=request_id)

    async def skip(
        self, reason: str = "skipped by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> JobHandle:
        """Do without it: `JobHandle.skip` with its name."""
        return await self._job.skip(self.name, reason, by=by, request_id=request_id)


def _cancel(reason: object, force: object, by: object) -> Cancel:
    if type(force) is not bool:
        raise TypeError(f"force is True or False, not {shown(force, 60)}")
    why, who = words(reason, by)
    return Cancel(why, force, who)


def _approval(name: object) -> str | None:
    return None if name is None else plain_text(name, "the name of an approval")


def _why(reason: object) -> str | None:
    return None if reason is None else reason_of(reason)
