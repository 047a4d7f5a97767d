"""The steps of running bodies that run on workers: each is a call of its own, and occupies a slot of its worker.

Rules
-----
- A step asks for an engine, for capabilities, or for both. It waits in a queue at the gate of the pool of such workers,
  with the priority and the place of its task, beside the tasks of that pool. It counts at no other gate: not for the
  `max_parallel` of its workstream, nor for the slots that its job has reserved. A step that uses a tool holds its unit
  before it asks for a worker.
- When it gets a slot, its call begins under a fencing token of its own: it is journaled then, with its worker. A step
  that has to wait is journaled, too. If no worker can ever run it, its record has the reason; the runtime limits that
  wait (`runtime/flows/step_runs.py`).
- The result does not pass through this module: the waiting body gets it from the runtime, and persists it as that of
  any step. The end of the call frees the slot.
- When a body has ended, its steps wait no longer, and those that run are stopped: gracefully at first, and by force
  after the grace of their task (`execution/calls.py`). None of this state is derived from records: after a restart the
  bodies run again, and their steps ask again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from ..kernel.transaction import Answer, CallOrder, StepCall
from ..records.step import HOLDS, WAITS
from ..tasks import steps
from .queues import Pool, StepQueue, WaitingStep, key_of

if TYPE_CHECKING:
    from ..messages.commands import RunStep, StopStep
    from ..messages.inputs import CallEnded
    from ..tasks.task import TaskActor
    from .scheduler import SchedulerActor


class StepCalls:
    """The part of the scheduler for steps that run on workers."""

    def __init__(self, scheduler: SchedulerActor) -> None:
        self.scheduler = scheduler
        self.kernel = scheduler.kernel
        self.clear()

    def clear(self) -> None:
        """Drop all derived state, before it is rebuilt."""
        self.queues: dict[tuple[str, frozenset[str]], StepQueue] = {}  # by engine and capabilities
        self.waiting: dict[tuple[int, int], tuple[StepQueue, WaitingStep]] = {}  # by token and number
        self.asked: list[WaitingStep] = []  # steps that have asked in this turn

    def rebuild(self) -> None:
        """Put the waiting steps into their queues again."""
        kernel = self.kernel
        for token in list(kernel.step_calls):
            if token not in kernel.calls:
                del kernel.step_calls[token]
        for call in self._waiting():
            self._put(call)

    def _waiting(self) -> list[StepCall]:
        return [call for of_body in self.kernel.step_calls.values() for call in of_body.values() if not call.call]

    # -- for steps -----------------------------------------------------------------------------------------------------

    def ask(self, task: TaskActor, message: RunStep) -> None:
        """Queue a step for a worker. It is answered in this turn."""
        step = message.step
        own = step.engine or ""
        engine = self.scheduler.nearest(own, step.capabilities) if message.moves else own
        call = StepCall(
            message.token, message.number, task.record.key, own, replace(step, engine=engine), message.moves,
            message.reply,
        )  # fmt: skip
        self.kernel.note_step_call(call)
        self.asked.append(self._put(call))
        self.scheduler.match_soon()

    def tell_waiting(self) -> None:
        """Answer the steps that have asked in this turn and have to wait: their records say so durably."""
        asked, self.asked = self.asked, []
        for waiting in asked:
            if waiting.ticket:
                call = self.kernel.step_calls[waiting.token][waiting.number]
                self._tell(call, worker_use=WAITS, unroutable=self._nobody(call))

    def workers_changed(self) -> None:
        """Inform the waiting steps whether a worker can run them, and of which engine."""
        for one in self._waiting():
            engine = self.scheduler.nearest(one.engine, one.step.capabilities) if one.moves else one.engine
            moved = engine != one.step.engine
            call = replace(one, step=replace(one.step, engine=engine))
            why = self._nobody(call)
            if moved:
                self.waiting[one.token, one.number][1].ticket = 0
                self._put(call)
            if moved or why != call.step.unroutable:
                self._tell(call, worker_use=WAITS, unroutable=why)

    def grant(self, waiting: WaitingStep) -> None:
        """Begin the call of a step on a worker with a free slot."""
        kernel, scheduler = self.kernel, self.scheduler
        call = kernel.step_calls[waiting.token][waiting.number]
        del self.waiting[call.token, call.number]
        waiting.ticket = 0
        worker = next(iter(self._pool(call).free))
        task = self._task(call)
        slot = CallOrder(call.task, "step", call.number, worker.record.key, task_id=task.record.id, body=call.token)
        scheduler.count(slot, +1)
        worker.take(slot)
        token = kernel.begin_call("step", call.task, index=call.number, slot=slot)
        self._tell(replace(call, call=token), worker_use=HOLDS, worker_id=worker.record.id, unroutable=None)

    def stop(self, message: StopStep) -> None:
        """End a step's wait and inform the step, or have its call stopped."""
        call = self.kernel.step_calls.get(message.token, {}).get(message.number)
        if call is None:  # the step has ended, or its body has
            return
        if call.call:
            self.kernel.stop_call(call.call)
        else:
            self._end(call)
            self.kernel.effect(Answer(call.reply, replace(call.step, worker_use=None)))

    def ended(self, message: CallEnded) -> None:
        """Free the slot of a call that has ended."""
        kernel = self.kernel
        order = kernel.end_call(message.token)
        if order is None:
            return
        kernel.end_step_call(order.body, order.index)
        if message.status == "abandoned":
            worker = kernel.workers.get(order.worker)
            where = "a worker that has ended" if worker is None else worker.record.id
            text = f"a step of {order.task_id} did not stop on {where} and was abandoned: its slot is free for others"
            kernel.notice("body_abandoned", "warning", text, kernel.entities[order.key])
        kernel.free_slot(message.token)

    def body_over(self, token: int) -> None:
        """Stop the steps of a body that has ended."""
        for call in list(self.kernel.step_calls.get(token, {}).values()):
            if call.call:
                self.kernel.end_step_call(token, call.number)
                self.kernel.stop_call(call.call)
            else:
                self._end(call)

    def _end(self, call: StepCall) -> None:
        """End a step that waits for a worker."""
        self.kernel.end_step_call(call.token, call.number)
        _, waiting = self.waiting.pop((call.token, call.number))
        waiting.ticket = 0

    def _tell(self, call: StepCall, **changed: Any) -> None:
        """Persist how a step has changed, if its attempt may still report steps, and inform the step."""
        task, step = self._task(call), replace(call.step, **changed)
        if steps.may_keep(task, call.token):
            step = steps.keep(task, step)
        self.kernel.note_step_call(replace(call, step=step))
        self.kernel.effect(Answer(call.reply, step))

    def _task(self, call: StepCall) -> TaskActor:
        return cast("TaskActor", self.kernel.entities[call.task])

    # -- queues --------------------------------------------------------------------------------------------------------

    def _pool(self, call: StepCall) -> Pool:
        return self.scheduler.pool(call.step.engine or "", frozenset(call.step.capabilities))

    def _put(self, call: StepCall) -> WaitingStep:
        pool = self._pool(call)
        name = pool.engine, pool.capabilities
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = StepQueue((pool,), self.grant)
        waiting = WaitingStep(call.token, call.number, key_of(self._task(call)))
        self.waiting[call.token, call.number] = queue, waiting
        self.scheduler.put_step(queue, waiting)
        return waiting

    def _nobody(self, call: StepCall) -> str | None:
        """The reason why no worker can run a step; None if one can, now or later."""
        pool = self._pool(call)
        return None if pool.workers or self.scheduler.may_come(pool) else self.scheduler.nobody_of(pool)

    def forget_pools(self) -> set[int]:
        """Drop the queues in which nothing waits. Returns the ids of the pools of the others."""
        for name, queue in list(self.queues.items()):
            if queue.top() is None:
                queue.at = None
                del self.queues[name]
        return {id(queue.gates[0]) for queue in self.queues.values()}
