"""A thread that watches processes: their ends, their pipes, and their due times.

It is a separate thread so that a busy event loop never delays a process, and the start of a process (1-2 ms) never
delays the loop; and so that nothing depends on the kind of loop, its thread, or its SIGCHLD handlers.

Rules:
- A request to the thread is an *order*: a step for one watched process, done in the thread, in order of arrival.
- A process's group is killed after the process exited and before it is reaped: until the leader is reaped, the group's
  id cannot belong to another group. After that no signal is sent to that id again.
- An error about one watched process ends that one; the thread continues for the others.
- A program that ends without closing its engines leaves nothing running: see `kill_all`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from ..processes.os_processes import signal_group
from .usage import UNKNOWN, ResourceUsage, used_by_child

_KILLING = 1.0
"""Seconds that `kill_all` waits for each thread: a thread that hangs in the system must not keep a program running."""
_living: WeakSet[ProcessWatcher[Any]] = WeakSet()


class WatchedProcess:
    """A process that is watched, or will be. Its fields belong to the thread."""

    process: subprocess.Popen[bytes] | None = None
    pidfd = -1
    due: float | None = None  # on the monotonic clock: when its next step is due
    exit_code: int | None = None  # negative: the signal that killed it; None also if other code reaped it
    floor = 0  # this program's peak memory when it was started, in bytes
    used: ResourceUsage = UNKNOWN  # resources used by it and the children it waited for, once it is reaped

    @property
    def group(self) -> int:
        """The id of its process group, which is its own pid."""
        return 0 if self.process is None else self.process.pid


W = TypeVar("W", bound=WatchedProcess)


class ProcessWatcher(ABC, Generic[W]):
    """The thread. `closed` is called in it, once, at its end. Its creation raises on a shortage, and leaves nothing
    then. Subclasses implement the steps of their processes."""

    def __init__(self, name: str, closed: Callable[[], None]) -> None:
        self._closed = closed
        self._orders: deque[Callable[[], object]] = deque()
        self._watched: set[W] = set()
        self._closing = False
        self.ending = False  # the program ends: nothing more may be started
        self._selector = selectors.DefaultSelector()
        try:
            self._wake_reader, self._wake_writer = os.pipe()
        except OSError:
            self._selector.close()
            raise
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        _living.add(self)
        try:
            threading.Thread(target=self._watch, name=name, daemon=True).start()
        except RuntimeError:
            self._close_descriptors()
            raise

    def close(self) -> None:
        """Accept no more orders; the thread ends when nothing is left to watch. From any thread."""
        self._put(self._end_orders)

    def kill_all(self) -> None:
        """Kill the groups of all watched processes, after the orders so far; returns when they were signalled."""
        done = threading.Event()
        self._put(partial(self._kill_watched, done))
        done.wait(_KILLING)

    # -- for subclasses ------------------------------------------------------------------------------------------------

    @abstractmethod
    def _act_on_due_time(self, one: W, /) -> None:
        """Act, since the due time of the process has come."""

    @abstractmethod
    def _gone(self, one: W, /) -> None:
        """Act, since the process has exited and is reaped; `exit_code` has the result."""

    def _taken(self, one: W, /) -> None:
        """Other code has reaped its process, so its id may belong to another process by now."""

    @abstractmethod
    def _broke(self, one: W, error: Exception, /) -> None:
        """A step of the watcher raised. Its process, if there was one, has ended."""

    def _between(self) -> None:
        """Called in each pass, between handling events and checking due times."""

    def _close_all(self) -> None:
        """The last order has been done."""

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _order(self, step: Callable[[W], None], one: W) -> None:
        self._put(partial(self._guarded, step, one))

    def _put(self, order: Callable[[], object]) -> None:
        self._orders.append(order)
        with contextlib.suppress(OSError):  # full: a wake-up is pending; closed: the thread has ended
            os.write(self._wake_writer, b"!")

    def _watch(self) -> None:
        while not self._closing or self._watched:
            for key, _ in self._selector.select(self._patience()):
                if key.data is None:
                    self._read_wakes()
                else:
                    self._guarded(*key.data)
            self._between()
            now = time.monotonic()
            for one in [one for one in self._watched if one.due is not None and one.due <= now]:
                self._guarded(self._act_on_due_time, one)
        self._close_descriptors()
        self._closed()

    def _close_descriptors(self) -> None:
        self._selector.close()
        wake_writer, self._wake_writer = self._wake_writer, -1
        os.close(self._wake_reader)
        os.close(wake_writer)
        _living.discard(self)

    def _patience(self) -> float | None:
        dues = [one.due for one in self._watched if one.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _read_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._wake_reader, 4_096)) == 4_096:
                pass
        while self._orders:
            self._orders.popleft()()

    def _end_orders(self) -> None:
        self._closing = True
        self._close_all()

    def _kill_watched(self, done: threading.Event) -> None:
        self.ending = True
        for one in self._watched:
            if one.process is not None and one.process.returncode is None:
                signal_group(one.group, signal.SIGKILL)
        done.set()

    def _guarded(self, step: Callable[[W], None], one: W) -> None:
        try:
            step(one)
        except Exception as error:
            if one.process is not None and one.process.returncode is None:
                signal_group(one.group, signal.SIGKILL)
                one.process.wait()
            self._broke(one, error)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _await_exit(self, one: W) -> None:
        try:
            one.pidfd = os.pidfd_open(one.group)
        except ProcessLookupError:
            self._order(self._exited, one)  # other code reaps all children of this program
        except (OSError, AttributeError):  # out of descriptors, or a system without pidfd: a thread waits
            threading.Thread(target=self._wait, args=(one,), name="callboard-wait", daemon=True).start()
        else:
            self._selector.register(one.pidfd, selectors.EVENT_READ, (self._exited, one))

    def _wait(self, one: W) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, one.group, os.WEXITED | os.WNOWAIT)
        self._order(self._exited, one)

    def _exited(self, one: W) -> None:
        if one.process is None or one.process.returncode is not None:
            return
        pid = one.process.pid
        try:
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            self._taken(one)
            one.process.returncode = 0  # unknown; this keeps Popen from waiting for that number
        else:
            if ended is None:
                return
            one.exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            signal_group(pid, signal.SIGKILL)
            _, _, usage = os.wait4(pid, 0)
            one.used = used_by_child(usage, one.floor)
            one.process.returncode = one.exit_code
        self._close_pidfd(one)
        self._gone(one)

    def _close_pidfd(self, one: W) -> None:
        if one.pidfd >= 0:
            self._selector.unregister(one.pidfd)
            os.close(one.pidfd)
            one.pidfd = -1


def kill_all() -> None:
    """Kill the groups of all processes that this program's engines watch: it ends without having closed them."""
    for watcher in list(_living):
        watcher.kill_all()


atexit.register(kill_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_living.clear)  # watchers and their processes stay with the parent
