"""The runtime: what an application opens, submits jobs to, and closes.

    async with Runtime("state.db") as runtime:
        job = await runtime.submit(Workstream("release", tasks=[Task("build", run=build)]))
        outcome = await job.wait()

Rules
-----
- Entering and leaving it is `runtime/lifespan/opening.py`'s; here are its verbs. Each returns when what it did is
  durable.
- Everything it needs of the world can be given: journal, clock, randomness, ids.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

import anyio
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal

from ..actors.machines.kind import MachineActor
from ..actors.messages.inputs import Registered
from ..actors.messages.notices import Notice, NoticeRecord
from ..actors.records.transition import Transitioned
from ..actors.spec.model import Alert, Defaults, HealthChecks, LifecycleName, Tool, Worker, Workstream
from ..actors.spec.times import Duration
from ..actors.user_code import is_a, plain, plain_text, shown
from ..actors.users.actor import Actor, M, Makes, R, Receives, SpawnOptions
from ..actors.users.dead_letters import DeadLetters
from ..actors.users.ref import Ref
from ..actors.users.strategy import Supervision
from ..machines.adapt.lifecycle import Lifecycle
from ..machines.machine import answers_later
from .commands.author import name_of, reason_of
from .commands.idempotency import KEEP_REQUESTS
from .commands.submissions import Existing
from .dispatch.clock import Clock, Ids, SystemClock, TimeOrderedIds
from .functions.lifecycles import by_name, known_by
from .handles.approvals import PendingApproval, pending_of
from .handles.breakers import BreakerHandle
from .handles.jobs import JobHandle
from .handles.machines import MachineRef
from .handles.references import EntityRef, meanings_of, of_job
from .handles.workers import WorkerHandle, check_worker, default_workers, start
from .journal.cluster import Node, lease_of
from .journal.contract import Health, Journal
from .journal.location import file_of
from .lifespan.opening import Lifespan, MakePlatform
from .lifespan.platform import Platform
from .lifespan.settings import DRAIN_DEADLINE, Settings, check_journal, outputs_of, so_many, span, taken_once
from .observation.events import BUFFER, Subscription
from .observation.filters import Event, Filters, wanted_by
from .observation.metrics import Metrics, snapshot
from .services import RuntimeServices
from .text.secrets import Secrets, Source

if TYPE_CHECKING:
    from .engines.ray.cluster import RayCluster

F = TypeVar("F", bound=Callable[..., Any])
_SETTLE = 1.0
"""Seconds that a question about what was just noticed waits for the journal."""


class Runtime:
    """Runs jobs, durably, inside the present event loop.

    journal: a path (SQLite), a `Journal`, or None (all in memory). workers: what runs attempts (by default one loop
    worker of capacity 100, and as many thread, process and command slots as there are processors). jsonl: a file for
    the log of transitions. outputs: the folder for the output of commands (by default beside the journal).
    secrets: where the values of secrets that specifications name come from: a mapping, or a function of the name that
    answers at once; by default the program's environment.
    drain_deadline: the duration that running attempts have to end when the runtime is left. keep_requests: the duration
    for which the `request_id` of a command is kept (longer where what it was about still lives).
    tools: what holds of tools whatever workstreams say of them (breaker, max_parallel), or where they say nothing.
    alerts: whom to tell of errors. health_checks: how workers, and the event loop, are watched.
    signals: whether SIGTERM and Ctrl+C drain it and end it while it is open, but for those that the program handles.
    The code inside `async with` is cancelled once it has drained, and the block ends without an error; what was opened
    by `open()` closes. A second signal stops bodies at once, a third one does what it would have done without this.
    Raises ValueError for what is no duration, TypeError for what is no journal.
    lifecycle: by which all entities run that are created and say nothing themselves: the name or import path of one, or
    a `Lifecycle`. lifecycles: those that may be named beside the published ones.
    Entering raises the errors of `journal.contract`, also for the log, LogConflict for the log of another journal,
    SpecificationError for workers, tools and alerts that cannot be, and, the second time, RuntimeError; with `signals`
    RuntimeError outside of the main thread, and while another runtime takes them.
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
        lifecycle: LifecycleName = None,
        lifecycles: Sequence[Lifecycle] = (),
        jsonl: str | Path | None = None,
        outputs: str | Path | None = None,
        secrets: Source | None = None,
        drain_deadline: Duration = DRAIN_DEADLINE,
        keep_requests: Duration = KEEP_REQUESTS,
        node: str | None = None,
        lease: Duration | None = None,
        supervision: Supervision | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        ids: Ids | None = None,
        ray: RayCluster | str | None = None,
        signals: bool = False,
    ) -> None:
        check_journal(journal, node, lease)
        target, clock, random = taken_once(journal), clock or SystemClock(), random or Random()  # noqa: S311 - jitter
        settings = Settings(
            target=target,
            node=None if node is None else plain_text(node, "the name of a node"),
            lease=None if lease is None else lease_of(span("lease", lease)),
            workers=default_workers() if workers is None else tuple(so_many(workers, "workers")),
            defaults=defaults or Defaults(),
            tools=dict(tools or {}),
            alerts=so_many(alerts, "alerts"),
            health_checks=health_checks or HealthChecks(),
            jsonl=None if jsonl is None else file_of(jsonl),
            outputs=outputs_of(target, outputs),
            secrets=Secrets(secrets),
            drain_deadline=span("drain_deadline", drain_deadline),
            keep_requests=span("keep_requests", keep_requests),
            supervision=supervision,
            ray=ray,
            signals=signals,
            clock=clock,
            random=random,
            ids=ids or TimeOrderedIds(clock, random),
        )
        self._services = RuntimeServices(settings.ids, partial(known_by, lifecycle, lifecycles))
        self._life = Lifespan(settings, self._services, self._platform())

    def _platform(self) -> MakePlatform:
        """What it touches of the machine it runs on. A runtime for tests has another one."""
        return Platform

    @property
    def on_trouble(self) -> Callable[[Notice], object] | None:
        """Who is told of trouble, on the event loop: of every `Notice` of a severity above info. A plain function.

        Where nobody is set, and neither structlog nor `logging` is configured, those are lines on standard error. It
        may be set at any time; what comes with the opening is told to who was set before. Raises TypeError for what
        could not be told: nobody would wait for a coroutine, or run a generator.
        """
        return self._services.on_trouble

    @on_trouble.setter
    def on_trouble(self, told: Callable[[Notice], object] | None) -> None:
        if told is not None and (not callable(told) or answers_later(told)):
            raise TypeError(f"on_trouble is a plain function of a Notice, and not {shown(told)}")
        self._services.on_trouble = told
        if self._services.standing.loaded:
            self._services.host.notices.on_trouble = told

    # -- its life ------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Enter it, to be left by `close()`: for programs that begin and end in different tasks or functions.

        `async with` does both, and ends the code inside should the runtime break. Here nobody is cancelled then: what
        uses it raises RuntimeClosed with the cause. Raises what entering raises (see `Runtime`), RuntimeError the
        second time, RuntimeClosed where it is closed meanwhile.
        """
        await self._life.open()
        return self

    async def close(self) -> None:
        """Leave it, in whatever task: as `async with` does at its end. Returns when all is over.

        Closed again, or never opened, it does nothing; while another task opens it, that one gets RuntimeClosed. If
        this is cancelled, running attempts are stopped at once. Raises RuntimeClosed, with the cause, where the runtime
        broke, and RuntimeError in what it runs itself.
        """
        await self._life.close()

    async def drain(
        self, deadline: Duration = DRAIN_DEADLINE, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Claim nothing more; what runs may end within `deadline`, the rest is stopped, its tries given back.

        Afterwards the runtime is of no more use than to be left. Queued and waiting tasks go on at the next start,
        or on another node.
        Raises ValueError for a deadline that is no duration, before anything stops, and RuntimeClosed.
        Begun by a task group's `start`, that returns once whatever ends from then on lets nothing new be claimed.
        """
        await self._life.drain(deadline, task_status=task_status)

    @property
    def portal(self) -> BlockingPortal:
        """For threads: `runtime.portal.call(func, *args)` runs a function, or a coroutine function as `runtime.submit`,
        on the event loop of the runtime, and returns, or raises, what comes of it.

        A thread that waits so when the runtime is left gets RuntimeClosed from what it waits for. Raises RuntimeClosed
        unless the runtime is open.
        """
        return self._life.portal

    async def __aenter__(self) -> Self:
        await self._life.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._life.exit(error)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    @overload
    def task(self, func: F, *, name: str | None = None, aliases: Iterable[str] = ()) -> F: ...
    @overload
    def task(self, func: None = None, *, name: str | None = None, aliases: Iterable[str] = ()) -> Callable[[F], F]: ...
    def task(
        self, func: F | None = None, *, name: str | None = None, aliases: Iterable[str] = ()
    ) -> F | Callable[[F], F]:
        """Register a function, so that specifications and restarts find it by that name. A decorator.

        name: what journals and specifications call it, wherever it is moved; its own name unless said. aliases: what
        they called it before: names that it had, or its import paths of that time. Tasks of recovered jobs wait for
        functions that are not there (until their `unroutable_timeout`). Raises ValueError for a name that another
        function has, or that cannot be.
        """
        if func is None:
            return lambda given: self.task(given, name=name, aliases=aliases)
        self._services.bodies.register(func, name, aliases)
        if self._services.standing.open:  # in whatever thread that imports a module
            self._services.dispatcher.call_threadsafe(self._registered)
        return func

    def _registered(self) -> None:
        self._services.host.tell(Registered())
        self._services.host.caller.look_again()
        if self._services.membership is not None:
            self._services.membership.registered()

    async def submit(
        self,
        workstream: Workstream,
        *,
        id: str | None = None,  # noqa: A002 - the field's word
        by: str | None = None,
        existing: Existing = "join",
        request_id: str | None = None,
    ) -> JobHandle:
        """Take a job; returns when it is durable. `id` is the caller's idempotency key: the same workstream under the
        same id again is the same job, ended or not. `by` is who submits it, and may not approve it unless an approval
        says so.

        existing: what becomes of a job that has that id already. "join": it is the one that is returned. "refuse": it
        stays as it is, and JobExists is raised, whatever its workstream is. "replace_ended": one that has ended is
        replaced by this one, of any workstream; its runs stay in the history. One that has not is JobExists.
        request_id: the same again is the same command, and has the same job, whatever `existing` says
        (RequestIdReused if it was given to another one before). Without an id the job's id is made of it.

        Raises SpecificationError for a workstream that cannot be run (nothing is journaled then), JobExists also for an
        id that has another workstream, RuntimeClosed, and ValueError for what can be no id, no key, or no `existing`.
        While the journal cannot be written, or reached, it waits.
        """
        return (await self._services.submitted(workstream, id=id, by=by, existing=existing, request_id=request_id)).job

    async def job(self, job_id: str) -> JobHandle:
        """The handle of a job, living or ended. Raises LookupError if there is none."""
        return await self._services.jobs.find(job_id)

    @property
    def recovered(self) -> list[JobHandle]:
        """The jobs that an earlier process, or another node, left unfinished, and that go on here; and those that a
        command left in the inbox had run again. Of those that have ended meanwhile, the last hundred.
        """
        return list(self._services.jobs.recovered.handles.values())

    async def caught_up(self) -> None:
        """Wait until the events that were left for machines, while nobody ran the journal, have been done.

        What other programs leave is taken once the runtime is open: commands of people before it opens, events of
        machines from then on, oldest first, while the program runs. Those for a machine that this program has not got
        are not waited for. Raises RuntimeClosed.
        """
        self._services.standing.check_open_here()
        await self._services.taker.caught_up()
        self._services.standing.check_open_here()

    def approvals(self) -> list[PendingApproval]:
        """What waits for people now, of all jobs that this runtime runs: for whom, and until when."""
        self._services.standing.check_open()
        return [one for job in self._services.host.kernel.jobs.values() for one in pending_of(job)]

    def workers(self) -> list[WorkerHandle]:
        """All workers, in the order of their first start; those that have ended too."""
        self._services.standing.check_open()
        return [WorkerHandle(self._services, self._services.host, name) for name in self._services.host.kernel.named]

    def worker(self, name: str) -> WorkerHandle:
        """A worker by its name, of this node. Raises LookupError if there is none; one of capacity n on processes is n.

        Where the journal is shared, `NAME@NODE` is its name as well.
        """
        return self._services.worker(name)

    async def start_worker(
        self, worker: Worker, *, reason: str | None = None, by: str | None = None, request_id: str | None = None
    ) -> list[WorkerHandle]:
        """Start one more worker, or an ended one again; the next runtime starts it again only if it is given it, too.

        (`callboard resume` and `callboard serve` go on with the workers that there were, this one among them.)

        reason, by: why, and who says so; they are kept with its creation. request_id: as for `WorkerHandle.pause`.
        Returns its handle, or those of all that it stands for. Raises InvalidTransitionError if one of that name lives,
        SpecificationError for one that cannot be.
        """
        self._services.standing.check_open_here()
        checked = check_worker(worker, self._life.platform.engines, self._services.lifecycles)
        said = None if reason is None else reason_of(reason), None if by is None else name_of(by)
        await start(self._services, by_name(checked, self._services.lifecycles), said, request_id)
        return [WorkerHandle(self._services, self._services.host, one.name) for one in checked.each()]

    def breakers(self) -> list[BreakerHandle]:
        """The circuit breakers of all tools that any workstream has used, or that the runtime was given."""
        return self._services.breakers()

    def breaker(self, tool: str) -> BreakerHandle:
        """The circuit breaker of a tool. Raises LookupError if there is none (yet)."""
        return self._services.breaker(tool)

    # -- actors --------------------------------------------------------------------------------------------------------

    @overload
    def spawn(self, actor: MachineActor, *, name: str | None = None) -> MachineRef: ...
    @overload
    def spawn(
        self, actor: Makes[M, Coroutine[Any, Any, R]], *, name: str | None = None, **options: Unpack[SpawnOptions]
    ) -> Ref[M, R]: ...
    @overload
    def spawn(self, actor: Makes[M, R], *, name: str | None = None, **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    @overload
    def spawn(
        self, actor: Receives[M, Coroutine[Any, Any, R]], *, name: str | None = None, **options: Unpack[SpawnOptions]
    ) -> Ref[M, R]: ...
    @overload
    def spawn(
        self, actor: Receives[M, R], *, name: str | None = None, **options: Unpack[SpawnOptions]
    ) -> Ref[M, R]: ...
    def spawn(
        self,
        actor: Any,
        *,
        name: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Ref | MachineRef:
        """Start an actor of the application's own. mailbox, restart, supervision, stop_timeout: as of `Context.spawn`.

        Raises NameTaken, and TypeError where its methods cannot be called, as a `receive(self, message)` without `ctx`.
        A `MachineActor` is durable: the one of that name goes on where it was, if the journal has one. Raises
        MachineConflict where that runs by another machine, SpecificationError for one that could not be found again.
        `await runtime.spawn(MachineActor(...), name=...)` returns when it is durable, or was found in the journal; not
        awaited, what ended long ago is found soon after, and its conflict raised by whoever asks it.
        """
        self._services.standing.check_open_here()
        if is_a(actor, MachineActor):
            if options:
                raise TypeError(f"a MachineActor takes no {', '.join(options)}: it has no mailbox of its own")
            return self._services.machines.spawn(
                cast("MachineActor", actor), self._services.ids.new() if name is None else plain(name)
            )
        return self._services.dispatcher.spawn(cast("type[Actor]", actor), name=name, **options)

    def machine(self, name: str) -> MachineRef | EntityRef:
        """What events are sent to, by its name: a `MachineActor`, or what the runtime itself runs, if it is at hand.

        A machine is, if it lives here, or was made or has ended lately; a job ("JOB"), its workstream ("JOB@RUN") and a
        task ("JOB/TASK", "JOB@RUN/TASK"), if the job lives here; and so are this node's workers and breakers. Of
        several of one name the first in that order is meant; the handle of each has its own reference, `ref`. What else
        a file or a database may have of that name, `await runtime.machine_of(name)` finds: this one does not keep the
        event loop waiting. Raises LookupError.
        """
        self._services.standing.check_open()
        name = plain_text(name, "the name of a machine")
        try:
            return self._services.machines.of(name)
        except LookupError:
            if (found := self._at_hand(name)) is not None:
                return found
            raise

    async def machine_of(self, name: str) -> MachineRef | EntityRef:
        """The same, ended or not, wherever it is: the journal is asked in a thread.

        Raises LookupError if there is none; JournalError where the journal cannot be read.
        """
        self._services.standing.check_open_here()
        name = plain_text(name, "the name of a machine")
        try:
            return await self._services.machines.find(name)
        except LookupError:
            if (found := self._at_hand(name) or await self._somewhere(name)) is not None:
                return found
            raise

    def _at_hand(self, name: str) -> EntityRef | None:
        """The reference of what lives here, by its name."""
        kernel = self._services.host.kernel
        for meant in meanings_of(name):
            if (actor := kernel.jobs.get(meant.job)) is not None:
                return of_job(self._services.jobs.handle(actor), meant)
        worker, _, incarnation = self._services.called(name).partition("#")
        actors = kernel.named.get(worker)
        if actors is not None and (not incarnation or actors.record.id == name):
            return WorkerHandle(self._services, self._services.host, worker).ref
        breaker = kernel.breakers.get(self._services.called(name))
        return None if breaker is None else BreakerHandle(self._services, self._services.host, breaker).ref

    async def _somewhere(self, name: str) -> EntityRef | None:
        """The same of a job that has ended, or that another node runs."""
        for meant in meanings_of(name):
            if await self._services.read(self._services.journal.reader.job, meant.job) is not None:
                return of_job(await self.job(meant.job), meant)
        return None

    def machines(self) -> list[MachineRef]:
        """The `MachineActor`s that have not ended, and those that have lately, in the order of their making."""
        self._services.standing.check_open()
        return self._services.machines.all()

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it takes anything."""
        return self._services.is_open

    def metrics(self) -> Metrics:
        """What it has done since it was entered, and what it looks like now. May be asked in any thread.

        Raises RuntimeClosed before it was entered.
        """
        self._services.standing.check_entered()
        host, requests = self._services.host, self._services.requests
        return snapshot(host, requests.asked, requests.hits, self._services.membership)

    @property
    def health(self) -> Health:
        """Whether the journal can write, and as a node of several holds its lease; if not, why not. Or why nothing can
        be started for now.

        Raises RuntimeClosed before it was entered.
        """
        return self._services.health

    @property
    def journal(self) -> Journal:
        """What is kept: for questions to it, see `journal/contract.py`. It is there once the runtime was entered."""
        return self._services.journal

    @property
    def node(self) -> str | None:
        """Its name among the nodes that share the journal; None where it has that alone.

        Raises RuntimeClosed before it was entered.
        """
        self._services.standing.check_entered()
        return None if self._services.seat is None else self._services.seat.name

    async def nodes(self) -> list[Node]:
        """All nodes of the journal that live, and those that were fenced or have left lately; none where it has one
        owner. Raises JournalError where the database is not reached, RuntimeClosed.
        """
        self._services.standing.check_open_here()
        return [] if self._services.seat is None else await self._services.seat.ask(self._services.seat.cluster.nodes)

    @property
    def failed_hooks(self) -> int:
        """How many hooks have failed since it was entered. Each was told by `on_trouble`, or in the log.

        Raises RuntimeClosed before it was entered.
        """
        self._services.standing.check_entered()
        return self._services.host.caller.failed_hooks

    @property
    def dead_letters(self) -> DeadLetters:
        """The messages to actors that were not handled: `count`, `counts` by reason, `newest()`, `subscribe(function)`.

        It is there before the runtime is entered, and after it was left.
        """
        return self._services.dead_letters

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
        `size` bounds the buffer of a slow reader, in events. Raises TypeError and ValueError for filters and sizes that
        there cannot be. It ends when the runtime is left; where that breaks, it raises RuntimeClosed with the cause.
        """
        self._services.check_here("a runtime")
        return self._services.hub.subscribe(wanted_by(filters, notices=notices), size=size)

    async def kept_notices(
        self, *, about: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[NoticeRecord]:
        """The notices above info that the journal keeps, also those of earlier runtimes, those told of last first.

        about: only those about the entity of that id, as an actor's name, or about what is in the job of that id.
        since: UTC epoch seconds. Those alike that came soon after one another are one, with their `count`, which may be
        a second old. Raises JournalError where it cannot be read, RuntimeClosed.
        """
        self._services.standing.check_open_here()
        about = None if about is None else plain_text(about, "what notices are about")
        await self._services.host.settled(_SETTLE)
        asked = partial(self._services.journal.reader.notices, about=about, since=since, limit=limit)
        found: list[NoticeRecord] = await self._services.read(asked)
        return found


def services_of(runtime: Runtime) -> RuntimeServices:
    """What a runtime has for the board, the command line and collectors."""
    return runtime._services  # pyright: ignore[reportPrivateUsage]
