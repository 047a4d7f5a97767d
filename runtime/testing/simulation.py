"""Simulation: a runtime under a test's hand, in virtual time, without an event loop around it.

    with Simulation(seed=7) as sim:
        sim.body("build", takes="3m", returns=1)
        job = sim.submit(Workstream("release", tasks=[Task("build", run=build)]))
        assert job.run().ok

Rules
-----
- Nothing sleeps and nothing happens by itself: time passes in `advance`, `run`, `run_until`, and in verbs that have to
  wait.
- The same seed and the same calls give the same trace. Another seed gives another order of what has none.
- What fails says the seed, and shows the end of the trace.
"""

from __future__ import annotations

import asyncio
import re
import weakref
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, overload

from ...actors.actor import Actor
from ...actors.dead_letters import DeadLetter
from ...actors.machine_kind import MachineActor
from ...actors.notices import Notice
from ...actors.ref import Ref
from ...actors.spec import Duration, Worker, Workstream, seconds
from ...actors.transitions import Transitioned
from ..consistency import examine
from ..imported import under_trio
from ..journal.contract import InboxRow
from ..machines import MachineRef
from .errors import SimulationError
from .handles import SimulatedBreaker, SimulatedJob, SimulatedWorker
from .happenings import Happening
from .probes import Probe, ProbeActor
from .runtime import SimulatedRuntime
from .scripted import START, WORKERS
from .scripts import Script, Scripted, Takes, script_of
from .trace import Trace
from .world import PATIENCE, World

T = TypeVar("T")
_NOT_SETTINGS = frozenset({"clock", "ids", "journal", "jsonl", "outputs", "random"})
_RUN = re.compile(r"@\d+")


