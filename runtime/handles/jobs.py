"""Handles of jobs and tasks, for applications.

Rules
-----
- A handle is a name, not a state. A program may make, keep and drop any number of handles; to drop one stops nothing.
- A handle shows the present record of a living job, which may not be durable yet. The results of `wait` and `events`
  are durable.
- A command (`cancel`) returns when its effect is durable. It raises `InvalidTransitionError` if the state does not
  allow it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import anyio

from ...actors.kernel.refusals import in_its_words
from ...actors.messages.commands import Approve, Command, ResetTask, Resume, SkipTask
from ...actors.messages.errors import CircuitOpen
from ...actors.messages.inputs import Message
from ...actors.records.entities import JobRecord, WorkstreamRecord
from ...actors.records.message import MessageRecord, to_present
from ...actors.records.step import StepRecord, of_present, published_by
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.tasks.holds import refusal
from ...actors.user_code import plain_text
from ...machines import InvalidTransitionError
from ...machines.builtin.task import TASK
from ...machines.builtin.workstream import WORKSTREAM
from ..commands.verbs import commands_of, verb_of
from ..errors import EventLoopEnded, JournalError, RuntimeClosed, closed, goes_on
from ..observation.events import BUFFER, Subscription
from ..observation.live import TASK_ENDED, TextStream
from .approvals import PendingApproval, pending_of
from .base import TASK_NAME, Arguments, JobVerbs, TaskVerbs
from .outcomes import Outcome, no_task, with_tracebacks

if TYPE_CHECKING:
    from ...actors.jobs.job import JobActor
    from ..calling import Progress
    from ..observation.filters import Event, EventFilter, Filters
    from .references import EntityRef, FireElsewhere, NameMeaning
    from .services import Services


_ENDED = ("completed", "failed", "cancelled")
_RULES = {
    "retry": "A task of a job that has not ended is tried again only where it is parked.",
    "skip": "A task of a job that has not ended is skipped only while it is pending.",
}
"""By verb: the state in which a task of a living job accepts it, in words."""
RECOVERED_KEPT = 100
"""The number of ended jobs that `Runtime.recovered` keeps."""


def _in_words(refused: InvalidTransitionError, word: str, rule: str) -> InvalidTransitionError:
    """The refusal of a task, with the name of the verb that was tried and the verbs that the task accepts."""
    can = ", ".join(commands_of("task", refused.in_own_words.allowed))
    advice = f"{rule} Commands there: {can}." if can else ""
    error = InvalidTransitionError(refused.machine, refused.state, word, refused.allowed, advice)
    if refused.own is not None:
        error.own = refused.own
    return error


_IN_A_JOB = ("job", "workstream", "task", "approval")
"""The kinds of the entities of a job."""


class JobCore:
    """A job as its runtime knows it: the part of a handle that is not for users."""

    def __init__(
        self, services: Services, record: JobRecord, actor: JobActor | None, outcome: Outcome | None = None
    ) -> None:
        self.services = services
        self.id = record.id
        self.last = record  # shown if the job has ended and its actor was released
        self.actor: JobActor | None = actor
        self.outcome = outcome
        self._stream: WorkstreamRecord | None = None  # of the last run, once the job has ended
        self._over = anyio.Event()
        self._listeners: dict[int, Callable[[], object]] = {}  # flows that wait for the end
        self._cause: BaseException | None = None  # the error that broke the runtime
        if outcome is not None:
            self._over.set()

    @property
    def elsewhere(self) -> bool:
        """Whether another node of the journal runs the job."""
        return False

    @property
    def record(self) -> JobRecord:
        """The job's present record, or its last record if the job has ended."""
        return self.last if self.actor is None else self.actor.record

    @property
    def stream(self) -> WorkstreamRecord | None:
        """The present record of the job's workstream, if it is in memory.

        It is there if the workstream has begun; after the job's end, only if this handle saw the end.
        """
        return self._stream if self.actor is None or self.actor.stream is None else self.actor.stream.record

    def tasks(self) -> list[TaskRecord]:
        """The present records of the job's tasks, in the order of the specification."""
        if self.outcome is not None:
            return list(self.outcome.tasks.values())
        stream = None if self.actor is None else self.actor.stream
        return [] if stream is None else [task.record for task in stream.tasks]

    def task_record(self, name: str) -> TaskRecord:
        """The present record of a task. Raises LookupError if the job has no task of that name."""
        name, names = plain_text(name, TASK_NAME), list[str]()
        for record in self.tasks():
            if record.name == name:
                return record
            names.append(record.name)
        raise LookupError(no_task(self.record, name, names))

    def task_name(self, name: str) -> str:
        """The name of a task. Raises LookupError if the job has no task of that name."""
        return self.task_record(name).name

    def check_filters(self, filters: Filters) -> None:
        """Raise ValueError for filters of events that nothing in the job can meet, as far as is known for certain."""
        from ..observation.filters import given, unknown_state  # noqa: PLC0415 - as in `JobHandle.events`

        names = [record.name for record in self.tasks()]
        for one in sorted(given("task", filters)) if names else ():
            if one.rpartition("/")[2] not in names:
                raise ValueError(no_task(self.record, one, names))
        spec = None if self.actor is None else self.actor.spec
        if spec is None or spec.lifecycle is not None or any(task.lifecycle is not None for task in spec.tasks):
            return  # not all of its lifecycles may be known here
        if problem := unknown_state(filters, self.services.host.kernel.lifecycles.states, _IN_A_JOB):
            raise ValueError(problem)

    def approvals(self) -> list[PendingApproval]:
        """The job's pending approvals."""
        return [] if self.actor is None or self.outcome is not None else list(pending_of(self.actor))

    async def refresh(self) -> None:
        """Read the records again if another node of the journal runs the job."""

    def away(self, task: str | None) -> FireElsewhere | None:  # noqa: ARG002 - for a job on another node
        """The function that sends an event to the node that runs the job; None if this node does."""
        return None

    # -- commands ------------------------------------------------------------------------------------------------------

    async def say(self, task: str | None, verb: str, said: Arguments, request_id: str | None) -> JobHandle | None:
        """Send a command to the job or to one of its tasks. Returns the handle of the next run, if it begins one.

        A living job gets a message. For an ended job, some verbs start a next run.
        """
        kind = "job" if task is None else "task"
        row = verb_of(kind, verb)
        ended_only = row.messages[kind] is None or "from_step" in said
        if ended_only or (row.begins_run and not self._living):
            from .reruns import run_again  # noqa: PLC0415 - most commands begin no run

            await run_again(self.services, self.id, verb, task, **said, request_id=request_id)
            return await self.services.jobs.find(self.id)
        try:
            await self._tell(task, row.message(kind, said), verb, said, request_id)
        except CircuitOpen:
            raise
        except InvalidTransitionError as refused:
            if verb not in _RULES:
                raise
            raise _in_words(refused, verb, _RULES[verb]) from None
        return None

    async def _tell(
        self, task: str | None, message: Message, verb: str, said: Arguments, request_id: str | None
    ) -> None:
        def ended() -> Exception | None:
            over = self.outcome is not None or self.actor is None or self.actor.over
            return self._refusal(task, verb) if over else None

        services, key = self.services, self.record.key if task is None else self.task_record(task).key
        commands = services.commands
        what: object = message
        if isinstance(message, Resume | ResetTask | SkipTask):  # for a next run the same command has another message
            what = message.reason, message.by
        if isinstance(message, Approve):
            message = await services.with_teams(key, message)
        about = self.id, task, what  # the key may be used again in a next run, in which the task has another number
        try:
            await commands.give(partial(Command, key, message), verb, about, request_id=request_id, refuse=ended)
        except LookupError:
            if (error := ended()) is not None:
                raise error from None  # the job was released meanwhile
            if not services.jobs.handed_over(self.id):
                raise
            job = await services.jobs.find(self.id)
            await core_of(job).say(task, verb, said, request_id)

    @property
    def _living(self) -> bool:
        return self.outcome is None and self.actor is not None and not self.actor.over and not self.actor.ended

    def _refusal(self, task: str | None, event: str) -> InvalidTransitionError:
        """The refusal of a command to an ended job, whose actors are released and cannot refuse it themselves."""
        stream = None if self.actor is None else self.actor.stream
        if event in {"approve", "reject"}:
            if task is not None:
                entity = self.task_record(task)
                return in_its_words(refusal(TASK, entity, event), entity, self.services.lifecycles)
            if (record := self._stream if stream is None else stream.record) is not None:
                return in_its_words(refusal(WORKSTREAM, record, event), record, self.services.lifecycles)
        ended = self.record if task is None else self.task_record(task)
        error = InvalidTransitionError(ended.kind, str(ended.state), event, frozenset())
        return in_its_words(error, ended, self.services.lifecycles)

    # -- events and the end --------------------------------------------------------------------------------------------

    def subscribe(self, wanted: EventFilter, size: int) -> Subscription[Any]:
        """Subscribe to the events of the job, past and future, until its end."""
        self.services.check_here("a job")
        past = self.services.jobs.past_of(self.id)
        events = self.services.hub.subscribe(wanted, last=self.is_its_end, size=size, past=past)
        if self._over.is_set():
            events.close()
        return events

    def is_its_end(self, event: Event) -> bool:
        """Whether an event is the end of the job."""
        ends = isinstance(event, Transitioned) and event.kind == "job" and event.phase in _ENDED
        return ends and event.entity_id == self.id

    async def wait(self) -> Outcome:
        """Wait for the end of the job."""
        if self.outcome is None:
            self.services.check_here("a job")
        await self._over.wait()
        if self.outcome is None:
            text = f"the runtime closed before job {self.id!r} ended"
            if self._cause is None or isinstance(self._cause, EventLoopEnded):
                text = f"{text}; {goes_on(shared=self.services.node is not None)}"
            raise closed(text, self._cause)
        with suppress(RuntimeClosed, JournalError):
            if self.services.is_open:
                stream = self.record.workstream
                self.outcome = await with_tracebacks(self.outcome, stream, self.attempts, self._transitions_of)
        return self.outcome

    def when_over(self, tell: Callable[[], object]) -> Callable[[], object]:
        """Call `tell` at the end of the job, or when the runtime closes. Returns the function that cancels that."""
        number = id(tell)
        self._listeners[number] = tell
        return lambda: self._listeners.pop(number, None)

    async def attempts(self, task: str) -> list[AttemptRecord]:
        """The durable attempts of a task in the present run, oldest first."""
        record = self.task_record(task)
        found: list[AttemptRecord] = await self.services.read(self.services.journal.reader.attempts, record.id)
        return found

    async def steps(self, task: str) -> list[StepRecord]:
        """The durable steps of a task's flow, in the order in which they were first kept."""
        await self.refresh()  # of a job on another node, the task may have had no flow when it was read last
        record = self.task_record(task)
        if not record.flow:
            return []
        found: list[StepRecord] = await self.services.read(self.services.journal.reader.steps, record.flow)
        return [of_present(step, record) for step in found]

    async def messages(self) -> list[MessageRecord]:
        """The durable messages to the job and its tasks that nothing has received yet, oldest first."""
        await self.refresh()
        read = partial(self.services.journal.reader.messages, self.id, unread=True)
        return to_present(await self.services.read(read), self.record.first)

    async def published(self, task: str | None = None) -> dict[str, Any]:
        """The last values that the bodies of the job's tasks, or of one of them, have published, by their names."""
        await self.refresh()
        records = self.tasks() if task is None else [self.task_record(task)]
        flows = [record.flow for record in records if record.flow]
        reader = self.services.journal.reader

        def read() -> dict[str, Any]:
            found = published_by(step for flow in flows for step in reader.publications(flow))
            return {name: step.result for name, step in found.items()}

        return await self.services.read(read) if flows else {}

    def progress(self, task: str) -> Progress | None:
        """The last progress that the running body of a task has reported."""
        return self.services.live.progress(self.task_record(task).id)

    def emitted(self, task: str, token: int = 0, place: int = 0) -> TextStream:
        """The text that the running body of a task emits, or the next one. token, place: as for `LiveTasks.stream`."""
        self.services.check_here("a job")
        record = self.task_record(task)
        over = self.outcome is not None or record.state in TASK_ENDED
        return self.services.live.stream(record, over=over, token=token, place=place)

    async def _transitions_of(self, entity_id: str) -> list[Transitioned]:
        """The durable transitions of the job, its workstream or a task."""

        def read() -> list[Transitioned]:
            return list(self.services.journal.reader.transitions(entity_id=entity_id, job_id=self.id))

        found: list[Transitioned] = await self.services.read(read)
        return found

    def settle(self, outcome: Outcome | None, cause: BaseException | None = None) -> None:
        """Called at the end of the job. When the runtime closes: None, and the error that broke it."""
        if outcome is not None:
            self.outcome = outcome
            self._release_actors()
        self._cause = cause
        self._over.set()
        for tell in list(self._listeners.values()):
            tell()

    def _release_actors(self) -> None:
        """Keep the records that the handle still shows, and release the actors."""
        if self.actor is not None:
            self.last = self.actor.record
            if self.actor.stream is not None:
                self._stream = self.actor.stream.record
            self.actor = None


