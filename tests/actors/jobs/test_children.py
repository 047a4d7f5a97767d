"""Child jobs: a task submits them, they are one level deeper, and they end with it."""

from __future__ import annotations

import pytest
from tests.actors.jobs_help import again, child, goes_on, job_record, living, waits
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.messages.commands import Lend
from callboard.actors.messages.errors import AttemptOver
from callboard.actors.records.entities import AttemptRecord
from callboard.actors.records.task import DurableWait
from callboard.actors.spec.model import Retry, Worker
from callboard.machines import InvalidTransitionError

ONE = (Worker("loop", engine="loop", capacity=1),)


def begun(**more: object) -> KernelHarness:
    """A stage on which the job "job" has one task "a" whose body runs."""
    stage = KernelHarness(**more)  # type: ignore[arg-type]
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", retry=Retry(max_attempts=2, base_delay=0))))
    return stage


def end(stage: KernelHarness, name: str, status: str = "ok", job_id: str = "job", **more: object) -> None:
    stage.end(stage.task(name, job_id).token, status, **more)
    stage.settle()


def test_a_child_is_one_deeper_and_its_parent_ends_after_it() -> None:
    stage = begun()
    stage.scripts["b"] = hangs
    child(stage, stage.token("a"), flow(task("b")), "job/a/x")
    record = job_record(stage, "job/a/x")
    assert (record.depth, record.parent_id, record.parent_task) == (1, "job", stage.task("a").key)
    end(stage, "a")
    assert (stage.stream.state, stage.state()) == ("completed", "running")
    end(stage, "b", job_id="job/a/x")
    assert (stage.state("job/a/x"), stage.state()) == ("completed", "completed")
    assert stage.over == ["job/a/x", "job"]
    assert not stage.kernel.jobs
    assert stage.audit() == []


def test_depth_five_is_the_deepest() -> None:
    stage = begun()
    token, job_id = stage.token("a"), "job"
    for depth in range(1, 7):
        job_id = f"{job_id}/a/x"
        child(stage, token, flow(task("a")), job_id)
        assert job_record(stage, job_id).depth == depth
        if depth < 6:
            token = stage.task("a", job_id).token
    assert stage.path(job_id) == ["submitted", "failed"]
    assert job_record(stage, job_id).error == "it would be at depth 6, and 5 is the deepest"
    assert stage.state(job_id.removesuffix("/a/x")) == "running"
    assert stage.audit() == []


@pytest.mark.parametrize("force", [False, True])
def test_a_cancel_takes_children_and_grandchildren_with_it(force: bool) -> None:
    stage = begun()
    job = living(stage, "job")
    child(stage, stage.token("a"), flow(task("a")), "job/a/x")
    child(stage, stage.task("a", "job/a/x").token, flow(task("a")), "job/a/x/a/y")
    assert stage.cancel(job, force=force) is None
    assert [stage.state(name) for name in ("job", "job/a/x", "job/a/x/a/y")] == ["cancelled"] * 3
    assert stage.over == ["job/a/x/a/y", "job/a/x", "job"]
    assert stage.audit() == []


def test_the_deadline_of_the_parent_cancels_the_child() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a"), deadline=60))
    child(stage, stage.token("a"), flow(task("a")), "job/a/x")
    stage.advance(60)
    assert [stage.state(name) for name in ("job", "job/a/x")] == ["cancelled", "cancelled"]
    assert stage.audit() == []


def test_the_deadline_holds_while_only_a_child_is_left() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a"), deadline=60))
    child(stage, stage.token("a"), flow(task("a")), "job/a/x")
    end(stage, "a")
    stage.advance(59)
    assert stage.state() == "running"
    stage.advance(1)
    assert [stage.state(name) for name in ("job", "job/a/x")] == ["cancelled", "cancelled"]
    assert job_record(stage).reason == "the deadline is over"
    assert stage.audit() == []


