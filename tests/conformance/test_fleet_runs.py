"""Document 002 compared with real runs by `fleet`: history, idempotency, recovery, API tests, metrics."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard import Runtime, Task, TaskContext, VirtualClock, Worker, WorkerHandle, Workstream
from callboard.actors.messages.commands import ShutDownWorker
from callboard.actors.messages.inputs import WorkerDied
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.errors import InvalidTransitionError, RequestIdReused
from callboard.machines.lifecycles.fleet import JobState, JobStateMachine, WorkerState, WorkerStateMachine
from callboard.runtime.snapshot import snapshot

ONE: Any = "cluster"  # any engine with processes of its own
POOL = (Worker("w", engine=ONE, capacity=1),)


def staged(**scripts: Any) -> KernelHarness:
    return KernelHarness(lifecycles=Lifecycles(default="fleet"), workers=POOL, scripts=scripts)


def body(name: str, **more: Any) -> Task:
    return task(name, engine=ONE, **more)


def trails(stage: KernelHarness) -> None:
    """Check that each trail follows its machine, and that there are no findings."""
    for row in stage.kept.transitions:
        if row.from_state is not None and row.from_state != row.to_state:
            if row.kind == "worker":
                source, target = WorkerState(row.from_state), WorkerState(row.to_state)
                assert WorkerStateMachine.validate_transition(source, target) is None
            elif row.kind == "job":
                assert JobStateMachine.validate_transition(JobState(row.from_state), JobState(row.to_state)) is None
    assert stage.audit() == []


def once(**failure: Any) -> Any:
    """A body whose first attempt ends so, and whose later attempts succeed."""
    left = [failure]
    return lambda call, entity: {"status": "failed", **left.pop()} if left else {}


class TestErrorRecoveryOfWorkers:
    """Section 4.1."""

    def test_a_transient_network_error_is_tried_three_times_and_the_worker_goes_on_running(self) -> None:
        reset = {"error": "reset by peer", "error_type": "ConnectionResetError", "category": "transient"}
        stage = staged(a=fails(**reset))
        stage.submit(flow(body("a")))
        stage.advance(60)
        assert (stage.task("a").attempt, stage.task("a").state) == (3, "failed")
        assert stage.path("w#1")[-1] == "RUNNING"
        trails(stage)

    def test_exhausted_resources_pause_the_worker_and_are_given_back(self) -> None:
        stage = staged(a=once(error="MemoryError", error_type="MemoryError", category="resources"))
        stage.submit(flow(body("a")))
        assert stage.path("w#1")[-1] == "PAUSED"
        assert stage.released == 1
        stage.advance(60)
        assert stage.path("w#1")[-2:] == ["PAUSED", "RUNNING"]
        assert stage.state() == "completed"
        trails(stage)

    def test_an_unrecoverable_error_fails_the_worker_and_is_kept(self) -> None:
        stage = staged(a=hangs)
        stage.submit(flow(body("a", on_loss="fail")))
        stage.send(WorkerDied("w", 1, "killed by SIGKILL"))
        assert stage.path("w#1")[-1] == "FAILED"
        (row,) = [row for row in stage.kept.transitions if row.to_state == "FAILED" and row.kind == "worker"]
        assert (row.event, row.reason) == ("error_unrecoverable", "killed by SIGKILL")
        trails(stage)

    def test_a_supervisor_that_has_waited_long_enough_terminates_the_worker(self) -> None:
        stage = staged(a=hangs)
        stage.stubborn = {"a"}
        stage.submit(flow(body("a", timeout=10_000)))
        stage.command(stage.worker("w"), ShutDownWorker("enough", deadline=5))
        stage.advance(5)
        assert stage.path("w#1")[-1] == "TERMINATED"
        trails(stage)


class TestErrorRecoveryOfJobs:
    """Section 4.2."""

    def test_the_crash_of_a_worker_spawns_a_new_one_and_the_job_goes_on_running(self) -> None:
        stage = staged(a=hangs)
        stage.submit(flow(body("a")))
        stage.inputs.append(WorkerDied("w", 1, "killed by SIGKILL"))
        stage.end(stage.token("a"), status="lost", error="killed by SIGKILL", error_type="worker_lost")
        stage.settle()
        stage.advance(1)
        assert stage.path("job")[-1] == "RUNNING"
        assert stage.path("w#2")[-1] == "RUNNING"
        assert stage.task("a").attempt == 2
        stage.end(stage.token("a"))
        stage.settle()
        assert stage.path("job") == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        trails(stage)

    def test_a_validation_error_fails_it_at_once(self) -> None:
        stage = staged()
        stage.submit(flow(body("a"), worker_count=10))  # more slots than there are
        assert stage.path("job") == ["SUBMITTED", "FAILED"]
        trails(stage)

    def test_a_timeout_cancels_it(self) -> None:
        stage = staged(a=hangs)
        stage.submit(flow(body("a", timeout=10_000), deadline=60))
        stage.advance(100)
        assert stage.path("job") == ["SUBMITTED", "PENDING", "RUNNING", "CANCELED"]
        trails(stage)

    def test_what_has_no_resources_stays_pending_and_is_allocated_when_there_are_some(self) -> None:
        stage = staged(a=hangs)
        stage.submit(flow(body("a", timeout=10_000), worker_count=1), "one")
        stage.submit(flow(body("b"), worker_count=1), "two")
        stage.advance(600)
        assert stage.path("two") == ["SUBMITTED", "PENDING"]
        stage.end(stage.task("a", "one").token)
        stage.settle()
        assert stage.path("two") == ["SUBMITTED", "PENDING", "RUNNING", "COMPLETED"]
        trails(stage)


# -- in a runtime ------------------------------------------------------------------------------------------------------


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough: the tests are about words."""
    return "asyncio"


