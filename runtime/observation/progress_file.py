"""The progress of running bodies, in a file beside the journal's file: for commands that only read the journal.

Rules
-----
- Nothing waits for the file, and nothing in it is durable: it is written in a thread, without fsync, as often as
  `progress_writer.py` says. A failed write is repeated with the next progress.
- It is replaced as a whole, so that a reader never sees a part of it. It is removed when the runtime closes;
  and when a runtime opens, since a killed runtime has left its file.
- Each progress is kept with the fencing token of its attempt. A reader compares the token with that of the task's
  record: so the progress that a killed runtime has left is never shown for another attempt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeAlias

import msgspec

from ..calling import Progress
from ..journal.live import LiveProgress

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
    """Keeps the progress of one runtime's bodies in the file, from its first write until `remove`.

    The runtime owns the journal already: an existing file was left by a killed runtime, and is removed.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = Lock()  # so that no write comes after the removal
        self._removed = False
        remove_progress(journal)

    def write(self, progress: Sequence[LiveProgress]) -> None:
        """Write the progress of all bodies. Blocks; raises nothing."""
        with self._lock:
            if not self._removed:
                write_progress(self._journal, {one.task_id: (one.token, one.progress) for one in progress})

    def remove(self) -> None:
        """Write no more, and remove the file. Blocks; raises nothing."""
        with self._lock:
            self._removed = True
            remove_progress(self._journal)


def write_progress(journal: Path, kept: KeptProgress) -> None:
    """Write the file anew. Raises nothing: without the file nothing is lost."""
    path = progress_file_of(journal)
    part = path.with_name(f"{path.name}.part")
    with suppress(OSError, ValueError):
        part.unlink(missing_ok=True)
        rights = journal.stat().st_mode & 0o666  # users who may read the journal may read the progress
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(kept))
        part.chmod(rights)
        part.replace(path)


def remove_progress(journal: Path) -> None:
    """Remove the file. Raises nothing: a file that stays is never taken for the progress of another attempt."""
    path = progress_file_of(journal)
    for one in (path, path.with_name(f"{path.name}.part")):
        with suppress(OSError):
            one.unlink(missing_ok=True)
