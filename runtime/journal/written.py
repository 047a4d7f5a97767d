"""A journal with a writer thread for commits, and a separate connection for questions.

Rules:
- This module is the loop's side, and blocks only in `open`, `lend` and `shut`; the writer's side is `writer.py`.
- Questions see only what is committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar
from warnings import warn

from ...actors.records.loaded import Loaded
from ...actors.records.transition import Transitioned
from ..errors import JournalError
from .batch import check
from .contract import Commits, Entry, Health, Identity, InboxRow, Reader, Stored
from .writer import Medium, Writer, asker

R = TypeVar("R", bound=Stored)


class WrittenJournal(ABC, Generic[R]):
    """A journal on a medium. `where` names it for people, `short` names the writer's thread.

    pause and clock: how the writer waits between two tries of a batch, and monotonic seconds.
    """

    durable_medium = True

    def __init__(
        self, where: str, short: str, *, pause: Callable[[float], object] | None, clock: Callable[[], float]
    ) -> None:
        self.tail = 0
        self._where = where
        self._short = short
        self._pause = pause
        self._clock = clock
        self._appended = 0  # transitions
        self._pending: list[Entry] = []
        self._writer: Writer | None = None
        self._reader: R | None = None
        self._identity: Identity | None = None

    @abstractmethod
    def _begin(self) -> tuple[R, Loaded, Medium]:
        """Take ownership, read the identity, and load the living entities. If it raises, it leaves nothing behind."""

    def _give_up(self) -> None:
        """Release what `_begin` took besides its return value. All is written by then, or never will be."""

    @property
    def identity(self) -> Identity:
        """The journal's identity. Raises JournalError if the journal was never open."""
        if self._identity is None:
            raise JournalError(f"{self._where} is not open. Open it before its identity is read.")
        return self._identity

    # -- writing

    @property
    def durable(self) -> int:
        """The number of the last entry that is durable."""
        return 0 if self._writer is None else self._writer.durable

    @property
    def backlog(self) -> int:
        """Transitions appended and not yet durable."""
        return 0 if self._writer is None else self._appended - self._writer.written

    @property
    def health(self) -> Health:
        """Whether the journal can write."""
        return Health() if self._writer is None else self._writer.health

    @property
    def committed(self) -> Commits:
        """Totals of commits."""
        return Commits() if self._writer is None else self._writer.committed

    @property
    def commits(self) -> int:
        """The number of committed batches."""
        return 0 if self._writer is None else self._writer.commits

    def open(
        self,
        *,
        on_durable: Callable[[], None],
        call_threadsafe: Callable[[Callable[[], None]], object],
        after_commit: Callable[[Sequence[Transitioned]], None] | None = None,
    ) -> Loaded:
        """Take ownership, migrate, and load the living. Blocks; raises JournalError."""
        if self._writer is not None:
            raise JournalError(f"{self._where} was already opened by this journal. Make another one to open it again.")
        reader, loaded, medium = self._begin()
        writer = Writer(
            medium, self._short, changed=asker(on_durable, call_threadsafe), after_commit=after_commit,
            pause=self._pause, clock=self._clock,
        )  # fmt: skip
        try:
            writer.start()
        except BaseException:
            reader.close()
            medium.close()
            self._give_up()
            raise
        self._reader, self._writer = reader, writer
        return loaded

    def append(self, entry: Entry) -> int:
        """Add one turn. Raises ValueError if it cannot be written. Never blocks."""
        check(entry)
        self._pending.append(entry)
        self._appended += len(entry.transitions)
        self.tail += 1
        return self.tail

    def flush(self) -> None:
        """Hand pending entries to the writer. Never blocks."""
        if self._pending:
            self._opened().hand(self.tail, self._pending)
            self._pending = []

    def lend(self) -> float | None:
        """Yield the interpreter to the writer if the writer needs it: blocks for at most 2 ms."""
        return None if self._writer is None else self._writer.lend()

    def shut(self, deadline: float) -> bool:
        """Write pending entries, for at most `deadline` seconds, and close the medium. Blocks."""
        self.close()  # before the writer's connection: in SQLite, the last one to close folds the log into the file
        if self._writer is None:
            return not self._pending
        self.flush()
        written = self._writer.stop(deadline)
        self._give_up()
        return written

    def _opened(self) -> Writer:
        if self._writer is None:
            raise JournalError(f"{self._where} is not open. Open it before anything is written.")
        return self._writer

    # -- reading

    @property
    def reader(self) -> R:
        """The reader that answers questions. Raises JournalError if the journal was never open."""
        if self._reader is None:
            raise JournalError(f"{self._where} is not open. Open it, or read it with a reader of its own.")
        return self._reader

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that this runtime has to run, oldest first, as in the contract."""
        return self.reader.inbox(events=events, limit=limit)

    def close(self) -> None:
        """Close the reader's connection: later questions raise JournalError."""
        if self._reader is not None:
            self._reader.close()

    if not TYPE_CHECKING:  # until 1.0: forwards questions to the reader

        def __getattr__(self, name: str) -> object:
            if name.startswith("_") or not hasattr(Reader, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            warn(f"journal.{name} is journal.reader.{name} now", DeprecationWarning, stacklevel=2)
            return getattr(self.reader, name)
