"""Holds and waits of tasks, workstreams and approvals: people decide holds, time ends waits.

Rules (DESIGN sections 4 and 9)
-----
- A hold has clauses, all of which must be met: a named person, a number of people of a team, a number of people. One
  person may meet several clauses, and counts once for each.
- One rejection rejects the hold. Exactly one decision wins: a later decision is refused with `DecisionConflict`, which
  contains the winning one.
- A decision that would change nothing is refused and not journaled: from a person who has decided already, from a
  person whom no clause names, from the submitter if `self_approval` is off. `person` defines when two names are the
  same person.
- Expiry is checked at each decision, and by a timer; a decision at the instant of expiry is late. The time at which
  the decision was made counts: a decision that waited in the inbox while no runtime ran is handled before its hold
  expires.
- If there is a wait too, it runs at the same time as the hold; both must pass. A passed wait stays passed.
- The wall clock decides due times. Other holds and waits that fell due while no runtime ran are ended first at the
  next start.
- Due times are data (`hold_until`, `wait_until`): no reason text contains one, so that each reader sees them in
  their own time zone. So are the times of refusals: their texts add them in UTC, as ISO 8601.

Metadata of the transitions
---------------------------
| event | metadata |
| --- | --- |
| hold | `clauses` (texts), `expires_at`; `wait_until` if there is a wait too |
| approve | `by`, `clauses_met` (by this decision), `missing` (afterwards); `unchecked`: teams that could not be asked |
| reject | `by` |
| expire | `expired_at`, `missing` |
| wait, timer_done | `wait_until` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from ...machines import Event, GuardRejected, InvalidTransitionError, Machine
from ..kernel.entity import EntityOperations
from ..messages.commands import Approve, Reject
from ..records.base import Decision
from ..records.entities import ApprovalRecord, WorkstreamRecord
from ..records.task import APPROVED, TaskRecord
from ..records.transition import iso
from ..spec.model import Approval, Clause
from ..spec.names import person
from ..times import Duration, is_named, moment, seconds
from ..user_code import plain

HeldRecord = TaskRecord | WorkstreamRecord | ApprovalRecord
HELD, WAITING = "held", "waiting"
_ANEW = "The next run asks again: `retry`."
REJECTED, EXPIRED = "rejected", "expired"
_moment = lru_cache(maxsize=4, typed=True)(moment)
"""`moment`, for the tasks that begin to wait in one transaction: they share one number."""


class DecisionRefused(InvalidTransitionError):  # noqa: N818 - its name states the event
    """A decision about a hold was refused, and nothing has changed. `why` says why; others may still decide.

    `expired_at`: when the hold expired, in UTC epoch seconds; None if expiry is not the reason. `why` holds no time.
    """

    def __init__(  # noqa: PLR0917 - all of it is what `args` must hold, so that it can be pickled
        self,
        machine: str,
        state: str,
        event: str,
        allowed: frozenset[str],
        why: str,
        expired_at: float | None = None,
    ) -> None:
        super().__init__(machine, state, event, allowed)
        self.args = (machine, state, event, allowed, why, expired_at)
        self.why = why
        self.expired_at = expired_at

    def __str__(self) -> str:
        return self.told(iso)

    def told(self, when: Callable[[float], str]) -> str:
        """The error's text, with its time formatted by `when`. `str` uses UTC: "2026-11-28T12:00:00.000Z"."""
        text = f"{self.machine}: {str(self.event)!r} was refused in state {str(self.state)!r}: {self.why}"
        what, at = self._time
        return text if at is None else f"{text} ({what} {when(at)})"

    @property
    def _time(self) -> tuple[str, float | None]:
        return "expired", self.expired_at


class DecisionConflict(DecisionRefused):
    """The hold was decided before. `decision`: its person, time (`at`, in UTC epoch seconds) and verdict."""

    def __init__(  # noqa: PLR0917 - all of it is what `args` must hold, so that it can be pickled
        self, machine: str, state: str, event: str, allowed: frozenset[str], why: str, decision: Decision
    ) -> None:
        super().__init__(machine, state, event, allowed, why)
        self.args = (machine, state, event, allowed, why, decision)
        self.decision = decision

    @property
    def _time(self) -> tuple[str, float | None]:
        return "decided", self.decision.at


