"""One thread that starts commands, drains their output, waits for their ends, and kills them.

It is a thread of its own so that a command is never held up by a busy event loop, nor the loop by the start
of a process (1-2 ms); and so that nothing depends on which loop it is, in which thread, with which SIGCHLD
handlers.

The life of a child, and what a due time means in each stage:
| stage | entered when | its due time |
| --- | --- | --- |
| running | it was started | (none) |
| ending | SIGTERM was sent to its group | after the grace: SIGKILL, and it is killed |
| killed | SIGKILL was sent to its group | after `_UNKILLABLE` s: told as stuck, and watched without a limit |
| lingering | it exited, its group was killed, its pipe is still held | after `_LINGER` s: escaped |
| over | its end was told | |

Rules:
- A command is over when its process has exited, not when its pipe ends.
- Its group is killed after it exited and before it is reaped: as long as the leader is not reaped, the
  group's number cannot belong to anybody else. After that no signal is sent to that number again.
- Each pass reads at most one chunk of each pipe, so one flood does not hold up another command.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from .contract import CommandCall, ProcessInfo
from .output import Output
from .processes import TOKEN, kill_leftover, signal_group, start_time

_CHUNK = 65_536  # bytes read at once: what a pipe holds unless it was enlarged
_LEFT_IN_PIPE = 1_048_576  # bytes that may be in a pipe when its writer exits: the kernel's limit
_LINGER = 0.1  # seconds
_UNKILLABLE = 5.0  # seconds

Stage = Literal["waiting", "running", "ending", "killed", "lingering", "over"]


class Child:
    """One command, from its order to its end. Its fields belong to the watcher's thread until `stage` is
    "over".
    """

    def __init__(self, token: int, command: CommandCall, grace: float) -> None:
        self.token = token
        self.command = command
        self.grace = grace
        self.stage: Stage = "waiting"
        self.due: float | None = None
        self.unwanted = False  # set by the loop: it was stopped, perhaps before it was started
        self.began: float | None = None  # on the engine's clock
        self.output: Output | None = None
        self.failure: Exception | None = None  # it could not be started, or could not be watched
        self.exit_code: int | None = None  # None also if somebody else took it
        self.signalled = False  # a stop reached it before its end
        self.escaped = False  # a descendant that left the group still holds its pipe
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self.pipe = -1

    @property
    def group(self) -> int:
        """The number of its process group, which is its own pid."""
        return 0 if self.process is None else self.process.pid


class Watcher:
    """The thread. Its four callbacks are called in it: started, stuck, ended, and closed (once, at its own
    end).
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        started: Callable[[Child, ProcessInfo], None],
        stuck: Callable[[Child], None],
        ended: Callable[[Child], None],
        closed: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._started = started
        self._stuck = stuck
        self._ended = ended
        self._closed = closed
        self._orders: deque[tuple[Callable[[Child], None], Child] | None] = deque()
        self._children: set[Child] = set()
        self._closing = False
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        threading.Thread(target=self._watch, name="callboard-commands", daemon=True).start()

    def start(self, child: Child) -> None:
        """Start the child's command. From any thread, as the next three."""
        self._order((self._spawn, child))

    def terminate(self, child: Child) -> None:
        """Ask the child's group to end; kill it after the grace."""
        self._order((self._terminate, child))

    def kill(self, child: Child) -> None:
        """Kill the child's group."""
        self._order((self._kill, child))

    def close(self) -> None:
        """Take no more orders; the thread ends when no child is left."""
        self._order(None)

    # -- the thread --

    def _order(self, order: tuple[Callable[[Child], None], Child] | None) -> None:
        self._orders.append(order)
        with contextlib.suppress(OSError):  # full: it is ringing already; closed: nobody is left
            os.write(self._rope, b"!")

    def _watch(self) -> None:
        while not self._closing or self._children:
            for key, _ in self._selector.select(self._patience()):
                if key.data is None:
                    self._answer_bell()
                else:
                    self._guarded(*key.data)
            now = time.monotonic()
            for child in [one for one in self._children if one.due is not None and one.due <= now]:
                self._guarded(self._act_on_due_time, child)
        self._selector.close()
        rope, self._rope = self._rope, -1
        os.close(self._bell)
        os.close(rope)
        self._closed()

    def _patience(self) -> float | None:
        dues = [child.due for child in self._children if child.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _answer_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._bell, 4_096)) == 4_096:
                pass
        while self._orders:
            order = self._orders.popleft()
            if order is None:
                self._closing = True
            else:
                self._guarded(*order)

    def _guarded(self, step: Callable[[Child], None], child: Child) -> None:
        """One child's trouble ends that child; the thread goes on for the others."""
        try:
            step(child)
        except Exception as error:
            child.failure = error
            if child.process is not None and child.process.returncode is None:
                signal_group(child.group, signal.SIGKILL)
                child.process.wait()
            self._finish(child)

    # -- the steps of a child --

    def _spawn(self, child: Child) -> None:
        if child.unwanted:
            child.signalled = True
            self._finish(child)
            return
        command = child.command
        child.output = Output(command.output_path, command.output_limit)
        child.pipe, write_end = os.pipe()
        try:
            child.began = self._clock()
            child.process = subprocess.Popen(  # noqa: S603 - to run what the specification says is the purpose
                command.argv if command.shell is None else ["/bin/sh", "-c", command.shell],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                cwd=command.cwd,
                env={**os.environ, **command.env, TOKEN: str(child.token)},
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        child.stage = "running"
        self._children.add(child)
        os.set_blocking(child.pipe, False)
        self._selector.register(child.pipe, selectors.EVENT_READ, (self._read, child))
        self._await_exit(child)
        pid = child.process.pid
        self._started(child, ProcessInfo(child.token, pid, pid, start_time(pid)))

    def _await_exit(self, child: Child) -> None:
        try:
            child.pidfd = os.pidfd_open(child.group)
        except ProcessLookupError:
            self._order((self._exited, child))  # somebody reaps every child of this program
        except (OSError, AttributeError):  # out of descriptors, or a system without them: a thread waits
            threading.Thread(target=self._wait, args=(child,), name="callboard-wait", daemon=True).start()
        else:
            self._selector.register(child.pidfd, selectors.EVENT_READ, (self._exited, child))

    def _wait(self, child: Child) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, child.group, os.WEXITED | os.WNOWAIT)
        self._order((self._exited, child))

    def _read(self, child: Child) -> None:
        """One chunk of its output; its pipe is closed at the end."""
        if child.pipe < 0:
            return  # it was closed earlier in this pass
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

    def _exited(self, child: Child) -> None:
        if child.stage in ("lingering", "over") or child.process is None:
            return
        pid = child.process.pid
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            # Somebody else has reaped it, so its number may be another's: only what has the token is killed.
            kill_leftover(ProcessInfo(child.token, pid, pid, -1), wait=0)
            child.process.returncode = 0  # unknown; this keeps Popen from waiting for that number
        else:
            if ended is None:
                return
            child.exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            signal_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            child.process.returncode = child.exit_code
        self._close_pidfd(child)
        self._drain(child)

    def _drain(self, child: Child) -> None:
        """Read what the command left in its pipe; then give the dead a moment to let go of it."""
        left = _LEFT_IN_PIPE
        while child.pipe >= 0 and left > 0 and (count := self._read_chunk(child)):
            left -= count
        if child.pipe < 0:
            self._finish(child)
        else:
            child.stage = "lingering"
            child.due = time.monotonic() + _LINGER

    def _terminate(self, child: Child) -> None:
        if child.stage == "running":
            child.signalled = True
            signal_group(child.group, signal.SIGTERM)
            signal_group(child.group, signal.SIGCONT)  # a stopped process hears nothing else
            child.stage = "ending"
            child.due = time.monotonic() + child.grace

    def _kill(self, child: Child) -> None:
        if child.stage in ("running", "ending"):
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
        elif child.stage == "lingering":
            child.escaped = True
            self._finish(child)

    def _finish(self, child: Child) -> None:
        if child.stage == "over":
            return
        self._close_pidfd(child)
        self._close_pipe(child)
        if child.output is not None:
            child.output.close()
        child.stage = "over"
        child.due = None
        self._children.discard(child)
        self._ended(child)

    def _close_pidfd(self, child: Child) -> None:
        if child.pidfd >= 0:
            self._selector.unregister(child.pidfd)
            os.close(child.pidfd)
            child.pidfd = -1

    def _close_pipe(self, child: Child) -> None:
        if child.pipe >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(child.pipe)
            os.close(child.pipe)
            child.pipe = -1
