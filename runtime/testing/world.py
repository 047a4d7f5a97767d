"""The world of a simulation: its time, its random choices, its happenings, and a runtime in it.

How it goes on
--------------
1. At the present moment, the possible steps are *happenings* (a commit, a body's end, a scripted fault), a message or
   timer for the actors, and a turn of the event loop. The seed decides which of them comes next.
2. When no step is due, the clock moves to the next moment at which one is.

Rules
-----
- Every step is in the trace. The same seed and the same calls give the same
  trace, byte for byte: there is one `Random`, and no other source of chance.
- Messages of actors keep their order, and so do timers. The seed mixes only steps without a promised order.
- A crash may come between any two steps. Committed data survives; the runtime's actors, its
  bodies and its pending answers do not. Scripts, the state of workers and the inbox belong to the world, and survive.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from random import Random
from typing import Any

from ...actors.kernel.transaction import Transaction
from ...actors.messages.notices import Notice
from ...actors.records.step import StepRecord
from ...actors.records.transition import Transitioned
from ..dispatch.clock import TimeOrderedIds, VirtualClock
from ..functions.registry import Bodies
from .journal import SimulatedJournal
from .livelock import LivelockDetector
from .loop import SimulatedLoop
from .planned_event import PlannedEvent
from .runtime import SimulatedRuntime
from .scripts import Script, Scripts
from .trace import Trace

_RUN = re.compile(r"@\d+(?=/|$)")  # the number of a run in an id
REMEMBERED = 1_000
"""The number of results that can be delivered again."""
PATIENCE = 86_400.0
"""Simulated seconds that a command's answer, or a commit, may take."""


