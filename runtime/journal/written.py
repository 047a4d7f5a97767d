"""A journal whose commits are a thread's, and whose questions go to a connection of their own.

Rules:
- The loop's side is here, and never blocks but in `open`, `lend` and `shut`; the writer's side is `writer.py`.
- Questions see what is committed, nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar
from warnings import warn

from ...actors.kernel.restore import Loaded
from ...actors.records.transition import Transitioned
from .batch import check
from .contract import Commits, Entry, Health, Identity, InboxRow, JournalError, Reader, Stored
from .writer import Medium, Writer, asker

R = TypeVar("R", bound=Stored)


class WrittenJournal(ABC, Generic[R]):
    """A journal on a medium. `where` names it for people, `short` the writer's thread.

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
        """Take ownership, learn its identity, and load the living. What raises leaves nothing behind."""

    def _give_up(self) -> None:
        """Give up what `_begin` took beside what it returned. All is written, or will not be."""

    @property
    def identity(self) -> Identity:
        """What it is known by. Raises JournalError when the journal was never open."""
        if self._identity is None:
            raise JournalError(f"{self._where} is not open. Open it before it is asked what it is.")
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
        """What was committed."""
        return Commits() if self._writer is None else self._writer.committed

    @property
    def commits(self) -> int:
        """How many batches were committed."""
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
        """Take one turn. Raises ValueError for one that could not be written. Never blocks."""
        check(entry)
        self._pending.append(entry)
        self._appended += len(entry.transitions)
        self.tail += 1
        return self.tail

    def flush(self) -> None:
        """Hand what is pending to the writer. Never blocks."""
        if self._pending:
            self._opened().hand(self.tail, self._pending)
            self._pending = []

    def lend(self) -> float | None:
        """Let the writer have the interpreter where it needs it: blocks for at most 2 ms."""
        return None if self._writer is None else self._writer.lend()

    def shut(self, deadline: float) -> bool:
        """Write what is pending, for at most `deadline` seconds, and let go of the medium. Blocks."""
        self.close()  # before the writer's connection: of SQLite, the last one to leave folds the log into the file
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
        """What answers questions. Raises JournalError when the journal was never open."""
        if self._reader is None:
            raise JournalError(f"{self._where} is not open. Open it, or read it with a reader of its own.")
        return self._reader

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands of other processes that this runtime has to do, oldest first, as in the contract."""
        return self.reader.inbox(events=events, limit=limit)

    def close(self) -> None:
        """Let go of the connection that answers questions: who asks it from now on gets a JournalError."""
        if self._reader is not None:
            self._reader.close()

    if not TYPE_CHECKING:  # until 1.0: what was asked of the journal itself is asked of its reader

        def __getattr__(self, name: str) -> object:
            if name.startswith("_") or not hasattr(Reader, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            warn(f"journal.{name} is journal.reader.{name} now", DeprecationWarning, stacklevel=2)
            return getattr(self.reader, name)
