"""Approvals that running bodies ask for: their states, the attempt's stopped clock, and their restore."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.messages.commands import Approve, AskApproval, LeaveApproval, Reject
from callboard.actors.messages.inputs import Message
from callboard.actors.records.entities import ApprovalRecord
from callboard.actors.spec.model import Approval, Retry
from callboard.actors.tasks.holds import DecisionConflict, DecisionRefused

PROD = "job@1/deploy/prod"


def running(**more: Any) -> KernelHarness:
    """A stage on which the body of `deploy` runs."""
    stage = KernelHarness(scripts={"deploy": hangs})
    stage.submit(flow(task("deploy", **more)))
    return stage


def ask(stage: KernelHarness, name: str = "prod", **rule: Any) -> int:
    stage.advance(0)  # after a crash a lost attempt is begun again without a delay
    token = stage.token("deploy")
    stage.send(AskApproval(token, name, Approval(**rule)))
    return token


def say(stage: KernelHarness, message: Message) -> Exception | None:
    return stage.command(stage.actor("deploy"), message)


def approval(stage: KernelHarness, name: str = "prod") -> ApprovalRecord:
    (found,) = [record for record in stage.kept.of(ApprovalRecord) if record.name == name]
    return found


def test_a_body_is_told_when_it_is_approved() -> None:
    stage = running()
    token = ask(stage, people=2)
    assert stage.task("deploy").state == "running"
    record = approval(stage)
    assert (record.id, record.state, record.task_id) == (PROD, "held", "job@1/deploy")
    assert (record.reason, record.hold_until) == ("waits for approval by 2 people", stage.time + 72 * 3600)
    assert say(stage, Approve("ana", "fine")) is None
    assert not stage.decided
    assert say(stage, Approve("ben", approval="prod")) is None
    assert stage.decided == [(token, "prod", "approved")]
    assert stage.path(PROD) == ["held", "held", "approved"]
    stage.end(token)
    stage.settle()
    assert stage.state() == "completed"
    assert not stage.audit()


@pytest.mark.parametrize(("state", "after"), [("rejected", 0), ("expired", 60)])
def test_it_is_told_of_a_rejection_and_of_an_expiry(state: str, after: float) -> None:
    stage = running()
    token = ask(stage, expires=60)
    if after:
        stage.advance(after)
    else:
        assert say(stage, Reject("ben", "no")) is None
    assert stage.decided == [(token, "prod", state)]
    assert stage.path(PROD) == ["held", state]
    refused = say(stage, Approve("ana"))
    assert isinstance(refused, DecisionConflict)
    assert refused.decision.verdict == state
    assert stage.task("deploy").state == "running"
    assert not stage.audit()


def test_an_approval_after_its_deadline_is_refused_though_no_timer_fired() -> None:
    stage = running()
    ask(stage, expires=60)
    stage.time += 60
    assert isinstance(say(stage, Approve("ana")), DecisionRefused)
    assert approval(stage).state == "held"


def test_the_clock_of_the_attempt_stands_still_meanwhile() -> None:
    stage = running(timeout=100, heartbeat_timeout=50)
    stage.advance(40)
    ask(stage)
    stage.advance(10_000)
    assert stage.task("deploy").state == "running"
    say(stage, Approve("ana"))
    stage.advance(49)  # of the 60 that were left; the heartbeat counts anew
    assert stage.task("deploy").state == "running"
    stage.advance(1)
    assert "timed_out" in stage.steps("deploy")
    assert stage.task("deploy").limit == "heartbeat"


def test_what_it_had_left_it_has_again() -> None:
    stage = running(timeout=100)
    stage.advance(40)
    token = ask(stage)
    ask(stage, "other")
    stage.advance(1000)
    say(stage, Approve("ana", approval="prod"))
    stage.advance(1000)  # the body still waits for the other approval
    stage.send(LeaveApproval(token, "other"))
    assert approval(stage, "other").state == "held"
    stage.advance(59)
    assert stage.task("deploy").state == "running"
    stage.advance(1)
    assert "timed_out" in stage.steps("deploy")


def test_the_limit_over_all_attempts_holds_all_the_same() -> None:
    stage = running(timeout=10, total_timeout=100)
    ask(stage)
    stage.advance(99)
    assert stage.task("deploy").state == "running"
    stage.advance(1)
    assert ("timed_out" in stage.steps("deploy"), stage.task("deploy").limit) == (True, "total")


def test_a_later_attempt_finds_it_and_what_was_given_stays_given() -> None:
    stage = running(retry=Retry(max_attempts=3, base_delay=1, jitter=0), timeout=10)
    first = ask(stage)
    stage.end(first, status="failed", error="boom")
    stage.settle()
    stage.advance(1)
    second = ask(stage)
    assert second != first
    assert say(stage, Approve("ana")) is None
    assert stage.decided == [(second, "prod", "approved")]
    stage.advance(9)
    assert stage.task("deploy").state == "running"
    stage.end(second, status="failed", error="boom")
    stage.settle()
    stage.advance(2)
    third = ask(stage)
    assert stage.decided[-1] == (third, "prod", "approved")
    assert stage.path(PROD) == ["held", "approved"]
    stage.advance(10)  # whose clock runs: it waits for nothing
    assert "timed_out" in stage.steps("deploy")


def test_it_ends_with_its_task() -> None:
    stage = running()
    token = ask(stage)
    stage.cancel(stage.actor("deploy"), force=True)
    assert stage.path(PROD) == ["held", "cancelled"]
    assert (token, "prod", "cancelled") in stage.decided
    assert not [entry for entry in stage.timers if entry[2].armed]
    assert not stage.audit()


def test_which_one_is_meant_must_be_clear() -> None:
    stage = running()
    ask(stage)
    ask(stage, "eu")
    assert "say which approval; it asks for 'prod', 'eu'" in str(say(stage, Approve("ana")))
    assert "it asks for no approval 'us', but for 'prod', 'eu'" in str(say(stage, Reject("ana", approval="us")))
    assert say(stage, Approve("ana", approval="eu")) is None
    assert say(stage, Approve("ana")) is None
    assert [approval(stage, name).state for name in ("prod", "eu")] == ["approved", "approved"]


def test_an_old_attempt_asks_for_nothing() -> None:
    stage = running()
    stage.send(AskApproval(stage.token("deploy") + 1000, "prod", Approval()))
    assert not stage.kept.of(ApprovalRecord)


@pytest.mark.parametrize("decided", [True, False])
def test_it_survives_the_runtime(decided: bool) -> None:
    stage = running()
    ask(stage)
    if decided:
        say(stage, Approve("ana"))
    again = stage.after_crash(down=60)
    token = ask(again)
    if not decided:
        assert say(again, Approve("ana")) is None
    assert again.decided[-1] == (token, "prod", "approved")
    assert again.path(PROD) == ["held", "approved"]
    assert not again.audit()


def test_one_that_expired_while_it_was_down_has_expired_at_the_start() -> None:
    stage = running()
    ask(stage, expires=60)
    again = stage.after_crash(down=60)
    assert approval(again).state == "expired"
    token = ask(again)
    assert again.decided[-1] == (token, "prod", "expired")
