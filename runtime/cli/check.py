"""`callboard check`: whether a journal is consistent: its transitions with the machines, its records with both."""

from __future__ import annotations

import typer

from .options import JOURNAL, Journal, Lifecycles
from .terminal import echo
from .trouble import FAILED


def check(journal: Journal = JOURNAL, lifecycle: Lifecycles = None) -> None:
    """Hold a journal's transitions against the machines and the invariants, and its records against both."""
    from ..consistency import examine  # noqa: PLC0415
    from .findings import report  # noqa: PLC0415
    from .functions import own_lifecycles  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    own = own_lifecycles(lifecycle)
    with reading(journal) as reader:
        reader.check_pages()
        seen = examine(reader, lifecycles=own)
    echo(f"{journal}: {seen.transitions:,} transitions, {seen.records:,} records: {report(seen.found)}")
    if any(finding.severity == "error" for finding in seen.found):
        raise typer.Exit(FAILED)
