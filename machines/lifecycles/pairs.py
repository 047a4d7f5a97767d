"""Machines asked by pairs of states, as documents 000 and 002 do.

Rules
-----
- A pair is valid if some event leads from the one state to the other, whatever its guards decide, also by a
  forced row.
- `validate_transition` answers in words, and names the allowed states.
- A state that the machine does not have is an error of the caller, not an invalid pair, and has its own message.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar
from warnings import warn

from ..machine import InvalidTransitionError, Machine

StateT = TypeVar("StateT", bound=str)


class InvalidPair(InvalidTransitionError):  # noqa: N818 - it says what happened
    """No event leads from `state` to `target`; `allowed` holds the states that can be reached from there."""

    def __init__(self, machine: str, state: str, target: str, allowed: frozenset[str]) -> None:
        super().__init__(machine, state, f"-> {target}", allowed)
        self.args = (machine, state, target, allowed)
        self.target = target

    def __str__(self) -> str:
        others = ", ".join(sorted(self.allowed)) or "none, it is terminal"
        return f"{self.machine}: cannot transition from {self.state!s} to {self.target!s}. Allowed: {others}."


class Pairs(Generic[StateT]):
    """One machine, asked by pairs of states. `entity` is the noun of its messages ("Worker").

    VALID_TRANSITIONS: the states that can be reached from each. `instead` is the advice for a terminal state.
    """

    def __init__(self, machine: Machine, states: type[StateT], entity: str, instead: str = "") -> None:
        self.machine: Final = machine
        self.entity: Final = entity
        self.instead: Final = instead
        self.VALID_TRANSITIONS: Final[dict[StateT, frozenset[StateT]]] = {
            states(state): frozenset(states(row.target) for row in machine.transitions if row.source == state)
            for state in machine.states
        }

    def is_valid_transition(self, from_state: StateT, to_state: StateT) -> bool:
        """Tell whether some event leads from the one state to the other.

        Raises ValueError for a state that the machine does not have.
        """
        if (wrong := self._no_state(from_state, to_state)) is not None:
            raise ValueError(wrong)
        return to_state in self.VALID_TRANSITIONS[from_state]

    def is_terminal_state(self, state: StateT) -> bool:
        """Tell whether `state` is final. Raises ValueError for a state that the machine does not have."""
        return self.machine.is_terminal(state)

    def validate_transition(self, from_state: StateT, to_state: StateT) -> str | None:
        """Return why a transition from one state to the other is invalid, in words; None if it is valid."""
        if (wrong := self._no_state(from_state, to_state)) is not None:
            return wrong
        if from_state == to_state:
            return f"{self.entity} already in {to_state!s} state"
        allowed = self.VALID_TRANSITIONS[from_state]
        if to_state in allowed:
            return None
        names = ", ".join(sorted(allowed)) or "none"
        if self.machine.is_terminal(from_state):
            return (
                f"Cannot transition from terminal state {from_state!s} to {to_state!s}. Allowed: {names}.{self.instead}"
            )
        return f"Invalid state transition: {from_state!s} → {to_state!s}. Allowed from {from_state!s}: {names}."

    def go(self, from_state: StateT, to_state: StateT) -> StateT:
        """Return `to_state`. Raises InvalidPair if no event leads there, ValueError for an unknown state."""
        if self.is_valid_transition(from_state, to_state):
            return to_state
        raise InvalidPair(self.machine.name, from_state, to_state, frozenset(self.VALID_TRANSITIONS[from_state]))

    def _no_state(self, *states: str) -> str | None:
        """A message about the first of `states` that the machine does not have."""
        for state in states:
            if state not in self.machine.states:
                return f"{self.entity} has no state {str(state)!r}. Its states: {', '.join(self.machine.states)}."
        return None


def __getattr__(name: str) -> object:
    """Find the error by its deprecated name, which 1.0 removes."""
    if name != "InvalidPairError":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn(f"{__name__}.{name} is now called InvalidPair; 1.0 removes the old name", DeprecationWarning, stacklevel=2)
    return InvalidPair
