"""Tasks that are nothing but a receive: `Task("paid", receive="payment")`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.waiting import until

from callboard import Defaults, JobHandle, Retry, Runtime, Task, TaskContext, VirtualClock, Worker, Workstream, load
from callboard.errors import SpecificationError
from callboard.runtime.handles.jobs import core_of
from callboard.testing import Simulation

pytestmark = pytest.mark.anyio
Open = Callable[..., Runtime]
DAY = 24 * 3600.0
ONE_SLOT = (Worker("loop", engine="loop", capacity=1),)
STRICT = Defaults(
    timeout="1m", total_timeout="2m", heartbeat_timeout="5s", on_loss="fail", on_exhausted="park",
    retry=Retry(max_attempts=9, base_delay=0.0, jitter=0.0),
)  # fmt: skip
"""The defaults of other tasks: they do not apply to tasks that receive a message."""


async def waits(job: JobHandle, *names: str) -> None:
    """Wait until these tasks wait for their messages, durably and without a slot; or rest."""
    lent = core_of(job).services.host.kernel.lent
    for name in names:
        task = job.task(name)
        with anyio.fail_after(300):
            while [one.state for one in await task.steps()] != ["waiting"] or not (
                task.record.token in lent or task.record.durable_wait is not None
            ):
                await anyio.sleep(0.005)


async def test_its_result_is_the_value_and_it_waits_without_a_slot_or_another_limit(open_runtime: Open) -> None:
    seen: list[Any] = []

    async def ship(task: TaskContext) -> str:
        seen.append(task.results)
        return "shipped"

    async def other() -> str:
        return "ran meanwhile"

    clock = VirtualClock()
    async with open_runtime(clock=clock, workers=ONE_SLOT) as runtime:
        runtime.task(name="ship")(ship)
        runtime.task(name="other")(other)
        tasks = [
            Task("paid", receive="payment", timeout="7d"),
            Task("packed", receive="parcel"),
            Task("ship", run="ship", depends_on=["paid", "packed"]),
        ]
        stream = Workstream("order", tasks=tasks, max_parallel=1, defaults=STRICT)
        job = await runtime.submit(stream, id="order")
        await waits(job, "paid", "packed")
        second = await runtime.submit(Workstream("second", tasks=[Task("o", run="other")]))
        assert (await second.wait()).results == {"o": "ran meanwhile"}
        clock.advance(6 * DAY)
        await job.send("payment", {"cents": 1200})
        await job.task("packed").send("parcel")
        assert (await job.wait()).results == {"paid": {"cents": 1200}, "packed": None, "ship": "shipped"}
        assert seen == [{"paid": {"cents": 1200}, "packed": None}]
        assert {one.attempt for one in (job.task("paid").record, job.task("packed").record)} == {1}


@pytest.mark.parametrize("lifecycle", [None, "pipeline", "execution"])
async def test_the_end_of_its_time_is_final_and_a_further_run_waits_anew(lifecycle: str | None) -> None:
    clock = VirtualClock()
    async with Runtime(clock=clock) as runtime:
        tasks = [Task("paid", receive="payment", timeout="7d")]
        stream = Workstream("order", tasks=tasks, defaults=STRICT, lifecycle=lifecycle)
        job = await runtime.submit(stream, id="order")
        await waits(job, "paid")
        clock.advance(7 * DAY - 1)
        await until(lambda: job.task("paid").record.due_at is None)
        assert job.state not in {"failed", "completed"}
        clock.advance(2)
        ended = await job.wait()
        assert ended.state == "failed"
        record = ended.tasks["paid"]
        assert (str(record.state), record.attempt, record.error_type) == ("failed", 1, "ReceiveTimeout")
        assert "no message 'payment' came within 604800 s" in (record.last_error or "")
        job = await job.retry()
        await waits(job, "paid")
        clock.advance(6 * DAY)
        await job.send("payment", 1)
        assert (await job.wait()).results == {"paid": 1}


async def test_a_message_that_came_before_is_received_at_once_and_a_cancel_runs_its_hooks(open_runtime: Open) -> None:
    hooks: list[str] = []

    async def opened() -> None: ...

    async with open_runtime() as runtime:
        runtime.task(name="opened")(opened)
        runtime.task(name="undo")(lambda: hooks.append("undone"))
        tasks: list[Task[Any]] = [
            Task("first", receive="go"),
            Task("second", receive="payment", depends_on=["first"]),
            Task("third", receive="never", depends_on=["second"], cancel_hooks=[{"run": "undo"}]),  # type: ignore[list-item]
        ]
        job = await runtime.submit(Workstream("order", tasks=tasks), id="order")
        await job.send("payment", "early")
        await job.send("go")
        await waits(job, "third")
        assert job.task("second").record.result == "early"
        await job.cancel()
        assert (await job.wait()).state == "cancelled"
    assert hooks == ["undone"]


TOML = """
name = "order"
[[tasks]]
name = "paid"
receive = "payment"
timeout = "7d"
[[tasks]]
name = "ship"
run = "os:getcwd"
depends_on = ["paid"]
"""
YAML = """
name: order
tasks:
- {name: paid, receive: payment, timeout: 7d}
- {name: ship, run: "os:getcwd", depends_on: [paid]}
"""


@pytest.mark.parametrize(("ending", "text"), [("toml", TOML), ("yaml", YAML)])
def test_a_file_says_it_with_the_same_keys(ending: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / f"order.{ending}"
    path.write_text(text)
    assert load(path).workstream.tasks[0] == Task("paid", receive="payment", timeout="7d")
    path.write_text(text.replace('"7d"', '"7d"\nretry = {}').replace("7d}", "7d, retry: {}}"))
    with pytest.raises(SpecificationError) as refused:
        load(path)
    (finding,) = refused.value.findings
    assert finding.where == "tasks[0].retry"
    assert "the end of its timeout is final" in str(finding)


# -- death -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
import anyio
from callboard import Runtime, Task, Workstream

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        tasks = [Task("paid", receive="payment", timeout="7d")]
        job = await runtime.submit(Workstream("order", tasks=tasks), id="order")
        while [one.state for one in await job.task("paid").steps()] != ["waiting"]:
            await anyio.sleep(0.005)
        if len(sys.argv) > 2:
            await job.send("payment", {"cents": 1200}, request_id="evt_1")
        os.kill(os.getpid(), 9)

anyio.run(main)
"""


