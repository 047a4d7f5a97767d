"""The scheduler: gives queued tasks to free workers.

Rules
-----
- Higher priority first; within a priority first come, first served. A task that is queued again keeps its old place.
- A task starts when all of its *gates* are open: its pool (the workers that have its engine and capabilities), its
  workstream's `max_parallel`, its tool's. A slot counts from the decision until the body is gone, so a cancelled task
  may still hold one.
- Tasks with the same gates and the same pool wait in one *lane*, a heap. A lane whose first task cannot start is parked at
  the gate that is shut, and only the best lane parked there is woken when the gate opens. So a decision costs
  O(log n), however many tasks wait behind a limit.
- A task that leaves the queue by another way gives up its ticket; the heap entry is then dropped when it comes up.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

from .kernel import Call, Kernel
from .messages import Assign, Message, Queued, Release, Unroutable

if TYPE_CHECKING:
    from .task import TaskActor
    from .worker import WorkerActor

Key = tuple[int, int]  # (-priority, place)
Waiting = list[tuple[Key, int, "Lane"]]


class Gate:
    """A limit on attempts at the same time, and the lanes that wait for it."""

    __slots__ = ("limit", "used", "waiting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.waiting: Waiting = []


class Pool(Gate):
    """The workers that can run a kind of task: its limit is what they have room for together."""

    __slots__ = ("capabilities", "engine", "free", "workers")

    def __init__(self, engine: str, capabilities: frozenset[str]) -> None:
        super().__init__(0)
        self.engine = engine
        self.capabilities = capabilities
        self.workers: set[WorkerActor] = set()
        self.free: dict[WorkerActor, None] = {}  # those with room, in the order in which they got it

    def suits(self, worker: WorkerActor) -> bool:
        """Whether the worker can run this pool's tasks."""
        return worker.record.engine == self.engine and self.capabilities <= worker.capabilities


class Lane:
    """Queued tasks that wait for the same things."""

    __slots__ = ("at", "gates", "heap", "key", "name", "number", "pool", "tool")

    def __init__(
        self, name: tuple[object, ...], number: int, pool: Pool, gates: tuple[Gate, ...], tool: str | None
    ) -> None:
        self.name = name
        self.number = number  # breaks ties between lanes
        self.pool = pool
        self.gates = gates
        self.tool = tool
        self.heap: list[tuple[Key, int, TaskActor]] = []  # (key, ticket, task)
        self.key: Key = (0, 0)  # of the one entry that stands for the lane, in `at`
        self.at: Waiting

    def top(self) -> Key | None:
        """The key of the first task that still waits."""
        heap = self.heap
        while heap and heap[0][2].ticket != heap[0][1]:
            heappop(heap)
        return heap[0][0] if heap else None


