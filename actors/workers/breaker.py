"""The circuit breaker: one per tool, shared by all its tasks.

Rules
-----
- The breaker receives how each attempt of its tool ended (`Verdict`). An attempt that began under an older generation
  changes nothing; neither does an end that says nothing about the tool ("returned": cancelled, lost, drained, an error
  that the tool's settings ignore). An operator's command begins a generation, too.
- When the breaker opens, the queued tasks of the tool are removed from the queue and told to park; later tasks check
  the breaker themselves, and park.
- Parked tasks wait in their order. When the cooldown is over, the first task that can start now (its worker has room,
  no limit is full, nothing is paused) gets the one permit; if the permit comes back unused, the next task gets it. If
  no task can start, the first of all gets the permit, and returns it as soon as another task could start: the breaker
  checks that a moment after slots became free, or tasks or workers were added. When the breaker closes, all parked
  tasks are reset, in their order.
- A probe whose body waits (for an approval, a child job), or that is cancelled and runs its hooks, passes the permit
  on: the next task probes, too. The first probe's result still counts, if it ends in the same period.
- Steps of running bodies that use the tool (`tool_uses.py`) wait for it and probe it as tasks do, but are not parked:
  they stay in their line. The key of the probe is then that of the use.
- If there are many tasks, `CHUNK` of them are informed in a turn. The remaining ones follow from the records (queued at
  a breaker that is not closed, parked at a closed one), so a crash in between loses nothing; if the breaker changes its
  state in between, it goes on from there.
- A success while `closed` with no failure counted changes nothing, and is not journaled.
- The breaker rests until the time that the tool named in a `RetryAfter`, the latest of several: none of the tool's
  tasks starts before, in any state. That is neither a failure nor a success. A restart keeps the rest, an operator's
  reset ends it.

If several nodes share the journal, each node has a breaker of its own for every tool, and all of them agree:
- A breaker that has opened or closed, by itself or by an operator's command, reports that (`news`); the breakers of
  other nodes receive it (`ToolHeard`), and open or close as well. A breaker with unsent news ignores older messages.
- After the cooldown a breaker does not probe at once, since another node may probe. It signals (`Kernel.notify_nodes`),
  and probes once it is told that no other node does. This right ends with a restart, and when the breaker has no task
  that can start now to probe with; then other nodes may probe.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar, cast

from msgspec.structs import replace

from ...machines import BREAKER, BreakerState, Event, TaskState, WorkstreamState
from ..kernel.entity import Entity, Receivers, States
from ..messages.commands import ResetBreaker, TripBreaker
from ..messages.inputs import (
    PERMIT,
    RESET,
    TRIP,
    Continue,
    Queued,
    RestTool,
    TimerFired,
    ToolHeard,
    TurnFailed,
    Verdict,
)
from ..records.entities import BreakerRecord
from ..records.task import TaskRecord

if TYPE_CHECKING:
    from ..kernel.transaction import ArmedTimer
    from ..tasks.task import TaskActor
    from .queues import TaskQueue
    from .tool_uses import ToolUses
    from .workforce import Workforce

PAUSED = WorkstreamState.PAUSED
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
CHUNK = 500
"""Number of tasks that are told to park, or to go on, in one turn."""
JUDGED = frozenset({Event.FAIL, Event.SUCCEED})
"""The verdicts that say something about the tool."""
LOOK_AGAIN = 1.0
"""Seconds between a change that may let a parked task start, and the check whether one can."""
LOOK_EPOCH = 0
"""The epoch of the timer of that check, which stays armed in every state."""
REST_EPOCH = -1
"""The epoch of the timer that ends the rest, which stays armed in every state."""


class BreakerActor(Entity[BreakerRecord]):
    """The breaker of one tool."""

    __slots__ = ("failed", "left", "looks", "parked", "rests", "tries_since", "waits", "workforce")

    machine = BREAKER
    moments = ("not_before",)
    by_utc = frozenset({OPEN})

    def __init__(self, workforce: Workforce, record: BreakerRecord) -> None:
        super().__init__(workforce.kernel, record)
        self.workforce = workforce
        self.parked: list[tuple[int, int, int, TaskActor]] = []
        self.left: list[TaskActor] = []  # tasks removed from the queue that have not got the message to park yet
        self.failed = False  # the last turn raised: the breaker does not go on automatically
        self.looks: ArmedTimer | None = None  # the timer of the next check whether a task can start
        self.rests: ArmedTimer | None = None  # the timer that ends its rest
        self.waits = 0  # the key of the last task that passed its permit on while its attempt goes on
        self.tries_since = 0  # `record.agreed` at the time when this node got the right to probe; 0: it has not

    def clear(self) -> None:
        """Drop the lists of tasks before a rebuild, and arm the timers."""
        self.parked, self.left = [], []
        self.failed = False
        self.arm_again()
        if self.record.not_before is not None:
            self._rest()

    @property
    def uses(self) -> ToolUses:
        """The steps that use tools."""
        return self.workforce.scheduler.tool_uses

    @property
    def closed(self) -> bool:
        """Whether the tool's tasks may start freely."""
        return self.record.state == CLOSED

    @property
    def waiting(self) -> int:
        """The number of tasks and steps that wait for the breaker."""
        tasks = len(self.left) + sum(entry[3].parked_at_tool or entry[3].put_off for entry in self.parked)
        return tasks if self.closed else tasks + self.uses.count(self.record.name)

    @property
    def says_nothing(self) -> bool:
        """Whether the breaker is closed, without failures, a rest, waiting tasks, or steps that use the tool."""
        record = self.record
        counts = record.failures or record.not_before is not None or self.uses.uses(record.name)
        return record.state == CLOSED and not counts and not self.parked and not self.left

    def retry_in(self) -> float:
        """Seconds until the cooldown is over."""
        return max(0.0, (self.record.due_at or 0.0) - self.kernel.at)

    @property
    def tries(self) -> bool:
        """Whether this node may probe the tool: only one node at a time may."""
        return not self.kernel.node or self.record.agreed == self.tries_since != 0

    @property
    def news(self) -> bool:
        """Whether the breaker's state must still be sent to the other nodes."""
        return self.record.agreed is None

    @property
    def could_try(self) -> bool:
        """Whether a parked task or a waiting step could start now to probe the tool."""
        if self.workforce.scheduler.stopped:
            return False
        parked = bool(self.parked) and self._first_to_start() is not None
        return parked or self.uses.first_to_start(self.record.name) is not None

    def lets_start(self, task: TaskRecord) -> bool:
        """Whether a queued task may start: any task while the breaker is closed, else the task with the permit."""
        return self.record.state == CLOSED or (self.record.probe == task.key and self.tries)

    # -- waiting tasks -------------------------------------------------------------------------------------------------

    def keep(self, task: TaskActor) -> None:
        """Add a parked task to the waiting ones."""
        heappush(self.parked, (-task.priority, task.record.place, task.record.key, task))

    def put_off(self, task: TaskActor) -> None:
        """Add a queued task that has yet to get the message to park (after a rebuild)."""
        self.left.append(task)

    def park(self, task: TaskActor) -> None:
        """Keep a task until the tool is healthy, or until the task may probe it."""
        self.keep(task)
        if self.record.state == CLOSED:  # the task was a probe, and an operator has reset the breaker meanwhile
            self.on_continue()
        else:
            self.offer_again()

    def offer_again(self) -> None:
        """Offer the permit, if it is free."""
        if self.record.state == HALF_OPEN and self.record.probe is None:
            self._offer()
        elif self.record.state == HALF_OPEN:
            self.look_soon()
        elif self.kernel.node and self.record.state == OPEN and self.retry_in() == 0:
            self._ask_to_try()

    def _ask_to_try(self) -> None:
        """Request the right to probe for this node; repeat the request when further tasks could start."""
        self.workforce.scheduler.probing[self.record.name] = self
        self.kernel.notify_nodes()

    def go_on(self) -> None:
        """Continue unfinished work after a restart or an undone turn."""
        probe, kernel = self.record.probe, self.kernel
        alive = probe in kernel.entities or self.uses.of_key(probe) is not None
        if probe is not None and (probe in kernel.stuck or not alive or not self.tries):
            self.change(probe=None)
            self.uses.step_back(self.record.name)
        if self.record.state == HALF_OPEN:
            self.workforce.scheduler.probing[self.record.name] = self
        if not self.failed and (self.left or (self.parked and self.record.state == CLOSED)):
            kernel.port.later(Continue(self.record.key))
        self.offer_again()

    def on_continue(self, _: Continue | None = None) -> None:
        """Inform the next chunk of tasks: to park, or to go on if the breaker is closed."""
        send = self.kernel.send
        if self.record.state == CLOSED:
            for _count in range(CHUNK):
                task = self._next()
                if task is None:
                    break
                if task.parked_at_tool:
                    send(task, RESET)
                else:
                    send(self.workforce.scheduler, Queued(task.record.key))
            more = bool(self.parked)
        else:
            some, self.left = self.left[:CHUNK], self.left[CHUNK:]
            for task in some:
                send(task, TRIP)
            more = bool(self.left)
        if more:
            self.kernel.port.later(Continue(self.record.key))

    def _offer(self) -> None:
        """Give the permit to the first task or step that can start now; if none can, and the node is alone, to the
        first.
        """
        if not self.tries:
            self._ask_to_try()
            return
        name, uses = self.record.name, self.uses
        self.workforce.scheduler.probing[name] = self
        entry, step = self._first_to_start(), uses.first_to_start(name)
        if step is not None and (entry is None or step < entry[:3]):
            self.change(probe=uses.permit(name))
            return
        task = self._take(entry) or (None if self.kernel.node else self._first_not_paused())
        if task is not None:
            self.change(probe=task.record.key)
            self.kernel.send(task, PERMIT)
        elif self.kernel.node:  # another node may have a task that can start
            self.tries_since = 0
            self.kernel.notify_nodes()
        elif (key := uses.permit(name)) is not None:
            self.change(probe=key)

    def _first_not_paused(self) -> TaskActor | None:
        passed: list[TaskActor] = []
        while (task := self._next()) is not None and task.stream.record.state == PAUSED:
            passed.append(task)
        for one in passed:
            self.keep(one)
        return task

    def _take(self, entry: tuple[int, int, int, TaskActor] | None) -> TaskActor | None:
        """Remove a parked task, and return it."""
        if entry is None:
            return None
        self.parked.remove(entry)
        heapify(self.parked)
        return entry[3]

    def _first_to_start(self) -> tuple[int, int, int, TaskActor] | None:
        """The entry of the first parked task that can start now. O(parked tasks); each queue is checked once."""
        room = self.workforce.scheduler.room_for
        asked: dict[TaskQueue, bool] = {}
        best: tuple[int, int, int, TaskActor] | None = None
        for entry in self.parked:
            task = entry[3]
            if task.parked_at_tool and (best is None or entry < best) and room(task, asked):
                best = entry
        return best

    def look_soon(self) -> None:
        """Check a moment later which task can start, after a change that may let one start."""
        if self.looks is None:
            port = self.kernel.port
            self.looks = port.arm(port.now() + LOOK_AGAIN, TimerFired(self.record.key, LOOK_EPOCH), by_utc=False)

    def _look(self) -> None:
        """Pass the permit on, if its task cannot start and another task could."""
        kernel, record = self.kernel, self.record
        self.looks = None
        self.workforce.scheduler.probing.pop(record.name, None)
        probe = kernel.entities.get(record.probe or 0)
        use = self.uses.of_key(record.probe) if probe is None else None
        if record.state == HALF_OPEN and use is not None:
            if not use.held:
                self.workforce.scheduler.probing[record.name] = self
                if kernel.node:  # else nothing that waits for this tool can start, either
                    self.uses.step_back(record.name)
                    kernel.send(self, Verdict(use.key, 0, "returned"))
        elif record.state == HALF_OPEN and probe is not None:
            task = cast("TaskActor", probe)
            if task.record.state != TaskState.HALF_OPEN:
                return  # the probe runs
            self.workforce.scheduler.probing[record.name] = self
            if kernel.node or self._first_to_start() is not None:
                task.step_back("another task may try the tool first: this one cannot start now")
        else:
            self.offer_again()

    def _next(self) -> TaskActor | None:
        while self.parked:
            _, _, _, task = heappop(self.parked)
            if task.parked_at_tool or task.put_off:
                return task
        return None

    # -- results of attempts -------------------------------------------------------------------------------------------

    def on_verdict(self, verdict: Verdict) -> None:
        """Count the result of an attempt."""
        record = self.record
        returned = record.probe == verdict.task
        if returned:
            self.change(probe=None)
        if verdict.event == "waits":
            self.waits = verdict.task
        elif self.waits == verdict.task:
            self.waits = 0
        if verdict.event in JUDGED and verdict.generation == record.generation:
            (self._failed if verdict.event == Event.FAIL else self._succeeded)()
        elif returned and record.state == HALF_OPEN:
            self._offer()

    def _failed(self) -> None:
        record = self.record
        if record.state == OPEN:
            return
        opens = record.state == HALF_OPEN or record.failures + 1 >= record.failure_threshold
        changed = replace(record, failures=record.failures + 1)
        if opens:
            changed = replace(changed, generation=record.generation + 1, probe=None, successes=0)
        self.fire(Event.FAIL, changed, due_at=self.kernel.at + record.cooldown if opens else None)
        if opens:
            self._tell()

    def _succeeded(self) -> None:
        record = self.record
        if record.state == HALF_OPEN:
            self.fire(Event.SUCCEED, replace(record, successes=record.successes + 1))
            if self.record.state != HALF_OPEN:
                self._tell()
            elif self.record.probe is None:  # otherwise this task had passed the probe on, and another task probes
                self._offer()
        elif record.state == CLOSED and record.failures:
            self.fire(Event.SUCCEED, replace(record, failures=0))

    # -- resting -------------------------------------------------------------------------------------------------------

    def on_rest(self, message: RestTool) -> None:
        """Rest until the time that the tool named."""
        if message.until > max(self.kernel.at, self.record.not_before or 0.0):
            self.change(not_before=message.until)
            self._rest()

    def _rest(self) -> None:
        self._disarm_rest()
        due = self.record.not_before or 0.0
        self.rests = self.kernel.port.arm(due, TimerFired(self.record.key, REST_EPOCH), by_utc=False)
        self.workforce.scheduler.rest(self.record.name, resting=True)

    def _rested(self) -> None:
        """End the rest: the tool's tasks may start again."""
        self._disarm_rest()
        if self.record.not_before is not None:
            self.change(not_before=None)
            self.workforce.scheduler.rest(self.record.name, resting=False)

    def _disarm_rest(self) -> None:
        if self.rests is not None:
            self.kernel.port.disarm(self.rests)
            self.rests = None

    # -- states --------------------------------------------------------------------------------------------------------

    def entered_open(self) -> None:
        """Remove the tool's tasks from the queue, and park them until the cooldown is over."""
        self.uses.shut(self.record.name)
        self.left += self.workforce.scheduler.withdraw(self.record.name)
        if self.parked:  # these have not got the message to go on; some have not even got the message to park
            self.left += [entry[3] for entry in self.parked if entry[3].put_off]
            self.parked = [entry for entry in self.parked if not entry[3].put_off]
            heapify(self.parked)
        if self.left:
            self.on_continue()

    def entered_half_open(self) -> None:
        """Let one task probe the tool."""
        self.failed = False
        if self.left:
            self.on_continue()
        self._offer()

    def entered_closed(self) -> None:
        """Let all waiting tasks go on, in their order."""
        self.change(failures=0, successes=0, probe=None)
        for task in self.left:
            self.keep(task)
        self.left = []
        self.uses.opened(self.record.name)
        if self.parked:
            self.on_continue()

    def on_timer(self, message: TimerFired) -> None:
        """Receive the timer of the cooldown, of the check for startable tasks, or of the rest."""
        if message.epoch == LOOK_EPOCH:
            self._look()
            return
        if message.epoch == REST_EPOCH:
            self._rested()
            return
        if message.epoch != self.record.epoch:
            return
        if self.kernel.node:
            self._ask_to_try()
        else:
            self.fire(Event.COOL_DOWN)

    def on_turn_failed(self, message: TurnFailed) -> None:
        """Wait for another cooldown, since the last turn was undone; or open, if closed with parked tasks."""
        if self.record.state == OPEN:
            self.failed = True
            self.wait_until(self.kernel.at + self.record.cooldown)
        elif self.record.state == CLOSED and self.parked:
            self.on_trip(TripBreaker(f"internal error: {message.error}"))

    def disarm_all(self) -> None:
        """Cancel the breaker's timers."""
        self.disarm()
        if self.looks is not None:
            self.kernel.port.disarm(self.looks)
            self.looks = None
        self._disarm_rest()

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Have the new state sent to the other nodes."""
        if self.kernel.node:
            self.change(agreed=None)
            self.kernel.notify_nodes()

    def on_heard(self, message: ToolHeard) -> None:
        """Enter the state that all nodes have agreed on."""
        record = self.record
        if record.seq != message.answers if record.agreed is None else message.generation <= record.agreed:
            return  # the breaker has a change of its own, or has received a later message
        agreed = message.generation
        self.tries_since = agreed if message.tries else 0
        if message.state == CLOSED:
            if record.state == CLOSED:
                self.change(agreed=agreed)
            else:
                changed = self._begin_period(agreed)
                self.fire(Event.RESET, changed, reason=message.reason)
        elif message.tries:
            if record.state == CLOSED:
                self._trip(message)
            if self.record.state == OPEN:
                self.fire(Event.COOL_DOWN, replace(self.record, agreed=agreed))
            else:
                self.change(agreed=agreed)
                self.offer_again()
        elif record.state == OPEN:
            self.change(agreed=agreed)
            if message.due_at is not None:
                self.wait_until(message.due_at)
        elif record.state == HALF_OPEN and record.probe is None and (message.due_at or 0.0) <= self.kernel.at:
            self.change(agreed=agreed)  # this node has let other nodes probe; the message may show such a probe
        else:
            self._trip(message)

    def _trip(self, message: ToolHeard) -> None:
        """Open, since another node has found that the tool is not healthy."""
        self.fire(Event.TRIP, self._begin_period(message.generation), reason=message.reason, due_at=message.due_at)

    def _begin_period(self, agreed: int | None) -> BreakerRecord:
        """The record with a new generation: attempts that began before do not count any more."""
        record = self.record
        return replace(record, generation=record.generation + 1, failures=0, successes=0, probe=None, agreed=agreed)

    # -- operators -----------------------------------------------------------------------------------------------------

    def on_reset(self, message: ResetBreaker) -> None:
        """Close for an operator: the tool is healthy. Attempts that began before do not count any more."""
        changed = self._begin_period(self.record.agreed)
        self.fire(Event.RESET, changed, reason=message.reason, metadata=_told(message.by))
        self._rested()
        self._tell()

    def on_trip(self, message: TripBreaker) -> None:
        """Open for an operator: the tool is not healthy."""
        record = self.record
        changed = self._begin_period(record.agreed)
        self.fire(Event.TRIP, changed, reason=message.reason, metadata=_told(message.by))
        self.wait_until(self.kernel.at + (record.cooldown if message.cooldown is None else message.cooldown))
        self._tell()

    # -- tables --------------------------------------------------------------------------------------------------------

    receivers: ClassVar[Receivers] = {
        Verdict: on_verdict, RestTool: on_rest, Continue: on_continue, ResetBreaker: on_reset, TripBreaker: on_trip,
        TimerFired: on_timer, ToolHeard: on_heard, TurnFailed: on_turn_failed,
    }  # fmt: skip

    when_entered: ClassVar[States] = {
        CLOSED: entered_closed, OPEN: entered_open, HALF_OPEN: entered_half_open,
    }  # fmt: skip


def _told(by: str | None) -> dict[str, str] | None:
    return None if by is None else {"by": by}
