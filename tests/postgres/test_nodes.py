"""Nodes on one journal in PostgreSQL: their leases, and the take-over of a silent node's entities."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.nodes_help import PostgresNodes
from tests.runtime.journal.samples import attempt, breaker, job, raw, task, worker, workstream

from callboard.actors.records.entities import MachineRecord, OutboxRow, RequestRecord
from callboard.actors.records.loaded import Loaded
from callboard.actors.workers.queues import NO_LIMIT
from callboard.runtime.errors import JournalError, JournalLocked, LeaseLost
from callboard.runtime.journal.cluster import EPOCH, LEASE, ToolDemand, ToolState
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.nodes import PostgresCluster
from callboard.runtime.journal.postgres.opening import connect
from callboard.runtime.journal.postgres.place import Place, here
from callboard.runtime.journal.postgres.reader import LoadScope, PostgresReader


@pytest.fixture
def cluster(emptied: str) -> Iterator[PostgresNodes]:
    cluster = PostgresNodes(emptied)
    yield cluster
    cluster.close()


def machine(key: int) -> MachineRecord:
    return MachineRecord(
        key=key, id=f"m{key}", name=f"m{key}", state="on", created_at=1.0, machine="door", definitions=(key,)
    )


def outbox(key: int, owner: str, callback: str | None = None) -> OutboxRow:
    return OutboxRow(key=key, owner=owner, event="on_failed", body=raw({}), context=raw({}), callback=callback)


# -- leases


def test_nodes_see_one_another(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1", lease=LEASE), cluster.node("web-2", lease=20)
    assert (first.name, first.lease, second.lease) == ("web-1", 15.0, 20.0)
    assert second.epoch > first.epoch > 0
    cluster.commit(first, job(first.epoch * EPOCH + 1))
    assert [(node.name, node.state, node.jobs) for node in second.nodes()] == [
        ("web-1", "living", 1),
        ("web-2", "living", 0),
    ]
    assert second.nodes()[0].place == here().shown
    renewal = first.renew(0)
    assert (renewal.living, renewal.orphans) == (2, 0)
    assert renewal.due_in is not None
    assert 15 < renewal.due_in <= 20
    cluster.silence(second)
    assert [node.state for node in first.nodes()] == ["living", "silent"]
    assert first.renew(0).living == 1


def test_a_node_alone_waits_for_nobody(cluster: PostgresNodes) -> None:
    node = cluster.node()
    assert node.name == f"{here().host}-{here().pid}"
    renewal = node.renew(0)
    assert (renewal.living, renewal.orphans, renewal.due_in) == (1, 0, None)
    assert node.take() is None


def test_nodes_of_one_process_get_names_of_their_own(cluster: PostgresNodes) -> None:
    names = [cluster.node().name for _ in range(3)]
    assert names == [names[0], f"{names[0]}-2", f"{names[0]}-3"]


@pytest.mark.parametrize("name", ["", "web 1", "a@b", "a#1", "x/y", "x" * 65, "wéb"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a node's name"):
        PostgresCluster(parse("postgresql://nowhere"), lambda _: Loaded(), lambda _: {}, name=name)


def test_a_new_epoch_begins_when_half_of_one_is_used_up(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    epoch = node.epoch
    node.renew(epoch * EPOCH + EPOCH // 2 - 1)
    assert node.epoch == epoch
    node.renew(epoch * EPOCH + EPOCH // 2)
    assert node.epoch == epoch + 1
    node.renew(epoch * EPOCH + EPOCH // 2 + 10)  # the node has not learned of the new epoch yet
    assert node.epoch == epoch + 1


def test_a_silent_node_is_fenced_and_hears_of_it(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.watch(second)
    assert second.take() is None
    cluster.silence(first)
    assert second.renew(0).due_in == 0
    second.take()
    with pytest.raises(
        LeaseLost, match=r"'web-1' was fenced by 'web-2' after 36\d\d\.\d s in which it did not renew"
    ) as lost:
        first.renew(0)
    again: list[Callable[[], object]] = [
        first.take, first.tools, first.inbox, first.nodes, lambda: first.reserve("job", "x"), lambda: first.share({}),
    ]  # fmt: skip
    for ask in again:
        with pytest.raises(LeaseLost) as told:
            ask()
        assert told.value is lost.value
    with pytest.raises(LeaseLost):
        cluster.commit(first, job(1))
    assert cluster.reader.jobs() == []
    assert [(node.name, node.state) for node in second.nodes()] == [("web-1", "fenced"), ("web-2", "living")]


def test_a_node_that_the_database_has_forgotten_is_told_so(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    cluster.run("DELETE FROM nodes")  # an older copy of the database has no row of this node
    with pytest.raises(
        LeaseLost, match=r"'web-1' is not known to .* any more: its database is another, or an older copy"
    ):
        node.renew(0)
    with pytest.raises(LeaseLost):
        cluster.commit(node, job(1))


@pytest.mark.parametrize("ask", ["renew", "take", "reserve", "release", "adopt", "share", "set_tool"])
def test_whatever_a_fenced_node_asks_it_is_told_so(cluster: PostgresNodes, ask: str) -> None:
    values: dict[str, tuple[Any, ...]] = {
        "renew": (0,), "take": (), "reserve": ("job", "x"), "adopt": ("job", "x"), "share": ({"cc": ToolDemand(1, 1)},),
        "set_tool": (ToolState("cc", "open", "web-1", 1),), "release": ("job", "x", 1),
    }  # fmt: skip
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.watch(second)
    cluster.silence(first)
    second.take()
    with pytest.raises(LeaseLost, match="fenced by 'web-2'"):
        getattr(first, ask)(*values[ask])


def test_a_node_fences_only_after_it_was_awake_for_a_whole_lease(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.silence(first)
    renewal = second.renew(0)
    assert renewal.due_in is not None
    assert 300 < renewal.due_in <= 600
    second.take()
    first.renew(0)  # the node was not fenced
    cluster.watch(second)
    cluster.silence(first)
    cluster.silence(second, seconds=301)  # more than half of its lease: it may have been asleep, or the server
    second.take()
    second.renew(0)
    second.take()
    first.renew(0)
    cluster.watch(second)
    cluster.silence(first)
    cluster.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'callboard lease'")
    assert second.renew(0).due_in is not None
    second.take()
    first.renew(0)


def test_a_dead_process_of_the_same_machine_is_fenced_at_once(cluster: PostgresNodes) -> None:
    dead: set[int] = set()
    settings = {"is_dead": lambda place: place.pid in dead}
    first = cluster.node("web-1", place=Place("here", "linux", 11, 1), **settings)
    second = cluster.node("web-2", place=Place("here", "linux", 12, 1), **settings)
    elsewhere = cluster.node("web-3", place=Place("there", "other", 11, 1), **settings)
    cluster.commit(first, job(1))
    assert second.take() is None
    dead.add(11)
    assert second.renew(0).due_in == 0
    loaded = second.take()
    assert loaded is not None
    assert [one.id for one in loaded.jobs] == ["job-1"]
    elsewhere.renew(0)
    with pytest.raises(LeaseLost):
        first.renew(0)


def test_places_are_known_by_machine_and_process() -> None:
    mine = here()
    assert not mine.is_dead()
    gone = Place(mine.host, mine.kernel, mine.pid, mine.started + 1)
    assert gone.is_dead() is bool(mine.kernel)
    assert not Place(mine.host, "another boot", mine.pid, mine.started + 1).is_dead()
    assert not Place(mine.host, mine.kernel, mine.pid, 0).is_dead()
    assert not Place(mine.host, "", mine.pid, mine.started + 1).is_dead()


# -- names


class Waiting:
    """A clock that the pauses move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


