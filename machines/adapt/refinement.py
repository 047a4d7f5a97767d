"""Running by a lifecycle that is not the runtime's own: which published rows report each own row.

An actor runs by its own machine, whose states are the phases. It also has a *published state*: a state of the
lifecycle that the entity was given. For each row that the actor takes, this module returns the rows of the published
table that report it: none, one or several.

Rules
-----
- Only rows of the published table are returned, and each begins where the one before ended. So every published trace
  is one of that table, whatever the actor does.
- The cheapest path is taken to a state of the actor's phase. A row costs little if the lifecycle maps the actor's event
  to it, more with another event, and most if its guard does not pass. No row is reported if the entity is in that phase
  already, except an event that has a row from the state to itself.
- A phase that the lifecycle lacks happens inside the present state. `INSTEAD` declares which phase replaces which. A
  missing phase without a replacement gives no rows: no `queued` means that queueing happens inside pending, no `held`
  that holding does, no `validating` that validation is part of the run, no `retrying` that retries happen inside
  running, no `cancelling` that hooks run before the entity is cancelled.
- A path never passes through a state in which a body runs, a person decides or a worker works (`WORKING`), unless that
  really happened: on the way to a completion, and by the actor's own event.
- A cancel that the present state has no row for is reported by the path to the next state that knows a cancel. If
  every such path would start work, no row is reported: the entity rests where it is, and starts no more work.
- An end is reported whole: from a failure that is not final, the row to a terminal state is added, if there is one.
- Pure, and each result is computed once: the number of results is bounded by rows, states and results of guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..builtin.workstream import Standing
from ..events import Event
from ..phases import Phase

if TYPE_CHECKING:
    from ..machine import Machine
    from ..rows import Transition
    from .lifecycle import Lifecycle

P = Phase
E = Event

INSTEAD: Final[Mapping[str, Mapping[str, float]]] = {
    # An end that the lifecycle does not know is reported as the nearest end that it knows.
    P.FAILED: {P.FAILED: 0, P.DECIDING: 2, P.CANCELLED: 8, P.TERMINATED: 8, P.SHUTDOWN: 9, P.SKIPPED: 60},
    P.CANCELLED: {P.CANCELLED: 0, P.FAILED: 30, P.DECIDING: 32, P.SKIPPED: 60},
    P.SKIPPED: {P.SKIPPED: 0, P.CANCELLED: 30, P.FAILED: 60, P.DECIDING: 62},
    P.SHUTDOWN: {P.SHUTDOWN: 0, P.TERMINATED: 2, P.FAILED: 30},
    P.TERMINATED: {P.TERMINATED: 0, P.SHUTDOWN: 2, P.FAILED: 30},
    # Without a state for parked tasks, a task that is parked after a failure is shown as failed.
    P.CIRCUIT_OPEN: {P.CIRCUIT_OPEN: 0, P.DECIDING: 2},
}
"""By the phase of the actor: the phases that may replace it, and the cost of that besides the path's."""

TOLD_BY: Final[Mapping[str, tuple[Event, ...]]] = {
    P.QUEUED: (E.ENQUEUE, E.REQUEUE),
    P.RUNNING: (E.START,),
    P.EXECUTING: (E.START,),
    P.VALIDATING: (E.SUCCEED,),
    P.COMPLETED: (E.SUCCEED, E.VALIDATION_PASSED),
    P.FAILED: (E.FAIL,),
    P.CANCELLED: (E.CANCEL,),
    P.SKIPPED: (E.SKIP, E.CANCEL),
    P.SHUTDOWN: (E.SHUT_DOWN,),
    P.TERMINATED: (E.TERMINATE,),
}
"""By the phase of the actor: all own events that lead there."""

ENDS: Final = frozenset({P.COMPLETED, P.FAILED, P.CANCELLED, P.SKIPPED, P.SHUTDOWN, P.TERMINATED})
"""The phases in which an entity has ended."""
_THROUGH: Final = frozenset({P.COMPLETED, P.VALIDATING})
WORKING: Final = frozenset(
    {
        P.RUNNING, P.TIMED_OUT, P.VALIDATING, P.RECOVERING, P.CANCELLING, P.HELD, P.WAITING,
        P.EXECUTING, P.PAUSED, P.IDLE, P.BUSY, P.DRAINING, P.UNRESPONSIVE,
    }
)  # fmt: skip
"""The phases in which work is going on."""
_ITS_EVENT, _LEADS_THERE, _OTHER, _GUARDED = 1.0, 4.0, 10.0, 100.0

# The rows that lead from one state to the next, cheapest first: guards select among them.
Way: TypeAlias = "tuple[Transition, ...]"


