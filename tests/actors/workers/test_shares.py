"""The limit of a tool that nodes share: this node uses its part, and states the slots that it needs."""

from __future__ import annotations

from typing import Any

from tests.actors.jobs_help import child, goes_on, waits
from tests.actors.stage import KernelHarness, flow, hangs, task

from callboard.actors.messages.commands import Pause
from callboard.actors.messages.inputs import REBUILT, ToolShares
from callboard.actors.spec.model import Task, Tool, Worker
from callboard.actors.workers.queues import NO_LIMIT
from callboard.actors.workers.tool_limits import NONE_DECLARED, DeclaredLimit
from callboard.actors.workers.tool_quota import ToolQuotas, ToolWant

TOOLS = {"t": Tool(max_parallel=3)}


class Node(KernelHarness):
    """A stage of a node, which counts how often the node signals for shares."""

    def __init__(self, **more: Any) -> None:
        super().__init__(node="web-1", **more)
        self.rings = 0
        self.kernel.notify_nodes = self._rang

    def _rang(self) -> None:
        self.rings += 1

    @property
    def shares(self) -> ToolQuotas:
        shares = self.kernel.scheduler.tool_quotas
        assert shares is not None
        return shares

    def give(self, slots: int, word: DeclaredLimit | None = None) -> None:
        self.send(ToolShares({"t": slots}, words={} if word is None else {"t": word}))

    @property
    def want(self) -> ToolWant:
        return self.shares.wants()["t"]


def use(name: str, *needs: str, **more: Any) -> Task:
    return task(name, *needs, tool="t", optional=True, **more)


def node(*tasks: Task, job_id: str = "job", stage: Node | None = None, **more: Any) -> Node:
    """A node on which bodies hang, with these tasks."""
    stage = stage or Node(**more)
    stage.scripts |= {one.name: hangs for one in tasks}
    stage.submit(flow(*tasks, tools=TOOLS), job_id)
    return stage


def limits(stage: KernelHarness) -> tuple[int | None, str | None]:
    return stage.breaker.limit


def finish(stage: KernelHarness, name: str) -> None:
    stage.end(stage.token(name))
    stage.settle()


def test_nothing_starts_before_a_share_was_given_and_it_is_asked_for_once() -> None:
    stage = node(use("a"), use("b"), task("free"))
    assert stage.bodies() == ["free"]
    assert stage.rings == 1
    assert stage.want == ToolWant(most=3, used=0, urgent=2)
    stage.give(1)
    assert stage.bodies() == ["free", "a"]
    assert stage.rings == 2
    assert stage.want == ToolWant(most=3, used=1, urgent=1, share=1)
    stage.give(3)
    assert stage.bodies() == ["free", "a", "b"]
    assert stage.rings == 2


def test_before_the_first_task_of_a_tool_without_a_limit_it_is_asked_whether_another_node_says_one() -> None:
    stage = Node()
    stage.scripts |= dict.fromkeys("abcd", hangs)
    stage.submit(flow(use("a"), use("b")))
    assert (stage.bodies(), stage.rings) == ([], 1)
    assert stage.want == ToolWant(most=NO_LIMIT, used=0, urgent=2)
    stage.give(NO_LIMIT, NONE_DECLARED)
    assert (stage.bodies(), stage.rings) == (["a", "b"], 1)
    stage.submit(flow(use("c")), "more")
    assert (stage.bodies(), stage.rings) == (["a", "b", "c"], 1)  # and not again for each
    stage.shares.hold("t")
    stage.give(0, DeclaredLimit(2, "the runtime of web-2"))
    stage.submit(flow(use("d")), "last")
    assert (stage.bodies(), limits(stage)) == (["a", "b", "c"], (2, "the runtime of web-2"))
    assert stage.want == ToolWant(most=2, used=3, urgent=1)


