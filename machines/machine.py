"""A machine is a table: it declares states, events, rows, guards and timed events, and performs nothing.

Rules
-----
- Pure: no I/O, no clock, no randomness, no memory of earlier calls. All entities of a kind share one machine; the
  caller passes the present state in, and keeps the new one.
- The table is compiled once, to ``table[state][event] -> rows``. The rows of one event are tried in the order in
  which they were written; the first row whose guard passes is taken. A row without a guard always passes.
- A guard is a plain function ``guard(facts, payload) -> bool``: `facts` is the entity's record, `payload`
  came with the event. A guard reads, and never writes. Errors and diagrams show its name, with spaces for
  underscores.
- An event that the state does not know always raises. No event is dropped silently.
- A transition from a state to itself is a row like any other.
- No row leaves a terminal state, except rows declared `forced`.

A table that cannot be compiled (a row that names an undeclared state, a state declared twice, an empty name, a guard
that is not a plain function) raises when it is built. `check()` finds faults in a table that compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CodeType
from typing import Final, Literal, TypeVar, cast

import msgspec

from .rows import SEVERITIES, Guard, State, Timed, Transition, label, title

_CANCELS: Final = frozenset({"cancel", "cancel_graceful"})
_FORCE: Final = "The cancel has begun already: cancel with force (`--force`) to end it at once."
_NEW_RUN: Final = "An ended entity cannot be changed; start a new run."


class Finding(msgspec.Struct, frozen=True):
    """A fault in a table: its kind, the state or row that it is about, and a text."""

    kind: Literal[
        "unreachable", "dead_end", "ambiguous", "terminal_exit", "unbounded", "timed_without_row", "bad_guard"
    ]
    subject: str
    text: str


class BuiltinRefusal(msgspec.Struct, frozen=True, array_like=True):
    """A refusal in the runtime's own event and state names. kind: the kind of the entity."""

    kind: str
    event: str
    state: str
    allowed: frozenset[str]


class InvalidTransitionError(ValueError):
    """The state does not know the event. Nothing changed; `allowed` holds the events that it does know.

    What to do: follow `advice`, if there is any; else read the present state again (the entity has changed since you
    read it), or fire one of `allowed`. `subject` is the name of the entity, if the caller knows it.
    """

    subject: str | None = None
    own: BuiltinRefusal | None = None
    """The same refusal in the runtime's own words, if this one uses those of another lifecycle."""

    def __init__(self, machine: str, state: str, event: str, allowed: frozenset[str], advice: str = "") -> None:
        super().__init__(machine, state, event, allowed, advice)
        self.advice = advice or ("" if event not in _CANCELS or "cancel_force" not in allowed else _FORCE)
        self.machine = machine
        self.state = state
        self.event = event
        self.allowed = allowed

    def __str__(
        self,
    ) -> str:  # made here and not in __init__: most refusals are handled without their text
        tried = f"{self._who}: {str(self.event)!r} is not possible in state {str(self.state)!r}"
        if not self.allowed:
            return f"{tried}. {self.advice}" if self.advice else f"{tried}: nothing leaves it. {_NEW_RUN}"
        return " ".join(filter(None, [f"{tried}. Possible there: {', '.join(sorted(self.allowed))}.", self.advice]))

    @property
    def in_own_words(self) -> BuiltinRefusal:
        """Event, state and allowed events in the runtime's own words, whichever lifecycle the entity runs by."""
        return self.own or BuiltinRefusal(
            self.machine.rpartition(".")[2], str(self.event), str(self.state), self.allowed
        )

    @property
    def kind(self) -> str:
        """The kind of the entity that refused the event; for an application's machine, the machine's name."""
        return self.in_own_words.kind

    def say(self, machine: str, state: str, event: str, allowed: frozenset[str]) -> None:
        """Put this error into the words of another machine: that of the lifecycle which the entity runs by."""
        self.own = self.in_own_words
        self.machine, self.state, self.event, self.allowed = machine, state, event, allowed

    @property
    def _who(self) -> str:
        return self.machine if self.subject is None else f"{self.machine} {self.subject}"