async def stays(task: TaskContext) -> int:
    await anyio.sleep_forever()
    return 1


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[WorkerHandle]:
    """A running worker, by `fleet`."""
    pool = (Worker("w_test123", engine="loop", capacity=2),)
    clock = VirtualClock()
    async with Runtime(
        tmp_path / "state.db", lifecycle="fleet", workers=pool, clock=clock, drain_deadline=0
    ) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=stays)]), id="j_1")
        (found,) = runtime.workers()
        while found.record.shown != "RUNNING":
            await runtime._services.host.moved()
        yield found
        if not job.ended:
            await job.cancel(force=True)
            await job.wait()


@pytest.mark.anyio
class TestItsApiTests:
    """Section 6.2, and the rules of section 3.1 for the request."""

    async def test_pause_running_worker(self, worker: WorkerHandle) -> None:
        await worker.pause(reason="Test pause")
        assert (worker.record.shown, worker.record.reason) == ("PAUSED", "Test pause")

    async def test_idempotent_pause(self, worker: WorkerHandle, tmp_path: Path) -> None:
        for _ in range(2):
            await worker.pause(reason="Test pause", request_id="req_abc123")
        with closing(sqlite3.connect(tmp_path / "state.db")) as journal:
            trail = "SELECT from_state, to_state, reason FROM fleet_worker_state_transitions"
            assert journal.execute(trail).fetchall()[-1:] == [("RUNNING", "PAUSED", "Test pause")]
            assert len([row for row in journal.execute(trail) if row[1] == "PAUSED"]) == 1
            kept = "SELECT request_id, operation, julianday(expires_at) - julianday(created_at) FROM idempotency_keys"
            ((request, operation, days),) = journal.execute(kept).fetchall()
        assert (request, operation) == ("req_abc123", "PauseWorker")
        assert days == pytest.approx(1.0)

    async def test_the_same_request_with_something_else_in_it_is_refused(self, worker: WorkerHandle) -> None:
        await worker.pause(reason="Test pause", request_id="req_abc123")
        with pytest.raises(RequestIdReused):
            await worker.pause(reason="Another", request_id="req_abc123")

    async def test_what_is_forbidden_is_refused_with_what_is_allowed(self, worker: WorkerHandle) -> None:
        with pytest.raises(InvalidTransitionError) as refusal:
            await worker.resume()
        assert refusal.value.allowed


@pytest.mark.anyio
class TestWhatIsKept:
    """Sections 2.5, 5 and 7."""

    async def test_a_job_has_its_history_with_times_and_reasons(self, worker: WorkerHandle) -> None:
        job = await worker._services.jobs.find("j_1")
        await job.cancel(reason="not needed", force=True)
        await job.wait()
        rows = [event async for event in job.events(kind="job", notices=False)]
        assert [(event.from_state, event.to_state) for event in rows] == [
            (None, "SUBMITTED"), ("SUBMITTED", "PENDING"), ("PENDING", "RUNNING"), ("RUNNING", "CANCELED"),
        ]  # fmt: skip
        assert rows[-1].reason == "not needed"
        record = job.record
        assert record.created_at <= (record.started_at or 0) <= (record.finished_at or 0)
        assert (record.started_at, record.finished_at) == (rows[2].at, rows[3].at)

    async def test_every_entity_has_its_history_with_its_reasons(self, worker: WorkerHandle, tmp_path: Path) -> None:
        await worker.pause(reason="maintenance")
        with closing(sqlite3.connect(tmp_path / "state.db")) as journal:
            kinds = journal.execute("SELECT DISTINCT kind FROM state_transitions").fetchall()
            rows = journal.execute(
                "SELECT worker_id, from_state, to_state, reason, timestamp FROM fleet_worker_state_transitions"
            ).fetchall()
        assert {kind for (kind,) in kinds} == {"job", "workstream", "task", "worker"}
        assert [row[:4] for row in rows] == [
            ("w_test123#1", "IDLE", "RUNNING", None), ("w_test123#1", "RUNNING", "PAUSED", "maintenance"),
        ]  # fmt: skip
        assert all(row[4] for row in rows)

    async def test_its_four_metrics(self, worker: WorkerHandle) -> None:
        services = worker._services
        clock: Any = services.dispatcher.clock
        clock.advance(12)
        for _ in range(2):
            await worker.pause(request_id="r1")
        with pytest.raises(InvalidTransitionError):
            await worker.pause()
        metrics = snapshot(services)
        assert metrics.transitions["worker", "RUNNING", "PAUSED", "info"] == 1
        assert (metrics.states["worker", "RUNNING"].average, sum(metrics.states["worker", "RUNNING"].classes)) == (
            12.0,
            1,
        )
        assert metrics.rejected == {("fleet.worker", "PAUSED", "pause"): 1}
        assert metrics.request_hit_rate == 0.5
