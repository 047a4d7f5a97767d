"""A runtime that was suspended, or whose clock was set: no limit counts that time."""

from __future__ import annotations

from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.messages.inputs import Beat, CallEnded


def running(**more: object) -> KernelHarness:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    stage.submit(flow(task("a", **more)))
    return stage


def unread(stage: KernelHarness, status: str = "ok") -> None:
    """Make the body's end an unread input, which is read after the late timers."""
    stage.inputs.append(CallEnded(stage.token("a"), status))


def test_a_body_that_ended_in_time_has_ended_well_however_late_that_is_read() -> None:
    stage = running(timeout=10)
    stage.stand_still(100)
    stage.advance(0)
    assert stage.task("a").state == "running"
    unread(stage)
    stage.settle()
    assert stage.task("a").state == "completed"
    assert stage.audit() == []


def test_one_that_did_not_is_timed_out_a_moment_later() -> None:
    stage = running(timeout=10, kill_grace=1)
    stage.stand_still(100)
    stage.advance(0.9)
    assert stage.task("a").state == "running"
    stage.advance(0.2)
    assert stage.path("job@1/a")[-1] == "timed_out"
    assert stage.task("a").reason == "the attempt limit was reached"


def test_heartbeats_may_come_again_before_they_are_missed() -> None:
    stage = running(timeout=1_000, heartbeat_timeout=5)
    stage.stand_still(100)
    stage.advance(4.9)
    stage.send(Beat(stage.token("a"), None))
    stage.advance(4.9)
    assert stage.task("a").state == "running"
    stage.advance(0.2)
    assert (stage.task("a").state, stage.task("a").reason) == ("timed_out", "the heartbeat limit was reached")


def test_a_clock_that_is_set_forward_uses_up_no_attempt() -> None:
    stage = running(timeout=3_600, heartbeat_timeout=5)
    stage.stand_still(7_200)  # the same, since only the wall clock is read
    for _ in range(890):
        stage.send(Beat(stage.token("a"), None))
        stage.advance(4)
    assert stage.task("a").state == "running"
    stage.advance(100)
    assert stage.task("a").state in {"timed_out", "failed"}


def test_a_body_that_was_stopped_is_abandoned_only_when_its_end_could_have_been_read() -> None:
    stage = running(timeout=10, kill_grace=5)
    stage.advance(10)
    assert stage.task("a").state == "timed_out"
    stage.stand_still(100)
    stage.advance(0)
    assert stage.task("a").state == "timed_out"
    unread(stage, "cancelled")
    stage.settle()
    assert stage.task("a").state == "failed"
    assert "abandoned" not in str(stage.task("a").last_error)


def test_standing_still_excuses_once_and_again_only_when_it_happens_again() -> None:
    stage = running(timeout=10)
    for _ in range(3):
        stage.stand_still(100)
        stage.advance(0)
        assert stage.task("a").state == "running"
    stage.advance(1.1)
    assert stage.task("a").state != "running"


def test_a_timer_that_is_a_little_late_is_in_time() -> None:
    stage = running(timeout=10)
    stage.stand_still(10.3)
    stage.advance(0)
    assert stage.task("a").state == "timed_out"
