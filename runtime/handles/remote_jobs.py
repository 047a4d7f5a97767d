"""Handles of jobs that other nodes run: `JobHandle`'s verbs, through the shared journal.

Rules
-----
- Commands go through the inbox, and are refused with the other node's errors.
- A handle shows the record that was read last. A look at it (`state`, `record`, `tasks()`) starts a new read in the
  background, if the last read is old; its commands, and `wait`, read it before they return.
- `wait` and `events` poll the journal, with growing delays. Notices of other nodes are not in it.
- If this node takes the job over meanwhile, the handle becomes a local one.
- It stays the handle of the run that it was made for, as a local handle does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ...actors.records.entities import JobRecord, WorkstreamRecord
from ...actors.records.task import TaskRecord
from ...actors.tasks.holds import HELD
from ...actors.user_code import plain_text
from ..cluster.delays import Delays
from ..cluster.live_progress import read_progress
from ..cluster.polled_events import PolledSubscription
from ..commands.idempotency import check_request_id
from ..commands.other_nodes import send
from ..commands.verbs import begins_run
from ..errors import JournalError, RuntimeClosed
from ..journal.contract import Reader
from ..observation.events import EarlierTransitions, Subscription
from .approvals import PendingApproval, pending_in
from .base import TASK_NAME, Arguments
from .jobs import JobCore, JobHandle
from .outcomes import outcome_of

if TYPE_CHECKING:
    from ...actors.jobs.job import JobActor
    from ...actors.messages.commands import Fire
    from ..calling import Progress
    from ..cluster.node_context import NodeContext
    from ..journal.cluster import Cluster
    from ..observation.filters import EventFilter
    from ..observation.live import TextStream
    from .outcomes import Outcome
    from .references import FireElsewhere
    from .services import Services

STALE = 0.05
TIMES = 10
"""Seconds after which a shown record is read again; for a large job, this many times the duration of its last read."""
LIVING = ("submitted", "pending", "running", "cancelling")
"""The phases of a job that has not ended."""
MOST = 1_000
"""The newest living jobs, at most, that are searched for holds and approvals."""
EVERYTHING = 1 << 62
"""A number above that of every transition."""


class RemoteJobCore(JobCore):
    """A job that another node runs, or that no node has taken over yet."""

    def __init__(self, services: Services, node: NodeContext, seen: RemoteJobRecords) -> None:
        super().__init__(services, seen.job, None)
        self._node = node
        self._seen = seen
        self._looked_at = node.host.monotonic()
        self._looking = False
        self._took = 0.0  # seconds that the last read took

    @property
    def elsewhere(self) -> bool:
        """Whether another node runs it, as far as this node knows."""
        return self.actor is None and self.outcome is None

    @property
    def record(self) -> JobRecord:
        """The job's record, as it was read last."""
        if self.elsewhere:
            self._glance()
        return super().record

    def tasks(self) -> list[TaskRecord]:
        """The records of its tasks as last read, in the order of the specification."""
        if not self.elsewhere:
            return super().tasks()
        self._glance()
        return list(self._seen.tasks)

    def task_name(self, name: str) -> str:
        """The name of one of its tasks. Raises LookupError if it is known to have none of that name."""
        if self.elsewhere and not self._seen.tasks:  # as far as this node can see, the job has not begun yet
            return plain_text(name, TASK_NAME)
        return super().task_name(name)

    def progress(self, task: str) -> Progress | None:
        """A task's progress, as it was read last."""
        if not self.elsewhere:
            return super().progress(task)
        self._glance()
        return self._seen.progress.get(self.task_name(task))

    def emitted(self, task: str, token: int = 0, place: int = 0) -> TextStream:
        """The text that a body emits, here or on the node that runs it."""
        if not self.elsewhere:
            return super().emitted(task, token, place)
        self.services.check_here("a job")
        return self._node.texts.stream(self.task_record(task), token, place)

    def approvals(self) -> list[PendingApproval]:
        """The approvals that this job waits for, as they were read last."""
        if not self.elsewhere:
            return super().approvals()
        self._glance()
        return list(self._seen.pending)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def _glance(self) -> None:
        """Start to read the job again, for the next look."""
        node = self._node
        stale = max(STALE, TIMES * self._took)
        if self._looking or node.host.monotonic() - self._looked_at < stale or not self.services.is_open:
            return
        if not node.is_here(self._glance):
            return
        self._looking = True
        node.start(self._look_once)

    async def _look_once(self) -> None:
        try:
            await self.refresh()
        except (JournalError, LookupError, RuntimeClosed):
            return  # `wait` raises it

    async def refresh(self) -> None:
        """Read the job again. Raises LookupError if it does not exist any more, JournalError, RuntimeClosed."""
        if not self.elsewhere:
            return
        began, self._looking = self._node.host.monotonic(), True
        try:
            seen = await self._node.ask(
                look_live, self._node.cluster, self._node.host.journal.reader, self.id, self.last
            )
        finally:
            self._looking, self._looked_at = False, self._node.host.monotonic()
            self._took = self._looked_at - began
        if self.elsewhere:
            self._seen, self.last = seen, seen.job
            if seen.job.finished_at is not None:
                self.settle(outcome_of(seen.job, seen.tasks))

    def come_home(self, actor: JobActor) -> None:
        """For the runtime: note that this node has taken the job over."""
        if self.elsewhere and actor.record.run == self.last.run:
            self.actor = actor

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def away(self, task: str | None) -> FireElsewhere | None:
        """The function that sends it, or a task of it, an event through the inbox; None if this node runs it."""
        return partial(self._fire, task) if self.elsewhere else None

    async def _fire(self, task: str | None, message: Fire) -> None:
        said = {"event": message.event, "reason": message.reason, "by": message.by, "facts": message.facts}
        await self._send(task, "fire", said, message.request_id)

    async def say(self, task: str | None, verb: str, said: Arguments, request_id: str | None) -> JobHandle | None:
        """Send a command to the job or to one of its tasks. Returns the handle of the next run, if it begins one."""
        if not self.elsewhere:
            return await super().say(task, verb, said, request_id)
        await self._send(task, verb, said, request_id)
        if not begins_run("job" if task is None else "task", verb):
            return None
        now = await self.services.jobs.find(self.id)
        return None if now.record.run == self.last.run else now

    async def _send(self, task: str | None, verb: str, said: Arguments, request_id: str | None) -> None:
        """Send the job, or a task of it, a command through the inbox."""
        kind, target = ("job", self.id) if task is None else ("task", f"{self.id}/{task}")
        key = None if request_id is None else check_request_id(request_id)
        await send(self._node, kind, target, verb, said, request_id=key)
        await self._refresh_patiently()

    async def _refresh_patiently(self) -> None:
        delays = Delays()
        while True:
            try:
                return await self.refresh()
            except JournalError:
                await self._node.pause(delays())

    async def wait(self) -> Outcome:
        """Wait for the job's end, on whichever node. Raises RuntimeClosed if this runtime closes before."""
        delays = Delays()
        while self.elsewhere:
            record = await self._node.patiently(self._node.host.journal.reader.job, self.id)
            if record is None or record.finished_at is not None or record.run != self.last.run:
                await self._refresh_patiently()
            else:
                await self._node.pause(delays())
        return await super().wait()

    def subscribe(self, wanted: EventFilter, size: int) -> Subscription[Any]:
        """Subscribe to the job's transitions until its end, and to this node's notices."""
        if not self.elsewhere:
            return super().subscribe(wanted, size)
        services = self.services
        past = EarlierTransitions(services.journal.reader, services.read, self.id, until=EVERYTHING)
        return services.hub.add(
            PolledSubscription(services.hub, wanted, self._ends, size, past, pause=self._node.pause)
        )

    def _ends(self, event: Any) -> bool:
        return self.is_its_end(event) and event.run >= self.last.run


