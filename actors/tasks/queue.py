"""A task that waits: for a worker, for its next try, for its tool.

Rules
-----
- In `circuit_open` it is parked: at its tool's breaker, or because its attempts are exhausted (it gets one more after a
  cooldown, once), or because one was lost and must not simply run again (then only somebody's word frees it).
- While it waits, wherever, the nearest of its limits is armed; the record says which it was.
"""

from __future__ import annotations

from msgspec.structs import replace

from ...machines import Event, TaskState
from ..messages.commands import ResetTask
from ..messages.errors import CircuitOpen
from ..messages.inputs import Permit, Queued, Reset, Trip, Unroutable
from ..records.task import NO_TROUBLE, TaskRecord
from ..spec.limits import breaker_of
from ..spec.times import seconds
from ..workers.scheduler import IN_QUEUE
from .attempts import EXHAUSTED, FAIL, REQUEUE, TOOL, unrepeated
from .checks import traced
from .worker_loss import TroubledTask

S = TaskState


class QueueingTask(TroubledTask):
    """A task as far as its waiting goes; `TaskActor` is the whole of it."""

    __slots__ = ()

    def enqueue(self, queued_at: float | None = None) -> None:
        """Let it wait for a worker, since `queued_at` (now unless said)."""
        raise NotImplementedError

    # -- for a worker ------------------------------------------------------------------------------------------------

    def entered_queued(self) -> None:
        """Wait for a worker, unless the tool is known to be ill."""
        if (breaker := self.breaker) is not None and not breaker.closed:
            self._trip(breaker)
            return
        self._arm_queue()
        self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    def _arm_queue(self) -> None:
        """Arm the nearest of the limits that hold while it waits for a worker."""
        limits, record = self.limits, self.record
        if limits.queue_timeout is None and limits.total_timeout is None and record.routable:
            return
        dues = self._waiting_dues()
        if not record.routable:
            dues.append((self.kernel.at + limits.unroutable_timeout, "unroutable"))
        due, limit = min(dues)
        self.change(limit=limit)
        self.wait_until(due)

    def _waiting_dues(self) -> list[tuple[float, str]]:
        """The limits that hold while it waits for a worker or at its tool, and when they are reached."""
        dues: list[tuple[float, str]] = []
        if (queue := self.limits.queue_timeout) is not None:
            dues.append(((self.record.queued_at or self.kernel.at) + queue, "queue"))
        if (total := self._total_due()) is not None:
            dues.append((total, "total"))
        return dues

    def reroute(self, engine: str) -> None:
        """Its function has become known: wait for a worker with that engine."""
        self.engine = engine
        self.lane = None
        if self.ticket:
            self.on_unroutable(Unroutable(None))
            self.ticket = 0
            self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    def on_unroutable(self, message: Unroutable) -> None:
        """No worker could ever run it: say so at once, and do not wait for ever. Or one has come."""
        routable, record = message.reason is None, self.record
        reason = None if routable else f"unroutable: {message.reason}"
        if not routable and not record.routable and record.reason != reason:  # by another program it is another reason
            self.change(reason=reason)
        if routable == record.routable or record.state not in IN_QUEUE or not (self.ticket or routable):
            return
        self.disarm()
        self.change(routable=routable, reason=reason, due_at=None, limit=None)
        self._arm_queue()

    def due_queued(self) -> None:
        """It waited too long for a worker."""
        self._limit_reached(self.record.limit or "queue")

    def due_half_open(self) -> None:
        """It waited too long for a worker."""
        self._limit_reached(self.record.limit or "queue")

    # -- for the next try --------------------------------------------------------------------------------------------

    def entered_retrying(self) -> None:
        """Wait for the backoff to be over; the limit over all attempts still holds."""
        self._let_go()
        due, total = self.record.due_at, self._total_due()
        if due is not None and total is not None and total < due:
            self.wait_until(total)

    def due_retrying(self) -> None:
        """The backoff is over, or the limit over all attempts was reached."""
        total, now = self._total_due(), self.kernel.at
        if total is not None and total <= max(now, self.record.due_at or now):  # the wall clock may have been set
            self._limit_reached("total")
        elif (breaker := self.breaker) is not None and not breaker.closed:
            self._trip(breaker, queued_at=now)
        else:
            self.fire(REQUEUE, replace(self.record, queued_at=now))

    # -- for its tool ------------------------------------------------------------------------------------------------

    @property
    def parked_at_tool(self) -> bool:
        """Whether it waits for its tool's breaker."""
        return self.record.state == S.CIRCUIT_OPEN and self.record.parked == TOOL

    @property
    def put_off(self) -> bool:
        """Whether it was taken out of the queue, and has still to hear why."""
        return not self.ticket and self.record.state in IN_QUEUE

    def on_trip(self, _: Trip) -> None:
        """Its tool's breaker opened while it was in the queue."""
        breaker = self.breaker
        if breaker is not None and self.record.state in IN_QUEUE and self.shut_out:
            self._trip(breaker)

    def entered_circuit_open(self) -> None:
        """Park: at the tool's breaker, or until one more attempt is granted, or until somebody decides."""
        self.ticket = 0
        self.change(circuit_state="open", probe=False, limit=None)
        if self.parked_at_tool:
            dues = self._waiting_dues()
        else:
            self._let_go()
            total = self._total_due()
            dues = [] if total is None else [(total, "total")]
            if self.record.parked == EXHAUSTED and not self.record.granted:
                said = self.limits.park_cooldown
                cooldown = seconds(breaker_of(self.tool).cooldown) if said is None else said
                dues.append((self.kernel.at + cooldown, "cooldown"))
        if dues:
            due, limit = min(dues)
            self.change(limit=limit)
            self.wait_until(due)
        if self.parked_at_tool and (breaker := self.breaker) is not None:
            breaker.park(self)

    def _let_go(self) -> None:
        """Forget what its body saved, where that is not kept after such an attempt."""
        if self.record.raw_checkpoint is not None and not self.limits.keeps(self.record):
            self.change(raw_checkpoint=None)

    def on_permit(self, _: Permit) -> None:
        """It may probe its tool."""
        if self.parked_at_tool:
            waits = None if self.breaker is None else self.kernel.entities.get(self.breaker.waits)
            beside = {} if waits is None or waits is self else {"while_waits": waits.record.id}
            self.fire(Event.COOL_DOWN, metadata={"tool": self.spec.tool} | beside)
        else:
            self._tell_breaker("returned")

    def entered_half_open(self) -> None:
        """Queue for one attempt: the tool's probe, or the one more that it was granted."""
        if (breaker := self.breaker) is not None and self.shut_out:
            self._trip(breaker)
            return
        self.change(circuit_state="half_open")
        self._arm_queue()
        self.kernel.send(self.kernel.scheduler, Queued(self.record.key))

    def step_back(self, reason: str) -> None:
        """It cannot start now: another may have the permit that it waits with."""
        breaker = self.breaker
        if breaker is not None and self.record.parked == TOOL:
            self._trip(breaker, reason=reason)
            self._tell_breaker("returned")

    def on_reset(self, _: Reset) -> None:
        """Its tool is healthy again."""
        if self.record.state == S.CIRCUIT_OPEN:
            queued_at = self.record.queued_at  # it has waited since then, whatever for
            self.fire(Event.RESET, replace(self.record, circuit_state="closed", limit=None, parked=None))
            self.enqueue(queued_at)

    def on_reset_task(self, message: ResetTask) -> None:
        """An operator gives it one more attempt. Raises CircuitOpen where it waits for its tool."""
        record, breaker = self.record, self.breaker
        if self.parked_at_tool and breaker is not None and not breaker.closed:
            allowed = self.machine.valid_events(record.state)
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
        self.fire(Event.RESET, changed, reason=message.reason, metadata=told)
        self.enqueue()

    def due_circuit_open(self) -> None:
        """It gets one more attempt, or it waited too long."""
        limit = self.record.limit
        if limit == "cooldown":
            changed = replace(self.record, granted=self.record.granted + 1, queued_at=self.kernel.at)
            self.fire(Event.COOL_DOWN, changed)
        else:
            self._limit_reached(limit or "total")

    # -- for too long ------------------------------------------------------------------------------------------------

    def _broken(self, error: str, kind: str, traceback: str | None = None) -> None:
        """It fails while no attempt of it runs. traceback: of a function that raised."""
        self.fire(FAIL, self._with_error(error, kind), reason=error, metadata=traced(traceback))

    def _with_error(self, error: str, kind: str) -> TaskRecord:
        before = self.record.trouble or NO_TROUBLE
        return replace(self.record, trouble=replace(before, error=error, type=kind, count=before.count + 1))

    def _limit_reached(self, limit: str) -> None:
        """It waited for too long."""
        self.change(limit=limit)
        waited = None if self.record.routable else self.record.reason  # which says what is missing
        if limit == "unroutable":
            reason = waited or "unroutable"
        else:
            reason = f"the {limit} limit was reached" + (f" ({waited})" if waited else "")
        self._broken(reason, f"{limit}_timeout")
