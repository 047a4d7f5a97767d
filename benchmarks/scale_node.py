"""One node of scale.py, in a separate process: `python scale_node.py`. It reads lines of JSON from its input.

The first line is an `Order`; the node answers `"ready"` when its runtime is open.

| play | then the node |
| --- | --- |
| wide | reads a number in each further line, runs so many independent no-op tasks, and prints their begin and end |
| relay | submits a chain of short tasks, the same on each node, and prints how it ended; bodies write to `log` |

A line of the log is "TASK TOKEN NODE TIME start" or "... end", written with one call.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from common import collected, run_on, seconds_of

from callboard import Runtime, Task, TaskContext, Workstream
from callboard.runtime.journal.postgres import place

LINKS = 40
LINK = 0.1
"""The number of tasks of a relay, and the seconds of each."""


class Order(msgspec.Struct):
    """The name of a node, and its work. elsewhere: as if it were on another machine."""

    address: str
    name: str
    lease: float
    play: str = "wide"
    log: str = ""
    elsewhere: bool = False


class Round(msgspec.Struct):
    """When a node began and ended (UTC epoch seconds), and its processor seconds."""

    began: float
    ended: float
    processor: float


def say(what: Any) -> None:
    """Send a value to the benchmark."""
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


async def noop() -> None:
    """The body of every task of `wide`."""


def wide(tasks: int) -> Workstream:
    """Independent tasks."""
    return Workstream("wide", tasks=[Task(f"t{index:04d}", run=noop) for index in range(tasks)])


async def link(task: TaskContext) -> None:
    """A body of `relay`."""
    wrote(task, "start")
    await anyio.sleep(LINK)
    wrote(task, "end")


def wrote(task: TaskContext, word: str) -> None:
    """Write a line to the log."""
    handle = os.open(os.environ["RELAY_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(handle, f"{task.task} {task.token} {os.environ['RELAY_NODE']} {time.time()} {word}\n".encode())
    os.close(handle)


def relay() -> Workstream:
    """A chain whose tasks may be lost any number of times."""
    names = [f"link-{number:02d}" for number in range(LINKS)]
    before: list[list[str]] = [[], *([name] for name in names)]
    tasks = [
        Task(name, run=link, depends_on=edges, max_losses=1_000) for name, edges in zip(names, before, strict=False)
    ]
    return Workstream("relay", tasks=tasks)


async def play(order: Order) -> None:
    """Do the ordered work."""
    async with Runtime(order.address, node=order.name, lease=order.lease) as runtime:
        if order.play == "relay":
            job = await runtime.submit(relay(), id="relay")
            say("ready")
            say((await job.wait()).state)
            return
        await seconds_of(runtime, wide(100))
        say("ready")
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            spec = wide(int(line))
            collected()
            used, began = time.process_time(), time.time()
            await seconds_of(runtime, spec)
            say(Round(began, time.time(), time.process_time() - used))


def main() -> None:
    """Read the order."""
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    os.environ["RELAY_LOG"], os.environ["RELAY_NODE"] = order.log, order.name
    if order.elsewhere:
        place._kernel = lambda process: order.name
    run_on("asyncio", play, order)


if __name__ == "__main__":
    main()
