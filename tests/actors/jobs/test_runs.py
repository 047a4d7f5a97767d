"""Further runs: ended records never change, completed tasks are carried over, the others run again (DESIGN 5.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.actors.jobs_help import again, job_record, living
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.jobs.job import JobActor
from callboard.actors.messages.commands import Approve, NextRun, Reject, Reply, ResetTask, SkipTask
from callboard.actors.messages.inputs import Beat
from callboard.actors.records.entities import WorkstreamRecord
from callboard.actors.records.task import TaskRecord
from callboard.actors.spec.model import Approval, Check, Condition, Defaults, Hook, Retry, Task, Workstream
from callboard.machines import InvalidTransitionError

CHAIN = flow(task("a"), task("b", "a"), task("c", "b"))


def failed(spec: Workstream = CHAIN, at: str = "b") -> KernelHarness:
    """A job that has failed at one of its tasks; the others return their names."""
    stage = KernelHarness()
    for one in spec.tasks:
        raw = msgspec.Raw(msgspec.json.encode(one.name))
        stage.scripts[one.name] = lambda call, entity, raw=raw: {"value": raw}  # type: ignore[misc]
    works, stage.scripts[at] = stage.scripts[at], fails("no")
    stage.submit(spec)
    stage.scripts[at] = works
    return stage


def of_run(stage: KernelHarness, run: int) -> dict[str, TaskRecord]:
    return {record.name: record for record in stage.kept.of(TaskRecord) if record.run == run}


def test_a_retry_runs_what_did_not_complete_and_carries_over_what_did() -> None:
    stage = failed()
    assert job_record(stage).state == "failed"
    before = {record.id: record for record in stage.kept.of(TaskRecord) + stage.kept.of(WorkstreamRecord)}
    stage.started.clear()
    again(stage, reason="the disk is mended", by="ana")
    assert stage.bodies() == ["b", "c"]
    assert stage.state() == "completed"
    second = of_run(stage, 2)
    assert {name: str(record.state) for name, record in second.items()} == dict.fromkeys("abc", "completed")
    assert second["a"].id == "job@2/a"
    assert second["a"].result == "a"
    assert second["a"].reason == "carried over from job@1/a"
    after = {record.id: record for record in stage.kept.of(TaskRecord) + stage.kept.of(WorkstreamRecord)}
    assert {name: after[name] for name in before} == before  # ended records are never changed
    assert stage.path("job") == [*["submitted", "pending", "running", "failed"], *["submitted", "pending", "running"],
                                 "completed"]  # fmt: skip
    created = next(t for t in stage.kept.transitions if t.entity_id == "job" and t.run == 2)
    assert created.metadata == {"after_run": 1, "reason": "the disk is mended", "by": "ana"}
    assert stage.audit() == []


def test_a_retry_of_one_task_takes_what_waits_for_it_along() -> None:
    stage = failed(flow(task("a"), task("b", "a"), task("c", "b"), task("x"), task("z", "c")), at="z")
    stage.started.clear()
    again(stage, again="b")
    assert stage.bodies() == ["b", "c", "z"]
    assert stage.audit() == []


def test_a_completed_job_runs_again_only_from_a_task_that_is_named() -> None:
    stage = KernelHarness()
    stage.submit(CHAIN)
    refusal = again(stage)
    assert isinstance(refusal, InvalidTransitionError)
    assert str(refusal).startswith("job: 'retry' is not possible in state 'completed'")
    again(stage, again="c")
    assert stage.bodies() == ["a", "b", "c", "c"]
    assert stage.audit() == []


def test_clean_up_runs_again_with_what_it_cleans_up_after() -> None:
    stage = failed(flow(task("a"), task("b", "a"), Task("tidy", run="m:f", after=["b"])))
    assert stage.states()["tidy"] == "completed"
    stage.started.clear()
    again(stage)
    assert stage.bodies() == ["b", "tidy"]
    assert stage.audit() == []


def test_skip_lets_the_next_run_do_without_a_task() -> None:
    stage = failed()
    stage.started.clear()
    again(stage, skip="b", reason="done by hand")
    assert stage.bodies() == ["c"]
    second = of_run(stage, 2)["b"]
    assert (second.state, second.standing, second.reason) == ("skipped", "good", "done by hand")
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_what_an_operator_skipped_stays_skipped_and_what_a_condition_skipped_is_asked_again() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a.condition": lambda call, entity: {"value": False}, "b": fails("no"), "d": fails("no")}
    stage.submit(flow(Task("a", run="m:f", condition=Condition(run="m:f")), task("b"), task("d")))
    again(stage, skip="b")
    assert stage.state() == "failed"
    stage.started.clear()
    stage.scripts.clear()
    again(stage)
    assert sorted(stage.bodies()) == ["a", "d"]
    assert of_run(stage, 3)["b"].state == "skipped"
    assert stage.audit() == []


@pytest.mark.parametrize(("checkpoint", "runs"), [(None, ["b", "c"]), (True, ["b", "c"]), (False, ["a", "b", "c"])])
def test_of_a_cancelled_run_that_is_kept_whose_checkpoint_is_on(checkpoint: bool | None, runs: list[str]) -> None:
    stage = KernelHarness()
    stage.scripts["b"] = hangs
    job = stage.submit(flow(task("a", checkpoint=checkpoint), task("b", "a"), task("c", "b")))
    stage.cancel(job)
    stage.scripts.clear()
    stage.started.clear()
    again(stage)
    assert stage.bodies() == runs
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_run_with_everything_carried_over_is_only_validated() -> None:
    stage = failed(flow(task("a"), task("b")))
    again(stage, skip="b")
    assert stage.path("job@2") == ["planned", "ready", "validating", "completed"]
    assert stage.audit() == []


def test_two_at_once_are_one() -> None:
    stage = failed()
    stage.scripts["b"] = hangs
    again(stage)
    assert isinstance(again(stage), InvalidTransitionError)
    assert job_record(stage).run == 2


def test_one_that_was_asked_for_before_another_run_began_and_ended_is_refused() -> None:
    stage = failed()
    record = job_record(stage)
    again(stage)
    assert stage.state() == "completed"
    message = NextRun(record, CHAIN, stage.kept.specs[record.stream], None, (), Reply(None))
    stage.send(message)  # its content was loaded while the job had failed
    refusal = stage.answers[-1][1]
    assert isinstance(refusal, InvalidTransitionError)
    assert "run again meanwhile, as run 2" in str(refusal)
    again(stage, again="c")
    assert job_record(stage).run == 3
    assert stage.audit() == []


def nowhere(_: Task) -> str:
    return "none"


def test_a_run_whose_function_is_gone_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = failed()
    monkeypatch.setattr(stage, "engine_of", nowhere)
    again(stage)
    assert job_record(stage).error == "the function of task 'b' cannot be found: m:f"
    assert stage.path("job")[-2:] == ["submitted", "failed"]
    monkeypatch.undo()
    again(stage)
    assert stage.state() == "completed"
    assert stage.audit() == []


# -- in the present run ------------------------------------------------------------------------------------------------


def test_a_pending_task_is_skipped_at_once_and_counts_as_good() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(CHAIN)
    assert stage.command(stage.actor("b"), SkipTask("done by hand", "ana")) is None
    assert stage.states() == {"a": "running", "b": "skipped", "c": "completed"}
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_running_task_is_not_skipped() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(CHAIN)
    assert isinstance(stage.command(stage.actor("a"), SkipTask()), InvalidTransitionError)
    assert stage.states()["a"] == "running"


def test_the_condition_of_a_task_that_is_skipped_is_asked_no_more() -> None:
    stage = KernelHarness()
    stage.scripts["a.condition"] = hangs
    stage.submit(flow(Task("a", run="m:f", condition=Condition(run="m:f"))))
    assert stage.command(stage.actor("a"), SkipTask()) is None
    assert stage.state() == "completed"
    assert not stage.running
    assert stage.audit() == []


def test_a_parked_task_is_retried_by_a_word() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", on_loss="park")))
    stage = stage.after_crash()
    assert (stage.states()["a"], stage.task("a").parked) == ("circuit_open", "lost")
    assert stage.command(stage.actor("a"), ResetTask("looked", "ana")) is None
    assert stage.states()["a"] == "running"
    assert isinstance(stage.command(stage.actor("a"), ResetTask("again")), InvalidTransitionError)
    assert stage.audit() == []


# -- by itself ---------------------------------------------------------------------------------------------------------

AGAIN = msgspec.structs.replace(CHAIN, retry=Retry(max_attempts=3, base_delay=10, jitter=0))


def failing() -> tuple[KernelHarness, JobActor]:
    stage = KernelHarness()
    stage.scripts["b"] = fails("no")
    return stage, stage.submit(AGAIN)


def test_a_failed_workstream_is_run_again_by_itself_after_a_backoff() -> None:
    stage, job = failing()
    assert (stage.state(), job.record.retry_at) == ("running", stage.time + 10)
    stage.advance(9.9)
    assert stage.bodies() == ["a", "b"]
    stage.advance(0.1)
    assert stage.bodies() == ["a", "b", "b"]
    stage.advance(19.9)
    del stage.scripts["b"]
    stage.advance(0.1)
    assert stage.state() == "completed"
    assert stage.bodies() == ["a", "b", "b", "b", "c"]
    assert stage.path("job") == ["submitted", "pending", "running", "completed"]
    assert not stage.kernel.entities.keys() - {worker.record.key for worker in stage.kernel.workers.values()}
    assert stage.audit() == []


def test_it_gives_up_after_so_many_runs() -> None:
    stage, _ = failing()
    stage.advance(100)
    assert stage.bodies() == ["a", "b", "b", "b"]
    assert job_record(stage).error == "task 'b' failed: no"
    assert stage.audit() == []
    again(stage)  # and begins to count anew
    assert (job_record(stage).run, job_record(stage).runs, stage.state()) == (4, 4, "running")
    stage.advance(100)
    assert stage.bodies() == ["a", *["b"] * 6]
    assert stage.audit() == []


def test_a_cancel_and_a_deadline_end_the_backoff() -> None:
    stage, job = failing()
    assert stage.cancel(job) is None
    assert stage.path("job")[-2:] == ["cancelling", "cancelled"]
    assert not [timer for _, _, timer, _ in stage.timers if timer.armed]
    assert stage.audit() == []
    stage = KernelHarness()
    stage.scripts["b"] = fails("no")
    stage.submit(msgspec.structs.replace(AGAIN, deadline=15))
    stage.advance(14)  # the second run has failed, the third is due at 30
    assert stage.state() == "running"
    stage.advance(1)
    assert (stage.state(), job_record(stage).reason) == ("cancelled", "the deadline is over")
    assert stage.audit() == []


@pytest.mark.parametrize("turns", range(1, 24))
def test_a_crash_anywhere_in_two_runs_leads_to_the_same_end(turns: int) -> None:
    stage, _ = failing()
    stage.scripts["b"] = lambda call, entity: {} if entity.record.run > 1 else fails("no")(call, entity)
    stage.advance(10)
    assert stage.state() == "completed"
    if turns > len(stage.kept.turns):
        return
    after = stage.after_crash(turns)
    if any(True for _ in after.kept.of(WorkstreamRecord)):
        after.advance(10)
        assert after.state() == "completed"
    assert after.audit() == []


@pytest.mark.parametrize("turns", range(12))
def test_a_crash_anywhere_in_a_run_that_was_asked_for_leads_to_the_same_end(turns: int) -> None:
    stage = failed()
    had = len(stage.kept.turns)
    again(stage, again="a", reason="from the start")
    if had + turns > len(stage.kept.turns):
        return
    after = stage.after_crash(had + turns)
    if job_record(after).run == 1:
        again(after, again="a")
    after.advance(1)
    assert after.state() == "completed"
    assert after.audit() == []


SAVED_ON = [
    (None, True, True),
    (["failed"], True, True),
    (["retrying"], True, False),
    (["circuit_open"], False, False),
    (["completed", "failed"], True, True),
]


@pytest.mark.parametrize(("states", "next_attempt", "next_run"), SAVED_ON)
def test_what_a_task_saved_is_kept_after_the_ends_that_are_named(
    states: list[str] | None, next_attempt: bool, next_run: bool
) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    defaults = Defaults(checkpoint_on=states)
    stage.submit(flow(task("a", retry=Retry(max_attempts=2, base_delay=1, jitter=0)), defaults=defaults))
    stage.send(Beat(stage.token("a"), None, msgspec.Raw(b"7")))
    stage.end(stage.token("a"), "failed", error="no", error_type="E")
    stage.settle()
    assert (stage.task("a").checkpoint is not None) is next_attempt
    stage.advance(1)
    stage.send(Beat(stage.token("a"), None, msgspec.Raw(b"8")))
    stage.end(stage.token("a"), "failed", error="no", error_type="E")
    stage.settle()
    again(stage)
    assert (of_run(stage, 2)["a"].checkpoint is not None) is next_run
    assert stage.audit() == []


def test_a_completed_task_of_a_cancelled_run_is_done_again_where_that_is_not_kept() -> None:
    for states, runs in ((["cancelled"], ["a", "b"]), (["completed"], ["b"])):
        stage = KernelHarness()
        stage.scripts["b"] = hangs
        job = stage.submit(flow(task("a"), task("b", "a"), defaults=Defaults(checkpoint_on=states)))
        stage.cancel(job)
        stage.scripts.clear()
        stage.started.clear()
        again(stage)
        assert stage.bodies() == runs


@pytest.mark.parametrize("keep", [{"hold": Approval()}, {"wait": 60}])
def test_a_further_run_that_is_held_or_waits_starts_nothing_after_a_restart_either(keep: dict[str, Any]) -> None:
    stage = KernelHarness()
    stage.scripts["b"] = fails()
    job = stage.submit(flow(task("a"), task("b", "a"), **keep))
    go_on(stage, job)
    assert stage.state() == "failed"
    again(stage)
    stage = stage.after_crash()
    stage.scripts.clear()
    stage.advance(0)
    assert stage.bodies() == []
    go_on(stage, living(stage, "job"))
    assert stage.state() == "completed"
    assert stage.audit() == []


def go_on(stage: KernelHarness, job: JobActor) -> None:
    """Let a workstream begin that is held, or waits."""
    if job.spec.hold is not None:
        assert stage.command(job, Approve("ana")) is None
    else:
        stage.advance(60)


# -- by itself only where another try can help -------------------------------------------------------------------------


def of_two(**more: Any) -> Workstream:
    """`b` runs beside `a`; a failed task is tried again by the next run."""
    return flow(task("a", **more), task("b"), retry=Retry(max_attempts=3, base_delay=10, jitter=0))


def runs_of(stage: KernelHarness) -> int:
    stage.advance(200)
    assert stage.audit() == []
    return job_record(stage).runs


def cancelled_by_a_person(stage: KernelHarness) -> None:
    stage.scripts["a"] = hangs
    stage.submit(of_two())
    stage.cancel(stage.actor("a"))


def cancelled_and_its_hook_failed(stage: KernelHarness) -> None:
    stage.scripts["a"] = hangs
    stage.scripts["a.cancel_hook"] = fails("the hook broke")
    stage.submit(of_two(cancel_hooks=[Hook(run="m:undo")]))
    stage.cancel(stage.actor("a"))


def rejected(stage: KernelHarness) -> None:
    stage.submit(of_two(hold=Approval(people=1)))
    stage.command(stage.actor("a"), Reject("ana", "no"))


def expired(stage: KernelHarness) -> None:
    stage.submit(of_two(hold=Approval(people=1, expires=60)))
    stage.advance(60)


def permanent(stage: KernelHarness) -> None:
    stage.scripts["a"] = lambda *_: {"status": "failed", "error": "never", "error_type": "P", "permanent": True}
    stage.submit(of_two())


def permanent_while_it_stops(stage: KernelHarness) -> None:
    """Another task has failed first, with a transient error; this task ends while the run is being stopped."""
    stage.scripts |= {"b": hangs, "a": hangs}
    stage.submit(flow(task("a", cancel_hooks=[]), task("b"), retry=Retry(max_attempts=3, base_delay=10)))
    stage.end(stage.token("a"), "failed", error="never", error_type="P", permanent=True)
    stage.end(stage.token("b"), "failed", error="passes", error_type="E")
    stage.settle()


def the_same_too_often(stage: KernelHarness) -> None:
    stage.scripts["a"] = fails("no")
    stage.submit(of_two(retry=Retry(max_attempts=9, base_delay=1), max_error_repeats=2))


def lost_and_must_not_run_twice(stage: KernelHarness) -> None:
    stage.scripts["a"] = lambda *_: {"status": "lost", "error": "it died", "error_type": "worker_lost"}
    stage.submit(of_two(on_loss="fail"))


@pytest.mark.parametrize(
    "ends",
    [
        cancelled_by_a_person, cancelled_and_its_hook_failed, rejected, expired, permanent, permanent_while_it_stops,
        the_same_too_often, lost_and_must_not_run_twice,
    ],
)  # fmt: skip
def test_what_a_person_stopped_and_what_no_other_try_can_help_is_not_begun_again(
    ends: Callable[[KernelHarness], None],
) -> None:
    stage = KernelHarness()
    ends(stage)
    assert runs_of(stage) == 1
    assert (job_record(stage).state, job_record(stage).final) == ("failed", True)
    last = next(t for t in stage.kept.transitions if t.entity_id == "job" and t.to_state == "failed")
    assert "task 'a'" in (last.metadata or {})["no_other_try"]
    again(stage)  # a person's command runs it again
    assert job_record(stage).runs == 2


def by_a_failure(stage: KernelHarness) -> None:
    stage.scripts["a"] = fails("passes")
    stage.submit(of_two())


def by_its_own_limit(stage: KernelHarness) -> None:
    stage.scripts["a"] = hangs
    stage.submit(of_two(total_timeout=5))


def by_a_loss(stage: KernelHarness) -> None:
    stage.scripts["a"] = lambda *_: {"status": "lost", "error": "it died", "error_type": "worker_lost"}
    stage.submit(of_two())


def by_a_test(stage: KernelHarness) -> None:
    stage.scripts["a.check"] = lambda *_: {"value": False}
    stage.submit(of_two(checks=[Check(run="m:good")]))


@pytest.mark.parametrize("ends", [by_a_failure, by_its_own_limit, by_a_loss, by_a_test])
def test_what_another_try_can_help_is_begun_again(ends: Callable[[KernelHarness], None]) -> None:
    stage = KernelHarness()
    ends(stage)
    assert runs_of(stage) == 3
    assert (job_record(stage).state, job_record(stage).final) == ("failed", False)


def test_an_operators_reset_lets_a_permanent_failure_count_anew() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda *_: {"status": "failed", "error": "never", "error_type": "P", "permanent": True}
    stage.submit(of_two(on_exhausted="park"))
    assert stage.task("a").final
    stage.scripts["a"] = hangs
    stage.command(stage.actor("a"), ResetTask("mended"))
    assert not stage.task("a").final


def test_an_optional_task_that_a_person_cancelled_stays_cancelled_in_runs_that_begin_by_themselves() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "c": hangs}
    stage.submit(
        flow(
            task("a", optional=True), task("b", "a", optional=True), Task("late", run="m:f", after=["a"]),
            task("c"), retry=Retry(max_attempts=3, base_delay=10, jitter=0),
        )
    )  # fmt: skip
    stage.cancel(stage.actor("a"))
    stage.scripts["c"] = fails("passes")
    stage.end(stage.token("c"), "failed", error="passes", error_type="E")
    stage.settle()
    stage.advance(100)
    assert job_record(stage).runs == 3
    assert stage.bodies().count("a") == 1
    for run in (2, 3):
        its = of_run(stage, run)
        assert {name: str(its[name].state) for name in ("a", "b")} == {"a": "skipped", "b": "skipped"}
        assert its["a"].reason == "asked to"
    assert stage.audit() == []
    stage.scripts.clear()
    again(stage)  # a person's command runs all of it again
    assert {str(record.state) for record in of_run(stage, 4).values()} == {"completed"}
    assert stage.audit() == []