class RemoteJobRecords(msgspec.Struct, frozen=True):
    """The records of a job of another node, as they were read."""

    job: JobRecord
    tasks: list[TaskRecord]
    pending: list[PendingApproval] = []
    progress: dict[str, Progress] = {}  # of running bodies, by the names of their tasks


def look_live(cluster: Cluster, journal: Reader, job_id: str, known: JobRecord | None = None) -> RemoteJobRecords:
    """Read a job as `look` does, and the progress of its running bodies. Blocks."""
    seen = look(journal, job_id, known)
    if seen.job.finished_at is not None:
        return seen
    return replace(seen, progress={task.name: live for task, live in read_progress(cluster, seen.tasks)})


def look(journal: Reader, job_id: str, known: JobRecord | None = None) -> RemoteJobRecords:
    """Read a job: its present run, or that of `known`. Raises LookupError, JournalError. Blocks."""
    record = journal.job(job_id)
    if record is None:
        raise LookupError(f"there is no job {job_id!r} in this journal any more")
    runs = journal.workstreams(job_id)
    if known is not None and record.run != known.run:
        before = [run for run in runs if run.run < record.run]
        if before:
            return RemoteJobRecords(_ended_as(known, before[-1]), journal.tasks(before[-1].key))
    tasks = journal.tasks(record.stream)
    run = next((run for run in runs if run.key == record.stream), None)
    asked = journal.approvals(record.stream) if run is not None else []
    undecided = any(one.state == HELD for one in (*tasks, *asked, *([] if run is None else [run])))
    spec = journal.spec(record.stream) if undecided else None
    return RemoteJobRecords(record, tasks, list(pending_in(record, run, tasks, asked, spec)))


def _ended_as(last: JobRecord, run: WorkstreamRecord) -> JobRecord:
    """Make the record of a job's former run from what the journal keeps."""
    return replace(
        last, state=str(run.state), published=run.published, error=run.error, reason=run.reason, workstream=run.id,
        finished_at=run.finished_at, updated_at=run.updated_at,
    )  # fmt: skip


def pending_elsewhere(journal: Reader, here: frozenset[str]) -> list[PendingApproval]:
    """Find the holds and approvals that wait for people in living jobs that are not `here`. Blocks."""
    found: list[PendingApproval] = []
    for record in journal.jobs(states=LIVING, limit=MOST):
        if record.id not in here:
            found += look(journal, record.id).pending
    return found
