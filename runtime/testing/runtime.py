"""The runtime of a simulation: the real one, opened without a program around it.

Rules
-----
- Dispatcher, host, caller, kernel, hub and verbs are those of every runtime. Only what they touch of the world is
  another: the journal, the engines, the clock, the loop that coroutines run on.
- It is opened, and then either lives or is gone: a crash leaves it as it is, and nothing of it runs again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...actors.loading import Loaded
from ...actors.messages import Message, WorkerBeat, WorkerDied
from ...actors.notices import Notice
from ...actors.task import TaskActor
from ...actors.turn import Turn
from ..control.taker import Taker
from ..engines.context import TaskContext
from ..engines.contract import Call
from ..engines.process import ProcessEngine
from ..host import Host
from ..outputs import Outputs
from ..runners import RunnerPool
from ..runtime import Runtime
from ..utc import UtcTimers
from .engine import SimulatedEngine
from .loop import SimulatedLoop, SimulatedRunners

if TYPE_CHECKING:
    from .world import World

ENGINES = ("loop", "thread", "process", "command")
NEVER = float("inf")


class SimulatedHost(Host):
    """The host, telling the trace what comes in and what is decided."""

    def __init__(self, world: World, *args: Any) -> None:
        super().__init__(*args)
        self._world = world
        # A jump of the wall clock is announced here, so nobody needs to look every minute whether there was one.
        self._utc = UtcTimers(self._clock, self.dispatcher.timers, NEVER)

    def look_at_clock(self) -> None:
        """See what is due by the wall clock, which was set."""
        self._utc.look()

    def _receive(self, message: Message) -> bool:
        self._world.note("input", message)
        return super()._receive(message)

    def commit(self, turn: Turn) -> None:
        """Take a turn that is over."""
        if turn.transitions:
            self._world.note("turn", turn.transitions)
        super().commit(turn)

    def tell_notice(self, notice: Notice) -> None:
        """Tell of something at once."""
        self._world.noticed(notice)
        super().tell_notice(notice)


class _NoFiles(Outputs):
    """Names the places of outputs and results, and writes none."""

    def path(self, task: TaskActor) -> Path:
        return self.place(task)

    def write_results(self, task: TaskActor, results: dict[str, Any]) -> Path:  # noqa: ARG002
        return self.place(task).with_suffix(".json")


class SimulatedRuntime(Runtime):
    """A runtime in a simulation."""

    def __init__(self, world: World, loop: SimulatedLoop, **settings: Any) -> None:
        super().__init__(world.journal, clock=world.clock, random=world.random, ids=world.ids, **settings)
        self.gone = False  # it crashed, or was closed
        self.opened = False  # it has recovered, and takes what comes
        self.loop = loop
        self.runners = SimulatedRunners(loop)
        self.bodies = world.bodies
        self.taker: Taker
        self._world = world
        self.on_trouble = world.take_trouble

    async def start(self) -> None:
        """Open it. The first part, up to the first input, happens at once."""
        self._entered = True
        taker = self.taker = await self._load(cast(RunnerPool, self.runners), self._start_soon)
        await self._catch_up(taker)
        self.opened = True
        self._world.note("open")
        await taker.take()

    def crash(self) -> None:
        """Be gone."""
        self.gone, self._open, self._running = True, False, False

    @property
    def host(self) -> Host:
        """What gives the kernel its inputs."""
        return self._host

    @property
    def has_work(self) -> bool:
        """Whether actors have anything to do now."""
        return self._dispatcher.has_work

    def step(self) -> None:
        """Have actors do one thing."""
        self._dispatcher.step()

    def next_due(self) -> float | None:
        """When its next timer is due."""
        return self._dispatcher.timers.next_due()

    def look_at_clock(self) -> None:
        """See what is due by the wall clock, which was set."""
        cast(SimulatedHost, self._host).look_at_clock()

    def bell(self) -> None:
        """Another process says that there is something in the inbox."""
        if self.opened and not self.gone:
            self._start_soon(self.taker.take)

    # -- what engines ask ----------------------------------------------------------------------------------------------

    @property
    def engines(self) -> dict[str, SimulatedEngine]:
        """Its engines, by their names."""
        return cast("dict[str, SimulatedEngine]", self._engines)

    def about(self, call: Call) -> tuple[str, str, str]:
        """What a call is for: the id of its job, the name of its task or workstream, and that one's id."""
        known = self._host.kernel.calls.get(call.token)
        if known is not None and known.key:
            record = self._host.kernel.entities[known.key].record
            return record.job_id, record.name, record.id
        told: dict[str, Any] = {}
        if call.context is not None:
            told = call.context.args or {"name": call.context.task}
        elif call.command is not None:
            told = msgspec.json.decode(call.command.env.get("CALLBOARD_EVENT", "{}"))
        name = told.get("name", "")
        return told.get("job_id") or "", name, told.get("entity_id", name)

    def worker_of(self, token: int) -> tuple[str | None, int]:
        """The name and incarnation of the worker whose slot that attempt has."""
        slot = self._host.kernel.slots.get(token)
        actor = None if slot is None else self._host.kernel.workers.get(slot.worker)
        return (None, 0) if actor is None else (actor.record.name, actor.record.run)

    def context_of(self, call: Call) -> TaskContext | None:
        """What a function is told that stands for another one, which was told nothing."""
        known = self._host.kernel.calls.get(call.token)
        task = None if known is None else self._host.kernel.entities.get(known.key)
        caller = self._host.caller
        return caller.context_of(task, call.token, caller.desk) if isinstance(task, TaskActor) else None

    def worker_died(self, worker: str, incarnation: int, reason: str) -> None:
        """For engines: a worker is gone."""
        self._host.tell(WorkerDied(worker, incarnation, reason))

    def worker_alive(self, worker: str, incarnation: int, tokens: tuple[int, ...]) -> None:
        """For engines: a worker says that it lives."""
        self._host.later(WorkerBeat(worker, incarnation, tokens))

    # -- what differs from a runtime in a program ----------------------------------------------------------------------

    def _new_host(self) -> Host:
        return SimulatedHost(self._world, self._dispatcher, self.journal, self.bodies, self._random)

    async def _open_engines(self, runners: RunnerPool) -> ProcessEngine:  # noqa: ARG002 - bodies run on the world's loop
        for name in ENGINES:
            engine = SimulatedEngine(name, self._world, self)
            await engine.open()
            self._engines[name] = engine
        return cast(ProcessEngine, self._engines["process"])

    async def _end_leftovers(self, loaded: Loaded) -> None:
        """No command ever ran."""

    def _new_outputs(self) -> Outputs:
        return _NoFiles(Path("simulated.output"))

    @property
    def _name(self) -> str:
        return "simulated"

    def _start_soon(self, func: Any) -> None:
        self.runners.submit(func, _over)


def _over(_: Any, error: BaseException | None) -> None:
    if error is not None:
        raise error
