"""Process 1 of a container: it reaps orphans, while the program runs in a child.

Rules
-----
- Process 1 inherits every orphan of its container, and must reap it, or zombies fill the process table until no process
  can be started any more. A program that reaped orphans itself would take exit statuses that its libraries wait for.
  So there are two processes: this one has no children but the program and orphans, and reaps each that ends.
- Signals are passed on to the program, except those that a terminal has already sent to the whole group.
- This process ends when the program does, with its exit code; the kernel then kills what is left in the container.
- The fork comes before any import that starts threads or opens files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_KERNEL = 0x80  # SI_KERNEL: a terminal sent it, to the program as well
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")


def be_first(leave: Callable[[int], object] = os._exit) -> None:
    """In process 1, run the program in a child, and reap until it ends. Otherwise do nothing.

    leave: ends this process with the child's exit code.
    """
    if os.getpid() != 1 or not hasattr(signal, "sigwaitinfo"):
        return
    waited = {signal.Signals[name] for name in (*_PASSED_ON, "SIGCHLD")}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    program = os.fork()
    if program:
        leave(tend(program, waited))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tend(program: int, waited: set[signal.Signals]) -> int:
    """Pass signals on to the program, and reap, until it has ended. Returns its exit code as a shell shows it."""
    while True:
        received = signal.sigwaitinfo(waited)
        if received.si_signo == signal.SIGCHLD:
            ended = reap(program)
            if ended is not None:
                return ended
        elif received.si_code != _KERNEL:
            os.kill(program, received.si_signo)


def reap(program: int) -> int | None:
    """Reap every ended child. Returns the program's exit code if it is one of them."""
    code: int | None = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if not pid:
            return code
        if pid == program:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else 128 - ended