def test_what_other_nodes_say_of_a_limit_holds_until_something_stricter_is_said_here() -> None:
    stage = node(use("a"), use("b"), use("c"))
    stage.give(2, DeclaredLimit(2, "there"))
    assert (len(stage.running), limits(stage), stage.shares.scheduler.workforce.tool_limits.words) == (
        2, (2, "there"), {"t": DeclaredLimit(3, "job")},
    )  # fmt: skip
    stage.shares.wants()
    before = stage.rings
    stage.scripts["free"] = hangs
    stage.submit(flow(task("free"), tools={"t": Tool(max_parallel=1)}), "strict")
    assert (limits(stage), stage.want.most, stage.rings) == ((1, "strict"), 1, before + 1)
    stage.give(2, DeclaredLimit(2, "there"))  # which was decided before
    finish(stage, "a")
    assert (stage.bodies(), limits(stage)) == (["a", "b", "free"], (1, "strict"))
    stage.end(stage.task("free", "strict").token)
    stage.settle()
    assert stage.workforce.tool_limits.words == {"t": DeclaredLimit(3, "job")}
    stage.give(3, DeclaredLimit(3, "job"))
    assert (stage.bodies(), limits(stage)) == (["a", "b", "free", "c"], (3, "job"))


def test_what_held_last_here_gives_way_to_what_another_node_says_and_is_told_as_what_it_is() -> None:
    stage = Node()
    stage.submit(flow(task("free"), tools={"t": Tool(max_parallel=2)}), "said")
    assert stage.state("said") == "completed"
    assert stage.workforce.tool_limits.words == {"t": DeclaredLimit(2, "said", last=True)}
    stage.scripts["a"] = hangs
    stage.submit(flow(use("a")), "silent")
    assert (limits(stage), stage.want.most) == ((2, "said"), 2)
    stage.give(1, DeclaredLimit(5, "there"))
    assert (limits(stage), stage.want.most) == ((5, "there"), 5)
    after = stage.after_crash()
    assert (after.breaker.limit, after.workforce.tool_limits.words) == ((5, "there"), stage.workforce.tool_limits.words)


def test_where_the_limit_falls_no_more_begins_before_the_others_were_asked() -> None:
    stage = node(*(use(name) for name in "abcd"))
    stage.give(3)
    assert len(stage.running) == 3
    finish(stage, "a")
    finish(stage, "b")
    stage.scripts["e"] = hangs
    stage.shares.wants()
    before, running = stage.rings, len(stage.running)
    stage.submit(flow(use("e"), tools={"t": Tool(max_parallel=2)}), "strict")
    assert (len(stage.running), stage.rings, stage.want.most) == (running, before + 1, 2)


def test_an_undone_turn_says_nothing_to_other_nodes() -> None:
    stage = node(use("a"))
    job = stage.kernel.jobs["job"]
    stage.workforce.tool_limits.ended(job)
    assert stage.workforce.tool_limits.words == {"t": DeclaredLimit(3, "job", last=True)}
    stage.kernel.recovery.rebuild()
    assert stage.workforce.tool_limits.words == {"t": DeclaredLimit(3, "job")}


def test_a_share_that_falls_takes_no_slot_away_and_what_comes_free_is_told() -> None:
    stage = node(*(use(name) for name in "abcde"))
    stage.give(3)
    stage.shares.wants()
    stage.give(1)
    assert len(stage.running) == 3
    before = stage.rings
    finish(stage, "a")
    assert (len(stage.running), stage.rings) == (2, before + 1)
    assert stage.want == ToolWant(most=3, used=2, urgent=2, share=1)
    finish(stage, "b")
    assert len(stage.running) == 1
    finish(stage, "c")
    assert stage.bodies() == ["a", "b", "c", "d"]


def test_while_it_is_asked_nobody_begins_in_what_was_free() -> None:
    stage = node(use("a"))
    stage.give(3)
    stage.shares.hold("t")
    node(use("b"), job_id="more", stage=stage)
    assert stage.bodies() == ["a"]
    stage.give(2)
    assert stage.bodies() == ["a", "b"]


def test_a_slot_counts_until_the_body_is_gone() -> None:
    stage = node(use("a"), use("b"))
    stage.give(1)
    stage.deaf.add("a")
    stage.cancel(stage.actor("a"), force=True)
    assert stage.states() == {"a": "cancelled", "b": "queued"}
    assert stage.want.used == 1
    finish(stage, "a")
    assert stage.bodies() == ["a", "b"]


def test_how_urgent_those_are_that_wait() -> None:
    stage = node(use("a"), use("b", priority=5), use("c", priority=5), use("d"))
    assert stage.want == ToolWant(most=3, used=0, urgent=2, priority=5, less=1)  # never more than the limit
    before = stage.rings
    node(use("e", priority=9), job_id="more", stage=stage)
    assert stage.rings == before + 1
    assert stage.want == ToolWant(most=3, used=0, urgent=1, priority=9, less=2)
    stage.give(1)
    assert stage.bodies() == ["e"]


