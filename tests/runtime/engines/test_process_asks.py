"""Requests of bodies in worker processes: child jobs and approvals, as from plain functions in threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.processes import runs, stopped
from tests.runtime.engines import process_bodies as bodies
from tests.runtime.engines.test_processes import environment
from tests.runtime.handles.test_jobs import audited
from tests.waiting import until

from callboard import HealthChecks, JobHandle, Runtime, Task, TaskContext, Worker, Workstream

pytestmark = pytest.mark.anyio
ONE = (Worker("threads", engine="thread", capacity=1), Worker("one", engine="process"))


@pytest.fixture
def anyio_backend() -> str:
    """One event loop, except where a test names others: a process does not depend on the loop."""
    return "asyncio"


def flow(run: Any, **more: Any) -> Workstream:
    return Workstream("w", tasks=[Task("t", run=run, engine="process", **more)])


async def asked(runtime: Runtime, count: int = 1) -> None:
    """Wait until so many approvals wait for people."""
    await until(lambda: len(runtime.approvals()) == count)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_body_waits_for_children_while_its_only_slot_runs_them(tmp_path: Path, anyio_backend: str) -> None:
    path = tmp_path / "j.db"
    async with Runtime(path, workers=ONE) as runtime:
        job = await runtime.submit(flow(bodies.submits), id="job")
        value = (await job.wait()).raise_for_state().results["t"]
        assert value["ids"] == ["job/t/thread", "job/t/process"]
        assert value["states"] == ["completed", "completed"]
        in_thread, in_process = value["results"]
        assert in_thread == f"thread in {os.getpid()}"
        assert in_process.startswith("process in ")
        assert in_process != f"process in {value['pid']}"  # which waited
        assert {worker.record.run for worker in runtime.workers()} == {1}
        await until(lambda: not runs(value["pid"]))  # the worker has another process by now
    assert audited(path) == []


async def test_a_body_waits_for_people_and_lends_its_slot(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", workers=ONE) as runtime:
        job = await runtime.submit(flow(bodies.asks_people, timeout="60s", heartbeat_timeout="60s"))
        await asked(runtime)
        record = job.task("t").record
        assert (record.state, record.due_at, record.limit) == ("running", None, None)  # the attempt's clock is stopped
        await until(lambda: runtime.worker("one").assigned == 0)
        other = await runtime.submit(flow(bodies.quick), id="other")
        assert (await other.wait()).state == "completed"
        await job.task("t").approve(by="ana", reason="fine")
        assert (await job.wait()).results == {"t": ["ana"]}


@pytest.mark.parametrize("body", [bodies.asks_people, bodies.waits_for_a_child])
async def test_a_body_that_is_halted_while_it_waits_is_told_at_once(body: Any) -> None:
    async with Runtime(workers=ONE) as runtime:
        job = await runtime.submit(flow(body, kill_grace="1h"))  # only the order to stop ends it in time
        await asked(runtime)
        with anyio.fail_after(300):
            await job.cancel()
            assert (await job.wait()).state == "cancelled"
        assert not runtime.approvals()


async def test_what_cannot_be_asked_is_refused_as_beside_the_runtime() -> None:
    async with Runtime(workers=ONE) as runtime:
        job = await runtime.submit(flow(bodies.asks_wrongly))
        value = (await job.wait()).raise_for_state().results["t"]
    for name, starts, says in (
        ("lambda", "SpecificationError: 1 thing is wrong", "a lambda cannot be found again"),
        ("inner", "SpecificationError: 1 thing is wrong", "made inside a function"),
        ("path", "SpecificationError: 1 thing is wrong in workstream 'w'", "no module 'no'"),
        ("name", "ValueError", "cannot be the name of a child job"),
        ("exists", "JobExists", "with another workstream"),
        ("type", "TypeError", "takes a Workstream"),
        ("rule", "SpecificationError: 1 thing is wrong in this approval", "people: must be at least 1"),
        ("approval", "ValueError", "the approval's name 'a/b'"),
        ("await", "RuntimeError", "use task.submit_blocking"),
    ):
        assert value[name].startswith(starts)
        assert says in value[name]


async def test_who_waits_no_longer_may_ask_for_something_else_and_be_rejected() -> None:
    async with Runtime(workers=ONE) as runtime:
        job = await runtime.submit(flow(bodies.asks_again))
        await asked(runtime)
        os.kill(job.task("t").record.pid or 0, signal.SIGALRM)
        await until(lambda: job.task("t").record.details is not None)
        await asked(runtime, 2)
        await job.task("t").approve(by="ana", approval="first")  # no body waits for it
        await job.task("t").reject(by="ben", reason="not today", approval="second")
        assert (await job.wait()).results == {"t": "ben: not today"}


async def test_the_death_of_a_process_whose_body_waits_for_people_is_no_loss() -> None:
    async with Runtime(workers=ONE) as runtime:
        job = await runtime.submit(flow(bodies.asks_people, max_losses=0))
        await until(lambda: job.task("t").record.durable_wait is not None)
        os.kill(job.task("t").record.pid or 0, signal.SIGKILL)
        await until(lambda: not runtime._services.host.kernel.calls)
        assert job.task("t").record.state == "running"  # no body runs before the decision
        await job.task("t").approve(by="ana")
        outcome = await job.wait()
        assert (outcome.results, outcome.tasks["t"].attempt, outcome.tasks["t"].lost_attempts) == ({"t": ["ana"]}, 2, 0)


async def test_a_process_that_dies_while_its_body_waits_for_a_child_takes_nobody_along() -> None:
    async with Runtime(workers=ONE) as runtime:
        job = await runtime.submit(flow(bodies.waits_for_a_child), id="job")
        await asked(runtime)
        child = await runtime.job("job/t/asks")
        os.kill(job.task("t").record.pid or 0, signal.SIGKILL)
        await until(lambda: job.task("t").record.lost_attempts == 1)
        assert runtime.worker("one").record.run == 1
        await child.task("x").approve(by="ana")
        assert (await job.wait()).results == {"t": "completed"}
        assert child.task("x").record.attempt == 1


async def test_a_frozen_process_whose_body_waits_makes_its_worker_silent() -> None:
    checks = HealthChecks(interval=0.1, misses=50)  # so many that a short pause of the machine causes no miss
    async with Runtime(workers=ONE, health_checks=checks) as runtime:
        job = await runtime.submit(flow(bodies.waits_for_a_child), id="job")
        await asked(runtime)
        beside = await runtime.submit(flow(bodies.patient), id="beside")  # in the slot that waiting bodies lent
        await until(lambda: beside.task("t").record.state == "running")
        pid = job.task("t").record.pid or 0
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: stopped(pid))
        await until(lambda: runtime.worker("one").state == "unresponsive")
        child = await runtime.job("job/t/asks")
        assert child.task("x").record.state == "recovering"
        os.kill(pid, signal.SIGCONT)
        await until(lambda: runtime.worker("one").state == "busy")
        await until(lambda: child.task("x").record.state == "running")
        await beside.cancel()
        await child.task("x").approve(by="ana")
        assert (await job.wait()).results == {"t": "completed"}
        assert job.task("t").record.attempt == 1


PROGRAM = """
import sys
import anyio
from callboard import Runtime, Task, Workstream

def leaf():
    return "leaf"

def body(task):
    child = task.submit_blocking(Workstream("c", tasks=[Task("x", run=leaf, engine="process")]), name="c")
    return child.wait_blocking().results["x"]

async def main():
    async with Runtime(sys.argv[1]) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=body, engine="process")]), id="j")
        outcome = await job.wait()
        print(outcome.results or outcome.tasks["t"].last_error)

if __name__ == "__main__":
    anyio.run(main)
"""


def test_functions_of_the_program_itself_are_named_as_the_runtime_finds_them(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, tmp_path / "state.db"],
        capture_output=True, text=True, timeout=600, check=False, env=environment(),
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("{'t': 'leaf'}\n", "")


def plainly_wrong(task: TaskContext) -> None:
    task.submit_blocking(Workstream("c", tasks=[Task("x", run=bodies.quick)]), name="c")


async def wrongly(task: TaskContext) -> None:
    plainly_wrong(task)


async def test_a_body_on_the_loop_is_told_to_await() -> None:
    async with Runtime() as runtime:
        job: JobHandle = await runtime.submit(Workstream("w", tasks=[Task("t", run=wrongly)]))
        assert "use await task.submit" in str((await job.wait()).tasks["t"].last_error)
