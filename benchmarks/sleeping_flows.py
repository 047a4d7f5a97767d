"""Memory of sleeping flows: bytes of this process for each flow that waits in `task.sleep`, in one runtime.

    python benchmarks/sleeping_flows.py                # 100,000 flows, as tasks of workstreams of 1,000
    python benchmarks/sleeping_flows.py 10000 --awake  # their bodies stay in memory, as those of threads do
    python benchmarks/sleeping_flows.py --restart      # also leaves the runtime, and opens it again

The difference of resident memory, divided by the number of flows, with SQLite. `--not-begun` measures tasks that have
not begun (`Task(wait="7d")`): the rest is what a sleeping flow takes beside its task. `--restart` measures how much
processor time the runtime takes to leave and to open with them, and until a flow has gone on that fell due while
nothing ran: the last one.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio

from callboard import Runtime, Task, TaskContext, VirtualClock, Worker, Workstream
from callboard.runtime.flows import sleeping

_WIDTH = 1_000  # tasks of one workstream


async def body(task: TaskContext) -> None:
    """Sleep for a week, or less."""
    await task.sleep(task.args.get("for", "7d"))


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(count: int, words: str, *, restart: bool = False, **options: Any) -> None:
    """Submit the tasks, let them wait, and print what each takes."""
    with TemporaryDirectory() as folder:
        workers, clock = [Worker("w", engine="loop", capacity=1_000)], VirtualClock()
        open_one = partial(Runtime, Path(folder) / "state.db", workers=workers, clock=clock if restart else None)
        async with open_one() as runtime:
            runtime.task(name="body")(body)
            tasks = [Task(f"t{number}", run="body", **options) for number in range(_WIDTH)]
            before, began = resident(), time.perf_counter()
            jobs = [await runtime.submit(Workstream("w", tasks=tasks), id=f"j{job}") for job in range(count // _WIDTH)]
            kernel = runtime._services.host.kernel  # there is no public count
            while len(kernel.lent) < count and "wait" not in options:  # noqa: ASYNC110
                await anyio.sleep(0.1)
            await anyio.sleep(1.0)  # the last bodies end
            took, used = time.perf_counter() - began, (resident() - before) / count
            print(f"{count:,} {words}: {used:,.0f} bytes each; all wait after {took:.1f} s", flush=True)
            if restart:
                due = Task("due", run="body", args={"for": "1d"})
                await runtime.submit(Workstream("w", tasks=[due]), id="due")
                while len(kernel.lent) <= count:  # noqa: ASYNC110
                    await anyio.sleep(0.1)
                began = time.process_time()
            else:
                for job in jobs:
                    await job.cancel(force=True)
        if restart:
            left = time.process_time()
            clock.advance(2 * 24 * 3600.0)
            async with open_one() as runtime:
                runtime.task(name="body")(body)
                opened = time.process_time()
                await (await runtime.job("due")).wait()
                told = [left - began, opened - left, time.process_time() - left, (resident() - before) / count]
                words = (
                    "seconds of processor time: left after {:.1f}; open after {:.1f}; the due one went on after {:.1f}"
                )
                print(f"{words}; {{:,.0f}} bytes each".format(*told), flush=True)


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--awake", action="store_true", help="keep the bodies in memory")
    parser.add_argument("--not-begun", action="store_true", help="measure tasks that have not begun")
    parser.add_argument("--restart", action="store_true", help="also leave the runtime, and open it again")
    given = parser.parse_args()
    if given.awake:
        sleeping.LONG = sleeping.SHORT = 1e12
    if given.not_begun:
        anyio.run(partial(measure, given.count, "tasks that have not begun", wait="7d"))
    else:
        anyio.run(partial(measure, given.count, "sleeping flows", restart=given.restart))


if __name__ == "__main__":
    main()
