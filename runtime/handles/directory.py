"""The jobs of a runtime: their handles, and where each is: living here, on another node, or ended.

Rules
-----
- Of the living, memory is read; of what has ended, the journal. What is said to have ended has ended durably.
- Each handle of a living job is told of its end. One that nobody holds any more is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from ...actors.jobs.job import JobActor
from ...actors.records.entities import JobRecord
from ...actors.user_code import plain_text
from ..cluster.remote import EVERYTHING, RemoteJob, look, pending_elsewhere
from ..observation.events import Past
from .approvals import PendingApproval
from .jobs import JobHandle, Recovered
from .outcomes import outcome_of

if TYPE_CHECKING:
    from ..services import RuntimeServices


class JobDirectory:
    """The jobs of one runtime."""

    def __init__(self, services: RuntimeServices) -> None:
        self.recovered = Recovered()
        """The jobs that were found living when the runtime was entered, and those that it has taken over since."""
        self.archiving = False
        """Whether there may be jobs to be moved out of the journal."""
        self.taking_inbox = False
        """What was put there while nobody ran the journal is being done."""
        self.arriving: dict[str, int] = {}
        """Jobs that are being taken over: up to which number others told of them."""
        self._services = services
        self._handles: dict[str, WeakSet[JobHandle]] = {}  # of the living jobs, by their ids

    # -- looking -------------------------------------------------------------------------------------------------------

    async def find(self, job_id: str) -> JobHandle:
        """The handle of a job, living or ended. Raises LookupError if there is none."""
        services = self._services
        services.standing.check_open_here()
        job_id = plain_text(job_id, "a job's id")
        jobs, journal, read = services.host.kernel.jobs, services.journal, services.read
        if (actor := jobs.get(job_id)) is not None:
            return self.handle(actor)
        record = await read(journal.reader.job, job_id)
        if record is None:
            for archived in await read(journal.reader.archived, job_id):
                raise LookupError(f"job {job_id!r} ({archived.state}) was archived in {archived.file}")
            raise LookupError(f"there is no job {job_id!r} in this journal")
        if record.finished_at is None and services.seat is not None:
            seen = await read(look, journal.reader, job_id)
            if (actor := jobs.get(job_id)) is not None:  # it may have been taken over meanwhile
                return self.handle(actor)
            if seen.job.finished_at is None:
                return RemoteJob(services, services.seat, seen)
            record = seen.job
        tasks = await read(journal.reader.tasks, record.stream)  # of its last run; none if it never began
        return JobHandle(services, record, None, outcome_of(record, tasks))

    def living(self, job_id: str) -> JobActor | None:
        """The actor of a job that has not ended, or not durably yet."""
        actor = self._services.host.kernel.jobs.get(job_id)
        return None if actor is None or actor.over else actor

    async def ended(self, job_id: str) -> JobRecord | None:
        """The record of a job that has ended, durably; None while it lives, also on another node. Raises LookupError if
        there is none, but for a child's id: that may be submitted yet.
        """
        record = await self.record_of(job_id)
        if record is None and "/" not in job_id:
            raise LookupError(f"there is no job {job_id!r} in this journal")
        return None if record is None or record.finished_at is None else record

    async def record_of(self, job_id: str) -> JobRecord | None:
        """The record of a job: of a living one its present one, of an ended one its last, which is durable; None if
        there is none.
        """
        actor = self._services.host.kernel.jobs.get(job_id)
        if actor is not None and actor.ended:
            await self._services.host.barrier()  # its end is durable then
        living = self.living(job_id)
        if living is not None:
            return living.record
        record: JobRecord | None = await self._services.read(self._services.journal.reader.job, job_id)
        return record

    async def children_of(self, job_id: str) -> list[JobHandle]:
        """The child jobs of a job, living and ended, oldest first."""
        found = await self._services.read(self._services.journal.reader.children, job_id)
        return [await self.find(record.id) for record in found]

    def past_of(self, job_id: str) -> Past:
        """For a job's events: what was told of it before now."""
        services = self._services
        until = max(services.hub.told, self.arriving.get(job_id, 0))
        if services.seat is not None and job_id not in services.host.kernel.jobs:
            until = EVERYTHING  # its last numbers may be those of another node
        return Past(services.journal.reader, services.read, job_id, until=until)

    # -- on other nodes ------------------------------------------------------------------------------------------------

    def handed_over(self, job_id: str) -> bool:
        """Whether a job that ran here is another node's by now, since this one drains."""
        services = self._services
        return services.seat is not None and services.draining and job_id not in services.host.kernel.jobs

    async def is_elsewhere(self, job_id: str) -> bool:
        """Whether a job lives on another node, or is nobody's yet."""
        services = self._services
        if services.seat is None or job_id in services.host.kernel.jobs:
            return False
        record: JobRecord | None = await services.read(services.journal.reader.job, job_id)
        return record is not None and record.finished_at is None

    async def approvals_elsewhere(self) -> list[PendingApproval]:
        """What waits for people of the jobs that other nodes run (the newest thousand), as the journal has it."""
        services = self._services
        if services.seat is None:
            return []
        here = frozenset(services.host.kernel.jobs)
        found: list[PendingApproval] = await services.read(pending_elsewhere, services.journal.reader, here)
        return found

    # -- handles -------------------------------------------------------------------------------------------------------

    def handle(self, actor: JobActor) -> JobHandle:
        """A handle of a job that is in memory."""
        handle = JobHandle(self._services, actor.record, actor)
        if actor.over:
            _settle(handle, actor)
        else:
            self._handles.setdefault(handle.id, WeakSet()).add(handle)
        return handle

    def here(self, actor: JobActor) -> None:
        """It was found living, or taken over."""
        self.recovered.add(self.handle(actor))
        if self._services.seat is not None:
            for handle in self._services.seat.handles_of(actor.record.id):
                handle.come_home(actor)
                self._handles.setdefault(handle.id, WeakSet()).add(handle)

    def recover(self, job: JobActor) -> None:
        """It was found living, or the inbox had it run again."""
        if self.recovered.lacks(job.record.id):
            self.recovered.add(self.handle(job))

    def over(self, actor: JobActor) -> None:
        """It has ended, durably."""
        self.archiving |= actor.record.archive
        if self.taking_inbox:
            self.recover(actor)  # it may have been refused as soon as it was run again
        for handle in list(self._handles.pop(actor.record.id, ())):
            _settle(handle, actor)
        self.recovered.over(actor.record.id)

    def let_go(self, cause: BaseException | None) -> None:
        """Tell whoever waits for a job that nothing comes any more; `cause` is what the runtime broke by."""
        for handles in self._handles.values():
            for handle in list(handles):
                handle.settle(None, cause)


def _settle(handle: JobHandle, actor: JobActor) -> None:
    tasks = [] if actor.stream is None else [task.record for task in actor.stream.tasks]
    handle.settle(outcome_of(actor.record, tasks))
