"""`callboard backup` and `callboard restore`: a copy of a journal's file, and a journal of a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..journal.location import Database, in_words, store_of
from .options import DEFAULT, Journal
from .terminal import echo
from .trouble import Trouble

To = Annotated[Path, typer.Argument(metavar="FILE", help="The copy, a new file.")]
Copy = Annotated[Path, typer.Argument(metavar="FILE", help="A copy that `callboard backup` made.")]


def backup(to: To, journal: Journal = DEFAULT) -> None:
    """Copy a journal into a new file, as of one moment. A runtime may use the journal meanwhile.

    The output of commands is not in it: copy the folder JOURNAL.output as well.
    """
    from ..journal.sqlite.backup import back_up  # noqa: PLC0415 - sqlite3

    source = _file(journal, "pg_dump")
    back_up(source, to)
    echo(f"{in_words(source)} was copied to {in_words(to)} ({to.stat().st_size:,} bytes)")


def restore(copy: Copy, journal: Journal = DEFAULT) -> None:
    """Make a journal of a copy. Nothing is run: `callboard resume`, or the program that has the jobs, goes on.

    Jobs are as they were at the time of the copy: what has been done since is done again. Fencing tokens go on above
    all that were given since.
    """
    from ..journal.sqlite.backup import restore as make  # noqa: PLC0415 - sqlite3

    _file(journal, "pg_restore")
    to = Path(journal).absolute()  # a new file of that name: a link that is there is left as it is
    make(copy, to)
    echo(f"{in_words(to)} was made of {copy}: `callboard resume` goes on with what is unfinished in it")


def _file(journal: str, instead: str) -> Path:
    store = store_of(journal)
    if isinstance(store, Database):
        raise Trouble(f"Only files are copied: for a database there is PostgreSQL's own `{instead}`.")
    return store
