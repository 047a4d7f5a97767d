"""Handles of jobs in another process, with the verbs of `JobHandle` and `TaskHandle`.

Rules
-----
- A handle shows (`state`, `record`, `tasks()`) the values that it received last: from the request that created it, from
  the answers to its own verbs, and from its event streams as they are read. `await refresh()` requests them again.
- If a job has more than `FEW` tasks, only `await refresh()`, and `wait()` after the end of the job, request its tasks.
  Until then `tasks()` raises LookupError, and `task(name)` makes a handle without a request.
- A verb returns when its effect is durable in the runtime, and raises the errors that the runtime raises.
- A handle stays with the run that it was made for, as in the runtime: a next run has another handle.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, overload

import msgspec

from ...actors.records.entities import JobRecord
from ...actors.records.message import MessageRecord
from ...actors.records.step import StepRecord, published_by
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.tasks.attempts import BEATS
from ...actors.user_code import plain_text
from ..calling import Progress
from ..commands.verbs import begins_run
from ..handles.approvals import PendingApproval
from ..handles.base import TASK_NAME, Arguments, JobVerbs, TaskVerbs, asked_for, decided
from ..handles.outcomes import Outcome, no_task, outcome_of, with_tracebacks
from ..observation.events import BUFFER, Dropped
from ..observation.filters import Event, Filters, given
from ..observation.live import PROGRESS
from .link import place
from .references import RemoteRef
from .stream import RemoteEvents, emitted
from .views import (
    ENDED,
    SeenTask,
    attempt_of,
    job_of,
    message_of,
    moved,
    seen_task_of,
    step_of,
    transition_of,
    workstream_of,
)

if TYPE_CHECKING:
    from .core import ClientCore


class RemoteJob(JobVerbs["RemoteJob"]):
    """A job in another process."""

    def __init__(self, core: ClientCore, record: JobRecord, tasks: list[SeenTask] | None) -> None:
        self._core = core
        self._record = record
        self._tasks: dict[str, TaskRecord] = {}
        self._progress: dict[str, Progress] = {}  # of tasks whose bodies run, as last received
        for task in tasks or ():
            self._show_task(task)
        self._knows_all = tasks is not None
        self._outcome: Outcome | None = None
        self.id = record.id
        self._take_outcome()

    def __repr__(self) -> str:
        return f"<RemoteJob {self.id} {self.state}>"

    @property
    def ref(self) -> RemoteRef:
        """The reference by which people fire events at the job and at its workstream."""
        return RemoteRef("job", self.id, self, partial(self._fire, None))

    async def _fire(self, task: str | None, request_id: str | None, said: Arguments) -> RemoteJob | None:
        """Send an event, for the references of the job and its tasks. Returns the result of the verb that it fires."""
        done = await self._send(task, "fire", said, request_id)
        return await self._after(task, done.get("verb", ""))

    # -- the last answers of the server --------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The job's state, as last received."""
        return self._record.state

    @property
    def record(self) -> JobRecord:
        """The job's record, as last received. Values that only the runtime has (keys, epochs) are 0."""
        return self._record

    @property
    def ended(self) -> bool:
        """Whether the job has ended, as last received."""
        return self._record.state in ENDED

    def tasks(self) -> list[TaskRecord]:
        """The records of the job's tasks, as last received, in the order of the specification.

        Raises LookupError for a job of more than `FEW` tasks before its `await refresh()` or `await wait()`.
        """
        if not self._knows_all:
            raise LookupError(f"job {self.id!r} has many tasks: `await refresh()` reads them first")
        return list(self._tasks.values())

    def task(self, name: str) -> RemoteTask:
        """A task of the job. Raises LookupError if the job is known to have no task of that name."""
        name = self._task_record(name).name if self._knows_all else self._name(name)
        about = _Task(
            self.id, self._task_record, self._refresh_task, partial(self._fire, name), self.attempts, self.steps,
            self._stream, self.progress,
        )  # fmt: skip
        return RemoteTask(about, name, self._say)

    def progress(self, name: str) -> Progress | None:
        """What the running body of a task has reported last by `task.progress`, as last received.

        Raises LookupError if there is no such task, or it was not received yet.
        """
        return self._progress.get(self._task_record(name).name)

    def _task_record(self, name: str) -> TaskRecord:
        """The record of a task, as last received. Raises LookupError if no record of such a task was received."""
        found = self._tasks.get(name)
        if found is None and not self._knows_all:
            raise LookupError(f"task {name!r} of job {self.id!r} was not read yet: its `await refresh()` reads it")
        if found is None:
            raise LookupError(no_task(self.record, name, [*self._tasks]))
        return found

    async def refresh(self) -> None:
        """Request the job and all its tasks again."""
        if self._outcome is None:
            await self._ask(whole=True)

    async def _look(self) -> None:
        """Request the job again, and its tasks if they are few or were requested before."""
        if not self.ended:
            await self._ask(whole=self._knows_all)

    async def _ask(self, *, whole: bool) -> None:
        record, tasks = await self._core.look_at(self.id, whole=whole)
        if record.run != self._record.run:
            record, tasks = await self._earlier(record, whole=whole)
        self._show(record, tasks)

    async def _earlier(self, now: JobRecord, *, whole: bool) -> tuple[JobRecord, list[SeenTask] | None]:
        """The last records of the handle's own run, and of its tasks: the job goes on in a later run."""
        runs = [workstream_of(view) async for view in self._core.link.pages(f"jobs/{place(self.id)}/workstreams")]
        own = next(run for run in reversed(runs) if run.run < now.run)
        tasks = await self._core.tasks_of(self.id, own.run) if whole else None
        last = msgspec.structs.replace(
            self._record, state=own.state, published=own.published, error=own.error, reason=own.reason,
            workstream=own.id, finished_at=own.finished_at, updated_at=own.updated_at,
        )  # fmt: skip
        return last, tasks

    async def _refresh_task(self, name: str) -> None:
        """Request the job and one of its tasks again."""
        if self._outcome is None:
            record = job_of(await self._core.link.get(f"jobs/{place(self.id)}"))
            if record.run != self._record.run or (record.finished_at is not None and self._knows_all):
                await self.refresh()
                return
            self._show_task(seen_task_of(await self._core.link.get(f"jobs/{place(self.id)}/tasks/{place(name)}")))
            self._show(record, None)

    def _show(self, record: JobRecord, tasks: list[SeenTask] | None) -> None:
        """Store what was received. tasks: all tasks; None if they were not received."""
        if record.run == self._record.run:
            self._record = record
            if tasks is not None:
                self._tasks, self._progress, self._knows_all = {}, {}, True
                for task in tasks:
                    self._show_task(task)
            self._take_outcome()

    def _show_task(self, task: SeenTask) -> None:
        self._tasks[task.record.name] = task.record
        self._show_progress(task.record.name, task.progress)

    def _show_progress(self, name: str, progress: Progress | None) -> None:
        if progress is None:
            self._progress.pop(name, None)
        else:
            self._progress[name] = progress

    def _take_outcome(self) -> None:
        if self._outcome is None and self.ended and self._knows_all:
            self._outcome = outcome_of(self._record, self.tasks())

    def _see(self, event: Event) -> None:
        """Update the handle by an event of its stream."""
        if self.ended or event.job_id != self.id:
            return
        if not isinstance(event, Transitioned):
            if event.event == PROGRESS and event.entity_id is not None:
                record = self._tasks.get(event.entity_id.rpartition("/")[2])
                if record is not None and record.id == event.entity_id:
                    self._progress[record.name] = msgspec.convert(event.facts, Progress)
            return
        if event.kind == "job" and event.entity_id == self.id and event.phase not in ENDED:
            self._record = moved(self._record, event)  # the end comes by a request, which has the results
        elif event.kind == "task":
            record = self._tasks.get(event.entity_id.rpartition("/")[2])
            if record is not None and record.id == event.entity_id:
                self._tasks[record.name] = moved(record, event)
                if event.phase not in BEATS or event.from_state == "queued":  # the attempt is over, or begins
                    self._show_progress(record.name, None)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def approve(self, *, by: str | None = None, reason: str | None = None, request_id: str | None = None) -> None:
        """As `JobHandle.approve`. by: with a token, only the owner of the token, who is also the default."""
        await self._say(None, "approve", decided(by, reason), request_id)

    async def reject(self, *, by: str | None = None, reason: str | None = None, request_id: str | None = None) -> None:
        """As `JobHandle.reject`. by: as for `approve`."""
        await self._say(None, "reject", decided(by, reason), request_id)

    async def _say(self, task: str | None, verb: str, said: Arguments, request_id: str | None) -> RemoteJob:
        await self._send(task, verb, said, request_id)
        return await self._after(task, verb) or self

    async def _after(self, task: str | None, verb: str) -> RemoteJob | None:
        """Request the state after a verb. Returns the handle of the run that goes on, if the verb may begin a run."""
        if begins_run("job" if task is None else "task", verb):
            return await self._what_goes_on()
        await (self._look() if task is None else self._refresh_task(task))
        return None

    async def _send(self, task: str | None, verb: str, said: Arguments, request_id: str | None) -> dict[str, Any]:
        """Send a command to the job or to one of its tasks. Returns the answer."""
        path = f"jobs/{place(self.id)}" if task is None else f"jobs/{place(self.id)}/tasks/{place(self._name(task))}"
        done: dict[str, Any] = await self._core.act(f"{path}/{verb}", said, request_id)
        return done

    async def _what_goes_on(self) -> RemoteJob:
        whole = self._knows_all
        record, tasks = await self._core.look_at(self.id, whole=whole)
        if not self.ended and record.run == self._record.run:
            self._show(record, tasks)
            return self
        return RemoteJob(self._core, record, tasks)

    def _name(self, task: object) -> str:
        """Check a task's name. Only the server may know which tasks there are."""
        return plain_text(task, TASK_NAME)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def approvals(self) -> list[PendingApproval]:
        """The job's pending approvals, each with its approvers and its deadline."""
        return [one for one in await self._core.approvals() if one.job_id == self.id]

    async def children(self) -> list[RemoteJob]:
        """The jobs that the job's tasks have submitted, ended ones too, oldest first."""
        view = await self._core.link.get(f"jobs/{place(self.id)}")
        return [RemoteJob(self._core, *await self._core.look_at(child, whole=False)) for child in view["children"]]

    async def output(self, name: str) -> str:
        """The last line that the command of a task has written so far; empty if there is none.

        Raises LookupError if there is no such task.
        """
        text = await self._core.text(f"jobs/{place(self.id)}/tasks/{place(self.task(name).name)}/output")
        return next((line for line in reversed(text.splitlines()) if line.strip()), "")

    async def wait(self) -> Outcome:
        """Wait for the end of the job, also over restarts of the server.

        Raises ServerUnreachable if the server does not answer for longer than `patience`.
        """
        if not self.ended:
            moves = self._core.listen({"job": self.id, "kind": "job"})
            try:
                await self._core.opened()
                await self._look()
                while not self.ended:
                    await anext(moves)
                    await self._look()
            finally:
                moves.close()
        while self._outcome is None:
            await self.refresh()
        stream = self._record.workstream
        self._outcome = await with_tracebacks(self._outcome, stream, self.attempts, self._transitions_of)
        return self._outcome

    async def _transitions_of(self, entity_id: str) -> list[Transitioned]:
        """The transitions of the job, its workstream or a task."""
        pages = self._core.link.pages(f"jobs/{place(self.id)}/transitions", next_by="after", entity=entity_id)
        return [transition_of(view) async for view in pages]

    async def attempts(self, task: str) -> list[AttemptRecord]:
        """As `JobHandle.attempts`, without the keys and other values that only the runtime has."""
        path = f"jobs/{place(self.id)}/tasks/{place(self._name(task))}/attempts"
        return [attempt_of(view) async for view in self._core.link.pages(path)]

    async def steps(self, task: str) -> list[StepRecord]:
        """As `JobHandle.steps`, without the keys and other values that only the runtime has."""
        path = f"jobs/{place(self.id)}/tasks/{place(self._name(task))}/steps"
        return [step_of(view) async for view in self._core.link.pages(path)]

    def _stream(self, task: str) -> AsyncGenerator[str | Dropped]:
        return emitted(self._core.link, f"jobs/{place(self.id)}/tasks/{place(self._name(task))}/stream")

    async def messages(self) -> list[MessageRecord]:
        """As `JobHandle.messages`, without the keys that only the runtime has."""
        return [
            message_of(view, self._record) async for view in self._core.link.pages(f"jobs/{place(self.id)}/messages")
        ]

    async def published(self) -> dict[str, Any]:
        """As `JobHandle.published`."""
        found = await self._core.link.get(f"jobs/{place(self.id)}/published")
        return {name: one["value"] for name, one in found.items()}

    @overload
    def events(
        self, *, notices: Literal[True] = True, size: int = BUFFER, **filters: Unpack[Filters]
    ) -> RemoteEvents[Event]: ...
    @overload
    def events(
        self, *, notices: Literal[False], size: int = BUFFER, **filters: Unpack[Filters]
    ) -> RemoteEvents[Transitioned]: ...
    def events(self, *, notices: bool = True, size: int = BUFFER, **filters: Unpack[Filters]) -> RemoteEvents[Any]:
        """Subscribe to all transitions in the job, from its submission to its end, and to its notices from now on.

        When an event is read, the handle shows its effect. The filters are those of `Runtime.events`.
        """
        filters["job"] = self.id
        for one in sorted(given("task", filters)) if self._knows_all and self._tasks else ():
            if one.rpartition("/")[2] not in self._tasks:
                raise ValueError(no_task(self.record, one, [*self._tasks]))
        return self._core.listen(filters, notices=notices, size=size, after=0, seen=self._see, last=self._is_its_end)

    async def _is_its_end(self, event: Event) -> bool:
        if not isinstance(event, Transitioned) or (event.kind, event.entity_id) != ("job", self.id):
            return False
        if event.run < self._record.run:
            return False
        if self._record.published is None:
            return event.phase in ENDED
        await self._look()  # the meaning of its state is in its lifecycle, which the server has
        return self.ended and event.to_state == self._record.shown