class JobHandle(JobVerbs["JobHandle"]):
    """A job of a runtime."""

    def __init__(self, core: JobCore) -> None:
        self._core = core
        self.id = core.id

    def __repr__(self) -> str:
        return f"<{'RemoteJob' if self.elsewhere else 'JobHandle'} {self.id} {self.state}>"

    @property
    def state(self) -> str:
        """The job's present state."""
        core = self._core
        return str(core.record.state) if core.outcome is None else core.outcome.state

    @property
    def record(self) -> JobRecord:
        """The job's present record, or its last record if the job has ended."""
        return self._core.record

    @property
    def ended(self) -> bool:
        """Whether the job has ended, durably."""
        return self._core.outcome is not None

    @property
    def elsewhere(self) -> bool:
        """Whether another node of the journal runs the job, as far as this node knows."""
        return self._core.elsewhere

    @property
    def ref(self) -> EntityRef:
        """The reference by which people fire events at the job and at its workstream."""
        return self._core.services.reference("job", self.id, self, self)

    def tasks(self) -> list[TaskRecord]:
        """The present records of the job's tasks, in the order of the specification."""
        return self._core.tasks()

    def task(self, name: str) -> TaskHandle:
        """A task of the job. Raises LookupError if the job has no task of that name."""
        return TaskHandle(self, self._core.task_name(name), self._say)

    def progress(self, name: str) -> Progress | None:
        """What the running body of a task has reported last by `task.progress`, as `TaskHandle.progress`.

        Raises LookupError if there is no such task.
        """
        return self._core.progress(name)

    def output(self, name: str) -> str:
        """The last line that the running command of a task has written so far; empty if there is none.

        Raises LookupError if there is no such task.
        """
        return self._core.services.tail(self._core.task_record(name).token)

    def approvals(self) -> list[PendingApproval]:
        """The job's pending approvals, each with its approvers and its deadline."""
        return self._core.approvals()

    async def children(self) -> list[JobHandle]:
        """The jobs that the job's tasks have submitted, ended ones too, oldest first."""
        return await self._core.services.jobs.children_of(self.id)

    async def refresh(self) -> None:
        """Read the records again if another node of the journal runs the job; a job here is always current.

        Raises LookupError if the job does not exist any more, JournalError, RuntimeClosed.
        """
        await self._core.refresh()

    async def wait(self) -> Outcome:
        """Wait for the end of the job. Raises RuntimeClosed if the runtime closes before the end."""
        return await self._core.wait()

    async def attempts(self, task: str) -> list[AttemptRecord]:
        """The durable attempts of a task in the present run, oldest first.

        Each has its end and the traceback of its error; a running attempt has only its beginning. Raises LookupError if
        the job has no task of that name.
        """
        return await self._core.attempts(task)

    async def steps(self, task: str) -> list[StepRecord]:
        """The durable steps that a task's body has taken, in the order in which they first ended,
        or began to wait.

        Also those of former runs, as far as the task goes on from there; none if the body has taken no step. Raises
        LookupError if the job has no task of that name.
        """
        return await self._core.steps(task)

    async def messages(self) -> list[MessageRecord]:
        """The durable messages to the job and its tasks (`send`) that no body has received yet, oldest first.

        Each has `name`, `value`, `task` (the only task that may receive it), `sent_at` and `by`. Those to an ended job
        are received by its next run.
        """
        return await self._core.messages()

    async def published(self) -> dict[str, Any]:
        """The values that bodies of the job have published (`TaskContext.publish`), by their names: the last of each.

        Only durable values; also those of former runs, as far as their tasks go on from there.
        """
        return await self._core.published()

    @overload
    def events(
        self, *, notices: Literal[True] = True, size: int = BUFFER, **filters: Unpack[Filters]
    ) -> Subscription[Event]: ...
    @overload
    def events(
        self, *, notices: Literal[False], size: int = BUFFER, **filters: Unpack[Filters]
    ) -> Subscription[Transitioned]: ...
    def events(self, *, notices: bool = True, size: int = BUFFER, **filters: Unpack[Filters]) -> Subscription[Any]:
        """Subscribe to all transitions in the job, from its submission to its end, and to its notices from now on.

        Past transitions are read from the journal. The filters and the errors are those of `Runtime.events`. Raises
        ValueError also for a task that the job does not have, and for a state that none of its entities can have.
        """
        from ..observation.filters import wanted_by  # noqa: PLC0415 - many programs subscribe to nothing

        filters["job"] = self.id
        wanted = wanted_by(filters, notices=notices)
        self._core.check_filters(filters)
        return self._core.subscribe(wanted, size)

    async def _say(self, task: str | None, verb: str, said: Arguments, request_id: str | None) -> JobHandle:
        return await self._core.say(task, verb, said, request_id) or self