def test_a_more_urgent_task_of_the_same_workstream_rings_again() -> None:
    stage = Node()
    stage.scripts |= {"a": hangs, "first": hangs}
    stage.submit(flow(task("first"), use("a"), use("b", "first", priority=7), tools=TOOLS))
    assert stage.want == ToolWant(most=3, used=0, urgent=1)
    before = stage.rings
    finish(stage, "first")
    assert stage.rings == before + 1
    assert stage.want == ToolWant(most=3, used=0, urgent=1, priority=7, less=1)


def test_no_more_is_wanted_than_there_are_workers_for() -> None:
    stage = node(*(use(name) for name in "abc"), workers=(Worker("w", engine="loop", capacity=2),))
    assert stage.want == ToolWant(most=3, used=0, urgent=2)
    node(use("d"), job_id="more", stage=stage)
    assert stage.want == ToolWant(most=3, used=0, urgent=3)  # always at least one for the queue at the gate


def test_what_is_paused_or_withdrawn_wants_nothing() -> None:
    stage = node(task("run"), use("a"), use("b"))
    assert stage.command(stage.kernel.jobs["job"], Pause("asked to")) is None
    assert stage.want == ToolWant(most=3, used=0)
    node(use("c"), job_id="more", stage=stage)
    assert stage.want == ToolWant(most=3, used=0, urgent=1)
    stage.cancel(stage.kernel.jobs["more"])
    assert stage.want == ToolWant(most=3, used=0)


def test_a_slot_that_was_lent_is_had_back_by_a_share() -> None:
    stage = node(use("a"), use("b"))
    stage.give(1)
    child(stage, stage.token("a"), flow(task("c")), "job/a/x")
    waits(stage, stage.token("a"))
    assert stage.bodies()[-1] == "b"
    goes_on(stage, stage.token("a"))
    assert stage.want == ToolWant(most=3, used=1, urgent=1, share=1)
    assert len(stage.kernel.slots) == 1
    stage.give(2)
    assert len(stage.kernel.slots) == 2


def test_what_was_given_outlives_an_undone_turn_and_not_a_restart() -> None:
    stage = node(use("a"), use("b"))
    stage.give(1)
    stage.kernel.recovery.rebuild()
    stage.send(REBUILT)
    assert stage.want == ToolWant(most=3, used=1, urgent=1, share=1)
    after = stage.after_crash()
    assert after.running == {}
    assert after.kernel.scheduler.tool_quotas is not None
    want = after.kernel.scheduler.tool_quotas.wants()["t"]
    assert (want.used, want.share) == (0, 0)


def test_what_a_workstream_says_of_the_limit_holds_and_is_told_to_the_others() -> None:
    stage = node(use("a"))
    stage.give(3)
    assert stage.want.most == 3
    before = stage.rings
    stage.scripts["b"] = hangs
    stage.submit(flow(use("b"), tools={"t": Tool(max_parallel=1)}), "two")
    assert stage.bodies() == ["a"]  # also in a share that was given under the limit before
    assert stage.want.most == 1
    assert stage.rings == before + 1
    assert stage.reports == [
        "job two sets max_parallel = 1 for tool 't', but 3 was in force: the strictest limit holds, which is 1"
    ]


def test_a_limit_that_is_said_while_tasks_run_is_asked_for_with_what_they_use() -> None:
    stage = Node()
    stage.scripts |= dict.fromkeys("abc", hangs)
    stage.submit(flow(use("a"), use("b")), "silent")
    stage.give(NO_LIMIT, NONE_DECLARED)
    stage.submit(flow(use("c"), tools=TOOLS), "says")
    assert stage.bodies() == ["a", "b"]
    assert stage.want == ToolWant(most=3, used=2, urgent=1, share=2)
    stage.give(3)
    assert stage.bodies() == ["a", "b", "c"]


def test_an_answer_that_comes_after_a_later_question_lets_nothing_begin() -> None:
    stage = node(use("a"), use("b"))
    stage.shares.hold("t")
    first = stage.shares.asked["t"]
    stage.shares.hold("t")  # which has said that nothing is in use
    stage.send(ToolShares({"t": 2}, asked={"t": first}))
    assert stage.bodies() == []
    stage.send(ToolShares({"t": 1}, asked={"t": stage.shares.asked["t"]}))
    assert stage.bodies() == ["a"]
