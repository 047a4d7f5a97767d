"""A task whose body waits for a child job: it lends its slot, and its clock stands still.

Rules
-----
- What waits occupies nothing: the slot, and its place at every limit, is anybody's until the body goes on. It goes on
  once its worker has room again (`actors/workers/reservations.py`). So a child can always run, where its parent had
  the only slot.
- The limit of the attempt, and that between heartbeats, stand still meanwhile; the child has its own. The limit over
  all attempts does not.
- What waits keeps no other task from its tool: the permit to probe that goes on, for whatever its clock stands still.
- Nothing of it is kept: a body that is gone waits for nothing.
- A body in a process of its own may wait, and go on, while its worker is not heard (`recovering`): it is no other then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
from msgspec.structs import replace

from ...machines import Event, TaskState
from ..kernel.transaction import Answer
from ..messages.commands import Lend, Regain
from ..messages.inputs import Regained
from ..workers.reservations import Lent
from .attempts import RUNNING, AttemptedTask
from .checks import EARLY

if TYPE_CHECKING:
    from ..kernel.kernel import Kernel

ALIVE = frozenset({RUNNING, TaskState.RECOVERING})
"""Where the body of the present attempt runs, or may."""


class Pause(msgspec.Struct, frozen=True, gc=False):
    """When the clock of an attempt was stopped last (monotonic), and the seconds that it had stood still before."""

    token: int
    began: float
    stood: float


class LendingTask(AttemptedTask):
    """A task as far as it lends its slot."""

    __slots__ = ()

    def lend(self) -> None:
        """The body waits: it occupies nothing."""
        record = self.record
        if record.state not in ALIVE or not (self.kernel.lend_slot(record.token) or self._lends_again()):
            return
        self.pause = Pause(record.token, self.kernel.port.monotonic(), self._lent_for())
        self.set_clock()

    def _lends_again(self) -> bool:
        lent = self.kernel.lent.get(self.record.token)
        if lent is None or not lent.goes_on:
            return False
        self.kernel.note_lent(self.record.token, Lent(lent.slot))
        return True

    def regain(self, message: Regain) -> None:
        """The body wants to go on: when its worker has room."""
        kernel, token = self.kernel, message.token
        lent = kernel.lent.get(token)
        if lent is None or self.record.state not in ALIVE:
            kernel.effect(Answer(message.reply))
            return
        kernel.note_lent(token, Lent(lent.slot, message.reply))
        kernel.scheduler.reservations.wants_back()

    def on_regained(self, _: Regained) -> None:
        """The body goes on, with the time that it had left."""
        if self.record.state not in ALIVE:
            return
        pause, now = self.pause, self.kernel.port.monotonic()
        self.pause = Pause(self.record.token, now, self._lent_for() + now - (now if pause is None else pause.began))
        self.set_clock()

    def set_clock(self) -> None:
        """The clock of its attempt was stopped, or goes on: arm what is due next."""
        if self.stands_still:
            self.give_permit_on()
        if self.record.state != RUNNING:
            return
        self.beat_at = self.kernel.port.monotonic()
        self.disarm()
        due, limit = self.due_by_clock(self.beat_at)
        if due is None:
            self.change(due_at=None, limit=limit)
        else:
            self.change(limit=limit)
            self.expected = self.beat_at + due - self.kernel.at
            self.wait_until(due)

    def due_by_clock(self, now: float) -> tuple[float | None, str | None]:
        """When the nearest of its limits is reached that runs `now` (monotonic), and which one that is."""
        if self.stands_still:
            total = self._total_due()
            return total, None if total is None else "total"
        left, limit = self._left(now, self._stood())
        return self.kernel.at + left, limit

    @property
    def stands_still(self) -> bool:
        """Whether the clock of its attempt stands still: its body waits for a child, or for an approval."""
        token, asks = self.record.token, self.asks
        lent = self.kernel.lent.get(token)
        return (lent is not None and not lent.goes_on) or (
            asks is not None and asks.token == token and bool(asks.waiting)
        )

    def _lent_for(self) -> float:
        pause = self.pause
        return pause.stood if pause is not None and pause.token == self.record.token else 0.0

    def _stood(self) -> float:
        """Seconds for which the clock of the present attempt has stood still."""
        asks = self.asks
        asked = asks.stopped if asks is not None and asks.token == self.record.token else 0.0
        return self._lent_for() + asked + self.excused

    def due_running(self) -> None:
        """The attempt took too long, or its body was silent for too long."""
        record = self.record
        if self.stands_still:
            self.fire(Event.TIME_OUT, replace(record, limit="total"), reason="the total limit was reached")
            return
        now = self.kernel.port.monotonic()
        left, limit = self._left(now, self._stood())
        if left > EARLY:  # it has sent a heartbeat since the timer was armed
            self.expected = now + left
            self.wait_until(self.kernel.at + left)
            return
        self.fire(Event.TIME_OUT, replace(record, limit=limit), reason=f"the {limit} limit was reached")


def lend(kernel: Kernel, message: Lend) -> None:
    """A body waits for a child."""
    if (task := _task(kernel, message.token)) is not None:
        task.lend()


def regain(kernel: Kernel, message: Regain) -> None:
    """A body goes on. It is answered when it may."""
    task = _task(kernel, message.token)
    if task is None:
        kernel.effect(Answer(message.reply))
    else:
        task.regain(message)


def _task(kernel: Kernel, token: int) -> LendingTask | None:
    call = kernel.calls.get(token)
    return None if call is None or call.kind != "body" else cast("LendingTask", kernel.entities[call.key])
