"""Queues of tasks: one for all tasks of a workstream with the same gates, and the gates at which queues wait.

The scheduler moves queues and tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..spec.model import Worker
    from ..tasks.task import TaskActor
    from .reservations import Reservation
    from .worker import WorkerActor

Key = tuple[int, int, int]  # (-priority, place, key of the task): no two are equal
Waiting = list[tuple[Key, int, "TaskQueue"]]  # the number distinguishes two entries of a queue


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


class TaskQueue:
    """The queued tasks of a workstream that have the same gates."""

    __slots__ = ("at", "gates", "heap", "key", "paused", "pool", "reserved", "tool")

    def __init__(
        self,
        pool: Pool,
        gates: tuple[ConcurrencyGate, ...],
        tool: str | None,
        reserved: tuple[Reservation, ...],
        *,
        paused: bool,
    ) -> None:
        self.pool = pool
        self.gates = gates
        self.reserved = reserved  # reservations whose slots its tasks may use, beside free ones
        self.tool = tool
        self.paused = paused  # the workstream is paused: the queue waits in no list
        self.heap: list[tuple[Key, int, TaskActor]] = []  # (key, ticket, task)
        self.key: Key = (0, 0, 0)  # the key of the queue's one valid entry
        self.at: Waiting | None = None  # the list that contains this entry; None: no task waits

    def top(self) -> Key | None:
        """The key of the first task that still waits."""
        heap = self.heap
        while heap and heap[0][2].ticket != heap[0][1]:
            heappop(heap)
        return heap[0][0] if heap else None

    def tasks(self) -> Iterator[tuple[Key, TaskActor]]:
        """The tasks that still wait, in no order."""
        return ((key, task) for key, ticket, task in self.heap if task.ticket == ticket)
