"""The parts of a machine's table: states, rows, guards, timed events.

Rules
-----
- Plain values. `machine.py` compiles them to a table, and checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .keywords import KeywordsChecked

# A guard reads the record of the entity, and the payload of the event. Each machine's file declares what its own
# guards read, as Protocols; a single type that fits them all can only be Any.
Guard: TypeAlias = Callable[[Any, Any], bool]
Severity: TypeAlias = Literal["info", "warning", "error", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "error", "critical")


class State(msgspec.Struct, frozen=True, metaclass=KeywordsChecked):
    """One state of a machine.

    `phase` is the word of the fixed vocabulary (`Phase`) that actors act on; None in a machine that none of
    the runtime's own actors uses. `bounded_by` names what ends a long stay in a state without a timed event:
    dependencies, an operator, a deadline that is kept elsewhere.
    """

    name: str
    phase: str | None = None
    terminal: bool = False
    bounded_by: str | None = None


class Transition(msgspec.Struct, frozen=True, metaclass=KeywordsChecked):
    """One row: in `source`, `event` leads to `target` if `guard` passes (always, where it is None).

    `forced` permits a row to leave a terminal state. The event that reports the transition has this `severity`.
    """

    source: str
    event: str
    target: str
    guard: Guard | None = None
    forced: bool = False
    severity: Severity = "info"

    @property
    def guard_name(self) -> str | None:
        """The guard in words, as errors and diagrams show it; None for a row that always passes."""
        return None if self.guard is None else label(self.guard)


class Timed(msgspec.Struct, frozen=True, metaclass=KeywordsChecked):
    """In `state`, `event` fires by itself. `after` names the fact with the delay (s) or due time (UTC s)."""

    state: str
    event: str
    after: str


def label(guard: Guard) -> str:
    """Return a guard in words: its name, with spaces for underscores."""
    name: str = getattr(guard, "__name__", type(guard).__name__)  # an object without a name: its type
    return name.replace("_", " ")


def title(row: Transition) -> str:
    """Return a row in one line: ``held approve [clauses missing] held``."""
    asked = f" [{row.guard_name}]" if row.guard else ""
    return f"{row.source!s} {row.event!s}{asked} {row.target!s}"
