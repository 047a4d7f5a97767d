"""A Ray actor's messages to its runtime: batches of bounded size, each kept until the next one.

Rules:
- Messages arrive in order. Memory holds frames; output stays in its file until its turn.
- The last batch is kept: it can be polled again.
- While an output is being written, only its head is sent, which never changes; the rest is sent when it is over.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ..workers.wire import packed
from .wire import OutputPart

CHUNK = 65_536
"""Maximum bytes of an output in one frame."""
BATCH = 262_144
"""A batch with so many bytes takes no further items."""
_LEAST_LIMIT = 1_024  # as in `Output`


class PrintedFile:
    """The kept part of an output to be sent. `end` is for the writer's thread, `read` for the sender."""

    def __init__(self, token: int, path: Path, limit: int) -> None:
        self.path = path
        self._token = token
        self._head = max(limit, _LEAST_LIMIT) // 2
        self._said = 0
        self._over = False

    def end(self) -> None:
        """Mark the output as complete."""
        self._over = True

    def read(self) -> bytes:
        """Return the next frame of the output; empty if nothing more can be sent now."""
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
        return packed(OutputPart(self._token, data)) if data else b""


Item = bytes | PrintedFile | Callable[[], bytes]


class RayOutbox:
    """The queue of frames. Any thread may call `put`, only one `batch`."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._some = threading.Condition()
        self._number = 0  # of the last batch
        self._last = b""

    def put(self, item: Item) -> None:
        """Add a frame; a function that makes frames at their turn; or an output, as far as it is written."""
        with self._some:
            self._items.append(item)
            self._some.notify()

    def batch(self, after: int, patience: float) -> bytes:
        """The batch after that number; empty if there is none within so many seconds."""
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
