"""Commands of operators to workers: pause, resume, shut down, terminate, start; and workers without resources."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, Script, flow, hangs, task

from callboard.actors.kernel.transaction import KillWorker, StopWorker
from callboard.actors.messages.commands import (
    PauseWorker,
    Reply,
    ResumeWorker,
    ShutDownWorker,
    StartWorkers,
    TerminateWorker,
)
from callboard.actors.messages.inputs import Message, StopWorkers, WorkerBeat, WorkerDied
from callboard.actors.spec.model import Task, Worker
from callboard.machines import InvalidTransitionError

OWN: Any = "cluster"  # any engine with processes of its own
LOOP = (Worker("w", engine="loop", capacity=2),)
PROCESS = (Worker("w", engine=OWN, capacity=2),)
BOTH = pytest.mark.parametrize("workers", [LOOP, PROCESS], ids=["loop", "process"])
PAUSE, RESUME = PauseWorker("maintenance"), ResumeWorker("done")
SHUT_DOWN, TERMINATE = ShutDownWorker("enough"), TerminateWorker("enough")


def running(workers: tuple[Worker, ...], names: str = "ab", queued: str = "") -> KernelHarness:
    stage = KernelHarness(workers=workers)
    engine = workers[0].engine
    for name in names + queued:
        stage.scripts[name] = hangs
    stage.submit(flow(*(task(name, engine=engine, timeout=10_000) for name in names + queued)))
    return stage


def tell(stage: KernelHarness, message: Message) -> Exception | None:
    return stage.command(stage.worker("w"), message)


def end(stage: KernelHarness, *names: str) -> None:
    for name in names:
        stage.end(stage.token(name))
    stage.settle()


# -- pausing -------------------------------------------------------------------------------------------------------


@BOTH
def test_a_paused_one_finishes_what_it_runs_and_takes_nothing_new(workers: tuple[Worker, ...]) -> None:
    stage = running(workers, "ab", "c")
    assert tell(stage, PAUSE) is None
    end(stage, "a")
    assert stage.states() == {"a": "completed", "b": "running", "c": "queued"}
    assert stage.task("c").routable
    assert tell(stage, RESUME) is None
    assert stage.states()["c"] == "running"
    assert stage.path("w#1")[-5:] == ["busy", "paused", "paused", "busy", "busy"]
    assert stage.audit() == []


def test_one_that_finished_everything_while_paused_is_idle_when_it_resumes() -> None:
    stage = running(LOOP, "ab", "c")
    tell(stage, PAUSE)
    end(stage, "a", "b")
    assert stage.path("w#1")[-1] == "paused"
    assert tell(stage, RESUME) is None
    assert stage.path("w#1")[-2:] == ["idle", "busy"]
    assert stage.audit() == []


def test_an_idle_one_cannot_be_paused() -> None:
    stage = KernelHarness(workers=LOOP)
    refusal = tell(stage, PAUSE)
    assert isinstance(refusal, InvalidTransitionError)
    assert "'pause' was refused in state 'idle', since not 'told as running'" in str(refusal)
    assert stage.path("w#1")[-1] == "idle"


@BOTH
def test_a_paused_one_shuts_down_after_its_tasks(workers: tuple[Worker, ...]) -> None:
    stage = running(workers, "ab", "c")
    tell(stage, PAUSE)
    assert tell(stage, SHUT_DOWN) is None
    assert not stage.task("c").routable
    end(stage, "a", "b")
    assert stage.path("w#1")[-4:] == ["paused", "draining", "draining", "shutdown"]
    assert stage.audit() == []


def test_a_paused_one_that_runs_nothing_shuts_down_at_once() -> None:
    stage = running(PROCESS, "a")
    tell(stage, PAUSE)
    end(stage, "a")
    assert tell(stage, SHUT_DOWN) is None
    assert stage.path("w#1")[-2:] == ["paused", "shutdown"]
    assert StopWorker("cluster", "w", 1, 31.0) in stage.orders
    assert stage.audit() == []


# -- shutting down and terminating ---------------------------------------------------------------------------------


@BOTH
def test_a_draining_one_is_terminated_at_its_deadline(workers: tuple[Worker, ...]) -> None:
    stage = running(workers, "ab")
    stage.stubborn = {"b"}
    assert tell(stage, ShutDownWorker("enough", deadline=5)) is None
    end(stage, "a")
    stage.advance(4.9)
    assert stage.path("w#1")[-1] == "draining"
    stage.advance(0.1)
    assert stage.path("w#1")[-1] == "terminated"
    if workers is PROCESS:
        assert KillWorker("cluster", "w", 1) in stage.orders
    else:
        assert stage.stops[-1][1]
    record = stage.task("b")
    assert (stage.steps("b")[-2:], record.lost_attempts) == (["retrying", "queued"], 1)
    stage.advance(100)
    assert stage.states()["b"] == "queued"
    assert not stage.task("b").routable  # an operator stopped it: it is not replaced
    assert stage.audit() == []


@BOTH
@pytest.mark.parametrize("state", ["idle", "busy", "paused", "draining"])
def test_terminating_ends_it_at_once_and_what_it_runs_is_lost(workers: tuple[Worker, ...], state: str) -> None:
    stage = running(workers, "a") if state != "idle" else KernelHarness(workers=workers)
    if state in {"paused", "draining"}:
        tell(stage, PAUSE if state == "paused" else SHUT_DOWN)
    assert stage.path("w#1")[-1] == state
    assert tell(stage, TERMINATE) is None
    assert stage.path("w#1")[-1] == "terminated"
    if state != "idle":
        assert (stage.task("a").state, stage.task("a").lost_attempts) == ("retrying", 1)
    assert isinstance(tell(stage, TERMINATE), InvalidTransitionError)
    assert stage.audit() == []


def test_one_that_is_still_starting_can_be_terminated() -> None:
    stage = KernelHarness(workers=())
    stage.silent.add("w")
    stage.send(StartWorkers(PROCESS))
    assert tell(stage, TERMINATE) is None
    assert stage.path("w#1") == ["initializing", "terminated"]
    stage.send(WorkerBeat("w", 1))  # too late
    assert stage.path("w#1")[-1] == "terminated"


def test_queued_tasks_are_unroutable_at_once_when_nobody_is_left() -> None:
    stage = running(LOOP, "ab", "c")
    tell(stage, SHUT_DOWN)
    record = stage.task("c")
    assert not record.routable
    assert "no worker has the engine 'loop'" in str(record.reason)
    stage.advance(600)
    assert stage.states()["c"] == "failed"


# -- starting ------------------------------------------------------------------------------------------------------


def test_an_ended_one_can_be_started_again_as_a_new_incarnation() -> None:
    stage = running(LOOP, "ab", "c")
    tell(stage, TERMINATE)
    stage.send(StartWorkers((stage.worker("w").spec,), Reply(None)))
    assert stage.answers[-1][1] is None
    assert stage.path("w#2")[:3] == ["initializing", "idle", "busy"]
    stage.advance(0)
    assert stage.task("c").routable
    assert stage.worker("w").record.capacity == 2
    assert stage.audit() == []


def test_a_living_one_cannot_be_started() -> None:
    stage = KernelHarness(workers=LOOP)
    stage.send(StartWorkers(LOOP, Reply(None)))
    refusal = stage.answers[-1][1]
    assert isinstance(refusal, InvalidTransitionError)
    assert refusal.event == "start"
    assert stage.worker("w").record.run == 1


# -- silence, paused and draining ----------------------------------------------------------------------------------


def silent(stage: KernelHarness) -> None:
    stage.silent.add("w")
    stage.advance(31)
    assert stage.path("w#1")[-1] == "unresponsive"
    stage.silent.clear()


def test_a_paused_one_that_comes_back_is_paused() -> None:
    stage = running(PROCESS, "a")
    tell(stage, PAUSE)
    silent(stage)
    stage.advance(10)
    assert stage.path("w#1")[-3:] == ["paused", "unresponsive", "paused"]
    assert stage.states() == {"a": "running"}
    assert stage.audit() == []


def test_a_draining_one_that_comes_back_drains_on_until_its_deadline() -> None:
    stage = running(PROCESS, "a")
    tell(stage, ShutDownWorker("enough", deadline=100))
    silent(stage)
    stage.advance(10)
    assert stage.path("w#1")[-3:] == ["draining", "unresponsive", "draining"]
    assert stage.states() == {"a": "running"}
    stage.advance(100 - 42)
    assert stage.path("w#1")[-1] == "draining"
    stage.advance(2)
    assert stage.path("w#1")[-1] == "terminated"
    assert stage.audit() == []


def test_a_draining_one_whose_tasks_ended_meanwhile_shuts_down_when_it_comes_back() -> None:
    stage = running(PROCESS, "a")
    tell(stage, ShutDownWorker("enough", deadline=100))
    stage.silent.add("w")
    stage.advance(31)
    stage.cancel(stage.actor("a"))
    stage.silent.clear()
    stage.advance(10)
    assert stage.path("w#1")[-3:] == ["unresponsive", "draining", "shutdown"]
    assert stage.audit() == []


# -- resources -----------------------------------------------------------------------------------------------------


def exhausts(times: int) -> Script:
    """A script that runs out of memory so many times."""
    left = [times]

    def script(call: Any, entity: Any) -> dict[str, Any]:
        if left[0]:
            left[0] -= 1
            return {"status": "failed", "error": "MemoryError", "error_type": "MemoryError", "category": "resources"}
        return {}

    return script


def test_one_that_ran_out_of_resources_pauses_for_a_while_and_the_attempt_is_no_failure() -> None:
    stage = KernelHarness(workers=LOOP)
    stage.scripts["a"] = exhausts(1)
    stage.submit(flow(task("a")))
    stage.advance(0)
    assert stage.path("w#1")[-2:] == ["paused", "paused"]
    assert stage.released == 1
    record = stage.task("a")
    assert (record.state, record.failed_attempts, record.lost_attempts) == ("retrying", 0, 1)
    stage.advance(9.9)
    assert stage.path("w#1")[-1] == "paused"
    stage.advance(0.1)
    assert stage.state() == "completed"
    assert stage.path("w#1")[-3:] == ["idle", "busy", "idle"]
    assert stage.audit() == []


def test_a_task_that_always_runs_out_of_resources_is_given_up() -> None:
    stage = KernelHarness(workers=LOOP)
    stage.scripts["a"] = exhausts(100)
    stage.submit(flow(task("a")))
    stage.advance(1000)
    record = stage.task("a")
    assert (record.state, record.attempt, record.error_type) == ("failed", 3, "MemoryError")
    assert stage.audit() == []


def test_other_workers_are_not_given_at_once_what_ran_out_of_resources() -> None:
    pool = tuple(Worker(name, engine="loop", capacity=1) for name in "uvw")
    stage = KernelHarness(workers=pool)
    stage.scripts["a"] = exhausts(2)
    stage.submit(flow(task("a")))
    began = stage.time
    stage.advance(9.9)
    assert (stage.task("a").attempt, stage.task("a").lost_attempts) == (1, 1)
    stage.advance(0.2)
    assert (stage.task("a").attempt, stage.task("a").lost_attempts) == (2, 2)
    stage.advance(100)
    assert stage.state() == "completed"
    assert (stage.task("a").started_at or 0) >= began
    (last,) = [t for t in stage.kept.transitions if t.to_state == "running" and t.attempt == 3]
    assert last.at - began == pytest.approx(30)  # 10 s, then twice as many
    assert stage.audit() == []


def test_an_operators_pause_outlives_the_cooldown() -> None:
    stage = KernelHarness(workers=LOOP)
    stage.scripts |= {"a": exhausts(1), "b": hangs}
    stage.submit(flow(task("b", timeout=10_000), task("a")))
    stage.advance(0)
    assert stage.path("w#1")[-2:] == ["paused", "paused"]
    assert tell(stage, RESUME) is None
    assert tell(stage, PAUSE) is None
    stage.advance(100)
    assert stage.path("w#1")[-1] == "paused"


def test_a_body_that_must_not_run_twice_fails_by_it() -> None:
    stage = KernelHarness(workers=LOOP)
    stage.scripts["a"] = exhausts(1)
    stage.submit(flow(Task("a", run="m:f", on_loss="fail")))
    record = stage.task("a")
    assert (record.state, record.failed_attempts, record.attempt) == ("failed", 1, 1)


# -- passing troubles ----------------------------------------------------------------------------------------------


def passing(times: int, category: str = "transient") -> Script:
    """A script that meets a broken connection so many times."""
    left = [times]

    def script(call: Any, entity: Any) -> dict[str, Any]:
        if left[0]:
            left[0] -= 1
            return {"status": "failed", "error": "reset", "error_type": "ConnectionResetError", "category": category}
        return {}

    return script


@pytest.mark.parametrize(("times", "state", "attempts"), [(2, "completed", 3), (3, "failed", 3)])
def test_a_passing_network_error_is_tried_three_times_in_all(times: int, state: str, attempts: int) -> None:
    stage = KernelHarness(workers=LOOP)
    stage.scripts["a"] = passing(times)
    stage.submit(flow(task("a")))
    stage.advance(60)
    record = stage.task("a")
    assert (record.state, record.attempt) == (state, attempts)
    assert stage.audit() == []


def test_any_other_error_of_a_task_without_retry_is_final() -> None:
    stage = KernelHarness(workers=LOOP)
    stage.scripts["a"] = passing(1, "unknown")
    stage.submit(flow(task("a")))
    stage.advance(60)
    assert (stage.task("a").state, stage.task("a").attempt) == ("failed", 1)


# -- what lasts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gently", [True, False])
def test_a_pause_lasts_over_a_restart_until_it_is_resumed(gently: bool) -> None:
    stage = running(LOOP, "a")
    assert tell(stage, PAUSE) is None
    if gently:
        end(stage, "a")
        stage.send(StopWorkers())
    again = stage.after_crash()
    again.advance(1)
    assert again.path("w#2")[:2] == ["initializing", "paused"]
    assert (again.worker("w").record.reason, again.worker("w").record.pause_reason) == ("maintenance", "maintenance")
    if not gently:
        assert again.states() == {"a": "queued"}
        assert again.task("a").routable
    third = again.after_crash()  # twice
    third.advance(1)
    assert third.path("w#3") == ["initializing", "paused"]
    assert tell(third, RESUME) is None
    assert third.path("w#3")[2] == "idle"
    if not gently:
        assert third.states() == {"a": "running"}
    fourth = third.after_crash()
    fourth.advance(1)
    assert "paused" not in fourth.path("w#4")
    assert fourth.audit() == []


def test_one_that_dies_while_it_is_paused_is_replaced_by_a_paused_one() -> None:
    stage = running(PROCESS, "a")
    assert tell(stage, PAUSE) is None
    stage.send(WorkerDied("w", 1, "killed by SIGKILL"))
    stage.end(stage.token("a"), status="lost", error="killed by SIGKILL", error_type="worker_lost")
    stage.settle()
    stage.advance(1)
    assert stage.path("w#2") == ["initializing", "paused"]
    assert tell(stage, RESUME) is None
    assert stage.states() == {"a": "running"}
    assert stage.audit() == []


def test_what_an_operator_starts_is_not_paused() -> None:
    stage = running(LOOP, "a")
    assert tell(stage, PAUSE) is None
    assert tell(stage, TERMINATE) is None
    stage.send(StartWorkers(LOOP, Reply(None)))
    assert "paused" not in stage.path("w#2")
    assert "paused" not in stage.after_crash().path("w#3")


def test_the_pool_comes_up_again_at_the_next_start() -> None:
    stage = running(LOOP, "", "")
    assert tell(stage, SHUT_DOWN) is None
    again = stage.after_crash()
    assert again.path("w#2") == ["initializing", "idle"]
