"""Where a node runs: which machine, and which process there.

Rules
-----
- Two processes can tell whether the other one lives only if they have the same kernel, since its last boot, and the
  same process namespace: then a process id, with the process's start time, identifies one process for ever.
- Where that cannot be known (systems without /proc), no process is known to be dead: its lease has to run out.
"""

from __future__ import annotations

import socket

import msgspec

from ...processes.os_processes import Process, is_running, this_process


class Place(msgspec.Struct, frozen=True):
    """A process on a machine. kernel: "" if it is not known."""

    host: str
    kernel: str
    pid: int
    started: int  # in clock ticks since the boot; 0 if it is not known

    @property
    def shown(self) -> str:
        """The place, for people."""
        return f"{self.host}, process {self.pid}"

    def is_dead(self) -> bool:
        """Whether that process is known to have ended."""
        if not (self.kernel and self.started) or self.kernel != _kernel(this_process()):
            return False
        return not is_running(self.pid, self.started)


def here() -> Place:
    """Where this process runs."""
    process = this_process()
    return Place(socket.gethostname(), _kernel(process), process.pid, process.started)


def _kernel(process: Process) -> str:
    return f"{process.kernel} {process.namespace}" if process.namespace else ""
