"""Running by a lifecycle that is not the runtime's own: which published rows tell of each of its own.

An actor runs by its own machine, whose states are the phases. Beside it stands its *published state*, a state of the
lifecycle that the entity was given. Each row that the actor takes is answered here with the rows of the published
table that tell of it: none, one or several.

Rules
-----
- Only rows of the published table are given, each beginning where the one before ended. So every published trace is
  one of that table, whatever the actor does.
- The cheapest way is taken to a state of the phase that the actor is in. A row costs little by an event that the
  lifecycle maps to the actor's, more by another; most where its guard does not pass. Nothing is told where the entity
  is in that phase already, but for an event that has a row from the state to itself.
- What the lifecycle lacks is lived inside its present state. `INSTEAD` declares what stands for what; a phase that is
  not there at all, and has nothing in its stead, gives no rows: no `queued` means that queueing happens inside
  pending, no `held` that holding does, no `validating` that validation is part of the run, no `retrying` that retries
  happen inside running, no `cancelling` that hooks run before it is cancelled.
- A way never leads through a state in which a body runs, somebody decides or a worker works (`WORKING`), unless that
  is what happened: to what completes, and by the actor's own event.
- A cancel that the present state has no row for is told by the way to the next state that knows it. Where there is
  none without starting something, nothing is told: the entity rests where it is, and nothing of it starts any more.
- An end is told whole: from a failure that is not final, the row to a terminal state is taken along, where there is
  one.
- Pure, and each answer is made once: there are as many as rows, states and outcomes of the guards.
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
    # An end that the lifecycle does not know is told by the nearest that it does.
    P.FAILED: {P.FAILED: 0, P.DECIDING: 2, P.CANCELLED: 8, P.TERMINATED: 8, P.SHUTDOWN: 9, P.SKIPPED: 60},
    P.CANCELLED: {P.CANCELLED: 0, P.FAILED: 30, P.DECIDING: 32, P.SKIPPED: 60},
    P.SKIPPED: {P.SKIPPED: 0, P.CANCELLED: 30, P.FAILED: 60, P.DECIDING: 62},
    P.SHUTDOWN: {P.SHUTDOWN: 0, P.TERMINATED: 2, P.FAILED: 30},
    P.TERMINATED: {P.TERMINATED: 0, P.SHUTDOWN: 2, P.FAILED: 30},
    # What is parked after a failure has failed, as far as the lifecycle can say.
    P.CIRCUIT_OPEN: {P.CIRCUIT_OPEN: 0, P.DECIDING: 2},
}
"""By the phase of the actor: the phases that may stand for it, and what that costs beside its way."""

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
"""By the phase of the actor: the own events that lead there, whichever it was that did."""

ENDS: Final = frozenset({P.COMPLETED, P.FAILED, P.CANCELLED, P.SKIPPED, P.SHUTDOWN, P.TERMINATED})
"""The phases in which an entity is over."""
_THROUGH: Final = frozenset({P.COMPLETED, P.VALIDATING})
WORKING: Final = frozenset(
    {
        P.RUNNING, P.TIMED_OUT, P.VALIDATING, P.RECOVERING, P.CANCELLING, P.HELD, P.WAITING,
        P.EXECUTING, P.PAUSED, P.IDLE, P.BUSY, P.DRAINING, P.UNRESPONSIVE,
    }
)  # fmt: skip
"""The phases that mean that something is going on."""
_ITS_EVENT, _LEADS_THERE, _OTHER, _GUARDED = 1.0, 4.0, 10.0, 100.0

# The rows that lead from one state to the next, cheapest first: guards tell which of them it is.
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
        """The first published state of a phase: of what is created in another than the initial one."""
        return next((state for state, known in self.phases.items() if known == phase), self.initial)

    def follow(
        self, state: str, row: Transition, record: object = None, payload: object = None, *, final: bool = True
    ) -> Way:
        """The published rows that tell of `row`, which the actor has taken, the entity being in `state`.

        record, payload: what guards read of it, as it is now. final: whether an end is one; else another run follows.
        """
        passed = self._passed(record, payload) if self._guards else ()
        event: str = row.event
        if event == E.SKIP and self.lifecycle.skips:
            event = f"{event} {_why_skipped(record)}"
        key = (state, event, row.source, row.target, final, passed)
        told = self._told.get(key)
        if told is None:
            told = self._told[key] = self._follow(*key)
        return told

    def rests(self, state: str) -> bool:
        """Whether an entity may stay in `state` for good though it is not terminal: nothing leads to an end from there
        unless something starts, or a failure that is not final is the last word.
        """
        known = self._rests.get(state)
        if known is None:
            ends: dict[str, float] = dict.fromkeys(ENDS - {P.COMPLETED}, 0.0)
            known = not self.machine.is_terminal(state) and (
                self.phases[state] == P.DECIDING or self._way(state, ends, (), (), ()) is None
            )
            self._rests[state] = known
        return known

    # -- finding the rows ----------------------------------------------------------------------------------------------

    def _passed(self, record: object, payload: object) -> tuple[bool, ...]:
        """What each guard of the machine says. One that asks for what the record does not have says yes."""
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
        if target == P.IDLE != self.phases[state] and P.IDLE not in self._ahead(state):  # never idle again
            wanted = {P.BUSY: 0.0}
        way: Way = ()
        if self.phases[state] not in wanted or wanted[self.phases[state]]:
            there = tuple(word for own in TOLD_BY.get(target, ()) for word in self.lifecycle.events.get(own, ()))
            way = self._way(state, wanted, words, there, passed, through=target in _THROUGH) or ()
        if final and target in ENDS:
            way += self._last(way[-1].target if way else state, words, passed)
        return way

    def _words(self, event: str) -> tuple[str, ...]:
        """The published events of an own one; of a skip, by why it is."""
        own, _, why = event.partition(" ")
        told = self.lifecycle.skips.get(why)
        return self.lifecycle.events.get(own, ()) if told is None else (told,)

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
        """The row from a failure that is not final to an end, where there is one."""
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
        """The cheapest way to a state of one of these phases; None if there is none. Staying costs what it says."""
        number = 0  # of equally cheap ones the first in the table
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
    """Why a task is skipped that was: by an operator, by its condition, or for a dependency."""
    if getattr(record, "standing", None) == Standing.GOOD:
        return "operator"
    return "condition" if getattr(record, "ready", False) else "dependency"
