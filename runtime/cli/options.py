"""Arguments and options that several commands have, in one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Journal = Annotated[
    Path, typer.Option("--journal", "-j", metavar="FILE", help="The journal: an SQLite file.", show_default=True)
]
JOURNAL = Path("callboard.db")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines, also on a terminal.")]
JsonLog = Annotated[
    Path | None, typer.Option("--jsonl", metavar="FILE", help="Also write the log of transitions to FILE, as JSONL.")
]
Lifecycles = Annotated[
    list[str] | None,
    typer.Option(
        "--lifecycle", metavar="MODULE:NAME", help="A lifecycle of your own that entities run by: its import path."
    ),
]
MaybeJobId = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="A job's id, or the beginning of it.", show_default=False)
]
MaybeTask = Annotated[str | None, typer.Argument(metavar="[TASK]", help="A task's name.", show_default=False)]
