"""What the keeper of worker processes keeps: seats, and the bodies that run there.

A *seat* is an incarnation of a worker: one process at a time, and the bodies that wait for it. A process may come and
go while its seat stays; a seat whose process dies unasked is dead.

| a process is | entered when | its due time |
| --- | --- | --- |
| starting | it was started, on the first need | after `start_limit` s without work: killed, its seat is dead |
| short | there was too little of something to start it | after a pause: it is started |
| idle | it is up, or its body ended | (none) |
| busy | it was given a body | (none) |
| halting | its body was told to end | half of the grace later: SIGTERM; the other half later: SIGKILL |
| leaving | it was told to end (recycled, replaced, its worker stopped) | after its limit: SIGKILL |
| killed | SIGKILL was sent to its group | after some seconds: its body is told as stuck, its seat is dead |
| over | it has exited | (none) |
"""

from __future__ import annotations

import signal
import socket
import time
from collections import deque
from pathlib import Path
from typing import Literal, Protocol

from ...text.secrets import Mask
from ..command.output import Output, OutputUnwritable
from ..contract import ErrorInfo, ProcessInfo
from ..os_processes import Look, signal_name
from ..process_watcher import Watched
from ..shortage import Pauses
from ..usage import UNKNOWN
from .wire import Begin, Done, Unpacker, Unwanted, Want

Stage = Literal["none", "short", "starting", "idle", "busy", "halting", "leaving", "killed", "over"]


class Job:
    """One body, from its order to its end."""

    def __init__(
        self,
        begin: Begin,
        *,
        seat: Seat,
        grace: float,
        output_path: Path | None,
        output_root: Path | None,
        output_limit: int,
        recycle_after: int | None,
        mask: Mask | None = None,
    ) -> None:
        self.begin = begin
        self.seat = seat
        self.grace = grace
        self.output_path = output_path
        self.output_root = output_root
        self.output_limit = output_limit
        self.recycle_after = recycle_after
        self.mask = mask
        self.halted = False
        self.output: Output | None = None  # made when there is something to keep
        self.began: float | None = None
        self.peak_memory_bytes: int | None = None  # where its process died under it, and that is known

    @property
    def token(self) -> int:
        """Its fencing token."""
        return self.begin.token

    def keep(self, data: bytes) -> None:
        """Keep what it printed."""
        if self.output is None:
            try:
                self.output = Output(self.output_path, self.output_limit, self.mask, self.output_root)
            except (OutputUnwritable, OSError) as error:  # the body is not to suffer by it: what it printed is counted
                self.output = Output(None, self.output_limit, self.mask)
                self.output.lost = error if isinstance(error, OSError) else None
        self.output.write(data)

    def cancelled(self, text: str) -> Done:
        """Its end, if it was stopped."""
        return self._without_result("cancelled", ErrorInfo(type="cancelled", message=text))

    def lost(self, reason: str) -> Done:
        """Its end, if its worker is gone."""
        return self._without_result("lost", ErrorInfo(type="worker_lost", message=reason, category="transient"))

    def _without_result(self, status: Literal["cancelled", "lost"], error: ErrorInfo) -> Done:
        spent = 0.0 if self.began is None else time.monotonic() - self.began
        return Done(self.token, status, error=error, duration=spent, peak_memory_bytes=self.peak_memory_bytes)


class Seat(Watched):
    """An incarnation of a worker, with its process. Its fields belong to the thread."""

    def __init__(self, worker: str, incarnation: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.dead = False
        self.closing = False  # it takes nothing new
        self.parked = False  # its body waits for a child: another seat of its worker takes what is new
        self.waiting: deque[Job] = deque()
        self.pauses = Pauses()
        self.deadline: float | None = None  # for what it runs when it is stopped
        self.left()

    def left(self) -> None:
        """Be without a process: none was needed so far, or it is gone."""
        self.process = None
        self.exit_code = None
        self.due = None
        self.stage: Stage = "none"
        self.job: Job | None = None
        self.asked = False  # its end was asked for: a replacement, not a loss
        self.probed = False  # it owes an answer
        self.up = False
        self.served = 0
        self.highest = 0  # bytes: the most memory that one of those had
        self.used = UNKNOWN
        self.line: socket.socket | None = None
        self.unpacker = Unpacker()
        self.unsent = bytearray()
        self.pipe = -1
        self.beginning: Look | None = None  # as it was when its start had its limit
        self.started = 0  # the kernel's start time

    def how_it_died(self) -> str:
        """What its process, which has exited, died of; with the last line that its body printed."""
        code, job = self.exit_code, self.job
        if code is None:
            how = "ended, but another part of this program took its exit status"
        elif code < 0:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            how = f"was killed by {signal_name(-code)}{hint}"
        else:
            how = f"exited with {code}"
        last = "" if job is None or job.output is None else job.output.last_line()
        return f"the worker's process {self.group} {how}" + (f": {last}" if last else "")


class Listener(Protocol):
    """Who hears of it, in the thread."""

    def job_started(self, job: Job, info: ProcessInfo) -> None:
        """A process was given the body."""

    def job_delayed(self, job: Job, error: Exception) -> None:
        """There is too little of something to start a process for it now."""

    def job_said(self, job: Job, details: object) -> None:
        """The body's heartbeat."""

    def job_wants(self, job: Job, want: Want | Unwanted) -> None:
        """The body asks for something, or does not wait for it any more."""

    def job_done(self, job: Job, done: Done) -> None:
        """The body's end. status as an Outcome's."""

    def job_stuck(self, job: Job) -> None:
        """Its process does not even die of SIGKILL."""

    def worker_alive(self, seat: Seat, tokens: tuple[int, ...], *, busy: bool) -> None:
        """The worker answered; or (`busy`) it does not, and is seen to work."""

    def worker_died(self, seat: Seat, reason: str) -> None:
        """Its process died, and nobody had asked for it. What ran there is told after this."""

    def keeper_closed(self) -> None:
        """Nothing is left."""
