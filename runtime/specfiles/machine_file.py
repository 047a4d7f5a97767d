"""Machine files: a machine, its facts and its functions from TOML (or YAML, or JSON), checked whole.

    name = "review"
    initial = "held"

    [facts]                      # read by guards, and the delays of timed events, with defaults
    needed = 2
    patience = "72h"

    [states]
    held = { bounded_by = "its reviewers" }
    published = { terminal = true }
    expired = { terminal = true }

    [[transitions]]
    source = "held"              # or several: ["held", "waiting"]
    event = "approve"
    target = "published"
    guard = "reviews:enough"     # module:function, of the facts and the Fire

    [[timed]]
    state = "held"
    event = "expire"
    after = "patience"

Rules
-----
- The keys are the fields of `State`, `Transition` and `Timed`, besides `name`, `initial`, `endless`, `facts`, and the
  functions of a `MachineActor`: `on_event`, and `on_enter` and `on_exit` by state.
- All findings are reported at once, each with its line and, if there is one, a suggestion; those of `Machine.check`,
  too. Functions are looked for beside the file first.
- A reader of the file runs no code of it (`drawn_machine`): the names of its functions are enough.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any

import msgspec

from ...actors.machines.kind import ANY, MachineActor, due_of, facts_type, shown_guard
from ...actors.spec.schema import Finding, Path, beside, plain_problem, read, where
from ...actors.spec.validate import SpecificationError
from ...machines import Machine, Severity, State, Timed, Transition
from ...machines.keywords import did_you_mean
from ...machines.machine import NO_NAME, is_name
from ...machines.machine import Finding as Unsound
from ..functions.import_paths import BodyNotFound, follow, located
from .workstream_file import read_table, with_lines

__all__ = ["load_machine"]


class StateTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A state in a file."""

    phase: str | None = None
    terminal: bool = False
    bounded_by: str | None = None


class TransitionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A row in a file, or several rows that differ in their source."""

    source: str | list[str]
    event: str
    target: str
    guard: str | None = None
    forced: bool = False
    severity: Severity = "info"


class TimedTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A timed event in a file."""

    state: str | list[str]
    event: str
    after: str


class _Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A file's top level."""

    name: str
    initial: str = ""
    endless: bool = False
    facts: dict[str, Any] = {}
    states: dict[str, StateTable] = {}
    transitions: list[TransitionTable] = []
    timed: list[TimedTable] = []
    on_event: str | None = None
    on_enter: dict[str, str] = {}
    on_exit: dict[str, str] = {}


def load_machine(path: str | pathlib.Path) -> MachineActor:
    """Read and check a machine file, for `runtime.spawn`. Raises SpecificationError with all findings."""
    return _read(pathlib.Path(path), imports=True).actor()


def drawn_machine(path: str | pathlib.Path) -> Machine:
    """The machine of a file, for drawings: nothing is imported, and its guards only have names.

    Raises SpecificationError with all findings.
    """
    return _read(pathlib.Path(path), imports=False).machine()


def _read(path: pathlib.Path, *, imports: bool) -> _Reading:
    data, lines, found = read_table(path)
    layout, mistyped = read({"name": path.stem, **data}, _Layout)
    reading = _Reading(layout, path.absolute().parent, imports=imports)
    found += mistyped
    found += beside(found, reading.findings())
    if found:
        raise SpecificationError(with_lines(found, lines), str(path))
    return reading


