"""Kill flows and print a report: `PYTHONPATH=src python -m tests.reliability.kills.flows [--minutes 10] [--seed 1000]`.

Flows in all engines are killed after every step's function, at every commit (before, within and behind it) and at
random instants, on SQLite, on PostgreSQL, and on two nodes of one PostgreSQL, of which one or the other is killed. Each
journal gets an equal part of the time; `--journal sqlite` (or `postgres`, `nodes`) takes one only. `--each` kills once
at each of the points, in order, and lets the flows go on to their ends, however long all of that takes. The exit code
is 1 if a rule was broken.

The rules are in `flow_rules.py`. A step that a kill cuts runs again: that is allowed, and counted. A kill cuts a step
from the begin of its function until the commit that keeps its row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

from callboard.runtime.testing.postgres import PrivateServer

from .death import Commit, Death, Wrote
from .flow_rules import KINDS, OTHER, RulesBroken
from .outside import Zygote
from .pairs import NODES, Pair
from .sweep import MOST, Blow, Tally, chain, flows

JOURNALS = ("sqlite", "postgres", "nodes")
BOUNDARIES: list[Death] = [
    *(Wrote(n) for n in range(1, 90)),
    *(Commit(n, where) for n in range(1, 90) for where in ("before", "within", "after")),
]
"""The first kills: after each line of bodies and steps, and at each of the commits, of flows that are left alone."""


class Sweep:
    """Chains of kills of one journal, and what they have found."""

    def __init__(
        self, journal: str, server: PrivateServer | None, zygotes: dict[str, Zygote], *, each: bool = False
    ) -> None:
        self.tally = Tally()
        self.broken: Counter[str] = Counter()
        self._journal = journal
        self._server = server
        self._zygotes = zygotes
        self._most = 1 if each else MOST

    def run(self, place: Path, seed: int, number: int) -> None:
        """Run one chain. The first ones begin with each of `BOUNDARIES`."""
        place.mkdir()
        if self._server is not None:
            (place / "address").write_text(self._server.address(f"kills_{self._journal}_{seed}"))
        try:
            first = Blow(BOUNDARIES[number]) if number < len(BOUNDARIES) else None
            if self._journal == "nodes":
                Pair(self._zygotes, place, seed, self.tally, first, plays=flows, most=self._most).play()
            else:
                chain(self._zygotes[NODES[0]], place, seed, self.tally, first, plays=flows, most=self._most)
        except RulesBroken as error:
            self._note(seed, error, Counter(one.kind for one in error.findings))
        except (AssertionError, TimeoutError) as error:
            self._note(seed, error, Counter([OTHER]))

    def _note(self, seed: int, error: Exception, kinds: Counter[str]) -> None:
        self.broken += kinds
        print(f"{self._journal}, seed {seed}: {type(error).__name__}: {error}", flush=True)

    def told(self, seconds: float) -> str:
        """The report of this journal."""
        lines = [f"{self._journal}: {self.tally.killed:,} kills in {self.tally.chains:,} chains, {seconds:,.0f} s"]
        lines += [f"  {count:8,}  {kind}" for kind, count in sorted(self.tally.kills.items())]
        lines += [f"  {count:8,}  {what}" for what, count in self.tally.done.items()]
        lines += [f"  {self.broken[kind]:8,}  {kind}" for kind in KINDS]
        return "\n".join(lines)


def main() -> int:
    """Run the sweep; returns the exit code."""
    parser = argparse.ArgumentParser(description="Kills flows, and prints a report.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it kills (10)")
    parser.add_argument("--seed", type=int, default=1000, help="of the first chain (1000)")
    parser.add_argument("--each", action="store_true", help="kill once at each line and commit, and no more")
    parser.add_argument("--journal", choices=JOURNALS, help="one of them only")
    asked = parser.parse_args()
    journals = [asked.journal] if asked.journal else JOURNALS
    sweeps: list[Sweep] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callboard-kills-")))
        zygotes = {node: stack.enter_context(closing(Zygote())) for node in NODES}
        server = None if journals == ["sqlite"] else stack.enter_context(PrivateServer())
        for journal in journals:
            sweep = Sweep(journal, None if journal == "sqlite" else server, zygotes, each=asked.each)
            sweeps.append(sweep)
            began, number = time.monotonic(), 0
            limit = began + asked.minutes * 60 / len(journals)
            while number < len(BOUNDARIES) if asked.each else time.monotonic() < limit:
                sweep.run(folder / f"{journal}-{number}", asked.seed + number, number)
                number += 1
            print(sweep.told(time.monotonic() - began), flush=True)
    kills = sum(sweep.tally.killed for sweep in sweeps)
    done: Counter[str] = sum((sweep.tally.done for sweep in sweeps), Counter())
    broken: Counter[str] = sum((sweep.broken for sweep in sweeps), Counter())
    print(f"In all: {kills:,} kills, " + ", ".join(f"{count:,} {what}" for what, count in done.items()))
    print("; ".join(f"{kind}: {broken[kind]}" for kind in KINDS))
    return 1 if broken.total() else 0


if __name__ == "__main__":
    sys.exit(main())
