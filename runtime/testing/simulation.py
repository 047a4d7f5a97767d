"""Simulation: a runtime that a test controls, in virtual time, without an event loop around it.

    with Simulation(seed=7) as sim:
        sim.body("build", takes="3m", returns=1)
        job = sim.submit(Workstream("release", tasks=[Task("build", run=build)]))
        assert job.run().ok

Rules
-----
- Nothing sleeps and nothing happens by itself: time passes in `advance`, `run`, `run_until`, and in verbs that have to
  wait.
- The same seed and the same calls give the same trace. Another seed gives another order of simultaneous events.
- A failure shows the seed and the end of the trace.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from inspect import signature
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, cast, overload

from ...actors.machines.kind import MachineActor
from ...actors.spec.model import Worker, Workstream
from ...actors.times import Duration
from ...actors.users.actor import ActorOptions, M, Makes, R, Receives, SpawnOptions
from ...actors.users.dead_letters import DeadLetter
from ...actors.users.ref import Ref
from ..commands.verbs import check_row
from ..handles.machine_refs import MachineRef
from ..handles.references import EntityRef
from ..jobs.submissions import Existing
from ..journal.contract import InboxRow
from ..loaded_modules import under_trio
from ..runtime import Runtime
from .arguments import advice, awaiting, duration, known, not_awaited, plain, text
from .asked import Asked
from .errors import SimulationError
from .handles import SimulatedBreaker, SimulatedJob, SimulatedWorker
from .history import History
from .planned_event import PlannedEvent
from .probes import Probe, ProbeActor
from .runtime import SimulatedRuntime
from .scripted import START, WORKERS
from .scripts import Script, Scripted, Takes, first_plain, script_of, script_of_step
from .world import PATIENCE, World

MANY = 1_000_000  # the most jobs that are listed: in practice all
_SETTINGS = frozenset(signature(Runtime).parameters)
T = TypeVar("T")
_NOT_SETTINGS = frozenset({"clock", "ids", "journal", "jsonl", "outputs", "random"})


class Simulation(History):
    """A runtime in virtual time.

    seed: decides the order of steps that are due at the same moment, and all other random choices.
    workers, and all other `settings`: as `Runtime` takes them (not jsonl, clock, random, ids). start: UTC epoch seconds
    of its beginning. functions: "run" runs functions without a script for real, async ones too, in virtual time;
    "succeed" lets them succeed at once. Commands never run, and tasks that only receive a message wait for it. trace:
    how many steps it keeps (None: all).
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        workers: Sequence[Worker] = WORKERS,
        start: float = START,
        functions: str = "run",
        trace: int | None = None,
        **settings: Any,
    ) -> None:
        if functions not in {"run", "succeed"}:
            raise ValueError(f'functions is "run" or "succeed", not {functions!r}')
        if unknown := sorted(settings.keys() - _SETTINGS):
            raise TypeError(
                f"there is no setting {unknown[0]!r:.60} of a runtime; {advice(unknown[0], sorted(_SETTINGS))}"
            )
        if refused := sorted(_NOT_SETTINGS & settings.keys()):
            raise TypeError(f"a simulation takes no {', '.join(refused)}: it has its own")
        if under_trio():
            raise SimulationError(
                "a Simulation runs coroutines on a loop of its own, which it cannot inside of trio: make it in a plain "
                "test, or use VirtualRuntime in this one"
            )
        self.seed = seed
        self.world = World(
            seed, start=start, runs_functions=functions == "run", trace=trace,
            settings={"workers": workers, **settings},
        )  # fmt: skip
        self._expected = {}
        self._closing = weakref.finalize(self, _close, self.world)
        self.world.open()
        self.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._tell(error)
        lost = [*self.world.scripts.for_nothing(), *self.world.not_crashed()] if error is None else []
        self.close()
        for warning in lost:
            warnings.warn(warning, stacklevel=2)

    def close(self) -> None:
        """Close the simulation. Running coroutines are cancelled, without a trace."""
        self._closing()

    # -- scripts -------------------------------------------------------------------------------------------------------

    def body(
        self,
        name: str,
        run: Callable[..., Any] | None = None,
        *,
        returns: Any = None,
        outcomes: Sequence[Scripted] | Scripted | None = None,
        takes: Takes = 0.0,
        heartbeat: Duration | None = None,
        details: Any = None,
        stops_in: Duration = 0.0,
        ignores_stop: bool = False,
        late: bool = False,
    ) -> Script:
        """Set the behaviour of functions and commands of that name from now on. Names: `scripts.py`.

        run: a function to call instead, plain or async. returns, or outcomes: the results without a function,
        attempt by attempt; the last one repeats. takes: how long it runs, or a pair: between the two. heartbeat:
        the time between two heartbeats, with these details. stops_in: how long it needs to stop when it is told to.
        ignores_stop: it never stops. late: its result is delivered even if it was abandoned, or its worker has died.
        """
        script = script_of(
            name, run, returns=returns, outcomes=outcomes, takes=takes, heartbeat=heartbeat, details=details,
            stops_in=stops_in, ignores_stop=ignores_stop, late=late,
        )  # fmt: skip
        self.world.scripts.add(script)
        return script

    def step_body(
        self,
        name: str,
        run: Callable[..., Any] | None = None,
        *,
        returns: Any = None,
        outcomes: Sequence[Scripted] | Scripted | None = None,
        takes: Takes = 0.0,
    ) -> Script:
        """Set the behaviour of durable steps from now on: "ask_model" for all calls, "ask_model#3" for the third.

        run: a function to call instead of the step's own, plain or async. returns, or outcomes (Succeeds, Fails,
        Hangs): the results, call by call and retry by retry in each task; the last one repeats. A replayed step calls
        nothing, and takes none. takes: how long a call runs, or a pair: between the two.
        """
        script = script_of_step(name, run, returns=returns, outcomes=outcomes, takes=takes)
        self.world.scripts.add_step(script)
        return script

    def task(
        self, func: Callable[..., Any] | None = None, *, name: str | None = None, aliases: Iterable[str] = ()
    ) -> Callable[..., Any]:
        """Register a function, as `Runtime.task` does; it stays registered after a crash."""
        return self.runtime.task(func, name=name, aliases=aliases)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    @property
    def runtime(self) -> SimulatedRuntime:
        """The present runtime, a new one after each crash. Raises SimulationError while there is none."""
        self._refuse_closed()
        if self.world.runtime is None:
            raise SimulationError("the runtime crashed, and was not restarted yet: call restart()")
        return self.world.runtime

    def submit(
        self,
        workstream: Workstream,
        *,
        id: str | None = None,  # noqa: A002 - the field's word
        by: str | None = None,
        existing: Existing = "join",
        request_id: str | None = None,
    ) -> SimulatedJob:
        """Submit a job; returns when it is durable. Raises as `Runtime.submit`."""
        handle = self.do(
            lambda: self.runtime.submit(workstream, id=id, by=by, existing=existing, request_id=request_id),
            what="submit",
        )
        return SimulatedJob(self, handle.id)

    def job(self, job_id: str) -> SimulatedJob:
        """The job of that id, living or ended. Raises LookupError if there is none."""
        job = SimulatedJob(self, job_id)
        _ = job.record
        return job

    def worker(self, name: str) -> SimulatedWorker:
        """A worker by its name. Raises LookupError if there is none; one of capacity n on processes is n workers."""
        known(name, list(self.runtime.host.workforce.named), "there is no worker")
        return SimulatedWorker(self, name)

    def breaker(self, tool: str) -> SimulatedBreaker:
        """The circuit breaker of a tool."""
        return SimulatedBreaker(self, tool)

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
    def spawn(self, actor: Any, *, name: str | None = None, **options: Unpack[ActorOptions]) -> Ref | MachineRef:
        """Start an actor, as `Runtime.spawn` does. A crash ends it, unless it is a `MachineActor`."""
        self._wait_until_open()
        with self.world.loop.here():
            ref: Ref | MachineRef = self.runtime.spawn(actor, name=name, **options)
        self.settle()
        return ref

    def machine(self, name: str) -> MachineRef | EntityRef:
        """`Runtime.machine`: the `MachineActor` of that name, ended or not; after a crash, in its durable state.

        Or a job, workstream ("JOB@1"), task ("JOB/TASK"), worker or breaker, as an actor. Raises LookupError.
        """
        self._wait_until_open()
        return self.runtime.machine(name)

    def ask(self, ref: Ref | MachineRef | EntityRef, message: Any, *, timeout: float | None = 5.0) -> Any:
        """Ask an actor; returns its answer, and raises its refusal."""
        _check_ref(ref)
        self.note(f"asks {ref.name}", message)
        return self.do(lambda: ref.ask(message, timeout=timeout), what=f"{ref.name} to answer")

    def tell(self, ref: Ref | MachineRef | EntityRef, message: Any) -> bool:
        """Tell an actor a message, and run all steps that follow now. False if the message was not accepted."""
        self._refuse_closed()
        _check_ref(ref)
        with self.world.loop.here():
            taken = ref.tell(message)
        self.settle()
        return taken

    def probe(self, name: str | None = None) -> Probe:
        """Spawn an actor that keeps its messages, so that a test can expect them."""
        actor = ProbeActor()
        return Probe(self, actor, self.spawn(actor, name=name))

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """The newest unhandled messages, with their reasons."""
        return self.runtime.host.dispatcher.dead_letters.newest()

    # -- commands ------------------------------------------------------------------------------------------------------

    def do(self, ask: Callable[[], Awaitable[T]], *, what: str = "", within: Duration = PATIENCE) -> T:
        """Run a coroutine function in the simulation; returns what it returns, and raises what it raises.

        Time passes as needed. Raises AssertionError if no answer comes within that duration.
        """
        self._wait_until_open()
        duration(within, "within")
        asked = self.begin(ask, what=what)
        self.run_until(lambda: asked.answered, within=within, what=f"an answer to {what or 'a coroutine'}")
        value: T = asked.value
        return value

    def begin(self, ask: Callable[[], Awaitable[Any]], *, what: str = "") -> Asked:
        """Start a coroutine function in the simulation, without waiting."""
        self._refuse_closed()
        asking = awaiting(ask)
        if what:
            self.world.note("asked", what)
        return Asked(self.world.loop.create_task(asking()))

    def put(
        self, verb: str, kind: str, target: str, *, request_id: str | None = None, ring: bool = True, **arguments: Any
    ) -> int:
        """Put a command into the journal's inbox, as `callboard approve` in another terminal does. Returns its number.

        `answer` returns its answer. ring: whether the runtime is notified now; else it finds the command at its next
        start, or with the next one. Raises ValueError for an invalid command, LookupError for an unknown job or task.
        """
        self._refuse_closed()
        world = self.world
        row = InboxRow(verb, kind, target, request_id or world.ids.new(), arguments, world.clock.time())
        check_row(row)
        self._check_target(kind, text(target, "a target"))
        number = world.journal.put(row)
        world.note("inbox", number, verb, kind, target)
        if ring:
            world.later(0.0, "notify", self._ring)
        return number

    def _check_target(self, kind: str, target: str) -> None:
        """Raise LookupError for an unknown job or task; other unknown targets give an answer."""
        job_id, _, name = target.rpartition("/") if kind == "task" else (target, "", "")
        if kind not in {"job", "task"}:
            return
        known(job_id, self._job_ids(), "there is no job")
        if kind == "task" and (tasks := list(SimulatedJob(self, job_id).tasks())):
            known(name, tasks, f"job {job_id!r} has no task")

    def _job_ids(self) -> list[str]:
        """The ids of all jobs, durable or not."""
        runtime = self.world.runtime
        living = [] if runtime is None else list(runtime.host.jobs)
        return list(dict.fromkeys([*(job.id for job in self.world.journal.jobs(limit=MANY)), *living]))

    def _ring(self) -> None:
        if (runtime := self.world.runtime) is not None:
            runtime.look_into_inbox()

    def answer(self, row: int) -> str | None:
        """The answer to a command of the inbox, as JSON; None before the answer."""
        return self.world.journal.answer(row)

    def _wait_until_open(self) -> None:
        runtime = self.runtime
        if not runtime.opened:
            self.run_until(
                lambda: runtime.opened or self.world.opening_failed(), within=PATIENCE, what="the runtime to open"
            )
            self.world.raise_if_not_opened()

    def at(self, span: Duration, action: Callable[[], object]) -> PlannedEvent:
        """Call `action` after that duration, as for a fault. Returns a happening that can be cancelled."""
        self._refuse_closed()
        what, instead = "the action of sim.at", "give it uncalled, as in sim.at(span, sim.crash)"
        action = plain(action, what, instead)
        return self.world.later(
            duration(span, "the delay of sim.at"), "fault", lambda: not_awaited(action(), what, instead)
        )

    # -- faults --------------------------------------------------------------------------------------------------------

    def crash(self, *, down: Duration = 0.0, restart: bool = True) -> None:
        """Kill the runtime at once, as by SIGKILL: all data that is not durable is lost.

        A new runtime opens on the durable data, `down` later, unless `restart` is False.
        """
        self._refuse_closed()
        self.world.crash()
        if duration(down, "down"):
            self.advance(down)
        if restart:
            self.restart()

    def crash_after(self, label: str, *, task: str | None = None) -> None:
        """Crash once, as soon as the durable step of that label has ended and is kept, before its body goes on.

        label: "ask_model" for the first step of that name, "ask_model#3" for the third. task: its task, as "build" or
        "JOB/build"; any by default. A new runtime opens at once. A step that never ended is warned of at the end.
        """
        self._refuse_closed()
        self.world.crashes_after.append((first_plain(text(label, "the label of a step")), task, self.crash))

    def restart(self) -> None:
        """Open a runtime on the durable data. It recovers in the steps that follow."""
        if self.world.runtime is not None:
            raise SimulationError("the runtime is alive: crash() it first")
        self.world.open()

    def fail_journal(self, reason: str = "no space left on device", *, lasts: Duration | None = None) -> None:
        """Let the journal fail to write from now on, until `mend_journal`, or for that duration."""
        world = self.world
        world.note("journal fails", reason)
        world.journal.fail(reason)
        if lasts is not None:
            world.later(duration(lasts, "lasts"), "fault", self.mend_journal)

    def mend_journal(self) -> None:
        """Let the journal write again."""
        self.world.note("journal mended")
        self.world.journal.mend()

    def slow_journal(self, most: Duration) -> None:
        """Let each commit take up to that duration; the seed decides how long. 0: no extra time."""
        self.world.journal.latency = duration(most, "a commit's longest time")

    def tell_again(self, token: int) -> bool:
        """Deliver the result of that attempt again, as a late or duplicate one. False if it is unknown."""
        if isinstance(token, bool) or not isinstance(cast("object", token), int):
            raise TypeError(f"a token is an int, as in job.task(name).record.token; not {token!r:.60}")
        for of_token, again in reversed(self.world.results()):
            if of_token == token:
                self.world.note("doubled", token)
                self.world.later(0.0, "doubled", again)
                return True
        return False


def _check_ref(ref: object) -> None:
    if not isinstance(ref, Ref | MachineRef | EntityRef):
        raise TypeError(f"a message goes to a reference, which spawn() returns; {ref!r:.60} is none")


def _close(world: World) -> None:
    world.close()
