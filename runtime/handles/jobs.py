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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import anyio

from ...actors.machines.refusals import in_its_words
from ...actors.messages.commands import Approve, Command, ResetTask, Resume, SkipTask
from ...actors.messages.errors import CircuitOpen
from ...actors.messages.inputs import Message
from ...actors.records.entities import JobRecord, WorkstreamRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.tasks.holds import refusal
from ...actors.user_code import plain_text
from ...machines import InvalidTransitionError
from ...machines.builtin.task import TASK
from ...machines.builtin.workstream import WORKSTREAM
from ..commands.reruns import run_again
from ..commands.verbs import commands_of, verb_of
from ..journal.contract import JournalError
from ..observation.events import BUFFER, Subscription
from ..observation.filters import Event, EventFilter, Filters, wanted_by
from .approvals import PendingApproval, pending_of
from .base import TASK_NAME, JobVerbs, Said, TaskVerbs
from .outcomes import CutShort, Outcome, RuntimeClosed, closed, explained, goes_on, no_task

if TYPE_CHECKING:
    from ...actors.jobs.job import JobActor
    from ..services import RuntimeServices
    from .references import EntityRef


_ENDED = ("completed", "failed", "cancelled")
_RULES = {
    "retry": "A task of a job that has not ended is tried again only where it is parked.",
    "skip": "A task of a job that has not ended is skipped only while it is pending.",
}
"""By verb: when a task of a living job takes it."""
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


class JobHandle(JobVerbs["JobHandle"]):
    """A job of a runtime."""

    def __init__(
        self, services: RuntimeServices, record: JobRecord, actor: JobActor | None, outcome: Outcome | None = None
    ) -> None:
        self._services = services
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
        return self._services.reference(kind, name, handle)

    def task(self, name: str) -> TaskHandle:
        """One of its tasks. Raises LookupError if it has none of that name."""
        return TaskHandle(self, self.task_record(name).name, self._say)

    def task_record(self, name: str) -> TaskRecord:
        """The present record of one of its tasks. Raises LookupError if it has none of that name."""
        name, names = plain_text(name, TASK_NAME), list[str]()
        for record in self.tasks():
            if record.name == name:
                return record
            names.append(record.name)
        raise LookupError(no_task(self.record, name, names))

    def output(self, name: str) -> str:
        """The last line that the running command of a task has written so far; empty if it has none.

        Raises LookupError if there is no such task.
        """
        return self._services.tail(self.task_record(name).token)

    async def _say(self, task: str | None, verb: str, said: Said, request_id: str | None) -> JobHandle:
        """Give it, or a task of it, a command: a message while it lives, else, by some verbs, a next run."""
        kind = "job" if task is None else "task"
        row = verb_of(kind, verb)
        if row.messages[kind] is None or (row.begins_run and not self._living):
            await run_again(self._services, self.id, verb, task, **said, request_id=request_id)
            return await self._services.jobs.find(self.id)
        try:
            await self._tell(task, row.message(kind, said), verb, said, request_id)
        except CircuitOpen:
            raise
        except InvalidTransitionError as refused:
            if verb not in _RULES:
                raise
            raise _in_words(refused, verb, _RULES[verb]) from None
        return self

    async def _tell(self, task: str | None, message: Message, verb: str, said: Said, request_id: str | None) -> None:
        def ended() -> Exception | None:
            over = self._outcome is not None or self._actor is None or self._actor.over
            return self._refusal(task, verb) if over else None

        services, key = self._services, self.record.key if task is None else self.task_record(task).key
        commands = services.commands
        what: object = message
        if isinstance(message, Resume | ResetTask | SkipTask):  # in a next run the same may be said otherwise
            what = message.reason, message.by
        if isinstance(message, Approve):
            message = await services.with_teams(key, message)
        about = self.id, task, what  # a key may be used again in a next run, where the task has another number
        try:
            await commands.give(partial(Command, key, message), verb, about, request_id=request_id, refuse=ended)
        except LookupError:
            if (error := ended()) is not None:
                raise error from None  # it was let go meanwhile
            if not services.jobs.handed_over(self.id):
                raise
            job = await services.jobs.find(self.id)
            await job._say(task, verb, said, request_id)

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

    async def children(self) -> list[JobHandle]:
        """The jobs that its tasks have submitted, living and ended, oldest first."""
        return await self._services.jobs.children_of(self.id)

    def _refusal(self, task: str | None, event: str) -> InvalidTransitionError:
        """What a command gets when it has ended: its actors are gone, and cannot say so themselves."""
        stream = None if self._actor is None else self._actor.stream
        if event in {"approve", "reject"}:
            if task is not None:
                held = self.task_record(task)
                return in_its_words(refusal(TASK, held, event), held, self._services.lifecycles)
            if (record := self._stream if stream is None else stream.record) is not None:
                return in_its_words(refusal(WORKSTREAM, record, event), record, self._services.lifecycles)
        ended = self.record if task is None else self.task_record(task)
        error = InvalidTransitionError(ended.kind, str(ended.state), event, frozenset())
        return in_its_words(error, ended, self._services.lifecycles)

    def approvals(self) -> list[PendingApproval]:
        """What of it waits for people now: for whom, and until when."""
        return [] if self._actor is None or self._outcome is not None else list(pending_of(self._actor))

    async def wait(self) -> Outcome:
        """Wait for its end. The runtime must stay open; raises RuntimeClosed if it does not."""
        if self._outcome is None:
            self._services.check_here("a job")
        await self._over.wait()
        if self._outcome is None:
            text = f"the runtime closed before job {self.id!r} ended"
            if self._cause is None or isinstance(self._cause, CutShort):
                text = f"{text}; {goes_on(shared=self._services.seat is not None)}"
            raise closed(text, self._cause)
        with suppress(RuntimeClosed, JournalError):
            if self._services.is_open:
                stream = self.record.workstream
                self._outcome = await explained(self._outcome, stream, self.attempts, self._transitions_of)
        return self._outcome

    async def _transitions_of(self, entity_id: str) -> list[Transitioned]:
        """Those of the job, its workstream or a task, that are durable."""

        def read() -> list[Transitioned]:
            return list(self._services.journal.reader.transitions(entity_id=entity_id, job_id=self.id))

        found: list[Transitioned] = await self._services.read(read)
        return found

    async def attempts(self, task: str) -> list[AttemptRecord]:
        """The attempts of a task in the present run, oldest first: how each ended, and the traceback of what raised.

        Those that are durable; of one that runs, its beginning. Raises LookupError if it has no task of that name.
        """
        record = self.task_record(task)
        found: list[AttemptRecord] = await self._services.read(self._services.journal.reader.attempts, record.id)
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
        self._services.check_here("a job")
        past = self._services.jobs.past_of(self.id)
        events = self._services.hub.subscribe(wanted, last=self._is_its_end, size=size, past=past)
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


class TaskHandle(TaskVerbs["JobHandle"]):
    """A task of a job."""

    def __init__(self, job: JobHandle, name: str, say: Callable[..., Awaitable[JobHandle]]) -> None:
        super().__init__(name, say)
        self._job = job

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
