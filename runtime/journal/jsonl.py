"""The log of transitions as a file of JSON lines, by the event schema of seed 001 (`machines/audit/log.py`).

Rules:
- Lines are written after the commit, by whoever tells of it (the journal's writer), in the order of the commits.
- The journal is the truth. A line that is torn or missing is no loss: when the log is opened, a torn end is cut off and
  what is missing is filled in from the journal, out of which nothing is moved before (`runtime/journal/archive.py`).
  Of a journal that several nodes share, the log has what its node commits, and is filled in with no more.
- A place where no log can be is refused before anything is opened: somebody asked for a log that would not be there.
- A log that cannot be written later never stops the journal. It is counted (`missed`), said once (`trouble` and a
  warning in the application's log), and filled in as soon as it can be.
- A log whose numbers are not this journal's is refused: it is never appended to, and never emptied.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ...actors.records.transition import Transitioned
from ...actors.user_code import written
from ...machines import TransitionEvent, event_type
from ..text.logs import Line, write
from .contract import History, JournalError, JournalUnwritable
from .location import belongs_to, in_words, name_too_long

BLOCK = 1 << 16
LONGEST_LINE = 32 << 20
"""Bytes of a line, beyond which nothing is taken for one: no log of ours has such."""
"""Bytes read at a time, from the end backwards, when the last line is looked for."""
FILLED = 1_000
"""Lines written at a time when gaps are filled."""

_BEGINNING = b'{"seq":'  # of every line

_encode_lines = msgspec.json.Encoder(enc_hook=written).encode_lines


class LogConflict(JournalError):  # noqa: N818 - it names the state of the file
    """The log belongs to another journal. Move it away, or name another file; it was not touched."""


# Any: a Struct made from another's fields has no static type. A third of the time of one with keywords only.
_Line: Any = msgspec.defstruct(
    "_Line", [(field.name, field.type) for field in msgspec.structs.fields(TransitionEvent)], gc=False
)


class _Last(msgspec.Struct):
    """What is read of the last line."""

    seq: int
    entity_id: str
    to_state: str


def log_line(row: Transitioned) -> Any:
    """The transition as the log tells it: a `TransitionEvent`, but for the speed of its making."""
    return _Line(
        row.seq, row.timestamp, event_type(row.kind), row.severity, row.entity_id, row.entity_seq, row.from_state,
        row.to_state, row.event, row.reason, row.job_id, row.workstream_id, row.run, row.attempt, row.worker_id,
        row.metadata or {},
    )  # fmt: skip


def _line_before(file: BinaryIO, end: int) -> bytes:
    """The line that ends at `end`, with its newline if it has one."""
    pieces: list[bytes] = []
    start, cut = end, -1
    while start and cut < 0 and end - start <= LONGEST_LINE:
        step = min(BLOCK, start)
        start -= step
        file.seek(start)
        piece = file.read(step)
        cut = piece.rfind(b"\n", 0, len(piece) - (not pieces))  # its own end is none
        pieces.append(piece[cut + 1 :])
    return b"".join(reversed(pieces))


def _before_zeros(file: BinaryIO, end: int) -> int:
    """Where the blocks of zeros begin that a crash of the system left at the end, if it left any."""
    while end:
        step = min(BLOCK, end)
        file.seek(end - step)
        if file.read(step).strip(b"\0"):
            return end
        end -= step
    return end


def _is_foreign(line: bytes) -> bool:
    """Whether a line that cannot be read is no torn one of ours: those begin as ours do, or are blocks of zeros."""
    text = line.strip(b"\0\n")
    return text[: len(_BEGINNING)] != _BEGINNING[: len(text)]


def last_written(path: Path) -> int | None:
    """The number of the last transition that a log has on its disk, 0 if it has none; None if there is no such file.

    Raises JournalUnwritable if it cannot be read, LogConflict if it is none.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            os.fsync(file.fileno())
            last, _ = _find_end(file, path)
    except OSError as error:
        raise JournalUnwritable(f"Cannot read the log {path}: {error.strerror}. Nothing was taken out.") from error
    return 0 if last is None else last.seq


def _find_end(file: BinaryIO, path: Path) -> tuple[_Last | None, int]:
    """The last whole line of a log, looked for from the end, and where it ends. Raises LogConflict."""
    end = _before_zeros(file, file.seek(0, os.SEEK_END))
    foreign = False
    while end:
        line = _line_before(file, end)
        if line.endswith(b"\n"):
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return msgspec.json.decode(line, type=_Last), end
        end -= len(line)
        foreign = foreign or _is_foreign(line)
    if foreign:
        raise LogConflict(f"{path} is no log of transitions. It was not touched: name another file.")
    return None, 0


