"""The cost of waiting: ten thousand tasks that are held or wait, and timers that are armed and disarmed.

    python benchmarks/protection.py [--quick]

CPU is the processor time of the whole process during some seconds in which nothing happens. Memory is the growth of
Python's allocator by the tasks, with their specification, divided by their number. The journal is on disk.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import anyio
from common import Figure, print_figures, run_on

from callboard import Approval, Runtime, Task, VirtualClock, Workstream
from callboard.actors.messages.inputs import TimerFired
from callboard.runtime.dispatch.clock import SystemClock
from callboard.runtime.dispatch.dispatcher import Dispatcher
from callboard.runtime.dispatch.wall_timers import UtcTimers


async def nothing() -> None:
    """The body of every task."""


def waiting(count: int, *, held: bool) -> Workstream:
    """A workstream of so many tasks that are held, or wait."""
    hold, wait = (Approval(people=2), None) if held else (None, "72h")
    return Workstream(
        "waiting", tasks=[Task(f"task-{number:05}", run=nothing, hold=hold, wait=wait) for number in range(count)]
    )


async def of_waiting(path: Path, count: int, seconds: float, held: bool) -> tuple[float, float]:
    """Bytes for each task, and the processor time of the waiting as a share of a core."""
    async with Runtime(path) as runtime:
        await (await runtime.submit(Workstream("warm", tasks=[Task("up", run=nothing)]))).wait()
        gc.collect()
        tracemalloc.start(1)
        before = tracemalloc.get_traced_memory()[0]
        job = await runtime.submit(waiting(count, held=held))
        while any(task.state == "pending" for task in job.tasks()):  # noqa: ASYNC110 - nothing else tells of all
            await anyio.sleep(0.05)
        await anyio.sleep(0.5)
        gc.collect()
        taken = (tracemalloc.get_traced_memory()[0] - before) / count
        tracemalloc.stop()
        began = time.process_time()
        await anyio.sleep(seconds)
        share = (time.process_time() - began) / seconds
        await job.cancel()
        await job.wait()
    return taken, share


def timers(count: int) -> float:
    """Timers by the wall clock that are armed and disarmed, per second."""
    clock = SystemClock()
    far = UtcTimers(clock, Dispatcher(clock=VirtualClock()).timers)
    now = clock.time()
    began = time.perf_counter()
    for number in range(count):
        far.cancel(far.arm(now + 3600 + number % 100, print, TimerFired(number, 1)))
    return count / (time.perf_counter() - began)


def figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """Measure everything."""
    count, seconds = (1_000, 2.0) if quick else (10_000, 10.0)
    for held, what in ((True, "held"), (False, "waiting")):
        taken, share = run_on("asyncio", of_waiting, folder / f"{what}.db", count, seconds, held)
        yield Figure(f"{count:,} {what} tasks: CPU", f"{share:.3%} of a core", "under 1 %", share < 0.01)
        yield Figure(f"{count:,} {what} tasks: memory", f"{taken:,.0f} bytes each", "1,536 bytes", taken <= 1536)
    done = timers(20_000 if quick else 200_000)
    yield Figure("timers armed and disarmed", f"{done:,.0f} /s", "100,000 /s", done >= 100_000)


if __name__ == "__main__":
    print_figures(__doc__, figures)
