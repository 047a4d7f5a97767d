"""A node of a deployment, in a separate process: it runs until SIGTERM, and then drains and closes.

`python -m tests.postgres.rolling ADDRESS NAME FOLDER LONG STEPS` prints "ready" once it is open. If STEPS is not 0, it
submits jobs: three with so many short steps, and one in which a body of LONG seconds runs nearly always. The begin and
the end of each body are written into a file of the folder. If LONG is 0, the longest body runs until the folder has a
file with its node's name.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import anyio

from callboard import Runtime, Task, TaskContext, Worker, Workstream
from callboard.runtime.journal.postgres import taking

STEP = 0.3
"""Seconds of a short body."""
LEASE = 600.0
"""A lease so long that neither its end nor the next regular check comes within a test."""
DRAIN = 600.0
taking.FAVOURED = 600.0


async def works(task: TaskContext) -> None:
    """Work for so many seconds."""
    note(task, "began")
    await anyio.sleep(task.args["seconds"])
    while (gate := task.args.get("gate")) and not Path(gate).exists():
        await anyio.sleep(0.02)
    note(task, "ended")


def note(task: TaskContext, what: str) -> None:
    with Path(task.args["log"]).open("a") as log:
        log.write(f"{what} {task.job_id} {task.task} {os.getpid()} {time.time()}\n")


def chain(name: str, log: Path, *seconds: float, gate: Path | None = None) -> Workstream:
    """Bodies one after another. gate: the file for which the first one waits."""
    tasks = [
        Task(f"s{n}", run=works, args={"seconds": each, "log": str(log)}, depends_on=[f"s{n - 1}"] if n else [])
        for n, each in enumerate(seconds)
    ]
    if gate is not None:
        tasks[0].args["gate"] = str(gate)
    return Workstream(name, tasks=tasks)


async def main(address: str, name: str, folder: Path, long: float, steps: int) -> None:
    """Be a node."""
    worker = Worker("loop", engine="loop", capacity=50)
    async with Runtime(
        address, node=name, lease=LEASE, workers=[worker], outputs=folder, drain_deadline=DRAIN
    ) as runtime:
        if steps:
            for number in range(3):
                await runtime.submit(chain("short", folder / "log", *[STEP] * steps), id=f"{name}-{number}")
            bodies = [seconds for _ in range(4) for seconds in (long, STEP)]
            gate = None if long else folder / name
            await runtime.submit(chain("long", folder / "log", *bodies, gate=gate), id=f"{name}-long")
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            print("ready", flush=True)
            async for _ in signals:
                break


if __name__ == "__main__":
    from tests.postgres.rolling import main as of_module  # by whose name others find its bodies

    anyio.run(of_module, sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
