"""Holds and waits of tasks and workstreams: decisions, refusals, timers, and their restore after a crash."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.kernel.entity import Entity
from callboard.actors.messages.commands import Approve, Cancel, Command, Reject, Reply
from callboard.actors.messages.inputs import Message
from callboard.actors.records.transition import iso
from callboard.actors.spec.model import Approval, Breaker, Clause, Condition, Retry, Tool
from callboard.actors.tasks.holds import DecisionConflict, DecisionRefused, refusal
from callboard.machines import TASK, InvalidTransitionError

HOUR = 3600.0
CANCEL = Cancel("asked to")
DEPLOY = "job@1/deploy"


def held(hold: Approval | None = None, **more: object) -> KernelHarness:
    """A stage on which the task `deploy` is held, after `build`."""
    stage = KernelHarness()
    stage.submit(flow(task("build"), task("deploy", "build", hold=hold or Approval(), **more)))
    return stage


def say(stage: KernelHarness, message: Message, name: str = "deploy") -> Exception | None:
    return stage.command(stage.actor(name), message)


def command_of(entity: Entity[Any] | None, message: Message) -> Command:
    assert entity is not None
    return Command(entity.record.key, message, Reply(None))


def last(stage: KernelHarness, entity_id: str = DEPLOY, event: str | None = None) -> object:
    found = [t for t in stage.kept.transitions if t.entity_id == entity_id and event in {None, t.event}]
    return found[-1]


# -- tasks: who decides ------------------------------------------------------------------------------------------------


def test_it_is_held_once_its_dependencies_are_satisfied_and_runs_when_approved() -> None:
    stage = KernelHarness(scripts={"build": hangs})
    stage.submit(flow(task("build"), task("deploy", "build", hold=Approval())))
    assert stage.steps("deploy") == ["pending"]
    stage.end(stage.token("build"))
    stage.settle()
    assert stage.steps("deploy") == ["pending", "held"]
    assert say(stage, Approve("ana", "looks good")) is None
    assert stage.steps("deploy") == ["pending", "held", "queued", "running", "validating", "completed"]
    assert stage.state() == "completed"
    assert not stage.audit()


def test_what_is_awaited_is_told_and_until_when_is_kept_beside_it() -> None:
    stage = held(Approval(people=2, clauses=[Clause(person="cho")], expires="2h"))
    until = iso(stage.time + 2 * HOUR)
    record = stage.task("deploy")
    assert (record.reason, record.hold_until) == ("waits for approval by 2 people, cho", stage.time + 2 * HOUR)
    event = last(stage)
    assert (event.event, event.severity, event.metadata) == (
        "hold", "info", {"clauses": ["2 people", "cho"], "expires_at": until},
    )  # fmt: skip
    say(stage, Approve("ana"))
    assert stage.task("deploy").reason == "waits for approval by 1 of 2 people, cho"


def test_every_clause_must_be_met_and_each_decision_says_which_it_met() -> None:
    rule = Approval(people=2, clauses=[Clause(person="ana"), Clause(team="ops", people=1, members="m:f")])
    stage = held(rule)
    assert say(stage, Approve("ana", "fine")) is None
    assert last(stage).metadata == {
        "by": "ana", "clauses_met": ["2 people", "ana"], "missing": ["1 of 2 people", "1 person of team ops"],
    }  # fmt: skip
    assert last(stage).reason == "fine"
    assert say(stage, Approve("ben")) is None
    assert last(stage).metadata["missing"] == ["1 person of team ops"]
    assert stage.steps("deploy")[1:] == ["held", "held", "held"]
    assert say(stage, Approve("cho", teams=("ops",))) is None
    approved = last(stage, event="approve")
    assert approved.metadata == {"by": "cho", "clauses_met": ["2 people", "1 person of team ops"], "missing": []}
    assert approved.to_state == "queued"
    assert [one.by for one in stage.task("deploy").decisions] == ["ana", "ben", "cho"]


def test_a_person_counts_once_however_the_name_is_written() -> None:
    stage = held(Approval(people=2))
    assert say(stage, Approve("ana")) is None
    refused = say(stage, Approve("Ana", "again"))
    assert isinstance(refused, DecisionConflict)
    assert refused.decision.by == "ana"
    assert "job@1/deploy was approved by ana. It is held until the others have approved." in str(refused)
    assert stage.task("deploy").state == "held"
    assert len(stage.task("deploy").decisions) == 1


def test_a_member_who_could_not_be_asked_about_counts_as_none_and_may_come_again() -> None:
    stage = held(Approval(people=2, clauses=[Clause(team="ops", members="m:f")]))
    assert say(stage, Approve("ana", unchecked=("ops",))) is None
    assert last(stage).metadata["unchecked"] == ["ops"]
    assert say(stage, Approve("ben")) is None
    assert stage.task("deploy").state == "held"
    assert say(stage, Approve("ana", teams=("ops",))) is None
    assert stage.task("deploy").state == "completed"


def test_who_meets_no_clause_is_refused_and_nothing_is_journaled() -> None:
    stage = held(Approval(clauses=[Clause(person="ana"), Clause(team="ops", members="m:f")]))
    count = len(stage.kept.transitions)
    refused = say(stage, Approve("ben", unchecked=("ops",)))
    assert isinstance(refused, DecisionRefused)
    assert "ben meets no clause; it waits for ana, 1 person of team ops" in str(refused)
    assert "could not be determined" in str(refused)
    assert len(stage.kept.transitions) == count


@pytest.mark.parametrize("other", [" eve", "Eve ", "EVE", "\uff45ve", "e\u200bve", "eve\ufe0f", "\u2003eve"], ids=ascii)
def test_one_person_is_one_however_the_name_is_written_or_padded(other: str) -> None:
    stage = held(Approval(people=2))
    assert say(stage, Approve("eve")) is None
    assert isinstance(say(stage, Approve(other)), DecisionConflict)
    named = held(Approval(clauses=[Clause(person=other)]))
    assert say(named, Approve("eve")) is None
    own = KernelHarness()
    own.submit(flow(task("deploy", hold=Approval())), by=other)
    assert isinstance(say(own, Approve("eve")), DecisionRefused)
    kept = held(Approval(people=2))
    say(kept, Approve(other))
    assert [one.by for one in kept.task("deploy").decisions] == [other]  # as it was given


def test_people_whose_names_differ_are_several() -> None:
    stage = held(Approval(people=3))
    for name in ("Jos\u00e9 Maria", "Jose Maria", "josemaria"):
        assert say(stage, Approve(name)) is None
    assert stage.state() == "completed"


@pytest.mark.parametrize("allowed", [False, True])
def test_whether_the_submitter_may_approve_is_a_setting(allowed: bool) -> None:
    stage = KernelHarness()
    stage.submit(flow(task("deploy", hold=Approval(self_approval=allowed))), by="ana")
    refused = say(stage, Approve("Ana"))
    if allowed:
        assert refused is None
        return
    assert isinstance(refused, DecisionRefused)
    assert "Ana submitted it, and self-approval is off" in str(refused)
    assert stage.task("deploy").state == "held"
    assert say(stage, Reject("ana")) is None  # any person may reject
    assert stage.task("deploy").state == "cancelled"


def test_one_rejection_rejects_and_fails_what_needs_it() -> None:
    stage = held(Approval(people=2))
    say(stage, Approve("ana"))
    assert say(stage, Reject("ben", "too risky")) is None
    event = last(stage)
    assert (event.event, event.to_state, event.reason, event.metadata) == (
        "reject", "cancelled", "too risky", {"by": "ben"},
    )  # fmt: skip
    assert stage.state() == "failed"
    assert stage.stream.error == "task 'deploy' was rejected by ben: too risky"
    assert "deploy" not in stage.bodies()
    assert not stage.audit()


# -- tasks: exactly one decision ---------------------------------------------------------------------------------------


def test_after_an_approval_any_other_decision_gets_the_one_that_was_made() -> None:
    stage = KernelHarness(scripts={"deploy": hangs})
    stage.submit(flow(task("deploy", hold=Approval())))
    say(stage, Approve("ana", "fine"))
    for message in (Approve("ben"), Reject("ben"), Approve("ana")):
        refused = say(stage, message)
        assert isinstance(refused, DecisionConflict)
        assert (refused.decision.by, refused.decision.verdict, refused.decision.at) == ("ana", "approved", stage.time)
        assert refused.why == "job@1/deploy was approved by ana (fine). Nothing is left to decide."
        assert str(refused).endswith(f"{refused.why} (decided {iso(stage.time)})")
        assert refused.told(lambda at: f"at {at:.0f}").endswith(f"(decided at {stage.time:.0f})")
    assert stage.task("deploy").state == "running"


def test_after_a_rejection_any_other_decision_gets_that() -> None:
    stage = held()
    other = KernelHarness()  # with a second held task, so that the job does not end
    other.submit(flow(task("deploy", hold=Approval(), optional=True), task("long", hold=Approval())))
    assert say(other, Reject("ben", "no")) is None
    refused = say(other, Approve("ana"))
    assert isinstance(refused, DecisionConflict)
    assert refused.decision.verdict == "rejected"
    assert stage.task("deploy").state == "held"


def test_what_was_never_held_says_what_its_state_allows() -> None:
    stage = KernelHarness(scripts={"plain": hangs})
    stage.submit(flow(task("plain")))
    refused = say(stage, Approve("ana"), "plain")
    assert type(refused) is InvalidTransitionError
    assert "succeed" in refused.allowed


# -- tasks: time -------------------------------------------------------------------------------------------------------


def test_it_expires_after_72_hours() -> None:
    stage = held()
    stage.advance(72 * HOUR - 1)
    assert stage.task("deploy").state == "held"
    stage.advance(1)
    event = last(stage)
    assert (event.event, event.to_state, event.severity) == ("expire", "cancelled", "warning")
    assert event.metadata == {"expired_at": iso(stage.time), "missing": ["1 person"]}
    assert event.reason == "no approval in time by 1 person"
    assert stage.stream.error == "task 'deploy' expired: no approval in time by 1 person"
    assert not stage.audit()


@pytest.mark.parametrize(("late", "state"), [(-0.001, "completed"), (0.0, "held"), (5.0, "held")])
def test_an_approval_after_the_deadline_is_refused_though_no_timer_fired(late: float, state: str) -> None:
    stage = held(Approval(expires=60))
    stage.time += 60 + late
    refused = say(stage, Approve("ana"))
    assert stage.task("deploy").state == state
    if state == "held":
        assert isinstance(refused, DecisionRefused)
        assert refused.why == "the hold has expired. The next run asks again: `retry`."
        assert refused.expired_at == stage.time - late
        assert str(refused).endswith(f"`retry`. (expired {iso(stage.time - late)})")
        rejected = say(stage, Reject("ana"))
        assert isinstance(rejected, DecisionRefused)
        assert rejected.expired_at == stage.time - late
        stage.advance(0)
        assert stage.task("deploy").state == "cancelled"
        assert stage.task("deploy").decisions[-1].by is None


def test_a_wait_of_a_while_and_one_until_a_point_in_time() -> None:
    stage = KernelHarness()
    stage.submit(
        flow(task("a", wait="30m"), task("b", wait=iso(stage.time + 60)), task("past", wait=iso(stage.time - 1)))
    )
    assert stage.states() == {"a": "waiting", "b": "waiting", "past": "completed"}
    assert last(stage, "job@1/a").metadata == {"wait_until": iso(stage.time + 1800)}
    assert (stage.task("a").reason, stage.task("a").wait_until) == (None, stage.time + 1800)
    stage.advance(60)
    assert stage.states() == {"a": "waiting", "b": "completed", "past": "completed"}
    stage.advance(1740)
    assert stage.steps("a") == ["pending", "waiting", "queued", "running", "validating", "completed"]
    assert last(stage, "job@1/a", "timer_done").metadata == {"wait_until": iso(stage.time)}
    assert not stage.audit()


def test_tasks_that_begin_to_wait_at_once_hold_one_number() -> None:
    stage = KernelHarness()
    stage.submit(flow(task("a", wait="30m"), task("b", wait="30m"), task("c", wait=1800.0)))
    a, b, c = (stage.kernel.entities[stage.task(name).key].record for name in "abc")
    assert a.due_at == c.due_at == stage.time + 1800
    assert a.due_at is b.due_at


def test_both_at_once_both_must_pass() -> None:
    early = held(Approval(), wait=600)
    say(early, Approve("ana"))
    assert early.steps("deploy") == ["pending", "held", "waiting"]
    assert last(early).event == "approve"
    assert isinstance(say(early, Reject("ben")), DecisionConflict)
    early.advance(600)
    assert early.task("deploy").state == "completed"
    late = held(Approval(), wait=600)
    late.advance(600)
    assert late.task("deploy").state == "held"
    say(late, Approve("ana"))
    assert late.steps("deploy")[1:3] == ["held", "queued"]
    assert not early.audit() + late.audit()


def test_holds_begin_after_the_condition_and_what_passed_stays_passed_after_a_reset() -> None:
    stage = KernelHarness(scripts={"deploy.condition": hangs})
    retry = Retry(max_attempts=5, base_delay=1, jitter=0)
    spec = flow(
        task("deploy", hold=Approval(), condition=Condition(run="m:c"), tool="t", retry=retry),
        tools={"t": Tool(breaker=Breaker(failure_threshold=1, cooldown=10))},
    )
    stage.submit(spec)
    assert stage.task("deploy").state == "pending"
    stage.scripts["deploy"] = lambda call, entity: {} if entity.record.attempt > 1 else {"status": "failed"}
    (token,) = stage.running
    stage.end(token, value=True)
    stage.settle()
    assert stage.task("deploy").state == "held"
    say(stage, Approve("ana"))
    stage.advance(100)
    assert stage.task("deploy").state == "completed"
    assert stage.steps("deploy").count("held") == 1


def test_held_and_waiting_tasks_use_no_slot() -> None:
    stage = KernelHarness()
    stage.submit(flow(task("held", hold=Approval()), task("waits", wait=60), task("runs"), max_parallel=1))
    assert stage.states() == {"held": "held", "waits": "waiting", "runs": "completed"}
    assert not stage.kernel.slots


@pytest.mark.parametrize("how", ["cancel", "force", "job", "deadline"])
def test_a_cancel_or_a_deadline_ends_held_and_waiting_tasks_at_once(how: str) -> None:
    stage = KernelHarness()
    tasks = task("held", hold=Approval(), optional=True), task("waits", wait=HOUR, optional=True)
    job = stage.submit(flow(*tasks, deadline=60))
    if how == "deadline":
        stage.advance(60)
    elif how == "job":
        stage.cancel(job)
    else:
        for name in ("held", "waits"):
            assert stage.cancel(stage.actor(name), force=how == "force") is None
    assert stage.steps("held") == ["pending", "held", "cancelled"]
    assert stage.steps("waits") == ["pending", "waiting", "cancelled"]
    assert not [entry for entry in stage.timers if entry[2].armed]
    assert not stage.audit()


# -- tasks: after a crash ----------------------------------------------------------------------------------------------


def test_a_hold_and_its_decisions_survive_and_go_on() -> None:
    stage = held(Approval(people=2), wait=HOUR)
    say(stage, Approve("ana"))
    again = stage.after_crash(down=60)
    assert again.task("deploy").state == "held"
    assert isinstance(say(again, Approve("ana")), DecisionConflict)
    assert say(again, Approve("ben")) is None
    assert again.task("deploy").state == "waiting"
    third = again.after_crash(down=60)
    third.advance(HOUR - 121)
    assert third.task("deploy").state == "waiting"
    third.advance(1)
    assert third.task("deploy").state == "completed"
    assert not third.audit()


def test_what_fell_due_while_it_was_down_is_decided_before_anybody_is_heard() -> None:
    stage = held(Approval(expires=60))
    again = stage.after_crash(down=60)
    assert again.task("deploy").state == "cancelled"  # no time has passed since the start
    assert again.task("deploy").decisions[-1].verdict == "expired"
    waits = KernelHarness()
    waits.submit(flow(task("deploy", wait=60)))
    assert waits.after_crash(down=59).task("deploy").state == "waiting"
    assert waits.after_crash(down=60).task("deploy").state == "completed"


# -- workstreams -------------------------------------------------------------------------------------------------------


def protected(count: int = 2, **more: object) -> KernelHarness:
    stage = KernelHarness()
    stage.submit(flow(*(task(f"t{number}") for number in range(count)), **more))
    return stage


def tell(stage: KernelHarness, message: Message) -> Exception | None:
    return stage.command(stage.kernel.jobs["job"].stream, message)


def test_a_workstream_is_held_before_any_of_its_tasks() -> None:
    stage = protected(hold=Approval(people=2), wait=600)
    assert stage.path("job@1") == ["planned", "ready", "held"]
    assert set(stage.states().values()) == {"pending"}
    assert tell(stage, Approve("ana")) is None
    assert stage.stream.state == "held"
    assert tell(stage, Approve("ben")) is None
    assert stage.stream.state == "waiting"
    stage.advance(600)
    assert stage.path("job@1") == [
        "planned", "ready", "held", "held", "waiting", "ready", "executing", "validating", "completed",
    ]  # fmt: skip
    assert not stage.audit()


def test_it_goes_straight_on_where_it_has_waited_long_enough() -> None:
    stage = protected(hold=Approval(), wait=600)
    stage.advance(600)
    assert tell(stage, Approve("ana")) is None
    assert stage.path("job@1")[2:5] == ["held", "ready", "executing"]


def test_a_workstream_that_only_waits() -> None:
    stage = protected(wait=600)
    assert stage.stream.state == "waiting"
    assert (stage.stream.reason, stage.stream.wait_until) == (None, stage.time + 600)
    stage.advance(600)
    assert stage.state() == "completed"


@pytest.mark.parametrize("count", [2, 1200])  # more than are cancelled in one turn
def test_a_rejected_workstream_ends_with_all_its_tasks(count: int) -> None:
    stage = protected(count, hold=Approval())
    assert tell(stage, Reject("ben", "not today")) is None
    assert stage.path("job@1") == ["planned", "ready", "held", "cancelled"]
    event = last(stage, "job@1")
    assert (event.event, event.reason, event.metadata) == ("reject", "not today", {"by": "ben"})
    assert set(stage.states().values()) == {"cancelled"}
    assert stage.state() == "cancelled"
    assert not stage.audit()


def test_a_workstream_expires() -> None:
    stage = protected(hold=Approval(expires=60))
    stage.advance(60)
    event = last(stage, "job@1")
    assert (event.event, event.severity, event.metadata["missing"]) == ("expire", "warning", ["1 person"])
    assert stage.state() == "cancelled"
    assert not stage.audit()


def test_between_the_turns_of_its_end_the_decision_stands() -> None:
    stage = protected(1200, hold=Approval())
    stream = stage.kernel.jobs["job"].stream
    assert stream is not None
    stage.kernel.run(command_of(stream, Reject("ben")))
    assert stage.stream.state == "held"
    stage.kernel.run(command_of(stream, Approve("ana")))
    refused = stage.answers[-1][1]
    assert isinstance(refused, DecisionConflict)
    assert refused.decision.by == "ben"
    again = stage.after_crash()
    assert again.path("job@1")[-1] == "cancelled"
    assert last(again, "job@1").event == "reject"
    assert not again.audit()


@pytest.mark.parametrize("held_first", [True, False])
def test_a_cancelled_workstream_ends_from_held_and_from_waiting(held_first: bool) -> None:
    stage = protected(1200, hold=Approval() if held_first else None, wait=None if held_first else 60)
    job = stage.kernel.jobs["job"]
    stage.kernel.run(command_of(job, CANCEL))
    refused = stage.answers
    stage.kernel.run(command_of(job.stream, Approve("ana")))
    assert isinstance(refused[-1][1], InvalidTransitionError)
    stage.settle()
    assert stage.path("job@1")[2:] == ["held" if held_first else "waiting", "cancelled"]
    assert stage.state() == "cancelled"
    assert not stage.audit()


def test_a_critical_task_that_is_cancelled_ends_a_held_workstream() -> None:
    stage = protected(hold=Approval())
    assert stage.cancel(stage.actor("t0")) is None
    assert stage.state() == "cancelled"
    assert stage.stream.error == "task 't0' was cancelled: asked to"
    assert not stage.audit()


def test_a_held_workstream_recovers_and_expires_while_it_is_down() -> None:
    stage = protected(hold=Approval(expires=600), wait=60)
    again = stage.after_crash(down=30)
    assert again.stream.state == "held"
    assert not again.bodies()
    assert tell(again, Approve("ana")) is None
    assert again.stream.state == "waiting"
    assert again.after_crash(down=30).state() == "completed"
    assert protected(hold=Approval(expires=600)).after_crash(down=600).state() == "cancelled"


# -- the answers to decisions that come too late
# ----------------------------------------------------------------------------


def test_a_decision_that_is_not_taken_says_what_was_decided_and_what_to_do() -> None:
    stage = held()
    stage.advance(72 * HOUR)
    text = str(refusal(TASK, stage.task("deploy"), "approve"))
    assert text == (
        "task: 'approve' was refused in state 'cancelled': job@1/deploy expired. The next run asks again: `retry`."
        f" (decided {iso(stage.time)})"
    )
    down = held()
    until = down.task("deploy").hold_until or 0
    late = down.after_crash(down=100 * HOUR)
    assert f"(decided {iso(until)})" in str(refusal(TASK, late.task("deploy"), "approve"))  # and not at that start
    stage = held()
    assert say(stage, Reject("ben", "not today")) is None
    text = str(refusal(TASK, stage.task("deploy"), "approve"))
    assert ": job@1/deploy was rejected by ben (not today). The next run asks again: `retry`. (decided " in text
    stage = held(Approval(people=2))
    assert say(stage, Approve("ana")) is None
    assert ". It is held until the others have approved. (decided " in str(say(stage, Approve("ana")))
    assert say(stage, Approve("ben")) is None
    assert ". Nothing is left to decide. (decided " in str(refusal(TASK, stage.task("deploy"), "reject"))


@pytest.mark.parametrize("keep", [{"hold": Approval()}, {"wait": "1h"}])
def test_nothing_is_cleaned_up_of_a_workstream_that_was_not_let_begin(keep: dict[str, Any]) -> None:
    stage = KernelHarness()
    stage.submit(flow(task("a"), task("sweep", after=["a"]), **keep))
    assert stage.cancel(stage.actor("a")) is None
    assert stage.bodies() == []
    assert stage.states() == {"a": "cancelled", "sweep": "cancelled"}
    assert stage.state() == "cancelled"
    assert stage.audit() == []
