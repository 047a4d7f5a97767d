"""A runtime's access to this computer: engines and their events, files, processes of a killed runtime.

Rules
-----
- Each event of an engine becomes an input of the kernel. `WorkerRequests` answers what bodies request from the runtime.
- `runtime/testing` replaces the platform by one that starts no process and writes no file.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...actors.messages.inputs import ProcessStarted, WorkerBeat, WorkerDied, WorkerFits, WorkerUnfit
from ...actors.records.loaded import Loaded
from ...actors.spec.model import ON_CLUSTER, Worker
from ...actors.spec.names import node_of
from ...actors.times import seconds
from ...actors.workers.health import patience
from ..calling import ProcessInfo
from ..dispatch.runners import RunnerPool
from ..dispatch.threads import at_once
from ..engines.context import TaskContext
from ..engines.contract import Engine
from ..engines.late import LateEngine
from ..engines.loop import LoopEngine
from ..engines.process.main_module import refuse_while_loading
from ..engines.thread import ThreadEngine
from ..execution.orphans import kill_leftovers
from ..execution.outputs import Outputs
from ..host import KernelHost
from ..journal.query_threads import QueryThreads
from ..processes.identity import Origin
from ..processes.os_processes import ASKED_BY
from .closing import Closing
from .settings import Settings

if TYPE_CHECKING:
    from ..engines.command.engine import CommandEngine
    from ..engines.process.engine import ProcessEngine
    from ..engines.ray.engine import RayEngine
    from ..engines.workers.wire import BodyRequest, RequestWithdrawn
    from ..flows.flows import Flows
    from ..jobs.worker_requests import RequestingEngine, WorkerRequests
    from ..services import RuntimeServices

_SHORTEST_LEASE = 5.0  # a worker on Ray may end itself if its runtime has not called it for so many seconds


class Platform:
    """The access of one runtime to this computer."""

    def __init__(self, settings: Settings, services: RuntimeServices, closing: Closing) -> None:
        self.engines: dict[str, Engine] = {}
        self._settings = settings
        self._services = services
        self._closing = closing
        self._asking: dict[str, RequestingEngine] = {}  # whose bodies may request something of the runtime
        self._worker_requests: dict[str, WorkerRequests] = {}
        self._runners: RunnerPool
        self._flows: Flows

    def new_host(self) -> KernelHost:
        """Make the host, which runs the kernel."""
        services = self._services
        random, secrets = self._settings.random, self._settings.secrets
        return KernelHost(
            services.dispatcher, services.journal, services.bodies, random, hub=services.hub, secrets=secrets
        )

    def new_queries(self) -> QueryThreads:
        """Make the object that runs queries of the journal, which may block."""
        return QueryThreads(self._services.check_here, self._services.journal)

    # -- engines -------------------------------------------------------------------------------------------------------

    async def open_engines(self, runners: RunnerPool, flows: Flows) -> None:
        """Open the engines. Raises RuntimeError in a worker process that is loading its program."""
        refuse_while_loading()
        self._runners, self._flows = runners, flows
        clock = self._settings.clock.monotonic
        for engine in (
            LoopEngine(runners, clock=clock),
            ThreadEngine(clock=clock, abandoned_threads=self._services.abandoned_threads),
            LateEngine("process", self._process_engine),
            LateEngine("command", self._command_engine),
        ):
            await self._open_engine(engine)
        if self._settings.ray is not None or any(worker.engine == ON_CLUSTER for worker in self._settings.workers):
            await self._open_engine(self._ray_engine())

    async def _open_engine(self, engine: Engine) -> None:
        await self._closing.open_engine(engine)
        self.engines[engine.name] = engine

    def _command_engine(self) -> CommandEngine:
        from ..engines.command.engine import CommandEngine  # noqa: PLC0415 - with the first command

        return CommandEngine(
            started=self._process_started, delayed=self._process_delayed, clock=self._settings.clock.monotonic
        )

    def _process_engine(self) -> ProcessEngine:
        from ..engines.process.engine import ProcessEngine  # noqa: PLC0415 - with the first body in a process

        health = self._settings.health_checks
        engine = self._asking["process"] = ProcessEngine(
            started=self._process_started, delayed=self._process_delayed, alive=self._worker_alive,
            died=self._worker_died, asked=partial(self._asked, "process"), environment=self.marks,
            clock=self._settings.clock.monotonic, start_limit=seconds(health.start_timeout), patience=patience(health),
        )  # fmt: skip
        return engine

    def _ray_engine(self) -> RayEngine:
        from ..engines.ray.cluster import RayCluster  # noqa: PLC0415 - few runtimes need it
        from ..engines.ray.engine import RayEngine  # noqa: PLC0415

        ray, health, journal = self._settings.ray, self._settings.health_checks, self._services.journal
        engine = self._asking["ray"] = RayEngine(
            RayCluster(address=ray) if isinstance(ray, str) else ray, spec_of=self._worker_spec,
            journal=f"{journal.identity.id} {self.copy}" if journal.durable_medium else None, at_once=True,
            alive=self._worker_alive, died=self._worker_died, unfit=self._worker_unfit, fits=self._worker_fits,
            asked=partial(self._asked, "ray"), away=self._cluster_is_away, environment=self.marks,
            lease=max(_SHORTEST_LEASE, seconds(health.interval) * (health.misses + 1)),
            clock=self._settings.clock.monotonic,
        )  # fmt: skip
        return engine

    # -- events of engines ---------------------------------------------------------------------------------------------

    def _asked(self, engine: str, context: TaskContext, want: BodyRequest | RequestWithdrawn) -> None:
        requests = self._worker_requests.get(engine)
        if requests is None:
            from ..jobs.worker_requests import WorkerRequests  # noqa: PLC0415 - few bodies elsewhere request anything

            services = self._services
            requests = self._worker_requests[engine] = WorkerRequests(
                services, services.children, services.caller.approvals, self._runners, self._asking[engine],
                flows=self._flows,
            )  # fmt: skip
        if not requests.keeps(context, want):
            self._services.dispatcher.call_threadsafe(requests.take, context, want)

    def _worker_alive(self, worker: str, incarnation: int, tokens: tuple[int, ...], busy: bool) -> None:
        self._services.host.later(WorkerBeat(worker, incarnation, tokens, busy))

    def _worker_died(self, worker: str, incarnation: int, reason: str) -> None:
        self._services.host.tell(WorkerDied(worker, incarnation, reason))

    def _worker_unfit(self, worker: str, incarnation: int, reason: str) -> None:
        self._services.host.tell(WorkerUnfit(worker, incarnation, reason))

    def _worker_fits(self, worker: str, incarnation: int) -> None:
        self._services.host.tell(WorkerFits(worker, incarnation))

    def _cluster_is_away(self, reason: str | None) -> None:
        """Report that the connection to the Ray cluster was lost, or (None) is restored."""
        notice = self._services.host.notice
        if reason is None:
            notice("cluster_back", "info", "the Ray cluster is connected again; its workers start anew")
        else:
            text = (
                f"{reason}. Its running tasks are lost, and run again after a new connection, which is tried repeatedly"
            )
            notice("cluster_away", "error", text, reason=reason)
        self._services.cluster_away = reason

    def _worker_spec(self, name: str) -> Worker:
        return self._services.host.workforce.named[name].spec

    def _process_delayed(self, token: int, error: Exception) -> None:
        self._services.caller.shortages.began(token, error)

    def _process_started(self, token: int, info: ProcessInfo) -> None:
        caller = self._services.caller
        caller.shortages.over(token)
        if token not in caller.unasked:  # the kernel has no such token
            self._services.host.tell(ProcessStarted(token, info.pid, info.started))

    # -- processes and files -------------------------------------------------------------------------------------------

    @property
    def marks(self) -> dict[str, str]:
        """The environment variables of every process that is started for this journal, by which it is found again."""
        return {**Origin.here(self._services.journal.identity.id, self.copy).variables, ASKED_BY: ""}

    @property
    def copy(self) -> str:
        """The copy of the journal that this runtime owns; in a database, the name of its node and the copy."""
        cluster, copy = self._services.journal.cluster, self._services.journal.identity.copy
        return copy if cluster is None else _of_node(cluster.name, copy)

    async def end_leftovers(self, loaded: Loaded, copies: set[str]) -> None:
        """Kill the processes that a killed runtime of these copies has left on this machine.

        The processes of nodes whose jobs were loaded are killed too, if they are on this machine.
        """
        if not (loaded.attempts or loaded.workers or loaded.hooks or loaded.asking):
            return  # the runtime before has ended all of its work
        ours, alone = self._services.journal.identity, self._services.journal.cluster is None
        copies = copies | {_of_node(node, ours.copy) for one in loaded.attempts if (node := node_of(one.worker_id))}
        stays: list[ProcessInfo] = []
        await at_once(
            partial(kill_leftovers, by_number=alone, stays=stays.append),
            loaded.attempts, ours.id, copies, loaded.hooks, loaded.asking,
        )  # fmt: skip
        for one in stays:
            text = f"process {one.pid} of a killed runtime cannot be killed, and its work runs again"
            self._services.host.notice("leftover_stays", "error", text, pid=one.pid)

    def new_outputs(self) -> Outputs:
        """The files for the output of commands: as set, or a temporary folder that is deleted at the end."""
        if self._settings.outputs is not None:
            return self._settings.outputs
        import tempfile  # noqa: PLC0415 - only without a journal

        return Outputs(Path(self._closing.stack.enter_context(tempfile.TemporaryDirectory(prefix="callboard-"))))


def _of_node(node: str, copy: str) -> str:
    return f"{node} of {copy}"