def core_of(job: JobHandle) -> JobCore:
    """The part of a job's handle that is not for users, for the runtime's own modules."""
    return job._core  # pyright: ignore[reportPrivateUsage]


def of_job(job: JobHandle, named: NameMeaning) -> EntityRef:
    """The reference to a job, its workstream or a task. Raises LookupError for another run and an unknown task."""
    if named.run is not None and named.run != job.record.run:
        raise LookupError(f"job {job.id!r} is in run {job.record.run}, and no longer in run {named.run}")
    if named.task is not None:
        return job.task(named.task).ref
    if named.run is None:
        return job.ref
    return core_of(job).services.reference("workstream", f"{job.id}@{named.run}", job, job)


class RecoveredJobs:
    """The handles of recovered jobs; of those that have ended since, only the last `RECOVERED_KEPT`."""

    def __init__(self) -> None:
        self.handles: dict[str, JobHandle] = {}  # by their ids
        self._ended: deque[str] = deque()  # oldest first

    def add(self, handle: JobHandle) -> None:
        """Add the handle of a recovered job."""
        self.handles[handle.id] = handle

    def lacks(self, job_id: str) -> bool:
        """Whether there is no handle of that job, or only one of a run that has ended."""
        handle = self.handles.get(job_id)
        return handle is None or handle.ended

    def over(self, job_id: str) -> None:
        """Note that a job has ended, and drop the oldest ended job if there are too many."""
        if job_id not in self.handles:
            return
        self._ended.append(job_id)
        if len(self._ended) > RECOVERED_KEPT:
            oldest = self.handles.get(self._ended.popleft())
            if oldest is not None and oldest.ended:  # no new run of the job has begun
                del self.handles[oldest.id]


