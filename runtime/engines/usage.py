"""What commands and bodies in worker processes used: CPU time, and memory at its peak.

| of | CPU seconds | peak memory |
| --- | --- | --- |
| a command | of its process and of all that this waited for | of the largest of these |
| a body in a worker process | of that process and of all that it waited for, meanwhile | of that process, meanwhile |

- CPU seconds are user and system time together. Memory is what is resident (RSS), in bytes.
- The kernel counts to a new process what its parent had resident when it was started. So a command's peak is known
  only where it is above the peak of this program; else it is None.
- The kernel keeps one peak for each process. A worker process has it reset before each body. Where that is not
  possible, the peak of a body is known only if it is a new one; else it is None.
- None also stands where nothing was measured: the exit status of a process was taken by somebody else. Of a worker
  process that died under its body only the peak is known, where no body before had as much.
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
_INEXACT = 16  # the kernel's counts of one memory differ by less than this part of it


class Used(NamedTuple):
    """What something used; None: not known."""

    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None


UNKNOWN = Used()


def own_peak() -> int:
    """The most memory that this process has had resident, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def used_by_child(usage: resource.struct_rusage, floor: int) -> Used:
    """What a child used, as `os.wait4` says it. floor: `own_peak()` after it was started."""
    peak = usage.ru_maxrss * _MAXRSS_UNIT
    return Used(usage.ru_utime + usage.ru_stime, peak if peak > floor + floor // _INEXACT else None)


class Meter:
    """Measures what one body uses in a process of its own, from when it is made."""

    def __init__(self) -> None:
        self._reset = _reset_peak()
        self._before = own_peak()
        self._cpu_before = _cpu_seconds()

    def used(self) -> Used:
        """What the body used so far."""
        spent = _cpu_seconds() - self._cpu_before
        if self._reset and (peak := _peak_since_reset()) is not None:
            return Used(spent, peak)
        now = own_peak()
        return Used(spent, now if now > self._before else None)


def _cpu_seconds() -> float:
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def _reset_peak() -> bool:
    """Have the kernel forget this process's peak. False where it does not, as on other systems than Linux."""
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
