"""The circuit breaker: one per tool, shared by all its tasks.

Rules
-----
- It hears how each attempt of its tool ended (`Verdict`). What began under an older generation than the present one
  changes nothing here; nor does an end that says nothing about the tool ("returned": cancelled, lost, drained).
- When it opens, the queued tasks of the tool are told to park; those that come later find it open by themselves.
- Parked tasks wait in their order. When the cooldown is over the first of them gets the one permit; if it comes back
  unused the next one gets it. When the breaker closes all of them are reset, in their order.
- A success while `closed` with no failure counted changes nothing, and is not journaled.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from ..machines import BREAKER, BreakerState, Event
from .entity import Entity
from .kernel import Kernel
from .messages import PERMIT, RESET, TRIP, Message, TimerFired, TurnFailed, Verdict
from .records import BreakerRecord

if TYPE_CHECKING:
    from .task import TaskActor

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class BreakerActor(Entity[BreakerRecord]):
    """The breaker of one tool."""

    __slots__ = ("parked",)

    machine = BREAKER
    by_utc = frozenset({OPEN})
    receivers: ClassVar[dict[type[Message], str]] = {
        Verdict: "on_verdict",
        TimerFired: "on_timer",
        TurnFailed: "on_turn_failed",
    }

    def __init__(self, kernel: Kernel, record: BreakerRecord) -> None:
        super().__init__(kernel, record)
        self.parked: list[tuple[int, int, int, TaskActor]] = []

    def clear(self) -> None:
        """Forget the parked tasks, to be told again; arm what is due."""
        self.parked = []
        self.arm_again()

    @property
    def closed(self) -> bool:
        """Whether its tasks may start freely."""
        return self.record.state == CLOSED

    def retry_in(self) -> float:
        """Seconds until the cooldown is over."""
        return max(0.0, (self.record.due_at or 0.0) - self.kernel.at)

    def keep(self, task: TaskActor) -> None:
        """Remember a parked task."""
        heappush(self.parked, (-task.priority, task.record.place, task.record.key, task))

    def park(self, task: TaskActor) -> None:
        """Keep a task until the tool is healthy, or until it may probe it."""
        self.keep(task)
        self.offer_again()

    def offer_again(self) -> None:
        """Offer the permit, if there is one to give."""
        if self.record.state == HALF_OPEN and self.record.probe is None:
            self._offer()

    def on_verdict(self, verdict: Verdict) -> None:
        """Count how an attempt ended."""
        record = self.record
        returned = record.probe == verdict.task
        if returned:
            self.change(probe=None)
        if verdict.event != "returned" and verdict.generation == record.generation:
            (self._failed if verdict.event == Event.FAIL else self._succeeded)()
        elif returned and record.state == HALF_OPEN:
            self._offer()

    def _failed(self) -> None:
        record = self.record
        if record.state == OPEN:
            return
        opens = record.state == HALF_OPEN or record.failures + 1 >= record.failure_threshold
        changed = replace(record, failures=record.failures + 1)
        if opens:
            changed = replace(changed, generation=record.generation + 1, probe=None, successes=0)
        self.fire(Event.FAIL, changed, due_at=self.kernel.at + record.cooldown if opens else None)

    def _succeeded(self) -> None:
        record = self.record
        if record.state == HALF_OPEN:
            self.fire(Event.SUCCEED, replace(record, successes=record.successes + 1))
            if self.record.state == HALF_OPEN:
                self._offer()
        elif record.state == CLOSED and record.failures:
            self.fire(Event.SUCCEED, replace(record, failures=0))

    def entered_open(self) -> None:
        """Keep the tool's tasks away; it looks again after the cooldown."""
        for task in self.kernel.scheduler.waiting_for(self.record.name):
            self.kernel.send(task, TRIP)

    def entered_half_open(self) -> None:
        """Let one task see."""
        self._offer()

    def entered_closed(self) -> None:
        """Let all of them go on, in their order."""
        self.change(failures=0, successes=0, probe=None)
        while (task := self._next()) is not None:
            self.kernel.send(task, RESET)

    def on_timer(self, message: TimerFired) -> None:
        """The cooldown is over."""
        if message.epoch == self.record.epoch:
            self.fire(Event.COOL_DOWN)

    def on_turn_failed(self, _: TurnFailed) -> None:
        """Its last turn was undone: look again after another cooldown."""
        if self.record.state == OPEN:
            self.wait_until(self.kernel.at + self.record.cooldown)

    def _offer(self) -> None:
        task = self._next()
        if task is not None:
            self.change(probe=task.record.key)
            self.kernel.send(task, PERMIT)

    def _next(self) -> TaskActor | None:
        while self.parked:
            _, _, _, task = heappop(self.parked)
            if task.parked_at_tool:
                return task
        return None
