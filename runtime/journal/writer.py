"""The writer: a thread that commits what the loop hands to it, one batch at a time, until it is told to stop.

Rules:
- What has been handed over when the writer becomes free forms one batch, up to `LARGEST` transitions.
- A batch is committed whole or not at all. After any error the file is opened anew, and its last entry's number
  says whether the batch did commit before the error: it is never written twice, and never given up while running.
- What went to a file that has lost its name is not durable (`files.py`). A removed log or index is mended; a removed or
  replaced database is waited for, and one comes in its place only if it holds all that was acknowledged.
- The loop hands over by appending to a deque and putting a token; the writer answers by `durable` and one call,
  which only tells the loop to look. Neither ever waits for the other, but in `lend`: there a busy loop lets the writer
  have the interpreter for as long as it needs it, and goes on while SQLite works without it.
- The file, and the right to write it, are let go by this thread when it ends, and by nobody else: a commit that
  hangs in the system keeps both.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue

from ...actors.transitions import Transitioned
from .batch import Batch
from .contract import Commits, Entry, Health
from .files import Files, FilesMoved
from .lock import Lock
from .opening import code_of, connect_writer
from .schema import COMMIT

LARGEST = 50_000
"""Transitions after which a batch takes no more entries, so that none takes seconds."""
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Seconds between tries of a batch that cannot be written: doubled each time, up to the longest."""
LEND_AFTER = 0.002
LEND_FOR = 0.002
"""Seconds: the age of a batch at which the loop lends the interpreter, and for how long at a time."""

SLOW = 10.0
"""Seconds that a write may take before the journal counts as one that cannot be written."""
GIVE_UP = 0.1
"""Seconds beyond the deadline of `stop` that the writer has to notice it, and to let go of the file."""

_DAMAGED = "the file is damaged: stop this runtime, keep the file, and restore it from a copy"
_TELLS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_BUSY: "another program holds the file locked",
    sqlite3.SQLITE_READONLY: "the file has become read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
    sqlite3.SQLITE_PERM: "this user may not write the file any more",
    sqlite3.SQLITE_IOERR: "the disk fails (an error of reading or writing)",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}

_FOREIGN = (
    "another file is in its place, an older copy of it, or another runtime has used it. "
    "Put back the one that was in use"
)


