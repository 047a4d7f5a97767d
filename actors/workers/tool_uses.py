"""The uses of tools by steps of running bodies: each holds a unit of its tool while its function runs.

Rules
-----
- A unit counts at the gate of its tool as a slot of an attempt of a task with that tool does: so all limits, shares of
  nodes and rests of the tool hold for steps, too. A step that waits stands in the line of that gate with the priority
  and the place of its task.
- While the breaker is not closed, the steps wait at a gate of their own, which is shut. A step that gets the permit to
  probe waits in a queue without that gate.
- A step that cannot have its unit at once is told so in the same turn: its body then lends its slot. Its record says
  that it waits, until it has the unit; a step that does not wait is journaled when it ends, as any other.
- The end of a use is reported to the breaker by the same rule as the end of an attempt. A cancelled or lost step gives
  no verdict.
- A unit is free when the step releases it, at the latest when its body has ended. None of this state is derived from
  records: after a restart the bodies run again, and their steps ask again.
- A step of a task that has the same tool takes no unit and gives no verdict: the attempt holds a unit, and gives the
  verdict.
"""

from __future__ import annotations

from heapq import heappop
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from ...machines import Event
from ..kernel.transaction import Answer, ToolUse
from ..messages.inputs import RestTool, Verdict
from ..records.step import HOLDS, WAITS
from ..spec.backoff import LONGEST_ASKED
from ..tasks import steps
from ..tasks.attempts import asks_for_later, counts_for, ran_short
from . import tools
from .queues import NO_LIMIT, ConcurrencyGate, Key, StepQueue, WaitingStep, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..messages.commands import LeaveTool, UseTool
    from ..messages.inputs import CallEnded
    from ..records.step import StepRecord
    from ..tasks.task import TaskActor
    from .scheduler import SchedulerActor

RETURNED = "returned"
"""The verdict of a use that says nothing about the tool."""


class ToolLine:
    """The steps that wait for one tool. shut: the gate that is open while the tool's breaker is closed."""

    __slots__ = ("permitted", "queue", "shut")

    def __init__(
        self, rest: ConcurrencyGate, gate: ConcurrencyGate, grant: Callable[[WaitingStep], None], *, closed: bool
    ) -> None:
        self.shut = ConcurrencyGate(NO_LIMIT if closed else 0)
        self.queue = StepQueue((self.shut, rest, gate), grant)
        self.permitted = StepQueue((rest, gate), grant)  # of the step that has the permit to probe the tool


