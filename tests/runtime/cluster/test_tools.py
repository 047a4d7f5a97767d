"""Tools of several nodes: their limit holds over all nodes, and there is one breaker for all."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from callboard import Breaker, Runtime, Task, TaskContext, Tool, Workstream
from callboard.actors.messages.inputs import ToolShares
from callboard.actors.workers import tools
from callboard.actors.workers.tool_quota import ToolQuotas
from callboard.runtime.cluster.tools import IDLE
from callboard.runtime.journal.sharing import TURN

from .scene import Nodes
from .test_taking_over import fenced_in_the_end

pytestmark = pytest.mark.anyio

LIMIT = 3
NAMES = ("a", "b", "c")


class Users:
    """Counts the present uses of the tool, by node."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.most = 0
        self.began: list[str] = []
        self.ill = False
        self.held: set[str] = set()  # names of tasks whose bodies do not end by themselves
        self.go_on = anyio.Event()


users: Users


async def uses(task: TaskContext) -> None:
    """Use the tool for a little while."""
    node = task.job_id.partition("-")[0]
    users.now.append(node)
    users.began.append(node)
    users.most = max(users.most, len(users.now))
    try:
        if task.task in users.held:
            await users.go_on.wait()
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
    finally:
        users.now.remove(node)
    if users.ill:
        raise RuntimeError("the tool is ill")


@pytest.fixture
def scene() -> Nodes:
    global users  # noqa: PLW0603 - bodies are found by their import path
    users = Users()
    return Nodes()


def work(count: int, *, limit: int | None = LIMIT, name: str = "x", **more: object) -> Workstream:
    tool = Tool(max_parallel=limit, breaker=Breaker(failure_threshold=2, cooldown=60))
    tasks = [Task(f"{name}{n}", run=uses, tool="cc", optional=True, **more) for n in range(count)]  # type: ignore[arg-type]
    return Workstream("w", tasks=tasks, tools={"cc": tool})


def held(scene: Nodes) -> dict[str, int]:
    """Return the slots of the tool that each node holds."""
    return {name: claim.held for name, claim in sorted(scene.base.claims.get("cc", {}).items()) if claim.held}


