"""The runtime: what an application opens, submits jobs to, and closes.

    async with Runtime("state.db") as runtime:
        job = await runtime.submit(Workstream("release", tasks=[Task("build", run=build)]))
        outcome = await job.wait()

Rules
-----
- Entering recovers: what fell due while nobody looked fires, and what ran is accounted for, before anything else is
  taken. Leaving drains: nothing new starts, running attempts may end within `drain_deadline` seconds, the others are
  stopped and their tries given back. Left by an error or a cancellation, it does not wait for them.
- A cancellation around it reaches the application's own code only. What runs inside is stopped by leaving, in order, so
  that a body which had to stop counts as stopped and not as failed.
- Should something inside end that nobody told to end, the runtime is broken: whoever waits for it gets RuntimeClosed
  with the cause, the application's code is cancelled, and leaving raises.
- It is entered and left in the same task. It takes no signals: that is the program's business.
- Everything it needs of the world can be given: journal, clock, randomness, ids.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from weakref import WeakSet

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from ..actors.actor import Actor
from ..actors.job import JobActor
from ..actors.loading import Loaded, make_kernel
from ..actors.messages import (
    RECOVER,
    Approve,
    Command,
    Drain,
    Message,
    ProcessStarted,
    Registered,
    Reply,
    StartWorkers,
    StopWorkers,
    Submit,
    WorkerBeat,
    WorkerDied,
)
from ..actors.notices import Notice
from ..actors.records import JobRecord, Transitioned
from ..actors.ref import Ref
from ..actors.spec import Alert, Defaults, HealthChecks, Tool, Worker, Workstream, seconds
from ..actors.strategy import Supervision
from ..actors.tools import RUNTIME
from .approvals import PendingApproval, name_of, pending_of, with_teams
from .bodies import Bodies, look_in, prepare
from .breakers import BreakerHandle
from .calls import Caller, Outputs
from .children import Children
from .clock import Clock, Ids, SystemClock, TimeOrderedIds
from .control.taker import Taker
from .dispatcher import Dispatcher
from .engines.command import CommandEngine
from .engines.contract import Engine, ProcessInfo
from .engines.loop import LoopEngine
from .engines.process import ProcessEngine
from .engines.thread import ThreadEngine
from .filters import Event, Filters, wanted_by
from .handles import JobExists, JobHandle, RuntimeClosed, closed, outcome_of
from .host import Host
from .journal import open_journal
from .journal.contract import Entry, Health, Journal
from .leftovers import JOURNAL_VARIABLE, kill_leftovers
from .metrics import Metrics, snapshot
from .observe import BUFFER, Hub, Subscription
from .requests import KEEP_REQUESTS, Requests
from .reruns import run_again
from .runners import RunnerPool
from .secrets import Secrets, Source
from .watchdog import Watchdog
from .workers import WorkerHandle, check_worker, start

LOOP_CAPACITY = 100
DRAIN_DEADLINE = 30.0
CLOSING = 5.0
"""Seconds that each step of closing may take once nothing is waited for any more."""
F = TypeVar("F", bound=Callable[..., Any])


class Runtime:
    """Runs jobs, durably, inside the present event loop.

    journal: a path (SQLite), a `Journal`, or None (all in memory). workers: what runs attempts (by default one loop
    worker of capacity 100, and as many thread, process and command slots as there are processors). jsonl: a file for
    the log of transitions. outputs: the folder for the output of commands (by default beside the journal).
    secrets: where the values of secrets that specifications name come from: a mapping, or a function of the name that
    answers at once; by default the program's environment.
    drain_deadline: seconds that running attempts have to end when the runtime is left. keep_requests: seconds that the
    `request_id` of a command is kept (longer where what it was about still lives).
    tools: what holds of tools whatever workstreams say of them (breaker, max_parallel), or where they say nothing.
    alerts: whom to tell of errors. health_checks: how workers, and the event loop, are watched.
    Entering raises the errors of `journal.contract`, also for the log, LogConflict for the log of another journal, and
    SpecificationError for tools and alerts that cannot be.
    """

    def __init__(
        self,
        journal: str | Path | Journal | None = None,
        *,
        workers: Sequence[Worker] | None = None,
        defaults: Defaults | None = None,
        tools: Mapping[str, Tool] | None = None,
        alerts: Sequence[Alert] = (),
        health_checks: HealthChecks | None = None,
        jsonl: str | Path | None = None,
        outputs: str | Path | None = None,
        secrets: Source | None = None,
        drain_deadline: float = DRAIN_DEADLINE,
        keep_requests: float = KEEP_REQUESTS,
        supervision: Supervision | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        ids: Ids | None = None,
    ) -> None:
        if not (journal is None or isinstance(journal, str | Path) or hasattr(journal, "append")):
            raise TypeError(f"the journal is a path, a Journal or None, not {journal!r:.60}")
        self._target = journal
        self._workers = tuple(workers) if workers is not None else default_workers()
        self._defaults = defaults or Defaults()
        self._tools = dict(tools or {})
        self._alerts = list(alerts)
        self._health_checks = health_checks or HealthChecks()
        self._jsonl_path = jsonl
        self._outputs = outputs
        self._secrets = Secrets(secrets)
        self._drain_deadline = drain_deadline
        self._keep_requests = keep_requests
        self._supervision = supervision
        self._clock = clock or SystemClock()
        self._random = random or Random()  # noqa: S311 - jitter, not secrets
        self._ids = ids or TimeOrderedIds(self._clock, self._random)
        self.bodies = Bodies()
        self._handles: dict[str, WeakSet[JobHandle]] = {}  # of the living jobs, by their ids
        self._submitting: dict[str, anyio.Event] = {}
        self._engines: dict[str, Engine] = {}
        self._closing = AsyncExitStack()
        self._drained = False
        self._running = False
        self._open = False
        self._left = False
        self._broken: BaseException | None = None  # by what
        self._stopping: anyio.CancelScope | None = None  # around a wait for what only a living dispatcher does
        self._group: TaskGroup
        self._inside: TaskGroup | None = None
        self.journal: Journal
        self._host: Host
        self._dispatcher: Dispatcher
        self._requests: Requests
        self._hub = Hub()
        self.recovered: list[JobHandle] = []
        """The jobs that were found living when the runtime was entered."""
        self.on_trouble: Callable[[Notice], None] | None = None
        """Set before entering: who is told of trouble, that is every `Notice` of a severity above info. Where nobody
        is set and structlog is not configured, those are lines on standard error."""

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        try:
            inside: TaskGroup = await self._group.start(self._keep)
            self._inside = inside
            await self._enter(inside)
        except BaseException:
            await self._leave()
            raise
        return self

    async def _keep(self, *, task_status: TaskStatus[TaskGroup]) -> None:
        """Keep the runtime's own tasks out of reach of what cancels the application's."""
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as inside:
                    task_status.started(inside)
                    await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                pass  # a stray one, since nothing reaches through the shield: asyncio lets anybody cancel any task
            except BaseException as error:
                self._break(error)
                raise
        if not self._left:
            self._break(None)
            raise closed("the runtime has closed", self._broken)

    async def _serve(self) -> None:
        """Run the dispatcher. Should it break, nobody waits for it."""
        try:
            await self._dispatcher.run()
        except anyio.get_cancelled_exc_class():
            self._break(None)
            raise
        except BaseException as error:
            self._break(error)
            raise
        finally:
            self._running = False
            self._host.close()

    def _break(self, cause: BaseException | None) -> None:
        """Something inside has ended that should not have: nothing goes on, and nobody may wait for it."""
        if self._left:
            return
        self._broken = self._broken or cause or RuntimeError("its own tasks were cancelled, which no code of ours does")
        self._running = self._open = False
        self._let_go(self._broken)
        self._host.close(self._broken)
        self._dispatcher.close()
        if self._stopping is not None:
            self._stopping.cancel()

    async def _enter(self, group: TaskGroup) -> None:
        runners = RunnerPool(group)
        self._dispatcher = Dispatcher(clock=self._clock, runners=runners, supervision=self._supervision)
        self.journal = _journal_of(self._target)
        self._host = Host(self._dispatcher, self.journal, self.bodies, self._random)
        self._host.on_trouble = self.on_trouble
        self._host.hub = self._hub
        self._host.secrets = self._secrets
        self._requests = Requests(self._host, self.journal, self.read, self._keep_requests)
        self._closing.callback(self._dispatcher.close)
        loaded = await self._open_journal()
        self._children = Children(self, self._host, runners)
        await self._open_engines(runners)
        if loaded.attempts or loaded.cancel_hooks:
            await anyio.to_thread.run_sync(kill_leftovers, loaded.attempts, self._name, loaded.cancel_hooks)
        self._begin(loaded)
        self._watch_loop(runners)
        group.start_soon(self._serve)
        self._running = self._open = True
        taker = Taker(self, self._host, self._requests, self.read)
        await taker.take()  # what was put into the inbox while nobody ran it comes before anything runs
        known = {job.id for job in self.recovered}
        self.recovered += [self._handle(job) for name, job in self._host.kernel.jobs.items() if name not in known]
        self._host.tell(StartWorkers(self._workers))
        await self._host.barrier()
        await group.start(taker.serve)
        self._closing.push_async_callback(taker.close)

    def _watch_loop(self, runners: RunnerPool) -> None:
        """Have it told when the event loop does not turn."""
        threshold = seconds(self._health_checks.loop_blocked)
        if threshold:
            self._host.watchdog = Watchdog(
                threshold, post=self._dispatcher.call_threadsafe, busy=lambda: runners.runners > runners.idle,
                tell=self._host.tell_blocked,
            )  # fmt: skip
            self._closing.callback(self._host.watchdog.close)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.drain(self._drain_deadline)
        finally:
            await self._leave()

    async def _leave(self) -> None:
        """Close everything, in the reverse order of its opening. Nothing is waited for without a limit."""
        self._open = False
        try:
            with anyio.CancelScope(shield=True):
                with suppress(RuntimeClosed):
                    await self._stop()
                await self._closing.aclose()
        finally:
            self._left = True
            if self._inside is not None:
                self._inside.cancel_scope.cancel()
            await self._group.__aexit__(None, None, None)

    async def _stop(self) -> None:
        if not self._running:
            return
        if not self._drained:
            await self.drain(0.0)
        with anyio.CancelScope() as self._stopping:
            await self._dispatcher.stop_all()
        with anyio.move_on_after(CLOSING):
            self._host.tell(StopWorkers())
            await self._host.barrier()
        self._let_go(None)
        self._host.close()

    async def _open_journal(self) -> Loaded:
        log = None
        if self._jsonl_path is not None:
            from .jsonl import JsonlLog  # noqa: PLC0415 - most runtimes keep no such log

            log = JsonlLog(Path(self._jsonl_path))
            log.check_place()
            self._closing.callback(log.close)

        def opening() -> Loaded:
            return self.journal.open(
                on_durable=self._host.release,
                call_threadsafe=self._dispatcher.call_threadsafe,
                after_commit=None if log is None else log.write,
            )

        loaded = await anyio.to_thread.run_sync(opening) if self.journal.durable_medium else opening()
        self._closing.push_async_callback(self._shut_journal)
        if log is not None:
            await anyio.to_thread.run_sync(log.open, self.journal)
        return loaded

    async def _shut_journal(self) -> None:
        deadline = self._drain_deadline
        if self.journal.durable_medium:
            await anyio.to_thread.run_sync(self.journal.shut, deadline)
        else:
            self.journal.shut(deadline)

    async def _open_engines(self, runners: RunnerPool) -> None:
        monotonic = self._clock.monotonic
        command = CommandEngine(started=self._process_started, clock=monotonic)
        process = ProcessEngine(
            started=self._process_started, alive=self._worker_alive, died=self._worker_died,
            environment={JOURNAL_VARIABLE: self._name}, clock=monotonic,
        )  # fmt: skip
        for engine in (LoopEngine(runners, clock=monotonic), ThreadEngine(clock=monotonic), process, command):
            await engine.open()
            self._closing.push_async_callback(engine.close, CLOSING)
            self._engines[engine.name] = engine

    def _begin(self, loaded: Loaded) -> None:
        host = self._host
        outputs = Outputs(self._outputs_folder())
        said = Workstream(RUNTIME, tools=self._tools, alerts=self._alerts)
        said = prepare(said, self.bodies, durable=self.journal.durable_medium, source="the runtime's settings")
        host.kernel = make_kernel(
            host, self._defaults, loaded, tools=said.tools, alerts=said.alerts, health=self._health_checks
        )
        host.caller = Caller(
            host.kernel, self._engines, self.bodies, outputs=outputs, tell=host.tell, notice=host.notice,
            after=self._after, journal=self._name, secrets=host.secrets, children=self._children,
            durable=self.journal.durable_medium,
        )  # fmt: skip
        host.on_job_over = self._job_over
        self.recovered = [self._handle(job) for job in host.kernel.jobs.values()]
        for folder in {job.spec.folder for job in host.kernel.jobs.values()} - {None}:
            look_in(str(folder))
        host.tell(RECOVER)
        self.journal.append(Entry([], [], pruned_at=host.now()))  # with what the recovery writes

    def _after(self, delay: float, action: Callable[[int], object], number: int) -> None:
        self._dispatcher.timers.arm(self._clock.monotonic() + delay, action, number)

    @property
    def _name(self) -> str:
        """What commands carry to be found again: the journal's path, or nothing that any other runtime could have."""
        return str(Path(self._target).absolute()) if isinstance(self._target, str | Path) else f"memory:{id(self)}"

    def _outputs_folder(self) -> Path:
        if self._outputs is not None:
            return Path(self._outputs)
        if isinstance(self._target, str | Path):
            return Path(f"{self._target}.output")
        return Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="callboard-")))

    def _worker_alive(self, worker: str, incarnation: int, tokens: tuple[int, ...]) -> None:
        self._host.later(WorkerBeat(worker, incarnation, tokens))

    def _worker_died(self, worker: str, incarnation: int, reason: str) -> None:
        self._host.tell(WorkerDied(worker, incarnation, reason))

    def _process_started(self, token: int, info: ProcessInfo) -> None:
        self._host.tell(ProcessStarted(token, info.pid, info.started))

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def task(self, func: F) -> F:
        """Register a function under its name, so that specifications and restarts find it. A decorator.

        Tasks of recovered jobs wait for functions that are not there (until their `unroutable_timeout`).
        """
        self.bodies.register(func)
        if self._open:
            self._host.tell(Registered())
        return func

    async def submit(
        self,
        workstream: Workstream,
        *,
        id: str | None = None,  # noqa: A002 - the field's word
        by: str | None = None,
    ) -> JobHandle:
        """Take a job; returns when it is durable. `id` is the caller's idempotency key: the same workstream under the
        same id again is the same job, ended or not. `by` is who submits it, and may not approve it unless an approval
        says so.

        Raises SpecificationError for a workstream that cannot be run (nothing is journaled then), JobExists for an id
        that has another workstream, RuntimeClosed.
        """
        self._check_open()
        _check_type(workstream, Workstream, "submit takes a Workstream")
        if id is not None:
            check_job_id(id)
        if by is not None:
            name_of(by)
        ready = prepare(workstream, self.bodies, durable=self.journal.durable_medium)
        encoded = msgspec.json.encode(ready)
        if id is None:
            return await self._submit(self._ids.new(), False, ready, encoded, "", by)
        while (other := self._submitting.get(id)) is not None:
            await other.wait()
        fingerprint = blake2b(encoded, digest_size=16).hexdigest()
        self._submitting[id] = anyio.Event()
        try:
            known = await self._known(id, fingerprint)
            return known or await self._submit(id, True, ready, encoded, fingerprint, by)
        finally:
            self._submitting.pop(id).set()

    async def _submit(  # noqa: PLR0917 - the parts of a message
        self, job_id: str, given: bool, spec: Workstream, encoded: bytes, fingerprint: str, by: str | None
    ) -> JobHandle:
        await self._host.gate()

        def make(reply: Reply) -> Message:
            return Submit(job_id, given, spec, encoded, fingerprint, reply, by)

        actor: JobActor = await self._host.ask(make)
        return self._handle(actor)

    async def _known(self, job_id: str, fingerprint: str) -> JobHandle | None:
        """The job that has this id already. Raises JobExists if it is another one."""
        actor = self._host.kernel.jobs.get(job_id)
        record = actor.record if actor is not None else await self.read(self.journal.job, job_id)
        if record is None:
            for archived in await self.read(self.journal.archived, job_id):
                raise JobExists(
                    f"there was a job {job_id!r} ({archived.state}), archived in {archived.file}. Use another id."
                )
            return None
        if record.fingerprint != fingerprint:
            raise JobExists(
                f"there is a job {job_id!r} already, submitted with another workstream ({record.state} now). "
                "Use another id, or submit exactly what was submitted under this one."
            )
        return self._handle(actor) if actor is not None else await self.job(job_id)

    async def job(self, job_id: str) -> JobHandle:
        """The handle of a job, living or ended. Raises LookupError if there is none."""
        self._check_open()
        _check_type(job_id, str, "a job's id is a str")
        actor = self._host.kernel.jobs.get(job_id)
        if actor is not None:
            return self._handle(actor)
        record = await self.read(self.journal.job, job_id)
        if record is None:
            for archived in await self.read(self.journal.archived, job_id):
                raise LookupError(f"job {job_id!r} ({archived.state}) was archived in {archived.file}")
            raise LookupError(f"there is no job {job_id!r} in this journal")
        tasks = await self.read(self.journal.tasks, record.stream)  # of its last run; none if it never began
        return JobHandle(self, job_id, None, outcome_of(record, tasks), key=record.key)

    def living(self, job_id: str) -> JobActor | None:
        """The actor of a job that has not ended, or not durably yet."""
        actor = self._host.kernel.jobs.get(job_id)
        return None if actor is None or actor.over else actor

    async def ended(self, job_id: str) -> JobRecord | None:
        """The record of a job that has ended, durably; None while it lives. Raises LookupError if there is none, but
        for a child's id: that may be submitted yet.
        """
        actor = self._host.kernel.jobs.get(job_id)
        if actor is not None and actor.ended:
            await self._host.barrier()  # its end is durable then
        if self.living(job_id) is not None:
            return None
        record: JobRecord | None = await self.read(self.journal.job, job_id)
        if record is None and "/" not in job_id:
            raise LookupError(f"there is no job {job_id!r} in this journal")
        return record

    async def run_again(self, job_id: str, word: str, **asked: Any) -> JobHandle:
        """For the handles: have an ended job run again (`reruns.run_again`). Returns the handle of that run."""
        await run_again(self, job_id, word, **asked)
        return await self.job(job_id)

    async def children_of(self, job_id: str) -> list[JobHandle]:
        """For the handles: the child jobs of a job, living and ended, oldest first."""
        found = await self.read(self.journal.children, job_id)
        return [await self.job(record.id) for record in found]

    async def read(self, question: Callable[..., Any], *args: Any) -> Any:
        """Ask the journal something, where that may block in a thread."""
        if self.journal.durable_medium:
            return await anyio.to_thread.run_sync(question, *args)
        return question(*args)

    def _handle(self, actor: JobActor) -> JobHandle:
        handle = JobHandle(self, actor.record.id, actor)
        if actor.over:
            self._settle(handle, actor)
        else:
            self._handles.setdefault(handle.id, WeakSet()).add(handle)
        return handle

    def _job_over(self, actor: JobActor) -> None:
        for handle in list(self._handles.pop(actor.record.id, ())):
            self._settle(handle, actor)

    def _let_go(self, cause: BaseException | None) -> None:
        """Tell whoever waits for a job that nothing comes any more; `cause` is what the runtime broke by."""
        for handles in self._handles.values():
            for handle in list(handles):
                handle.settle(None, cause)

    @staticmethod
    def _settle(handle: JobHandle, actor: JobActor) -> None:
        tasks = [] if actor.stream is None else [task.record for task in actor.stream.tasks]
        handle.settle(outcome_of(actor.record, tasks))

    async def command(
        self,
        key: int,
        message: Message,
        *,
        request_id: str | None = None,
        said: tuple[str, object] | None = None,
        refuse: Callable[[], Exception | None] | None = None,
    ) -> Any:
        """Give an entity (by its key) a command; returns when it took effect, durably. Raises what it refuses with.

        request_id: the same again is the same command, and nothing is done twice. said: the operation and what was
        given to it, which that is bound to (the entity's key and the message, unless given). refuse: says why it cannot
        be given, unless it has taken effect under that key before.
        """
        operation, payload = said or (type(message).__name__, (key, message))
        told = message
        if isinstance(message, Approve):
            told = await with_teams(message, self._host.kernel.entities.get(key), self.bodies, self._host)
        return await self.input(
            operation,
            payload,
            lambda reply: Command(key, told, reply),
            request_id=request_id,
            refuse=refuse,
        )

    async def input(
        self,
        operation: str,
        payload: object,
        make: Callable[[Reply], Message],
        *,
        request_id: str | None = None,
        refuse: Callable[[], Exception | None] | None = None,
    ) -> Any:
        """The same for a command that is an input of its own: `make(reply)` makes it, `payload` is what it says."""
        self._check_open()
        if request_id is not None:
            return await self._requests.once(request_id, operation, payload, make, refuse)
        if refuse is not None and (error := refuse()) is not None:
            raise error
        await self._host.gate()
        return await self._host.ask(make)

    def approvals(self) -> list[PendingApproval]:
        """What waits for people now, of all jobs: for whom, and until when."""
        self._check_open()
        return [one for job in self._host.kernel.jobs.values() for one in pending_of(job)]

    def workers(self) -> list[WorkerHandle]:
        """All workers, in the order of their first start; those that have ended too."""
        self._check_open()
        return [WorkerHandle(self, self._host, name) for name in self._host.kernel.named]

    def worker(self, name: str) -> WorkerHandle:
        """A worker by its name. Raises LookupError if there is none; one of capacity n on processes is n workers."""
        handles = {handle.name: handle for handle in self.workers()}
        if name not in handles:
            raise LookupError(f"there is no worker {name!r}; there are: {', '.join(sorted(handles)) or 'none'}")
        return handles[name]

    async def start_worker(self, worker: Worker, *, request_id: str | None = None) -> list[WorkerHandle]:
        """Start one more worker, or an ended one again; it is not started again with the next runtime.

        Returns its handle, or those of all that it stands for. Raises InvalidTransitionError if one of that name lives,
        ValueError for one that cannot be.
        """
        self._check_open()
        await start(self, check_worker(worker, self._engines), request_id)
        return [WorkerHandle(self, self._host, one.name) for one in worker.each()]

    def breakers(self) -> list[BreakerHandle]:
        """The circuit breakers of all tools that any workstream has used, or that the runtime was given."""
        self._check_open()
        return [BreakerHandle(self, self._host, actor) for actor in self._host.kernel.breakers.values()]

    def breaker(self, tool: str) -> BreakerHandle:
        """The circuit breaker of a tool. Raises LookupError if there is none (yet)."""
        handles = {handle.tool: handle for handle in self.breakers()}
        if tool not in handles:
            known = ", ".join(sorted(handles)) or "none"
            raise LookupError(f"no workstream has used a tool {tool!r} yet; there are breakers of: {known}")
        return handles[tool]

    # -- actors --------------------------------------------------------------------------------------------------------

    def spawn(
        self, actor: type[Actor] | Callable[[], Actor] | Actor, *, name: str | None = None, **options: Any
    ) -> Ref:
        """Start an actor of the application's own; the options are those of `Dispatcher.spawn`."""
        self._check_open()
        return self._dispatcher.spawn(actor, name=name, **options)

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def hub(self) -> Hub:
        """Where transitions are told."""
        return self._hub

    def metrics(self) -> Metrics:
        """What it has done since it was entered, and what it looks like now. May be asked in any thread.

        Raises RuntimeClosed before it was entered.
        """
        if not hasattr(self, "_host"):
            raise RuntimeClosed("the runtime was not entered: use it inside `async with Runtime(...)`")
        return snapshot(self._host, self._requests.asked, self._requests.hits)

    @property
    def health(self) -> Health:
        """Whether the journal can write, and if not, why not."""
        return self.journal.health

    @property
    def failed_hooks(self) -> int:
        """How many hooks have failed since it was entered. Each was told by `on_trouble`, or in the log."""
        return self._host.caller.failed_hooks

    @overload
    def events(
        self, *, notices: Literal[True] = True, size: int = BUFFER, **filters: Unpack[Filters]
    ) -> Subscription[Event]: ...
    @overload
    def events(
        self, *, notices: Literal[False], size: int = BUFFER, **filters: Unpack[Filters]
    ) -> Subscription[Transitioned]: ...
    def events(self, *, notices: bool = True, size: int = BUFFER, **filters: Unpack[Filters]) -> Subscription[Any]:
        """Every transition and notice from now on; if asked before entering, also those of the recovery.

        The filters (job, workstream, task, entity, kind, event, severity, from_state, to_state) take a value or
        several, and must all be met; a severity stands for the graver ones too. `notices=False` leaves those out.
        `size` bounds the buffer of a slow reader. Raises TypeError and ValueError for filters that there cannot be.
        """
        return self._hub.subscribe(wanted_by(filters, notices=notices), size=size)

    def tail(self, token: int) -> str:
        """The last line of what the command under a fencing token has written."""
        return self._host.caller.tail(token)

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def drain(
        self, deadline: float = DRAIN_DEADLINE, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Claim nothing more; what runs may end within `deadline` seconds, the rest is stopped, its tries given back.

        Afterwards the runtime is of no more use than to be left. Queued and waiting tasks go on at the next start.
        Begun by a task group's `start`, that returns once whatever ends from then on lets nothing new be claimed.
        """
        self._host.tell(Drain(stop=False))
        task_status.started()
        with anyio.move_on_after(deadline + CLOSING):
            await self._quiesce(deadline)

    async def _quiesce(self, deadline: float) -> None:
        host = self._host
        await host.barrier()
        if deadline > 0:
            with anyio.move_on_after(deadline):
                await self._idle()
        host.tell(Drain(stop=True))
        await host.barrier()
        self._drained = True
        await self._idle()

    async def _idle(self) -> None:
        """Wait until no call runs."""
        while self._host.kernel.calls:
            await self._host.moved()

    def _check_open(self) -> None:
        if self._broken is not None:
            raise closed("the runtime has closed", self._broken)
        if not self._open:
            raise RuntimeClosed("the runtime is not open: use it inside `async with Runtime(...)`")


def default_workers() -> tuple[Worker, ...]:
    """One loop worker of capacity 100, and as many thread, process and command slots as there are processors."""
    cores = os.cpu_count() or 1
    return (
        Worker("loop", engine="loop", capacity=LOOP_CAPACITY),
        Worker("threads", engine="thread", capacity=cores),
        Worker("processes", engine="process", capacity=cores),
        Worker("commands", engine="command", capacity=cores),
    )


def check_job_id(job_id: str) -> None:
    """Refuse an id that could not be a folder's name. Raises ValueError, and TypeError for what is no text."""
    _check_type(job_id, str, "a job's id is a str")
    if not (0 < len(job_id) <= 128 and job_id.isascii() and all(c.isalnum() or c in "._-" for c in job_id)):
        raise ValueError(f"{job_id!r:.80} cannot be a job's id: use 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    if job_id[0] in ".-":
        raise ValueError(f"{job_id!r:.80} cannot be a job's id: it must not begin with '.' or '-'")


def _check_type(value: object, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{expected}, not {value!r:.60}")


def _journal_of(target: str | Path | Journal | None) -> Journal:
    return open_journal(target) if target is None or isinstance(target, str | Path) else target
