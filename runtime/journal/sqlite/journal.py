"""The journal in one SQLite file: the default, for one runtime on one machine.

Rules:
- WAL with `synchronous=FULL`: what is durable survives a power failure, not only the process.
- The loop's side is `runtime/journal/written.py`, the writer's `runtime/journal/writer.py` and `medium.py`.
- Questions use a separate read-only connection: they see only what is committed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from ....actors.records.loaded import Loaded
from ...errors import JournalError
from ..contract import Identity
from ..location import file_of
from ..notify import SocketNotifier
from ..writer import Medium
from ..written import WrittenJournal
from .medium import SqliteMedium
from .opening import claiming, connect_writer, take
from .reader import SqliteReader

OLDEST_SQLITE = (3, 38, 0)
"""The first version that always has the JSON functions."""


class SqliteJournal(WrittenJournal[SqliteReader]):
    """The journal at `path`.

    connect, pause and clock are for tests: how the writer opens the file, how it waits between two tries of a batch,
    and monotonic seconds.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        connect: Callable[[Path], sqlite3.Connection] = connect_writer,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = file_of(path)
        super().__init__(str(self.path), self.path.name, pause=pause, clock=clock)
        self._connect = connect

    @property
    def shared(self) -> Path:
        """The file that other processes can put commands into."""
        return self.path

    @property
    def cluster(self) -> None:
        """None: a file has one owner."""
        return None

    @property
    def own(self) -> SqliteReader:
        """All transitions: no other runtime writes the file. Raises JournalError if the journal was never open."""
        return self.reader

    def again(self) -> SqliteReader:
        """A reader with its own connection, which works also after `shut`. Raises JournalError."""
        return SqliteReader(self.path)

    def notifier(self) -> SocketNotifier:
        """A socket beside the file."""
        return SocketNotifier(self.path)

    def _begin(self) -> tuple[SqliteReader, Loaded, Medium]:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise JournalError(f"SQLite {sqlite3.sqlite_version} is too old for a journal: 3.38 is needed.")
        lock = take(self.path)
        reader = None
        try:
            with claiming(self.path) as file:
                reader = SqliteReader(self.path)
                before, loaded = file.entry, reader.load()  # read first: a damaged file is refused, and not touched
                claimed = file.claim()  # later commits of another owner fail
                if claimed.entry != before:
                    loaded = reader.load()  # what another owner has committed meanwhile
            self._identity = Identity(claimed.journal, claimed.copy)
        except BaseException:
            if reader is not None:
                reader.close()
            lock.release()
            raise
        return reader, loaded, SqliteMedium(self.path, lock, claimed, aside=reader.aside, connect=self._connect)
