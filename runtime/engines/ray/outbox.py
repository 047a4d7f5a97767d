"""What a Ray actor has to say, until its runtime has heard it: batches of bounded size, each kept until the next one.

Rules:
- What is said is heard in its order. Memory holds frames; output stays in its file until it is its turn.
- The last batch is kept: asked for again, it is given again.
- Of an output that is still written only its head is said, which never changes; the rest when it is over.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..workers.wire import packed
from .wire import Printed

CHUNK = 65_536
"""The most bytes of an output in one frame."""
BATCH = 262_144
"""Bytes after which a batch takes nothing more."""
_LEAST_LIMIT = 1_024  # as `Output` has it


class PrintedFile:
    """The kept part of an output on its way. `end` is for the thread that has it written, `read` for who says it."""

    def __init__(self, token: int, path: Path, limit: int) -> None:
        self.path = path
        self._token = token
        self._head = max(limit, _LEAST_LIMIT) // 2
        self._said = 0
        self._over = False

    def end(self) -> None:
        """Nothing more is written."""
        self._over = True

    def read(self) -> bytes:
        """The next frame of it; nothing when all is said that can be said now."""
        over = self._over
        try:
            with self.path.open("rb") as file:
                file.seek(self._said)
                data = file.read(CHUNK if over else max(0, min(CHUNK, self._head - self._said)))
        except FileNotFoundError:
            return b""
        if not data and over:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._said += len(data)
        return packed(Printed(self._token, data)) if data else b""


Item = bytes | PrintedFile | Callable[[], bytes]


class RayOutbox:
    """The frames that wait. `put` is for any thread, `batch` for one."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._some = threading.Condition()
        self._number = 0  # of the last batch
        self._last = b""

    def put(self, item: Item) -> None:
        """Say that: a frame; what makes frames when it is their turn; or an output, as far as it has come."""
        with self._some:
            self._items.append(item)
            self._some.notify()

    def batch(self, after: int, patience: float) -> bytes:
        """The batch after that one; nothing where there is none within so many seconds."""
        if after < self._number:
            return self._last
        with self._some:
            self._some.wait_for(lambda: self._items, patience)
        parts: list[bytes] = []
        size = 0
        while self._items and size < BATCH:
            item = self._items[0]
            if isinstance(item, PrintedFile):
                part = item.read()
                if not part:
                    self._items.popleft()
            else:
                part = item if isinstance(item, bytes) else item()
                self._items.popleft()
            parts.append(part)
            size += len(part)
        data = b"".join(parts)
        if data:
            self._number += 1
            self._last = data
        return data
