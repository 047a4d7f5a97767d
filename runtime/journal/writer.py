"""The writer: a thread that commits the loop's entries, one batch at a time, until it is stopped.

Rules:
- All entries handed over when the writer becomes free form one batch, up to `LARGEST` transitions.
- A batch is committed whole or not at all. After any error the writer first asks the medium whether the batch did
  commit before the error: it is never written twice, and never given up while running.
- Only `LeaseLost` makes the writer end before it is stopped: another runtime owns what it would write.
- The loop hands over by appending to a deque and putting a token; the writer answers by `durable` and one call, which
  only tells the loop to look. Neither ever waits for the other, except in `lend`: there a busy loop yields the
  interpreter to the writer for as long as the writer needs it, and continues while the medium works without it.
- Only this thread closes the medium and releases the right to write it, when it ends: a commit that hangs in the
  system keeps both.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Protocol

from ...actors.records.transition import Transitioned
from ...actors.user_code import contained
from ..errors import LeaseLost
from .batch import Batch
from .contract import Commits, Entry, Health

LARGEST = 50_000
"""Transitions after which a batch takes no more entries, so that none takes seconds."""
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
"""Seconds between retries of a batch that cannot be written: doubled each time, up to the longest."""
LEND_AFTER = 0.002
LEND_FOR = 0.002
"""Seconds: the age of a batch at which the loop yields the interpreter, and for how long at a time."""

GO_ON = 0.5
"""Seconds that a batch which was found late for the first time gets in addition."""
SLOW = 10.0
"""Seconds after which a running write makes the journal count as degraded."""
CLOSE = 4.0
"""Seconds that a medium has to close once all is written: until then no other runtime may open the journal."""
_WELL = Health()
GIVE_UP = 0.1
"""Seconds beyond the deadline of `stop` for the writer to notice it, and to close the medium."""


class Medium(Protocol):
    """The place where batches are committed. All methods except `open` are called in the writer's thread."""

    name: str
    """The name of the place that cannot be written, for people."""
    answers: str
    """Name, for people, of what does not answer if a write takes long."""

    def open(self) -> None:
        """Prepare for the first commit. Raises the medium's errors."""
        ...

    def has(self, batch: Batch) -> bool:
        """Whether that batch is already committed. Called before each try: it first repairs what failed in the last
        one.

        Raises LeaseLost, or the error why it cannot be written now.
        """
        ...

    def commit(self, batch: Batch, away: Callable[[], None]) -> None:
        """Commit a batch. Calls `away` when it needs the interpreter only to return. Raises as `has` does."""
        ...

    def failed(self, error: Exception) -> str:
        """Handle an error of `has` or `commit`; return in words why the batch could not be written."""
        ...

    def close(self) -> None:
        """Close everything, and release the right to write. Raises nothing."""
        ...


