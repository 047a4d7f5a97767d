"""The runtime for tests of async applications: on the test's own event loop, in virtual time.

    async with VirtualRuntime() as runtime:
        app = MyApplication(runtime)
        await app.release()
        await runtime.advance("72h")

Rules
-----
- It is a `Runtime`, with all its verbs; applications see no difference. Its clock stands still until `advance`.
- `advance` goes from one due time to the next, and waits at each until all consequences have settled: the runtime has
  no work, its decisions are durable, and every task of the event loop waits.
- Only the runtime's time is virtual. A sleep of the event loop, in the application or in a body,
  takes real time: give such a body a script, or let it `await runtime.sleep(...)`.
- Work in threads takes no virtual time: it has ended before time advances (`real_threads.py`).
- Closing the runtime does not wait: running bodies are stopped at once, and their tries are given back.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, cast

import anyio
from anyio.lowlevel import checkpoint

from ...actors.kernel.transaction import Transaction
from ...actors.messages.notices import Notice
from ...actors.times import Duration
from ..dispatch.clock import TimeOrderedIds, VirtualClock
from ..dispatch.runners import RunnerPool
from ..dispatch.timers import Timer
from ..flows.flows import Flows
from ..journal.contract import Journal
from ..journal.query_threads import QueryThreads
from ..lifespan.opening import MakePlatform
from .arguments import amount, duration, limit, not_awaited, plain
from .entity_states import EntityDescriber
from .planned_event import PlannedEvent
from .real_threads import RealThreads, see_executor
from .scripted import START, WORKERS, ScriptedPlatform, ScriptedRuntime
from .scripts import Script, Scripted, Scripts, Takes, script_of, script_of_step
from .trace import Trace

TICK = 0.002
"""Seconds between the end of a journal and the time at which the next runtime on it begins: ids that have the same
milliseconds could be the same, since the same seed makes the same choices.
"""
ROUNDS = 20
"""The number of idle turns of the event loop after which its tasks are examined."""


class _LoopWorld:
    """The world of a runtime that the test's event loop drives."""

    def __init__(self, seed: int, start: float, *, runs_functions: bool) -> None:
        self.random = Random(seed)  # noqa: S311 - the same seed must give the same choices
        self.clock = VirtualClock(start)
        self.scripts = Scripts()
        self.unscripted = Script(name="")
        self.runs_functions = runs_functions
        self.closing = False
        self.frozen: set[str] = set()
        self.down: set[str] = set()
        self.trace = Trace(None)
        self.notices: list[Notice] = []
        self.started: list[tuple[str, str, int]] = []
        self.arm: Callable[..., Timer]

    def later(self, delay: float, what: str, action: Callable[..., object], *args: Any) -> PlannedEvent:
        """Call `action(*args)` after `delay` seconds."""
        event = PlannedEvent(what, action, args)
        self.arm(self.clock.monotonic() + delay, event.happen)
        return event

    def turned(self, turn: Transaction) -> None:
        """A turn of the actors has ended."""
        self.scripts.saw(turn)
        if turn.transitions:
            self.note("turn", turn.transitions)

    def note(self, what: str, *facts: Any) -> None:
        """Write into the trace."""
        self.trace.add(self.clock.monotonic(), what, facts)

    def began(self, kind: str, owner: str, token: int) -> None:
        """A call has really started."""
        self.started.append((kind, owner, token))

    def remember(self, token: int, again: Callable[[], None]) -> None:
        """Do nothing: results are delivered once here."""

    def noticed(self, notice: Notice) -> None:
        """The runtime has emitted a notice."""
        self.notices.append(notice)
        self.note("notice", notice.severity, notice.event, notice.entity_id or "")

    def take_trouble(self, notice: Notice) -> None:
        """Do nothing: `noticed` has kept the notice."""


