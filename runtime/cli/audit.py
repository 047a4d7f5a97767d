"""`callboard audit FILE.jsonl ...`: hold a log of transitions against the machines, or those of several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from .options import Lifecycles
from .terminal import echo
from .trouble import FAILED, Trouble

Logs = Annotated[
    list[Path],
    typer.Argument(metavar="FILE.jsonl", help="A log written by --jsonl; of several nodes of a journal, theirs."),
]

Machines = Annotated[
    list[Path] | None,
    typer.Option(
        "--machine",
        metavar="FILE.toml",
        help="A machine that entities in it run by, as it was when the log ended. May be repeated.",
    ),
]


def audit(files: Logs, lifecycle: Lifecycles = None, machine: Machines = None) -> None:
    """Hold a log of transitions, or those of several nodes, against the machines and the invariants."""
    from contextlib import ExitStack  # noqa: PLC0415

    from ...machines.audit.audit import audit_lines, audit_logs  # noqa: PLC0415
    from .findings import report  # noqa: PLC0415
    from .functions import own_lifecycles  # noqa: PLC0415
    from .machines import Declared  # noqa: PLC0415

    own, declared = own_lifecycles(lifecycle), Declared(machine or [])
    with ExitStack() as stack:
        logs: dict[str, Iterator[bytes]] = {}
        for file in files:
            try:
                opened = stack.enter_context(file.open("rb"))
                if opened.peek(1):
                    logs[str(file)] = _lines(file, opened)
                else:
                    echo(f"{file}: empty, it tells of no transition")
            except OSError as error:
                raise Trouble(f"{file} cannot be read: {error.strerror}.") from None
        if not logs:
            return
        try:
            if len(logs) == 1:
                found = audit_lines(next(iter(logs.values())), lifecycles=own, machine_of=declared.machine_of)
            else:
                found = audit_logs(logs, lifecycles=own, machine_of=declared.machine_of)
        except OSError as error:
            raise Trouble(f"{', '.join(logs)} cannot be read: {error.strerror}.") from None
    for name, count in sorted(declared.unknown.items()):
        echo(
            f"{count:,} entities run by machine {name!r}, which is not known here: they are held against what needs no "
            "table (`--machine FILE.toml`, or `callboard check`, which finds it in the journal)"
        )
    echo(f"{', '.join(logs)}: {report(found)}")
    if any(finding.severity == "error" for finding in found):
        raise typer.Exit(FAILED)


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Its lines, none longer than any of ours: what is no log may have a line that never ends."""
    from ..journal.jsonl import LONGEST_LINE  # noqa: PLC0415

    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise Trouble(f"{path} is no log: its line {number} has more than {LONGEST_LINE:,} bytes.")
        yield line
