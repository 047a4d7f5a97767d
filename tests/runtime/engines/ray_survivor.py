"""A program whose Ray cluster is lost and restored; it prints each event as a line."""

from __future__ import annotations

import sys

import anyio
from tests.runtime.engines import ray_bodies as bodies

from callboard import Runtime, Task, Worker, Workstream

WORKERS = (Worker("loop", engine="loop"), Worker("far", engine="ray", capabilities=["far"]))


async def run(runtime: Runtime, where: str, task: Task) -> None:
    job = await runtime.submit(Workstream("w", tasks=[task]))
    print(where, (await job.wait()).state, flush=True)


async def main() -> None:
    """Run the program."""
    far = Task("a", run=bodies.where_on_loop, engine="ray", capabilities=["far"])
    async with Runtime(workers=WORKERS, ray=sys.argv[1]) as runtime:
        worker = runtime.worker("far")
        told = runtime.events()
        while worker.state not in {"idle", "busy"}:
            await anyio.sleep(0.05)
        await run(runtime, "far", far)
        while runtime.health.reason is None or worker.state != "failed":
            await anyio.sleep(0.05)
        print(f"away: {worker.state}", flush=True)
        assert runtime.health.ok
        await run(runtime, "here", Task("a", run=bodies.where_on_loop, engine="loop"))
        while runtime.health.reason is not None or worker.state not in {"idle", "busy"}:
            await anyio.sleep(0.05)
        print("back", flush=True)
        await run(runtime, "far", far)
        told.close()
        notices = [event.event async for event in told if event.event in {"cluster_away", "cluster_back"}]
        assert notices == ["cluster_away", "cluster_back"], notices


if __name__ == "__main__":
    anyio.run(main)
