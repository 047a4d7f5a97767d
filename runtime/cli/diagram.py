"""`callboard diagram MACHINE`: a machine's drawing, made from its table.

Which machine: one of the runtime's own by its kind (`task`), or a published one by its name (`pipeline.step`), by its
lifecycle and kind (`pipeline.task`), or by its lifecycle alone where that has only one (`guarded`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal import echo
from .trouble import Trouble

if TYPE_CHECKING:
    from ...machines import Machine


class Format(StrEnum):
    """What a drawing is written as."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


Name = Annotated[
    str,
    typer.Argument(
        metavar="MACHINE",
        help="job, workstream, task, approval, worker or breaker; or a published one, as guarded or pipeline.step.",
    ),
]
As = Annotated[Format, typer.Option("--format", help="What to write: Mermaid, dot for Graphviz, or an SVG document.")]


def diagram(machine: Name, as_: As = Format.MERMAID) -> None:
    """Print the diagram of a machine."""
    found = _machine(machine)
    draw = {Format.MERMAID: found.mermaid, Format.DOT: found.dot, Format.SVG: found.svg}
    echo(draw[as_]())


def _machine(name: str) -> Machine:
    from ...actors.schema import did_you_mean  # noqa: PLC0415
    from ...machines.audit import MACHINES  # noqa: PLC0415
    from ...machines.lifecycles import LIFECYCLES, PUBLISHED  # noqa: PLC0415

    kinds = {f"{lifecycle}.{kind}": how.machine for lifecycle, by in LIFECYCLES.items() for kind, how in by.items()}
    known = {**MACHINES, **kinds, **PUBLISHED}
    if name in known:
        return known[name]
    of = [machine for machine in PUBLISHED.values() if machine.name.partition(".")[0] == name]
    if len(of) == 1:
        return of[0]
    if of:
        names = ", ".join(machine.name for machine in of)
        raise Trouble(f"The lifecycle {name!r} has {len(of)} machines; say which: {names}.")
    there = [*MACHINES, *PUBLISHED]
    advice = did_you_mean(name, there) or f"there are: {', '.join(there)}"
    raise Trouble(f"There is no machine {name!r}; {advice}")
