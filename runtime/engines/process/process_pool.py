"""One thread that manages worker processes: starts them, sends them bodies, reads from them, and replaces them.

The stages of a process are described in `worker_process.py`, its messages in `wire.py`.

Rules:
- Output that a body printed before its end is read before its end is reported; output between bodies is dropped.
- When a process has exited, its remaining messages are read first; only a body without an end is lost with it.
- A process that was signalled, or has reached its maximum of bodies, runs no other one.
- A process that does not answer in time is observed: a working process lives, whatever keeps it from answering.
- A body that waits for a child job has lent its slot, and its seat is set aside (*parked*): another seat of the same
  incarnation runs new calls. The parked process ends with its body, and if it dies, only that body is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ...calling import Outcome, ProcessInfo
from ...functions.main_program import began_in, own_main, search_path
from ...processes.os_processes import START_PATH, WORKER, Look, signal_group, start_time
from ..context import Checkpoint
from ..process_watcher import ProcessWatcher
from ..shortage import NOT_NOW, is_shortage
from ..usage import own_peak
from ..workers.engine import Post, WorkerEngine
from ..workers.seat import GONE, NEVER_BEGUN, NOT_IN_TIME, TERMINATED
from ..workers.wire import BodyRequest, Frame, Heartbeat, RequestAnswer, RequestWithdrawn, packed
from .wire import Alive, Ask, Done, FromProcess, Halt, Hello, Leave, ProcessReady
from .worker_process import Job, Seat

_CHUNK = 65_536
_LEFT_IN_PIPE = 1_048_576  # bytes that may be in a pipe: the kernel's limit
_UNKILLABLE = 5.0  # seconds
_LEAVING = 1.0  # seconds that a process has to end when it is replaced
_PACKAGE_FOLDER = str(Path(str(sys.modules[__name__.partition(".")[0]].__file__)).resolve().parent.parent)
_NOT_NOW = frozenset({"short", "leaving", "killed", "over"})
_TOO_LITTLE = OSError(errno.EAGAIN, "a worker's process could not begin, since resources were short")


class ProcessPool(ProcessWatcher[Seat]):
    """The thread. Any thread may call its public methods."""

    def __init__(
        self, engine: WorkerEngine[Any, Any], post: Post, closed: Callable[[], None], *, environment: Mapping[str, str],
        start_limit: float, patience: float,
    ) -> None:  # fmt: skip
        self._looks: dict[Seat, tuple[float, Look]] = {}  # seats that owe an answer: when to look, and at what
        self._look_after = patience / 2
        super().__init__("callboard-processes", closed)
        self._engine = engine
        self._post = post
        self._environment = environment
        self._start_limit = start_limit
        self._decode = msgspec.msgpack.Decoder(FromProcess).decode

    def open_seat(self, seat: Seat) -> None:
        """Do nothing: the seat's process is made for its first body."""

    def begin(self, job: Job) -> None:
        """Run the job in its seat, after the jobs that already wait there."""
        self._order(lambda seat: self._take(seat, job), job.seat)

    def halt(self, job: Job, *, force: bool) -> None:
        """Make the job end: by asking it, within its grace, or (`force`) at once."""
        self._order(lambda seat: self._halt(seat, job, force=force), job.seat)

    def answer(self, job: Job, answered: RequestAnswer) -> None:
        """Send the job the answer to its question, if it still runs."""
        self._order(lambda seat: self._answer(seat, job, answered), job.seat)

    def park(self, job: Job) -> bool:
        """Set the job's seat aside: it runs nothing after this job, and ends with it."""
        self._order(self._park, job.seat)
        return True

    def probe(self, seat: Seat) -> None:
        """Probe the seat's worker."""
        self._order(self._probe, seat)

    def stop(self, seat: Seat, deadline: float) -> None:
        """End the seat's process after its running body, at the latest in `deadline` seconds."""
        self._order(lambda one: self._retire(one, deadline), seat)

    def kill(self, seat: Seat) -> None:
        """Kill the seat's process; its jobs are lost."""
        self._order(lambda one: self._end_seat(one, TERMINATED), seat)

    def renew(self, seat: Seat) -> None:
        """End the seat's process if it is idle."""
        self._order(self._renew, seat)

    # -- bodies --------------------------------------------------------------------------------------------------------

    def _take(self, seat: Seat, job: Job) -> None:
        if job.halted:
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif seat.dead or seat.closing:
            self._tell(job, job.lost(GONE))
        else:
            seat.waiting.append(job)
            self._go_on(seat)

    def _go_on(self, seat: Seat) -> None:
        """Send the seat's process the next body, starting it if needed."""
        if seat.dead or seat.job is not None or not seat.waiting or seat.stage in _NOT_NOW:
            return
        if seat.stage == "none" and not self._spawned(seat):
            return
        job = seat.job = seat.waiting.popleft()
        job.began = time.monotonic()
        if seat.stage == "idle":
            seat.stage = "busy"
        pid = seat.group
        self._send(seat, job.begin)
        self._post(self._engine.job_started, job, ProcessInfo(job.token, pid, pid, seat.started))

    def _halt(self, seat: Seat, job: Job, *, force: bool) -> None:
        if job in seat.waiting:
            seat.waiting.remove(job)
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif seat.job is job and force:
            job.halted = True
            self._kill(seat)
        elif seat.job is job and not job.halted:
            job.halted = True
            self._send(seat, Halt(job.token))
            if seat.stage in ("starting", "busy"):
                seat.stage = "halting"
                seat.due = time.monotonic() + job.grace / 2

    def _answer(self, seat: Seat, job: Job, answered: RequestAnswer) -> None:
        if seat.job is job:
            self._send(seat, answered)

    def _park(self, seat: Seat) -> None:
        seat.parked = True
        if seat.job is None:  # its body has ended meanwhile
            self._dismiss(seat, _LEAVING)
            self._post(self._engine.seat_over, seat)

    def _done(self, seat: Seat, done: Done) -> None:
        job = seat.job
        if job is None or job.token != done.token:
            return  # from an attempt that is over
        self._drain(seat)
        seat.job = None
        seat.served += 1
        seat.highest = max(seat.highest, done.peak_memory_bytes or 0)
        worn = job.what.recycle_after is not None and seat.served >= job.what.recycle_after
        if seat.stage in ("starting", "busy", "halting"):
            seat.stage, seat.due = "idle", None
            if seat.asked or seat.closing or seat.parked or worn:
                self._dismiss(seat, _LEAVING)
        self._tell(job, outcome_of(done))
        self._go_on(seat)

    def _tell(self, job: Job, outcome: Outcome) -> None:
        job.close()
        self._post(self._engine.job_done, job, job.with_output(outcome))
        self._tell_if_over(job.seat)

    def _tell_if_over(self, seat: Seat) -> None:
        if seat.parked:
            self._post(self._engine.seat_over, seat)

    # -- processes -----------------------------------------------------------------------------------------------------

    def _spawned(self, seat: Seat) -> bool:
        """Start a process for the seat; False if a shortage prevents that now: it is retried."""
        try:
            self._spawn(seat)
        except Exception as error:
            if seat.process is not None or not is_shortage(error):
                raise
            self._wait_for_more(seat, error)
            return False
        return True

    def _wait_for_more(self, seat: Seat, error: Exception) -> None:
        self._let_go(seat)
        seat.left()
        seat.stage, seat.due = "short", time.monotonic() + seat.pauses.next()
        self._watched.add(seat)
        for job in seat.waiting:
            self._post(self._engine.job_delayed, job, error)

    def _spawn(self, seat: Seat) -> None:
        """Start a process for the seat. Raises OSError if none can be started."""
        ours, theirs = socket.socketpair()
        seat.line = ours
        try:
            seat.pipe, write_end = os.pipe()
        except OSError:
            theirs.close()
            raise
        try:
            seat.process = subprocess.Popen(  # noqa: S603 - our own module
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "callboard.runtime.engines.process.child",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=environment_of_ours({**self._environment, WORKER: f"{seat.worker}#{seat.incarnation}"}),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
            theirs.close()
        seat.floor = own_peak()
        seat.stage = "starting"
        self._limit_start(seat)
        seat.started = start_time(seat.group)
        self._watched.add(seat)
        for descriptor, step in ((seat.pipe, self._read_output), (ours.fileno(), self._serve_line)):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, (step, seat))
        self._await_exit(seat)
        self._send(seat, Hello(search_path(), list(sys.argv), own_main(), began_in()))

    def _limit_start(self, seat: Seat) -> None:
        seat.due, seat.beginning = time.monotonic() + self._start_limit, Look(seat.group)

    def _dismiss(self, seat: Seat, limit: float) -> None:
        """Ask the seat's process to end; kill it after `limit` seconds."""
        if seat.stage in ("idle", "starting"):
            seat.asked = True
            seat.stage, seat.due = "leaving", time.monotonic() + limit
            self._send(seat, Leave())

    def _renew(self, seat: Seat) -> None:
        if seat.stage == "idle":
            self._dismiss(seat, _LEAVING)

    def _kill(self, seat: Seat) -> None:
        if seat.process is not None and seat.process.returncode is None and seat.stage != "killed":
            seat.asked = True
            signal_group(seat.group, signal.SIGKILL)
            seat.stage, seat.due = "killed", time.monotonic() + _UNKILLABLE

    def _retire(self, seat: Seat, deadline: float) -> None:
        seat.closing = True
        if seat.job is None and not seat.waiting:
            self._dismiss(seat, deadline)
        else:
            seat.deadline = time.monotonic() + deadline
            if seat.stage == "busy":
                seat.due = seat.deadline

    def _end_seat(self, seat: Seat, reason: str) -> None:
        """End the seat: its process is killed, its running and waiting jobs are lost."""
        seat.dead = True
        self._kill(seat)
        for job in (seat.job, *seat.waiting):
            if job is not None:
                self._tell(job, job.lost(reason))
        seat.job = None
        seat.waiting.clear()

    def _act_on_due_time(self, seat: Seat) -> None:
        seat.due = None
        job = seat.job
        if seat.stage == "halting" and job is not None and not seat.asked:
            seat.asked = True
            signal_group(seat.group, signal.SIGTERM)
            signal_group(seat.group, signal.SIGCONT)  # a stopped process handles no other signal
            seat.due = time.monotonic() + job.grace / 2
        elif seat.stage == "killed":
            seat.job = None
            self._lose(seat, "the worker's process cannot be killed")
            if job is not None:
                self._post(self._engine.job_stuck, job)
                self._tell_if_over(seat)
        elif seat.stage == "short":
            self._begin_again(seat)
        elif seat.stage == "starting" and seat.beginning is not None and seat.beginning.works():
            self._limit_start(seat)  # a busy machine, not a fault of the process
        elif seat.stage == "starting":
            self._lose(seat, f"the worker's process did not start within {self._start_limit:g} s")
        elif seat.stage == "busy":
            self._end_seat(seat, NOT_IN_TIME)
        else:
            self._kill(seat)

    def _begin_again(self, seat: Seat) -> None:
        """Retry the start after a pause."""
        seat.stage = "none"
        self._watched.discard(seat)
        self._go_on(seat)

    def _lose(self, seat: Seat, reason: str) -> None:
        """Give up the seat's process, which failed without a request."""
        if not seat.dead:
            if not seat.parked:
                self._post(self._engine.worker_died, seat, reason)
            self._end_seat(seat, reason)

    def _gone(self, seat: Seat) -> None:
        """Handle its exit: read its last messages; then its body is lost, unless its end was requested."""
        seat.stage, seat.due = "over", None
        with contextlib.suppress(ValueError):  # damaged: it died while it was writing
            self._hear(seat)
        self._drain(seat)
        self._let_go(seat)
        job = seat.job
        peak = seat.used.peak_memory_bytes
        if job is not None and peak is not None and peak > seat.highest:
            job.peak_memory_bytes = peak
        if job is not None and job.halted:
            seat.job = None
            self._tell(job, job.cancelled("its process was ended"))
        elif seat.exit_code == NOT_NOW and not seat.up and not seat.dead:
            if job is not None:
                seat.waiting.appendleft(job)
            self._wait_for_more(seat, _TOO_LITTLE)
            return
        elif not seat.asked:
            self._lose(seat, seat.how_it_died())
        seat.left()
        self._watched.discard(seat)
        self._go_on(seat)

    def _broke(self, seat: Seat, error: Exception) -> None:
        reason = f"the worker's process could not be run: {error}"
        if seat.process is not None and seat.process.returncode is None:
            seat.process.wait()
        self._close_pidfd(seat)
        self._let_go(seat)
        self._lose(seat, reason)
        seat.left()
        self._watched.discard(seat)

    def _close_all(self) -> None:
        for seat in list(self._watched):
            seat.closing = True
            self._dismiss(seat, _LEAVING)

    # -- messages from the process -------------------------------------------------------------------------------------

    def _probe(self, seat: Seat) -> None:
        if seat.dead:
            return
        if seat.up:
            if not seat.probed:
                seat.probed = True
                self._send(seat, Ask())
            self._looks.setdefault(seat, (time.monotonic() + self._look_after, Look(seat.group)))
        else:  # the seat has no process yet, or one whose start has its own limit
            self._post(self._engine.worker_alive, seat, seat.running())

    def _patience(self) -> float | None:
        patience = super()._patience()
        if not self._looks:
            return patience
        look = max(0.0, min(at for at, _ in self._looks.values()) - time.monotonic())
        return look if patience is None else min(patience, look)

    def _between(self) -> None:
        now = time.monotonic()
        for seat, (at, look) in list(self._looks.items()):
            if at <= now:
                del self._looks[seat]
                self._guarded(partial(self._look, before=look), seat)

    def _look(self, seat: Seat, *, before: Look) -> None:
        """Report a process that has not answered as alive if it works."""
        if seat.probed and before.works():
            self._post(self._engine.worker_alive, seat, seat.running(), True)

    def _send(self, seat: Seat, frame: Frame) -> None:
        seat.unsent += packed(frame)
        self._send_more(seat)

    def _send_more(self, seat: Seat) -> None:
        line = seat.line
        if line is None:
            return
        try:
            while seat.unsent:
                del seat.unsent[: line.send(seat.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            seat.unsent.clear()  # the process is dying: its end is reported separately
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if seat.unsent else 0)
        if self._selector.get_key(line).events != events:
            self._selector.modify(line, events, (self._serve_line, seat))

    def _serve_line(self, seat: Seat) -> None:
        if seat.unsent:
            self._send_more(seat)
        try:
            self._hear(seat)
        except ValueError as error:
            self._lose(seat, f"the worker's process sent an invalid message: {error}")

    def _hear(self, seat: Seat) -> None:
        """Read the messages so far. Raises ValueError for invalid frames."""
        while seat.line is not None:
            try:
                data = seat.line.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_line(seat)
                return
            for body in seat.unpacker.feed(data):
                self._heard(seat, self._decode(body))
            if len(data) < _CHUNK:
                return

    def _heard(self, seat: Seat, frame: FromProcess) -> None:
        match frame:
            case Heartbeat(token=token, details=details, saved=saved):
                job = seat.job
                if (
                    job is not None
                    and job.token == token
                    and job.heartbeats.take(Checkpoint(details) if saved else details)
                ):
                    self._post(self._engine.job_said, job)
            case Done():
                self._done(seat, frame)
            case BodyRequest(token=token) | RequestWithdrawn(token=token):
                if seat.job is not None and seat.job.token == token:
                    self._post(self._engine.job_wants, seat.job, frame)
            case Alive(tokens=tokens):
                seat.probed = False
                self._looks.pop(seat, None)
                self._post(self._engine.worker_alive, seat, () if seat.stage == "killed" else tokens)
            case ProcessReady():
                seat.up = True
                seat.pauses.over()
                if seat.stage == "starting":
                    seat.stage, seat.due = ("idle", None) if seat.job is None else ("busy", seat.deadline)

    def _read_output(self, seat: Seat) -> None:
        self._read_chunk(seat)

    def _read_chunk(self, seat: Seat) -> int:
        if seat.pipe < 0:
            return 0
        try:
            data = os.read(seat.pipe, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._close_pipe(seat)
        elif seat.job is not None:
            seat.job.keep(data)
        return len(data)

    def _drain(self, seat: Seat) -> None:
        left = _LEFT_IN_PIPE
        while left > 0 and (count := self._read_chunk(seat)):
            left -= count

    def _let_go(self, seat: Seat) -> None:
        self._looks.pop(seat, None)
        self._close_line(seat)
        self._close_pipe(seat)

    def _close_line(self, seat: Seat) -> None:
        if seat.line is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(seat.line)
            seat.line.close()
            seat.line = None

    def _close_pipe(self, seat: Seat) -> None:
        if seat.pipe >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(seat.pipe)
            os.close(seat.pipe)
            seat.pipe = -1


def outcome_of(done: Done) -> Outcome:
    """The outcome of a body, from its process's report."""
    return Outcome(
        token=done.token, status=done.status, value=done.value, error=done.error, duration=done.duration,
        cpu_seconds=done.cpu_seconds, peak_memory_bytes=done.peak_memory_bytes, left_behind=done.left_behind,
        unasked=done.unasked,
    )  # fmt: skip


def environment_of_ours(marks: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that runs a module of this package; it finds the package as this process did,
    whatever its own path is.
    """
    environment = {**os.environ, **marks}
    if (path := environment.get("PYTHONPATH")) is not None:
        environment[START_PATH] = path
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_PACKAGE_FOLDER, path)))
    return environment
