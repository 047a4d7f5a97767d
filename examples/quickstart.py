"""Embedding Callboard: jobs, an actor that follows each, events, structured logs, a failure, a request made twice.

    python examples/quickstart.py

All data is in memory here; `Runtime("state.db")` keeps it in a file.
"""

from __future__ import annotations

from typing import Any

import anyio
import structlog

from callboard import (
    Actor,
    Context,
    JobHandle,
    Outcome,
    Ref,
    Retry,
    Runtime,
    Task,
    TaskContext,
    Transitioned,
    Workstream,
)
from callboard.errors import JobFailed, Permanent

log = structlog.get_logger()


# -- bodies of tasks. Async functions run on the event loop, plain ones in threads -------------------------------


async def fetch(task: TaskContext) -> list[int]:
    """Read the items of the order; the first try fails, as a network may."""
    if task.attempt == 1:
        raise ConnectionError("the catalogue does not answer")
    task.log.info("fetched", items=len(task.args["items"]))
    return [int(item) for item in task.args["items"]]


def price(task: TaskContext) -> int:
    """Add up what `fetch` returned."""
    return sum(task.results["fetch"])


async def pay(task: TaskContext) -> str:
    """Take the money. An amount over the limit fails for good, without a retry."""
    total: int = task.results["price"]
    if total > 100:
        raise Permanent(f"{total} is over the limit of 100")
    return f"paid {total}"


def order(items: list[int]) -> Workstream:
    """The workstream of one order."""
    return Workstream(
        "order",
        tasks=[
            Task("fetch", run=fetch, args={"items": items}, retry=Retry(max_attempts=3, base_delay=0.05)),
            Task("price", run=price, depends_on=["fetch"]),
            Task("pay", run=pay, depends_on=["price"]),
        ],
    )


# -- an actor of the application's own, one per job --------------------------------------------------------------------


class Follower(Actor):
    """Receives every transition of one job, and answers questions about it."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def receive(self, message: Any, ctx: Context) -> Any:
        match message:
            case Transitioned(kind="task", to_state="retrying"):
                self.steps.append("retry")
            case Transitioned(kind="task", to_state="completed", entity_id=entity_id):
                self.steps.append(entity_id.rpartition("/")[2])
            case "steps":
                return list(self.steps)
        return None


async def follow(job: JobHandle, follower: Ref) -> None:
    """Send a job's events to its follower until the job ends."""
    async for event in job.events(notices=False):
        follower.tell(event)


# -- the application ---------------------------------------------------------------------------------------------------


async def place(runtime: Runtime, order_id: str, items: list[int]) -> Outcome:
    """Run one order to its end. The order's id is the job's id, so that an order placed twice runs once."""
    job = await runtime.submit(order(items), id=order_id)
    follower = runtime.spawn(Follower, name=f"follower-{order_id}")
    async with anyio.create_task_group() as group:
        group.start_soon(follow, job, follower)
        outcome = await job.wait()
    log.info("order_over", order=order_id, state=outcome.state, steps=await follower.ask("steps"))
    follower.stop()
    return outcome


async def main() -> None:
    """Place three orders: a good one, one that cannot be paid, and the good one again."""
    structlog.configure(  # a configured structlog gets every transition, too
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer(sort_keys=True)],
        wrapper_class=structlog.make_filtering_bound_logger("INFO"),
    )
    async with Runtime() as runtime:
        good = await place(runtime, "order-1", [30, 12])
        print("order-1:", good.results["pay"])

        bad = await place(runtime, "order-2", [80, 40])
        try:
            bad.raise_for_state()
        except JobFailed as error:
            print("order-2:", error)

        again = await runtime.submit(order([30, 12]), id="order-1")  # the same job, not another one
        print("order-1 again:", (await again.wait()).results["pay"])


if __name__ == "__main__":
    anyio.run(main)
