"""The flows that the kill sweep runs: bodies that use every kind of durable step, in each engine.

Rules
- `run(folder)` submits one order per engine, whose body is a flow, the flow `books`, to which all orders send,
  `rounds`, which begins anew several times, `limits`, which decides by time limits, and `paid`, which only waits for a
  message. Run again after a kill it goes on.
- A step's function writes "JOB did WHAT" into `folder/log`, synced at once: so the log shows what really ran,
  independent of the journal. Each WHAT is done once in an uninterrupted run, and is the step's result, or its error.
- A body writes "JOB began TOKEN" in its first line, and "JOB saw WHAT = JSON" whenever a step gave it a value: WHAT is
  what the step did, or the label of the library's own step.
- Payments and approvals come from outside, through the inbox (`flow_rules.py`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import anyio

from callboard import Defaults, Retry, Runtime, Task, TaskContext, Worker, Workstream, step
from callboard.runtime.engines import flow
from callboard.runtime.flows import sleeping
from callboard.runtime.journal.location import target_of

from .scene import LEASE, folder, journal_of, log_of_transitions, write

FlowEngine = Literal["loop", "thread", "process", "ray"]
LOTS = ["lot-0", "lot-1", "lot-2", "lot-3"]
"""The acts of the parallel steps of an order."""
UNDONE = ["undo-charge", "undo-reserve"]
"""The compensations of an order, in their order."""
PAYMENTS = [{"payment": number} for number in (1, 2)]
"""The messages that are sent to each order from outside."""
ENTRIES = (1, 2, 3)
"""The numbers of the messages that each order sends to `books`."""
ROUNDS = 4
"""How often `rounds` begins."""
LIMITS = 5
"""How often `limits` decides."""
TRIES = 2
"""How often the step `flaky` fails before it succeeds."""
LIMIT = 0.02
"""Seconds for which `limits` waits for a message."""
WAIT = 0.03
"""Seconds that an order sleeps."""
DEFAULTS = Defaults(max_losses=10_000)  # a task that is lost by kills must not fail


def job_of(engine: FlowEngine) -> str:
    """The id of the order whose body that engine runs."""
    return f"order-{engine}"


def result_of(job: str) -> dict[str, Any]:
    """The result of an order's body in an uninterrupted run."""
    return {
        "done": ["reserve", "charge", "plain", "flaky"], "lots": LOTS, "branches": ["a-1", "a-2", "b-1", "b-2"],
        "payments": PAYMENTS, "never": "nobody", "child": f"{job}/order/sub weigh", "signed": "ana", "error": "ship",
        "undone": UNDONE,
    }  # fmt: skip


def published_of(job: str) -> dict[str, Any]:
    """The values that an order has published when it has ended."""
    return {"state": "cancelled", "lots": LOTS, "job": job}


# -- steps -------------------------------------------------------------------------------------------------------------


class Refused(Exception):  # noqa: N818 - what the carrier says
    """The carrier does not take the parcel."""


@step
async def work(job: str, what: str) -> str:
    write(f"{job} did {what}")
    await anyio.sleep(0.001)
    return what


@step
def plain_work(job: str, what: str) -> str:
    write(f"{job} did {what}")
    return what


@step(retry=Retry(max_attempts=TRIES + 1, base_delay=0.002))
async def flaky(job: str) -> str:
    tried = f"{job} tried flaky"
    if (folder() / "log").read_text().splitlines().count(tried) < TRIES:
        write(tried)
        raise ConnectionError("not yet")
    write(f"{job} did flaky")
    return "flaky"


@step
async def ship(job: str) -> None:
    write(f"{job} did ship")
    raise Refused("ship")


@step
def ship_plain(job: str) -> None:
    write(f"{job} did ship")
    raise Refused("ship")


# -- bodies ------------------------------------------------------------------------------------------------------------


class Seen:
    """Notes what a body got from its steps."""

    def __init__(self, task: TaskContext) -> None:
        self.job = task.job_id
        os.environ["SCENE"] = task.args.get("folder") or os.environ["SCENE"]  # an actor on Ray does not inherit it
        write(f"{self.job} began {task.token}")

    def __call__(self, what: str, value: Any) -> Any:
        write(f"{self.job} saw {what} = {json.dumps(value)}")
        return value

    def each(self, values: list[str]) -> list[str]:
        """Note several steps that have returned what they did."""
        return [self(value, value) for value in values]


