"""The kept steps of a flow that its body has not called yet, and the numbers of new ones.

Rules
- A kept step is found by its name and its arguments; among equal calls the first one comes first.
- When the steps began is known: a replay returns a result once those are called that had begun before it came.
- A step that new code has put first ends later than what follows it: then the steps that it has passed over count again
  once one of them is called.
- A number that is missing before a kept step was that of a parallel call that was interrupted: the next new step of
  that name gets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...actors.records.step import StepRecord


class KeptSteps:
    """The kept steps that the body has not called yet."""

    def __init__(self, rows: Iterable[StepRecord]) -> None:
        self._rows = {(row.name, row.number): row for row in sorted(rows, key=_place_of)}
        self._highest: dict[str, int] = {}
        self._missing: dict[str, deque[int]] = {}  # by name: numbers below the highest that no kept step has
        self._in_order: dict[str, deque[int]] = {}  # by name, the lowest first, of calls that the body itself made
        self._calls: dict[tuple[str, str], deque[int]] = {}  # by name and call, the lowest first, of all calls
        self._times: deque[tuple[float, str, int]] | None = None  # of what was decided, made when it is needed
        for (name, number), row in self._rows.items():
            after = self._highest.get(name, 0) + 1
            if number != after:
                self._missing.setdefault(name, deque()).extend(range(after, number))
            self._highest[name] = number
            if not row.branch:
                self._in_order.setdefault(name, deque()).append(number)
            self._calls.setdefault((name, row.call), deque()).append(number)
        self._begun = deque(sorted((row.began_at, place) for place, row in self._rows.items()))
        self._passed: list[tuple[float, tuple[str, int]]] = []  # of `_begun`, those that nothing waits for

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[StepRecord]:
        """The steps that are left, by their names and numbers."""
        return iter(self._rows.values())

    def begun_before(self, time: float) -> bool:
        """Whether a step is left that had begun before that time."""
        begun = self._begun
        while begun and begun[0][1] not in self._rows:
            begun.popleft()
        return bool(begun) and begun[0][0] < time

    def pass_over(self, time: float) -> None:
        """Do not wait any more for the steps that had begun before that time: the body does not call them now."""
        while self.begun_before(time):
            self._passed.append(self._begun.popleft())

    def _taken(self, row: StepRecord) -> StepRecord:
        """Note that the body calls a step. If that one was passed over, those that had begun later may follow: the code
        has got new steps before them, perhaps, which ended later than they.
        """
        while self._passed and self._passed[-1][0] >= row.began_at:
            self._begun.appendleft(self._passed.pop())
        return row

    def take(self, name: str, call: str) -> StepRecord | None:
        """Remove and return the first step of that name and call; None if there is none."""
        first = self._first(name, self._calls.get((name, call)))
        if first is None or (not call and self._lacks_before(first)):
            return None
        self._calls[name, call].popleft()
        return self._taken(self._rows.pop((name, first.number)))

    def at(self, name: str, number: int) -> StepRecord | None:
        """Remove and return the step of that name and number; None if there is none."""
        row = self._rows.pop((name, number), None)
        return None if row is None else self._taken(row)

    def remove(self, row: StepRecord) -> None:
        """Remove a step that `next_in_order` has returned."""
        del self._rows[row.name, row.number]
        self._taken(row)

    def first_decided(self, task: int, round: int) -> float:  # noqa: A002 - the field's name
        """When the first step of that round ended, or was given up, that the body has not called yet (UTC epoch
        seconds); infinity if there is none.
        """
        if self._times is None:
            rows = (row for row in self._rows.values() if (row.task, row.round) == (task, round))
            self._times = deque(sorted((row.ended_at or row.cancelled_at or inf, row.name, row.number) for row in rows))
        while self._times and self._times[0][1:] not in self._rows:
            self._times.popleft()
        return self._times[0][0] if self._times else inf

    def next_in_order(self, name: str) -> StepRecord | None:
        """The step of that name that the body itself called next, which stays; None if that one was interrupted."""
        first = self._first(name, self._in_order.get(name))
        return None if first is None or self._lacks_before(first) else first

    def next_number(self, name: str) -> int:
        """The number of a new step of that name: the one of an interrupted call, or the next one."""
        if missing := self._missing.get(name):
            return missing.popleft()
        self._highest[name] = number = self._highest.get(name, 0) + 1
        return number

    def _first(self, name: str, numbers: deque[int] | None) -> StepRecord | None:
        """The first step of these numbers that was not taken."""
        while numbers:
            if (row := self._rows.get((name, numbers[0]))) is not None:
                return row
            numbers.popleft()
        return None

    def _lacks_before(self, row: StepRecord) -> bool:
        """Whether a call before that one was interrupted, and was not made again yet."""
        missing = self._missing.get(row.name)
        return missing is not None and bool(missing) and missing[0] < row.number


def _place_of(row: StepRecord) -> tuple[str, int]:
    return row.name, row.number
