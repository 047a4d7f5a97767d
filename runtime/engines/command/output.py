"""A command's output: a file with its head and its tail, its true size, and its last lines in memory.

The file grows with the output, so that it can be followed, until it holds `limit` bytes. From then on the second half
is a ring: the newest bytes overwrite the oldest. `close` puts the ring in order, with a line between head and tail that
says how much was left out. Memory is bounded by the chunk that is written, and by half the limit while closing.

Secrets are masked first, so that no file, line or cut ever holds a part of one.

A full disk loses output, never the command: the rest is counted, and the tail says so.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from ...text.secrets import Mask
from ..files import make_file
from ..shortage import is_shortage

_RECENT = 8_192  # bytes kept in memory for the last lines
_TAIL_LINES = 20
_TAIL_CHARACTERS = 4_000
_FULL = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
_NOISE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class OutputUnwritable(Exception):  # noqa: N818 - it names the problem
    """The file for a command's output cannot be made: correct its path, or the rights of its folder."""


class Output:
    """The output of one command; the file is made by `files.make_file`.

    Raises OutputUnwritable, and OSError for a shortage.

    `last_line` may be called from any thread; the rest only by the engine's thread.
    """

    def __init__(self, path: Path | None, limit: int, mask: Mask | None = None, root: Path | None = None) -> None:
        self.path = path
        self.size = 0  # bytes written by the command, kept or not; counted after masking
        self._masked = None if mask is None else mask.stream()
        self.lost: OSError | None = None  # why the file could not be written completely
        self._limit = max(limit, 1_024)
        self._ring_start = self._limit // 2
        self._position = 0
        self._recent = b""
        self._file = -1
        if path is not None:
            try:
                self._file = make_file(path, root)
            except OSError as error:
                if error.errno in _FULL:
                    self.path, self.lost = None, error
                    return
                if is_shortage(error):
                    raise
                text = f"the output file {str(path)!r} cannot be made: {error.strerror}"
                raise OutputUnwritable(text) from error

    def write(self, data: bytes) -> None:
        """Add the next bytes of the command's output."""
        if self._masked is not None:
            data = self._masked.feed(data)
        self._take(data)

    def _take(self, data: bytes) -> None:
        self.size += len(data)
        self._recent = (self._recent + data)[-_RECENT:]
        if self._file >= 0 and self.lost is None:
            try:
                self._keep(memoryview(data))
            except OSError as error:
                self.lost = error

    def close(self) -> None:
        """Put the kept part in order. A second close does nothing."""
        if self._masked is not None:
            self._take(self._masked.end())
        if self._file < 0:
            return
        try:
            if self.size > self._limit and self.lost is None:
                self._straighten()
        except OSError as error:
            self.lost = error
        finally:
            os.close(self._file)
            self._file = -1

    def last_line(self) -> str:
        """The last non-empty line so far: for progress."""
        lines = _lines(self._recent[-1_024:])
        return lines[-1][-200:] if lines else ""

    def tail(self) -> str:
        """The last lines, without terminal control sequences; "" if nothing was written."""
        lines = _lines(self._recent)[-_TAIL_LINES:]
        if self.lost is not None:
            lines.append(f"(the rest of the output could not be kept: {self.lost.strerror})")
        return "\n".join(lines)[-_TAIL_CHARACTERS:]

    def _keep(self, data: memoryview) -> None:
        while data:
            part = data[: self._limit - self._position]
            _write_all(self._file, part, self._position)
            self._position += len(part)
            data = data[len(part) :]
            if self._position == self._limit:
                self._position = self._ring_start

    def _straighten(self) -> None:
        start, length = self._ring_start, self._limit - self._ring_start
        ring = os.pread(self._file, length, start)
        cut = self._position - start
        ring = ring[cut:] + ring[:cut]
        note = b""
        for _ in range(3):  # the note takes space too, and its length depends on the number in it
            note = b"\n... %d bytes left out ...\n" % (self.size - self._limit + len(note))
        _write_all(self._file, memoryview(note + ring[len(note) :]), start)


def _write_all(file: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(file, data, position)
        position += written
        data = data[written:]


def _lines(data: bytes) -> list[str]:
    """Lines as a terminal shows them: a carriage return restarts a line, control sequences are removed."""
    text = _NOISE.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"))
    return [line.rstrip() for line in text.split("\n") if line.strip()]
