"""The documentation of the lifecycles, made from their tables and from the rules that stand above them.

``python -m callboard.machines.docs FILE`` writes it; `docs/lifecycles.md` is what it writes. Nothing in it is
written by hand, and a test holds the committed file equal to what is rendered here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from . import approval, breaker, job, task, worker, workstream
from .machine import Machine, State, Timed

_PAGES = (
    (job, job.JOB),
    (workstream, workstream.WORKSTREAM),
    (task, task.TASK),
    (approval, approval.APPROVAL),
    (worker, worker.WORKER),
    (breaker, breaker.BREAKER),
)

_OPENING = """\
# Lifecycles

What may happen to each thing that Callboard runs. This page is made from the tables in `machines/`;
`python -m callboard.machines.docs docs/lifecycles.md` makes it again.

Rows are asked from top to bottom, and the first whose guard passes is taken. An event that a state does not
list is refused there.
"""


def render() -> str:
    """Return the whole document, in Markdown."""
    pages = ("\n".join(_page(inspect.getdoc(module) or "", machine)) for module, machine in _PAGES)
    return "\n".join([_OPENING, *(f"{page}\n" for page in pages)])


def _page(rules: str, machine: Machine) -> Iterator[str]:
    yield f"## {machine.name.capitalize()}"
    yield ""
    yield from _headed(rules.splitlines())
    yield from ("", f"### {machine.name.capitalize()}: diagram", "")
    yield from ("```mermaid", *machine.mermaid().splitlines(), "```")
    yield from ("", f"### {machine.name.capitalize()}: rows", "")
    yield from _table(
        ("from", "event", "guard", "to", "severity"),
        ((row.source, row.event, row.guard_name or "", row.target, row.severity) for row in machine.transitions),
    )
    yield from ("", f"### {machine.name.capitalize()}: how long a state lasts", "")
    yield from _table(
        ("state", "ends by itself through", "else is bounded by"),
        (_stay(machine, state) for state in machine.states.values()),
    )


def _stay(machine: Machine, state: State) -> tuple[str, ...]:
    if state.terminal:
        return (state.name, "it is terminal", "")
    return (state.name, ", ".join(map(_timed, machine.timed_in[state.name])), state.bounded_by or "")


def _timed(entry: Timed) -> str:
    return f"{entry.event} after `{entry.after}`"


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _headed(lines: list[str]) -> Iterator[str]:
    """The lines, with those that are underlined as headings below the machine's."""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if following and not following.strip("-"):
            yield from (f"### {line}", "")
        elif not line or line.strip("-"):
            yield line


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/lifecycles.md").write_text(render(), encoding="utf-8")
