"""The progress of running bodies, in a file beside the journal's file: for commands that only read the journal.

Rules
-----
- Nothing waits for the file, and nothing in it is durable: it is written in a thread, without fsync, at most once in
  `EVERY` seconds, and less often if writing is slow. A write that fails is repeated with the next progress.
- It is replaced as a whole, so that a reader never sees a part of it. It is removed when the runtime closes.
- Each progress is kept with the fencing token of its attempt. A reader compares the token with that of the task's
  record: so what a killed runtime has left is never shown for another attempt.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ..calling import Progress
from ..errors import JournalError

if TYPE_CHECKING:
    from ..dispatch.timers import Timer, Timers
    from .live import LiveTasks

EVERY = 1.0
"""Seconds between two writes."""
SHARE = 20
"""Writing takes at most this part of the time: one twentieth."""
MOST = 10_000
"""Tasks in the file."""
LARGEST = 16 * 1024 * 1024
"""Bytes that a reader takes."""
KeptProgress: TypeAlias = dict[str, tuple[int, Progress]]
"""The progress of tasks, by their ids, each with the token of its attempt."""


def progress_file_of(journal: Path) -> Path:
    """The path of the file that belongs to a journal's file."""
    return journal.with_name(f"{journal.name}.progress")


def read_progress(journal: Path) -> KeptProgress:
    """The progress that the runtime of a journal has written last; nothing if there is none, or it cannot be read."""
    try:
        with progress_file_of(journal).open("rb") as file:
            return msgspec.json.decode(file.read(LARGEST), type=KeptProgress)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


class ProgressFile:
    """Writes the progress of one runtime's bodies.

    ask: runs a blocking function in a thread, and waits for it. start: runs a coroutine function in a task of the
    runtime.
    """

    def __init__(
        self,
        journal: Path,
        live: LiveTasks,
        timers: Timers,
        monotonic: Callable[[], float],
        *,
        ask: Callable[..., Awaitable[Any]],
        start: Callable[[Callable[[], Any]], object],
    ) -> None:
        self._journal = journal
        self._live = live
        self._timers = timers
        self._monotonic = monotonic
        self._ask = ask
        self._start = start
        self._timer: Timer | None = None
        self._writing = False
        self._changed = False  # since the write that is under way has begun
        self._next = float("-inf")  # monotonic: the earliest time of the next write
        self._closed = False
        self._lock = Lock()  # so that no write comes after the removal
        live.on_change = self.changed

    def changed(self) -> None:
        """Have the file written soon: some body has reported its progress, or has ended."""
        self._changed = True
        if self._timer is None and not self._writing and not self._closed:
            self._timer = self._timers.arm(max(self._next, self._monotonic()), self._begin)

    def _begin(self) -> None:
        self._timer, self._writing = None, True
        self._start(self._write)

    async def _write(self) -> None:
        self._changed = False
        took = 0.0
        try:
            took = await self._ask(self._put, self._live.all_progress(MOST))
        except JournalError:
            pass  # the wait was ended, as the runtime closes
        finally:
            self._writing = False
            self._next = self._monotonic() + max(EVERY, SHARE * took)
        if self._changed:
            self.changed()

    async def close(self) -> None:
        """Write no more, and remove the file."""
        self._closed, self._live.on_change = True, None
        if self._timer is not None:
            self._timers.cancel(self._timer)
        with suppress(JournalError):  # the wait was ended: what is left is never taken for another attempt's
            await self._ask(self._remove)

    def _put(self, kept: KeptProgress) -> float:
        began = time.perf_counter()
        with self._lock:
            if not self._closed:
                write_progress(self._journal, kept)
        return time.perf_counter() - began

    def _remove(self) -> None:
        with self._lock:
            remove_progress(self._journal)


def write_progress(journal: Path, kept: KeptProgress) -> None:
    """Write the file anew. Raises nothing: without the file nothing is lost."""
    path = progress_file_of(journal)
    part = path.with_name(f"{path.name}.part")
    with suppress(OSError, ValueError):
        part.unlink(missing_ok=True)
        rights = journal.stat().st_mode & 0o666  # who may read the journal may read what its bodies say
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(kept))
        part.chmod(rights)
        part.replace(path)


def remove_progress(journal: Path) -> None:
    """Remove the file. Raises nothing: one that is left is never taken for the progress of another attempt."""
    path = progress_file_of(journal)
    for one in (path, path.with_name(f"{path.name}.part")):
        with suppress(OSError):
            one.unlink(missing_ok=True)
