"""Workers with real processes that are frozen and killed while they work; and operators' views and commands."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from tests.processes import runs
from tests.runtime.engines import process_bodies as bodies
from tests.waiting import until

from callboard import HealthChecks, Notice, Runtime, Task, Worker, Workstream
from callboard.errors import InvalidTransitionError, SpecificationError
from callboard.runtime.handles.jobs import JobHandle

pytestmark = pytest.mark.anyio
POOL = (Worker("p", engine="process"),)
QUICK = HealthChecks(interval=0.2, misses=25)
"""So many misses that only a frozen worker reaches them, and no worker that pauses for a while."""


@pytest.fixture
def anyio_backend() -> str:
    """One loop: the engine's contract is held on all of them."""
    return "asyncio"


async def started(runtime: Runtime, job_id: str = "j") -> tuple[JobHandle, int]:
    """A job whose one body runs on, and that body's process."""
    tasks = [Task("a", run=bodies.patient, engine="process", timeout=600)]
    job = await runtime.submit(Workstream("w", tasks=tasks), id=job_id)
    await until(lambda: (record := job.task("a").record).pid is not None and record.details is not None)
    return job, job.task("a").record.pid or 0


async def test_a_process_that_is_frozen_while_it_starts_is_given_up_at_its_start_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = tmp_path / "frozen-python"
    frozen.write_text("#!/bin/sh\nkill -STOP $$\n")
    frozen.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(frozen))
    async with Runtime(workers=POOL, health_checks=HealthChecks(start_timeout=0.1)) as runtime:
        once = Task("a", run=bodies.quick, engine="process", on_loss="fail")
        job = await runtime.submit(Workstream("w", tasks=[once]))
        lost = (await job.wait()).tasks["a"]
    assert (lost.lost_attempts, lost.last_error) == (1, "the worker's process did not start within 0.1 s")
    assert lost.pid is not None
    await until(lambda: not runs(lost.pid or 0))


async def test_a_frozen_worker_that_expires_is_killed_and_replaced_and_its_attempt_lost_once() -> None:
    checks = HealthChecks(interval=0.2, misses=25, expire=0.2)
    async with Runtime(workers=POOL, health_checks=checks) as runtime:
        job, pid = await started(runtime)
        told = runtime.events(entity="p#1", notices=False)
        os.kill(pid, signal.SIGSTOP)
        path: list[str] = []
        async for event in told:
            path.append(event.to_state)
            if path[-1] == "shutdown":
                assert event.reason == "it did not come back within 0.2 s"
                break
        assert path[-2:] == ["unresponsive", "shutdown"]
        await until(lambda: not runs(pid))
        await until(lambda: (record := job.task("a").record).attempt == 2 and record.state == "running")
        record = job.task("a").record
        assert (record.lost_attempts, record.failed_attempts) == (1, 0)
        assert (runtime.worker("p").record.run, runtime.worker("p").state) == (2, "busy")
        await job.cancel(force=True)


async def test_probes_that_time_out_are_counted_and_forgotten_with_the_next_answer() -> None:
    async with Runtime(workers=POOL, health_checks=HealthChecks(interval=0.1, misses=1_000)) as runtime:
        job, pid = await started(runtime)
        worker = runtime.worker("p")
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: worker.missed >= 2)
        assert (worker.state, job.task("a").record.state) == ("busy", "running")
        os.kill(pid, signal.SIGCONT)
        await until(lambda: worker.missed == 0)
        assert job.task("a").record.attempt == 1
        await job.cancel(force=True)


async def test_a_killed_worker_is_known_without_a_health_check_and_replaced() -> None:
    async with Runtime(workers=POOL, health_checks=HealthChecks(interval="1h")) as runtime:
        job, pid = await started(runtime)
        worker = runtime.worker("p")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: job.task("a").record.lost_attempts == 1)
        await until(lambda: worker.record.run == 2 and job.task("a").record.state == "running")
        assert job.task("a").record.attempt == 2
        await job.cancel(force=True)


async def test_a_frozen_worker_is_unresponsive_after_so_many_checks_and_goes_on_when_it_thaws() -> None:
    async with Runtime(workers=POOL, health_checks=QUICK) as runtime:
        job, pid = await started(runtime)
        worker = runtime.worker("p")
        told = runtime.events(entity="p#1", notices=False)
        os.kill(pid, signal.SIGSTOP)
        try:
            while (event := await anext(told)).to_state != "unresponsive":
                pass
            assert event.reason == f"it did not answer {QUICK.misses} health checks in a row"
            assert job.task("a").record.state == "recovering"
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: worker.state == "busy")
        record = job.task("a").record
        assert (record.state, record.attempt, record.lost_attempts) == ("running", 1, 0)
        await job.cancel(force=True)


async def test_a_worker_that_stays_frozen_loses_its_attempt_once_and_works_on() -> None:
    from callboard import Defaults

    settings = Defaults(recovery_timeout=0.2)
    async with Runtime(workers=POOL, health_checks=QUICK, defaults=settings) as runtime:
        job, pid = await started(runtime)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: job.task("a").record.attempt == 2 and job.task("a").record.state == "running")
        assert job.task("a").record.lost_attempts == 1
        assert runtime.worker("p").record.run == 1  # its process was killed and replaced, the worker is the same
        assert job.task("a").record.pid != pid
        await job.cancel(force=True)


