"""A runtime with scripted bodies, for simulations and for applications under test.

Rules
-----
- Its engines are those of `engine.py`, for every kind of worker. No process starts, no command runs, no file is
  written.
- Only the test sets the wall clock, and announces that: so the runtime need not look every minute.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Protocol, cast

import msgspec

from ...actors.kernel.transaction import Transaction
from ...actors.messages.inputs import Message, WorkerBeat, WorkerDied
from ...actors.messages.notices import Notice
from ...actors.records.loaded import Loaded
from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.model import Worker
from ...actors.tasks.task import TaskActor
from ..dispatch.clock import VirtualClock
from ..dispatch.runners import RunnerPool
from ..engines.context import TaskContext
from ..engines.contract import Call
from ..execution.outputs import Outputs
from ..flows.flows import Flows
from ..host import KernelHost
from ..journal.contract import Journal
from ..lifespan.opening import MakePlatform
from ..lifespan.platform import Platform
from ..runtime import Runtime
from .engine import EngineWorld, SimulatedEngine

ENGINES = ("loop", "thread", "process", "command", "ray")
NEVER = float("inf")
START = 1_700_000_000.0
"""UTC epoch seconds at which virtual time begins."""
WORKERS = (
    Worker("loop", engine="loop", capacity=100),
    Worker("threads", engine="thread", capacity=4),
    Worker("processes", engine="process", capacity=1),
    Worker("commands", engine="command", capacity=4),
)
"""The default workers of a simulation, the same on every machine."""


class RuntimeWorld(EngineWorld, Protocol):
    """The receiver of a scripted runtime's steps."""

    clock: VirtualClock
    random: Random

    def turned(self, turn: Transaction) -> None:
        """A turn of the actors has ended."""
        ...

    def noticed(self, notice: Notice) -> None:
        """The runtime has emitted a notice."""
        ...

    def take_trouble(self, notice: Notice) -> None:
        """Receive a notice above info."""
        ...


class SimulatedHost(KernelHost):
    """A host that writes its inputs and turns into the trace."""

    def __init__(self, world: RuntimeWorld, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._world = world
        self.notices.heard = world.noticed
        # The test announces a jump of the wall clock, so the host need not look for one every minute.
        self._go_by(NEVER)

    def look_at_clock(self) -> None:
        """Handle a set wall clock: fire the timers that are due by it."""
        self._utc.look()

    def _receive(self, message: Message) -> bool:
        self._world.note("input", message)
        return super()._receive(message)

    def commit(self, turn: Transaction) -> None:
        """Commit a turn that has ended."""
        self._world.turned(turn)
        super().commit(turn)


class _NoFiles(Outputs):
    """Gives the paths of outputs and results, and writes no file."""

    def path(self, task: TaskActor) -> Path:
        return self.place(task)

    def write_results(self, task: TaskActor, results: dict[str, Any]) -> Path:  # noqa: ARG002
        return self.place(task).with_suffix(".json")


class ScriptedPlatform(Platform):
    """A platform that starts no process and writes no file. runtime: the runtime that uses it."""

    def __init__(self, runtime: ScriptedRuntime, world: RuntimeWorld, *made_of: Any) -> None:
        super().__init__(*made_of)
        self._runtime = runtime
        self._world = world

    def new_host(self) -> KernelHost:
        """Make a host that writes into the trace."""
        services = self._services
        random, secrets = self._settings.random, self._settings.secrets
        return SimulatedHost(
            self._world,
            services.dispatcher,
            services.journal,
            services.bodies,
            random,
            hub=services.hub,
            secrets=secrets,
        )

    async def open_engines(self, runners: RunnerPool, flows: Flows) -> None:  # noqa: ARG002 - nothing is in a process
        """Open engines that follow scripts."""
        self._runtime.runners = runners
        for name in ENGINES:
            engine = SimulatedEngine(name, self._world, self._runtime)
            await engine.open()
            self.engines[name] = engine

    async def end_leftovers(self, loaded: Loaded, copies: set[str]) -> None:
        """Do nothing: no command ever ran."""

    def new_outputs(self) -> Outputs:
        """Make outputs that write no file."""
        return _NoFiles(Path("simulated.output"))

    @property
    def marks(self) -> dict[str, str]:
        """Return no marks, since no process is started."""
        return {}


class ScriptedRuntime(Runtime):
    """A runtime in virtual time, whose engines follow scripts."""

    def __init__(self, world: RuntimeWorld, journal: str | Path | Journal | None = None, **settings: Any) -> None:
        self._world = world
        super().__init__(journal, clock=world.clock, random=world.random, **settings)
        self.gone = False  # the runtime crashed, or was closed
        self.runners: RunnerPool
        self.on_trouble, self._services.hub.last_resort = world.take_trouble, None  # the trace has all notices

    def _platform(self) -> MakePlatform:
        return partial(ScriptedPlatform, self, self._world)

    @property
    def lifecycles(self) -> Lifecycles:
        """The lifecycles that its entities may run by."""
        return self._services.lifecycles

    @property
    def host(self) -> KernelHost:
        """The host, which gives the kernel its inputs."""
        return self._services.host

    def look_at_clock(self) -> None:
        """Handle a set wall clock: fire the timers that are due by it."""
        cast(SimulatedHost, self._services.host).look_at_clock()

    # -- for engines ----------------------------------------------------------------------------------------------

    @property
    def engines(self) -> dict[str, SimulatedEngine]:
        """The engines of the runtime, by their names."""
        return cast("dict[str, SimulatedEngine]", self._life.platform.engines)

    def about(self, call: Call) -> tuple[str, str, str]:
        """The id of a call's job, the name of its task or workstream, and that entity's id."""
        pending = self._services.host.kernel.calls.get(call.token)
        if pending is not None and pending.key:
            record = self._services.host.kernel.entities[pending.key].record
            return record.job_id, record.name, record.id
        fields: dict[str, Any] = {}
        if call.context is not None:
            fields = call.context.args or {"name": call.context.task}
        elif call.command is not None:
            fields = msgspec.json.decode(call.command.env.get("CALLBOARD_EVENT", "{}"))
        name = fields.get("name", "")
        return fields.get("job_id") or "", name, fields.get("entity_id", name)

    def worker_of(self, token: int) -> tuple[str | None, int]:
        """The name and incarnation of the worker whose slot that attempt has."""
        slot = self._services.host.kernel.slots.get(token)
        actor = None if slot is None else self._services.host.kernel.workers.get(slot.worker)
        return (None, 0) if actor is None else (actor.record.name, actor.record.run)

    def context_of(self, call: Call) -> TaskContext | None:
        """The context for a function that replaces a call's function, which took none."""
        pending = self._services.host.kernel.calls.get(call.token)
        task = None if pending is None else self._services.host.kernel.entities.get(pending.key)
        caller = self._services.caller
        return caller.context_of(task, call.token, caller.approvals) if isinstance(task, TaskActor) else None

    def worker_died(self, worker: str, incarnation: int, reason: str) -> None:
        """For engines: a worker has died."""
        self._services.host.tell(WorkerDied(worker, incarnation, reason))

    def worker_alive(self, worker: str, incarnation: int, tokens: tuple[int, ...]) -> None:
        """For engines: a worker has sent a heartbeat."""
        self._services.host.later(WorkerBeat(worker, incarnation, tokens))
