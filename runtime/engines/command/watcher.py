"""One thread that starts commands, reads their output, waits for their ends, and kills them
(`runtime/engines/process_watcher.py`).

The stages of a child, and the meaning of its due time in each:
 stage | entered when | its due time |
 --- | --- | --- |
 waiting | it is in the queue of commands to start | (none) |
 running | it was started | (none) |
 ending | SIGTERM was sent to its group | after the grace: SIGKILL, and it is killed |
 killed | SIGKILL was sent to its group | after `_UNKILLABLE` s: reported as stuck, and watched without a limit |
 lingering | it exited, its group was killed, its pipe is still held | after `_LINGER` s: escaped |
 looking | it exited; a thread searches for strays (`runtime/engines/strays.py`), if that takes long | (none) |
 over | its end was reported | |

Rules:
- A command is over when its process has exited, not when its pipe ends. Who still holds the pipe has escaped, unless
  killed processes of the group have not exited yet, as on a busy machine: they have `_UNKILLABLE` s.
- Each pass reads at most one chunk from each pipe, so that a flood of output does not delay other commands.
- Each pass starts a few commands at most, in order of arrival: a stop does not wait for a thousand starts.
- A command receives every signal, even those that the application blocks; only if it blocks some, the start needs a
  fork that runs Python.
- Commands never take the last file descriptors, which the journal and the application need, unless no other command
  runs. If descriptors, processes or memory run short, the queue waits, with growing pauses, or until a command has
  ended; the first command in the queue is reported as delayed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from ...calling import ProcessInfo
from ...processes.os_processes import TOKEN, kill_leftover, pids, signal_group, start_time
from ..contract import CommandCall
from ..process_watcher import ProcessWatcher, WatchedProcess
from ..shortage import Pauses, is_shortage
from ..strays import Beginning, marks_of, strays
from ..usage import own_peak
from .output import Output
from .shell import shell_line

_CHUNK = 65_536  # bytes read at once: a pipe's default capacity
_LEFT_IN_PIPE = 1_048_576  # bytes that may be in a pipe when its writer exits: the kernel's limit
_LINGER = 0.1  # seconds
_UNKILLABLE = 5.0  # seconds
_STARTS = 8  # in a pass
_KEPT_FREE = 64  # file descriptors, or a quarter of all if that is less

Stage = Literal["waiting", "running", "ending", "killed", "lingering", "looking", "over"]


class Child(WatchedProcess):
    """One command, from its order to its end. Its fields belong to the watcher's thread until `stage` is "over"."""

    def __init__(self, token: int, command: CommandCall, grace: float) -> None:
        self.token = token
        self.command = command
        self.grace = grace
        self.stage: Stage = "waiting"
        self.unwanted = False  # set by the loop: it was stopped, perhaps before it was started
        self.began: float | None = None  # on the engine's clock
        self.output: Output | None = None
        self.failure: Exception | None = None  # why it could not be started or watched
        self.signalled = False  # a stop reached it before its end
        self.last_look = 0.0  # on the monotonic clock: when the killed processes of its group must have exited
        self.escaped = False  # a descendant that left the group still holds its pipe
        self.beginning: Beginning | None = None  # of its process, until the search for strays
        self.left_behind: tuple[int, ...] = ()
        self.pipe = -1
        self.held_up: Exception | None = None  # why its start is delayed