async def test_a_body_that_holds_pythons_lock_and_works_is_told_as_busy_once_and_left_alone() -> None:
    checks = HealthChecks(interval=0.2, misses=10, expire=0.2)
    notices: list[Notice] = []
    runtime = Runtime(workers=POOL, health_checks=checks)
    runtime.on_trouble = notices.append
    async with runtime:
        worker = runtime.worker("p")
        tasks = [Task("a", run=bodies.computes, engine="process", timeout=600)]
        job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
        await until(lambda: bool(notices))
        seen = worker.last_seen
        await until(lambda: worker.last_seen > seen + 4)  # more rounds than a worker without answers has
        assert (worker.state, worker.record.run, job.task("a").record.state) == ("busy", 1, "running")
        assert job.task("a").record.attempt == 1
        heard = list(notices)  # on a busy machine the next body may be slow, too
        await job.cancel(force=True)
        again = await runtime.submit(Workstream("w", tasks=[Task("a", run=bodies.quick, engine="process")]))
        assert (await again.wait()).state == "completed"
    assert [(notice.event, notice.entity_id) for notice in heard] == [("worker_busy", "p#1")]
    assert "its process works" in heard[0].text


async def test_a_busy_body_ends_at_its_limit() -> None:
    async with Runtime(workers=POOL, health_checks=QUICK) as runtime:
        tasks = [Task("a", run=bodies.computes, engine="process", timeout=2, kill_grace=0.1)]
        job = await runtime.submit(Workstream("w", tasks=tasks))
        record = (await job.wait()).tasks["a"]
    assert (record.state, record.error_type, record.lost_attempts) == ("failed", "timed_out", 0)
    assert record.pid is not None
    await until(lambda: not runs(record.pid or 0))


async def test_a_body_that_sleeps_and_holds_pythons_lock_is_silent_and_unresponsive() -> None:
    async with Runtime(workers=POOL, health_checks=QUICK) as runtime:
        tasks = [Task("a", run=bodies.sleeps_with_the_lock, engine="process", timeout=600)]
        job = await runtime.submit(Workstream("w", tasks=tasks))
        await until(lambda: runtime.worker("p").state == "unresponsive")
        assert job.task("a").record.state == "recovering"
        await job.cancel(force=True)


async def test_operators_see_and_control_workers() -> None:
    workers = (*POOL, Worker("l", engine="loop", capacity=3, capabilities=["gpu"]))
    async with Runtime(workers=workers, health_checks=QUICK) as runtime:
        assert [(one.name, one.state) for one in runtime.workers()] == [("p", "idle"), ("l", "idle")]
        loop = runtime.worker("l")
        assert (loop.engine, loop.capacity, loop.capabilities, loop.assigned, loop.missed) == ("loop", 3, ["gpu"], 0, 0)
        assert abs(loop.last_seen - time.time()) < 5
        job, _ = await started(runtime)
        worker = runtime.worker("p")
        with pytest.raises(InvalidTransitionError, match=r"^worker l: 'pause' was refused in state 'idle'"):
            await loop.pause("it is idle")
        await worker.pause("maintenance", by="ana")
        await worker.resume()
        await worker.terminate(request_id="t")
        await worker.terminate(request_id="t")  # the same command: done already
        assert worker.state == "terminated"
        await until(lambda: job.task("a").record.state == "queued")
        assert not job.task("a").record.routable
        await worker.start()
        await until(lambda: job.task("a").record.state == "running")
        assert (worker.record.run, job.task("a").record.attempt) == (2, 2)
        await job.cancel(force=True)
        (more,) = await runtime.start_worker(Worker("more", engine="thread"), request_id="s")
        assert more.state == "idle"
        await runtime.start_worker(Worker("more", engine="thread"), request_id="s")
        assert more.record.run == 1
        with pytest.raises(InvalidTransitionError, match=r"^worker [a-z]+: '[a-z_]+' is not possible"):
            await more.start()
        await more.shut_down(deadline="1s")
        assert more.state == "shutdown"
        with pytest.raises(LookupError, match="there are: l, more, p"):
            runtime.worker("nobody")
        with pytest.raises(SpecificationError, match="there is no engine"):
            await runtime.start_worker(Worker("x", engine="steam"))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="capacity"):
            await runtime.start_worker(Worker("x", engine="loop", capacity=0))
        with pytest.raises(SpecificationError, match="must be at most 1,000 of engine 'process', not 10,000,000"):
            await runtime.start_worker(Worker("x", engine="process", capacity=10**7))
        with pytest.raises(ValueError, match="name"):
            await runtime.start_worker(Worker("a b/", engine="loop"))


async def test_workers_that_cannot_be_are_refused_before_anything_runs() -> None:
    workers = [Worker("a/b", engine="thread"), Worker("x", engine="process", capacity=0), Worker("X", engine="loop")]
    with pytest.raises(SpecificationError) as refused:
        async with Runtime(workers=workers):
            pass
    text = str(refused.value)
    assert all(where in text for where in ("workers[0].name", "workers[1].capacity", "workers[2].name"))
