"""Where a node runs: which machine, and which process there.

Rules
-----
- Two processes can know of one another whether they live only where they have the same kernel, since its last boot, and
  the same namespace of processes: then a number, with the time at which the process began, is one process for ever.
- Where that cannot be known (systems without /proc), nobody is known to be dead: his lease has to run out.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from ...engines.processes import is_running, start_time

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


class Place(msgspec.Struct, frozen=True):
    """A process on a machine. kernel: "" where it cannot be known which."""

    host: str
    kernel: str
    pid: int
    started: int  # in clock ticks since the boot; 0 where it cannot be known

    @property
    def shown(self) -> str:
        """The place, for people."""
        return f"{self.host}, process {self.pid}"

    def is_dead(self) -> bool:
        """Whether that process is known to have ended."""
        return (
            bool(self.kernel and self.started) and self.kernel == _kernel() and not is_running(self.pid, self.started)
        )


def here() -> Place:
    """Where this process runs."""
    pid = os.getpid()
    return Place(socket.gethostname(), _kernel(), pid, start_time(pid))


def _kernel() -> str:
    try:
        return f"{_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
    except OSError:
        return ""
