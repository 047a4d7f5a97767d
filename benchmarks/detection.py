"""Worker processes: the time until a dead or frozen one is detected, and the cost of a body beside a bare process pool.

    python benchmarks/detection.py            # 20 kills, 5 freezes, 5,000 bodies
    python benchmarks/detection.py --quick

A kill or a stop is timed from the signal to the event that reports it. Bodies do nothing; they run in as many processes
as there are processors: through the engine alone, through the runtime (as tasks, in memory), and through
`concurrent.futures.ProcessPoolExecutor`. The processes are started before anything is timed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

import anyio
from common import Figure, collected, print_figures, run_on, seconds_of

from callboard import HealthChecks, Runtime, Task, TaskContext, Transitioned, Worker, Workstream
from callboard.runtime.calling import Outcome
from callboard.runtime.engines.contract import Call, ProcessCall
from callboard.runtime.engines.process.engine import ProcessEngine

CORES = os.cpu_count() or 1
INTERVAL, MISSES = 0.2, 3
WATCHED = HealthChecks(interval=INTERVAL, misses=MISSES)


def noop() -> None:
    """The body that costs nothing."""


def endless(task: TaskContext) -> None:
    """A body that runs until it is killed."""
    task.heartbeat("up")
    time.sleep(600)


# -- noticing ----------------------------------------------------------------------------------------------------------


async def noticed(number: int, state: str) -> float:
    """Seconds from a signal to a worker's process until the event that its worker is in that state."""
    workers = [Worker("pool", engine="process")]
    async with Runtime(workers=workers, health_checks=WATCHED, drain_deadline=0) as runtime:
        task = Task("t", run=endless, engine="process", max_losses=0, kill_grace=0)
        job = await runtime.submit(Workstream("w", tasks=[task]))
        with anyio.fail_after(60):
            while (record := job.task("t").record).details is None or record.pid is None:  # noqa: ASYNC110 - untold
                await anyio.sleep(0.005)
        seen = runtime.events()
        began = time.perf_counter()
        os.kill(record.pid, number)
        with anyio.fail_after(60):
            async for event in seen:
                if isinstance(event, Transitioned) and event.kind == "worker" and event.to_state == state:
                    break
        passed = time.perf_counter() - began
        with suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGKILL)
    return passed


# -- bodies ------------------------------------------------------------------------------------------------------------


class Calls:
    """Calls of one engine, as many at the same time as there are processes."""

    def __init__(self, engine: ProcessEngine) -> None:
        self.engine = engine
        self.token = 0
        self.left = 0
        self.over = anyio.Event()

    async def run(self, count: int, at_once: int) -> float:
        """Seconds of so many calls."""
        self.left, self.over = count, anyio.Event()
        began = time.perf_counter()
        for _ in range(min(at_once, count)):
            self._start(self.token % CORES)
        await self.over.wait()
        return time.perf_counter() - began

    def _start(self, worker: int) -> None:
        self.token += 1
        call = ProcessCall(function=f"{noop.__module__}:noop", worker=f"w-{worker}", incarnation=1)
        self.engine.start(Call(token=self.token, process=call), partial(self._ended, worker), lambda *_: None)

    def _ended(self, worker: int, outcome: Outcome) -> None:
        assert outcome.status == "ok", outcome.error
        self.left -= 1
        if not self.left:
            self.over.set()
        elif self.left >= CORES:
            self._start(worker)


async def by_engine(count: int, alone: int) -> tuple[float, float]:
    """Bodies a second with all processes at work, and seconds of one body with the others idle."""
    engine = ProcessEngine()
    await engine.open()
    calls = Calls(engine)
    await calls.run(4 * CORES, CORES)
    passed = await calls.run(count, CORES)
    latencies = [await calls.run(1, 1) for _ in range(alone)]
    await engine.close(5)
    return count / passed, median(latencies)


async def by_runtime(count: int) -> float:
    """Tasks a second."""
    async with Runtime(workers=[Worker("pool", engine="process", capacity=CORES)]) as runtime:

        def flow(tasks: int) -> Workstream:
            return Workstream("w", tasks=[Task(f"t{n}", run=noop, engine="process") for n in range(tasks)])

        await seconds_of(runtime, flow(4 * CORES))
        collected()
        return count / await seconds_of(runtime, flow(count))


def by_pool(count: int, alone: int) -> tuple[float, float]:
    """The same through the standard library's pool."""
    with ProcessPoolExecutor(CORES, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.submit(noop) for _ in range(4 * CORES)]:
            future.result()
        began = time.perf_counter()
        for future in [pool.submit(noop) for _ in range(count)]:
            future.result()
        passed = time.perf_counter() - began
        latencies: list[float] = []
        for _ in range(alone):
            began = time.perf_counter()
            pool.submit(noop).result()
            latencies.append(time.perf_counter() - began)
    return count / passed, median(latencies)


# -- figures -----------------------------------------------------------------------------------------------------------


def figures(_: Path, quick: bool) -> list[Figure]:
    """Measure everything."""
    kills, freezes, count = (5, 2, 1_000) if quick else (20, 5, 5_000)
    killed = [run_on("asyncio", noticed, signal.SIGKILL, "failed") for _ in range(kills)]
    frozen = [run_on("asyncio", noticed, signal.SIGSTOP, "unresponsive") for _ in range(freezes)]
    engine, one = run_on("asyncio", by_engine, count, 200)
    tasks = run_on("asyncio", by_runtime, count)
    pool, pool_one = by_pool(count, 200)
    limit = INTERVAL * MISSES + 1
    return [
        Figure(
            f"a killed worker process is noticed (the slowest of {kills})",
            f"{max(killed) * 1e3:.0f} ms (median {median(killed) * 1e3:.1f})", "1 s", max(killed) <= 1,
        ),
        Figure(
            f"a frozen one, at {MISSES} checks of {INTERVAL:g} s (the slowest of {freezes})",
            f"{max(frozen):.2f} s (median {median(frozen):.2f})", f"{limit:g} s", max(frozen) <= limit,
        ),
        Figure("bodies a second, by the process engine", f"{engine:,.0f} ({engine / pool:.1f} x the pool's)"),
        Figure("bodies a second, as tasks of a runtime", f"{tasks:,.0f}"),
        Figure("bodies a second, by ProcessPoolExecutor", f"{pool:,.0f}"),
        Figure("one body, by the process engine", f"{one * 1e6:,.0f} us ({one / pool_one:.1f} x the pool's)"),
        Figure("one body, by ProcessPoolExecutor", f"{pool_one * 1e6:,.0f} us"),
    ]  # fmt: skip


if __name__ == "__main__":
    print_figures(__doc__, figures)