class GuardRejected(InvalidTransitionError):  # noqa: N818 - the published name
    """The state knows the event, but no guard passed; `guards` names them, in the order in which they were tried."""

    def __init__(self, machine: str, state: str, event: str, allowed: frozenset[str], guards: tuple[str, ...]) -> None:
        super().__init__(machine, state, event, allowed)
        self.args = (machine, state, event, allowed, guards)
        self.guards = guards

    def __str__(self) -> str:
        asked = " or ".join(f"'{guard}'" for guard in self.guards)
        others = ", ".join(sorted(self.allowed - {self.event})) or "none"
        return (
            f"{self._who}: {str(self.event)!r} was refused in state {str(self.state)!r}, "
            f"since not {asked}. Other events known there, if their guards pass: {others}."
        )


class Machine:
    """A declared machine, compiled.

    `table[state][event]` is the tuple of rows in their order. It is public for callers on a hot path that
    look up a row themselves; do not change it. The keys of `states` and `timed_in` are the names of states.

    `endless` declares that a machine has no terminal state on purpose (a circuit breaker).

    Raises ValueError for a table that cannot be compiled, and names all its faults; TypeError if `states`,
    `transitions` or `timed` hold other objects.
    """

    __slots__ = (
        "_allowed",
        "endless",
        "initial",
        "name",
        "states",
        "table",
        "timed",
        "timed_in",
        "transitions",
    )

    def __init__(
        self,
        name: str,
        initial: str,
        states: Iterable[State],
        transitions: Iterable[Transition],
        timed: Iterable[Timed] = (),
        *,
        endless: bool = False,
    ) -> None:
        declared = tuple(_each(states, State, name, "states", "State('open')"))
        self.name: Final = name
        self.initial: Final = initial
        self.transitions: Final = tuple(
            _each(transitions, Transition, name, "transitions", "Transition('open', 'close', 'closed')")
        )
        self.timed: Final = tuple(_each(timed, Timed, name, "timed", "Timed('open', 'close', 'patience')"))
        self.endless: Final = endless
        self.states: Final[Mapping[str, State]] = {state.name: state for state in declared}
        if faults := list(self._faults(declared)):
            raise ValueError(f"machine {name!r} cannot be compiled: {'; '.join(faults)}")

        self.table: Final[dict[str, dict[str, tuple[Transition, ...]]]] = {state: {} for state in self.states}
        for row in self.transitions:
            rows = self.table[row.source]
            rows[row.event] = (*rows.get(row.event, ()), row)
        self._allowed: Final = {state: frozenset(rows) for state, rows in self.table.items()}
        self.timed_in: Final[Mapping[str, tuple[Timed, ...]]] = {
            state: tuple(entry for entry in self.timed if entry.state == state) for state in self.states
        }

    def __repr__(self) -> str:
        return f"<Machine {self.name}: {len(self.states)} states, {len(self.transitions)} transitions>"

    # -- reading ----------------------------------------------------------------------------------------------

    def transition(self, state: str, event: str, facts: object = None, payload: object = None) -> Transition:
        """Return the row that `event` takes in `state`.

        Raises InvalidTransitionError if the state does not know the event, GuardRejected if it does but no
        guard passed, and ValueError for a state that this machine does not have.
        """
        try:
            rows = self.table[state][event]
        except KeyError:
            raise InvalidTransitionError(self.name, state, event, self.valid_events(state)) from None
        for row in rows:
            guard = row.guard
            if guard is None or guard(facts, payload):
                return row
        guards = tuple(row.guard_name or "" for row in rows)
        raise GuardRejected(self.name, state, event, self._allowed[state], guards)

    def can_transition(self, state: str, event: str, facts: object = None, payload: object = None) -> bool:
        """Tell whether `transition` would return a row. Raises ValueError for a state not of this machine."""
        self._known(state)
        rows = self.table[state].get(event, ())
        return any(row.guard is None or row.guard(facts, payload) for row in rows)

    def valid_events(self, state: str) -> frozenset[str]:
        """Return the events that `state` knows, whatever its guards will say.

        Raises ValueError for a state this machine does not have.
        """
        self._known(state)
        return self._allowed[state]

    def is_terminal(self, state: str) -> bool:
        """Tell whether `state` is final. Raises ValueError for a state this machine does not have."""
        self._known(state)
        return self.states[state].terminal

    def _known(self, state: str) -> None:
        if state not in self.states:
            raise ValueError(
                f"{self.name} has no state {str(state)!r}; its states are {', '.join(self.states)}. "
                "A record that holds another was written by a different machine or version."
            )

    # -- drawing ---------------------------------------------------------------------------------------------

    def mermaid(self) -> str:
        """Return the machine as a mermaid state diagram."""
        from .draw import diagram  # noqa: PLC0415 - most programs draw nothing

        return diagram.mermaid(self)

    def dot(self) -> str:
        """Return the machine as a Graphviz digraph."""
        from .draw import diagram  # noqa: PLC0415 - as above

        return diagram.dot(self)

    def svg(self) -> str:
        """Return the machine as an SVG document: states are columns, each row is an arrow between two of them."""
        from .draw import chart  # noqa: PLC0415 - as above

        return chart.svg(self)

    # -- checking --------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Return the faults of the table; an empty list for a sound one.

        Kinds: `unreachable` (no path leads there from the initial state), `dead_end` (not terminal, and no
        terminal state can be reached; in an endless machine, a state that no row leaves), `ambiguous` (a row
        that is never taken, or a guard written twice), `terminal_exit` (a row that leaves a terminal state and
        is not forced), `unbounded` (not terminal, no timed event, and no `bounded_by`), `timed_without_row` (a timed
        event that its state does not know), `bad_guard` (a guard that does not take facts and payload).
        """
        return [*self._walks(), *self._rows(), *self._guards(), *self._stays()]

    def _walks(self) -> Iterator[Finding]:
        reachable = self._closure({self.initial}, forward=True)
        for state in self.states:
            if state not in reachable:
                yield Finding("unreachable", state, f"no path from {self.initial!s} reaches {state!s}")
        if self.endless:
            ending = {row.source for row in self.transitions if row.source != row.target}
        else:
            ending = self._closure({s for s, state in self.states.items() if state.terminal}, forward=False)
        for state in self.states:
            if state not in ending:
                where = "any other state" if self.endless else "a terminal state"
                yield Finding("dead_end", state, f"no path from {state!s} reaches {where}")

    def _rows(self) -> Iterator[Finding]:
        for state, events in self.table.items():
            for event, rows in events.items():
                asked: list[Guard | None] = []
                for row in rows:
                    if None in asked:
                        text = f"the row {title(row)} is never taken: an earlier row has no guard"
                        yield Finding("ambiguous", f"{state!s} {event!s}", text)
                    elif row.guard in asked:
                        text = f"the row {title(row)} is never taken: an earlier row has the same guard"
                        yield Finding("ambiguous", f"{state!s} {event!s}", text)
                    asked.append(row.guard)
        for row in self.transitions:
            if self.states[row.source].terminal and not row.forced:
                text = f"the row {title(row)} leaves a terminal state and is not forced"
                yield Finding("terminal_exit", row.source, text)

    def _guards(self) -> Iterator[Finding]:
        for guard in dict.fromkeys(row.guard for row in self.transitions if row.guard is not None):
            if (problem := call_problem(guard, 2)) is not None:
                name = getattr(guard, "__name__", repr(guard))
                text = f"the guard {name!r} cannot be called with facts and payload: {problem}"
                yield Finding("bad_guard", name, text)

    def _stays(self) -> Iterator[Finding]:
        for name, state in self.states.items():
            if not (state.terminal or state.bounded_by or self.timed_in[name]):
                yield Finding("unbounded", name, f"`bounded_by` names nothing that ends a long stay in {name!s}")
        for entry in self.timed:
            if entry.event not in self.table[entry.state]:
                text = f"the timed event {entry.event!s} fires in {entry.state!s}, which has no row for it"
                yield Finding("timed_without_row", entry.state, text)

    def _closure(self, seeds: set[str], *, forward: bool) -> set[str]:
        """Every state reachable from `seeds` (or, backward, that reaches one of them), seeds included."""
        steps: dict[str, set[str]] = {}
        for row in self.transitions:
            here, there = (row.source, row.target) if forward else (row.target, row.source)
            steps.setdefault(here, set()).add(there)
        found, frontier = set(seeds), list(seeds)
        while frontier:
            fresh = steps.get(frontier.pop(), set()) - found
            found |= fresh
            frontier.extend(fresh)
        return found

    def _faults(self, declared: tuple[State, ...]) -> Iterator[str]:
        for name in self.states:
            if sum(state.name == name for state in declared) > 1:
                yield f"state {name!s} is declared twice"
        if self.initial not in self.states:
            yield f"its initial state {self.initial!s} is not declared"
        yield from self._misnamed()
        for row in self.transitions:
            yield from self._row_faults(row)
        for entry in self.timed:
            if entry.state not in self.states:
                yield f"the timed event {entry.event!s} names the undeclared state {entry.state!s}"
        if self.endless and any(state.terminal for state in declared):
            yield "it is declared endless, but has a terminal state"

    def _row_faults(self, row: Transition) -> Iterator[str]:
        for state in (row.source, row.target):
            if state not in self.states:
                yield f"the row {title(row)} names the undeclared state {state!s}"
        if row.guard is not None and not callable(cast("object", row.guard)):
            yield f"the row {title(row)} has the guard {row.guard!r}, which is no function of facts and payload"
        if row.guard is not None and answers_later(row.guard):
            yield (
                f"the row {title(row)} has the guard {label(row.guard)!r}, which is async or a generator: its "
                "immediate result is always true. A guard is a plain function"
            )
        if row.severity not in SEVERITIES:
            severities = ", ".join(SEVERITIES)
            yield f"the row {title(row)} has the severity {row.severity!r}, which is not one of {severities}"

    def _misnamed(self) -> Iterator[str]:
        """Faults of the names in the table, each name once."""
        named = [("its name", self.name), *(("the state", name) for name in self.states)]
        named += [("the event", name) for name in dict.fromkeys(row.event for row in self.transitions)]
        named += [("the fact", name) for name in dict.fromkeys(entry.after for entry in self.timed)]
        yield from (f"{what} {name!r} {NO_NAME}" for what, name in named if not is_name(name))


_LATER: Final = 0x20 | 0x80 | 0x200  # of a code object: generator, coroutine, asynchronous generator


def call_problem(function: Callable[..., object], count: int) -> str | None:
    """Why a function cannot be called with so many arguments; None if it can, or has no Python signature."""
    from inspect import signature  # noqa: PLC0415 - only for checks; it takes longer to import than all machines

    try:
        signature(function).bind(*[None] * count)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None


def answers_later(function: object) -> bool:
    """Whether a function is async or a generator: its call returns no result yet."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004
    return isinstance(code, CodeType) and bool(code.co_flags & _LATER)


Part = TypeVar("Part", State, Transition, Timed)


def _each(given: Iterable[Part], kind: type[Part], machine: str, field: str, example: str) -> Iterator[Part]:
    """The parts of a table. Raises TypeError for a part of another type (a text, a tuple)."""
    for index, part in enumerate(given):
        if not isinstance(cast("object", part), kind):
            raise TypeError(
                f"machine {machine!r}: {field}[{index}] is a {kind.__name__}, as {example}, and not {part!r:.80}"
            )
        yield part


NO_NAME: Final = "is no name: use printable characters, and no space at its ends"


def is_name(name: object) -> bool:
    """Whether `name` is a valid name of a machine, a state, an event or a fact."""
    return isinstance(name, str) and name != "" and name.isprintable() and name.strip() == name
