"""Attempts that wait durably without a body: restored at a start, or left behind when their worker ended.

Rules (DESIGN section 10, "Waiting")
- While a body does nothing but wait durably, its record names what it waits for (`TaskRecord.durable_wait`). The commit
  that lends the slot sets this field, and the commit that gives the slot back clears it, before the body goes on. So if
  the process or the worker ends in between, nothing is interrupted, and no attempt is lost.
- The field is cleared as soon as the body does something else beside its wait. It is set again when the body has only
  waited for a while, or is dropped (`runtime/flows/lent_slots.py`).
- Such an attempt *rests*: its task stays running, without a call, a slot and a body. A restart changes no record of it.
- When the wait is over, the attempt is given back, and the task is queued: then the body runs again, from its first
  line, and comes to the same wait. So no message is received while the task has no body.
- A body that must not run twice (`on_loss`) does not rest: its attempt is lost.
- The timers and the places in the order of waits are derived state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records.task import DurableWait
from .attempt_clock import RUNNING

if TYPE_CHECKING:
    from .task import TaskActor


def may_rest(task: TaskActor) -> bool:
    """Whether the end of its body interrupts nothing, and the body may run again."""
    record = task.record
    return record.durable_wait is not None and record.on_loss == "rerun"


def rests(task: TaskActor) -> bool:
    """Whether the present attempt waits without a body."""
    record = task.record
    return record.durable_wait is not None and record.state == RUNNING and record.token not in task.kernel.calls


def rests_for(task: TaskActor, kind: str, name: str) -> bool:
    """Whether the present attempt waits without a body for that message, approval or child job."""
    wait = task.record.durable_wait
    return wait is not None and (wait.kind, wait.name) == (kind, name) and rests(task)


def is_over(task: TaskActor, wait: DurableWait) -> bool:
    """Whether the attempt's wait is over already. For a message, `listen` finds this out."""
    kernel = task.kernel
    if wait.until is not None and wait.until <= kernel.at:
        return True
    if wait.kind == "approval":
        approval = None if task.asks is None else task.asks.actors.get(wait.name)
        return approval is None or approval.ended
    if wait.kind == "child":
        child = kernel.jobs.get(wait.name)
        return child is None or child.ended
    return not wait.kind and wait.until is None


def listen(task: TaskActor, wait: DurableWait) -> None:
    """Subscribe to the end of the wait, and to the limit over all attempts."""
    arm(task, wait)
    if wait.kind == "message":
        task.stream.job.mailbox.rest(wait.name, task)


def arm(task: TaskActor, wait: DurableWait) -> None:
    """Arm the timer of a resting attempt."""
    dues = [due for due in (wait.until, task.total_due()) if due is not None]
    task.disarm()
    if dues:
        task.arm(min(dues))