def test_the_name_of_a_living_node_is_refused(cluster: PostgresNodes) -> None:
    first, waiting = cluster.node("web-1"), Waiting()
    waiting.meanwhile = lambda: first.renew(0)
    with pytest.raises(JournalLocked, match=r"has a node 'web-1' already \(.*, process \d+\), which is alive"):
        cluster.node("web-1", pause=waiting.pause, clock=lambda: waiting.now)


def test_the_name_of_a_node_that_is_silent_while_we_look_is_had_after_its_lease(cluster: PostgresNodes) -> None:
    first, waiting = cluster.node("web-1", lease=7), Waiting()
    cluster.commit(first, job(1))
    again = cluster.node("web-1", pause=waiting.pause, clock=lambda: waiting.now)
    assert waiting.now == pytest.approx(7)
    assert again.node != first.node
    loaded = again.take()
    assert loaded is not None
    assert len(loaded.jobs) == 1
    with pytest.raises(LeaseLost, match="fenced by 'web-1'"):
        first.renew(0)
    assert [(node.name, node.state) for node in again.nodes()] == [("web-1", "living")]


def test_the_name_of_a_dead_process_is_had_at_once(cluster: PostgresNodes) -> None:
    for name in ("web-1", None):
        first = cluster.node(name)
        again = cluster.node(name, is_dead=lambda _: True, pause=lambda _: pytest.fail("it waited"))
        assert again.name == first.name
        with pytest.raises(LeaseLost):
            first.renew(0)
        again.leave()


def test_of_two_that_join_by_one_name_at_once_one_is_refused(cluster: PostgresNodes) -> None:
    joined: list[PostgresCluster] = []

    def meanwhile(_: float) -> None:
        for node in joined:
            node.renew(0)

    def join() -> None:
        with contextlib.suppress(JournalLocked):
            joined.append(cluster.node("web-1", pause=meanwhile))

    futures = [cluster.later(join) for _ in range(4)]
    for future in futures:
        future.result()
    assert len(joined) == 1


def test_nobody_joins_while_the_journal_is_migrated(cluster: PostgresNodes) -> None:
    with cluster.holding(
        "SELECT pg_advisory_xact_lock(hashtextextended('callboard ' || %s, 0))", cluster.address.schema
    ) as migrating:
        joining = cluster.blocked(cluster.later(cluster.node, "web-1"))
        migrating.execute("UPDATE callboard SET version = version + 1")
    with pytest.raises(JournalError, match="newer Callboard"):
        joining.result()
    cluster.run("UPDATE callboard SET version = version - 1")


# -- taking over


