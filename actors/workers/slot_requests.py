"""The attempts that have lent their slots and want them back: first come, first served at each worker.

Rules
- Attempts with the same worker, gates and reservations are one queue: if the first one cannot go on, none of them can.
- The queues of one worker take turns, so that none keeps out another one.
- To find the next attempt costs one step for each queue of its worker, however many attempts wait. Queues of one worker
  differ by the tools of their tasks, and by the jobs that set `max_parallel` or `worker_count`.
- An attempt that has ended, or waits again, is dropped only when it comes to the head of its queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..kernel.transaction import CallOrder, LentSlot

Tokens = OrderedDict[int, None]  # each token once, however often its body waited again meanwhile
Kind = tuple[tuple[Any, ...], tuple[Any, ...]]  # the gates of the slots, and the reservations that they may use


class SlotRequests:
    """The queues of one scheduler. Derived state. lent: all lent slots, by the tokens of their attempts."""

    def __init__(self, lent: dict[int, LentSlot]) -> None:
        self._lent = lent
        self._queues: dict[int, dict[Kind, Tokens]] = {}  # by the key of the worker

    def add(self, token: int, slot: CallOrder, reserved: tuple[Any, ...]) -> None:
        """Add an attempt that wants its slot back. reserved: the reservations that it may use."""
        self._queues.setdefault(slot.worker, {}).setdefault((slot.gates, reserved), OrderedDict())[token] = None

    def __bool__(self) -> bool:
        """Whether any attempt wants its slot back."""
        queues = self._queues
        while queues:
            worker, mine = next(iter(queues.items()))
            while mine:
                kind, queue = next(iter(mine.items()))
                if self._first(queue) is not None:
                    return True
                del mine[kind]
            del queues[worker]
        return False

    def workers(self) -> list[int]:
        """The keys of the workers whose slots are wanted back."""
        return list(self._queues)

    def serve(self, worker: int, give: Callable[[int, LentSlot], bool], room: Callable[[], bool]) -> None:
        """Give the attempts at a worker their slots, one of each queue in turn, as long as there is `room()`.

        give: gives one attempt its slot back. It returns False if neither this attempt nor another one of its queue can
        go on.
        """
        mine = self._queues[worker]
        given = True
        while given:
            given = False
            for kind in list(mine):
                if not room():
                    return
                queue = mine.pop(kind)  # to put it behind the others
                first = self._first(queue)
                if first is not None and give(*first):
                    del queue[first[0]]
                    given = True
                if queue:
                    mine[kind] = queue
        if not mine:
            del self._queues[worker]

    def at(self, gate: object) -> Iterator[CallOrder]:
        """The slots that count against `gate`, and are wanted back."""
        for mine in self._queues.values():
            for (gates, _), queue in mine.items():
                if gate in gates:
                    found = (self._lent.get(token) for token in queue)
                    yield from (one.slot for one in found if one is not None and one.reply is not None)

    def _first(self, queue: Tokens) -> tuple[int, LentSlot] | None:
        """The first attempt of a queue that still wants its slot back. Drops those before it."""
        while queue:
            token = next(iter(queue))
            lent = self._lent.get(token)
            if lent is not None and lent.reply is not None:
                return token, lent
            del queue[token]
        return None