async def weigh(task: TaskContext) -> str:
    """The body of the child job of an order: a flow of its own."""
    saw = Seen(task)
    return f"{task.job_id} {saw('weigh', await work(task.job_id, 'weigh'))}"


def child() -> Workstream:
    return Workstream("sub", tasks=[Task("weigh", run=weigh)], defaults=DEFAULTS)


async def order(task: TaskContext) -> dict[str, Any]:
    saw, job = Seen(task), task.job_id
    saw("task.uuid", str(await task.uuid()))
    saw("task.now", (await task.now()).isoformat())
    saw("task.random", await task.random())
    await task.publish("state", "begun")
    done = [saw("reserve", await work(job, "reserve")), saw("charge", await work(job, "charge"))]
    done += [saw("plain", await task.step(plain_work, job, "plain")), saw("flaky", await flaky(job))]
    lots = saw.each(await task.gather(*(work.bind(job, lot) for lot in LOTS), max_parallel=3))
    branches: list[str] = []

    async def branch(name: str) -> None:
        for number in (1, 2):
            branches.append(saw(what := f"{name}-{number}", await work(job, what)))  # noqa: PERF401 - one after the other

    async with anyio.create_task_group() as group:
        group.start_soon(branch, "a")
        group.start_soon(branch, "b")
    task.progress(1, 2, "packed")
    payments = [saw("task.receive payment", await task.receive("payment"))]
    for number in ENTRIES:
        task.emit(f"entry {number}")
        await task.send("books", "entry", {"from": job, "entry": number})
    await task.sleep(WAIT)
    payments.append(saw("task.receive payment#2", await task.receive("payment", type=dict[str, int])))
    never = saw("task.receive never", await task.receive("never", timeout=WAIT, default="nobody"))
    sub = await task.submit(child(), name="sub")
    weighed = (await sub.wait()).results["weigh"]
    signed = saw("sign", (await task.approval("sign", people=1))[0].by)
    await task.publish("lots", lots)
    error, undone = "", []
    try:
        await ship(job)
    except Refused as refused:
        error = saw("ship", str(refused))
        for what in UNDONE:
            undone.append(saw(what, await work(job, what)))  # noqa: PERF401 - in this order
        await task.publish("state", "cancelled")
    await task.publish("job", job)
    return {
        "done": done, "lots": lots, "branches": sorted(branches), "payments": payments, "never": never,
        "child": weighed, "signed": signed, "error": error, "undone": undone,
    }  # fmt: skip


def order_blocking(task: TaskContext) -> dict[str, Any]:
    """`order` as a plain function: in a thread, and in a worker process."""
    saw, job = Seen(task), task.job_id
    task.publish_blocking("state", "begun")
    done = [saw("reserve", plain_work(job, "reserve")), saw("charge", task.step_blocking(work, job, "charge"))]
    done += [saw("plain", plain_work(job, "plain")), saw("flaky", task.step_blocking(flaky, job))]
    lots = saw.each(task.gather_blocking(*(work.bind(job, lot) for lot in LOTS), max_parallel=3))
    both = (plain_work.bind(job, f"{name}-{number}") for name in "ab" for number in (1, 2))
    branches = saw.each(task.gather_blocking(*both))
    task.progress(1, 2, "packed")
    payments = [saw("task.receive payment", task.receive_blocking("payment"))]
    for number in ENTRIES:
        task.emit(f"entry {number}")
        task.send_blocking("books", "entry", {"from": job, "entry": number})
    task.sleep_blocking(WAIT)
    payments.append(saw("task.receive payment#2", task.receive_blocking("payment", type=dict[str, int])))
    never = saw("task.receive never", task.receive_blocking("never", timeout=WAIT, default="nobody"))
    weighed = task.submit_blocking(child(), name="sub").wait_blocking().results["weigh"]
    signed = saw("sign", task.wait_for_approval("sign", people=1)[0].by)
    task.publish_blocking("lots", lots)
    error, undone = "", []
    try:
        ship_plain(job)
    except Refused as refused:
        error = saw("ship", str(refused))
        for what in UNDONE:
            undone.append(saw(what, plain_work(job, what)))  # noqa: PERF401 - in this order
        task.publish_blocking("state", "cancelled")
    task.publish_blocking("job", job)
    return {
        "done": done, "lots": lots, "branches": sorted(branches), "payments": payments, "never": never,
        "child": weighed, "signed": signed, "error": error, "undone": undone,
    }  # fmt: skip


