"""`callboard breaker list|reset|trip`: the circuit breakers of tools."""

from __future__ import annotations

from typing import Any

import typer

from .acting import AsJson
from .boards import Place, anywhere
from .control import commands
from .options import JOURNAL

breaker = typer.Typer(help="Show, reset and trip the circuit breakers of tools.", no_args_is_help=True)


@breaker.command("list")
@anywhere
def list_(journal: Place = JOURNAL, as_json: AsJson = False) -> None:
    """Show the breakers of a journal's tools."""
    import time  # noqa: PLC0415

    from ...actors.records.transition import iso  # noqa: PLC0415
    from . import words  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415
    from .status import as_lines, table  # noqa: PLC0415

    with reading(journal) as reader:
        records = reader.breakers()
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "tool": record.name,
                "state": record.shown,
                "failures": record.failures,
                "since": iso(record.updated_at),
                "until": None if record.due_at is None else iso(record.due_at),
                "reason": record.reason,
            }
            for record in records
        ]
        as_lines(rows)
        return
    now = time.time()
    table(
        ("tool", "state", "for", "failures", "until", "reason"),
        [
            [
                record.id,
                str(record.shown),
                words.took(now - record.updated_at),
                f"{record.failures}/{record.failure_threshold}",
                "" if record.due_at is None else words.due(record.due_at),
                words.one_line(record.reason or ""),
            ]
            for record in records
        ],
    )


for _one in commands("breaker"):
    breaker.command()(_one)
