"""How time passes in a simulation, and the failure if an awaited event does not come.

Rules
-----
- A wait lasts as long as anything happens, or for the given duration. Without a duration, a wait ends when the
  simulation runs in circles (`livelock.py`).
- A failure shows where the awaited entity is (`entity_states.py`), the seed, and the end of the trace, once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from ...actors.records.transition import Transitioned
from ...actors.times import Duration
from .arguments import amount, duration, in_words, limit, not_awaited, plain
from .entity_states import EntityDescriber
from .errors import SimulationError
from .world import PATIENCE, World


class TimeControl:
    """The part of `Simulation` that lets time pass."""

    seed: int
    world: World

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.world.clock.monotonic()

    @property
    def time(self) -> float:
        """UTC epoch seconds."""
        return self.world.clock.time()

    def step(self) -> bool:
        """Run one step that is due now. False if none is due: then time must pass."""
        self._refuse_closed()
        with self._telling():
            return self.world.step()

    def settle(self) -> None:
        """Run all steps that are due now, commits too, unless the journal is slow. No time passes."""
        self._refuse_closed()
        with self._telling():
            self.world.settle()

    def advance(self, span: Duration) -> None:
        """Let that much time pass, with all steps in it."""
        self._refuse_closed()
        world = self.world
        until = world.clock.monotonic() + duration(span, "what advance takes")
        with self._telling():
            world.settle()
            while world.go_on(until):
                pass
            world.move_to(until)
            world.settle()

    def run(self, *, within: Duration | None = None) -> None:
        """Let time pass until nothing is left to happen, or for that duration at most.

        Raises AssertionError if no duration is given, and the simulation runs in circles.
        """
        self._refuse_closed()
        world = self.world
        until = limit(within, world.clock.monotonic())
        with self._telling():
            world.livelock.began()
            world.settle()
            while world.go_on(until):
                if until is None and (why := world.livelock.told):
                    raise AssertionError(f"waited until nothing would be left to happen, and {why}")

    def run_until(self, condition: Callable[[], object], *, within: Duration | None = None, what: str = "") -> None:
        """Let time pass, moment by moment, until the condition holds.

        The condition is called after each step, so the state that it reads may not be durable yet: `settle` makes it
        durable. Raises AssertionError if it does not hold within that duration, or nothing is left to happen; without a
        duration, also if the simulation runs in circles.
        """
        self._pass_until(condition, within, what or "the condition to hold", lambda: self.entity_states().of_all())

    def _pass_until(
        self, condition: Callable[[], object], within: Duration | None, said: str, where: Callable[[], str]
    ) -> None:
        """`run_until`. where: describes the present state, on lines of its own, for the failure."""
        self._refuse_closed()
        world = self.world
        instead = "read the state in it: job.state, sim.worker(name).state"
        condition = plain(condition, "a condition", instead)
        until = limit(within, world.clock.monotonic())
        with self._telling():
            world.livelock.began()
            while not (holds := condition()):
                if world.step() or world.loop.wait_for_threads():
                    continue
                due = world.next_due()
                if due is None:
                    raise AssertionError(f"waited for {said}, and nothing is left to happen{self._waiting()}{where()}")
                if until is not None and due > until:
                    world.move_to(until)
                    raise AssertionError(
                        f"waited {in_words(within)} for {said}: it did not come{self._waiting()}{where()}"
                    )
                if until is None and (why := world.livelock.told):
                    raise AssertionError(f"waited for {said}, and {why}{where()}")
                world.move_to(due)
            not_awaited(holds, "a condition", instead)

    def entity_states(self) -> EntityDescriber:
        """The description of the present state, for failures."""
        world = self.world
        return EntityDescriber(world.clock, world.trace, None if world.runtime is None else world.runtime.host.kernel)

    def come_to(
        self,
        state: str,
        *,
        name: str,
        is_there: Callable[[], bool],
        is_its: Callable[[Transitioned], bool],
        within: Duration | None,
        where: Callable[[], str],
    ) -> None:
        """Let time pass until an entity is durably in that state, or has passed through it.

        A turn may pass through several states, which only its transitions show. where: describes the entity's present
        state, for the failure. Raises as `run_until`.
        """
        world = self.world
        end = limit(within, self.now)
        came: list[Transitioned] = []

        def watch(rows: Sequence[Transitioned]) -> None:
            came.extend(row for row in rows if state in {row.to_state, row.phase} and is_its(row))

        world.watchers.append(watch)
        try:
            self._pass_until(lambda: came or is_there(), within, f"{name} to be {state}", where)
            while not self._written(f"the journal to have that {name} is {state}"):
                came.clear()  # a crash undid the transition: it must happen again
                left = None if end is None else max(end - self.now, 0.0)
                self._pass_until(lambda: came or is_there(), left, f"{name} to be {state}", where)
        finally:
            world.watchers.remove(watch)

    def _written(self, what: str) -> bool:
        """Let time pass until the past is durable. False if a crash came first."""
        world = self.world
        crashes, tail = world.crashes, world.journal.tail
        self.run_until(lambda: world.crashes > crashes or world.journal.durable >= tail, within=PATIENCE, what=what)
        return world.crashes == crashes

    def _waiting(self) -> str:
        """The running bodies without an end of their own, for failures."""
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

    def jump_utc(self, seconds: float) -> None:
        """Set the wall clock forward or back by so many seconds, as an operator does; no time passes.

        The runtime notices it within a minute.
        """
        world = self.world
        by = amount(seconds, "the change of the wall clock")
        world.clock.jump_utc(by)
        world.note("wall clock", f"{by:+g} s")
        world.later(world.random.uniform(0, 60), "fault", self._look_at_clock)

    def _look_at_clock(self) -> None:
        if (runtime := self.world.runtime) is not None:
            runtime.look_at_clock()

    # -- failures --------------------------------------------------------------------------------------------------

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
        scripts = f"; these scripts were not used: {unused}" if unused else ""
        return f"seed {self.seed}{scripts}; the end of the trace:\n{self.world.trace.excerpt()}"

    @contextmanager
    def _telling(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            self._tell(error)
            raise

    def _tell(self, error: BaseException) -> None:
        """Add the trace to a failure, unless it has the trace already."""
        if not any("the end of the trace:" in note for note in getattr(error, "__notes__", ())):
            error.add_note(self.told())

    def _refuse_closed(self) -> None:
        if self.world.closed:
            raise SimulationError("this simulation is closed: use it inside its `with` block")
