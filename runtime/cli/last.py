"""The end of the process, soon after its command is over, whatever still runs of a body that was stopped.

Rules
-----
- The event loop waits for tasks that do not let themselves be cancelled, and for threads; Python waits for threads that
  are no daemons. Both wait without a limit, and a body that was stopped may have left such
  (`runtime/dispatch/abandoned_threads.py`).
- Where a body was stopped, all that is left has `PATIENCE` seconds once its runtime is closed. Then it is told what
  still runs, all that was printed is written out, and the process exits with the code that it would have had.
- Where none was, Python ends the process as it ends any other.
- Only what the command line runs in a process of its own is ended so (`begin`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from .trouble import tell

if TYPE_CHECKING:
    from ..dispatch.abandoned_threads import Left

PATIENCE = 1.0
"""Seconds: with a drain of eight, it ends before a container that is stopped is killed after ten."""


class _Last:
    """What is known of the end of this process."""

    own = False  # it is the command line's, and of nobody else
    code: int | None = None  # once the command has said it
    over = threading.Event()  # no thread is waited for any more


def begin() -> None:
    """This process has been started for a command, and may be ended."""
    _Last.own = True


def leave(code: int) -> NoReturn:
    """The command is over: end the process."""
    _Last.own, _Last.code = False, code
    atexit.register(_Last.over.set)  # called first of all such, once Python has waited for the threads
    sys.exit(code)


def end_soon(left: Left | None, code: Callable[[], int]) -> None:
    """A runtime of the command is closed, and had left this. code: tells what went wrong, and gives the exit code."""
    if left is None or not left.stopped or not _Last.own:
        return
    with contextlib.suppress(RuntimeError):  # no thread can be started: Python ends it, once it can
        threading.Thread(target=_end, args=(left, code), name="callboard-last", daemon=True).start()


def _end(left: Left, code: Callable[[], int]) -> None:
    if _Last.over.wait(PATIENCE):
        return
    with contextlib.suppress(Exception):
        tell(_told(left))
    said = code() if _Last.code is None else _Last.code
    from ..engines.process_watcher import kill_all  # noqa: PLC0415 - loaded already, by the runtime

    kill_all()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(said)


def _told(left: Left) -> str:
    if threads := left.threads():
        return f"a thread still runs, of {', '.join(threads)}, and nothing can end it: the process ends without it"
    return "a body that was stopped has left a task or a thread that does not end: the process ends without it"
