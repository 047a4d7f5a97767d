"""The clock of an attempt: the next due limit, and the time for which the clock was stopped.

Rules
-----
- Each attempt has a clock of its own. The clock is derived state: an attempt that this process did not begin has none,
  and is lost.
- The clock is stopped while the body waits for a child job, a time, a message or an approval; a child has limits of its
  own. The limit over all attempts is not stopped.
- A body that waits lends its slot: other tasks may use the slot, and its place at every limit, until the body goes on.
  The body goes on once its worker has room again (`actors/workers/reservations.py`). So a child can run even if its
  parent had the only slot.
- A body that begins to wait before it got its slot back leaves it lent: what waits for the slot, a branch of the body,
  goes on without one.
- A waiting task does not block other tasks of its tool: its permit to probe the tool passes to another task.
- The clock is not persisted: a body that has ended does not wait.
- A body in a process of its own may wait, and go on, while its worker is silent (`recovering`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from ...machines import TaskState
from ..kernel.transaction import Answer, LentSlot
from ..messages.commands import Lend, Regain
from ..messages.inputs import Drain

if TYPE_CHECKING:
    from ..kernel.kernel import Kernel
    from ..records.task import DurableWait
    from .task import TaskActor

RUNNING, RECOVERING = TaskState.RUNNING, TaskState.RECOVERING
ALIVE = frozenset({RUNNING, RECOVERING})
"""The states in which the body of the present attempt runs, or may run."""
PATIENCE = 1.0
"""Seconds that a worker has to answer; less if the interval of the rounds of health checks is shorter."""


class AttemptClock(msgspec.Struct, gc=False, eq=False):
    """The time that one attempt has used, in seconds of the monotonic clock (`Port.monotonic`).

    It does not hold its task: 100,000 waiting bodies have one each, and as a part of no cycle it needs no place in the
    lists of the garbage collector.
    """

    began: float  # the start of the attempt
    beat_at: float  # the last heartbeat of its body
    expected: float = 0.0  # when its timer should fire
    excused: float = 0.0  # seconds that do not count, since the runtime itself stood still
    stands_since: float | None = None  # when it was stopped last, if it is stopped
    stood: float = 0.0  # seconds for which it was stopped before that

    def left(self, task: TaskActor, token: int, now: float) -> tuple[float, str]:
        """Seconds until the nearest limit of the attempt under `token` is reached, and the name of that limit."""
        limits = task.limits
        began = self.began + task.kernel.late(token, now)
        left, limit = began + self.stood + self.excused + limits.timeout - now, "attempt"
        if limits.heartbeat_timeout is not None:
            silent = max(self.beat_at, began) + limits.heartbeat_timeout - now
            if silent < left:
                left, limit = silent, "heartbeat"
        total = task.total_due()
        if total is not None and total - task.kernel.at < left:
            left, limit = total - task.kernel.at, "total"
        return left, limit

    def due(self, task: TaskActor, now: float) -> tuple[float | None, str | None]:
        """When the nearest running limit is reached (UTC epoch seconds), and the name of that limit."""
        if stands_still(task):
            total = task.total_due()
            return total, None if total is None else "total"
        left, limit = self.left(task, task.record.token, now)
        return task.kernel.at + left, limit

    def set(self, task: TaskActor) -> None:
        """Stop the clock or let it go on, whichever holds now, and arm the timer again."""
        now = task.kernel.port.monotonic()
        if stands_still(task):
            task.give_permit_on()
            self.stands_since = now if self.stands_since is None else self.stands_since
        elif self.stands_since is not None:
            self.stood += now - self.stands_since
            self.stands_since = None
        if task.record.state != RUNNING:
            return
        self.beat_at = now
        task.disarm()
        due, limit = self.due(task, self.beat_at)
        if due is None:
            self.expected = 0.0
            task.change(due_at=None, limit=limit)
        else:
            task.change(limit=limit)
            self.expected = self.beat_at + due - task.kernel.at
            task.wait_until(due)

    def excuse(self, now: float, late: float) -> None:
        """Exclude `late` seconds for which the runtime stood still, and give the body `PATIENCE` more."""
        self.excused += late
        self.beat_at, self.expected = now, now + PATIENCE


def stands_still(task: TaskActor) -> bool:
    """Whether the clock of the attempt is to be stopped: the body waits without its slot, or for an approval."""
    asks, lent, token = task.asks, task.kernel.lent.get(task.record.token), task.record.token
    return (lent is not None and not lent.goes_on) or (asks is not None and asks.token == token and bool(asks.waiting))


def lend(kernel: Kernel, message: Lend) -> None:
    """Lend the slot of a body that waits, unless it is lent, and stop the clock of its attempt while the body waits. Or
    note that the body does something else besides, or no more.
    """
    task, token, wait = _task(kernel, message.token), message.token, message.wait
    if task is None or task.record.token != token or task.record.state not in ALIVE:
        return  # a body that was abandoned, but runs still, says nothing about the present attempt
    if kernel.lend_slot(token):
        _note_wait(task, wait)
        task.clock.set(task)
        return
    lent = kernel.lent.get(token)
    if lent is None:
        return
    _note_wait(task, wait)
    if lent.goes_on or lent.reply is not None:  # the body waits again before it got its slot back
        kernel.note_lent(token, LentSlot(lent.slot))
        if lent.reply is not None:  # what has asked for the slot goes on beside the new wait, without the slot
            kernel.effect(Answer(lent.reply))
        task.clock.set(task)


def _note_wait(task: TaskActor, wait: DurableWait | None) -> None:
    """Have the record say for what the body waits while it does nothing else, or that it does something else."""
    if task.record.durable_wait == wait:
        return
    task.change(durable_wait=wait)
    if wait is None and task.kernel.drain_began is not None:
        task.kernel.send(task, Drain(stop=False))  # journal it as drained: a kill now is no loss


def regain(kernel: Kernel, message: Regain) -> bool:
    """Request the slot of a body back. False if it needs none, and was answered. Else the request is answered when the
    body's worker has room.
    """
    task, token = _task(kernel, message.token), message.token
    lent = kernel.lent.get(token)
    if task is None or lent is None or task.record.state not in ALIVE:
        kernel.effect(Answer(message.reply))
        return False
    kernel.note_lent(token, LentSlot(lent.slot, message.reply))
    return True


def _task(kernel: Kernel, token: int) -> TaskActor | None:
    call = kernel.calls.get(token)
    return None if call is None or call.kind != "body" else cast("TaskActor", kernel.entities[call.key])
