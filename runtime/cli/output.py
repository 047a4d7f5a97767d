"""Standard output and standard error that cannot be written any more: the reader of a pipe has left, a disk is full.

Rules
-----
- The first write that fails tells it; from then on all that is written goes nowhere, and nothing raises. So what bodies
  print fails no body.
- A command that shows or asks ends where its output is lost: the write raises `Lost`. A run must not end there:
  `Printing` takes the loss, and the run is stopped in good order.
- That standard error is lost is told nowhere: there is no other place to say it.
- A terminal that has gone is told by SIGHUP, too, which says what is to be done about it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TextIO

from .trouble import FAILED, INTERRUPTED, PIPE_CLOSED, Trouble

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import ReadableBuffer

    from ..dispatch.waker import Waker


class Lost(Trouble):
    """Standard output takes no more. Nothing is told where its reader or the terminal has gone: nobody misses it.

    why: in words, for who has more to say about it.
    """

    def __init__(self, error: OSError) -> None:
        self.terminal_gone = error.errno == errno.EIO
        if self.terminal_gone or error.errno == errno.EPIPE:
            self.why = "who read the output has left"
            super().__init__("", INTERRUPTED if self.terminal_gone else PIPE_CLOSED)
        else:
            self.why = f"the output cannot be written: {error.strerror or error}"
            super().__init__(
                f"{self.why}. The journal is not concerned: lead the output elsewhere, and ask again.", FAILED
            )


class _Stream(io.RawIOBase):
    """A descriptor to write to. The first error of it goes to `on_lost`, and what is written after it nowhere.

    The text above it is what buffers: Python's own buffer refuses whoever writes in a signal's handler that has
    interrupted a write, and the last Ctrl+C has to give the terminal back.
    """

    def __init__(self, descriptor: int, on_lost: Callable[[OSError], None]) -> None:
        self._descriptor = descriptor
        self._writing = threading.RLock()
        self._lost = False
        self.name = descriptor  # as Python's own have it
        self.on_lost = on_lost

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            with self._writing:
                while rest and not self._lost:
                    rest = rest[os.write(self._descriptor, rest) :]
        except BlockingIOError:
            raise  # it takes more later
        except OSError as error:
            self._lost = True
            _lead_nowhere(self._descriptor)
            self.on_lost(error)
        return size


def _lead_nowhere(descriptor: int) -> None:
    """What is started from now on, and code beside Python's, shall not write there either."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _Watched:
    """The streams of this process."""

    stdout: _Stream | None = None  # while `watched` lasts


@contextlib.contextmanager
def watched() -> Generator[None]:
    """Have the loss of standard output raise `Lost`, once, and that of standard error nothing.

    Streams that are no files (those of tests, or none) stay as they are.
    """
    before = sys.stdout, sys.stderr
    found = _stream(before[0], _raise)
    if found is not None:
        sys.stdout, _Watched.stdout = found
    error = _stream(before[1], lambda _: None)
    if error is not None:
        sys.stderr = error[0]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _Watched.stdout = None


def _raise(error: OSError) -> None:
    raise Lost(error)


def _stream(stream: TextIO | None, on_lost: Callable[[OSError], None]) -> tuple[TextIO, _Stream] | None:
    """That stream, watched."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        raw = _Stream(stream.fileno(), on_lost)
    except OSError:
        return None  # it is in memory
    text = io.TextIOWrapper(
        raw, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
    )
    return text, raw


class Printing:
    """Standard output while something runs that it must not end: its loss raises nothing. A context manager."""

    def __init__(self) -> None:
        self.lost: Lost | None = None
        self._waker: Waker | None = None

    def __enter__(self) -> Self:
        if _Watched.stdout is not None:
            _Watched.stdout.on_lost = self._take
        return self

    def __exit__(self, *_: object) -> None:
        if _Watched.stdout is not None:
            _Watched.stdout.on_lost = _raise

    async def until_lost(self) -> Lost:
        """Wait until the output is lost."""
        from ..dispatch.waker import native_waker  # noqa: PLC0415 - heavy

        self._waker = native_waker()
        while self.lost is None:
            await self._waker.park(None)
        return self.lost

    def _take(self, error: OSError) -> None:
        """Called in whatever thread has printed."""
        self.lost = Lost(error)
        if self._waker is not None:
            self._waker.wake_threadsafe()
