"""A job, as others use it: the kernel, its tasks, and the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ..records.entities import JobRecord
from ..records.task import TaskRecord
from .transaction import Receiver

if TYPE_CHECKING:
    from .entity import Entity


class Job(Receiver, Protocol):
    """A job with the jobs around it."""

    record: JobRecord
    over: bool  # it has ended durably: its actors are released once nothing of it runs

    @property
    def ended(self) -> bool:
        """Whether it is in a terminal state."""
        ...

    @property
    def parent(self) -> Job | None:
        """The job whose task has submitted it."""
        ...

    @property
    def children(self) -> Mapping[int, Job]:
        """The jobs that its tasks have submitted and that have not ended, by key."""
        ...

    def task_ended(self, task: Entity[TaskRecord]) -> None:
        """Stop the children of a task that ended without completing."""
        ...

    def let_go(self) -> None:
        """Release its actors, once nothing of it runs."""
        ...
