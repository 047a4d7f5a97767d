"""One breaker of a tool for all nodes: kernels under a test's control exchange its state as the service does."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.actors.stage import KernelHarness, fails, flow, hangs, task

from callboard.actors.messages.commands import Command, Reply, ResetBreaker, TripBreaker
from callboard.actors.records.transition import as_event
from callboard.actors.spec.model import Breaker, Retry, Task, Tool
from callboard.actors.workers import tools
from callboard.actors.workers.breaker import BreakerActor
from callboard.machines.audit.audit import audit
from callboard.runtime.cluster.breakers import BreakerSnapshot, to_hear, to_say
from callboard.runtime.journal.cluster import ToolState

TOOLS = {"t": Tool(breaker=Breaker(failure_threshold=2, cooldown=60))}
AGAIN = Retry(max_attempts=9, base_delay=1, max_delay=1, jitter=0)
NAMES = ("web-1", "web-2", "web-3")


def use(name: str, **more: Any) -> Task:
    return task(name, tool="t", optional=True, **more)


class Nodes:
    """Nodes that share the row of a tool. Those in `deaf` neither write nor read it."""

    def __init__(self, *names: str) -> None:
        self.row: ToolState | None = None
        self.stages = {name: KernelHarness(node=name) for name in names or NAMES}
        self.deaf: set[str] = set()
        self.gone: set[str] = set()
        self.written: list[tuple[str, str]] = []
        self.jobs = 0

    def __getitem__(self, name: str) -> KernelHarness:
        return self.stages[name]

    def breaker(self, name: str) -> BreakerActor:
        return self[name].workforce.breakers["t"]

    def states(self) -> list[str]:
        return [str(one.workforce.breakers["t"].record.state) for one in self.stages.values() if one.workforce.breakers]

    def submit(self, name: str, *tasks: Task) -> str:
        """Submit these on a node; returns the job's id."""
        self.jobs += 1
        job_id = f"job{self.jobs}"
        self[name].submit(flow(*tasks, tools=TOOLS), job_id)
        return job_id

    def seen(self, name: str) -> BreakerSnapshot | None:
        breaker = self[name].workforce.breakers.get("t")
        return None if breaker is None else BreakerSnapshot(breaker.record, breaker.could_try, breaker.tries)

    def agree(self, *order: str, known: ToolState | None = None) -> None:
        """Let all nodes read and write until none has a change. known: the row that the first node has read."""
        for _ in range(20):
            changed = False
            for name in order or self.stages:
                if name not in self.deaf | self.gone:
                    changed |= self.look(name, known if known is not None and name == order[0] else self.row)
            if not changed:
                return
        raise AssertionError("they do not come to agree")

    def look(self, name: str, row: ToolState | None) -> bool:
        seen, said, now = self.seen(name), None, self[name].time
        say = None if seen is None else to_say(seen, row, name, now, gone=row is not None and row.home in self.gone)
        if say is not None:
            said = say
            if self.row is None or self.row.generation + 1 == say.generation:
                self.row = say
                self.written.append((name, say.state))
            row = self.row
        hear = to_hear(self.seen(name), "t", row, name, said)
        if hear is not None:
            self[name].send(hear)
        return (say or hear) is not None

    def advance(self, seconds: float) -> None:
        for one in self.stages.values():
            one.advance(seconds)
        self.agree()

    def open_on(self, name: str) -> None:
        """Have it open on a node, by failures."""
        self[name].scripts |= {"x": fails(), "y": fails()}
        self.submit(name, use("x"), use("y"))
        assert self.breaker(name).record.state == "open"

    def check(self) -> None:
        """Check that no node's own history breaks a rule, and that never two nodes tried the tool at a time."""
        for stage in self.stages.values():
            assert stage.audit() == []

    @property
    def tries(self) -> list[str]:
        """The nodes that may try the tool now."""
        return [name for name in self.stages if name not in self.gone and (seen := self.seen(name)) and seen.tries]


