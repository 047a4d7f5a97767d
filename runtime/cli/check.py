"""`callboard check`: check a journal's transitions against the machines, and its records against both."""

from __future__ import annotations

import typer

from .command_errors import FAILED
from .options import DEFAULT, Journal, Lifecycles
from .terminal import echo


def check(journal: Journal = DEFAULT, lifecycle: Lifecycles = None) -> None:
    """Check a journal's transitions against the machines and the invariants, and its records against both.

    It reads the file or database itself, so it has no --url: a board does not show every page and record.
    """
    from ...machines.keywords import number_of  # noqa: PLC0415
    from ..journal.consistency import examine  # noqa: PLC0415
    from ..journal.location import in_words, store_of  # noqa: PLC0415
    from .findings import report  # noqa: PLC0415
    from .functions import own_lifecycles  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    own = own_lifecycles(lifecycle)
    store = store_of(journal)
    with reading(store) as reader:
        reader.check_pages()
        seen = examine(reader, lifecycles=own)
    looked_at = f"{number_of(seen.transitions, 'transition')}, {number_of(seen.records, 'record')}"
    echo(f"{in_words(store)}: {looked_at}: {report(seen.found)}")
    if any(finding.severity == "error" for finding in seen.found):
        raise typer.Exit(FAILED)
