"""The graph of a workstream's tasks: which waits for which, and for how many each still waits.

Rules
-----
- A task is known by its number, which is its place in the specification.
- What each task still waits for is counted, and only the dependents of what has ended are looked at: the whole graph
  costs O(tasks + edges). There is no recursion, however long a chain is.
- Nothing of it is kept: after a restart it is made again of the records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...machines import Standing, TaskState

if TYPE_CHECKING:
    from ..spec.model import Task
    from ..tasks.task import TaskActor


class Graph:
    """The edges between the tasks of one workstream, and how many of each task's are not settled."""

    __slots__ = ("by_priority", "dependents", "names", "unmet")

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.names = {task.name: index for index, task in enumerate(tasks)}
        self.unmet: list[int] = []  # by number, of the tasks that have been made
        self.dependents: dict[int, list[tuple[int, bool]]] = {}  # who waits for it; strict: that it ends well
        # The most urgent task first: a large graph is started a part at a time, and so are many dependents of one.
        self.by_priority: Sequence[int] = range(len(tasks))
        if any(task.priority for task in tasks):
            self.by_priority = sorted(self.by_priority, key=lambda index: -tasks[index].priority)
        for index in self.by_priority:
            for name in tasks[index].depends_on:
                self.dependents.setdefault(self.names[name], []).append((index, True))
            for name in tasks[index].after:
                self.dependents.setdefault(self.names[name], []).append((index, False))

    def add(self, task: Task) -> None:
        """The next task is made: it waits for all its edges."""
        self.unmet.append(len(task.depends_on) + len(task.after))

    def settle(self, index: int) -> bool:
        """An edge to a task is settled. Returns whether it waits for nothing more."""
        self.unmet[index] -= 1
        return not self.unmet[index]

    def rebuild(self, tasks: Sequence[TaskActor]) -> list[TaskActor]:
        """Count anew, of what the tasks are. Returns those that have ended, and not all who wait for them know it."""
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
        """Whether a task that waits for one that has ended has not been told all that follows from that."""
        for index, strict in self.dependents[ended.record.index]:
            if index < len(tasks):
                record = tasks[index].record
                told = not self.unmet[index] or (strict and ended.record.standing != Standing.GOOD)
                if told and record.state == TaskState.PENDING and not record.ready:
                    return True
        return False
