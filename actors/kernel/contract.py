"""The interface of the kernel to the actors above it: jobs and the scheduler. Tasks and workers use a job through
it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ..records.entities import JobRecord, WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.model import Workstream
from .transaction import Receiver

if TYPE_CHECKING:
    from .alerts import LimitedAlerts
    from .entity import Entity
    from .mailbox import Mailbox


class Job(Receiver, Protocol):
    """A job with the jobs around it."""

    record: JobRecord
    spec: Workstream
    over: bool  # the job has ended durably: its actors are released once none of its calls runs

    @property
    def ended(self) -> bool:
        """Whether the entity is in a terminal state."""
        ...

    @property
    def stream(self) -> Entity[WorkstreamRecord] | None:
        """The present run of its workstream."""
        ...

    @property
    def mailbox(self) -> Mailbox:
        """The messages to the job and its tasks that nothing has received."""
        ...

    @property
    def watches(self) -> LimitedAlerts | None:
        """The alerts that its workstream declares, once it runs."""
        ...

    @property
    def parent(self) -> Job | None:
        """The job whose task has submitted it."""
        ...

    @property
    def children(self) -> Mapping[int, Job]:
        """The jobs that its tasks have submitted and that have not ended, by key."""
        ...

    def wake_others(self) -> None:
        """Wake other bodies that wait for unread messages: the body that was woken for these messages has ended."""
        ...

    def task_ended(self, task: Entity[TaskRecord]) -> None:
        """Stop the children of a task that ended without completing."""
        ...

    def release_actors(self) -> None:
        """Release its actors, once nothing of it runs."""
        ...


class Scheduler(Receiver, Protocol):
    """The scheduler, which starts tasks."""

    to_match: bool  # a change may let a task start

    def match(self) -> None:
        """Start all tasks that can start."""
        ...
