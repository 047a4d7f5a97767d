"""Approvals that running bodies request: one entity each, and the stopped clock of the waiting attempt.

Rules
-----
- An approval is identified by its task and a name. A later request with the same name, also from a later attempt, gets
  the same approval and its decision; the rule of the first request stays.
- While an attempt waits for at least one approval, its clock is stopped: only the limit over all attempts still holds.
  Afterwards the attempt has its remaining time.
- A body may give up its wait (a time limit of its own). The approval stays open, since a later request gets its
  decision; its record, and its reason, say that nobody waits for it, until somebody does.
- The decision reaches the body by an effect, under the token of the waiting attempt. If no attempt waits, the decision
  is kept in the record.
- An approval is cancelled when its task ends. It counts in the round of the flow in which it was requested only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from ...machines import APPROVAL, ApprovalState, Event, Machine
from ..kernel.entity import Entity, Receivers, States, timer_fired
from ..kernel.kernel import Kernel
from ..kernel.transaction import ApprovalDecided
from ..messages.commands import Approve, AskApproval, Cancel, Reject
from ..messages.inputs import RECOVER, Recover, TimerFired, TurnFailed, WaitOver
from ..records.base import Decision
from ..records.entities import ApprovalRecord
from ..records.transition import iso
from ..spec.model import Approval
from ..times import Duration, seconds
from .durable_waits import rests_for
from .holds import approve, clauses_of, hold_due, missing_of, overdue, reject, spans_of, text_of, told_at_end, waits_for

if TYPE_CHECKING:
    from .task import TaskActor


LEFT = "its body waits for it no longer"
"""How the reason of an open approval begins for which no body waits."""


class ApprovalActor(Entity[ApprovalRecord]):
    """One approval that a body requested."""

    __slots__ = ("task",)

    machine: ClassVar[Machine] = APPROVAL
    by_utc = frozenset({ApprovalState.HELD})

    def __init__(self, kernel: Kernel, record: ApprovalRecord, task: TaskActor) -> None:
        super().__init__(kernel, record)
        self.task = task

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """The ids of the approval's job and workstream, for the log."""
        return self.record.job_id, self.record.workstream_id, None, None

    @property
    def approval(self) -> Approval:
        """The approval's rule: the required clauses."""
        return self.record.rule

    @property
    def wait(self) -> Duration | None:
        """None: an approval has no wait."""
        return None

    @property
    def submitter(self) -> str | None:
        """The person who submitted the job, if known."""
        return self.task.submitter

    def through(self, record: ApprovalRecord) -> ApprovalRecord:
        """The record with the fields that change when the approval ends."""
        return replace(record, finished_at=self.kernel.at, left_at=None)

    def refuse(self, event: Event, decision: Decision, reason: str) -> None:
        """End the approval, which was rejected or has expired."""
        changed = replace(self.through(self.record), decisions=(*self.record.decisions, decision))
        self.fire(event, changed, reason=reason, metadata=told_at_end(self, changed))

    def on_cancel(self, message: Cancel) -> None:
        """Cancel the approval, unless it has ended: its task has ended."""
        if not self.ended:
            self.fire(Event.CANCEL, self.through(self.record), reason=message.reason)

    def on_approve(self, message: Approve) -> None:
        """Apply a person's approval. Raises DecisionRefused or InvalidTransitionError."""
        approve(self, message)
        if self.record.left_at is not None:
            self.change(reason=self._why())

    def awaited(self, *, now: bool) -> None:
        """Note whether a body waits for the open approval."""
        if now != (self.record.left_at is None):
            self.change(left_at=None if now else self.kernel.at)
            self.change(reason=self._why())

    def _why(self) -> str:
        """What the open approval waits for, and that no body does."""
        waits = waits_for(missing_of(clauses_of(self.record.rule), self.record.decisions))
        return waits if self.record.left_at is None else f"{LEFT}; {waits}"

    def set_back(self, by: float) -> None:
        """Follow a wall clock that was set back `by` seconds."""
        super().set_back(by)
        self.earlier(by, spans_of(None))

    def on_recover(self, _: Recover) -> None:
        """Expire the approval if it fell due while no runtime ran."""
        overdue(self)

    def on_turn_failed(self, message: TurnFailed) -> None:
        """Cancel the approval: one of its turns raised and was undone."""
        self.on_cancel(Cancel(f"internal error: {message.error}"))

    def entered_end(self) -> None:
        """Deliver the decision to the waiting body."""
        self.task.asks_of().decided(self)

    # -- tables --------------------------------------------------------------------------------------------------------

    receivers: ClassVar[Receivers] = {
        Approve: on_approve, Cancel: on_cancel, Recover: on_recover, Reject: reject,
        TimerFired: timer_fired, TurnFailed: on_turn_failed,
    }  # fmt: skip

    when_entered: ClassVar[States] = {
        ApprovalState.APPROVED: entered_end, ApprovalState.REJECTED: entered_end,
        ApprovalState.EXPIRED: entered_end, ApprovalState.CANCELLED: entered_end,
    }  # fmt: skip

    when_due: ClassVar[States] = {
        ApprovalState.HELD: hold_due,
    }  # fmt: skip


