"""`callboard migrate`: create a journal's tables, or update them to this version of Callboard."""

from __future__ import annotations

from .options import DEFAULT, Journal
from .terminal import echo


def migrate(journal: Journal = DEFAULT) -> None:
    """Create a journal's tables, or update those of an older Callboard. A runtime does it too, if it has the rights.

    Use it for a database in which programs may not create tables: run it once as a user who may, before they start.
    """
    from ..journal.location import Database, in_words, store_of  # noqa: PLC0415

    store = store_of(journal)
    if isinstance(store, Database):
        from ..journal.postgres.address import parse  # noqa: PLC0415 - an extra
        from ..journal.postgres.opening import migrate as bring  # noqa: PLC0415

        before, after = bring(parse(store.address))
    else:
        from ..journal.sqlite.opening import prepare, take  # noqa: PLC0415 - sqlite3

        lock = take(store)  # an older Callboard that has it open could not use the new tables
        try:
            before, after = prepare(store)
        finally:
            lock.release()
    if before == after:
        echo(f"{in_words(store)} has version {after}: nothing had to be changed.")
    else:
        echo(f"{in_words(store)} {f'had version {before}' if before else 'was new'}, and has version {after} now.")
