"""Drawings of machines, generated from their tables only.

Rules: the same machine gives the same text, byte for byte (a test compares the documentation with it). Rows
that join the same two states share one arrow, in the order in which they are tried. A guard stands in
brackets; a timed event shows its delay; a forced row is marked.

For a live entity, its path so far is marked (`Path`): the states it was in, its present state, and beside each
row that it took, the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from ..rows import State, Timed, Transition

PASSED: Final = "#dcfce7"
PRESENT: Final = "#fde68a"
ASIDE: Final = "#94a3b8"
"""Colours of the states that an entity was in, of its present state, and of the rows that it did not take."""
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_TIMES = 3  # times shown beside a row; of more, the first and the last


class DrawableMachine(Protocol):
    """The parts of a machine (`machines/machine.py`) that a drawing shows."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def initial(self) -> str: ...  # noqa: D102
    @property
    def states(self) -> Mapping[str, State]: ...  # noqa: D102
    @property
    def transitions(self) -> Sequence[Transition]: ...  # noqa: D102
    @property
    def timed_in(self) -> Mapping[str, Sequence[Timed]]: ...  # noqa: D102


class Path:
    """The path of an entity through its machine: source, event, target and time of each step."""

    def __init__(self, steps: Iterable[tuple[str, str, str, str]], present: str) -> None:
        self.present: Final = present
        self.passed: Final[set[str]] = set()
        self._times: dict[tuple[str, str, str], list[str]] = {}
        for source, event, target, at in steps:
            self.passed.update((source, target))
            self._times.setdefault((source, event, target), []).append(at)

    def took(self, row: Transition) -> bool:
        """Whether the entity took `row`."""
        return (row.source, row.event, row.target) in self._times

    def times(self, row: Transition) -> str:
        """The times when the entity took `row`, in words; "" if it never did."""
        times = self._times.get((row.source, row.event, row.target), [])
        if len(times) > _TIMES:
            return f"{times[0]} ... {times[-1]} ({len(times)} times)"
        return ", ".join(times)

    def colour(self, state: str) -> str | None:
        """The fill colour of a state; None if the entity was never in it."""
        if state == self.present:
            return PRESENT
        return PASSED if state in self.passed else None


def mermaid(machine: DrawableMachine, path: Path | None = None) -> str:
    """Return `machine` as a mermaid state diagram (``stateDiagram-v2``), without a trailing newline."""
    names = {
        state: str(state) if str(state).isidentifier() else f"state{number}"
        for number, state in enumerate(machine.states)
    }
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_plain(state)}" as {name}' for state, name in names.items() if name != str(state)]
    lines.append(f"    [*] --> {names[machine.initial]}")
    for (source, target), labels in _arrows(machine, path).items():
        lines.append(f"    {names[source]} --> {names[target]}: {' / '.join(map(_plain, labels))}")
    lines += [f"    {names[name]} --> [*]" for name, state in machine.states.items() if state.terminal]
    if path is not None:
        lines += [f"    classDef passed fill:{PASSED}", f"    classDef present fill:{PRESENT},stroke-width:3px"]
        of = {PASSED: "passed", PRESENT: "present"}
        lines += [f"    class {name} {of[colour]}" for state, name in names.items() if (colour := path.colour(state))]
    return "\n".join(lines)


def dot(machine: DrawableMachine, path: Path | None = None) -> str:
    """Return `machine` as a Graphviz digraph, without a trailing newline."""
    lines = [
        f"digraph {_quoted(machine.name)} {{",
        "    rankdir=LR;",
        '    node [shape=box, style=rounded, fontname="sans-serif"];',
        '    edge [fontname="sans-serif", fontsize=10];',
        '    "" [shape=point];',
    ]
    for name, state in machine.states.items():
        looks = ["peripheries=2"] if state.terminal else []
        if path is not None and (colour := path.colour(name)):
            looks += ['style="rounded,filled"', f'fillcolor="{colour}"']
        look = f" [{', '.join(looks)}]" if looks else ""
        lines.append(f"    {_quoted(name)}{look};")
    lines.append(f'    "" -> {_quoted(machine.initial)};')
    for (source, target), labels in _arrows(machine, path).items():
        text = "\\n".join(_escaped(text) for text in labels)
        rows = [row for row in machine.transitions if (row.source, row.target) == (source, target)]
        aside = "" if path is None or any(map(path.took, rows)) else f', color="{ASIDE}", fontcolor="{ASIDE}"'
        lines.append(f'    {_quoted(source)} -> {_quoted(target)} [label="{text}"{aside}];')
    return "\n".join([*lines, "}"])


def _arrows(machine: DrawableMachine, path: Path | None) -> dict[tuple[str, str], list[str]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in machine.transitions:
        arrows.setdefault((row.source, row.target), []).append(label(machine, row, path))
    return arrows


def label(machine: DrawableMachine, row: Transition, path: Path | None = None) -> str:
    """Return the text beside a row's arrow."""
    parts = [str(row.event)]
    if row.guard:
        parts.append(f"[{row.guard_name}]")
    parts += [f"after {timed.after}" for timed in machine.timed_in[row.source] if timed.event == row.event]
    if row.forced:
        parts.append("(forced)")
    if path is not None and path.took(row):
        parts.append(f"at {path.times(row)}")
    return " ".join(parts)


def _plain(text: str) -> str:
    """Mermaid has no escapes: characters that it reads as syntax are left out; a time is written with dots."""
    text = _CLOCK.sub(lambda found: found[0].replace(":", "."), text)
    return "".join(" " if letter in '":;\n' else letter for letter in text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
