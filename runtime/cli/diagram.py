"""`callboard diagram MACHINE`: a drawing of a machine, made from its table.

MACHINE is one of the runtime's own by its kind (`task`); a published one by its name (`pipeline.step`), by its
lifecycle and kind (`pipeline.task`), or by its lifecycle alone (`guarded`); a file (`review.toml`); or an import path
(`my_module:REVIEW`).
Functions that a file names are not imported: its guards are drawn by their names. An import path is imported.
A lifecycle of several machines (`pipeline`) is drawn whole: as one SVG, or as one drawing after the other, with names.

`callboard diagram --entity ID` draws the machine of one entity of a journal, with its path so far (`entity.py`).
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ..journal.location import store_of
from .command_errors import CommandError
from .options import DEFAULT, Journal
from .terminal import echo

if TYPE_CHECKING:
    from ...machines import Machine


FORMATS = frozenset({".toml", ".yaml", ".yml", ".json"})


class Format(StrEnum):
    """The formats of a drawing."""

    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[MACHINE]",
        show_default=False,
        help="job, workstream, task, approval, worker or breaker; a published one, as guarded or pipeline.step; "
        "all of a published lifecycle, as pipeline; a file that declares one, as review.toml; or an import path, as "
        "my_module:REVIEW.",
    ),
]
As = Annotated[Format, typer.Option("--format", help="The format: Mermaid, dot for Graphviz, or an SVG document.")]
Entity = Annotated[
    str | None,
    typer.Option(
        "--entity",
        metavar="ID",
        show_default=False,
        help="Draw the path so far of a JOB, a JOB/TASK, a worker, a tool's breaker, or any entity's id.",
    ),
]


def diagram(
    machine: Name = None, *, entity: Entity = None, journal: Journal = DEFAULT, as_: As = Format.MERMAID
) -> None:
    """Print the diagram of a machine, or the path of an entity through its machine."""
    from ...machines.draw.chart import svg, svg_of_all  # noqa: PLC0415
    from ...machines.draw.diagram import dot, mermaid  # noqa: PLC0415
    from .entity import path_of  # noqa: PLC0415

    if (machine is None) == (entity is None):
        raise CommandError("Name either a machine, or an entity with --entity ID.")
    draw = {Format.MERMAID: mermaid, Format.DOT: dot, Format.SVG: svg}[as_]
    if machine is None:
        echo(draw(*path_of(store_of(journal), entity or "")))
        return
    found = _named(machine)
    if len(found) == 1:
        echo(draw(found[0]))
    elif as_ is Format.SVG:
        echo(svg_of_all(machine, found))
    else:
        comment = "%%" if as_ is Format.MERMAID else "//"
        echo("\n\n".join(f"{comment} {one.name}\n{draw(one)}" for one in found))


def _named(name: str) -> list[Machine]:
    if ":" in name:
        return _imported(name)
    if Path(name).suffix not in FORMATS:
        return _machines(name)
    from ..specfiles.machine_file import drawn_machine  # noqa: PLC0415

    return [drawn_machine(name)]


def _imported(path: str) -> list[Machine]:
    """Import the machine, lifecycle, or list of them under an import path."""
    from ...machines import Machine  # noqa: PLC0415
    from ...machines.adapt.lifecycle import Lifecycle  # noqa: PLC0415
    from ..functions.import_paths import BodyNotFound, find, look_in  # noqa: PLC0415

    look_in(str(Path.cwd()))
    try:
        found = find(path)
    except BodyNotFound as error:
        raise CommandError(str(error)) from None
    kind = type(found).__name__
    several = cast("list[object] | tuple[object, ...]", found) if isinstance(found, list | tuple) else [found]
    drawn = [one.machine if isinstance(one, Lifecycle) else one for one in several]
    machines = [one for one in drawn if isinstance(one, Machine)]
    if not machines or len(machines) < len(drawn):
        raise CommandError(f"{path} is a {kind}, not a machine or a lifecycle.")
    return machines


def _machines(name: str) -> list[Machine]:
    from ...machines.builtin.table import MACHINES  # noqa: PLC0415
    from ...machines.keywords import did_you_mean  # noqa: PLC0415
    from ...machines.lifecycles import LIFECYCLES, PUBLISHED  # noqa: PLC0415

    kinds = {f"{lifecycle}.{kind}": how.machine for lifecycle, by in LIFECYCLES.items() for kind, how in by.items()}
    machines = {**MACHINES, **kinds, **PUBLISHED}
    if name in machines:
        return [machines[name]]
    of = [machine for machine in PUBLISHED.values() if machine.name.partition(".")[0] == name]
    if of:
        return of
    there = [*MACHINES, *PUBLISHED, *LIFECYCLES]
    advice = did_you_mean(name, there) or f"there are: {', '.join(dict.fromkeys(there))}"
    raise CommandError(f"There is no machine {name!r}; {advice}")
