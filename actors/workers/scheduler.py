"""The scheduler: assigns queued tasks to free workers.

Rules
-----
- Higher priority first; within a priority first come, first served. A task that is queued again keeps its old place.
  Tasks are matched at the end of a turn, after all its messages: of tasks that become ready together the most urgent
  one is first, whichever was queued first.
- A task starts when all of its *gates* are open: its pool (the workers with its engine and capabilities), its
  workstream's `max_parallel`, its tool's limit (if nodes share a journal: this node's share of it, see
  `tool_quota.py`), and a gate that is shut while its tool rests. A slot counts from the decision until the body has
  ended, so a cancelled task may still hold one.
- Tasks with the same gates wait in one *queue*, a heap. A queue whose first task cannot start is parked at the shut
  gate. When the gate opens, only the best queue parked there is woken: by a released slot, or by a woken queue that
  left some room. So a decision costs O(log n), however many tasks wait behind a limit.
- A queue has at most one valid entry, in the list `at`; an invalid entry is dropped when it reaches the top.
- A task that leaves the queue in another way gives up its ticket; its heap entry is dropped when it reaches the top.
- Steps of running bodies that wait for a tool stand in the same line at the tool's gate, by the priority and place of
  their tasks (`tool_uses.py`). So do those that wait for a worker, at the gate of its pool (`step_calls.py`).
- While the runtime drains no task starts, but bodies that must not run again go on until they are stopped: their steps
  get what they wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

from ...machines import WorkstreamState
from ..kernel.transaction import NO_ENGINE, CallOrder
from ..messages.commands import LeaveTool, StopStep
from ..messages.inputs import (
    TRIP,
    Assign,
    BodyOver,
    CallEnded,
    Message,
    Queued,
    Release,
    TimerFired,
    ToolShares,
    Unroutable,
)
from ..spec.model import ON_CLUSTER
from ..tasks.attempts import IN_QUEUE
from .queues import (
    NO_LIMIT,
    ConcurrencyGate,
    GatedQueue,
    Key,
    Pool,
    StepQueue,
    TaskQueue,
    Waiting,
    WaitingStep,
    key_of,
)
from .reservations import Reservation, Reservations
from .step_calls import StepCalls
from .tool_quota import ToolQuotas
from .tool_uses import ToolUses

if TYPE_CHECKING:
    from ..messages.commands import RunStep, UseTool
    from ..spec.model import Task
    from ..tasks.task import TaskActor
    from .breaker import BreakerActor
    from .worker import WorkerActor
    from .workforce import Workforce

POOLS_KEPT = 500
"""Number of pools above which unused pools are dropped."""


class SchedulerActor:
    """Matches queued tasks with free workers. It has no lifecycle of its own, and all its state is derived."""

    def __init__(self, workforce: Workforce) -> None:
        self.workforce = workforce
        self.kernel = workforce.kernel
        self.stopped = False
        self.reservations = Reservations(self)
        self.tool_quotas = ToolQuotas(self) if self.kernel.node else None
        self.tool_uses = ToolUses(self)
        self.step_calls = StepCalls(self)
        self.clear()

    def clear(self) -> None:
        """Drop all derived state, before it is rebuilt."""
        self.reservations.clear()
        self.tool_uses.clear()
        self.step_calls.clear()
        self.ready: Waiting = []
        self.queues: dict[int, dict[tuple[object, ...], TaskQueue]] = {}  # by workstream
        self.pools: dict[tuple[str, frozenset[str]], Pool] = {}
        self.streams: dict[int, ConcurrencyGate] = {}
        self.tools: dict[str, ConcurrencyGate] = {}
        self.rests: dict[str, ConcurrencyGate] = {}  # of each tool: shut while the tool rests
        self.resting: set[str] = set()
        self.probing: dict[str, BreakerActor] = {}  # breakers whose permit waits for a task that can start
        self.tickets = 0
        self.entries = 0
        self.to_match = False
        self.go_on: frozenset[int] | None = None  # tokens of the bodies that go on while the runtime drains

    def receive(self, message: Message) -> None:
        """Queue a task, take back a slot or a unit of a tool, end a step, or receive a timer or the shares of tools."""
        if isinstance(message, Queued):
            task = cast("TaskActor", self.kernel.entities[message.key])
            if task.record.state in IN_QUEUE:
                if task.spec.tool is not None and task.shut_out:  # the task's breaker opened meanwhile
                    self.kernel.send(task, TRIP)
                else:
                    self.queue(task)
        elif isinstance(message, Release):
            self.free(message.slot)
        elif isinstance(message, LeaveTool):
            self.tool_uses.leave(message)
        elif isinstance(message, BodyOver):
            self.tool_uses.body_over(message.token)
            self.step_calls.body_over(message.token)
        elif isinstance(message, StopStep):
            self.step_calls.stop(message)
        elif isinstance(message, CallEnded):
            self.step_calls.ended(message)
        elif isinstance(message, TimerFired):
            self.reservations.yield_idle()
        elif isinstance(message, ToolShares) and self.tool_quotas is not None:
            self.tool_quotas.take(message)
        self.to_match = True

    def forget(self, stream: int) -> None:
        """Drop the queues and the gate of a workstream that has ended."""
        self.streams.pop(stream, None)
        if len(self.pools) > POOLS_KEPT:
            self._drop_pools()
        for queue in self.queues.pop(stream, {}).values():
            at, queue.at = queue.at, None
            queue.reserved = ()
            queue.heap.clear()
            while at and at[0][2].at is not at:  # a gate that never opens would keep them for ever
                heappop(at)

    def forget_tool(self, tool: str) -> None:
        """Drop the gates of an unused tool, unless an attempt without a job still uses it."""
        gate = self.tools.get(tool)
        if gate is not None and not gate.used:
            del self.tools[tool]
            self.rests.pop(tool, None)
            self.tool_uses.forget(tool)
            if self.tool_quotas is not None:
                self.tool_quotas.forget(tool)

    def _drop_pools(self) -> None:
        """Drop unused pools: users may invent any capabilities, so their number is unlimited."""
        used = {id(queue.pool) for queue in self._queues()} | self.step_calls.forget_pools()
        for key, pool in list(self.pools.items()):
            if id(pool) not in used and not pool.workers:
                del self.pools[key]

    def pause(self, stream: int) -> None:
        """Skip the tasks of a workstream until `resume`."""
        for queue in self.queues.get(stream, {}).values():
            queue.paused = True

    def resume(self, stream: int) -> None:
        """Match the tasks of a workstream again."""
        for queue in self.queues.get(stream, {}).values():
            queue.paused = False
            if queue.at is None:
                self._again(queue, queue.top())
        self.match_soon()

    # -- workers -------------------------------------------------------------------------------------------------------

    def enrol(self, worker: WorkerActor) -> None:
        """Add a worker that takes tasks from now on. Unroutable tasks that it can run are informed."""
        joined = [pool for pool in self.pools.values() if pool.suits(worker)]
        new = [pool for pool in joined if not pool.workers]
        for pool in joined:
            self._join(pool, worker)
        for queue in self._queues():
            if queue.pool in new:
                for _, task in queue.entries():
                    if not task.record.routable:
                        self.kernel.send(task, Unroutable(None))
            elif not queue.pool.workers and ON_CLUSTER in (worker.record.engine, queue.pool.engine):
                for _, task in list(queue.entries()):
                    self._moved(task)
        self.step_calls.workers_changed()
        self.reservations.tell_short()
        self.reservations.workers_changed()
        self.match_soon()

    def retire(self, worker: WorkerActor) -> None:
        """Remove a worker that takes no more tasks. Its running attempts do not count for its pools any more."""
        self.reservations.retire(worker)
        for pool in worker.pools:
            pool.workers.remove(worker)
            pool.free.pop(worker, None)
            pool.limit -= worker.record.capacity
            pool.used -= worker.used
        worker.pools = []
        if self.reservations.at_work:
            self.reservations.workers_changed()
            self.match_soon()

    def tell_unroutable(self) -> None:
        """Inform queued tasks and waiting jobs that no worker could serve."""
        self.reservations.tell_short()
        for queue in self._queues():
            if not queue.pool.workers and not self.may_come(queue.pool):
                for _, task in list(queue.entries()):
                    if not self._moved(task):
                        self.kernel.send(task, Unroutable(self._nobody(queue.pool, task.spec)))
        self.step_calls.workers_changed()

    def engine_for(self, spec: Task) -> str:
        """The engine for a task. It is the cluster's if the task names no engine, no worker of its own engine has its
        capabilities, a worker of the cluster has them, and another machine can find its function; else its own.
        """
        own = self.kernel.port.engine_of(spec)
        if spec.engine is not None or own == NO_ENGINE or not self.kernel.port.travels(spec):
            return own
        return self.nearest(own, spec.capabilities)

    def nearest(self, own: str, capabilities: Iterable[str]) -> str:
        """The engine for what may run on the cluster, too: the cluster's, if only a worker there can run it."""
        here, there = (Pool(engine, frozenset(capabilities)) for engine in (own, ON_CLUSTER))
        return ON_CLUSTER if not self.may_come(here) and self.may_come(there) else own

    def _moved(self, task: TaskActor) -> bool:
        """Reroute a task that no worker of its engine can run. Returns whether another engine was found."""
        engine = self.engine_for(task.spec)
        if engine == task.engine:
            return False
        task.reroute(engine)
        return True

    def _nobody(self, pool: Pool, task: Task) -> str:
        """The reason why no worker can run a task of the pool, in words."""
        if pool.engine == NO_ENGINE:
            return f"its function cannot be found here: {self.kernel.port.missing(task)}"
        return self.nobody_of(pool)

    def nobody_of(self, pool: Pool) -> str:
        """The reason why no worker has the engine and the capabilities of a pool, in words."""
        wanted = f"no worker has the engine {pool.engine!r}"
        text = f"{wanted} and the capabilities {sorted(pool.capabilities)}" if pool.capabilities else wanted
        for worker in self.workforce.named.values():
            able = pool.capabilities <= worker.capabilities and (pool.capabilities or pool.engine == ON_CLUSTER)
            if worker.unfit is not None and able:
                text += f"; worker {worker.record.name!r} cannot be placed: {worker.unfit}"
        return text

    def may_come(self, pool: Pool) -> bool:
        """Whether a living or coming worker could run the pool's tasks, now or later."""
        workforce = self.workforce
        return any(worker.comes_back and pool.suits(worker) for worker in workforce.workers.values()) or any(
            pool.suits_spec(spec) for spec in workforce.health.coming.values()
        )

    def _join(self, pool: Pool, worker: WorkerActor) -> None:
        worker.pools.append(pool)
        pool.workers.add(worker)
        pool.limit += worker.record.capacity
        pool.used += worker.used
        if worker.used < worker.record.capacity:
            pool.free[worker] = None
        self.wake(pool)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def occupy(self, task: TaskActor, slot: CallOrder) -> None:
        """Count the slot of an attempt, or of a step, that runs already (after a rebuild)."""
        if slot.kind == "step":
            self.count(slot, +1)
            return
        slot.gates, slot.share = self._gates(task), None
        if not (self.reservations.granted and self.reservations.occupy(slot, task.stream.job)):
            self.count(slot, +1)

    def withdraw(self, tool: str) -> list[TaskActor]:
        """Remove the tasks of a tool from the queue, at once. `Queued` puts them back at their old places."""
        taken: list[TaskActor] = []
        for queue in self._queues():
            if queue.tool == tool:
                taken += [task for _, ticket, task in queue.heap if task.ticket == ticket]
                queue.heap.clear()
        for task in taken:
            task.ticket = 0
        return taken

    def queue(self, task: TaskActor) -> None:
        """Put a task into the queue, and match it at the end of the turn. It is informed if no worker can run it."""
        self.to_match = True
        pool = self.put_into_queue(task)
        if not pool.workers and not self.may_come(pool) and not self._moved(task):
            self.kernel.send(task, Unroutable(self._nobody(pool, task.spec)))

    def put_into_queue(self, task: TaskActor) -> Pool:
        """Put a task into the queue, without checking whether it can start. Returns its pool."""
        queue = cast("TaskQueue | None", task.task_queue)
        if queue is None:
            queue = task.task_queue = self._queue_of(task)
        self.tickets += 1
        task.ticket = self.tickets
        key = key_of(task)
        heappush(queue.heap, (key, task.ticket, task))
        self.stand(queue, key)
        return queue.pool

    def use_tool(self, task: TaskActor, message: UseTool) -> None:
        """Give a step of a task's running body a unit of a tool, or let it wait for one."""
        self.tool_uses.ask(task, message)

    def run_step(self, task: TaskActor, message: RunStep) -> None:
        """Run a step of a task's running body on a worker, or let it wait for one."""
        self.step_calls.ask(task, message)

    def put_step(self, queue: StepQueue, step: WaitingStep) -> None:
        """Put a step into a queue, without checking whether it gets what it waits for."""
        self.tickets += 1
        step.ticket = self.tickets
        heappush(queue.heap, (step.key, step.ticket, step))
        self.stand(queue, step.key)

    def stand(self, queue: GatedQueue, key: Key) -> None:
        """Put a queue whose first item has this key into a list, unless it stands in one as well."""
        if queue.at is None:
            self._stand(queue, key, self.ready)
        elif key < queue.key:
            self._stand(queue, key, queue.at)
            if self.tool_quotas is not None and queue.at is not self.ready:  # more urgent than reported
                self.tool_quotas.signal()

    def _stand(self, queue: GatedQueue, key: Key, at: Waiting) -> None:
        """Put the queue's entry into a list, with the key of its first item."""
        self.entries += 1
        queue.key = key
        queue.at = at
        heappush(at, (key, self.entries, queue))

    def _queues(self) -> Iterator[TaskQueue]:
        return (queue for queues in self.queues.values() for queue in queues.values())

    def _queue_of(self, task: TaskActor) -> TaskQueue:
        spec = task.spec
        queues = self.queues.setdefault(task.record.workstream, {})
        name = (task.engine, *spec.capabilities, spec.tool)
        queue = queues.get(name)
        if queue is None:
            gates = self._gates(task)
            paused = task.stream.record.state == WorkstreamState.PAUSED
            reserved = self.reservations.of(task.stream.job) if self.reservations.granted else ()
            queue = queues[name] = TaskQueue(cast("Pool", gates[0]), gates, spec.tool, reserved, paused=paused)
            for reservation in reserved:
                reservation.queues.append(queue)
        return queue

    def _gates(self, task: TaskActor) -> tuple[ConcurrencyGate, ...]:
        gates: list[ConcurrencyGate] = [self.pool(task.engine, frozenset(task.spec.capabilities))]
        if (limit := task.stream.spec.max_parallel) is not None:
            gates.append(self.streams.setdefault(task.record.workstream, ConcurrencyGate(limit)))
        if task.spec.tool is not None:
            gates += self.gates_of(task.spec.tool)
        return tuple(gates)

    def gates_of(self, tool: str) -> tuple[ConcurrencyGate, ConcurrencyGate]:
        """The gate that is shut while a tool rests, and that of its limit. A queue that waits at the first gate
        requests no slot at the second.
        """
        gate = self.tools.get(tool)
        if gate is None:  # also without a limit: one may be declared while its tasks run
            gate = self.tools[tool] = ConcurrencyGate(NO_LIMIT)
            self._set_limit(tool, gate, self.workforce.tool_limits.of(tool))
        if tool not in self.rests:
            self.rests[tool] = ConcurrencyGate(0 if tool in self.resting else NO_LIMIT)
        return self.rests[tool], gate

    def rest(self, tool: str, *, resting: bool) -> None:
        """Begin or end the rest of a tool: while it rests, none of its tasks starts."""
        (self.resting.add if resting else self.resting.discard)(tool)
        gate = self.rests.get(tool)
        if gate is not None:
            gate.limit = 0 if resting else NO_LIMIT
            if not resting and gate.waiting:
                self.wake(gate)
                self.match_soon()

    def limit_tool(self, tool: str, limit: int | None) -> None:
        """Apply a new limit of a tool; None: no limit. Running attempts beyond the limit run on."""
        gate = self.tools.get(tool)
        if gate is None:
            return
        before = gate.limit
        self._set_limit(tool, gate, limit)
        if gate.limit > before and gate.waiting:
            self.wake(gate)
            self.match_soon()

    def _set_limit(self, tool: str, gate: ConcurrencyGate, limit: int | None) -> None:
        limit = NO_LIMIT if limit is None else limit
        if self.tool_quotas is None:
            gate.limit = limit
        else:
            self.tool_quotas.limit(tool, gate, limit)

    def pool(self, engine: str, capabilities: frozenset[str]) -> Pool:
        """The pool of the workers with this engine and these capabilities; made at first use."""
        pool = self.pools.get((engine, capabilities))
        if pool is None:
            pool = self.pools[engine, capabilities] = Pool(engine, capabilities)
            for worker in self.workforce.workers.values():
                if worker.takes_tasks and pool.suits(worker):
                    self._join(pool, worker)
        return pool

    # -- matching ------------------------------------------------------------------------------------------------------

    def match_soon(self) -> None:
        """Match at the end of the turn, after a change that may let a task start."""
        self.to_match = True

    def match(self) -> None:
        """Start all tasks that can start."""
        self.to_match = False
        ready = self.ready
        while ready and not self.stopped:
            key, _, queue = heappop(ready)
            if queue.at is not ready or queue.key != key:
                continue  # the queue has a better entry, or is in another list
            first = None if queue.paused else queue.top()
            if first == key:
                self._serve(queue, key)
                continue
            self._again(queue, first)
            if first is None:
                self._wake_others(queue)
        if self.stopped and self.kernel.drain_began is not None and not self.kernel.draining:
            self._grant_while_draining()
        if self.reservations.at_work or self.probing:
            self._have_looked()
        if self.tool_uses.asked:
            self.tool_uses.tell_waiting()
        if self.step_calls.asked:
            self.step_calls.tell_waiting()

    def _grant_while_draining(self) -> None:
        """Give steps what they wait for, if their bodies must not run again: a stop would fail these bodies."""
        kernel = self.kernel
        if self.go_on is None:  # no other body starts any more
            bodies = ((token, kernel.entities[call.key]) for token, call in kernel.calls.items() if call.kind == "body")
            self.go_on = frozenset(token for token, task in bodies if task.record.on_loss != "rerun")
        if not self.go_on:
            return
        waiting = [*self.tool_uses.waiting.values(), *self.step_calls.waiting.values()]
        first = [(one.key, one.ticket, queue, one) for queue, one in waiting if one.token in self.go_on]
        for _, _, queue, one in sorted(first, key=lambda item: item[:2]):
            if all(gate.used < gate.limit for gate in queue.gates):
                queue.grant(one)

    def _serve(self, queue: GatedQueue, first: Key | None) -> None:
        """Start tasks or steps of a queue while its gates are open, and no other queue has a more urgent one."""
        ready = self.ready
        while first is not None and not (ready and ready[0][0] < first):
            taken = self.reservations.held_for(queue) if queue.reserved and isinstance(queue, TaskQueue) else None
            for gate in queue.gates if taken is None else queue.gates[1:]:
                if gate.used >= gate.limit:
                    self._stand(queue, first, gate.waiting)
                    if self.tool_quotas is not None:
                        self.tool_quotas.shut(gate)
                    self._wake_others(queue)
                    return
            if isinstance(queue, TaskQueue):
                self._give(queue, heappop(queue.heap)[2], taken)
            elif isinstance(queue, StepQueue):
                queue.grant(heappop(queue.heap)[2])
            self._wake_others(queue)
            first = queue.top()
        self._again(queue, first)

    def _have_looked(self) -> None:
        """Have idle reservations, and breakers with a waiting permit, check a moment later."""
        if self.reservations.at_work:
            self.reservations.look()
        if not self.stopped:
            for breaker in self.probing.values():
                breaker.look_soon()

    def room_for(self, task: TaskActor, asked: dict[TaskQueue, bool]) -> bool:
        """Whether a task that is not in the queue could start now. asked: earlier results by queue."""
        queue = cast("TaskQueue | None", task.task_queue)
        if queue is None:
            queue = task.task_queue = self._queue_of(task)
        if not task.stream.lets_start(task):
            return False
        room = asked.get(queue)
        if room is None:
            room = asked[queue] = self._has_room(queue)
        return room

    def _has_room(self, queue: TaskQueue) -> bool:
        """Whether all gates of a queue are open. A shared limit counts as open if this node could get more of it."""
        if not queue.pool.free and self.reservations.held_for(queue) is None:
            return False
        return all(gate.used < (gate.limit if gate.most is None else gate.most) for gate in queue.gates[1:])

    def _again(self, queue: GatedQueue, first: Key | None) -> None:
        """Put the queue back into the ready list with its present first item, if it has one."""
        if first is None:
            queue.at = None
        else:
            self._stand(queue, first, self.ready)

    def _give(self, queue: TaskQueue, task: TaskActor, taken: tuple[Reservation, WorkerActor] | None) -> None:
        task.ticket = 0
        worker = next(iter(queue.pool.free)) if taken is None else taken[1]
        key = task.record.key
        slot = CallOrder(key, "body", 0, worker.record.key, queue.gates, task.record.id)
        if queue.reserved:
            self.reservations.use(slot, queue.reserved, taken)
        else:
            self.count(slot, +1)
        worker.assign(Assign(key, slot))

    def free(self, slot: CallOrder) -> None:
        """Take back the slot of an attempt or a step that is over, or the one that a waiting attempt lends."""
        self.to_match = True
        if slot.share is None:
            self.count(slot, -1)
        else:
            self.reservations.give_back(slot, slot.share)
        for gate in slot.gates[1:]:
            if gate.waiting:
                self.wake(gate)
        if self.tool_quotas is not None:
            self.tool_quotas.freed(slot)
        if self.reservations.at_work:
            self.reservations.collect()

    def count(self, slot: CallOrder, change: int) -> None:
        """Count a slot as taken (+1) or free (-1): at its worker, in the worker's pools, at its other gates."""
        for gate in slot.gates[1:]:
            gate.used += change
        worker = self.workforce.workers.get(slot.worker)
        if worker is not None:
            self.room(worker, change)

    def room(self, worker: WorkerActor, change: int) -> None:
        """Count slots of a worker as taken (+) or free (-), in all its pools."""
        worker.used += change
        room = worker.used < worker.record.capacity
        for pool in worker.pools:
            pool.used += change
            if not room:
                pool.free.pop(worker, None)
            elif change < 0:
                pool.free.setdefault(worker)
                if pool.waiting:
                    self.wake(pool)

    def _wake_others(self, queue: GatedQueue) -> None:
        """Wake the best queues that are parked at this queue's gates, if the gates still have room."""
        for gate in queue.gates:
            if gate.waiting and gate.used < gate.limit:
                self.wake(gate)

    def ready_again(self, queue: TaskQueue) -> None:
        """Have a parked queue try again: a reserved slot may be free for this queue alone."""
        if queue.at is not None and queue.at is not self.ready:
            self._stand(queue, queue.key, self.ready)

    def somebody_waits(self) -> bool:
        """Whether a task waits because all workers of its pool are full."""
        return any(
            queue.at is pool.waiting and queue.top() is not None
            for pool in self.pools.values()
            for _, _, queue in pool.waiting
        )

    def wake(self, gate: ConcurrencyGate) -> None:
        """Move the best queue that is parked at a gate to the ready list."""
        waiting = gate.waiting
        while waiting:
            key, _, queue = heappop(waiting)
            if queue.at is waiting and queue.key == key:
                self._stand(queue, key, self.ready)
                return