def test_a_child_lives_through_a_retry_of_its_task_and_ends_with_it_when_that_is_given_up() -> None:
    stage = begun()
    child(stage, stage.token("a"), flow(task("a")), "job/a/x")
    end(stage, "a", "failed", error="no")
    stage.advance(1)
    assert (stage.task("a").attempt, stage.state("job/a/x")) == (2, "running")
    end(stage, "a", "failed", error="no")
    assert [stage.state(name) for name in ("job/a/x", "job")] == ["cancelled", "failed"]
    assert "parent failed" in (job_record(stage, "job/a/x").reason or "")
    assert stage.audit() == []


def test_children_of_a_workstream_that_fails_are_cancelled() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(task("a"), task("b")))
    child(stage, stage.token("a"), flow(task("a")), "job/a/x")
    end(stage, "a")
    end(stage, "b", "failed", error="no")
    assert [stage.state(name) for name in ("job/a/x", "job")] == ["cancelled", "failed"]
    assert stage.audit() == []


def test_a_task_that_is_being_cancelled_submits_nothing_more() -> None:
    stage = begun()
    stage.stubborn.add("a")
    stage.cancel(living(stage, "job"))
    job = child(stage, stage.token("a"), flow(task("b")), "job/a/x")
    assert stage.path("job/a/x") == ["submitted", "cancelled"]
    assert job.record.reason == "its parent job is cancelling"
    end(stage, "a", "cancelled")
    assert stage.state() == "cancelled"
    assert stage.audit() == []


def test_an_attempt_that_is_over_submits_nothing_at_all() -> None:
    stage = begun()
    token = stage.token("a")
    end(stage, "a", "failed", error="no")
    before = len(stage.kept.transitions)
    assert isinstance(child(stage, token, flow(task("b")), "job/a/x"), AttemptOver)
    assert len(stage.kept.transitions) == before


def test_a_waiting_body_lends_the_only_slot_to_its_child() -> None:
    stage = begun(workers=ONE)
    stage.scripts["b"] = hangs
    token = stage.token("a")
    child(stage, token, flow(task("b")), "job/a/x")
    assert stage.states("job/a/x") == {"b": "queued"}
    waits(stage, token)
    assert stage.states("job/a/x") == {"b": "running"}
    assert not goes_on(stage, token)  # the child has the slot
    end(stage, "b", job_id="job/a/x")
    assert stage.answers[-1] == (None, None)
    assert stage.states() == {"a": "running"}
    end(stage, "a")
    assert stage.state() == "completed"
    assert stage.audit() == []
    assert not stage.kernel.lent
    assert not stage.kernel.slots


def test_the_clock_of_an_attempt_stands_still_while_it_waits() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", timeout=100)))
    token = stage.token("a")
    stage.advance(60)
    waits(stage, token)
    stage.advance(1000)
    assert goes_on(stage, token)
    stage.advance(39)
    assert stage.states() == {"a": "running"}
    stage.advance(1)
    assert stage.task("a").last_error == "the attempt limit was reached: it was stopped"


def test_the_limit_over_all_attempts_does_not_stand_still() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", total_timeout=100)))
    waits(stage, stage.token("a"))
    stage.advance(100)
    assert stage.task("a").last_error == "the total limit was reached: it was stopped"
    assert not stage.kernel.lent
    assert stage.audit() == []


def test_a_body_that_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    stage = begun(workers=ONE)
    token = stage.token("a")
    waits(stage, token)
    stage.submit(flow(task("c")), "other")
    assert stage.state("other") == "completed"
    stage.cancel(living(stage, "job"))
    assert stage.state() == "cancelled"
    assert not stage.kernel.lent
    assert stage.audit() == []


def test_a_body_that_waits_again_before_it_got_its_slot_back_leaves_the_slot_to_others() -> None:
    stage = begun(workers=ONE)
    stage.scripts["b"] = hangs
    token, wait = stage.token("a"), DurableWait(stage.now() + 1_000.0)
    waits(stage, token)
    stage.submit(flow(task("b")), "busy")
    assert not goes_on(stage, token)  # one of its branches asks for the slot, and gets an answer when another waits
    before = len(stage.answers)
    stage.send(Lend(token, wait))
    assert stage.answers[before:] == [(None, None)]
    assert stage.task("a").durable_wait == wait
    end(stage, "b", job_id="busy")
    assert token in stage.kernel.lent
    stage.submit(flow(task("c")), "other")
    assert stage.state("other") == "completed"
    stage.advance(5_000.0)  # its clock stands still
    assert goes_on(stage, token)
    assert (stage.states(), stage.task("a").durable_wait) == ({"a": "running"}, None)
    end(stage, "a")
    assert stage.audit() == []


