"""Handles of a simulation, with the verbs of the runtime's handles, without `await`.

Rules
-----
- Each verb returns when its effect is durable, and lets the needed simulated time pass: none, unless the journal is
  slow or cannot write. `until` also returns only for durable states, which a crash does not undo.
- `until` accepts the state names of the trace: those of the entity's lifecycle, and the runtime's own.
- A handle is a name: it stays valid over crashes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self

from ...actors.records.base import Record
from ...actors.records.entities import BreakerRecord, JobRecord, WorkerRecord, WorkstreamRecord
from ...actors.records.message import MessageRecord, to_present
from ...actors.records.step import StepRecord, of_present
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.times import Duration
from ...machines import BREAKER, JOB, TASK, WORKER, Machine
from ...machines.keywords import did_you_mean
from ..handles.breakers import BreakerHandle
from ..handles.jobs import JobHandle, TaskHandle
from ..handles.workers import WorkerHandle
from .arguments import known, text

if TYPE_CHECKING:
    from ...actors.records.transition import Transitioned
    from ..handles.outcomes import Outcome
    from ..handles.references import EntityRef
    from .simulation import Simulation


P = ParamSpec("P")


class Simulated(ABC):
    """A handle of a simulation, which passes its verbs to the runtime's handle of the same entity."""

    _machine: ClassVar[Machine]

    def __init__(self, simulation: Simulation, called: str, title: str) -> None:
        """called, title: the names of the entity in the trace and in errors."""
        self.simulation = simulation
        self._called = called
        self._title = title

    @property
    @abstractmethod
    def record(self) -> Record:
        """The present record of the entity. Raises LookupError if there is none."""

    @property
    def state(self) -> str:
        """The present state of the entity."""
        return str(self.record.state)

    def until(self, state: str, *, within: Duration | None = None) -> Self:
        """Let time pass until the entity is durably in that state, or has passed through it. Raises AssertionError if
        it does not reach the state, ValueError if there is no such state."""
        machine, simulation = self._machine, self.simulation
        if text(state, "a state") not in machine.states and state not in (more := self._published()):
            states = [*map(str, machine.states), *more]
            advice = did_you_mean(state, states) or f"it may be {', '.join(states)}"
            raise ValueError(f"{self._title} is never {state!r}; {advice}")
        record = self.record
        known_as = _known_as(record.kind, record.id, getattr(record, "job_id", None))

        def is_its(row: Transitioned) -> bool:
            return _known_as(row.kind, row.entity_id, row.job_id) == known_as

        simulation.come_to(
            state, name=self._title, is_there=lambda: state in {self.record.state, self.record.shown}, is_its=is_its,
            within=within, where=lambda: simulation.entity_states().of(self._title, is_its, self.record),
        )  # fmt: skip
        return self

    def _published(self) -> list[str]:
        """The states of the entity's lifecycle, if that is not the runtime's own."""
        with suppress(LookupError):  # a breaker that no task has used yet
            record = self.record
            if record.published is not None:
                lifecycle = self.simulation.runtime.lifecycles.get(record.published.lifecycle, record.kind)
                return [str(state) for state in lifecycle.machine.states]
        return []

    @abstractmethod
    async def _handle(self) -> Any:
        """The runtime's present handle: after a crash it is another one. Raises LookupError."""

    def _ask(self, verb: str, *args: Any, **named: Any) -> None:
        """Call a verb of the runtime's handle, in simulated time."""

        async def asking() -> None:
            await getattr(await self._handle(), verb)(*args, **named)

        self.simulation.do(asking, what=f"{verb} {self._called}")


def at_once(verb: Callable[Concatenate[Any, P], Awaitable[object]]) -> Callable[Concatenate[Any, P], None]:
    """The same verb, with the same arguments, for a handle of a simulation: a plain method that returns nothing."""
    name = verb.__name__

    def done(handle: Any, /, *args: P.args, **named: P.kwargs) -> None:
        handle._ask(name, *args, **named)

    done.__name__, done.__qualname__, done.__doc__ = name, verb.__qualname__, verb.__doc__
    done.__signature__ = signature(verb).replace(return_annotation="None")  # type: ignore[attr-defined] # for `help`
    return done


