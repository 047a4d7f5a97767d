"""Submitting many small jobs: durable submits a second, compared with batched inserts of the same jobs.

    python benchmarks/submitting.py            # 10,000 jobs of one task
    python benchmarks/submitting.py --quick    # 1,000

The lower bound inserts three rows for each job (the job, its run, its task) into SQLite with `synchronous=FULL`, in
transactions of 500 jobs. In the runtime, 100 callers submit at once, and each submit returns when its job is durable.
The tasks wait for a time, so that nothing but the submits is measured. Both run in turns, in one process.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
from common import Figure, collected, print_figures, run_on

from callboard import Runtime, Task, Workstream

CALLERS = 100
BATCH = 500
ROUNDS = 3


async def nothing() -> None:
    """The body of every task."""


async def submits(path: Path, jobs: int) -> tuple[float, float]:
    """Seconds of so many submits, and of the processor."""
    spec = Workstream("small", tasks=[Task("wait", run=nothing, wait="10h")])
    async with Runtime(path) as runtime:
        await runtime.submit(spec)

        async def caller() -> None:
            for _ in range(jobs // CALLERS):
                await runtime.submit(spec)

        began, used = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as group:
            for _ in range(CALLERS):
                group.start_soon(caller)
        return time.perf_counter() - began, time.process_time() - used


def inserts(path: Path, jobs: int) -> float:
    """Seconds of the lower bound."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
        for table in ("jobs", "runs", "tasks"):
            file.execute(f"CREATE TABLE {table} (key INTEGER PRIMARY KEY, id TEXT, state TEXT, at REAL, spec TEXT)")
        began = time.perf_counter()
        for first in range(0, jobs, BATCH):
            rows = [(key, f"small-{key}", "pending", time.time(), "{}") for key in range(first, first + BATCH)]
            file.execute("BEGIN IMMEDIATE")
            for table in ("jobs", "runs", "tasks"):
                file.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", rows)
            file.execute("COMMIT")
        return time.perf_counter() - began


def figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """Measure both, in turns; the best of each counts."""
    jobs = 1_000 if quick else 10_000
    floors: list[float] = []
    ours: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        collected()
        floors.append(inserts(folder / f"floor-{number}.db", jobs))
        collected()
        ours.append(run_on("asyncio", submits, folder / f"jobs-{number}.db", jobs))
    floor, (passed, used) = min(floors), min(ours)
    yield Figure(f"{jobs:,} jobs of one task: batched inserts", f"{jobs / floor:,.0f} jobs/s")
    yield Figure(f"{jobs:,} jobs of one task: submits", f"{jobs / passed:,.0f} jobs/s, {used / jobs * 1e6:.0f} us each")
    yield Figure("submits to batched inserts", f"{floor / passed:.2f} x", "0.33 x", floor / passed >= 0.33)


if __name__ == "__main__":
    print_figures(__doc__, figures)