def test_opened_on_one_node_it_is_open_on_all_and_each_says_where_and_why() -> None:
    nodes = Nodes()
    nodes["web-2"].scripts["a"] = hangs
    job = nodes.submit("web-2", use("a"))
    nodes.open_on("web-1")
    nodes.agree()
    assert nodes.states() == ["open", "open", "open"]  # web-3 has never used it
    told = {name: nodes.breaker(name).record.reason for name in NAMES}
    assert told == {"web-1": None, "web-2": "opened on web-1: 2 failures", "web-3": "opened on web-1: 2 failures"}
    assert nodes.breaker("web-3").retry_in() == 60
    nodes.submit("web-2", use("b"))
    assert nodes["web-2"].task("b", "job3").reason == "tool 't' is not healthy"
    nodes["web-2"].end(nodes["web-2"].task("a", job).token, "failed")  # begun before: it does not count here
    nodes["web-2"].settle()
    assert nodes.breaker("web-2").record.failures == 0
    nodes.check()


def test_after_the_cooldown_one_node_tries_and_when_it_works_all_go_on() -> None:
    nodes = Nodes()
    nodes.open_on("web-1")
    nodes.agree()
    nodes.submit("web-2", use("a"), use("b"))
    nodes.submit("web-3", use("c"), use("d"))
    for name in ("web-2", "web-3"):
        nodes[name].scripts |= dict.fromkeys("abcd", hangs)
    nodes.advance(59)
    assert nodes.tries == []
    nodes.advance(1)
    assert nodes.tries == ["web-2"]
    assert nodes.states() == ["open", "half_open", "open"]
    assert [len(one.running) for one in nodes.stages.values()] == [0, 1, 0]
    nodes["web-2"].end(nodes["web-2"].task("a", "job2").token)
    nodes["web-2"].settle()
    nodes.agree()
    assert nodes.states() == ["closed"] * 3
    assert [len(one.running) for one in nodes.stages.values()] == [0, 1, 2]
    assert nodes.breaker("web-3").record.reason == "closed on web-2: it works again"
    nodes.check()


def test_a_try_that_fails_keeps_it_open_everywhere_for_another_cooldown() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes.agree()
    nodes["web-2"].scripts["a"] = fails()
    nodes.submit("web-2", use("a", retry=AGAIN))
    nodes.advance(60)
    assert nodes.states() == ["open", "open"]
    assert [nodes.breaker(name).retry_in() for name in ("web-1", "web-2")] == [60, 60]
    assert nodes.row is not None
    assert (nodes.row.home, nodes.row.reason) == ("web-2", "opened on web-2: it still fails")
    nodes["web-2"].scripts.clear()
    nodes.advance(60)
    assert nodes.states() == ["closed", "closed"]
    assert nodes["web-2"].states("job2") == {"a": "completed"}
    nodes.check()


@pytest.mark.parametrize("order", [("web-1", "web-2"), ("web-2", "web-1")])
def test_two_that_open_at_once_agree_on_one_of_them(order: tuple[str, str]) -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes.open_on("web-2")
    nodes.look(order[0], None)
    nodes.look(order[1], None)  # which knew of nothing
    nodes.agree()
    assert nodes.states() == ["open", "open"]
    assert nodes.written == [(order[0], "open")]
    assert not any(nodes.breaker(name).news for name in order)
    nodes.check()


def test_an_operator_on_any_node_opens_and_closes_it_everywhere() -> None:
    nodes = Nodes()
    nodes.submit("web-1", use("a"))
    nodes.submit("web-2", use("b"))
    nodes["web-2"].command(nodes.breaker("web-2"), TripBreaker("maintenance", "ana", 600))
    nodes.agree()
    assert nodes.states() == ["open"] * 3
    assert nodes.breaker("web-1").retry_in() == 600
    assert nodes.breaker("web-3").record.reason == "opened on web-2: maintenance"
    nodes["web-1"].command(nodes.breaker("web-1"), TripBreaker("longer", "ana", 900))
    nodes.agree()
    assert [nodes.breaker(name).retry_in() for name in NAMES] == [900] * 3
    nodes["web-3"].command(nodes.breaker("web-3"), ResetBreaker("done", "ana"))
    nodes.agree()
    assert nodes.states() == ["closed"] * 3
    assert nodes.breaker("web-1").record.reason == "closed on web-3: done"
    nodes.check()


def test_closing_what_is_closed_tells_the_others_nothing() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.submit("web-1", use("a"))
    for _ in range(2):
        nodes["web-1"].command(nodes.breaker("web-1"), ResetBreaker("to be sure"))
        nodes.agree()
        assert not nodes.breaker("web-1").news
    assert nodes.written == []
    nodes.open_on("web-2")
    nodes.agree()
    assert nodes.states() == ["open", "open"]


