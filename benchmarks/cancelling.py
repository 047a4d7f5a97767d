"""How long the event loop is held up while a workstream of many tasks is cancelled.

    python benchmarks/cancelling.py                 # 20,000 tasks, on every event loop
    python benchmarks/cancelling.py --tasks 2000 --loops asyncio

| case | what is cancelled |
| --- | --- |
| queued | tasks that wait for a worker, but for a hundred that run |
| running | tasks that all run: as many async functions as tasks |
| memory | as running, with nothing written to the disk |

A task beside it lets the loop turn, over and over, and measures the longest turn: that is what anything else in the
program would have had to wait. To reach: never more than 50 ms.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint
from common import LOOPS, run_on, table

from callboard import Runtime, Task, Worker, Workstream


async def waits() -> None:
    """The body of every task."""
    await anyio.sleep_forever()


class Probe:
    """The longest turn of the loop since it was told to look."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        """Let the loop turn, over and over."""
        before = time.perf_counter()
        while True:
            await checkpoint()
            now = time.perf_counter()
            self.longest = max(self.longest, now - before)
            before = now


async def cancel(case: str, count: int, folder: Path) -> list[str]:
    """One row: the case, and its figures."""
    workers = [Worker("loop", engine="loop", capacity=100 if case == "queued" else count)]
    journal = None if case == "memory" else folder / "state.db"
    probe = Probe()
    async with Runtime(journal, workers=workers) as runtime, anyio.create_task_group() as beside:
        tasks = [Task(f"t{number}", run=waits) for number in range(count)]
        running = min(count, workers[0].capacity or 0)
        started = runtime.events(size=10 * count, notices=False, kind="task", to_state="running")
        job = await runtime.submit(Workstream("many", tasks=tasks))
        for _ in range(running):
            await anext(started)
        started.close()
        gc.collect()
        beside.start_soon(probe.watch)
        await checkpoint()
        probe.longest = 0.0
        began = time.perf_counter()
        await job.cancel()
        outcome = await job.wait()
        took = time.perf_counter() - began
        longest = probe.longest
        beside.cancel_scope.cancel()
    assert {task.state for task in outcome.tasks.values()} == {"cancelled"}
    return [case, f"{took:.2f} s", f"{longest * 1e3:.1f} ms"]


def main() -> None:
    """Run the cases, and print the table."""
    parser = argparse.ArgumentParser(description="How long cancelling holds up the event loop.")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--loops", nargs="*", default=list(LOOPS))
    parser.add_argument("--cases", nargs="*", default=["queued", "running", "memory"])
    args = parser.parse_args()
    rows: list[list[str]] = []
    for loop in args.loops:
        for case in args.cases:
            with tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-") as folder:
                rows.append([loop, *run_on(loop, cancel, case, args.tasks, Path(folder))])
    print(f"{args.tasks:,} tasks\n{table(['loop', 'case', 'took', 'longest turn'], rows)}")


if __name__ == "__main__":
    main()