class _Task(NamedTuple):
    """The part of a job that a handle of its task uses."""

    job_id: str
    record: Callable[[str], TaskRecord]
    refresh: Callable[[str], Awaitable[None]]
    fire: Callable[[str | None, Arguments], Awaitable[RemoteJob | None]]
    attempts: Callable[[str], Awaitable[list[AttemptRecord]]]
    steps: Callable[[str], Awaitable[list[StepRecord]]]
    stream: Callable[[str], AsyncGenerator[str | Dropped]]
    progress: Callable[[str], Progress | None]


class RemoteTask(TaskVerbs[RemoteJob]):
    """A task of a job in another process."""

    def __init__(self, job: _Task, name: str, say: Callable[..., Awaitable[RemoteJob]]) -> None:
        super().__init__(name, say)
        self._job = job

    def __repr__(self) -> str:
        return f"<RemoteTask {self.record.id} {self.record.state}>"

    @property
    def ref(self) -> RemoteRef:
        """The reference by which people fire events at the task."""
        return RemoteRef("task", f"{self._job.job_id}/{self.name}", self, self._job.fire)

    @property
    def record(self) -> TaskRecord:
        """The task's record, as last received."""
        return self._job.record(self.name)

    @property
    def state(self) -> str:
        """The task's state, as last received."""
        return str(self.record.state)

    @property
    def progress(self) -> Progress | None:
        """What the running body has reported last by `task.progress`, as last received: with the task's record, and by
        the notices of the job's `events()` as they are read. None if nothing was received, and if no attempt runs.
        """
        return self._job.progress(self.name)

    async def refresh(self) -> None:
        """Request the task again."""
        await self._job.refresh(self.name)

    async def attempts(self) -> list[AttemptRecord]:
        """The attempts of the task, as `RemoteJob.attempts` returns them."""
        return await self._job.attempts(self.name)

    def stream(self) -> AsyncGenerator[str | Dropped]:
        """The text that the body emits, as `TaskHandle.stream`. Lost connections do not end it, but the attempt does.

        Raises the error of the server's answer, and ServerUnreachable if it does not answer for longer than `patience`.
        """
        return self._job.stream(self.name)

    async def steps(self) -> list[StepRecord]:
        """The durable steps of the task's body, as `RemoteJob.steps` returns them."""
        return await self._job.steps(self.name)

    async def published(self) -> dict[str, Any]:
        """As `TaskHandle.published`."""
        return {name: step.result for name, step in published_by(await self.steps()).items()}

    async def approve(
        self,
        *,
        by: str | None = None,
        reason: str | None = None,
        approval: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """As `TaskHandle.approve`. by: with a token, only the owner of the token, who is also the default."""
        await self._say("approve", {**decided(by, reason), **asked_for(approval)}, request_id)

    async def reject(
        self,
        *,
        by: str | None = None,
        reason: str | None = None,
        approval: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """As `TaskHandle.reject`. by: as for `approve`."""
        await self._say("reject", {**decided(by, reason), **asked_for(approval)}, request_id)
