"""Durable no-op tasks per second, on four graphs, compared with lower bounds and with DBOS.

    python benchmarks/orchestration.py                          # everything except DBOS
    python benchmarks/orchestration.py --dbos VENV/bin/python   # with the DBOS of this environment
    python benchmarks/orchestration.py --quick                  # SQLite and the lower bounds, once

| graph | what it is |
| --- | --- |
| W1 | 1,000 independent tasks |
| W2 | a chain of 200, as milliseconds per task |
| W3 | 20 layers of 50, each task with three dependencies in the layer before |
| W4 | one task, then 1,000, then one |

Callboard is a `Runtime` with default settings, SQLite in WAL mode with `synchronous=FULL`: every task makes 7
transitions, each on disk before its effects happen. Time is measured from `submit` to the return of `wait`. Lower
bounds: the same graph with an `asyncio.TaskGroup` and `graphlib`, without a journal; and with two rows for each task,
awaited from a writer thread that commits in groups. DBOS runs each graph as one workflow whose tasks are steps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import sqlite3
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

from common import LOOPS, collected, missing, on_disk, run_on, seconds_of, table

from callboard import Runtime, Task, Workstream

Graph = dict[str, list[str]]
"""The dependencies of each task, by name."""


async def noop() -> None:
    """The body of every task."""


def graphs() -> dict[str, Graph]:
    """The four graphs."""
    layers = [[f"l{layer:02d}-{index:02d}" for index in range(50)] for layer in range(20)]
    layered: Graph = {name: [] for name in layers[0]}
    for before, layer in pairwise(layers):
        layered |= {name: [before[(index + step) % 50] for step in (0, 7, 19)] for index, name in enumerate(layer)}
    wide = [f"t{index:04d}" for index in range(1_000)]
    chain = [f"t{index:03d}" for index in range(200)]
    return {
        "W1": {name: [] for name in wide},
        "W2": {name: chain[index - 1 : index] if index else [] for index, name in enumerate(chain)},
        "W3": layered,
        "W4": {"first": [], **{name: ["first"] for name in wide}, "last": wide},
    }


# -- ours --------------------------------------------------------------------------------------------------------------


def workstream(name: str, graph: Graph) -> Workstream:
    """A graph as a workstream of no-op tasks."""
    return Workstream(name, tasks=[Task(task, run=noop, depends_on=before) for task, before in graph.items()])


async def ours(path: Path | None, repeats: int, used: dict[str, float] | None = None) -> dict[str, float]:
    """Seconds for each graph, the best of `repeats`, in one runtime; `used` gets the processor seconds."""
    best: dict[str, float] = {}
    used = {} if used is None else used
    async with Runtime(path) as runtime:
        await seconds_of(runtime, workstream("warm-up", {"one": []}))
        for name, graph in graphs().items():
            spec = workstream(name, graph)
            for _ in range(repeats):
                collected()
                began = time.process_time()
                best[name] = min(best.get(name, 1e9), await seconds_of(runtime, spec))
                used[name] = min(used.get(name, 1e9), time.process_time() - began)
    return best


# -- floors ------------------------------------------------------------------------------------------------------------


Row = tuple[str, str]
Rows = AbstractContextManager[Callable[[list[Row]], None]]
"""Commits a list of rows (task and state). It is entered in the thread that writes."""


@contextmanager
def sqlite_rows(path: Path) -> Iterator[Callable[[list[Row]], None]]:
    """Rows into a new SQLite file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, task TEXT, state TEXT)")

        def put(rows: list[Row]) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO rows (task, state) VALUES (?, ?)", rows)
            connection.execute("COMMIT")

        yield put


