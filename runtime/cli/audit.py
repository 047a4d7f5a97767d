"""`callboard audit FILE.jsonl ...`: check logs of transitions against the machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from .command_errors import FAILED, CommandError
from .options import Lifecycles
from .terminal import echo

Logs = Annotated[
    list[Path],
    typer.Argument(metavar="FILE.jsonl", help="A log written by --jsonl; with several nodes, all their logs."),
]

Machines = Annotated[
    list[Path] | None,
    typer.Option(
        "--machine",
        metavar="FILE.toml",
        help="A machine of entities in the log, as it was when the log ended. May be repeated.",
    ),
]


def audit(files: Logs, lifecycle: Lifecycles = None, machine: Machines = None) -> None:
    """Check logs of transitions, of one or several nodes, against machines and invariants."""
    from contextlib import ExitStack  # noqa: PLC0415

    from ...machines.audit.audit import audit_lines, audit_logs  # noqa: PLC0415
    from .findings import report  # noqa: PLC0415
    from .functions import own_lifecycles  # noqa: PLC0415
    from .machines import DeclaredMachines  # noqa: PLC0415

    own, declared = own_lifecycles(lifecycle), DeclaredMachines(machine or [])
    with ExitStack() as stack:
        logs: dict[str, Iterator[bytes]] = {}
        for file in files:
            try:
                opened = stack.enter_context(file.open("rb"))
                if opened.peek(1):
                    logs[str(file)] = _lines(file, opened)
                else:
                    echo(f"{file}: empty, without transitions")
            except OSError as error:
                raise CommandError(f"{file} cannot be read: {error.strerror}.") from None
        if not logs:
            return
        try:
            if len(logs) == 1:
                found = audit_lines(next(iter(logs.values())), lifecycles=own, machine_of=declared.machine_of)
            else:
                found = audit_logs(logs, lifecycles=own, machine_of=declared.machine_of)
        except OSError as error:
            raise CommandError(f"{', '.join(logs)} cannot be read: {error.strerror}.") from None
    for name, count in sorted(declared.unknown.items()):
        echo(
            f"{count:,} entities run by machine {name!r}, which is not known here: only checks without a table were "
            "made (use `--machine FILE.toml`, or `callboard check`, which finds the machine in the journal)"
        )
    echo(f"{', '.join(logs)}: {report(found)}")
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(FAILED)


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Read the file's lines. A file that is no log may have an endless line."""
    from ..journal.jsonl import LONGEST_LINE  # noqa: PLC0415

    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise CommandError(f"{path} is no log: its line {number} has more than {LONGEST_LINE:,} bytes.")
        yield line
