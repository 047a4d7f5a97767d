"""The engine for plain functions in worker processes: kept and used again, replaced when they had to be stopped.

| how the body ended | outcome | error type |
| --- | --- | --- |
| returned | ok | |
| returned what JSON cannot hold | failed | `result_not_serialisable` |
| raised anything, also SystemExit | failed | the exception's, with its traceback |
| was not found in the process | failed | `body_not_found` |
| raised TaskCancelled after a stop, or its process had to be ended | cancelled | `cancelled` |
| its process died (a crash, os._exit, out of memory, a kill) | lost | `worker_lost` |
| its process does not even die of SIGKILL | abandoned | `abandoned` |

Rules:
- A worker is one process, which starts when it is first needed; without work there is none. Processes are spawned,
  never forked, and inherit nothing but their line, their output and the environment.
- A stop is seen by the body's next heartbeat. After half of the call's grace SIGTERM raises TaskCancelled in the body;
  at the end of it the process is killed. A forced stop kills at once. Either way the process is replaced.
- A process that dies unasked is a dead worker: that is told first (`died`), then what was lost with it. That
  incarnation runs nothing again.
- `alive` is told by the process itself, by a thread that only what holds Python's lock can hold up. Where it does not
  answer within half of `patience`, the process is looked at: one that works is told as alive, and busy.
- What a body asks of the runtime is told by `asked`, and answered by `answer`. One that waits for a child job has lent
  its slot: it is set aside by `park`, and its worker has another process for what it is given meanwhile. A worker lives
  as long as all of its processes answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import anyio
import msgspec

from ...dispatch.loop_bridge import LoopLine
from ..base import BaseEngine, Run
from ..context import TaskContext
from ..contract import Beat, Call, Ended, Outcome, ProcessCall, ProcessInfo
from ..heartbeats import Beats
from .main_module import refuse_while_loading
from .process_pool import Keeper
from .wire import Answered, Begin, Done, Facts, Unwanted, Want
from .worker_process import Job, Seat

PATIENCE = 1.0
"""Seconds that a process has to answer."""
START_LIMIT = 30.0
"""Seconds that a process may take until it is ready."""
_CLOSING = 3.0  # seconds that the keeper's thread may take to end


class _ProcessRun(Run, kw_only=True, eq=False):
    job: Job
    beats: Beats = msgspec.field(default_factory=Beats)
    parked: bool = False


class ProcessEngine(BaseEngine[_ProcessRun]):
    """Runs plain functions in worker processes. The callbacks come on the loop.

    started: a process was given the body of that token. delayed: there is too little of something to start one now, and
    it is tried again. alive: a worker (name, incarnation) lives, and runs these
    tokens; busy, where it could not answer. died: a worker's process is gone, and nobody had asked for it. asked: a
    body wants something of the runtime, or does not wait for it any more. environment is added to the processes' own.
    """

    name = "process"

    def __init__(
        self,
        *,
        started: Callable[[int, ProcessInfo], None] | None = None,
        delayed: Callable[[int, Exception], None] | None = None,
        alive: Callable[[str, int, tuple[int, ...], bool], None] | None = None,
        died: Callable[[str, int, str], None] | None = None,
        asked: Callable[[TaskContext, Want | Unwanted], None] | None = None,
        environment: Mapping[str, str] | None = None,
        start_limit: float = START_LIMIT,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock=clock)
        self._tell_started = started
        self._tell_delayed = delayed
        self._tell_alive = alive
        self._tell_died = died
        self._tell_asked = asked
        self._environment = dict(environment or {})
        self._start_limit = start_limit
        self._patience = patience
        self._seats: dict[str, Seat] = {}  # by worker: its latest incarnation
        self._heard: dict[str, dict[Seat, tuple[tuple[int, ...], bool]]] = {}  # by worker: what is known of its seats
        self._keeper: Keeper | None = None  # made with the first call
        self._keeper_closed: anyio.Event | None = None

    async def open(self) -> None:
        """Get ready. Raises RuntimeError in a worker process that is loading its program."""
        refuse_while_loading()
        await super().open()

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call's function. Raises EngineClosed; ValueError unless it is new and names a function."""
        line = self._admit(call)
        what = call.process
        if what is None or ":" not in what.function:
            raise ValueError(f"call {call.token}: the process engine needs a function by its import path")
        job = Job(
            Begin(call.token, what.function, facts_of(call), what.secrets, call.bound or {}),
            seat=self._seat(what), grace=call.grace, output_path=what.output_path, output_root=what.output_root,
            output_limit=what.output_limit,
            recycle_after=what.recycle_after, mask=call.mask,
        )  # fmt: skip
        if self._keeper is None:
            self._keeper = self._make_keeper(line)
        self._runs[call.token] = _ProcessRun(call=call, ended=ended, beat=beat, job=job)
        self._keeper.begin(job)

    def tail(self, token: int) -> str:
        """The last line that the running body has printed; "" when it is gone or printed nothing."""
        run = self._runs.get(token)
        return "" if run is None or run.job.output is None else run.job.output.last_line()

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:
        """Ask the worker's process, which answers by `alive`. One that needed no process so far lives."""
        seat = self._seats.get(worker)
        if seat is None or self._keeper is None:
            return ()
        if seat.incarnation == incarnation:
            self._heard[worker] = {}
            for one in self._seats_of(seat):
                self._keeper.probe(one)
        return None

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Know a new incarnation. A process that the one before it still has is killed."""
        seat = self._seats.get(worker)
        if seat is None or seat.incarnation < incarnation:
            if seat is not None and self._keeper is not None:
                for one in self._seats_of(seat):
                    self._keeper.kill(one)
            self._seats[worker] = Seat(worker, incarnation)

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let the worker's process end after what it runs; it is killed after `deadline` seconds."""
        seat = self._seats.get(worker)
        if seat is not None and seat.incarnation == incarnation and self._keeper is not None:
            for one in self._seats_of(seat):
                self._keeper.stop(one, deadline)

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Kill the worker's process; what runs there ends as lost."""
        seat = self._seats.get(worker)
        if seat is not None and seat.incarnation == incarnation and self._keeper is not None:
            for one in self._seats_of(seat):
                self._keeper.kill(one)

    def forget_worker(self, worker: str) -> None:
        """Let go of the seat of a worker that ended long ago."""
        self._seats.pop(worker, None)
        self._heard.pop(worker, None)

    def park(self, token: int) -> None:
        """Set aside the process of a body that lends its slot: its worker takes another one for what comes now."""
        run = self._runs.get(token)
        if run is None or run.parked or self._keeper is None:
            return
        seat = run.job.seat
        if self._seats.get(seat.worker) is seat:
            run.parked = True
            self._keeper.park(run.job)
            self._seats[seat.worker] = Seat(seat.worker, seat.incarnation)

    def answer(self, answered: Answered) -> None:
        """Tell a body what came of its question. One that is over is told nothing."""
        run = self._runs.get(answered.token)
        if run is not None and self._keeper is not None:
            self._keeper.answer(run.job, answered)

    def release(self) -> None:
        """End the processes that run nothing. Their workers live on, and start others when they need them."""
        if self._keeper is not None:
            for seat in self._seats.values():
                self._keeper.renew(seat)

    async def close(self, deadline: float) -> None:
        """Stop all bodies, wait at most `deadline` seconds, then kill them; all processes end, and the thread."""
        await super().close(deadline)
        if self._keeper is not None and self._keeper_closed is not None:
            self._keeper.close()
            self._keeper = None
            with anyio.move_on_after(_CLOSING, shield=True):
                await self._keeper_closed.wait()
        self._seats.clear()

    def _seat(self, what: ProcessCall) -> Seat:
        """The seat of a call's worker. One of an incarnation that is over is dead, and loses what it is given."""
        seat = self._seats.get(what.worker)
        if seat is None or seat.incarnation < what.incarnation:
            self.start_worker(what.worker, what.incarnation)
            seat = self._seats[what.worker]
        if seat.incarnation > what.incarnation:
            seat = Seat(what.worker, what.incarnation)
            seat.dead = True
        return seat

    def _seats_of(self, seat: Seat) -> list[Seat]:
        """That seat, and those of the same incarnation of its worker which are set aside."""
        aside = [run.job.seat for run in self._runs.values() if run.parked]
        return [seat, *(one for one in aside if (one.worker, one.incarnation) == (seat.worker, seat.incarnation))]

    def _make_keeper(self, line: LoopLine) -> Keeper:
        self._keeper_closed = anyio.Event()
        return Keeper(
            _Hearing(self, line, self._keeper_closed), environment=self._environment, start_limit=self._start_limit,
            patience=self._patience,
        )  # fmt: skip

    def _stop(self, run: _ProcessRun, *, force: bool) -> None:
        if self._keeper is not None:
            self._keeper.halt(run.job, force=force)

    # -- what the keeper tells, on the loop ----------------------------------------------------------------------------

    def job_started(self, token: int, info: ProcessInfo) -> None:
        """A process was given the body."""
        if token in self._runs and self._tell_started is not None:
            self._tell_started(token, info)

    def job_delayed(self, job: Job, error: Exception) -> None:
        """No process can be started for the body now."""
        if self.run_of(job) is not None and self._tell_delayed is not None:
            self._tell_delayed(job.token, error)

    def job_said(self, run: _ProcessRun) -> None:
        """The body's heartbeats: many in a row are one."""
        if self._runs.get(run.call.token) is run:
            run.beats.pass_on(partial(run.beat, run.call.token))

    def job_wants(self, job: Job, want: Want | Unwanted) -> None:
        """The body asks for something, or does not wait for it any more."""
        run = self.run_of(job)
        if run is not None and run.call.context is not None and self._tell_asked is not None:
            self._tell_asked(run.call.context, want)

    def run_of(self, job: Job) -> _ProcessRun | None:
        """The run of a job, if it is not over."""
        run = self._runs.get(job.token)
        return run if run is not None and run.job is job else None

    def job_done(self, job: Job, done: Done) -> None:
        """The body's end."""
        run = self.run_of(job)
        if run is None:
            self.late_results += 1
            return
        outcome = Outcome(
            token=job.token, status=done.status, value=done.value, error=done.error, duration=done.duration,
            cpu_seconds=done.cpu_seconds, peak_memory_bytes=done.peak_memory_bytes,
            left_behind=done.left_behind,
        )  # fmt: skip
        if (output := job.output) is not None:
            outcome = msgspec.structs.replace(
                outcome, output_path=None if output.path is None else str(output.path), output_size=output.size,
                output_tail=output.tail(),
            )  # fmt: skip
        self._end(run, outcome)

    def job_stuck(self, job: Job) -> None:
        """The body's process cannot be killed."""
        run = self.run_of(job)
        if run is not None:
            self._abandon(run)

    def worker_alive(self, seat: Seat, tokens: tuple[int, ...], *, busy: bool) -> None:
        """A process of a worker lives: the worker does when all of them do."""
        latest = self._seats.get(seat.worker)
        if latest is None or latest.incarnation != seat.incarnation or self._tell_alive is None:
            return
        heard = self._heard.setdefault(seat.worker, {})
        heard[seat] = tokens, busy
        seats = self._seats_of(latest)
        if all(one in heard for one in seats):
            running = tuple(token for one in seats for token in heard[one][0])
            self._tell_alive(seat.worker, seat.incarnation, running, any(heard[one][1] for one in seats))

    def worker_died(self, seat: Seat, reason: str) -> None:
        """A worker's process is gone, unasked."""
        if self._tell_died is not None:
            self._tell_died(seat.worker, seat.incarnation, reason)