class GroupCommit:
    """Rows by a writer thread: each commit has the rows that were queued during the one before."""

    def __init__(self, writer: Rows) -> None:
        self.writer = writer
        self.loop = asyncio.get_running_loop()
        self.rows: queue.SimpleQueue[tuple[Row, asyncio.Future[None]] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.write)
        self.thread.start()

    async def row(self, task: str, state: str) -> None:
        """Write a row; returns when it is on disk."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.rows.put(((task, state), future))
        await future

    def write(self) -> None:
        with self.writer as put:
            while (first := self.rows.get()) is not None:
                batch = [first]
                while not self.rows.empty() and len(batch) < 2_000:
                    if (more := self.rows.get()) is None:
                        self.rows.put(None)
                        break
                    batch.append(more)
                put([row for row, _ in batch])
                self.loop.call_soon_threadsafe(self.done, [future for _, future in batch])

    @staticmethod
    def done(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)


async def floor(graph: Graph, body: Callable[[str], Awaitable[None]]) -> float:
    """Seconds that a graph takes with a TaskGroup and graphlib."""
    began = time.perf_counter()
    sorter = TopologicalSorter(graph)
    sorter.prepare()

    async with asyncio.TaskGroup() as group:

        async def one(name: str) -> None:
            await body(name)
            sorter.done(name)
            start()

        def start() -> None:
            for name in sorter.get_ready():
                group.create_task(one(name))

        start()
    return time.perf_counter() - began


async def volatile_floor(repeats: int) -> dict[str, float]:
    """Seconds of each graph without a journal."""

    async def body(_: str) -> None:
        await noop()

    return {name: min([await floor(graph, body) for _ in range(repeats)]) for name, graph in graphs().items()}


async def durable_floor(rows: Rows, repeats: int, chosen: dict[str, Graph]) -> dict[str, float]:
    """Seconds of each graph with two rows for each task."""
    writer = GroupCommit(rows)

    async def body(name: str) -> None:
        await writer.row(name, "running")
        await noop()
        await writer.row(name, "completed")

    try:
        return {name: min([await floor(graph, body) for _ in range(repeats)]) for name, graph in chosen.items()}
    finally:
        writer.rows.put(None)
        writer.thread.join()


# -- the peer ----------------------------------------------------------------------------------------------------------


def peer(python: str, database: str, repeats: int, chosen: dict[str, Graph]) -> dict[str, float]:
    """Seconds of each graph under DBOS on that database, by that Python. Raises CalledProcessError."""
    script = Path(__file__).parent / "peers" / "dbos_noop.py"
    asked = json.dumps({"database": database, "repeats": repeats, "graphs": chosen})
    done = subprocess.run([python, str(script)], input=asked, capture_output=True, text=True, check=True, timeout=600)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


# -- the table ---------------------------------------------------------------------------------------------------------


def shown(name: str, seconds: dict[str, float]) -> list[str]:
    """One row: tasks a second, and milliseconds per task for the chain."""
    sizes = {graph: len(tasks) for graph, tasks in graphs().items()}
    cells = [
        f"{spent / sizes[graph] * 1e3:.2f} ms" if graph == "W2" else f"{sizes[graph] / spent:,.0f}"
        for graph, spent in seconds.items()
    ]
    return [name, *cells]


def shown_cpu(name: str, used: dict[str, float]) -> list[str]:
    """One row: microseconds of the processor for each task."""
    return [name, *(f"{used[graph] / len(tasks) * 1e6:.0f} us" for graph, tasks in graphs().items())]


def ratio(name: str, mine: dict[str, float], other: dict[str, float]) -> list[str]:
    """One row: the ratio."""
    return [name, *(f"{other[graph] / mine[graph]:.2f} x" for graph in mine)]


def measure(folder: Path, *, quick: bool, dbos: str | None) -> tuple[list[list[str]], list[str]]:
    """All rows of the table, and the skipped ones with the reason."""
    repeats = 1 if quick else 5
    rows: list[list[str]] = []
    skipped: list[str] = []
    raw = asyncio.run(volatile_floor(repeats))
    kept = asyncio.run(durable_floor(sqlite_rows(folder / "floor.db"), repeats, graphs()))
    rows += [
        shown("floor: TaskGroup + graphlib, nothing kept", raw),
        shown("floor: two rows a task, SQLite FULL", kept),
    ]
    used: dict[str, float] = {}
    durable = run_on("asyncio", ours, folder / "ours-asyncio.db", repeats, used)
    rows.append(shown("**Callboard, SQLite FULL, asyncio**", durable))
    rows.append(shown_cpu("of which the processor's, per task", used))
    for loop in () if quick else [loop for loop in LOOPS if loop != "asyncio"]:
        if (why := missing(loop)) is None:
            rows.append(
                shown(f"Callboard, SQLite FULL, {loop}", run_on(loop, ours, folder / f"ours-{loop}.db", repeats))
            )
        else:
            skipped.append(why)
    rows.append(shown("Callboard, in memory, asyncio", run_on("asyncio", ours, None, repeats)))
    rows.append(ratio("Callboard on SQLite to the durable floor", durable, kept))
    if dbos is None:
        skipped.append("DBOS: give --dbos PYTHON, of an environment that has it (pip install dbos)")
    else:
        theirs = peer(dbos, f"sqlite:///{folder / 'dbos.sqlite'}", min(repeats, 2), graphs())
        rows += [shown("DBOS, SQLite WAL", theirs), ratio("**Callboard on SQLite to DBOS**", durable, theirs)]
    return rows, skipped


def report(folder: Path, *, quick: bool, dbos: str | None) -> str:
    """The table, the aims, and the skipped rows."""
    rows, skipped = measure(folder, quick=quick, dbos=dbos)
    said = "To reach: 8,000 tasks/s wide, 0.60 ms per task on the chain, 20 x DBOS."
    lines = [said, *(f"Skipped: {why}." for why in skipped)]
    return (
        table(["tasks/s", "W1 wide", "W2 chain, per task", "W3 layers", "W4 fan-out, fan-in"], rows)
        + "\n\n"
        + "\n".join(lines)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each graph once")
    parser.add_argument("--dbos", metavar="PYTHON", help="the interpreter of an environment with DBOS")
    parser.add_argument("--folder", type=Path, help="where journals are written (default: here)")
    chosen = parser.parse_args()
    with on_disk(chosen.folder) as folder:
        print(report(folder, quick=chosen.quick, dbos=chosen.dbos))


if __name__ == "__main__":
    main()
