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
from collections import deque
from typing import Literal

import msgspec

from ...text.secrets import Mask
from ..command.output import Output, OutputUnwritable
from ..contract import Outcome, ProcessCall
from ..os_processes import Look, signal_name
from ..process_watcher import Watched
from ..shortage import Pauses
from ..usage import UNKNOWN
from ..workers.seat import WorkerJob, WorkerSeat
from ..workers.wire import Begin, Unpacker

Stage = Literal["none", "short", "starting", "idle", "busy", "halting", "leaving", "killed", "over"]


class Job(WorkerJob["Seat"]):
    """One body, from its order to its end."""

    def __init__(self, begin: Begin, what: ProcessCall, *, grace: float, mask: Mask | None = None) -> None:
        super().__init__(begin.token, mask)
        self.begin = begin
        self.what = what
        self.grace = grace
        self.output: Output | None = None  # made when there is something to keep

    def keep(self, data: bytes) -> None:
        """Keep what it printed."""
        if self.output is None:
            what = self.what
            try:
                self.output = Output(what.output_path, what.output_limit, self.mask, what.output_root)
            except (OutputUnwritable, OSError) as error:  # the body is not to suffer by it: what it printed is counted
                self.output = Output(None, what.output_limit, self.mask)
                self.output.lost = error if isinstance(error, OSError) else None
        self.output.write(data)

    def last_line(self) -> str:
        """The last line that it has printed."""
        return "" if self.output is None else self.output.last_line()

    def close(self) -> None:
        """Nothing more is printed."""
        if self.output is not None:
            self.output.close()

    def with_output(self, outcome: Outcome) -> Outcome:
        """Its end, with what it printed."""
        if (output := self.output) is None:
            return outcome
        return msgspec.structs.replace(
            outcome, output_path=None if output.path is None else str(output.path), output_size=output.size,
            output_tail=output.tail(),
        )  # fmt: skip


class Seat(WorkerSeat, Watched):
    """An incarnation of a worker, with its process. Its fields belong to the thread."""

    def __init__(self, worker: str, incarnation: int) -> None:
        super().__init__(worker, incarnation)
        self.parked = False  # its body waits for a child: another seat of its worker takes what is new
        self.waiting: deque[Job] = deque()
        self.pauses = Pauses()
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
        last = "" if job is None else job.last_line()
        return f"the worker's process {self.group} {how}" + (f": {last}" if last else "")