class Writer:
    """Commits batches to the file at `path`, of which it owns `lock`.

    owner and base: from `opening.claim`. connect: opens the file. pause: waits so many seconds between two tries.
    clock: monotonic seconds. aside: while it lasts nobody of this process reads the file.
    changed: called, from this thread, when `durable` or `health` has moved.
    """

    def __init__(
        self,
        path: Path,
        lock: Lock,
        owner: int,
        base: int,
        *,
        changed: Callable[[], None],
        after_commit: Callable[[Sequence[Transitioned]], None] | None,
        aside: Callable[[], AbstractContextManager[None]],
        connect: Callable[[Path], sqlite3.Connection] = connect_writer,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.durable = 0  # the last entry that is on disk
        self.written = 0  # transitions on disk
        self.handed = 0  # the last entry handed over
        self.commits = 0
        self.committed = Commits()
        self._path = path
        self._lock = lock
        self._owner = owner
        self._base = base
        self._changed = changed
        self._after_commit = after_commit
        self._aside = aside
        self._connect = connect
        self._files: Files
        self._astray = False  # a file of the journal has lost its name; the connection has it still
        self._health = Health()
        self._clock = clock
        self._stopping = threading.Event()
        self._deadline = 0.0  # of the last tries, once stopping
        self._pause = pause if pause is not None else self._stopping.wait
        self._connection: sqlite3.Connection | None = None
        self._slices: deque[tuple[int, list[Entry]]] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._awake = False
        self._since = 0.0  # when what is being written was handed over, or begun
        self._in_sqlite = False  # it needs no interpreter just now
        self._moved = threading.Lock()  # free for a moment when a batch goes to SQLite, and when it is written
        self._moved.acquire()
        self._thread = threading.Thread(target=self._run, name=f"journal {path.name}", daemon=True)

    # -- the loop's side

    def start(self) -> None:
        """Open the file and begin. Raises sqlite3.Error if it cannot be opened."""
        self._open()
        self._thread.start()

    @property
    def health(self) -> Health:
        """Whether what is handed over gets written, and within a bearable time."""
        if self._health.ok and self.durable != self.handed and (age := self._clock() - self._since) > SLOW:
            reason = f"cannot write {self._path}: the disk has not answered for {age:.0f} s"
            return Health(ok=False, reason=reason, since=time.time() - age)
        return self._health

    def hand(self, number: int, entries: list[Entry]) -> None:
        """Hand over entries, the last of which has that number. They are the writer's from now on."""
        if self.durable == self.handed:
            self._since = self._clock()
        self.handed = number
        self._slices.append((number, entries))
        if not self._awake:
            self._awake = True
            self._tokens.put(None)

    def lend(self) -> float | None:
        """Let the writer have the interpreter while it needs it: blocks for at most `LEND_FOR`.

        It needs it to take up what it was handed, until that has gone to SQLite, and again to say that it is written;
        for that the loop waits once the batch is older than `LEND_AFTER`. Returns when to ask again, None if all is
        written. A batch that waits for a slow disk is asked after ever more seldom, and one that cannot be written is
        not waited for.
        """
        if self.durable == self.handed:
            return None
        if not self._health.ok:
            return FIRST_DELAY
        self._moved.acquire(blocking=False)
        if not self._in_sqlite:
            if self.durable != self.handed:
                self._moved.acquire(timeout=LEND_FOR)
            return LEND_AFTER
        age = self._clock() - self._since
        if age < LEND_AFTER:
            return LEND_AFTER - age
        self._moved.acquire(timeout=LEND_FOR)
        return None if self.durable == self.handed else max(LEND_AFTER, (self._clock() - self._since) / 2)

    def stop(self, deadline: float) -> bool:
        """Write what was handed over, for at most `deadline` seconds, and end. True if all is written."""
        self._deadline = self._clock() + deadline
        self._stopping.set()
        self._tokens.put(None)
        self._thread.join(deadline + GIVE_UP)
        return self.durable == self.handed

    # -- the writer's side

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() or self._slices:
                self._tokens.get()
                while self._slices:
                    if not self._write(self._take()):
                        return
                self._awake = False
                if self._slices:  # handed over while `awake` was still true
                    self._tokens.put(None)
        finally:
            self._close()
            self._lock.release()

    def _take(self) -> Batch:
        entries: list[Entry] = []
        size = number = 0
        while self._slices and size < LARGEST:
            number, more = self._slices.popleft()
            entries += more
            size += sum(len(entry.transitions) for entry in more)
        return Batch(number, self._base, entries)

    def _write(self, batch: Batch) -> bool:
        """Commit a batch, however often it takes. False if it was given up because the writer has to stop."""
        delay, began = FIRST_DELAY, self._clock()
        while not self._try(batch):
            if self._stopping.is_set():
                if self._clock() >= self._deadline:
                    return False
                time.sleep(min(delay, 0.02))
            else:
                self._pause(delay)
                delay = min(delay * 2, LONGEST_DELAY)
        self.commits += 1
        self.written += len(batch.transitions)
        self._since = self._clock()
        self._count(len(batch.transitions), self._since - began)
        self.durable = batch.number
        self._health = Health()
        self._move()
        self._tell()
        if self._after_commit is not None:
            with contextlib.suppress(Exception):  # what watches the journal never stops it
                self._after_commit(batch.transitions)
        return True

    def _count(self, transitions: int, took: float) -> None:
        committed = self.committed
        committed.commits += 1
        committed.transitions += transitions
        committed.seconds += took
        committed.slowest = max(committed.slowest, took)

    def _try(self, batch: Batch) -> bool:
        try:
            if self._connection is None or self._astray:
                connection = self._come_back()
                if self._last_entry(connection) >= self._base + batch.number:
                    return True  # it was committed, and the error came after
            else:
                connection = self._connection
            batch.parts()
            self._in_sqlite = True
            self._move()
            _commit(connection, batch)
            self._files.check()
        except FilesMoved as error:  # the connection is kept: nobody else has what was committed
            self._astray = True
            self._failed(error)
            return False
        except Exception as error:  # nothing may end the writer: the loop waits for it
            self._close()
            self._failed(error)
            return False
        finally:
            self._in_sqlite = False
        return True

    def _move(self) -> None:
        """Let a loop go on that waits in `lend`."""
        if self._moved.locked():
            self._moved.release()

    def _open(self) -> sqlite3.Connection:
        connection = self._connection = self._connect(self._path)
        self._files = Files(self._path)
        return connection

    def _come_back(self) -> sqlite3.Connection:
        """Get a connection to the journal by its name. Raises FilesMoved, OSError, sqlite3.Error."""
        if not self._files.is_in_place:
            connection = self._adopt()
        elif self._connection is None:
            connection = self._open()
        else:
            connection = self._mend(self._connection)
        self._astray = False
        return connection

    def _mend(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Make up for a log or an index that was removed. Those that are back in their places are good as they are."""
        with contextlib.suppress(FilesMoved):
            self._files.check()
            return connection
        with self._aside():
            self._files.fold(connection)
            self._close()
            return self._open()

    def _adopt(self) -> sqlite3.Connection:
        """Take what stands in the database's place, if it holds all that was acknowledged."""
        if self._files.database is None:
            text = "it was removed or moved away while it was in use. Put it back"
            if self._connection is not None:
                text += f", or rename {self._files.save(self._connection).name}, which holds all of it"
            raise FilesMoved(text)
        owner, entry = self._files.stands_in()
        if owner != self._owner or entry < self._base + self.durable:
            raise FilesMoved(_FOREIGN)
        with self._aside():
            self._close()
            self._files.leave()
            return self._open()

    def _last_entry(self, connection: sqlite3.Connection) -> int:
        owner, entry = connection.execute("SELECT owner, entry FROM meta").fetchone()
        if owner != self._owner or entry < self._base + self.durable:
            self._close()
            raise FilesMoved(_FOREIGN)
        return int(entry)

    def _failed(self, error: Exception) -> None:
        what = _TELLS.get(code_of(error), str(error) or type(error).__name__)
        reason = f"cannot write {self._path}: {what}"
        if self._health.reason != reason:
            since = time.time() if self._health.since is None else self._health.since
            self._health = Health(ok=False, reason=reason, since=since)
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(Exception):  # the loop may be gone: then nobody waits
            self._changed()

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _commit(connection: sqlite3.Connection, batch: Batch) -> None:
    parts = batch.parts()
    if len(parts) == 1:
        connection.execute(COMMIT, parts[0])
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for part in parts:
            connection.execute(COMMIT, part)
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
