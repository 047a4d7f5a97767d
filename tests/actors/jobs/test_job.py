"""The job: it ends as its workstream does, and its end ends the workstream."""

from __future__ import annotations

import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.machines import InvalidTransitionError


def test_the_plain_way() -> None:
    stage = KernelHarness()
    stage.submit(flow(task("a")))
    assert stage.path("job") == ["submitted", "pending", "running", "completed"]
    assert stage.over == ["job"]


def test_it_fails_with_its_workstream_and_says_why() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails("no")
    job = stage.submit(flow(task("a")))
    assert stage.path("job") == ["submitted", "pending", "running", "failed"]
    assert job.record.error == "task 'a' failed: no"


@pytest.mark.parametrize("force", [False, True])
def test_a_cancel_takes_everything_with_it(force: bool) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    job = stage.submit(flow(task("a"), task("b", "a")))
    token = stage.token("a")
    assert stage.cancel(job, force=force) is None
    if not force:
        assert stage.path("job")[-1] == "cancelling"
        stage.end(token, "cancelled")
        stage.settle()
    assert stage.path("job") == ["submitted", "pending", "running", "cancelling", "cancelled"]
    assert stage.stops == [(token, force)]
    assert stage.audit() == []


def test_a_second_cancel_is_refused_a_forced_one_is_not_and_one_after_the_end_is() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    job = stage.submit(flow(task("a")))
    stage.cancel(job)
    before = len(stage.kept.transitions)
    assert isinstance(stage.cancel(job), InvalidTransitionError)
    assert len(stage.kept.transitions) == before
    assert stage.cancel(job, force=True) is None
    assert stage.state() == "cancelled"
    assert isinstance(stage.cancel(job), LookupError)
    assert isinstance(stage.cancel(job, force=True), LookupError)


def test_a_cancel_of_what_is_failing_already_leaves_it_failed() -> None:
    stage = KernelHarness()
    stage.scripts |= {"bad": fails(), "slow": hangs}
    stage.stubborn.add("slow")
    job = stage.submit(flow(task("slow"), task("bad", "gate"), task("gate")))
    assert stage.stream.state == "cancelling"
    assert stage.cancel(job) is None
    stage.end(stage.token("slow"), "cancelled")
    stage.settle()
    assert stage.path("job")[-2:] == ["cancelling", "failed"]
    assert stage.audit() == []


def test_jobs_do_not_touch_each_other() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": fails()}
    one = stage.submit(flow(task("a")), "one")
    stage.submit(flow(task("b")), "two")
    stage.submit(flow(task("c")), "three")
    stage.cancel(one)
    assert [stage.state(name) for name in ("one", "two", "three")] == ["cancelled", "failed", "completed"]
