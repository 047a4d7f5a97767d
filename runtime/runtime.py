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

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeVar, Unpack, cast, overload

from ..actors.jobs.job import JobActor
from ..actors.machines.kind import MachineActor
from ..actors.messages.commands import Approve
from ..actors.messages.inputs import Registered
from ..actors.messages.notices import NoticeRecord
from ..actors.records.entities import JobRecord, RequestRecord
from ..actors.records.transition import Transitioned
from ..actors.spec.model import Worker, Workstream
from ..actors.tasks.task import TaskActor
from ..actors.user_code import is_a, plain, plain_text, shown
from ..actors.users.actor import Actor, SpawnOptions
from ..actors.users.dead_letters import DeadLetters
from ..actors.users.ref import Ref
from .cluster.remote import EVERYTHING, RemoteJob, look, pending_elsewhere
from .commands.author import name_of, reason_of
from .commands.idempotency import Requests
from .commands.submissions import Existing, Submitted, asked_of
from .execution.outputs import Found
from .functions.lifecycles import by_name
from .handles.approvals import PendingApproval, pending_of, with_teams
from .handles.breakers import BreakerHandle
from .handles.jobs import JobHandle
from .handles.machines import MachineRef
from .handles.outcomes import closed, outcome_of
from .handles.references import Away, EntityRef, Owner, meanings_of, of_job
from .handles.workers import WorkerHandle, check_worker, not_there, start
from .journal.cluster import LeaseLost, Node
from .journal.contract import Health
from .lifespan.draining import hooks_over
from .lifespan.opening import RuntimeLife
from .observation.events import BUFFER, EventBus, Past, Subscription
from .observation.filters import Event, Filters, wanted_by
from .observation.metrics import Metrics, snapshot

F = TypeVar("F", bound=Callable[..., Any])
_SETTLE = 1.0
"""Seconds that a question about what was just noticed waits for the journal."""


