"""Durable steps a second: a chain in one flow, many flows at once, and the restart of interrupted flows.

    python benchmarks/flows.py                                # SQLite
    python benchmarks/flows.py --dbos VENV/bin/python         # beside the DBOS of this environment
    python benchmarks/flows.py --database                     # on a private PostgreSQL, which it starts and removes
    python benchmarks/flows.py --database postgresql://...    # on an existing server; the user may create databases
    python benchmarks/flows.py --quick

| figure | what it is |
| --- | --- |
| chain | 1,000 no-op steps of one flow, one after the other: each is durable before the next begins |
| wide | 1,000 flows of 10 no-op steps each, submitted as one workstream |
| restart | 1,000 flows of 10 steps, of which 5 are kept: from the start of a process to the first new step |

The floor is one row for each step, awaited from a writer thread that commits in groups (`orchestration.GroupCommit`),
in the same kind of database. DBOS runs the chain as one workflow of 1,000 steps, and 1,000 workflows of 10 steps that
are started at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import database
from common import Figure, collected, figures_table, on_disk, run_on, seconds_of
from orchestration import GroupCommit, Rows, sqlite_rows
from startup import ENVIRONMENT, first_line, kill, start

from callboard import Runtime, Task, TaskContext, Workstream
from callboard.runtime.testing.postgres import PrivateServer

CHAIN = 1_000
FLOWS = 1_000
STEPS = 10
RESUMED = """
import sys, time
import anyio
from callboard import Runtime, Task, Worker, Workstream

async def noop(number):
    if number == 5:
        print(time.time(), flush=True)
        await anyio.sleep_forever()

async def short(task):
    for number in range(10):
        await task.step(noop, number)

async def main(journal, submits):
    async with Runtime(journal, workers=[Worker("loop", engine="loop", capacity=1000)]) as runtime:
        if submits:
            tasks = [Task(f"t{index:04d}", run=short) for index in range(1000)]
            await runtime.submit(Workstream("many", tasks=tasks))
        await anyio.sleep_forever()

anyio.run(main, sys.argv[1], sys.argv[2] == "submit")
"""


async def noop(number: int) -> None:
    """The function of every step."""


async def chain(task: TaskContext) -> None:
    """A flow of many steps."""
    for number in range(CHAIN):
        await task.step(noop, number)


async def short(task: TaskContext) -> None:
    """A flow of few steps."""
    for number in range(STEPS):
        await task.step(noop, number)


async def side_by_side(
    rows: Rows, address: Path | str, repeats: int
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """The best seconds of one row for each step, and of ours, and the median of their ratios.

    They take turns, since the speed of a disk changes.
    """
    specs = {
        "chain": Workstream("chain", tasks=[Task("chain", run=chain)]),
        "wide": Workstream("wide", tasks=[Task(f"t{index:04d}", run=short) for index in range(FLOWS)]),
    }
    low, mine, over = dict.fromkeys(specs, 1e9), dict.fromkeys(specs, 1e9), dict.fromkeys(specs, 0.0)
    writer = GroupCommit(rows)

    async def flow(steps: int) -> None:
        for number in range(steps):
            await writer.row("noop", str(number))

    async def floor(flows: int, steps: int) -> float:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(flows):
                group.create_task(flow(steps))
        return time.perf_counter() - began

    try:
        async with Runtime(address) as runtime:
            await seconds_of(runtime, Workstream("warm-up", tasks=[Task("one", run=short)]))
            for name, size in {"chain": (1, CHAIN), "wide": (FLOWS, STEPS)}.items():
                ratios: list[float] = []
                for _ in range(repeats):
                    collected()
                    least, spent = await floor(*size), await seconds_of(runtime, specs[name])
                    low[name], mine[name] = min(low[name], least), min(mine[name], spent)
                    ratios.append(spent / least)
                over[name] = statistics.median(ratios)
    finally:
        writer.rows.put(None)
        writer.thread.join()
    return low, mine, over


def dbos(python: str, address: str, repeats: int) -> dict[str, float]:
    """The best seconds of DBOS, by that Python. Raises CalledProcessError."""
    script = Path(__file__).parent / "peers" / "dbos_steps.py"
    asked = json.dumps({"database": address, "repeats": repeats, "chain": CHAIN, "flows": FLOWS, "steps": STEPS})
    done = subprocess.run([python, str(script)], input=asked, capture_output=True, text=True, check=True, timeout=900)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def restart(folder: Path, number: int, address: str | None) -> float:
    """Seconds from the start of a process to the first new step of flows that a kill -9 has interrupted."""
    program = folder / "resumed.py"
    program.write_text(RESUMED)
    journal = address or str(folder / f"resumed-{number}.db")
    _, process = start(program, journal, "submit")
    for _ in range(FLOWS):
        first_line(process)
    kill(process)
    began, process = start(program, journal, "resume")
    spent = float(first_line(process)) - began
    kill(process)
    return spent


def figures(folder: Path, quick: bool, python: str | None = None, server: str | None = None) -> Iterator[Figure]:
    """Measure everything, in one run."""
    repeats = 2 if quick else 5
    ENVIRONMENT["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    with ExitStack() as stack:

        def fresh(name: str) -> str:
            return str(folder / name) if server is None else stack.enter_context(database.fresh(server))

        where = fresh("floor.db")
        rows = sqlite_rows(Path(where)) if server is None else database.postgres_rows(where)
        low, mine, over = run_on("asyncio", side_by_side, rows, fresh("ours.db"), repeats)
        theirs: dict[str, float] = {}
        if python is not None:
            where = fresh("dbos.sqlite")
            theirs = dbos(python, where if server else f"sqlite:///{where}", min(repeats, 2))
        yield Figure("floor: chain, wide", f"{CHAIN / low['chain']:,.0f}, {FLOWS * STEPS / low['wide']:,.0f} rows/s")
        for name, steps, times in (("chain", CHAIN, 1.15), ("wide", FLOWS * STEPS, None)):
            ratio = over[name]
            value = f"{mine[name]:.3f} s, {steps / mine[name]:,.0f} steps/s, {ratio:.2f} x the time of the floor"
            yield Figure(name, value, "" if times is None else f"{times} x", None if times is None else ratio <= times)
            if theirs:
                better = theirs[name] / mine[name]
                least = 3 if server else 5
                yield Figure(
                    f"DBOS, {name}", f"{theirs[name]:.2f} s: {better:.1f} x ours", f"{least} x", better >= least
                )
        spent = min(restart(folder, number, server and fresh("")) for number in range(1 if quick else 3))
        yield Figure("restart to the first new step", f"{spent:.3f} s", "0.5 s", spent <= 0.5)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--dbos", metavar="PYTHON", help="the interpreter of an environment with DBOS")
    parser.add_argument("--database", metavar="URL", nargs="?", const="", help="PostgreSQL in place of SQLite")
    parser.add_argument("--folder", type=Path, help="where journals are written (default: here)")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(on_disk(chosen.folder))
        server = stack.enter_context(PrivateServer()).address() if chosen.database == "" else chosen.database
        print(figures_table(figures(folder, chosen.quick, chosen.dbos, server)))


if __name__ == "__main__":
    main()