class Writer:
    """Commits batches to a medium.

    name: the thread's name. pause: waits so many seconds between two tries. clock: monotonic seconds.
    changed: called, from this thread, when `durable` or `health` has changed.
    """

    def __init__(
        self,
        medium: Medium,
        name: str,
        *,
        changed: Callable[[], None],
        after_commit: Callable[[Sequence[Transitioned]], None] | None,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.durable = 0  # the last entry that is on disk
        self.written = 0  # transitions on disk
        self.handed = 0  # the last entry handed over
        self.commits = 0
        self.committed = Commits()
        self.lost: LeaseLost | None = None  # why it has ended by itself
        self._medium = medium
        self._changed = changed
        self._after_commit = after_commit
        self._health = Health()
        self._clock = clock
        self._stopping = threading.Event()
        self._deadline = 0.0  # for the last tries, once stopping
        self._pause = pause if pause is not None else self._stopping.wait
        self._slices: deque[tuple[int, list[Entry]]] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._awake = False
        self._since = 0.0  # when the current batch was handed over, or begun
        self._late = (-1, 0.0)  # `durable` when the present batch was first found late, and the time of that
        self._is_away = False  # the medium works on the batch: no interpreter is needed now
        self._moved = threading.Lock()  # released for a moment when a batch goes to the medium, and when it is written
        self._moved.acquire()
        self._thread = threading.Thread(target=self._run, name=f"journal {name}", daemon=True)

    # -- called by the loop

    def start(self) -> None:
        """Open the medium and start the thread. Raises the medium's errors."""
        self._medium.open()
        self._thread.start()

    @property
    def health(self) -> Health:
        """Whether entries handed over are written, and soon enough."""
        now = self._clock()
        if self._health.ok and self.durable != self.handed and (age := now - self._since) > SLOW:
            if self._late[0] != self.durable:  # the whole program may have stood still: the writer gets time to go on
                self._late = self.durable, now
            if now - self._late[1] < GO_ON:
                return self._health
            reason = f"cannot write {self._medium.name}: {self._medium.answers} has not answered for {age:.0f} s"
            return Health(ok=False, reason=reason, since=time.time() - age)
        return self._health

    def hand(self, number: int, entries: list[Entry]) -> None:
        """Hand over entries; the last has that number. The writer owns them from now on."""
        if self.durable == self.handed:
            self._since = self._clock()
        self.handed = number
        self._slices.append((number, entries))
        if not self._awake:
            self._awake = True
            self._tokens.put(None)

    def lend(self) -> float | None:
        """Yield the interpreter to the writer while the writer needs it: blocks for at most `LEND_FOR`.

        The writer needs it to take the entries and pass them to the medium, and again to report that they are written.
        The loop waits for that once the batch is older than `LEND_AFTER`. Returns in how many seconds to call again,
        None if all is written. While a slow medium works, the interval grows; for a batch that cannot be written the
        loop does not wait.
        """
        if self.durable == self.handed:
            return None
        if not self._health.ok:
            return FIRST_DELAY
        self._moved.acquire(blocking=False)
        if not self._is_away:
            if self.durable != self.handed:
                self._moved.acquire(timeout=LEND_FOR)
            return LEND_AFTER
        age = self._clock() - self._since
        if age < LEND_AFTER:
            return LEND_AFTER - age
        self._moved.acquire(timeout=LEND_FOR)
        return None if self.durable == self.handed else max(LEND_AFTER, (self._clock() - self._since) / 2)

    def stop(self, deadline: float) -> bool:
        """Write the remaining entries, for at most `deadline` seconds, and end. True if all are written."""
        self._deadline = self._clock() + deadline
        self._stopping.set()
        self._tokens.put(None)
        self._thread.join(deadline + GIVE_UP)
        written = self.durable == self.handed
        if written and self.health.ok:
            self._thread.join(CLOSE)
        return written

    # -- called in the writer's thread

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
            self._medium.close()

    def _take(self) -> Batch:
        entries: list[Entry] = []
        size = number = 0
        while self._slices and size < LARGEST:
            number, more = self._slices.popleft()
            entries += more
            size += sum(len(entry.transitions) for entry in more)
        return Batch(number, entries)

    def _write(self, batch: Batch) -> bool:
        """Commit a batch, however many tries it takes. False if it was given up, since the writer has to end."""
        delay, began = FIRST_DELAY, self._clock()
        while not self._try(batch):
            if self.lost is not None:
                return False
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
        self._health = _WELL
        self._move()
        self._tell()
        if self._after_commit is not None:
            with contextlib.suppress(Exception):  # observers of the journal must not stop it
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
            if not self._medium.has(batch):
                self._medium.commit(batch, self._away)
        except LeaseLost as error:
            self.lost = error
            self._failed(error)
            return False
        except BaseException as error:  # no error may end the writer: the loop waits for it
            self._failed(contained(error))
            return False
        finally:
            self._is_away = False
        return True

    def _away(self) -> None:
        self._is_away = True
        self._move()

    def _move(self) -> None:
        """Release a loop that waits in `lend`."""
        if self._moved.locked():
            self._moved.release()

    def _failed(self, error: Exception) -> None:
        reason = f"cannot write {self._medium.name}: {self._medium.failed(error)}"
        if self._health.reason != reason:
            since = time.time() if self._health.since is None else self._health.since
            self._health = Health(ok=False, reason=reason, since=since, lost=self.lost is not None)
            self._tell()

    def _tell(self) -> None:
        with contextlib.suppress(Exception):  # the loop may have ended: then no task waits
            self._changed()


def asker(
    on_durable: Callable[[], None], call_threadsafe: Callable[[Callable[[], None]], object]
) -> Callable[[], None]:
    """The writer's callback: asks the loop to check for durable entries, unless an earlier request is pending."""
    asked = False

    def look() -> None:
        nonlocal asked
        asked = False
        on_durable()

    def changed() -> None:
        nonlocal asked
        if not asked:
            asked = True
            call_threadsafe(look)

    return changed
