"""Tools: which settings count if several places set the same tool."""

from __future__ import annotations

from tests.actors.stage import KernelHarness, flow, hangs, task
from tests.actors.workers.test_breaker import TOOLS, use

from callboard.actors.messages.inputs import REBUILT
from callboard.actors.records.task import TaskRecord
from callboard.actors.spec.limits import LimitsResolver
from callboard.actors.spec.model import Breaker, Defaults, Retry, Task, Tool, Workstream

MINE = {"t": Tool(max_parallel=1, breaker=Breaker(failure_threshold=7, cooldown="2m"))}


def conflicts(stage: KernelHarness) -> list[str]:
    return [report for report in stage.reports if " sets " in report]


def test_the_last_workstream_that_says_how_decides_and_that_is_told() -> None:
    stage = KernelHarness()
    stage.submit(flow(use("a")), "one")
    assert (stage.breaker.failure_threshold, stage.breaker.said_by) == (5, None)
    stage.submit(flow(use("a"), tools=TOOLS), "two")
    assert (stage.breaker.failure_threshold, stage.breaker.cooldown, stage.breaker.said_by) == (2, 60, "two")
    stage.submit(flow(use("a")), "three")
    stage.submit(flow(use("a"), tools=TOOLS), "four")
    assert stage.breaker.failure_threshold == 2
    assert conflicts(stage) == []
    stage.submit(flow(use("a"), tools={"t": Tool(breaker=Breaker(ignore=["ValueError"]))}), "five")
    assert (stage.breaker.failure_threshold, stage.breaker.ignore, stage.breaker.said_by) == (5, ["ValueError"], "five")
    (told,) = conflicts(stage)
    assert told == (
        "job five sets the breaker of tool 't' to 5 failures, a cooldown of 60 s and 1 success, ignoring ValueError, "
        "but job four has set it otherwise: the settings that were submitted last apply"
    )


def test_what_the_runtime_says_of_a_tool_holds_whatever_workstreams_say() -> None:
    stage = KernelHarness(tools=MINE)
    assert (stage.breaker.failure_threshold, stage.breaker.cooldown, stage.breaker.said_by) == (7, 120, "runtime")
    stage.scripts |= {"a": hangs, "b": hangs}
    tools = {"t": Tool(max_parallel=2, breaker=Breaker(failure_threshold=2))}
    stage.submit(flow(use("a"), use("b"), tools=tools))
    assert stage.breaker.failure_threshold == 7
    assert stage.states() == {"a": "running", "b": "queued"}  # one at a time
    assert [text.partition(", but ")[2] for text in conflicts(stage)] == [
        "the runtime has set it otherwise: the runtime's settings hold",
        "1 was in force: the strictest limit holds, which is 1",
    ]


def test_two_workstreams_that_want_different_numbers_at_a_time() -> None:
    stage = KernelHarness()
    stage.scripts |= dict.fromkeys("abcd", hangs)
    stage.submit(flow(use("a"), use("b"), tools={"t": Tool(max_parallel=1)}), "one")
    stage.submit(flow(use("c"), use("d"), tools={"t": Tool(max_parallel=2)}), "two")
    assert len(stage.running) == 1
    assert conflicts(stage) == [
        "job two sets max_parallel = 2 for tool 't', but 1 was in force: the strictest limit holds, which is 1"
    ]


def limits(stage: KernelHarness) -> tuple[int | None, str | None]:
    return stage.breaker.max_parallel, stage.breaker.limit_by


def ends(stage: KernelHarness, *names: str) -> None:
    for name in names:
        (record,) = (one for one in stage.kept.of(TaskRecord) if one.name == name)
        stage.end(record.token)
    stage.settle()


def test_the_limit_of_a_tool_binds_workstreams_that_say_nothing_of_it() -> None:
    stage = KernelHarness()
    stage.scripts |= dict.fromkeys("abcde", hangs)
    stage.submit(flow(use("a"), use("b")), "silent")  # these tasks run already
    stage.submit(flow(task("c"), tools={"t": Tool(max_parallel=1)}), "says")  # its own tasks do not use the tool
    stage.submit(flow(use("d"), use("e")), "quiet")
    assert limits(stage) == (1, "says")
    assert stage.bodies() == ["a", "b", "c"]
    ends(stage, "a")
    assert stage.bodies() == ["a", "b", "c"]  # one runs still, and that is the limit
    ends(stage, "b")
    assert stage.bodies() == ["a", "b", "c", "d"]
    ends(stage, "c", "d")
    assert stage.bodies() == ["a", "b", "c", "d", "e"]
    assert limits(stage) == (1, "says")  # its workstream has ended, and no other one states a limit


