"""Durable tasks beside code that leaves them no time: a busy event loop, and a thread that only computes.

    python benchmarks/neighbours.py [--quick]

The journal's writer is a thread, so a loop that computes in slices shorter than the interpreter's switch interval
would starve it; the runtime lends it the interpreter instead. Independent no-op tasks on SQLite with
`synchronous=FULL`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
from common import Figure, collected, print_figures, run_on, seconds_of

from callboard import Runtime, Task, Workstream

SLICE = 0.001


async def noop() -> None:
    """The body of every task."""


async def spin() -> None:
    """A task of the program that computes for a millisecond in each of its turns."""
    while True:
        until = time.perf_counter() + SLICE
        while time.perf_counter() < until:
            pass
        await anyio.lowlevel.checkpoint()


class Spinner:
    """A thread of the program that only computes."""

    def __enter__(self) -> None:
        self.on = True
        self.thread = threading.Thread(target=self.compute)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.on = False
        self.thread.join()

    def compute(self) -> None:
        while self.on:
            sum(range(200))


async def rate(path: Path, tasks: int, rounds: int, *, busy: bool = False) -> float:
    """Tasks a second, the best of several rounds."""
    spec = Workstream("wide", tasks=[Task(f"t{index:06d}", run=noop) for index in range(tasks)])
    best = 0.0
    async with Runtime(path) as runtime, anyio.create_task_group() as group:
        if busy:
            group.start_soon(spin)
        for _ in range(rounds):
            collected()
            best = max(best, tasks / await seconds_of(runtime, spec))
        group.cancel_scope.cancel()
    return best


async def busy_rate(path: Path, tasks: int, rounds: int) -> float:
    """The same beside a busy loop."""
    return await rate(path, tasks, rounds, busy=True)


def figures(folder: Path, quick: bool) -> Iterator[Figure]:
    """Measure everything."""
    tasks, rounds = 1_000, 2 if quick else 5
    alone = run_on("asyncio", rate, folder / "alone.db", tasks, rounds)
    yield Figure("alone", f"{alone:,.0f} tasks/s")
    busy = run_on("asyncio", busy_rate, folder / "busy.db", tasks, rounds)
    yield Figure("loop busy in 1 ms slices", f"{busy:,.0f} tasks/s", "2,000 tasks/s", busy >= 2_000)
    with Spinner():
        beside = run_on("asyncio", rate, folder / "beside.db", tasks, rounds)
    yield Figure("beside a thread that computes", f"{beside:,.0f} tasks/s", "1,500 tasks/s", beside >= 1_500)


if __name__ == "__main__":
    print_figures(__doc__, figures)
