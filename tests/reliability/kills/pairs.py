"""Two nodes run one scene on one database; one or the other is killed, and the remaining node continues.

Rules
-----
- Both run the same program, and submit the same jobs and machines under the same ids. So each of them exists once, and
  runs on the node that was first, until that node ends.
- A node kills itself, or is killed from outside. It starts again at once, or after a while, as a new node of the same
  name. So the work that it had begun is ended by the other node, or by the new one.
- Every third pair runs as if on two machines: the other node detects the end by the lease alone, and all processes that
  a node has started end with it. On one machine they go on until the other node takes over, and kills them.
- The rules are those for one runtime (`verdict.py`), checked after each kill and at the end.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import msgspec

from .outside import PATIENCE, Zygote, kill, kill_all, log_of
from .sweep import MOST, Blow, Plays, Tally, graphs, said

NODES = ("anna", "bert")
LOOK_EVERY = 0.02
"""Seconds between two checks for ended processes."""
ABSENT = (0.0, 0.3, 1.5)
"""Seconds until a killed node starts again: one of these."""


class Victim(msgspec.Struct):
    """The running process of a node. after: the time at which it is killed from outside (monotonic seconds)."""

    pid: int
    blow: Blow
    began: float


class Pair:
    """One chain: two nodes on the journal of a place, each with a zygote of its own. first: the first kill."""

    def __init__(
        self,
        zygotes: dict[str, Zygote],
        place: Path,
        seed: int,
        tally: Tally,
        first: Blow | None = None,
        *,
        plays: Plays = graphs,
        most: int = MOST,
    ) -> None:
        self.zygotes = zygotes
        self.place = place
        self.dice = random.Random(seed)
        self.tally = tally
        self.most = most
        self.first = first
        self.scene = plays(place, seed)
        self.rules = self.scene.rules
        self.order = msgspec.structs.replace(self.scene.order, elsewhere=seed % 3 == 0)
        self.alive: dict[str, Victim] = {}
        self.due = dict.fromkeys(NODES, 0.0)  # the time at which each node that does not run is started
        self.kills = 0

    def play(self) -> None:
        """Run the pair to its end. Raises AssertionError for each broken rule."""
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
            self.rules.operator.look()
            time.sleep(LOOK_EVERY)
            over |= {node for node in list(self.alive) if self._ended(node)}
            if over:  # so all jobs have ended, and the other node need not start again
                over |= self.due.keys()
        self.rules.operator.look()
        self.rules.at_end()
        self.tally.done += self.rules.done

    def _start(self, node: str) -> None:
        del self.due[node]
        killed = self.kills < self.most and self.dice.random() < 0.7
        blow = self.first or (self.scene.blow(self.dice, database=True) if killed else Blow())
        self.first = None
        order = msgspec.structs.replace(self.order, node=node, death=blow.death)
        self.alive[node] = Victim(self.zygotes[node].start(order), blow, time.monotonic())

    def _ended(self, node: str) -> bool:
        """Whether that node has reported the end of all jobs. A node that was killed starts again."""
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
        self.rules.after_kill()
        self.due[node] = time.monotonic() + self.dice.choice(ABSENT)
        return False