def test_an_operator_who_opens_it_while_another_node_tries_takes_the_permit_back() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes["web-1"].scripts["a"] = hangs
    job = nodes.submit("web-1", use("a"))
    nodes.agree()
    nodes.advance(60)
    assert nodes.tries == ["web-1"]
    nodes["web-2"].command(nodes.breaker("web-2"), TripBreaker("not yet"))
    nodes.agree()
    assert nodes.tries == []
    nodes["web-1"].end(nodes["web-1"].task("a", job).token)
    nodes["web-1"].settle()
    nodes.agree()
    assert nodes.states() == ["open", "open"]
    nodes.check()


def test_who_has_no_task_left_to_try_it_with_lets_the_others() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes.agree()
    nodes["web-1"].scripts["a"] = hangs
    nodes["web-2"].scripts["b"] = hangs
    job = nodes.submit("web-1", use("a"))
    nodes.advance(60)
    assert nodes.tries == ["web-1"]
    nodes.submit("web-2", use("b"))
    nodes.agree()
    assert nodes["web-2"].running == {}
    nodes["web-1"].cancel(nodes["web-1"].actor("a", job), force=True)
    nodes.agree()
    assert nodes.tries == ["web-2"]
    assert len(nodes["web-2"].running) == 1
    nodes.check()


def test_where_nobody_has_a_task_it_waits_for_the_first_one() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes.agree()
    nodes.advance(600)
    assert nodes.tries == []
    job = nodes.submit("web-2", use("a"))
    assert nodes["web-2"].states(job) == {"a": "circuit_open"}
    nodes.agree()
    assert nodes["web-2"].states(job) == {"a": "completed"}
    assert nodes.states() == ["closed", "closed"]
    nodes.check()


def test_when_the_node_that_tries_is_gone_another_one_does() -> None:
    nodes = Nodes()
    nodes.open_on("web-1")
    nodes["web-1"].scripts["a"] = hangs
    nodes.submit("web-1", use("a"))
    nodes.agree()
    nodes.advance(60)
    nodes.submit("web-2", use("b"))
    nodes.agree()
    assert nodes.tries == ["web-1"]
    nodes.gone.add("web-1")
    nodes.agree()
    assert [str(nodes.breaker(name).record.state) for name in ("web-2", "web-3")] == ["closed", "closed"]
    assert nodes["web-2"].states("job3") == {"b": "completed"}
    nodes.check()


def test_a_node_that_comes_back_under_its_name_does_not_try_by_itself() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes["web-1"].scripts |= {"a": hangs, "b": hangs}
    nodes.submit("web-1", use("a"), use("b"))
    nodes.agree()
    nodes.advance(60)
    assert nodes.tries == ["web-1"]
    after = nodes.stages["web-1"] = nodes["web-1"].after_crash()
    assert nodes.tries == []
    assert after.running == {}
    nodes.agree()  # the node announces its probe again
    assert nodes.tries == ["web-1"]
    assert len(after.running) == 1
    assert nodes.written[-2:] == [("web-1", "half_open"), ("web-1", "half_open")]
    assert after.audit() == []


def test_a_node_that_was_not_reached_follows_when_it_is_again() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.submit("web-2", use("b"))
    nodes.deaf.add("web-2")
    nodes.open_on("web-1")
    nodes.agree()
    nodes.submit("web-1", use("a"))
    nodes.advance(60)
    nodes.open_on("web-1")
    nodes.agree()
    assert nodes.states() == ["open", "closed"]
    nodes.deaf.clear()
    nodes.agree()
    assert nodes.states() == ["open", "open"]
    nodes["web-2"].command(nodes.breaker("web-2"), ResetBreaker("it is well"))
    old = nodes.row
    nodes["web-1"].command(nodes.breaker("web-1"), TripBreaker("it is not"))
    nodes.agree("web-1")
    nodes.agree("web-2", "web-1", known=old)  # too late: it follows
    assert nodes.states() == ["open", "open"]
    nodes.check()