def test_an_abandoned_body_that_waits_does_not_lend_the_slot_of_the_next_attempt() -> None:
    stage = KernelHarness(workers=(Worker("loop", engine="loop", capacity=2),))
    stage.scripts["a"] = hangs
    stage.deaf.add("a")
    stage.submit(flow(task("a", timeout=10, kill_grace=1, retry=Retry(max_attempts=2, base_delay=0))))
    old = stage.token("a")
    stage.advance(20)
    token = stage.token("a")
    assert (token != old, stage.states(), old in stage.kernel.calls) == (True, {"a": "running"}, True)
    stage.send(Lend(old, DurableWait(stage.now() + 1_000.0)))
    assert (token in stage.kernel.slots, stage.task("a").durable_wait) == (True, None)
    assert goes_on(stage, old)
    stage.advance(30)  # the clock of the next attempt does not stand still
    assert stage.state() == "failed"
    stage.end(token, "abandoned")
    stage.end(old, "abandoned")
    stage.settle()
    assert (stage.kernel.slots, stage.kernel.lent, stage.audit()) == ({}, {}, [])


@pytest.mark.parametrize("turns", range(1, 30))
def test_a_crash_anywhere_leads_to_the_same_end(turns: int) -> None:
    stage = begun(workers=ONE)
    token = stage.token("a")
    child(stage, token, flow(task("b")), "job/a/x")
    waits(stage, token)
    goes_on(stage, token)
    if turns > len(stage.kept.turns):
        return
    after = stage.after_crash(turns)
    if any(record.id == "job" for record in after.kept.of(type(job_record(stage)))):
        if after.states():
            after.advance(1)
            after.end(after.token("a"))
            after.settle()
        assert after.state() == "completed"
    assert after.audit() == []


def test_the_next_run_of_a_child_that_failed_is_submitted_by_its_task_again() -> None:
    stage = begun()
    stage.scripts["b"] = fails("no")
    child(stage, stage.token("a"), flow(task("b"), task("c")), "job/a/x")
    assert stage.state("job/a/x") == "failed"
    del stage.scripts["b"]
    again(stage, "job/a/x", parent=stage.token("a"))
    assert stage.state("job/a/x") == "completed"
    assert job_record(stage, "job/a/x").parent == job_record(stage).key
    end(stage, "a")
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_command_to_a_child_that_has_ended_is_refused() -> None:
    stage = begun()
    job = child(stage, stage.token("a"), flow(task("b")), "job/a/x")
    assert isinstance(again(stage, "job/a/x", parent=stage.token("a")), InvalidTransitionError)
    assert job.record.state == "completed"


def test_a_body_that_was_abandoned_submits_nothing_once_its_job_has_ended() -> None:
    stage = begun()
    stage.deaf.add("a")
    token = stage.token("a")
    stage.cancel(living(stage, "job"))
    stage.advance(100)
    assert stage.state() == "cancelled"
    assert token in stage.running
    assert isinstance(child(stage, token, flow(task("b")), "job/a/x"), AttemptOver)
    assert stage.path("job/a/x") == []
    assert stage.audit() == []


@pytest.mark.parametrize("on_loss", ["fail", "park"])
def test_what_ran_of_a_child_has_its_end_where_a_restart_takes_it_along_with_its_parent(on_loss: str) -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(task("a", on_loss=on_loss, optional=True), task("z")))
    child(stage, stage.token("a"), flow(task("b")), "job/a/x")
    stage = stage.after_crash()
    if on_loss == "park":
        stage.cancel(stage.actor("a"), force=True)
    stage.advance(0)
    assert stage.state("job/a/x") == "cancelled"
    assert None not in {attempt.end for attempt in stage.kept.of(AttemptRecord)}
    assert stage.audit() == []
