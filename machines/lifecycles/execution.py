"""The `execution` lifecycle: runs, jobs and steps by one machine, on both sides of a wire.

Source: document 004, "Execution state machine".
For: teams whose orchestrator and agents both keep the state of one execution, by calling the same pure
functions.

Rules
-----
- `transition(state, event)` returns the next state, or raises; it reads and keeps nothing else.
- Terminal states are immutable: success, failed, cancelled, skipped.
- Holds, waits and skips are decided before an execution is enqueued.
- A graceful cancel runs hooks in `cancelling`. That state refuses a second graceful cancel, and takes `CANCEL_FORCE`.
- An agent that vanishes moves `running` to `recovering`; the execution comes back by `START`, or fails.

What was decided
----------------
- The document's prose lets a job go from pending to running. Its table does not, and the table is followed.
- There is no state for a retry, and none for validation: both happen within `running`.
- The same machine serves tasks, workstreams and jobs; the meaning of its states for each is listed below. A
  workstream is planned in `pending` and ready in `queued`; a job is validated in `pending` and waits for its
  slots in `queued`.
- A rejected job fails if its state has that row; `pending` does not, and so the job is cancelled there.
- Events are written in capitals, states in small letters, as published.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ..adapt.lifecycle import Lifecycle
from ..events import Event
from ..machine import InvalidTransitionError, Machine
from ..phases import Phase
from ..rows import State, Timed, Transition


class ExecutionState(StrEnum):
    """The states of an execution."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    RECOVERING = "recovering"
    CANCELLING = "cancelling"
    HELD = "held"
    WAITING = "waiting"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class ExecutionEvent(StrEnum):
    """The events of an execution."""

    ENQUEUE = "ENQUEUE"
    START = "START"
    SUCCEED = "SUCCEED"
    FAIL = "FAIL"
    CANCEL = "CANCEL"
    CANCEL_GRACEFUL = "CANCEL_GRACEFUL"
    CANCEL_FORCE = "CANCEL_FORCE"
    COMPLETE = "COMPLETE"
    SKIP = "SKIP"
    RECOVER = "RECOVER"
    HOLD = "HOLD"
    APPROVE = "APPROVE"
    REJECT = "REJECT"
    EXPIRE = "EXPIRE"
    WAIT = "WAIT"
    TIMER_DONE = "TIMER_DONE"


# -- table ---------------------------------------------------------------------------------------------------

S = ExecutionState
X = ExecutionEvent
T = Transition