class Asked:
    """A command that was given, and is not waited for. A crash leaves it open for ever, as it would its caller."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    @property
    def answered(self) -> bool:
        """Whether it was answered, with a value or a refusal."""
        return self._task.done()

    @property
    def error(self) -> BaseException | None:
        """What it was refused with; None where it was not, or not yet."""
        return self._task.exception() if self._task.done() else None

    @property
    def value(self) -> Any:
        """Its answer. Raises what it was refused with, SimulationError where there is none yet."""
        if not self._task.done():
            raise SimulationError("it was not answered yet")
        return self._task.result()


class Simulation:
    """A runtime in virtual time.

    seed: what decides in which order things happen that are due at the same moment, and whatever else is drawn.
    workers, and all other `settings`: as `Runtime` takes them (not jsonl, clock, random, ids). start: UTC epoch seconds
    at which it begins. functions: "run" has functions that no script stands for run for real, async ones too, in
    virtual time; "succeed" has them succeed at once. Commands are never run. trace: how many steps are kept for
    it (None: all).
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
        self._expected: dict[str, int] = {}  # the last transition of each entity that was expected, by its number
        self._closing = weakref.finalize(self, _close, self.world)
        self.world.open()
        self.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not _is_told(error):
            error.add_note(self.told())
        self.close()

    def close(self) -> None:
        """Let go of everything. What still ran unwinds, unseen."""
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
        """Say what runs under that name does, functions and commands alike, from now on. See `scripts.py` for names.

        run: a function to be called in its place, plain or async. returns, or outcomes: what comes of it where there is
        none, attempt by attempt; the last one stays. takes: how long it runs, or a pair: between the two. heartbeat:
        how often it tells that it lives, with these details. stops_in: how long it needs to stop when it is told to.
        ignores_stop: it does not. late: its result is told even where it was abandoned, or its worker is gone.
        """
        script = script_of(
            name, run, returns=returns, outcomes=outcomes, takes=takes, heartbeat=heartbeat, details=details,
            stops_in=stops_in, ignores_stop=ignores_stop, late=late,
        )  # fmt: skip
        self.world.scripts.add(script)
        return script

    def task(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function under its name, as `Runtime.task` does; it stays known over crashes."""
        return self.runtime.task(func)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    @property
    def runtime(self) -> SimulatedRuntime:
        """The runtime as it is now; another one after each crash. Raises SimulationError while there is none."""
        if self.world.runtime is None:
            raise SimulationError("the runtime crashed, and was not restarted yet: call restart()")
        return self.world.runtime

    def submit(self, workstream: Workstream, *, id: str | None = None, by: str | None = None) -> SimulatedJob:  # noqa: A002
        """Take a job; returns when it is durable. Raises as `Runtime.submit`."""
        handle = self.do(lambda: self.runtime.submit(workstream, id=id, by=by), what="submit")
        return SimulatedJob(self, handle.id)

    def job(self, job_id: str) -> SimulatedJob:
        """The job of that id, living or ended. Raises LookupError if there is none."""
        job = SimulatedJob(self, job_id)
        _ = job.record
        return job

    def worker(self, name: str) -> SimulatedWorker:
        """A worker by its name. Raises LookupError if there is none; one of capacity n on processes is n workers."""
        known = self.runtime.host.kernel.named
        if name not in known:
            raise LookupError(f"there is no worker {name!r}; there are: {', '.join(known) or 'none'}")
        return SimulatedWorker(self, name)

    def breaker(self, tool: str) -> SimulatedBreaker:
        """The circuit breaker of a tool."""
        return SimulatedBreaker(self, tool)

    # -- actors --------------------------------------------------------------------------------------------------------

    @overload
    def spawn(self, actor: MachineActor, *, name: str | None = None) -> MachineRef: ...
    @overload
    def spawn(
        self, actor: type[Actor] | Callable[[], Actor] | Actor, *, name: str | None = None, **options: Any
    ) -> Ref: ...
    def spawn(self, actor: Any, *, name: str | None = None, **options: Any) -> Ref | MachineRef:
        """Start an actor, as `Runtime.spawn` does. One that is no `MachineActor` is gone after a crash."""
        self._wait_until_open()
        with self.world.loop.here():
            ref: Ref | MachineRef = self.runtime.spawn(actor, name=name, **options)
        self.settle()
        return ref

    def machine(self, name: str) -> MachineRef:
        """The `MachineActor` of that name, ended or not; after a crash, as it was durable. Raises LookupError."""
        self._wait_until_open()
        return self.runtime.machine(name)

    def ask(self, ref: Ref | MachineRef, message: Any, *, timeout: float | None = 5.0) -> Any:
        """Ask an actor; returns its answer, and raises what that is refused with."""
        self.note(f"asks {ref.name}", message)
        return self.do(lambda: ref.ask(message, timeout=timeout), what=f"{ref.name} to answer")

    def tell(self, ref: Ref | MachineRef, message: Any) -> bool:
        """Tell an actor something, and have everything happen that it causes now. False where it was not taken."""
        with self.world.loop.here():
            taken = ref.tell(message)
        self.settle()
        return taken

    def probe(self, name: str | None = None) -> Probe:
        """An actor that keeps what it is sent, for a test to expect it."""
        actor = ProbeActor()
        return Probe(self, actor, self.spawn(actor, name=name))

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """Messages that nobody took, with the reason, the last ones."""
        return self.runtime.host.dispatcher.dead_letters.newest()

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds that have passed since the beginning."""
        return self.world.clock.monotonic()

    @property
    def time(self) -> float:
        """UTC epoch seconds."""
        return self.world.clock.time()

    def step(self) -> bool:
        """Have one thing happen that is due now. False if nothing is: then only time brings something."""
        with self._telling():
            return self.world.step()

    def settle(self) -> None:
        """Have everything happen that is due now, commits too, unless the journal is slow. No time passes."""
        with self._telling():
            self.world.settle()

    def advance(self, span: Duration) -> None:
        """Have that much time pass, with all that happens in it."""
        world = self.world
        with self._telling():
            until = world.clock.monotonic() + seconds(span)
            world.settle()
            while world.go_on(until):
                pass
            world.move_to(until)
            world.settle()

    def run(self, *, within: Duration | None = None) -> None:
        """Have time pass until nothing is left to happen, or for that duration at most."""
        world = self.world
        with self._telling():
            until = None if within is None else world.clock.monotonic() + seconds(within)
            world.settle()
            while world.go_on(until):
                pass

    def run_until(self, condition: Callable[[], object], *, within: Duration | None = None, what: str = "") -> None:
        """Have time pass, moment by moment, until the condition holds. It is asked after each step, so what it saw may
        not be durable yet: `settle` has it be.

        Raises AssertionError where it does not within that duration, or nothing is left to happen.
        """
        world = self.world
        said = what or "the condition to hold"
        with self._telling():
            until = None if within is None else world.clock.monotonic() + seconds(within)
            while not condition():
                if world.step() or world.loop.wait_for_threads():
                    continue
                due = world.next_due()
                if due is None:
                    raise AssertionError(f"waited for {said}, and nothing is left to happen{self._waiting()}")
                if until is not None and due > until:
                    world.move_to(until)
                    raise AssertionError(f"waited {within} for {said}: it did not come{self._waiting()}")
                world.move_to(due)

    def _waiting(self) -> str:
        """What runs and has no end of its own."""
        runtime = self.world.runtime
        if runtime is None:
            return "; the runtime crashed, and was not restarted"
        waiting = [run.owner for engine in runtime.engines.values() for run in engine.runs if run.running is not None]
        if not waiting:
            return ""
        return (
            f"; these bodies run on, and wait for what no simulation has (a socket, another process): "
            f"{', '.join(waiting)}. Give them a script: sim.body(name, returns=...)"
        )

    def expect_transition(
        self,
        entity: str,
        *,
        to: str | None = None,
        event: str | None = None,
        within: Duration = 0.0,
    ) -> Transitioned:
        """Have time pass until an entity takes that transition, durably; returns it. Each is expected once, in order.

        entity: its id, or "job/task" for whatever run. within: none unless said: what is due now. Raises AssertionError
        where it does not come, with what came instead.
        """
        found: list[Transitioned] = []

        def came() -> bool:
            for row in self.world.journal.transitions(after=self._expected.get(entity, 0)):
                fits = to in {None, row.to_state} and event in {None, row.event}
                if fits and entity in {row.entity_id, _without_run(row.entity_id)}:
                    found.append(row)
                    return True
            return False

        wanted = " ".join(filter(None, [event, to and f"-> {to}"])) or "a transition"
        path = " -> ".join(
            row.to_state
            for row in self.world.journal.transitions()
            if entity in {row.entity_id, _without_run(row.entity_id)}
        )
        self.settle()
        self.run_until(came, within=within, what=f"{entity} to take {wanted} (it went: {path or 'nowhere'})")
        self._expected[entity] = found[0].seq
        return found[0]

    def jump_utc(self, span: float) -> None:
        """Set the wall clock forward or back by so many seconds, as somebody who corrects it; no time passes. It is
        noticed within a minute, as the runtime does.
        """
        world = self.world
        world.clock.jump_utc(span)
        world.note("wall clock", f"{span:+g} s")
        world.later(world.random.uniform(0, 60), "fault", self._look_at_clock)

    def _look_at_clock(self) -> None:
        if (runtime := self.world.runtime) is not None:
            runtime.look_at_clock()

    # -- commands ------------------------------------------------------------------------------------------------------

    def do(self, ask: Callable[[], Awaitable[T]], *, what: str = "", within: Duration = PATIENCE) -> T:
        """Run a coroutine function in the simulation; returns what it returns, and raises what it raises.

        Time passes where it has to. Raises AssertionError where no answer comes within that duration.
        """
        self._wait_until_open()
        asked = self.begin(ask, what=what)
        self.run_until(lambda: asked.answered, within=within, what=f"an answer to {what or 'a coroutine'}")
        value: T = asked.value
        return value

    def begin(self, ask: Callable[[], Awaitable[Any]], *, what: str = "") -> Asked:
        """Begin to run a coroutine function in the simulation, and wait for nothing."""
        if what:
            self.world.note("asked", what)

        async def asking() -> Any:
            return await ask()

        return Asked(self.world.loop.create_task(asking()))

    def put(
        self, verb: str, kind: str, target: str, *, request_id: str | None = None, ring: bool = True, **arguments: Any
    ) -> int:
        """Put a command into the journal's inbox, as `callboard approve` in another terminal does. Returns its number.

        `answer` says what came of it. ring: whether the runtime hears of it now; else it finds it at its next start, or
        with the next one.
        """
        world = self.world
        request_id = request_id or world.ids.new()
        row = InboxRow(verb, kind, target, request_id, arguments, world.clock.time())
        number = world.journal.put(row)
        world.note("inbox", number, verb, kind, target)
        if ring:
            world.later(0.0, "bell", self._ring)
        return number

    def _ring(self) -> None:
        if (runtime := self.world.runtime) is not None:
            runtime.bell()

    def answer(self, row: int) -> str | None:
        """The answer to a command of the inbox, as JSON; None while there is none."""
        return self.world.journal.answer(row)

    def _wait_until_open(self) -> None:
        runtime = self.runtime
        if not runtime.opened:
            self.run_until(
                lambda: runtime.opened or self.world.opening_failed(), within=PATIENCE, what="the runtime to open"
            )
            self.world.raise_if_not_opened()

    def at(self, span: Duration, action: Callable[[], object]) -> Happening:
        """Have that done in so much time from now, whatever happens until then: a fault, say. It can be cancelled."""
        return self.world.later(seconds(span), "fault", action)

    # -- faults --------------------------------------------------------------------------------------------------------

    def crash(self, *, down: Duration = 0.0, restart: bool = True) -> None:
        """Kill the runtime at once, as by SIGKILL: all that it had not made durable is lost. Another one is opened on
        what was, `down` later, unless `restart` is False.
        """
        self.world.crash()
        if seconds(down):
            self.advance(down)
        if restart:
            self.restart()

    def restart(self) -> None:
        """Open a runtime on what is durable. It recovers in the steps that follow."""
        if self.world.runtime is not None:
            raise SimulationError("the runtime lives: crash() it first")
        self.world.open()

    def fail_journal(self, reason: str = "no space left on device", *, lasts: Duration | None = None) -> None:
        """Have the journal fail to write from now on, until `mend_journal`, or for that duration."""
        world = self.world
        world.note("journal fails", reason)
        world.journal.fail(reason)
        if lasts is not None:
            world.later(seconds(lasts), "fault", self.mend_journal)

    def mend_journal(self) -> None:
        """Have the journal write again."""
        self.world.note("journal mended")
        self.world.journal.mend()

    def slow_journal(self, most: Duration) -> None:
        """Have each commit take up to that duration; how long, the seed says. 0: as long as everything else."""
        self.world.journal.latency = seconds(most)

    def tell_again(self, token: int) -> bool:
        """Have the result of that attempt told once more, as a late or doubled one. False if it is not known."""
        for known, again in reversed(self.world.results()):
            if known == token:
                self.world.note("doubled", token)
                self.world.later(0.0, "doubled", again)
                return True
        return False

    # -- what happened -------------------------------------------------------------------------------------------------

    @property
    def transitions(self) -> list[Transitioned]:
        """All transitions that are durable, in order."""
        return list(self.world.journal.transitions())

    def path(self, entity_id: str) -> list[str]:
        """The states that an entity went through, durably: "job", "job@1", "job@1/task", "worker#1"."""
        return [row.to_state for row in self.world.journal.transitions(entity_id=entity_id)]

    @property
    def notices(self) -> list[Notice]:
        """What the runtime has noticed, in order."""
        return self.world.notices

    @property
    def started(self) -> list[tuple[str, str, int]]:
        """What really began to run, in order: (kind, id of its task or workstream, fencing token)."""
        return self.world.started

    @property
    def trace(self) -> Trace:
        """Everything that happened."""
        return self.world.trace

    def findings(self) -> list[str]:
        """What is wrong with all that is durable, as `callboard check` finds it, in words; none if it is in order."""
        lifecycles = [] if self.world.runtime is None else self.world.runtime.lifecycles.own
        found = examine(self.world.journal, lifecycles=lifecycles).found
        return [f"{one.kind}: {one.entity_id or ''} {one.text}" for one in found if one.severity == "error"]

    def check(self) -> None:
        """Raise AssertionError where the transitions break a rule or an invariant, or an actor has failed in a turn."""
        with self._telling():
            found = [*self.findings(), *(one.text for one in self.world.notices if one.event == "turn_undone")]
            if found:
                raise AssertionError("the journal is not in order:\n" + "\n".join(found))

    def note(self, what: str, *facts: Any) -> None:
        """Write something into the trace."""
        self.world.note(what, *facts)

    def fail(self, text: str) -> NoReturn:
        """Raise AssertionError, with the seed and the end of the trace."""
        with self._telling():
            raise AssertionError(text)

    def told(self) -> str:
        """The seed, and the end of the trace, as failures show them."""
        unused = ", ".join(map(repr, self.world.scripts.unused))
        scripts = f"; by these scripts nothing ran: {unused}" if unused else ""
        return f"seed {self.seed}{scripts}; the end of the trace:\n{self.world.trace.excerpt()}"

    @contextmanager
    def _telling(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if not _is_told(error):
                error.add_note(self.told())
            raise


def _is_told(error: BaseException) -> bool:
    """Whether it shows the trace already."""
    return any("the end of the trace:" in note for note in getattr(error, "__notes__", ()))


def _without_run(entity_id: str) -> str:
    return _RUN.sub("", entity_id)


def _close(world: World) -> None:
    world.close()