class ToolUses:
    """The part of the scheduler for steps that use tools."""

    def __init__(self, scheduler: SchedulerActor) -> None:
        self.scheduler = scheduler
        self.kernel = scheduler.kernel
        self.workforce = scheduler.workforce
        self.clear()

    def clear(self) -> None:
        """Drop all derived state, before it is rebuilt."""
        self.lines: dict[str, ToolLine] = {}
        self.waiting: dict[tuple[int, int], tuple[StepQueue, WaitingStep]] = {}  # by token and number
        self.asked: list[WaitingStep] = []  # steps that have asked in this turn

    def rebuild(self) -> None:
        """Count the units in use, and put the waiting steps in line again."""
        kernel = self.kernel
        for token in list(kernel.uses):
            if token not in kernel.calls:
                del kernel.uses[token]
        for use in self._all():
            if use.held:
                self.scheduler.gates_of(use.tool)[1].used += 1
            else:
                line = self._line(use.tool)
                permitted = self.workforce.breakers[use.tool].record.probe == use.key
                self._put(line.permitted if permitted else line.queue, self._waiting(use))

    def _all(self) -> list[ToolUse]:
        return [use for of_body in self.kernel.uses.values() for use in of_body.values()]

    # -- for steps -----------------------------------------------------------------------------------------------------

    def ask(self, task: TaskActor, message: UseTool) -> None:
        """Put a step into the line of its tool. It is answered in this turn."""
        kernel = self.kernel
        breaker = tools.breaker_for_step(self.workforce, message.tool)
        use = ToolUse(
            kernel.number(), message.token, message.number, task.record.key, message.tool, message.step, message.reply,
            message.got,
        )  # fmt: skip
        kernel.note_use(use)
        waiting = self._waiting(use)
        self.asked.append(waiting)
        self._put(self._line(use.tool).queue, waiting)
        self.scheduler.match_soon()
        if not breaker.closed:
            breaker.offer_again()

    def tell_waiting(self) -> None:
        """Answer the steps that have asked in this turn and have to wait: their records say so durably."""
        kernel = self.kernel
        asked, self.asked = self.asked, []
        for waiting in asked:
            if waiting.ticket:
                use = kernel.uses[waiting.token][waiting.number]
                step = self._keep(use, WAITS)
                kernel.note_use(replace(use, waits=True, step=step))
                kernel.effect(Answer(use.reply, step))

    def grant(self, waiting: WaitingStep) -> None:
        """Give a step the unit that it waits for."""
        kernel = self.kernel
        use = kernel.uses[waiting.token][waiting.number]
        del self.waiting[use.token, use.number]
        waiting.ticket = 0
        self.scheduler.gates_of(use.tool)[1].used += 1
        kernel.count_invocation(use.tool)
        generation = self.workforce.breakers[use.tool].record.generation
        kernel.note_use(replace(use, held=True, generation=generation))
        if use.waits:
            self._keep(use, HOLDS)
            kernel.effect(Answer(use.got))
        else:
            kernel.effect(Answer(use.reply, use.step))

    def leave(self, message: LeaveTool) -> None:
        """Take back the unit of a step whose function has ended, or that does not wait for it any more."""
        kernel = self.kernel
        use = kernel.end_use(message.token, message.number)
        if use is None:  # the tool is the one of its task, or its body has ended
            kernel.effect(Answer(message.reply, None, steps.over()))
            return
        step = use.step
        if message.given_up is not None or (use.waits and (not use.held or message.ended.status == "gone")):
            drains = message.given_up is None and kernel.drain_began is not None  # it asks again
            at = None if drains else kernel.at
            step = self._keep(use, None, cancelled_at=at, given_up=message.given_up)
        kernel.effect(Answer(message.reply, step))
        self._free(use)
        self._judge(use, message.ended)

    def body_over(self, token: int) -> None:
        """Take back the units of a body that has ended."""
        for number in list(self.kernel.uses.get(token, ())):
            use = self.kernel.end_use(token, number)
            if use is not None:
                self._free(use)
                self._tell(use, RETURNED)

    def _free(self, use: ToolUse) -> None:
        scheduler = self.scheduler
        scheduler.match_soon()
        if not use.held:
            _, waiting = self.waiting.pop((use.token, use.number))
            waiting.ticket = 0
            return
        gate = scheduler.gates_of(use.tool)[1]
        gate.used -= 1
        if gate.waiting:
            scheduler.wake(gate)
        if scheduler.tool_quotas is not None:
            scheduler.tool_quotas.freed_at((gate,))
        if scheduler.reservations.at_work:
            scheduler.reservations.collect()

    def _judge(self, use: ToolUse, ended: CallEnded) -> None:
        """Tell the breaker how the function of a step has ended."""
        breaker, kernel = self.workforce.breakers[use.tool], self.kernel
        if ended.status == "ok":
            self._tell(use, Event.SUCCEED)
        elif ended.status != "failed":
            self._tell(use, RETURNED)
        elif asks_for_later(ended):
            self._tell(use, RETURNED)
            kernel.send(breaker, RestTool(kernel.at + min(ended.retry_after or 0.0, LONGEST_ASKED)))
        elif ran_short(self._task(use), ended):
            self._tell(use, RETURNED)
        else:
            self._tell(use, Event.FAIL if counts_for(breaker.record, ended.error_type, ended) else RETURNED)

    def _tell(self, use: ToolUse, event: str) -> None:
        self.kernel.send(self.workforce.breakers[use.tool], Verdict(use.key, use.generation, event))

    def _keep(
        self, use: ToolUse, tool_use: str | None, cancelled_at: float | None = None, given_up: str | None = None
    ) -> StepRecord:
        """Persist how a step uses its tool, if its attempt may still report steps. Returns its record."""
        task = self._task(use)
        step = replace(use.step, tool_use=tool_use, cancelled_at=cancelled_at, given_up=given_up)
        return steps.keep(task, step) if steps.may_keep(task, use.token) else step

    def _waiting(self, use: ToolUse) -> WaitingStep:
        return WaitingStep(use.token, use.number, key_of(self._task(use)))

    def _task(self, use: ToolUse) -> TaskActor:
        return cast("TaskActor", self.kernel.entities[use.task])

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _line(self, tool: str) -> ToolLine:
        line = self.lines.get(tool)
        if line is None:
            closed = self.workforce.breakers[tool].closed
            line = self.lines[tool] = ToolLine(*self.scheduler.gates_of(tool), self.grant, closed=closed)
        return line

    def _put(self, queue: StepQueue, waiting: WaitingStep) -> None:
        self.waiting[waiting.token, waiting.number] = queue, waiting
        self.scheduler.put_step(queue, waiting)

    def forget(self, tool: str) -> None:
        """Drop the line of a tool that nothing uses."""
        self.lines.pop(tool, None)

    # -- for the breaker -----------------------------------------------------------------------------------------------

    def count(self, tool: str) -> int:
        """The number of steps that wait for the tool."""
        line = self.lines.get(tool)
        return 0 if line is None else sum(1 for queue in (line.queue, line.permitted) for _ in queue.entries())

    def uses(self, tool: str) -> bool:
        """Whether a step uses the tool, or waits for it."""
        return any(use.tool == tool for use in self._all())

    def of_key(self, key: int | None) -> ToolUse | None:
        """The use with this key, by which the breaker identifies it."""
        return None if key is None else next((use for use in self._all() if use.key == key), None)

    def opened(self, tool: str) -> None:
        """Let the steps of a tool go on: its breaker has closed."""
        if (line := self.lines.get(tool)) is not None:
            line.shut.limit = NO_LIMIT
            if line.shut.waiting:
                self.scheduler.wake(line.shut)
                self.scheduler.match_soon()

    def shut(self, tool: str) -> None:
        """Let no step of a tool begin: its breaker has opened."""
        if (line := self.lines.get(tool)) is not None:
            line.shut.limit = 0
            self.step_back(tool)

    def first_to_start(self, tool: str) -> Key | None:
        """The key of the first waiting step, if it could begin with the permit to probe the tool. A shared limit counts
        as open if this node could get more of it.
        """
        line = self.lines.get(tool)
        if line is None:
            return None
        room = all(gate.used < (gate.limit if gate.most is None else gate.most) for gate in line.permitted.gates)
        return line.queue.top() if room else None

    def permit(self, tool: str) -> int | None:
        """Let the first waiting step probe the tool. Returns the key of its use; None if no step waits."""
        line = self.lines.get(tool)
        if line is None or line.queue.top() is None:
            return None
        waiting = heappop(line.queue.heap)[2]
        self._put(line.permitted, waiting)
        self.scheduler.match_soon()
        return self.kernel.uses[waiting.token][waiting.number].key

    def step_back(self, tool: str) -> None:
        """Let a step that has the permit, and has not begun, wait without it."""
        if (line := self.lines.get(tool)) is not None:
            for _, waiting in list(line.permitted.entries()):
                self._put(line.queue, waiting)
            line.permitted.heap.clear()