class Watcher(ProcessWatcher[Child]):
    """The thread. Its five callbacks are called in it: started, delayed (it cannot be started for now), stuck, ended,
    and closed (once, at its own end).
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        started: Callable[[Child, ProcessInfo], None],
        delayed: Callable[[Child, Exception], None],
        stuck: Callable[[Child], None],
        ended: Callable[[Child], None],
        closed: Callable[[], None],
    ) -> None:
        self._line: dict[Child, None] = {}  # the queue of commands to start
        self._next_start = 0.0  # on the monotonic clock: no start before this time
        self._held_up: Exception | None = None  # why starts are delayed
        self._pauses = Pauses()
        self._looking: list[Child] = []  # children that wait for a scan of all processes
        super().__init__("callboard-commands", closed)
        self._clock = clock
        self._started = started
        self._delayed = delayed
        self._stuck = stuck
        self._ended = ended

    def start(self, child: Child) -> None:
        """Start the child's command. From any thread, as the next two methods."""
        self._order(self._stand_in_line, child)

    def terminate(self, child: Child) -> None:
        """Ask the child's group to end; kill it after the grace."""
        self._order(self._terminate, child)

    def kill(self, child: Child) -> None:
        """Kill the child's group."""
        self._order(self._kill, child)

    # -- the steps of a child --

    def _stand_in_line(self, child: Child) -> None:
        self._line[child] = None
        self._watched.add(child)

    def _patience(self) -> float | None:
        patience = super()._patience()
        if not self._line:
            return patience
        start = max(0.0, self._next_start - time.monotonic())
        return start if patience is None else min(patience, start)

    def _between(self) -> None:
        for _ in range(_STARTS):
            if not self._line or self._next_start > time.monotonic():
                break
            self._guarded(self._start_or_wait, next(iter(self._line)))

    def _start_or_wait(self, child: Child) -> None:
        if child.unwanted or self.ending:
            self._never_started(child)
            return
        alone = len(self._watched) == len(self._line)
        try:
            self._spawn(child, alone=alone)
        except Exception as error:
            if child.process is not None or not is_shortage(error):
                raise
            self._undo(child)
            self._held_up = error
            self._next_start = time.monotonic() + self._pauses.next()
            self._delayed(child, error)
        else:
            self._held_up = None
            self._pauses.over()
            del self._line[child]

    def _spawn(self, child: Child, *, alone: bool) -> None:
        command = child.command
        child.pipe, write_end = os.pipe()
        try:
            if write_end >= _most_descriptors() and not alone:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            child.output = Output(command.output_path, command.output_limit, command.mask, command.output_root)
            child.began = self._clock()
            child.process = subprocess.Popen(  # noqa: S603 - to run what the specification says is the purpose
                command.argv if command.shell is None else shell_line(command.shell),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                cwd=command.cwd,
                env={**os.environ, **command.env, TOKEN: str(child.token)},
                start_new_session=True,
                preexec_fn=_hear_signals if signal.pthread_sigmask(signal.SIG_BLOCK, ()) else None,  # noqa: PLW1509
            )
        finally:
            os.close(write_end)
        child.floor = own_peak()
        child.stage = "running"
        child.beginning = Beginning(child.process.pid)
        os.set_blocking(child.pipe, False)
        self._selector.register(child.pipe, selectors.EVENT_READ, (self._read, child))
        self._await_exit(child)
        pid = child.process.pid
        self._started(child, ProcessInfo(child.token, pid, pid, start_time(pid)))

    def _undo(self, child: Child) -> None:
        """Reset the child as if no start had been tried."""
        self._close_pipe(child)
        if child.output is not None:
            child.output.close()
        child.output = child.began = None

    def _never_started(self, child: Child) -> None:
        child.signalled = True
        child.held_up = self._held_up
        self._finish(child)

    def _read(self, child: Child) -> None:
        """Read one chunk of its output; the pipe is closed at its end."""
        if child.pipe < 0:
            return  # the pipe was closed earlier in this pass
        self._read_chunk(child)
        if child.pipe < 0 and child.stage == "lingering":
            self._finish(child)

    def _read_chunk(self, child: Child) -> int:
        try:
            data = os.read(child.pipe, _CHUNK)
        except BlockingIOError:
            return 0
        if data and child.output is not None:
            child.output.write(data)
        if not data:
            self._close_pipe(child)
        return len(data)

    def _taken(self, child: Child) -> None:
        """Kill only processes with its token: its process id may belong to another process."""
        kill_leftover(ProcessInfo(child.token, child.group, child.group, -1), wait=0)

    def _gone(self, child: Child) -> None:
        """Read the rest of the command's output; then give killed processes a moment to close the pipe."""
        left = _LEFT_IN_PIPE
        while child.pipe >= 0 and left > 0 and (count := self._read_chunk(child)):
            left -= count
        if child.pipe < 0:
            self._finish(child)
        else:
            child.stage = "lingering"
            child.due = time.monotonic() + _LINGER
            child.last_look = time.monotonic() + _UNKILLABLE

    def _broke(self, child: Child, error: Exception) -> None:
        child.failure = error
        self._finish(child)

    def _terminate(self, child: Child) -> None:
        if child.stage == "waiting":
            self._never_started(child)
        elif child.stage == "running":
            child.signalled = True
            signal_group(child.group, signal.SIGTERM)
            signal_group(child.group, signal.SIGCONT)  # a stopped process handles no other signal
            child.stage = "ending"
            child.due = time.monotonic() + child.grace

    def _kill(self, child: Child) -> None:
        if child.stage == "waiting":
            self._never_started(child)
        elif child.stage in ("running", "ending"):
            child.signalled = True
            signal_group(child.group, signal.SIGKILL)
            child.stage = "killed"
            child.due = time.monotonic() + _UNKILLABLE

    def _act_on_due_time(self, child: Child) -> None:
        child.due = None
        if child.stage == "ending":
            self._kill(child)
        elif child.stage == "killed":
            self._stuck(child)
        elif child.stage == "lingering" and _exists(child.group) and time.monotonic() < child.last_look:
            child.due = time.monotonic() + _LINGER  # on a busy machine a killed process takes its time to exit
        elif child.stage == "lingering":
            child.escaped = True
            self._finish(child)

    def _look(self, child: Child) -> bool:
        """Search for strays; False if that takes a while: then `_finish` is called again."""
        beginning, child.beginning = child.beginning, None
        if beginning is None:
            return True
        numbers = beginning.numbers()
        if numbers is None:
            child.stage = "looking"
            child.due = None
            self._looking.append(child)
            if len(self._looking) == 1:
                self._look_at_all()
            return False
        child.left_behind = strays(
            numbers, child.token, child.group, marks_of(child.command.env),
            lambda: {one.group for one in self._watched if one is not child},
        )  # fmt: skip
        return True

    def _look_at_all(self) -> None:
        """Scan all processes once, in a thread, for all waiting children; later ones wait for the next scan."""
        children = list(self._looking)
        try:
            threading.Thread(target=self._looked, args=(children,), name="callboard-look", daemon=True).start()
        except RuntimeError:  # no more threads: then the strays are unknown
            self._after_look(children)

    def _looked(self, children: list[Child]) -> None:
        there = list(pids())
        for child in children:
            child.left_behind = strays(there, child.token, child.group, marks_of(child.command.env))
        self._put(partial(self._after_look, children))

    def _after_look(self, children: list[Child]) -> None:
        del self._looking[: len(children)]
        for child in children:
            self._guarded(self._finish, child)
        if self._looking:
            self._look_at_all()

    def _finish(self, child: Child) -> None:
        if child.stage == "over" or not self._look(child):
            return
        self._close_pidfd(child)
        self._close_pipe(child)
        if child.output is not None:
            child.output.close()
        child.stage = "over"
        child.due = None
        self._watched.discard(child)
        self._line.pop(child, None)
        self._next_start = 0.0  # this child's resources are free
        self._ended(child)

    def _close_pipe(self, child: Child) -> None:
        if child.pipe >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = -1


def _hear_signals() -> None:
    """In the child: block none of the signals that the application blocks."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _most_descriptors() -> int:
    """The descriptor number from which on no command may have one: the lowest free number is always given first."""
    limit = os.sysconf("SC_OPEN_MAX")
    return limit - min(_KEPT_FREE, limit // 4)


def _exists(group: int) -> bool:
    """Whether a process group has members. It is sent no signal."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True