class _Hearing:
    """The keeper's listener: hands everything over to the loop, in order."""

    def __init__(self, engine: ProcessEngine, line: LoopLine, closed: anyio.Event) -> None:
        self._engine = engine
        self._post = line.post
        self._closed = closed

    def job_started(self, job: Job, info: ProcessInfo) -> None:
        self._post(self._engine.job_started, job.token, info)

    def job_delayed(self, job: Job, error: Exception) -> None:
        self._post(self._engine.job_delayed, job, error)

    def job_said(self, job: Job, details: object) -> None:
        run = self._engine.run_of(job)
        if run is not None and run.beats.take(details):
            self._post(self._engine.job_said, run)

    def job_wants(self, job: Job, want: Want | Unwanted) -> None:
        self._post(self._engine.job_wants, job, want)

    def job_done(self, job: Job, done: Done) -> None:
        self._post(self._engine.job_done, job, done)

    def job_stuck(self, job: Job) -> None:
        self._post(self._engine.job_stuck, job)

    def worker_alive(self, seat: Seat, tokens: tuple[int, ...], *, busy: bool) -> None:
        self._post(partial(self._engine.worker_alive, busy=busy), seat, tokens)

    def worker_died(self, seat: Seat, reason: str) -> None:
        self._post(self._engine.worker_died, seat, reason)

    def keeper_closed(self) -> None:
        self._post(self._closed.set)


def facts_of(call: Call) -> Facts | None:
    """What another process makes the call's context of; None for a function that takes none."""
    task = call.context
    if task is None:
        return None
    return Facts(
        task=task.task, attempt=task.attempt, job_id=task.job_id, workstream_id=task.workstream_id,
        results=task.results, details=task.details, saved=task.saved, args=task.args,
    )  # fmt: skip
