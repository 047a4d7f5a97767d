"""Two nodes run one scene on one database; one or the other is killed, and the remaining node continues.

Rules
-----
- Both run the same program, and submit the same things under the same ids. So each thing is once there, and is run by
  the node that was first, until that dies.
- A node dies by its own hand, or is killed from outside; it comes back at once, or after a while, as a new node of the
  same name. So what it had begun is ended by the other, or by itself.
- Every third pair is as if on two machines: the other finds out by the lease alone, and with a node dies all that it
  has started. On one machine that lives on, until the other node, which takes over, has killed it.
- What must hold is what holds for one runtime (`verdict.py`), after each kill and at the end.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec

from .outside import PATIENCE, Operator, Zygote, kill, kill_all, log_of
from .sweep import MOST, Blow, Tally, drawn, said
from .verdict import after_kill, at_end
from .zygote import Order

NODES = ("anna", "bert")
LOOK_EVERY = 0.02
"""Seconds between two looks at who has ended."""
ABSENT = (0.0, 0.3, 1.5)
"""Seconds until a killed node comes back, one of these."""


class Victim(msgspec.Struct):
    """A node's process while it lives. after: when it is killed from outside (monotonic seconds)."""

    pid: int
    blow: Blow
    began: float


class Pair:
    """One chain: two nodes on the journal of a place, each with a zygote of its own."""

    def __init__(self, zygotes: dict[str, Zygote], place: Path, seed: int, tally: Tally) -> None:
        self.zygotes = zygotes
        self.place = place
        self.dice = random.Random(seed)
        self.tally = tally
        self.operator = Operator(place)
        self.order = Order(str(place), backend=("asyncio", "trio")[seed % 2], elsewhere=seed % 3 == 0)
        self.alive: dict[str, Victim] = {}
        self.due = dict.fromkeys(NODES, 0.0)  # when each of those that are not alive is started
        self.kills = 0

    def play(self) -> None:
        """Play it to its end. Raises AssertionError for whatever is not as it must be."""
        try:
            self._play()
        finally:
            for node, victim in self.alive.items():
                kill(victim.pid, "runtime", self.place)
                self.zygotes[node].ended(PATIENCE)

    def _play(self) -> None:
        self.tally.chains += 1
        over: set[str] = set()
        while over != set(NODES):
            for node, due in list(self.due.items()):
                if time.monotonic() >= due:
                    self._start(node)
            self.operator.look()
            time.sleep(LOOK_EVERY)
            over |= {node for node in list(self.alive) if self._ended(node)}
            if over:  # so all is over, and the other needs not come back
                over |= self.due.keys()
        self.operator.look()
        at_end(self.place, list(self.operator.sent.values()))

    def _start(self, node: str) -> None:
        del self.due[node]
        blow = drawn(self.dice, database=True) if self.kills < MOST and self.dice.random() < 0.7 else Blow()
        order = msgspec.structs.replace(self.order, node=node, death=blow.death)
        self.alive[node] = Victim(self.zygotes[node].start(order), blow, time.monotonic())

    def _ended(self, node: str) -> bool:
        """Whether that node has seen all to its end. One that was killed is to come back."""
        victim = self.alive[node]
        age = time.monotonic() - victim.began
        if victim.blow.after is not None and age >= victim.blow.after:
            kill(victim.pid, victim.blow.reach, self.place)
        code = self.zygotes[node].ended(0.0)
        if code is None:
            if age > PATIENCE:
                raise TimeoutError(f"{node} did not end within {PATIENCE} s: {log_of(self.place)[-20:]}")
            return False
        del self.alive[node]
        if code == 0:
            return True
        if self.order.elsewhere:
            kill_all(f"SCENE_NODE={self.place} {node}")
        assert code == -9, f"{node} failed ({code}): {said(self.place)}"
        self.kills += 1
        self.tally.kills[
            f"{victim.blow.kind}, of {'one' if self.alive else 'both'}{', elsewhere' * self.order.elsewhere}"
        ] += 1
        after_kill(self.place, list(self.operator.sent.values()))
        self.due[node] = time.monotonic() + self.dice.choice(ABSENT)
        return False
