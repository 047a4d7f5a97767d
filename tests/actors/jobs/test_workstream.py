"""The workstream: how ends count, failing, clean-up, cancelling, deadline, validation, size."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.messages.inputs import Drain
from callboard.actors.spec.model import Check, Condition, Hook, Retry, Task
from callboard.machines import InvalidTransitionError


def after(name: str, *others: str, **more: Any) -> Task:
    """A task that waits only for others to have ended."""
    return Task(name, run="m:f", after=list(others), **more)


# -- how a task's end counts -------------------------------------------------------------------------------------------

# how "a" ends; whether it is optional; the ends of a task that depends on it, of a task after it, and of the workstream
ENDS = [
    ("completed", False, "completed", "completed", "completed"),
    ("completed", True, "completed", "completed", "completed"),
    ("skipped by its condition", False, "skipped void", "completed", "completed"),
    ("skipped by its condition", True, "skipped void", "completed", "completed"),
    ("skipped: dependency void", False, "skipped void", "completed", "completed"),
    ("skipped: dependency void", True, "skipped void", "completed", "completed"),
    ("skipped: optional dependency bad", False, "skipped void", "completed", "completed"),
    ("skipped: optional dependency bad", True, "skipped void", "completed", "completed"),
    ("failed", False, "skipped bad", "completed", "failed"),
    ("failed", True, "skipped void", "completed", "completed"),
    ("cancelled", False, "skipped bad", "completed", "failed"),
    ("cancelled", True, "skipped void", "completed", "completed"),
    ("skipped: dependency bad", False, "skipped bad", "completed", "failed"),
    ("skipped: dependency bad", True, "skipped void", "completed", "failed"),
]


@pytest.mark.parametrize(("end", "optional", "strict", "loose", "whole"), ENDS)
def test_how_an_end_counts(end: str, optional: bool, strict: str, loose: str, whole: str) -> None:
    stage = KernelHarness()
    first: list[Task] = []
    a = task("a", optional=optional)
    match end:
        case "skipped by its condition":
            a = task("a", optional=optional, condition=Condition(run="m:c"))
            stage.scripts["a.condition"] = lambda call, entity: {"value": False}
        case "skipped: dependency void":
            first = [task("z", condition=Condition(run="m:c"))]
            stage.scripts["z.condition"] = lambda call, entity: {"value": False}
            a = task("a", "z", optional=optional)
        case "skipped: optional dependency bad":
            first = [task("z", optional=True)]
            stage.scripts["z"] = fails()
            a = task("a", "z", optional=optional)
        case "skipped: dependency bad":
            first = [task("z")]
            stage.scripts["z"] = fails()
            a = task("a", "z", optional=optional)
        case "failed":
            stage.scripts["a"] = fails()
        case "cancelled":
            stage.scripts["a"] = hangs
    stage.submit(flow(*first, a, task("strict", "a"), after("loose", "a")))
    if end == "cancelled":
        stage.cancel(stage.actor("a"))
    states = stage.states()
    assert states["a"] == end.partition(" ")[0].strip(":")
    assert states["strict"] == strict.partition(" ")[0]
    if states["strict"] == "skipped":
        assert stage.task("strict").standing == strict.partition(" ")[2]
    assert states["loose"] == loose
    assert stage.state() == whole
    assert stage.audit() == []


def test_a_dependent_is_skipped_once_its_dependency_can_no_longer_complete() -> None:
    stage = KernelHarness()
    stage.scripts |= {"slow": hangs, "bad": fails()}
    stage.submit(flow(task("slow"), task("bad", optional=True), task("c", "slow", "bad")))
    assert stage.states() == {"slow": "running", "bad": "failed", "c": "skipped"}
    assert stage.task("c").reason == "dependency 'bad' failed"


def test_both_kinds_of_edges_on_one_task() -> None:
    stage = KernelHarness()
    stage.scripts |= {"bad": fails(), "slow": hangs}
    stage.submit(
        flow(
            task("good"),
            task("bad", optional=True),
            task("slow"),
            Task("c", run="m:f", depends_on=["good"], after=["bad", "slow"]),
        )
    )
    assert stage.states()["c"] == "pending"
    stage.end(stage.token("slow"))
    stage.settle()
    assert stage.state() == "completed"
    assert stage.bodies()[-1] == "c"


# -- ends of the whole -------------------------------------------------------------------------------------------------


def test_an_empty_one_and_one_in_which_nothing_is_to_run_complete() -> None:
    stage = KernelHarness()
    stage.submit(flow(), "empty")
    assert stage.path("empty@1") == ["planned", "ready", "validating", "completed"]
    stage.scripts["a.condition"] = lambda call, entity: {"value": False}
    stage.submit(flow(task("a", condition=Condition(run="m:c"))), "nothing")
    assert stage.path("nothing@1") == ["planned", "ready", "validating", "completed"]
    assert stage.audit() == []


def test_it_stays_ready_until_its_first_task_starts() -> None:
    stage = KernelHarness()
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog")), "hogs")
    stage.submit(flow(task("a", capabilities=["none"], unroutable_timeout=5), task("b")))
    assert stage.path("job@1") == ["planned", "ready", "executing"]
    waiting = KernelHarness(workers=())
    waiting.submit(flow(task("a")))
    assert waiting.path("job@1") == ["planned", "ready"]
    assert waiting.audit() == []


def test_the_first_critical_failure_stops_what_runs_and_starts_nothing_else() -> None:
    stage = KernelHarness()
    stage.scripts |= {"bad": hangs, "other": hangs, "backing-off": fails()}
    stage.stubborn.add("other")
    stage.submit(
        flow(
            task("bad"), task("other"), task("backing-off", retry=Retry(max_attempts=3)), task("next", "other"),
            task("dependent", "bad"), task("grandchild", "dependent"), task("waiting", "bad"), max_parallel=3,
        )
    )  # fmt: skip
    stage.end(stage.token("bad"), "failed", error="no")
    stage.settle()
    assert stage.stream.state == "cancelling"
    assert stage.stream.cause == "failure"
    assert stage.states() == {
        "bad": "failed", "other": "cancelling", "backing-off": "cancelled", "next": "cancelled", "dependent": "skipped",
        "grandchild": "skipped", "waiting": "skipped",
    }  # fmt: skip
    assert stage.task("next").reason == "workstream cancelled: task 'bad' failed: no"
    stage.end(stage.token("other"), "cancelled")
    stage.settle()
    assert stage.path("job@1") == ["planned", "ready", "executing", "cancelling", "failed"]
    assert stage.state() == "failed"
    assert stage.bodies() == ["bad", "other", "backing-off"]
    assert stage.audit() == []


def test_clean_up_runs_after_a_failure_before_it_ends() -> None:
    stage = KernelHarness()
    stage.scripts |= {"bad": fails(), "clean": hangs}
    stage.submit(flow(task("bad"), after("clean", "bad"), after("last", "clean"), task("never", "clean")))
    assert stage.states() == {"bad": "failed", "clean": "running", "last": "pending", "never": "cancelled"}
    assert stage.stream.state == "cancelling"
    stage.end(stage.token("clean"))
    stage.settle()
    assert stage.states()["last"] == "completed"
    assert stage.state() == "failed"
    assert stage.audit() == []


def test_clean_up_of_one_that_failed_before_anything_ran() -> None:
    stage = KernelHarness()
    stage.scripts["bad.condition"] = fails()
    stage.submit(flow(task("bad", condition=Condition(run="m:c")), after("clean", "bad")))
    assert stage.path("job@1") == ["planned", "ready", "executing", "cancelling", "failed"]
    assert stage.states() == {"bad": "failed", "clean": "completed"}
    assert stage.audit() == []


def test_clean_up_that_fails_changes_nothing_about_the_outcome() -> None:
    stage = KernelHarness()
    stage.scripts |= {"bad": fails("first"), "clean": fails("second")}
    stage.submit(flow(task("bad"), after("clean", "bad")))
    assert stage.state() == "failed"
    assert stage.stream.error == "task 'bad' failed: first"


def test_a_cancelled_one_runs_no_clean_up() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    job = stage.submit(flow(task("a"), after("clean", "a")))
    stage.cancel(job)
    assert stage.states() == {"a": "cancelled", "clean": "cancelled"}
    assert stage.state() == "cancelled"


def test_a_cancelled_critical_task_fails_its_workstream_and_an_optional_one_does_not() -> None:
    for optional, outcome in ((False, "failed"), (True, "completed")):
        stage = KernelHarness()
        stage.scripts["a"] = hangs
        stage.submit(flow(task("a", optional=optional), task("b")))
        stage.cancel(stage.actor("a"))
        assert stage.state() == outcome
        assert stage.audit() == []


# -- validation --------------------------------------------------------------------------------------------------------

CHECKS = [Check(run="m:c"), Check(run="m:d", timeout=3)]


def test_its_checks_are_asked_when_every_task_has_ended() -> None:
    stage = KernelHarness()
    stage.scripts["flow.check"] = hangs
    stage.submit(flow(task("a"), checks=CHECKS))
    assert stage.stream.state == "validating"
    for number in (0, 1):
        (call,) = stage.running.values()
        assert call.index == number
        stage.end(call.token, value=True)
        stage.settle()
    assert stage.state() == "completed"
    assert stage.audit() == []


@pytest.mark.parametrize(
    ("said", "error"),
    [({"value": False}, "check 1 was not met"), ({"status": "failed", "error": "exit code 1"}, "exit code 1")],
)
def test_a_check_that_is_not_met_fails_it(said: dict[str, Any], error: str) -> None:
    stage = KernelHarness()
    stage.scripts["flow.check"] = lambda call, entity: said
    stage.submit(flow(task("a"), checks=CHECKS))
    assert stage.path("job@1")[-2:] == ["validating", "failed"]
    assert stage.stream.error == error
    assert stage.state() == "failed"


def test_a_check_that_takes_too_long_fails_it_and_is_let_go_when_it_is_gone() -> None:
    stage = KernelHarness()
    stage.scripts["flow.check"] = lambda call, entity: {"value": True} if call.index == 0 else None
    stage.deaf.add("flow")
    stage.submit(flow(task("a"), checks=CHECKS))
    stage.advance(3)
    assert stage.stream.error == "check 2 took too long"
    assert stage.over == ["job"]
    (token,) = stage.running
    stage.end(token, "abandoned")
    stage.settle()
    assert stage.reports == []
    assert stage.kernel.calls == {}
    assert {entity.record.kind for entity in stage.kernel.entities.values()} == {"worker"}


@pytest.mark.parametrize("force", [False, True])
def test_cancelled_while_it_is_validated(force: bool) -> None:
    stage = KernelHarness()
    stage.scripts["flow.check"] = hangs
    stage.stubborn.add("flow")
    job = stage.submit(flow(task("a"), checks=CHECKS))
    (token,) = stage.running
    stage.cancel(job.stream, force=force)
    assert stage.stops == [(token, force)]
    if not force:
        assert stage.stream.state == "cancelling"
        stage.end(token, "cancelled")
        stage.settle()
    assert stage.stream.state == "cancelled"
    assert stage.state() == "cancelled"
    assert stage.audit() == []


def test_a_check_that_does_not_go_does_not_hold_up_a_cancel_for_ever() -> None:
    stage = KernelHarness()
    stage.scripts["flow.check"] = hangs
    stage.stubborn.add("flow")
    job = stage.submit(flow(task("a"), checks=CHECKS))
    stage.cancel(job)
    stage.advance(11)
    assert stage.state() == "cancelled"
    assert stage.stops[-1][1] is True
    assert stage.kernel.calls == {}


def test_a_drain_stops_its_checks_and_they_are_asked_again() -> None:
    stage = KernelHarness()
    stage.scripts["flow.check"] = hangs
    stage.submit(flow(task("a"), checks=CHECKS))
    stage.send(Drain(stop=True))
    assert stage.stream.state == "validating"
    stage.scripts.clear()
    later = stage.after_crash()
    assert later.path("job@1")[-3:] == ["validating", "validating", "completed"]
    assert later.bodies() == []


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_graceful_cancel_waits_for_bodies_and_a_second_one_is_refused() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    job = stage.submit(flow(task("a"), task("b", "a")))
    assert stage.cancel(job.stream) is None
    assert stage.states() == {"a": "cancelling", "b": "cancelled"}
    before = len(stage.kept.transitions)
    refusal = stage.cancel(job.stream)
    assert isinstance(refusal, InvalidTransitionError)
    assert len(stage.kept.transitions) == before
    stage.end(stage.token("a"), "cancelled")
    stage.settle()
    assert stage.path("job@1") == ["planned", "ready", "executing", "cancelling", "cancelled"]
    assert stage.path("job")[-2:] == ["cancelling", "cancelled"]
    assert stage.audit() == []


def test_force_forces_its_tasks() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    job = stage.submit(flow(task("a")))
    stage.cancel(job.stream)
    assert stage.cancel(job.stream, force=True) is None
    assert stage.states() == {"a": "cancelled"}
    assert stage.path("job@1")[-3:] == ["cancelling", "cancelling", "cancelled"]
    assert stage.audit() == []


def test_force_at_once() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    job = stage.submit(flow(task("a")))
    assert stage.cancel(job.stream, force=True) is None
    assert stage.state() == "cancelled"
    assert stage.stops[-1][1] is True


def test_force_also_ends_the_clean_up_of_a_failure_which_it_stays() -> None:
    stage = KernelHarness()
    stage.scripts |= {"bad": fails(), "clean": hangs}
    job = stage.submit(flow(task("bad"), after("clean", "bad"), after("more", "clean")))
    assert isinstance(stage.cancel(job.stream), InvalidTransitionError)
    assert stage.cancel(job.stream, force=True) is None
    assert stage.states() == {"bad": "failed", "clean": "cancelled", "more": "cancelled"}
    assert stage.state() == "failed"
    assert stage.audit() == []


def test_cancelled_before_anything_started() -> None:
    stage = KernelHarness(workers=())
    job = stage.submit(flow(task("a"), task("b", "a")))
    assert stage.cancel(job.stream) is None
    assert stage.path("job@1") == ["planned", "ready", "cancelled"]
    assert stage.state() == "cancelled"
    assert stage.audit() == []


def test_cancelled_in_the_middle_of_a_start_in_many_turns() -> None:
    stage = KernelHarness(workers=())
    stage.submit_silently(flow(*(task(f"t{n}") for n in range(1200))))
    job = stage.kernel.jobs["job"]
    stage.kernel.run(stage.inputs.popleft())
    assert len(stage.states()) == 1000  # the other tasks are created in a separate turn
    assert stage.task("t0").state == "pending"
    stage.cancel_silently(job.stream, force=False)
    assert isinstance(stage.command_silently(job.stream), InvalidTransitionError)
    stage.settle()
    assert stage.path("job@1") == ["planned", "cancelled"]
    assert set(stage.states().values()) == {"cancelled"}
    assert stage.state() == "cancelled"
    assert stage.audit() == []


def test_forced_in_the_middle_of_a_cancel_in_many_turns() -> None:
    stage = KernelHarness(workers=())
    job = stage.submit(flow(*(task(f"t{n}") for n in range(1200))))
    stage.cancel_silently(job.stream, force=False)
    assert stage.stream.state == "ready"
    assert isinstance(stage.command_silently(job.stream), InvalidTransitionError)
    stage.cancel_silently(job.stream, force=True)
    stage.settle()
    assert stage.state() == "cancelled"
    assert stage.audit() == []


def test_a_task_cancelled_before_the_others_exist() -> None:
    """Tasks that depend on the cancelled task, or wait for it, may be made only in a later turn."""
    stage = KernelHarness()
    many = [task(f"t{n}") for n in range(600)]
    stage.submit_silently(flow(task("a", optional=True), *many, task("strict", "a"), after("loose", "a")))
    stage.cancel_silently(stage.actor("a"))
    stage.settle()
    states = stage.states()
    assert (states["a"], states["strict"], states["loose"]) == ("cancelled", "skipped", "completed")
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_critical_task_cancelled_before_the_others_exist() -> None:
    stage = KernelHarness()
    many = [task(f"t{n}") for n in range(600)]
    stage.submit_silently(flow(task("a"), *many, task("strict", "a"), after("clean", "a")))
    stage.cancel_silently(stage.actor("a"))
    stage.settle()
    states = stage.states()
    assert (states["a"], states["strict"], states["clean"]) == ("cancelled", "skipped", "completed")
    assert stage.state() == "failed"
    assert stage.bodies() == ["clean"]
    assert stage.audit() == []


# -- deadline ----------------------------------------------------------------------------------------------------------


def test_a_deadline_cancels_with_that_reason() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", timeout=1000), deadline=60))
    stage.advance(59.9)
    assert stage.state() == "running"
    stage.advance(0.1)
    assert stage.state() == "cancelled"
    assert stage.stream.reason == "the deadline is over"


def test_a_deadline_is_ignored_while_it_is_cancelled_and_gone_when_it_has_ended() -> None:
    stage = KernelHarness()
    stage.scripts |= {"bad": fails(), "clean": hangs}
    stage.submit(flow(task("bad"), after("clean", "bad", timeout=1000), deadline=60))
    stage.advance(100)
    assert stage.states()["clean"] == "running"
    stage.end(stage.token("clean"))
    stage.settle()
    assert stage.state() == "failed"
    assert [fire for *_, timer, fire in stage.timers if timer.armed] == []


def test_a_deadline_runs_before_anything_started_and_while_it_is_validated() -> None:
    stage = KernelHarness(workers=())
    stage.submit(flow(task("a"), deadline=60))
    stage.advance(60)
    assert stage.state() == "cancelled"
    other = KernelHarness()
    other.scripts["flow.check"] = hangs
    other.submit(flow(task("a"), deadline=20, checks=CHECKS))
    other.advance(20)
    assert other.state() == "cancelled"


def test_a_deadline_that_fell_due_while_nobody_looked() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a"), deadline=60))
    later = stage.after_crash(down=500)
    later.advance(0)
    assert later.state() == "cancelled"
    assert later.audit() == []


# -- hooks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "event"), [("ok", "on_completed"), ("failed", "on_failed"), ("cancelled", "on_cancelled")]
)
def test_its_hooks(end: str, event: str) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    hooks = {name: [Hook(run=f"m:{name}")] for name in ("on_completed", "on_failed", "on_cancelled")}
    job = stage.submit(flow(task("a"), **hooks))
    if end == "cancelled":
        stage.cancel(job)
    else:
        stage.end(stage.token("a"), end)
        stage.settle()
    assert [row.event for row in stage.hooks] == [event]
    assert stage.hooks[0].owner == "job@1"


# -- size --------------------------------------------------------------------------------------------------------------


def effort(spec: Any) -> tuple[int, int]:
    """The numbers of turns and messages of a run."""
    stage = KernelHarness(copies=False)
    sent = 0
    send = stage.kernel.send

    def counted(actor: Any, message: Any) -> None:
        nonlocal sent
        sent += 1
        send(actor, message)

    stage.kernel.send = counted  # type: ignore[method-assign]
    before = len(stage.kept.turns)
    stage.submit(spec)
    assert stage.state() == "completed"
    return len(stage.kept.turns) - before, sent


def chain(length: int) -> Any:
    return flow(task("t0"), *(task(f"t{n}", f"t{n - 1}") for n in range(1, length)))


def wide(width: int) -> Any:
    names = [f"t{n}" for n in range(width)]
    return flow(task("first"), *(task(name, "first") for name in names), task("last", *names))


@pytest.mark.parametrize("shape", [chain, wide])
def test_the_effort_grows_as_the_graph_does(shape: Any) -> None:
    (turns, messages), (more_turns, more_messages) = effort(shape(300)), effort(shape(1200))
    assert more_turns <= 4.1 * turns
    assert more_messages <= 4.1 * messages


def test_a_long_chain() -> None:
    turns, messages = effort(chain(3_000))
    assert turns <= 3_100
    assert messages <= 27_000


def test_a_long_chain_is_skipped_in_one_go() -> None:
    stage = KernelHarness(copies=False)
    stage.scripts["t0"] = fails()
    stage.submit(chain(3_000))
    assert stage.state() == "failed"
    assert set(stage.states().values()) == {"failed", "skipped"}


def test_thousands_side_by_side() -> None:
    turns, messages = effort(wide(5_000))
    assert turns <= 5_050
    assert messages <= 45_000


def test_a_wide_one_is_cancelled_in_batches() -> None:
    stage = KernelHarness(workers=())
    job = stage.submit(flow(*(task(f"t{n}") for n in range(5000))))
    before = len(stage.kept.turns)
    stage.cancel(job)
    assert stage.state() == "cancelled"
    longest = max(len(turn.transitions) for turn in stage.kept.turns[before:])
    assert longest <= 510
    assert len([turn for turn in stage.kept.turns[before:] if turn.transitions]) == 10
    assert len(stage.kernel.entities) == 0


def test_nothing_is_kept_of_a_job_that_is_over() -> None:
    stage = KernelHarness()
    stage.submit(wide(50))
    assert stage.kernel.jobs == {}
    assert {entity.record.kind for entity in stage.kernel.entities.values()} == {"worker"}
    assert stage.kernel.scheduler.queues == {}
    assert stage.kernel.scheduler.streams == {}
    assert [fire for *_, timer, fire in stage.timers if timer.armed] == []
