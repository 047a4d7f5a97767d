"""How time per task, the depth of the stack and memory depend on the number of tasks.

    python benchmarks/growth.py            # 1,000 to 100,000 tasks
    python benchmarks/growth.py --quick    # 1,000 to 20,000

All cases run on SQLite with `synchronous=FULL`, except the chain, which would wait for the disk once per task: it runs
in memory. Memory is measured in one runtime after workstreams have ended, round after round; for living tasks, which
wait for a time, in a separate process, and in the next process that opens the same journal. Growth is judged by
processor time, which other programs disturb least; the elapsed time is shown beside it.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from common import Figure, collected, print_figures, run_on, seconds_of

from callboard import Runtime, Task, Workstream


async def noop() -> None:
    """The body of every task."""


def wide(tasks: int) -> Workstream:
    """Independent tasks."""
    return Workstream("wide", tasks=[Task(f"t{index:06d}", run=noop) for index in range(tasks)])


def chain(tasks: int) -> Workstream:
    """Tasks, each of which depends on the one before."""
    names = [f"t{index:06d}" for index in range(tasks)]
    edges = [[], *([name] for name in names)]
    return Workstream(
        "chain", tasks=[Task(name, run=noop, depends_on=before) for name, before in zip(names, edges, strict=False)]
    )


async def per_task(path: Path | None, spec: Workstream, rounds: int) -> tuple[float, float]:
    """Microseconds for each task, elapsed and of the processor: the mean, since one run is long."""
    passed = used = 0.0
    async with Runtime(path) as runtime:
        await seconds_of(runtime, wide(100))
        for _ in range(rounds):
            collected()
            began = time.process_time()
            passed += await seconds_of(runtime, spec)
            used += time.process_time() - began
    tasks = len(spec.tasks) * rounds
    return passed / tasks * 1e6, used / tasks * 1e6


async def kept(path: Path, tasks: int, rounds: int) -> tuple[int, int]:
    """Bytes that Python holds after the first workstreams, and after all of them."""
    async with Runtime(path) as runtime:
        tracemalloc.start()
        try:
            held: list[int] = []
            for _ in range(rounds):
                await seconds_of(runtime, wide(tasks))
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    return held[1], held[-1]


async def living(path: Path, tasks: int, new: bool) -> None:
    """Open a journal, submit waiting tasks if it is new, and print the seconds and bytes that they cost.

    Ends the process like a kill, so that the tasks stay in the journal as living.
    """
    specs = [Task(f"t{index:06d}", run=noop, wait="10h") for index in range(1_000)]
    before, began = resident(), time.perf_counter()
    async with Runtime(path) as runtime:
        opened = time.perf_counter() - began
        if new:
            for _ in range(tasks // 1_000):
                await runtime.submit(Workstream("living", tasks=specs))
        print(json.dumps({"opened": opened, "bytes": (resident() - before) / tasks}), flush=True)
        os._exit(0)


def of_living(path: Path, tasks: int) -> dict[str, float]:
    """The output of `living`, from a separate process."""
    command = [sys.executable, __file__, "--living", str(path), str(tasks)]
    told: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return told


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """Measure everything."""
    many = 20_000 if quick else 100_000
    few, few_used = run_on("asyncio", per_task, folder / "few.db", wide(1_000), 20)
    before = resident()
    lots, lots_used = run_on("asyncio", per_task, folder / "lots.db", wide(many), 1)
    collected()
    after = resident()
    yield Figure("1,000 tasks", f"{few:.0f} us a task, {few_used:.0f} of the processor's")
    yield Figure(f"{many:,} tasks in one workstream", f"{lots:.0f} us a task, {lots_used:.0f} of the processor's")
    ratio = lots_used / few_used
    yield Figure("their ratio", f"{ratio:.2f} x, by time passed {lots / few:.2f} x", "at most 1.3 x", ratio <= 1.3)
    yield Figure("resident memory afterwards", f"{after / 1e6:.0f} MB, before {before / 1e6:.0f} MB")
    links, _ = run_on("asyncio", per_task, None, chain(10_000), 1)
    yield Figure("a chain of 10,000, in memory", f"{links:.0f} us a task", "without recursion", True)
    first, last = run_on("asyncio", kept, folder / "kept.db", 1_000, 4 if quick else 12)
    grown = (last - first) / 1e6
    yield Figure("held after many ended workstreams of 1,000", f"{grown:+.2f} MB", "at most +1 MB", grown <= 1)
    lives = many // 2
    first_one, next_one = of_living(folder / "living.db", lives), of_living(folder / "living.db", lives)
    sizes = f"{first_one['bytes']:,.0f} bytes each, {next_one['bytes']:,.0f} after a restart"
    yield Figure(
        f"{lives:,} living tasks", f"{sizes}; {(folder / 'living.db').stat().st_size / lives:,.0f} in the file"
    )
    yield Figure("a restart with them", f"{next_one['opened']:.1f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--living"]:
        journal = Path(sys.argv[2])
        run_on("asyncio", living, journal, int(sys.argv[3]), not journal.exists())
    print_figures(__doc__, figures)