class RequestedApprovals:
    """The approvals that one task's bodies have requested, and those that the present attempt waits for."""

    __slots__ = ("actors", "task", "token", "waiting")

    def __init__(self, task: TaskActor) -> None:
        self.task = task
        self.actors: dict[str, ApprovalActor] = {}
        self.token = 0  # of the last attempt that waited
        self.waiting: set[str] = set()  # names of the approvals that the attempt waits for

    def ask(self, message: AskApproval) -> None:
        """Receive an attempt's request for an approval; create the approval if it is new."""
        task, token, name = self.task, message.token, message.name
        actor = self.actors.get(name)
        if actor is None or actor.record.rounds != task.record.rounds:
            if actor is not None:  # of an earlier round
                task.kernel.forget(actor)
            actor = self._create(message)
        if actor.ended:
            task.kernel.effect(ApprovalDecided(token, name, actor.record))
            return
        if token != self.token:
            self.token = token
            self.waiting.clear()
        first = not self.waiting
        self.waiting.add(name)
        actor.awaited(now=True)
        if first:
            task.clock.set(task)

    def leave(self, token: int, name: str) -> None:
        """Note that an attempt does not wait for this approval any more."""
        if token != self.token or name not in self.waiting:
            return
        self.waiting.discard(name)
        if not self.waiting:
            self.task.clock.set(self.task)
        actor = self.actors.get(name)
        if actor is not None and not actor.ended and self.task.kernel.drain_began is None:  # a drain ends no wait
            actor.awaited(now=False)

    def decided(self, actor: ApprovalActor) -> None:
        """Deliver the decision of an ended approval to the waiting attempt."""
        self.task.kernel.effect(ApprovalDecided(self.token, actor.record.name, actor.record))
        self.leave(self.token, actor.record.name)
        if rests_for(self.task, "approval", actor.record.name):
            self.task.kernel.send(self.task, WaitOver())

    def load(self, record: ApprovalRecord) -> None:
        """Restore an approval from the journal, unless it is one of an earlier round."""
        if record.rounds != self.task.record.rounds:
            return
        kernel = self.task.kernel
        kernel.entities[record.key] = self.actors[record.name] = ApprovalActor(kernel, record, self.task)

    def rebuild(self) -> None:
        """Drop approvals that were never committed, and arm the timers of the others."""
        entities = self.task.kernel.entities
        self.actors = {name: actor for name, actor in self.actors.items() if actor.record.key in entities}
        self.waiting &= self.actors.keys()
        for actor in self.actors.values():
            actor.arm_again()

    def recover(self) -> None:
        """Expire, after a restart, the approvals that fell due meanwhile."""
        for actor in self.actors.values():
            if not actor.ended:
                self.task.kernel.send(actor, RECOVER)

    def end(self, what: str = "has ended") -> None:
        """Cancel the open approvals: the task, or a round of it, has ended. what: for people."""
        for actor in self.actors.values():
            if not actor.ended:
                self.task.kernel.send(actor, Cancel(f"task {self.task.record.name!r} {what}"))

    def _create(self, message: AskApproval) -> ApprovalActor:
        task, rule = self.task, message.rule
        kernel, of = task.kernel, task.record
        expires = kernel.at + seconds(rule.expires)
        clauses = [text_of(clause) for clause in clauses_of(rule)]
        round_ = f"~{of.rounds + 1}" if of.rounds else ""
        record = ApprovalRecord(
            key=kernel.number(), id=f"{of.id}/{message.name}{round_}", name=message.name, state=ApprovalState.HELD,
            run=of.run, created_at=kernel.at, updated_at=kernel.at, due_at=expires, reason=waits_for(clauses),
            task=of.key, task_id=of.id, workstream=of.workstream, workstream_id=of.workstream_id, job_id=of.job_id,
            rule=rule, hold_until=expires, rounds=of.rounds,
        )  # fmt: skip
        actor = self.actors[message.name] = ApprovalActor(kernel, record, task)
        actor.born({"clauses": clauses, "expires_at": iso(expires)})
        actor.arm_again()
        return actor
