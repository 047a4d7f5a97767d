"""`callboard audit FILE.jsonl`: hold a log of transitions against the machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Lifecycles
from .terminal import echo
from .trouble import FAILED, Trouble

Log = Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="A log written by --jsonl.")]


def audit(file: Log, lifecycle: Lifecycles = None) -> None:
    """Hold a log of transitions against the machines and the invariants."""
    from ...machines.audit import audit_lines  # noqa: PLC0415
    from .findings import report  # noqa: PLC0415
    from .functions import own_lifecycles  # noqa: PLC0415

    own = own_lifecycles(lifecycle)
    try:
        with file.open("rb") as lines:
            found = audit_lines(lines, lifecycles=own)
    except OSError as error:
        raise Trouble(f"{file} cannot be read: {error.strerror}.") from None
    echo(f"{file}: {report(found)}")
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(FAILED)
