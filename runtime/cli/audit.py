"""`callboard audit FILE.jsonl`: hold a log of transitions against the machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from .options import Lifecycles
from .terminal import echo
from .trouble import FAILED, Trouble

Log = Annotated[Path, typer.Argument(metavar="FILE.jsonl", help="A log written by --jsonl.")]

Machines = Annotated[
    list[Path] | None,
    typer.Option(
        "--machine",
        metavar="FILE.toml",
        help="A machine that entities in it run by, as it was when the log ended. May be repeated.",
    ),
]


def audit(file: Log, lifecycle: Lifecycles = None, machine: Machines = None) -> None:
    """Hold a log of transitions against the machines and the invariants."""
    from ...machines.audit import audit_lines  # noqa: PLC0415
    from .findings import report  # noqa: PLC0415
    from .functions import own_lifecycles  # noqa: PLC0415
    from .machines import Declared  # noqa: PLC0415

    own, declared = own_lifecycles(lifecycle), Declared(machine or [])
    try:
        with file.open("rb") as opened:
            if not opened.peek(1):
                echo(f"{file}: empty, it tells of no transition")
                return
            found = audit_lines(_lines(file, opened), lifecycles=own, machine_of=declared.machine_of)
    except OSError as error:
        raise Trouble(f"{file} cannot be read: {error.strerror}.") from None
    for name, count in sorted(declared.unknown.items()):
        echo(
            f"{count:,} entities run by machine {name!r}, which is not known here: they are held against what needs no "
            "table (`--machine FILE.toml`, or `callboard check`, which finds it in the journal)"
        )
    echo(f"{file}: {report(found)}")
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(FAILED)


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Its lines, none longer than any of ours: what is no log may have a line that never ends."""
    from ..jsonl import LONGEST_LINE  # noqa: PLC0415

    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise Trouble(f"{path} is no log: its line {number} has more than {LONGEST_LINE:,} bytes.")
        yield line
