"""The actions that an entity allows now: a page offers only those.

Rules
-----
- An action is the last word of a path for POST (`runtime/web/write/actions.py`). One that is not listed would be
  refused with a 409. A listed one may still be refused because of the caller, such as an approval by a person whom no
  clause names.
- `cancel` may be sent with or without force; `cancel_force` stands for the former, since an entity that is being
  cancelled takes only that.
- Facts that the record does not have are read from memory: the state of a job's workstream, a running body's approvals.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ....actors.records.base import Record
from ....actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    WorkerRecord,
    WorkstreamRecord,
)
from ....actors.records.task import TaskRecord
from ....actors.tasks.holds import HELD
from ....machines import JOB, Event, Phase, TaskState, WorkstreamState
from ....machines.builtin.task import TASK
from ....machines.builtin.worker import WORKER

if TYPE_CHECKING:
    from ....actors.jobs.workstream import WorkstreamActor
    from ....actors.spec.lifecycles import Lifecycles
    from ...services import RuntimeServices

E = Event
_DECISIONS = ("approve", "reject")
_WORKER_WORDS = ("pause", "resume", "shut_down", "terminate")


class RemoteJobFacts(NamedTuple):
    """The facts that are known about another node's job, beside its record and those of its tasks.

    run: its present run. asking: keys of its tasks whose running bodies ask for an approval.
    """

    run: WorkstreamRecord | None = None
    asking: frozenset[int] = frozenset()


async def read_remote_facts(services: RuntimeServices, job_id: str) -> RemoteJobFacts | None:
    """Read the known facts about another node's job; None if it runs here, or has ended."""
    if not await services.jobs.is_elsewhere(job_id):
        return None
    reader = services.journal.reader
    record: JobRecord | None = await services.read(reader.job, job_id)
    run = None if record is None else record.last_of(await services.read(reader.workstreams, job_id))
    if run is None:
        return RemoteJobFacts()
    asked: list[ApprovalRecord] = await services.read(reader.approvals, run.key)
    return RemoteJobFacts(run, frozenset(one.task for one in asked if one.state == HELD))


def actions_of(services: RuntimeServices, record: Record, remote: RemoteJobFacts | None = None) -> list[str]:
    """Return the actions of an entity, here or on another node (`remote`)."""
    match record:
        case TaskRecord():
            if remote is not None:
                return of_task(record, job_ended=False, asks=record.key in remote.asking)
            return _of_its_task(services, record)
        case JobRecord():
            if remote is not None:
                return of_job(record, remote.run, skips=True)  # whether a task is pending is not known here
            living = services.jobs.living(record.id)
            if living is None or living.stream is None:
                return of_job(record, None)
            return of_job(record, living.stream.record, skips=_has_pending(living.stream))
        case WorkerRecord():
            return of_worker(record, services.lifecycles)
        case BreakerRecord():
            return [*BREAKER_WORDS]
        case MachineRecord():
            return of_machine(services, record)
        case _:
            return []


def of_job(job: JobRecord, workstream: WorkstreamRecord | None, *, skips: bool = False) -> list[str]:
    """Return the actions of a job. workstream: its present run, None if it has none yet or has ended.

    skips: whether one of its tasks may be pending, so that it can be skipped.
    """
    if JOB.is_terminal(job.state):  # `skip` names a task that the next run leaves out
        return ["skip"] if job.state == "completed" else ["resume", "retry", "skip"]
    words = _cancels(JOB.valid_events(job.state))
    if workstream is None:
        return sorted(words)
    if skips and workstream.cause is None:
        words.add("skip")
    if workstream.state == WorkstreamState.HELD and workstream.cause is None:
        words.update(_DECISIONS)
    elif workstream.state in {WorkstreamState.READY, WorkstreamState.EXECUTING}:
        words.add("pause")
    elif workstream.state == WorkstreamState.PAUSED:
        words.add("resume")
    return sorted(words | ({"cancel_force"} if job.state == "cancelling" else set()))


def _has_pending(stream: WorkstreamActor) -> bool:
    """Whether a task of a run is pending. The last tasks of a graph are pending for longest."""
    return any(task.record.state == TaskState.PENDING for task in reversed(stream.tasks))


def of_task(task: TaskRecord, *, job_ended: bool, asks: bool = False) -> list[str]:
    """Return the actions of a task. asks: whether its running body waits for an approval."""
    if job_ended:
        return ["retry", "skip"]  # both begin a next run
    return [*_words_of_task(task.state, task.parked == "tool", asks)]


@cache
def _words_of_task(state: str, tool_is_ill: bool, asks: bool) -> list[str]:
    events = TASK.valid_events(state)
    words = _cancels(events)
    if E.APPROVE in events or asks:
        words.update(_DECISIONS)
    if E.SKIP in events:
        words.add("skip")
    if E.RESET in events and not tool_is_ill:
        words.update(("reset", "retry"))
    return sorted(words)


def of_worker(worker: WorkerRecord, lifecycles: Lifecycles) -> list[str]:
    """Return the actions of a worker's last incarnation."""
    events = set(WORKER.valid_events(worker.state))
    ended = WORKER.is_terminal(worker.state)
    words = {"start"} if ended else set[str]()
    if (published := worker.published) is not None:
        refined = lifecycles.refinement(published.lifecycle, worker.kind)
        rows = refined.machine.table[published.state]
        only = E.TERMINATE if ended else E.START
        if any(word in rows for word in refined.lifecycle.events.get(only, ())):
            words.add(str(only))
        if worker.state == "idle" and refined.phases[published.state] != Phase.BUSY:
            events.discard(E.PAUSE)
    elif worker.state == "idle":
        events.discard(E.PAUSE)  # an idle worker has nothing to pause
    return sorted(words.union(word for word in _WORKER_WORDS if word in events))


def of_machine(services: RuntimeServices, machine: MachineRecord) -> list[str]:
    """Return the action of a machine, if its state has any event."""
    return ["fire"] if services.machines.of(machine.name).events else []


BREAKER_WORDS = ("reset", "trip")
"""The actions of a breaker, in every state."""


def _of_its_task(services: RuntimeServices, task: TaskRecord) -> list[str]:
    job = services.jobs.living(task.job_id)
    if job is None or job.stream is None or job.ended:
        return of_task(task, job_ended=True)
    actor = job.stream.tasks[task.index] if task.workstream == job.stream.record.key else None
    asks = actor is not None and actor.asks is not None and any(not one.ended for one in actor.asked)
    return of_task(task, job_ended=False, asks=asks)


def _cancels(events: Iterable[str]) -> set[str]:
    """Return whether an entity with these events can be cancelled, and whether only with force."""
    possible = set(events)
    words: set[str] = {"cancel"} if possible & {E.CANCEL, E.CANCEL_GRACEFUL} else set()
    return words | {"cancel_force"} if possible & {E.CANCEL, E.CANCEL_FORCE} else words
