"""The verbs that an entity takes now, so that a page offers those only.

Rules
-----
- They are the last words of the paths that are posted to. What is not listed would be refused with a 409; what is may
  be all the same, since it has moved on meanwhile, or for a reason that only the actor knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...actors.records import JobRecord, WorkerRecord
from ...actors.task_record import TaskRecord
from ...machines.task import TASK
from ...machines.worker import WORKER

_TASK_VERBS: Mapping[str, str] = {
    "approve": "approve", "reject": "reject", "skip": "skip", "cancel": "cancel", "cancel_graceful": "cancel",
    "cancel_force": "cancel",
}  # fmt: skip
_WORKER_VERBS: Mapping[str, str] = {
    "pause": "pause", "resume": "resume", "shut_down": "shut_down", "terminate": "terminate",
}  # fmt: skip
_ENDED = frozenset({"completed", "failed", "cancelled"})


def of_job(job: JobRecord, workstream: str | None) -> list[str]:
    """The verbs of a job, whose workstream is in that phase (None: it has none yet)."""
    if job.state in _ENDED:
        return ["retry"] if job.state == "completed" else ["resume", "retry"]
    verbs = ["cancel"]
    if workstream == "held":
        verbs += ["approve", "reject"]
    elif workstream == "executing":
        verbs.append("pause")
    elif workstream == "paused":
        verbs.append("resume")
    return sorted(verbs)


def of_task(task: TaskRecord, *, job_ended: bool, asks: bool = False) -> list[str]:
    """The verbs of a task. asks: whether its running body asks for an approval."""
    if job_ended:
        return ["retry"] if task.state == "completed" else ["retry", "skip"]
    verbs = {_TASK_VERBS[event] for event in TASK.valid_events(task.state) if event in _TASK_VERBS}
    if asks:
        verbs |= {"approve", "reject"}
    if task.state == "circuit_open":
        verbs |= {"reset", "retry"}
    return sorted(verbs)


def of_worker(worker: WorkerRecord) -> list[str]:
    """The verbs of a worker."""
    if worker.finished_at is not None:
        return ["start"]
    return sorted(_WORKER_VERBS[event] for event in WORKER.valid_events(worker.state) if event in _WORKER_VERBS)


BREAKER = ["reset", "trip"]
"""The verbs of a breaker, in whatever state it is."""
