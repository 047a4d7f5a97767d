"""A saga: charge, reserve, ship. The third step is refused; the other two are undone in reverse, each once.

    python examples/saga.py

It takes the folder for its files as an argument, if any. Kill it (`kill -9`) at any instant and start it again: it goes
on where it was. Two rules make that right:

- Each request has a key that a replay does not change, by which the other side knows a request that it has done.
- A refusal is a *result* of its step, and no error: it is kept for ever, so that no later attempt or run asks again
  whether the order can be shipped, after its payment was returned. Errors are for what may go away (the network): the
  step retries.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio

from callboard import Retry, Runtime, Task, TaskContext, Workstream, step

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("saga")
TAKES = 0.3
"""Seconds that a request takes."""
PATIENT = Retry(max_attempts=5, base_delay=0.2)


def request(key: str, what: str) -> None:
    """Ask the other side (a bank, a warehouse) for something. It does each key's request only once."""
    with closing(sqlite3.connect(FOLDER / "others.db", timeout=30, isolation_level=None)) as others:
        others.execute("CREATE TABLE IF NOT EXISTS done (number INTEGER PRIMARY KEY, key TEXT UNIQUE, what TEXT)")
        others.execute("INSERT OR IGNORE INTO done (key, what) VALUES (?, ?)", [f"{key} {what}", what])
    time.sleep(TAKES)


@step(retry=PATIENT)
def charge(key: str, order: str) -> str | None:
    """Take the money. Returns why that is refused, or None."""
    request(key, f"charge {order}")
    return None


@step(retry=PATIENT)
def refund(key: str, order: str) -> None:
    """Give the money back."""
    request(key, f"refund {order}")


@step(retry=PATIENT)
def reserve(key: str, order: str) -> str | None:
    """Put the goods aside. Returns why that is refused, or None."""
    request(key, f"reserve {order}")
    return None


@step(retry=PATIENT)
def release(key: str, order: str) -> None:
    """Give the goods back."""
    request(key, f"release {order}")


@step(retry=PATIENT)
def ship(key: str, order: str) -> str | None:
    """Hand the parcel over. Returns why that is refused, or None."""
    request(key, f"ask a carrier for {order}")
    return "no carrier goes there"


async def process(task: TaskContext) -> str:
    """The order: three steps forward, or as many back."""
    order, key = task.args["order"], str(await task.uuid())
    undo: list[Callable[[str, str], None]] = []
    for forward, back in ((charge, refund), (reserve, release), (ship, None)):
        refusal = await task.step(forward, key, order)
        if refusal is not None:
            for compensation in reversed(undo):
                await task.step(compensation, key, order)
            return f"cancelled: {refusal}"
        if back is not None:
            undo.append(back)
    return "shipped"


async def main() -> None:
    """Submit the order, or continue it, and print its result."""
    FOLDER.mkdir(exist_ok=True)
    async with Runtime(FOLDER / "orders.db") as runtime:
        tasks = [Task("process", run=process, args={"order": "A7"}, max_losses=100)]
        job = await runtime.submit(Workstream("order", tasks=tasks), id="order-A7")
        print((await job.wait()).raise_for_state().results["process"])
    with closing(sqlite3.connect(FOLDER / "others.db")) as others:
        for (what,) in others.execute("SELECT what FROM done ORDER BY number"):
            print("-", what)


if __name__ == "__main__":
    anyio.run(main)
