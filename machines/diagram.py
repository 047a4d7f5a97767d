"""Drawings of machines, made from their tables and from nothing else.

Rules: the same machine gives the same text, byte for byte (a test holds the documentation equal to it). Rows
that join the same two states share one arrow, in the order in which they are asked. A guard stands in
brackets, a timed event says what it waits for, a forced row says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .machine import Machine, Transition


def mermaid(machine: Machine) -> str:
    """Return `machine` as a mermaid state diagram (``stateDiagram-v2``), without a trailing newline."""
    names = {
        state: str(state) if str(state).isidentifier() else f"state{number}"
        for number, state in enumerate(machine.states)
    }
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_plain(state)}" as {name}' for state, name in names.items() if name != str(state)]
    lines.append(f"    [*] --> {names[machine.initial]}")
    for (source, target), labels in _arrows(machine).items():
        lines.append(f"    {names[source]} --> {names[target]}: {' / '.join(map(_plain, labels))}")
    lines += [f"    {names[name]} --> [*]" for name, state in machine.states.items() if state.terminal]
    return "\n".join(lines)


def dot(machine: Machine) -> str:
    """Return `machine` as a Graphviz digraph, without a trailing newline."""
    lines = [
        f"digraph {_quoted(machine.name)} {{",
        "    rankdir=LR;",
        '    node [shape=box, style=rounded, fontname="sans-serif"];',
        '    edge [fontname="sans-serif", fontsize=10];',
        '    "" [shape=point];',
    ]
    for name, state in machine.states.items():
        border = " [peripheries=2]" if state.terminal else ""
        lines.append(f"    {_quoted(name)}{border};")
    lines.append(f'    "" -> {_quoted(machine.initial)};')
    for (source, target), labels in _arrows(machine).items():
        text = "\\n".join(_escaped(text) for text in labels)
        lines.append(f'    {_quoted(source)} -> {_quoted(target)} [label="{text}"];')
    return "\n".join([*lines, "}"])


def _arrows(machine: Machine) -> dict[tuple[str, str], list[str]]:
    arrows: dict[tuple[str, str], list[str]] = {}
    for row in machine.transitions:
        arrows.setdefault((row.source, row.target), []).append(label(machine, row))
    return arrows


def label(machine: Machine, row: Transition) -> str:
    """Return what stands beside a row's arrow."""
    parts = [str(row.event)]
    if row.guard:
        parts.append(f"[{row.guard_name}]")
    parts += [f"after {timed.after}" for timed in machine.timed_in[row.source] if timed.event == row.event]
    if row.forced:
        parts.append("(forced)")
    return " ".join(parts)


def _plain(text: str) -> str:
    """Mermaid has no escapes: what it would read as syntax is left out."""
    return "".join(" " if letter in '":;\n' else letter for letter in text)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