class _CountedQueries(QueryThreads):
    """Queries of the journal, which are counted: virtual time does not advance meanwhile."""

    asked = 0
    answered: anyio.Event

    async def in_thread(self, ask: Callable[..., Awaitable[Any]], question: Callable[..., Any], *args: Any) -> Any:
        if not self.asked:
            self.answered = anyio.Event()
        self.asked += 1
        try:
            return await super().in_thread(ask, question, *args)
        finally:
            self.asked -= 1
            answered, self.answered = self.answered, anyio.Event()
            answered.set()


class _Platform(ScriptedPlatform):
    def new_queries(self) -> QueryThreads:
        return _CountedQueries(self._services.check_here, self._services.journal)

    async def open_engines(self, runners: RunnerPool, flows: Flows) -> None:
        see_executor()
        await self._go_on_in_time()  # the journal is loaded now, and nothing has read the clock for it
        await super().open_engines(runners, flows)

    async def _go_on_in_time(self) -> None:
        """Move the clock behind the last transition of the journal, if it shows an earlier time."""
        journal, last, clock = self._services.journal, self._services.hub.told, self._world.clock
        if not last:
            return
        rows = await self._services.read_own(lambda: [*journal.reader.transitions(after=last - 1, limit=1)])
        behind = max((row.at for row in rows), default=0.0) + TICK - clock.time()
        if behind > 0:
            clock.jump_utc(behind)


