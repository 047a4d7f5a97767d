"""Signals of a run: ends of its child processes, and a closed terminal.

Rules:
- SIGCHLD is reset if our parent process has ignored it: otherwise no command's exit status could be read.
- A closed terminal takes no more output, which does not end the run: SIGHUP has reported it, and drains.
"""

from __future__ import annotations

import signal


def hear_children() -> None:
    """Receive the ends of commands, even if our parent process has ignored SIGCHLD."""
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
