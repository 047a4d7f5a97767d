"""The log of transitions as a file of JSON lines. Its event schema: `machines/audit/log.py` (seed 001).

Rules:
- The journal's writer writes the lines after the commit, in the order of the commits.
- The journal is authoritative. A torn or missing line is no loss: when the log is opened, a torn end is cut off, and
  missing lines are filled in from the journal. The archive moves a transition only after the log has it
  (`journal/archive.py`). If several nodes share a journal, each node's log has the commits of that node only, and is
  filled in with no others.
- A path where no log can be written is refused before anything is opened: otherwise the user would miss the log later.
- A log that cannot be written later never stops the journal. The missing lines are counted (`missed`), reported once
  (`trouble` and a warning in the application's log), and filled in as soon as possible.
- A log of another journal is refused: nothing is appended to it, and it is never emptied.
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
from ..errors import JournalError, JournalUnwritable
from ..text.logs import LogLine, write
from .contract import History
from .location import belongs_to, in_words, name_too_long

BLOCK = 1 << 16
LONGEST_LINE = 32 << 20
"""Bytes: a longer piece without a line end does not count as a line. No log of ours has such lines."""
"""Bytes that are read at a time, backwards from the end, to find the last line."""
FILLED = 1_000
"""Lines that are written at a time when missing lines are filled in."""

_BEGINNING = b'{"seq":'  # the beginning of every line

_encode_lines = msgspec.json.Encoder(enc_hook=written).encode_lines


class LogConflict(JournalError):  # noqa: N818 - the name says the file's state
    """The log belongs to another journal, and was not touched. Move it away, or name another file."""


# Any: a Struct made from another's fields has no static type. Making it takes a third of the time of a keyword-only
# one.
_Line: Any = msgspec.defstruct(
    "_Line", [(field.name, field.type) for field in msgspec.structs.fields(TransitionEvent)], gc=False
)


class _Last(msgspec.Struct):
    """The fields that are read of the last line."""

    seq: int
    entity_id: str
    to_state: str


def log_line(row: Transitioned) -> Any:
    """Make a transition's line for the log: as a `TransitionEvent`, but faster to make."""
    return _Line(
        row.seq, row.timestamp, event_type(row.kind), row.severity, row.entity_id, row.entity_seq, row.from_state,
        row.to_state, row.event, row.reason, row.job_id, row.workstream_id, row.run, row.attempt, row.worker_id,
        row.metadata or {},
    )  # fmt: skip


def _line_before(file: BinaryIO, end: int) -> bytes:
    """Read the line that ends at `end`, with its newline if it has one."""
    pieces: list[bytes] = []
    start, cut = end, -1
    while start and cut < 0 and end - start <= LONGEST_LINE:
        step = min(BLOCK, start)
        start -= step
        file.seek(start)
        piece = file.read(step)
        cut = piece.rfind(b"\n", 0, len(piece) - (not pieces))  # the line's own newline does not begin it
        pieces.append(piece[cut + 1 :])
    return b"".join(reversed(pieces))


def _before_zeros(file: BinaryIO, end: int) -> int:
    """Find where the data ends. A crash of the system may leave blocks of zeros after it."""
    while end:
        step = min(BLOCK, end)
        file.seek(end - step)
        if file.read(step).strip(b"\0"):
            return end
        end -= step
    return end


def _is_foreign(line: bytes) -> bool:
    """Whether an unreadable line is foreign. A torn line of ours begins like ours, or is blocks of zeros."""
    text = line.strip(b"\0\n")
    return text[: len(_BEGINNING)] != _BEGINNING[: len(text)]


def last_written(path: Path) -> int | None:
    """Read the number of the last transition in a log on disk.

    0 if the log has none; None if the file does not exist.

    Raises JournalUnwritable if the file cannot be read, LogConflict if it is not a log of transitions.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            os.fsync(file.fileno())
            last, _ = _find_end(file, path)
    except OSError as error:
        raise JournalUnwritable(
            f"Cannot read the log {path}: {error.strerror}. Nothing was moved out of the journal."
        ) from error
    return 0 if last is None else last.seq


def _find_end(file: BinaryIO, path: Path) -> tuple[_Last | None, int]:
    """Find the last whole line of a log, from the end, and where it ends. Raises LogConflict."""
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

    trouble: called with the path and a text, in the thread that writes, when the log cannot be written.
    missed: number of transitions that are not in the log yet, because it could not be written; trouble: the reason.
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
        self._one_at_a_time = threading.Lock()  # held by the journal's writer, and by `catch_up`

    def check_place(self, journal: Path | None = None) -> None:
        """Refuse a path where no log can be written. Creates nothing. Raises JournalUnwritable.

        journal: the file of the journal whose transitions the log holds.
        """
        folder = self.path.absolute().parent
        if name_too_long(self.path):
            problem = "that is too long for a path. Name it shorter"
        elif self.path.is_symlink():  # links that lead to a file were followed before
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
        """Cut off a torn end, and add the lines that are missing after it. Blocks.

        After a time in which the log could not be written, the missing lines are read from `reader`. Returns how many
        lines were filled in. Raises LogConflict if the log is of another journal, JournalUnwritable if no log can be
        written there, and JournalError if the journal cannot be read. If only writing the lines fails, that is
        reported, not raised.
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
        """Add the lines of transitions that were just committed. A file that cannot be written is only reported."""
        with self._one_at_a_time:
            try:
                if self.trouble is not None or self._file is None:
                    self._mend()
                else:
                    self._add(rows)
            except (OSError, JournalError) as error:
                self._failed(error, len(rows))

    def catch_up(self) -> None:
        """Write all lines that are committed now, if the file can be written. Blocks, in any thread."""
        with self._one_at_a_time:
            try:
                self._mend()
            except (OSError, JournalError) as error:
                self._failed(error, 0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _mend(self) -> int:
        """Cut off a torn end, and add the journal's transitions that are missing after it."""
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
        return open(handle, "r+b", buffering=0)  # noqa: PTH123 - it opens a handle, which stays open

    def _check(self, last: _Last, reader: History) -> None:
        """Raise LogConflict unless the journal has that last line too."""
        same = list(reader.transitions(after=last.seq - 1, limit=1))
        if any(first <= last.seq <= end for first, end in reader.archived_numbers()):
            return  # the archive has moved this transition out of the journal
        if not same or (same[0].seq, same[0].entity_id, same[0].to_state) != (last.seq, last.entity_id, last.to_state):
            raise LogConflict(
                f"The log {self.path} ends with transition {last.seq} of {last.entity_id}, which this journal does not "
                "have: the log belongs to another journal. Move it away, or name another file."
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
            self._tell(
                self.path, f"{self.trouble}. The journal has all transitions; the missing lines are filled in later"
            )


def _say(path: Path, text: str) -> None:
    write(LogLine("warning", "log_unwritable", text, {"path": str(path), "text": text}))