class DecisionPayload(msgspec.Struct, frozen=True, gc=False):
    """The payload of `approve` for the guards: the decision's time, and the number of unmet clauses."""

    at: float
    missing: int


class EntityWithHold(EntityOperations, Protocol):
    """The part of an entity that holds and waits use."""

    machine: ClassVar[Machine]

    @property
    def approval(self) -> Approval:
        """The approval that the entity's hold requires. Called only if the entity was held."""
        ...

    @property
    def wait(self) -> Duration | None:
        """The entity's wait, if it has one."""
        ...

    @property
    def submitter(self) -> str | None:
        """The person who submitted the entity's job, if known."""
        ...

    def through(self, record: Any) -> Any:
        """The record with the fields that change when the hold and the wait are over."""
        ...

    def refuse(self, event: Event, decision: Decision, reason: str) -> None:
        """End the entity: its hold was rejected, or has expired."""
        ...


def told_at_end(entity: EntityWithHold, record: HeldRecord) -> dict[str, Any]:
    """The metadata of the transition that ends the entity, from its last decision."""
    last = record.decisions[-1]
    if last.by is not None:
        return {"by": last.by}
    missing = missing_of(clauses_of(entity.approval), record.decisions)
    return {"expired_at": iso(record.hold_until or last.at), "missing": missing}


def waits_for_named(entity: EntityWithHold) -> bool:
    """Whether the entity waits for a given point in time, and not for a duration."""
    return entity.record.state == WAITING and entity.wait is not None and is_named(entity.wait)


def spans_of(wait: Duration | None) -> tuple[str, ...]:
    """The names of the record's due times that are ends of spans: not a wait until a named moment."""
    return ("hold_until",) if wait is not None and is_named(wait) else ("hold_until", "wait_until")


# -- beginning ---------------------------------------------------------------------------------------------------------


def protect(entity: EntityWithHold, hold: Approval | None, wait: Duration | None) -> bool:
    """Begin the hold and the wait. Returns False if there is nothing to wait for."""
    if hold is None and wait is None:
        return False
    now = entity.kernel.at
    until = None if wait is None else _moment(plain(wait), now)
    waits: dict[str, Any] = {} if until is None else {"wait_until": iso(until)}
    if hold is not None:
        expires = now + seconds(hold.expires)
        clauses = [text_of(clause) for clause in clauses_of(hold)]
        changed = replace(entity.record, hold_until=expires, wait_until=until)
        metadata = {"clauses": clauses, "expires_at": iso(expires), **waits}
        entity.fire(Event.HOLD, changed, reason=waits_for(clauses), metadata=metadata, due_at=expires)
    elif until is not None and until > now:
        changed = replace(entity.record, wait_until=until)
        entity.fire(Event.WAIT, changed, metadata=waits, due_at=until)
    else:
        return False
    return True


# -- decisions ---------------------------------------------------------------------------------------------------------


def approve(entity: EntityWithHold, message: Approve) -> None:
    """Apply a person's approval. Raises DecisionRefused or InvalidTransitionError."""
    _check_open(entity, Event.APPROVE)
    record, rule = entity.record, entity.approval
    clauses = clauses_of(rule)
    mine = _own(entity, message, clauses)
    others = tuple(one for one in record.decisions if person(one.by or "") != person(message.by))
    decisions = (*others, mine)
    missing = missing_of(clauses, decisions)
    changed = replace(record, decisions=decisions)
    due = record.due_at
    if not missing:
        due = None if record.wait_until is None or record.wait_until <= mine.at else record.wait_until
        changed = changed if due is not None else entity.through(changed)
    metadata: dict[str, Any] = {
        "by": message.by, "clauses_met": [text_of(clauses[index]) for index in mine.met], "missing": missing,
    }  # fmt: skip
    if message.unchecked:
        metadata["unchecked"] = list(message.unchecked)
    reason = message.reason or f"approved by {message.by}"
    try:
        entity.fire(Event.APPROVE, changed, DecisionPayload(mine.at, len(missing)), reason, metadata, due)
    except GuardRejected as refusal:
        expired_at = record.hold_until
        raise refused(entity, Event.APPROVE, f"the hold has expired. {_ANEW}", expired_at) from refusal
    if missing:
        entity.change(reason=waits_for(missing))


