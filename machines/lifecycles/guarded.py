"""The `guarded` lifecycle: tasks that are validated, retried with backoff, and parked behind a circuit.

Source: document 003, "Task Lifecycle" (DOC-GUIDE-DOC-TASK-LIFECYCLE-DIAGRAM-774).
For: teams whose tools fail often, and who prefer a task that is parked for a person to one that has failed.

Rules
-----
- Neither FAILED nor CIRCUIT_OPEN is an end. In FAILED the next step is decided at once: another attempt, or the circuit
  opens. So an exhausted task is parked; after the cooldown it is tried once, and then an operator decides.
- The circuit opens after a permanent error, after the same error too many times in a row, and when all
  attempts have been used up.
- A failed validation is deterministic: it counts as permanent.
- TIMEOUT stops the tool first, and then decides as after a failure; without a further attempt it moves to FAILED.
- Retries start from RETRYING, and not from a queue.

What was decided
----------------
- The document's table of metrics calls FAILED terminal. Its diagram leaves FAILED by two rows, and is followed.
- The reset out of CIRCUIT_OPEN (`manual_reset`, to PENDING) and its cancel (`workstream_cancelled`) stand in the
  text only; both are rows.
- The diagram names one of three rows into SKIPPED and one of three into CIRCUIT_OPEN. The text has the others (an
  optional step, a condition; a permanent error, a repeated one); they are rows with names of their own.
- The document counts attempts, others count retries: max_attempts = max_retries + 1. Retry n waits
  base x 2^(n-1): its example has 2 s before the first retry, where its formula gives 4 s.
- max_error_repeats is 2 and exhausted tasks are parked here; in the runtime's own lifecycle only if the task's
  specification says so.
- Dependents of a task are skipped when the task can no longer complete. A parked task still can.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from ..adapt.lifecycle import Lifecycle, retries
from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition
from .guards import RetryFacts, dependencies_satisfied

T = Transition


class TaskState(StrEnum):
    """The states of a task."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    VALIDATING = "VALIDATING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETRYING = "RETRYING"
    CIRCUIT_OPEN = "CIRCUIT_OPEN"
    HALF_OPEN = "HALF_OPEN"
    TIMEOUT = "TIMEOUT"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"


class TaskEvent(StrEnum):
    """The events of a task: the words beside the diagram's arrows, and those of the text."""

    EXECUTOR_STARTS = "executor_starts"
    DEPENDENCY_FAILED = "dependency_failed"
    OPTIONAL_STEP_SKIPPED = "optional_step_skipped"
    CONDITIONAL_NOT_MET = "conditional_not_met"
    USER_CANCELS = "user_cancels"
    TOOL_EXECUTION_COMPLETE = "tool_execution_complete"
    TOOL_EXECUTION_ERROR = "tool_execution_error"
    EXECUTION_TIMEOUT = "execution_timeout"
    USER_INTERRUPT = "user_interrupt"
    TESTS_PASS = "tests_pass"  # noqa: S105 - the tests pass: no password
    TESTS_FAIL = "tests_fail"
    RETRY_AVAILABLE = "retry_available"
    MAX_RETRIES_REACHED = "max_retries_reached"
    PERMANENT_ERROR = "permanent_error"
    SAME_ERROR_REPEATED = "same_error_repeated"
    BACKOFF_COMPLETE = "backoff_complete"
    CIRCUIT_OPENS = "circuit_opens"
    COOLDOWN_EXPIRES = "cooldown_expires"
    TEST_RETRY = "test_retry"
    TEST_FAILS = "test_fails"
    NO_RETRIES_LEFT = "no_retries_left"
    MANUAL_RESET = "manual_reset"
    WORKSTREAM_CANCELLED = "workstream_cancelled"


class FailureFacts(RetryFacts, Protocol):
    """The fields that the guards read of a failed task."""

    @property
    def permanent(self) -> bool:
        """Whether the error says that a retry is useless."""
        ...

    @property
    def repeated(self) -> bool:
        """Whether the same error came more than max_error_repeats times in a row."""
        ...


# -- guards --------------------------------------------------------------------------------------------------


def retries_available(facts: FailureFacts, _: object) -> bool:
    """An attempt is left, and the circuit has no reason to open."""
    return facts.retry_count < facts.max_retries and not facts.permanent and not facts.repeated


def no_retries_available(facts: FailureFacts, _: object) -> bool:
    """No attempt is left, or the circuit has a reason to open."""
    return not retries_available(facts, _)


def max_attempts_reached(facts: FailureFacts, _: object) -> bool:
    """All attempts have been used up."""
    return facts.retry_count >= facts.max_retries


def error_is_permanent(facts: FailureFacts, _: object) -> bool:
    """The error says that a retry is useless."""
    return facts.permanent


def error_repeated_too_often(facts: FailureFacts, _: object) -> bool:
    """The same error came too many times in a row."""
    return facts.repeated


# -- table ---------------------------------------------------------------------------------------------------

S = TaskState
TE = TaskEvent

