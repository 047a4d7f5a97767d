"""The life of a task: one unit of work, tried until it succeeds, fails for good, or is stopped.

Rules
-----
- A task is queued only when its dependencies are satisfied, and its hold and its wait, if any, are over. Holds and
  waits begin when the dependencies are satisfied; a hold or wait that is over stays over after a reset.
- `failed` is final: whether there is another attempt is decided before it is entered. Two budgets: failed
  attempts against `max_attempts` (plus those granted), lost ones (the worker or the runtime died) against
  `max_losses`.
- `timed_out` and `recovering` are not ends: the task waits until the body has ended, or until its worker comes
  back. Then the next step is decided as for a failure in `running`.
- A requeue in `running` gives the try back: it counts as neither failed nor lost. So does a deferral (the body
  asked to be run later). The number of deferrals is limited before the guard sees one.
- Validating again after an interruption counts nothing; the body is not run again.
- A failed validation counts as a permanent failure: the same result would fail again. So a task that parks when its
  attempts are used up is parked after a failed validation, too.
- A task that was the breaker's probe parks on failure, whatever its attempts: the breaker is open again.
- Slots belong to attempts, not to states: a cancelled task's slot is free only when its body has ended.

Guards read the counts of attempts that ended badly before the attempt whose end is being decided.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition


class TaskState(StrEnum):
    """The states of a task."""

    PENDING = "pending"
    HELD = "held"
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    TIMED_OUT = "timed_out"
    VALIDATING = "validating"
    RECOVERING = "recovering"
    RETRYING = "retrying"
    CIRCUIT_OPEN = "circuit_open"
    HALF_OPEN = "half_open"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Holdable(Protocol):
    """The fields that the approval guards read of a task's or workstream's record. Times are UTC, in seconds."""

    @property
    def hold_until(self) -> float | None:
        """When the hold expires; None if it never does."""
        ...

    @property
    def wait_until(self) -> float | None:
        """When the wait is over; None without a wait."""
        ...


class TaskFacts(Holdable, Protocol):
    """The fields that the guards read of a task's record."""

    @property
    def unmet(self) -> int:
        """Dependencies that are not satisfied yet."""
        ...

    @property
    def probe(self) -> bool:
        """Whether the present attempt is the breaker's probe."""
        ...

    @property
    def failed_attempts(self) -> int:
        """Attempts that failed or timed out before the present one."""
        ...

    @property
    def lost_attempts(self) -> int:
        """Attempts that were lost before the present one."""
        ...

    @property
    def granted(self) -> int:
        """Attempts given on top of `max_attempts`, by a cooldown or by an operator."""
        ...

    @property
    def max_attempts(self) -> int:
        """How many attempts may fail."""
        ...

    @property
    def max_losses(self) -> int:
        """How many attempts may be lost."""
        ...

    @property
    def on_loss(self) -> str:
        """The next step after a loss: "rerun", "fail" or "park"."""
        ...

    @property
    def on_exhausted(self) -> str:
        """The next step after the last attempt: "fail" or "park"."""
        ...


class Failure(Protocol):
    """The payload of `fail` where an attempt has ended."""

    @property
    def lost(self) -> bool:
        """Whether the worker or the runtime died; the body itself did not fail."""
        ...

    @property
    def permanent(self) -> bool:
        """Whether the error says that a retry is useless."""
        ...

    @property
    def repeated(self) -> bool:
        """Whether the same error came too many times in a row."""
        ...

    @property
    def deferred(self) -> bool:
        """Whether the body asked to be run later: it has not failed, and uses up no try."""
        ...


class Decision(Protocol):
    """The payload of `approve`."""

    @property
    def at(self) -> float:
        """When the decision was made (UTC, s)."""
        ...

    @property
    def missing(self) -> int:
        """The number of clauses that are still not met, with this decision counted."""
        ...


class Permit(Protocol):
    """The payload of `trip`."""

    @property
    def permit(self) -> bool:
        """Whether the breaker lets this task through although it is not closed."""
        ...


# -- guards --------------------------------------------------------------------------------------------------


def dependencies_satisfied(facts: TaskFacts, _: object) -> bool:
    """All dependencies are satisfied."""
    return facts.unmet == 0


def in_time_and_clauses_missing(facts: Holdable, decision: Decision) -> bool:
    """The decision is in time, and others are still needed."""
    return _in_time(facts, decision) and decision.missing > 0


