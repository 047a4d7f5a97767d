"""Lost standard output and error, after a pipe was closed, or on a full disk.

Rules
-----
- The first write that fails reports the loss; later output is discarded, and nothing raises. So a body's `print` never
  fails the body.
- A command that only shows something ends when its output is lost: the write raises `OutputLost`. A run must not end
  there: `Printing` catches the loss, and the run is stopped properly.
- The loss of standard error is not reported: there is no other place for it.
- When a terminal closes, SIGHUP comes as well, and its handler stops the run.
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

from .command_errors import FAILED, INTERRUPTED, PIPE_CLOSED, CommandError

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import ReadableBuffer

    from ..dispatch.waker import Waker


class OutputLost(CommandError):  # noqa: N818 - it says what happened
    """Standard output takes no more data. If its reader or terminal has closed it, no message is printed.

    why: the reason, for a longer message.
    """

    def __init__(self, error: OSError) -> None:
        self.terminal_gone = error.errno == errno.EIO
        if self.terminal_gone or error.errno == errno.EPIPE:
            self.why = "the reader of the output has closed it"
            super().__init__("", INTERRUPTED if self.terminal_gone else PIPE_CLOSED)
        else:
            self.why = f"the output cannot be written: {error.strerror or error}"
            super().__init__(
                f"{self.why}. The journal is not affected: redirect the output, and run the command again.", FAILED
            )


class _Stream(io.RawIOBase):
    """A descriptor to write to. Its first error goes to `on_lost`, and later output is discarded.

    The text layer above it buffers: Python's own buffer refuses a write from a signal handler that has interrupted a
    write, and the last Ctrl+C must still restore the terminal.
    """

    def __init__(self, descriptor: int, on_lost: Callable[[OSError], None]) -> None:
        self._descriptor = descriptor
        self._writing = threading.RLock()
        self._lost = False
        self.name = descriptor  # as Python's own streams have it
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
            raise  # the descriptor takes more data later
        except OSError as error:
            self._lost = True
            _lead_nowhere(self._descriptor)
            self.on_lost(error)
        return size


def _lead_nowhere(descriptor: int) -> None:
    """Redirect the descriptor to the null device, also for child processes and code outside Python."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _WatchedStreams:
    """The watched streams of this process."""

    stdout: _Stream | None = None  # set inside `watched`


@contextlib.contextmanager
def watched() -> Generator[None]:
    """Make the loss of standard output raise `OutputLost`; ignore that of standard error.

    Streams that are not files (as in tests) stay unchanged.
    """
    before = sys.stdout, sys.stderr
    found = _stream(before[0], _raise)
    if found is not None:
        sys.stdout, _WatchedStreams.stdout = found
    error = _stream(before[1], lambda _: None)
    if error is not None:
        sys.stderr = error[0]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        _WatchedStreams.stdout = None


def _raise(error: OSError) -> None:
    raise OutputLost(error)


def _stream(stream: TextIO | None, on_lost: Callable[[OSError], None]) -> tuple[TextIO, _Stream] | None:
    """Wrap a stream so that its loss is noticed."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        raw = _Stream(stream.fileno(), on_lost)
    except OSError:
        return None  # a stream in memory
    text = io.TextIOWrapper(
        raw, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
    )
    return text, raw


class Printing:
    """Standard output during a run, which its loss must not end: the loss raises nothing. A context manager."""

    def __init__(self) -> None:
        self.lost: OutputLost | None = None
        self._waker: Waker | None = None

    def __enter__(self) -> Self:
        if _WatchedStreams.stdout is not None:
            _WatchedStreams.stdout.on_lost = self._take
        return self

    def __exit__(self, *_: object) -> None:
        if _WatchedStreams.stdout is not None:
            _WatchedStreams.stdout.on_lost = _raise

    async def until_lost(self) -> OutputLost:
        """Wait until the output is lost."""
        from ..dispatch.waker import native_waker  # noqa: PLC0415 - heavy

        self._waker = native_waker()
        while self.lost is None:
            await self._waker.park(None)
        return self.lost

    def _take(self, error: OSError) -> None:
        """Note the loss. Called in the thread that has printed."""
        self.lost = OutputLost(error)
        if self._waker is not None:
            self._waker.call_threadsafe(self._waker.wake)