class World:
    """The surroundings of a runtime. `settings` are those of `Runtime`."""

    def __init__(
        self,
        seed: int,
        *,
        start: float,
        runs_functions: bool,
        trace: int | None,
        settings: dict[str, Any],
    ) -> None:
        self.seed = seed
        self.random = Random(seed)  # noqa: S311 - the same seed must give the same choices
        self.clock = VirtualClock(start)
        self.ids = TimeOrderedIds(self.clock, self.random)
        self.bodies = Bodies()
        self.scripts = Scripts()
        self.unscripted = Script(name="")
        self.runs_functions = runs_functions
        self.trace = Trace(trace)
        self.closing = False
        self.closed = False
        self.frozen: set[str] = set()  # names of workers that do nothing and answer nothing
        self.down: set[str] = set()  # names of workers that do not come up
        self.journal = SimulatedJournal(self)
        self.livelock = LivelockDetector(self)
        self.crashes = 0
        self.crashes_after: list[tuple[str, str | None, Callable[[], object]]] = []  # (label, task, what crashes it)
        self.notices: list[Notice] = []
        self.started: list[tuple[str, str, int]] = []  # (kind, owner's id, token) of all calls that really started
        self.watchers: list[Callable[[Sequence[Transitioned]], object]] = []  # are called with decided transitions
        self.buried: list[SimulatedLoop] = []  # loops of crashed runtimes
        self._settings = settings
        self._agenda: list[tuple[float, int, PlannedEvent]] = []
        self._ready: list[PlannedEvent] = []  # due now
        self._planned = 0
        self._results: deque[tuple[int, Callable[[], None]]] = deque(maxlen=REMEMBERED)
        self._opening: asyncio.Task[None]
        self.runtime: SimulatedRuntime | None = None
        self.loop = SimulatedLoop(self.clock.monotonic)

    # -- happenings ---------------------------------------------------------------------------------------

    def later(self, delay: float, what: str, action: Callable[..., object], *args: Any) -> PlannedEvent:
        """Call `action(*args)` after `delay` seconds."""
        event = PlannedEvent(what, action, args)
        if delay <= 0:
            self._ready.append(event)
        else:
            self._planned += 1
            heappush(self._agenda, (self.clock.monotonic() + delay, self._planned, event))
        return event

    def step(self) -> bool:
        """Run one step that is due now. False if none is."""
        now = self.clock.monotonic()
        agenda, ready = self._agenda, self._ready
        while agenda and agenda[0][0] <= now:
            ready.append(heappop(agenda)[2])
        runtime, loop = self.runtime, self.loop
        actors = runtime is not None and runtime.has_work
        turn = loop.has_work
        count = len(ready) + actors + turn
        if not count:
            return False
        chosen = int(self.random.random() * count) if count > 1 else 0
        if chosen < len(ready):
            event = ready.pop(chosen)
            with loop.here():
                event.happen()
        elif actors and chosen == len(ready) and runtime is not None:
            with loop.here():
                runtime.step()
        else:
            loop.turn()
        self.livelock.stepped()
        return True

    def next_due(self) -> float | None:
        """When the next step is due (monotonic seconds); None if there is none."""
        agenda = self._agenda
        while agenda and agenda[0][2].action is None:
            heappop(agenda)
        times = [agenda[0][0]] if agenda else []
        if self.runtime is not None and (due := self.runtime.next_due()) is not None:
            times.append(due)
        if (due := self.loop.next_due()) is not None:
            times.append(due)
        return min(times) if times else None

    def settle(self) -> None:
        """Run all steps that are due now."""
        while True:
            while self.step():
                pass
            if not self.loop.wait_for_threads():
                return

    def move_to(self, due: float) -> None:
        """Move the clock on to a moment at which a step is due."""
        ahead = due - self.clock.monotonic()
        if ahead > 0:
            self.clock.advance(ahead)
            self.livelock.moved()

    def go_on(self, until: float | None = None) -> bool:
        """Move to the next moment with a step, and run all its steps.

        False if there is none, or none until `until` (monotonic seconds).
        """
        due = self.next_due()
        if due is None or (until is not None and due > until):
            return False
        self.move_to(due)
        self.settle()
        return True

    # -- the runtime ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open a runtime on the durable data. It recovers in the steps that follow."""
        runtime = self.runtime = SimulatedRuntime(self, self.loop, **self._settings)
        self.note("opens")
        self._opening = self.loop.create_task(runtime.start())
        self.loop.turn()  # up to its first input

    def opening_failed(self) -> bool:
        """Whether the runtime could not be opened."""
        return self._opening.done() and self._opening.exception() is not None

    def raise_if_not_opened(self) -> None:
        """Raise the error of opening the runtime, if there is one."""
        if self._opening.done():
            self._opening.result()

    def crash(self) -> None:
        """Kill the runtime at once, as by SIGKILL; data that is not durable is lost."""
        if self.runtime is None:
            return
        self.runtime.crash()
        lost = self.journal.crash()
        self.crashes += 1
        self.note("crash", lost)
        self.runtime = None
        self._ready = [event for event in self._ready if event.what == "fault"]
        self._agenda = [entry for entry in self._agenda if entry[2].what == "fault"]
        self.buried.append(self.loop)
        self.loop = SimulatedLoop(self.clock.monotonic)

    def kept(self, steps: Iterable[StepRecord]) -> bool:
        """Steps are durable, and their bodies do not know it yet. True if a crash that the test requested came here."""
        for step in steps:
            self.note("step", step.task_id, step.label, "forgotten" if step.dropped else step.state)
            if step.dropped:  # a further run begins before it
                continue
            for asked in self.crashes_after if step.ended_at is not None else ():
                label, task, crash = asked
                job, _, name = _RUN.sub("", step.task_id).rpartition("/")
                if label == step.label and task in {None, name, f"{job}/{name}", step.task_id}:
                    self.crashes_after.remove(asked)
                    crash()
                    return True
        return False

    def not_crashed(self) -> list[str]:
        """The requested crashes that did not happen, in words."""
        return [
            f"sim.crash_after({label!r}) did not crash: no such step has ended" + (f" in task {task!r}" if task else "")
            for label, task, _ in self.crashes_after
        ]

    def close(self) -> None:
        """Close the runtime, its journal and its loops."""
        self.closed = True
        if self.runtime is not None:
            self.runtime.crash()
            self.runtime = None
        bury([*self.buried, self.loop])
        self.buried.clear()
        self.trace.let_go()

    # -- the trace --------------------------------------------------------------------------------------------------

    def note(self, what: str, *facts: Any) -> None:
        """Write into the trace."""
        self.trace.add(self.clock.monotonic(), what, facts)

    def turned(self, turn: Transaction) -> None:
        """A turn of the actors has ended."""
        self.scripts.saw(turn)
        if turn.transitions:
            self.note("turn", turn.transitions)
            self.livelock.turned(turn.transitions)
            for watch in self.watchers:
                watch(turn.transitions)

    def began(self, kind: str, owner: str, token: int) -> None:
        """A call has really started."""
        self.livelock.began()
        self.started.append((kind, owner, token))

    def noticed(self, notice: Notice) -> None:
        """The runtime has emitted a notice."""
        self.notices.append(notice)
        self.note("notice", notice.severity, notice.event, notice.entity_id or "")

    def take_trouble(self, notice: Notice) -> None:
        """Do nothing: `noticed` has kept the notice."""

    def remember(self, token: int, again: Callable[[], None]) -> None:
        """A result was delivered; it can be delivered again."""
        self._results.append((token, again))

    def results(self) -> list[tuple[int, Callable[[], None]]]:
        """The last results, by their tokens, oldest first: each can be delivered again."""
        return list(self._results)


def bury(loops: list[SimulatedLoop]) -> None:
    """Cancel the coroutines on loops, and close the loops."""
    for loop in loops:
        if loop.is_closed():
            continue
        loop.set_exception_handler(_not_told)
        for _ in range(3):
            tasks = asyncio.all_tasks(loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            with suppress(Exception):
                loop.turn()
        loop.close()


def _not_told(*_: Any) -> None:
    """Do nothing: an ended loop's errors are not reported."""
