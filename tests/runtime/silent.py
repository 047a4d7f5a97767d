"""A journal in a file that answers nothing while a test says so."""

from __future__ import annotations

import threading
from pathlib import Path

from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.reader import SqliteReader


class Silent(SqliteJournal):
    """A journal whose reader can be told to answer nobody. Its writer goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.answers = threading.Event()
        self.answers.set()
        self.waiting = 0

    @property
    def reader(self) -> SqliteReader:
        self.waiting += 1
        assert self.answers.wait(60)
        self.waiting -= 1
        return super().reader
