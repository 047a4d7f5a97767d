"""A node in a separate process, which tests kill, stop and continue.

`python -m tests.postgres.node ADDRESS NAME FOLDER` submits two jobs, says "ready" when both run, and ends when it was
fenced. The begin and the result of each body are written into a file of the folder; a body ends when the folder has a
`go`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from callboard import Runtime, Task, TaskContext, Worker, Workstream
from callboard.errors import LeaseLost, RuntimeClosed

LEASE = 10.0
FENCED = 7
"""The exit code of a node that was fenced."""
WORKERS = (Worker("loop", engine="loop", capacity=20),)


async def waits(task: TaskContext) -> int:
    """Wait for the file `go`."""
    folder = Path(task.args["folder"])
    note(folder, "began", task)
    while not (folder / "go").exists():
        await anyio.sleep(0.02)
    note(folder, "returned", task)
    return os.getpid()


def note(folder: Path, what: str, task: TaskContext) -> None:
    with (folder / "log").open("a") as log:
        log.write(f"{what} {task.job_id} {task.attempt} {os.getpid()}\n")


def noted(folder: Path, what: str) -> list[list[str]]:
    """The lines that the bodies have written: job, attempt and process of each."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1:] for line in lines if line.startswith(what)]


def waiting(folder: Path) -> Workstream:
    """A job that waits for the file `go`."""
    return Workstream("waiting", tasks=[Task("x", run=waits, args={"folder": str(folder)})])


async def main(address: str, name: str, folder: Path) -> None:
    """Run the node."""
    try:
        async with Runtime(address, node=name, lease=LEASE, workers=WORKERS, outputs=folder) as runtime:
            for number in range(2):
                await runtime.submit(waiting(folder), id=f"j{number}")
            while len(noted(folder, "began")) < 2:
                await anyio.sleep(0.01)
            print("ready", flush=True)
            await anyio.sleep_forever()
    except RuntimeClosed as closed:
        if not isinstance(closed.__cause__, LeaseLost):
            raise
        sys.exit(FENCED)


if __name__ == "__main__":
    from tests.postgres.node import main as of_module  # by this module's name other processes find its bodies

    anyio.run(of_module, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