class SimulatedJob(Simulated):
    """A job of a simulation."""

    _machine = JOB

    def __init__(self, simulation: Simulation, job_id: str) -> None:
        super().__init__(simulation, job_id, f"job {job_id!r}")
        self.id = job_id

    def __repr__(self) -> str:
        return f"<SimulatedJob {self.id} {self.state}>"

    @property
    def handle(self) -> JobHandle:
        """The runtime's own handle of it, for coroutines."""
        simulation = self.simulation
        handle: JobHandle = simulation.do(lambda: simulation.runtime.job(self.id))
        return handle

    @property
    def ref(self) -> EntityRef:
        """The reference to the job, for `Simulation.ask` and `tell`; valid until the next crash."""
        return self.handle.ref

    @property
    def record(self) -> JobRecord:
        """The present record of the job; its last one if the job has ended. Raises LookupError if there is none."""
        simulation = self.simulation
        actor = simulation.runtime.host.jobs.get(self.id)
        record = simulation.world.journal.job(self.id) if actor is None else actor.record
        if record is None:
            raise LookupError(f"there is no job {self.id!r} in this simulation")
        return record

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.record.finished_at is not None

    @property
    def stream(self) -> WorkstreamRecord:
        """The present record of its workstream, in its last run. Raises LookupError before it began one."""
        actor = self.simulation.runtime.host.jobs.get(self.id)
        if actor is not None and actor.stream is not None:
            return actor.stream.record
        last = self.record.last_of(self.simulation.world.journal.workstreams(self.id))
        if last is None:
            raise LookupError(f"job {self.id!r} has not begun a run")
        return last

    def tasks(self) -> dict[str, TaskRecord]:
        """The present records of its tasks, by their names, in the order of the specification."""
        actor = self.simulation.runtime.host.jobs.get(self.id)
        if actor is not None and actor.stream is not None:
            return {task.record.name: task.record for task in actor.stream.tasks}
        journal = self.simulation.world.journal
        last = self.record.last_of(journal.workstreams(self.id))
        return {} if last is None else {task.name: task for task in journal.tasks(last.key)}

    def states(self) -> dict[str, str]:
        """The present states of its tasks, by their names."""
        return {name: str(record.state) for name, record in self.tasks().items()}

    def task(self, name: str) -> SimulatedTask:
        """A task of the job. Raises LookupError if the job has none of that name."""
        known(name, list(self.tasks()), f"job {self.id!r} has no task")
        return SimulatedTask(self, name)

    def run(self, *, within: Duration | None = None) -> Outcome:
        """Let time pass until the job has ended. Raises AssertionError if it does not end, or not `within`."""
        simulation = self.simulation
        simulation.run_until(lambda: self.ended, within=within, what=f"job {self.id!r} to end")
        outcome: Outcome = simulation.do(self._outcome)
        return outcome

    async def _outcome(self) -> Outcome:
        return await (await self.simulation.runtime.job(self.id)).wait()

    cancel = at_once(JobHandle.cancel)
    pause = at_once(JobHandle.pause)
    resume = at_once(JobHandle.resume)
    retry = at_once(JobHandle.retry)
    skip = at_once(JobHandle.skip)
    send = at_once(JobHandle.send)
    approve = at_once(JobHandle.approve)
    reject = at_once(JobHandle.reject)

    def messages(self) -> list[MessageRecord]:
        """`JobHandle.messages`."""
        return to_present(self.simulation.world.journal.messages(self.id, unread=True), self.record.first)

    async def _handle(self) -> JobHandle:
        return await self.simulation.runtime.job(self.id)


class SimulatedTask(Simulated):
    """A task of a job of a simulation."""

    _machine = TASK

    def __init__(self, job: SimulatedJob, name: str) -> None:
        super().__init__(job.simulation, job.id, f"task {job.id}/{name}")
        self._job = job
        self.name = name

    def __repr__(self) -> str:
        return f"<SimulatedTask {self._job.id}/{self.name} {self.state}>"

    @property
    def ref(self) -> EntityRef:
        """The reference for sending events, as `SimulatedJob.ref`."""
        return self._job.handle.task(self.name).ref

    @property
    def record(self) -> TaskRecord:
        """The present record of the task."""
        return self._job.tasks()[self.name]

    @property
    def attempt(self) -> int:
        """The number of its present, or last, attempt."""
        return self.record.attempt

    cancel = at_once(TaskHandle.cancel)
    send = at_once(TaskHandle.send)
    approve = at_once(TaskHandle.approve)
    reject = at_once(TaskHandle.reject)
    reset = at_once(TaskHandle.reset)
    retry = at_once(TaskHandle.retry)
    skip = at_once(TaskHandle.skip)

    def attempts(self) -> list[AttemptRecord]:
        """`TaskHandle.attempts`."""
        return self.simulation.world.journal.attempts(self.record.id)

    def steps(self) -> list[StepRecord]:
        """`TaskHandle.steps`."""
        record = self.record
        return [of_present(step, record) for step in self.simulation.world.journal.steps(record.flow)]

    async def _handle(self) -> TaskHandle:
        return (await self.simulation.runtime.job(self._job.id)).task(self.name)


