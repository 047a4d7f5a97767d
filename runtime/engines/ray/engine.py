"""The engine for work on a Ray cluster: async and plain functions and commands, in actors that are workers of ours.

| how it ended | outcome | error type |
| --- | --- | --- |
| as it ends on the engine of its kind, in its actor | as there | as there |
| its actor or its node died | lost | `worker_lost` |
| it could not be ended, and was alone in its actor, which was killed | cancelled | `cancelled` |
| it could not be ended, and others run beside it | abandoned | `abandoned` |

Rules:
- A worker is one actor (`actor.py`). It is made when the worker starts, of the resources and labels that the worker
  asks for; if no node of the cluster could ever hold it, that is told (`unfit`), and once one could, that too (`fits`).
- Ray starts nothing again and calls nothing twice: what becomes of lost work is decided by its task.
- A stop is what it is beside a runtime. An async function that does not end within its grace is forced by this engine.
- `alive` is told by the actor itself, in a thread that only what holds Python's lock can hold up: an actor that has not
  answered when it is asked again is looked at, with the others of its node, by a task of Ray's beside them. One that
  works is told as busy.
- `died` is told when Ray says it is gone.
- What a body asks of the runtime is told by `asked`, and answered by `answer`.
- The connection is lost where the head of the cluster is away for longer than Ray waits for it: then all actors are
  gone, that is told (`away`), and their workers start again once the cluster is there again (`connection.py`).
- Results come with their tokens, once. Output comes in pieces of at most 64 KiB, and only what is kept of it.
- An actor that does not hear of its runtime for `lease` seconds ends itself: before what it ran is run elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import anyio
import msgspec

from ...dispatch.loop_bridge import LoopLine
from ...functions.main_program import search_path
from ..base import BaseEngine, Run
from ..context import TaskContext
from ..contract import Beat, Call, Ended, Outcome, ProcessCall
from ..heartbeats import Beats
from ..process.engine import facts_of
from ..process.main_module import refuse_while_loading
from ..process.wire import Answered, Begin, Unwanted, Want, packed
from .actor_pool import RayKeeper
from .cluster import RayCluster, RayUnavailable, check_installed, ray_thread
from .connection import Connection
from .wire import Line, Order
from .worker_actor import RayJob, RaySeat

if TYPE_CHECKING:
    from ....actors.spec.model import Worker

LEASE = 40.0
"""Seconds without a word of its runtime after which an actor ends itself, unless told otherwise."""
_CLOSING = 15.0  # seconds that the keeper's thread, and a cluster that was started here, may take to end


class _RayRun(Run, kw_only=True, eq=False):
    job: RayJob
    beats: Beats = msgspec.field(default_factory=Beats)


class RayEngine(BaseEngine[_RayRun]):
    """Runs functions and commands on Ray. The callbacks come on the loop.

    cluster: where. spec_of: what a worker was started as, by its name. journal: by which actors that a killed runtime
    left are known; None: by nothing. at_once: whether to connect when it is opened, or with the first worker. alive: a
    worker (name, incarnation) lives, and runs these tokens; whether it could not answer, and works. died: its actor is
    gone, and nobody had asked for it.
    unfit: no node could hold it, and why. fits: now one could. asked: a body wants something of the runtime, or does
    not wait for it any more. away: the cluster is lost, and why; None: it is connected again. environment is added to
    the actors' own. lease: see above.
    """

    name = "ray"

    def __init__(
        self,
        cluster: RayCluster | None = None,
        *,
        spec_of: Callable[[str], Worker | None] | None = None,
        journal: str | None = None,
        at_once: bool = False,
        alive: Callable[[str, int, tuple[int, ...], bool], None] | None = None,
        died: Callable[[str, int, str], None] | None = None,
        unfit: Callable[[str, int, str], None] | None = None,
        fits: Callable[[str, int], None] | None = None,
        asked: Callable[[TaskContext, Want | Unwanted], None] | None = None,
        away: Callable[[str | None], None] | None = None,
        environment: Mapping[str, str] | None = None,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock=clock)
        self._cluster = Connection(cluster or RayCluster(), journal)
        self._tell_away = away
        self._spec_of = spec_of
        self._at_once = at_once
        self._tell_alive = alive
        self._tell_died = died
        self._tell_unfit = unfit
        self._tell_fits = fits
        self._tell_asked = asked
        self._environment = dict(environment or {})
        self._lease = lease
        self._seats: dict[str, RaySeat] = {}  # by worker: the latest actor of its latest incarnation
        self._aside: dict[str, list[RaySeat]] = {}  # by worker: earlier actors of that which run something still
        self._heard: dict[str, dict[RaySeat, tuple[tuple[int, ...], bool]]] = {}  # by worker: what is known of them
        self._keeper: RayKeeper | None = None  # made with the first worker
        self._keeper_closed: anyio.Event | None = None

    async def open(self) -> None:
        """Get ready; connect, if that is wanted now. Raises RayUnavailable, and RuntimeError in a worker process."""
        refuse_while_loading()
        await super().open()
        line, tell_away = self._line, self._tell_away
        if line is not None and tell_away is not None:
            self._cluster.lost = lambda reason: line.post(tell_away, reason)
        if self._at_once:
            await self._connect()

    async def _connect(self) -> None:
        check_installed()
        line, done, errors = LoopLine(), anyio.Event(), list[Exception]()

        def told(_: object, error: Exception | None) -> None:
            if error is not None:
                errors.append(error)
            line.post(done.set)

        ray_thread().do(self._cluster.connect, told)
        await done.wait()
        if errors:
            self._line = None
            raise errors[0]

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call. Raises EngineClosed; ValueError unless it is new, names its worker, and is one thing to run."""
        line = self._admit(call)
        what, command = call.process, call.command
        if what is None or (command is None and ":" not in what.function):
            raise ValueError(f"call {call.token}: the Ray engine needs a command, or a function by its import path")
        order = _order(call, what)
        data = packed(order)
        seat = self._seat(line, what)
        output = None if what.output_path is None else (what.output_path, what.output_root)
        job = RayJob(order, data, seat=seat, output=output, mask=call.mask)
        self._runs[call.token] = _RayRun(call=call, ended=ended, beat=beat, job=job, began=self._clock())
        self._kept(line).begin(job)

    def tail(self, token: int) -> str:
        """The last line that it has printed, as far as that is known here; "" when it is gone or printed nothing."""
        run = self._runs.get(token)
        return "" if run is None else run.job.last

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:
        """Ask the worker's actor, which answers by `alive`. One that nobody has started lives."""
        seat = self._seats.get(worker)
        if seat is None or self._keeper is None:
            return ()
        if seat.incarnation == incarnation:
            self._heard[worker] = {}
            for one in self._seats_of(seat):
                self._keeper.probe(one)
        return None

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Have an actor made for a new incarnation. One that the incarnation before it still has is killed."""
        line = self._line
        seat = self._seats.get(worker)
        if line is None or (seat is not None and seat.incarnation >= incarnation):
            return
        if seat is not None:
            self._kill(seat)
            self._aside.pop(worker, None)
        self._open_seat(line, worker, incarnation)

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let the worker's actor end after what it runs; it is killed after `deadline` seconds."""
        seat = self._seats.get(worker)
        if seat is not None and seat.incarnation == incarnation and self._keeper is not None:
            for one in self._seats_of(seat):
                self._keeper.stop(one, deadline)

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Kill the worker's actor; what runs there ends as lost."""
        seat = self._seats.get(worker)
        if seat is not None and seat.incarnation == incarnation:
            self._kill(seat)

    def forget_worker(self, worker: str) -> None:
        """Let go of the seat of a worker that ended long ago."""
        self._seats.pop(worker, None)
        self._aside.pop(worker, None)
        self._heard.pop(worker, None)

    def park(self, token: int) -> None:
        """Nothing: an actor has room for what is given to others while a body that lends its slot waits there."""

    def answer(self, answered: Answered) -> None:
        """Tell a body what came of its question. One that is over is told nothing."""
        run = self._runs.get(answered.token)
        if run is not None and self._keeper is not None:
            self._keeper.answer(run.job, answered)

    def place(self, worker: str) -> tuple[str, int]:
        """Where a worker's actor is, for people, and its process there; ("", 0) until that is known."""
        seat = self._seats.get(worker)
        return ("", 0) if seat is None else (seat.place, seat.pid)

    async def close(self, deadline: float) -> None:
        """Stop everything, wait at most `deadline` seconds, then kill the actors; the connection is closed."""
        await super().close(deadline)
        if self._keeper is not None and self._keeper_closed is not None:
            keeper, self._keeper = self._keeper, None
            keeper.close()
            with anyio.move_on_after(_CLOSING, shield=True):
                await self._keeper_closed.wait()
        else:
            ray_thread().do(self._cluster.disconnect, lambda _value, _error: None)
        self._seats.clear()
        self._aside.clear()

    # -- workers -------------------------------------------------------------------------------------------------------

    def _seat(self, line: LoopLine, what: ProcessCall) -> RaySeat:
        """The seat of a call's worker. One of an incarnation that is over is dead, and loses what it is given."""
        seat = self._seats.get(what.worker)
        if seat is None or seat.incarnation < what.incarnation:
            self.start_worker(what.worker, what.incarnation)
            seat = self._seats.get(what.worker) or self._open_seat(line, what.worker, what.incarnation)
        if seat.incarnation > what.incarnation:
            seat = RaySeat(what.worker, what.incarnation)
            seat.dead = True
        return seat

    def _open_seat(self, line: LoopLine, worker: str, incarnation: int) -> RaySeat:
        seat = self._seats[worker] = RaySeat(worker, incarnation)
        spec = None if self._spec_of is None else self._spec_of(worker)
        if spec is not None:
            seat.resources, seat.labels = dict(spec.resources), dict(spec.labels)
        self._kept(line).open_seat(seat)
        return seat

    def _seats_of(self, seat: RaySeat) -> list[RaySeat]:
        """That seat, and those of the same incarnation of its worker which are set aside."""
        return [seat, *self._aside.get(seat.worker, ())]

    def _kill(self, seat: RaySeat) -> None:
        if self._keeper is not None:
            for one in self._seats_of(seat):
                self._keeper.kill(one)

    def _kept(self, line: LoopLine) -> RayKeeper:
        if self._keeper is None:
            closed = self._keeper_closed = anyio.Event()
            self._keeper = RayKeeper(
                _Hearing(self, line, closed), self._cluster, environment=self._environment,
                path=search_path(), argv=list(sys.argv), lease=self._lease,
            )  # fmt: skip
        return self._keeper

    def _stop(self, run: _RayRun, *, force: bool) -> None:
        if self._keeper is not None:
            self._keeper.halt(run.job, force=force)

    # -- what the keeper tells, on the loop ----------------------------------------------------------------------------

    def run_of(self, job: RayJob) -> _RayRun | None:
        """The run of a job, if it is not over."""
        run = self._runs.get(job.token)
        return run if run is not None and run.job is job else None

    def job_said(self, run: _RayRun) -> None:
        """The body's heartbeats: many in a row are one."""
        if self._runs.get(run.call.token) is run:
            run.beats.pass_on(partial(run.beat, run.call.token))

    def job_wants(self, job: RayJob, want: Want | Unwanted) -> None:
        """The body asks for something, or does not wait for it any more."""
        run = self.run_of(job)
        if run is not None and run.call.context is not None and self._tell_asked is not None:
            self._tell_asked(run.call.context, want)

    def job_done(self, job: RayJob, outcome: Outcome) -> None:
        """Its end."""
        run = self.run_of(job)
        if run is None:
            self.late_results += 1
        else:
            self._end(run, outcome)

    def job_stuck(self, job: RayJob) -> None:
        """It cannot be ended."""
        run = self.run_of(job)
        if run is not None:
            self._abandon(run)

    def seat_spoiled(self, seat: RaySeat) -> None:
        """Its worker has another actor for what comes now."""
        if self._seats.get(seat.worker) is seat and self._line is not None:
            self._aside.setdefault(seat.worker, []).append(seat)
            self._open_seat(self._line, seat.worker, seat.incarnation)

    def seat_over(self, seat: RaySeat) -> None:
        """Its actor is gone."""
        if seat in self._aside.get(seat.worker, ()):
            self._aside[seat.worker].remove(seat)

    def worker_alive(self, seat: RaySeat, tokens: tuple[int, ...], *, busy: bool) -> None:
        """An actor of a worker lives: the worker does when all of them do."""
        latest = self._seats.get(seat.worker)
        if latest is None or latest.incarnation != seat.incarnation or self._tell_alive is None:
            return
        heard = self._heard.setdefault(seat.worker, {})
        heard[seat] = tokens, busy
        seats = self._seats_of(latest)
        if all(one in heard for one in seats):
            running = tuple(token for one in seats for token in heard[one][0])
            self._tell_alive(seat.worker, seat.incarnation, running, any(heard[one][1] for one in seats))

    def worker_died(self, seat: RaySeat, reason: str) -> None:
        """A worker's actor is gone, unasked."""
        if self._tell_died is not None:
            self._tell_died(seat.worker, seat.incarnation, reason)

    def worker_unfit(self, seat: RaySeat, reason: str) -> None:
        """No node could hold a worker's actor."""
        if self._tell_unfit is not None:
            self._tell_unfit(seat.worker, seat.incarnation, reason)

    def worker_fits(self, seat: RaySeat) -> None:
        """Now one could."""
        if self._tell_fits is not None:
            self._tell_fits(seat.worker, seat.incarnation)


