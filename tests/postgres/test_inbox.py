"""The inbox of a journal in PostgreSQL: which node executes a command, and which nodes are notified."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import psycopg
import pytest
from tests.postgres.nodes_help import PostgresNodes
from tests.runtime.journal.samples import job

from callboard.actors.records.entities import MachineRecord
from callboard.runtime.errors import InboxFull, JournalMissing
from callboard.runtime.journal import contract
from callboard.runtime.journal.batch import Batch
from callboard.runtime.journal.contract import Entry, InboxAnswer, InboxRow
from callboard.runtime.journal.postgres import inbox
from callboard.runtime.journal.postgres.address import Address, parse
from callboard.runtime.journal.postgres.inbox import PostgresNotifier, about, put, who_runs
from callboard.runtime.journal.postgres.medium import PostgresMedium
from callboard.runtime.journal.postgres.nodes import PostgresCluster, nodes_of
from callboard.runtime.journal.postgres.opening import connect
from callboard.runtime.testing.postgres import PrivateServer


@pytest.fixture
def cluster(emptied: str) -> Iterator[PostgresNodes]:
    cluster = PostgresNodes(emptied)
    yield cluster
    cluster.close()


def row(kind: str, target: str, verb: str = "cancel") -> InboxRow:
    return InboxRow(verb, kind, target, "key-1", {"reason": "b\0d\ud800".encode("utf-8", "replace").decode()})


def targets(node: PostgresCluster) -> list[str]:
    return [one.target for one in node.inbox()]


@pytest.mark.parametrize(
    ("kind", "target", "owner"),
    [
        ("job", "nightly", "job:nightly"),
        ("task", "nightly/build", "job:nightly"),
        ("task", "nightly/build/child/link", "job:nightly/build/child"),
        ("machine", "m1", "machine:m1"),
        ("worker", "loop@web-1", "node:web-1"),
        ("worker", "loop@web-1#3", "node:web-1"),
        ("breaker", "c@c@web-1", "node:web-1"),
        ("breaker", "cc", None),
        ("worker", "loop", None),
        ("job", "a\nb", '"job:a\\nb"'),
    ],
)
def test_a_command_is_whose_its_target_is(kind: str, target: str, owner: str | None) -> None:
    assert about(row(kind, target)) == owner


def test_each_node_is_given_what_it_has_to_do(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    door = MachineRecord(key=3, id="door", name="door", state="on", created_at=1.0, machine="door", definitions=(4,))
    cluster.commit(first, job(1), door)
    cluster.commit(second, job(2))
    asked = [("machine", "door"), ("task", "job-2/build"), ("worker", "loop@web-2"), ("job", "job-1")]
    numbers = [first.send(row(kind, target)) for kind, target in asked]
    assert numbers == sorted(numbers)
    mine = first.inbox()
    assert [(one.row, one.kind, one.target) for one in mine] == [(numbers[0], *asked[0]), (numbers[3], *asked[3])]
    assert mine[0].arguments == {"reason": "b\0d?"}
    assert mine[0].request_id == "key-1"
    assert targets(second) == ["job-2/build", "loop@web-2"]
    assert targets(first) == ["door", "job-1"]  # again, until they are answered


def test_what_is_nobodys_is_done_by_who_comes_first(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(first, job(1, state="failed", finished_at=2.0))
    for kind, target in (("job", "job-1"), ("job", "unknown"), ("breaker", "cc"), ("worker", "loop@gone")):
        second.send(row(kind, target))
    assert targets(second) == ["job-1", "unknown", "cc", "loop@gone"]
    assert targets(first) == []
    second.leave()
    assert targets(first) == ["job-1", "unknown", "cc", "loop@gone"]


def test_what_is_about_a_job_of_a_dead_node_waits_until_it_is_taken_over(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    cluster.commit(first, job(1))
    second.send(row("job", "job-1"))
    assert targets(second) == []
    assert targets(first) == ["job-1"]  # the node has the command, and ends with it
    cluster.watch(second)
    cluster.silence(first)
    assert targets(second) == []
    load = second._load
    seen: list[list[str]] = []

    def loading(part: object) -> object:
        seen.append(targets(second))
        return load(part)  # type: ignore[arg-type]

    second._load = loading  # type: ignore[assignment]
    assert second.take() is not None
    assert seen == [[]]  # the node owns the job, and has not loaded it yet
    assert targets(second) == ["job-1"]


def test_a_row_that_another_node_claims_at_this_moment_is_passed_over(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    number = first.send(row("job", "unknown"))
    first.send(row("job", "too"))
    with cluster.holding("UPDATE inbox_rows SET taken_by = %s WHERE key = %s", first.node, number):
        assert targets(second) == ["too"]
    assert targets(second) == ["too"]
    assert targets(first) == ["unknown"]


def test_rows_that_everybody_wants_are_claimed_once(cluster: PostgresNodes) -> None:
    nodes = [cluster.node(f"web-{number}") for number in range(4)]
    sent = {nodes[0].send(row("job", f"j{number}")) for number in range(60)}
    futures = [cluster.later(lambda node=node: [one.row for one in node.inbox()]) for node in nodes for _ in range(3)]
    for future in futures:
        future.result()
    claimed = [one.row for node in nodes for one in node.inbox()]
    assert sorted(claimed) == sorted(sent)


def test_what_people_say_is_claimed_apart_and_of_events_no_more_than_there_is_room_for(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    for number in range(6):
        first.send(row("machine", f"m{number}", "fire"))
    first.send(row("machine", 'odd\n"', "fire"))
    cluster.run("INSERT INTO inbox_rows (command, about) VALUES ('nonsense', 'machine:m')")
    for kind, target in (("job", "machine:m"), ("breaker", "cc")):
        second.send(row(kind, target))
    assert [one.target for one in first.inbox(events=False)] == ["machine:m", "cc"]
    assert [one.target for one in first.inbox(events=True, limit=2)] == ["m0", "m1"]
    assert [one.target for one in second.inbox(events=True, limit=3)] == ["m2", "m3", "m4"]
    assert [one.target for one in first.inbox(events=True, limit=2)] == ["m0", "m1"]
    assert [one.target for one in first.inbox(events=True)] == ["m0", "m1", "m5", 'odd\n"']
    assert targets(second) == ["m2", "m3", "m4"]


def test_no_more_is_put_there_than_may_wait_and_events_leave_room_for_what_people_say(
    cluster: PostgresNodes, emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "WAITING_FOR_ONE", 2)
    monkeypatch.setattr(contract, "WAITING_IN_ALL", 3)
    node = cluster.node("web-1")
    for send in (node.send, lambda one: put(emptied, one)):
        for target in ("m1", "m1", "m2"):
            send(row("machine", target, "fire"))
        for target, text in (("m1", "2 commands for machine m1 wait"), ("m3", "3 events for machines wait")):
            with pytest.raises(InboxFull, match=text):
                send(row("machine", target, "fire"))
        for kind, target in (("job", "j"), ("job", "j"), ("breaker", "cc")):
            send(row(kind, target))
        with pytest.raises(InboxFull, match=r"2 commands for (job|task) j"):
            send(row("task", "j/a") if send is node.send else row("job", "j"))
        with pytest.raises(InboxFull, match="3 commands wait"):
            send(row("breaker", "cc"))
        cluster.run("UPDATE inbox_rows SET answer = 'done'")
    node.renew(0)  # the refused commands do not make it count as lost


def test_an_answer_is_read_by_anybody(cluster: PostgresNodes) -> None:
    first, second = cluster.node("web-1"), cluster.node("web-2")
    number = second.send(row("job", "unknown"))
    assert second.answer(number) is None
    assert second.answer(number + 100) is None
    with contextlib.closing(PostgresMedium(cluster.address, first.known)) as medium:
        medium.open()
        medium.commit(Batch(1, [Entry([], [], answers=[InboxAnswer(number, '{"error":"no"}', 5.0)])]), lambda: None)
    assert second.answer(number) == b'{"error":"no"}'
    assert targets(first) == targets(second) == []


def test_what_cannot_be_read_is_passed_over(cluster: PostgresNodes) -> None:
    node = cluster.node("web-1")
    cluster.run("INSERT INTO inbox_rows (command) VALUES ('nonsense'), (%s)", '"' + "x" * 2_000_001 + '"')
    node.send(row("job", "j"))
    assert targets(node) == ["j"]


def test_a_client_puts_commands_and_sees_who_is_there(cluster: PostgresNodes, emptied: str) -> None:
    assert who_runs(emptied) is None
    assert nodes_of(emptied) == []
    node = cluster.node("web-1")
    assert who_runs(emptied) == "node web-1"
    other = cluster.node("web-2")
    assert who_runs(emptied) == "nodes web-1, web-2"
    cluster.silence(other)
    assert who_runs(emptied) == "node web-1"
    assert [(one.name, one.state) for one in nodes_of(emptied)] == [("web-1", "living"), ("web-2", "silent")]
    put(emptied, row("job", "unknown"))
    assert targets(node) == ["unknown"]


def test_a_client_is_told_that_there_is_no_journal(postgres: str) -> None:
    for ask in (lambda: put(postgres, row("job", "x")), lambda: who_runs(postgres), lambda: nodes_of(postgres)):
        with pytest.raises(JournalMissing, match="There is no journal"):
            ask()


# -- the notifier


async def until_it_works(notifier: PostgresNotifier) -> None:
    with anyio.fail_after(300):
        while not notifier.works:
            await notifier.wait()


@pytest.mark.anyio
async def test_who_waits_hears_the_bell_at_once(
    cluster: PostgresNodes, emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LOOK_ANYWAY", 3600.0)
    notifier = PostgresNotifier(parse(emptied))
    try:
        await until_it_works(notifier)
        with anyio.fail_after(300):
            put(emptied, row("job", "x"))  # before it waits
            await notifier.wait()
            async with anyio.create_task_group() as group:
                group.start_soon(notifier.wait)
                await anyio.wait_all_tasks_blocked()
                await anyio.to_thread.run_sync(put, emptied, row("job", "x"))
    finally:
        notifier.close()


@pytest.mark.anyio
async def test_a_ring_of_another_journal_is_not_heard(
    emptied: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LOOK_ANYWAY", 3600.0)
    other = PostgresNodes(postgres)
    notifier = PostgresNotifier(parse(emptied))
    try:
        await until_it_works(notifier)
        put(postgres, row("job", "x"))
        with anyio.move_on_after(0.05) as waited:
            await notifier.wait()
        assert waited.cancelled_caught
    finally:
        notifier.close()
        other.close()


@pytest.mark.anyio
async def test_who_cannot_be_rung_looks_and_hears_again_later(
    cluster: PostgresNodes, emptied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LOOK_EVERY", 0.001)
    notifier = PostgresNotifier(parse(emptied))
    try:
        await until_it_works(notifier)
        cluster.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'callboard notify'"
        )
        with anyio.fail_after(300):
            await notifier.wait()
            assert not notifier.works
            await until_it_works(notifier)
    finally:
        notifier.close()


@pytest.mark.anyio
async def test_it_is_looked_each_second_where_there_is_no_server(
    postgres_server: PrivateServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "LOOK_EVERY", 0.001)
    now = 0.0
    notifier = PostgresNotifier(parse(postgres_server.address(database="nowhere")), clock=lambda: now)
    for _ in range(3):
        await notifier.wait()
    assert not notifier.works
    assert notifier._again_at == pytest.approx(0.001)
    now = 1.0
    await notifier.wait()
    assert notifier._again_at == pytest.approx(1.002)
    notifier.close()


@pytest.mark.anyio
async def test_a_bell_that_is_taken_away_while_it_connects_leaves_no_connection(emptied: str) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    made: list[psycopg.Connection[Any]] = []

    def connecting(address: Address, purpose: str) -> psycopg.Connection[Any]:
        begun.set()
        assert goes_on.wait(600)
        made.append(connect(address, purpose))
        return made[0]

    notifier = PostgresNotifier(parse(emptied), connecting)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await notifier.wait()
    assert not notifier._connecting.locked()
    async with anyio.create_task_group() as group:
        group.start_soon(notifier.wait)
        await anyio.to_thread.run_sync(begun.wait, 30)
        group.cancel_scope.cancel()
    notifier.close()
    goes_on.set()
    with anyio.fail_after(300):
        while notifier._connecting.locked():
            await anyio.sleep(0.001)
    assert not notifier.works
    assert made[0].closed
