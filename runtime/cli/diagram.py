"""`callboard diagram MACHINE`: a machine's drawing, made from its table."""

from __future__ import annotations

from typing import Annotated

import typer

from .trouble import Trouble

Name = Annotated[str, typer.Argument(metavar="MACHINE", help="job, workstream, task, worker or breaker.")]
Dot = Annotated[bool, typer.Option("--dot", help="Print Graphviz instead of Mermaid.")]


def diagram(machine: Name, dot: Dot = False) -> None:
    """Print a machine as a Mermaid diagram, or for Graphviz."""
    from ...actors.schema import did_you_mean  # noqa: PLC0415
    from ...machines.audit import MACHINES  # noqa: PLC0415

    found = MACHINES.get(machine)
    if found is None:
        advice = did_you_mean(machine, list(MACHINES)) or f"there are: {', '.join(MACHINES)}"
        raise Trouble(f"There is no machine {machine!r}; {advice}")
    typer.echo(found.dot() if dot else found.mermaid())
