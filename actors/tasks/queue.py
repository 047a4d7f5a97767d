"""A task that waits: for a worker, for its next try, for its tool.

Rules
-----
- In `circuit_open` it is parked: at its tool's breaker, or because its attempts are exhausted (it gets one more after a
  cooldown, once), or because one was lost and must not simply run again (then only somebody's word frees it).
- While it waits, wherever, the nearest of its limits is armed; the record says which it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...machines import Event, TaskState
from ..messages.commands import ResetTask
from ..messages.errors import CircuitOpen
from ..messages.inputs import Permit, Queued, Reset, Trip, Unroutable
from ..spec.limits import breaker_of
from ..spec.times import seconds
from ..workers.scheduler import IN_QUEUE
from .attempts import EXHAUSTED, REQUEUE, unrepeated

if TYPE_CHECKING:
    from .task import TaskActor


# -- for a worker ------------------------------------------------------------------------------------------------------


def entered_queued(task: TaskActor) -> None:
    """Wait for a worker, unless the tool is known to be ill."""
    if (breaker := task.breaker) is not None and not breaker.closed:
        task.trip(breaker)
        return
    _arm(task)
    task.kernel.send(task.kernel.scheduler, Queued(task.record.key))


def _arm(task: TaskActor) -> None:
    """Arm the nearest of the limits that hold while it waits for a worker."""
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
    """The limits that hold while it waits for a worker or at its tool, and when they are reached."""
    dues: list[tuple[float, str]] = []
    if (queue := task.limits.queue_timeout) is not None:
        dues.append(((task.record.queued_at or task.kernel.at) + queue, "queue"))
    if (total := task.total_due()) is not None:
        dues.append((total, "total"))
    return dues


def unroutable(task: TaskActor, message: Unroutable) -> None:
    """No worker could ever run it: say so at once, and do not wait for ever. Or one has come."""
    routable, record = message.reason is None, task.record
    reason = None if routable else f"unroutable: {message.reason}"
    if not routable and not record.routable and record.reason != reason:  # by another program it is another reason
        task.change(reason=reason)
    if routable == record.routable or record.state not in IN_QUEUE or not (task.ticket or routable):
        return
    task.disarm()
    task.change(routable=routable, reason=reason, due_at=None, limit=None)
    _arm(task)


def due_queued(task: TaskActor) -> None:
    """It waited too long for a worker."""
    task.limit_reached(task.record.limit or "queue")


# -- for the next try --------------------------------------------------------------------------------------------------


def entered_retrying(task: TaskActor) -> None:
    """Wait for the backoff to be over; the limit over all attempts still holds."""
    _let_go(task)
    due, total = task.record.due_at, task.total_due()
    if due is not None and total is not None and total < due:
        task.wait_until(total)


def due_retrying(task: TaskActor) -> None:
    """The backoff is over, or the limit over all attempts was reached."""
    total, now = task.total_due(), task.kernel.at
    if total is not None and total <= max(now, task.record.due_at or now):  # the wall clock may have been set
        task.limit_reached("total")
    elif (breaker := task.breaker) is not None and not breaker.closed:
        task.trip(breaker, queued_at=now)
    else:
        task.fire(REQUEUE, replace(task.record, queued_at=now))


# -- for its tool ------------------------------------------------------------------------------------------------------


def tripped(task: TaskActor, _: Trip) -> None:
    """Its tool's breaker opened while it was in the queue."""
    breaker = task.breaker
    if breaker is not None and task.record.state in IN_QUEUE and task.shut_out:
        task.trip(breaker)


def entered_circuit_open(task: TaskActor) -> None:
    """Park: at the tool's breaker, or until one more attempt is granted, or until somebody decides."""
    task.ticket = 0
    task.change(circuit_state="open", probe=False, limit=None)
    if task.parked_at_tool:
        dues = _dues(task)
    else:
        _let_go(task)
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


def _let_go(task: TaskActor) -> None:
    """Forget what its body saved, where that is not kept after such an attempt."""
    if task.record.raw_checkpoint is not None and not task.limits.keeps(task.record):
        task.change(raw_checkpoint=None)


def permit(task: TaskActor, _: Permit) -> None:
    """It may probe its tool."""
    if task.parked_at_tool:
        waits = None if task.breaker is None else task.kernel.entities.get(task.breaker.waits)
        beside = {} if waits is None or waits is task else {"while_waits": waits.record.id}
        task.fire(Event.COOL_DOWN, metadata={"tool": task.spec.tool} | beside)
    else:
        task.tell_breaker("returned")


def entered_half_open(task: TaskActor) -> None:
    """Queue for one attempt: the tool's probe, or the one more that it was granted."""
    if (breaker := task.breaker) is not None and task.shut_out:
        task.trip(breaker)
        return
    task.change(circuit_state="half_open")
    _arm(task)
    task.kernel.send(task.kernel.scheduler, Queued(task.record.key))


def reset(task: TaskActor, _: Reset) -> None:
    """Its tool is healthy again."""
    if task.record.state == TaskState.CIRCUIT_OPEN:
        queued_at = task.record.queued_at  # it has waited since then, whatever for
        task.fire(Event.RESET, replace(task.record, circuit_state="closed", limit=None, parked=None))
        task.enqueue(queued_at)


def reset_by_operator(task: TaskActor, message: ResetTask) -> None:
    """An operator gives it one more attempt. Raises CircuitOpen where it waits for its tool."""
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
    told = {"granted": changed.granted} | ({} if message.by is None else {"by": message.by})
    task.fire(Event.RESET, changed, reason=message.reason, metadata=told)
    task.enqueue()


def due_circuit_open(task: TaskActor) -> None:
    """It gets one more attempt, or it waited too long."""
    limit = task.record.limit
    if limit == "cooldown":
        changed = replace(task.record, granted=task.record.granted + 1, queued_at=task.kernel.at)
        task.fire(Event.COOL_DOWN, changed)
    else:
        task.limit_reached(limit or "total")
