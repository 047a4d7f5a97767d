"""The worker: something that executes attempts, with a capacity.

Rules
-----
- It takes tasks while `idle` or `busy`; every task it takes and every slot it gets back is a transition.
- `used` counts slots from the scheduler's decision on, `record.assigned` from the assignment on; both until the body
  is gone.
- Each start of a runtime makes a new incarnation (`run`) under the same name. One whose process is gone has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from msgspec.structs import replace

from ..machines import WORKER, Event, WorkerState
from .entity import Entity
from .kernel import Kernel
from .messages import Assign, Cancel, Message, Queued, Recover, Regained, Release, StartWorkers, WorkerBeat, WorkerDied
from .records import WorkerRecord
from .spec import EngineName, Worker

if TYPE_CHECKING:
    from .scheduler import Pool

ASSIGN, RELEASE, REGISTER, SHUT_DOWN, FAIL = (
    Event.ASSIGN, Event.RELEASE, Event.REGISTER, Event.SHUT_DOWN, Event.FAIL,
)  # fmt: skip
TAKING = frozenset({WorkerState.IDLE, WorkerState.BUSY})


class WorkerActor(Entity[WorkerRecord]):
    """One incarnation of a worker."""

    __slots__ = ("capabilities", "pools", "used")

    machine = WORKER
    receivers: ClassVar[dict[type[Message], str]] = {
        Assign: "on_assign",
        Regained: "on_assign",
        Release: "on_release",
        Cancel: "on_cancel",
        Recover: "on_recover",
        WorkerBeat: "on_beat",
        WorkerDied: "on_died",
    }

    def __init__(self, kernel: Kernel, record: WorkerRecord) -> None:
        super().__init__(kernel, record)
        self.capabilities = frozenset(record.capabilities)
        self.used = 0
        self.pools: list[Pool] = []  # the scheduler's, as long as it takes tasks

    @property
    def takes_tasks(self) -> bool:
        """Whether the scheduler may give it tasks."""
        return self.record.state in TAKING

    def on_assign(self, message: Assign) -> None:
        """Take a task, and tell it so. A task that comes too late goes back into the queue, to its place."""
        if not self.takes_tasks:
            self.kernel.send(self.kernel.scheduler, Release(message.key, message.slot))
            self.kernel.send(self.kernel.scheduler, Queued(message.key))
            return
        assigned = self.record.assigned + 1
        told = {"task_id": message.slot.task_id, "assigned": assigned}
        self.fire(ASSIGN, replace(self.record, assigned=assigned), metadata=told)
        self.kernel.send(self.kernel.entities[message.key], message)

    def on_release(self, message: Release) -> None:
        """Get a slot back, and tell the scheduler."""
        assigned = self.record.assigned - 1
        if self.knows(RELEASE):
            told = {"task_id": message.slot.task_id, "assigned": assigned}
            self.fire(RELEASE, replace(self.record, assigned=assigned), metadata=told)
        self.kernel.send(self.kernel.scheduler, message)

    def on_cancel(self, message: Cancel) -> None:
        """Shut down: at once where nothing runs, else when what runs has ended."""
        self.fire(SHUT_DOWN, replace(self.record, draining=True), reason=message.reason)

    def on_recover(self, _: Recover) -> None:
        """Its process is gone."""
        self.fire(FAIL, replace(self.record, assigned=0), reason="runtime_restarted")

    def on_beat(self, _: WorkerBeat) -> None:
        """It lives, as was thought."""

    def on_died(self, message: WorkerDied) -> None:
        """Its process is gone, unasked: this incarnation has failed, and the next one takes its place."""
        record, kernel = self.record, self.kernel
        self.fire(FAIL, replace(record, assigned=0), reason=message.reason)
        if not kernel.draining:
            again = Worker(
                record.name, engine=cast("EngineName", record.engine), capacity=record.capacity,
                capabilities=record.capabilities, recycle_after=record.recycle_after,
            )  # fmt: skip
            kernel.send(kernel.supervisor, StartWorkers((again,)))

    def entered_idle(self) -> None:
        """Nothing runs here; coming from a start, it is now known to the scheduler."""
        if self.record.previous_state == WorkerState.INITIALIZING:
            self.kernel.scheduler.enrol(self)

    def entered_draining(self) -> None:
        """It gets no more tasks."""
        self.kernel.scheduler.retire(self)

    def entered_shutdown(self) -> None:
        """It is gone."""
        self._gone()

    def entered_failed(self) -> None:
        """It is gone."""
        self._gone()

    def _gone(self) -> None:
        self.change(finished_at=self.kernel.at)
        self.kernel.scheduler.retire(self)
        self.kernel.workers.pop(self.record.key, None)
