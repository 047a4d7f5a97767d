"""The interface of a task to its workstream, the workforce, and the breaker of its tool.

They are implemented in `actors/jobs/` and `actors/workers/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from ..kernel.contract import Job
from ..kernel.transaction import Receiver
from ..records.entities import BreakerRecord, WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.model import Workstream

if TYPE_CHECKING:
    from ..messages.commands import RunStep, UseTool
    from .task import TaskActor


class OwningWorkstream(Receiver, Protocol):
    """The workstream of a task."""

    record: WorkstreamRecord
    spec: Workstream

    @property
    def job(self) -> Job:
        """The job that runs the workstream."""
        ...

    @property
    def workforce(self) -> Workforce:
        """The workforce, which runs the tasks."""
        ...

    @property
    def started(self) -> bool:
        """Whether a task of the workstream has started."""
        ...

    def lets_start(self, task: TaskActor) -> bool:
        """Whether an attempt of `task` may start now."""
        ...


class Breaker(Receiver, Protocol):
    """The breaker of a task's tool."""

    record: BreakerRecord
    waits: int  # the key of the last task that passed its permit on while its attempt goes on

    @property
    def closed(self) -> bool:
        """Whether the tool's tasks may start freely."""
        ...

    def retry_in(self) -> float:
        """Seconds until the cooldown is over."""
        ...

    def lets_start(self, task: TaskRecord) -> bool:
        """Whether a queued task may start."""
        ...

    def keep(self, task: TaskActor) -> None:
        """Add a parked task to the waiting ones."""
        ...

    def put_off(self, task: TaskActor) -> None:
        """Add a queued task that has yet to get the message to park."""
        ...

    def park(self, task: TaskActor) -> None:
        """Keep a task until the tool is healthy, or until the task may probe it."""
        ...


class WaitingQueue(Protocol):
    """The scheduler's queue in which a task waits."""


class Scheduler(Protocol):
    """The scheduler of the tasks."""

    def queue(self, task: TaskActor) -> None:
        """Put a task into the queue, and match it at the end of the turn."""
        ...

    def put_into_queue(self, task: TaskActor) -> object:
        """Put a task into the queue, without checking whether it can start."""
        ...

    def use_tool(self, task: TaskActor, message: UseTool) -> None:
        """Give a step of a task's running body a unit of a tool, or let it wait for one."""
        ...

    def run_step(self, task: TaskActor, message: RunStep) -> None:
        """Run a step of a task's running body on a worker, or let it wait for one."""
        ...


class Health(Protocol):
    """The health checks of the workers. All times are in seconds."""

    cooldown: float  # between a lack of resources and the next try
    grace: float  # for the answer of a worker after the runtime itself stood still

    def stood_still(self, late: float) -> bool:
        """Whether a timer that fires `late` seconds late shows that the runtime itself stood still."""
        ...


class Workforce(Protocol):
    """The parts that run tasks: the scheduler, the health checks of the workers, and the breakers of the tools."""

    @property
    def scheduler(self) -> Scheduler: ...  # noqa: D102

    @property
    def health(self) -> Health: ...  # noqa: D102

    @property
    def breakers(self) -> Mapping[str, Breaker]: ...  # noqa: D102
