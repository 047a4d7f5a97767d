"""The engine of workers in processes of their own. A transport reaches these processes.

Rules:
- A worker (name, incarnation) has one *member* of the pool that takes new calls, and perhaps members that were set
  aside: each of these runs its calls to their ends. The worker lives as long as all of its members answer.
- A new incarnation kills everything that the earlier one still runs. A call for an earlier incarnation is lost.
- Events from a transport's thread are posted to the loop, in order, and handled there (`job_...`, `member_...`,
  `worker_...`).
- A body's request to the runtime is reported by `asked`, and answered by `answer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import anyio
import msgspec

from ...calling import Ended, Outcome, ProcessInfo
from ...dispatch.loop_bridge import LoopBridge
from ..base import BaseEngine, Run
from ..context import TaskContext
from ..contract import Beat, Call, ProcessCall
from .pool_member import J, PoolMember, S, WorkerJob
from .wire import BodyRequest, Facts, RequestAnswer, RequestWithdrawn

Member_contra = TypeVar("Member_contra", bound=PoolMember, contravariant=True)
Job_contra = TypeVar("Job_contra", bound=WorkerJob[Any], contravariant=True)


def unheard(*_: object) -> None:
    """Ignore a report."""


class WorkerCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's callbacks about its workers, on the loop.

    started: a process was given the body of that token. delayed: a shortage prevents the start of a process; it is
    retried. alive: a worker (name, incarnation) lives, and runs these tokens; busy: it could not answer, and works.
    died: its process has ended without a request. unfit: no node could hold it, and why. fits: now one could. asked: a
    body requests something from the runtime, or does not wait for it any more.
    """

    started: Callable[[int, ProcessInfo], None] = unheard
    delayed: Callable[[int, Exception], None] = unheard
    alive: Callable[[str, int, tuple[int, ...], bool], None] = unheard
    died: Callable[[str, int, str], None] = unheard
    unfit: Callable[[str, int, str], None] = unheard
    fits: Callable[[str, int], None] = unheard
    asked: Callable[[TaskContext, BodyRequest | RequestWithdrawn], None] = unheard


Post = Callable[..., None]
"""Schedules a function on the loop, with these arguments, after earlier posts. For any thread."""


class Pool(Protocol[Member_contra, Job_contra]):
    """A transport's thread. Any thread may call the methods; they do not block."""

    def open_member(self, member: Member_contra) -> None:
        """Make the member's process, unless it is made only for the first call."""

    def begin(self, job: Job_contra) -> None:
        """Run the job in its member."""

    def halt(self, job: Job_contra, *, force: bool) -> None:
        """Make the job end: by asking it, within its grace, or (`force`) at once."""

    def answer(self, job: Job_contra, answered: RequestAnswer) -> None:
        """Send the job the answer to its question, if it still runs."""

    def park(self, job: Job_contra) -> bool:
        """The job lends its slot. Returns whether its member must be set aside; the member's end is reported later."""
        ...

    def probe(self, member: Member_contra) -> None:
        """Probe the member's worker."""

    def stop(self, member: Member_contra, deadline: float) -> None:
        """End the member's process after its running calls, at the latest in `deadline` seconds."""

    def kill(self, member: Member_contra) -> None:
        """Kill the member's process; its jobs are lost."""

    def renew(self, member: Member_contra) -> None:
        """End the member's process, if it is idle and another one is started when needed."""

    def close(self) -> None:
        """End all processes, and the thread."""


class Transport(Protocol[S, J]):
    """How an engine reaches its workers."""

    runs_commands: bool
    """Whether it runs commands as well as functions."""
    eager: bool
    """Whether a worker's process starts with the worker, not with its first call."""
    patience: float
    """Seconds that its thread has to end."""

    def job(self, call: Call, what: ProcessCall) -> J:
        """The job that runs a call."""
        ...

    def member(self, worker: str, incarnation: int) -> S:
        """A new member for an incarnation, without a process so far."""
        ...

    def pool(self, engine: WorkerEngine[Any, Any], post: Post, closed: Callable[[], None]) -> Pool[S, J]:
        """Start the thread. It posts its events to the engine, and calls `closed` at its end."""
        ...


class WorkerRun(Run, Generic[J], kw_only=True, eq=False):
    """A call that was given to a worker."""

    job: J
    parked: bool = False