class Refinement:
    """How entities of one kind run by one published lifecycle."""

    __slots__ = ("_guards", "_rests", "_told", "knows", "lifecycle", "machine", "phases")

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle: Final = lifecycle
        self.machine: Final[Machine] = lifecycle.machine
        self.phases: Final[Mapping[str, str]] = {state: lifecycle.phase(state) for state in self.machine.states}
        self.knows: Final = frozenset(self.phases.values())
        self._guards = list(dict.fromkeys(row.guard for row in self.machine.transitions if row.guard is not None))
        self._told: dict[tuple[Any, ...], Way] = {}
        self._rests: dict[str, bool] = {}

    @property
    def initial(self) -> str:
        """The published state of an entity that has just been created."""
        return self.machine.initial

    def state_of(self, phase: str) -> str:
        """The first published state of a phase: for an entity that is not created in the initial state."""
        return next((state for state, candidate in self.phases.items() if candidate == phase), self.initial)

    def follow(
        self, state: str, row: Transition, record: object = None, payload: object = None, *, final: bool = True
    ) -> Way:
        """The published rows that report `row`, which the actor has taken, for an entity in `state`.

        record, payload: what guards read, as they are now. final: whether an end is final; else another run follows.
        """
        passed = self._passed(record, payload) if self._guards else ()
        event: str = row.event
        if event == E.SKIP and self.lifecycle.skips:
            event = f"{event} {_why_skipped(record)}"
        key = (state, event, row.source, row.target, final, passed)
        rows = self._told.get(key)
        if rows is None:
            rows = self._told[key] = self._follow(*key)
        return rows

    def rests(self, state: str) -> bool:
        """Whether an entity may stay in `state` for good, though `state` is not terminal.

        This is so if every row to an end from there starts work, or if a failure that is not final has no next step.
        """
        rests = self._rests.get(state)
        if rests is None:
            ends: dict[str, float] = dict.fromkeys(ENDS - {P.COMPLETED}, 0.0)
            rests = not self.machine.is_terminal(state) and (
                self.phases[state] == P.DECIDING or self._way(state, ends, (), (), ()) is None
            )
            self._rests[state] = rests
        return rests

    # -- finding the rows ----------------------------------------------------------------------------------------------

    def _passed(self, record: object, payload: object) -> tuple[bool, ...]:
        """The result of each guard of the machine. A guard that reads a field which the record lacks passes."""
        try:
            facts = self.lifecycle.facts(record, payload)
        except AttributeError:
            return ()
        said: list[bool] = []
        for guard in self._guards:
            try:
                said.append(guard(facts, payload))
            except AttributeError:
                said.append(True)
        return tuple(said)

    def _follow(  # noqa: PLR0917 - the parts of a key
        self, state: str, event: str, source: str, target: str, final: bool, passed: tuple[bool, ...]
    ) -> Way:
        if self.machine.is_terminal(state):
            return ()
        words = self._words(event)
        if source == target:
            same = (row for word in words for row in self.machine.table[state].get(word, ()) if row.target == state)
            return tuple(same)[:1]
        wanted: Mapping[str, float] = INSTEAD.get(target, {target: 0.0})
        if target == P.IDLE != self.phases[state] and P.IDLE not in self._ahead(state):  # no way back to idle
            wanted = {P.BUSY: 0.0}
        way: Way = ()
        if self.phases[state] not in wanted or wanted[self.phases[state]]:
            there = tuple(word for own in TOLD_BY.get(target, ()) for word in self.lifecycle.events.get(own, ()))
            way = self._way(state, wanted, words, there, passed, through=target in _THROUGH) or ()
        if final and target in ENDS:
            way += self._last(way[-1].target if way else state, words, passed)
        return way

    def _words(self, event: str) -> tuple[str, ...]:
        """The published events of an own event; for a skip, by its cause."""
        own, _, why = event.partition(" ")
        word = self.lifecycle.skips.get(why)
        return self.lifecycle.events.get(own, ()) if word is None else (word,)

    def _ahead(self, state: str) -> set[str]:
        """The phases of all states that can be reached from `state`."""
        seen, frontier = {state}, [state]
        while frontier:
            rows = [row for events in self.machine.table[frontier.pop()].values() for row in events]
            fresh = {row.target for row in rows} - seen
            seen |= fresh
            frontier += fresh
        return {self.phases[name] for name in seen - {state}}

    def _last(self, state: str, words: Iterable[str], passed: tuple[bool, ...]) -> Way:
        """The row from a failure that is not final to an end, if there is one."""
        if self.phases[state] != P.DECIDING:
            return ()
        rows = [row for row in self._rows(state) if self.machine.is_terminal(row.target)]
        return tuple(sorted(rows, key=lambda row: self._cost(row, tuple(words), (), passed))[:1])

    def _way(
        self,
        state: str,
        wanted: Mapping[str, float],
        words: tuple[str, ...],
        there: tuple[str, ...],
        passed: tuple[bool, ...],
        *,
        through: bool = False,
    ) -> Way | None:
        """The cheapest path to a state of one of these phases; None if there is none. Staying has its own cost."""
        number = 0  # of equally cheap paths, the first in the table is taken
        heap: list[tuple[float, int, bool, Way]] = [(0.0, number, False, ())]
        if (stays := wanted.get(self.phases[state])) is not None:
            heappush(heap, (stays, -1, True, ()))
        seen: set[str] = set()
        while heap:
            cost, _, arrived, way = heappop(heap)
            if arrived:
                return way
            here = way[-1].target if way else state
            if here in seen:
                continue
            seen.add(here)
            for row in self._rows(here):
                phase, number = self.phases[row.target], number + 1
                so_far = cost + self._cost(row, words, there, passed)
                if phase in wanted:
                    heappush(heap, (so_far + wanted[phase], number, True, (*way, row)))
                passable = through or phase not in WORKING or row.event in words
                if passable and not self.machine.is_terminal(row.target):
                    heappush(heap, (so_far, number, False, (*way, row)))
        return None

    def _rows(self, state: str) -> list[Transition]:
        return [row for rows in self.machine.table[state].values() for row in rows]

    def _cost(self, row: Transition, words: tuple[str, ...], there: tuple[str, ...], passed: tuple[bool, ...]) -> float:
        if row.event in words:
            cost = _ITS_EVENT + words.index(row.event) / 100
        else:
            cost = _LEADS_THERE if row.event in there else _OTHER
        if row.guard is not None and passed and not passed[self._guards.index(row.guard)]:
            cost += _GUARDED
        return cost


def _why_skipped(record: object) -> str:
    """Why a task was skipped: by an operator, by its condition, or for a dependency."""
    if getattr(record, "standing", None) == Standing.GOOD:
        return "operator"
    return "condition" if getattr(record, "ready", False) else "dependency"
