"""What a run does about its children's ends, and about a terminal that has gone.

Rules:
- SIGCHLD does not stay ignored, whoever started us so: without it no command's exit status could be had.
- A terminal that has gone takes no more output, which is no reason to end: it has been told by SIGHUP, and that drains.
"""

from __future__ import annotations

import signal


def hear_children() -> None:
    """Have the ends of commands told to us, whoever started us with SIGCHLD ignored."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
