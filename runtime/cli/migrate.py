"""`callboard migrate`: bring a journal's tables to what this Callboard writes, or make them."""

from __future__ import annotations

from .options import DEFAULT, Journal
from .terminal import echo


def migrate(journal: Journal = DEFAULT) -> None:
    """Make the tables of a journal, or bring those of an older Callboard up to date. A runtime does it too, if it may.

    For a database in which programs may make no tables themselves: run it once, by whoever may, before they start.
    """
    from ..journal.location import Database, in_words, store_of  # noqa: PLC0415

    store = store_of(journal)
    if isinstance(store, Database):
        from ..journal.postgres.address import parse  # noqa: PLC0415 - an extra
        from ..journal.postgres.opening import migrate as bring  # noqa: PLC0415

        before, after = bring(parse(store.address))
    else:
        from ..journal.sqlite.lock import Lock  # noqa: PLC0415
        from ..journal.sqlite.opening import check_place, prepare, refuse_held  # noqa: PLC0415 - sqlite3

        check_place(store)
        lock = Lock(store)  # an older Callboard that has it would not know its tables any more
        try:
            refuse_held(store)
            before, after = prepare(store)
        finally:
            lock.release()
    if before == after:
        echo(f"{in_words(store)} is of version {after}: nothing was to be done.")
    else:
        echo(f"{in_words(store)} was {f'of version {before}' if before else 'new'}, and is of version {after} now.")
