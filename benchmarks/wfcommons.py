"""The time of real scientific workflows' graphs with no-op bodies.

    python benchmarks/wfcommons.py [--quick] [FOLDER]

FOLDER holds execution traces in WfFormat (github.com/wfcommons/WfInstances), by default `../shared/wfcommons`. They are
not part of this project: without them, the program says so and measures nothing. The journal is SQLite with
`synchronous=FULL`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec
from common import Figure, collected, figures_table, on_disk, run_on, seconds_of

from callboard import Runtime, Task, Workstream

TRACES = Path(__file__).parent.parent.parent / "shared" / "wfcommons"


class TracedTask(msgspec.Struct):
    id: str
    parents: list[str] = []


class Specification(msgspec.Struct):
    tasks: list[TracedTask]


class Workflow(msgspec.Struct):
    specification: Specification


class Trace(msgspec.Struct):
    name: str
    workflow: Workflow


async def noop() -> None:
    """The body of every task."""


def read(path: Path) -> Workstream:
    """The graph of a trace. Tasks are numbered: an id may have characters that no file name can have."""
    tasks = msgspec.json.decode(path.read_bytes(), type=Trace).workflow.specification.tasks
    names = {task.id: f"t{number:05d}" for number, task in enumerate(tasks)}
    return Workstream(
        path.stem,
        tasks=[Task(names[task.id], run=noop, depends_on=[names[one] for one in task.parents]) for task in tasks],
    )


async def fastest(path: Path, spec: Workstream, rounds: int) -> float:
    """Seconds of the fastest of some rounds."""
    spent: list[float] = []
    async with Runtime(path) as runtime:
        for _ in range(rounds):
            collected()
            spent.append(await seconds_of(runtime, spec))
    return min(spent)


def figures(folder: Path, quick: bool, traces: Path = TRACES) -> Iterator[Figure]:
    """Measure every trace of the folder."""
    found = sorted(traces.glob("*.json"))
    if not found:
        yield Figure("real workflows", f"skipped: there are no traces in {traces.name}/")
    for trace in found:
        spec = read(trace)
        spent = run_on("asyncio", fastest, folder / f"{trace.stem}.db", spec, 1 if quick else 3)
        edges = sum(len(task.depends_on) for task in spec.tasks)
        name = f"{trace.stem}: {len(spec.tasks):,} tasks, {edges:,} edges"
        yield Figure(name, f"{spent:.3f} s, {len(spec.tasks) / spent:,.0f} tasks/s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="?", type=Path, default=TRACES, help="the folder with the traces")
    parser.add_argument("--quick", action="store_true", help="each graph once")
    chosen = parser.parse_args()
    with on_disk() as folder:
        print(figures_table(figures(folder, chosen.quick, chosen.traces)))


if __name__ == "__main__":
    main()
