"""The records of the pool of worker processes: its members, and the bodies that run in them.

A *member* is an incarnation of a worker: one process at a time, and the bodies that wait for it. A member may have
several processes, one after another; if one dies without a request, the member is dead.

 a process is | entered when | its due time |
 --- | --- | --- |
 starting | it was started, when first needed | after `start_limit` s without work: killed, its member is dead |
 short | a shortage prevented its start | after a pause: it is started |
 idle | it is up, or its body ended | (none) |
 busy | it was given a body | (none) |
 halting | its body was told to end | half of the grace later: SIGTERM; the other half later: SIGKILL |
 leaving | it was told to end (recycled, replaced, its worker stopped) | after its limit: SIGKILL |
 killed | SIGKILL was sent to its group | after some seconds: its body is reported as stuck, its member is dead |
 over | it has exited | (none) |
"""

from __future__ import annotations

import signal
import socket
from collections import deque
from typing import Literal

import msgspec

from ...calling import Outcome
from ...processes.os_processes import ProcessSample, signal_name
from ...text.secrets import Mask
from ..command.output import Output, OutputUnwritable
from ..contract import ProcessCall
from ..process_watcher import WatchedProcess
from ..shortage import Pauses
from ..usage import UNKNOWN
from ..workers.pool_member import PoolMember, WorkerJob
from ..workers.wire import Begin, Unpacker

Stage = Literal["none", "short", "starting", "idle", "busy", "halting", "leaving", "killed", "over"]


class Job(WorkerJob["ProcessMember"]):
    """One body, from its order to its end."""

    def __init__(self, begin: Begin, what: ProcessCall, *, grace: float, mask: Mask | None = None) -> None:
        super().__init__(begin.token, mask)
        self.begin = begin
        self.what = what
        self.grace = grace
        self.output: Output | None = None  # created with the first printed output

    def keep(self, data: bytes) -> None:
        """Keep output that the body printed."""
        if self.output is None:
            what = self.what
            try:
                self.output = Output(what.output_path, what.output_limit, self.mask, what.output_root)
            except (OutputUnwritable, OSError) as error:  # the body continues: its output is only counted
                self.output = Output(None, what.output_limit, self.mask)
                self.output.lost = error if isinstance(error, OSError) else None
        self.output.write(data)

    def last_line(self) -> str:
        """The last line that it has printed."""
        return "" if self.output is None else self.output.last_line()

    def close(self) -> None:
        """Close the output: no more is printed."""
        if self.output is not None:
            self.output.close()

    def with_output(self, outcome: Outcome) -> Outcome:
        """An outcome with the body's output."""
        if (output := self.output) is None:
            return outcome
        return msgspec.structs.replace(
            outcome, output_path=None if output.path is None else str(output.path), output_size=output.size,
            output_tail=output.tail(),
        )  # fmt: skip


class ProcessMember(PoolMember, WatchedProcess):
    """An incarnation of a worker, with its process. Its fields belong to the pool's thread."""

    def __init__(self, worker: str, incarnation: int) -> None:
        super().__init__(worker, incarnation)
        self.parked = False  # the body waits for a child: another member of its worker takes new calls
        self.waiting: deque[Job] = deque()
        self.pauses = Pauses()
        self.left()

    def left(self) -> None:
        """Reset a member that has no process so far, or whose process has ended."""
        self.process = None
        self.exit_code = None
        self.due = None
        self.stage: Stage = "none"
        self.job: Job | None = None
        self.asked = False  # the end was requested: a replacement, not a loss
        self.probed = False  # a probe is not answered yet
        self.up = False
        self.served = 0
        self.highest = 0  # bytes: the highest peak memory of its bodies
        self.used = UNKNOWN
        self.line: socket.socket | None = None
        self.unpacker = Unpacker()
        self.unsent = bytearray()
        self.pipe = -1
        self.beginning: ProcessSample | None = None  # the state of the process when the limit for its start was set
        self.started = 0  # the kernel's start time

    def running(self) -> tuple[int, ...]:
        """The token of its running body; none if its process was killed, and only has not exited yet."""
        return () if self.job is None or self.stage == "killed" else (self.job.token,)

    def how_it_died(self) -> str:
        """Why its process, which has exited, died; with the last line that its body printed."""
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
