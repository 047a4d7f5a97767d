"""The task: attempts, retries, limits, conditions, checks, cancelling, parking."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.stage import KernelHarness, Script, fails, fails_until, flow, hangs, task

from callboard.actors.messages.commands import Lend, Regain, Reply, ResetTask
from callboard.actors.messages.inputs import Beat, CallEnded, Drain, ProcessStarted
from callboard.actors.records.base import CheckResult
from callboard.actors.records.task import DurableWait
from callboard.actors.spec.backoff import delay
from callboard.actors.spec.model import Breaker, Check, Condition, Defaults, Hook, Retry, Task, Tool, Worker
from callboard.machines import InvalidTransitionError

EXACT = Retry(max_attempts=4, base_delay=2, max_delay=5, jitter=0)


def run(stage: KernelHarness, *tasks: Task, **more: Any) -> None:
    stage.submit(flow(*tasks, **more))


# -- attempts and retries ----------------------------------------------------------------------------------------------


def test_the_plain_way() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: {"value": msgspec.Raw(b"42"), "duration": 1.25}
    run(stage, task("a"))
    assert stage.steps("a") == ["pending", "queued", "running", "validating", "completed"]
    record = stage.task("a")
    assert (record.attempt, record.raw_result, record.standing, record.execution_ms) == (
        1,
        msgspec.Raw(b"42"),
        "good",
        1250,
    )
    (attempt,) = stage.attempts("a")
    assert (attempt.end, attempt.attempt, attempt.duration_ms) == ("succeeded", 1, 1250)
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_failure_is_final_unless_somebody_said_retry() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails("disk on fire")
    run(stage, task("a"))
    record = stage.task("a")
    assert (record.state, record.failed_attempts, record.last_error) == ("failed", 1, "disk on fire")
    assert stage.state() == "failed"
    assert stage.stream.error == "task 'a' failed: disk on fire"


def test_backoff_doubles_up_to_its_limit_and_the_due_times_are_journaled() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    began = stage.time
    run(stage, task("a", retry=EXACT))
    assert stage.task("a").due_at == began + 2
    stage.advance(1.999)
    assert stage.task("a").state == "retrying"
    stage.advance(0.001)
    assert stage.task("a").due_at == began + 2 + 4
    stage.advance(4)
    assert stage.task("a").due_at == began + 6 + 5
    stage.advance(5)
    assert stage.task("a").state == "failed"
    assert stage.task("a").failed_attempts == 4
    rows = [t.metadata["retry_at"] for t in stage.kept.transitions if t.to_state == "retrying" and t.metadata]
    assert rows == ["1970-01-12T13:46:42.000Z", "1970-01-12T13:46:46.000Z", "1970-01-12T13:46:51.000Z"]
    assert [a.end for a in stage.attempts("a")] == ["failed"] * 4


def test_jitter_is_drawn_once_from_the_injected_randomness() -> None:
    retry = Retry(max_attempts=3)
    stage, twin = KernelHarness(), KernelHarness()
    stage.scripts["a"] = fails()
    began = stage.time
    run(stage, task("a", retry=retry))
    assert stage.task("a").due_at == began + delay(retry, 1, twin.random)


def test_success_after_failures() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails_until(3)
    run(stage, task("a", retry=EXACT))
    stage.advance(100)
    assert stage.state() == "completed"
    assert stage.task("a").failed_attempts == 2
    assert [a.end for a in stage.attempts("a")] == ["failed", "failed", "succeeded"]


def later(after: float = 77.0) -> Script:
    return fails("come back later", retry_after=after, category="transient")


def in_turn(*scripts: Script) -> Script:
    """One script for each attempt; the attempts after these succeed."""
    left = iter(scripts)
    return lambda call, entity: script(call, entity) if (script := next(left, None)) is not None else {}


def test_a_body_that_asks_to_be_run_later_has_neither_failed_nor_used_up_a_try() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = in_turn(later(), later(), later())
    began = stage.time
    run(stage, task("a"))  # a task without a retry policy
    record = stage.task("a")
    assert (record.state, record.due_at, record.reason) == ("retrying", began + 77, "deferred: come back later")
    stage.advance(76)
    assert stage.task("a").attempt == 1
    stage.advance(1 + 2 * 77)
    record = stage.task("a")
    assert (stage.state(), record.attempt) == ("completed", 4)
    assert (record.failed_attempts, record.lost_attempts, record.deferrals, record.error_count) == (0, 0, 3, 0)
    assert [a.end for a in stage.attempts("a")] == ["deferred"] * 3 + ["succeeded"]
    assert stage.audit() == []


def test_deferrals_have_a_count_of_their_own_after_which_they_are_failures_as_others() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = later()
    began = stage.time
    run(stage, task("a", retry=Retry(max_attempts=2, max_deferrals=3)))
    stage.advance(10 * 77)
    record = stage.task("a")
    assert (record.state, record.deferrals, record.failed_attempts) == ("failed", 3, 2)
    assert [a.end for a in stage.attempts("a")] == ["deferred"] * 3 + ["failed"] * 2
    assert record.finished_at == began + 4 * 77  # the requested delay applies to these, too


def test_where_nothing_may_be_deferred_it_is_a_failure_that_names_its_delay() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = later()
    began = stage.time
    run(stage, task("a", retry=Retry(max_attempts=3, base_delay=1, jitter=0, max_deferrals=0)))
    assert (stage.task("a").due_at, stage.task("a").failed_attempts) == (began + 77, 1)


def test_a_deferral_among_other_errors_is_a_failure() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails(retry_after=7.0, category="unknown")  # as a group of a RetryAfter and a ValueError
    run(stage, task("a"))
    assert (stage.state(), stage.task("a").failed_attempts) == ("failed", 1)


@pytest.mark.parametrize("lifecycle", ["pipeline", "orchestration", "guarded", "execution"])
def test_a_deferral_under_a_published_lifecycle_uses_up_nothing(lifecycle: str) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = in_turn(later(5), later(5), later(5))
    run(stage, task("a", lifecycle=lifecycle))
    stage.advance(4)
    assert stage.task("a").state == "retrying"
    stage.advance(20)
    record = stage.task("a")
    assert (record.state, record.deferrals, record.failed_attempts) == ("completed", 3, 0)
    assert stage.audit() == []


def test_a_permanent_error_is_not_tried_again() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails(permanent=True, category="permanent")
    run(stage, task("a", retry=EXACT))
    record = stage.task("a")
    assert (record.state, record.failed_attempts, record.error_category) == ("failed", 1, "permanent")


def test_the_same_error_too_often_in_a_row_is_the_end() -> None:
    stage = KernelHarness()
    numbers = iter(range(100, 200))

    def shut(call: Any, entity: Any) -> dict[str, Any]:
        return {"status": "failed", "error": f"port {next(numbers)} of /tmp/x{next(numbers)} is shut"}

    stage.scripts["a"] = shut
    run(stage, task("a", retry=Retry(max_attempts=10, jitter=0), max_error_repeats=2))
    stage.advance(1000)
    assert (stage.task("a").state, stage.task("a").failed_attempts) == ("failed", 3)


def test_an_error_that_was_renamed_meanwhile_is_the_same_error() -> None:
    """An older version recorded the attempt before with the old name of the error; now the error has a new one."""
    stage = KernelHarness()
    kinds = iter(["AskCycleError", "AskCycle"])
    stage.scripts["a"] = lambda call, entity: {"status": "failed", "error": "b -> b", "error_type": next(kinds)}
    run(stage, task("a", retry=EXACT, max_error_repeats=1))
    stage.advance(1000)
    assert (stage.task("a").state, stage.task("a").failed_attempts) == ("failed", 2)


def test_different_errors_do_not_count_as_the_same() -> None:
    stage = KernelHarness()
    words = iter(["one", "two", "three", "four"])
    stage.scripts["a"] = lambda call, entity: {"status": "failed", "error": next(words)}
    run(stage, task("a", retry=EXACT, max_error_repeats=1))
    stage.advance(1000)
    assert stage.task("a").failed_attempts == 4


def test_a_result_under_an_old_token_is_refused() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    run(stage, task("a"))
    old = stage.token("a")
    stage.end(old)
    stage.settle()
    before = stage.kernel.stale
    stage.send(CallEnded(old, "failed", error="late"))
    assert stage.kernel.stale == before + 1
    assert stage.state() == "completed"
    assert any(f"token {old} is stale" in text for text in stage.reports)


# -- the four limits, told apart ---------------------------------------------------------------------------------------


def test_the_attempt_limit() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    run(stage, task("a", timeout=10))
    stage.advance(10)
    record = stage.task("a")
    assert stage.steps("a")[-2:] == ["timed_out", "failed"]
    assert (record.limit, record.error_type) == ("attempt", "timed_out")
    assert record.last_error == "the attempt limit was reached: it was stopped"
    assert stage.attempts("a")[0].end == "timed_out"


def test_an_attempt_that_timed_out_is_tried_again() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: {} if entity.record.attempt == 2 else None
    run(stage, task("a", timeout=10, retry=EXACT))
    stage.advance(12)
    assert stage.state() == "completed"
    assert (stage.task("a").failed_attempts, stage.task("a").attempt) == (1, 2)


def test_the_heartbeat_limit() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    run(stage, task("a", timeout=100, heartbeat_timeout=5))
    for _ in range(4):
        stage.advance(4)
        stage.send(Beat(stage.token("a"), msgspec.Raw(b'"here"')))
    assert stage.task("a").state == "running"
    assert stage.task("a").details == "here"
    stage.advance(5)
    assert stage.task("a").limit == "heartbeat"
    assert stage.task("a").state == "failed"


def test_heartbeats_do_not_stretch_the_attempt() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    run(stage, task("a", timeout=10, heartbeat_timeout=4))
    for _ in range(3):
        stage.advance(3)
        stage.send(Beat(stage.token("a"), None))
    stage.advance(1)
    assert (stage.task("a").state, stage.task("a").limit) == ("failed", "attempt")


def test_a_heartbeat_under_an_old_token_is_refused() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    run(stage, task("a", timeout=10))
    token = stage.token("a")
    stage.advance(10)
    assert stage.task("a").state == "timed_out"
    before = stage.kernel.stale
    stage.send(Beat(token, None))
    assert stage.kernel.stale == before + 1


def test_the_total_limit_over_all_attempts_ends_a_run() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    run(stage, task("a", timeout=10, total_timeout=30, retry=EXACT))
    stage.advance(30)
    record = stage.task("a")
    assert (record.state, record.limit, record.attempt) == ("failed", "total", 3)
    assert record.finished_at == 1_000_030


def test_the_total_limit_ends_a_backoff_however_long_the_error_asked_to_wait() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails(retry_after=500.0)
    run(stage, task("a", total_timeout=30, retry=EXACT))
    assert stage.task("a").state == "retrying"
    stage.advance(29)
    assert stage.task("a").state == "retrying"
    stage.advance(1)
    assert (stage.task("a").state, stage.task("a").limit) == ("failed", "total")
    assert stage.task("a").error_type == "total_timeout"


def test_the_queue_limit() -> None:
    stage = KernelHarness()
    stage.scripts["first"] = hangs
    run(stage, task("first"), task("a", queue_timeout=7, optional=True), max_parallel=1)
    stage.advance(6.9)
    assert stage.task("a").state == "queued"
    stage.advance(0.1)
    record = stage.task("a")
    assert (record.state, record.limit, record.error_type, record.attempt) == ("failed", "queue", "queue_timeout", 0)
    assert stage.task("first").state == "running"


@pytest.mark.parametrize("limit", ["queue", "total"])
def test_a_limit_in_the_queue_says_as_well_why_no_worker_could_run_it(limit: str) -> None:
    stage = KernelHarness()
    run(stage, task("a", capabilities=["gpu"], **{f"{limit}_timeout": 7}))
    stage.advance(7)
    record = stage.task("a")
    assert (record.limit, record.error_type) == (limit, f"{limit}_timeout")
    assert str(record.last_error).startswith(f"the {limit} limit was reached (unroutable: ")
    assert "gpu" in str(record.last_error)


def test_the_total_limit_runs_in_the_queue_as_well() -> None:
    stage = KernelHarness()
    stage.scripts["first"] = hangs
    run(stage, task("first"), task("a", queue_timeout=70, total_timeout=9, optional=True), max_parallel=1)
    stage.advance(9)
    assert (stage.task("a").state, stage.task("a").limit) == ("failed", "total")


def test_limits_come_from_the_task_then_its_tool_then_the_workstream_then_the_runtime() -> None:
    stage = KernelHarness(defaults=Defaults(timeout=40))
    for name in "abcd":
        stage.scripts[name] = hangs
    run(stage, task("d", optional=True))
    stage.submit(
        flow(
            task("a", timeout=10, tool="t", optional=True), task("b", tool="t", optional=True),
            task("c", optional=True),
            defaults=Defaults(timeout=30), tools={"t": Tool(timeout=20)},
        ),
        "other",
    )  # fmt: skip
    ends = {}
    for _ in range(8):
        stage.advance(5)
        for name in "abcd":
            found = stage.task(name, "job" if name == "d" else "other")
            if found.state == "failed":
                ends.setdefault(name, stage.time - 1_000_000)
    assert ends == {"a": 10, "b": 20, "c": 30, "d": 40}


def test_the_usual_limit_of_an_attempt_is_five_minutes() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    run(stage, task("a"))
    stage.advance(299.9)
    assert stage.task("a").state == "running"
    stage.advance(0.1)
    assert stage.task("a").state == "failed"


# -- a body that does not end
# -------------------------------------------------------------------------------------------


def test_a_body_that_does_not_stop_is_abandoned_after_the_grace() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    run(stage, task("a", timeout=10, kill_grace=3))
    token = stage.token("a")
    stage.advance(10)
    assert stage.stops == [(token, False)]
    assert stage.task("a").state == "timed_out"
    stage.advance(4)
    assert stage.stops == [(token, False), (token, True)]
    assert stage.task("a").state == "failed"
    assert stage.task("a").last_error == "the attempt limit was reached: the body did not stop and was abandoned"
    assert stage.attempts("a")[0].end == "timed_out"  # also after the engine has said that it was abandoned


def test_the_slot_of_an_abandoned_body_is_free_when_the_engine_says_it_is_gone_and_not_before() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": lambda call, entity: None if entity.record.attempt == 1 else {}, "b": fails_until(1)}
    stage.deaf.add("a")
    run(stage, task("a", timeout=10, kill_grace=3, retry=EXACT), task("b"), max_parallel=1)
    old = stage.token("a")
    stage.advance(10 + 4 + 2)
    assert stage.task("a").state == "queued"  # for its second attempt; its first body still has the slot
    assert stage.task("b").state == "queued"
    stage.end(old, "abandoned")
    stage.settle()
    assert stage.state() == "completed"
    assert [a.end for a in stage.attempts("a")] == ["timed_out", "succeeded"]


def test_what_ends_after_its_job_was_over_is_still_accounted_for() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.deaf.add("a")
    run(stage, task("a"))
    token = stage.token("a")
    assert stage.cancel(stage.actor("a"), force=True) is None
    assert stage.state() == "failed"
    assert stage.over == ["job"]
    worker = next(w for w in stage.kernel.workers.values() if w.record.engine == "loop")
    assert worker.record.assigned == 1
    stage.end(token, "abandoned")
    stage.settle()
    assert worker.record.assigned == 0
    assert {entity.record.kind for entity in stage.kernel.entities.values()} == {"worker"}
    assert stage.reports == []
    assert stage.audit() == []


def test_a_success_that_comes_after_the_limit_does_not_count() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    run(stage, task("a", timeout=10))
    stage.advance(10)
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.task("a").state == "failed"


def test_a_call_that_its_engine_stopped_unasked_is_a_loss_and_no_failure() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: None if entity.record.attempt == 1 else {}
    run(stage, task("a"))
    stage.end(stage.token("a"), "cancelled")
    stage.settle()
    stage.advance(0)
    assert stage.state() == "completed"
    assert (stage.task("a").lost_attempts, stage.task("a").failed_attempts) == (1, 0)


# -- unroutable --------------------------------------------------------------------------------------------------------


def test_what_no_worker_could_run_is_known_at_once_and_fails_after_ten_minutes() -> None:
    stage = KernelHarness()
    run(stage, task("a", capabilities=["gpu"]))
    record = stage.task("a")
    assert (record.state, record.routable) == ("queued", False)
    assert record.reason == "unroutable: no worker has the engine 'loop' and the capabilities ['gpu']"
    stage.advance(599)
    assert stage.task("a").state == "queued"
    stage.advance(1)
    assert (stage.task("a").state, stage.task("a").limit) == ("failed", "unroutable")


def test_an_unroutable_task_runs_as_soon_as_a_worker_comes() -> None:
    from callboard.actors.messages.commands import StartWorkers

    stage = KernelHarness()
    run(stage, task("a", capabilities=["gpu"], unroutable_timeout=20), task("b", capabilities=["gpu"]), max_parallel=1)
    stage.advance(15)
    stage.scripts["a"] = hangs
    stage.send(StartWorkers((Worker("big", engine="loop", capacity=1, capabilities=["gpu", "disk"]),)))
    assert stage.states() == {"a": "running", "b": "queued"}
    assert (stage.task("b").routable, stage.task("b").reason) == (True, None)
    stage.advance(200)
    assert stage.task("b").state == "queued"  # its own ten minutes no longer run
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.state() == "completed"


# -- conditions and checks ---------------------------------------------------------------------------------------------


ASKED = Condition(run="m:if", timeout=5)


@pytest.mark.parametrize(
    ("said", "state", "after"),
    [({"value": True}, "completed", "completed"), ({"value": False}, "skipped", "skipped")],
)
def test_a_condition_decides_whether_it_runs(said: dict[str, Any], state: str, after: str) -> None:
    stage = KernelHarness()
    stage.scripts["a.condition"] = lambda call, entity: said
    run(stage, task("a", condition=ASKED), task("b", "a"))
    assert stage.states() == {"a": state, "b": after}
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_condition_that_breaks_is_a_failure() -> None:
    stage = KernelHarness()
    stage.scripts["a.condition"] = fails("no such table")
    run(stage, task("a", condition=ASKED))
    record = stage.task("a")
    assert (record.state, record.last_error) == ("failed", "its condition broke: no such table")
    assert stage.path("job@1") == ["planned", "ready", "failed"]
    assert stage.audit() == []


def test_a_condition_that_takes_too_long_is_a_failure_and_is_stopped() -> None:
    stage = KernelHarness()
    stage.scripts["a.condition"] = hangs
    run(stage, task("a", condition=ASKED))
    stage.advance(4.9)
    assert stage.task("a").state == "pending"
    stage.advance(0.1)
    assert (stage.task("a").state, stage.task("a").last_error) == ("failed", "its condition took too long")
    assert stage.running == {}
    assert stage.kernel.entities.keys() == stage.kernel.workers.keys()


def test_a_condition_is_not_asked_before_the_dependencies_are_satisfied_nor_twice() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": fails_until(2)}
    run(stage, task("a"), task("b", "a", condition=ASKED, retry=EXACT))
    assert [kind for kind, _, _ in stage.started] == ["body"]
    stage.end(stage.token("a"))
    stage.settle()
    stage.advance(10)
    assert [kind for kind, _, _ in stage.started] == ["body", "condition", "body", "body"]


CHECKS = [Check(run="m:c1"), Check(run="m:c2", timeout=3)]


def test_every_check_is_asked_in_order_and_the_slot_is_held_meanwhile() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a.check": hangs}
    run(stage, task("a", checks=CHECKS), task("b"), max_parallel=1)
    assert stage.states() == {"a": "validating", "b": "queued"}
    for number in (0, 1):
        (call,) = stage.running.values()
        assert call.index == number
        stage.end(call.token, value=True)
        stage.settle()
    assert stage.state() == "completed"
    assert stage.task("a").checked == 2


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"value": False}, "check 1 was not met"),
        ({"status": "failed", "error": "exit code 3"}, "exit code 3"),
        ({"status": "abandoned"}, "check 1 was not met"),
    ],
)
def test_a_check_that_is_not_met_fails_the_task_without_a_retry(said: dict[str, Any], error: str) -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = lambda call, entity: said
    run(stage, task("a", checks=CHECKS, retry=EXACT))
    record = stage.task("a")
    assert (record.state, record.last_error, record.error_type) == ("failed", error, "validation_failed")
    assert record.failed_attempts == 0
    assert stage.kernel.slots == {}


def test_a_check_that_is_not_met_parks_a_task_that_parks_and_one_more_attempt_may_meet_it() -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = lambda call, entity: {"value": entity.record.attempt > 2}
    run(stage, task("a", checks=CHECKS, on_exhausted="park"))
    record = stage.task("a")
    assert (record.state, record.parked, record.attempt) == ("circuit_open", "exhausted", 1)
    assert (record.last_error, record.error_type) == ("check 1 was not met", "validation_failed")
    assert stage.kernel.slots == {}
    stage.advance(10_000)  # its cooldown gives it one more attempt; then a person decides
    assert (stage.task("a").state, stage.task("a").attempt) == ("circuit_open", 2)
    stage.command(stage.actor("a"), ResetTask("the tests were wrong"))
    assert (stage.task("a").state, stage.state()) == ("completed", "completed")
    assert stage.audit() == []


def test_a_check_that_takes_too_long_fails_the_task() -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = lambda call, entity: {"value": True} if call.index == 0 else None
    run(stage, task("a", checks=CHECKS))
    stage.advance(3)
    assert (stage.task("a").state, stage.task("a").last_error) == ("failed", "check 2 took too long")
    assert stage.kernel.slots == {}
    assert stage.kernel.calls == {}


def test_what_came_of_each_check_is_kept_with_its_attempt() -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = lambda call, entity: {"value": True, "duration": 0.5} if call.index == 0 else None
    checks = [Check(run="m:c1"), Check(command=["test", "-s", "a b"], timeout=3)]
    run(stage, task("a", checks=checks))
    assert stage.task("a").test_results == (CheckResult(check="m:c1", passed=True, duration_ms=500),)
    stage.advance(3)
    assert stage.task("a").test_results[1:] == (
        CheckResult(check="test -s 'a b'", passed=False, error="check 2 took too long"),
    )
    said = {"status": "failed", "error": "exit code 3", "exit_code": 3}
    stage.scripts["b.check"] = lambda call, entity: said
    stage.submit(flow(task("b", checks=CHECKS)), "other")
    (result,) = stage.task("b", "other").test_results
    assert (result.passed, result.error, result.exit_code) == (False, "exit code 3", 3)
    assert (stage.kernel.tests[True], stage.kernel.tests[False]) == (1, 2)
    assert stage.audit() == []


def test_checks_that_are_done_again_after_a_crash_have_their_own_results() -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = lambda call, entity: {"value": True} if call.index == 0 else None
    run(stage, task("a", checks=CHECKS))
    assert [result.check for result in stage.task("a").test_results] == ["m:c1"]
    stage.scripts.clear()
    later = stage.after_crash()
    assert later.task("a").state == "completed"
    assert [result.check for result in later.task("a").test_results] == ["m:c1", "m:c2"]
    again = KernelHarness()
    again.scripts["flow.check"] = lambda call, entity: {"value": True} if call.index == 0 else None
    again.submit(flow(task("a"), checks=CHECKS))
    assert len(again.stream.test_results) == 1
    again.scripts.clear()
    later = again.after_crash()
    assert [result.check for result in later.stream.test_results] == ["m:c1", "m:c2"]


def test_attempts_say_with_which_tool_they_began() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails_until(2)
    run(stage, task("a", tool="compiler", retry=EXACT), task("b"))
    stage.advance(10)
    assert [attempt.tool for attempt in stage.attempts("a")] == ["compiler", "compiler"]
    assert [attempt.tool for attempt in stage.attempts("b")] == [None]
    assert stage.kernel.invocations == {"compiler": 2}


def test_of_too_many_tools_the_invocations_of_the_last_are_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.kernel.kernel.KINDS_COUNTED", 2)
    stage = KernelHarness()
    run(stage, *(task(name, tool=f"tool-{name}") for name in "abca"[:3]), task("d", tool="tool-a"))
    assert stage.kernel.invocations == {"tool-a": 2, "tool-b": 1, "(other)": 1}


def test_a_check_has_thirty_seconds_unless_it_says_otherwise() -> None:
    stage = KernelHarness()
    stage.scripts["a.check"] = hangs
    run(stage, task("a", checks=CHECKS))
    stage.advance(29.9)
    assert stage.task("a").state == "validating"
    stage.advance(0.1)
    assert stage.task("a").state == "failed"


# -- cancelling --------------------------------------------------------------------------------------------------------


def put_into(state: str) -> KernelHarness:
    """A stage whose task "a" is in this state."""
    stage = KernelHarness()
    spec = flow(task("a", "gate"), task("gate"))
    match state:
        case "pending":
            stage.scripts["gate"] = hangs
        case "asking":
            spec = flow(task("a", condition=ASKED))
            stage.scripts["a.condition"] = hangs
        case "queued":
            spec = flow(task("gate", optional=True), task("a"), max_parallel=1)
            stage.scripts["gate"] = hangs
        case "running":
            spec = flow(task("a"))
            stage.scripts["a"] = hangs
        case "timed_out" | "cancelling":
            spec = flow(task("a", timeout=10))
            stage.scripts["a"] = hangs
            stage.stubborn.add("a")
        case "validating":
            spec = flow(task("a", checks=CHECKS))
            stage.scripts["a.check"] = hangs
        case "retrying":
            spec = flow(task("a", retry=EXACT))
            stage.scripts["a"] = fails()
        case "circuit_open":
            spec = flow(task("a", on_exhausted="park"))
            stage.scripts["a"] = fails()
        case "half_open":
            spec = flow(task("gate", optional=True), task("a", on_exhausted="park", total_timeout=500))
            stage = KernelHarness(workers=(Worker("loop", engine="loop", capacity=1),))
            stage.scripts |= {"a": fails(), "gate": lambda call, entity: {}}
    stage.submit(spec)
    if state == "timed_out":
        stage.advance(10)
    elif state == "cancelling":
        stage.cancel(stage.actor("a"))
    elif state == "half_open":
        stage.submit(flow(task("hog", timeout=1000)), "hogs")
        stage.scripts["hog"] = hangs
        stage.submit(flow(task("hog", timeout=1000)), "more")
        stage.advance(60)
    assert stage.task("a").state == ("pending" if state == "asking" else state)
    return stage


GRACEFUL = ["running", "validating"]
AT_ONCE = ["pending", "asking", "queued", "timed_out", "retrying", "circuit_open", "half_open"]


@pytest.mark.parametrize("state", AT_ONCE)
@pytest.mark.parametrize("force", [False, True])
def test_cancel_is_at_once_where_nothing_of_it_runs(state: str, force: bool) -> None:
    stage = put_into(state)
    assert stage.cancel(stage.actor("a"), force=force) is None
    assert (stage.task("a").state, stage.task("a").reason) == ("cancelled", "asked to")
    assert stage.task("a").standing == "bad"
    stage.scripts.clear()
    for token in list(stage.running):
        stage.end(token)
    stage.advance(2000)
    assert stage.state() == "failed"
    assert stage.audit() == []
    assert stage.kernel.slots == {}
    assert stage.bodies().count("a") <= 1
    assert [timer for *_, timer, _ in stage.timers if timer.armed] == []


@pytest.mark.parametrize("state", GRACEFUL)
def test_cancel_stops_what_runs_and_waits_for_it_to_be_gone(state: str) -> None:
    stage = put_into(state)
    stage.stubborn.add("a")
    (token,) = stage.running
    assert stage.cancel(stage.actor("a")) is None
    assert stage.task("a").state == "cancelling"
    assert stage.stops == [(token, False)]
    assert len(stage.kernel.slots) == 1
    stage.end(token, "cancelled")
    stage.settle()
    assert stage.task("a").state == "cancelled"
    assert stage.attempts("a")[0].end == ("cancelled" if state == "running" else "succeeded")
    assert stage.kernel.slots == {}
    assert stage.audit() == []


@pytest.mark.parametrize("state", GRACEFUL)
def test_what_does_not_go_is_abandoned_when_the_grace_is_over(state: str) -> None:
    stage = put_into(state)
    stage.stubborn.add("a")
    stage.cancel(stage.actor("a"))
    stage.advance(11)
    record = stage.task("a")
    assert record.state == "cancelled"
    assert record.reason == "asked to; the body did not stop in time and was abandoned"
    assert stage.stops[-1][1] is True
    assert stage.kernel.slots == {}
    assert stage.audit() == []


@pytest.mark.parametrize("state", GRACEFUL)
def test_force_is_the_harder_stop_and_the_slot_is_held_until_the_body_is_gone(state: str) -> None:
    stage = put_into(state)
    stage.deaf.add("a")
    (token,) = stage.running
    assert stage.cancel(stage.actor("a"), force=True) is None
    assert stage.task("a").state == "cancelled"
    assert stage.stops == [(token, True)]
    assert bool(stage.kernel.slots) is (state == "running")
    stage.end(token, "abandoned")
    stage.settle()
    assert stage.kernel.slots == {}
    assert stage.kernel.calls == {}
    assert stage.attempts("a")[0].end == ("cancelled" if state == "running" else "succeeded")


def test_a_second_cancel_is_refused_and_disturbs_nothing() -> None:
    stage = put_into("cancelling")
    due, stops, turns = stage.task("a").due_at, list(stage.stops), len(stage.kept.transitions)
    refusal = stage.cancel(stage.actor("a"))
    assert isinstance(refusal, InvalidTransitionError)
    assert refusal.allowed == {"complete", "cancel_force", "fail"}
    assert refusal.event == "cancel_graceful"
    assert (stage.task("a").due_at, stage.stops, len(stage.kept.transitions)) == (due, stops, turns)
    assert stage.reports == []


def test_force_after_a_graceful_cancel_ends_it_at_once() -> None:
    stage = put_into("cancelling")
    assert stage.cancel(stage.actor("a"), force=True) is None
    assert stage.task("a").state == "cancelled"
    assert stage.state() == "failed"


def test_what_has_ended_cannot_be_cancelled() -> None:
    stage = KernelHarness()
    stage.scripts["b"] = hangs
    run(stage, task("a"), task("b"))
    for force in (False, True):
        refusal = stage.cancel(stage.actor("a"), force=force)
        assert isinstance(refusal, InvalidTransitionError)
        assert refusal.allowed == frozenset()
    assert stage.task("a").state == "completed"


def test_a_result_that_comes_in_while_cancelling_does_not_complete_it() -> None:
    stage = put_into("cancelling")
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.task("a").state == "cancelled"
    assert stage.task("a").result is None


def test_an_error_of_a_body_that_is_being_cancelled_is_kept_and_not_retried() -> None:
    stage = put_into("cancelling")
    stage.end(stage.token("a"), "failed", error="could not clean up")
    stage.settle()
    assert (stage.task("a").state, stage.task("a").last_error) == ("cancelled", "could not clean up")


def test_no_body_starts_once_its_cancel_is_committed() -> None:
    """The start and the cancel are in the same batch: at release the state is looked at again."""
    stage = KernelHarness()
    held: list[Any] = []
    release = stage._release
    stage._release = held.append  # type: ignore[method-assign]
    stage.scripts["a"] = hangs
    stage.submit_silently(flow(task("a")))
    stage.cancel_silently(stage.actor("a"))
    stage._release = release  # type: ignore[method-assign]
    for effect in held:
        stage._release(effect)
    stage.settle()
    assert stage.started == []
    assert stage.task("a").state == "cancelled"
    assert stage.kernel.slots == {}


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_hooks_are_rows_that_commit_with_the_end_and_go_when_they_have_run() -> None:
    stage = KernelHarness()
    stage.hooks_hang = True
    hook = [Hook(run="m:h")]
    stage.scripts |= {"bad": fails(), "gone": hangs}
    run(
        stage, task("good", on_completed=hook), task("bad", on_failed=hook, optional=True),
        task("gone", on_cancelled=hook, optional=True),
    )  # fmt: skip
    stage.cancel(stage.actor("gone"))
    assert [(row.owner, row.event) for row in stage.hooks] == [
        ("job@1/good", "on_completed"), ("job@1/bad", "on_failed"), ("job@1/gone", "on_cancelled"),
    ]  # fmt: skip
    assert msgspec.json.decode(stage.hooks[1].context) == {
        "event": "on_failed", "entity_id": "job@1/bad", "name": "bad", "state": "failed",
        "reason": "boom", "job_id": "job", "workstream_id": "job@1", "attempt": 1,
    }  # fmt: skip
    assert stage.state() == "completed"  # no end waits for a hook
    for row in stage.hooks:
        stage.send(CallEnded(row.key, "failed", error="a hook's failure changes nothing"))
    assert [key for key in stage.kept.records if key[0] == "outbox"] == []
    assert stage.state() == "completed"


# -- parking -----------------------------------------------------------------------------------------------------------


def test_an_exhausted_task_that_asks_for_it_is_parked_and_gets_one_more_attempt() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    run(stage, task("a", on_exhausted="park", retry=Retry(max_attempts=2, base_delay=1, jitter=0)))
    stage.advance(1)
    record = stage.task("a")
    assert (record.state, record.parked, record.due_at) == ("circuit_open", "exhausted", stage.time + 60)
    assert stage.kernel.slots == {}
    stage.advance(60)
    record = stage.task("a")
    assert (record.state, record.granted, record.attempt, record.failed_attempts) == ("circuit_open", 1, 3, 3)
    stage.advance(100_000)
    assert stage.task("a").attempt == 3  # now only a person's command frees it
    assert stage.state() == "running"
    assert stage.audit() == []


def test_a_file_may_say_how_long_an_exhausted_task_is_parked() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    stage.submit(flow(task("a", on_exhausted="park"), defaults=Defaults(park_cooldown="5m")))
    stage.advance(299)
    assert (stage.task("a").state, stage.task("a").attempt) == ("circuit_open", 1)
    stage.advance(1)
    assert (stage.task("a").attempt, stage.task("a").granted) == (2, 1)


def test_the_one_more_attempt_may_be_the_one_that_works() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails_until(2)
    run(stage, task("a", on_exhausted="park"))
    stage.advance(60)
    assert stage.state() == "completed"
    assert stage.task("a").circuit_state == "closed"


def test_a_permanent_error_parks_where_that_is_asked_for() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails(permanent=True)
    run(stage, task("a", on_exhausted="park", retry=EXACT))
    assert stage.task("a").state == "circuit_open"


def test_one_that_timed_out_parks_as_well() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    run(stage, task("a", timeout=5, on_exhausted="park"))
    stage.advance(5)
    assert stage.steps("a")[-2:] == ["timed_out", "circuit_open"]
    assert stage.task("a").parked == "exhausted"


def test_the_total_limit_ends_a_parked_task() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    run(stage, task("a", on_exhausted="park", total_timeout=40))
    stage.advance(40)
    assert (stage.task("a").state, stage.task("a").limit) == ("failed", "total")


def test_the_limits_hold_for_one_that_waits_with_its_one_more_attempt() -> None:
    stage = KernelHarness(workers=(Worker("loop", engine="loop", capacity=1),))
    stage.scripts |= {"a": fails(), "hog": hangs}
    run(stage, task("a", on_exhausted="park", queue_timeout=30))
    stage.submit(flow(task("hog", timeout=1000)), "hogs")
    stage.advance(60)
    assert stage.task("a").state == "half_open"
    stage.advance(30)
    assert (stage.task("a").state, stage.task("a").limit) == ("failed", "queue")


def test_the_one_more_attempt_waits_for_the_tool_if_that_is_ill_by_then() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": fails(permanent=True), "b": fails()}
    tool = {"t": Tool(breaker=Breaker(failure_threshold=2, cooldown=100))}
    run(stage, task("a", tool="t", on_exhausted="park", optional=True), tools=tool)
    stage.advance(50)
    stage.submit(flow(task("b", tool="t"), tools=tool), "other")
    assert stage.breaker.state == "open"
    stage.advance(50)
    assert stage.steps("a")[-2:] == ["half_open", "circuit_open"]
    assert stage.task("a").parked == "tool"
    stage.scripts.clear()
    stage.advance(50)
    assert stage.state() == "completed"
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


# -- what a crash of the process leaves --------------------------------------------------------------------------------


def test_a_command_keeps_its_process_in_the_journal_to_the_end() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(Task("a", command=["sleep", "9"])))
    stage.send(ProcessStarted(stage.token("a"), 4711, 99))
    assert [(a.pid, a.process_started, a.end) for a in stage.attempts("a")] == [(4711, 99, None)]
    stage.end(stage.token("a"), exit_code=0)
    stage.settle()
    assert [(a.pid, a.process_started, a.end) for a in stage.attempts("a")] == [(4711, 99, "succeeded")]


# -- draining ----------------------------------------------------------------------------------------------------------


def drained(state: str, **more: Any) -> KernelHarness:
    stage = KernelHarness()
    spec = {
        "running": flow(task("a", **more)), "retrying": flow(task("a", retry=EXACT)),
        "validating": flow(task("a", checks=CHECKS)), "pending": flow(task("a", condition=ASKED)),
    }[state]  # fmt: skip
    script = {
        "running": ("a", hangs),
        "retrying": ("a", fails()),
        "validating": ("a.check", hangs),
        "pending": ("a.condition", hangs),
    }
    name, what = script[state]
    stage.scripts[name] = what
    stage.submit(spec)
    assert stage.task("a").state == state
    stage.send(Drain(stop=False))
    stage.send(Drain(stop=True))
    assert stage.kernel.calls == {}
    return stage


def test_a_drain_gives_the_try_back() -> None:
    stage = drained("running")
    record = stage.task("a")
    assert (record.state, record.failed_attempts, record.lost_attempts) == ("queued", 0, 0)
    assert stage.attempts("a")[0].end == "returned"
    assert stage.kernel.slots == {}
    stage.scripts.clear()
    after = stage.after_crash()
    assert after.state() == "completed"
    assert after.bodies() == ["a"]
    assert after.audit() == []


@pytest.mark.parametrize(("on_loss", "state", "parked"), [("fail", "failed", None), ("park", "circuit_open", "lost")])
def test_a_body_that_must_not_simply_run_twice_is_lost_by_a_drain(on_loss: str, state: str, parked: str | None) -> None:
    stage = drained("running", on_loss=on_loss)
    record = stage.task("a")
    assert (record.state, record.parked, record.lost_attempts, record.last_error) == (state, parked, 1, "drained")
    stage.advance(100_000)
    assert len(stage.bodies()) == 1


@pytest.mark.parametrize("on_loss", ["rerun", "fail", "park"])
@pytest.mark.parametrize("end", [{"status": "cancelled"}, {"status": "failed", "error": "killed", "exit_code": -15}])
def test_what_a_drained_body_used_and_left_stands_in_its_transition_and_its_record(
    on_loss: str, end: dict[str, Any]
) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", on_loss=on_loss)))
    stage.send(Drain(stop=False))
    stage.stubborn.add("a")
    stage.send(Drain(stop=True))
    used: dict[str, Any] = {"cpu_seconds": 1.5, "peak_memory_bytes": 4096, "left_behind": (7, 8)}
    stage.end(stage.token("a"), **end, **used)
    stage.settle()
    last = [event for event in stage.kept.transitions if event.entity_id == "job@1/a"][-1]
    ends = {"rerun": "queued", "fail": "failed", "park": "circuit_open"}
    assert (last.to_state, last.reason) == (ends[on_loss], "drained")
    assert last.metadata is not None
    assert {name: last.metadata[name] for name in used} == {**used, "left_behind": [7, 8]}
    (attempt,) = stage.attempts("a")
    assert {name: getattr(attempt, name) for name in used} == used
    assert attempt.error == (None if on_loss == "rerun" else "drained")  # how it was stopped is no error
    assert stage.audit() == []


def test_a_body_that_ends_by_itself_during_a_drain_counts() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.stubborn.add("a")
    run(stage, task("a"), task("b", "a"))
    stage.send(Drain(stop=True))
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.states() == {"a": "completed", "b": "queued"}


@pytest.mark.parametrize("state", ["validating", "pending"])
def test_a_question_stopped_by_a_drain_says_nothing_and_is_asked_again(state: str) -> None:
    stage = drained(state)
    assert stage.task("a").state == state
    assert stage.kernel.slots == {}
    stage.advance(1000)
    assert stage.task("a").state == state  # no limit runs while no call runs
    stage.scripts.clear()
    after = stage.after_crash()
    assert after.state() == "completed"
    assert after.task("a").attempt == 1
    assert len(after.bodies()) == (state == "pending")
    assert after.audit() == []


@pytest.mark.parametrize("name", ["a.condition", "a.check"])
def test_no_question_is_begun_during_a_drain(name: str) -> None:
    stage = KernelHarness()
    stage.scripts["gate"] = hangs
    stage.stubborn.add("gate")
    run(stage, task("gate", checks=CHECKS), task("a", "gate", condition=ASKED))
    stage.send(Drain(stop=True))
    stage.end(stage.token("gate"))
    stage.settle()
    assert stage.running == {}
    after = stage.after_crash()
    assert after.state() == "completed"
    assert after.bodies() == ["a"]


def test_a_backoff_outlives_a_drain() -> None:
    stage = drained("retrying")
    stage.scripts.clear()
    after = stage.after_crash()
    assert after.task("a").state == "retrying"
    after.advance(2)
    assert after.state() == "completed"
    assert after.task("a").failed_attempts == 1


def test_a_second_failing_check_of_a_lost_worker_is_not_a_thing() -> None:
    """A task that is validated again after a restart begins with its first check."""
    stage = KernelHarness()
    stage.scripts["a.check"] = lambda call, entity: {"value": True} if call.index == 0 else None
    run(stage, task("a", checks=CHECKS))
    assert stage.task("a").checked == 1
    after = stage.after_crash()
    assert after.steps("a")[-2:] == ["validating", "validating"]
    assert [(kind) for kind, _, _ in after.started] == ["check", "check"]
    assert after.bodies() == []


# -- the wall clock is set ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-70_000.0, -1.0, 1.0, 70_000.0])
def test_an_attempt_has_its_time_whatever_the_wall_clock_is_set_to(jump: float) -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(task("a", timeout=10, kill_grace=0), task("b", timeout=60, heartbeat_timeout=4, kill_grace=0)))
    stage.advance(3)
    stage.send(Beat(stage.token("b"), None))
    stage.skew += jump
    stage.advance(3.9)
    assert stage.states() == {"a": "running", "b": "running"}
    stage.advance(0.2)
    assert stage.attempts("b")[0].end == "timed_out"
    assert str(stage.task("b").last_error).startswith("the heartbeat limit was reached")
    stage.advance(3)
    assert stage.attempts("a")[0].end in {"timed_out", "cancelled"}
    assert stage.state() == "failed"


def test_an_attempt_times_out_though_the_wall_clock_was_set_back() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", timeout=10, kill_grace=0)))
    stage.skew -= 70_000
    stage.advance(9.9)
    assert stage.task("a").state == "running"
    stage.advance(0.2)
    assert (stage.attempts("a")[0].end, stage.task("a").limit) == ("timed_out", "attempt")


# -- a body that only waits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("woken", [False, True])
def test_a_crash_while_the_body_only_waits_is_no_loss(woken: bool) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", max_losses=1)))
    stage.send(Lend(stage.token("a"), DurableWait(stage.time + 60)))
    if woken:
        stage.send(Regain(stage.token("a"), Reply(None)))
    after = stage.after_crash()
    assert (after.task("a").state, after.task("a").lost_attempts) == ("failed" if woken else "running", woken)
    assert after.audit() == []


def test_it_rests_through_all_crashes_and_goes_on_when_its_wait_is_over() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", max_losses=0)))
    stage.send(Lend(stage.token("a"), DurableWait(stage.time + 60)))
    for _ in range(5):
        stage = stage.after_crash()
        stage.advance(10)
        assert (stage.task("a").state, stage.task("a").attempt, stage.kernel.calls) == ("running", 1, {})
    stage.scripts["a"] = hangs
    stage.advance(10)
    assert (stage.task("a").state, stage.task("a").attempt, len(stage.kernel.calls)) == ("running", 2, 1)
    assert [row.end for row in stage.attempts("a")] == ["returned", None]
    assert stage.task("a").durable_wait is None
    assert stage.audit() == []


def test_the_limit_over_all_attempts_ends_one_that_rests() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", total_timeout=30)))
    stage.send(Lend(stage.token("a"), DurableWait(stage.time + 60)))
    after = stage.after_crash()
    after.advance(30)
    assert (after.task("a").state, after.task("a").error_type, after.task("a").limit) == (
        "failed", "timed_out", "total"
    )  # fmt: skip
    assert after.audit() == []


@pytest.mark.parametrize("on_loss", ["fail", "park"])
def test_one_that_must_not_run_twice_does_not_rest(on_loss: str) -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    stage.submit(flow(task("a", on_loss=on_loss)))
    stage.send(Lend(stage.token("a"), DurableWait(stage.time + 60)))
    assert stage.after_crash().task("a").lost_attempts == 1
