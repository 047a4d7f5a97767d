"""The engines of a simulation: they follow scripts, or run functions in virtual time.

Rules
-----
- One per kind of worker ("loop", "thread", "process", "command", "ray"), all alike. They follow the engines' contract:
  one end for each call, never inside `start` or `stop`.
- A function without a script runs for real (`functions="run"`): a plain one at once, an async one on
  the simulation's loop. A command never runs: it succeeds at once.
- A frozen worker answers nothing: the end of a call on it is reported when the worker is back. A dead worker has lost
  its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isawaitable, iscoroutine
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
import msgspec

from ...actors.messages.errors import FlowAsleep
from ...actors.times import seconds
from ..calling import Ended, ErrorInfo, Outcome
from ..dispatch.clock import VirtualClock
from ..dispatch.runners import BodyCancelled, Running
from ..engines.base import BaseEngine, Run
from ..engines.context import connection_of
from ..engines.contract import Beat, Call
from ..engines.failures import describe
from ..engines.invocation import bind
from ..engines.receiving import ReceiveBody
from ..functions.import_paths import follow
from ..functions.signatures import is_async
from ..values import checked
from .flows import ScriptedFlows
from .scripts import Dies, Exits, Fails, Hangs, Script, Scripted, Scripts, Succeeds, drawn

if TYPE_CHECKING:
    from .planned_event import PlannedEvent
    from .scripted import ScriptedRuntime


CANNOT_WAIT = (
    "a plain function cannot wait in a simulation, where it is called on the loop: give it a script "
    "(sim.body(name, returns=...)), or an async function in its place, which awaits it"
)


class EngineWorld(Protocol):
    """The parts of the simulation's world that engines use."""

    clock: VirtualClock
    random: Random
    scripts: Scripts
    unscripted: Script
    runs_functions: bool
    closing: bool  # the simulation is closing: calls end at once
    frozen: set[str]  # names of workers that do nothing and answer nothing
    down: set[str]  # names of workers that do not come up

    def later(self, delay: float, what: str, action: Callable[..., object], *args: Any) -> PlannedEvent:
        """Call `action(*args)` after `delay` seconds."""
        ...

    def note(self, what: str, *facts: Any) -> None:
        """Write into the trace."""
        ...

    def began(self, kind: str, owner: str, token: int) -> None:
        """A call has really started."""
        ...

    def remember(self, token: int, again: Callable[[], None]) -> None:
        """A result was delivered; it can be delivered again."""
        ...


class SimulatedRun(Run, kw_only=True, eq=False):
    """One running call. `owner` and `name` identify its purpose, `worker` the worker whose slot it has."""

    owner: str
    name: str
    worker: str | None = None
    incarnation: int = 0
    script: Script
    plan: Scripted | None = None  # None: a function runs
    end: PlannedEvent | None = None  # the planned end of the call
    next_heartbeat: PlannedEvent | None = None
    running: Running[Any] | None = None
    withheld: Outcome | None = None  # the outcome, if the call ended while its worker was frozen