class VirtualRuntime(ScriptedRuntime):
    """A `Runtime` in virtual time, on the present event loop.

    seed: decides all random choices. start: UTC epoch seconds of its beginning; if the journal has records of a later
    time, it begins right after those, as a restart does. functions: "run" runs functions without
    a script for real, on the event loop, plain ones too; "succeed" lets them succeed at once. Commands never
    run. journal, and all other `settings`: as `Runtime` takes them.
    """

    def __init__(
        self,
        journal: str | Path | Journal | None = None,
        *,
        seed: int = 0,
        start: float = START,
        functions: str = "run",
        **settings: Any,
    ) -> None:
        if functions not in {"run", "succeed"}:
            raise ValueError(f'functions is "run" or "succeed", not {functions!r}')
        self._loop_world = _LoopWorld(seed, start, runs_functions=functions == "run")
        clock = self._loop_world.clock
        usual = {"workers": WORKERS, "ids": TimeOrderedIds(clock, self._loop_world.random), "drain_deadline": 0.0}
        super().__init__(self._loop_world, journal, **{**usual, **settings})
        self._loop_world.arm = self._arm
        self._threads = RealThreads()

    # -- scripts -------------------------------------------------------------------------------------------------------

    def body(
        self,
        name: str,
        run: Callable[..., Any] | None = None,
        *,
        returns: Any = None,
        outcomes: Sequence[Scripted] | Scripted | None = None,
        takes: Takes = 0.0,
        **more: Any,
    ) -> Script:
        """Set the behaviour of functions and commands of that name: `Simulation.body`."""
        script = script_of(name, run, returns=returns, outcomes=outcomes, takes=takes, **more)
        self._loop_world.scripts.add(script)
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
        """Set the behaviour of durable steps of that name: `Simulation.step_body`."""
        script = script_of_step(name, run, returns=returns, outcomes=outcomes, takes=takes)
        self._loop_world.scripts.add_step(script)
        return script

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> VirtualClock:
        """The virtual clock of the runtime."""
        return self._loop_world.clock

    async def advance(self, span: Duration) -> None:
        """Let that much time pass, with all steps in it; returns when these have settled."""
        clock = self._loop_world.clock
        until = clock.monotonic() + duration(span, "what advance takes")
        await self.settle()
        while (due := self._services.dispatcher.timers.next_due()) is not None and due <= until:
            clock.advance(max(0.0, due - clock.monotonic()))
            await self.settle()
        clock.advance(until - clock.monotonic())
        await self.settle()

    async def run_until(self, condition: Callable[[], object], *, within: Duration | None = None) -> None:
        """Let time pass, moment by moment, until the condition holds.

        Raises AssertionError if it does not hold within that duration, or nothing is left to happen.
        """
        clock = self._loop_world.clock
        instead = "read the state in it: job.ended, job.state"
        condition = plain(condition, "a condition", instead)
        until = limit(within, clock.monotonic())
        await self.settle()
        while not (holds := condition()):
            due = self._services.dispatcher.timers.next_due()
            if due is None or (until is not None and due > until):
                if until is not None:
                    clock.advance(until - clock.monotonic())
                why = "nothing is left to happen" if due is None else f"it did not come within {within}"
                where = EntityDescriber(clock, self._loop_world.trace, self._services.host.kernel).of_all()
                raise AssertionError(f"waited for the condition to hold, and {why}{where}\n{self.told()}")
            clock.advance(max(0.0, due - clock.monotonic()))
            await self.settle()
        not_awaited(holds, "a condition", instead)

    async def settle(self) -> None:
        """Wait until all consequences so far have happened. No virtual time passes."""
        quiet = 0
        while True:
            before = self._loop_world.trace.count
            await checkpoint()
            if not self._services.status.running or self._services.status.broken is not None:
                return
            if self._questions.asked:
                await self._questions.answered.wait()
            elif self.journal.tail != self.journal.durable:
                await self._services.host.moved()
            elif self._threads.busy:
                await self._threads.until_done()
            else:
                await self._threads.let_run()  # one that waits for the event loop may just go on
            quiet = quiet + 1 if self._idle and self._loop_world.trace.count == before else 0
            if quiet >= ROUNDS:
                await anyio.wait_all_tasks_blocked()
                if self._idle and self._loop_world.trace.count == before:
                    return
                quiet = 0

    async def sleep(self, span: Duration) -> None:
        """Wait until that much virtual time has passed."""
        over = anyio.Event()
        self._arm(self._loop_world.clock.monotonic() + duration(span, "what sleep takes"), over.set)
        await over.wait()

    def jump_utc(self, seconds: float) -> None:
        """Set the wall clock forward or back by so many seconds; timers that are due by it fire at once."""
        self._loop_world.clock.jump_utc(amount(seconds, "the change of the wall clock"))
        self.look_at_clock()

    def _platform(self) -> MakePlatform:
        return partial(_Platform, self, self._world)

    @property
    def _questions(self) -> _CountedQueries:
        return cast(_CountedQueries, self._services.queries)

    @property
    def _idle(self) -> bool:
        dispatcher = self._services.dispatcher
        durable = self.journal.tail == self.journal.durable
        quiet = dispatcher.parked and not dispatcher.has_work and not self._questions.asked
        return durable and quiet and not self._threads.busy

    def _arm(self, due: float, action: Callable[..., object], *args: Any) -> Timer:
        return self._services.dispatcher.timers.arm(due, action, *args)

    # -- what happened -------------------------------------------------------------------------------------------------

    @property
    def notices(self) -> list[Notice]:
        """The notices of the runtime, in order."""
        return self._loop_world.notices

    @property
    def started(self) -> list[tuple[str, str, int]]:
        """The calls that really started, in order: (kind, id of its task or workstream, fencing token)."""
        return self._loop_world.started

    @property
    def trace(self) -> Trace:
        """The trace of all steps."""
        return self._loop_world.trace

    def told(self) -> str:
        """The end of the trace, as failures show it."""
        return f"the end of the trace:\n{self._loop_world.trace.excerpt()}"

    async def close(self) -> None:
        """Close the runtime without waiting. An unused script gives a warning."""
        self._loop_world.closing = True
        await super().close()
        self._warn()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop_world.closing = True
        if error is not None and isinstance(error, Exception):
            error.add_note(self.told())
        await super().__aexit__(kind, error, traceback)
        if error is None:
            self._warn()

    def _warn(self) -> None:
        for warning in self._loop_world.scripts.for_nothing():
            warnings.warn(warning, stacklevel=3)
