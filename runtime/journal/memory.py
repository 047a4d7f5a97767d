"""The journal that keeps everything in memory: for tests, the simulator, and programs that need no restart.

Rules:
- An entry is durable when it is appended. `on_durable` is still called from `flush` only, never in `append`.
- History is bounded, so that memory is freed however long the runtime lives: it keeps the last `HISTORY` transitions,
  and the records of the last `ENDED_JOBS` ended jobs, fewer if they had more than `ENDED_TASKS` tasks.
- Opened again, it loads the living entities, exactly as a file would: recovery is tested without a disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Self
from uuid import uuid4

from ...actors.messages.notices import NoticeRecord
from ...actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    RequestRecord,
    WorkerRecord,
    WorkstreamRecord,
)
from ...actors.records.loaded import Loaded
from ...actors.records.message import MessageRecord
from ...actors.records.step import PUBLISH, StepRecord
from ...actors.records.task import AttemptRecord, EndedRound, TaskRecord
from ...actors.records.transition import Transitioned
from .contract import (
    NOTICES_KEPT,
    ArchivedJob,
    Commits,
    Entry,
    Health,
    Identity,
    InboxRow,
    JobFilter,
    belongs_to,
)

HISTORY = 100_000
ENDED_JOBS = 1_000
ENDED_TASKS = 100_000
ENDED_WORKERS = 1_000
IDLE_BREAKERS = 1_000
ENDED_MACHINES = 10_000


class MemoryJournal:
    """A volatile journal. `history`, `ended_jobs` and `ended_tasks` bound what is kept of the past."""

    durable_medium = False
    shared = None
    cluster = None

    def __init__(self, *, history: int = HISTORY, ended_jobs: int = ENDED_JOBS, ended_tasks: int = ENDED_TASKS) -> None:
        self.identity = Identity(uuid4().hex, "memory")
        self.tail = 0
        self.durable = 0
        self.backlog = 0
        self.health = Health()
        self.committed = Commits()
        self._history: deque[Transitioned] = deque(maxlen=history)
        self._keep_jobs = ended_jobs
        self._keep_tasks = ended_tasks
        self._jobs: dict[int, JobRecord] = {}
        self._workstreams: dict[int, WorkstreamRecord] = {}
        self._tasks: dict[int, TaskRecord] = {}
        self._approvals: dict[int, dict[int, ApprovalRecord]] = {}  # by workstream
        self._workers: dict[int, WorkerRecord] = {}
        self._breakers: dict[int, BreakerRecord] = {}
        self._machines: dict[str, MachineRecord] = {}  # by name
        self._machine_names: dict[int, str] = {}  # by key, of those that have not ended
        self._ended_machines: dict[str, None] = {}  # oldest first
        self._old_kinds: set[int] = set()  # definitions that no new machine runs by
        self._outbox: dict[int, OutboxRow] = {}
        self._notices: dict[int, NoticeRecord] = {}  # by key, the last written at the end
        self._attempts: dict[int, list[AttemptRecord]] = {}  # by task, oldest first
        self._steps: dict[int, dict[int, StepRecord]] = {}  # by flow and key
        self._messages: dict[int, dict[int, MessageRecord]] = {}  # by job and key
        self._specs: dict[int, bytes] = {}
        self._requests: dict[str, RequestRecord] = {}  # by their ids, oldest first
        self._job_keys: dict[str, int] = {}
        self._runs: dict[int, list[int]] = {}  # workstream keys by job key
        self._ended: dict[int, int] = {}  # number of tasks of each ended job, by its key; oldest first
        self._ended_tasks = 0  # their sum
        self._ended_workers: dict[int, None] = {}
        self._incarnations: dict[str, int] = {}
        self._paused: dict[str, str | None] = {}  # why the last incarnation is paused, by name
        self._last_key = 0
        self._told = 0
        self._on_durable: Callable[[], None] = _nobody
        self._after_commit: Callable[[Sequence[Transitioned]], None] | None = None

    # -- writing

    @property
    def reader(self) -> Self:
        """The journal itself: it answers from its own memory."""
        return self

    @property
    def own(self) -> Self:
        """The journal itself: there is no other node."""
        return self

    def again(self) -> Self:
        """The journal itself: it answers also after `shut`."""
        return self

    def notifier(self) -> None:
        """None: no other process can put commands there."""

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],  # noqa: ARG002 - there is no other thread here
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Load the living. Never fails; may be called again after `shut`."""
        self._on_durable = on_durable
        self._after_commit = after_commit
        self._told = self.durable
        self._old_kinds.clear()  # the next runtime runs by the definitions of the living machines
        return self._load()

    def append(self, entry: Entry) -> int:  # noqa: PLR0912 - one branch per kind of record
        """Append the entry of one turn; it is durable at once."""
        transitions = entry.transitions
        self._history.extend(transitions)
        for record in entry.records:
            key = record.key
            if key > self._last_key:  # noqa: PLR1730 - max() costs three times as much here
                self._last_key = key
            if isinstance(record, TaskRecord):  # the most frequent one first
                self._tasks[key] = record
            elif isinstance(record, AttemptRecord):
                self._keep_attempt(record)
            elif isinstance(record, StepRecord):
                self._steps.setdefault(record.flow, {})[key] = record
            elif isinstance(record, MessageRecord):
                self._messages.setdefault(record.job, {})[key] = record
            elif isinstance(record, WorkerRecord):
                self._keep_worker(record)
            elif isinstance(record, WorkstreamRecord):
                self._keep_workstream(record)
            elif isinstance(record, JobRecord):
                self._keep_job(record)
            elif isinstance(record, BreakerRecord):
                self._breakers[key] = record
            elif isinstance(record, MachineRecord):
                self._keep_machine(record)
            elif isinstance(record, ApprovalRecord):
                self._approvals.setdefault(record.workstream, {})[key] = record
            elif isinstance(record, RequestRecord):
                self._requests.pop(record.request_id, None)
                self._requests[record.request_id] = record
                self._prune(record.at)
            else:
                self._outbox[key] = record
        if entry.rounds:
            self._drop_rounds(entry.rounds)
        if entry.specs:
            self._specs.update(entry.specs)
            self._last_key = max(self._last_key, *(key for key, _ in entry.specs))
        for key in entry.outbox_done:
            self._outbox.pop(key, None)
        if entry.specs_done:
            self._old_kinds.update(entry.specs_done)
            self._forget_kinds()
        if entry.pruned_at:
            self._prune(entry.pruned_at)
        if entry.tidy:
            self._tidy()
        if entry.notices:
            self._keep_notices(entry.notices)
        self.tail = self.durable = self.tail + 1
        if self._after_commit is not None:
            self._after_commit(transitions)
        return self.tail

    def _drop_rounds(self, rounds: list[EndedRound]) -> None:
        """Drop the steps and attempts of rounds that have ended. The entry may hold the next round's."""
        for over in rounds:
            kept = self._steps.get(over.flow, {})
            for key in [key for key in kept if key <= over.last]:
                del kept[key]
            if not kept:
                self._steps.pop(over.flow, None)
            left = [row for row in self._attempts.pop(over.task, []) if row.key > over.last]
            if left:
                self._attempts[over.task] = left

    def flush(self) -> None:
        """Tell the loop that `durable` has moved."""
        if self._told != self.durable:
            self._told = self.durable
            self._on_durable()

    def lend(self) -> None:
        """Do nothing: no writer can starve."""

    def shut(self, deadline: float) -> bool:  # noqa: ARG002 - nothing is ever pending
        """Detach from the runtime. The records stay, for the next `open`."""
        self._on_durable = _nobody
        self._after_commit = None
        return True

    def _prune(self, at: float) -> None:
        """Delete the keys that were kept until `at`, except those whose owners live."""
        for request_id, record in list(self._requests.items()):
            if record.expires_at > at:
                return  # later ones are younger
            job, worker = self._jobs.get(record.owner), self._workers.get(record.owner)
            ended = all(owner is None or owner.finished_at is not None for owner in (job, worker))
            if ended and record.owner not in self._machine_names:
                del self._requests[request_id]

    def _keep_notices(self, notices: list[NoticeRecord]) -> None:
        for notice in notices:
            self._last_key = max(self._last_key, notice.key)
            self._notices.pop(notice.key, None)
            self._notices[notice.key] = notice
        while len(self._notices) > NOTICES_KEPT:
            del self._notices[next(iter(self._notices))]

    def _keep_attempt(self, record: AttemptRecord) -> None:
        tries = self._attempts.get(record.task)
        if tries is None:
            self._attempts[record.task] = [record]
        elif tries[-1].key < record.key:
            tries.append(record)
        else:
            tries[:] = [record if old.key == record.key else old for old in tries]

    def _keep_worker(self, record: WorkerRecord) -> None:
        self._workers[record.key] = record
        if record.run >= self._incarnations.get(record.name, 0):
            self._incarnations[record.name] = record.run
            self._paused[record.name] = record.pause_reason
        if record.finished_at is not None:
            self._ended_workers[record.key] = None
            if len(self._ended_workers) > ENDED_WORKERS:
                key = next(iter(self._ended_workers))
                del self._ended_workers[key]
                self._forget_worker(self._workers.pop(key))

    def _forget_worker(self, record: WorkerRecord) -> None:
        if self._incarnations.get(record.name) == record.run:
            del self._incarnations[record.name], self._paused[record.name]

    def _tidy(self) -> None:
        """Delete older records of closed breakers without failures."""
        idle = [one for one in self._breakers.values() if one.state == "closed" and not one.failures]
        for breaker in sorted(idle, key=lambda one: one.updated_at)[: max(0, len(self._breakers) - IDLE_BREAKERS)]:
            del self._breakers[breaker.key]

    def _keep_machine(self, record: MachineRecord) -> None:
        name = record.name
        self._machines[name] = record
        if record.finished_at is None:
            self._machine_names[record.key] = name
            self._ended_machines.pop(name, None)  # forced on from its end
            return
        self._machine_names.pop(record.key, None)
        self._ended_machines[name] = None
        if len(self._ended_machines) > ENDED_MACHINES:
            oldest = next(iter(self._ended_machines))
            del self._ended_machines[oldest], self._machines[oldest]

    def _forget_kinds(self) -> None:
        """Delete definitions that no new machine runs by and no kept machine has run by."""
        used = {key for machine in self._machines.values() for key in machine.definitions}
        for key in self._old_kinds - used:
            self._old_kinds.discard(key)
            self._specs.pop(key, None)

    def _keep_workstream(self, record: WorkstreamRecord) -> None:
        if record.key not in self._workstreams:
            self._runs.setdefault(record.job, []).append(record.key)
        self._workstreams[record.key] = record

    def _keep_job(self, record: JobRecord) -> None:
        self._jobs[record.key] = record
        self._job_keys[record.id] = record.key
        if record.finished_at is None:
            self._ended_tasks -= self._ended.pop(record.key, 0)  # the job runs again
        if record.finished_at is not None and record.key not in self._ended:
            tasks = sum(self._workstreams[run].task_count for run in self._runs.get(record.key, ()))
            self._ended[record.key] = tasks
            self._ended_tasks += tasks
            self._forget()

    def _forget(self) -> None:
        """Drop the oldest ended jobs beyond the bounds, but never the one that has just ended."""
        ended = self._ended
        while len(ended) > 1 and (len(ended) > self._keep_jobs or self._ended_tasks > self._keep_tasks):
            job = next(iter(ended))
            self._ended_tasks -= ended.pop(job)
            for run in self._runs.pop(job, ()):
                self._specs.pop(run, None)
                self._approvals.pop(run, None)
                for task in _task_keys(self._workstreams.pop(run)):
                    self._tasks.pop(task, None)
                    self._attempts.pop(task, None)
                    self._steps.pop(task, None)
            self._messages.pop(job, None)
            record = self._jobs.pop(job)
            self._specs.pop(record.stream, None)  # of a workstream that never began
            del self._job_keys[record.id]

    def _load(self) -> Loaded:
        jobs = [job for job in self._jobs.values() if job.finished_at is None]
        machines = [machine for machine in self._machines.values() if machine.finished_at is None]
        kinds = {machine.definitions[-1] for machine in machines}
        workstreams = [self._workstreams[self._runs[job.key][-1]] for job in jobs if job.key in self._runs]
        return Loaded(
            jobs=jobs,
            workstreams=workstreams,
            specs={key: self._specs[key] for key in {*kinds, *(job.stream for job in jobs)} if key in self._specs},
            tasks=[task for run in workstreams for task in self._tasks_of(run)],
            approvals=[record for run in workstreams for record in self._approvals.get(run.key, {}).values()],
            messages=[message for job in jobs for message in self.messages(job.id, unread=True)],
            workers=[worker for worker in self._workers.values() if worker.finished_at is None],
            breakers=list(self._breakers.values()),
            machines=machines,
            attempts=[record for tries in self._attempts.values() for record in tries if record.ended_at is None],
            outbox=list(self._outbox.values()),
            last_key=self._last_key,
            last_seq=self._history[-1].seq if self._history else 0,
            incarnations=dict(self._incarnations),
            paused={name: reason for name, reason in self._paused.items() if reason is not None},
        )

    def _tasks_of(self, workstream: WorkstreamRecord) -> list[TaskRecord]:
        return [self._tasks[key] for key in _task_keys(workstream) if key in self._tasks]

    # -- reading

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id, if it lives or has ended not too long ago."""
        key = self._job_keys.get(job_id)
        return None if key is None else self._jobs[key]

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        limit: int = 100,
        before: int | None = None,
        wanted: JobFilter | None = None,
    ) -> list[JobRecord]:
        """Jobs, newest first."""
        newest = (self._jobs[key] for key in sorted(self._jobs, reverse=True))
        found = (
            job
            for job in newest
            if (not states or job.state in states)
            and (before is None or job.key < before)
            and (wanted is None or wanted.holds(job))
        )
        return list(islice(found, limit))

    def children(self, job_id: str) -> list[JobRecord]:
        """The jobs that tasks of that one have submitted, of those still kept, oldest first."""
        return [self._jobs[key] for key in sorted(self._jobs) if self._jobs[key].parent_id == job_id]

    def workstreams(self, job_id: str) -> list[WorkstreamRecord]:
        """The runs of a job, oldest first."""
        runs = self._runs.get(self._job_keys.get(job_id, 0), ())
        return [self._workstreams[key] for key in sorted(runs)]

    def spec(self, workstream: int) -> bytes | None:
        """The encoded specification of that workstream."""
        return self._specs.get(workstream)

    def tasks(self, workstream: int, *, first: int = 0, limit: int | None = None) -> list[TaskRecord]:
        """The tasks of that workstream, in the order of its specification."""
        record = self._workstreams.get(workstream)
        return [] if record is None else list(islice(self._tasks_of(record), first, limit and first + limit))

    def task(self, task_id: str) -> TaskRecord | None:
        """The task of that id."""
        return next((task for task in self._tasks.values() if task.id == task_id), None)

    def states(self, workstream: int) -> list[tuple[str, str]]:
        """State (as shown to people) and phase of the tasks of that workstream, in order."""
        return [(task.shown, task.state) for task in self.tasks(workstream)]

    def counts(self, workstream: int) -> dict[str, int]:
        """How many tasks of that workstream are in each phase."""
        return dict(Counter(str(task.state) for task in self.tasks(workstream)))

    def approvals(self, workstream: int) -> list[ApprovalRecord]:
        """The approvals that bodies of that workstream have requested, oldest first."""
        return list(self._approvals.get(workstream, {}).values())

    def workers(self) -> list[WorkerRecord]:
        """Every incarnation of every worker that is still kept, oldest first."""
        return [self._workers[key] for key in sorted(self._workers)]

    def breakers(self) -> list[BreakerRecord]:
        """Every breaker."""
        return [self._breakers[key] for key in sorted(self._breakers)]

    def machine(self, name: str) -> MachineRecord | None:
        """The `MachineActor` of that name, if it lives or has ended not too long ago."""
        return self._machines.get(name)

    def machines(self, *, living: bool = False, limit: int | None = None) -> list[MachineRecord]:
        """Every `MachineActor` that is still kept, newest first; only living ones if `living`."""
        found = (record for record in self._machines.values() if not (living and record.finished_at is not None))
        return list(islice(sorted(found, key=_newest), limit))

    def outbox(self) -> list[OutboxRow]:
        """Hooks, alerts and callbacks that are still to run, oldest first."""
        return [self._outbox[key] for key in sorted(self._outbox)]

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices that are still kept, latest first, as in the contract."""
        newest = sorted(self._notices.values(), key=_told_at, reverse=True)
        found = (notice for notice in newest if notice.at >= since and about in {None, notice.entity_id, notice.job_id})
        return list(islice(found, first, first + limit))

    def attempts(self, task_id: str) -> list[AttemptRecord]:
        """The attempts of a task, oldest first."""
        for tries in self._attempts.values():
            if tries[0].task_id == task_id:
                return list(tries)
        return []

    def steps(self, flow: int) -> list[StepRecord]:
        """The steps of a flow, in the order in which they were first kept."""
        kept = self._steps.get(flow, {})
        return [kept[key] for key in sorted(kept) if not kept[key].dropped]

    def publications(self, flow: int) -> list[StepRecord]:
        """The steps of a flow that published a value, oldest first."""
        return [step for step in self.steps(flow) if step.name.startswith(PUBLISH)]

    def page_of_steps(self, flow: int, limit: int, beyond: int | None, *, newest_first: bool) -> list[StepRecord]:
        """At most `limit` of the steps of a flow, from either end, as in the contract."""
        found = reversed(self.steps(flow)) if newest_first else iter(self.steps(flow))
        if beyond is not None:
            found = (step for step in found if (step.key < beyond if newest_first else step.key > beyond))
        return list(islice(found, limit))

    def messages(
        self, job_id: str, *, unread: bool = False, beyond: int = 0, limit: int | None = None
    ) -> list[MessageRecord]:
        """The messages to that job and its tasks, oldest first, as in the contract."""
        key = self._job_keys.get(job_id)
        sent = self._messages.get(key, {}) if key is not None else {}
        found = (sent[key] for key in sorted(sent) if key > beyond and (not unread or sent[key].received_at is None))
        return list(islice(found, limit))

    def flows(self) -> list[int]:
        """The keys of the tasks in which flows began, in order."""
        return sorted(self._steps)

    def request(self, request_id: str) -> RequestRecord | None:
        """The stored result of the command with that key."""
        return self._requests.get(request_id)

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:  # noqa: ARG002
        """Nothing: no other process can reach this memory."""
        return []

    def archived_numbers(self) -> list[tuple[int, int]]:
        """Nothing: memory has no archive."""
        return []

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:  # noqa: ARG002 - there is no archive of memory
        """Nothing: memory has no archive."""
        return []

    def transitions(
        self,
        *,
        entity_id: str | None = None,
        job_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[Transitioned]:
        """Transitions in order, as far as they are still kept."""
        history = list(self._history)
        found = (
            row
            for row in islice(history, bisect_right(history, after, key=_seq), None)
            if (entity_id is None or row.entity_id == entity_id) and (job_id is None or belongs_to(row) == job_id)
        )
        return islice(found, limit)

    def close(self) -> None:
        """Do nothing: no resource is open."""


def _told_at(notice: NoticeRecord) -> tuple[float, int]:
    return notice.at, notice.key


def _newest(record: MachineRecord) -> int:
    return -record.key


def _seq(row: Transitioned) -> int:
    return row.seq


def _task_keys(workstream: WorkstreamRecord) -> range:
    return range(workstream.first_task, workstream.first_task + workstream.task_count)


def _nobody() -> None:
    """Stand in for the loop's callback while no runtime is attached."""
