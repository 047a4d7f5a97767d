"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .hints import JOURNAL_NAME, journal_typed

THE_JOURNAL = "The journal: an SQLite file, or the address of a PostgreSQL database."
JOURNAL = Path(JOURNAL_NAME)
DEFAULT = JOURNAL_NAME
Journal = Annotated[
    str,
    typer.Option("--journal", "-j", metavar="FILE", callback=journal_typed, help=THE_JOURNAL, show_default=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines, also on a terminal.")]


def _as_typed_here(path: Path | None) -> Path | None:
    """Make a path absolute at once: an imported module may change the working folder."""
    return None if path is None else path.expanduser().absolute()


JsonLog = Annotated[
    Path | None,
    typer.Option(
        "--jsonl", metavar="FILE", callback=_as_typed_here, help="Also write the log of transitions to FILE, as JSONL."
    ),
]
Node = Annotated[
    str | None,
    typer.Option("--node", metavar="NAME", help="For a database: the name of this node (by default HOST-PID)."),
]
Lease = Annotated[
    str | None,
    typer.Option(
        "--lease", metavar="SPAN", help="For a database: how long this node may be silent before a take-over (15s)."
    ),
]
DRAIN = "8s"
"""How long running bodies may go on after the program was told to stop: below the 10 s of container runtimes."""
DrainDeadline = Annotated[
    str,
    typer.Option(
        "--drain-deadline", metavar="SPAN", envvar="CALLBOARD_DRAIN",
        help="How long running bodies may go on after the first SIGTERM or Ctrl+C.",
    ),
]  # fmt: skip
Lifecycles = Annotated[
    list[str] | None,
    typer.Option(
        "--lifecycle", metavar="MODULE:NAME", help="The import path of your own lifecycle, if entities use one."
    ),
]
LONGEST = 86400.0 * 365
"""The largest number of seconds for an option: a year. (Typer then refuses `nan`, too.)"""


MaybeJobId = Annotated[
    str | None, typer.Argument(metavar="[JOB]", help="A job's id, or the beginning of it.", show_default=False)
]
MaybeTask = Annotated[str | None, typer.Argument(metavar="[TASK]", help="A task's name.", show_default=False)]
