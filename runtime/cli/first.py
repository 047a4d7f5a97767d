"""Being process 1 of a container: the program goes on in a child, and this process is what process 1 has to be.

Rules
-----
- Process 1 inherits every orphan of its container, and has to reap them, or they stay as zombies until no process can
  be started any more. A program that reaped them itself would take the exit status of what its own libraries wait for.
  So there are two processes: this one has no child but the program and orphans, and reaps whatever ends.
- Signals are passed on to the program, but for those that a terminal has sent to all of its group already.
- It ends when the program does, as the program did; the kernel then ends what is left in the container.
- It is forked before anything is imported that has threads or files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_KERNEL = 0x80  # SI_KERNEL: a terminal sent it, and to the program too
_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")


def be_first(leave: Callable[[int], object] = os._exit) -> None:
    """Where this is process 1, go on in a child; this process reaps, and leaves with the child's exit code.

    Elsewhere nothing happens.
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
    """Pass signals on to the program, and reap, until it has ended. Returns its exit code, as a shell tells it."""
    while True:
        told = signal.sigwaitinfo(waited)
        if told.si_signo == signal.SIGCHLD:
            ended = reap(program)
            if ended is not None:
                return ended
        elif told.si_code != _KERNEL:
            os.kill(program, told.si_signo)


def reap(program: int) -> int | None:
    """Reap all that has ended. The program's exit code, if that is among it."""
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
