"""Tools of several nodes on a real server: their limits hold over all nodes, and so do their breakers."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import msgspec
import pytest
from tests.waiting import until
from typer.main import get_command

from callboard import Breaker, Runtime, Task, TaskContext, Tool, Worker, Workstream, step
from callboard.actors.records.transition import as_event
from callboard.machines.audit.audit import audit
from callboard.runtime.cli.app import app
from callboard.runtime.journal.postgres.journal import PostgresJournal

pytestmark = pytest.mark.anyio

NAMES = ("a", "b", "c")
LIMIT = 3
WORKERS = (Worker("loop", engine="loop", capacity=20),)


class Users:
    """Counts the present uses of the tool, by node."""

    def __init__(self) -> None:
        self.now: list[str] = []
        self.most = 0
        self.began: list[str] = []
        self.ill = False
        self.held = False  # no body ends until `go_on` is set
        self.go_on = anyio.Event()


users: Users


async def uses(task: TaskContext) -> None:
    """Use the tool for a few turns of the event loop."""
    await use(task.job_id.partition("-")[0])


async def takes_steps(task: TaskContext) -> None:
    """A flow whose steps use the tool, several at a time."""
    asks = step(use, tool="cc")
    await task.gather(*(asks.bind(task.job_id.partition("-")[0], n) for n in range(4)))


async def use(node: str, number: int = 0) -> None:
    """Use the tool for a node."""
    users.now.append(node)
    users.began.append(node)
    users.most = max(users.most, len(users.now))
    try:
        if users.held:
            await users.go_on.wait()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
    finally:
        users.now.remove(node)
    if users.ill:
        raise RuntimeError("the tool is ill")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Two loops are enough here, where it is the database that decides."""
    return str(request.param)


@pytest.fixture(autouse=True)
def anew() -> None:
    global users  # noqa: PLW0603 - bodies are found by their import path
    users = Users()


def node(address: str, name: str, tools: dict[str, Tool] | None = None) -> Runtime:
    return Runtime(PostgresJournal(address, node=name, lease=30.0), workers=WORKERS, tools=tools)


@asynccontextmanager
async def nodes(address: str) -> AsyncGenerator[dict[str, Runtime]]:
    """Three runtimes on one database."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(node(address, name)) for name in NAMES}


def work(count: int, limit: int | None = LIMIT) -> Workstream:
    tool = Tool(max_parallel=limit, breaker=Breaker(failure_threshold=2, cooldown=0.2))
    tasks = [Task(f"x{n}", run=uses, tool="cc", optional=True) for n in range(count)]
    return Workstream("w", tasks=tasks, tools={"cc": tool})


def states(runtimes: dict[str, Runtime]) -> set[str]:
    """Return the states of the breaker on all nodes; "" for a node without one so far."""
    return {"".join(one.state for one in runtime.breakers()) for runtime in runtimes.values()}


async def test_two_hundred_tasks_on_three_nodes_use_a_tool_three_at_a_time(postgres: str) -> None:
    async with nodes(postgres) as runtimes:
        users.held = True  # until all nodes have their tasks: a busy machine may take longer to submit than to run
        jobs = [await one.submit(work(67), id=f"{name}-1") for name, one in runtimes.items()]
        await until(lambda: len(users.now) == LIMIT)
        users.held = False
        users.go_on.set()
        for job in jobs:
            assert (await job.wait()).state == "completed"
    assert users.most == LIMIT
    assert len(users.began) == 201
    assert all(users.began[:100].count(name) >= 10 for name in NAMES)


async def test_steps_of_flows_and_tasks_on_three_nodes_use_a_tool_three_at_a_time(postgres: str) -> None:
    async with nodes(postgres) as runtimes:
        flow = msgspec.structs.replace(work(2), tasks=[*work(2).tasks, *(Task(f"f{n}", run=takes_steps) for n in "ab")])
        users.held = True
        jobs = [await one.submit(flow, id=f"{name}-1") for name, one in runtimes.items()]
        await until(lambda: len(users.now) == LIMIT)
        users.held = False
        users.go_on.set()
        for job in jobs:
            assert (await job.wait()).state == "completed"
        assert all(not runtime._services.host.kernel.uses for runtime in runtimes.values())
    assert users.most == LIMIT
    assert sorted(users.began) == [name for name in NAMES for _ in range(10)]


def silent(count: int) -> Workstream:
    """A workstream whose tasks use the tool, and that states no limit for it."""
    return Workstream("w", tasks=[Task(f"x{n}", run=uses, tool="cc") for n in range(count)])


@pytest.mark.parametrize("who", ["runtime", "workstream"])
async def test_a_limit_that_is_said_on_one_node_only_holds_over_both_and_is_shown_by_both(
    postgres: str, who: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tools = {"cc": Tool(max_parallel=LIMIT)}
    async with node(postgres, "a", tools if who == "runtime" else None) as a, node(postgres, "b") as b:
        stream = work(60) if who == "workstream" else silent(60)
        users.held = True
        jobs = [await a.submit(stream, id="a-1"), await b.submit(silent(60), id="b-1")]
        await until(lambda: b.breaker("cc").record.limit[0] == LIMIT)  # it has asked
        users.go_on.set()
        for job in jobs:
            assert (await job.wait()).state == "completed"
        assert users.most == LIMIT
        assert len(users.began) == 120
        mine, theirs = ("runtime", "the runtime of a") if who == "runtime" else ("a-1", "a-1")
        assert (a.breaker("cc").record.limit, b.breaker("cc").record.limit) == ((LIMIT, mine), (LIMIT, theirs))
        assert await b._services.settled(60)
    get_command(app).main(["tools", "--journal", postgres, "--json"], standalone_mode=False)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((one["max_parallel"], one["limit_by"]) for one in shown) == sorted([(LIMIT, mine), (LIMIT, theirs)])


async def test_a_breaker_opens_on_all_nodes_and_one_of_them_closes_it_again(postgres: str) -> None:
    async with nodes(postgres) as runtimes:
        users.ill = True
        await (await runtimes["a"].submit(work(2, None), id="a-1")).wait()
        await until(lambda: states(runtimes) == {"open"})
        assert runtimes["b"].breaker("cc").record.reason == "opened on a: 2 failures"
        users.ill = False
        jobs = [await runtimes[name].submit(work(3, None), id=f"{name}-2") for name in ("b", "c")]
        for job in jobs:
            assert (await job.wait()).state == "completed"
        await until(lambda: states(runtimes) == {"closed"})
        await (await runtimes["b"]._services.breaker_of("cc")).trip(by="ana", cooldown=600)
        await until(lambda: states(runtimes) == {"open"})
        await runtimes["c"].breaker("cc").reset(by="ana")
        await until(lambda: states(runtimes) == {"closed"})


async def test_a_node_that_comes_back_goes_on_with_its_breakers_whoever_has_buried_it(postgres: str) -> None:
    async with node(postgres, "a") as a:
        users.ill = True
        await (await a.submit(work(2, None), id="a-1")).wait()
        await until(lambda: a.breaker("cc").record.agreed is not None)
    async with node(postgres, "b") as b:
        assert b.breaker("cc").state == "open"
    async with node(postgres, "a") as a:
        assert a.breaker("cc").state == "open"
        await a.breaker("cc").reset()
    async with node(postgres, "b") as b:
        assert b.breaker("cc").state == "closed"
        records = {one.id: one.seq for one in b.journal.reader.breakers()}
        assert records == {"cc@a": 4, "cc@b": 3}
        assert audit(as_event(one) for one in b.journal.reader.transitions()) == []
