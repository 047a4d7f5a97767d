"""A journal in a file, whose reader a test can block."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from callboard.actors.records.loaded import Loaded
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.journal.writer import Medium


class Silent(SqliteJournal):
    """A journal whose reader can be blocked. Its writer continues."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.answers = threading.Event()
        self.answers.set()
        self.waiting = 0

    def _begin(self) -> tuple[SqliteReader, Loaded, Medium]:
        reader, loaded, medium = super()._begin()
        ask = reader._rows

        def rows(*args: Any) -> list[Any]:
            self.waiting += 1
            assert self.answers.wait(600)
            self.waiting -= 1
            return ask(*args)

        reader._rows = rows  # type: ignore[method-assign]
        return reader, loaded, medium
