"""Handles of a simulation: the verbs of the runtime's own, without `await`.

Rules
-----
- Each verb returns when it took effect, durably, and has as much simulated time pass for that as it takes: none, unless
  the journal is slow or cannot write. So does `until`: what it has seen, a crash does not undo.
- `until` knows the words of the trace, which are those of the lifecycle that something runs by, and the runtime's own.
- A handle is a name: it stays good over crashes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from ...actors.records.base import Record
from ...actors.records.entities import BreakerRecord, JobRecord, WorkerRecord, WorkstreamRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.spec.schema import did_you_mean
from ...actors.spec.times import Duration
from ...machines import BREAKER, JOB, TASK, WORKER, Machine
from .arguments import known, text

if TYPE_CHECKING:
    from ...actors.records.transition import Transitioned
    from ..handles.jobs import JobHandle
    from ..handles.outcomes import Outcome
    from ..handles.references import EntityRef
    from .simulation import Simulation


class SimulatedJob:
    """A job of a simulation."""

    def __init__(self, simulation: Simulation, job_id: str) -> None:
        self.simulation = simulation
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
        """It as an actor, for `Simulation.ask` and `tell`; of the present runtime, that is until the next crash."""
        return self.handle.ref

    @property
    def record(self) -> JobRecord:
        """Its present record; of one that has ended, its last. Raises LookupError if there is none."""
        simulation = self.simulation
        actor = simulation.runtime.host.kernel.jobs.get(self.id)
        record = simulation.world.journal.job(self.id) if actor is None else actor.record
        if record is None:
            raise LookupError(f"there is no job {self.id!r} in this simulation")
        return record

    @property
    def state(self) -> str:
        """Its present state."""
        return str(self.record.state)

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.record.finished_at is not None

    def until(self, state: str, *, within: Duration | None = None) -> SimulatedJob:
        """Have time pass until it is in that state, or has come through it, durably. Raises AssertionError where it
        does not come to it, ValueError where there is no such state."""
        _until(self.simulation, self, f"job {self.id!r}", JOB, state, within)
        return self

    @property
    def stream(self) -> WorkstreamRecord:
        """The present record of its workstream, in its last run. Raises LookupError before it began one."""
        actor = self.simulation.runtime.host.kernel.jobs.get(self.id)
        if actor is not None and actor.stream is not None:
            return actor.stream.record
        last = self.record.last_of(self.simulation.world.journal.workstreams(self.id))
        if last is None:
            raise LookupError(f"job {self.id!r} has not begun a run")
        return last

    def tasks(self) -> dict[str, TaskRecord]:
        """The present records of its tasks, by their names, in the order of the specification."""
        actor = self.simulation.runtime.host.kernel.jobs.get(self.id)
        if actor is not None and actor.stream is not None:
            return {task.record.name: task.record for task in actor.stream.tasks}
        journal = self.simulation.world.journal
        last = self.record.last_of(journal.workstreams(self.id))
        return {} if last is None else {task.name: task for task in journal.tasks(last.key)}

    def states(self) -> dict[str, str]:
        """The present states of its tasks, by their names."""
        return {name: str(record.state) for name, record in self.tasks().items()}

    def task(self, name: str) -> SimulatedTask:
        """One of its tasks. Raises LookupError if it has none of that name."""
        known(name, list(self.tasks()), f"job {self.id!r} has no task")
        return SimulatedTask(self, name)

    def run(self, *, within: Duration | None = None) -> Outcome:
        """Have time pass until it has ended. Raises AssertionError where it does not, or not within that duration."""
        simulation = self.simulation
        simulation.run_until(lambda: self.ended, within=within, what=f"job {self.id!r} to end")
        outcome: Outcome = simulation.do(self._outcome)
        return outcome

    async def _outcome(self) -> Outcome:
        return await (await self.simulation.runtime.job(self.id)).wait()

    def cancel(
        self, reason: str = "cancelled by the user", *, force: bool = False, by: str | None = None,
        request_id: str | None = None,
    ) -> None:  # fmt: skip
        """`JobHandle.cancel`."""
        self._ask("cancel", reason, force=force, by=by, request_id=request_id)

    def pause(
        self, reason: str = "paused by the user", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """`JobHandle.pause`."""
        self._ask("pause", reason, by=by, request_id=request_id)

    def resume(
        self, reason: str = "resumed by the user", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """`JobHandle.resume`."""
        self._ask("resume", reason, by=by, request_id=request_id)

    def retry(
        self, task: str | None = None, reason: str = "retried by the user", *, by: str | None = None,
        request_id: str | None = None,
    ) -> None:  # fmt: skip
        """`JobHandle.retry`."""
        self._ask("retry", task, reason, by=by, request_id=request_id)

    def skip(
        self, task: str, reason: str = "skipped by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """`JobHandle.skip`."""
        self._ask("skip", task, reason, by=by, request_id=request_id)

    def approve(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """`JobHandle.approve`."""
        self._ask("approve", by=by, reason=reason, request_id=request_id)

    def reject(self, *, by: str, reason: str | None = None, request_id: str | None = None) -> None:
        """`JobHandle.reject`."""
        self._ask("reject", by=by, reason=reason, request_id=request_id)

    def _ask(self, verb: str, *args: Any, **named: Any) -> None:
        self.ask_of(lambda handle: handle, verb, *args, **named)

    def ask_of(self, target: Callable[[JobHandle], Any], verb: str, *args: Any, **named: Any) -> None:
        """For it and its tasks: do what a method of the runtime's handle does."""

        async def asking() -> None:
            handle = await self.simulation.runtime.job(self.id)
            await getattr(target(handle), verb)(*args, **named)

        self.simulation.do(asking, what=f"{verb} {self.id}")


