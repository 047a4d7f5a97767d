"""Queues of tasks and steps that wait for the same gates, and the gates at which queues wait.

There is a queue for all tasks of a workstream with the same gates, one for the steps that wait for a tool, and one for
the steps that wait for workers of a kind. The scheduler moves queues and their items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..spec.model import Worker
    from ..tasks.task import TaskActor
    from .reservations import Reservation
    from .worker import WorkerActor

Key = tuple[int, int, int]  # (-priority, place, key of the task): those of two queues are never equal
Waiting = list[tuple[Key, int, "GatedQueue"]]  # the number distinguishes two entries of a queue


NO_LIMIT = 1 << 62
"""The limit of a gate that is always open and only counts."""


class ConcurrencyGate:
    """A limit on parallel attempts, and the queues that wait for it."""

    __slots__ = ("limit", "most", "scarce", "used", "waiting")

    def __init__(self, limit: int, most: int | None = None) -> None:
        self.limit = limit
        self.most = most  # the limit of a shared tool over all nodes; `limit` is then this node's share
        self.scarce = False  # other nodes wait for slots of the tool
        self.used = 0
        self.waiting: Waiting = []


class Pool(ConcurrencyGate):
    """The workers that can run a kind of task. The limit is their total capacity."""

    __slots__ = ("capabilities", "engine", "free", "workers")

    def __init__(self, engine: str, capabilities: frozenset[str]) -> None:
        super().__init__(0)
        self.engine = engine
        self.capabilities = capabilities
        self.workers: set[WorkerActor] = set()
        self.free: dict[WorkerActor, None] = {}  # workers with room, in the order in which they got it

    def suits(self, worker: WorkerActor) -> bool:
        """Whether the worker can run this pool's tasks."""
        return worker.record.engine == self.engine and self.capabilities <= worker.capabilities

    def suits_spec(self, worker: Worker) -> bool:
        """Whether a worker with this specification could run this pool's tasks."""
        return worker.engine == self.engine and self.capabilities <= frozenset(worker.abilities())


def key_of(task: TaskActor) -> Key:
    """The place in the queue of a task, and of the steps of its body."""
    return -task.priority, task.record.place, task.record.key


class GatedQueue:
    """Items that wait for the same gates, the most urgent first. An item has a `ticket`: 0 if it does not wait."""

    __slots__ = ("at", "gates", "heap", "key", "paused", "reserved")

    def __init__(
        self, gates: tuple[ConcurrencyGate, ...], reserved: tuple[Reservation, ...] = (), *, paused: bool = False
    ) -> None:
        self.gates = gates
        self.reserved = reserved  # reservations whose slots its tasks may use, beside free ones
        self.paused = paused  # the workstream is paused: the queue waits in no list
        self.heap: list[tuple[Key, int, Any]] = []  # (key, ticket, item)
        self.key: Key = (0, 0, 0)  # the key of the queue's one valid entry
        self.at: Waiting | None = None  # the list that contains this entry; None: nothing waits

    def top(self) -> Key | None:
        """The key of the first item that still waits."""
        heap = self.heap
        while heap and heap[0][2].ticket != heap[0][1]:
            heappop(heap)
        return heap[0][0] if heap else None

    def entries(self) -> Iterator[tuple[Key, Any]]:
        """The items that still wait, in no order."""
        return ((key, item) for key, ticket, item in self.heap if item.ticket == ticket)


class TaskQueue(GatedQueue):
    """The queued tasks of a workstream that have the same gates. The first gate is their pool."""

    __slots__ = ("pool", "tool")

    heap: list[tuple[Key, int, TaskActor]]

    def __init__(
        self,
        pool: Pool,
        gates: tuple[ConcurrencyGate, ...],
        tool: str | None,
        reserved: tuple[Reservation, ...],
        *,
        paused: bool,
    ) -> None:
        super().__init__(gates, reserved, paused=paused)
        self.pool = pool
        self.tool = tool


class WaitingStep:
    """A step of a running body that waits: for a unit of a tool, or for a worker. number: of the use or the run."""

    __slots__ = ("key", "number", "ticket", "token")

    def __init__(self, token: int, number: int, key: Key) -> None:
        self.token = token
        self.number = number
        self.key = key
        self.ticket = 0


class StepQueue(GatedQueue):
    """The steps that wait for a unit of one tool, or for workers of one pool. grant: gives a step what it waits for."""

    __slots__ = ("grant",)

    heap: list[tuple[Key, int, WaitingStep]]

    def __init__(self, gates: tuple[ConcurrencyGate, ...], grant: Callable[[WaitingStep], None]) -> None:
        super().__init__(gates)
        self.grant = grant
