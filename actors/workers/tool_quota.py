"""The limits of tools where several nodes share them: this node may use what it was given, its *shares*.

Rules
-----
- A tool's gate has as its limit what was given of it last (`ToolShares`), at first nothing, and as `most` the limit
  that holds in all. Lanes wait there as at any other gate. Others are asked (`Kernel.ring`) when a task stands before
  the gate, and when a slot comes free that is beyond the share, or that others wait for.
- So it is with a tool that has no limit, as far as is known here: another node may say one. Before its first task
  begins it is asked for, and what is given then is without a limit, too.
- Where a limit falls, no more begins than is in use until the others were asked: what was given was part of another.
- While a question is on its way the gate lets nobody use more than it said was in use: what was free may be another
  node's by then.
- Slots in use are never taken away. A share that falls below them waits for bodies to end.
- A lane wants a slot for each task that could begin if it had one: no more than there is room for at its other gates,
  but one always, since nobody tells who waits here of room that comes elsewhere.
- Shares are not derived from records: they outlive a rebuild, and are nothing after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from ..kernel.transaction import Call
    from ..messages.inputs import ToolShares
    from .queues import Gate, Lane, Waiting
    from .scheduler import SchedulerActor

Item = TypeVar("Item")


class ToolWant(msgspec.Struct, frozen=True):
    """What this node wants of a tool, in slots."""

    most: int  # the limit of the tool, in all
    used: int  # in use
    urgent: int = 0  # that tasks of `priority` could use beside those
    priority: int = 0  # the highest of those that wait
    less: int = 0  # that less urgent tasks could use beside those
    share: int = 0  # what this node has


class Shares:
    """The scheduler as far as the limits of its tools are shared."""

    def __init__(self, scheduler: SchedulerActor) -> None:
        self.scheduler = scheduler
        self.given: dict[str, int] = {}
        self.questions = 0  # how many there were
        self.asked: dict[str, int] = {}  # the number of the last one about each tool
        self.rung = False

    def call(self) -> None:
        """More is wanted, or less: ring once, until it is asked for `wants`."""
        if not self.rung:
            self.rung = True
            self.scheduler.kernel.ring()

    def limit(self, tool: str, gate: Gate, most: int) -> None:
        """From now on this is the limit of a tool, over all nodes; NO_LIMIT where it has none."""
        before, gate.most = gate.most, most
        if before is None:  # a new gate, or one that was made again
            gate.limit = min(self.given.get(tool, 0), most)
        elif most < before:
            self.given[tool] = gate.limit = min(self.given.get(tool, 0), gate.used)
        if before not in {None, most}:
            self.call()

    def shut(self, gate: Gate) -> None:
        """A task stands before a gate."""
        if gate.most is not None and gate.limit < gate.most:
            self.call()

    def freed(self, slot: Call) -> None:
        """A slot came free: where it is one too many, or nobody needs it here, it may be somebody else's."""
        for gate in slot.gates[1:]:
            if gate.most is not None and (gate.scarce or gate.used >= gate.limit):
                self.call()

    def wants(self) -> dict[str, ToolWant]:
        """What is wanted now of each tool that has been used. It rings again from now on."""
        self.rung = False
        tools = self.scheduler.tools.items()
        return {tool: self._want(tool, gate) for tool, gate in tools if gate.most is not None}

    def hold(self, tool: str) -> None:
        """Use no more slots of a tool than are in use now, until `take`."""
        gate = self.scheduler.tools.get(tool)
        used = 0 if gate is None else gate.used
        share = min(self.given.get(tool, 0), used)
        self.given[tool] = share
        self.questions += 1
        self.asked[tool] = self.questions
        if gate is not None and gate.most is not None:
            gate.limit = share

    def take(self, message: ToolShares) -> None:
        """Use what was given."""
        scheduler = self.scheduler
        rung, self.rung = self.rung, True  # this was the answer: what stands before a gate still waits for others
        for tool, share in message.shares.items():
            if message.asked.get(tool, self.asked.get(tool)) != self.asked.get(tool):
                continue  # what was said to be in use since then does not count what this would let begin
            word = message.words.get(tool)
            if word is not None:
                scheduler.kernel.tool_limits.heard(tool, word)
            gate = scheduler.tools.get(tool)
            if gate is None or gate.most is None:
                self.forget(tool)
                continue
            # where a stricter limit was said here since it was asked for, no more is used until that was asked for, too
            late = word is not None and word.limit > gate.most
            given = self.given[tool] = min(share, gate.used) if late else share
            gate.limit, gate.scarce = min(given, gate.most), tool in message.scarce
            if gate.used < gate.limit and gate.waiting:
                scheduler.wake(gate)
        if scheduler.reservations.at_work:
            scheduler.reservations.collect()
        self.rung = rung

    def forget(self, tool: str) -> None:
        """Nothing uses a tool any more. What is on its way is for nobody; what this node had is given back."""
        self.given.pop(tool, None)
        self.asked.pop(tool, None)

    def _want(self, tool: str, gate: Gate) -> ToolWant:
        most = gate.most or 0
        share = self.given.get(tool, 0)
        if self.scheduler.stopped:
            return ToolWant(most, gate.used, share=share)
        back = [-task.priority for task in self.scheduler.reservations.waiting_at(gate)]
        level = min([*_level(gate), *back], default=None)
        if level is None:
            return ToolWant(most, gate.used, share=share)
        urgent = min(most, _count(gate, level, most) + back.count(level))
        all_of_them = max(urgent, min(most, _count(gate, math.inf, most) + len(back)))
        return ToolWant(most, gate.used, urgent, -level, all_of_them - urgent, share)


def _lanes(gate: Gate, level: float) -> Iterator[Lane]:
    """The lanes that wait at a gate with a task of that level (-priority) or a better one, the best one first."""
    waiting: Waiting = gate.waiting
    for key, _, lane in _down(waiting, level):
        if lane.at is waiting and lane.key == key and not lane.paused and lane.top() is not None:
            yield lane


def _level(gate: Gate) -> list[int]:
    """The best level of the tasks that wait at a gate, if any do."""
    waiting: Waiting = gate.waiting
    while waiting and (waiting[0][2].at is not waiting or waiting[0][2].key != waiting[0][0]):
        heappop(waiting)
    levels = (lane.key[0] for lane in _lanes(gate, math.inf))
    paused = bool(waiting) and waiting[0][2].paused  # then the best one may stand anywhere
    return sorted(levels)[:1] if paused else [*islice(levels, 1)]


def _count(gate: Gate, level: float, most: int) -> int:
    """How many tasks of that level or a better one could begin, if they had as many slots; no more than `most`."""
    rooms: dict[int, int] = {}
    found = 0
    for lane in _lanes(gate, level):
        others = [other for other in lane.gates[bool(lane.reserved) :] if other is not gate]
        room = min([rooms.setdefault(id(other), other.limit - other.used) for other in others], default=most)
        valid = (1 for _, ticket, task in _down(lane.heap, level) if task.ticket == ticket)
        count = sum(islice(valid, max(1, min(room, most - found))))
        for other in others:
            rooms[id(other)] -= count
        found += count
        if found >= most:
            break
    return min(found, most)


def _down(heap: list[tuple[tuple[int, int], int, Item]], level: float) -> Iterator[tuple[tuple[int, int], int, Item]]:
    """The entries of a heap that are of that level or a better one: none stands below one that is not."""
    left = [0]
    while left:
        place = left.pop()
        if place < len(heap) and heap[place][0][0] <= level:
            yield heap[place]
            left += (2 * place + 2, 2 * place + 1)
