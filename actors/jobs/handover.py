"""Handover: a draining node releases the jobs of which nothing runs on it.

Rules
-----
- A job is released together with its workstream, its tasks, its approvals and its children.
- A job may be released if none of its calls runs and none of its tasks holds a slot: no body, condition, check or
  cancel hook. Hooks of ended entities belong to the outbox, and stay on this node.
- The kernel forgets a released job completely: it fires no event of it and writes no record of it any more. The node
  that takes the job over finds the state that the job's last turn committed.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from .job import JobActor, jobs_of

if TYPE_CHECKING:
    from ..kernel.kernel import Kernel


def idle_jobs(kernel: Kernel) -> list[JobActor]:
    """The living root jobs (no other job has submitted them) of which nothing runs."""
    busy, jobs = set[int](), jobs_of(kernel)
    for call in chain(kernel.calls.values(), kernel.slots.values()):
        entity = kernel.entities.get(call.key)
        name = None if entity is None else entity.context()[0]
        if name is not None and (job := jobs.get(name)) is not None:
            busy.add(_root(job).record.key)
    return [
        job
        for job in jobs.values()
        if job.parent is None and not job.ended and not job.over and job.record.key not in busy
    ]


def hand_over(kernel: Kernel) -> list[int]:
    """Remove all idle jobs from memory. Returns their keys."""
    idle = idle_jobs(kernel)
    for job in idle:
        _forget(kernel, job)
    if idle:
        kernel.recovery.rebuild()
    return [job.record.key for job in idle]


def _root(job: JobActor) -> JobActor:
    while job.parent is not None:
        job = job.parent
    return job


def _forget(kernel: Kernel, job: JobActor) -> None:
    for child in list(job.children.values()):
        _forget(kernel, child)
    for stream in filter(None, (job.stream, *job.past)):
        for task in stream.tasks:
            for approval in task.asked:
                kernel.forget(approval)
            kernel.forget(task)
        stream.workforce.scheduler.forget(stream.record.key)
        kernel.forget(stream)
    kernel.forget(job)
    kernel.jobs.pop(job.record.id, None)