def test_all_nodes_histories_together_show_one_who_tries_at_a_time() -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes.agree()
    nodes["web-2"].scripts |= {"a": hangs}
    nodes["web-1"].scripts |= {"b": hangs}
    nodes.submit("web-2", use("a"))
    nodes.submit("web-1", use("b"))
    nodes.advance(60)
    nodes["web-1"].end(nodes["web-1"].task("b", "job3").token)
    nodes["web-1"].settle()
    nodes.agree()
    rows = [(t.at, name, t) for name, one in nodes.stages.items() for t in one.kept.transitions]
    told = [t for _, _, t in sorted(rows, key=lambda row: row[:2])]
    events = [as_event(t) for t in told]
    assert not [finding for finding in audit(events) if finding.kind == "two_probes"]


def happens(nodes: Nodes, random: Random, number: int) -> None:
    """Cause an event on one of the nodes, or let time pass."""
    name = random.choice(NAMES)
    stage, breaker = nodes[name], nodes.breaker(name)
    match random.randint(0, 8):
        case 0 | 1:
            stage.scripts[f"a{number}"] = random.choice([fails(), hangs])
            nodes.submit(name, use(f"a{number}"))
        case 2 | 3 if stage.running:
            stage.end(random.choice(sorted(stage.running)), random.choice(["ok", "failed", "lost"]))
            stage.settle()
        case 4:
            stage.command(breaker, TripBreaker("said so"))
        case 5:
            stage.command(breaker, ResetBreaker("said so"))
        case 6:
            nodes.look(name, nodes.row)
        case 7 if not random.randint(0, 5):
            nodes.stages[name] = stage.after_crash()
        case _:
            for one in nodes.stages.values():
                one.advance(7)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_nodes_agree_and_one_of_them_tries_at_most(seed: int) -> None:
    random = Random(seed)
    nodes = Nodes()
    for name in NAMES:
        nodes.submit(name, use("first"))
    for number in range(120):
        happens(nodes, random, number)
        if random.randint(0, 2):
            nodes.agree()
            assert len(nodes.tries) <= 1
            closed = nodes.row is None or nodes.row.state == "closed"
            assert [state == "closed" for state in nodes.states()] == [closed] * 3
    for name in NAMES:
        nodes[name].command(nodes.breaker(name), ResetBreaker("the end"))
    nodes.agree()
    assert nodes.states() == ["closed"] * 3
    nodes.check()


def lets_go(nodes: Nodes, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a node use so many other tools that it drops the breakers of unused tools."""
    monkeypatch.setattr(tools, "BREAKERS_KEPT", 2)
    stage = nodes[name]
    nodes.jobs += 1
    others = (task(f"o{n}", tool=f"other-{nodes.jobs}-{n}") for n in range(6))
    stage.submit(flow(*others), f"others{nodes.jobs}")
    stage.settle()


def test_a_breaker_that_a_node_let_go_of_hears_anew_and_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes.agree()
    nodes["web-1"].kernel.run(Command(nodes.breaker("web-1").record.key, ResetBreaker("well"), Reply(None)))
    nodes["web-1"].settle()
    nodes.agree()
    assert nodes.states() == ["closed", "closed"]
    lets_go(nodes, "web-1", monkeypatch)
    assert "t" not in nodes["web-1"].workforce.breakers
    nodes.agree()
    assert "t" not in nodes["web-1"].workforce.breakers  # all breakers are closed: there is nothing to learn
    nodes.open_on("web-1")  # a new breaker begins, and the other nodes learn of it
    nodes.agree()
    assert nodes.states() == ["open", "open"]
    nodes.check()


def test_a_breaker_that_others_have_found_ill_comes_back_to_a_node_that_let_go_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.submit("web-1", use("a"))
    nodes["web-1"].settle()
    lets_go(nodes, "web-1", monkeypatch)
    assert "t" not in nodes["web-1"].workforce.breakers
    nodes.open_on("web-2")
    nodes.agree()
    assert nodes.breaker("web-1").record.state == "open"
    lets_go(nodes, "web-1", monkeypatch)
    assert "t" in nodes["web-1"].workforce.breakers  # the tool is not healthy
    nodes.check()


def test_a_breaker_with_news_for_the_others_is_not_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes("web-1", "web-2")
    nodes.open_on("web-1")
    nodes.agree()
    nodes["web-1"].kernel.run(Command(nodes.breaker("web-1").record.key, ResetBreaker("well"), Reply(None)))
    nodes["web-1"].settle()
    lets_go(nodes, "web-1", monkeypatch)
    nodes.agree()
    assert nodes.states() == ["closed", "closed"]
    nodes.check()