def test_what_a_node_has_left_is_taken_with_all_that_belongs_to_it(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(
        first, job(1), job(2, state="completed", finished_at=2.0), machine(3), machine(4), worker(5),
        outbox(6, "job-2"), outbox(7, "m3", "on_enter on"),
    )  # fmt: skip
    cluster.commit(second, worker(15), job(16))
    first.leave()
    assert second.renew(0).orphans >= 3
    loaded = second.take()
    assert loaded is not None
    assert [one.key for one in loaded.jobs] == [1]
    assert [one.key for one in loaded.machines] == [3, 4]
    assert [one.key for one in loaded.outbox] == [6, 7]
    assert [one.key for one in loaded.workers] == [5]
    assert loaded.last_key == loaded.last_seq == second.epoch * EPOCH
    assert second.renew(0).orphans == 0
    assert second.take() is None
    assert second.owner_of("job", "job-1") == "web-2"
    assert second.owner_of("job", "job-2") is None
    assert second.owner_of("machine", "m3") == "web-2"
    assert [(node.name, node.state, node.jobs) for node in second.nodes()] == [
        ("web-1", "left", 0),
        ("web-2", "living", 2),
    ]
    with pytest.raises(LeaseLost, match="has left"):
        first.renew(0)


def test_numbers_of_who_takes_are_above_all_that_were_given_before(cluster: PostgresNodes) -> None:
    early, late = cluster.node("web-1"), cluster.node("web-2")
    late.renew((late.epoch + 1) * EPOCH)
    cluster.commit(late, job(late.epoch * EPOCH + 5))
    last = late.epoch
    late.leave()
    loaded = early.take()
    assert loaded is not None
    assert loaded.last_seq == early.epoch * EPOCH > last * EPOCH + EPOCH - 1
    assert early.take() is None
    assert early.epoch == loaded.last_seq // EPOCH  # nothing was taken, so nothing has changed


def test_each_takes_its_share(cluster: PostgresNodes) -> None:
    first, *others = [cluster.node(f"web-{number}") for number in range(4)]
    cluster.commit(first, *[job(number) for number in range(1, 11)], *[machine(number) for number in range(21, 25)])
    first.leave()
    shares = [node.take() for node in others]
    assert [len(share.jobs) if share else 0 for share in shares] == [4, 4, 2]
    assert [len(share.machines) if share else 0 for share in shares] == [2, 2, 0]
    assert [node.take() for node in others] == [None, None, None]
    assert cluster.run("SELECT count(*) FROM nodes WHERE owes") == [(3,)]


@pytest.mark.parametrize(("jobs", "nodes", "shares"), [(12, 2, [6, 6]), (7, 3, [1, 3, 3]), (1, 3, [1])])
def test_nodes_that_take_at_once_get_the_same_share(
    cluster: PostgresNodes, jobs: int, nodes: int, shares: list[int]
) -> None:
    first, *others = [cluster.node(f"web-{number}") for number in range(nodes + 1)]
    cluster.commit(first, *[job(number) for number in range(1, jobs + 1)])
    first.leave()
    barrier = threading.Barrier(nodes)

    def take(node: PostgresCluster) -> list[int]:
        barrier.wait()
        loaded = node.take()
        return [] if loaded is None else [one.key for one in loaded.jobs]

    taken = [future.result() for future in [cluster.later(take, node) for node in others]]
    for node in others:  # the rows that another taking node had locked
        loaded = node.take()
        taken.append([] if loaded is None else [one.key for one in loaded.jobs])
    assert sorted(key for keys in taken for key in keys) == list(range(1, jobs + 1))
    assert max(len(keys) for keys in taken) == max(shares)
    assert cluster.run("SELECT share FROM nodes WHERE name = 'web-0'") == [(max(shares),)]


def test_who_asks_again_gets_what_the_others_do_not_fetch(cluster: PostgresNodes) -> None:
    first, second, _, third = (cluster.node(f"web-{number}") for number in range(4))
    cluster.commit(first, *[job(number) for number in range(1, 8)])
    first.leave()
    taken = [node.take() for node in (second, third, second, third)]
    assert [len(loaded.jobs) if loaded else 0 for loaded in taken] == [3, 3, 1, 0]


def test_of_two_that_share_out_at_once_the_second_believes_the_first(cluster: PostgresNodes) -> None:
    first, second, _ = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, *[job(number) for number in range(1, 5)])
    first.leave()
    with cluster.holding("UPDATE nodes SET share = 1, machine_share = 1 WHERE node = %s", first.node):
        taking = cluster.blocked(cluster.later(second.take))
    loaded = taking.result()
    assert loaded is not None
    assert [one.key for one in loaded.jobs] == [1]


# -- giving back


def keys_of(loaded: Loaded | None) -> list[int]:
    return [] if loaded is None else [one.key for one in loaded.jobs]


def test_what_was_given_back_is_the_others_with_its_children(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, job(1), job(2, parent=1, depth=1), job(3, parent=2, depth=2), job(4))
    first.leave()
    assert keys_of(second.take()) == [1, 2, 3]
    assert keys_of(third.take()) == [4]
    cluster.run("UPDATE nodes SET owes = false WHERE fenced")
    second.give_back([1])
    second.give_back([1])  # asked again
    assert third.renew(0).orphans == 3
    assert second.take() is None
    assert keys_of(third.take()) == [1, 2, 3]
    second.give_back([1, 4])  # not its own
    assert third.owner_of("job", "job-1") == third.owner_of("job", "job-4") == "web-2"
    assert (second.take(), third.take()) == (None, None)
    assert third.renew(0).orphans == 0


def test_what_was_given_back_is_shared_out_among_the_others(cluster: PostgresNodes) -> None:
    first, second, *others = [cluster.node(f"web-{number}") for number in range(4)]
    cluster.commit(first, *[job(number) for number in range(1, 13)])
    first.leave()
    assert len(keys_of(second.take())) == 4
    assert [len(keys_of(node.take())) for node in others] == [4, 4]
    second.give_back([1, 2, 3, 4])
    assert [keys_of(node.take()) for node in (second, *others)] == [[], [1, 2], [3, 4]]


def test_who_is_alone_takes_what_it_gave_back_and_so_does_who_wants_it_again(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, job(1))
    first.leave()
    assert keys_of(second.take()) == [1]
    second.give_back([1])
    assert second.take() is None
    second.want_again()
    assert keys_of(second.take()) == [1]
    second.give_back([1])
    third.leave()
    assert keys_of(second.take()) == [1]


def test_who_was_asleep_itself_does_not_take_itself_for_the_only_one(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, job(1))
    first.leave()
    assert keys_of(second.take()) == [1]
    second.give_back([1])
    cluster.silence(second, third)  # their process was suspended: the first to wake up learns nothing
    pulse = second.renew(0)
    assert (pulse.living, pulse.silent, pulse.alone) == (1, 1, False)
    assert second.take() is None
    third.renew(0)
    assert keys_of(third.take()) == [1]
    cluster.watch(second)
    cluster.silence(third)
    assert second.renew(0).alone  # the node was awake, and may fence the other one


