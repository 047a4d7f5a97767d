"""The circuit breaker: when it opens, which tasks wait, which task probes, and the order in which all continue."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.jobs_help import child, waits
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.messages.commands import AskApproval, Pause, ResetBreaker
from callboard.actors.messages.inputs import Drain
from callboard.actors.spec.model import Approval, Breaker, Check, Hook, Retry, Task, Tool, Worker

TOOLS = {"t": Tool(breaker=Breaker(failure_threshold=2, cooldown=60))}
AGAIN = Retry(max_attempts=9, base_delay=1, max_delay=1, jitter=0)


def use(name: str, **more: Any) -> Task:
    """A task that uses the tool, and whose failure does not matter to the others."""
    return task(name, tool="t", optional=True, **more)


def opened(*more: Task, stage: KernelHarness | None = None, tools: dict[str, Tool] | None = None) -> KernelHarness:
    """A stage whose breaker two failures have opened; then these tasks came."""
    stage = stage or KernelHarness()
    stage.scripts |= {"x": fails(), "y": fails()}
    stage.submit(flow(use("x"), use("y"), tools=tools or TOOLS), "opener")
    assert stage.breaker.state == "open"
    if more:
        stage.submit(flow(*more, tools=tools or TOOLS))
    return stage


def test_failures_in_a_row_open_it_and_a_success_starts_the_count_again() -> None:
    stage = KernelHarness()
    said = iter([True, False, True, True])
    for name in "abcd":
        stage.scripts[name] = lambda call, entity: fails()(call, entity) if next(said) else {}
    stage.submit(flow(*(use(name) for name in "abcd"), max_parallel=1, tools=TOOLS))
    assert stage.path("t") == ["closed", "closed", "closed", "closed", "open"]
    assert stage.breaker.generation == 1
    assert stage.audit() == []


def test_a_tool_that_says_nothing_has_the_usual_breaker() -> None:
    stage = KernelHarness()
    for n in range(5):
        stage.scripts[f"a{n}"] = fails()
    stage.submit(flow(*(task(f"a{n}", tool="t", optional=True) for n in range(5))))
    breaker = stage.breaker
    assert (breaker.state, breaker.failure_threshold, breaker.due_at) == ("open", 5, stage.time + 60)


LATER = fails("429", retry_after=50.0, category="transient")


def test_a_body_that_the_tool_told_to_come_back_later_says_nothing_bad_of_it() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": LATER, "b": fails(), "c": LATER}
    stage.submit(flow(use("a"), use("b"), use("c"), tools=TOOLS))
    stage.advance(200)
    assert (stage.breaker.state, stage.breaker.failures) == ("closed", 1)  # no success either, which would clear it


def test_no_task_of_the_tool_starts_before_the_time_that_it_named() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = LATER
    began = stage.time
    stage.submit(flow(use("a", retry=Retry(max_attempts=1, max_deferrals=1)), tools=TOOLS), "one")
    stage.submit(flow(use("b"), task("free")), "two")
    assert (stage.bodies(), stage.breaker.not_before) == (["a", "free"], began + 50)
    stage.advance(49)
    assert stage.bodies() == ["a", "free"]
    after = stage.after_crash()
    assert after.bodies() == []
    after.advance(1)
    assert sorted(after.bodies()) == ["a", "b"]
    assert after.breaker.not_before is None or after.scripts.get("a") is LATER


def test_the_latest_time_that_was_named_holds_and_an_operators_reset_ends_the_rest() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": LATER, "b": fails("429", retry_after=20.0, category="transient"), "c": hangs, "d": hangs}
    began = stage.time
    stage.submit(flow(use("a"), use("b"), tools=TOOLS))
    stage.scripts["b"] = hangs
    stage.submit(flow(use("c"), use("d"), tools=TOOLS), "more")
    stage.advance(20)
    assert (stage.bodies(), stage.breaker.not_before) == (["a", "b"], began + 50)
    stage.command(stage.workforce.breakers["t"], ResetBreaker("it is fine"))
    assert stage.breaker.not_before is None
    assert stage.bodies()[2:] == ["b", "c", "d"]


def test_a_probe_that_is_told_to_come_back_later_gives_its_permit_to_the_next_once_the_tool_has_rested() -> None:
    stage = opened(use("a"), use("b"))
    stage.scripts |= {"a": LATER, "b": hangs}
    stage.advance(60)
    assert (stage.bodies()[-1], stage.breaker.state) == ("a", "half_open")
    stage.advance(49)
    assert stage.bodies()[-1] == "a"
    stage.advance(1)
    assert stage.bodies()[-1] == "b"
    assert stage.task("a").failed_attempts == 0


def test_timeouts_of_bodies_count() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": hangs, "b": hangs}
    stage.submit(flow(use("a", timeout=5), use("b", timeout=5), tools=TOOLS))
    stage.advance(5)
    assert stage.breaker.state == "open"


def test_what_says_nothing_about_the_tool_does_not_count() -> None:
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=3),))
    stage.scripts |= {
        "cancelled": hangs,
        "lost": lambda call, entity: None if entity.record.attempt == 1 else {},
        "hog": hangs,
    }
    stage.scripts["checked.check"] = fails()
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1))}
    stage.submit(flow(use("checked", checks=[Check(run="m:c")]), tools=tools), "a")
    stage.submit(flow(use("cancelled"), use("lost"), task("hog", timeout=1000), tools=tools), "b")
    stage.submit(flow(use("late", queue_timeout=5), tools=tools), "c")
    stage.cancel(stage.actor("cancelled", "b"), force=True)
    stage.end(stage.task("lost", "b").token, "cancelled")
    stage.settle()
    stage.advance(6)
    assert stage.states("a") | stage.states("b") | stage.states("c") == {
        "checked": "failed", "cancelled": "cancelled", "lost": "completed", "hog": "running", "late": "completed",
    }  # fmt: skip
    assert stage.breaker.state == "closed"
    assert stage.path("t") == ["closed"]


def test_queued_tasks_park_without_a_slot_and_without_a_try() -> None:
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    stage.scripts["x"] = fails()
    tools = {"t": Tool(breaker=Breaker(failure_threshold=1))}
    stage.submit(flow(use("x"), use("a"), use("b"), task("c"), tools=tools))
    assert stage.states() == {"x": "failed", "a": "circuit_open", "b": "circuit_open", "c": "completed"}
    for name in "ab":
        record = stage.task(name)
        assert (record.attempt, record.failed_attempts, record.parked, record.circuit_state) == (0, 0, "tool", "open")
    assert stage.kernel.slots == {}


def test_what_comes_later_finds_it_open_and_its_reason_holds_no_time() -> None:
    stage = opened()
    stage.advance(20)
    stage.submit(flow(use("a"), tools=TOOLS))
    assert stage.steps("a") == ["pending", "queued", "circuit_open"]
    assert stage.task("a").reason == "tool 't' is not healthy"


def test_one_probe_after_the_cooldown_and_all_go_on_in_their_order_when_it_works() -> None:
    tools = {"t": Tool(max_parallel=1, breaker=Breaker(failure_threshold=2, cooldown=60))}
    stage = opened(use("a"), use("b"), use("c", priority=1), use("d"), tools=tools)
    stage.scripts |= dict.fromkeys("abcd", hangs)
    stage.advance(59.9)
    assert stage.running == {}
    stage.advance(0.1)
    assert stage.states() == {"a": "circuit_open", "b": "circuit_open", "c": "running", "d": "circuit_open"}
    assert stage.breaker.state == "half_open"
    assert stage.breaker.probe == stage.task("c").key
    stage.end(stage.token("c"))
    stage.settle()
    assert stage.breaker.state == "closed"
    assert stage.states() == {"a": "running", "b": "queued", "c": "completed", "d": "queued"}
    for name in "abd":
        stage.end(stage.token(name))
        stage.settle()
    assert stage.bodies()[2:] == ["c", "a", "b", "d"]
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_a_failing_probe_opens_it_again_and_parks_whatever_its_attempts() -> None:
    stage = opened(use("a", retry=AGAIN), use("b"))
    stage.scripts["a"] = fails()
    stage.advance(60)
    assert stage.path("t")[-2:] == ["half_open", "open"]
    assert stage.breaker.generation == 2
    assert stage.breaker.probe is None
    assert stage.steps("a")[-3:] == ["half_open", "running", "circuit_open"]
    assert (stage.task("a").failed_attempts, stage.task("a").parked) == (1, "tool")
    assert stage.task("b").attempt == 0
    stage.scripts.clear()
    stage.advance(60)
    assert stage.state() == "completed"
    assert stage.bodies()[2:] == ["a", "a", "b"]
    assert stage.audit() == []


def test_a_probe_that_times_out_has_failed_and_its_permit_is_back() -> None:
    stage = opened(use("a", timeout=5, retry=AGAIN), use("b"))
    stage.scripts["a"] = hangs
    stage.advance(65)
    assert stage.steps("a")[-3:] == ["running", "timed_out", "circuit_open"]
    assert (stage.breaker.state, stage.breaker.probe) == ("open", None)
    assert stage.task("a").parked == "tool"


def test_a_failing_probe_without_another_try_has_failed() -> None:
    stage = opened(use("a"), use("b"))
    stage.scripts["a"] = fails()
    stage.advance(60)
    assert stage.states() == {"a": "failed", "b": "circuit_open"}
    stage.advance(60)
    assert stage.states() == {"a": "failed", "b": "completed"}


def test_a_failing_probe_that_parks_when_exhausted_does_not_probe_for_ever() -> None:
    stage = opened(use("a", on_exhausted="park"))
    stage.scripts["a"] = fails()
    stage.advance(60)
    assert (stage.task("a").parked, stage.task("a").attempt) == ("exhausted", 1)
    stage.advance(100_000)
    assert stage.task("a").attempt == 2  # the one further attempt that it was granted
    assert stage.task("a").granted == 1
    assert stage.audit() == []


@pytest.mark.parametrize("how", ["cancelled", "forced", "lost", "cancelled before it starts"])
def test_the_permit_comes_back_and_the_next_one_gets_it(how: str) -> None:
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    opened(use("a", retry=AGAIN), use("b", retry=AGAIN), stage=stage)
    stage.scripts |= dict.fromkeys(["a", "b", "hog"], hangs)
    if how == "cancelled before it starts":
        stage.submit(flow(task("hog", timeout=1000)), "hogs")
    stage.advance(60)
    assert stage.breaker.probe == stage.task("a").key
    match how:
        case "lost":
            stage.end(stage.token("a"), "cancelled")
            stage.settle()
            assert stage.task("a").state == "running"  # a lost attempt is no failure: it may probe again
            assert stage.task("a").lost_attempts == 1
            assert stage.steps("a")[-3:] == ["circuit_open", "half_open", "running"]
            return
        case "cancelled before it starts":
            assert stage.task("a").state == "half_open"
            stage.cancel(stage.actor("a"))
            assert stage.task("b").state == "half_open"
        case _:
            stage.cancel(stage.actor("a"), force=how == "forced")
            assert stage.task("b").state == "running"
    assert stage.breaker.probe == stage.task("b").key
    assert stage.breaker.state == "half_open"
    assert stage.audit() == []


def test_a_probe_given_back_by_a_drain() -> None:
    stage = opened(use("a"), use("b"))
    stage.scripts["a"] = hangs
    stage.advance(60)
    stage.send(Drain(stop=True))
    assert stage.attempts("a")[0].end == "returned"
    assert stage.task("a").failed_attempts == 0
    stage.scripts.clear()
    after = stage.after_crash()
    assert after.state() == "completed"
    assert after.breaker.state == "closed"
    assert after.bodies() == ["a", "b"]
    assert after.audit() == []


def test_a_probe_that_ran_when_the_runtime_was_killed() -> None:
    stage = opened(use("a"), use("b"))
    stage.scripts["a"] = hangs
    stage.advance(60)
    after = stage.after_crash()
    assert after.task("a").lost_attempts == 1
    assert after.task("a").state == "running"  # again the probe
    assert after.breaker.probe == after.task("a").key
    after.end(after.token("a"))
    after.settle()
    assert after.state() == "completed"
    assert after.audit() == []


def test_a_permit_given_to_one_that_had_not_started_when_the_runtime_was_killed() -> None:
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    opened(use("a"), use("b"), stage=stage)
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", timeout=1000)), "hogs")
    stage.advance(60)
    assert stage.task("a").state == "half_open"
    stage.scripts.clear()
    after = stage.after_crash()
    after.advance(0)
    assert after.state() == "completed"
    assert [name for name in after.bodies() if name != "hog"] == ["a", "b"]
    assert after.audit() == []


def test_a_cooldown_goes_on_while_nobody_looks() -> None:
    stage = opened(use("a"))
    stage.scripts.clear()
    after = stage.after_crash(down=30)
    assert after.breaker.state == "open"
    after.advance(29.9)
    assert after.breaker.state == "open"
    after.advance(0.1)
    assert after.state() == "completed"


def test_the_next_one_to_come_gets_the_permit_where_nobody_is_parked() -> None:
    stage = opened()
    stage.advance(60)
    assert (stage.breaker.state, stage.breaker.probe) == ("half_open", None)
    stage.submit(flow(use("a"), tools=TOOLS))
    assert stage.steps("a") == ["pending", "queued", "circuit_open", "half_open", "running", "validating", "completed"]
    assert stage.breaker.state == "closed"


def test_as_many_successes_as_asked_for_close_it_one_permit_at_a_time() -> None:
    tools = {"t": Tool(breaker=Breaker(failure_threshold=2, cooldown=60, success_threshold=2))}
    stage = opened(use("a"), use("b"), use("c"), use("d"), tools=tools)
    stage.scripts |= dict.fromkeys("abcd", hangs)
    stage.advance(60)
    assert len(stage.running) == 1
    stage.end(stage.token("a"))
    stage.settle()
    assert (stage.breaker.state, stage.breaker.successes) == ("half_open", 1)
    assert [stage.task(name).state for name in "abcd"] == ["completed", "running", "circuit_open", "circuit_open"]
    stage.end(stage.token("b"))
    stage.settle()
    assert stage.path("t")[-3:] == ["half_open", "half_open", "closed"]
    assert len(stage.running) == 2


def test_a_result_that_began_before_it_opened_changes_its_task_and_not_the_breaker() -> None:
    stage = KernelHarness()
    stage.scripts |= {"x": fails(), "y": fails(), "old-good": hangs, "old-bad": hangs}
    stage.submit(flow(use("old-good"), use("old-bad"), use("x"), use("y"), tools=TOOLS))
    assert stage.breaker.state == "open"
    stage.end(stage.token("old-good"))
    stage.settle()
    assert (stage.breaker.state, stage.task("old-good").state) == ("open", "completed")
    stage.advance(60)
    assert stage.breaker.state == "half_open"
    stage.end(stage.token("old-bad"), "failed")
    stage.settle()
    assert (stage.breaker.state, stage.task("old-bad").state) == ("half_open", "failed")
    assert stage.audit() == []


def test_a_backoff_that_is_over_while_the_tool_is_ill_parks_at_once() -> None:
    stage = KernelHarness()
    stage.scripts |= {"a": fails(), "b": fails()}
    stage.submit(flow(use("a", retry=AGAIN), use("b"), tools=TOOLS))
    assert stage.task("a").state == "retrying"
    stage.advance(1)
    assert stage.steps("a")[-2:] == ["retrying", "circuit_open"]
    stage.scripts.clear()
    stage.advance(59)
    assert stage.state() == "completed"
    assert stage.audit() == []


def test_the_limits_of_a_task_hold_while_it_is_parked() -> None:
    stage = opened(use("a", queue_timeout=20), use("b", total_timeout=30), use("c"))
    stage.advance(20)
    assert (stage.task("a").state, stage.task("a").limit) == ("failed", "queue")
    stage.advance(10)
    assert (stage.task("b").state, stage.task("b").limit) == ("failed", "total")
    assert stage.task("c").state == "circuit_open"


def test_time_parked_counts_as_time_queued() -> None:
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    opened(use("a"), use("b", queue_timeout=100), stage=stage)
    stage.scripts |= {"hog": hangs}
    stage.advance(50)
    stage.submit(flow(task("hog", timeout=1000, priority=9)), "hogs")
    stage.advance(10)
    assert stage.breaker.probe == stage.task("a").key
    stage.cancel(stage.actor("a"))
    assert stage.task("b").state == "half_open"
    stage.advance(40)
    assert (stage.task("b").state, stage.task("b").limit) == ("failed", "queue")
    assert stage.breaker.probe is None


def test_it_is_shared_by_all_workstreams_and_outlives_them_and_restarts() -> None:
    stage = opened()
    after = stage.after_crash()
    after.submit(flow(use("a")), "another")
    assert after.task("a", "another").state == "circuit_open"
    assert {entity.record.kind for entity in after.kernel.entities.values()} >= {"breaker"}


def test_a_task_assigned_in_the_turn_in_which_its_tool_falls_ill_parks_too() -> None:
    """The scheduler's decision and the breaker's are messages of the same turn."""
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=1),))
    stage.scripts |= {"x": fails(), "y": fails()}
    stage.kernel.scheduler.withdraw = lambda tool: []  # type: ignore[method-assign,assignment]
    stage.submit(flow(use("x"), use("y"), use("a"), tools=TOOLS))
    assert stage.task("a").state == "circuit_open"
    assert stage.bodies() == ["x", "y"]
    assert stage.kernel.slots == {}
    assert stage.audit() == []


def test_a_tool_without_trouble_writes_nothing() -> None:
    stage = KernelHarness()
    stage.submit(flow(*(use(f"a{n}") for n in range(20)), tools=TOOLS))
    assert stage.path("t") == ["closed"]


# -- a probe that cannot start ---------------------------------------------------------------------------------------


def blocked(how: str) -> tuple[KernelHarness, list[Task], dict[str, Any]]:
    """A stage on which `a` could not start for hours, the task, and the settings of its workstream."""
    workers = (Worker("loop", engine="loop", capacity=9), Worker("busy", engine="command", capacity=1))
    stage = KernelHarness(workers=workers)
    stage.scripts["hog"] = hangs
    a, more = use("a"), {}
    match how:
        case "its worker is busy":
            stage.submit(flow(Task("hog", command=["x"], timeout=99_999)), "hogs")
            a = Task("a", command=["x"], tool="t", optional=True)
        case "nobody could run it":
            a = use("a", capabilities=["gpu"])
        case "its workstream is at its limit":
            more = {"max_parallel": 1}
        case "its workstream is paused":
            pass
    return stage, [a], more


@pytest.mark.parametrize(
    "how",
    ["its worker is busy", "nobody could run it", "its workstream is at its limit", "its workstream is paused"],
)
@pytest.mark.parametrize("later", [False, True], ids=["is there", "comes later"])
def test_the_probe_is_the_first_task_that_can_start_now(how: str, later: bool) -> None:
    stage, tasks, more = blocked(how)
    stage = opened(stage=stage)
    stage.scripts["hog"] = hangs
    if more:
        tasks = [task("hog", timeout=99_999), *tasks]
    stage.submit(flow(*tasks, tools=TOOLS, **more), "first")
    if how == "its workstream is paused":
        stage.scripts["works"] = hangs
        stage.submit(flow(task("works", timeout=99_999), *tasks, tools=TOOLS), "second")
        stage.cancel(stage.actor("a", "first"))
        stage.command(stage.kernel.jobs["second"], Pause("later"))
    if not later:
        stage.submit(flow(use("b"), tools=TOOLS), "other")
    stage.advance(60)
    if later:
        assert stage.breaker.state == "half_open"
        stage.submit(flow(use("b"), tools=TOOLS), "other")
        stage.advance(1)
    assert stage.state("other") == "completed"
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


def test_who_waits_with_the_permit_gives_it_back_once_another_one_could_start() -> None:
    workers = (Worker("one", engine="loop", capacity=1), Worker("two", engine="command", capacity=1))
    stage = opened(stage=KernelHarness(workers=workers))
    stage.scripts |= {"hog": hangs, "pig": hangs}
    stage.submit(flow(task("hog", timeout=99_999), Task("pig", command=["x"], timeout=99_999)), "hogs")
    stage.submit(flow(use("a"), Task("b", command=["x"], tool="t", optional=True), tools=TOOLS))
    stage.advance(3600)
    assert stage.states() == {"a": "half_open", "b": "circuit_open"}  # none can start: the first waits
    stage.end(stage.task("pig", "hogs").token)
    stage.settle()
    stage.advance(1)
    assert stage.states() == {"a": "queued", "b": "completed"}
    assert stage.steps("a")[-4:] == ["half_open", "circuit_open", "pending", "queued"]
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


def test_where_none_can_start_there_is_no_timer_that_comes_again() -> None:
    stage = opened(stage=KernelHarness(workers=(Worker("one", engine="loop", capacity=1),)))
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", timeout=99_999)), "hogs")
    stage.submit(flow(use("a"), use("b"), tools=TOOLS))
    stage.advance(100)
    armed = stage.armed
    stage.advance(1000)
    assert stage.armed == armed
    stage.end(stage.task("hog", "hogs").token)
    stage.settle()
    assert stage.state() == "completed"


def test_after_a_restart_the_permit_goes_to_who_can_start() -> None:
    workers = (Worker("one", engine="loop", capacity=1), Worker("two", engine="command", capacity=1))
    stage = opened(stage=KernelHarness(workers=workers))
    stage.scripts["hog"] = hangs
    stage.submit(flow(task("hog", timeout=99_999, priority=9)), "hogs")
    stage.submit(flow(use("a"), use("b"), tools=TOOLS))
    stage.advance(60)
    after = stage.after_crash()
    after.submit(flow(Task("c", command=["x"], tool="t", optional=True), tools=TOOLS), "other")
    after.advance(1)
    assert after.state("other") == "completed"
    assert after.audit() == []


def half_open(*more: Task, tools: dict[str, Tool] | None = None, **probes: Any) -> KernelHarness:
    """A stage on which the body of `a` probes the tool, and `b` and `c` wait behind it."""
    stage = KernelHarness(workers=(Worker("w", engine="loop", capacity=3),))
    stage.scripts |= dict.fromkeys("abc", hangs)
    opened(use("a", **probes), use("b"), use("c"), *more, stage=stage, tools=tools)
    stage.advance(60)
    assert stage.states() == {"a": "running", "b": "circuit_open", "c": "circuit_open"}
    return stage


def begins_to_wait(stage: KernelHarness, how: str) -> None:
    """Let the probe wait for a decision."""
    token = stage.token("a")
    match how:
        case "an approval":
            stage.send(AskApproval(token, "prod", Approval()))
        case "a child job":
            child(stage, token, flow(task("d", hold=Approval())), "job/a/x")
            waits(stage, token)
        case "its cancel hooks":
            stage.scripts["a.cancel_hook"] = hangs
            stage.cancel(stage.actor("a"))


WAITS = ["an approval", "a child job", "its cancel hooks"]


def probing(how: str, **more: Any) -> KernelHarness:
    """A stage whose probe has just begun to wait."""
    hooks = [Hook(run="m:tidy", timeout=99_999)] if how == "its cancel hooks" else []
    probes = {"cancel_hooks": hooks, "cancel_timeout": 99_999, "timeout": 600, "retry": AGAIN}
    stage = half_open(**more, **probes)
    begins_to_wait(stage, how)
    return stage


@pytest.mark.parametrize("how", WAITS)
def test_a_probe_that_waits_for_somebody_keeps_nobody_from_the_tool(how: str) -> None:
    stage = probing(how)
    assert (stage.task("b").state, stage.task("c").state) == ("running", "circuit_open")  # one permit, still
    assert stage.breaker.probe == stage.task("b").key
    stage.end(stage.token("b"))
    stage.settle()
    assert stage.breaker.state == "closed"
    assert stage.task("c").state == "running"
    assert stage.task("a").state == ("cancelling" if how == "its cancel hooks" else "running")
    assert stage.audit() == []


@pytest.mark.parametrize("how", WAITS)
def test_who_waits_behind_two_that_wait_gets_the_permit_too(how: str) -> None:
    stage = probing(how)
    stage.send(AskApproval(stage.token("b"), "prod", Approval()))
    stage.advance(200)
    assert stage.breaker.probe == stage.task("c").key
    assert stage.task("c").state == "running"
    stage.end(stage.token("c"))
    stage.settle()
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


def test_where_nobody_can_start_the_next_one_to_come_gets_the_permit_of_a_probe_that_waits() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = hangs
    opened(use("a"), stage=stage)
    stage.advance(60)
    begins_to_wait(stage, "an approval")
    assert (stage.breaker.state, stage.breaker.probe) == ("half_open", None)
    stage.submit(flow(use("late"), tools=TOOLS), "later")
    stage.advance(1)
    assert stage.state("later") == "completed"
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


@pytest.mark.parametrize("how", ["an approval", "a child job"])
@pytest.mark.parametrize("good", [True, False])
def test_how_a_probe_that_has_waited_ends_counts_for_the_same_period(how: str, good: bool) -> None:
    stage = probing(how)
    stage.end(stage.token("a"), "ok" if good else "failed", error=None if good else "boom")
    stage.settle()
    assert stage.breaker.state == ("closed" if good else "open")
    if good:
        assert stage.task("c").state == "running"
    else:
        assert stage.task("a").state == "retrying"  # an ordinary failure: it was no longer the probe
        assert stage.task("b").state == "running"
        stage.end(stage.token("b"))  # it began before
        stage.settle()
        assert (stage.breaker.state, stage.task("c").state) == ("open", "circuit_open")
        stage.advance(5)
        assert stage.task("a").state == "circuit_open"
    assert stage.audit() == []


def test_the_success_of_a_probe_that_has_waited_makes_no_second_permit() -> None:
    tools = {"t": Tool(breaker=Breaker(failure_threshold=2, cooldown=60, success_threshold=2))}
    stage = probing("an approval", tools=tools)
    stage.end(stage.token("a"))
    stage.settle()
    assert (stage.breaker.state, stage.breaker.successes) == ("half_open", 1)
    assert stage.breaker.probe == stage.task("b").key
    assert stage.task("c").state == "circuit_open"
    stage.end(stage.token("b"))
    stage.settle()
    assert stage.breaker.state == "closed"
    assert stage.audit() == []


@pytest.mark.parametrize("how", WAITS)
def test_a_probe_that_waited_when_the_runtime_was_killed_is_lost_like_any_other(how: str) -> None:
    stage = probing(how)
    stage.scripts.clear()
    after = stage.after_crash()
    after.advance(10)
    assert after.breaker.state == "closed"
    assert (after.task("b").state, after.task("c").state) == ("completed", "completed")
    assert after.audit() == []


def test_checks_do_not_keep_the_permit() -> None:
    stage = half_open(checks=[Check(run="m:c", timeout=99_999)])
    stage.scripts["a.check"] = hangs
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.task("a").state == "validating"
    assert stage.breaker.state == "closed"
    assert stage.audit() == []
