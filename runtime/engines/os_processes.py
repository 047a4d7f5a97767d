"""What the kernel knows about processes and their groups: finding, recognising and killing them.

A number alone never identifies a process: numbers are reused. So a process that was left behind is
recognised by its start time and by the token in its environment, and a group is signalled only while a
member of it is known. Without /proc (systems other than Linux) nothing can be recognised, and nothing is
killed.

The same number is another process in another container. So what is kept of a process names its kernel, since its last
boot, and its namespace of numbers, too (`Process`): that is one process for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .contract import ProcessInfo

TOKEN = "CALLBOARD_FENCING_TOKEN"  # noqa: S105 - a fencing token, not a secret
"""The environment variable that carries the fencing token."""
WORKER = "CALLBOARD_WORKER"
"""The environment variable that a worker's process carries, and what its bodies start does not: its worker."""
ASKED_BY = "CALLBOARD_ASKED_BY"
"""The one that the command of a condition or a check carries: the key of the entity that asked. Empty in all else."""
JOURNAL = "CALLBOARD_JOURNAL"
"""The one that carries the journal's id."""
RUNTIME = "CALLBOARD_RUNTIME"
"""The one that carries the process that has started it, and the copy of the journal that it was started for."""
START_PATH = "CALLBOARD_START_PATH"
"""What PYTHONPATH was before a worker's process was started, for what its bodies start."""

_PROC = Path("/proc")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_CLOCK = 2  # what makes a process's number the number of its clock: clock_getcpuclockid(3)
_AT_WORK = {"R", "D"}  # states of a thread: it runs or would like to; it waits for a device
_WORKING = 0.05
"""The part of a processor that a process uses at least which works. What waits for Python's lock uses less: it looks
again every 5 ms."""


class Process(NamedTuple):
    """A process, as it can be known by others. kernel, namespace: "" where they cannot be known."""

    kernel: str  # its boot's id
    namespace: str  # of the processes' numbers
    pid: int
    started: int  # in clock ticks since the boot; 0 where it cannot be known

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended."""
        return self._runs() is False

    @property
    def is_there(self) -> bool:
        """Whether it is known to run."""
        return self._runs() is True

    def _runs(self) -> bool | None:
        """None where nobody here can know: of another machine, or of a container that cannot be seen from here."""
        here = this_process()
        if not (self.namespace and self.started) or self.kernel != here.kernel:
            return None
        if self.namespace == here.namespace:
            return is_running(self.pid, self.started)
        there = [pid for pid in pids() if _namespace(pid) == self.namespace]  # a container's that is seen from here
        return any(self._is(pid) for pid in there) if there else None

    def _is(self, pid: int) -> bool:
        return _number_inside(pid) == self.pid and is_running(pid, self.started)


def this_process() -> Process:
    """This one."""
    pid = os.getpid()
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return Process(boot, _namespace(pid) if boot else "", pid, start_time(pid))


def start_time(pid: int) -> int:
    """The process's start in clock ticks since boot; 0 if that cannot be known."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_running(pid: int, started: int) -> bool:
    """Whether the process that began at that time still runs: one that is dead but not yet reaped does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and int(fields[19]) == started


class Look:
    """A process as it was at one moment, for finding out later whether it works meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._at = time.monotonic()
        self._spent = _processor_time(pid)

    def works(self) -> bool:
        """Whether it has used its processor since, wants to now, or waits for a device, which no signal ends.

        One that is stopped does not work, nor does one that sleeps, whatever it waits for. Where nothing can be known
        (no Linux, another user's process), False.
        """
        fields = _stat(self._pid)
        if not fields or fields[0] in "TtZX":
            return False
        spent = _processor_time(self._pid) - self._spent
        return spent > _WORKING * (time.monotonic() - self._at) or bool(_thread_states(self._pid) & _AT_WORK)


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group whose leader is known to be there, or not yet reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_name(number: int) -> str:
    """What people call a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill_leftover(info: ProcessInfo, *, wait: float = 2.0, mark: str | None = None) -> bool:
    """Kill the process group of what outlived its runtime, if it is still its group: a member carries the token, or
    the variable `mark` ("NAME=value"), in its environment.

    Waits up to `wait` seconds for its end (blocking). True if there was something to kill, and it was killed.
    """
    if info.pgid <= 1:
        return False
    members = [pid for pid in _group_members(info.pgid) if pid != os.getpid()]
    if info.pid in members and start_time(info.pid) not in (
        info.started,
        0,
    ):  # 0: it ended meanwhile, the group did not
        return False
    if not any(_carries(pid, mark or f"{TOKEN}={info.token}") for pid in members):
        return False
    watched = [fd for pid in members if (fd := _open_pidfd(pid)) is not None]
    try:
        signal_group(info.pgid, signal.SIGKILL)
        _wait_for(watched, wait)
    finally:
        for fd in watched:
            os.close(fd)
    return True


def kill_known(info: ProcessInfo) -> bool:
    """Kill the process group of a process that is known by its number and its start, if it leads one. True if so."""
    try:
        leads = os.getpgid(info.pid) == os.getsid(info.pid) == info.pid
    except ProcessLookupError:
        return False
    if not leads or not is_running(info.pid, info.started):
        return False
    signal_group(info.pgid, signal.SIGKILL)
    return True


def wait_for_ends(numbers: list[int], limit: float) -> None:
    """Wait until these processes have ended, at most so many seconds in all (blocking)."""
    watched = [fd for pid in numbers if (fd := _open_pidfd(pid)) is not None]
    try:
        _wait_for(watched, limit)
    finally:
        for fd in watched:
            os.close(fd)


def is_orphan(pid: int) -> bool:
    """Whether its parent has ended: the first process has it now, or who takes in what this process's parent lost."""
    fields = _stat(pid)
    return bool(fields) and int(fields[1]) in {1, os.getppid(), os.getpid()}


