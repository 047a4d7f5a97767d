"""The `pipeline` lifecycle: workstreams of steps that run tools, each tool behind a circuit breaker.

Source: document 000, "State Machine Documentation" (DOC-GUIDE-STATE-MACHINES-397).
For: teams whose steps fail, wait and are retried, and whose workstreams are retried as a whole.

Rules
-----
- A failure is not an end: in `S_FAILED` the retry is decided. A step without a retry stays in `S_FAILED`, and still
  blocks its dependents; a workstream without one is abandoned.
- A step runs when all its dependencies are in `S_SUCCESS`. So no step is optional. (A task that names another
  lifecycle is no step, and may be optional.)
- A breaker is endless: closed until too many failures in a row, open until its cooldown is over, then one
  test decides.

What was decided
----------------
- The document's summary has 12 states and 15 transitions. Its tables have 14 and 16, and are followed.
- Its diagrams name the events, except one: the transition out of `S_FAILED` when all retries have been made. Its event
  has the words of the table: `max_retries_exceeded`.
- Only the recovery procedures describe how to close an open breaker by hand. It is a row for operators,
  `reset_circuit`, besides the four that are counted.
- `S_ABANDONED` is the end of a stopped workstream and of one that failed for good. The actors see a failure; the job
  records that it was stopped.
- A workstream waits in `S_PENDING` with its tasks known: no state comes before that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, Protocol

from ..adapt.lifecycle import Lifecycle, retries
from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition
from .guards import dependencies_satisfied, retry_count_at_max_retries, retry_count_below_max_retries
from .pairs import Pairs

T = Transition


class WorkstreamState(StrEnum):
    """The states of a workstream."""

    S_PENDING = "S_PENDING"
    S_RUNNING = "S_RUNNING"
    S_SUCCESS = "S_SUCCESS"
    S_FAILED = "S_FAILED"
    S_RETRYING = "S_RETRYING"
    S_ABANDONED = "S_ABANDONED"


class WorkstreamEvent(StrEnum):
    """The events of a workstream."""

    START_EXECUTION = "start_execution"
    ALL_STEPS_SUCCEED = "all_steps_succeed"
    STEP_FAILS = "step_fails"
    ABANDON = "abandon"
    RETRY_ELIGIBLE = "retry_eligible"
    MAX_RETRIES_EXCEEDED = "max_retries_exceeded"
    RETRY_ATTEMPT = "retry_attempt"


class StepState(StrEnum):
    """The states of a step. A step blocks its dependents in every state but `S_SUCCESS`."""

    S_PENDING = "S_PENDING"
    S_RUNNING = "S_RUNNING"
    S_SUCCESS = "S_SUCCESS"
    S_FAILED = "S_FAILED"
    S_RETRYING = "S_RETRYING"


class StepEvent(StrEnum):
    """The events of a step."""

    DEPENDENCIES_MET = "dependencies_met"
    SUCCESS = "success"
    FAILURE = "failure"
    RETRY_ELIGIBLE = "retry_eligible"
    RETRY_ATTEMPT = "retry_attempt"


class CircuitState(StrEnum):
    """The states of a breaker: all requests pass, none does, or one test does."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class CircuitEvent(StrEnum):
    """The events of a breaker."""

    FAILURE_THRESHOLD_EXCEEDED = "failure_threshold_exceeded"
    COOLDOWN_EXPIRES = "cooldown_expires"
    SUCCESS = "success"
    FAILURE = "failure"
    RESET_CIRCUIT = "reset_circuit"


class CircuitFacts(Protocol):
    """The fields that the guards read of a breaker, before the result that is being counted."""

    @property
    def failures(self) -> int:
        """Failures in a row, in CLOSED."""
        ...

    @property
    def successes(self) -> int:
        """Successes in a row, in HALF_OPEN."""
        ...

    @property
    def failure_threshold(self) -> int:
        """How many failures open it (5 in the document's example)."""
        ...

    @property
    def success_threshold(self) -> int:
        """How many successes close it (1 in the document's example)."""
        ...


