"""What a run does about its children's ends, and about a terminal that has gone.

Rules:
- SIGCHLD does not stay ignored, whoever started us so: without it no command's exit status could be had.
- A terminal that has gone takes no more output, which is no reason to end: it has been told by SIGHUP, and that drains.
"""

from __future__ import annotations

import errno
import os
import signal
import sys


def hear_children() -> None:
    """Have the ends of commands told to us, whoever started us with SIGCHLD ignored."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def is_gone(error: BaseException) -> bool:
    """Whether that is what writing to a terminal raises that has been closed."""
    return isinstance(error, OSError) and error.errno == errno.EIO


def write_nowhere() -> None:
    """Let stdout and stderr lead nowhere where they lead to a terminal that has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and _is_dead(stream.fileno()):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_dead(descriptor: int) -> bool:
    try:
        os.write(descriptor, b"")  # of a terminal also that raises; of anything else it does nothing
    except OSError as error:
        return error.errno == errno.EIO
    return False
