"""Tools: whose settings hold where several speak of the same one."""

from __future__ import annotations

from tests.actors.stage import Stage, flow, hangs
from tests.actors.test_breaker import TOOLS, use

from callboard.actors.limits import LimitsResolver
from callboard.actors.spec import Breaker, Defaults, Retry, Task, Tool, Workstream

MINE = {"t": Tool(max_parallel=1, breaker=Breaker(failure_threshold=7, cooldown="2m"))}


def conflicts(stage: Stage) -> list[str]:
    return [report for report in stage.reports if "asks for" in report]


def test_the_last_workstream_that_says_how_decides_and_that_is_told() -> None:
    stage = Stage()
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
        "job five asks for a breaker of 5 failures, 60 s and 1 successes, ignoring ValueError for tool 't', "
        "and not for the one of four: the last one to be submitted holds"
    )


def test_what_the_runtime_says_of_a_tool_holds_whatever_workstreams_say() -> None:
    stage = Stage(tools=MINE)
    assert (stage.breaker.failure_threshold, stage.breaker.cooldown, stage.breaker.said_by) == (7, 120, "runtime")
    stage.scripts |= {"a": hangs, "b": hangs}
    tools = {"t": Tool(max_parallel=2, breaker=Breaker(failure_threshold=2))}
    stage.submit(flow(use("a"), use("b"), tools=tools))
    assert stage.breaker.failure_threshold == 7
    assert stage.states() == {"a": "running", "b": "queued"}  # one at a time
    assert [text.partition(": ")[2] for text in conflicts(stage)] == ["the runtime's setting holds"] * 2


def test_two_workstreams_that_want_different_numbers_at_a_time() -> None:
    stage = Stage()
    stage.scripts |= dict.fromkeys("abcd", hangs)
    stage.submit(flow(use("a"), use("b"), tools={"t": Tool(max_parallel=1)}), "one")
    stage.submit(flow(use("c"), use("d"), tools={"t": Tool(max_parallel=2)}), "two")
    assert len(stage.running) == 2
    assert conflicts(stage) == [
        "job two asks for max_parallel = 2 for tool 't', and not for 1: the last one to be submitted holds"
    ]


def test_settings_hold_after_a_restart_and_the_runtimes_change_with_it() -> None:
    stage = Stage()
    stage.submit(flow(use("a"), tools=TOOLS))
    after = stage.after_crash()
    assert after.breaker.failure_threshold == 2
    after.tools = MINE
    mine = after.after_crash()
    assert mine.breaker.failure_threshold == 7
    mine.tools = {}
    assert mine.after_crash().breaker.failure_threshold == 5  # what it says no longer holds no longer


def test_limits_of_a_tool_for_ones_own_tasks_are_the_workstreams_to_say() -> None:
    runtime = {"t": Tool(timeout=10, retry=Retry(max_attempts=2)), "u": Tool(timeout=20)}
    spec = Workstream("w", tools={"t": Tool(timeout=5)})
    resolver = LimitsResolver(spec, Defaults(), runtime)
    assert [resolver.of(Task("a", run="m:f", tool=name)).timeout for name in ("t", "u")] == [5, 20]
    assert resolver.of(Task("a", run="m:f", tool="t")).allowed.max_attempts == 2
    assert resolver.of(Task("a", run="m:f", tool="v")).timeout == 300