class TaskHandle(TaskVerbs["JobHandle"]):
    """A task of a job."""

    def __init__(self, job: JobHandle, name: str, say: Callable[..., Awaitable[JobHandle]]) -> None:
        super().__init__(name, say)
        self._job = job

    @property
    def record(self) -> TaskRecord:
        """The task's present record."""
        return core_of(self._job).task_record(self.name)

    @property
    def state(self) -> str:
        """The task's present state."""
        return str(self.record.state)

    @property
    def ref(self) -> EntityRef:
        """The reference by which people fire events at the task."""
        return core_of(self._job).services.reference("task", f"{self._job.id}/{self.name}", self, self._job)

    @property
    def elsewhere(self) -> bool:
        """Whether another node of the journal runs the job."""
        return self._job.elsewhere

    @property
    def progress(self) -> Progress | None:
        """What the running body has reported last by `task.progress`; None if it has reported nothing, or no attempt
        runs.

        For a job that another node runs, it is the progress that was read after the last use of this property, or by
        `refresh`: so use it twice, with a pause in between. The progress was a second or two old when it was read.
        """
        return core_of(self._job).progress(self.name)

    def stream(self) -> TextStream:
        """The text that the body emits by `task.emit`: an async iterator, which ends with the attempt.

        It begins with what is kept of the running attempt; if none runs, it waits for the next one, and ends if there
        will be none. A part may hold several chunks. `Dropped(count)` in between says that so many characters are
        missing: they were emitted before those that are kept, or the reader was too slow.

        For a job that another node runs, the text comes through the database: up to a second later, and beginning with
        the last 262,144 characters that were emitted before.
        """
        return core_of(self._job).emitted(self.name)

    async def attempts(self) -> list[AttemptRecord]:
        """The attempts of the task, as `JobHandle.attempts` returns them."""
        return await self._job.attempts(self.name)

    async def steps(self) -> list[StepRecord]:
        """The durable steps of the task's body, as `JobHandle.steps` returns them."""
        return await self._job.steps(self.name)

    async def published(self) -> dict[str, Any]:
        """The values that the task's body has published, by their names, as `JobHandle.published` returns them."""
        return await core_of(self._job).published(self.name)