async def books(task: TaskContext) -> list[dict[str, Any]]:
    """Receive the entries of all orders, in whatever order they come, and do one step for each."""
    saw, entries = Seen(task), []
    for number in range(1, task.args["entries"] + 1):
        label = "task.receive entry" if number == 1 else f"task.receive entry#{number}"
        entry = saw(label, await task.receive("entry"))
        entries.append(entry)
        saw(what := f"book-{entry['from']}-{entry['entry']}", await work(task.job_id, what))
    return entries


async def rounds(task: TaskContext) -> int:
    """A flow that begins anew: each round does one step, under an empty history."""
    saw, number = Seen(task), task.args["round"]
    what = f"round-{number}"
    saw(what, await work(task.job_id, what))
    await task.sleep(WAIT / 4)
    return number if number == ROUNDS else task.again(round=number + 1)


async def limits(task: TaskContext) -> list[str]:
    """A flow that waits for messages which come about when its time limit is over."""
    saw, job, decisions = Seen(task), task.job_id, list[str]()

    async def tick() -> None:
        await task.sleep(LIMIT)
        await task.send(job, "tick", "in time")

    for number in range(LIMITS):
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            decision = "late"
            with anyio.move_on_after(LIMIT):
                decision = await task.receive("tick")
            decided = step(work.func, name=f"decided-{number}")
            decisions.append(saw(decided.name, await task.step(decided, job, f"{decision}-{number}")))
    return decisions


# -- running -----------------------------------------------------------------------------------------------------------


def engines_of(*, processes: bool, ray: bool = False) -> tuple[FlowEngine, ...]:
    """The engines of the orders. A worker process takes half a second of processor time to start, one on Ray more."""
    return ("loop", "thread", *(("process",) if processes else ()), *(("ray",) if ray else ()))


def workstreams(*, processes: bool, ray: bool = False) -> dict[str, Workstream]:
    """The workstreams to run, by the ids of the jobs."""
    engines = engines_of(processes=processes, ray=ray)
    found: dict[str, Workstream] = {}
    for engine in engines:
        run, args = order if engine in {"loop", "ray"} else order_blocking, {"folder": str(folder())}
        tasks = [Task("order", run=run, engine=engine, args=args)]
        found[job_of(engine)] = Workstream(job_of(engine), tasks=tasks, defaults=DEFAULTS)
    entries = {"entries": len(ENTRIES) * len(engines)}
    found["books"] = Workstream("books", tasks=[Task("books", run=books, args=entries)], defaults=DEFAULTS)
    found["limits"] = Workstream("limits", tasks=[Task("limits", run=limits)], defaults=DEFAULTS)
    found["paid"] = Workstream("paid", tasks=[Task("paid", receive="payment")], defaults=DEFAULTS)
    found["rounds"] = Workstream("rounds", tasks=[Task("rounds", run=rounds, args={"round": 1})], defaults=DEFAULTS)
    return found


def workers(*, ray: bool) -> list[Worker]:
    return [
        Worker("loop", engine="loop", capacity=20), Worker("thread", engine="thread", capacity=2),
        Worker("process", engine="process"), *([Worker("far", engine="ray")] if ray else []),
    ]  # fmt: skip


async def run(place: Path, processes: bool, node: str = "", *, drops: bool = False, ray: str = "") -> None:
    """Run the flows.

    node: this node's name, if several nodes run them. ray: the address of a Ray cluster that runs one, too. drops:
    bodies are dropped where they wait, and waits before the next try of a step are journaled, as else for minutes only.
    """
    if drops:
        sleeping.LONG = flow.DURABLE_WAIT = 0.001
    as_node: dict[str, Any] = {"node": node, "lease": LEASE} if node else {}
    journal, log = target_of(journal_of(place)), log_of_transitions(place, node)
    on_ray: dict[str, Any] = {"ray": ray} if ray else {}
    async with Runtime(journal, jsonl=log, workers=workers(ray=bool(ray)), **as_node, **on_ray) as runtime:
        write("scene 0 open")
        planned = workstreams(processes=processes, ray=bool(ray))
        for job in [await runtime.submit(workstream, id=name) for name, workstream in planned.items()]:
            outcome = await job.wait()
            write(f"{job.id} ended {outcome.state}")
        write("scene 0 over")