def test_who_dies_while_it_gives_back_loses_nothing(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.watch(third)
    cluster.commit(first, job(1), job(2, parent=1, depth=1))
    first.leave()
    assert keys_of(second.take()) == [1, 2]
    cluster.silence(second)
    assert keys_of(third.take()) == [1, 2]
    with pytest.raises(LeaseLost):
        second.give_back([1])
    assert third.owner_of("job", "job-1") == "web-2"


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_given_back_is_given_though_the_answer_is_lost(cluster: PostgresNodes, when: str) -> None:
    breaking = Breaking()
    first, second, third = cluster.node("web-1"), cluster.node("web-2", connect=breaking.connect), cluster.node("web-3")
    cluster.commit(first, job(1))
    first.leave()
    assert keys_of(second.take()) == [1]
    breaking.breaks = when
    second.give_back([1])
    assert keys_of(third.take()) == [1]


def test_a_gone_node_is_not_thought_settled_while_something_is_given_back_to_it(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, job(1))
    first.leave()
    assert keys_of(second.take()) == [1]
    with cluster.holding("SELECT FROM nodes WHERE node = %s FOR UPDATE", first.node) as settling:
        giving = cluster.blocked(cluster.later(second.give_back, [1]))
        settling.execute("UPDATE nodes SET owes = false WHERE node = %s", [first.node])
    giving.result()
    assert third.renew(0).orphans == 1
    assert keys_of(third.take()) == [1]


def test_a_silent_node_is_given_no_share(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, *[job(number) for number in range(1, 5)])
    first.leave()
    cluster.silence(third)
    loaded = second.take()
    assert loaded is not None
    assert len(loaded.jobs) == 4


def test_a_tree_of_jobs_stays_whole(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(
        first, job(1), job(2, parent=1, depth=1), job(3, parent=2, depth=2), job(4), job(5, parent=4, depth=1)
    )
    cluster.commit(first, job(6, parent=99, depth=1))  # the parent is on no node: the job is taken alone
    first.leave()
    taken = [node.take() for node in (second, third)]
    assert [[one.key for one in loaded.jobs] if loaded else [] for loaded in taken] == [[1, 2, 3, 4, 5], [6]]


@pytest.fixture
def nested_loops(cluster: PostgresNodes) -> Iterator[None]:
    """The plans that the server prefers by the statistics of a small table."""
    settings = ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_hashagg", "enable_sort")
    for setting in settings:
        cluster.run(f"ALTER ROLE CURRENT_USER SET {setting} = off")
    yield
    cluster.run("ALTER ROLE CURRENT_USER RESET ALL")


@pytest.mark.usefixtures("nested_loops")
def test_a_node_takes_its_share_whatever_the_server_plans(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, *map(job, range(1, 7)), *map(machine, range(11, 17)))
    for table in ("job_records", "machine_records"):
        cluster.run(f"ANALYZE {table}")
    first.leave()
    taken = [node.take() for node in (second, third)]
    assert [[one.key for one in loaded.jobs] if loaded else [] for loaded in taken] == [[1, 2, 3], [4, 5, 6]]
    assert [[one.key for one in loaded.machines] if loaded else [] for loaded in taken] == [[11, 12, 13], [14, 15, 16]]


def test_hooks_of_a_machine_go_where_the_machine_goes(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(
        first,
        machine(1),
        machine(2),
        outbox(3, "m1", "on_exit"),
        outbox(4, "m2", "on_exit"),
        outbox(5, "m9", "on_exit"),
    )
    first.leave()
    taken = [node.take() for node in (second, third)]
    assert [
        ([one.key for one in loaded.machines], [one.key for one in loaded.outbox]) if loaded else None
        for loaded in taken
    ] == [([1], [3, 5]), ([2], [4])]


def test_workers_of_a_dead_node_are_one_nodes_to_end(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, worker(1))
    first.leave()
    loaded = second.take()
    assert loaded is not None
    assert [one.key for one in loaded.workers] == [1]
    assert third.take() is None
    cluster.run("UPDATE nodes SET owes = true WHERE name = 'web-0'")
    second.leave()  # before it has ended them
    loaded = third.take()
    assert loaded is not None
    assert [one.key for one in loaded.workers] == [1]


def test_what_lives_again_is_whose_it_lives_by(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(first, job(1, state="failed", finished_at=2.0))
    cluster.commit(second, job(1, run=2))
    assert second.owner_of("job", "job-1") == "web-2"
    cluster.commit(first, job(1, run=2, reason="a late word"))
    assert second.owner_of("job", "job-1") == "web-2"


def test_who_joins_at_once_can_take_at_once(cluster: PostgresNodes) -> None:
    first = cluster.node("web-1")
    cluster.commit(first, job(1))
    first.leave()
    second = cluster.node("web-2")
    loaded = second.take()
    assert loaded is not None
    assert len(loaded.jobs) == 1


class Breaking:
    """Makes connections; the next transaction of one breaks them when it has been committed, or before."""

    def __init__(self) -> None:
        self.breaks = ""

    def connect(self, address: Any, purpose: str) -> Any:
        connection = connect(address, purpose)
        transaction = connection.transaction

        @contextlib.contextmanager
        def breaking() -> Iterator[None]:
            breaks, self.breaks = self.breaks, ""
            with transaction():
                yield
                if breaks == "before":
                    connection.pgconn.finish()
                    raise psycopg.OperationalError("server closed the connection unexpectedly")
            if breaks == "after":
                connection.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")

        connection.transaction = breaking  # type: ignore[method-assign, assignment]
        return connection


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_was_taken_is_not_lost_with_the_answer(cluster: PostgresNodes, when: str) -> None:
    breaking = Breaking()
    first, second = cluster.node("web-1"), cluster.node("web-2", connect=breaking.connect)
    cluster.commit(first, job(1), job(2))
    first.leave()
    breaking.breaks = when
    loaded = second.take()
    assert loaded is not None
    assert [one.key for one in loaded.jobs] == [1, 2]
    assert loaded.last_seq == second.epoch * EPOCH
    assert second.take() is None


def test_what_was_taken_and_could_not_be_read_is_handed_out_later(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(first, job(1))
    first.leave()
    load, fails = second._load, True

    def failing(part: Any) -> Any:
        if fails:
            raise JournalError("no connection")
        return load(part)

    second._load = failing
    with pytest.raises(JournalError):
        second.take()
    assert second.inbox() == []
    fails = False
    loaded = second.take()
    assert loaded is not None
    assert [one.key for one in loaded.jobs] == [1]


# -- races, one after another


def test_who_is_committing_is_not_fenced(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.watch(second)
    cluster.silence(first)
    with cluster.committing(first, job(1)):
        assert second.take() is None
        assert second.renew(0).due_in == 0
    loaded = second.take()
    assert loaded is not None
    assert [one.key for one in loaded.jobs] == [1]


FENCING = "UPDATE nodes SET fenced = true WHERE node = (SELECT node FROM nodes WHERE node = %s FOR UPDATE)"


def test_a_commit_waits_for_who_fences_its_node_and_is_refused(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    with cluster.holding(FENCING, node.node):
        commit = cluster.blocked(cluster.later(cluster.commit, node, job(1)))
    with pytest.raises(LeaseLost):
        commit.result()
    assert cluster.reader.jobs() == []
    assert cluster.reader.job("job-1") is None


def test_a_commit_waits_for_who_fences_its_node_and_goes_on_if_that_is_taken_back(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    with contextlib.suppress(ZeroDivisionError), cluster.holding(FENCING, node.node):
        commit = cluster.blocked(cluster.later(cluster.commit, node, job(1)))
        raise ZeroDivisionError
    commit.result()
    assert cluster.reader.job("job-1") is not None


@pytest.mark.parametrize("ask", ["renew", "take", "reserve", "release", "adopt"])
def test_whoever_is_being_fenced_waits_and_is_told(cluster: PostgresNodes, ask: str) -> None:
    node = cluster.node("web-1")
    values: tuple[Any, ...] = {"renew": (0,), "take": (), "release": ("job", "x", 1)}.get(ask, ("job", "x"))
    with cluster.holding(FENCING, node.node):
        asked = cluster.blocked(cluster.later(getattr(node, ask), *values))
    with pytest.raises(LeaseLost):
        asked.result()
    assert cluster.one("SELECT count(*) FROM names") == 0


def test_who_is_renewing_its_lease_is_not_fenced(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.watch(second)
    cluster.silence(first)
    with cluster.holding("UPDATE nodes SET seen_at = clock_timestamp() WHERE node = %s", first.node):
        second.take()
    second.take()
    first.renew(0)


def test_a_heartbeat_does_not_wait_for_a_commit(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    with cluster.committing(node, job(1)):
        assert cluster.later(node.renew, 0).result(60).living == 1


def test_of_two_that_fence_one_node_one_does(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.watch(second, third)
    cluster.silence(first)
    with cluster.holding(FENCING, first.node):
        assert second.take() is None  # the node does not wait
    third.take()
    assert cluster.run("SELECT ended_by FROM nodes WHERE node = %s", first.node) == [(None,)]


def test_of_two_that_take_at_once_nobody_waits_and_nothing_is_taken_twice(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(first, job(1), job(2), job(3), machine(4))
    first.leave()
    with cluster.holding("UPDATE job_records SET node = 0 WHERE key IN (1, 2)") as taking:
        taking.execute("UPDATE machine_records SET node = 0")
        loaded = second.take()
        assert loaded is not None
        assert [one.key for one in loaded.jobs] == [3]
        assert loaded.machines == []
    assert second.take() is None


def test_what_was_taken_meanwhile_is_not_taken_again(cluster: PostgresNodes) -> None:
    # the snapshot of the second is older than the commit of the first
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(first, *[job(number) for number in range(1, 31)])
    first.leave()
    barrier = threading.Barrier(2)

    def take(node: PostgresCluster) -> list[int]:
        barrier.wait()
        keys: list[int] = []
        while (loaded := node.take()) is not None:
            keys += [one.key for one in loaded.jobs]
        return keys

    taken = [cluster.later(take, node) for node in (second, third)]
    keys = [key for future in taken for key in future.result()]
    while (loaded := second.take()) is not None:
        keys += [one.key for one in loaded.jobs]
    assert sorted(keys) == list(range(1, 31))


# -- the owners of names


def test_a_name_is_reserved_once(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    assert first.reserve("job", "nightly")
    assert first.reserve("job", "nightly")  # its own
    assert not second.reserve("job", "nightly")
    assert second.reserve("machine", "nightly")
    assert first.reserve("job", "na\nme \0 ü")
    assert not second.reserve("job", "na\nme \0 ü")
    cluster.commit(first, job(1, id="nightly"))
    assert not first.reserve("job", "nightly")
    assert not second.reserve("job", "nightly")
    assert first.owner_of("job", "nightly") == "web-1"
    cluster.commit(first, job(1, id="nightly", state="completed", finished_at=3.0))
    assert not second.reserve("job", "nightly")


def test_what_a_fenced_node_has_reserved_and_never_used_is_free(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    assert first.reserve("job", "used")
    assert first.reserve("job", "unused")
    cluster.commit(first, job(1, id="used"))
    first.leave()
    assert not second.reserve("job", "used")
    assert second.reserve("job", "unused")
    assert cluster.one("SELECT node FROM names WHERE name = 'job:unused'") == second.node


def test_a_name_that_was_given_back_is_free(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    number = first.reserve("job", "nightly")
    first.release("job", "nightly", number)
    assert second.reserve("job", "nightly")
    first.release("job", "nightly", number)  # asked twice, since its connection was lost
    assert not first.reserve("job", "nightly")
    first.renew(0)


def test_only_what_nobody_relies_on_is_given_back(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    old = first.reserve("job", "again")
    new = first.reserve("job", "again")
    first.release("job", "again", old)  # the release comes so late that the next command has reserved the id
    assert not second.reserve("job", "again")
    second.release("job", "again", new)  # which is not its own
    assert not second.reserve("job", "again")
    used = first.reserve("job", "used")
    cluster.commit(first, job(1, id="used"))
    first.release("job", "used", used)
    assert not second.reserve("job", "used")
    assert cluster.one("SELECT key FROM names WHERE name = 'job:used'") == 1


def test_a_name_that_is_being_used_is_not_given_back(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    number = first.reserve("job", "job-1")
    with cluster.committing(first, job(1)):
        released = cluster.blocked(cluster.later(first.release, "job", "job-1", number))
    released.result()
    assert not second.reserve("job", "job-1")


def test_who_waits_for_a_name_that_is_being_given_back_gets_it(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    first.reserve("job", "nightly")
    with cluster.holding("DELETE FROM names WHERE name = 'job:nightly' AND node = %s", first.node):
        reserving = cluster.blocked(cluster.later(second.reserve, "job", "nightly"))
    assert reserving.result() > 0


def test_of_two_that_reserve_a_name_at_once_the_second_waits(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    with cluster.holding("INSERT INTO names VALUES ('job:nightly', 0, %s)", first.node):
        reserving = cluster.blocked(cluster.later(second.reserve, "job", "nightly"))
    assert reserving.result() == 0
    with (
        contextlib.suppress(ZeroDivisionError),
        cluster.holding("INSERT INTO names VALUES ('job:x', 0, %s)", first.node),
    ):
        reserving = cluster.blocked(cluster.later(second.reserve, "job", "x"))
        raise ZeroDivisionError
    assert reserving.result() > 0


def test_a_name_that_is_being_used_is_not_free_to_who_fences_its_node(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.watch(second)
    assert first.reserve("job", "job-1")
    cluster.silence(first)
    with cluster.committing(first, job(1)):
        second.take()
        reserving = cluster.blocked(cluster.later(second.reserve, "job", "job-1"))
    assert reserving.result() == 0


def ended(key: int, run: int = 1, **more: object) -> Any:
    return job(key, run=run, state="failed", finished_at=2.0, **more)


def test_an_ended_job_is_adopted_by_one(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    cluster.commit(third, ended(1))
    epoch = first.epoch
    assert first.adopt("job", "job-1")
    assert first.epoch > third.epoch > epoch  # so that its numbers rise
    assert not second.adopt("job", "job-1")
    assert not third.adopt("job", "job-1")
    assert first.adopt("job", "job-1")  # asked again
    cluster.commit(first, job(1, run=2))
    for node in (first, second):
        assert not node.adopt("job", "job-1")
    assert second.owner_of("job", "job-1") == "web-0"
    cluster.commit(first, ended(1, run=2))
    assert second.adopt("job", "job-1")
    assert not first.adopt("job", "job-1")
    assert not second.adopt("job", "unknown")


def test_no_job_is_adopted_for_a_command_that_has_taken_effect(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    key = RequestRecord(
        key=900, request_id="k", operation="retry", fingerprint="f", at=1.0, expires_at=100.0, owner=1,
        answer=raw({}),
    )  # fmt: skip
    cluster.commit(first, ended(1))
    assert first.adopt("job", "job-1", "k", 2.0)
    assert not second.adopt("job", "job-1", "k", 2.0)  # the first node is executing the command
    cluster.commit(first, job(1, run=2), key)
    cluster.commit(first, ended(1, run=2))
    assert not second.adopt("job", "job-1", "k", 3.0)  # the command took effect, and the run that it began has ended
    assert second.adopt("job", "job-1", "k", 101.0)  # a key past its time is as good as new


def test_what_a_node_left_of_an_earlier_run_is_ended_though_the_job_lives_again_elsewhere(
    cluster: PostgresNodes,
) -> None:
    """A body still ran when its job ended; then the job was run again on another node."""
    first, second = cluster.node("web-1"), cluster.node("web-2")
    stream, later = workstream(10, 1, 1), workstream(30, 1, 1, run=2)
    ran, runs = task(11, stream, state="cancelled"), task(31, later, state="running")
    cluster.commit(first, job(1, stream=10), stream, ran, attempt(20, ran), ended(1, stream=10))
    assert second.adopt("job", "job-1")
    cluster.commit(second, job(1, run=2, stream=30), later, runs, attempt(40, runs))
    with contextlib.closing(PostgresReader(cluster.address)) as reader:
        assert [one.key for one in reader.load(LoadScope(nodes=[first.node])).attempts] == [20]
        assert reader.load(LoadScope(nodes=[second.node])).attempts == []  # the attempt comes with its job
        assert [one.key for one in reader.load(LoadScope(jobs=[1], nodes=[second.node])).attempts] == [
            20,
            40,
        ]  # all of it


def test_its_own_job_needs_no_new_epoch(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    cluster.commit(node, ended(1))
    epoch = node.epoch
    assert node.adopt("job", "job-1")
    assert node.epoch == epoch


def test_what_a_dead_node_adopted_and_never_ran_is_adopted_again(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(second, ended(1))
    assert first.adopt("job", "job-1")
    first.leave()
    assert second.adopt("job", "job-1")


def test_of_two_that_adopt_a_job_at_once_the_second_waits(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(first, ended(1))
    with cluster.holding("UPDATE names SET node = %s, adopted = 1 WHERE name = 'job:job-1'", first.node):
        adopting = cluster.blocked(cluster.later(second.adopt, "job", "job-1"))
    assert adopting.result() is False


def test_a_job_that_begins_again_meanwhile_is_not_adopted(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(first, ended(1))
    assert first.adopt("job", "job-1")
    with cluster.committing(first, job(1, run=2)):
        assert second.adopt("job", "job-1") is False
    assert second.adopt("job", "job-1") is False


def test_rows_of_nodes_are_forgotten_after_a_day(cluster: PostgresNodes) -> None:
    first, second, third = (cluster.node(f"web-{number}") for number in range(3))
    waiting = Waiting()
    old = cluster.node("old", clock=lambda: waiting.now)
    first.reserve("job", "unused")
    first.leave()
    second.leave()
    while third.take() is not None:
        pass
    cluster.run("UPDATE nodes SET ended_at = ended_at - interval '25 hours' WHERE name = 'web-0'")
    old.renew(0)
    assert [node.name for node in old.nodes()] == ["old", "web-0", "web-1", "web-2"]
    waiting.now += 1000
    old.renew(0)
    assert [node.name for node in old.nodes()] == ["old", "web-1", "web-2"]
    assert cluster.one("SELECT count(*) FROM names") == 0


def test_of_each_worker_the_last_incarnations_are_kept(cluster: PostgresNodes) -> None:
    waiting = Waiting()
    node = cluster.node("web-1", clock=lambda: waiting.now)
    ended = [worker(key, run=key, name="w", state="shutdown", finished_at=2.0) for key in range(1, 40)]
    cluster.commit(node, *ended, worker(40, run=1, name="other"))
    waiting.now += 1000
    node.renew(0)
    assert cluster.one("SELECT count(*) FROM worker_records WHERE name = 'w'") == 20
    assert cluster.one("SELECT max(run) FROM worker_records WHERE name = 'w'") == 39
    assert cluster.one("SELECT count(*) FROM worker_records WHERE name = 'other'") == 1


def test_of_workers_that_an_operator_has_ended_the_last_are_kept(cluster: PostgresNodes) -> None:
    waiting = Waiting()
    node = cluster.node("web-1", clock=lambda: waiting.now)
    made_up = {"state": "terminated", "finished_at": 2.0, "retired": True}
    cluster.commit(node, *(worker(key, run=9 if key == 3 else 1, name=f"w{key}", **made_up) for key in range(1, 1011)))
    waiting.now += 1000
    node.renew(0)
    assert cluster.one("SELECT count(*) FROM worker_records") == 1001
    assert cluster.one("SELECT max(run) FROM worker_records") == 9  # no incarnation is ever given twice


def test_breakers_of_nodes_that_are_gone_are_forgotten_after_a_day(cluster: PostgresNodes) -> None:
    gone, back = cluster.node("gone"), cluster.node("back")
    waiting = Waiting()
    node = cluster.node("web-1", clock=lambda: waiting.now)
    for number, one in enumerate((gone, back, node), start=1):
        cluster.commit(one, breaker(number, id=f"t@{one.name}", name="t", state="open"))
    gone.leave()
    back.leave()
    while node.take() is not None:
        pass
    waiting.now += 1000
    node.renew(0)
    assert cluster.one("SELECT count(*) FROM breaker_records") == 3  # the breakers may be needed again
    cluster.run("UPDATE nodes SET ended_at = ended_at - interval '25 hours' WHERE fenced")
    again = cluster.node("back")
    waiting.now += 1000
    node.renew(0)
    assert cluster.run("SELECT as_json(record)->>'id' FROM breaker_records ORDER BY key") == [("t@back",), ("t@web-1",)]
    assert [one.name for one in node.nodes()] == ["back", "web-1"]
    again.leave()
    cluster.run("UPDATE nodes SET ended_at = ended_at - interval '25 hours' WHERE fenced")
    while node.take() is not None:
        pass
    waiting.now += 1000
    node.renew(0)
    assert cluster.run("SELECT as_json(record)->>'id' FROM breaker_records") == [("t@web-1",)]
    assert cluster.one("SELECT count(*) FROM nodes") == 1  # the node before it that had the name, too


def test_states_of_tools_that_nothing_names_any_more_are_forgotten(cluster: PostgresNodes) -> None:
    waiting = Waiting()
    node = cluster.node("web-1", clock=lambda: waiting.now)
    (now,) = cluster.run("SELECT extract(epoch FROM clock_timestamp())::double precision")[0]
    for number in range(50):
        for generation, state in enumerate(("open", "half_open", "closed"), start=1):
            node.set_tool(ToolState(f"made-up-{number}", state, "web-1", generation))
    for name, state, due in (("used", "closed", None), ("ill", "open", now + 60), ("was-ill", "open", now - 90_000)):
        node.set_tool(ToolState(name, state, "web-1", 1, due))
    cluster.commit(node, breaker(1, id="used@web-1", name="used"))
    assert len(node.tools()) == 53
    waiting.now += 1000
    node.renew(0)
    assert [one.tool for one in node.tools()] == ["ill", "used"]
    assert node.set_tool(ToolState("made-up-1", "open", "web-1", 1)).generation == 1  # and it begins anew


def test_of_what_nodes_that_are_gone_said_of_limits_the_last_is_kept_and_not_for_ever(cluster: PostgresNodes) -> None:
    waiting = Waiting()
    node = cluster.node("web-1", clock=lambda: waiting.now)
    for limit in range(40, 0, -1):  # as a program does that is begun again and again
        gone = cluster.node("web-2")
        gone.share({"cc": ToolDemand(limit, 1, said_by="job-1"), "dd": ToolDemand(NO_LIMIT, 1)})
        gone.leave()
    assert cluster.one("SELECT count(*) FROM tool_claims") == 80
    waiting.now += 1000
    node.renew(0)
    assert cluster.one("SELECT count(*) FROM tool_claims") == 1
    assert (node.limited(["cc", "dd"]), node.share({"cc": ToolDemand(NO_LIMIT, 5)})["cc"].most) == ({"cc"}, 1)
    while node.take() is not None:
        pass
    cluster.run("UPDATE nodes SET ended_at = ended_at - interval '25 hours' WHERE fenced")
    waiting.now += 1000
    node.renew(0)
    assert node.limited(["cc"]) == frozenset()
    assert node.share({"cc": ToolDemand(NO_LIMIT, 5)})["cc"].told == NO_LIMIT


def test_what_a_runtime_said_of_limits_counts_until_the_next_one_of_its_name_has_said_its_own(
    cluster: PostgresNodes,
) -> None:
    node, gone = cluster.node("web-1"), cluster.node("web-2")
    gone.share({"cc": ToolDemand(3, 0, said_by="runtime"), "dd": ToolDemand(2, 0, said_by="job-1")})
    gone.leave()
    again = cluster.node("web-2")
    assert node.share({"cc": ToolDemand(NO_LIMIT, 5)})["cc"].by == "the runtime of web-2"
    again.renew_words()
    assert node.limited(["cc", "dd"]) == {"dd"}  # a job may go on
    assert node.share({"cc": ToolDemand(NO_LIMIT, 5)})["cc"].told == NO_LIMIT


def test_of_each_node_the_last_breakers_that_say_nothing_are_kept(cluster: PostgresNodes) -> None:
    waiting = Waiting()
    node = cluster.node("web-1", clock=lambda: waiting.now)
    other = cluster.node("web-2")
    said = {1: {"state": "open"}, 2: {"failures": 1}}
    made = (breaker(key, id=f"t{key}@web-1", name=f"t{key}", **said.get(key, {})) for key in range(1, 1011))
    cluster.commit(node, *made)
    cluster.commit(other, breaker(2000, id="t@web-2", name="t"))
    waiting.now += 1000
    node.renew(0)
    assert cluster.one("SELECT count(*) FROM breaker_records") == 1000 + 2 + 1


# -- all at once


def test_whatever_nodes_do_at_once_each_job_is_one_nodes_and_its_numbers_rise(cluster: PostgresNodes) -> None:
    """Nodes join, commit, fall silent, are fenced and leave, in threads of their own."""
    history: dict[int, list[int]] = {}
    owners: Counter[int] = Counter()
    guard, ends = threading.Lock(), threading.Event()
    left = [60]

    def life(number: int) -> None:
        rounds = 0
        while not ends.is_set():
            rounds += 1
            node = cluster.node(f"n{number}-{rounds}")
            mine: set[int] = set()
            try:
                for turn in range(6):
                    cluster.watch(node)
                    if (loaded := node.take()) is not None:
                        assert loaded.last_seq % EPOCH == 0
                        mine |= {one.key for one in loaded.jobs}
                        for one in loaded.jobs:
                            with guard:
                                history[one.key].append(loaded.last_seq)
                    with guard:
                        left[0] -= 1
                        key = left[0]
                    if key > 0 and turn < 3:
                        with guard:
                            history[key] = [node.epoch * EPOCH]
                        cluster.commit(node, job(key))
                        mine.add(key)
                    elif key <= 0:
                        ends.set()
                if rounds % 2:
                    node.leave()
                else:
                    cluster.silence(node)
            except LeaseLost:
                continue

    futures = [cluster.later(life, number) for number in range(4)]
    for future in futures:
        future.result()
    last = cluster.node("last")
    cluster.watch(last)
    cluster.run("UPDATE nodes SET seen_at = seen_at - interval '1 day' WHERE node <> %s AND NOT fenced", last.node)
    while (loaded := last.take()) is not None:
        owners.update(one.key for one in loaded.jobs)
        for one in loaded.jobs:
            history[one.key].append(loaded.last_seq)
    committed = {row[0] for row in cluster.run("SELECT key FROM job_records")}
    assert len(committed) > 20
    assert owners == dict.fromkeys(committed, 1)
    for key in committed:
        assert history[key] == sorted(set(history[key]))


def test_what_is_given_back_is_taken_first_by_those_that_have_begun_much_later(cluster: PostgresNodes) -> None:
    old, peer, young = (cluster.node(name) for name in ("old", "peer", "young"))
    for node, hours in ((old, 240), (peer, 230)):
        cluster.run(
            "UPDATE nodes SET started_at = started_at - make_interval(hours => %s) WHERE node = %s", hours, node.node
        )
    cluster.commit(old, job(1), job(2))
    assert old.step_aside() == 2
    for node in (old, peer, young):  # the last body runs for long: that makes no node older
        cluster.run("UPDATE nodes SET started_at = started_at - interval '2 days' WHERE node = %s", node.node)
    cluster.run("UPDATE nodes SET leaving_since = leaving_since - interval '2 days'")
    old.give_back([1, 2])  # although no node has left yet, whose jobs these could be
    assert peer.take() is None
    taken = young.take()
    assert taken is not None
    assert [one.key for one in taken.jobs] == [1, 2]
    assert {node.name: node.state for node in peer.nodes()} == dict.fromkeys(("old", "peer", "young"), "living")


def test_what_the_favoured_do_not_take_in_time_is_for_all_who_have_not_stepped_aside(cluster: PostgresNodes) -> None:
    old, peer, young = (cluster.node(name) for name in ("old", "peer", "young"))
    for node in (old, peer):
        cluster.run("UPDATE nodes SET started_at = started_at - interval '10 days' WHERE node = %s", node.node)
    cluster.commit(old, job(1))
    assert old.step_aside() == 2
    old.give_back([1])
    assert young.step_aside() == 1
    assert peer.take() is None
    cluster.run("UPDATE nodes SET favours_until = clock_timestamp()")
    taken = peer.take()
    assert taken is not None
    assert [one.key for one in taken.jobs] == [1]


def test_a_command_for_what_is_given_back_is_free_for_who_takes_it(cluster: PostgresNodes) -> None:
    old, new = cluster.node("old"), cluster.node("new")
    cluster.commit(old, job(1))
    name = job(1).id
    cluster.run("INSERT INTO names VALUES (%s, 1) ON CONFLICT (name) DO UPDATE SET key = 1", f"job:{name}")
    new.send(InboxRow("cancel", "job", name, "r"))
    assert [row.target for row in old.inbox()] == [name]
    old.step_aside()
    old.give_back([1])
    assert old.inbox() == []
    new.take()
    assert [row.target for row in new.inbox()] == [name]


def test_a_node_that_was_fenced_while_none_lives_is_told_that_and_nothing_else(cluster: PostgresNodes) -> None:
    """If no node lives, no share can be computed: before, the node got a division by zero."""
    node = cluster.node("web-1")
    cluster.commit(node, job(1))
    cluster.run("UPDATE nodes SET fenced = true")
    with pytest.raises(LeaseLost):
        node.take()
