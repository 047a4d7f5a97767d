"""`callboard workers list|pause|resume|shutdown|terminate|start`: the workers of a running program.

Workers belong to the program that has the journal open: without one, no command can act on them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .acting import AsJson
from .boards import Place, anywhere
from .control import commands
from .hints import hint
from .options import JOURNAL
from .terminal import echo

if TYPE_CHECKING:
    from ...actors.records.entities import WorkerRecord

All = Annotated[bool, typer.Option("--all", help="Also incarnations that have ended.")]
workers = typer.Typer(help="Show, pause, stop and start the workers, which run tasks.", no_args_is_help=True)


@workers.command("list")
@anywhere
def list_(every: All = False, journal: Place = JOURNAL, as_json: AsJson = False) -> None:
    """Show the workers of a journal."""
    from ...actors.records.transition import iso  # noqa: PLC0415
    from . import words  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415
    from .status import as_lines, table  # noqa: PLC0415

    with reading(journal) as reader:
        recorded = reader.workers()
    last = {_placed(one): one.run for one in recorded}
    records = [
        one
        for one in recorded
        if every or one.finished_at is None or (one.pause_reason is not None and one.run == last[_placed(one)])
    ]
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "id": one.id,
                "name": one.name,
                "state": one.shown,
                "engine": one.engine,
                "capacity": one.capacity,
                "assigned": one.assigned,
                "capabilities": one.capabilities,
                "since": iso(one.updated_at),
                "reason": one.reason,
                "paused": one.pause_reason,
                "metadata": one.metadata,
            }
            for one in records
        ]
        as_lines(rows)
        return
    now = time.time()
    table(
        ("name", "incarnation", "state", "for", "runs", "engine", "reason"),
        [
            [
                _placed(one),
                str(one.run),
                _state(one),
                words.took(now - one.updated_at),
                f"{one.assigned}/{one.capacity}",
                one.engine,
                words.one_line(one.pause_reason or one.reason or ""),
            ]
            for one in records
        ],
    )
    if ended := len(recorded) - len(records):
        echo(f"{ended} ended workers are not shown: use {hint('workers list --all')}")


def _placed(worker: WorkerRecord) -> str:
    """Return a worker's name; with its node's name if several nodes have one of that name."""
    return worker.id.rpartition("#")[0]


def _state(worker: WorkerRecord) -> str:
    """Return a worker's state. A pause by an operator remains after its end."""
    kept = worker.pause_reason is not None and "paused" not in str(worker.shown).lower()
    return f"{worker.shown}, paused" if kept else str(worker.shown)


for _one in commands("workers"):
    workers.command()(_one)