class SimulatedEngine(BaseEngine[SimulatedRun]):
    """The engine of a kind of worker in a simulation."""

    def __init__(self, name: str, world: EngineWorld, runtime: ScriptedRuntime) -> None:
        super().__init__(clock=world.clock.monotonic)
        self.name = name
        self._world = world
        self._runtime = runtime
        self._dead: set[tuple[str, int]] = set()

    @property
    def runs(self) -> list[SimulatedRun]:
        """The running calls, oldest first."""
        return list(self._runs.values())

    # -- the contract --------------------------------------------------------------------------------------------------

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Start the call, by its script."""
        self._admit(call)
        run = self._run_of(call, ended, beat)
        world = self._world
        self._runs[call.token] = run
        world.note("begins", call.kind, run.owner, call.token)
        world.began(call.kind, run.owner, call.token)
        run.began = self.clock()
        script = run.script
        if script.heartbeat is not None:
            self._beat_later(run)
        function = script.run or (self._function(call) if script is world.unscripted else None)
        if function is not None:
            context = call.context or self._runtime.context_of(call)
            if context is not None:
                cannot = None if is_async(function) else CANNOT_WAIT
                connection_of(context).attach(partial(beat, call.token), raises=False, cannot_wait=cannot)
            flows = None
            if context is not None and call.kind == "body" and (found := connection_of(context).flows) is not None:
                flows = connection_of(context).flows = ScriptedFlows(found, world, run.owner)
            run.call = msgspec.structs.replace(call, func=function, context=context, flows=flows)
            # In a plain function, which is called on the loop and cannot wait, a step is a plain call.
            runners = self._runtime.runners
            variables = runners.context_of(call.about, None, run.call if is_async(function) else None)
            run.running = runners.submit(partial(self._body, run), partial(self._done, run), context=variables)
            return
        plan = run.plan = script.next(run.owner)
        if not isinstance(plan, Hangs):
            takes = drawn(script.takes if plan.takes is None else plan.takes, world.random)
            run.end = world.later(takes, "ends", self._ends, run)

    def _stop(self, run: SimulatedRun, *, force: bool) -> None:
        self._world.note("stop", run.owner, run.call.token, "force" if force else "")
        if force:
            self._world.later(0.0, "abandoned", self._abandon, run)
            return
        if (run.script.ignores_stop or run.withheld is not None) and not self._world.closing:
            return
        if run.running is not None:
            run.running.cancel()
        else:
            self._drop(run)
            needs = 0.0 if self._world.closing else seconds(run.script.stops_in)
            run.end = self._world.later(needs, "stops", self._stops, run)

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:
        """The tokens that run on a worker; None if it does not answer."""
        if not self._answers(worker, incarnation):
            return None
        return tuple(run.call.token for run in self._of(worker, incarnation))

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let its calls end by themselves until `deadline`; the others are lost."""
        self._world.later(deadline, "worker stopped", self.kill_worker, worker, incarnation)

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """End the calls of the worker as lost."""
        self._dead.add((worker, incarnation))
        for run in self._of(worker, incarnation):
            self._world.later(0.0, "lost", self._lose, run, "it was killed")

    # -- faults --------------------------------------------------------------------------------------------------------

    def die(self, worker: str, incarnation: int, reason: str) -> None:
        """Let an incarnation of a worker die."""
        if (worker, incarnation) not in self._dead:
            self._dead.add((worker, incarnation))
            self._runtime.worker_died(worker, incarnation, reason)
            for run in self._of(worker, incarnation):
                self._lose(run, reason)

    def thaw(self, worker: str, incarnation: int) -> None:
        """A frozen worker is back: deliver the outcomes of meanwhile, and a heartbeat."""
        if (worker, incarnation) in self._dead:
            return
        self._runtime.worker_alive(worker, incarnation, tuple(run.call.token for run in self._of(worker, incarnation)))
        for run in self._of(worker, incarnation):
            if (outcome := run.withheld) is not None:
                run.withheld = None
                self._tell(run, outcome)

    def _answers(self, worker: str, incarnation: int) -> bool:
        gone = (worker, incarnation) in self._dead
        return not gone and worker not in self._world.frozen and worker not in self._world.down

    def _of(self, worker: str, incarnation: int) -> list[SimulatedRun]:
        return [run for run in self._runs.values() if run.worker == worker and run.incarnation == incarnation]

    # -- the end of a run -----------------------------------------------------------------------------------------

    def _run_of(self, call: Call, ended: Ended, beat: Beat) -> SimulatedRun:
        job, name, owner = self._runtime.about(call)
        worker, incarnation = self._runtime.worker_of(call.token)
        if call.kind not in {"body", "hook"}:
            name = f"{name}.{call.kind}"
        elif call.kind == "hook":
            name = f"{name}.hook"
        script = self._world.scripts.find(job, name)
        return SimulatedRun(
            call=call, ended=ended, beat=beat, owner=owner, name=name, worker=worker, incarnation=incarnation,
            script=script or self._world.unscripted,
        )  # fmt: skip

    def _ends(self, run: SimulatedRun) -> None:
        """The scripted end of a run is due."""
        plan = run.plan
        if plan is None or (not run.script.late and self._runs.get(run.call.token) is not run):
            return
        if isinstance(plan, Dies):
            if run.worker is None:
                self._lose(run, plan.reason)
            else:
                self.die(run.worker, run.incarnation, plan.reason)
            return
        self._tell(run, self._came_of(run, plan))

    def _came_of(self, run: SimulatedRun, plan: Scripted) -> Outcome:
        command = run.call.command
        match plan:
            case Exits(code=code, output=output):
                expected = [0] if command is None else command.expected_exit_codes
                facts: dict[str, Any] = {
                    "exit_code": code, "output_tail": output, "output_size": len(output.encode()),
                }  # fmt: skip
                if code in expected:
                    return self._outcome(run, "ok", **facts)
                last = output.strip().rpartition("\n")[2]
                text = f"it exited with {code} (expected: {', '.join(map(str, expected))}){last and ': '}{last}"
                return self._outcome(run, "failed", error=ErrorInfo(type="exit_code", message=text), **facts)
            case Fails(error=error):
                raised = RuntimeError(error) if isinstance(error, str) else error
                info = describe(raised)
                return self._outcome(run, "failed", error=info, exit_code=None if command is None else 1)
            case _:
                value = cast("Succeeds", plan).value
                if command is not None and run.call.kind == "condition" and value is not None and not value:
                    return self._came_of(run, Exits(1))
                if command is not None:
                    code = next(iter(command.expected_exit_codes), 0)
                    text = "" if value is None else str(value)
                    return self._outcome(
                        run, "ok", exit_code=code, output_tail=text, output_size=len(text.encode())
                    )  # fmt: skip
                if value is None and run.call.kind in {"condition", "check"}:
                    value = True
                return self._returned(run, value)

    def _stops(self, run: SimulatedRun) -> None:
        self._tell(run, self._cancelled(run, "it was stopped"))

    def _lose(self, run: SimulatedRun, reason: str) -> None:
        if not run.script.late:
            self._drop(run)
        info = ErrorInfo(type="worker_lost", message=f"its worker was lost: {reason}", category="transient")
        self._tell(run, self._outcome(run, "lost", error=info))

    def _tell(self, run: SimulatedRun, outcome: Outcome) -> None:
        """Deliver a run's outcome; for a frozen worker, when it is back."""
        world = self._world
        if run.worker in world.frozen and outcome.status != "lost" and run.call.token in self._runs:
            run.withheld = outcome
            return
        late = self._runs.get(run.call.token) is not run
        world.note("late" if late else outcome.status, run.owner, run.call.token)
        if late:
            self.late_results += 1
        if run.next_heartbeat is not None:
            run.next_heartbeat.cancel()
        world.remember(run.call.token, partial(run.ended, outcome))
        if late:
            run.ended(outcome)
        else:
            self._end(run, outcome)

    def _abandon(self, run: SimulatedRun) -> None:
        if self._runs.get(run.call.token) is not run:
            return
        if run.running is not None:
            run.running.cancel()
        if not run.script.late:
            self._drop(run)
        if run.next_heartbeat is not None:
            run.next_heartbeat.cancel()
        self._world.note("abandoned", run.owner, run.call.token)
        super()._abandon(run)

    def _drop(self, run: SimulatedRun) -> None:
        if run.end is not None:
            run.end.cancel()

    def _beat_later(self, run: SimulatedRun) -> None:
        every = seconds(run.script.heartbeat or 0.0)
        run.next_heartbeat = self._world.later(every, "beat", self._beat, run)

    def _beat(self, run: SimulatedRun) -> None:
        if self._runs.get(run.call.token) is run:
            if run.worker not in self._world.frozen:
                run.beat(run.call.token, checked(run.script.details))
            self._beat_later(run)

    # -- functions -----------------------------------------------------------------------------------------------------

    def _function(self, call: Call) -> Callable[..., Any] | None:
        """The function of a call without a script. A task that only receives a message always does so. A step has its
        function at hand, for which there may be a script of its own.
        """
        if not self._world.runs_functions and not isinstance(call.func, ReceiveBody):
            return None
        if call.func is not None:  # an object that is called may be false
            return call.func
        return None if call.process is None else follow(call.process.function)

    async def _body(self, run: SimulatedRun) -> Any:
        takes = drawn(run.script.takes, self._world.random)
        if takes:
            await anyio.sleep(takes)
        value = bind(run.call)()
        if run.script.run is None and iscoroutine(value) and not is_async(cast("Any", run.call.func)):
            value.close()
            raise TypeError("the function returned a coroutine, which a runtime does not run; declare it `async def`")
        return await value if isawaitable(value) else value

    def _done(self, run: SimulatedRun, value: Any, error: BaseException | None) -> None:
        if self._runtime.gone or (self._runs.get(run.call.token) is not run and not run.script.late):
            return
        if error is None:
            self._tell(run, self._returned(run, value))
        elif isinstance(error, FlowAsleep):
            self._tell(run, self._cancelled(run, "it fell asleep"))
        elif isinstance(error, BodyCancelled):
            self._stops(run)
        else:
            self._tell(run, self._raised(run, error))