class SimulatedWorker(Simulated):
    """A worker of a simulation, with the faults that a test can cause."""

    _machine = WORKER

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name, f"worker {name!r}")
        self.name = name

    @property
    def ref(self) -> EntityRef:
        """The reference for sending events, as `SimulatedJob.ref`."""
        return self.simulation.runtime.worker(self.name).ref

    @property
    def record(self) -> WorkerRecord:
        """The present record of its last incarnation."""
        return self.simulation.runtime.host.workforce.named[self.name].record

    def die(self, reason: str = "it died, as a test has it", *, for_good: bool = False) -> None:
        """End the worker with everything that it runs. The supervisor starts another one in its place; `for_good`:
        that one does not start.
        """
        simulation = self.simulation
        if for_good:
            simulation.world.down.add(self.name)
        simulation.world.note("worker dies", self.name)
        record = self.record
        with simulation.world.loop.here():
            simulation.runtime.engines[record.engine].die(self.name, record.run, reason)
        simulation.settle()

    def freeze(self) -> None:
        """Freeze the worker, as SIGSTOP does. Only workers of the engine "process" are probed."""
        self.simulation.world.note("worker freezes", self.name)
        self.simulation.world.frozen.add(self.name)

    def come_back(self) -> None:
        """Let a frozen worker continue; one that was ended for good starts with its next incarnation."""
        simulation = self.simulation
        world = simulation.world
        world.note("worker comes back", self.name)
        world.frozen.discard(self.name)
        world.down.discard(self.name)
        record = self.record
        with world.loop.here():
            simulation.runtime.engines[record.engine].thaw(self.name, record.run)
        simulation.settle()

    pause = at_once(WorkerHandle.pause)
    resume = at_once(WorkerHandle.resume)
    shut_down = at_once(WorkerHandle.shut_down)
    terminate = at_once(WorkerHandle.terminate)
    start = at_once(WorkerHandle.start)

    async def _handle(self) -> WorkerHandle:
        return self.simulation.runtime.worker(self.name)


class SimulatedBreaker(Simulated):
    """The circuit breaker of a tool in a simulation."""

    _machine = BREAKER

    def __init__(self, simulation: Simulation, tool: str) -> None:
        super().__init__(simulation, tool, f"the breaker of {tool!r}")
        self.tool = tool

    @property
    def ref(self) -> EntityRef:
        """The reference for sending events, as `SimulatedJob.ref`."""
        return self.simulation.runtime.breaker(self.tool).ref

    @property
    def record(self) -> BreakerRecord:
        """The present record of the breaker. Raises LookupError while no workstream has used the tool."""
        breakers = self.simulation.runtime.host.workforce.breakers
        if self.tool not in breakers:
            there = f"used are: {', '.join(breakers)}" if breakers else "none has used any"
            raise LookupError(f"no workstream has used a tool {self.tool!r:.60} yet; {there}")
        return breakers[self.tool].record

    reset = at_once(BreakerHandle.reset)
    trip = at_once(BreakerHandle.trip)

    async def _handle(self) -> BreakerHandle:
        return self.simulation.runtime.breaker(self.tool)


def _known_as(kind: str, entity_id: str, job_id: str | None) -> tuple[str, str | None, str]:
    """Return what identifies an entity for good: a task has another id in each run, a worker in each incarnation."""
    if kind == "task":
        return kind, job_id, entity_id.rpartition("/")[2]
    return kind, None, entity_id.rpartition("#")[0] if kind == "worker" else entity_id
