"""Workers on a cluster: tasks are placed by capability, nodes without room, and immediate ends."""

from __future__ import annotations

import pytest
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.messages.commands import StartWorkers
from callboard.actors.messages.inputs import CallEnded, WorkerBeat, WorkerDied, WorkerFits, WorkerUnfit
from callboard.actors.spec.model import Defaults, HealthChecks, Task, Worker

LOOP = Worker("loop", engine="loop")
FAR = Worker("far", engine="ray", capabilities=["x"], resources={"GPU": 1}, labels={"zone": "a"})


def test_a_task_that_names_no_engine_goes_to_the_cluster_where_nobody_here_has_what_it_needs() -> None:
    stage = KernelHarness(workers=(LOOP, FAR))
    wanted = (("a", []), ("b", ["x"]), ("c", ["GPU", "zone=a"]))
    stage.submit(flow(*(task(name, capabilities=needs) for name, needs in wanted)))
    ran = {name: stage.attempts(name)[0].worker_id for name, _ in wanted}
    assert ran == {"a": "loop#1", "b": "far#1", "c": "far#1"}
    assert stage.worker("far").record.capabilities == ["x", "GPU", "zone=a"]
    assert not stage.audit()


def test_one_who_has_it_here_goes_first_and_one_without_a_path_does_not_go_at_all() -> None:
    stage = KernelHarness(workers=(LOOP, FAR, Worker("near", engine="loop", capabilities=["x"])))
    stage.submit(flow(task("a", capabilities=["x"]), Task("b", run="known", capabilities=["GPU"])))
    assert stage.attempts("a")[0].worker_id == "near#1"
    assert not stage.task("b").routable
    assert "the engine 'loop' and the capabilities ['GPU']" in (stage.task("b").reason or "")


def test_a_task_goes_where_it_can_be_run_when_workers_come_and_go() -> None:
    stage = KernelHarness(workers=(LOOP,))
    stage.submit(flow(task("a", capabilities=["x"])))
    assert not stage.task("a").routable
    stage.send(StartWorkers((FAR,)))
    assert stage.state() == "completed"
    assert stage.attempts("a")[0].worker_id == "far#1"


def test_a_job_reserves_slots_there_where_its_tasks_go_there() -> None:
    stage = KernelHarness(workers=(LOOP, Worker("far", engine="ray", capacity=2, capabilities=["x"])))
    stage.submit(flow(task("a", capabilities=["x"]), worker_count=2))
    assert stage.state() == "completed"


def test_what_no_node_could_hold_is_told_and_is_started_when_one_can() -> None:
    stage = KernelHarness(workers=(LOOP,))
    stage.silent.add("far")
    stage.send(StartWorkers((FAR,)))
    stage.submit(flow(task("a", capabilities=["x"])))
    assert stage.task("a").routable  # a fitting worker may still come
    stage.send(WorkerUnfit("far", 1, "no node has GPU 1"))
    assert stage.path("far#1") == ["initializing", "failed"]
    assert "worker 'far' cannot be placed: no node has GPU 1" in (stage.task("a").reason or "")
    stage.advance(300)
    assert stage.worker("far").record.run == 1  # no start is tried that cannot succeed
    stage.silent.discard("far")
    stage.send(WorkerFits("far", 1))
    assert stage.state() == "completed"
    stage.send(WorkerFits("far", 1))  # stale
    stage.send(WorkerUnfit("far", 1, "late"))
    assert stage.worker("far").record.run == 2


def test_a_slow_start_there_is_waited_for_and_not_begun_anew_again_and_again() -> None:
    stage = KernelHarness(workers=(LOOP,))
    stage.silent.add("far")
    stage.send(StartWorkers((FAR,)))
    stage.submit(flow(task("a", capabilities=["x"])))
    stage.advance(299)
    assert stage.path("far#1") == ["initializing"]
    stage.silent.discard("far")
    stage.send(WorkerBeat("far", 1))
    assert stage.state() == "completed"
    assert stage.worker("far").record.run == 1


@pytest.mark.parametrize(("set_to", "limit"), [(0.1, 300), (1200.0, 1200)])
def test_a_start_there_that_never_ends_fails_after_minutes_or_what_is_set(set_to: float, limit: int) -> None:
    stage = KernelHarness(workers=(LOOP,), health=HealthChecks(start_timeout=set_to))
    stage.silent.add("far")
    stage.send(StartWorkers((FAR,)))
    stage.advance(limit - 1)
    assert stage.path("far#1") == ["initializing"]
    stage.advance(1)
    assert stage.path("far#1") == ["initializing", "failed"]
    assert stage.worker("far").record.reason == f"it was not ready within {limit} s"


def test_the_death_of_one_there_makes_it_unresponsive_at_once_and_its_work_is_lost_and_run_again() -> None:
    stage = KernelHarness(workers=(FAR,))
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", engine="ray", timeout=1000), defaults=Defaults(max_losses=2)))
    token = stage.token("a")
    stage.send(WorkerDied("far", 1, "its node has died"))
    stage.send(CallEnded(token, "lost", error_type="worker_lost", error="its node has died", category="transient"))
    assert stage.path("far#1") == ["initializing", "idle", "busy", "unresponsive", "failed"]
    assert stage.steps("a")[-2:] == ["recovering", "retrying"]
    stage.advance(1)
    assert stage.task("a").worker_id == "far#2"
    assert stage.task("a").lost_attempts == 1
