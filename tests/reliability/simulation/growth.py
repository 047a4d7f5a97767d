"""A model of large clusters: many virtual nodes, which only have leases, on one database.

    python -m tests.reliability.simulation.growth                     # the table of docs/scaling.md
    python -m tests.reliability.simulation.growth --nodes 4 64 --jobs 1000 --rate 2000

Rules
-----
- A node acts like `runtime/cluster/membership.py`, at the same times and with the same constants: it renews its lease
  every third of it, checks earlier if another node's lease is about to run out, and takes its share of the jobs without
  an owner.
- The database is one queue: it does `rate` statements a second, one after another. A renewal is two of them, a taking
  three, and one more for each hundred jobs that it takes. Its clock is the only one.
- Time is virtual: a thousand nodes for some minutes take some seconds.

| scenario | what happens |
| --- | --- |
| one dies | a node stops, with all its jobs |
| a tenth die | so many at the same moment |
| outage | the server is down for a minute, and no node stops |
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from callboard.runtime.cluster.membership import RENEWALS, SOON, next_look
from callboard.runtime.journal.cluster import LEASE, LeaseRenewal

BEAT = 2
TAKE = 3
JOBS_A_STATEMENT = 100
BEFORE = 60.0
"""Seconds until the fault: by then all nodes are at rest."""
LONGEST = 240.0
OUTAGE = 60.0
AGAIN = 5.0
"""The most seconds between two tries to reach a server that is down."""


@dataclass
class RunResult:
    """The result of a run, in seconds, statements and jobs."""

    at_rest: float = 0.0  # statements a second before the fault
    peak: int = 0  # statements in the busiest second after it
    settled: int = 0  # the same a minute later: it shows whether the nodes check at the same time from then on
    takings: int = 0
    waits: list[float] = field(default_factory=list)  # from the end of a node until another node took a job of it
    fenced: int = 0
    wrongly: int = 0  # the number of those nodes that had no fault
    most: int = 0  # the most jobs of one node at the end
    mean: float = 0.0

    def within(self, part: float) -> float:
        """The time at which that part of the jobs was taken."""
        return sorted(self.waits)[max(0, math.ceil(part * len(self.waits)) - 1)] if self.waits else 0.0


class Growth:
    """One run: so many nodes with so many jobs each, of which `dying` stop."""

    def __init__(self, nodes: int, jobs: int, *, rate: float, lease: float, dying: int, outage: float = 0.0) -> None:
        self.random = Random(f"{nodes}/{jobs}/{dying}/{outage}")
        self.count, self.rate, self.lease, self.dying = nodes, rate, lease, dying
        self.down = (BEFORE, BEFORE + outage) if outage else (0.0, 0.0)
        self.alive = [True] * nodes
        self.fenced = [False] * nodes
        self.living = nodes
        self.seen = [0.0] * nodes
        self.awake = [0.0] * nodes
        self.owned = [jobs] * nodes
        self.leases: list[tuple[float, int]] = []  # a heap of the leases' ends, of which the older ones are dropped
        self.orphans: list[
            tuple[float, int]
        ] = []  # when their node stopped, and the number of its jobs without an owner
        self.left = 0
        self.free_at = 0.0  # when the database has executed all statements so far
        self.asked = Counter[int]()  # statements, by second
        self.told = RunResult()
        self.looks: list[tuple[float, int]] = []
        for node in range(nodes):
            heappush(self.looks, (self.random.random() * lease / RENEWALS, node))

    def run(self) -> RunResult:
        """Execute the run."""
        died = False
        while self.looks and self.looks[0][0] < LONGEST:
            at, node = heappop(self.looks)
            if not died and at >= BEFORE:
                died = True
                for one in range(self.dying):
                    self.alive[one] = False
            if self.alive[node] and not self.fenced[node]:
                heappush(self.looks, (self._look(at, node), node))
        return self._tell()

    def _ask(self, at: float, statements: float) -> float:
        """Ask the database. Returns the time of the answer."""
        self.asked[int(at)] += int(statements)
        self.free_at = max(self.free_at, at) + statements / self.rate
        return self.free_at

    def _look(self, at: float, node: int) -> float:
        """Make a node's check. Returns the time of its next check."""
        if self.down[0] <= at < self.down[1]:
            return at + AGAIN * (0.5 + self.random.random() / 2)
        now = self._ask(at, BEAT)
        if now - self.seen[node] > self.lease / 2:
            self.awake[node] = now
        self.seen[node] = now
        heappush(self.leases, (now + self.lease, node))
        due_in = self._due(node) - now
        busy = bool(self.left) or due_in <= 0
        if busy:
            now = self._ask(now, TAKE)
            now = self._take(now, node)
            return now + SOON
        return now + next_look(self.lease, LeaseRenewal(self.living, 0, due_in), self.random)

    def _due(self, node: int) -> float:
        """The time at which the lease of the next other node runs out."""
        leases, own = self.leases, []
        while leases:
            end, other = leases[0]
            if self.fenced[other] or self.seen[other] + self.lease > end:
                heappop(leases)
            elif other == node:
                own.append(heappop(leases))
            else:
                break
        due = leases[0][0] if leases else math.inf
        for one in own:
            heappush(leases, one)
        return due

    def _take(self, now: float, node: int) -> float:
        """Fence the nodes whose lease has run out, and take a share of the jobs without an owner."""
        if self.awake[node] + self.lease < now:
            while self.leases and self.leases[0][0] < now:
                end, other = heappop(self.leases)
                if self.fenced[other] or self.seen[other] + self.lease > end:
                    continue
                self.fenced[other] = True
                self.living -= 1
                self.told.fenced += 1
                self.told.wrongly += self.alive[other]
                self.orphans.append((BEFORE, self.owned[other]))
                self.left += self.owned[other]
        if not self.left:
            return now
        share = want = -(-self.left // self.living)
        now = self._ask(now, share / JOBS_A_STATEMENT)
        while want:
            died, count = self.orphans[-1]
            some = min(want, count)
            self.told.waits += [now - died] * some
            want -= some
            self.orphans.pop()
            if count > some:
                self.orphans.append((died, count - some))
        self.left -= share
        self.owned[node] += share
        self.told.takings += 1
        return now

    def _tell(self) -> RunResult:
        told, asked = self.told, self.asked
        told.at_rest = sum(asked[second] for second in range(30, int(BEFORE))) / (BEFORE - 30)
        happened = int(self.down[1] or BEFORE)
        told.peak = max(asked[second] for second in range(happened, happened + 60))
        told.settled = max(asked[second] for second in range(happened + 60, int(LONGEST) - 5))
        there = [count for node, count in enumerate(self.owned) if not self.fenced[node]]
        told.most, told.mean = max(there), sum(there) / len(there)
        return told


def table(nodes: list[int], jobs: int, rate: float, lease: float) -> str:
    """The figures, as Markdown."""
    head = (
        "nodes", "what happens", "statements/s at rest", "in the busiest second", "a minute later", "takings",
        "half taken after", "all taken after", "most jobs to the mean", "fenced though alive",
    )  # fmt: skip
    lines = [
        f"{jobs:,} jobs a node, a lease of {lease:g} s, a database that does {rate:,.0f} statements a second:",
        "",
        f"| {' | '.join(head)} |",
        f"|{' --- |' * len(head)}",
    ]
    for count in nodes:
        for what, dying, outage in (
            ("one dies", 1, 0.0), ("a tenth die", max(1, count // 10), 0.0), (f"outage of {OUTAGE:g} s", 0, OUTAGE),
        ):  # fmt: skip
            told = Growth(count, jobs, rate=rate, lease=lease, dying=dying, outage=outage).run()
            taken = f"{told.within(0.5):.1f} s | {told.within(1.0):.1f} s" if dying else "- | -"
            lines.append(
                f"| {count:,} | {what} | {told.at_rest:,.1f} | {told.peak:,} | {told.settled:,} | {told.takings:,} | "
                f"{taken} | {told.most / told.mean:.2f} | {told.wrongly} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.simulation.growth")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 30, 100, 1000])
    parser.add_argument("--jobs", type=int, default=10_000, help="living ones of each node")
    parser.add_argument("--rate", type=float, default=5_000.0, help="statements a second that the database does")
    parser.add_argument("--lease", type=float, default=LEASE)
    options = parser.parse_args()
    print(table(options.nodes, options.jobs, options.rate, options.lease))
    return 0


if __name__ == "__main__":
    sys.exit(main())
