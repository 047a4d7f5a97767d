"""DBOS, compared in flows.py: a workflow of many steps, and many workflows of few.

Run it by an interpreter that has DBOS. It reads {"database", "repeats", "chain", "flows", "steps"} as JSON from its
input; database is the address of an SQLite file or of a PostgreSQL database. The last line of its output has the best
seconds of each as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

from dbos import DBOS

asked = json.load(sys.stdin)


@DBOS.step()
async def noop(number: int) -> None:
    """The function of every step."""


@DBOS.workflow()
async def flow(steps: int) -> None:
    """Steps, one after the other."""
    for number in range(steps):
        await noop(number)


async def main() -> None:
    """Measure both."""
    best = {"chain": 1e9, "wide": 1e9}
    for _ in range(asked["repeats"]):
        for name, flows, steps in (("chain", 1, asked["chain"]), ("wide", asked["flows"], asked["steps"])):
            began = time.perf_counter()
            await asyncio.gather(*[flow(steps) for _ in range(flows)])
            best[name] = min(best[name], time.perf_counter() - began)
    print(json.dumps(best))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    DBOS(config={"name": "steps", "system_database_url": asked["database"], "log_level": "ERROR"})
    DBOS.launch()
    asyncio.run(main())
    DBOS.destroy()
