"""What a runtime is made of: its settings, and how its parts are made, opened and told of one another.

Rules
-----
- What was opened goes onto `_closing`, so that it is closed in the reverse order, however far opening came.
- Nothing runs before all parts are there: what the journal holds is loaded, and the recovery is the first input.
- Entering, keeping and leaving is `opening.py`'s; `runtime/testing` makes some of the parts others.
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from ...actors.jobs.job import JobActor
from ...actors.kernel.restore import Loaded, make_kernel
from ...actors.messages.commands import StartWorkers
from ...actors.messages.inputs import (
    RECOVER,
    Adopt,
    InboxTaken,
    ProcessStarted,
    WorkerBeat,
    WorkerDied,
    WorkerFits,
    WorkerUnfit,
)
from ...actors.messages.notices import Notice
from ...actors.spec.model import ON_CLUSTER, Alert, Defaults, HealthChecks, LifecycleName, Tool, Worker, Workstream
from ...actors.spec.names import node_of
from ...actors.spec.times import Duration, seconds
from ...actors.user_code import called, is_a, plain_text, shown
from ...actors.users.dead_letters import DeadLetters
from ...actors.users.strategy import Supervision
from ...actors.workers.health import patience
from ...actors.workers.tool_limits import RUNTIME
from ...machines.adapt.lifecycle import Lifecycle
from ...machines.machine import answers_later
from ..cluster.handover import HandingOver
from ..cluster.machines import MachinesAbroad
from ..cluster.membership import Membership
from ..cluster.node_context import Ask, NodeContext
from ..cluster.tools import ToolsService
from ..commands.idempotency import KEEP_REQUESTS, Requests
from ..commands.inbox import Taker
from ..commands.submissions import Submissions
from ..dispatch.abandoned_threads import Left
from ..dispatch.clock import Clock, Ids, SystemClock, TimeOrderedIds
from ..dispatch.dispatcher import Dispatcher
from ..dispatch.runners import RunnerPool
from ..dispatch.threads import GivenUp, Lane, at_once
from ..dispatch.waker import Home
from ..dispatch.watchdog import Watchdog
from ..engines.command.engine import CommandEngine
from ..engines.context import TaskContext
from ..engines.contract import Engine, ProcessInfo
from ..engines.identity import Origin
from ..engines.loop import LoopEngine
from ..engines.os_processes import ASKED_BY
from ..engines.process.engine import ProcessEngine
from ..engines.process.wire import Unwanted, Want
from ..engines.thread import ThreadEngine
from ..execution.calls import Caller
from ..execution.child_jobs import Children
from ..execution.orphans import kill_leftovers
from ..execution.outputs import Outputs, beside
from ..execution.worker_requests import Asking, Errands
from ..functions.lifecycles import Finder, by_name, check_loaded, known_by
from ..functions.registry import Bodies, prepare
from ..handles.jobs import JobHandle, Recovered
from ..handles.machines import Machines
from ..handles.outcomes import outcome_of
from ..handles.workers import check_workers, default_workers, plain_worker
from ..host import Host
from ..journal import open_journal
from ..journal.cluster import LeaseLost, lease_of
from ..journal.contract import Entry, Journal, JournalError
from ..journal.location import file_of, is_address
from ..observation.events import UNREAD, EventBus
from ..text.secrets import Secrets, Source
from .draining import archive_ended

if TYPE_CHECKING:
    from ..engines.ray.cluster import RayCluster
    from ..engines.ray.engine import RayEngine
    from ..journal.jsonl import JsonlLog
    from ..runtime import Runtime

T = TypeVar("T")

DRAIN_DEADLINE = 30.0
MOST_GIVEN = 10_000
"""Workers, and alerts, that a runtime is given."""
DATABASE_OUTPUTS = "callboard.output"
"""Where the output of commands goes, in the present folder, where the journal is in a database."""
_SHORTEST_LEASE = 5.0  # seconds without a word of the runtime after which a worker on Ray may end itself
QUESTIONS = 8
OWN_QUESTIONS = 4
"""How many questions to the journal may be asked at a time, by the application, and by the runtime itself."""
CLOSING = 5.0
"""Seconds that each step of closing may take once nothing is waited for any more."""
HOPELESS = 0.5
"""The same, where the journal could not be written for as long before."""
REST = 2.0
"""Seconds that leaving may take beyond the drain deadline, and the time that what runs has to go, where the journal
cannot be written or does not answer: all of its steps together, each at most half of what is left."""
SHORTEST_STEP = 0.1
"""Seconds that each of them has nevertheless."""


class RuntimeParts(ABC):
    """A runtime that nobody has entered yet."""

    _home: Home | None = None  # the event loop that it was opened on
    _questions: Lane
    _own_questions: Lane
    _lease_questions: Lane
    _group: TaskGroup  # of all its tasks
    _hopeless = False  # the journal has not answered in time while the runtime was left
    _leave_by: float | None = None  # by the event loop's clock: when it should be left, with a journal that is no help
    _engines_over: float | None = None  # the same of its engines
    _cluster_away: str | None = None  # why the Ray cluster is not connected, where it was
    _handing: HandingOver | None = None
    _running = False
    _open = False
    _settled = False  # it has stopped in good order, and all that it did is durable
    _taking_inbox = False  # what was put there while nobody ran the journal

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
        if not (journal is None or is_a(journal, (str, Path)) or _has_entries(journal)):
            raise TypeError(f"the journal is a path, a Journal or None, not {shown(journal, 60)}")
        if not is_address(journal) and (node is not None or lease is not None):
            raise ValueError(
                "node and lease are settings of a journal that several runtimes share, which is named by its address, "
                f"as postgresql://HOST/DATABASE; {'this one' if journal is None else repr(str(journal))} has one owner"
            )
        self._target = _taken_once(journal)
        self._node = None if node is None else plain_text(node, "the name of a node")
        self._lease = None if lease is None else lease_of(span("lease", lease))
        self._workers = tuple(_so_many(workers, "workers")) if workers is not None else default_workers()
        self._defaults = defaults or Defaults()
        self._tools = dict(tools or {})
        self._alerts = _so_many(alerts, "alerts")
        self._health_checks = health_checks or HealthChecks()
        self._jsonl_path = None if jsonl is None else file_of(jsonl)
        self._log: JsonlLog | None = None
        self._outputs = _outputs_of(self._target, outputs)
        self._secrets = Secrets(secrets)
        self._drain_deadline = span("drain_deadline", drain_deadline)
        self._keep_requests = span("keep_requests", keep_requests)
        self._supervision = supervision
        self._ray = ray
        self._takes_signals = signals
        self._clock = clock or SystemClock()
        self._random = random or Random()  # noqa: S311 - jitter, not secrets
        self._ids = ids or TimeOrderedIds(self._clock, self._random)
        self.bodies = Bodies()
        self._find = Finder()
        self.lifecycles = known_by(lifecycle, lifecycles, self._find)
        self._handles: dict[str, WeakSet[JobHandle]] = {}  # of the living jobs, by their ids
        self._engines: dict[str, Engine] = {}
        self._closing = AsyncExitStack()
        self._archiving = False  # whether there may be jobs to be moved out of the journal
        self.left = Left()
        """For the command line: the threads that what was stopped has left behind."""
        self._broken: BaseException | None = None  # by what
        self.seat: NodeContext | None = None
        """For the handles: its place among the nodes of the journal, if several can share that."""
        self._membership: Membership | None = None
        self._shared_tools: ToolsService | None = None
        self._arriving: dict[str, int] = {}  # jobs that are being taken over: up to which number others told of them
        self.journal: Journal
        self._host: Host
        self._dispatcher: Dispatcher
        self._requests: Requests
        self._machines: Machines
        self._hub, self._dead_letters = EventBus(), DeadLetters()
        self._recovered = Recovered()
        """The jobs that were found living when the runtime was entered, and those that it has taken over since."""
        self._on_trouble: Callable[[Notice], object] | None = None

    @property
    def on_trouble(self) -> Callable[[Notice], object] | None:
        """Who is told of trouble, on the event loop: of every `Notice` of a severity above info. A plain function.

        Where nobody is set, and neither structlog nor `logging` is configured, those are lines on standard error. It
        may be set at any time; what comes with the opening is told to who was set before. Raises TypeError for what
        could not be told: nobody would wait for a coroutine, or run a generator.
        """
        return self._on_trouble

    @on_trouble.setter
    def on_trouble(self, told: Callable[[Notice], object] | None) -> None:
        if told is not None and (not callable(told) or answers_later(told)):
            raise TypeError(f"on_trouble is a plain function of a Notice, and not {shown(told)}")
        self._on_trouble = told
        if (host := getattr(self, "_host", None)) is not None:
            host.on_trouble = told

    @property
    @abstractmethod
    def _whole(self) -> Runtime:
        """Itself, with its verbs."""

    @abstractmethod
    def _break(self, cause: BaseException | None) -> None:
        """Something inside has ended that should not have: nothing goes on, and nobody may wait for it."""

    # -- opening -------------------------------------------------------------------------------------------------------

    async def _load(self, runners: RunnerPool, start: Callable[[Callable[[], Any]], object]) -> Taker:
        """Make all its parts, and load what the journal holds. Nothing runs yet; the recovery is the first input."""
        self._questions, self._own_questions, self._lease_questions = Lane(QUESTIONS), Lane(OWN_QUESTIONS), Lane(1)
        self._dispatcher = Dispatcher(
            clock=self._clock, runners=runners, supervision=self._supervision, dead_letters=self._dead_letters
        )
        self.journal = self._journal_of(self._target)
        self._host = self._new_host()
        self._host.on_trouble = self.on_trouble
        self._host.hub = self._hub
        self._hub.on_unlogged = self._host.log_failed
        self._host.secrets = self._secrets
        self._requests = Requests(self._host, self.journal, self.read, self._keep_requests)
        self._closing.callback(self._say_threads_left)  # last of all
        self._closing.callback(self._dispatcher.close)
        loaded = await self._open_journal()
        self._host.on_health = self._look_whether_lost
        if (cluster := self.journal.cluster) is not None:
            ask = Ask(self.read, self._read_shared, self.read_own, self.read_lease)
            self._be_seated(NodeContext(cluster, self._host, ask, start))
        self._archiving = loaded.archiving
        self._hub.told = loaded.last_seq
        self._machines = Machines(self._whole, self._host, start)
        if self.seat is not None:
            self._machines.abroad = MachinesAbroad(self.seat, self._machines)
        await self._machines.recall()
        self._submissions = Submissions(self._whole, self._host, self._ids, self._handle)
        self._children = Children(self._whole, self._host, runners)
        asking = await self._open_engines(runners)
        taker = self._taker = Taker(
            self._whole, self._host, self._requests, self.read_own, start, left_up_to=loaded.last_command
        )
        self._machines.on_spawn = taker.spawned
        taker.on_ring = self._rung
        if loaded.jobs:
            loaded.awaited = await taker.awaited()
        self._begin(loaded)
        await self._end_leftovers(loaded, {self._copy})  # once nothing refuses any more: who is refused kills nothing
        desk = self._host.caller.desk
        self._errands = {one.name: Errands(self._whole, self._children, desk, runners, one) for one in asking}
        return taker

    async def _catch_up(self, taker: Taker) -> None:
        """With the dispatcher running: recover, do what people have left in the inbox, start the workers."""
        self._running = self._open = True
        if self._shared_tools is not None:
            await self._shared_tools.begin()
        if self._membership is not None:
            await self._membership.join()
        self._taking_inbox = True
        await taker.take_left()  # what people said while nobody ran it comes before anything runs
        self._taking_inbox = False
        self._host.tell(InboxTaken())
        for job in self._host.kernel.jobs.values():
            self._recover(job)
        self._host.tell(StartWorkers(self._workers))
        await self._host.barrier()

    def _be_seated(self, seat: NodeContext) -> None:
        """Be one of the nodes of the journal. It is left once nothing runs any more, and all is durable."""
        self.seat = self._host.seat = seat
        member = self._membership = Membership(seat, self._host, self.adopt, self.bodies, self._find.look_beside)
        self._handing = HandingOver(seat, self._host)
        seat.lost = self._fenced
        self._host.on_health = member.look_now
        self._closing.push_async_callback(self._end, member.close)
        tools = self._shared_tools = ToolsService(seat, self._host)
        member.also.append(tools.renew)
        self._closing.push_async_callback(self._end, tools.close)

    async def _hand_over(self) -> bool:
        """While it drains: hand over to other nodes what may go. Returns whether there was something."""
        return self._handing is not None and await self._handing.look()

    def _rung(self) -> None:
        """The bell of the journal was rung."""
        if self._membership is not None:
            self._membership.rung()
        if self._shared_tools is not None:
            self._shared_tools.rung()

    def _look_whether_lost(self) -> None:
        """Of a journal with one owner: whether that is another one now."""
        health = self.journal.health
        if health.lost:
            self._fenced(LeaseLost(health.reason or "another runtime has taken over the journal"))

    def _fenced(self, lost: LeaseLost) -> None:
        """Others have taken over what runs here: end at once."""
        if self._broken is None:
            who = f"node {self._host.kernel.node!r}" if self.seat is not None else "this runtime"
            text = f"{who} was fenced, and stops all that it runs: {lost}"
            self._host.notice("lease_lost", "error", text, raised=lost)
        self._break(lost)
        if self._membership is not None:
            self._membership.lost(lost)

    async def adopt(self, loaded: Loaded) -> None:
        """For the node's service: go on with what it has taken over. Returns once that is durable.

        Decisions that lie in the inbox are heard before what they are about expires. Raises RuntimeClosed.
        """
        await self._end_leftovers(loaded, set())
        loaded.awaited = await self._taker.awaited()
        self._archiving |= loaded.archiving
        self._arriving = {job.id: loaded.last_seq for job in loaded.jobs}
        self._host.tell(Adopt(loaded=loaded))
        await self._host.barrier()
        self._arriving = {}
        for machine in loaded.machines:
            self._taker.spawned(machine.name)
        await self._taker.take()
        self._host.tell(InboxTaken())

    def _new_host(self) -> Host:
        return Host(self._dispatcher, self.journal, self.bodies, self._random)

    async def _end_leftovers(self, loaded: Loaded, copies: set[str]) -> None:
        """Kill what outlived the process before: this one's, or on this machine another node's."""
        if not (loaded.attempts or loaded.workers or loaded.hooks or loaded.asking):
            return  # whoever ran it before has left it in order
        (journal, copy), alone = self.journal.identity, self.journal.cluster is None
        copies = copies | {_of_node(node, copy) for one in loaded.attempts if (node := node_of(one.worker_id))}
        stays: list[ProcessInfo] = []
        await at_once(
            partial(kill_leftovers, by_number=alone, stays=stays.append),
            loaded.attempts, journal, copies, loaded.hooks, loaded.asking,
        )  # fmt: skip
        for one in stays:
            text = f"process {one.pid} that a killed runtime left cannot be killed, and what it does is run again"
            self._host.notice("leftover_stays", "error", text, pid=one.pid)

    def _watch_loop(self, runners: RunnerPool) -> None:
        """Have it told when the event loop does not turn."""
        threshold = seconds(self._health_checks.loop_blocked)
        if threshold:
            self._host.watchdog = Watchdog(
                threshold, post=self._dispatcher.call_threadsafe, busy=lambda: runners.runners > runners.idle,
                tell=self._host.tell_blocked,
            )  # fmt: skip
            self._closing.callback(self._host.watchdog.close)

    def _journal_of(self, target: str | Path | Journal | None) -> Journal:
        if target is not None and not isinstance(target, str | Path):
            return target
        return open_journal(target, node=self._node, lease=self._lease)

    async def _open_journal(self) -> Loaded:
        log: JsonlLog | None = None
        if self._jsonl_path is not None:
            from ..journal.jsonl import JsonlLog  # noqa: PLC0415 - most runtimes keep no such log

            log = JsonlLog(self._jsonl_path, trouble=self._log_unwritable)
            shared = self.journal.shared
            log.check_place(shared if isinstance(shared, Path) else None)
            self._closing.callback(log.close)

        def opening() -> Loaded:
            return self.journal.open(
                on_durable=self._host.journal_moved,
                call_threadsafe=self._dispatcher.call_threadsafe,
                after_commit=None if log is None else log.write,
            )

        loaded = await at_once(opening) if self.journal.durable_medium else opening()
        self._closing.push_async_callback(self._shut_journal)
        if log is not None:
            self._log = log
            await at_once(self._open_log, log)
        return loaded

    def _open_log(self, log: JsonlLog) -> None:
        from ..journal.sqlite.opening import note_log  # noqa: PLC0415 - as above

        log.open(self.journal.own)
        if self.journal.shared is not None:
            note_log(self.journal.shared, log.path)

    def _log_unwritable(self, path: Path, text: str) -> None:
        """Called in the journal's writer."""
        notice = partial(self._host.notice, "log_unwritable", "warning", text, path=str(path))
        self._dispatcher.call_threadsafe(notice)

    @property
    def _patience(self) -> float:
        """Seconds that a step of closing may take: less where it is for a journal that cannot be written for long."""
        health = self.journal.health
        if health.ok and not self._hopeless:
            return CLOSING
        failing = CLOSING if health.since is None else self._host.now() - health.since
        step = min(CLOSING, max(HOPELESS, CLOSING - failing))
        left = REST if self._leave_by is None else self._leave_by - anyio.current_time()
        return max(SHORTEST_STEP, min(step, left / 2))

    @contextmanager
    def _cut_off(self, limit: float) -> Generator[None]:
        """Have nobody wait longer than so many seconds from now for an answer of the journal's."""
        scope = anyio.CancelScope()
        self._group.start_soon(self._cut_after, limit, scope)
        try:
            yield
        finally:
            scope.cancel()

    async def _cut_after(self, limit: float, scope: anyio.CancelScope) -> None:
        with scope:
            await anyio.sleep(limit)
            self._hopeless = True
            if self.journal.cluster is not None:
                self.journal.cluster.cut()
            for lane in (self._questions, self._own_questions, self._lease_questions):
                lane.give_up()

    async def _end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close what asks the journal."""
        with self._cut_off(self._patience):
            await close()

    async def _close_engine(self, engine: Engine) -> None:
        """All engines together have `CLOSING` seconds."""
        now = anyio.current_time()
        if self._engines_over is None:
            self._engines_over = now + CLOSING
        await engine.close(max(0.0, self._engines_over - now))

    async def _shut_journal(self) -> None:
        deadline = self._drain_deadline
        if self._hopeless or not self.journal.health.ok:
            deadline = min(deadline, self._patience)
        if isinstance(self._broken, LeaseLost):
            deadline = 0.0  # nothing is taken from it any more
        if self._archiving and self._settled and (shared := self.journal.shared) is not None:
            if self._log is not None:
                await at_once(self._log.catch_up)
            await archive_ended(self._host, shared, max(deadline, CLOSING))
        await self._hub.keep(self._read_at_last, self._patience)
        self._host.end_keeping()
        shut, whole = self.journal.shut, False
        if self.journal.durable_medium:
            limit = deadline + self._patience
            with self._cut_off(limit), anyio.move_on_after(limit + HOPELESS):
                whole = await at_once(shut, deadline, abandon=True)
        else:
            whole = shut(deadline)
        if not whole and not isinstance(self._broken, LeaseLost):  # else it was told of
            self._say_incomplete()

    def _say_threads_left(self) -> None:
        """Tell of threads that the end of the program waits for, and that nothing can end."""
        left = self.left.threads() if self.left.stopped else []
        if left:
            text = (
                f"a thread still runs, of {', '.join(left)}, and nothing can end it: asyncio, trio or Python waits for "
                "it before the program ends. Write what blocks as a plain function, without `await`, or give it a "
                "limit of its own (docs/embedding.md)"
            )
            self._host.notice("threads_left", "warning", text, left=left)

    def _say_incomplete(self) -> None:
        reason = self.journal.health.reason or "the writes have not ended in time"
        text = (
            f"the last of what was done is not in the journal, which was left without it: {reason}. What was told as "
            "done is kept; the next start takes the rest for interrupted"
        )
        self._host.notice("journal_incomplete", "error", text, reason=reason)

    async def _open_engines(self, runners: RunnerPool) -> Sequence[Asking]:
        """Open them; returns those by which bodies ask something of the runtime."""
        monotonic = self._clock.monotonic
        command = CommandEngine(started=self._process_started, delayed=self._process_delayed, clock=monotonic)
        process = ProcessEngine(
            started=self._process_started, delayed=self._process_delayed, alive=self._worker_alive,
            died=self._worker_died, asked=partial(self._asked, "process"), environment=self._marks, clock=monotonic,
            start_limit=seconds(self._health_checks.start_timeout), patience=patience(self._health_checks),
        )  # fmt: skip
        here = LoopEngine(runners, clock=monotonic), ThreadEngine(clock=monotonic, left=self.left)
        for engine in (*here, process, command):
            await self._open_engine(engine)
        if self._ray is not None or any(worker.engine == ON_CLUSTER for worker in self._workers):
            ray = self._ray_engine()
            await self._open_engine(ray)
            return process, ray
        return (process,)

    async def _open_engine(self, engine: Engine) -> None:
        await engine.open()
        self._closing.push_async_callback(self._close_engine, engine)
        self._engines[engine.name] = engine

    def _ray_engine(self) -> RayEngine:
        from ..engines.ray.cluster import RayCluster  # noqa: PLC0415 - few runtimes need it
        from ..engines.ray.engine import RayEngine  # noqa: PLC0415

        ray, health = self._ray, self._health_checks
        return RayEngine(
            RayCluster(address=ray) if isinstance(ray, str) else ray, spec_of=self._worker_spec,
            journal=f"{self.journal.identity.id} {self._copy}" if self.journal.durable_medium else None, at_once=True,
            alive=self._worker_alive, died=self._worker_died, unfit=self._worker_unfit, fits=self._worker_fits,
            asked=partial(self._asked, "ray"), away=self._cluster_is_away, environment=self._marks,
            lease=max(_SHORTEST_LEASE, seconds(health.interval) * (health.misses + 1)), clock=self._clock.monotonic,
        )  # fmt: skip

    def _begin(self, loaded: Loaded) -> None:
        host = self._host
        outputs = self._new_outputs()
        self._find.look_beside(loaded)
        check_loaded(loaded, self.lifecycles)
        self._workers = tuple(map(plain_worker, self._workers))
        check_workers(self._workers, self.lifecycles)
        self._workers = tuple(by_name(worker, self.lifecycles) for worker in self._workers)
        said = Workstream(RUNTIME, tools=self._tools, alerts=self._alerts)
        said = prepare(
            said, self.bodies, durable=self.journal.durable_medium, source="the runtime's settings",
            lifecycles=self.lifecycles,
        )  # fmt: skip
        host.kernel = make_kernel(
            host, self._defaults, loaded, tools=said.tools, alerts=said.alerts, health=self._health_checks,
            lifecycles=self.lifecycles, node="" if self.journal.cluster is None else self.journal.cluster.name,
        )  # fmt: skip
        host.caller = Caller(
            host.kernel, self._engines, self.bodies, outputs=outputs, tell=host.tell, notice=host.notice,
            timers=self._dispatcher.timers, marks=self._marks, secrets=host.secrets, children=self._children,
            durable=self.journal.durable_medium,
        )  # fmt: skip
        host.on_job_over, host.on_job_here = self._job_over, self._job_here
        host.begin_keeping()
        for job in host.kernel.jobs.values():
            self._job_here(job)
        host.later(RECOVER)  # where commands of people are put: those that lie in the inbox find all recovered
        self.journal.append(Entry([], [], pruned_at=host.now(), tidy=True))  # with what the recovery writes

    @property
    def _marks(self) -> dict[str, str]:
        """What all carries in its environment that is started for this journal, to be found again."""
        return {**Origin.here(self.journal.identity.id, self._copy).variables, ASKED_BY: ""}

    @property
    def _copy(self) -> str:
        """Which copy of its journal this runtime owns: of a database, its node there."""
        cluster, copy = self.journal.cluster, self.journal.identity.copy
        return copy if cluster is None else _of_node(cluster.name, copy)

    def _new_outputs(self) -> Outputs:
        if self._outputs is not None:
            return self._outputs
        return Outputs(Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="callboard-"))))

    def _worker_alive(self, worker: str, incarnation: int, tokens: tuple[int, ...], busy: bool) -> None:
        self._host.later(WorkerBeat(worker, incarnation, tokens, busy))

    def _worker_died(self, worker: str, incarnation: int, reason: str) -> None:
        self._host.tell(WorkerDied(worker, incarnation, reason))

    def _asked(self, engine: str, context: TaskContext, want: Want | Unwanted) -> None:
        self._dispatcher.call_threadsafe(self._errands[engine].take, context, want)

    def _worker_unfit(self, worker: str, incarnation: int, reason: str) -> None:
        self._host.tell(WorkerUnfit(worker, incarnation, reason))

    def _worker_fits(self, worker: str, incarnation: int) -> None:
        self._host.tell(WorkerFits(worker, incarnation))

    def _cluster_is_away(self, reason: str | None) -> None:
        """The Ray cluster is lost, or (None) is back."""
        if reason is None:
            self._host.notice("cluster_back", "info", "the Ray cluster is connected again; its workers start anew")
        else:
            text = f"{reason}. What ran there is lost, and runs again once the cluster is back, which is looked for"
            self._host.notice("cluster_away", "error", text, reason=reason)
        self._cluster_away = reason

    def _worker_spec(self, name: str) -> Worker:
        return self._host.kernel.named[name].spec

    def _process_delayed(self, token: int, error: Exception) -> None:
        self._host.caller.shortages.began(token, error)

    def _process_started(self, token: int, info: ProcessInfo) -> None:
        self._host.caller.shortages.over(token)
        if token not in self._host.caller.unasked:  # the kernel knows no such token
            self._host.tell(ProcessStarted(token, info.pid, info.started))

    def check_here(self, what: str) -> None:
        """For the handles: refuse what is used in another thread, or on another event loop. Raises RuntimeError."""
        if self._home is not None:
            self._home.check(what)

    async def read(self, question: Callable[..., Any], *args: Any) -> Any:
        """Ask the journal something, where that may block in a thread. Who is cancelled waits no longer, whether the
        journal answers or not: what is asked goes on in its thread, and its answer is nobody's.
        """
        if self.journal.durable_medium:
            return await self._in_lane(self._questions.unless_cancelled, question, *args)
        return question(*args)

    async def _read_shared(self, question: Callable[..., Any], *args: Any) -> Any:
        """The same for what the application has to ask of a database that nodes share."""
        if self.journal.durable_medium:
            return await self._in_lane(self._own_questions.unless_cancelled, question, *args)
        return question(*args)

    async def read_own(self, question: Callable[..., Any], *args: Any) -> Any:
        """Ask what the runtime itself has to know: no question to the journal holds it up. It is waited for, whoever is
        cancelled: what closes the runtime closes nothing of which it is still asked.
        """
        if self.journal.durable_medium:
            return await self._in_lane(self._own_questions.patiently, question, *args)
        return question(*args)

    async def read_lease(self, question: Callable[..., Any], *args: Any) -> Any:
        """The same for the lease of this node: no other question at all holds it up."""
        if self.journal.durable_medium:
            return await self._in_lane(self._lease_questions.patiently, question, *args)
        return question(*args)

    async def _in_lane(self, ask: Callable[..., Awaitable[Any]], question: Callable[..., Any], *args: Any) -> Any:
        self.check_here("a runtime")
        try:
            return await ask(question, *args)
        except GivenUp:
            raise JournalError("The journal was asked for too long while the runtime was left.") from None

    async def _read_at_last(self, question: Callable[[], T]) -> T:
        """The same for what is asked before the journal closes: who waits for it has a limit, and leaves it then."""
        if self.journal.durable_medium:
            try:
                return await self._own_questions.unless_cancelled(question)
            except GivenUp:
                raise JournalError(UNREAD) from None
        return question()

    def _handle(self, actor: JobActor) -> JobHandle:
        handle = JobHandle(self._whole, actor.record, actor)
        if actor.over:
            self._settle(handle, actor)
        else:
            self._handles.setdefault(handle.id, WeakSet()).add(handle)
        return handle

    def _job_here(self, actor: JobActor) -> None:
        """It was found living, or taken over."""
        self._recovered.add(self._handle(actor))
        if self.seat is not None:
            for handle in self.seat.handles_of(actor.record.id):
                handle.come_home(actor)
                self._handles.setdefault(handle.id, WeakSet()).add(handle)

    def _recover(self, job: JobActor) -> None:
        """It was found living, or the inbox had it run again."""
        if self._recovered.lacks(job.record.id):
            self._recovered.add(self._handle(job))

    def _job_over(self, actor: JobActor) -> None:
        self._archiving |= actor.record.archive
        if self._taking_inbox:
            self._recover(actor)  # it may have been refused as soon as it was run again
        for handle in list(self._handles.pop(actor.record.id, ())):
            self._settle(handle, actor)
        self._recovered.over(actor.record.id)

    @property
    def recovered(self) -> list[JobHandle]:
        """The jobs that an earlier process, or another node, left unfinished, and that go on here; and those that a
        command left in the inbox had run again. Of those that have ended meanwhile, the last hundred.
        """
        return list(self._recovered.handles.values())

    def _let_go(self, cause: BaseException | None) -> None:
        """Tell whoever waits for a job that nothing comes any more; `cause` is what the runtime broke by."""
        for handles in self._handles.values():
            for handle in list(handles):
                handle.settle(None, cause)

    @staticmethod
    def _settle(handle: JobHandle, actor: JobActor) -> None:
        tasks = [] if actor.stream is None else [task.record for task in actor.stream.tasks]
        handle.settle(outcome_of(actor.record, tasks))


def _so_many(given: Iterable[T], what: str) -> list[T]:
    """All of what may be given by an iterator, which need not end. Raises ValueError for more than there may be."""
    found = list(islice(given, MOST_GIVEN + 1))
    if len(found) > MOST_GIVEN:
        raise ValueError(f"a runtime is given at most {MOST_GIVEN:,} {what}")
    return found


def _has_entries(journal: object) -> bool:
    """Whether something may be a journal: it has code of its own, which may raise whatever it likes."""
    try:
        return called(hasattr, journal, "append") and called(hasattr, journal, "flush")
    except Exception:
        return False


def _taken_once(journal: str | Path | Journal | None) -> str | Path | Journal | None:
    """What is the journal, wherever the program goes: a file's path is taken now."""
    return file_of(journal) if isinstance(journal, str | Path) and not is_address(journal) else journal


def _outputs_of(target: str | Path | Journal | None, outputs: str | Path | None) -> Outputs | None:
    """Where outputs go; None where nobody keeps them longer than the runtime."""
    if outputs is not None:
        return Outputs(file_of(outputs))
    if isinstance(target, Path):
        return Outputs(*beside(target))
    if isinstance(target, str):
        here = file_of("")
        return Outputs(here / DATABASE_OUTPUTS, root=here)
    return None


def _of_node(node: str, copy: str) -> str:
    return f"{node} of {copy}"


def span(name: str, value: Duration) -> float:
    """A duration of a runtime's settings in seconds. Raises ValueError for what is none."""
    try:
        return seconds(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
