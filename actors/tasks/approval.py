"""Approvals that running bodies ask for: an entity of its own each, and the clock of the attempt that waits.

Rules
-----
- An approval is keyed by its task and a name. Whoever asks under that name finds it, also a later attempt, and gets
  what was decided; its rule is the one it was first asked with.
- As long as an attempt waits for at least one, its clock is stopped: of its limits only the one over all attempts
  holds. Then it has the time that it had left.
- What is decided reaches the body by an effect, under the token of the attempt that waits. Nobody waiting, it is kept.
- It is cancelled when its task ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from ...machines import APPROVAL, ApprovalState, Event, Machine
from ..kernel.entity import Entity, Receivers, States, timer_fired
from ..kernel.kernel import Kernel
from ..kernel.transaction import Decided
from ..messages.commands import Approve, AskApproval, Cancel, Reject
from ..messages.inputs import RECOVER, Recover, TimerFired, TurnFailed
from ..records.base import Decision
from ..records.entities import ApprovalRecord
from ..records.transition import iso
from ..spec.model import Approval
from ..spec.times import Duration, seconds
from .holds import approve, clauses_of, hold_due, overdue, reject, spans_of, text_of, told_at_end, waits_for

if TYPE_CHECKING:
    from .task import TaskActor


class ApprovalActor(Entity[ApprovalRecord]):
    """One approval that a body asked for."""

    __slots__ = ("task",)

    machine: ClassVar[Machine] = APPROVAL
    by_utc = frozenset({ApprovalState.HELD})

    def __init__(self, kernel: Kernel, record: ApprovalRecord, task: TaskActor) -> None:
        super().__init__(kernel, record)
        self.task = task

    def context(self) -> tuple[str | None, str | None, int | None, str | None]:
        """Its ids for the log."""
        return self.record.job_id, self.record.workstream_id, None, None

    @property
    def approval(self) -> Approval:
        """What it asks for."""
        return self.record.rule

    @property
    def wait(self) -> Duration | None:
        """It has none."""
        return None

    @property
    def submitter(self) -> str | None:
        """Who submitted its job, if that was said."""
        return self.task.submitter

    def through(self, record: ApprovalRecord) -> ApprovalRecord:
        """The record, once it is approved."""
        return replace(record, finished_at=self.kernel.at)

    def refuse(self, event: Event, decision: Decision, reason: str) -> None:
        """It was rejected, or has expired."""
        changed = replace(self.through(self.record), decisions=(*self.record.decisions, decision))
        self.fire(event, changed, reason=reason, metadata=told_at_end(self, changed))

    def on_cancel(self, message: Cancel) -> None:
        """Its task has ended without it."""
        if not self.ended:
            self.fire(Event.CANCEL, self.through(self.record), reason=message.reason)

    def set_back(self, by: float) -> None:
        """The wall clock was set back by so many seconds."""
        super().set_back(by)
        self.earlier(by, spans_of(None))

    def on_recover(self, _: Recover) -> None:
        """It may have expired meanwhile."""
        overdue(self)

    def on_turn_failed(self, message: TurnFailed) -> None:
        """A turn of it raised and was undone."""
        self.on_cancel(Cancel(f"internal error: {message.error}"))

    def entered_end(self) -> None:
        """Let the body go on."""
        self.task.asks_of().decided(self)

    # -- who does what -------------------------------------------------------------------------------------------------

    receivers: ClassVar[Receivers] = {
        Approve: approve, Cancel: on_cancel, Recover: on_recover, Reject: reject,
        TimerFired: timer_fired, TurnFailed: on_turn_failed,
    }  # fmt: skip

    when_entered: ClassVar[States] = {
        ApprovalState.APPROVED: entered_end, ApprovalState.REJECTED: entered_end,
        ApprovalState.EXPIRED: entered_end, ApprovalState.CANCELLED: entered_end,
    }  # fmt: skip

    when_due: ClassVar[States] = {
        ApprovalState.HELD: hold_due,
    }  # fmt: skip


class Asks:
    """The approvals that the bodies of one task have asked for, and the stopped clock of the attempt that waits."""

    __slots__ = ("actors", "began", "stopped", "task", "token", "waiting")

    def __init__(self, task: TaskActor) -> None:
        self.task = task
        self.actors: dict[str, ApprovalActor] = {}
        self.token = 0  # of the attempt that waits, or waited
        self.waiting: set[str] = set()  # what it waits for
        self.began = 0.0  # when its clock was stopped (monotonic)
        self.stopped = 0.0  # seconds that it stood still before

    def ask(self, message: AskApproval) -> None:
        """An attempt wants to be told what is decided."""
        task, token, name = self.task, message.token, message.name
        actor = self.actors.get(name) or self._create(message)
        if actor.ended:
            task.kernel.effect(Decided(token, name, actor.record))
            return
        if token != self.token:
            self.token, self.stopped = token, 0.0
            self.waiting.clear()
        if not self.waiting:
            self.began = task.kernel.port.monotonic()
            self.waiting.add(name)
            task.clock.set()
        self.waiting.add(name)

    def leave(self, token: int, name: str) -> None:
        """An attempt waits no longer for one of them."""
        if token != self.token or name not in self.waiting:
            return
        self.waiting.discard(name)
        if not self.waiting:
            self.stopped += self.task.kernel.port.monotonic() - self.began
            self.task.clock.set()

    def decided(self, actor: ApprovalActor) -> None:
        """One of them is over: tell who waits for it."""
        self.task.kernel.effect(Decided(self.token, actor.record.name, actor.record))
        self.leave(self.token, actor.record.name)

    def load(self, record: ApprovalRecord) -> None:
        """Take one that the journal holds."""
        kernel = self.task.kernel
        kernel.entities[record.key] = self.actors[record.name] = ApprovalActor(kernel, record, self.task)

    def rebuild(self) -> None:
        """Forget those that were never committed, and arm what the others wait for."""
        entities = self.task.kernel.entities
        self.actors = {name: actor for name, actor in self.actors.items() if actor.record.key in entities}
        self.waiting &= self.actors.keys()
        for actor in self.actors.values():
            actor.arm_again()

    def recover(self) -> None:
        """The runtime came back: what fell due meanwhile is decided."""
        for actor in self.actors.values():
            if not actor.ended:
                self.task.kernel.send(actor, RECOVER)

    def end(self) -> None:
        """The task has ended."""
        for actor in self.actors.values():
            if not actor.ended:
                self.task.kernel.send(actor, Cancel(f"task {self.task.record.name!r} has ended"))

    def _create(self, message: AskApproval) -> ApprovalActor:
        task, rule = self.task, message.rule
        kernel, of = task.kernel, task.record
        expires = kernel.at + seconds(rule.expires)
        clauses = [text_of(clause) for clause in clauses_of(rule)]
        record = ApprovalRecord(
            key=kernel.number(), id=f"{of.id}/{message.name}", name=message.name, state=ApprovalState.HELD, run=of.run,
            created_at=kernel.at, updated_at=kernel.at, due_at=expires, reason=waits_for(clauses),
            task=of.key, task_id=of.id, workstream=of.workstream, workstream_id=of.workstream_id, job_id=of.job_id,
            rule=rule, hold_until=expires,
        )  # fmt: skip
        actor = self.actors[message.name] = ApprovalActor(kernel, record, task)
        actor.born({"clauses": clauses, "expires_at": iso(expires)})
        actor.arm_again()
        return actor