class SchedulerActor:
    """Matches queued tasks with free workers. It has no lifecycle of its own; what it knows is derived."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.stopped = False
        self.clear()

    def clear(self) -> None:
        """Forget everything, to be told again."""
        self.ready: Waiting = []
        self.lanes: dict[tuple[object, ...], Lane] = {}
        self.pools: dict[tuple[str, frozenset[str]], Pool] = {}
        self.streams: dict[int, Gate] = {}
        self.tools: dict[str, Gate] = {}
        self.tickets = 0
        self.numbers = 0

    def receive(self, message: Message) -> None:
        """Queue a task, or take a slot back."""
        if isinstance(message, Queued):
            task = cast("TaskActor", self.kernel.entities[message.key])
            self.check_routable(task)
            self.restore(task)
        elif isinstance(message, Release):
            self._free(message.slot)
        self.match()

    # -- workers -------------------------------------------------------------------------------------------------------

    def enrol(self, worker: WorkerActor) -> None:
        """A worker takes tasks from now on."""
        for pool in self.pools.values():
            if pool.suits(worker):
                self._join(pool, worker)
        self.match()

    def retire(self, worker: WorkerActor) -> None:
        """A worker takes no more tasks. What it still runs no longer counts for its pools."""
        for pool in self.pools.values():
            if worker in pool.workers:
                pool.workers.remove(worker)
                pool.free.pop(worker, None)
                pool.limit -= worker.record.capacity
                pool.used -= worker.used

    def _join(self, pool: Pool, worker: WorkerActor) -> None:
        pool.workers.add(worker)
        pool.limit += worker.record.capacity
        pool.used += worker.used
        if worker.used < worker.record.capacity:
            pool.free[worker] = None
        self._wake(pool)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def occupy(self, task: TaskActor, slot: Call) -> None:
        """Count an attempt that runs already (after a rebuild)."""
        slot.gates = self._gates(task)
        self._count(slot, +1)

    def waiting_for(self, tool: str) -> list[TaskActor]:
        """The tasks of a tool that wait in the queue, in its order."""
        entries = [entry for lane in self.lanes.values() if lane.tool == tool for entry in lane.heap]
        return [
            task for _, ticket, task in sorted(entries, key=lambda entry: entry[0]) if task.ticket == ticket
        ]

    def check_routable(self, task: TaskActor) -> None:
        """Tell a task that no worker could ever run."""
        pool = self._pool(task.engine, frozenset(task.spec.capabilities))
        if not pool.workers:
            self.kernel.send(task, Unroutable(f"no worker has {_needs(pool)}"))

    def restore(self, task: TaskActor) -> None:
        """Put a task into the queue, without looking whether it can start."""
        lane = self._lane(task)
        self.tickets += 1
        task.ticket = self.tickets
        key = (-task.priority, task.record.place)
        heappush(lane.heap, (key, task.ticket, task))
        if len(lane.heap) == 1:
            lane.at = self.ready
        elif key >= lane.key:
            return
        lane.key = key
        heappush(lane.at, (key, lane.number, lane))

    def _lane(self, task: TaskActor) -> Lane:
        spec = task.spec
        name = (task.engine, *spec.capabilities, spec.tool, task.record.workstream)
        lane = self.lanes.get(name)
        if lane is None:
            gates = self._gates(task)
            self.numbers += 1
            lane = self.lanes[name] = Lane(name, self.numbers, cast("Pool", gates[0]), gates, spec.tool)
        return lane

    def _gates(self, task: TaskActor) -> tuple[Gate, ...]:
        gates: list[Gate] = [self._pool(task.engine, frozenset(task.spec.capabilities))]
        if (limit := task.stream.spec.max_parallel) is not None:
            gates.append(self.streams.setdefault(task.record.workstream, Gate(limit)))
        tool = task.spec.tool
        if tool is not None and (limit := task.tool.max_parallel) is not None:
            gate = self.tools.setdefault(tool, Gate(limit))
            gate.limit = limit  # the last workstream that speaks of a tool decides
            gates.append(gate)
        return tuple(gates)

    def _pool(self, engine: str, capabilities: frozenset[str]) -> Pool:
        pool = self.pools.get((engine, capabilities))
        if pool is None:
            pool = self.pools[engine, capabilities] = Pool(engine, capabilities)
            for worker in self.kernel.workers.values():
                if worker.takes_tasks and pool.suits(worker):
                    self._join(pool, worker)
        return pool

    # -- matching ------------------------------------------------------------------------------------------------------

    def match(self) -> None:
        """Start what can start."""
        ready = self.ready
        while ready and not self.stopped:
            key, _, lane = ready[0]
            if lane.at is not ready or lane.key != key:
                heappop(ready)  # the lane has a better entry, or is elsewhere
                continue
            first = lane.top()
            if first != key:
                heappop(ready)
                self._again(lane, first)
                continue
            shut = next((gate for gate in lane.gates if gate.used >= gate.limit), None)
            heappop(ready)
            if shut is None:
                self._give(lane, heappop(lane.heap)[2])
                self._again(lane, lane.top())
            else:
                lane.at = shut.waiting
                heappush(shut.waiting, (key, lane.number, lane))
                self._wake_others(lane)

    def _again(self, lane: Lane, first: Key | None) -> None:
        """Put the lane back among the ready ones with its present first task, or drop it if it has none."""
        if first is None:
            del self.lanes[lane.name]
            self._wake_others(lane)
            return
        lane.key = first
        heappush(self.ready, (first, lane.number, lane))

    def _give(self, lane: Lane, task: TaskActor) -> None:
        task.ticket = 0
        worker = next(iter(lane.pool.free))
        slot = Call(task.record.key, "body", 0, worker.record.key, lane.gates, task.record.id)
        self._count(slot, +1)
        self.kernel.send(worker, Assign(task.record.key, slot))

    def _free(self, slot: Call) -> None:
        self._count(slot, -1)
        for gate in slot.gates[1:]:
            self._wake(gate)

    def _count(self, slot: Call, change: int) -> None:
        """Let a slot be taken (+1) or free (-1), in its worker, in all its pools and at its other gates."""
        for gate in slot.gates[1:]:
            gate.used += change
        worker = self.kernel.workers.get(slot.worker)
        if worker is None:
            return
        worker.used += change
        room = worker.used < worker.record.capacity
        for pool in self.pools.values():
            if worker not in pool.workers:
                continue
            pool.used += change
            if not room:
                pool.free.pop(worker, None)
            elif worker not in pool.free:
                pool.free[worker] = None
            if change < 0:
                self._wake(pool)

    def _wake_others(self, lane: Lane) -> None:
        """A woken lane did not take the slot: let the next one at those gates have it."""
        for gate in lane.gates:
            if gate.used < gate.limit:
                self._wake(gate)

    def _wake(self, gate: Gate) -> None:
        """Ready the best lane that is parked at a gate."""
        while gate.waiting:
            key, _, lane = heappop(gate.waiting)
            if lane.at is gate.waiting and lane.key == key:
                lane.at = self.ready
                heappush(self.ready, (key, lane.number, lane))
                return


def _needs(pool: Pool) -> str:
    wanted = f"the engine {pool.engine!r}"
    return f"{wanted} and the capabilities {sorted(pool.capabilities)}" if pool.capabilities else wanted