def reject(entity: EntityWithHold, message: Reject) -> None:
    """Apply a person's rejection. Raises DecisionRefused or InvalidTransitionError."""
    _check_open(entity, Event.REJECT)
    until = entity.record.hold_until
    if until is not None and until <= _said_at(entity):
        raise refused(entity, Event.REJECT, "the hold has expired.", until)
    decision = Decision(verdict=REJECTED, at=_said_at(entity), by=message.by, reason=message.reason)
    entity.refuse(Event.REJECT, decision, message.reason or f"rejected by {message.by}")


def _check_open(entity: EntityWithHold, event: Event) -> None:
    """Raise InvalidTransitionError unless the entity is held and undecided."""
    record = entity.record
    if record.state != HELD or (isinstance(record, WorkstreamRecord) and record.cause is not None):
        raise refusal(entity.machine, record, event)


def _own(entity: EntityWithHold, message: Approve, clauses: Sequence[Clause]) -> Decision:
    """Make the decision of the person who approves now, with all clauses that they meet. Raises DecisionRefused."""
    by, submitter = person(message.by), entity.submitter
    if submitter is not None and person(submitter) == by and not entity.approval.self_approval:
        raise refused(
            entity, Event.APPROVE, f"{message.by} submitted it, and self-approval is off. Another person must approve."
        )
    met = {
        index
        for index, clause in enumerate(clauses)
        if (person(clause.person) == by if clause.person is not None else clause.team in {None, *message.teams})
    }
    before = next((one for one in entity.record.decisions if person(one.by or "") == by), None)
    if before is not None:
        if met <= set(before.met):
            raise _conflict(entity.machine, entity.record, Event.APPROVE, before)
        met.update(before.met)
    if not met:
        why = f"{message.by} meets no clause; it waits for {', '.join(map(text_of, clauses))}"
        if message.unchecked:
            why += f" (the members of {', '.join(message.unchecked)} could not be determined)"
        raise refused(entity, Event.APPROVE, why)
    return Decision(verdict=APPROVED, at=_said_at(entity), by=message.by, reason=message.reason, met=tuple(sorted(met)))


def _said_at(entity: EntityWithHold) -> float:
    """The time at which the person made the decision of this turn (UTC epoch seconds)."""
    kernel = entity.kernel
    return kernel.at if kernel.turn.said_at is None else kernel.turn.said_at


def refused(entity: EntityWithHold, event: Event, why: str, expired_at: float | None = None) -> DecisionRefused:
    """The error for a refused decision."""
    state = entity.record.state
    return DecisionRefused(entity.machine.name, state, event, entity.machine.valid_events(state), why, expired_at)


# -- time --------------------------------------------------------------------------------------------------------------


def hold_due(entity: EntityWithHold) -> None:
    """Expire the hold; but wait if the inbox contains a decision that was made in time."""
    if entity.kernel.awaited and _is_awaited(entity):
        entity.kernel.put_off.add(entity.record.key)
        return
    missing = missing_of(clauses_of(entity.approval), entity.record.decisions)
    until = entity.record.hold_until  # the runtime may notice the expiry later: at the next start
    decision = Decision(verdict=EXPIRED, at=entity.kernel.at if until is None else min(until, entity.kernel.at))
    entity.refuse(Event.EXPIRE, decision, f"no approval in time by {', '.join(missing)}")


def _is_awaited(entity: EntityWithHold) -> bool:
    """Whether the inbox contains a decision about the entity that was made in time."""
    record = entity.record
    about = record.job_id
    if isinstance(record, TaskRecord):
        about += f"/{record.name}"
    elif isinstance(record, ApprovalRecord):
        about += f"/{record.task_id.rpartition('/')[2]}"
    until, said = record.hold_until, entity.kernel.awaited.get(about)
    return until is not None and said is not None and said < until


