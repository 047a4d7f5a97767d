"""`callboard backup` and `callboard restore`: copies of a journal's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..journal.location import Database, in_words, store_of
from .command_errors import CommandError
from .hints import hint
from .options import DEFAULT, Journal
from .terminal import echo

To = Annotated[Path, typer.Argument(metavar="FILE", help="The new file for the copy.")]
Copy = Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `callboard backup` made.")]


def backup(to: To, journal: Journal = DEFAULT) -> None:
    """Copy a journal into a new file, as of one moment. A runtime may use the journal meanwhile.

    The output of commands is not included: copy the folder JOURNAL.output as well.
    """
    from ..journal.sqlite.backup import back_up  # noqa: PLC0415 - sqlite3

    source = _file(journal, "pg_dump")
    back_up(source, to)
    echo(f"{in_words(source)} was copied to {in_words(to)} ({to.stat().st_size:,} bytes)")


def restore(copy: Copy, journal: Journal = DEFAULT) -> None:
    """Make a journal from a copy. Nothing runs: `callboard resume`, or the program of the jobs, continues them.

    Jobs are in their state at the time of the copy: work that was done since is done again. New fencing tokens are
    higher than all that were given since.
    """
    from ..journal.sqlite.backup import restore as make  # noqa: PLC0415 - sqlite3

    _file(journal, "pg_restore")
    to = Path(journal).absolute()  # a new file of that name: an existing link is not followed
    make(copy, to)
    echo(f"{in_words(to)} was made from {copy}: {hint('resume')} continues its unfinished jobs")


def _file(journal: str, instead: str) -> Path:
    store = store_of(journal)
    if isinstance(store, Database):
        raise CommandError(f"Only a journal's file can be copied. For a database use PostgreSQL's `{instead}`.")
    return store