# -- guards --------------------------------------------------------------------------------------------------


def failure_threshold_reached(facts: CircuitFacts, _: object) -> bool:
    """This failure opens the breaker."""
    return facts.failures + 1 >= facts.failure_threshold


def success_threshold_reached(facts: CircuitFacts, _: object) -> bool:
    """This success closes the breaker."""
    return facts.successes + 1 >= facts.success_threshold


# -- workstream ----------------------------------------------------------------------------------------------

W = WorkstreamState
WE = WorkstreamEvent

WORKSTREAM: Final = Machine(
    "pipeline.workstream",
    W.S_PENDING,
    states=(
        State(W.S_PENDING, Phase.READY, bounded_by="its job's slots, and its deadline"),
        State(W.S_RUNNING, Phase.EXECUTING, bounded_by="its steps, and its deadline"),
        State(W.S_SUCCESS, Phase.COMPLETED, terminal=True),
        State(W.S_FAILED, Phase.DECIDING, bounded_by="the decision about a retry, at once"),
        State(W.S_RETRYING, Phase.RETRYING),
        State(W.S_ABANDONED, Phase.FAILED, terminal=True),
    ),
    transitions=(
        T(W.S_PENDING, WE.START_EXECUTION, W.S_RUNNING),
        T(W.S_RUNNING, WE.ALL_STEPS_SUCCEED, W.S_SUCCESS),
        T(W.S_RUNNING, WE.STEP_FAILS, W.S_FAILED, severity="error"),
        T(W.S_RUNNING, WE.ABANDON, W.S_ABANDONED),
        T(W.S_FAILED, WE.RETRY_ELIGIBLE, W.S_RETRYING, retry_count_below_max_retries, severity="warning"),
        T(W.S_FAILED, WE.MAX_RETRIES_EXCEEDED, W.S_ABANDONED, retry_count_at_max_retries, severity="critical"),
        T(W.S_RETRYING, WE.RETRY_ATTEMPT, W.S_RUNNING),
    ),
    timed=(Timed(W.S_RETRYING, WE.RETRY_ATTEMPT, "retry_at"),),
)

# -- step ----------------------------------------------------------------------------------------------------

S = StepState
SE = StepEvent

STEP: Final = Machine(
    "pipeline.step",
    S.S_PENDING,
    states=(
        State(S.S_PENDING, Phase.PENDING, bounded_by="its dependencies, and a free slot"),
        State(S.S_RUNNING, Phase.RUNNING, bounded_by="its tool, and the step's limits"),
        State(S.S_SUCCESS, Phase.COMPLETED, terminal=True),
        State(S.S_FAILED, Phase.DECIDING, bounded_by="the decision about a retry, at once; without one it rests here"),
        State(S.S_RETRYING, Phase.RETRYING),
    ),
    transitions=(
        T(S.S_PENDING, SE.DEPENDENCIES_MET, S.S_RUNNING, dependencies_satisfied),
        T(S.S_RUNNING, SE.SUCCESS, S.S_SUCCESS),
        T(S.S_RUNNING, SE.FAILURE, S.S_FAILED, severity="error"),
        T(S.S_FAILED, SE.RETRY_ELIGIBLE, S.S_RETRYING, retry_count_below_max_retries, severity="warning"),
        T(S.S_RETRYING, SE.RETRY_ATTEMPT, S.S_RUNNING),
    ),
    timed=(Timed(S.S_RETRYING, SE.RETRY_ATTEMPT, "retry_at"),),
)

# -- circuit breaker -----------------------------------------------------------------------------------------

C = CircuitState
CE = CircuitEvent

OPERATOR_ROWS: Final = (T(C.OPEN, CE.RESET_CIRCUIT, C.CLOSED),)