async def test_three_nodes_together_never_use_more_than_the_limit_and_all_is_done(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.runtime("c") as c, scene.ticking():
        jobs = [await one.submit(work(40), id=f"{name}-1") for name, one in zip(NAMES, (a, b, c), strict=True)]
        for job in jobs:
            assert (await job.wait()).state == "completed"
        assert users.most == LIMIT
        assert len(users.began) == 120
        thirds = [set(users.began[n : n + 40]) for n in (0, 40, 80)]
        assert thirds[0] == set(NAMES)  # no node waited until the others had ended


async def test_a_node_that_does_not_keep_to_its_share_would_be_found_out(
    scene: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = ToolQuotas.take

    def takes_all(self: ToolQuotas, message: ToolShares) -> None:
        take(self, ToolShares(dict.fromkeys(message.shares, LIMIT)))

    monkeypatch.setattr(ToolQuotas, "take", takes_all)
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        for job in [await one.submit(work(40), id=f"{name}-1") for name, one in (("a", a), ("b", b))]:
            await job.wait()
        assert users.most > LIMIT


async def test_a_task_waits_no_longer_than_a_question_takes_where_slots_are_free(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b"):
        job = await a.submit(work(3), id="a-1")
        with anyio.fail_after(300):  # no virtual time passes
            await job.wait()
        assert held(scene) == {"a": 3}
        asked = scene.base.shares_asked
        job = await a.submit(work(3), id="a-2")
        await job.wait()
        assert scene.base.shares_asked == asked  # it still had them


async def test_slots_that_nobody_needs_come_back_after_a_while(scene: Nodes) -> None:
    async with scene.runtime("a") as a:
        await (await a.submit(work(3), id="a-1")).wait()
        start = scene.clock.monotonic()
        await scene.until(lambda: held(scene) == {})
        assert IDLE <= scene.clock.monotonic() - start <= IDLE + 11


async def test_what_another_node_only_keeps_is_had_at_once(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        await (await a.submit(work(3), id="a-1")).wait()
        start = scene.clock.monotonic()
        users.held.add("x0")
        await b.submit(work(1), id="b-1")
        await scene.until(lambda: users.now == ["b"])
        assert scene.clock.monotonic() - start < 0.5
        users.go_on.set()


async def test_where_others_wait_each_slot_that_comes_free_goes_on_at_once(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b:
        users.held |= {f"{name}{n}" for name in "xy" for n in range(3)}
        await a.submit(work(3), id="a-1")
        await scene.until(lambda: users.now == ["a"] * 3)
        await b.submit(work(3, name="y"), id="b-1")
        await scene.until(lambda: held(scene).get("a") == 3 and b.breaker("cc"))
        later = scene.clock.monotonic() + 0.4
        await scene.until(lambda: scene.clock.monotonic() > later)
        start = scene.clock.monotonic()
        users.go_on.set()
        users.go_on = anyio.Event()
        await scene.until(lambda: users.now == ["b"] * 3)
        assert scene.clock.monotonic() - start < 0.5
        users.go_on.set()


async def test_a_more_urgent_task_gets_the_next_slot_that_comes_free(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b:
        users.held |= {f"x{n}" for n in range(9)}
        await a.submit(work(9), id="a-1")
        await scene.until(lambda: len(users.now) == 3)
        await b.submit(work(2, name="y", priority=5), id="b-1")
        await scene.until(lambda: b.breaker("cc"))
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        before = len(users.began)
        users.go_on.set()
        users.go_on = anyio.Event()
        await scene.until(lambda: users.began[before:].count("b") == 2)
        assert users.began[before : before + 3].count("b") == 2
        assert users.most == 3
        while users.now:
            users.go_on.set()
            await anyio.lowlevel.checkpoint()


async def test_one_slot_goes_round(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b:
        jobs = [await one.submit(work(800, limit=1), id=f"{name}-1") for name, one in (("a", a), ("b", b))]
        for _ in range(2):
            count = users.began.count("b")
            await scene.until(lambda count=count: users.began.count("b") > count)
            count = users.began.count("a")
            await scene.until(lambda count=count: users.began.count("a") > count)
        assert scene.clock.monotonic() <= 4 * (TURN + 10)  # and until the next look, which comes at random
        assert users.most == 1
        for job in jobs:
            await job.cancel(force=True)


async def test_what_a_fenced_node_had_is_free_and_what_runs_counts_until_then(scene: Nodes) -> None:
    async with scene.runtime("b") as b, fenced_in_the_end(scene, "a") as lost:
        users.held |= {"x0", "x1"}
        await lost.submit(work(2), id="a-1")
        await scene.until(lambda: users.now == ["a", "a"])
        scene.nodes["a"].cut_off()
        users.held |= {"y0", "y1"}
        await b.submit(work(2, name="y"), id="b-1")
        await scene.until(lambda: len(users.now) == 3)
        assert held(scene) == {"a": 2, "b": 1}
        await scene.until(lambda: scene.nodes["a"].fenced)
        await scene.until(lambda: held(scene).get("b") == 3)
        users.go_on.set()


async def test_where_the_answer_does_not_come_nothing_more_begins(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        users.held |= {"x0"}
        await a.submit(work(1), id="a-1")
        await scene.until(lambda: users.now == ["a"])
        scene.nodes["a"].cluster.answers_lost = True
        await b.submit(work(3, name="z"), id="b-1")  # it needs the slots that `a` keeps
        job = await a.submit(work(5, name="y"), id="a-2")
        await scene.until(lambda: users.began.count("b") == 3)
        for _ in range(200):
            await anyio.lowlevel.checkpoint()
        assert users.began.count("a") == 1
        scene.nodes["a"].cluster.answers_lost = False
        await job.wait()
        assert users.most <= 3
        users.go_on.set()


async def test_what_was_given_in_an_answer_that_did_not_come_is_given_back(scene: Nodes) -> None:
    async with scene.runtime("a") as a:
        scene.nodes["a"].cluster.answers_lost = True
        job = await a.submit(work(2), id="a-1")
        await scene.until(lambda: held(scene) == {"a": 2})
        await job.cancel()
        await scene.until(lambda: job.ended)
        scene.nodes["a"].cluster.answers_lost = False
        await scene.until(lambda: held(scene) == {})


# -- limits that one node states ---------------------------------------------------------------------------------------


def silent(count: int, name: str = "x") -> Workstream:
    """A workstream whose tasks use the tool, and that states no limit for it."""
    return Workstream("w", tasks=[Task(f"{name}{n}", run=uses, tool="cc", optional=True) for n in range(count)])


def says(limit: int = LIMIT) -> dict[str, object]:
    """The settings of a runtime that states a limit."""
    return {"tools": {"cc": Tool(max_parallel=limit)}}


def limit_of(runtime: Runtime) -> tuple[int | None, str | None]:
    return runtime.breaker("cc").record.limit


async def test_a_limit_that_one_program_says_binds_the_nodes_whose_programs_do_not(scene: Nodes) -> None:
    async with scene.runtime("a", **says()) as a, scene.runtime("b") as b, scene.ticking():
        jobs = [await one.submit(silent(40), id=f"{name}-1") for name, one in (("b", b), ("a", a))]
        for job in jobs:
            assert (await job.wait()).state == "completed"
        assert users.most == LIMIT
        assert (limit_of(a), limit_of(b)) == ((LIMIT, "runtime"), (LIMIT, "the runtime of a"))


async def test_a_limit_that_a_workstream_says_binds_those_that_use_the_tool_on_another_node(
    scene: Nodes,
) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        users.held |= {"y0"}
        await a.submit(work(1, name="y"), id="a-1")
        await scene.until(lambda: users.now == ["a"])
        job = await b.submit(silent(40), id="b-1")
        assert (await job.wait()).state == "completed"
        assert (users.most, limit_of(b)) == (LIMIT, (LIMIT, "a-1"))
        users.go_on.set()
        await (await a.job("a-1")).wait()
        await (await b.submit(silent(40), id="b-2")).wait()  # it held last
        assert users.most == LIMIT
        await (await b.submit(work(40, limit=5), id="b-3")).wait()  # and follows the limit that is stated
        assert (users.most, limit_of(b)) == (5, (5, "b-3"))


async def test_who_says_a_limit_waits_for_those_who_use_the_tool_without_one(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b:
        users.held |= {f"x{n}" for n in range(10)}
        await b.submit(silent(10), id="b-1")
        await scene.until(lambda: len(users.now) == 10)  # as many as its worker takes
        assert limit_of(b) == (None, None)
        await a.submit(work(5, name="y"), id="a-1")
        await b.submit(silent(40, name="z"), id="b-2")
        await scene.until(lambda: limit_of(b) == (LIMIT, "a-1"))
        later = scene.clock.monotonic() + 20
        await scene.until(lambda: scene.clock.monotonic() > later)
        assert len(users.began) == 10
        users.most, users.held = 0, set()  # from here on it is counted at each beginning
        users.go_on.set()
        await scene.until(lambda: len(users.began) == 55)
        assert users.most <= LIMIT


async def test_what_the_runtime_of_a_node_said_holds_while_it_is_away_and_until_it_is_back(
    scene: Nodes,
) -> None:
    async with scene.runtime("b") as b:
        async with scene.runtime("a", **says()):
            pass
        async with scene.ticking():
            await (await b.submit(silent(20), id="b-1")).wait()
            assert (users.most, limit_of(b)) == (LIMIT, (LIMIT, "the runtime of a"))
        async with scene.runtime("a"), scene.ticking():  # its program states no limit any more
            later = scene.clock.monotonic() + 3 * IDLE
            await scene.until(lambda: scene.clock.monotonic() > later)
            await (await b.submit(silent(20), id="b-2")).wait()
            assert (users.most, limit_of(b)) == (10, (None, None))


async def test_a_tool_without_a_limit_is_asked_for_once_and_stands_for_no_question(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b"), scene.ticking():
        for n in range(5):
            await (await a.submit(silent(10), id=f"a-{n}")).wait()
        assert (scene.base.shares_asked, users.most) == (1, 10)
        await scene.until(lambda: scene.base.claims == {"cc": {}})


async def test_what_a_job_said_holds_while_the_node_that_ran_it_is_gone_and_where_it_goes_on(
    scene: Nodes,
) -> None:
    async with scene.runtime("b") as b, fenced_in_the_end(scene, "a") as lost:
        users.held |= {"y0", *(f"x{n}" for n in range(8))}
        await lost.submit(work(1, name="y"), id="a-1")
        await scene.until(lambda: users.now == ["a"])
        scene.nodes["a"].cut_off()
        await scene.until(lambda: scene.nodes["a"].fenced)
        await b.submit(silent(8), id="b-1")
        await scene.until(lambda: len(users.began) == 1 + LIMIT)  # y0 once more among them, or after them
        later = scene.clock.monotonic() + 30
        await scene.until(lambda: scene.clock.monotonic() > later)
        assert len(users.began) == 1 + LIMIT
        assert limit_of(b) == (LIMIT, "a-1")
        users.go_on.set()
        await scene.until(lambda: users.began.count("b") == 8)


@pytest.mark.parametrize("limit", [None, LIMIT])
async def test_a_tool_that_was_let_go_is_asked_for_again_at_once(
    scene: Nodes, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr(tools, "BREAKERS_KEPT", 2)
    async with scene.runtime("a") as a, scene.runtime("b"):
        with anyio.fail_after(300):  # no virtual time passes
            for n in range(3):
                await (await a.submit(work(2, limit=limit), id=f"a-{n}")).wait()
                others = [Task(f"o{m}", run=uses, tool=f"other-{n}-{m}") for m in range(6)]
                await (await a.submit(Workstream("w", tasks=others), id=f"a-others-{n}")).wait()
                with pytest.raises(LookupError):
                    a.breaker("cc")


# -- breakers ----------------------------------------------------------------------------------------------------------


def states(*runtimes: Runtime) -> list[str]:
    return [one.state for runtime in runtimes for one in runtime.breakers()]


async def opened(scene: Nodes, on: Runtime, *others: Runtime) -> None:
    """Have the breaker open everywhere, by failures on one node."""
    users.ill = True
    await (await on.submit(work(2, limit=None), id="a-ill")).wait()
    await scene.until(lambda: states(on, *others) == ["open"] * (1 + len(others)))
    users.ill = False


async def test_a_breaker_that_opens_on_one_node_is_open_on_all_and_one_of_them_tries_again(
    scene: Nodes,
) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.runtime("c") as c:
        await opened(scene, a, b, c)
        assert b.breaker("cc").record.reason == "opened on a: 2 failures"
        jobs = [await one.submit(work(2, limit=None), id=f"{name}-1") for name, one in (("b", b), ("c", c))]
        await scene.until(lambda: b.breaker("cc").parked == c.breaker("cc").parked == 2)
        users.held |= {"x0", "x1"}
        await scene.until(lambda: users.now)
        assert 59 <= scene.clock.monotonic() <= 62
        assert len(users.now) == 1
        assert sorted(states(a, b, c)) in (["half_open"] * 3, ["half_open", "open", "open"])
        users.go_on.set()
        await scene.until(lambda: all(job.ended for job in jobs))
        await scene.until(lambda: states(a, b, c) == ["closed"] * 3)
        assert [change.state for change in scene.base.tool_changes] == ["open", "half_open", "closed"]


async def test_a_node_that_starts_later_begins_with_the_state_that_there_is(scene: Nodes) -> None:
    async with scene.runtime("a") as a:
        await opened(scene, a)
        async with scene.runtime("b") as b:
            assert states(b) == ["open"]
            job = await b.submit(work(1, limit=None), id="b-1")
            await scene.until(lambda: b.breaker("cc").parked == 1)
            await b.breaker("cc").reset(by="ana", reason="mended")
            await scene.until(lambda: job.state == "completed")
            await scene.until(lambda: states(a) == ["closed"])
            assert a.breaker("cc").record.reason == "closed on b: mended"


async def test_an_operator_opens_it_on_a_node_that_has_never_used_it(scene: Nodes) -> None:
    async with scene.runtime("a") as a, scene.runtime("b") as b, scene.ticking():
        await (await a.submit(work(1, limit=None), id="a-1")).wait()
        with pytest.raises(LookupError):
            b.breaker("cc")
        await (await b._services.breaker_of("cc")).trip(by="ana", reason="maintenance")
        await scene.until(lambda: states(a, b) == ["open", "open"])
        with pytest.raises(LookupError):
            await b._services.breaker_of("dd")


async def test_when_the_node_that_tries_it_is_fenced_another_one_does(scene: Nodes) -> None:
    async with scene.runtime("b") as b, fenced_in_the_end(scene, "a") as lost:
        await opened(scene, lost, b)
        users.held |= {"x0"}
        await lost.submit(work(1, limit=None), id="a-1")
        await scene.until(lambda: users.now == ["a"])
        job = await b.submit(work(1, limit=None, name="y"), id="b-1")
        scene.nodes["a"].cut_off()
        await scene.until(lambda: job.ended)
        await scene.until(lambda: [change.home for change in scene.base.tool_changes] == ["a", "a", "b", "b"])
        users.go_on.set()
