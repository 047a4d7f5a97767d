"""procrastinate, compared in scale.py: independent no-op jobs, all deferred at once and then run, on PostgreSQL.

Run it by an interpreter that has procrastinate. It reads {"url", "repeats", "tasks", "workers", "concurrency"} as JSON
from its input; the last line of its output is {"version", "seconds"}: the best of the repeats, from the deferring of
the first job to the end of the last one. Its tables are made in the database at `url`, which nothing else should use. A
worker takes jobs one by one, so it is measured with several workers: the best of the given numbers counts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from importlib.metadata import version

from procrastinate import App, PsycopgConnector

asked = json.load(sys.stdin)
app = App(connector=PsycopgConnector(conninfo=asked["url"], min_size=4, max_size=20))


@app.task
async def noop(number: int) -> None:
    """The body of every job."""


async def once(concurrency: int) -> float:
    """Seconds for all jobs, with so many at once."""
    began = time.perf_counter()
    await noop.batch_defer_async(*[{"number": number} for number in range(asked["tasks"])])
    await app.run_worker_async(wait=False, concurrency=concurrency, install_signal_handlers=False)
    return time.perf_counter() - began


async def main() -> None:
    """Measure."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        tried = [await once(concurrency) for concurrency in asked["concurrency"] for _ in range(asked["repeats"])]
        done = await app.job_manager.list_jobs_async(status="succeeded")
        if len(list(done)) != asked["tasks"] * len(tried):
            raise RuntimeError("not all jobs have succeeded")
    print(json.dumps({"version": version("procrastinate"), "seconds": min(tried)}))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    asyncio.run(main())
