"""A check that no query of a journal runs on the event loop, which would block it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.journal.sqlite.reader import SqliteReader


@contextmanager
def asked_in_threads_only() -> Iterator[None]:
    """Make every query of the journal on the event loop fail."""
    loop = threading.get_ident()

    def checked(ask: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any) -> Any:
            assert threading.get_ident() != loop, "the journal was asked on the event loop"
            return ask(*args)

        return asked

    with pytest.MonkeyPatch.context() as patch:
        for reader in (SqliteReader, PostgresReader):
            patch.setattr(reader, "_rows", checked(reader._rows))
        yield
