"""Resources used by commands and by bodies in worker processes: CPU time, and peak memory.

| of | CPU seconds | peak memory |
| --- | --- | --- |
 a command | of its process and all children it waited for | of the largest of these |
 a body in a worker process | of that process and all children it waited for, meanwhile | of that process, meanwhile |

- CPU seconds are user and system time together. Memory is resident memory (RSS), in bytes.
- The kernel counts its parent's resident memory for a new process. So a command's peak is known only if it is above the
  peak of this program; else it is None.
- The kernel keeps one peak for each process. A worker process resets it before each body. If that is not possible, the
  peak of a body is known only if it is a new maximum; else it is None.
- None also means that nothing was measured: other code reaped the process. If a worker process died under its body,
  only the peak is known, and only if no earlier body had as much.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path
from typing import NamedTuple

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = b"5"
_STATUS = Path("/proc/self/status")
_INEXACT = 16  # the kernel's counters of one memory differ by less than this fraction


class ResourceUsage(NamedTuple):
    """Resources that were used; None: not known."""

    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


UNKNOWN = ResourceUsage()


def own_peak() -> int:
    """This process's peak of resident memory, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def used_by_child(usage: resource.struct_rusage, floor: int) -> ResourceUsage:
    """The resources used by a child, from `os.wait4`. floor: `own_peak()` after it was started."""
    peak = usage.ru_maxrss * _MAXRSS_UNIT
    return ResourceUsage(usage.ru_utime + usage.ru_stime, peak if peak > floor + floor // _INEXACT else None)


class Meter:
    """Measures one body in its own process, from the meter's creation on."""

    def __init__(self) -> None:
        self._reset = _reset_peak()
        self._before = own_peak()
        self._cpu_before = _cpu_seconds()

    def used(self) -> ResourceUsage:
        """The resources used so far by the body."""
        spent = _cpu_seconds() - self._cpu_before
        if self._reset and (peak := _peak_since_reset()) is not None:
            return ResourceUsage(spent, peak)
        now = own_peak()
        return ResourceUsage(spent, now if now > self._before else None)


def _cpu_seconds() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def _reset_peak() -> bool:
    """Reset this process's peak in the kernel. False if that is impossible, as on other systems than Linux."""
    with contextlib.suppress(OSError, MemoryError):
        _RESET.write_bytes(_RESET_PEAK)
        return True
    return False


def _peak_since_reset() -> int | None:
    with contextlib.suppress(OSError, MemoryError):
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return None
