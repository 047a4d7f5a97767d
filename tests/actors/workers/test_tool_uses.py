"""Steps of running bodies that use a tool: which steps wait, which go on, and what counts for the breaker."""

from __future__ import annotations

from typing import Any

import pytest
from tests.actors.jobs_help import goes_on, waits
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.messages.commands import LeaveTool, Pause, Reply, ResetBreaker, TripBreaker, UseTool
from callboard.actors.messages.inputs import REBUILT, CallEnded, Drain, ToolHeard, ToolShares
from callboard.actors.records.step import StepRecord
from callboard.actors.spec.model import Breaker, Task, Tool, Worker
from callboard.actors.workers.queues import NO_LIMIT

ONE = {"t": Tool(max_parallel=1, breaker=Breaker(failure_threshold=2, cooldown=60))}
MANY = {"t": Tool(breaker=Breaker(failure_threshold=2, cooldown=60, ignore=["ValueError", "permanent"]))}
BAD = {"status": "failed", "error_type": "RuntimeError", "category": "unknown"}


class Steps(KernelHarness):
    """A stage of bodies that hang, whose steps use tools as the test says."""

    def __init__(self, *tasks: Task, tools: dict[str, Tool] | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.has: list[str] = []  # the steps that have got their tool, in order
        tasks = tasks or tuple(task(name, optional=True) for name in "abcd")
        self.scripts |= {one.name: hangs for one in tasks}
        self.submit(flow(*tasks, tools=ONE if tools is None else tools))

    def use(self, name: str, number: int = 1, tool: str = "t", token: int = 0) -> str:
        """Let a step of a task's body ask for a tool. Returns whether it "waits" or "has" it, or the refusal."""
        label = name if number == 1 else f"{name}{number}"
        step = StepRecord(key=0, flow=0, task=0, task_id="", name=name, number=number, began_at=self.time, tries=0)
        answers: list[str] = []

        def answered(row: StepRecord | None, error: Exception | None) -> None:
            answers.append(type(error).__name__ if row is None else row.tool_use or "has")
            if answers == ["has"]:
                self.has.append(label)

        def got(_: object, __: object) -> None:
            self.has.append(label)

        self.send(UseTool(token or self.token(name), number, tool, step, Reply(answered), Reply(got)))
        return answers[0]

    def leave(self, name: str, number: int = 1, status: str = "ok", **more: Any) -> None:
        """Let a step of a task's body leave its tool."""
        ended = CallEnded(self.token(name), status, **more)
        self.send(LeaveTool(self.token(name), number, ended, Reply(lambda *_: None)))

    def rows(self, name: str) -> list[str | None]:
        """How the journaled steps of a task use their tool."""
        return [one.tool_use for one in self.kept.of(StepRecord) if one.task_id.endswith(f"/{name}")]

    @property
    def used(self) -> int:
        """How many units of the tool are in use."""
        return self.workforce.scheduler.tools["t"].used

    @property
    def waiting(self) -> int:
        """How many steps wait for the tool."""
        return self.workforce.scheduler.tool_uses.count("t")

    def nothing_is_left(self) -> bool:
        return not self.kernel.uses and not self.used and not self.waiting


def test_a_step_has_a_unit_at_once_or_waits_in_line_by_priority_and_place() -> None:
    names = [task("a"), task("b"), task("c", priority=1), task("d")]
    stage = Steps(*names)
    assert stage.use("a") == "has"
    assert stage.rows("a") == []  # its start is not journaled
    assert [stage.use(name) for name in ("b", "d", "c")] == ["waits"] * 3
    assert stage.rows("b") == ["waits"]
    assert (stage.used, stage.waiting) == (1, 3)
    for name in ("a", "c", "b"):
        stage.leave(name)
    assert stage.has == ["a", "c", "b", "d"]
    assert stage.rows("b") == ["holds"]
    stage.leave("d")
    assert stage.nothing_is_left()
    assert stage.kernel.invocations["t"] == 4


def test_steps_and_tasks_share_the_limit_and_stand_in_one_line() -> None:
    stage = Steps(task("a"), task("b"), task("x", tool="t"), task("z", tool="t", priority=-1))
    assert stage.states()["x"] == "running"  # x has the unit
    assert stage.use("a") == stage.use("b") == "waits"
    stage.end(stage.token("x"))
    stage.settle()
    assert stage.has == ["a"]
    stage.leave("a")
    assert stage.has == ["a", "b"]  # before z, which is less urgent
    assert stage.states()["z"] == "queued"
    stage.leave("b")
    assert stage.states()["z"] == "running"


def test_a_step_of_a_task_that_has_the_same_tool_takes_no_unit_and_is_not_judged() -> None:
    stage = Steps(task("a", tool="t"))
    assert [stage.use("a", number) for number in (1, 2, 3)] == ["has"] * 3
    assert stage.used == 1
    for number in (1, 2, 3):
        stage.leave("a", number, **BAD)
    assert stage.breaker.failures == 0
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.nothing_is_left()


def test_steps_of_one_body_wait_beside_each_other_and_one_that_waits_no_longer_takes_nothing() -> None:
    stage = Steps()
    assert [stage.use("a", number) for number in (1, 2, 3)] == ["has", "waits", "waits"]
    stage.leave("a", 2, "cancelled")
    assert stage.rows("a") == [None, "waits"]
    stage.leave("a", 1)
    assert stage.has == ["a", "a3"]
    stage.leave("a", 2)  # twice
    stage.leave("a", 3)
    assert stage.nothing_is_left()


@pytest.mark.parametrize("end", ["ok", "failed", "lost", "abandoned", "cancel"])
def test_a_body_that_has_ended_holds_and_waits_for_nothing(end: str) -> None:
    stage = Steps()
    assert [stage.use("a"), stage.use("b"), stage.use("a", 2), stage.use("c")] == ["has", *["waits"] * 3]
    token = stage.token("a")
    if end == "cancel":
        stage.cancel(stage.actor("a"))
    else:
        stage.end(token, end)
        stage.settle()
    assert stage.has[:2] == ["a", "b"]
    assert stage.breaker.failures == 0  # this end says nothing about the tool
    assert stage.use("a", 3, token=token) == "AttemptOver"
    stage.leave("b")
    stage.leave("c")
    assert stage.nothing_is_left()


def test_a_waiting_body_lends_its_slot_and_needs_a_slot_again_before_it_goes_on() -> None:
    stage = Steps(task("a"), task("b"), task("c"), workers=(Worker("loop", engine="loop", capacity=2),))
    assert stage.bodies() == ["a", "b"]
    stage.use("a")
    assert stage.use("b") == "waits"
    waits(stage, stage.token("b"))
    assert stage.bodies() == ["a", "b", "c"]
    stage.leave("a")
    assert stage.has == ["a", "b"]
    assert not goes_on(stage, stage.token("b"))
    stage.end(stage.token("a"))
    stage.settle()
    assert stage.token("b") not in stage.kernel.lent
    assert stage.audit() == []


def test_failures_open_the_breaker_and_the_next_steps_wait_until_one_has_probed() -> None:
    stage = Steps(tools=MANY)
    for number, more in enumerate(
        (
            {"error_type": "ValueError"}, {"category": "permanent"}, {"error_type": "X", "kinds": ["X", "ValueError"]},
            {"category": "resources"}, {"retry_after": 0.0, "category": "transient"}, {},
        ), 1
    ):  # fmt: skip
        stage.use("a", number)
        stage.leave("a", number, **{**BAD, **more})
        stage.advance(0.0)
    assert stage.breaker.failures == 1  # only the last one counts
    assert stage.use("b") == stage.use("c") == "has"
    stage.leave("b", **BAD)
    assert stage.breaker.state == "open"
    assert [stage.use("a", 9), stage.use("b", 2), stage.use("d")] == ["waits"] * 3
    assert stage.workforce.breakers["t"].waiting == 3
    stage.leave("c")  # the use began before: its end changes nothing
    assert stage.breaker.state == "open"
    stage.has.clear()
    stage.advance(60.0)
    assert (stage.breaker.state, stage.has) == ("half_open", ["a9"])
    stage.leave("a", 9, **BAD)
    assert stage.breaker.state == "open"
    stage.advance(60.0)
    assert stage.has == ["a9", "b2"]
    stage.leave("b", 2, "cancelled")  # it gives its permit back
    assert stage.has == ["a9", "b2", "d"]
    assert stage.use("c", 2) == "waits"
    stage.leave("d")
    assert (stage.breaker.state, stage.has[-1]) == ("closed", "c2")
    stage.leave("c", 2)
    assert stage.nothing_is_left()
    assert stage.audit() == []


def test_the_first_in_line_probes_whether_it_is_a_task_or_a_step() -> None:
    stage = Steps(task("a"), task("b"), tools=MANY)
    breaker = stage.workforce.breakers["t"]
    stage.command(breaker, TripBreaker("sick"))
    stage.scripts |= {"x": hangs, "y": hangs}
    stage.submit(flow(task("x", tool="t", priority=1), tools=MANY), "x")
    stage.submit(flow(task("y", tool="t"), tools=MANY), "y")
    stage.use("a")
    assert breaker.waiting == 3
    stage.advance(60.0)
    assert (stage.states("x"), stage.states("y"), stage.has) == ({"x": "running"}, {"y": "circuit_open"}, [])
    stage.cancel(stage.actor("x", "x"))  # x, which was more urgent, gives the permit back
    assert (stage.states("y"), stage.has) == ({"y": "circuit_open"}, ["a"])
    stage.leave("a")
    assert stage.states("y") == {"y": "running"}


def test_an_operator_trips_and_resets_it_while_steps_wait() -> None:
    stage = Steps(tools=MANY)
    stage.use("a")
    breaker = stage.workforce.breakers["t"]
    stage.command(breaker, TripBreaker("sick"))
    assert stage.use("b") == "waits"
    stage.leave("a", **BAD)
    stage.command(breaker, ResetBreaker("mended"))
    assert stage.has == ["a", "b"]
    assert stage.breaker.failures == 0


def test_a_tool_that_asks_for_a_rest_gets_it_from_steps_too() -> None:
    stage = Steps(tools=MANY)
    stage.use("a")
    stage.leave("a", status="failed", error_type="RetryAfter", retry_after=50.0, category="transient")
    assert (stage.breaker.failures, stage.breaker.not_before) == (0, stage.time + 50)
    assert stage.use("b") == "waits"
    stage.advance(49.0)
    assert stage.has == ["a"]
    stage.advance(1.0)
    assert stage.has == ["a", "b"]


def test_an_undone_turn_leaves_the_counts_and_the_permit_as_they_were() -> None:
    stage = Steps()
    stage.use("a")
    stage.use("b")
    stage.use("c")
    breaker = stage.workforce.breakers["t"]
    stage.kernel.recovery.rebuild()
    stage.send(REBUILT)
    assert (stage.used, stage.waiting) == (1, 2)
    stage.leave("a")
    assert stage.has == ["a", "b"]
    stage.command(breaker, TripBreaker("sick"))
    stage.leave("b")
    stage.advance(60.0)
    assert stage.has == ["a", "b", "c"]  # the probe
    stage.kernel.recovery.rebuild()
    stage.send(REBUILT)
    assert stage.breaker.probe is not None
    assert stage.use("a", 2) == "waits"
    stage.leave("c")
    assert stage.has[-1] == "a2"
    stage.leave("a", 2)
    assert stage.nothing_is_left()


def test_after_a_crash_nothing_is_held_and_the_permit_of_a_step_is_free() -> None:
    stage = Steps(tools=MANY)
    stage.use("a")
    breaker = stage.workforce.breakers["t"]
    stage.command(breaker, TripBreaker("sick"))
    stage.use("b")
    stage.advance(60.0)
    assert (stage.has, stage.breaker.probe is None) == (["a", "b"], False)
    after = stage.after_crash()
    assert after.breaker.probe is None
    assert after.breaker.state == "half_open"
    assert not after.kernel.uses
    assert not after.workforce.scheduler.tools.get("t")


def test_a_drain_lets_no_step_begin_and_a_paused_workstream_does() -> None:
    stage = Steps()
    stage.command(stage.kernel.jobs["job"], Pause("lunch"))
    assert stage.use("a") == "has"
    stage.leave("a")
    stage.send(Drain(stop=False))
    assert stage.use("b") == "waits"


def test_while_it_drains_the_steps_of_bodies_that_must_not_run_again_get_their_tools() -> None:
    stage = Steps(task("a"), task("b"), task("c", on_loss="fail"), task("d", tool="t"))
    assert stage.states()["d"] == "running"
    assert [stage.use(name) for name in "abc"] == ["waits"] * 3
    stage.send(Drain(stop=False))
    stage.end(stage.token("d"))
    stage.settle()
    assert stage.has == ["c"]
    stage.leave("c")
    assert (stage.has, stage.used, stage.waiting) == (["c"], 0, 2)


def test_a_tool_that_nobody_declares_has_the_defaults() -> None:
    stage = Steps(tools={})
    for number in range(1, 6):
        assert stage.use("a", number) == "has"
        stage.leave("a", number, **BAD)
    assert (stage.breaker.state, stage.breaker.failures) == ("open", 5)


def test_nodes_share_the_limit_and_steps_ask_for_their_share() -> None:
    stage = Steps(node="web-1")
    shares = stage.kernel.scheduler.tool_quotas
    assert shares is not None
    assert stage.use("a") == stage.use("b") == "waits"
    want = shares.wants()["t"]
    assert (want.most, want.used, want.urgent) == (1, 0, 1)
    stage.send(ToolShares({"t": 1}))
    assert stage.has == ["a"]
    stage.leave("a")
    assert stage.has == ["a", "b"]
    stage.leave("b")
    assert shares.wants()["t"].used == 0


def test_only_the_node_that_may_probe_gives_the_permit_to_a_step() -> None:
    stage = Steps(node="web-1", tools=MANY)
    stage.send(ToolShares({"t": NO_LIMIT}))
    breaker = stage.workforce.breakers["t"]
    stage.send(ToolHeard("t", "open", 1, due_at=stage.time + 60))
    assert stage.use("a") == "waits"
    stage.advance(60.0)
    assert (stage.has, breaker.could_try) == ([], True)
    stage.send(ToolHeard("t", "half_open", 2, tries=True))
    assert stage.has == ["a"]
    stage.send(ToolHeard("t", "open", 3, due_at=stage.time + 60))  # another node was faster
    stage.leave("a")
    assert stage.breaker.state == "open"