class SimulatedTask:
    """A task of a job of a simulation."""

    def __init__(self, job: SimulatedJob, name: str) -> None:
        self._job = job
        self.name = name

    def __repr__(self) -> str:
        return f"<SimulatedTask {self._job.id}/{self.name} {self.state}>"

    @property
    def ref(self) -> EntityRef:
        """It as an actor: as `SimulatedJob.ref`."""
        return self._job.handle.task(self.name).ref

    @property
    def record(self) -> TaskRecord:
        """Its present record."""
        return self._job.tasks()[self.name]

    @property
    def state(self) -> str:
        """Its present state."""
        return str(self.record.state)

    def until(self, state: str, *, within: Duration | None = None) -> SimulatedTask:
        """Have time pass until it is in that state, or has come through it, durably. Raises AssertionError where it
        does not come to it, ValueError where there is no such state."""
        _until(self._job.simulation, self, f"task {self._job.id}/{self.name}", TASK, state, within)
        return self

    @property
    def attempt(self) -> int:
        """The number of its present, or last, attempt."""
        return self.record.attempt

    def cancel(
        self, reason: str = "cancelled by the user", *, force: bool = False, by: str | None = None,
        request_id: str | None = None,
    ) -> None:  # fmt: skip
        """`TaskHandle.cancel`."""
        self._ask("cancel", reason, force=force, by=by, request_id=request_id)

    def approve(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """`TaskHandle.approve`."""
        self._ask("approve", by=by, reason=reason, approval=approval, request_id=request_id)

    def reject(
        self, *, by: str, reason: str | None = None, approval: str | None = None, request_id: str | None = None
    ) -> None:
        """`TaskHandle.reject`."""
        self._ask("reject", by=by, reason=reason, approval=approval, request_id=request_id)

    def reset(
        self, *, by: str | None = None, reason: str = "reset by an operator", request_id: str | None = None
    ) -> None:
        """`TaskHandle.reset`."""
        self._ask("reset", by=by, reason=reason, request_id=request_id)

    def retry(
        self, reason: str = "retried by the user", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """`TaskHandle.retry`."""
        self._ask("retry", reason, by=by, request_id=request_id)

    def skip(
        self, reason: str = "skipped by an operator", *, by: str | None = None, request_id: str | None = None
    ) -> None:
        """`TaskHandle.skip`."""
        self._ask("skip", reason, by=by, request_id=request_id)

    def attempts(self) -> list[AttemptRecord]:
        """`TaskHandle.attempts`."""
        return self._job.simulation.world.journal.attempts(self.record.id)

    def _ask(self, verb: str, *args: Any, **named: Any) -> None:
        self._job.ask_of(lambda handle: handle.task(self.name), verb, *args, **named)


class SimulatedWorker:
    """A worker of a simulation, and what may happen to it."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self.name = name

    @property
    def ref(self) -> EntityRef:
        """It as an actor: as `SimulatedJob.ref`."""
        return self._simulation.runtime.worker(self.name).ref

    @property
    def record(self) -> WorkerRecord:
        """The present record of its last incarnation."""
        return self._simulation.runtime.host.kernel.named[self.name].record

    @property
    def state(self) -> str:
        """Its present state."""
        return str(self.record.state)

    def until(self, state: str, *, within: Duration | None = None) -> SimulatedWorker:
        """Have time pass until it is in that state, or has come through it, durably. Raises AssertionError where it
        does not come to it, ValueError where there is no such state."""
        _until(self._simulation, self, f"worker {self.name!r}", WORKER, state, within)
        return self

    def die(self, reason: str = "it died, as a test has it", *, for_good: bool = False) -> None:
        """Have it die with all that it runs. The supervisor starts another one in its place; `for_good`: that one does
        not come up.
        """
        simulation = self._simulation
        if for_good:
            simulation.world.down.add(self.name)
        simulation.world.note("worker dies", self.name)
        record = self.record
        with simulation.world.loop.here():
            simulation.runtime.engines[record.engine].die(self.name, record.run, reason)
        simulation.settle()

    def freeze(self) -> None:
        """Have it do nothing and answer nothing from now on, as after SIGSTOP. Only workers of the engine "process" are
        asked whether they live.
        """
        self._simulation.world.note("worker freezes", self.name)
        self._simulation.world.frozen.add(self.name)

    def come_back(self) -> None:
        """Have it go on where it froze; one that stayed down comes up with its next incarnation."""
        simulation = self._simulation
        world = simulation.world
        world.note("worker comes back", self.name)
        world.frozen.discard(self.name)
        world.down.discard(self.name)
        record = self.record
        with world.loop.here():
            simulation.runtime.engines[record.engine].thaw(self.name, record.run)
        simulation.settle()

    def ask(self, verb: str, *args: Any, **named: Any) -> None:
        """Do what a method of the runtime's `WorkerHandle` does: pause, resume, shut_down, terminate, start."""
        simulation = self._simulation
        simulation.do(
            lambda: getattr(simulation.runtime.worker(self.name), verb)(*args, **named), what=f"{verb} {self.name}"
        )


class SimulatedBreaker:
    """The circuit breaker of a tool in a simulation."""

    def __init__(self, simulation: Simulation, tool: str) -> None:
        self._simulation = simulation
        self.tool = tool

    @property
    def ref(self) -> EntityRef:
        """It as an actor: as `SimulatedJob.ref`."""
        return self._simulation.runtime.breaker(self.tool).ref

    @property
    def record(self) -> BreakerRecord:
        """Its present record. Raises LookupError while no workstream has used the tool."""
        breakers = self._simulation.runtime.host.kernel.breakers
        if self.tool not in breakers:
            there = f"used are: {', '.join(breakers)}" if breakers else "none has used any"
            raise LookupError(f"no workstream has used a tool {self.tool!r:.60} yet; {there}")
        return breakers[self.tool].record

    @property
    def state(self) -> str:
        """closed, open or half_open."""
        return str(self.record.state)

    def until(self, state: str, *, within: Duration | None = None) -> SimulatedBreaker:
        """Have time pass until it is in that state, or has come through it, durably. Raises AssertionError where it
        does not come to it, ValueError where there is no such state."""
        _until(self._simulation, self, f"the breaker of {self.tool!r}", BREAKER, state, within)
        return self

    def ask(self, verb: str, *args: Any, **named: Any) -> None:
        """Do what a method of the runtime's `BreakerHandle` does: reset, trip."""
        simulation = self._simulation
        simulation.do(
            lambda: getattr(simulation.runtime.breaker(self.tool), verb)(*args, **named), what=f"{verb} {self.tool}"
        )


class _Stateful(Protocol):
    @property
    def record(self) -> Record: ...


def _until(  # noqa: PLR0917 - as `until`, of whatever it is
    simulation: Simulation, entity: _Stateful, name: str, machine: Machine, state: str, within: Duration | None
) -> None:
    """Have time pass until it is in that state, and the journal has it: as one hears of it from a runtime."""
    if text(state, "a state") not in machine.states and state not in (more := _published(simulation, entity)):
        known = [*map(str, machine.states), *more]
        advice = did_you_mean(state, known) or f"it may be {', '.join(known)}"
        raise ValueError(f"{name} is never {state!r}; {advice}")
    record = entity.record
    known_as = _known_as(record.kind, record.id, getattr(record, "job_id", None))

    def is_its(row: Transitioned) -> bool:
        return _known_as(row.kind, row.entity_id, row.job_id) == known_as

    simulation.come_to(
        state, name=name, is_there=lambda: state in {entity.record.state, entity.record.shown}, is_its=is_its,
        within=within, where=lambda: simulation.whereabouts().of(name, is_its, entity.record),
    )  # fmt: skip


def _known_as(kind: str, entity_id: str, job_id: str | None) -> tuple[str, str | None, str]:
    """What stays the same of an entity: a task has another id in each run, a worker in each incarnation."""
    if kind == "task":
        return kind, job_id, entity_id.rpartition("/")[2]
    return kind, None, entity_id.rpartition("#")[0] if kind == "worker" else entity_id


def _published(simulation: Simulation, entity: _Stateful) -> list[str]:
    """The states of the lifecycle that it runs by, where that is not the runtime's own."""
    with suppress(LookupError):  # a breaker that nobody has used yet
        record = entity.record
        if record.published is not None:
            lifecycle = simulation.runtime.lifecycles.get(record.published.lifecycle, record.kind)
            return [str(state) for state in lifecycle.machine.states]
    return []