EXECUTION: Final = Machine(
    "execution",
    S.PENDING,
    states=(
        State(S.PENDING, Phase.PENDING, bounded_by="its orchestrator, and its dependencies"),
        State(S.QUEUED, Phase.QUEUED, bounded_by="a free agent"),
        State(S.RUNNING, Phase.RUNNING, bounded_by="its work; RECOVER if its agent vanishes"),
        State(S.RECOVERING, Phase.RECOVERING),
        State(S.CANCELLING, Phase.CANCELLING, bounded_by="the limits of its cancel hooks; CANCEL_FORCE ends it sooner"),
        State(S.HELD, Phase.HELD),
        State(S.WAITING, Phase.WAITING),
        State(S.SUCCESS, Phase.COMPLETED, terminal=True),
        State(S.FAILED, Phase.FAILED, terminal=True),
        State(S.CANCELLED, Phase.CANCELLED, terminal=True),
        State(S.SKIPPED, Phase.SKIPPED, terminal=True),
    ),
    transitions=(
        T(S.PENDING, X.ENQUEUE, S.QUEUED),
        T(S.PENDING, X.CANCEL, S.CANCELLED),
        T(S.PENDING, X.SKIP, S.SKIPPED),
        T(S.PENDING, X.HOLD, S.HELD),
        T(S.PENDING, X.WAIT, S.WAITING),
        T(S.HELD, X.APPROVE, S.QUEUED),
        T(S.HELD, X.REJECT, S.CANCELLED),
        T(S.HELD, X.EXPIRE, S.CANCELLED, severity="warning"),
        T(S.HELD, X.CANCEL, S.CANCELLED),
        T(S.WAITING, X.TIMER_DONE, S.QUEUED),
        T(S.WAITING, X.CANCEL, S.CANCELLED),
        T(S.QUEUED, X.START, S.RUNNING),
        T(S.QUEUED, X.FAIL, S.FAILED, severity="error"),
        T(S.QUEUED, X.CANCEL, S.CANCELLED),
        T(S.RUNNING, X.SUCCEED, S.SUCCESS),
        T(S.RUNNING, X.FAIL, S.FAILED, severity="error"),
        T(S.RUNNING, X.CANCEL, S.CANCELLED),
        T(S.RUNNING, X.CANCEL_GRACEFUL, S.CANCELLING),
        T(S.RUNNING, X.RECOVER, S.RECOVERING),
        T(S.CANCELLING, X.CANCEL_FORCE, S.CANCELLED),
        T(S.CANCELLING, X.COMPLETE, S.CANCELLED),
        T(S.CANCELLING, X.FAIL, S.FAILED, severity="error"),
        T(S.RECOVERING, X.START, S.RUNNING),
        T(S.RECOVERING, X.FAIL, S.FAILED, severity="error"),
        T(S.RECOVERING, X.CANCEL, S.CANCELLED),
    ),
    timed=(
        Timed(S.RECOVERING, X.FAIL, "recovery_timeout"),
        Timed(S.HELD, X.EXPIRE, "hold_until"),
        Timed(S.WAITING, X.TIMER_DONE, "wait_until"),
    ),
)

TERMINAL_STATES: Final = frozenset(state for state in ExecutionState if EXECUTION.is_terminal(state))

# -- how the runtime's actors run by it ----------------------------------------------------------------------

E = Event

_WORDS: Final[dict[str, tuple[str, ...]]] = {own: (X(own.upper()),) for own in Event if own.upper() in set(X)}

LIFECYCLES: Final = (
    Lifecycle("execution", "task", EXECUTION, _WORDS),
    Lifecycle(
        "execution",
        "workstream",
        EXECUTION,
        {**_WORDS, E.TASKS_CREATED: (X.ENQUEUE,)},
        phases={S.PENDING: Phase.PLANNED, S.QUEUED: Phase.READY, S.RUNNING: Phase.EXECUTING},
    ),
    Lifecycle(
        "execution",
        "job",
        EXECUTION,
        {**_WORDS, E.VALIDATE: (X.ENQUEUE,), E.ALLOCATE: (X.START,), E.REJECT: (X.REJECT, X.FAIL, X.CANCEL)},
        phases={S.PENDING: Phase.SUBMITTED, S.QUEUED: Phase.PENDING},
    ),
)

# -- the document's own functions ----------------------------------------------------------------------------


def transition(state: str, event: str) -> ExecutionState:
    """Return the state that `event` leads to.

    Raises InvalidTransitionError, with the `state` and the `event`, if the state does not know the event.
    """
    return ExecutionState(EXECUTION.transition(state, event).target)


def is_terminal(state: str) -> bool:
    """Tell whether `state` is success, failed, cancelled or skipped. Raises ValueError for an unknown state."""
    return EXECUTION.is_terminal(state)


def can_transition(state: str, event: str) -> bool:
    """Tell whether `transition` would return a state. Raises ValueError for an unknown state."""
    return EXECUTION.can_transition(state, event)


def valid_events(state: str) -> frozenset[ExecutionEvent]:
    """Return the events that `state` knows. Raises ValueError for an unknown state."""
    return frozenset(map(ExecutionEvent, EXECUTION.valid_events(state)))


__all__ = [
    "EXECUTION",
    "LIFECYCLES",
    "TERMINAL_STATES",
    "ExecutionEvent",
    "ExecutionState",
    "InvalidTransitionError",
    "can_transition",
    "is_terminal",
    "transition",
    "valid_events",
]