class JsonlLog:
    """The log at `path`. Open it before the first line is written.

    trouble: called, in the thread that writes, with the path and in words, when it cannot be written.
    missed: transitions that are not in it yet because it could not be written; trouble: why, in words.
    """

    def __init__(self, path: str | Path, *, trouble: Callable[[Path, str], object] | None = None) -> None:
        self.path = Path(path)
        self._tell = trouble or _say
        self.missed = 0
        self.trouble: str | None = None
        self._reader: History | None = None
        self._file: BinaryIO | None = None
        self._last = 0  # the number of the last line
        self._size = 0  # bytes up to the end of the last whole line
        self._one_at_a_time = threading.Lock()  # the journal's writer, and who asks to catch up

    def check_place(self, journal: Path | None = None) -> None:
        """Refuse a place where no log can be. Nothing is made there. Raises JournalUnwritable.

        journal: the file of the journal that it is the log of.
        """
        folder = self.path.absolute().parent
        if name_too_long(self.path):
            problem = "that is too long for a path. Name it shorter"
        elif self.path.is_symlink():  # all links have been followed
            problem = "it is a link that leads to itself, or through too many others. Name a file"
        elif journal is not None and belongs_to(self.path, journal):
            problem = f"it is a file of the journal {in_words(journal)} itself. Name another file"
        elif not folder.is_dir():
            problem = f"there is no folder {folder}. Make it first"
        elif self.path.exists() and not self.path.is_file():
            problem = "it is a folder, a device or the like. Name a file"
        elif not os.access(self.path if self.path.exists() else folder, os.W_OK):
            problem = f"the {'file' if self.path.exists() else 'folder'} is read-only to this user. Name another file"
        else:
            return
        raise JournalUnwritable(f"Cannot write the log {in_words(self.path)!r}: {problem}.")

    def open(self, reader: History) -> int:
        """Cut off a torn end, and fill in what the journal has beyond the last line. Blocks. Returns how many lines.

        `reader` is asked again when the log could not be written for a while. Raises LogConflict if the log is not
        this journal's, JournalUnwritable if there can be no log, and JournalError if the journal cannot be read. A file
        that takes no more is only told of.
        """
        self.check_place()
        try:
            self._open_file().close()
        except OSError as error:
            raise JournalUnwritable(
                f"Cannot write the log {self.path}: {error.strerror}. Name another file."
            ) from error
        self._reader = reader
        try:
            return self._mend()
        except OSError as error:
            self._failed(error, 0)
            return 0
        except JournalError:
            self.close()
            raise

    def write(self, rows: Sequence[Transitioned]) -> None:
        """Add the lines of transitions that have just become durable. A file that cannot be written is only told of."""
        with self._one_at_a_time:
            try:
                if self.trouble is not None or self._file is None:
                    self._mend()
                else:
                    self._add(rows)
            except (OSError, JournalError) as error:
                self._failed(error, len(rows))

    def catch_up(self) -> None:
        """Have all in it that is durable now, if it can be written. Blocks, in any thread."""
        with self._one_at_a_time:
            try:
                self._mend()
            except (OSError, JournalError) as error:
                self._failed(error, 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _mend(self) -> int:
        """Find the end of what is whole, and fill in what the journal has beyond it."""
        if self._reader is None:
            raise JournalError(f"The log {self.path} is not open.")
        self.close()
        self._file = self._open_file()
        last, self._size = _find_end(self._file, self.path)
        if last is not None:
            self._check(last, self._reader)
        self._last = 0 if last is None else last.seq
        self._file.truncate(self._size)
        filled = 0
        rows = self._reader.transitions(after=self._last)
        while some := list(islice(rows, FILLED)):
            self._add(some)
            filled += len(some)
        self.missed = 0
        self.trouble = None
        return filled

    def _open_file(self) -> BinaryIO:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
        return open(handle, "r+b", buffering=0)  # noqa: PTH123 - a handle, kept open

    def _check(self, last: _Last, reader: History) -> None:
        """Raise LogConflict unless the journal has that last line too."""
        same = list(reader.transitions(after=last.seq - 1, limit=1))
        if any(first <= last.seq <= end for first, end in reader.archived_numbers()):
            return  # it was moved out of the journal since
        if not same or (same[0].seq, same[0].entity_id, same[0].to_state) != (last.seq, last.entity_id, last.to_state):
            raise LogConflict(
                f"The log {self.path} ends with transition {last.seq} of {last.entity_id}, which this journal does not "
                "have: it belongs to another one. Move it away, or name another file."
            )

    def _add(self, rows: Iterable[Transitioned]) -> None:
        assert self._file is not None  # noqa: S101 - both callers have opened it
        lines = [log_line(row) for row in rows if row.seq > self._last]
        if not lines:
            return
        data = memoryview(_encode_lines(lines))
        self._size += len(data)
        while data:
            data = data[self._file.write(data) :]
        self._last = lines[-1].seq

    def _failed(self, error: Exception, missed: int) -> None:
        self.missed += missed
        self.close()
        if self.trouble is None:
            what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.trouble = f"cannot write the log {self.path}: {what}"
            self._tell(self.path, f"{self.trouble}. The journal has all of it; what is missing is filled in later")


def _say(path: Path, text: str) -> None:
    write(Line("warning", "log_unwritable", text, {"path": str(path), "text": text}))
