"""The end of the process: soon after its command, whatever still runs.

Rules
-----
- The event loop waits for tasks that ignore their cancellation, and for threads; Python waits for threads that are not
  daemons. Both wait without a limit, and a stopped body may have left such tasks or threads
  (`runtime/dispatch/abandoned_threads.py`).
- If a body was stopped, everything that is left has `PATIENCE` seconds after its runtime has closed. Then a message
  says what still runs, all output is flushed, and the process exits with its command's exit code.
- If no body was stopped, Python ends the process as usual. From then on Ctrl+C is ignored.
- Only a process that the command line has for itself is ended in this way (`begin`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from .command_errors import print_to_stderr

if TYPE_CHECKING:
    from ..dispatch.abandoned_threads import AbandonedThreads

PATIENCE = 1.0
"""Seconds: after a drain of eight, the process ends before a container is killed after ten."""


class _Last:
    """The facts about the end of this process."""

    own = False  # whether the process belongs to the command line alone
    code: int | None = None  # the exit code, once the command has ended
    over = threading.Event()  # Python has stopped waiting for threads


def begin() -> None:
    """Note that this process was started for one command, and may be ended."""
    _Last.own = True


def leave(code: int) -> NoReturn:
    """End the process after its command."""
    _Last.own, _Last.code = False, code
    atexit.register(_over)  # runs first of all exit handlers, after the wait for threads
    sys.exit(code)


def _over() -> None:
    """Python ends the process now, with the code of the command: one more Ctrl+C does not replace that code."""
    _Last.over.set()
    with contextlib.suppress(ValueError):  # it is not the main thread that ends
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_soon(left: AbandonedThreads | None, code: Callable[[], int]) -> None:
    """End the process soon after a runtime has closed. left: what it left running. code: returns the exit code."""
    if left is None or not left.stopped or not _Last.own:
        return
    with contextlib.suppress(RuntimeError):  # without a new thread, Python ends the process when it can
        threading.Thread(target=_end, args=(left, code), name="callboard-last", daemon=True).start()


def _end(left: AbandonedThreads, code: Callable[[], int]) -> None:
    if _Last.over.wait(PATIENCE):
        return
    with contextlib.suppress(Exception):
        print_to_stderr(_told(left))
    exit_code = code() if _Last.code is None else _Last.code
    from ..engines.process_watcher import kill_all  # noqa: PLC0415 - the runtime has imported it

    kill_all()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code)


def _told(left: AbandonedThreads) -> str:
    if threads := left.threads():
        return f"a thread of {', '.join(threads)} still runs and cannot be stopped: the process ends now"
    return "a stopped body left a task or a thread that does not end: the process ends now"
