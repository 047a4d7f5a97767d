"""Checks whether the runtime's actors can run by a lifecycle, and says why not. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from ..phases import Phase
from .refinement import ENDS, WORKING

if TYPE_CHECKING:
    from ..machine import Machine
    from .lifecycle import Lifecycle

P = Phase

_NEEDED: Final[Mapping[str, tuple[Phase, ...]]] = {
    "job": (P.RUNNING, P.COMPLETED),
    "workstream": (P.EXECUTING, P.COMPLETED),
    "task": (P.RUNNING, P.COMPLETED),
    "worker": (P.BUSY,),
    "breaker": (P.CLOSED, P.OPEN),
}
"""By kind: the phases that an entity must be able to reach, one after the other."""
_UNSOUND: Final = frozenset({"unreachable", "dead_end", "ambiguous", "terminal_exit", "timed_without_row"})


def faults(lifecycle: Lifecycle) -> list[str]:
    """The reasons why no entity can run by `lifecycle`; empty if entities can."""
    return list(_faults(lifecycle))


def _faults(lifecycle: Lifecycle) -> Iterator[str]:
    machine = lifecycle.machine
    if lifecycle.kind not in _NEEDED:
        yield f"{lifecycle.kind!r} is no kind of entity; the kinds are {', '.join(_NEEDED)}"
        return
    phases: dict[str, str] = {}
    for state, declared in machine.states.items():
        try:
            phase = phases[state] = lifecycle.phase(state)
        except ValueError as error:
            yield f"the state {state!s} has no phase that actors know: {error}"
            continue
        if declared.terminal and phase not in ENDS:
            yield f"the state {state!s} is terminal, and its phase {phase!s} is not the end of a {lifecycle.kind}"
        elif phase in ENDS and not declared.terminal:
            yield f"the state {state!s} has the phase {phase!s}, which is an end, and is not terminal"
    if len(phases) < len(machine.states):
        return
    first = phases[machine.initial]
    if first in ENDS | {P.DECIDING} or (first in WORKING and first != P.IDLE):
        yield f"it begins in {machine.initial!s}, whose phase {first!s} a {lifecycle.kind} cannot begin in"
    yield from (finding.text for finding in machine.check() if finding.kind in _UNSOUND)
    yield from _unreached(lifecycle, phases)


def _unreached(lifecycle: Lifecycle, phases: Mapping[str, str]) -> Iterator[str]:
    """The needed phases that cannot be reached in order, and a missing end for failures."""
    machine, place = lifecycle.machine, "its initial state"
    here = {machine.initial}
    for needed in _NEEDED[lifecycle.kind]:
        there = {state for state in _ahead(machine, here) if phases[state] == needed}
        if not there:
            yield f"there is no way from {place} to a state of phase {needed!s}"
            return
        here, place = there, f"a state of phase {needed!s}"
    bad = {state for state, phase in phases.items() if phase in (ENDS - {P.COMPLETED}) | {P.DECIDING}}
    if not machine.endless and not bad & _ahead(machine, {machine.initial}):
        yield f"a {lifecycle.kind} that does not succeed has no end: no state is failed, cancelled or deciding"


def _ahead(machine: Machine, states: set[str]) -> set[str]:
    """These states, and all states that can be reached from them."""
    seen, frontier = set(states), list(states)
    while frontier:
        fresh = {row.target for rows in machine.table[frontier.pop()].values() for row in rows} - seen
        seen |= fresh
        frontier += fresh
    return seen
