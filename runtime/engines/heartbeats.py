"""Passes heartbeats, progress and emitted text from a body's thread or process to the loop: many in a row become one.

Rules:
- Only the last details, the last checkpoint and the last progress are passed on, each once. Emitted text is passed on
  whole, up to `MOST` characters that wait: of more, the oldest are dropped, and counted.
- `take` is for the thread that receives heartbeats, `pass_on` for the loop: neither waits for the other. What a body
  shows may come from several threads: it has a lock of its own (`ShownBuffer`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

from ..calling import Progress, Shown
from .context import Checkpoint

MOST = 1024 * 1024
"""Characters of emitted text that may wait to be passed on."""


class ShownBuffer:
    """The progress and text that a body has shown, and that were not passed on yet. Any thread may use it."""

    __slots__ = ("_lock", "_on_its_way", "_progress", "_size", "_skipped", "_texts")

    def __init__(self) -> None:
        self._lock = Lock()
        self._on_its_way = False
        self._progress: Progress | None = None
        self._texts: deque[str] = deque()
        self._size = 0
        self._skipped = 0

    def add(self, shown: Shown) -> bool:
        """Add progress or text. True if a call of `take` has to be requested."""
        with self._lock:
            if shown.progress is not None:
                self._progress = shown.progress
            if shown.skipped:  # characters are missing here: the earlier text does not join the next text
                self._skipped += shown.skipped + self._size
                self._texts.clear()
                self._size = 0
            if shown.text:
                self._texts.append(shown.text)
                self._size += len(shown.text)
                while self._size > MOST:
                    self._drop_oldest()
            if self._on_its_way:
                return False
            self._on_its_way = True
            return True

    def take(self) -> Shown | None:
        """Return all progress and text added since the last call; None if there is none."""
        with self._lock:
            self._on_its_way = False
            if self._progress is None and not self._texts and not self._skipped:
                return None
            shown = Shown(self._progress, "".join(self._texts), self._skipped)
            self._progress, self._size, self._skipped = None, 0, 0
            self._texts.clear()
            return shown

    def _drop_oldest(self) -> None:
        """Drop the oldest piece, or the beginning of the only one."""
        oldest = self._texts.popleft()
        rest = "" if self._texts else oldest[-MOST:]
        if rest:
            self._texts.append(rest)
        dropped = len(oldest) - len(rest)
        self._size -= dropped
        self._skipped += dropped


class Heartbeats:
    """The heartbeats of one body."""

    __slots__ = ("_details", "_kept", "_on_its_way", "_saved", "_shown", "_told")

    def __init__(self) -> None:
        self._details: Any = None
        self._saved: Checkpoint | None = None
        self._told: Any = None  # the details that were passed on last
        self._kept: Checkpoint | None = None
        self._on_its_way = False
        self._shown: ShownBuffer | None = None  # made when the body first shows something

    def take(self, details: Any) -> bool:
        """Note a heartbeat. True if the loop has to be called to pass it on."""
        if isinstance(details, Shown):
            if (shown := self._shown) is None:
                with _making:
                    shown = self._shown = self._shown or ShownBuffer()
            return shown.add(details)
        if isinstance(details, Checkpoint):
            self._saved = details
        elif details is not None:
            self._details = details
        if self._on_its_way:
            return False
        self._on_its_way = True
        return True

    def pass_on(self, beat: Callable[[Any], None]) -> None:
        """Pass on what the body has shown, and the latest heartbeat and checkpoint, on the loop."""
        if self._shown is not None and (shown := self._shown.take()) is not None:
            beat(shown)
        if not self._on_its_way:
            return
        self._on_its_way = False
        saved, details = self._saved, self._details
        if saved is not self._kept:
            self._kept = saved
            beat(saved)
            if details is self._told:
                return
        beat(None if details is self._told else details)
        self._told = details


_making = Lock()