class Runtime(RuntimeLife):
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

    @property
    def _whole(self) -> Runtime:
        return self

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
        self.bodies.register(func, name, aliases)
        if self._open:  # in whatever thread that imports a module
            self._dispatcher.call_threadsafe(self._registered)
        return func

    def _registered(self) -> None:
        self._host.tell(Registered())
        self._host.caller.look_again()
        if self._membership is not None:
            self._membership.registered()

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
        return (await self.submitted(workstream, id=id, by=by, existing=existing, request_id=request_id)).job

    async def submitted(
        self,
        workstream: Workstream,
        *,
        id: str | None = None,  # noqa: A002 - the field's word
        by: str | None = None,
        existing: Existing = "join",
        request_id: str | None = None,
    ) -> Submitted:
        """For the board: the same, and whether the job was made by it."""
        self._check_open_here()
        check_type(workstream, Workstream, "submit takes a Workstream")
        asked = asked_of(id, by, existing, request_id)
        return await self._submissions.submit(workstream, asked)

    async def submit_child(
        self, parent: str, task: str, workstream: Workstream, name: str, request_id: str | None = None
    ) -> JobHandle:
        """For the board: take a job as the child of a task that runs. Raises LookupError, and as a body's submit."""
        actor = self.living(parent)
        stream = None if actor is None else actor.stream
        if stream is None or task not in stream.names:
            raise LookupError(f"job {parent!r:.80} has no task {task!r:.80} that runs")
        running = stream.tasks[stream.names[task]]
        context = self._host.caller.context_of(running, running.record.token)
        return (await self._children.submit(context, workstream, name, request_id)).job

    async def job(self, job_id: str) -> JobHandle:
        """The handle of a job, living or ended. Raises LookupError if there is none."""
        self._check_open_here()
        job_id = plain_text(job_id, "a job's id")
        actor = self._host.kernel.jobs.get(job_id)
        if actor is not None:
            return self._handle(actor)
        record = await self.read(self.journal.reader.job, job_id)
        if record is None:
            for archived in await self.read(self.journal.reader.archived, job_id):
                raise LookupError(f"job {job_id!r} ({archived.state}) was archived in {archived.file}")
            raise LookupError(f"there is no job {job_id!r} in this journal")
        if record.finished_at is None and self.seat is not None:
            seen = await self.read(look, self.journal.reader, job_id)
            actor = self._host.kernel.jobs.get(job_id)  # it may have been taken over meanwhile
            if actor is not None:
                return self._handle(actor)
            if seen.job.finished_at is None:
                return RemoteJob(self, self.seat, seen)
            record = seen.job
        tasks = await self.read(self.journal.reader.tasks, record.stream)  # of its last run; none if it never began
        return JobHandle(self, record, None, outcome_of(record, tasks))

    def handed_over(self, job_id: str) -> bool:
        """For the handles: whether a job that ran here is another node's by now, since this one drains."""
        return self.seat is not None and self.draining and job_id not in self._host.kernel.jobs

    def living(self, job_id: str) -> JobActor | None:
        """The actor of a job that has not ended, or not durably yet."""
        actor = self._host.kernel.jobs.get(job_id)
        return None if actor is None or actor.over else actor

    async def ended(self, job_id: str) -> JobRecord | None:
        """The record of a job that has ended, durably; None while it lives, also on another node. Raises LookupError if
        there is none, but for a child's id: that may be submitted yet.
        """
        actor = self._host.kernel.jobs.get(job_id)
        if actor is not None and actor.ended:
            await self._host.barrier()  # its end is durable then
        if self.living(job_id) is not None:
            return None
        record: JobRecord | None = await self.read(self.journal.reader.job, job_id)
        if record is None and "/" not in job_id:
            raise LookupError(f"there is no job {job_id!r} in this journal")
        return None if record is not None and record.finished_at is None else record

    async def record_of(self, job_id: str) -> JobRecord | None:
        """The record of a job: of a living one its present one, of an ended one its last, which is durable; None if
        there is none.
        """
        actor = self._host.kernel.jobs.get(job_id)
        if actor is not None and actor.ended:
            await self._host.barrier()  # its end is durable then
        living = self.living(job_id)
        if living is not None:
            return living.record
        record: JobRecord | None = await self.read(self.journal.reader.job, job_id)
        return record

    async def settled(self, limit: float) -> bool:
        """For the board: wait until what is in memory now is durable; False where the journal cannot be written, or
        takes over `limit` seconds. Raises RuntimeClosed.
        """
        self._check_open_here()
        return await self._host.settled(limit)

    async def hooks_over(self) -> None:
        """For the command line: wait until no hook, alert or callback runs; each has a limit. Raises RuntimeClosed."""
        self._check_open_here()
        await hooks_over(self._host)

    async def caught_up(self) -> None:
        """Wait until the events that were left for machines, while nobody ran the journal, have been done.

        What other programs leave is taken once the runtime is open: commands of people before it opens, events of
        machines from then on, oldest first, while the program runs. Those for a machine that this program has not got
        are not waited for. Raises RuntimeClosed.
        """
        self._check_open_here()
        await self._taker.caught_up()
        self._check_open_here()

    def now(self) -> float:
        """For the board: its clock's UTC epoch seconds."""
        return self._host.now()

    @property
    def draining(self) -> bool:
        """For the board: whether it has been told to drain."""
        return self._host.kernel.drain_began is not None

    def output_of(self, task: TaskActor) -> Found:
        """For the board: the file for the output of a task's present attempt, which may not be there yet."""
        outputs = self._host.caller.outputs
        return Found(outputs.place(task), outputs.root)

    def output_at(self, kept: str) -> Found:
        """For the board: where the output is whose path is in a record."""
        return self._host.caller.outputs.found(kept)

    async def children_of(self, job_id: str) -> list[JobHandle]:
        """For the handles: the child jobs of a job, living and ended, oldest first."""
        found = await self.read(self.journal.reader.children, job_id)
        return [await self.job(record.id) for record in found]

    @property
    def commands(self) -> Requests:
        """For the handles: what gives the kernel their commands. Raises RuntimeClosed."""
        self._check_open_here()
        return self._requests

    async def with_teams(self, key: int, message: Approve) -> Approve:
        """For the handles: an approval of an entity, by its key, with those of its teams that who approves is in."""
        return await with_teams(message, self._host.kernel.entities.get(key), self.bodies, self._host)

    def in_flight(self, request_id: str) -> bool:
        """For the board: whether the command with this key is on its way."""
        return self._requests.in_flight(request_id)

    async def kept_of(self, request_id: str) -> bytes | None:
        """For the board: what is kept of a command that has taken effect under this key, an encoded `Acknowledged`."""
        if (kept := self._requests.answers.get(request_id)) is not None:
            return kept
        record: RequestRecord | None = await self.read(self.journal.reader.request, request_id)
        return None if record is None else bytes(record.answer)

    def new_id(self) -> str:
        """For the board: the key of a command that was given none."""
        return self._ids.new()

    def approvals(self) -> list[PendingApproval]:
        """What waits for people now, of all jobs that this runtime runs: for whom, and until when."""
        self._check_open()
        return [one for job in self._host.kernel.jobs.values() for one in pending_of(job)]

    async def approvals_elsewhere(self) -> list[PendingApproval]:
        """For the board: the same of the jobs that other nodes run (the newest thousand), as the journal has it."""
        if self.seat is None:
            return []
        here = frozenset(self._host.kernel.jobs)
        found: list[PendingApproval] = await self.read(pending_elsewhere, self.journal.reader, here)
        return found

    async def is_elsewhere(self, job_id: str) -> bool:
        """For the board: whether a job lives on another node, or is nobody's yet."""
        if self.seat is None or job_id in self._host.kernel.jobs:
            return False
        record: JobRecord | None = await self.read(self.journal.reader.job, job_id)
        return record is not None and record.finished_at is None

    def called(self, name: str) -> str:
        """For the board: the name of a worker or breaker of this node, of that or of `NAME@NODE`."""
        node, name = self._host.kernel.node, plain_text(name, "the name of a worker or a tool")
        return name.removesuffix(f"@{node}") if node else name

    def workers(self) -> list[WorkerHandle]:
        """All workers, in the order of their first start; those that have ended too."""
        self._check_open()
        return [WorkerHandle(self, self._host, name) for name in self._host.kernel.named]

    def worker(self, name: str) -> WorkerHandle:
        """A worker by its name, of this node. Raises LookupError if there is none; one of capacity n on processes is n.

        Where the journal is shared, `NAME@NODE` is its name as well.
        """
        self._check_open()
        name = self.called(name)
        if name not in self._host.kernel.named:
            raise not_there(name, self._host)
        return WorkerHandle(self, self._host, name)

    def former_worker(self, name: str) -> WorkerHandle:
        """For commands, which may be given again once there is no worker of that name any more: its handle."""
        self._check_open()
        return WorkerHandle(self, self._host, self.called(name))

    async def start_worker(
        self, worker: Worker, *, reason: str | None = None, by: str | None = None, request_id: str | None = None
    ) -> list[WorkerHandle]:
        """Start one more worker, or an ended one again; the next runtime starts it again only if it is given it, too.

        (`callboard resume` and `callboard serve` go on with the workers that there were, this one among them.)

        reason, by: why, and who says so; they are kept with its creation. request_id: as for `WorkerHandle.pause`.
        Returns its handle, or those of all that it stands for. Raises InvalidTransitionError if one of that name lives,
        SpecificationError for one that cannot be.
        """
        self._check_open_here()
        checked = check_worker(worker, self._engines, self.lifecycles)
        said = None if reason is None else reason_of(reason), None if by is None else name_of(by)
        await start(self, by_name(checked, self.lifecycles), said, request_id)
        return [WorkerHandle(self, self._host, one.name) for one in checked.each()]

    def breakers(self) -> list[BreakerHandle]:
        """The circuit breakers of all tools that any workstream has used, or that the runtime was given."""
        self._check_open()
        return [BreakerHandle(self, self._host, actor) for actor in self._host.kernel.breakers.values()]

    def breaker(self, tool: str) -> BreakerHandle:
        """The circuit breaker of a tool. Raises LookupError if there is none (yet)."""
        handles, tool = {handle.tool: handle for handle in self.breakers()}, self.called(tool)
        if tool not in handles:
            known = ", ".join(sorted(handles)) or "none"
            raise LookupError(f"no workstream has used a tool {tool!r} yet; there are breakers of: {known}")
        return handles[tool]

    async def breaker_of(self, tool: str) -> BreakerHandle:
        """For commands: the circuit breaker of a tool, which also another node may have used. Raises LookupError."""
        self._check_open_here()
        if self._shared_tools is None or self.called(tool) in self._host.kernel.breakers:
            return self.breaker(tool)
        known = await self.read(self.journal.reader.breakers)
        name = next((one.name for one in known if tool in {one.name, one.id}), None)
        if name is not None:
            await self._shared_tools.provide(name)
        return self.breaker(name or tool)

    # -- actors --------------------------------------------------------------------------------------------------------

    @overload
    def spawn(self, actor: MachineActor, *, name: str | None = None) -> MachineRef: ...
    @overload
    def spawn(
        self,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        *,
        name: str | None = None,
        **options: Unpack[SpawnOptions],
    ) -> Ref: ...
    def spawn(
        self,
        actor: MachineActor | type[Actor] | Callable[[], Actor] | Actor,
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
        self._check_open_here()
        if is_a(actor, MachineActor):
            if options:
                raise TypeError(f"a MachineActor takes no {', '.join(options)}: it has no mailbox of its own")
            return self._machines.spawn(cast("MachineActor", actor), self._ids.new() if name is None else plain(name))
        return self._dispatcher.spawn(cast("type[Actor]", actor), name=name, **options)

    def machine(self, name: str) -> MachineRef | EntityRef:
        """What events are sent to, by its name: a `MachineActor`, or what the runtime itself runs, if it is at hand.

        A machine is, if it lives here, or was made or has ended lately; a job ("JOB"), its workstream ("JOB@RUN") and a
        task ("JOB/TASK", "JOB@RUN/TASK"), if the job lives here; and so are this node's workers and breakers. Of
        several of one name the first in that order is meant; the handle of each has its own reference, `ref`. What else
        a file or a database may have of that name, `await runtime.machine_of(name)` finds: this one does not keep the
        event loop waiting. Raises LookupError.
        """
        self._check_open()
        name = plain_text(name, "the name of a machine")
        try:
            return self._machines.of(name)
        except LookupError:
            if (found := self._at_hand(name)) is not None:
                return found
            raise

    async def machine_of(self, name: str) -> MachineRef | EntityRef:
        """The same, ended or not, wherever it is: the journal is asked in a thread.

        Raises LookupError if there is none; JournalError where the journal cannot be read.
        """
        self._check_open_here()
        name = plain_text(name, "the name of a machine")
        try:
            return await self._machines.find(name)
        except LookupError:
            if (found := self._at_hand(name) or await self._somewhere(name)) is not None:
                return found
            raise

    async def machine_ref(self, name: str) -> MachineRef:
        """For commands and the board: the `MachineActor` of that name, and nothing else that has it."""
        self._check_open_here()
        return await self._machines.find(plain_text(name, "the name of a machine"))

    def _at_hand(self, name: str) -> EntityRef | None:
        """The reference of what lives here, by its name."""
        kernel = self._host.kernel
        for meant in meanings_of(name):
            if (actor := kernel.jobs.get(meant.job)) is not None:
                return of_job(self._handle(actor), meant)
        worker, _, incarnation = self.called(name).partition("#")
        actors = kernel.named.get(worker)
        if actors is not None and (not incarnation or actors.record.id == name):
            return WorkerHandle(self, self._host, worker).ref
        breaker = kernel.breakers.get(self.called(name))
        return None if breaker is None else BreakerHandle(self, self._host, breaker).ref

    async def _somewhere(self, name: str) -> EntityRef | None:
        """The same of a job that has ended, or that another node runs."""
        for meant in meanings_of(name):
            if await self.read(self.journal.reader.job, meant.job) is not None:
                return of_job(await self.job(meant.job), meant)
        return None

    def reference(self, kind: str, name: str, handle: Any, away: Away | None = None) -> EntityRef:
        """For the handles: what has their verbs as an actor. away: sends an event to the node that runs it."""
        owner = Owner(self, self._dispatcher, self._machines.start, self._host.kernel.count_refusal)
        return EntityRef(owner, kind, name, handle, away)

    def machines(self) -> list[MachineRef]:
        """The `MachineActor`s that have not ended, and those that have lately, in the order of their making."""
        self._check_open()
        return self._machines.all()

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it takes anything."""
        return self._open and self._broken is None

    @property
    def hub(self) -> EventBus:
        """Where transitions are told."""
        return self._hub

    def metrics(self) -> Metrics:
        """What it has done since it was entered, and what it looks like now. May be asked in any thread.

        Raises RuntimeClosed before it was entered.
        """
        self._check_entered()
        return snapshot(self._host, self._requests.asked, self._requests.hits, self._membership)

    @property
    def health(self) -> Health:
        """Whether the journal can write, and as a node of several holds its lease; if not, why not. Or why nothing can
        be started for now.

        Raises RuntimeClosed before it was entered.
        """
        self._check_entered()
        if self._broken is not None:
            lost = isinstance(self._broken, LeaseLost)
            return Health(
                ok=False, reason=str(self._broken if lost else closed("the runtime has closed", self._broken))
            )
        health, shortages = self.journal.health, self._host.caller.shortages
        if health.ok and self._membership is not None:
            health = self._membership.health
        if health.ok and shortages.reason is not None:
            return Health(reason=shortages.reason, since=shortages.since)
        if health.ok and self._cluster_away is not None:
            return Health(reason=self._cluster_away)
        return health

    @property
    def node(self) -> str | None:
        """Its name among the nodes that share the journal; None where it has that alone.

        Raises RuntimeClosed before it was entered.
        """
        self._check_entered()
        return None if self.seat is None else self.seat.name

    async def nodes(self) -> list[Node]:
        """All nodes of the journal that live, and those that were fenced or have left lately; none where it has one
        owner. Raises JournalError where the database is not reached, RuntimeClosed.
        """
        self._check_open_here()
        return [] if self.seat is None else await self.seat.ask(self.seat.cluster.nodes)

    @property
    def failed_hooks(self) -> int:
        """How many hooks have failed since it was entered. Each was told by `on_trouble`, or in the log.

        Raises RuntimeClosed before it was entered.
        """
        self._check_entered()
        return self._host.caller.failed_hooks

    @property
    def dead_letters(self) -> DeadLetters:
        """The messages to actors that were not handled: `count`, `counts` by reason, `newest()`, `subscribe(function)`.

        It is there before the runtime is entered, and after it was left.
        """
        return self._dead_letters

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
        self.check_here("a runtime")
        return self._hub.subscribe(wanted_by(filters, notices=notices), size=size)

    async def kept_notices(
        self, *, about: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[NoticeRecord]:
        """The notices above info that the journal keeps, also those of earlier runtimes, those told of last first.

        about: only those about the entity of that id, as an actor's name, or about what is in the job of that id.
        since: UTC epoch seconds. Those alike that came soon after one another are one, with their `count`, which may be
        a second old. Raises JournalError where it cannot be read, RuntimeClosed.
        """
        self._check_open_here()
        about = None if about is None else plain_text(about, "what notices are about")
        await self._host.settled(_SETTLE)
        asked = partial(self.journal.reader.notices, about=about, since=since, limit=limit)
        found: list[NoticeRecord] = await self.read(asked)
        return found

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """For the board: have a function that raises nothing called so many seconds from now, by this clock."""
        self._dispatcher.timers.arm(self._clock.monotonic() + delay, action)

    def past_of(self, job_id: str) -> Past:
        """For a job's events: what was told of it before now."""
        until = max(self._hub.told, self._arriving.get(job_id, 0))
        if self.seat is not None and job_id not in self._host.kernel.jobs:
            until = EVERYTHING  # its last numbers may be those of another node
        return Past(self.journal.reader, self.read, job_id, until=until)

    def tail(self, token: int) -> str:
        """The last line of what the command under a fencing token has written."""
        return self._host.caller.tail(token)


def check_type(value: object, kind: type, expected: str) -> None:
    """Refuse what is of another type. Raises TypeError."""
    if not is_a(value, kind):
        raise TypeError(f"{expected}, not {shown(value, 60)}")
