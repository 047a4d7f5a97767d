"""A fleet of worker processes draws a picture: one is killed, one freezes, and the picture is complete.

    python examples/fleet.py

A plain function in a worker's process draws each tile. The runtime notices a killed process at once; a frozen one does
not answer its health checks, so after a while its attempt is lost and it is replaced. Each of the two loses one attempt
of one tile, which is drawn again.
The times here are short so that the example ends in seconds; docs/workers.md has the defaults.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator

import anyio

from callboard import (
    Defaults,
    HealthChecks,
    JobHandle,
    Runtime,
    Task,
    TaskContext,
    Transitioned,
    Worker,
    Workstream,
)

TILES, SIZE = 12, 48
CHECKS = HealthChecks(interval=0.3, misses=9)  # a frozen process is noticed within 9 x 0.3 s, and 0.3 s for the answer


def draw(task: TaskContext) -> list[str]:
    """Draw one strip of the Mandelbrot set: work for a processor, with a heartbeat for each of its lines."""
    lines: list[str] = []
    first = task.args["tile"] * SIZE // TILES
    for row in range(first, first + SIZE // TILES):
        task.heartbeat({"row": row})
        imaginary = (row - SIZE / 2) / SIZE * 2.4
        lines.append("".join(shade(complex(column / SIZE * 1.5 - 2.1, imaginary)) for column in range(2 * SIZE)))
        time.sleep(0.2)  # simulates more work
    return lines


def shade(point: complex) -> str:
    """The shade of a point: how fast its sequence grows."""
    value = 0j
    for step in range(200):
        value = value * value + point
        if abs(value) > 2:
            return " .:-=+*%@"[min(step // 3, 8)]
    return "#"


async def drawing(job: JobHandle, names: list[str]) -> list[str]:
    """Wait until two tiles are being drawn, with heartbeats. Returns their names."""
    while True:
        records = {name: job.task(name).record for name in names}
        begun = [name for name, one in records.items() if one.state == "running" and one.pid and one.details]
        if len(begun) >= 2:
            return begun[:2]
        await anyio.sleep(0.01)


async def told(events: AsyncIterator[object], entity: str, state: str) -> str:
    """Wait until an entity enters a state. Returns the reason of that transition."""
    async for event in events:
        if isinstance(event, Transitioned) and event.entity_id == entity and event.to_state == state:
            return event.reason or ""
    raise RuntimeError("the runtime closed before it came to that")


async def main() -> None:
    """Draw the picture, and disturb it."""
    workers = [Worker("artists", engine="process", capacity=4)]
    names = [f"tile-{number:02d}" for number in range(TILES)]
    tiles = [Task(name, run=draw, engine="process", args={"tile": number}) for number, name in enumerate(names)]
    picture = Workstream("picture", tasks=tiles, defaults=Defaults(recovery_timeout=3))
    async with Runtime(workers=workers, health_checks=CHECKS) as runtime:
        events = runtime.events()
        job = await runtime.submit(picture, id="picture")
        killed, frozen = [job.task(name).record for name in await drawing(job, names)]
        assert killed.pid is not None
        assert frozen.pid is not None
        os.kill(frozen.pid, signal.SIGSTOP)
        os.kill(killed.pid, signal.SIGKILL)

        began = time.monotonic()
        reason = await told(events, str(killed.worker_id), "failed")
        print(f"{killed.worker_id} failed after {time.monotonic() - began:.2f} s: {reason}")
        await told(events, str(frozen.worker_id), "unresponsive")
        print(f"{frozen.worker_id} was found unresponsive after {time.monotonic() - began:.2f} s")
        reason = await told(events, frozen.id, "retrying")
        print(f"{frozen.name} was given up there after {time.monotonic() - began:.2f} s: {reason}")

        outcome = await job.wait()
        assert outcome.state == "completed", outcome.error
        for name in names:
            print("\n".join(outcome.results[name]))
        lost = {name: task.lost_attempts for name, task in outcome.tasks.items() if task.lost_attempts}
        print(f"lost attempts: {lost}")
        assert lost == {killed.name: 1, frozen.name: 1}
        assert all(not task.failed_attempts for task in outcome.tasks.values())
        assert [outcome.tasks[one.name].attempt for one in (killed, frozen)] == [2, 2]


if __name__ == "__main__":
    anyio.run(main)
