"""The graph of a workstream's tasks: the edges, and each task's number of unsettled edges.

Rules
-----
- A task is identified by its number: its index in the specification.
- Each task's unsettled edges are counted, and the end of a task touches only its dependents: the whole graph costs
  O(tasks + edges). There is no recursion, however long a chain is.
- The graph is not persisted: after a restart it is derived from the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...machines import Standing, TaskState

if TYPE_CHECKING:
    from ..spec.model import Task
    from ..tasks.task import TaskActor


_MOST_SHARED = 1_000
"""Numbers that workstreams share: those of a larger one are released with it."""
_INDEXES: list[int] = []


def _indexes(count: int) -> list[int]:
    """The first numbers of tasks. The lowest are the same objects for all workstreams, since each task's record holds
    its own.
    """
    shared = min(count, _MOST_SHARED)
    if shared > len(_INDEXES):
        _INDEXES.extend(range(len(_INDEXES), shared))
    return [*_INDEXES[:shared], *range(shared, count)]


class Graph:
    """The edges between the tasks of one workstream, and each task's number of unsettled edges."""

    __slots__ = ("by_priority", "dependents", "names", "unmet")

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.names = dict(zip((task.name for task in tasks), _indexes(len(tasks)), strict=True))
        self.unmet: list[int] = []  # unsettled edges of each created task, by number
        self.dependents: dict[int, list[tuple[int, bool]]] = {}  # dependents of each task; True: it must end well
        # The most urgent task first: a large graph, or many dependents of one task, are started in several turns.
        self.by_priority: Sequence[int] = range(len(tasks))
        if any(task.priority for task in tasks):
            self.by_priority = sorted(self.by_priority, key=lambda index: -tasks[index].priority)
        for index in self.by_priority:
            for name in tasks[index].depends_on:
                self.dependents.setdefault(self.names[name], []).append((index, True))
            for name in tasks[index].after:
                self.dependents.setdefault(self.names[name], []).append((index, False))

    def add(self, task: Task) -> None:
        """Add the next created task, with all its edges unsettled."""
        self.unmet.append(len(task.depends_on) + len(task.after))

    def settle(self, index: int) -> bool:
        """Settle one edge of a task. Returns whether the task has no unsettled edges now."""
        self.unmet[index] -= 1
        return not self.unmet[index]

    def rebuild(self, tasks: Sequence[TaskActor]) -> list[TaskActor]:
        """Count all edges again from the tasks' states. Returns the ended tasks with dependents not yet informed."""
        self.unmet.clear()
        for task in tasks:
            self.add(task.spec)
        ended = [task for task in tasks if task.ended and task.record.index in self.dependents]
        for task in ended:
            self._count(task, -1)
        left_off = [task for task in ended if self._left_off(task, tasks)]
        for task in left_off:
            self._count(task, 1)
        return left_off

    def _count(self, ended: TaskActor, by: int) -> None:
        for index, strict in self.dependents[ended.record.index]:
            if index < len(self.unmet) and (not strict or ended.record.standing == Standing.GOOD):
                self.unmet[index] += by

    def _left_off(self, ended: TaskActor, tasks: Sequence[TaskActor]) -> bool:
        """Whether a dependent of an ended task has not yet received its `Ready` or `Skip`."""
        for index, strict in self.dependents[ended.record.index]:
            if index < len(tasks):
                record = tasks[index].record
                resolved = not self.unmet[index] or (strict and ended.record.standing != Standing.GOOD)
                if resolved and record.state == TaskState.PENDING and not record.ready:
                    return True
        return False
