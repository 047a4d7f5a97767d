"""The waiting states of a task: for a worker, for its next attempt, for its tool.

Rules
-----
- In `circuit_open` the task is parked: at its tool's breaker, or because its attempts are exhausted (it gets one more
  after a cooldown, once), or because an attempt was lost and `on_loss` is "park" (then only a person can release it).
- In every waiting state the timer is armed for the nearest limit; the record says which one it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...machines import Event, TaskState
from ..messages.commands import ResetTask
from ..messages.errors import CircuitOpen
from ..messages.inputs import Permit, Reset, Trip, Unroutable
from ..spec.limits import breaker_of
from ..times import seconds
from .attempts import EXHAUSTED, IN_QUEUE, REQUEUE, unrepeated

if TYPE_CHECKING:
    from .task import TaskActor


# -- for a worker ------------------------------------------------------------------------------------------------------


def entered_queued(task: TaskActor) -> None:
    """Wait for a worker; park instead if the tool's breaker is not closed."""
    if (breaker := task.breaker) is not None and not breaker.closed:
        task.trip(breaker)
        return
    _arm(task)
    task.stream.workforce.scheduler.queue(task)


def _arm(task: TaskActor) -> None:
    """Arm the timer for the nearest limit of a task that waits for a worker."""
    limits, record = task.limits, task.record
    if limits.queue_timeout is None and limits.total_timeout is None and record.routable:
        return
    dues = _dues(task)
    if not record.routable:
        dues.append((task.kernel.at + limits.unroutable_timeout, "unroutable"))
    due, limit = min(dues)
    task.change(limit=limit)
    task.wait_until(due)


def _dues(task: TaskActor) -> list[tuple[float, str]]:
    """The limits of a task that waits for a worker or its tool, each with its due time."""
    dues: list[tuple[float, str]] = []
    if (queue := task.limits.queue_timeout) is not None:
        dues.append(((task.record.queued_at or task.kernel.at) + queue, "queue"))
    if (total := task.total_due()) is not None:
        dues.append((total, "total"))
    return dues


def unroutable(task: TaskActor, message: Unroutable) -> None:
    """Note that no worker can run the task, and limit its wait; or that a worker can run it now."""
    routable, record = message.reason is None, task.record
    reason = None if routable else f"unroutable: {message.reason}"
    if not routable and not record.routable and record.reason != reason:  # another program may have another reason
        task.change(reason=reason)
    if routable == record.routable or record.state not in IN_QUEUE or not (task.ticket or routable):
        return
    task.disarm()
    task.change(routable=routable, reason=reason, due_at=None, limit=None)
    _arm(task)


def due_queued(task: TaskActor) -> None:
    """Fail a task that has waited too long for a worker."""
    task.limit_reached(task.record.limit or "queue")


# -- for the next attempt ----------------------------------------------------------------------------------------------


def entered_retrying(task: TaskActor) -> None:
    """Wait until the backoff is over; the limit over all attempts still holds."""
    _drop_checkpoint(task)
    due, total = task.record.due_at, task.total_due()
    if due is not None and total is not None and total < due:
        task.wait_until(total)


def due_retrying(task: TaskActor) -> None:
    """Queue the task after its backoff; fail it if the limit over all attempts is reached."""
    total, now = task.total_due(), task.kernel.at
    if total is not None and total <= max(now, task.record.due_at or now):  # the wall clock may have been set
        task.limit_reached("total")
    elif (breaker := task.breaker) is not None and not breaker.closed:
        task.trip(breaker, queued_at=now)
    else:
        task.fire(REQUEUE, replace(task.record, queued_at=now))


# -- for its tool ------------------------------------------------------------------------------------------------------


def tripped(task: TaskActor, _: Trip) -> None:
    """Park the task if its tool's breaker opened while the task was in the queue."""
    breaker = task.breaker
    if breaker is not None and task.record.state in IN_QUEUE and task.shut_out:
        task.trip(breaker)


def entered_circuit_open(task: TaskActor) -> None:
    """Park the task: at its breaker, until one more attempt is granted, or until a person decides."""
    task.ticket = 0
    task.change(circuit_state="open", probe=False, limit=None)
    if task.parked_at_tool:
        dues = _dues(task)
    else:
        _drop_checkpoint(task)
        total = task.total_due()
        dues = [] if total is None else [(total, "total")]
        if task.record.parked == EXHAUSTED and not task.record.granted:
            said = task.limits.park_cooldown
            cooldown = seconds(breaker_of(task.tool).cooldown) if said is None else said
            dues.append((task.kernel.at + cooldown, "cooldown"))
    if dues:
        due, limit = min(dues)
        task.change(limit=limit)
        task.wait_until(due)
    if task.parked_at_tool and (breaker := task.breaker) is not None:
        breaker.park(task)


def _drop_checkpoint(task: TaskActor) -> None:
    """Drop the body's checkpoint, if the task's limits do not keep it after such an attempt."""
    record = task.record
    if record.raw_checkpoint is not None and not task.limits.keeps(record.state, record.previous_state):
        task.change(raw_checkpoint=None)


def permit(task: TaskActor, _: Permit) -> None:
    """Receive the permit to probe the tool; return it if the task does not wait for its tool."""
    if task.parked_at_tool:
        waits = None if task.breaker is None else task.kernel.entities.get(task.breaker.waits)
        beside = {} if waits is None or waits is task else {"while_waits": waits.record.id}
        task.fire(Event.COOL_DOWN, metadata={"tool": task.spec.tool} | beside)
    else:
        task.tell_breaker("returned")


def entered_half_open(task: TaskActor) -> None:
    """Queue the task for one attempt: the probe of its tool, or an attempt that was granted."""
    if (breaker := task.breaker) is not None and task.shut_out:
        task.trip(breaker)
        return
    task.change(circuit_state="half_open")
    _arm(task)
    task.stream.workforce.scheduler.queue(task)


def reset(task: TaskActor, _: Reset) -> None:
    """Queue a parked task again: its tool is healthy."""
    if task.record.state == TaskState.CIRCUIT_OPEN:
        queued_at = task.record.queued_at  # the time at the breaker counts as waiting in the queue
        task.fire(Event.RESET, replace(task.record, circuit_state="closed", limit=None, parked=None))
        task.enqueue(queued_at)


def reset_by_operator(task: TaskActor, message: ResetTask) -> None:
    """Give the task one more attempt, for an operator. Raises CircuitOpen if the task waits for its tool."""
    record, breaker = task.record, task.breaker
    if task.parked_at_tool and breaker is not None and not breaker.closed:
        allowed = task.machine.valid_events(record.state)
        raise CircuitOpen(record.state, allowed, breaker.record.name, breaker.retry_in())
    more = record.parked == EXHAUSTED or record.lost_attempts >= record.max_losses
    changed = replace(
        record,
        circuit_state="closed",
        limit=None,
        parked=None,
        granted=record.granted + more,
        trouble=unrepeated(record.trouble),
        final=False,
    )
    metadata = {"granted": changed.granted} | ({} if message.by is None else {"by": message.by})
    task.fire(Event.RESET, changed, reason=message.reason, metadata=metadata)
    task.enqueue()


def due_circuit_open(task: TaskActor) -> None:
    """Grant one more attempt after the cooldown, or fail the task: it waited too long."""
    limit = task.record.limit
    if limit == "cooldown":
        changed = replace(task.record, granted=task.record.granted + 1, queued_at=task.kernel.at)
        task.fire(Event.COOL_DOWN, changed)
    else:
        task.limit_reached(limit or "total")
