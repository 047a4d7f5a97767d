"""Finds, recognises and kills processes and their groups, by what the kernel knows of them.

A process id alone never identifies a process: ids are reused. So a leftover process is recognised by its start time and
by the token in its environment, and a group is signalled only while a member of it is known. Without /proc (systems
other than Linux) nothing can be recognised, and nothing is killed.

The same id is another process in another container. So the record of a process also names its kernel, since its last
boot, and its process namespace (`Process`): together they identify one process for ever.
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

import msgspec

from ..calling import ProcessInfo

TOKEN = "CALLBOARD_FENCING_TOKEN"  # noqa: S105 - a fencing token, not a secret
"""The environment variable that carries the fencing token."""
WORKER = "CALLBOARD_WORKER"
"""The environment variable of a worker process with its worker's name; children of its bodies do not have it."""
ASKED_BY = "CALLBOARD_ASKED_BY"
"""The environment variable of a condition's or check's command: the key of the asking entity. Empty for others."""
JOURNAL = "CALLBOARD_JOURNAL"
"""The environment variable with the journal's id."""
RUNTIME = "CALLBOARD_RUNTIME"
"""The environment variable with the process that started it, and the copy of the journal it was started for."""
START_PATH = "CALLBOARD_START_PATH"
"""The value of PYTHONPATH before a worker's process was started, for the children of its bodies."""

_PROC = Path("/proc")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESS_CLOCK = 2  # turns a process id into the id of its clock: clock_getcpuclockid(3)
_AT_WORK = {"R", "D"}  # states of a thread: it runs or is ready to; it waits for a device
_EXECUTING = 1.0  # seconds
_NEXT_READ = 0.001  # seconds
_MEMORY, _ENVIRON_END = 20, 48
"""Fields of `_stat`: the size of the process's memory (0: it has none), and the end of its environment (0: it is not in
place yet, or is hidden from this user). The environment's beginning is the field before."""
_WORKING = 0.05
"""Minimum share of a processor that a working process uses. A process that waits for Python's lock uses less: it checks
every 5 ms."""


class Process(msgspec.Struct, frozen=True):
    """A process as other processes can identify it. kernel, namespace: "" if they are not known."""

    kernel: str  # the id of the boot
    namespace: str  # of the process ids
    pid: int
    started: int  # in clock ticks since the boot; 0 if it is not known

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended."""
        return self._runs() is False

    @property
    def is_there(self) -> bool:
        """Whether the process is known to run."""
        return self._runs() is True

    def _runs(self) -> bool | None:
        """Whether the process runs; None if that cannot be known here: it is on another machine, or in a container
        that is not visible.
        """
        here = this_process()
        if not (self.namespace and self.started) or self.kernel != here.kernel:
            return None
        if self.namespace == here.namespace:
            return is_running(self.pid, self.started)
        there = [pid for pid in pids() if _namespace(pid) == self.namespace]  # in a container that is visible from here
        return any(self._is(pid) for pid in there) if there else None

    def _is(self, pid: int) -> bool:
        return _number_inside(pid) == self.pid and is_running(pid, self.started)


def this_process() -> Process:
    """The present process."""
    pid = os.getpid()
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return Process(boot, _namespace(pid) if boot else "", pid, start_time(pid))


def start_time(pid: int) -> int:
    """The process's start in clock ticks since boot; 0 if it is not known."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_running(pid: int, started: int) -> bool:
    """Whether the process with that start time still runs. An ended process that is not reaped yet does not run."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and int(fields[19]) == started


class ProcessSample:
    """The state of a process at one moment, to find out later whether it has worked meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._at = time.monotonic()
        self._spent = _processor_time(pid)

    def works(self) -> bool:
        """Whether it has used its processor since, can use it now, or waits for a device, which no signal ends.

        A stopped process does not work, nor does a sleeping one, whatever it waits for. False if nothing can be known
        (no Linux, another user's process).
        """
        fields = _stat(self._pid)
        if not fields or fields[0] in "TtZX":
            return False
        spent = _processor_time(self._pid) - self._spent
        return spent > _WORKING * (time.monotonic() - self._at) or bool(_thread_states(self._pid) & _AT_WORK)


def signal_group(group: int, number: int) -> None:
    """Send a signal to a process group whose leader is known to exist, or is not yet reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def signal_name(number: int) -> str:
    """The usual name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kill_leftover(info: ProcessInfo, *, wait: float = 2.0, mark: str | None = None) -> bool:
    """Kill the process group of a process that outlived its runtime, if it is still its group: a member has the token,
    or the variable `mark` ("NAME=value"), in its environment.

    Waits up to `wait` seconds for its end (blocking). True if there was something to kill, and it was killed.
    """
    if info.pgid <= 1:
        return False
    members = [pid for pid in _group_members(info.pgid) if pid != os.getpid()]
    if info.pid in members and start_time(info.pid) not in (
        info.started,
        0,
    ):  # 0: the leader ended meanwhile, the group did not
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
    """Kill the process group that a process leads, identified by its id and start time. True if it was killed."""
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
    """Whether its parent has ended: then its parent is process 1, or the reaper that adopts orphans here."""
    fields = _stat(pid)
    return bool(fields) and int(fields[1]) in {1, os.getppid(), os.getpid()}


def environment_of(pid: int, word: str = "") -> dict[str, str]:
    """A process's environment variables, if `word` occurs anywhere in them; none if they cannot be read."""
    data = _environ(pid)
    if word.encode() not in data:
        return {}
    lines = data.decode(errors="replace").split("\0")
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def booted_at() -> float:
    """When this machine was booted (UTC epoch seconds); 0 if it is not known."""
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
    """The ids of all processes that are visible from here."""
    if _PROC.is_dir():
        yield from (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def _namespace(pid: int) -> str:
    """The process namespace of a process; "" if it is not known."""
    try:
        return str((_PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return ""


def is_process(number: int) -> bool:
    """Whether a number is the id of a process, not of one of its further threads."""
    return _status(number, "Tgid:") == number


def _number_inside(pid: int) -> int:
    """The id of a process in its own namespace; 0 if it is not known."""
    return _status(pid, "NSpid:")


def _status(pid: int, word: str) -> int:
    """The last number in that line of /proc/PID/status; 0 if it cannot be read."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith(word)), 0)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on; the second may contain anything, also brackets."""
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
    """Seconds of processor time that all its threads have used; 0 if it is not known."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    return 0.0


def _carries(pid: int, mark: str) -> bool:
    return mark.encode() in _environ(pid).split(b"\0")


def _environ(pid: int) -> bytes:
    """The process's environment as the kernel shows it; b"" if there is none, or it cannot be read.

    While a process executes another program, the kernel shows an empty environment for a moment: after the parent
    knows that the start succeeded, and before the new program's environment is in place. Waits for it (blocks), up to
    `_EXECUTING` seconds.
    """
    limit = time.monotonic() + _EXECUTING
    while True:
        try:
            data = (_PROC / str(pid) / "environ").read_bytes()
        except OSError:  # the process has ended, or belongs to another user
            return b""
        if data or not _executes(pid) or time.monotonic() > limit:
            return data
        time.sleep(_NEXT_READ)


def _executes(pid: int) -> bool:
    """Whether a process that showed no environment will show one: it executes another program, or has just done so."""
    fields = _stat(pid)
    if len(fields) <= _ENVIRON_END or fields[0] in "ZX" or fields[_MEMORY] == "0":  # ended, or a thread of the kernel
        return False
    first, end = int(fields[_ENVIRON_END - 1]), int(fields[_ENVIRON_END])
    return end == 0 or first < end


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