@pytest.mark.parametrize("sent", [False, True])
async def test_a_kill_while_it_waits_loses_nothing(sent: bool, tmp_path: Path) -> None:
    program, journal = tmp_path / "program.py", tmp_path / "state.db"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(journal), *(["send"] if sent else [])]
    done = await anyio.to_thread.run_sync(lambda: subprocess.run(command, capture_output=True, text=True, check=False))
    assert done.returncode == -signal.SIGKILL, done.stderr
    async with Runtime(journal) as runtime:
        job = await runtime.job("order")
        if not sent:
            (step,) = await job.task("paid").steps()
            assert step.due_at is not None
            assert step.due_at == pytest.approx(step.began_at + 7 * DAY)
        await job.send("payment", {"cents": 1200}, request_id="evt_1")  # the webhook comes again
        assert (await job.wait()).results == {"paid": {"cents": 1200}}


def test_crashes_are_no_losses_that_are_counted_and_a_simulation_receives_or_follows_a_script() -> None:
    tasks = [Task("paid", receive="payment", timeout="7d"), Task("signed", receive="signature")]
    with Simulation(seed=1, functions="succeed") as sim:
        sim.body("signed", returns="by ana")
        job = sim.submit(Workstream("order", tasks=tasks, defaults=STRICT), id="order")
        for _ in range(5):
            job.task("paid").until("running")
            sim.crash()
        job.task("paid").until("running")
        job.send("other", by="ana")
        assert [(one.name, one.value, one.by) for one in job.messages()] == [("other", None, "ana")]
        job.send("payment", 7)
        assert job.run().results == {"paid": 7, "signed": "by ana"}
