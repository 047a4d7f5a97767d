"""Run the simulation: one seed with its trace, a range of seeds, or by the hour.

    python -m tests.reliability.simulation crashes 786            # one run: plan, trace, findings
    python -m tests.reliability.simulation crashes 786 --smaller  # the smallest plan that still shows it
    python -m tests.reliability.simulation crashes 786 --whole    # the same plan on the whole runtime
    python -m tests.reliability.simulation --seeds 2000           # so many seeds of every kind
    python -m tests.reliability.simulation --hours 1              # seeds nobody has run, and keep those that are new

By the hour it begins at a seed of the day, and writes into `corpus.txt` each run that took a transition, under a move,
that no run before it took. Start it with PYTHONPATH=src in a checkout that is not installed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from . import whole
from .corpus import CORPUS, SEEDS, Novelty, kept
from .driver import Result, carry_out
from .minimise import smaller
from .plans import KINDS, Plan, make_plan


def show(plan: Plan, result: Result) -> None:
    """Print a run: its plan, its trace, its findings."""
    for order in plan.orders:
        print(f"job {order.job_id}, after {order.after} moves: {order.spec}")
    print("workers:", *plan.workers)
    print("moves:", *plan.moves, sep="\n  ")
    for line in result.lines():
        print(line)
    if result.world.ledger.error is not None:
        traceback.print_exception(result.world.ledger.error)
    print(f"{len(result.findings)} findings")
    for finding in result.findings:
        print(f"  {finding}")


def one(kind: str, seed: int, *, small: bool, on_all: bool) -> int:
    """Run one seed."""
    plan = make_plan(seed, kind)
    if on_all:
        run = whole.carry_out(plan)
        print(run.sim.trace.text(), *run.findings, sep="\n")
        return bool(run.findings)
    result = carry_out(plan)
    if small and result.findings:
        plan = smaller(plan, result.kinds)
        result = carry_out(plan)
    show(plan, result)
    return bool(result.findings)


def many(kinds: list[str], seeds: range, until: float | None, *, first_only: bool = False) -> int:
    """Run seeds of every kind, and print the findings. first_only: stop at the first finding."""
    novelty, taken, found = Novelty(), Counter[str](), 0
    began, runs = time.process_time(), 0
    known = [(kind, seed) for kind in kinds for seed in range(SEEDS)] + kept()
    for kind, seed in known if until is not None else ():
        novelty.look(carry_out(make_plan(seed, kind)))
    for seed in seeds:
        for kind in kinds:
            result = carry_out(make_plan(seed, kind))
            runs += 1
            taken += result.taken
            if result.findings and first_only:
                print(f"{kind} {seed}: {result.findings[0]} ({runs} runs)")
                return 1
            if result.findings:
                found += 1
                print(f"{kind} {seed}: {result.findings[0]}", flush=True)
            if until is not None and novelty.look(result):
                with CORPUS.open("a", encoding="utf-8") as corpus:
                    corpus.write(f"{kind} {seed}\n")
        if until is not None and time.monotonic() > until:
            break
    spent = time.process_time() - began
    print(f"{runs} runs in {spent:.0f} s of processor time, {found} with findings")
    print("moves that did something:", ", ".join(f"{what} {count}" for what, count in taken.most_common()))
    return bool(found)


def main() -> int:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("kind", nargs="?", choices=list(KINDS))
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--smaller", action="store_true", help="drop what the finding does not need")
    parser.add_argument("--whole", action="store_true", help="on the whole runtime")
    parser.add_argument("--kinds", default="", help="only of these kinds")
    parser.add_argument("--stop", action="store_true", help="at the first finding")
    parser.add_argument("--seeds", type=int, default=0, help="so many seeds of each kind")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--hours", type=float, default=0.0, help="so long, with seeds that nobody has run")
    options = parser.parse_args()
    if options.seed is not None:
        return one(options.kind, options.seed, small=options.smaller, on_all=options.whole)
    kinds = [options.kind] if options.kind else list(KINDS)
    if options.hours:
        first = options.first or int(time.time()) // 86_400 * 1_000_000
        return many(kinds, range(first, first + 1_000_000), time.monotonic() + options.hours * 3600)
    seeds = range(options.first, options.first + (options.seeds or 100))
    return many(options.kinds.split() or kinds, seeds, None, first_only=options.stop)


if __name__ == "__main__":
    sys.exit(main())
