"""The edges of a workstream: which task depends on which, and their faults.

Rules: O(tasks + edges), and without recursion: a chain of 10,000 tasks is ordinary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...machines.keywords import did_you_mean
from .model import Task
from .schema import Finding, clipped, short, where

_CYCLE_SHOWN = 20  # names of a cycle that are printed; of a longer cycle, its two ends
_NAME_SHOWN = 80  # characters of a name in a cycle
_SUGGESTIONS = 20  # unknown dependencies that get a suggestion: each is compared with all names
_NONE: frozenset[str] = frozenset()


def edge_findings(tasks: Sequence[Task]) -> Iterator[Finding]:
    """The findings about unknown, doubled, contradictory and cyclic edges."""
    if not any(task.depends_on or task.after for task in tasks):
        return
    numbers: dict[str, int] = {}
    for index, task in enumerate(tasks):
        numbers.setdefault(task.name, index)
    needs: list[list[int]] = []
    names: list[str] = []
    unknown = 0
    for index, task in enumerate(tasks):
        mine: list[int] = []
        needs.append(mine)
        if not (task.depends_on or task.after):
            continue
        needed = set(task.depends_on) if task.after else _NONE
        for field, others in (("depends_on", task.depends_on), ("after", task.after)):
            if not others:
                continue
            seen: set[str] = set()
            for place, other in enumerate(others):
                number = numbers.get(other)
                if number is None:
                    unknown += 1
                    names = names or list(numbers)
                    advice = did_you_mean(other, names) if unknown <= _SUGGESTIONS else None
                    problem = f"task {short(task.name)} waits for {short(other)}, which does not exist"
                elif other == task.name:
                    problem, advice = f"task {short(task.name)} waits for itself", "remove it"
                elif other in seen:
                    problem, advice = (
                        f"{short(other)} is twice in {field} of task {short(task.name)}",
                        "remove one",
                    )
                elif field == "after" and other in needed:
                    problem = f"task {short(task.name)} has {short(other)} under both depends_on and after"
                    advice = "keep one: depends_on needs its success, after only its end"
                else:
                    mine.append(number)
                    seen.add(other)
                    continue
                seen.add(other)
                yield Finding(where(("tasks", index, field, place)), problem, advice)
    yield from _cycle_findings(tasks, needs)


def _cycle_findings(tasks: Sequence[Task], needs: Sequence[Sequence[int]]) -> Iterator[Finding]:
    for cycle in _cycles(needs):
        shown = [clipped(tasks[number].name, _NAME_SHOWN) for number in cycle]
        if len(shown) > _CYCLE_SHOWN:
            left = len(shown) - _CYCLE_SHOWN
            shown[_CYCLE_SHOWN // 2 : -_CYCLE_SHOWN // 2] = [f"… {left:,} more …"]
        text = " -> ".join([*shown, shown[0]])
        yield Finding(where(("tasks", cycle[0])), f"these wait for each other: {text}", "remove one of these edges")


def waves_of(tasks: Sequence[Task]) -> list[list[Task]]:
    """The tasks in waves: each task is in the first wave after those of its dependencies.

    In a wave the tasks keep their order. The edges must be valid.
    """
    numbers = {task.name: index for index, task in enumerate(tasks)}
    needs = [[numbers[other] for other in (*task.depends_on, *task.after)] for task in tasks]
    dependents: list[list[int]] = [[] for _ in needs]
    left = [len(mine) for mine in needs]
    for index, mine in enumerate(needs):
        for other in mine:
            dependents[other].append(index)
    wave = [index for index, count in enumerate(left) if count == 0]
    waves: list[list[Task]] = []
    while wave:
        waves.append([tasks[index] for index in wave])
        following: list[int] = []
        for done in wave:
            for index in dependents[done]:
                left[index] -= 1
                if left[index] == 0:
                    following.append(index)
        wave = sorted(following)
    return waves


def _cycles(needs: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """At least one cycle of each cyclic component: each task waits for the next, the last for the first."""
    dependents: list[list[int]] = [[] for _ in needs]
    left = [len(mine) for mine in needs]
    for index, mine in enumerate(needs):
        for other in mine:
            dependents[other].append(index)
    ready = [index for index, count in enumerate(left) if count == 0]
    while ready:
        for index in dependents[ready.pop()]:
            left[index] -= 1
            if left[index] == 0:
                ready.append(index)
    # Each remaining task waits for a remaining task: following one such edge from each leads back to a visited one.
    visited_from: dict[int, int] = {}
    for start in range(len(needs)):
        if left[start] == 0 or start in visited_from:
            continue
        trail: list[int] = []
        here = start
        while here not in visited_from:
            visited_from[here] = start
            trail.append(here)
            here = next(other for other in needs[here] if left[other])
        if visited_from[here] == start:
            yield trail[trail.index(here) :]
