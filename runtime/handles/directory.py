"""The jobs of a runtime: their handles, and whether each lives here, lives on another node, or has ended.

Rules
-----
- Jobs that live here are read from memory; ended jobs are read from the journal. A job counts as ended only when its
  end is durable.
- Every handle of a living job gets the end of the job. Handles are held by weak references.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from ...actors.jobs.job import JobActor
from ...actors.records.entities import JobRecord
from ...actors.user_code import plain_text
from ..observation.events import EarlierTransitions
from .approvals import PendingApproval
from .jobs import JobCore, JobHandle, RecoveredJobs
from .outcomes import outcome_of

if TYPE_CHECKING:
    from .remote_jobs import RemoteJobCore
    from .services import Services


class JobDirectory:
    """The jobs of one runtime."""

    def __init__(self, services: Services) -> None:
        self.recovered = RecoveredJobs()
        """The unfinished jobs that the runtime found when it was entered, and the jobs that it has taken over since."""
        self.archiving = False
        """Whether there may be jobs to move out of the journal."""
        self.taking_inbox = False
        """Whether commands are executed that arrived in the inbox while no runtime ran the journal."""
        self.arriving: dict[str, int] = {}
        """Jobs that are being taken over, with the last transition number that other nodes emitted for them."""
        self._services = services
        self._cores: dict[str, WeakSet[JobCore]] = {}  # of the living jobs, by their ids
        self._elsewhere: WeakSet[RemoteJobCore] = WeakSet()  # of the handles of jobs that other nodes run

    # -- looking -------------------------------------------------------------------------------------------------------

    async def find(self, job_id: str) -> JobHandle:
        """The handle of a job, whether it has ended or not. Raises LookupError if there is no such job."""
        services = self._services
        services.status.check_open_here()
        job_id = plain_text(job_id, "a job's id")
        jobs, journal, read = services.host.jobs, services.journal, services.read
        if (actor := jobs.get(job_id)) is not None:
            return self.handle(actor)
        record = await read(journal.reader.job, job_id)
        if record is None:
            for archived in await read(journal.reader.archived, job_id):
                raise LookupError(f"job {job_id!r} ({archived.state}) was archived in {archived.file}")
            raise LookupError(f"there is no job {job_id!r} in this journal")
        if record.finished_at is None and services.node is not None:
            from .remote_jobs import RemoteJobCore, look_live  # noqa: PLC0415 - only where several nodes share a journal

            seen = await read(look_live, services.node.cluster, journal.reader, job_id)
            if (actor := jobs.get(job_id)) is not None:  # this node may have taken over the job meanwhile
                return self.handle(actor)
            if seen.job.finished_at is None:
                elsewhere = RemoteJobCore(services, services.node, seen)
                self._elsewhere.add(elsewhere)
                return JobHandle(elsewhere)
            record = seen.job
        tasks = await read(journal.reader.tasks, record.stream)  # of the last run; none if the job never began
        return JobHandle(JobCore(services, record, None, outcome_of(record, tasks)))

    def living(self, job_id: str) -> JobActor | None:
        """The actor of a job that has not ended, or whose end is not durable yet."""
        actor = self._services.host.jobs.get(job_id)
        return None if actor is None or actor.over else actor

    async def ended(self, job_id: str) -> JobRecord | None:
        """The record of a job whose end is durable; None while the job lives, here or on another node.

        Raises LookupError if there is no such job, except for a child's id: the child may still be submitted.
        """
        record = await self.record_of(job_id)
        if record is None and "/" not in job_id:
            raise LookupError(f"there is no job {job_id!r} in this journal")
        return None if record is None or record.finished_at is None else record

    async def record_of(self, job_id: str) -> JobRecord | None:
        """The present record of a living job, or the last record, which is durable, of an ended job.

        None if there is no such job.
        """
        actor = self._services.host.jobs.get(job_id)
        if actor is not None and actor.ended:
            await self._services.host.barrier()  # after this the end of the job is durable
        living = self.living(job_id)
        if living is not None:
            return living.record
        record: JobRecord | None = await self._services.read(self._services.journal.reader.job, job_id)
        return record

    async def children_of(self, job_id: str) -> list[JobHandle]:
        """The child jobs of a job, ended ones too, oldest first."""
        found = await self._services.read(self._services.journal.reader.children, job_id)
        return [await self.find(record.id) for record in found]

    def past_of(self, job_id: str) -> EarlierTransitions:
        """The past transitions of a job, for its event subscription."""
        services = self._services
        until = max(services.hub.told, self.arriving.get(job_id, 0))
        if services.node is not None and job_id not in services.host.jobs:
            from .remote_jobs import EVERYTHING  # noqa: PLC0415 - as above

            until = EVERYTHING  # another node may have written its last transitions
        return EarlierTransitions(services.journal.reader, services.read, job_id, until=until)

    # -- on other nodes ------------------------------------------------------------------------------------------------

    def handed_over(self, job_id: str) -> bool:
        """Whether this node, while it drains, has handed over the job to another node."""
        services = self._services
        return services.node is not None and services.draining and job_id not in services.host.jobs

    async def is_elsewhere(self, job_id: str) -> bool:
        """Whether a job lives on another node, or has no owner yet."""
        services = self._services
        if services.node is None or job_id in services.host.jobs:
            return False
        record: JobRecord | None = await services.read(services.journal.reader.job, job_id)
        return record is not None and record.finished_at is None

    async def approvals_elsewhere(self) -> list[PendingApproval]:
        """The pending approvals of the newest thousand jobs that other nodes run, from the journal."""
        services = self._services
        if services.node is None:
            return []
        from .remote_jobs import pending_elsewhere  # noqa: PLC0415 - as above

        here = frozenset(services.host.jobs)
        found: list[PendingApproval] = await services.read(pending_elsewhere, services.journal.reader, here)
        return found

    # -- handles -------------------------------------------------------------------------------------------------------

    def handle(self, actor: JobActor) -> JobHandle:
        """A handle of a job that is in memory."""
        core = JobCore(self._services, actor.record, actor)
        if actor.over:
            _settle(core, actor)
        else:
            self._cores.setdefault(core.id, WeakSet()).add(core)
        return JobHandle(core)

    def here(self, actor: JobActor) -> None:
        """Note that a job lives here: it was recovered or taken over."""
        self.recovered.add(self.handle(actor))
        for core in [one for one in self._elsewhere if one.id == actor.record.id]:
            core.come_home(actor)
            self._cores.setdefault(core.id, WeakSet()).add(core)

    def recover(self, job: JobActor) -> None:
        """Add a job to `recovered`: it was found unfinished, or a command in the inbox runs it again."""
        if self.recovered.lacks(job.record.id):
            self.recovered.add(self.handle(job))

    def over(self, actor: JobActor) -> None:
        """Note that the end of a job is durable, and pass it to the handles."""
        self.archiving |= actor.record.archive
        if self.taking_inbox:
            self.recover(actor)  # the job's new run may have been refused at once
        for core in list(self._cores.pop(actor.record.id, ())):
            _settle(core, actor)
        self.recovered.over(actor.record.id)

    def end_waits(self, cause: BaseException | None) -> None:
        """End all waits for jobs, since the runtime closes. cause: the error that broke the runtime, if any."""
        for cores in self._cores.values():
            for core in list(cores):
                core.settle(None, cause)


def _settle(core: JobCore, actor: JobActor) -> None:
    tasks = [] if actor.stream is None else [task.record for task in actor.stream.tasks]
    core.settle(outcome_of(actor.record, tasks))
