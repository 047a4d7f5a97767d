"""How long the cancelling of a workstream with many tasks blocks the event loop.

    python benchmarks/cancelling.py                 # 20,000 tasks, on every event loop
    python benchmarks/cancelling.py --tasks 2000 --loops asyncio

| case | what is cancelled |
| --- | --- |
| queued | a hundred running tasks, and all others wait for a worker |
| running | all tasks run, each as an async function |
| memory | like running, but nothing is written to the disk |

Another task of the program yields to the loop repeatedly, and measures the longest turn of the loop: so long would
other code of the program have waited. The aim is at most 50 ms. The table also has the longest turn in processor time,
which other programs do not lengthen, and the longest full garbage collection. In a program with so many objects, such a
collection takes long whatever code causes it; the program itself can call `gc.freeze()` after its start.
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

HEAD = ["loop", "case", "took", "longest turn", "of the processor", "longest collection"]


async def waits() -> None:
    """The body of every task."""
    await anyio.sleep_forever()


class Probe:
    """The longest turn of the loop since the last reset."""

    def __init__(self) -> None:
        self.longest = self.busy = self.collecting = 0.0
        self._collecting_since = 0.0

    async def watch(self) -> None:
        """Yield to the loop repeatedly."""
        before, busy_before = time.perf_counter(), time.thread_time()
        while True:
            await checkpoint()
            now, busy = time.perf_counter(), time.thread_time()
            self.longest, self.busy = max(self.longest, now - before), max(self.busy, busy - busy_before)
            before, busy_before = now, busy

    def collects(self, phase: str, info: dict[str, int]) -> None:
        """The callback of `gc.callbacks`."""
        if phase == "start":
            self._collecting_since = time.thread_time()
        elif info["generation"] == 2:
            self.collecting = max(self.collecting, time.thread_time() - self._collecting_since)


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
        probe.longest = probe.busy = 0.0
        gc.callbacks.append(probe.collects)
        began = time.perf_counter()
        await job.cancel()
        outcome = await job.wait()
        took = time.perf_counter() - began
        gc.callbacks.remove(probe.collects)
        figures = [f"{seconds * 1e3:.1f} ms" for seconds in (probe.longest, probe.busy, probe.collecting)]
        beside.cancel_scope.cancel()
    assert {task.state for task in outcome.tasks.values()} == {"cancelled"}
    return [case, f"{took:.2f} s", *figures]


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
    print(f"{args.tasks:,} tasks\n{table(HEAD, rows)}")


if __name__ == "__main__":
    main()