class _Reading:
    """A file's layout, which becomes a machine. imports: whether its functions are looked up."""

    def __init__(self, layout: _Layout, folder: pathlib.Path, *, imports: bool) -> None:
        self.layout = layout
        self.imports = imports
        self.folder = folder
        self.facts = {name: _plain(value) for name, value in layout.facts.items()}
        self.rows = [
            (index, source, row) for index, row in enumerate(layout.transitions) for source in _each(row.source)
        ]
        self.timed = [(index, state, one) for index, one in enumerate(layout.timed) for state in _each(one.state)]
        self._functions: dict[str, Callable[..., Any]] = {}

    # -- findings -------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """All findings, except wrong types."""
        misnamed = [*self._misnamed()]
        found = [*misnamed, *self._names(), *self._times(), *self._paths()]
        return (
            found
            if misnamed
            else found + self._unsound(whole=not any(one.where.startswith("transitions") for one in found))
        )

    def _state(self, name: str, *place: str | int) -> Iterator[Finding]:
        states = [*self.layout.states]
        if name not in states:
            advice = did_you_mean(name, states) or f"there are: {', '.join(states) or 'none'}"
            yield Finding(where(place), f"there is no state {name!r:.80}", advice)

    def _misnamed(self) -> Iterator[Finding]:
        """The findings about invalid names."""
        layout = self.layout
        named: list[tuple[Path, str]] = [(("name",), layout.name)]
        named += [(("states", name), name) for name in layout.states]
        named += [(("transitions", index, "event"), row.event) for index, row in enumerate(layout.transitions)]
        yield from (Finding(where(place), f"{name!r:.80} {NO_NAME}") for place, name in named if not is_name(name))

    def _names(self) -> Iterator[Finding]:
        layout = self.layout
        if not layout.states:
            yield Finding("states", "there are no states", 'write them as: [states] new = { bounded_by = "its owner" }')
            return
        if layout.initial:
            yield from self._state(layout.initial, "initial")
        else:
            yield Finding("initial", "'initial' is missing", "name the state in which an entity begins")
        for index, source, _ in self.rows:
            yield from self._state(source, "transitions", index, "source")
        for index, row in enumerate(layout.transitions):
            yield from self._state(row.target, "transitions", index, "target")
        for index, state, _ in self.timed:
            yield from self._state(state, "timed", index, "state")
        for place, functions in (("on_enter", layout.on_enter), ("on_exit", layout.on_exit)):
            for state in functions:
                if state != ANY:
                    yield from self._state(state, place, state)

    def _times(self) -> Iterator[Finding]:
        for name, value in self.facts.items():
            if not name.isidentifier():
                yield Finding(where(("facts", name)), "cannot be the name of a fact: use letters, digits and _")
            elif problem := plain_problem(value):
                yield Finding(where(("facts", name)), problem)
        for index, state, entry in self.timed:
            events = sorted({row.event for _, source, row in self.rows if source == state})
            if entry.event not in events and state in self.layout.states:
                advice = did_you_mean(entry.event, events) or f"it knows: {', '.join(events) or 'none'}"
                yield Finding(
                    where(("timed", index, "event")), f"state {state!r} knows no event {entry.event!r:.80}", advice
                )
        for index, entry in enumerate(self.layout.timed):
            place = where(("timed", index, "after"))
            if entry.after not in self.facts:
                advice = did_you_mean(entry.after, [*self.facts]) or "declare it in [facts], with its default"
                yield Finding(place, f"there is no fact {entry.after!r:.80}", advice)
                continue
            try:
                due_of(entry.after, self.facts[entry.after], 0.0)
            except ValueError as error:
                yield Finding(where(("facts", entry.after)), str(error))

    def _paths(self) -> Iterator[Finding]:
        layout = self.layout
        named: list[tuple[Path, str | None]] = [
            (("transitions", index, "guard"), row.guard) for index, row in enumerate(layout.transitions)
        ]
        for word, functions in (("on_enter", layout.on_enter), ("on_exit", layout.on_exit)):
            named += [((word, state), path) for state, path in functions.items()]
        for place, path in [*named, (("on_event",), layout.on_event)]:
            if path is None or path in self._functions:
                continue
            if ":" not in path:
                yield Finding(where(place), f"{path!r:.80} is no function", 'write it as "module:function"')
                continue
            if not self.imports:
                self._functions[path] = shown_guard(path)
                continue
            try:
                self._functions[path] = follow(located(path, str(self.folder), program=False))
            except BodyNotFound as error:
                yield Finding(where(place), str(error))

    def _unsound(self, *, whole: bool) -> list[Finding]:
        """The findings of `check`; of an incomplete table, only those about states alone."""
        layout = self.layout
        if layout.initial not in layout.states:
            return []
        try:
            unsound = self.machine().check()
        except ValueError as error:
            return [Finding("", str(error))]
        return [self._placed(one) for one in unsound if whole or one.kind == "unbounded"]

    def _placed(self, one: Unsound) -> Finding:
        """A finding of `check`, with its place in the file."""
        advice = {
            "unbounded": 'say `bounded_by = "who ends it"`, give it a [[timed]] event, or make it `terminal = true`',
            "dead_end": "give it a row that leads on, or make it `terminal = true`",
            "unreachable": "give it a row that leads there, or leave it out",
            "terminal_exit": "say `forced = true` if that is meant",
        }.get(one.kind)
        rows = [
            index
            for index, source, row in self.rows
            if one.subject in {f"{source} {row.event}", source if one.kind == "terminal_exit" else ""}
        ]
        place: Path = ("transitions", rows[-1]) if rows else ("states", one.subject)
        return Finding(where(place), one.text, advice)

    # -- results -------------------------------------------------------------------------------------------------

    def machine(self) -> Machine:
        """The machine of the file."""
        layout, states = self.layout, self.layout.states
        functions = self._functions
        return Machine(
            layout.name,
            layout.initial,
            [State(name, one.phase, one.terminal, one.bounded_by) for name, one in states.items()],
            [
                Transition(
                    source, row.event, row.target, None if row.guard is None else functions.get(row.guard, _missing),
                    row.forced, row.severity,
                )
                for _, source, row in self.rows
                if {source, row.target} <= states.keys()
            ],
            [Timed(state, one.event, one.after) for _, state, one in self.timed if state in states],
            endless=layout.endless,
        )  # fmt: skip

    def actor(self) -> MachineActor:
        """The `MachineActor` of the file."""
        layout, functions = self.layout, self._functions
        facts = facts_type(layout.name, self.facts, {one.after for one in layout.timed})() if self.facts else None
        return MachineActor(
            self.machine(),
            facts,
            on_event=None if layout.on_event is None else functions[layout.on_event],
            on_enter={state: functions[path] for state, path in layout.on_enter.items()},
            on_exit={state: functions[path] for state, path in layout.on_exit.items()},
            fields=self.facts or None,
            folder=str(self.folder),
        )


def _missing(facts: object, payload: object) -> bool:  # noqa: ARG001 - replaces a guard that was not found
    return False


def _each(names: str | list[str]) -> Iterable[str]:
    return [names] if isinstance(names, str) else names


def _plain(value: Any) -> Any:
    """A value of a fact; a date that TOML or YAML has parsed becomes its text again."""
    return value.isoformat() if isinstance(value, date) else value