def environment_of(pid: int, word: str = "") -> dict[str, str]:
    """The environment's variables of a process, if `word` stands anywhere in it; none where it cannot be read."""
    try:
        data = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # it is gone, or somebody else's
        return {}
    if word.encode() not in data:
        return {}
    lines = data.decode(errors="replace").split("\0")
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def booted_at() -> float:
    """When this machine was booted (UTC epoch seconds); 0 where that cannot be known."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "stat").read_text().splitlines():
            if line.startswith("btime "):
                return float(line.split()[1])
    return 0.0


def _group_members(group: int) -> Iterator[int]:
    for pid in pids():
        fields = _stat(pid)
        if fields and int(fields[2]) == group and fields[0] not in "ZX":
            yield pid


def pids() -> Iterator[int]:
    """The numbers of all processes that can be seen from here."""
    if _PROC.is_dir():
        yield from (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def _namespace(pid: int) -> str:
    """The namespace that a process has its number in; "" where that cannot be known."""
    try:
        return str((_PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return ""


def is_process(number: int) -> bool:
    """Whether it is the number of a process, and not of one of its further threads."""
    return _status(number, "Tgid:") == number


def _number_inside(pid: int) -> int:
    """The number of a process in its own namespace; 0 where that cannot be known."""
    return _status(pid, "NSpid:")


def _status(pid: int, word: str) -> int:
    """The last number in that line of /proc/PID/status; 0 where it cannot be read."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith(word)), 0)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on; the second may hold anything, also brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("ascii", "replace")
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _thread_states(pid: int) -> set[str]:
    states: set[str] = set()
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            text = (thread / "stat").read_bytes().decode("ascii", "replace")
            states.add(text[text.rindex(")") + 2])
    return states


def _processor_time(pid: int) -> float:
    """Seconds of processor time that all its threads have used; 0 where that cannot be known."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    return 0.0


def _carries(pid: int, mark: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return mark.encode() in environment.split(b"\0")


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _wait_for(watched: list[int], limit: float) -> None:
    poll = select.poll()
    for fd in watched:
        poll.register(fd, select.POLLIN)
    left = len(watched)
    while left and (ready := poll.poll(limit * 1000)):
        for fd, _event in ready:
            poll.unregister(fd)
        left -= len(ready)
