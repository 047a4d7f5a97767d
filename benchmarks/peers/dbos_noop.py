"""DBOS, compared in orchestration.py and scale.py: each graph as one workflow whose tasks are steps.

Run it by an interpreter that has DBOS. It reads {"database", "repeats", "graphs"} as JSON from its input; database is
the address of an SQLite file or of a PostgreSQL database. The last line of its output has the best seconds of each
graph as JSON. Steps are started in a fixed order, the steps of a layer at the same time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time

from dbos import DBOS

asked = json.load(sys.stdin)
GRAPHS: dict[str, dict[str, list[str]]] = asked["graphs"]


@DBOS.step()
async def noop(name: str) -> None:
    """The body of every task."""


@DBOS.workflow()
async def run(graph: str) -> None:
    """Run the steps of a graph, layer by layer: a workflow has to start its steps in the same order each time."""
    left = dict(GRAPHS[graph])
    done: set[str] = set()
    while left:
        ready = [name for name, before in left.items() if done.issuperset(before)]
        await asyncio.gather(*[noop(name) for name in ready])
        done.update(ready)
        for name in ready:
            del left[name]


async def main() -> None:
    """Measure each graph."""
    best: dict[str, float] = {}
    for graph in GRAPHS:
        for _ in range(asked["repeats"]):
            began = time.perf_counter()
            await run(graph)
            best[graph] = min(best.get(graph, 1e9), time.perf_counter() - began)
    print(json.dumps(best))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    DBOS(config={"name": "noop", "system_database_url": asked["database"], "log_level": "ERROR"})
    DBOS.launch()
    asyncio.run(main())
    DBOS.destroy()
