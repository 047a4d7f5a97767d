"""The documentation of the lifecycles, generated from their tables and from the rules above them.

Rules
-----
- ``python -m callboard.machines.docs [FOLDER]`` writes both pages into the folder, `docs` unless given.
- Nothing in `lifecycles.md` is written by hand. In `published-lifecycles.md` the text above the mark is written by
  hand, and is kept.
- Tests compare the committed pages with what is rendered here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from .adapt.lifecycle import Lifecycle
from .adapt.people import PEOPLE, Asks, asked_of
from .audit.guard_fields import facts_of, readers
from .builtin import approval, breaker, job, task, worker, workstream
from .lifecycles import LIFECYCLES, PUBLISHED, execution, fleet, guarded, orchestration, pipeline
from .machine import Machine
from .rows import State, Timed

_PAGES = (
    (job, job.JOB),
    (workstream, workstream.WORKSTREAM),
    (task, task.TASK),
    (approval, approval.APPROVAL),
    (worker, worker.WORKER),
    (breaker, breaker.BREAKER),
)

_PUBLISHED = (pipeline, orchestration, fleet, guarded, execution)

MARK = "<!-- From here on made from the tables: python -m callboard.machines.docs -->"

_OPENING = """\
# Lifecycles

What may happen to each thing that Callboard runs. This page is generated from the tables in `machines/`;
`python -m callboard.machines.docs` generates it again.

Rows are tried from top to bottom, and the first row whose guard passes is taken. A state refuses every event that it
does not list.
"""

_PEOPLE = """\
## Events that people may fire

A job, a workstream, a task, a worker and a breaker is an actor with a reference, too: `job.ref`,
`job.task("deploy").ref`, `runtime.machine("release@1/deploy")`. It takes the events below, as messages:
`ref.ask(Fire("approve", by="ana"))` is `task.approve(by="ana")`, with its checks, its answer, its errors and its
`request_id`. The runtime alone fires all other events, as the work goes: it refuses them from people, and so it does
with the events below if the present state does not know them. `cancel` cancels gracefully, if the state knows that. A
job forwards the events of its workstream. An entity with a published lifecycle takes that lifecycle's own words
([list](published-lifecycles.md)).

"""


def render() -> str:
    """Return the page of the runtime's own lifecycles, in Markdown."""
    pages = ("\n".join(_page(inspect.getdoc(module) or "", machine)) for module, machine in _PAGES)
    return "\n".join([_OPENING, f"{_PEOPLE}{_of_people()}", *(f"{page}\n" for page in pages)])


def _of_people() -> str:
    """The table of the events that people may fire."""
    rows = (
        (kind, f"`{event}`", _verb(asks), ", ".join(f"`{name}`" for name in asks.takes))
        for kind in PEOPLE
        for event, asks in asked_of(kind).items()
    )
    head = ("at a", "event", "is the verb", "takes beside `reason` and `by`, as `facts`")
    return "\n".join([*_table(head, rows), ""])


def _verb(asks: Asks) -> str:
    return f"`{asks.verb}({'force=True' if asks.force else ''})`"


def render_published() -> str:
    """Return the page of the published lifecycles, from the mark on."""
    pages = ("\n".join(_document(module)) for module in _PUBLISHED)
    return "\n".join([MARK, "", *(f"{page}\n" for page in pages)])


def _page(rules: str, machine: Machine) -> Iterator[str]:
    yield f"## {machine.name.capitalize()}"
    yield ""
    yield from _headed(rules.splitlines())
    yield from _machine(machine, machine.name.capitalize(), "###")


def _document(module: ModuleType) -> Iterator[str]:
    name = module.__name__.rpartition(".")[2]
    yield f"## `{name}`"
    yield ""
    yield from _headed((inspect.getdoc(module) or "").splitlines())
    for machine in PUBLISHED.values():
        if machine.name.partition(".")[0] == name:
            yield from ("", f"### `{machine.name}`")
            yield from _machine(machine, f"`{machine.name}`", "####")
            yield from _facts(machine)
    for lifecycle in LIFECYCLES[name].values():
        yield from _run_by(lifecycle)


def _run_by(lifecycle: Lifecycle) -> Iterator[str]:
    yield from ("", f"### How a {lifecycle.kind} runs by `{lifecycle.name}`", "")
    states = lifecycle.machine.states
    yield from _table(("state", "phase"), ((f"`{state}`", lifecycle.phase(state)) for state in states))
    yield ""
    yield from _table(
        ("our event", "is fired as"),
        ((event, ", else ".join(f"`{name}`" for name in names)) for event, names in lifecycle.events.items()),
    )
    theirs = ", ".join(f"`{word}` ({_verb(asks)})" for word, asks in asked_of(lifecycle.kind, lifecycle).items())
    yield from ("", f"Events that people may fire at it: {theirs or 'none'}.")
    if lifecycle.defaults:
        settings = ", ".join(f"`{name}` is {value}" for name, value in lifecycle.defaults.items())
        yield from ("", f"Unless said otherwise, {settings}.")


def _machine(machine: Machine, title: str, level: str) -> Iterator[str]:
    yield from ("", f"{level} {title}: diagram", "")
    yield from ("```mermaid", *machine.mermaid().splitlines(), "```")
    yield from ("", f"{level} {title}: rows", "")
    yield from _table(
        ("from", "event", "guard", "to", "severity"),
        ((row.source, row.event, row.guard_name or "", row.target, row.severity) for row in machine.transitions),
    )
    yield from ("", f"{level} {title}: how long a state lasts", "")
    yield from _table(
        ("state", "ends by itself through", "else is bounded by"),
        (_stay(machine, state) for state in machine.states.values()),
    )


def _facts(machine: Machine) -> Iterator[str]:
    guards = dict.fromkeys(row.guard for row in machine.transitions if row.guard is not None)
    meant = {fact: text for guard in guards for fact, text in facts_of(guard).items()}
    if meant:
        yield from ("", f"#### `{machine.name}`: what its guards read of the facts", "")
        read_by = readers(machine)
        yield from _table(
            ("fact", "meaning", "read by"),
            ((f"`{fact}`", text, ", ".join(read_by[fact])) for fact, text in meant.items()),
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


def write(folder: Path) -> None:
    """Write both pages into `folder`. The text above the mark in the second is kept."""
    (folder / "lifecycles.md").write_text(render(), encoding="utf-8")
    page = folder / "published-lifecycles.md"
    by_hand = page.read_text(encoding="utf-8").partition(MARK)[0] if page.exists() else ""
    page.write_text(by_hand + render_published(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
