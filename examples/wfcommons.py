"""Run the graph of a real scientific workflow, from its execution trace in WfFormat 1.5 (JSON).

    python examples/wfcommons.py
    python examples/wfcommons.py hic-dirt02-001.json --scale 0.01 --journal hic.db

Traces of real workflows are published at https://github.com/wfcommons/WfInstances. Every task of the trace becomes a
task that waits for `--scale` times its duration in the trace, with the same dependencies. With `--journal` the run is
durable: after a kill (`kill -9`), the same command goes on; after the end, the same command prints the result.

It prints the number of tasks and layers, the critical path (the longest chain of durations: no run can be faster),
and the makespan (how long the run took).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import anyio

from callboard import Defaults, Runtime, Task, TaskContext, Worker, Workstream
from callboard.errors import JournalError

HERE = Path(__file__).resolve().parent
SLOTS = 1_000


class Trace:
    """A workflow's graph and durations. Raises ValueError for a file that is no WfFormat trace."""

    def __init__(self, path: Path) -> None:
        try:
            workflow: Any = json.loads(path.read_text(encoding="utf-8"))["workflow"]
            self.parents: dict[str, list[str]] = {
                task["id"]: list(task["parents"]) for task in workflow["specification"]["tasks"]
            }
            self.seconds: dict[str, float] = {
                task["id"]: float(task["runtimeInSeconds"]) for task in workflow["execution"]["tasks"]
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is no trace in WfFormat 1.5: {type(error).__name__}: {error}") from error
        try:
            self.order = list(TopologicalSorter(self.parents).static_order())
        except CycleError as error:
            raise ValueError(f"{path}: its tasks wait for one another: {' -> '.join(error.args[1])}") from error
        if not self.order:
            raise ValueError(f"{path} has no tasks")
        if missing := [name for name in self.order if name not in self.seconds]:
            raise ValueError(f"{path}: the execution has no duration of {', '.join(missing[:5])}")

    @property
    def layers(self) -> int:
        """The number of tasks in the longest chain."""
        return int(max(self._longest(dict.fromkeys(self.order, 1.0)).values()))

    @property
    def critical_path(self) -> float:
        """The seconds of the longest chain."""
        return max(self._longest(self.seconds).values())

    def _longest(self, weights: dict[str, float]) -> dict[str, float]:
        """For each task the weight of the heaviest chain that ends with it."""
        heaviest: dict[str, float] = {}
        for name in self.order:
            before = max((heaviest[parent] for parent in self.parents[name]), default=0.0)
            heaviest[name] = before + weights[name]
        return heaviest


async def wait(task: TaskContext) -> float:
    """Wait instead of the work of one task of the trace."""
    await anyio.sleep(task.args["seconds"])
    return float(task.args["seconds"])


def workstream(name: str, trace: Trace, scale: float) -> Workstream:
    """The trace as a workstream."""
    return Workstream(
        name,
        defaults=Defaults(timeout="7d"),
        tasks=[
            Task(task, run=wait, depends_on=trace.parents[task], args={"seconds": trace.seconds[task] * scale})
            for task in trace.order
        ],
    )


async def run(path: Path, scale: float, journal: str | None) -> bool:
    """Run a trace and print the result. True if all tasks completed."""
    trace = Trace(path)
    spec = workstream(path.stem, trace, scale)
    async with Runtime(journal, workers=[Worker("loop", engine="loop", capacity=SLOTS)]) as runtime:
        began = time.perf_counter()
        job = await runtime.submit(spec, id=f"{path.stem}-{scale:g}")  # the same arguments give the same job
        outcome = await job.wait()
        took = time.perf_counter() - began
    completed = sum(task.state == "completed" for task in outcome.tasks.values())
    fastest = trace.critical_path * scale
    print(f"workflow       {path.stem}: {outcome.state}")
    print(f"tasks          {completed} of {len(trace.order)} completed, {trace.layers} layers")
    print(f"work           {sum(trace.seconds.values()):.2f} s in the trace, times {scale:g}")
    print(f"critical path  {fastest:.3f} s")
    print(
        f"makespan       {took:.3f} s ({took / fastest:.2f} x the critical path)"
        if fastest
        else f"makespan {took:.3f} s"
    )
    return outcome.ok


def factor(text: str) -> float:
    """Read a scale. Raises ValueError for a number that is no valid factor."""
    number = float(text)
    if not 0 <= number <= 1e6:
        raise ValueError(text)
    return number


def main() -> int:
    """Read the command line. Returns the exit code: 0 completed, 1 failed, 2 bad input."""
    parser = argparse.ArgumentParser(description="Run the graph of a workflow's execution trace (WfFormat 1.5).")
    parser.add_argument("trace", nargs="?", type=Path, default=HERE / "data" / "diamond.json", metavar="FILE")
    parser.add_argument("--scale", type=factor, default=0.01, help="what durations are multiplied by (0.01)")
    parser.add_argument("--journal", metavar="FILE", help="keep the run in this file (else in memory)")
    given = parser.parse_args()
    try:
        return 0 if anyio.run(run, given.trace, given.scale, given.journal) else 1
    except (ValueError, JournalError) as error:  # a SpecificationError is a ValueError
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
