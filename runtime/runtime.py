"""The runtime: what an application opens, submits jobs to, and closes.

    async with Runtime("state.db") as runtime:
        job = await runtime.submit(Workstream("release", tasks=[Task("build", run=build)]))
        outcome = await job.wait()

Rules
-----
- `runtime/lifespan/opening.py` opens and closes the runtime; this file has its verbs. Each verb returns when its effect
  is durable.
- The application can supply every outside dependency: journal, clock, randomness, ids.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload
from warnings import warn

from anyio.abc import TaskStatus

from ..actors.machines.kind import MachineActor
from ..actors.messages.inputs import Registered
from ..actors.messages.notices import Notice, NoticeRecord
from ..actors.records.transition import Transitioned
from ..actors.spec.model import Alert, Defaults, HealthChecks, LifecycleName, Tool, Worker, Workstream
from ..actors.times import Duration
from ..actors.user_code import is_a, plain, plain_text, shown
from ..actors.users.actor import Actor, ActorOptions, M, Makes, R, Receives, SpawnOptions
from ..actors.users.dead_letters import DeadLetters
from ..actors.users.ref import Ref
from ..actors.users.strategy import Supervision
from ..machines.adapt.lifecycle import Lifecycle
from ..machines.keywords import unexpected
from ..machines.machine import answers_later
from .commands.author import name_of, reason_of
from .commands.idempotency import KEEP_REQUESTS
from .dispatch.clock import Clock, Ids, SystemClock, TimeOrderedIds
from .functions.lifecycles import by_name, known_by
from .handles.approvals import PendingApproval, pending_of
from .handles.jobs import JobHandle, of_job
from .handles.machine_refs import MachineRef
from .handles.references import EntityRef, meanings_of
from .handles.workers import WorkerHandle, check_worker, start
from .jobs.submissions import Existing
from .journal.contract import Health, Journal
from .journal.location import file_of
from .lifespan.opening import Lifespan, MakePlatform
from .lifespan.platform import Platform
from .lifespan.settings import (
    DRAIN_DEADLINE,
    Settings,
    check_journal,
    check_kinds,
    defaults_of,
    lease_in,
    outputs_of,
    so_many,
    span,
    taken_once,
    workers_of,
)
from .observation.events import BUFFER, Subscription
from .observation.metrics import Metrics
from .services import RuntimeServices
from .text.secrets import Secrets, Source

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from .engines.ray.cluster import RayCluster
    from .handles.breakers import BreakerHandle
    from .journal.cluster import Node
    from .observation.filters import Event, Filters

F = TypeVar("F", bound=Callable[..., Any])
_SETTLE = 1.0
"""Seconds that a query for kept notices waits for the journal to write the latest ones."""


class Runtime:
    """Runs durable jobs inside the present event loop.

    journal: a path (SQLite), a `Journal`, or None (all in memory). workers: the workers that run attempts (by default
    one loop worker of capacity 100, and as many thread, process and command slots as there are processors).
    jsonl: a file for the log of transitions. outputs: the folder for the output of commands (by default beside the
    journal). secrets: the source of the secrets that specifications name: a mapping, or a plain function that returns
    the value for a name; by default the program's environment.
    drain_deadline: the duration in which running attempts may end when the runtime closes. keep_requests: the duration
    for which the `request_id` of a command is kept (longer if the target of the command has not ended).
    tools: settings of tools (breaker, max_parallel) that override those of workstreams, or apply where a workstream has
    none. alerts: the receivers of error messages. health_checks: how workers and the event loop are watched.
    signals: whether SIGTERM and Ctrl+C drain and close the runtime, except for signals that the program handles itself.
    After the drain the code inside `async with` is cancelled, and the block ends without an error; a runtime that was
    opened by `open()` closes. A second signal stops bodies at once; a third signal has its usual effect.
    lifecycle: the default lifecycle of new entities that name none: its name, its import path, or a `Lifecycle`.
    lifecycles: further lifecycles that may be named, beside the published ones.
    Raises ValueError for an invalid duration, SpecificationError for invalid defaults, and TypeError for a journal or
    another setting of a wrong kind.
    Entering raises the errors of `journal.contract` (for the log, too), LogConflict for the log of another journal,
    SpecificationError for invalid workers, tools and alerts, and RuntimeError the second time. With `signals` it also
    raises RuntimeError outside of the main thread, and while another runtime handles the signals.
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
        check_kinds(
            workers=workers, health_checks=health_checks, secrets=secrets, supervision=supervision, clock=clock,
            random=random, ids=ids,
        )  # fmt: skip
        target, clock, random = taken_once(journal), clock or SystemClock(), random or Random()  # noqa: S311 - jitter
        settings = Settings(
            target=target,
            node=None if node is None else plain_text(node, "the name of a node"),
            lease=lease_in(lease),
            workers=workers_of(workers),
            defaults=defaults_of(defaults),
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
        """The platform: what the runtime uses of this computer. A runtime for tests has another platform."""
        return Platform

    @property
    def on_trouble(self) -> Callable[[Notice], object] | None:
        """The plain function that gets every `Notice` of a severity above info, on the event loop.

        If no function is set, and neither structlog nor `logging` is configured, the runtime writes these notices to
        standard error. The function may be set at any time; set it before the opening to get the notices of the
        opening. Raises TypeError for a coroutine function or generator function: the runtime would not await or run it.
        """
        return self._services.on_trouble

    @on_trouble.setter
    def on_trouble(self, told: Callable[[Notice], object] | None) -> None:
        if told is not None and (not callable(told) or answers_later(told)):
            raise TypeError(f"on_trouble is a plain function of a Notice, and not {shown(told)}")
        self._services.on_trouble = told
        if self._services.status.loaded:
            self._services.host.notices.on_trouble = told

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Open the runtime, without `async with`: for programs that begin and end in different tasks or functions.

        Close it by `close()`. `async with` opens and closes the runtime, and cancels the code inside if the runtime
        breaks. After `open()` no code is cancelled then: every use of the runtime raises RuntimeClosed with the cause.
        Raises the errors of entering (see `Runtime`), RuntimeError the second time, RuntimeClosed if the runtime is
        closed meanwhile.
        """
        await self._life.open()
        return self

    async def close(self) -> None:
        """Close the runtime, in any task, as the end of `async with` does. Returns when everything has ended.

        It does nothing if the runtime was never opened or is already closed. If another task is opening the runtime,
        that task gets RuntimeClosed. If `close` is cancelled, running attempts are stopped at once. Raises
        RuntimeClosed with the cause if the runtime broke, and RuntimeError inside code that the runtime itself runs.
        """
        await self._life.close()

    async def drain(self, deadline: Duration = DRAIN_DEADLINE, *, task_status: TaskStatus[None] | None = None) -> None:
        """Claim no more tasks, and let running attempts end within `deadline`.

        Attempts that have not ended by then are stopped, and do not count as tries. After that the runtime can only be
        closed. Queued and waiting tasks go on at the next start, or on another node.
        Raises ValueError if `deadline` is not a duration (before anything stops), and RuntimeClosed.
        If a task group's `start` runs this, `start` returns as soon as no more tasks can be claimed.
        """
        await self._life.drain(deadline, task_status=task_status)

    @property
    def portal(self) -> BlockingPortal:
        """The portal by which threads call functions on the event loop of the runtime.

        `runtime.portal.call(func, *args)` runs a function, or a coroutine function such as `runtime.submit`, on that
        loop, and returns its result or raises its error. If the runtime closes while a thread waits in such a call, the
        call raises RuntimeClosed. Raises RuntimeClosed unless the runtime is open.
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
        """Register a function, so that specifications and restarts find it by its name. A decorator.

        name: the name of the function in journals and specifications, which stays the same if the function moves (by
        default its own name). aliases: its earlier names or import paths. A task of a recovered job waits for a
        function that is not found (until the task's `unroutable_timeout`). Raises ValueError for a name that another
        function has, and for an invalid name.
        """
        if func is None:
            return lambda given: self.task(given, name=name, aliases=aliases)
        self._services.bodies.register(func, name, aliases)
        if self._services.status.open:  # the thread that imports the module calls this, so it may be any thread
            self._services.dispatcher.call_threadsafe(self._registered)
        return func

    def _registered(self) -> None:
        self._services.host.tell(Registered())
        self._services.caller.look_again()
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
        """Submit a job. Returns its handle when the job is durable.

        id: the caller's idempotency key. If the same workstream is submitted again under the same id, the caller gets
        the same job, ended or not. by: the submitter, who may not approve the job unless an approval allows it.
        existing: what to do if a job has this id already. "join": return that job. "refuse": leave that job unchanged
        and raise JobExists, whatever its workstream is. "replace_ended": if that job has ended, replace it by this one,
        whatever its workstream is (its runs stay in the history); otherwise raise JobExists.
        request_id: a submission with the same request_id returns the same job, whatever `existing` is (RequestIdReused
        if another command used it). If no `id` is given, the job's id is made from the request_id.

        Raises SpecificationError for a workstream that cannot run (nothing is journaled then), JobExists also if the id
        belongs to a job with another workstream, RuntimeClosed, and ValueError for an invalid `id`, `request_id` or
        `existing`. While the journal cannot be written or reached, `submit` waits.
        """
        return (await self._services.submitted(workstream, id, by, existing, request_id)).job

    async def job(self, job_id: str) -> JobHandle:
        """The handle of a job, whether it has ended or not. Raises LookupError if there is no such job."""
        return await self._services.jobs.find(job_id)

    @property
    def recovered(self) -> list[JobHandle]:
        """The recovered jobs: an earlier process or another node left them unfinished, and they go on here.

        The list also has the jobs that run again because of a command in the inbox. Of the jobs that have ended
        meanwhile, it has the last hundred.
        """
        return list(self._services.jobs.recovered.handles.values())

    async def caught_up(self) -> None:
        """Wait until the machines have handled the events that arrived while no runtime ran the journal.

        Other programs put commands and events into the inbox. The runtime executes the commands of people before it
        opens. It delivers the events for machines after it has opened, oldest first, while the program runs. This does
        not wait for events of a machine that this program does not have. Raises RuntimeClosed.
        """
        self._services.status.check_open_here()
        await self._services.inbox.caught_up()
        self._services.status.check_open_here()

    def approvals(self) -> list[PendingApproval]:
        """The pending approvals of all jobs that this runtime runs, each with its approvers and its deadline."""
        self._services.status.check_open()
        return [one for job in self._services.host.jobs.values() for one in pending_of(job)]

    def workers(self) -> list[WorkerHandle]:
        """All workers, ended ones too, in the order of their first start."""
        self._services.status.check_open()
        services = self._services
        return [WorkerHandle(services, services.host, name) for name in services.host.workforce.named]

    def worker(self, name: str) -> WorkerHandle:
        """The worker of this node with the given name. Raises LookupError if there is none.

        A specified worker of capacity n on processes becomes n workers. If nodes share the journal, `NAME@NODE` is also
        the name of a worker.
        """
        return self._services.worker(name)

    async def start_worker(
        self, worker: Worker, *, reason: str | None = None, by: str | None = None, request_id: str | None = None
    ) -> list[WorkerHandle]:
        """Start one more worker, or start an ended worker again.

        The next runtime starts this worker only if the worker is also among its `workers`. (`callboard resume` and
        `callboard serve` start all workers of the last runtime again, also this one.)

        reason, by: why, and by whom, the worker is started; its creation record keeps both. request_id: as for
        `WorkerHandle.pause`. Returns the handle of the worker, or the handles of all workers that `worker` specifies.
        Raises InvalidTransitionError if a worker of this name has not ended, SpecificationError for an invalid worker.
        """
        self._services.status.check_open_here()
        checked = check_worker(worker, self._life.platform.engines, self._services.lifecycles)
        said = None if reason is None else reason_of(reason), None if by is None else name_of(by)
        await start(self._services, by_name(checked, self._services.lifecycles), said, request_id)
        return [WorkerHandle(self._services, self._services.host, one.name) for one in checked.each()]

    def breakers(self) -> list[BreakerHandle]:
        """The circuit breakers of all tools that a workstream has used or that `Runtime(tools=...)` names."""
        return self._services.breakers()

    def breaker(self, tool: str) -> BreakerHandle:
        """The circuit breaker of a tool. Raises LookupError if there is none (yet)."""
        return self._services.breaker(tool)

    # -- actors --------------------------------------------------------------------------------------------------------

    @overload
    def spawn(self, actor: MachineActor, *, name: str | None = None) -> MachineRef: ...
    @overload
    def spawn(self, actor: Makes[M, Coroutine[Any, Any, R]], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    @overload
    def spawn(self, actor: Makes[M, R], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    @overload
    def spawn(self, actor: Receives[M, Coroutine[Any, Any, R]], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    @overload
    def spawn(self, actor: Receives[M, R], **options: Unpack[SpawnOptions]) -> Ref[M, R]: ...
    def spawn(
        self,
        actor: Any,
        *,
        name: str | None = None,
        **options: Unpack[ActorOptions],
    ) -> Ref | MachineRef:
        """Start an actor of the application. mailbox, restart, supervision, stop_timeout: as for `Context.spawn`.

        Raises NameTaken, and TypeError if its methods have a wrong signature, such as `receive(self, message)` without
        `ctx`.
        A `MachineActor` is durable: if the journal has a machine of this name, that machine is restored. Raises
        MachineConflict if that machine has another definition, SpecificationError if a restart could not find the
        actor's class again.
        `await runtime.spawn(MachineActor(...), name=...)` returns when the machine is durable or was found in the
        journal. Without `await`, a machine that ended long ago is found a little later, and the next `ask` raises its
        conflict.
        """
        self._services.status.check_open_here()
        if options and (unknown := [one for one in options if one not in ActorOptions.__annotations__]):
            raise TypeError(unexpected("Runtime.spawn", unknown[0], [*SpawnOptions.__annotations__]))
        if is_a(actor, MachineActor):
            if options:
                raise TypeError(f"a MachineActor takes no {', '.join(options)}: it has no mailbox of its own")
            return self._services.machines.spawn(
                cast("MachineActor", actor), self._services.ids.new() if name is None else plain(name)
            )
        return self._services.dispatcher.spawn(cast("type[Actor]", actor), name=name, **options)

    def machine(self, name: str) -> MachineRef | EntityRef:
        """The reference, for sending events, to the machine of this name that is in memory.

        The name may be that of: a `MachineActor` that lives here, or was created or ended lately; a job ("JOB"), its
        workstream ("JOB@RUN") or a task ("JOB/TASK", "JOB@RUN/TASK") if the job lives here; a worker or a breaker of
        this node. If several have the same name, the first in this order is returned; each handle has its own
        reference, `ref`. This does not read the journal, so that the event loop does not wait: `await
        runtime.machine_of(name)` also finds machines that are only in the journal. Raises LookupError.
        """
        self._services.status.check_open()
        name = plain_text(name, "the name of a machine")
        try:
            return self._services.machines.of(name)
        except LookupError:
            if (found := self._at_hand(name)) is not None:
                return found
            raise

    async def machine_of(self, name: str) -> MachineRef | EntityRef:
        """The reference to the machine of this name, in memory or in the journal, ended or not.

        A thread reads the journal. Raises LookupError if there is none, JournalError if the journal cannot be read.
        """
        self._services.status.check_open_here()
        name = plain_text(name, "the name of a machine")
        try:
            return await self._services.machines.find(name)
        except LookupError:
            if (found := self._at_hand(name) or await self._somewhere(name)) is not None:
                return found
            raise

    def _at_hand(self, name: str) -> EntityRef | None:
        """The reference to a job, worker or breaker that lives here, by its name; None if there is none."""
        workforce = self._services.host.workforce
        for meant in meanings_of(name):
            if (actor := self._services.host.jobs.get(meant.job)) is not None:
                return of_job(self._services.jobs.handle(actor), meant)
        worker, _, incarnation = self._services.called(name).partition("#")
        actors = workforce.named.get(worker)
        if actors is not None and (not incarnation or actors.record.id == name):
            return WorkerHandle(self._services, self._services.host, worker).ref
        tool = self._services.called(name)
        return self._services.breaker(tool).ref if tool in workforce.breakers else None

    async def _somewhere(self, name: str) -> EntityRef | None:
        """The reference to a job that has ended or that another node runs; None if there is none."""
        for meant in meanings_of(name):
            if await self._services.read(self._services.journal.reader.job, meant.job) is not None:
                return of_job(await self.job(meant.job), meant)
        return None

    def machines(self) -> list[MachineRef]:
        """The `MachineActor`s that have not ended or have ended lately, in the order of their creation."""
        self._services.status.check_open()
        return self._services.machines.all()

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the runtime accepts commands."""
        return self._services.is_open

    def metrics(self) -> Metrics:
        """The metrics of the runtime since it was entered, and its present state. Any thread may call this.

        Raises RuntimeClosed before the runtime was entered.
        """
        self._services.status.check_entered()
        from .snapshot import snapshot  # noqa: PLC0415 - many programs ask for none

        return snapshot(self._services)

    @property
    def health(self) -> Health:
        """The health of the runtime: whether the journal can write and, as a node of several, holds its lease.

        If not, or if no attempt can start for now, it has the reason. Raises RuntimeClosed before the runtime was
        entered.
        """
        return self._services.health

    @property
    def journal(self) -> Journal:
        """The journal, available once the runtime was entered. `journal/contract.py` describes its queries."""
        return self._services.journal

    @property
    def node(self) -> str | None:
        """The name of this node among the nodes that share the journal; None if the journal has one owner.

        Raises RuntimeClosed before the runtime was entered.
        """
        self._services.status.check_entered()
        return None if self._services.node is None else self._services.node.name

    async def nodes(self) -> list[Node]:
        """All live nodes of the journal, and those that were fenced or have left lately.

        The list is empty if the journal has one owner. Raises JournalError if the database is not reached,
        RuntimeClosed.
        """
        self._services.status.check_open_here()
        return [] if self._services.node is None else await self._services.node.ask(self._services.node.cluster.nodes)

    @property
    def failed_hooks(self) -> int:
        """How many hooks have failed since the runtime was entered. `on_trouble` or the log reported each of them.

        Raises RuntimeClosed before the runtime was entered.
        """
        self._services.status.check_entered()
        return self._services.caller.failed_hooks

    @property
    def dead_letters(self) -> DeadLetters:
        """The messages that no actor handled: `count`, `counts` by reason, `newest()`, `subscribe(function)`.

        This property also works before the runtime is entered and after it has closed.
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
        """Subscribe to every transition and notice from now on; before entering, also to those of the recovery.

        The filters (job, workstream, task, entity, kind, event, severity, from_state, to_state) take one or several
        values, and an event must match all filters; a severity also matches graver ones. `notices=False` excludes
        notices. `size` limits the buffer of a slow reader, in events. Raises TypeError and ValueError for invalid
        filters and sizes. A state of which no lifecycle is known gives a warning: a later job may bring its lifecycle.
        The subscription ends when the runtime closes; if the runtime breaks, the subscription raises RuntimeClosed with
        the cause.
        """
        from .observation.filters import unknown_state, wanted_by  # noqa: PLC0415 - many programs subscribe to nothing

        self._services.check_here("a runtime")
        wanted = wanted_by(filters, notices=notices)
        if problem := unknown_state(filters, self._services.lifecycles.states):
            warn(f"no lifecycle that is known here has this state: {problem}", stacklevel=2)
        return self._services.hub.subscribe(wanted, size=size)

    async def kept_notices(
        self, *, about: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[NoticeRecord]:
        """The notices above info in the journal, also those of earlier runtimes, the newest first.

        about: an entity id (for example an actor's name), or a job id, which also selects the notices about everything
        in that job. since: UTC epoch seconds. Equal notices that came soon after one another are one notice with a
        `count`, which may be a second old. Raises JournalError if the journal cannot be read, RuntimeClosed.
        """
        self._services.status.check_open_here()
        about = None if about is None else plain_text(about, "what notices are about")
        await self._services.host.settled(_SETTLE)
        asked = partial(self._services.journal.reader.notices, about=about, since=since, limit=limit)
        found: list[NoticeRecord] = await self._services.read(asked)
        return found


def services_of(runtime: Runtime) -> RuntimeServices:
    """The services of a runtime, for the board, the command line and collectors."""
    return runtime._services  # pyright: ignore[reportPrivateUsage]
