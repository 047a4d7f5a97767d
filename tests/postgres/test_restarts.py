"""Nodes while their server is down: nothing is lost or done twice, and no node is fenced for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import anyio
import anyio.to_thread
import pytest
from tests.waiting import until

from callboard import Runtime, Task, TaskContext, Workstream
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.nodes import nodes_of
from callboard.runtime.journal.postgres.opening import connect
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.testing.postgres import PrivateServer

pytestmark = pytest.mark.anyio
LIMIT = 60  # seconds, for machines that are busy
ON_BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
ON_ONE = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # they take seconds, most of which the server takes
WIDTH = 4
ran: Counter[str] = Counter()
gates: dict[str, anyio.Event] = {}


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    gates.clear()
    yield
    gates.clear()


async def count(task: TaskContext) -> int:
    ran[f"{task.job_id}/{task.task}"] += 1
    await anyio.sleep(0.002)
    return 1


async def wait_for_gate() -> None:
    await gates["gate"].wait()


def graph(layers: int) -> Workstream:
    return Workstream(
        "layers",
        tasks=[
            Task(f"t{n}-{m}", run=count, depends_on=[f"t{n - 1}-{k}" for k in range(WIDTH) if n])
            for n in range(layers)
            for m in range(WIDTH)
        ],
    )


@asynccontextmanager
async def away(server: PrivateServer, how: str = "immediate") -> AsyncIterator[None]:
    """Take the server down while the block runs; it crashes unless `how` names another way."""
    await anyio.to_thread.run_sync(server.stop, how)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(server.start)


@ON_BOTH
async def test_a_server_that_restarts_under_load_loses_nothing_and_does_nothing_twice(
    postgres_server: PrivateServer, postgres: str
) -> None:
    with anyio.fail_after(LIMIT):
        async with Runtime(postgres, node="a") as first, Runtime(postgres, node="b") as second:
            jobs = [await node.submit(graph(25)) for node in (first, second) for _ in range(2)]
            for how in ("immediate", "fast"):
                before = ran.total()
                await until(lambda before=before: ran.total() > before + 10)  # type: ignore[misc]
                async with away(postgres_server, how):
                    held = ran.total()
                    await until(lambda: not first.health.ok and not second.health.ok)
                    reason = first.health.reason or ""
                    assert "cannot be reached" in reason or "takes no connections just now" in reason, reason
                    await anyio.sleep(0.02)
                    assert ran.total() <= held + len(jobs) * WIDTH  # the committed starts; no other body begins
            for job in jobs:
                assert (await job.wait()).state == "completed"
            assert first.health.ok
            assert second.health.ok
    assert len(ran) == 4 * 25 * WIDTH
    assert set(ran.values()) == {1}
    with connect(parse(postgres), "test") as connection:
        ended = connection.execute("SELECT name, ended_as FROM nodes ORDER BY name").fetchall()
    assert ended == [("a", "left"), ("b", "left")]
    reader = PostgresReader(postgres)
    assert examine(reader).found == []
    reader.close()


@ON_ONE
async def test_after_an_outage_longer_than_their_leases_nobody_is_fenced(
    postgres_server: PrivateServer, postgres: str
) -> None:
    with anyio.fail_after(LIMIT):
        async with (
            Runtime(postgres, node="a", lease=10) as first,
            Runtime(postgres, node="b", lease=10) as second,
        ):
            async with away(postgres_server):
                await until(lambda: min(one.metrics().lease_left or 0 for one in (first, second)) < -0.1)
            living: set[str] = set()
            while living != {"a", "b"}:
                found = await anyio.to_thread.run_sync(nodes_of, postgres)
                assert {node.state for node in found} <= {"living", "silent"}
                living = {node.name for node in found if node.state == "living"}
            for node in (first, second):
                assert (await (await node.submit(graph(2))).wait()).state == "completed"


@ON_ONE
async def test_a_command_for_another_node_takes_effect_once_over_a_restart(
    postgres_server: PrivateServer, postgres: str
) -> None:
    gates["gate"] = anyio.Event()
    with anyio.fail_after(LIMIT):
        async with Runtime(postgres, node="a") as first, Runtime(postgres, node="b") as second:
            job = await first.submit(Workstream("long", tasks=[Task("wait", run=wait_for_gate)]))
            elsewhere = await second.job(job.id)
            async with anyio.create_task_group() as group, away(postgres_server):
                group.start_soon(partial(elsewhere.pause, reason="over the restart", request_id="pause-1"))
                await anyio.sleep(0.05)
            await elsewhere.resume(reason="goes on")
            gates["gate"].set()
            assert (await job.wait()).state == "completed"
            events = [event.event async for event in job.events() if getattr(event, "kind", "") == "workstream"]
    assert events.count("pause") == events.count("resume") == 1