def test_to_raise_a_limit_of_workstreams_that_have_ended_is_no_conflict() -> None:
    stage = KernelHarness()
    stage.submit(flow(use("a"), tools={"t": Tool(max_parallel=4)}), "before")
    assert limits(stage) == (4, "before")
    stage.submit(flow(use("b"), tools={"t": Tool(max_parallel=7)}), "now")
    assert (limits(stage), conflicts(stage)) == ((7, "now"), [])


def test_a_limit_rises_when_who_said_less_has_ended_and_all_start_that_then_may() -> None:
    stage = KernelHarness()
    stage.scripts |= dict.fromkeys("abcde", hangs)
    stage.submit(flow(use("a"), tools={"t": Tool(max_parallel=1)}), "strict")
    stage.submit(flow(*(use(name) for name in "bcde"), tools={"t": Tool(max_parallel=3)}), "wide")
    assert (stage.bodies(), limits(stage)) == (["a"], (1, "strict"))
    stage.cancel(stage.kernel.jobs["strict"], force=True)
    assert (stage.bodies(), limits(stage)) == (["a", "b", "c", "d"], (3, "wide"))


def test_a_job_that_waits_lets_more_start_when_the_one_that_limited_it_has_ended_without_using_the_tool() -> None:
    stage = KernelHarness()
    stage.scripts |= dict.fromkeys("abc", hangs)
    stage.submit(flow(task("c"), tools={"t": Tool(max_parallel=1)}), "strict")
    stage.submit(flow(use("a"), use("b"), tools={"t": Tool(max_parallel=2)}), "wide")
    assert stage.bodies() == ["c", "a"]
    ends(stage, "c")
    assert stage.bodies() == ["c", "a", "b"]


def test_the_runtimes_limit_is_one_among_others_and_holds_as_long_as_it_says_it() -> None:
    stage = KernelHarness(tools={"t": Tool(max_parallel=2)})
    stage.scripts |= dict.fromkeys("abc", hangs)
    assert limits(stage) == (2, "runtime")
    stage.submit(flow(use("a"), tools={"t": Tool(max_parallel=1)}), "strict")
    stage.submit(flow(use("b"), use("c")), "quiet")
    assert (stage.bodies(), limits(stage)) == (["a"], (1, "strict"))
    ends(stage, "a")
    assert (stage.bodies(), limits(stage)) == (["a", "b", "c"], (2, "runtime"))
    after = stage.after_crash()
    assert limits(after) == (2, "runtime")
    after.tools = {}
    assert limits(after.after_crash()) == (None, None)


def test_the_limit_holds_after_a_restart_whether_who_said_it_lives_or_not() -> None:
    stage = KernelHarness()
    stage.scripts |= dict.fromkeys("abc", hangs)
    stage.submit(flow(use("a"), tools={"t": Tool(max_parallel=1)}), "says")
    ends(stage, "a")
    after = stage.after_crash()
    after.scripts |= dict.fromkeys("abc", hangs)
    after.submit(flow(use("b"), use("c")), "quiet")
    assert after.bodies() == ["b"]
    again = after.after_crash()
    assert limits(again) == (1, "says")
    assert len(again.running) == 1


def test_an_undone_turn_forgets_no_limit() -> None:
    stage = KernelHarness()
    stage.scripts |= dict.fromkeys("abc", hangs)
    stage.submit(flow(use("a"), tools={"t": Tool(max_parallel=1)}), "says")
    stage.kernel.recovery.rebuild()
    stage.send(REBUILT)
    stage.submit(flow(use("b"), use("c")), "quiet")
    assert stage.bodies() == ["a"]


def test_settings_hold_after_a_restart_and_the_runtimes_change_with_it() -> None:
    stage = KernelHarness()
    stage.submit(flow(use("a"), tools=TOOLS))
    after = stage.after_crash()
    assert after.breaker.failure_threshold == 2
    after.tools = MINE
    mine = after.after_crash()
    assert mine.breaker.failure_threshold == 7
    mine.tools = {}
    assert mine.after_crash().breaker.failure_threshold == 5  # a removed setting does not hold


def test_limits_of_a_tool_for_ones_own_tasks_are_the_workstreams_to_say() -> None:
    runtime = {"t": Tool(timeout=10, retry=Retry(max_attempts=2)), "u": Tool(timeout=20)}
    spec = Workstream("w", tools={"t": Tool(timeout=5)})
    resolver = LimitsResolver(spec, Defaults(), runtime)
    assert [resolver.of(Task("a", run="m:f", tool=name)).timeout for name in ("t", "u")] == [5, 20]
    assert resolver.of(Task("a", run="m:f", tool="t")).allowed.max_attempts == 2
    assert resolver.of(Task("a", run="m:f", tool="v")).timeout == 300