CIRCUIT_BREAKER: Final = Machine(
    "pipeline.circuit_breaker",
    C.CLOSED,
    states=(
        State(C.CLOSED, Phase.CLOSED, bounded_by="nothing: the breaker of a sound tool rests here"),
        State(C.OPEN, Phase.OPEN),
        State(C.HALF_OPEN, Phase.HALF_OPEN, bounded_by="the result of the one test request"),
    ),
    transitions=(
        T(C.CLOSED, CE.FAILURE_THRESHOLD_EXCEEDED, C.OPEN, failure_threshold_reached, severity="error"),
        T(C.OPEN, CE.COOLDOWN_EXPIRES, C.HALF_OPEN),
        T(C.HALF_OPEN, CE.SUCCESS, C.CLOSED, success_threshold_reached),
        T(C.HALF_OPEN, CE.FAILURE, C.OPEN, severity="error"),
        *OPERATOR_ROWS,
    ),
    timed=(Timed(C.OPEN, CE.COOLDOWN_EXPIRES, "cooldown"),),
    endless=True,
)

# -- how the runtime's actors run by them --------------------------------------------------------------------

E = Event

LIFECYCLES: Final = (
    Lifecycle(
        "pipeline",
        "workstream",
        WORKSTREAM,
        {
            E.START: (WE.START_EXECUTION, WE.RETRY_ATTEMPT),
            E.SUCCEED: (WE.ALL_STEPS_SUCCEED,),
            E.FAIL: (WE.STEP_FAILS, WE.RETRY_ELIGIBLE, WE.MAX_RETRIES_EXCEEDED),
            E.CANCEL: (WE.ABANDON,),
        },
        optional="refused",
    ),
    Lifecycle(
        "pipeline",
        "task",
        STEP,
        {
            E.START: (SE.DEPENDENCIES_MET, SE.RETRY_ATTEMPT),
            E.SUCCEED: (SE.SUCCESS,),
            E.FAIL: (SE.FAILURE, SE.RETRY_ELIGIBLE),
        },
        facts=retries,
        optional="refused",
    ),
    Lifecycle(
        "pipeline",
        "breaker",
        CIRCUIT_BREAKER,
        {
            E.SUCCEED: (CE.SUCCESS,),
            E.FAIL: (CE.FAILURE_THRESHOLD_EXCEEDED, CE.FAILURE),
            E.COOL_DOWN: (CE.COOLDOWN_EXPIRES,),
            E.RESET: (CE.RESET_CIRCUIT,),
        },
    ),
)

# -- the document's own functions ----------------------------------------------------------------------------

WORKSTREAM_PAIRS: Final = Pairs(WORKSTREAM, WorkstreamState, "Workstream")
STEP_PAIRS: Final = Pairs(STEP, StepState, "Step")
CIRCUIT_PAIRS: Final = Pairs(CIRCUIT_BREAKER, CircuitState, "Circuit breaker")

VALID_TRANSITIONS: Final = WORKSTREAM_PAIRS.VALID_TRANSITIONS
"""Of a workstream: the states that can be reached from each."""


def transition_workstream(from_state: str, to_state: str) -> WorkstreamState:
    """Return the state `to_state`.

    Raises InvalidPair, an InvalidTransitionError, if no event leads there; ValueError for an unknown state.
    """
    return WORKSTREAM_PAIRS.go(WorkstreamState(from_state), WorkstreamState(to_state))


def can_execute_step(depends_on: Iterable[str], states: Mapping[str, str]) -> bool:
    """Tell whether a step may run: each step that it depends on is in `S_SUCCESS`.

    depends_on: ids of steps; states: step id -> state. Raises KeyError if `states` lacks a dependency, ValueError
    for a state that no step has, TypeError for a text as `depends_on`.
    """
    if isinstance(depends_on, str):
        raise TypeError(f"depends_on holds the ids of steps, and is not one: write [{depends_on!r}]")
    needed: dict[str, str] = {}
    for step in depends_on:
        if step not in states:
            raise KeyError(f"`states` lacks the state of step {step!r}, a dependency")
        needed[step] = states[step]
    for step, state in needed.items():
        if state not in STEP.states:
            raise ValueError(f"step {step!r} has no state {state!r}; the states of a step are {', '.join(STEP.states)}")
    return all(state == StepState.S_SUCCESS for state in needed.values())
