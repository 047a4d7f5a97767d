"""Ways for a program to kill itself with SIGKILL at an exact point of the library's code, which is not changed.

| a death | kills |
| --- | --- |
| `Commit(n, "before")` | when the n-th batch is ready to be committed |
| `Commit(n, "within")` | while SQLite works on it, after `steps` operations of its machine (or right behind it) |
| `Commit(n, "after")` | when it is committed, before anything is notified |
| `Released(n)` | when the loop has done the effects of the n-th commit |
| `Torn(n)` | when half of the n-th piece of the JSONL log is written |
| `Line(file, n)` | before the n-th executed line of this file of the library, in any thread |
| `Wrote(n)` | when bodies and steps of this process have written n lines into the log of the scene |
| `Opened(n)` | when SQLite's virtual machine has done n operations on one connection |

Each point is counted in one process only: after the next start, counting begins again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, Literal

import msgspec

from callboard.runtime.journal.sqlite.medium import SqliteMedium

from . import scene


class Commit(msgspec.Struct, frozen=True, tag=True):
    n: int
    where: Literal["before", "within", "after"]
    steps: int = 100


class Released(msgspec.Struct, frozen=True, tag=True):
    n: int


class Torn(msgspec.Struct, frozen=True, tag=True):
    n: int


class Line(msgspec.Struct, frozen=True, tag=True):
    file: str  # its path's end, as "journal/writer.py"
    n: int


class Opened(msgspec.Struct, frozen=True, tag=True):
    n: int


class Wrote(msgspec.Struct, frozen=True, tag=True):
    n: int


Death = Commit | Released | Torn | Line | Opened | Wrote


def die(*_: object) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


def arm(death: Death | None) -> None:
    """Let this process kill itself at that point."""
    match death:
        case Commit():
            _at_commit(death)
        case Released():
            _when_released(death)
        case Torn():
            _when_torn(death)
        case Line():
            _at_line(death)
        case Opened():
            _while_opening(death)
        case Wrote():
            _when_written(death)
        case None:
            pass


def _at_commit(death: Commit) -> None:
    from callboard.runtime.journal.writer import Writer

    start, count = Writer.start, 0

    def started(self: Writer) -> None:
        medium = self._medium
        commit = medium.commit

        def counted(batch: Any, away: Any) -> None:
            nonlocal count
            count += 1
            if count == death.n:
                if death.where == "before":
                    die()
                if death.where == "within":
                    _soon(medium, death.steps)
            commit(batch, away)
            if count == death.n:
                die()

        medium.commit = counted  # type: ignore[method-assign]
        start(self)

    Writer.start = started  # type: ignore[method-assign]


def _soon(medium: Any, steps: int) -> None:
    """Kill this process during a commit: after so many operations of SQLite, or as many times 10 us elsewhere."""
    if isinstance(medium, SqliteMedium):
        assert medium._connection is not None
        medium._connection.set_progress_handler(die, steps)
    else:
        threading.Timer(steps / 1e5, die).start()


def _when_released(death: Released) -> None:
    from callboard.runtime.host import KernelHost

    release, done = KernelHost.release, -1

    def counted(self: KernelHost) -> None:
        nonlocal done
        release(self)
        if self.journal.commits > done:  # type: ignore[attr-defined]
            done = self.journal.commits  # type: ignore[attr-defined]
            if done >= death.n:
                die()

    KernelHost.release = counted  # type: ignore[method-assign]


def _when_written(death: Wrote) -> None:
    left = death.n

    def written() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    scene.AFTER_LINES.append(written)


class _Half:
    """A file that writes only half of the data that it gets."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        self._file.write(data[: len(data) // 2])
        return die()


def _when_torn(death: Torn) -> None:
    from callboard.runtime.journal.jsonl import JsonlLog

    add, count = JsonlLog._add, 0

    def counted(self: JsonlLog, rows: Any) -> None:
        nonlocal count
        count += 1
        if count == death.n:
            self._file = _Half(self._file)  # type: ignore[assignment]
        add(self, rows)

    JsonlLog._add = counted  # type: ignore[method-assign]


def _at_line(death: Line) -> None:
    left = death.n

    def line(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                die()
        return line

    def call(frame: FrameType, event: str, _: object) -> Any:
        return line if frame.f_code.co_filename.endswith(death.file) else None

    threading.settrace(call)
    sys.settrace(call)


def _while_opening(death: Opened) -> None:
    from callboard.runtime.journal import archive
    from callboard.runtime.journal.sqlite import opening, reader

    connect = opening.connect

    def watched(*args: Any) -> Any:
        connection = connect(*args)
        connection.set_progress_handler(die, death.n)
        return connection

    opening.connect = archive.connect = reader.connect = watched
