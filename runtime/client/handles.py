"""Handles of the jobs of another process: the verbs of `JobHandle` and `TaskHandle`.

Rules
-----
- What a handle shows (`state`, `record`, `tasks()`) is what it was last told: by the answer to what it was made by, by
  that to each of its own verbs, and by its event streams as they are read. `await refresh()` asks again.
- The tasks of a job of more than `FEW` are asked for only when they are wanted: by `await refresh()`, and by `wait()`
  when it has ended. Until then `tasks()` raises LookupError, and a task's handle is made of its name, without asking.
- A verb returns when it took effect there, durably, and raises what the runtime raises there.
- A handle stays that of the run that it was made for, as in the runtime: what goes on in a next run has another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import msgspec

from ...actors.records.entities import JobRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.user_code import plain_text
from ..commands.verbs import begins_run
from ..handles.approvals import PendingApproval
from ..handles.base import TASK_NAME, JobVerbs, Said, TaskVerbs, asked_for, decided
from ..handles.outcomes import Outcome, explained, no_task, outcome_of
from ..observation.events import BUFFER
from ..observation.filters import Event, Filters
from .link import place
from .references import RemoteRef
from .stream import RemoteEvents
from .views import ENDED, attempt_of, job_of, moved, task_of, transition_of, workstream_of

if TYPE_CHECKING:
    from .client import Client

FEW = 500
"""Tasks, at most, of a job that is told with them."""


class RemoteJob(JobVerbs["RemoteJob"]):
    """A job of another process."""

    def __init__(self, client: Client, record: JobRecord, tasks: list[TaskRecord] | None) -> None:
        self._client = client
        self._record = record
        self._tasks = {task.name: task for task in tasks or ()}
        self._knows_all = tasks is not None
        self._outcome: Outcome | None = None
        self.id = record.id
        self._take_outcome()

    def __repr__(self) -> str:
        return f"<RemoteJob {self.id} {self.state}>"

    @property
    def ref(self) -> RemoteRef:
        """It as an actor, which takes the events that people may fire at it and at its workstream."""
        return RemoteRef("job", self.id, self, partial(self.fire, None))

    async def fire(self, task: str | None, request_id: str | None, said: Said) -> RemoteJob | None:
        """For its own reference and those of its tasks: send an event there. Returns what the verb that it is does."""
        done = await self._send(task, "fire", said, request_id)
        return await self._after(task, done.get("verb", ""))

    # -- what it was last told -----------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """The job's state, as it was last told."""
        return self._record.state

    @property
    def record(self) -> JobRecord:
        """The job's record, as it was last told. What is only the runtime's (keys, epochs) is 0 in it."""
        return self._record

    @property
    def ended(self) -> bool:
        """Whether it has ended, so far as it was told."""
        return self._record.state in ENDED

    def tasks(self) -> list[TaskRecord]:
        """The records of its tasks, as they were last told, in the order of the specification.

        Raises LookupError for a job of more than `FEW` before its `await refresh()` or `await wait()`.
        """
        if not self._knows_all:
            raise LookupError(f"the tasks of job {self.id!r} are many: `await refresh()` asks for them first")
        return list(self._tasks.values())

    def task(self, name: str) -> RemoteTask:
        """One of its tasks. Raises LookupError if it is known to have none of that name."""
        name = self.task_record(name).name if self._knows_all else self._name(name)
        return RemoteTask(self, name, self._say)

    def task_record(self, name: str) -> TaskRecord:
        """The record of one of its tasks, as it was last told. Raises LookupError if nothing was told of such a one."""
        found = self._tasks.get(name)
        if found is None and not self._knows_all:
            raise LookupError(
                f"nothing was told of task {name!r} of job {self.id!r} yet: its `await refresh()` asks for it"
            )
        if found is None:
            raise LookupError(no_task(self.record, name, [*self._tasks]))
        return found

    async def refresh(self) -> None:
        """Ask for it, and for all of its tasks, again."""
        if self._outcome is None:
            await self._ask(whole=True)

    async def _look(self) -> None:
        """Ask for it again, and for those tasks that it has told of already or that are few."""
        if not self.ended:
            await self._ask(whole=self._knows_all)

    async def _ask(self, *, whole: bool) -> None:
        record, tasks = await self._client.look_at(self.id, whole=whole)
        if record.run != self._record.run:
            record, tasks = await self._earlier(record, whole=whole)
        self._show(record, tasks)

    async def _earlier(self, now: JobRecord, *, whole: bool) -> tuple[JobRecord, list[TaskRecord] | None]:
        """Its last record, and those of its tasks, from what is kept of its runs: it goes on in a later one."""
        runs = [workstream_of(view) async for view in self._client.link.pages(f"jobs/{place(self.id)}/workstreams")]
        own = next(run for run in reversed(runs) if run.run < now.run)
        tasks = await self._client.tasks_of(self.id, own.run) if whole else None
        last = msgspec.structs.replace(
            self._record, state=own.state, published=own.published, error=own.error, reason=own.reason,
            workstream=own.id, finished_at=own.finished_at, updated_at=own.updated_at,
        )  # fmt: skip
        return last, tasks

    async def refresh_task(self, name: str) -> None:
        """Ask for it, and for one of its tasks, again."""
        if self._outcome is None:
            record = job_of(await self._client.link.get(f"jobs/{place(self.id)}"))
            if record.run != self._record.run or (record.finished_at is not None and self._knows_all):
                await self.refresh()
                return
            told = task_of(await self._client.link.get(f"jobs/{place(self.id)}/tasks/{place(name)}"))
            self._tasks[told.name] = told
            self._show(record, None)

    def _show(self, record: JobRecord, tasks: list[TaskRecord] | None) -> None:
        """Take what was told of it. tasks: all of them; None if they were not told."""
        if record.run == self._record.run:
            self._record = record
            if tasks is not None:
                self._tasks, self._knows_all = {task.name: task for task in tasks}, True
            self._take_outcome()

    def _take_outcome(self) -> None:
        if self._outcome is None and self.ended and self._knows_all:
            self._outcome = outcome_of(self._record, self.tasks())

    def see(self, event: Event) -> None:
        """For an event stream: what it told."""
        if not isinstance(event, Transitioned) or self.ended or event.job_id != self.id:
            return
        if event.kind == "job" and event.entity_id == self.id and event.phase not in ENDED:
            self._record = moved(self._record, event)  # its end is told by the answer to a question, with its results
        elif event.kind == "task":
            record = self._tasks.get(event.entity_id.rpartition("/")[2])
            if record is not None and record.id == event.entity_id:
                self._tasks[record.name] = moved(record, event)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def approve(self, *, by: str | None = None, reason: str | None = None, request_id: str | None = None) -> None:
        """As `JobHandle.approve`. by: with a token nobody but who it is of, and so unless given."""
        await self._say(None, "approve", decided(by, reason), request_id)

    async def reject(self, *, by: str | None = None, reason: str | None = None, request_id: str | None = None) -> None:
        """As `JobHandle.reject`. by: as for `approve`."""
        await self._say(None, "reject", decided(by, reason), request_id)

    async def _say(self, task: str | None, verb: str, said: Said, request_id: str | None) -> RemoteJob:
        await self._send(task, verb, said, request_id)
        return await self._after(task, verb) or self

    async def _after(self, task: str | None, verb: str) -> RemoteJob | None:
        """See what came of a verb. Returns the handle of the run that goes on, where it is one that may begin a run."""
        if begins_run("job" if task is None else "task", verb):
            return await self._what_goes_on()
        await (self._look() if task is None else self.refresh_task(task))
        return None

    async def _send(self, task: str | None, verb: str, said: Said, request_id: str | None) -> dict[str, Any]:
        """Give it, or one of its tasks, a command. Returns what is answered."""
        path = f"jobs/{place(self.id)}" if task is None else f"jobs/{place(self.id)}/tasks/{place(self._name(task))}"
        done: dict[str, Any] = await self._client.act(f"{path}/{verb}", said, request_id)
        return done

    async def _what_goes_on(self) -> RemoteJob:
        whole = self._knows_all
        record, tasks = await self._client.look_at(self.id, whole=whole)
        if not self.ended and record.run == self._record.run:
            self._show(record, tasks)
            return self
        return RemoteJob(self._client, record, tasks)

    def _name(self, task: object) -> str:
        """What may be the name of a task. Which there are, only the server may know."""
        return plain_text(task, TASK_NAME)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def approvals(self) -> list[PendingApproval]:
        """What of it waits for people now: for whom, and until when."""
        return [one for one in await self._client.approvals() if one.job_id == self.id]

    async def children(self) -> list[RemoteJob]:
        """The jobs that its tasks have submitted, living and ended, oldest first."""
        view = await self._client.link.get(f"jobs/{place(self.id)}")
        return [await self._client.job(child) for child in view["children"]]

    async def output(self, name: str) -> str:
        """The last line that the command of a task has written so far; empty if it has none.

        Raises LookupError if there is no such task.
        """
        told = await self._client.text(f"jobs/{place(self.id)}/tasks/{place(self.task(name).name)}/output")
        return next((line for line in reversed(told.splitlines()) if line.strip()), "")

    async def wait(self) -> Outcome:
        """Wait for its end, over restarts of the server.

        Raises ServerUnreachable where nothing answers for longer than `patience`.
        """
        if not self.ended:
            moves = self._client.listen({"job": self.id, "kind": "job"})
            try:
                await self._client.opened()
                await self._look()
                while not self.ended:
                    await anext(moves)
                    await self._look()
            finally:
                moves.close()
        while self._outcome is None:
            await self.refresh()
        stream = self._record.workstream
        self._outcome = await explained(self._outcome, stream, self.attempts, self._transitions_of)
        return self._outcome

    async def _transitions_of(self, entity_id: str) -> list[Transitioned]:
        """Those of the job, its workstream or a task."""
        pages = self._client.link.pages(f"jobs/{place(self.id)}/transitions", next_by="after", entity=entity_id)
        return [transition_of(view) async for view in pages]

    async def attempts(self, task: str) -> list[AttemptRecord]:
        """As `JobHandle.attempts`. Their keys, and what only the runtime has of them, are not told here."""
        path = f"jobs/{place(self.id)}/tasks/{place(self._name(task))}/attempts"
        return [attempt_of(view) async for view in self._client.link.pages(path)]

    @overload
    def events(
        self, *, notices: Literal[True] = True, size: int = BUFFER, **filters: Unpack[Filters]
    ) -> RemoteEvents[Event]: ...
    @overload
    def events(
        self, *, notices: Literal[False], size: int = BUFFER, **filters: Unpack[Filters]
    ) -> RemoteEvents[Transitioned]: ...
    def events(self, *, notices: bool = True, size: int = BUFFER, **filters: Unpack[Filters]) -> RemoteEvents[Any]:
        """Its transitions and those of all that is in it, from its submission until its end; its notices from now on.

        As they are read, the handle shows what they tell. The filters are those of `Runtime.events`.
        """
        filters["job"] = self.id
        return self._client.listen(filters, notices=notices, size=size, after=0, seen=self.see, last=self._is_its_end)

    async def _is_its_end(self, event: Event) -> bool:
        if not isinstance(event, Transitioned) or (event.kind, event.entity_id) != ("job", self.id):
            return False
        if event.run < self._record.run:
            return False
        if self._record.published is None:
            return event.phase in ENDED
        await self._look()  # what its state means, its lifecycle says, and that is there
        return self.ended and event.to_state == self._record.shown


class RemoteTask(TaskVerbs[RemoteJob]):
    """A task of a job of another process."""

    def __init__(self, job: RemoteJob, name: str, say: Callable[..., Awaitable[RemoteJob]]) -> None:
        super().__init__(name, say)
        self._job = job

    def __repr__(self) -> str:
        return f"<RemoteTask {self.record.id} {self.record.state}>"

    @property
    def ref(self) -> RemoteRef:
        """It as an actor, which takes the events that people may fire at it."""
        return RemoteRef("task", f"{self._job.id}/{self.name}", self, partial(self._job.fire, self.name))

    @property
    def record(self) -> TaskRecord:
        """Its record, as it was last told."""
        return self._job.task_record(self.name)

    async def refresh(self) -> None:
        """Ask for it again."""
        await self._job.refresh_task(self.name)

    async def attempts(self) -> list[AttemptRecord]:
        """Its attempts: `RemoteJob.attempts` with its name."""
        return await self._job.attempts(self.name)

    async def approve(
        self,
        *,
        by: str | None = None,
        reason: str | None = None,
        approval: str | None = None,
        request_id: str | None = None,
    ) -> None:
        """As `TaskHandle.approve`. by: with a token nobody but who it is of, and so unless given."""
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
