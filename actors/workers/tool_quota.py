"""The limits of tools that several nodes share: each node may use its *share* of the slots.

Rules
-----
- The limit of a tool's gate is this node's last share (`ToolShares`), at first 0; `most` is the limit over all nodes.
  Queues wait there as at any other gate. The node requests slots (`Kernel.notify_nodes`) when a task waits at the gate,
  and signals when a slot beyond the share, or one that other nodes wait for, becomes free.
- A tool without a known limit is treated the same, since another node may declare a limit. A share is requested before
  the tool's first task starts; the share is unlimited, too, if there is no limit.
- If a limit becomes smaller, only the slots in use stay until a new share arrives: the old share was part of the old
  limit.
- While a request is under way, the gate admits no more than the request reported as in use: free slots may already
  belong to another node.
- Slots in use are never taken away. If a share falls below them, the gate waits for bodies to end.
- A queue requests a slot for each task that could start with one: no more than its other gates have room for, but at
  least one, since no gate informs the queues that wait at another gate when it gets room.
- Shares are not derived from records: they survive a rebuild, but a restart begins with 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heappop
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from ..kernel.transaction import CallOrder
    from ..messages.inputs import ToolShares
    from .queues import ConcurrencyGate, GatedQueue, Key, Waiting
    from .scheduler import SchedulerActor

Item = TypeVar("Item")


class ToolWant(msgspec.Struct, frozen=True):
    """This node's request for slots of a tool."""

    most: int  # the limit of the tool over all nodes
    used: int  # slots in use on this node
    urgent: int = 0  # further slots that waiting tasks of `priority` could use
    priority: int = 0  # the highest priority of the waiting tasks
    less: int = 0  # further slots that less urgent tasks could use
    share: int = 0  # this node's present share


class ToolQuotas:
    """The part of the scheduler for tool limits that nodes share."""

    def __init__(self, scheduler: SchedulerActor) -> None:
        self.scheduler = scheduler
        self.given: dict[str, int] = {}
        self.questions = 0  # number of requests so far
        self.asked: dict[str, int] = {}  # the number of the last request for each tool
        self.signalled = False

    def signal(self) -> None:
        """Signal that the wanted slots have changed: once, until `wants` is called."""
        if not self.signalled:
            self.signalled = True
            self.scheduler.kernel.notify_nodes()

    def limit(self, tool: str, gate: ConcurrencyGate, most: int) -> None:
        """Set the limit of a tool over all nodes; NO_LIMIT: it has none."""
        before, gate.most = gate.most, most
        if before is None:  # a new gate, or one that was rebuilt
            gate.limit = min(self.given.get(tool, 0), most)
        elif most < before:
            self.given[tool] = gate.limit = min(self.given.get(tool, 0), gate.used)
        if before not in {None, most}:
            self.signal()

    def shut(self, gate: ConcurrencyGate) -> None:
        """Request slots if a task waits at a gate and the node's share is below the limit."""
        if gate.most is not None and gate.limit < gate.most:
            self.signal()

    def freed(self, slot: CallOrder) -> None:
        """Signal a free slot that is beyond the share, or that other nodes wait for."""
        self.freed_at(slot.gates[1:])

    def freed_at(self, gates: tuple[ConcurrencyGate, ...]) -> None:
        """`freed`, for a slot at these gates."""
        for gate in gates:
            if gate.most is not None and (gate.scarce or gate.used >= gate.limit):
                self.signal()

    def wants(self) -> dict[str, ToolWant]:
        """The present request for each tool that has been used. Later changes are signalled again."""
        self.signalled = False
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
        """Apply the shares that the node was given."""
        scheduler = self.scheduler
        before, self.signalled = self.signalled, True  # the answer: a queue that still waits requests nothing
        for tool, share in message.shares.items():
            if message.asked.get(tool, self.asked.get(tool)) != self.asked.get(tool):
                continue  # a later request reported the slots in use, without those that this answer would add
            word = message.words.get(tool)
            if word is not None:
                scheduler.workforce.tool_limits.heard(tool, word)
            gate = scheduler.tools.get(tool)
            if gate is None or gate.most is None:
                self.forget(tool)
                continue
            # A stricter limit was declared here after the request: use no more until a new request is answered.
            late = word is not None and word.limit > gate.most
            given = self.given[tool] = min(share, gate.used) if late else share
            gate.limit, gate.scarce = min(given, gate.most), tool in message.scarce
            if gate.used < gate.limit and gate.waiting:
                scheduler.wake(gate)
        if scheduler.reservations.at_work:
            scheduler.reservations.collect()
        self.signalled = before

    def forget(self, tool: str) -> None:
        """Give back the share of a tool that nothing uses, and ignore an answer that is under way."""
        self.given.pop(tool, None)
        self.asked.pop(tool, None)

    def _want(self, tool: str, gate: ConcurrencyGate) -> ToolWant:
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


def _queues(gate: ConcurrencyGate, level: float) -> Iterator[GatedQueue]:
    """The queues at a gate whose first task or step has at least this level (-priority), best first."""
    waiting: Waiting = gate.waiting
    for key, _, queue in _down(waiting, level):
        if queue.at is waiting and queue.key == key and not queue.paused and queue.top() is not None:
            yield queue


def _level(gate: ConcurrencyGate) -> list[int]:
    """The best level of the tasks that wait at a gate, as a list of one; empty if none waits."""
    waiting: Waiting = gate.waiting
    while waiting and (waiting[0][2].at is not waiting or waiting[0][2].key != waiting[0][0]):
        heappop(waiting)
    levels = (queue.key[0] for queue in _queues(gate, math.inf))
    paused = bool(waiting) and waiting[0][2].paused  # then the best queue may be anywhere in the heap
    return sorted(levels)[:1] if paused else [*islice(levels, 1)]


def _count(gate: ConcurrencyGate, level: float, most: int) -> int:
    """The number of tasks of at least this level that could start if they had the slots; at most `most`."""
    rooms: dict[int, int] = {}
    found = 0
    for queue in _queues(gate, level):
        others = [other for other in queue.gates[bool(queue.reserved) :] if other is not gate]
        room = min([rooms.setdefault(id(other), other.limit - other.used) for other in others], default=most)
        valid = (1 for _, ticket, task in _down(queue.heap, level) if task.ticket == ticket)
        count = sum(islice(valid, max(1, min(room, most - found))))
        for other in others:
            rooms[id(other)] -= count
        found += count
        if found >= most:
            break
    return min(found, most)


def _down(heap: list[tuple[Key, int, Item]], level: float) -> Iterator[tuple[Key, int, Item]]:
    """The entries of a heap with at least this level. The search stops at worse entries: none below them is better."""
    left = [0]
    while left:
        place = left.pop()
        if place < len(heap) and heap[place][0][0] <= level:
            yield heap[place]
            left += (2 * place + 2, 2 * place + 1)
