"""A drain with a task in every state: running attempts are given back, waits stay, and all continue later."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from tests.waiting import until

from callboard import Approval, Breaker, Hook, Retry, Runtime, Task, TaskContext, Tool, Worker, Workstream

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]
gate = Path()


async def on_the_loop() -> str:
    while not gate.exists():
        await anyio.sleep(0.01)
    return "loop"


def in_a_thread(task: TaskContext) -> str:
    while not gate.exists():
        task.heartbeat()
        time.sleep(0.01)
    return "thread"


def refuses() -> None:
    raise ConnectionError("not today")


def of_every_kind(folder: Path) -> Workstream:
    patient = Retry(max_attempts=5, base_delay="1h", max_delay="1h")
    loop = "while [ ! -e gate ]; do sleep 0.05; done"
    return Workstream(
        "kinds",
        cwd=str(folder),
        tools={"ill": Tool(breaker=Breaker(failure_threshold=1, cooldown="1h"))},
        tasks=[
            Task("loop", run=on_the_loop),
            Task("thread", run=in_a_thread),
            Task("process", run=in_a_process, engine="process", args={"gate": str(folder / "gate")}),
            Task("command", command=loop, shell=True),
            Task("deaf", command=f"trap '' TERM; {loop}", shell=True, kill_grace=0.2),
            Task("held", run=on_the_loop, hold=Approval()),
            Task("waiting", run=on_the_loop, wait="1h"),
            Task("retrying", run=refuses, retry=patient),
            Task("parked", run=refuses, tool="ill", retry=Retry(max_attempts=5, base_delay=0)),
            Task("after", run=on_the_loop, depends_on=["loop"]),
            Task(
                "cancelled",
                run=on_the_loop,
                optional=True,
                cancel_hooks=[Hook(command=f"touch hooked; {loop}", shell=True, timeout=60)],
                cancel_timeout=100,
            ),
        ],
    )


def in_a_process(task: TaskContext) -> str:
    while not Path(task.args["gate"]).exists():
        task.heartbeat()
        time.sleep(0.01)
    return "process"


STATES = {
    "loop": "running", "thread": "running", "process": "running", "command": "running", "deaf": "running",
    "held": "held", "waiting": "waiting", "retrying": "retrying", "parked": "circuit_open", "after": "pending",
    "cancelled": "cancelling",
}  # fmt: skip


async def test_a_drain_gives_back_what_ran_and_lets_wait_what_waits(tmp_path: Path) -> None:
    global gate  # noqa: PLW0603 - bodies are found by their paths, and so by their module
    gate = tmp_path / "gate"
    workers = [Worker("loop", engine="loop", capacity=8), Worker("threads", engine="thread", capacity=8)]
    workers += [Worker("processes", engine="process"), Worker("commands", engine="command", capacity=8)]

    async with Runtime(tmp_path / "state.db", workers=workers, drain_deadline=0) as runtime:
        job = await runtime.submit(of_every_kind(tmp_path), id="one")

        def states() -> dict[str, str]:
            return {task.name: str(task.state) for task in job.tasks()}

        await until(lambda: states()["cancelled"] == "running")
        await job.task("cancelled").cancel()
        await until((tmp_path / "hooked").exists)
        await until(lambda: states() == STATES)

    gate.touch()
    async with Runtime(tmp_path / "state.db", workers=workers) as runtime:
        (job,) = runtime.recovered
        ran = {"loop", "thread", "process", "command", "deaf"}
        with anyio.fail_after(300):
            while {task.name for task in job.tasks() if task.state == "completed"} != ran | {"after"}:
                await anyio.sleep(0.01)
            while next(task for task in job.tasks() if task.name == "cancelled").state != "cancelled":
                await anyio.sleep(0.01)
        for task in job.tasks():
            assert (task.lost_attempts, task.failed_attempts) == (0, int(task.name in {"retrying", "parked"})), (
                task.name
            )
            assert (task.attempt == 2) == (task.name in ran), task.name
        assert {name: states()[name] for name in ("held", "waiting", "retrying", "parked")} == {
            name: STATES[name] for name in ("held", "waiting", "retrying", "parked")
        }
        await job.cancel()
        await job.wait()