class _Hearing:
    """The keeper's listener: hands everything over to the loop, in order."""

    def __init__(self, engine: RayEngine, line: LoopLine, closed: anyio.Event) -> None:
        self._engine = engine
        self._post = line.post
        self._closed = closed

    def job_said(self, job: RayJob, details: object) -> None:
        run = self._engine.run_of(job)
        if run is not None and run.beats.take(details):
            self._post(self._engine.job_said, run)

    def job_wants(self, job: RayJob, want: Want | Unwanted) -> None:
        self._post(self._engine.job_wants, job, want)

    def job_done(self, job: RayJob, outcome: Outcome) -> None:
        self._post(self._engine.job_done, job, outcome)

    def job_stuck(self, job: RayJob) -> None:
        self._post(self._engine.job_stuck, job)

    def seat_spoiled(self, seat: RaySeat) -> None:
        self._post(self._engine.seat_spoiled, seat)

    def seat_over(self, seat: RaySeat) -> None:
        self._post(self._engine.seat_over, seat)

    def worker_alive(self, seat: RaySeat, tokens: tuple[int, ...], *, busy: bool) -> None:
        self._post(partial(self._engine.worker_alive, busy=busy), seat, tokens)

    def worker_died(self, seat: RaySeat, reason: str) -> None:
        self._post(self._engine.worker_died, seat, reason)

    def worker_unfit(self, seat: RaySeat, reason: str) -> None:
        self._post(self._engine.worker_unfit, seat, reason)

    def worker_fits(self, seat: RaySeat) -> None:
        self._post(self._engine.worker_fits, seat)

    def keeper_closed(self) -> None:
        self._post(self._closed.set)


def _order(call: Call, what: ProcessCall) -> Order:
    """The order for a call."""
    if (command := call.command) is not None:
        line = Line(
            argv=command.argv, shell=command.shell, cwd=command.cwd, env=command.env,
            expected_exit_codes=command.expected_exit_codes, results=what.results,
        )  # fmt: skip
        return Order(
            call.token,
            line=line,
            grace=call.grace,
            output_limit=what.output_limit,
            secrets=tuple(what.secrets.values()),
        )
    begin = Begin(call.token, what.function, facts_of(call), what.secrets, call.bound or {}, what.text)
    return Order(
        call.token, begin=begin, on_loop=what.on_loop, grace=call.grace, output_limit=what.output_limit,
        recycle_after=what.recycle_after,
    )  # fmt: skip


__all__ = ["LEASE", "RayCluster", "RayEngine", "RayUnavailable"]
