"""One thread that manages worker processes: starts them, sends them bodies, reads from them, and replaces them.

The stages of a process are described in `worker_process.py`, its messages in `wire.py`.

Rules:
- Output that a body printed before its end is read before its end is reported; output between bodies is dropped.
- When a process has exited, its remaining messages are read first; only a body without an end is lost with it.
- A process that was signalled, or has reached its maximum of bodies, runs no other one.
- A process that does not answer in time is observed: a working process lives, whatever keeps it from answering.
- A body that waits for a child job has lent its slot, and its member is set aside (*parked*): another member of the
  same incarnation runs new calls. The parked process ends with its body, and if it dies, only that body is lost.
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
from ...processes.os_processes import START_PATH, WORKER, ProcessSample, signal_group, start_time
from ..context import Checkpoint
from ..process_watcher import ProcessWatcher
from ..shortage import NOT_NOW, is_shortage
from ..usage import own_peak
from ..workers.engine import Post, WorkerEngine
from ..workers.pool_member import GONE, NEVER_BEGUN, NOT_IN_TIME, TERMINATED
from ..workers.wire import BodyRequest, Frame, Heartbeat, RequestAnswer, RequestWithdrawn, ShownFrame, packed
from .wire import Alive, Ask, Done, FromProcess, Halt, Hello, Leave, ProcessReady
from .worker_process import Job, ProcessMember

_CHUNK = 65_536
_LEFT_IN_PIPE = 1_048_576  # bytes that may be in a pipe: the kernel's limit
_UNKILLABLE = 5.0  # seconds
_LEAVING = 1.0  # seconds that a process has to end when it is replaced
_PACKAGE_FOLDER = str(Path(str(sys.modules[__name__.partition(".")[0]].__file__)).resolve().parent.parent)
_NOT_NOW = frozenset({"short", "leaving", "killed", "over"})
_TOO_LITTLE = OSError(errno.EAGAIN, "a worker's process could not begin, since resources were short")


class ProcessPool(ProcessWatcher[ProcessMember]):
    """The thread. Any thread may call its public methods."""

    def __init__(
        self, engine: WorkerEngine[Any, Any], post: Post, closed: Callable[[], None], *, environment: Mapping[str, str],
        start_limit: float, patience: float,
    ) -> None:  # fmt: skip
        self._looks: dict[
            ProcessMember, tuple[float, ProcessSample]
        ] = {}  # members that owe an answer: when to look, and at what
        self._look_after = patience / 2
        super().__init__("callboard-processes", closed)
        self._engine = engine
        self._post = post
        self._environment = environment
        self._start_limit = start_limit
        self._decode = msgspec.msgpack.Decoder(FromProcess).decode

    def open_member(self, member: ProcessMember) -> None:
        """Do nothing: the member's process is made for its first body."""

    def begin(self, job: Job) -> None:
        """Run the job in its member, after the jobs that already wait there."""
        self._order(lambda member: self._take(member, job), job.member)

    def halt(self, job: Job, *, force: bool) -> None:
        """Make the job end: by asking it, within its grace, or (`force`) at once."""
        self._order(lambda member: self._halt(member, job, force=force), job.member)

    def answer(self, job: Job, answered: RequestAnswer) -> None:
        """Send the job the answer to its question, if it still runs."""
        self._order(lambda member: self._answer(member, job, answered), job.member)

    def park(self, job: Job) -> bool:
        """Set the job's member aside: it runs nothing after this job, and ends with it."""
        self._order(self._park, job.member)
        return True

    def probe(self, member: ProcessMember) -> None:
        """Probe the member's worker."""
        self._order(self._probe, member)

    def stop(self, member: ProcessMember, deadline: float) -> None:
        """End the member's process after its running body, at the latest in `deadline` seconds."""
        self._order(lambda one: self._retire(one, deadline), member)

    def kill(self, member: ProcessMember) -> None:
        """Kill the member's process; its jobs are lost."""
        self._order(lambda one: self._end_member(one, TERMINATED), member)

    def renew(self, member: ProcessMember) -> None:
        """End the member's process if it is idle."""
        self._order(self._renew, member)

    # -- bodies --------------------------------------------------------------------------------------------------------

    def _take(self, member: ProcessMember, job: Job) -> None:
        if job.halted:
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif member.dead or member.closing:
            self._tell(job, job.lost(GONE))
        else:
            member.waiting.append(job)
            self._go_on(member)

    def _go_on(self, member: ProcessMember) -> None:
        """Send the member's process the next body, starting it if needed."""
        if member.dead or member.job is not None or not member.waiting or member.stage in _NOT_NOW:
            return
        if member.stage == "none" and not self._spawned(member):
            return
        job = member.job = member.waiting.popleft()
        job.began = time.monotonic()
        if member.stage == "idle":
            member.stage = "busy"
        pid = member.group
        self._send(member, job.begin)
        self._post(self._engine.job_started, job, ProcessInfo(job.token, pid, pid, member.started))

    def _halt(self, member: ProcessMember, job: Job, *, force: bool) -> None:
        if job in member.waiting:
            member.waiting.remove(job)
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif member.job is job and force:
            job.halted = True
            self._kill(member)
        elif member.job is job and not job.halted:
            job.halted = True
            self._send(member, Halt(job.token))
            if member.stage in ("starting", "busy"):
                member.stage = "halting"
                member.due = time.monotonic() + job.grace / 2

    def _answer(self, member: ProcessMember, job: Job, answered: RequestAnswer) -> None:
        if member.job is job:
            self._send(member, answered)

    def _park(self, member: ProcessMember) -> None:
        member.parked = True
        if member.job is None:  # the body has ended meanwhile
            self._dismiss(member, _LEAVING)
            self._post(self._engine.member_over, member)

    def _done(self, member: ProcessMember, done: Done) -> None:
        job = member.job
        if job is None or job.token != done.token:
            return  # from an attempt that is over
        self._drain(member)
        member.job = None
        member.served += 1
        member.highest = max(member.highest, done.peak_memory_bytes or 0)
        worn = job.what.recycle_after is not None and member.served >= job.what.recycle_after
        if member.stage in ("starting", "busy", "halting"):
            member.stage, member.due = "idle", None
            if member.asked or member.closing or member.parked or worn:
                self._dismiss(member, _LEAVING)
        self._tell(job, outcome_of(done))
        self._go_on(member)

    def _tell(self, job: Job, outcome: Outcome) -> None:
        job.close()
        self._post(self._engine.job_done, job, job.with_output(outcome))
        self._tell_if_over(job.member)

    def _tell_if_over(self, member: ProcessMember) -> None:
        if member.parked:
            self._post(self._engine.member_over, member)

    # -- processes -----------------------------------------------------------------------------------------------------

    def _spawned(self, member: ProcessMember) -> bool:
        """Start a process for the member; False if a shortage prevents that now: it is retried."""
        try:
            self._spawn(member)
        except Exception as error:
            if member.process is not None or not is_shortage(error):
                raise
            self._wait_for_more(member, error)
            return False
        return True

    def _wait_for_more(self, member: ProcessMember, error: Exception) -> None:
        self._close_channels(member)
        member.left()
        member.stage, member.due = "short", time.monotonic() + member.pauses.next()
        self._watched.add(member)
        for job in member.waiting:
            self._post(self._engine.job_delayed, job, error)

    def _spawn(self, member: ProcessMember) -> None:
        """Start a process for the member. Raises OSError if none can be started."""
        ours, theirs = socket.socketpair()
        member.line = ours
        try:
            member.pipe, write_end = os.pipe()
        except OSError:
            theirs.close()
            raise
        try:
            member.process = subprocess.Popen(  # noqa: S603 - our own module
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
                env=environment_of_ours({**self._environment, WORKER: f"{member.worker}#{member.incarnation}"}),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
            theirs.close()
        member.floor = own_peak()
        member.stage = "starting"
        self._limit_start(member)
        member.started = start_time(member.group)
        self._watched.add(member)
        for descriptor, step in ((member.pipe, self._read_output), (ours.fileno(), self._serve_line)):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, (step, member))
        self._await_exit(member)
        self._send(member, Hello(search_path(), list(sys.argv), own_main(), began_in()))

    def _limit_start(self, member: ProcessMember) -> None:
        member.due, member.beginning = time.monotonic() + self._start_limit, ProcessSample(member.group)

    def _dismiss(self, member: ProcessMember, limit: float) -> None:
        """Ask the member's process to end; kill it after `limit` seconds."""
        if member.stage in ("idle", "starting"):
            member.asked = True
            member.stage, member.due = "leaving", time.monotonic() + limit
            self._send(member, Leave())

    def _renew(self, member: ProcessMember) -> None:
        if member.stage == "idle":
            self._dismiss(member, _LEAVING)

    def _kill(self, member: ProcessMember) -> None:
        if member.process is not None and member.process.returncode is None and member.stage != "killed":
            member.asked = True
            signal_group(member.group, signal.SIGKILL)
            member.stage, member.due = "killed", time.monotonic() + _UNKILLABLE

    def _retire(self, member: ProcessMember, deadline: float) -> None:
        member.closing = True
        if member.job is None and not member.waiting:
            self._dismiss(member, deadline)
        else:
            member.deadline = time.monotonic() + deadline
            if member.stage == "busy":
                member.due = member.deadline

    def _end_member(self, member: ProcessMember, reason: str) -> None:
        """End the member: its process is killed, its running and waiting jobs are lost."""
        member.dead = True
        self._kill(member)
        for job in (member.job, *member.waiting):
            if job is not None:
                self._tell(job, job.lost(reason))
        member.job = None
        member.waiting.clear()

    def _act_on_due_time(self, member: ProcessMember) -> None:
        member.due = None
        job = member.job
        if member.stage == "halting" and job is not None and not member.asked:
            member.asked = True
            signal_group(member.group, signal.SIGTERM)
            signal_group(member.group, signal.SIGCONT)  # a stopped process handles no other signal
            member.due = time.monotonic() + job.grace / 2
        elif member.stage == "killed":
            member.job = None
            self._lose(member, "the worker's process cannot be killed")
            if job is not None:
                self._post(self._engine.job_stuck, job)
                self._tell_if_over(member)
        elif member.stage == "short":
            self._begin_again(member)
        elif member.stage == "starting" and member.beginning is not None and member.beginning.works():
            self._limit_start(member)  # a busy machine, not a fault of the process
        elif member.stage == "starting":
            self._lose(member, f"the worker's process did not start within {self._start_limit:g} s")
        elif member.stage == "busy":
            self._end_member(member, NOT_IN_TIME)
        else:
            self._kill(member)

    def _begin_again(self, member: ProcessMember) -> None:
        """Retry the start after a pause."""
        member.stage = "none"
        self._watched.discard(member)
        self._go_on(member)

    def _lose(self, member: ProcessMember, reason: str) -> None:
        """Give up the member's process, which failed without a request."""
        if not member.dead:
            if not member.parked:
                self._post(self._engine.worker_died, member, reason)
            self._end_member(member, reason)

    def _gone(self, member: ProcessMember) -> None:
        """Handle its exit: read its last messages; then its body is lost, unless its end was requested."""
        member.stage, member.due = "over", None
        with contextlib.suppress(ValueError):  # damaged: it died while it was writing
            self._hear(member)
        self._drain(member)
        self._close_channels(member)
        job = member.job
        peak = member.used.peak_memory_bytes
        if job is not None and peak is not None and peak > member.highest:
            job.peak_memory_bytes = peak
        if job is not None and job.halted:
            member.job = None
            self._tell(job, job.cancelled("its process was ended"))
        elif member.exit_code == NOT_NOW and not member.up and not member.dead:
            if job is not None:
                member.waiting.appendleft(job)
            self._wait_for_more(member, _TOO_LITTLE)
            return
        elif not member.asked:
            self._lose(member, member.how_it_died())
        member.left()
        self._watched.discard(member)
        self._go_on(member)

    def _broke(self, member: ProcessMember, error: Exception) -> None:
        reason = f"the worker's process could not be run: {error}"
        if member.process is not None and member.process.returncode is None:
            member.process.wait()
        self._close_pidfd(member)
        self._close_channels(member)
        self._lose(member, reason)
        member.left()
        self._watched.discard(member)

    def _close_all(self) -> None:
        for member in list(self._watched):
            member.closing = True
            self._dismiss(member, _LEAVING)

    # -- messages from the process -------------------------------------------------------------------------------------

    def _probe(self, member: ProcessMember) -> None:
        if member.dead:
            return
        if member.up:
            if not member.probed:
                member.probed = True
                self._send(member, Ask())
            self._looks.setdefault(member, (time.monotonic() + self._look_after, ProcessSample(member.group)))
        else:  # the member has no process yet, or one whose start has its own limit
            self._post(self._engine.worker_alive, member, member.running())

    def _patience(self) -> float | None:
        patience = super()._patience()
        if not self._looks:
            return patience
        look = max(0.0, min(at for at, _ in self._looks.values()) - time.monotonic())
        return look if patience is None else min(patience, look)

    def _between(self) -> None:
        now = time.monotonic()
        for member, (at, look) in list(self._looks.items()):
            if at <= now:
                del self._looks[member]
                self._guarded(partial(self._look, before=look), member)

    def _look(self, member: ProcessMember, *, before: ProcessSample) -> None:
        """Report a process that has not answered as alive if it works."""
        if member.probed and before.works():
            self._post(self._engine.worker_alive, member, member.running(), True)

    def _send(self, member: ProcessMember, frame: Frame) -> None:
        member.unsent += packed(frame)
        self._send_more(member)

    def _send_more(self, member: ProcessMember) -> None:
        line = member.line
        if line is None:
            return
        try:
            while member.unsent:
                del member.unsent[: line.send(member.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            member.unsent.clear()  # the process is dying: its end is reported separately
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if member.unsent else 0)
        if self._selector.get_key(line).events != events:
            self._selector.modify(line, events, (self._serve_line, member))

    def _serve_line(self, member: ProcessMember) -> None:
        if member.unsent:
            self._send_more(member)
        try:
            self._hear(member)
        except ValueError as error:
            self._lose(member, f"the worker's process sent an invalid message: {error}")

    def _hear(self, member: ProcessMember) -> None:
        """Read the messages so far. Raises ValueError for invalid frames."""
        while member.line is not None:
            try:
                data = member.line.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_line(member)
                return
            for body in member.unpacker.feed(data):
                self._heard(member, self._decode(body))
            if len(data) < _CHUNK:
                return

    def _heard(self, member: ProcessMember, frame: FromProcess) -> None:
        match frame:
            case Heartbeat(token=token, details=details, saved=saved):
                job = member.job
                if (
                    job is not None
                    and job.token == token
                    and job.heartbeats.take(Checkpoint(details) if saved else details)
                ):
                    self._post(self._engine.job_said, job)
            case ShownFrame(token=token, shown=shown):
                job = member.job
                if job is not None and job.token == token and job.heartbeats.take(shown):
                    self._post(self._engine.job_said, job)
            case Done():
                self._done(member, frame)
            case BodyRequest(token=token) | RequestWithdrawn(token=token):
                if member.job is not None and member.job.token == token:
                    self._post(self._engine.job_wants, member.job, frame)
            case Alive(tokens=tokens):
                member.probed = False
                self._looks.pop(member, None)
                self._post(self._engine.worker_alive, member, () if member.stage == "killed" else tokens)
            case ProcessReady():
                member.up = True
                member.pauses.over()
                if member.stage == "starting":
                    member.stage, member.due = ("idle", None) if member.job is None else ("busy", member.deadline)

    def _read_output(self, member: ProcessMember) -> None:
        self._read_chunk(member)

    def _read_chunk(self, member: ProcessMember) -> int:
        if member.pipe < 0:
            return 0
        try:
            data = os.read(member.pipe, _CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._close_pipe(member)
        elif member.job is not None:
            member.job.keep(data)
        return len(data)

    def _drain(self, member: ProcessMember) -> None:
        left = _LEFT_IN_PIPE
        while left > 0 and (count := self._read_chunk(member)):
            left -= count

    def _close_channels(self, member: ProcessMember) -> None:
        self._looks.pop(member, None)
        self._close_line(member)
        self._close_pipe(member)

    def _close_line(self, member: ProcessMember) -> None:
        if member.line is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(member.line)
            member.line.close()
            member.line = None

    def _close_pipe(self, member: ProcessMember) -> None:
        if member.pipe >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(member.pipe)
            os.close(member.pipe)
            member.pipe = -1


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