def wait_due(entity: EntityWithHold) -> None:
    """End the wait of an entity."""
    metadata = {"wait_until": iso(entity.record.wait_until or entity.kernel.at)}
    entity.fire(Event.TIMER_DONE, entity.through(entity.record), metadata=metadata)


def overdue(entity: EntityWithHold) -> None:
    """End a hold or wait that fell due while no runtime ran, before new decisions are handled."""
    record = entity.record
    if record.due_at is not None and record.due_at <= entity.kernel.at:
        if record.state == HELD:
            hold_due(entity)
        else:
            wait_due(entity)


# -- clauses -----------------------------------------------------------------------------------------------------------


def clauses_of(rule: Approval) -> list[Clause]:
    """All clauses of an approval. Decisions refer to them by their indexes in this list."""
    if rule.people is None and rule.clauses:
        return rule.clauses
    return [Clause(people=1 if rule.people is None else rule.people), *rule.clauses]


def text_of(clause: Clause, given: int = 0) -> str:
    """A clause in words, with the number of its people who have approved."""
    if clause.person is not None:
        return clause.person
    needed = clause.people or 1
    count = f"{given} of {needed}" if given else f"{needed}"
    people = "person" if needed == 1 else "people"
    return f"{count} {people}" + (f" of team {clause.team}" if clause.team is not None else "")


def missing_of(clauses: Sequence[Clause], decisions: Sequence[Decision]) -> list[str]:
    """The clauses that are not met yet, in words."""
    return [text_of(clause, so_far) for clause, so_far in unmet_of(clauses, decisions)]


def unmet_of(clauses: Sequence[Clause], decisions: Sequence[Decision]) -> list[tuple[Clause, int]]:
    """The clauses that are not met yet, each with the number of its people who have approved."""
    given = [sum(index in one.met for one in decisions) for index in range(len(clauses))]
    return [pair for pair in zip(clauses, given, strict=True) if pair[1] < (pair[0].people or 1)]


def waits_for(missing: Sequence[str]) -> str:
    """The reason of a held entity: the missing approvals, without a time. The record has the time."""
    return _waits_for(tuple(missing))


@lru_cache(maxsize=64)  # entities that wait for the same approvals share one text
def _waits_for(missing: tuple[str, ...]) -> str:
    return f"waits for approval by {', '.join(missing)}"


# -- decisions in words ------------------------------------------------------------------------------------------------


def told_of(decision: Decision) -> str:
    """A decision in words, beginning with its verb: the person and the reason, but not the time (`at`)."""
    if decision.by is None:
        return decision.verdict
    why = f" ({decision.reason})" if decision.reason else ""
    return f"was {decision.verdict} by {decision.by}{why}"


def refusal(machine: Machine, record: HeldRecord, event: str) -> InvalidTransitionError:
    """The error for a decision about an entity that waits for none; it contains the earlier decision, if any."""
    if record.decisions:
        return _conflict(machine, record, event, record.decisions[-1])
    if record.state == HELD:
        why = f"it is being cancelled ({record.reason}), so nothing is left to decide."
        return DecisionRefused(machine.name, record.state, event, machine.valid_events(record.state), why)
    return InvalidTransitionError(machine.name, record.state, event, machine.valid_events(record.state))


def _conflict(machine: Machine, record: HeldRecord, event: str, decision: Decision) -> DecisionConflict:
    left = "Nothing is left to decide." if decision.verdict == APPROVED else _ANEW
    if record.state == HELD:
        left = "It is held until the others have approved."
    why = f"{record.id} {told_of(decision)}. {left}"
    return DecisionConflict(machine.name, record.state, event, machine.valid_events(record.state), why, decision)


def how_it_ended(record: TaskRecord) -> str:
    """How an incomplete task ended, in words: "failed", "was cancelled", "was rejected by ana", "expired"."""
    last = record.decisions[-1] if record.decisions else None
    if record.state == "cancelled" and last is not None and last.verdict != APPROVED:
        return "expired" if last.by is None else f"was rejected by {last.by}"
    return "failed" if record.state == "failed" else f"was {record.state}"
