"""Handing over: the jobs that a node lets go of when it drains, since nothing of them runs here.

Rules
-----
- A job goes with all that is in it, and with its children.
- It may go when nothing of it runs, and nothing holds a slot: no body, condition, check or hook of a cancel. Hooks of
  what has ended are the outbox's, and stay.
- What has gone is forgotten as if this kernel had never had it: nothing of it is fired or written any more. Whoever
  takes it over finds what its last turn has left.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..jobs.job import JobActor
    from .kernel import Kernel


def idle_jobs(kernel: Kernel) -> list[JobActor]:
    """The living jobs that no other job has submitted, and of which nothing runs."""
    busy: set[int] = set()
    for call in chain(kernel.calls.values(), kernel.slots.values()):
        entity = kernel.entities.get(call.key)
        name = None if entity is None else entity.context()[0]
        if name is not None and (job := kernel.jobs.get(name)) is not None:
            busy.add(_root(job).record.key)
    return [
        job
        for job in kernel.jobs.values()
        if job.parent is None and not job.ended and not job.over and job.record.key not in busy
    ]


def hand_over(kernel: Kernel) -> list[int]:
    """Forget those. Returns their keys."""
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
        kernel.scheduler.forget(stream.record.key)
        kernel.forget(stream)
    kernel.forget(job)
    kernel.jobs.pop(job.record.id, None)