def in_time_and_clauses_met_but_wait_not_over(facts: Holdable, decision: Decision) -> bool:
    """The decision is in time and the last one needed, and the wait is not over."""
    if facts.wait_until is None or facts.wait_until <= decision.at:
        return False
    return in_time_and_clauses_met(facts, decision)


def in_time_and_clauses_met(facts: Holdable, decision: Decision) -> bool:
    """The decision is in time, and the last one needed."""
    return _in_time(facts, decision) and decision.missing == 0


def no_permit(_: object, trip: Permit) -> bool:
    """The breaker is not closed, and this task has no permit."""
    return not trip.permit


def was_probe_may_retry(facts: TaskFacts, failure: Failure) -> bool:
    """The attempt was the breaker's probe, and there may be another one."""
    return facts.probe and may_retry(facts, failure)


def may_retry(facts: TaskFacts, failure: Failure) -> bool:
    """The budget of this end (failures or losses) leaves another attempt; a deferral always has one."""
    if failure.deferred:
        return True
    if failure.lost:
        return facts.on_loss == "rerun" and facts.lost_attempts + 1 < facts.max_losses
    if failure.permanent or failure.repeated:
        return False
    return facts.failed_attempts + 1 < facts.max_attempts + facts.granted


def parks_when_exhausted(facts: TaskFacts, failure: Failure) -> bool:
    """The specification asks to park the task, and not to fail it, when no attempt is left."""
    return facts.on_exhausted == "park" or (failure.lost and facts.on_loss == "park")


def _in_time(facts: Holdable, decision: Decision) -> bool:
    return facts.hold_until is None or decision.at < facts.hold_until


# -- table ---------------------------------------------------------------------------------------------------

E = Event
S = TaskState
T = Transition


def _ended_badly(source: TaskState) -> tuple[Transition, ...]:
    """The rows of an attempt's bad end, which are the same in several states."""
    return (
        T(source, E.FAIL, S.CIRCUIT_OPEN, was_probe_may_retry, severity="error"),
        T(source, E.FAIL, S.RETRYING, may_retry, severity="warning"),
        T(source, E.FAIL, S.CIRCUIT_OPEN, parks_when_exhausted, severity="error"),
        T(source, E.FAIL, S.FAILED, severity="error"),
    )


