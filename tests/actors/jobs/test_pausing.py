"""Pausing a workstream: no new task starts, and everything else continues."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.messages.commands import Approve, Pause, Resume, StartWorkers
from callboard.actors.spec.model import Approval, Breaker, Check, Condition, Retry, Task, Tool, Worker, Workstream
from callboard.machines import InvalidTransitionError

ONE = (Worker("loop", engine="loop", capacity=1),)


def pause(stage: KernelHarness, job_id: str = "job") -> Exception | None:
    return stage.command(stage.kernel.jobs[job_id], Pause("asked to", "ana"))


def resume(stage: KernelHarness, job_id: str = "job") -> Exception | None:
    return stage.command(stage.kernel.jobs[job_id], Resume("go on"))


def paused(*tasks: Task, scripts: dict[str, Any] | None = None, **more: Any) -> KernelHarness:
    """A stage whose job "job" is paused; "run" runs."""
    stage = KernelHarness(scripts={"run": hangs, **(scripts or {})})
    stage.submit(flow(task("run"), *tasks, **more))
    assert pause(stage) is None
    assert stage.stream.state == "paused"
    return stage


def finish(stage: KernelHarness, name: str = "run", **more: Any) -> None:
    stage.end(stage.token(name), **more)
    stage.settle()


def idle(stage: KernelHarness) -> bool:
    timers = [timer for *_, timer, _ in stage.timers if timer.armed]
    return not stage.kernel.calls and not stage.kernel.slots and not timers


def test_who_paused_and_resumed_it_and_why_is_journaled() -> None:
    stage = paused()
    resume(stage)
    rows = [(t.event, t.reason, t.metadata) for t in stage.kept.transitions if t.event in {"pause", "resume"}]
    assert rows == [("pause", "asked to", {"by": "ana"}), ("resume", "go on", None)]
    assert stage.stream.state == "executing"


def test_what_runs_ends_and_what_depends_on_it_waits_for_the_resume() -> None:
    stage = paused(task("next", "run"))
    finish(stage)
    assert stage.states() == {"run": "completed", "next": "pending"}
    resume(stage)
    assert stage.state() == "completed"
    assert idle(stage)
    assert stage.audit() == []


def test_what_is_queued_is_not_claimed_and_others_are() -> None:
    stage = KernelHarness(workers=ONE, scripts={"run": hangs})
    stage.submit(flow(task("run"), task("waits")))
    pause(stage)
    finish(stage)
    assert stage.states() == {"run": "completed", "waits": "queued"}
    stage.submit(Workstream("other", tasks=[task("x"), task("y", "x")]), "other")
    assert stage.state("other") == "completed"
    resume(stage)
    assert stage.state() == "completed"
    assert stage.bodies() == ["run", "x", "y", "waits"]


@pytest.mark.parametrize("gate", ["stream", "tool"])
def test_a_paused_lane_does_not_stand_in_the_way_at_a_gate(gate: str) -> None:
    tools = {"t": Tool(max_parallel=1)}
    limit = 1 if gate == "stream" else None
    stage = KernelHarness(scripts={"run": hangs})
    stage.submit(flow(task("run", tool="t"), task("waits", tool="t"), tools=tools, max_parallel=limit))
    stage.submit(Workstream("other", tasks=[task("x", tool="t")], tools=tools), "other")
    pause(stage)
    finish(stage)
    assert stage.state("other") == "completed"
    assert stage.task("waits").state == "queued"
    resume(stage)
    assert stage.state() == "completed"


def test_a_backoff_that_is_over_queues_the_task_and_no_more() -> None:
    retry = Retry(max_attempts=2, base_delay=10, jitter=0)
    stage = paused(task("flaky", retry=retry), scripts={"flaky": fails()})
    assert stage.task("flaky").state == "retrying"
    stage.advance(100)
    assert stage.task("flaky").state == "queued"
    stage.scripts.pop("flaky")
    resume(stage)
    assert stage.task("flaky").state == "completed"


def test_limits_hold_while_it_is_paused() -> None:
    stage = KernelHarness(workers=ONE, scripts={"run": hangs})
    stage.submit(flow(task("run", timeout=5, optional=True), task("waits", queue_timeout=10, optional=True)))
    pause(stage)
    stage.advance(5)
    assert stage.task("run").state == "failed"
    stage.advance(5)
    assert stage.task("waits").state == "failed"
    assert stage.stream.state == "paused"
    resume(stage)
    assert stage.state() == "completed"


def test_with_all_its_tasks_over_it_waits_for_the_resume() -> None:
    stage = paused()
    finish(stage)
    stage.advance(1000)
    assert (stage.stream.state, stage.state()) == ("paused", "running")
    resume(stage)
    assert (stage.stream.state, stage.state()) == ("completed", "completed")
    assert idle(stage)


def test_a_critical_failure_acts_at_once_and_clean_up_runs() -> None:
    stage = paused(Task("clean", run="m:f", after=["run"]), task("other"), scripts={"other": hangs})
    finish(stage, status="failed", error="boom")
    assert stage.states() == {"run": "failed", "clean": "completed", "other": "cancelled"}
    assert stage.path("job@1")[-3:] == ["paused", "cancelling", "failed"]
    assert idle(stage)


@pytest.mark.parametrize("force", [False, True])
def test_a_paused_one_is_cancelled_as_any_other(force: bool) -> None:
    stage = paused(task("next", "run"))
    assert stage.cancel(stage.kernel.jobs["job"], force=force) is None
    assert stage.states() == {"run": "cancelled", "next": "cancelled"}
    assert stage.path("job@1")[-3:] == ["paused", "cancelling", "cancelled"]
    assert idle(stage)


def test_a_deadline_ends_a_pause() -> None:
    stage = paused(deadline=60)
    stage.advance(60)
    assert stage.state() == "cancelled"


def test_a_condition_that_was_being_asked_is_asked_again_after_the_resume() -> None:
    stage = paused(task("a", condition=Condition(run="m:c")), scripts={"a.condition": hangs})
    (asked,) = (token for token, call in stage.running.items() if call.kind == "condition")
    stage.end(asked, value=True)
    stage.settle()
    stage.advance(100)
    assert stage.task("a").state == "pending"
    resume(stage)
    (again,) = (token for token, call in stage.running.items() if call.kind == "condition")
    assert again != asked
    stage.end(again, value=True)
    stage.settle()
    assert stage.task("a").state == "completed"


def test_a_condition_still_being_asked_at_the_resume_is_not_asked_twice() -> None:
    stage = paused(task("a", condition=Condition(run="m:c")), scripts={"a.condition": hangs})
    resume(stage)
    assert [kind for kind, *_ in stage.started].count("condition") == 1


def test_a_condition_that_is_not_met_skips_its_task_at_once() -> None:
    stage = paused(task("a", condition=Condition(run="m:c")), scripts={"a.condition": hangs})
    (asked,) = (token for token, call in stage.running.items() if call.kind == "condition")
    stage.end(asked, value=False)
    stage.settle()
    assert stage.task("a").state == "skipped"


def test_paused_in_the_middle_of_a_start_in_many_turns() -> None:
    stage = KernelHarness(scripts={"t0": hangs}, copies=False)
    stage.submit_silently(flow(*(task(f"t{n}", optional=True) for n in range(2_000))))
    while stage.stream.state != "executing":
        stage.kernel.run(stage.inputs.popleft())
    pause(stage)
    states = list(stage.states().values())
    assert states.count("pending") > 0
    begun = len(stage.started)
    stage.advance(10)
    assert len(stage.started) == begun
    finish(stage, "t0")
    resume(stage)
    assert stage.state() == "completed"
    assert len(stage.bodies()) == len(set(stage.bodies())) == 2_000


@pytest.mark.parametrize("lifecycle", [None, "pipeline", "orchestration", "fleet"])
def test_it_is_paused_while_its_tasks_only_wait_and_begins_after_the_resume(lifecycle: str | None) -> None:
    stage = KernelHarness()
    tasks = task("soon", wait=60), task("held", hold=Approval()), task("last", "soon")
    stage.submit(flow(*tasks, lifecycle=lifecycle))
    assert stage.stream.state == "ready"
    assert pause(stage) is None
    assert stage.stream.state == "paused"
    stage.advance(60)
    assert stage.command(stage.actor("held"), Approve("ana")) is None
    assert stage.bodies() == []
    after = stage.after_crash()
    assert (after.stream.state, after.bodies()) == ("paused", [])
    assert resume(after) is None
    assert sorted(after.bodies()) == ["held", "last", "soon"]
    assert after.state() == "completed"
    assert after.audit() == []


def test_what_was_paused_before_it_began_is_as_it_was_once_it_goes_on() -> None:
    stage = KernelHarness(workers=())
    stage.submit(flow(task("run")))
    for _ in range(2):
        assert pause(stage) is None
        assert resume(stage) is None
        assert stage.stream.state == "ready"
    stage.send(StartWorkers(ONE))
    assert stage.state() == "completed"
    assert stage.audit() == []


@pytest.mark.parametrize("ends", ["expires", "cancelled", "skipped"])
def test_it_ends_as_it_would_where_it_was_paused_before_it_began(ends: str) -> None:
    stage = KernelHarness()
    stage.submit(flow(task("held", hold=Approval(expires=60)), task("next", "held")))
    pause(stage)
    if ends == "expires":
        stage.advance(60)
    elif ends == "cancelled":
        stage.cancel(stage.kernel.jobs["job"])
    else:
        stage.cancel(stage.actor("held"))
    assert stage.state() == {"expires": "failed", "cancelled": "cancelled", "skipped": "failed"}[ends]
    assert stage.audit() == []


@pytest.mark.parametrize("state", ["held", "paused", "validating", "cancelling"])
def test_it_is_paused_only_where_it_would_start_something(state: str) -> None:
    stage = KernelHarness(scripts={"run": hangs, "flow.check": hangs})
    stage.submit(flow(task("run"), checks=[Check(run="m:c")], hold=Approval() if state == "held" else None))
    if state == "paused":
        pause(stage)
    elif state == "cancelling":
        stage.stubborn.add("run")
        stage.cancel(stage.kernel.jobs["job"])
    elif state == "validating":
        finish(stage)
    assert stage.stream.state == state
    assert isinstance(pause(stage), InvalidTransitionError)
    if state != "paused":
        assert isinstance(resume(stage), InvalidTransitionError)


def test_recovery_keeps_it_paused_whenever_the_crash_came() -> None:
    stage = KernelHarness(scripts={"run": hangs, "a.condition": hangs})
    a = task("a", condition=Condition(run="m:c"))
    stage.submit(flow(task("run"), task("next", "run"), a, task("waits"), max_parallel=1))
    pause(stage)
    turns = len(stage.kept.turns)
    finish(stage)
    for number in range(turns, len(stage.kept.turns) + 1):
        again = stage.after_crash(number)
        again.scripts = {}
        assert again.stream.state == "paused"
        assert again.started == []
        again.advance(1000)
        assert again.started == []
        resume(again)
        assert again.state() == "completed"
        assert again.audit() == []
        assert idle(again)


def test_an_undone_turn_leaves_it_paused() -> None:
    stage = KernelHarness(workers=ONE, scripts={"run": hangs})
    stage.submit(flow(task("run"), task("waits")))
    pause(stage)
    stage.kernel.recovery.rebuild()
    finish(stage)
    assert stage.task("waits").state == "queued"
    resume(stage)
    assert stage.state() == "completed"


# -- at the breaker ----------------------------------------------------------------------------------------------------

TOOLS = {"t": Tool(breaker=Breaker(failure_threshold=1, cooldown=60))}


def ill(capacity: int, **scripts: Any) -> KernelHarness:
    """A stage whose tool is not healthy; "mine" of the job "job" waits for it, then "theirs" of another job."""
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=capacity),))
    stage.scripts |= {"bad": fails(), "run": hangs, **scripts}
    stage.submit(Workstream("opens", tasks=[task("bad", tool="t")], tools=TOOLS), "opener")
    stage.submit(flow(task("run"), task("mine", tool="t"), tools=TOOLS))
    stage.submit(Workstream("other", tasks=[task("theirs", tool="t")], tools=TOOLS), "other")
    assert stage.task("mine").state == stage.task("theirs", "other").state == "circuit_open"
    return stage


def test_a_paused_task_is_not_offered_the_permit_until_the_resume() -> None:
    stage = ill(5, theirs=hangs)
    pause(stage)
    stage.advance(60)
    assert stage.breaker.probe == stage.task("theirs", "other").key
    stage.cancel(stage.actor("theirs", "other"))
    assert (stage.breaker.state, stage.breaker.probe) == ("half_open", None)
    assert stage.task("mine").state == "circuit_open"
    resume(stage)
    assert stage.task("mine").state == "completed"
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


def test_a_paused_task_gives_the_permit_back_that_it_waits_with() -> None:
    stage = ill(1)
    stage.advance(60)
    assert stage.task("mine").state == "half_open"
    pause(stage)
    assert stage.task("mine").state == "circuit_open"
    assert stage.breaker.probe == stage.task("theirs", "other").key
    finish(stage)
    assert stage.state("other") == "completed"
    assert stage.task("mine").state == "queued"  # the tool is healthy again
    resume(stage)
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_the_permit_is_offered_again_where_a_paused_one_is_cancelled_for_a_failure() -> None:
    stage = ill(5, theirs=hangs)
    pause(stage)
    finish(stage, status="failed", error="boom")
    assert stage.states() == {"run": "failed", "mine": "cancelled"}
    stage.advance(60)
    assert stage.breaker.probe == stage.task("theirs", "other").key
