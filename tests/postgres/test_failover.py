"""Nodes during a failover of their database: with a synchronous standby nothing is lost; with an asynchronous one
that was behind, they detect the loss and report it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest
from tests.waiting import until

from callboard import Runtime, Task, TaskContext, Workstream
from callboard.errors import LeaseLost, RuntimeClosed
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.postgres.nodes import nodes_of
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.testing.postgres import PrivateServer

from .nodes_help import PostgresNodes
from .pair import Pair

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
LIMIT = 120  # seconds, for machines that are busy
ON_BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
WIDTH = 4
ran: Counter[str] = Counter()
gates: dict[str, anyio.Event] = {}


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    ran.clear()
    yield
    gates.clear()


@pytest.fixture
def synchronous(postgres_server: PrivateServer) -> Iterator[Pair]:
    pair = Pair(synchronous=True)
    yield pair
    pair.close()


@pytest.fixture
def asynchronous(postgres_server: PrivateServer) -> Iterator[Pair]:
    pair = Pair(synchronous=False)
    yield pair
    pair.close()


async def count(task: TaskContext) -> str:
    ran[f"{task.job_id}/{task.task}"] += 1
    await anyio.sleep(0.002)
    return "done"


async def wait_for_gate(task: TaskContext) -> str:
    ran[f"{task.job_id}/{task.task}"] += 1
    await gates["gate"].wait()
    return "done"


def graph(layers: int) -> Workstream:
    return Workstream(
        "layers",
        tasks=[
            Task(f"t{n}-{m}", run=count, depends_on=[f"t{n - 1}-{k}" for k in range(WIDTH) if n])
            for n in range(layers)
            for m in range(WIDTH)
        ],
    )


@ON_BOTH
async def test_with_a_synchronous_standby_a_failover_under_load_loses_nothing(synchronous: Pair) -> None:
    address = synchronous.address()
    with anyio.fail_after(LIMIT):
        async with Runtime(address, node="a") as first, Runtime(address, node="b") as second:
            jobs = [await node.submit(graph(25)) for node in (first, second) for _ in range(2)]
            await until(lambda: ran.total() > 20)
            await anyio.to_thread.run_sync(synchronous.fail_over)
            for job in jobs:
                assert (await job.wait()).state == "completed"
            assert first.health.ok
            assert second.health.ok
    assert len(ran) == 4 * 25 * WIDTH
    assert set(ran.values()) == {1}
    assert [(node.name, node.state) for node in nodes_of(address)] == [("a", "left"), ("b", "left")]
    reader = PostgresReader(address)
    assert examine(reader).found == []
    reader.close()


@ON_BOTH
async def test_with_an_asynchronous_standby_that_was_behind_who_lost_commits_is_fenced_and_told(
    asynchronous: Pair,
) -> None:
    address = asynchronous.address()
    gates["gate"] = anyio.Event()
    held = Workstream("held", tasks=[Task("x", run=wait_for_gate)])
    notices: list[str] = []
    with anyio.fail_after(LIMIT):
        async with Runtime(address, node="b") as second:
            with pytest.raises(RuntimeClosed) as closed:
                first = Runtime(address, node="a")
                first.on_trouble = lambda notice: notices.append(notice.event)
                async with first:
                    await first.submit(held, id="kept")
                    await until(lambda: ran["kept/x"])
                    await anyio.to_thread.run_sync(asynchronous.cut)
                    assert (await (await first.submit(graph(1), id="lost")).wait()).state == "completed"
                    await anyio.to_thread.run_sync(asynchronous.fail_over)
                    await anyio.sleep_forever()
            lost = closed.value.__cause__
            assert isinstance(lost, LeaseLost)
            assert "node 'a' counts as fenced, since" in str(lost)
            assert "went back in time: it has acknowledged entry" in str(lost)
            assert "lease_lost" in notices
            assert "went back in time" in str(first.health.reason)
            with pytest.raises(LookupError):
                await second.job("lost")
            gates["gate"].set()
            outcome = await (await second.job("kept")).wait()
            assert (outcome.state, ran["kept/x"]) == ("completed", 2)
            assert second.health.ok  # the node had lost nothing


@pytest.fixture
def cluster(postgres: str) -> Iterator[PostgresNodes]:
    cluster = PostgresNodes(postgres)
    yield cluster
    cluster.close()


LATER = {
    "a commit": "UPDATE commits SET entry = entry - 1",
    "an epoch": "UPDATE nodes SET epoch = epoch - 1",
    "what was reserved": "UPDATE acts SET number = number - 1",
    "the node": "DELETE FROM nodes",
    "the node, whose number another one has": "UPDATE nodes SET session = 'another'",
}


@pytest.mark.parametrize("undone", LATER)
def test_whatever_of_it_is_missing_a_node_notices_at_its_next_renewal_and_when_it_connects(
    cluster: PostgresNodes, undone: str
) -> None:
    from tests.runtime.journal.samples import job

    node, other = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(node, job(1))
    assert node.reserve("job", "x")
    node.renew(0)
    for one in (node, other):
        one._link._drop()  # the next question is asked on a new connection
    cluster.run(LATER[undone] + " WHERE node = %s", node.node)
    words = "not known to .* any more" if "node" in undone else "went back in time: it has acknowledged"
    with pytest.raises(LeaseLost, match=words):
        node.tools()
    with pytest.raises(LeaseLost, match=words):
        node.renew(0)
    assert other.tools() == []
    assert other.renew(0).living >= 1


def test_a_commit_is_refused_by_a_database_that_lacks_the_one_before(cluster: PostgresNodes) -> None:
    from tests.runtime.journal.samples import job

    node = cluster.node("web-1")
    cluster.commit(node, job(1))
    with cluster.medium(node) as medium:
        cluster.run("UPDATE commits SET entry = 0")  # beneath its connection, as a dump is read back
        with pytest.raises(LeaseLost, match="lacks what it has acknowledged"):
            medium.commit(cluster.batch(node, job(2)), lambda: None)
    assert [one.key for one in cluster.reader.jobs()] == [1]
    with pytest.raises(LeaseLost, match="went back in time"):
        node.renew(0)


def test_a_standby_is_not_taken_for_a_database_that_went_back(asynchronous: Pair) -> None:
    address = asynchronous.address()
    cluster = PostgresNodes(address)
    node = cluster.node("web-1")
    asynchronous.cut()
    node.reserve("job", "x")
    standby = address.replace(f"127.0.0.1:{asynchronous.ports[0]},", "")
    from callboard.runtime.errors import JournalUnwritable
    from callboard.runtime.journal.postgres.address import parse
    from callboard.runtime.journal.postgres.opening import connect

    with connect(parse(standby), "test") as connection, pytest.raises(JournalUnwritable, match="it is a standby"):
        node.known.check(connection)
    node.renew(0)
    cluster.close()


def test_another_server_at_the_same_address_is_another_database(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    node.renew(0)
    node.known._system = 1  # as it was when it joined
    node._lease_link._drop()
    with pytest.raises(LeaseLost, match="its database is another"):
        node.renew(0)
