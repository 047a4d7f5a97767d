"""A program that is killed while it runs a workstream: `python victim.py FOLDER`. Run again, it continues.

Bodies write "NAME start" and "NAME end" into FOLDER/log, each line with one write.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from callboard.actors.spec.model import Task, Workstream
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.runtime import Runtime

FOLDER = Path(sys.argv[1])
KILLS = 100
"""The most kills that one task outlives: on a busy machine they all may hit the same one."""


def write(line: str) -> None:
    with (FOLDER / "log").open("ab", buffering=0) as log:
        log.write(line.encode() + b"\n")


async def step(task: TaskContext) -> int:
    write(f"{task.task} start")
    await anyio.sleep(0.002)
    write(f"{task.task} end")
    return sum(value for value in task.results.values() if isinstance(value, int)) + 1


def plain(task: TaskContext) -> int:
    write(f"{task.task} start")
    write(f"{task.task} end")
    return 1


def layers() -> list[Task]:
    script = f'echo "$CALLBOARD_TASK start" >> {FOLDER}/log; sleep 0.01; echo "$CALLBOARD_TASK end" >> {FOLDER}/log'
    tasks: list[Task] = []
    for layer in range(6):
        before = [f"s{layer - 1}-{i}" for i in range(5)] if layer else []
        tasks += [Task(f"s{layer}-{i}", run=step, depends_on=before, max_losses=KILLS) for i in range(5)]
        tasks.append(Task(f"p{layer}", run=plain, depends_on=before[:1], max_losses=KILLS))
        tasks.append(Task(f"c{layer}", command=script, shell=True, depends_on=before[:1], max_losses=KILLS))
    return tasks


async def main() -> None:
    async with Runtime(FOLDER / "state.db", jsonl=FOLDER / "transitions.jsonl") as runtime:
        write("open")
        job = await runtime.submit(Workstream("sweep", tasks=layers()), id="sweep")
        outcome = await job.wait()
        write(f"outcome {outcome.state}")


if __name__ == "__main__":
    anyio.run(main)