TASK: Final = Machine(
    "task",
    S.PENDING,
    states=(
        State(S.PENDING, Phase.PENDING, bounded_by="its dependencies"),
        State(S.HELD, Phase.HELD),
        State(S.WAITING, Phase.WAITING),
        State(
            S.QUEUED,
            Phase.QUEUED,
            bounded_by="a free slot; a task that no worker can run fails as unroutable",
        ),
        State(S.RUNNING, Phase.RUNNING),
        State(S.TIMED_OUT, Phase.TIMED_OUT),
        State(S.VALIDATING, Phase.VALIDATING),
        State(S.RECOVERING, Phase.RECOVERING),
        State(S.RETRYING, Phase.RETRYING),
        State(S.CIRCUIT_OPEN, Phase.CIRCUIT_OPEN, bounded_by="the breaker's cooldown, or an operator's reset"),
        State(S.HALF_OPEN, Phase.HALF_OPEN, bounded_by="a free slot"),
        State(S.CANCELLING, Phase.CANCELLING),
        State(S.COMPLETED, Phase.COMPLETED, terminal=True),
        State(S.FAILED, Phase.FAILED, terminal=True),
        State(S.CANCELLED, Phase.CANCELLED, terminal=True),
        State(S.SKIPPED, Phase.SKIPPED, terminal=True),
    ),
    transitions=(
        T(S.PENDING, E.ENQUEUE, S.QUEUED, dependencies_satisfied),
        T(S.PENDING, E.HOLD, S.HELD),
        T(S.PENDING, E.WAIT, S.WAITING),
        T(S.PENDING, E.SKIP, S.SKIPPED),
        T(S.PENDING, E.CANCEL, S.CANCELLED),
        T(S.PENDING, E.FAIL, S.FAILED, severity="error"),
        T(S.HELD, E.APPROVE, S.HELD, in_time_and_clauses_missing),
        T(S.HELD, E.APPROVE, S.WAITING, in_time_and_clauses_met_but_wait_not_over),
        T(S.HELD, E.APPROVE, S.QUEUED, in_time_and_clauses_met),
        T(S.HELD, E.REJECT, S.CANCELLED),
        T(S.HELD, E.EXPIRE, S.CANCELLED, severity="warning"),
        T(S.HELD, E.CANCEL, S.CANCELLED),
        T(S.WAITING, E.TIMER_DONE, S.QUEUED),
        T(S.WAITING, E.CANCEL, S.CANCELLED),
        T(S.QUEUED, E.TRIP, S.CIRCUIT_OPEN, no_permit, severity="error"),
        T(S.QUEUED, E.START, S.RUNNING),
        T(S.QUEUED, E.FAIL, S.FAILED, severity="error"),
        T(S.QUEUED, E.CANCEL, S.CANCELLED),
        T(S.RUNNING, E.SUCCEED, S.VALIDATING),
        T(S.RUNNING, E.TIME_OUT, S.TIMED_OUT, severity="warning"),
        T(S.RUNNING, E.RECOVER, S.RECOVERING),
        *_ended_badly(S.RUNNING),
        T(S.RUNNING, E.REQUEUE, S.QUEUED),
        T(S.RUNNING, E.CANCEL, S.CANCELLED),
        T(S.RUNNING, E.CANCEL_GRACEFUL, S.CANCELLING),
        *_ended_badly(S.TIMED_OUT),
        T(S.TIMED_OUT, E.CANCEL, S.CANCELLED),
        T(S.VALIDATING, E.VALIDATION_PASSED, S.COMPLETED),
        T(S.VALIDATING, E.VALIDATION_FAILED, S.CIRCUIT_OPEN, parks_when_exhausted, severity="error"),
        T(S.VALIDATING, E.VALIDATION_FAILED, S.FAILED, severity="error"),
        T(S.VALIDATING, E.RECOVER, S.VALIDATING),
        T(S.VALIDATING, E.CANCEL, S.CANCELLED),
        T(S.VALIDATING, E.CANCEL_GRACEFUL, S.CANCELLING),
        T(S.RECOVERING, E.START, S.RUNNING),
        *_ended_badly(S.RECOVERING),
        T(S.RECOVERING, E.CANCEL, S.CANCELLED),
        T(S.RETRYING, E.REQUEUE, S.QUEUED),
        T(S.RETRYING, E.TRIP, S.CIRCUIT_OPEN, severity="error"),
        T(S.RETRYING, E.FAIL, S.FAILED, severity="error"),
        T(S.RETRYING, E.CANCEL, S.CANCELLED),
        T(S.CIRCUIT_OPEN, E.COOL_DOWN, S.HALF_OPEN),
        T(S.CIRCUIT_OPEN, E.RESET, S.PENDING),
        T(S.CIRCUIT_OPEN, E.FAIL, S.FAILED, severity="error"),
        T(S.CIRCUIT_OPEN, E.CANCEL, S.CANCELLED),
        T(S.HALF_OPEN, E.START, S.RUNNING),
        T(S.HALF_OPEN, E.TRIP, S.CIRCUIT_OPEN, severity="error"),
        T(S.HALF_OPEN, E.FAIL, S.FAILED, severity="error"),
        T(S.HALF_OPEN, E.CANCEL, S.CANCELLED),
        T(S.CANCELLING, E.COMPLETE, S.CANCELLED),
        T(S.CANCELLING, E.CANCEL_FORCE, S.CANCELLED),
        T(S.CANCELLING, E.FAIL, S.FAILED, severity="error"),
    ),
    timed=(
        Timed(S.HELD, E.EXPIRE, "hold_until"),
        Timed(S.WAITING, E.TIMER_DONE, "wait_until"),
        Timed(S.QUEUED, E.FAIL, "queue_timeout"),
        # The nearest of the attempt, heartbeat and total limits; the record says which one.
        Timed(S.RUNNING, E.TIME_OUT, "timeout"),
        Timed(S.TIMED_OUT, E.FAIL, "kill_grace"),
        Timed(S.VALIDATING, E.VALIDATION_FAILED, "validation_timeout"),
        Timed(S.RECOVERING, E.FAIL, "recovery_timeout"),
        Timed(S.RETRYING, E.REQUEUE, "retry_at"),
        Timed(S.CANCELLING, E.CANCEL_FORCE, "cancel_deadline"),
    ),
)
