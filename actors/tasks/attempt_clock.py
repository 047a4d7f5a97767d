"""The clock of an attempt: which of its limits is due next, and for how long it stands still.

Rules
-----
- Each attempt has a clock of its own. It is derived: an attempt that this process did not begin has none, and is lost.
- It stands still while the body waits for a child job or for an approval; the child has limits of its own. The limit
  over all attempts does not stand still.
- A body that waits for a child lends its slot: the slot, and its place at every limit, is anybody's until the body goes
  on. It goes on once its worker has room again (`actors/workers/reservations.py`). So a child can always run, where its
  parent had the only slot.
- What waits keeps no other task from its tool: the permit to probe that goes on.
- Nothing of it is kept: a body that is gone waits for nothing.
- A body in a process of its own may wait, and go on, while its worker is not heard (`recovering`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ...machines import TaskState
from ..kernel.transaction import Answer
from ..messages.commands import Lend, Regain
from ..messages.inputs import Regained
from ..workers.health import PATIENCE
from ..workers.reservations import Lent

if TYPE_CHECKING:
    from ..kernel.kernel import Kernel
    from .task import TaskActor

RUNNING, RECOVERING = TaskState.RUNNING, TaskState.RECOVERING
ALIVE = frozenset({RUNNING, RECOVERING})
"""Where the body of the present attempt runs, or may."""


class AttemptClock:
    """The time that one attempt has used. All of it is by the clock that nobody sets (`Port.monotonic`), in seconds."""

    __slots__ = ("beat_at", "began", "excused", "expected", "lent_at", "lent_for", "task", "token")

    def __init__(self, task: TaskActor, token: int, began: float) -> None:
        self.task = task
        self.token = token  # of the attempt
        self.began = self.beat_at = began  # the attempt, and the last sign of life of its body
        self.expected = 0.0  # when its timer should fire
        self.excused = 0.0  # seconds that do not count: the runtime itself stood still
        self.lent_at = 0.0  # when its slot was lent last
        self.lent_for = 0.0  # seconds for which its slot had been lent before

    def left(self, now: float) -> tuple[float, str]:
        """Seconds until the nearest limit of the attempt is reached, and which one that is."""
        task, limits = self.task, self.task.limits
        began = self.began + task.kernel.late(self.token, now)
        left, limit = began + self._stood() + limits.timeout - now, "attempt"
        if limits.heartbeat_timeout is not None:
            silent = max(self.beat_at, began) + limits.heartbeat_timeout - now
            if silent < left:
                left, limit = silent, "heartbeat"
        total = task.total_due()
        if total is not None and total - task.kernel.at < left:
            left, limit = total - task.kernel.at, "total"
        return left, limit

    def due(self, now: float) -> tuple[float | None, str | None]:
        """When the nearest of the limits is reached that run now (UTC epoch seconds), and which one that is."""
        if self.stands_still:
            total = self.task.total_due()
            return total, None if total is None else "total"
        left, limit = self.left(now)
        return self.task.kernel.at + left, limit

    def set(self) -> None:
        """It was stopped, or goes on: arm what is due next."""
        task = self.task
        if self.stands_still:
            task.give_permit_on()
        if task.record.state != RUNNING:
            return
        self.beat_at = task.kernel.port.monotonic()
        task.disarm()
        due, limit = self.due(self.beat_at)
        if due is None:
            task.change(due_at=None, limit=limit)
        else:
            task.change(limit=limit)
            self.expected = self.beat_at + due - task.kernel.at
            task.wait_until(due)

    def excuse(self, now: float, late: float) -> None:
        """Its timer comes so many seconds late, since the runtime stood still: the body has a moment more."""
        self.excused += late
        self.beat_at, self.expected = now, now + PATIENCE

    @property
    def stands_still(self) -> bool:
        """Whether its body waits for a child, or for an approval."""
        asks, lent = self.task.asks, self.task.kernel.lent.get(self.token)
        return (lent is not None and not lent.goes_on) or (
            asks is not None and asks.token == self.token and bool(asks.waiting)
        )

    def _stood(self) -> float:
        """Seconds for which it has stood still."""
        asks = self.task.asks
        asked = asks.stopped if asks is not None and asks.token == self.token else 0.0
        return self.lent_for + asked + self.excused

    # -- lending the slot ----------------------------------------------------------------------------------------------

    def lend(self) -> None:
        """The body waits for a child: it occupies nothing."""
        kernel = self.task.kernel
        if self.task.record.state not in ALIVE:
            return
        if not kernel.lend_slot(self.token):
            lent = kernel.lent.get(self.token)
            if lent is None or not lent.goes_on:
                return
            kernel.note_lent(self.token, Lent(lent.slot))  # it waits again, before it went on
        self.lent_at = kernel.port.monotonic()
        self.set()

    def regained(self) -> None:
        """The body has room again, and goes on with the time that it had left."""
        now = self.task.kernel.port.monotonic()
        self.lent_for += now - self.lent_at
        self.lent_at = now
        self.set()


def lend(kernel: Kernel, message: Lend) -> None:
    """A body waits for a child."""
    if (task := _task(kernel, message.token)) is not None:
        task.clock.lend()


def regain(kernel: Kernel, message: Regain) -> None:
    """A body wants to go on. It is answered when its worker has room."""
    task, token = _task(kernel, message.token), message.token
    lent = kernel.lent.get(token)
    if task is None or lent is None or task.record.state not in ALIVE:
        kernel.effect(Answer(message.reply))
        return
    kernel.note_lent(token, Lent(lent.slot, message.reply))
    kernel.scheduler.reservations.wants_back()


def regained(task: TaskActor, _: Regained) -> None:
    """Its body may go on."""
    if task.record.state in ALIVE:
        task.clock.regained()


def _task(kernel: Kernel, token: int) -> TaskActor | None:
    call = kernel.calls.get(token)
    return None if call is None or call.kind != "body" else cast("TaskActor", kernel.entities[call.key])