class WorkerEngine(BaseEngine["WorkerRun[J]"], Generic[S, J]):
    """Runs calls in workers that a transport reaches. The reports are called on the loop."""

    def __init__(
        self, transport: Transport[S, J], reports: WorkerCallbacks, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock=clock)
        self._transport = transport
        self._reports = reports
        self._members: dict[str, S] = {}  # by worker: the member for new calls of its latest incarnation
        self._aside: dict[str, list[S]] = {}  # by worker: other members of that incarnation, which still run something
        self._heard: dict[str, dict[PoolMember, tuple[tuple[int, ...], bool]]] = {}  # by worker: its members' answers
        self._ended: dict[str, set[int]] = {}  # by worker: calls that ended since an answer of it may have been given
        self._pool: Pool[S, J] | None = None  # created when it is needed
        self._pool_closed: anyio.Event | None = None

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call. Raises EngineClosed; ValueError unless it is new, names its worker, and is one thing to run."""
        line, what, commands = self._admit(call), call.process, self._transport.runs_commands
        if what is None or not (":" in what.function or (commands and call.command is not None)):
            needs = "a command, or a function" if commands else "a function"
            raise ValueError(f"call {call.token}: the {self.name} engine needs {needs} by its import path")
        job = self._transport.job(call, what)
        job.member = self._member(what)
        pool = self._kept(line)
        self._runs[call.token] = WorkerRun(call=call, ended=ended, beat=beat, job=job, began=self.clock())
        pool.begin(job)

    def tail(self, token: int) -> str:
        """The last line that it has printed, as far as it is known here; "" if it is over or printed nothing."""
        run = self._runs.get(token)
        return "" if run is None else run.job.last_line()

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:
        """Probe the worker's process, which answers through `alive`. A worker without a process counts as alive."""
        member = self._members.get(worker)
        if member is None or self._pool is None:
            return ()
        if member.incarnation == incarnation:
            self._heard[worker] = {}
            for one in self._members_of(member):
                self._pool.probe(one)
        return None

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Register a new incarnation. Everything that the earlier one still runs is killed."""
        member = self._members.get(worker)
        if self._line is None or (member is not None and member.incarnation >= incarnation):
            return
        if member is not None:
            self._kill(member)
            self._aside.pop(worker, None)
        self._open_member(self._line, worker, incarnation)

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let the worker end after its running calls; it is killed after `deadline` seconds."""
        member = self._members.get(worker)
        if member is not None and member.incarnation == incarnation and self._pool is not None:
            for one in self._members_of(member):
                self._pool.stop(one, deadline)

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Kill the worker; its running calls end as lost."""
        member = self._members.get(worker)
        if member is not None and member.incarnation == incarnation:
            self._kill(member)

    def forget_worker(self, worker: str) -> None:
        """Drop the members of a worker that ended long ago."""
        for kept in (self._members, self._aside, self._heard, self._ended):
            kept.pop(worker, None)

    def park(self, token: int) -> None:
        """Set aside the process of a body that lends its slot, if that process cannot run other calls meanwhile."""
        run, line = self._runs.get(token), self._line
        if run is None or run.parked or line is None or self._pool is None:
            return
        member: S = run.job.member
        if self._members.get(member.worker) is member and self._pool.park(run.job):
            run.parked = True
            self.member_spoiled(member)

    def answer(self, answered: RequestAnswer) -> None:
        """Send a body the answer to its question. Does nothing if the body is over."""
        run = self._runs.get(answered.token)
        if run is not None and self._pool is not None:
            self._pool.answer(run.job, answered)

    def release(self) -> None:
        """End idle processes, which are started again when needed. Their workers stay."""
        if self._pool is not None:
            for member in self._members.values():
                self._pool.renew(member)

    async def close(self, deadline: float) -> None:
        """Stop all calls, wait at most `deadline` seconds, then kill them; all processes and the thread end."""
        await super().close(deadline)
        if self._pool is not None and self._pool_closed is not None:
            pool, self._pool = self._pool, None
            pool.close()
            with anyio.move_on_after(self._transport.patience, shield=True):
                await self._pool_closed.wait()
        self._members.clear()
        self._aside.clear()

    def _member(self, what: ProcessCall) -> S:
        """The member of a call's worker. For an ended incarnation it is a dead member, which loses its calls."""
        self.start_worker(what.worker, what.incarnation)
        member = self._members[what.worker]
        if member.incarnation > what.incarnation:
            member = self._transport.member(what.worker, what.incarnation)
            member.dead = True
        return member

    def _open_member(self, line: LoopBridge, worker: str, incarnation: int) -> None:
        member = self._members[worker] = self._transport.member(worker, incarnation)
        if self._transport.eager:
            self._kept(line).open_member(member)

    def _members_of(self, member: S) -> list[S]:
        return [member, *self._aside.get(member.worker, ())]

    def _kill(self, member: S) -> None:
        if self._pool is not None:
            for one in self._members_of(member):
                self._pool.kill(one)

    def _kept(self, line: LoopBridge) -> Pool[S, J]:
        if self._pool is None:
            closed = anyio.Event()
            self._pool = self._transport.pool(self, line.post, partial(line.post, closed.set))
            self._pool_closed = closed
        return self._pool

    def _stop(self, run: WorkerRun[J], *, force: bool) -> None:
        if self._pool is not None:
            self._pool.halt(run.job, force=force)

    # -- events of the transport's thread, on the loop -----------------------------------------------------------------

    def _run_of(self, job: WorkerJob[Any]) -> WorkerRun[J] | None:
        """The run of a job, if it is not over."""
        run = self._runs.get(job.token)
        return run if run is not None and run.job is job else None

    def job_started(self, job: WorkerJob[Any], info: ProcessInfo) -> None:
        """A process was given the body."""
        if self._run_of(job) is not None:
            self._reports.started(job.token, info)

    def job_delayed(self, job: WorkerJob[Any], error: Exception) -> None:
        """No process can be started for the body now."""
        if self._run_of(job) is not None:
            self._reports.delayed(job.token, error)

    def job_said(self, job: WorkerJob[Any]) -> None:
        """The body sent heartbeats: many in a row are one."""
        if (run := self._run_of(job)) is not None:
            job.heartbeats.pass_on(partial(run.beat, job.token))

    def job_wants(self, job: WorkerJob[Any], want: BodyRequest | RequestWithdrawn) -> None:
        """The body requests something, or does not wait for it any more."""
        run = self._run_of(job)
        if run is not None and run.call.context is not None:
            self._reports.asked(run.call.context, want)

    def job_done(self, job: WorkerJob[Any], outcome: Outcome) -> None:
        """The job has ended."""
        member = job.member
        if (run := self._run_of(job)) is None:
            self.late_results += 1
        else:
            if member.worker in self._heard:
                self._ended.setdefault(member.worker, set()).add(job.token)
            self._end(run, outcome)

    def job_stuck(self, job: WorkerJob[Any]) -> None:
        """The job cannot be ended."""
        if (run := self._run_of(job)) is not None:
            self._abandon(run)

    def member_spoiled(self, member: PoolMember) -> None:
        """The member takes no new calls: its worker gets another one for them."""
        latest = self._members.get(member.worker)
        if latest is not None and latest is member and self._line is not None:
            self._aside.setdefault(member.worker, []).append(latest)
            self._open_member(self._line, member.worker, member.incarnation)

    def member_over(self, member: PoolMember) -> None:
        """The member runs nothing, and never will again."""
        aside = self._aside.get(member.worker, [])
        aside[:] = [one for one in aside if one is not member]

    def worker_alive(self, member: PoolMember, tokens: tuple[int, ...], busy: bool = False) -> None:
        """Note that a process of a worker is alive: the worker is alive if all of its processes are."""
        latest = self._members.get(member.worker)
        if latest is None or latest.incarnation != member.incarnation:
            return
        members = self._members_of(latest)
        heard = self._heard.setdefault(member.worker, {})
        heard[member] = tokens, busy
        if all(one in heard for one in members):
            ended = self._ended.get(member.worker, ())
            running = tuple(token for one in members for token in heard[one][0] if token not in ended)
            observed = any(heard[one][1] for one in members)
            if not observed:  # no answer is on its way any more
                self._ended.pop(member.worker, None)
            self._reports.alive(member.worker, member.incarnation, running, observed)

    def worker_died(self, member: PoolMember, reason: str) -> None:
        """A worker's process has ended without a request."""
        self._reports.died(member.worker, member.incarnation, reason)

    def worker_unfit(self, member: PoolMember, reason: str) -> None:
        """No node could hold a worker's process."""
        self._reports.unfit(member.worker, member.incarnation, reason)

    def worker_fits(self, member: PoolMember) -> None:
        """Now a node could hold it."""
        self._reports.fits(member.worker, member.incarnation)


def facts_of(call: Call) -> Facts | None:
    """The facts from which another process makes the call's context; None for a function that takes none."""
    task = call.context
    if task is None:
        return None
    return Facts(
        task=task.task, attempt=task.attempt, job_id=task.job_id, workstream_id=task.workstream_id,
        results=task.results, details=task.details, saved=task.saved, args=task.args,
    )  # fmt: skip
