"""Two nodes on one PostgreSQL draw a picture: one is killed, and the other goes on.

    python examples/cluster.py

It needs the extra `postgres`. Without an address (`python examples/cluster.py postgresql://...`) it starts a private
PostgreSQL. If Ray is installed, a Ray worker of each node draws, else worker processes do: the program is the same.

Each node is this program again, in a process of its own. Both submit the picture under one id, so there is one
job: it belongs to the first node. That node is killed after some strips; the other node notices, takes
the job over, and draws the missing strips. Finished strips are not drawn again.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import anyio
import anyio.to_thread

from callboard import Runtime, Task, TaskContext, Transitioned, Worker, Workstream
from callboard.errors import JournalError
from callboard.runtime.testing.postgres import NoPostgres, PrivateServer

STRIPS, SIZE = 16, 32
DRAWN_BEFORE_THE_KILL = 4


def draw(task: TaskContext) -> list[str]:
    """Draw one strip of the Mandelbrot set."""
    lines: list[str] = []
    first = task.args["strip"] * SIZE // STRIPS
    for row in range(first, first + SIZE // STRIPS):
        imaginary = (row - SIZE / 2) / SIZE * 2.4
        lines.append("".join(shade(complex(column / SIZE * 1.5 - 2.1, imaginary)) for column in range(2 * SIZE)))
        time.sleep(0.1)  # simulates more work
    return lines


def shade(point: complex) -> str:
    """The shade of a point: how fast its sequence grows."""
    value = 0j
    for step in range(200):
        value = value * value + point
        if abs(value) > 2:
            return " .:-=+*%@"[min(step // 3, 8)]
    return "#"


def picture(engine: Literal["process", "ray"]) -> Workstream:
    """The strips."""
    strips = [Task(f"strip-{n:02d}", run=draw, engine=engine, args={"strip": n}) for n in range(STRIPS)]
    return Workstream("picture", tasks=strips)


async def node(name: str, address: str, ray: str) -> None:
    """The program of a node after "go": submit the job, and print its progress."""
    engine: Literal["process", "ray"] = "ray" if ray else "process"
    workers = [Worker("artists", engine=engine, capacity=2)]
    async with Runtime(address, node=name, workers=workers, ray=ray or None) as runtime:
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        events = runtime.events(to_state="completed")
        job = await runtime.submit(picture(engine), id="picture")
        print("submitted", flush=True)
        async with anyio.create_task_group() as group:
            group.start_soon(tell, events)
            outcome = await job.wait()
            group.cancel_scope.cancel()
        assert outcome.state == "completed", outcome.error
        lost = sorted(name for name, task in outcome.tasks.items() if task.lost_attempts)
        assert not any(task.failed_attempts for task in outcome.tasks.values())
        for strip in sorted(outcome.results):
            print("\n".join(outcome.results[strip]))
        print(f"lost with the other node, and drawn again: {', '.join(lost)}", flush=True)


async def tell(events: AsyncIterator[object]) -> None:
    """Print the strips that this node has drawn."""
    async for event in events:
        if isinstance(event, Transitioned) and event.kind == "task":
            print(f"{event.entity_id.rpartition('/')[2]} drawn", flush=True)


class Node:
    """The process of a node, as the program that started it sees it."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        command = [sys.executable, __file__, name, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.until("ready")

    def go(self) -> None:
        """Let the node begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.until("submitted")

    def until(self, word: str, times: int = 1) -> None:
        """Wait until the node has printed `times` lines that end with `word`, and print its lines."""
        for line in self.lines():
            if line.endswith("drawn"):
                print(f"{self.name}: {line}")
            times -= line.endswith(word)
            if not times:
                return
        raise SystemExit(f"{self.name} ended ({self.process.wait()})")

    def lines(self) -> Iterator[str]:
        """The lines that the node prints."""
        assert self.process.stdout is not None
        yield from (line.rstrip("\n") for line in self.process.stdout)


def start_ray() -> str:
    """Start a Ray cluster that ends with this program. Returns its address; "" if Ray is not installed."""
    if not importlib.util.find_spec("ray"):
        return ""
    import ray  # noqa: PLC0415 - the import takes a second, and Ray is optional

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    return str(ray.get_runtime_context().gcs_address)


def main(address: str) -> None:
    """Start two nodes, kill the first, and let the second finish the job."""
    ray = start_ray()
    print("drawn on Ray" if ray else "Ray is not installed: drawn in worker processes")
    first, second = Node("anton", address, ray), Node("berta", address, ray)
    first.go()
    second.go()
    first.until("drawn", DRAWN_BEFORE_THE_KILL)
    first.process.kill()
    print("anton is killed")
    for line in second.lines():
        print(f"berta: {line}" if line.endswith("drawn") else line)
    raise SystemExit(second.process.wait())


def with_server() -> None:
    """Run it on a given server, or on a private one."""
    if len(sys.argv) > 1:
        main(sys.argv[1])
    try:
        server = PrivateServer()
    except NoPostgres as error:
        raise SystemExit(
            f"{error} Or give the address of a database: python examples/cluster.py postgresql://..."
        ) from None
    with server:
        main(server.address("callboard"))


if __name__ == "__main__":
    if not importlib.util.find_spec("psycopg"):
        raise SystemExit("This example needs psycopg, which is not installed: pip install 'callboard[postgres]'")
    if len(sys.argv) == 4:
        _, own_name, journal, cluster = sys.argv
        try:
            anyio.run(node, own_name, journal, cluster)
        except JournalError as unreachable:
            raise SystemExit(str(unreachable)) from None
    else:
        with_server()