TASK: Final = Machine(
    "guarded.task",
    S.PENDING,
    states=(
        State(S.PENDING, Phase.PENDING, bounded_by="its dependencies, and a free executor"),
        State(S.IN_PROGRESS, Phase.RUNNING),
        State(S.VALIDATING, Phase.VALIDATING),
        State(S.COMPLETED, Phase.COMPLETED, terminal=True),
        State(S.FAILED, Phase.DECIDING, bounded_by="the decision about a retry, at once"),
        State(S.RETRYING, Phase.RETRYING),
        State(S.CIRCUIT_OPEN, Phase.CIRCUIT_OPEN),
        State(S.HALF_OPEN, Phase.HALF_OPEN, bounded_by="its one attempt, which starts with the next free executor"),
        State(S.TIMEOUT, Phase.TIMED_OUT, bounded_by="the end of its tool, which is stopped"),
        State(S.SKIPPED, Phase.SKIPPED, terminal=True),
        State(S.CANCELLED, Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        T(S.PENDING, TE.EXECUTOR_STARTS, S.IN_PROGRESS, dependencies_satisfied),
        T(S.PENDING, TE.DEPENDENCY_FAILED, S.SKIPPED),
        T(S.PENDING, TE.OPTIONAL_STEP_SKIPPED, S.SKIPPED),
        T(S.PENDING, TE.CONDITIONAL_NOT_MET, S.SKIPPED),
        T(S.PENDING, TE.USER_CANCELS, S.CANCELLED),
        T(S.IN_PROGRESS, TE.TOOL_EXECUTION_COMPLETE, S.VALIDATING),
        T(S.IN_PROGRESS, TE.TOOL_EXECUTION_ERROR, S.FAILED, severity="error"),
        T(S.IN_PROGRESS, TE.EXECUTION_TIMEOUT, S.TIMEOUT, severity="warning"),
        T(S.IN_PROGRESS, TE.USER_INTERRUPT, S.CANCELLED),
        T(S.VALIDATING, TE.TESTS_PASS, S.COMPLETED),
        T(S.VALIDATING, TE.TESTS_FAIL, S.FAILED, severity="error"),
        T(S.FAILED, TE.RETRY_AVAILABLE, S.RETRYING, retries_available, severity="warning"),
        T(S.FAILED, TE.PERMANENT_ERROR, S.CIRCUIT_OPEN, error_is_permanent, severity="error"),
        T(S.FAILED, TE.SAME_ERROR_REPEATED, S.CIRCUIT_OPEN, error_repeated_too_often, severity="error"),
        T(S.FAILED, TE.MAX_RETRIES_REACHED, S.CIRCUIT_OPEN, max_attempts_reached, severity="error"),
        T(S.RETRYING, TE.BACKOFF_COMPLETE, S.IN_PROGRESS),
        T(S.RETRYING, TE.CIRCUIT_OPENS, S.CIRCUIT_OPEN, severity="error"),
        T(S.CIRCUIT_OPEN, TE.COOLDOWN_EXPIRES, S.HALF_OPEN),
        T(S.CIRCUIT_OPEN, TE.MANUAL_RESET, S.PENDING),
        T(S.CIRCUIT_OPEN, TE.WORKSTREAM_CANCELLED, S.CANCELLED),
        T(S.HALF_OPEN, TE.TEST_RETRY, S.IN_PROGRESS),
        T(S.HALF_OPEN, TE.TEST_FAILS, S.CIRCUIT_OPEN, severity="error"),
        T(S.TIMEOUT, TE.RETRY_AVAILABLE, S.RETRYING, retries_available, severity="warning"),
        T(S.TIMEOUT, TE.NO_RETRIES_LEFT, S.FAILED, no_retries_available, severity="error"),
    ),
    timed=(
        Timed(S.IN_PROGRESS, TE.EXECUTION_TIMEOUT, "timeout"),
        Timed(S.VALIDATING, TE.TESTS_FAIL, "validation_timeout"),
        Timed(S.RETRYING, TE.BACKOFF_COMPLETE, "retry_at"),
        Timed(S.CIRCUIT_OPEN, TE.COOLDOWN_EXPIRES, "cooldown_period"),
    ),
)

# -- how the runtime's actors run by it ----------------------------------------------------------------------

E = Event

LIFECYCLES: Final = (
    Lifecycle(
        "guarded",
        "task",
        TASK,
        {
            E.START: (TE.EXECUTOR_STARTS, TE.BACKOFF_COMPLETE, TE.TEST_RETRY),
            E.SKIP: (TE.DEPENDENCY_FAILED, TE.CONDITIONAL_NOT_MET, TE.OPTIONAL_STEP_SKIPPED),
            E.CANCEL: (TE.USER_CANCELS, TE.USER_INTERRUPT, TE.WORKSTREAM_CANCELLED),
            E.SUCCEED: (TE.TOOL_EXECUTION_COMPLETE,),
            E.FAIL: (
                TE.TOOL_EXECUTION_ERROR,
                TE.RETRY_AVAILABLE,
                TE.NO_RETRIES_LEFT,
                TE.PERMANENT_ERROR,
                TE.SAME_ERROR_REPEATED,
                TE.MAX_RETRIES_REACHED,
            ),
            E.TIME_OUT: (TE.EXECUTION_TIMEOUT,),
            E.VALIDATION_PASSED: (TE.TESTS_PASS,),
            E.VALIDATION_FAILED: (TE.TESTS_FAIL, TE.PERMANENT_ERROR),
            E.TRIP: (TE.CIRCUIT_OPENS, TE.TEST_FAILS),
            E.COOL_DOWN: (TE.COOLDOWN_EXPIRES,),
            E.RESET: (TE.MANUAL_RESET,),
        },
        facts=retries,
        skips={
            "dependency": TE.DEPENDENCY_FAILED,
            "condition": TE.CONDITIONAL_NOT_MET,
            "operator": TE.OPTIONAL_STEP_SKIPPED,
        },
        defaults={"max_error_repeats": 2, "on_exhausted": "park"},
    ),
)
