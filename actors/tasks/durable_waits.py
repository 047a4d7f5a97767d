"""Attempts that wait durably without a body: restored at a start, or left behind when their worker ended.

Rules (DESIGN section 10, "Waiting")
- While a body does nothing but wait durably, the record says for what (`TaskRecord.durable_wait`). It says so in the
  commit that lends the slot, and no more in the one that gives the slot back, before the body goes on. So whatever ends
  the process or the worker in between interrupts nothing, and is no loss.
- As soon as the body does something else beside its wait, the record says so no more; and again when the wait has been
  alone for a while, or the body is dropped (`runtime/flows/lent_slots.py`).
- Such an attempt *rests*: its task stays running, without a call, a slot and a body. A restart changes and writes
  nothing of it.
- When the wait is over, the attempt is given back, and the task is queued: then the body runs again, from its first
  line, and comes to the same wait. So nothing is taken for a body that is not there.
- A body that must not run twice (`on_loss`) does not rest: its attempt is lost.
- What is said here is derived state: timers, and the place in the line for a message.
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
    """Whether what the attempt waits for has come already. A message is looked for by `listen`."""
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
    """Be told when the wait is over, or the limit over all attempts is reached."""
    arm(task, wait)
    if wait.kind == "message":
        task.stream.job.mailbox.rest(wait.name, task)


def arm(task: TaskActor, wait: DurableWait) -> None:
    """Arm the timer of a resting attempt."""
    dues = [due for due in (wait.until, task.total_due()) if due is not None]
    task.disarm()
    if dues:
        task.arm(min(dues))
