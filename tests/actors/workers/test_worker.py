"""The worker: capacity, assignment, shutting down, incarnations."""

from __future__ import annotations

import pytest
from tests.actors.stage import Kept, KernelHarness, flow, hangs, task

from callboard.actors.messages.commands import StartWorkers
from callboard.actors.messages.inputs import Drain, StopWorkers, WorkerBeat, WorkerDied
from callboard.actors.records.entities import WorkerRecord
from callboard.actors.spec.model import Task, Worker

ONE = (Worker("w", engine="loop", capacity=1),)
TWO = (Worker("w", engine="loop", capacity=2),)


def test_it_runs_at_most_its_capacity_and_every_slot_is_a_transition() -> None:
    stage = KernelHarness(workers=TWO)
    for name in "abc":
        stage.scripts[name] = hangs
    stage.submit(flow(task("a"), task("b"), task("c")))
    assert stage.states() == {"a": "running", "b": "running", "c": "queued"}
    assert stage.path("w#1") == ["initializing", "idle", "busy", "busy"]
    stage.end(stage.token("b"))
    stage.settle()
    assert stage.states() == {"a": "running", "b": "completed", "c": "running"}
    for name in "ac":
        stage.end(stage.token(name))
    stage.settle()
    assert stage.path("w#1") == ["initializing", "idle", "busy", "busy", "busy", "busy", "busy", "idle"]
    rows = [
        (t.event, t.metadata["assigned"])
        for t in stage.kept.transitions
        if t.entity_id == "w#1" and t.metadata and "assigned" in t.metadata
    ]
    assert rows == [("assign", 1), ("assign", 2), ("release", 1), ("assign", 2), ("release", 1), ("release", 0)]
    assert stage.audit() == []


def test_an_idle_one_shuts_down_at_once() -> None:
    stage = KernelHarness(workers=ONE)
    stage.send(StopWorkers())
    assert stage.path("w#1") == ["initializing", "idle", "shutdown"]
    assert stage.kernel.workers == {}


def test_a_busy_one_finishes_what_it_runs_and_takes_nothing_new() -> None:
    stage = KernelHarness(workers=TWO)
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(task("a"), task("b"), task("c")))
    stage.send(StopWorkers())
    for name in "ab":
        stage.end(stage.token(name))
    stage.settle()
    assert stage.path("w#1")[-3:] == ["draining", "draining", "shutdown"]
    assert stage.states() == {"a": "completed", "b": "completed", "c": "queued"}
    assert stage.audit() == []


def test_one_that_stops_in_the_turn_in_which_it_was_chosen_finishes_the_task_and_takes_no_other() -> None:
    from callboard.actors.messages.commands import Cancel

    stage = KernelHarness(workers=())
    stage.submit(flow(task("a"), task("b")))
    place = stage.task("b").place
    send, kernel = stage.kernel.send, stage.kernel

    def send_first_a_stop(actor: object, message: object) -> None:
        if type(message).__name__ == "Assign" and not sent:
            sent.append(message)
            worker = next(iter(kernel.workers.values()))
            kernel.turn.queue.appendleft((worker, Cancel("stop")))
        send(actor, message)  # type: ignore[arg-type]

    sent: list[object] = []
    kernel.send = send_first_a_stop  # type: ignore[method-assign,assignment]
    stage.send(StartWorkers(ONE))
    kernel.send = send  # type: ignore[method-assign]
    assert stage.reports == []
    stage.settle()
    assert stage.path("w#1") == ["initializing", "idle", "busy", "draining", "shutdown"]
    assert (stage.task("b").state, stage.task("b").place) == ("queued", place)
    stage.send(StartWorkers(ONE))
    assert stage.state() == "completed"
    assert stage.bodies() == ["a", "b"]
    assert stage.audit() == []


def test_each_start_is_a_new_incarnation() -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    after = stage.after_crash()
    after.advance(0)
    assert after.path("w#1")[-1] == "failed"
    assert after.path("w#2") == ["initializing", "idle", "busy"]
    again = after.after_crash()
    assert again.path("w#3")[:2] == ["initializing", "idle"]
    assert again.audit() == []


@pytest.mark.parametrize("state", ["initializing", "idle", "busy", "draining"])
def test_one_whose_process_is_gone_has_failed(state: str) -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    if state == "initializing":  # this state never lasts, but a journal of another version may hold it
        kept = Kept()
        kept.records["worker", 1] = WorkerRecord(
            key=1, id="w#1", name="w", state="initializing", created_at=1.0, engine="loop", capacity=1
        )
        assert KernelHarness(workers=(), kept=kept).path("w#1") == ["failed"]
        return
    if state != "idle":
        stage.submit(flow(task("a")))
    if state == "draining":
        stage.send(StopWorkers())
    assert stage.path("w#1")[-1] == state
    after = stage.after_crash()
    assert after.path("w#1")[-1] == "failed"
    assert after.audit() == []


def test_a_drain_claims_nothing_more_and_lets_run_what_runs() -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a"), task("b")))
    stage.send(Drain(stop=False))
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.states() == {"a": "completed", "b": "queued"}
    assert stage.stops == []


def test_one_with_processes_is_as_many_as_it_has_room_for() -> None:
    stage = KernelHarness(workers=(Worker("pool", engine="process", capacity=2),))
    assert [(w.record.id, w.record.capacity) for w in stage.kernel.workers.values()] == [
        ("pool-1#1", 1),
        ("pool-2#1", 1),
    ]


def test_engines_are_told_apart() -> None:
    stage = KernelHarness(workers=(*ONE, Worker("c", engine="command", capacity=1)))
    stage.submit(flow(Task("a", command=["true"]), task("b")))
    assert (stage.task("a").state, stage.state()) == ("completed", "completed")
    ran = {t.entity_id: t.worker_id for t in stage.kept.transitions if t.to_state == "running" and t.kind == "task"}
    assert ran == {"job@1/a": "c#1", "job@1/b": "w#1"}


def test_one_that_died_under_a_body_loses_it_and_is_followed_by_another() -> None:
    stage = KernelHarness(workers=ONE)
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a")))
    first = stage.token("a")
    stage.inputs.append(WorkerDied("w", 1, "killed by SIGKILL"))
    stage.end(first, status="lost", error="killed by SIGKILL", error_type="worker_lost")
    stage.end(first, status="lost", error="once more")  # its end is reported again: nothing is counted
    stage.settle()
    stage.advance(0.1)
    assert stage.path("w#1") == ["initializing", "idle", "busy", "failed"]
    assert stage.path("w#2") == ["initializing", "idle", "busy"]
    assert stage.steps("a")[2:] == ["running", "recovering", "retrying", "queued", "running"]
    record = stage.task("a")
    assert (record.attempt, record.lost_attempts, record.failed_attempts) == (2, 1, 0)
    assert (record.worker_id, record.error_type) == ("w#2", "worker_lost")
    stage.end(record.token)
    stage.settle()
    assert stage.state() == "completed"
    stage.send(WorkerDied("w", 1, "once more"))
    stage.send(WorkerBeat("w", 1))
    assert stage.path("w#2")[-1] == "idle"
    assert stage.kernel.stale == 3
    assert stage.audit() == []
