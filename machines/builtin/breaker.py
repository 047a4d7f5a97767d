"""The circuit breaker of a tool: repeated failures stop its tasks, then one task probes.

Rules
-----
- There is one per tool, and it never ends: the machine is endless.
- `closed` counts failures in a row; a success sets the count back to zero. `open` refuses until its cooldown
  is over. `half_open` gives out one permit at a time; enough successes close it, one failure opens it again.
- Each open period has a generation. A result of an attempt that began in an older one changes its task, never the
  breaker: no event is fired here, so `open` knows neither succeed nor fail.
- If a probe is cancelled, lost or timed out, or begins to wait for an approval, its permit is given back.
- Failures and timeouts of bodies count; failed validations, cancels, losses and queue timeouts do not.
- An operator may trip and reset it in every state.

Guards read the facts before the result that is being counted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from ..events import Event
from ..machine import Machine
from ..phases import Phase
from ..rows import State, Timed, Transition


class BreakerState(StrEnum):
    """The states of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerFacts(Protocol):
    """The fields that the guards read of a breaker's record."""

    @property
    def failures(self) -> int:
        """Failures in a row, in `closed`."""
        ...

    @property
    def successes(self) -> int:
        """Successes in a row, in `half_open`."""
        ...

    @property
    def failure_threshold(self) -> int:
        """How many failures open it."""
        ...

    @property
    def success_threshold(self) -> int:
        """How many successes close it."""
        ...


# -- guards --------------------------------------------------------------------------------------------------


def below_failure_threshold(facts: BreakerFacts, _: object) -> bool:
    """This failure does not open the breaker yet."""
    return facts.failures + 1 < facts.failure_threshold


def below_success_threshold(facts: BreakerFacts, _: object) -> bool:
    """This success does not close the breaker yet."""
    return facts.successes + 1 < facts.success_threshold


# -- table ---------------------------------------------------------------------------------------------------

E = Event
S = BreakerState
T = Transition

BREAKER: Final = Machine(
    "breaker",
    S.CLOSED,
    states=(
        State(S.CLOSED, Phase.CLOSED, bounded_by="nothing: the breaker of a sound tool rests here"),
        State(S.OPEN, Phase.OPEN),
        State(S.HALF_OPEN, Phase.HALF_OPEN, bounded_by="the next task of the tool, which gets the permit"),
    ),
    transitions=(
        T(S.CLOSED, E.SUCCEED, S.CLOSED),
        T(S.CLOSED, E.FAIL, S.CLOSED, below_failure_threshold),
        T(S.CLOSED, E.FAIL, S.OPEN, severity="error"),
        T(S.OPEN, E.COOL_DOWN, S.HALF_OPEN),
        T(S.HALF_OPEN, E.SUCCEED, S.HALF_OPEN, below_success_threshold),
        T(S.HALF_OPEN, E.SUCCEED, S.CLOSED),
        T(S.HALF_OPEN, E.FAIL, S.OPEN, severity="error"),
        *(T(state, E.RESET, S.CLOSED) for state in S),
        *(T(state, E.TRIP, S.OPEN, severity="error") for state in S),
    ),
    timed=(Timed(S.OPEN, E.COOL_DOWN, "cooldown"),),
    endless=True,
)
