"""Commands of other processes, in one process: the client calls from a thread, beside a runtime on the same file."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest
from tests.waiting import until

from callboard import Machine, MachineActor, State, Transition
from callboard.actors.messages.notices import Notice
from callboard.actors.spec.model import Approval, Clause, Task, Workstream
from callboard.runtime.commands import inbox as takers
from callboard.runtime.commands.client import answer_of, command, put
from callboard.runtime.commands.wire_errors import CommandAnswer
from callboard.runtime.dispatch.clock import SystemClock
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.errors import InboxFull, JournalMissing, JournalUnwritable
from callboard.runtime.handles.jobs import JobHandle
from callboard.runtime.journal import contract
from callboard.runtime.journal import notify as notifying
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.notify import SocketNotifier, notify, socket_of
from callboard.runtime.journal.sqlite.lock import Lock, owner_of
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.lifespan import wiring
from callboard.runtime.runtime import Runtime
from callboard.runtime.services import RuntimeServices

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"), pytest.param(("trio", {}), id="trio")]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Two loops suffice here: what differs between them is the runtime's, and is tested with it on all."""
    return request.param


SHORT = Path("/proc/self/fd").is_dir()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def opened(journal: Path, **options: Any) -> Runtime:
    return Runtime(journal, workers=(), drain_deadline=0, **options)


async def begun(runtime: Runtime) -> JobHandle:
    tasks = [Task(name, command=["true"], optional=True) for name in "abc"]
    return await runtime.submit(Workstream("three", tasks=tasks), id="j")


def cancel(target: str, request_id: str, **arguments: Any) -> InboxRow:
    return InboxRow("cancel", "task" if "/" in target else "job", target, request_id, arguments)


async def sent(journal: Path, row: InboxRow, timeout: float = 60) -> CommandAnswer:
    answered = await anyio.to_thread.run_sync(command, journal, row, timeout)
    assert answered is not None
    return answered


def count(journal: Path, entity_id: str, event: str) -> int:
    with contextlib.closing(SqliteReader(journal)) as reader:
        return sum(row.event == event for row in reader.transitions(entity_id=entity_id))


async def test_it_takes_effect_and_is_answered_in_one_commit(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        answered = await sent(journal, cancel("j/a", "r1", reason="too slow"))
        assert answered == CommandAnswer("task", "j@1/a", "cancelled")
        assert count(journal, "j@1/a", "cancel") == 1
        with contextlib.closing(sqlite3.connect(journal)) as connection:
            shown = connection.execute("SELECT verb, target, request_id, answer FROM inbox").fetchone()
            kept = connection.execute("SELECT request_id, operation, answer FROM idempotency_keys").fetchone()
        assert shown[:3] == ("cancel", "j/a", "r1")
        assert kept == ("r1", "cancel", shown[3])


async def test_the_same_key_again_gets_the_same_answer(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        first = await sent(journal, cancel("j/a", "r1", reason="x"))
        assert await sent(journal, cancel("j/a", "r1", reason="x")) == first
        other = await sent(journal, cancel("j/b", "r1", reason="x"))
        assert (other.refused, "was given to another command" in (other.error or "")) == ("reused", True)
        assert count(journal, "j@1/a", "cancel") == 1
        assert count(journal, "j@1/b", "cancel") == 0


async def test_what_is_refused_says_why(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        await sent(journal, cancel("j/a", "r1"))
        again = await sent(journal, cancel("j/a", "r2"))
        assert (again.refused, again.state, again.allowed) == ("conflict", "cancelled", [])
        assert "is not possible in state 'cancelled'" in (again.error or "")
        assert (await sent(journal, cancel("j/nope", "r3"))).refused == "missing"
        assert (await sent(journal, cancel("nope", "r4"))).refused == "missing"
        assert (await sent(journal, cancel("j/b", "r5", why="x"))).refused == "invalid"
        assert (await sent(journal, cancel("j/b", "r6", reason=7))).refused == "invalid"
        assert (await sent(journal, InboxRow("drop", "job", "j", "r7"))).refused == "invalid"
        assert (await sent(journal, InboxRow("__init__", "job", "j", "r8"))).refused == "invalid"


async def test_a_ring_too_many_does_nothing(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        for _ in range(50):
            assert notify(journal)
        put(journal, cancel("j/a", "r1"))
        for _ in range(5):
            notify(journal)
        assert (await sent(journal, cancel("j/b", "r2"))).state == "cancelled"
        assert count(journal, "j@1/a", "cancel") == 1


async def test_many_at_once_are_each_done_once(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        states: list[str] = []

        async def one(name: str, key: int) -> None:
            states.append((await sent(journal, cancel(f"j/{name}", f"{name}{key % 2}"))).state)

        async with anyio.create_task_group() as group:
            for key in range(4):
                for name in "ab":
                    group.start_soon(one, name, key)
        assert states == ["cancelled"] * 8  # one key took effect, the other was refused in that state
        assert count(journal, "j@1/a", "cancel") == count(journal, "j@1/b", "cancel") == 1


async def test_who_is_asked_about_a_team_and_takes_his_time_keeps_the_commands_of_others_from_nothing(
    journal: Path,
) -> None:
    asked, says = anyio.Event(), anyio.Event()

    async def members(team: str) -> list[str]:
        asked.set()
        await says.wait()
        return ["ana"]

    async with opened(journal) as runtime:
        runtime.task(members)
        teams = [Clause(team=team, members="members") for team in ("leads", "owners")]
        held = [Task(name, command=["true"], hold=Approval(clauses=teams)) for name in "ab"]
        await runtime.submit(Workstream("held", tasks=held), id="held")
        await begun(runtime)
        order: list[tuple[str, str | None]] = []

        async def say(row: InboxRow) -> None:
            order.append((row.request_id, (await sent(journal, row)).state))

        async with anyio.create_task_group() as group:
            group.start_soon(say, decision("held/a", 0))
            with anyio.fail_after(300):
                await asked.wait()
                await say(cancel("j", "r1", force=True))
                await say(cancel("j", "r1", force=True))  # the same again, beside what waits
                assert [request_id for request_id, _ in order] == ["r1", "r1"]
            row = put(journal, decision("held/b", 0, "reject"))  # about the same job: after the first
            notify(journal)
            assert (await anyio.to_thread.run_sync(answer_of, journal, row, 0.3)) is None
            says.set()
        assert order[2][0] == "approve held/a ana"
        assert (answered := await anyio.to_thread.run_sync(answer_of, journal, row, 30)) is not None
        assert answered.state == "cancelled"


async def test_one_key_for_two_targets_at_once_is_one_command(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        await runtime.submit(Workstream("w", tasks=[Task("a", command=["true"])]), id="k")
        rows = [put(journal, cancel(target, "r1")) for target in ("j", "k", "j")]
        notify(journal)
        first, second, third = [await anyio.to_thread.run_sync(answer_of, journal, row, 30) for row in rows]
        assert first is not None
        assert (first.id, third) == ("j", first)
        assert second is not None
        assert second.refused == "reused"
        assert (await runtime.job("k")).state not in {"cancelling", "cancelled"}


async def test_on_a_stopped_journal_it_takes_effect_at_the_next_start_before_anything_runs(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
    assert owner_of(journal) is None
    row = put(journal, cancel("j/a", "r1", reason="not needed"))
    assert not notify(journal)
    async with Runtime(journal) as runtime:
        outcome = await runtime.recovered[0].wait()
        assert {name: task.state for name, task in outcome.tasks.items()} == {
            "a": "cancelled", "b": "completed", "c": "completed",
        }  # fmt: skip
        assert outcome.tasks["a"].attempt == 0
    assert answer_of(journal, row, 0) == CommandAnswer("task", "j@1/a", "cancelled")


HOUR = 3600.0


class Later(SystemClock):
    """The machine's time, some hours on."""

    def __init__(self, hours: float) -> None:
        self.time = lambda: time.time() + hours * HOUR  # type: ignore[misc,method-assign]


async def asks(task: TaskContext) -> str:
    (decision,) = await task.approval("prod", expires="1h")
    return str(decision.by)


def decision(target: str, sent_at: float, verb: str = "approve", by: str = "ana") -> InboxRow:
    kind = "task" if "/" in target else "job"
    return InboxRow(verb, kind, target, f"{verb} {target} {by}", {"by": by}, time.time() + sent_at)


async def left_held(journal: Path) -> None:
    """Leave a journal with holds of each kind, which expire in an hour."""
    async with Runtime(journal, drain_deadline=0) as runtime:
        seen = runtime.events(kind="approval", notices=False)
        for name in ("task", "two"):
            people = 1 if name == "task" else 2
            hold = Approval(people=people, expires="1h")
            await runtime.submit(Workstream("w", tasks=[Task("a", command=["true"], hold=hold)]), id=name)
        hold = Approval(expires="1h")
        await runtime.submit(Workstream("w", tasks=[Task("a", command=["true"])], hold=hold), id="stream")
        await runtime.submit(Workstream("w", tasks=[Task("a", run=asks)]), id="body")
        with anyio.fail_after(300):
            await anext(seen)


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_decision_made_in_time_counts_though_the_next_start_comes_after_the_expiry(
    journal: Path, as_event: bool
) -> None:
    await left_held(journal)
    for target in ("task/a", "two/a", "stream", "body/a"):
        row = decision(target, 60)
        fired = msgspec.structs.replace(row, verb="fire", arguments={**row.arguments, "event": "approve"})
        put(journal, fired if as_event else row)
    async with Runtime(journal, clock=Later(2)) as runtime:
        jobs = {job.id: job for job in runtime.recovered}
        with anyio.fail_after(300):
            states = {name: (await job.wait()).state for name, job in jobs.items()}
    assert states == {"task": "completed", "two": "failed", "stream": "completed", "body": "completed"}
    two = jobs["two"].task("a").record  # one of two people is not enough: it has expired
    assert [one.verdict for one in two.decisions] == ["approved", "expired"]
    first = jobs["task"].task("a").record.decisions[0]
    assert abs(first.at - (time.time() + 60)) < 30  # when it was made


async def test_a_rejection_made_in_time_rejects_though_the_hold_has_expired_since(journal: Path) -> None:
    await left_held(journal)
    put(journal, decision("task/a", 60, "reject"))
    async with Runtime(journal, clock=Later(2)) as runtime:
        jobs = {job.id: job for job in runtime.recovered}
        assert [one.verdict for one in jobs["task"].task("a").record.decisions] == ["rejected"]
        assert [one.verdict for one in jobs["two"].task("a").record.decisions] == ["expired"]


@pytest.mark.parametrize("sent_at", [1.5 * HOUR, 30 * HOUR, None], ids=["late", "in the future", "unknown"])
async def test_a_decision_made_after_the_expiry_is_refused(journal: Path, sent_at: float | None) -> None:
    await left_held(journal)
    for target in ("task/a", "stream", "body/a"):
        row = decision(target, sent_at or 0.0, "reject" if target == "stream" else "approve")
        put(journal, row if sent_at is not None else msgspec.structs.replace(row, sent_at=0.0))
    put(journal, decision("two/a", 60))
    put(journal, decision("two/a", sent_at or 2 * HOUR, by="ben"))  # of two people, one is late
    runtime, told = Runtime(journal, clock=Later(2)), list[Notice]()
    runtime.on_trouble = told.append
    async with runtime:
        for job in runtime.recovered:
            if job.id in {"task", "two"}:
                assert job.task("a").record.decisions[-1].verdict == "expired"
    assert [notice.event for notice in told].count("command_refused") >= 3


async def test_a_client_that_sends_it_again_while_nobody_runs_it_gets_one_effect(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        await sent(journal, cancel("j/a", "r1"))
    rows = [put(journal, cancel("j/a", "r1")), put(journal, cancel("j/b", "r2")), put(journal, cancel("j/b", "r2"))]
    async with opened(journal) as runtime:
        assert runtime.recovered[0].task("b").record.state == "cancelled"
    answers = [answer_of(journal, row, 0) for row in rows]
    assert answers == [CommandAnswer("task", f"j@1/{name}", "cancelled") for name in "abb"]
    assert count(journal, "j@1/a", "cancel") == count(journal, "j@1/b", "cancel") == 1


async def test_what_was_left_and_is_refused_at_the_start_is_told(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        await sent(journal, cancel("j/a", "r1"))
    put(journal, cancel("j/a", "r2"))
    runtime, told = opened(journal), list[Notice]()
    runtime.on_trouble = told.append
    async with runtime:
        pass
    (notice,) = told
    assert notice.event == "command_refused"
    assert "cancel j/a, sent while no runtime was open, was refused: task: 'cancel" in notice.text


GATE = Machine(
    "gate",
    "shut",
    [State("shut", bounded_by="anybody"), State("ajar", bounded_by="anybody"), State("open", terminal=True)],
    [Transition("shut", "push", "ajar"), Transition("ajar", "push", "open"), Transition("ajar", "pull", "shut")],
)


MACHINE = GATE


def fire(event: str, request_id: str) -> InboxRow:
    return InboxRow("fire", "machine", "gate-1", request_id, {"event": event})


async def test_an_event_that_waited_for_its_machine_takes_effect_once_and_is_refused_as_any_other(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(journal) as runtime:
        runtime.spawn(MachineActor(GATE), name="gate-1")
    rows = [put(journal, fire(event, f"r{number}")) for number, event in enumerate(["push", "shout", "push"])]
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(globals(), "GATE")
        async with opened(journal) as runtime:
            await runtime.caught_up()
        with contextlib.closing(SqliteReader(journal)) as reader:
            assert [row.row for row in reader.inbox()] == rows
    for _ in range(2):
        runtime, told = opened(journal), list[Notice]()
        runtime.on_trouble = told.append
        async with runtime:
            await runtime.caught_up()
            assert runtime.machine("gate-1").state == "open"
    answers = [answer_of(journal, row, 0) for row in rows]
    assert [answer and (answer.state, answer.refused) for answer in answers] == [
        ("ajar", None),
        ("ajar", "conflict"),
        ("open", None),
    ]
    assert count(journal, "gate-1", "push") == 2


def failing(question: Any, times: int) -> Any:
    """A question to the journal, which fails so many times first."""
    left = [times]

    def ask(reader: Any, *args: Any, **more: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise JournalUnwritable("disk I/O error")
        return question(reader, *args, **more)

    return ask


async def test_what_waits_for_a_machine_is_done_though_the_journal_could_not_be_read_when_that_was_spawned(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "AGAIN", 0.01)
    async with opened(journal) as runtime:
        runtime.spawn(MachineActor(GATE), name="gate-1")
    rows = [put(journal, fire("push", f"r{number}")) for number in range(2)]
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(globals(), "GATE")
        runtime, told = opened(journal), list[Notice]()
        runtime.on_trouble = told.append
        async with runtime:
            await runtime.caught_up()
            monkeypatch.setattr(SqliteReader, "request", failing(SqliteReader.request, 3))
            elsewhere.setitem(globals(), "GATE", MACHINE)
            ref = runtime.spawn(MachineActor(MACHINE), name="gate-1")
            with anyio.fail_after(300):
                while not ref.ended:
                    await anyio.sleep(0.01)
    assert [notice.event for notice in told].count("inbox_unreadable") == 1
    assert [answer_of(journal, row, 0) is not None for row in rows] == [True, True]


async def test_an_inbox_that_could_not_be_read_is_looked_at_again_without_a_ring(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "AGAIN", 0.01)
    async with opened(journal) as runtime:
        await begun(runtime)
        monkeypatch.setattr(SqliteReader, "inbox", failing(SqliteReader.inbox, 2))
        assert (await sent(journal, cancel("j/a", "r1"))).state == "cancelled"


async def test_rows_that_cannot_be_read_disturb_nothing(journal: Path) -> None:
    async with opened(journal) as runtime:
        await begun(runtime)
        with contextlib.closing(sqlite3.connect(journal, isolation_level=None)) as connection:
            connection.executemany("INSERT INTO inbox_rows (command) VALUES (?)", [("{}",), ("nonsense",), ("[1]",)])
        assert (await sent(journal, cancel("j/a", "r1"))).state == "cancelled"
    async with opened(journal) as runtime:
        assert runtime.health.ok


async def test_a_client_that_stops_while_it_holds_the_lock_only_delays(journal: Path) -> None:
    async with opened(journal) as runtime:
        job = await begun(runtime)
        stopped = sqlite3.connect(journal, isolation_level=None)
        stopped.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as group:
            group.start_soon(job.task("a").cancel)
            with anyio.fail_after(300):
                while runtime.health.ok:
                    await anyio.sleep(0.02)
            assert "another program holds the file locked" in (runtime.health.reason or "")
            assert job.state == "running"
            stopped.close()  # as killing it would
        assert job.task("a").record.state == "cancelled"
        assert runtime.health.ok


async def test_nobody_answers(journal: Path) -> None:
    with pytest.raises(JournalMissing):
        put(journal, cancel("j", "r1"))
    async with opened(journal) as runtime:
        await begun(runtime)
    row = put(journal, cancel("j", "r1"))
    lock = Lock(journal)
    ticks = iter(range(1000))
    try:
        assert answer_of(journal, row, 5, clock=lambda: float(next(ticks)), pause=lambda _: None) is None
        assert next(ticks) < 20
    finally:
        lock.release()
    assert answer_of(journal, row, 1e9, clock=lambda: float(next(ticks)), pause=lambda _: None) is None  # it has ended


# -- notifications
# ----------------------------------------------------------------------------------------------------------


async def test_only_the_owner_may_ring(journal: Path) -> None:
    bell = SocketNotifier(journal)
    assert bell.works
    assert stat.S_IMODE(socket_of(journal).stat().st_mode) == 0o600
    assert notify(journal)
    with anyio.fail_after(300):
        await bell.wait()
    with anyio.move_on_after(0.01):
        await bell.wait()
        pytest.fail("it was rung once")
    bell.close()
    assert not socket_of(journal).exists()
    assert not notify(journal)


async def test_a_bell_left_over_by_a_kill_is_replaced(journal: Path) -> None:
    left = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    left.bind(str(socket_of(journal)))
    left.close()
    assert not notify(journal)
    async with opened(journal):
        assert notify(journal)


async def test_a_long_path_has_a_bell_too(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["folder" * 8] * 4)
    deep.mkdir(parents=True)
    journal = deep / "state.db"
    async with opened(journal) as runtime:
        await begun(runtime)
        assert notify(journal) == SHORT
        assert (await sent(journal, cancel("j/a", "r1"))).state == "cancelled"


@pytest.mark.parametrize("why", ["a file is in its place", "its name is too long", "the system has none"])
async def test_without_a_bell_it_looks_by_itself(tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "LOOK_EVERY", 0.01)
    journal = tmp_path / ("x" * 120 if why == "its name is too long" else "state.db")
    if why == "a file is in its place":
        socket_of(journal).write_text("mine")
    if why == "the system has none":
        monkeypatch.setattr(notifying, "socket", SimpleNamespace())
    async with opened(journal) as runtime:
        await begun(runtime)
        assert not notify(journal)
        assert (await sent(journal, cancel("j/a", "r1"))).state == "cancelled"
    assert socket_of(journal).exists() == (why == "a file is in its place")


async def test_an_idle_runtime_does_not_look(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    inbox = SqliteReader.inbox

    def looking(self: SqliteReader, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        if not events:  # one reading asks for people's commands, and for events
            looked.append("")
        return inbox(self, events=events, limit=limit)

    monkeypatch.setattr(SqliteReader, "inbox", looking)
    async with opened(journal) as runtime:
        with anyio.fail_after(300):
            while len(looked) < 2:  # once before anything runs, once when there is a notifier
                await anyio.wait_all_tasks_blocked()
        await runtime.drain(0)
        await anyio.wait_all_tasks_blocked()
        assert len(looked) == 2


def test_who_looks_who_owns_it_is_in_nobodys_way(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import callboard.runtime.journal.sqlite.lock as locks

    handle = os.open(f"{journal}.lock", os.O_RDWR | os.O_CREAT)
    locks._take(handle)  # as it does for a moment, where a killed owner has left its number
    monkeypatch.setattr(locks.time, "sleep", lambda _: os.close(handle))
    lock = Lock(journal)
    assert owner_of(journal) == f"process {os.getpid()}"
    lock.release()
    assert owner_of(journal) is None


BELL = Machine(
    "bell", "quiet", [State("quiet", bounded_by="anybody")], [Transition("quiet", "ring", "quiet")], endless=True
)


def rings(journal: Path, machines: int, each: int) -> list[int]:
    """Put so many events for so many machines into the inbox, in one transaction."""
    rows = [
        InboxRow("fire", "machine", f"bell-{machine}", f"{machine} {number}", {"event": "ring", "reason": str(number)})
        for number in range(each)
        for machine in range(machines)
    ]
    with contextlib.closing(sqlite3.connect(journal)) as connection, connection:
        return [
            connection.execute(
                "INSERT INTO inbox_rows (command) VALUES (?)", [msgspec.json.encode(row).decode()]
            ).lastrowid
            or 0
            for row in rows
        ]


def taken(journal: Path) -> list[tuple[str, str, str | None]]:
    """The transitions in order: the entity, the event and its reason."""
    with contextlib.closing(SqliteReader(journal)) as reader:
        return [
            (row.entity_id, row.event, row.reason) for row in reader.transitions() if row.event in {"ring", "cancel"}
        ]


async def with_bells(journal: Path, machines: int) -> None:
    """Leave a journal with a job and so many machines."""
    async with opened(journal) as runtime:
        await begun(runtime)
        for machine in range(machines):
            await runtime.spawn(MachineActor(BELL), name=f"bell-{machine}")


@pytest.mark.parametrize("left", [True, False], ids=["left while nobody ran it", "while it runs"])
async def test_what_people_say_is_done_before_the_many_events_that_were_put_there_first(
    journal: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 40)
    monkeypatch.setattr(takers, "AT_ONCE", 4)
    read: list[int] = []
    inbox = SqliteReader.inbox

    def counted(self: SqliteReader, **asked: Any) -> list[InboxRow]:
        rows = inbox(self, **asked)
        if asked.get("events"):
            read.append(len(rows))
        return rows

    await with_bells(journal, 20)
    monkeypatch.setattr(SqliteReader, "inbox", counted)
    if left:
        rows = [*rings(journal, 20, 6), put(journal, cancel("j/a", "r1"))]
    async with opened(journal) as runtime:
        await runtime.caught_up()
        if not left:
            rows = [*rings(journal, 20, 6), put(journal, cancel("j/a", "r1"))]
            notify(journal)
            answers = [await anyio.to_thread.run_sync(answer_of, journal, row, 60) for row in rows]
            assert None not in answers
    assert None not in [answer_of(journal, row, 0) for row in rows]
    done = taken(journal)
    assert [name for name, *_ in done].index("j@1/a") < 20
    assert len(done) == 20 * 6 + 1
    for machine in range(20):  # each once, and in order
        assert [reason for name, _, reason in done if name == f"bell-{machine}"] == [*map(str, range(6))]
    assert len(read) >= 3  # at most 40 of the 120 events are taken at a time
    assert max(read) <= 3 * 40  # and a look reads no more than twice what is not done yet, and that


async def test_what_somebody_says_while_events_that_were_left_are_done_is_done_before_the_rest_of_those(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 20)
    await with_bells(journal, 5)
    rings(journal, 5, 40)
    done: list[str] = []
    said: list[int] = []
    perform = wiring.perform

    async def performing(runtime: RuntimeServices, row: InboxRow) -> None:
        done.append(row.verb)
        if len(done) == 30:
            said.append(put(journal, cancel("j/a", "r1")))
        await perform(runtime, row)

    monkeypatch.setattr(wiring, "perform", performing)
    async with opened(journal) as runtime:
        await runtime.caught_up()
        assert len(done) == 201
    assert (answer := answer_of(journal, said[0], 0)) is not None
    assert answer.state == "cancelled"
    assert done.index("cancel") < 70


async def test_many_events_for_machines_that_are_not_here_are_told_once_counted_and_taken_in_order_when_they_come(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 8)
    await with_bells(journal, 3)
    rows = rings(journal, 2, 30)
    with monkeypatch.context() as elsewhere:
        elsewhere.delitem(globals(), "BELL")
        runtime, told = opened(journal), list[Notice]()
        runtime.on_trouble = told.append
        async with runtime:
            await runtime.caught_up()
            waits = [notice for notice in told if notice.event == "command_waits"]
            assert sorted((notice.facts["target"], notice.facts["waiting"]) for notice in waits) == [
                ("bell-0", 30), ("bell-1", 30),
            ]  # fmt: skip
            assert "30 events for machine bell-" in waits[0].text
            assert ", sent while no runtime had it, wait for it: " in waits[0].text
            assert runtime.metrics().events_left == 60
            elsewhere.setitem(globals(), "BELL", SPARE)
            runtime.spawn(MachineActor(SPARE), name="bell-0")
            for row in rows[::2]:
                assert (await anyio.to_thread.run_sync(answer_of, journal, row, 60)) is not None
            assert runtime.metrics().events_left == 30
    assert taken(journal) == [("bell-0", "ring", str(number)) for number in range(30)]


SPARE = BELL


async def ended_at_once() -> None:
    pass


async def test_a_program_runs_before_events_that_were_left_are_done_and_beside_them(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 40)
    await with_bells(journal, 20)
    rows = [*rings(journal, 20, 6), put(journal, cancel("j/a", "r1"))]
    perform, done, go_on = wiring.perform, list[str](), anyio.Event()

    async def performing(runtime: RuntimeServices, row: InboxRow) -> None:
        if row.kind == "machine":
            await go_on.wait()
        done.append(row.target)
        await perform(runtime, row)

    monkeypatch.setattr(wiring, "perform", performing)
    with anyio.fail_after(300):
        async with Runtime(journal) as runtime:
            assert done == ["j/a"]  # commands of people, and no event
            job = await runtime.submit(Workstream("beside", tasks=[Task("one", run=ended_at_once)]))
            assert (await job.wait()).state == "completed"
            assert done == ["j/a"]
            go_on.set()
            await runtime.caught_up()
            assert len(done) == 20 * 6 + 1
    assert None not in [answer_of(journal, row, 0) for row in rows]
    for machine in range(20):
        assert [reason for name, _, reason in taken(journal) if name == f"bell-{machine}"] == [*map(str, range(6))]


async def test_leaving_does_not_wait_for_events_that_were_left_and_the_next_start_goes_on_with_them(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 10)
    await with_bells(journal, 3)
    rows = rings(journal, 3, 20)
    perform, done, enough = wiring.perform, list[str](), anyio.Event()

    async def performing(runtime: RuntimeServices, row: InboxRow) -> None:
        if len(done) >= 25:
            enough.set()
            await anyio.sleep_forever()
        done.append(row.request_id)
        await perform(runtime, row)

    with anyio.fail_after(300), monkeypatch.context() as slow:
        slow.setattr(wiring, "perform", performing)
        async with opened(journal) as runtime:
            await enough.wait()
    assert 0 < sum(answer_of(journal, row, 0) is None for row in rows) < len(rows)
    async with opened(journal) as runtime:
        await runtime.caught_up()
    assert None not in [answer_of(journal, row, 0) for row in rows]
    for machine in range(3):
        assert [reason for name, _, reason in taken(journal) if name == f"bell-{machine}"] == [*map(str, range(20))]


KILLED = """
import os, sys, anyio
from callboard import Machine, MachineActor, Runtime, State, Transition
from callboard.runtime.commands import inbox as taker

def ring(event):
    rung.append(event)
    if len(rung) == 30 and sys.argv[2] == "kill":
        os._exit(9)  # in the middle of what was left: some of it is committed, some is done and is not

rung = []
STATES = [State("quiet", bounded_by="anybody")]
BELL = Machine("bell", "quiet", STATES, [Transition("quiet", "ring", "quiet")], endless=True)
taker.IN_HAND = 10

async def main():
    async with Runtime(sys.argv[1], workers=()) as runtime:
        events = runtime.events(kind="machine", event="ring")
        for number in range(3):
            await runtime.spawn(MachineActor(BELL), name=f"bell-{number}")
        if sys.argv[2] == "kill":
            with anyio.fail_after(60):
                async for event in events:
                    ring(event)
        await runtime.caught_up()

anyio.run(main)
"""


async def test_of_events_that_were_left_none_is_lost_or_done_twice_by_a_kill_in_the_middle(journal: Path) -> None:
    program = journal.with_name("bells.py")
    program.write_text(KILLED)

    async def run(how: str) -> int:
        done = await anyio.run_process([sys.executable, program, journal, how], check=False)
        return done.returncode

    with anyio.fail_after(300):
        assert await run("spawn") == 0
        rows = rings(journal, 3, 40)
        assert await run("kill") == 9
        assert 0 < len(taken(journal)) < len(rows)
        assert await run("rest") == 0
    assert None not in [answer_of(journal, row, 0) for row in rows]
    for machine in range(3):
        assert [reason for name, _, reason in taken(journal) if name == f"bell-{machine}"] == [*map(str, range(40))]


async def test_an_event_for_a_machine_that_is_not_here_is_refused_while_events_that_were_left_are_done(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 10)
    await with_bells(journal, 1)
    rings(journal, 1, 30)
    perform, go_on = wiring.perform, anyio.Event()

    async def performing(runtime: RuntimeServices, row: InboxRow) -> None:
        await go_on.wait()
        await perform(runtime, row)

    monkeypatch.setattr(wiring, "perform", performing)
    with anyio.fail_after(300):
        async with opened(journal) as runtime:
            late = put(journal, InboxRow("fire", "machine", "nobody", "late", {"event": "ring"}))
            go_on.set()
            answer = await anyio.to_thread.run_sync(answer_of, journal, late, 60)
            assert answer is not None
            assert answer.refused == "missing"
            await runtime.caught_up()


async def test_no_more_is_put_there_than_may_wait_and_events_leave_room_for_what_people_say(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "WAITING_FOR_ONE", 3)
    monkeypatch.setattr(contract, "WAITING_IN_ALL", 8)
    await with_bells(journal, 5)

    def full(row: InboxRow) -> str:
        with pytest.raises(InboxFull, match="nothing was put there") as refused:
            put(journal, row)
        return str(refused.value)

    def pull(machine: int, number: int) -> InboxRow:
        return InboxRow("fire", "machine", f"bell-{machine}", f"{machine} {number}", {"event": "ring"})

    for machine in range(2):
        for number in range(3):
            put(journal, pull(machine, number))
        assert f"3 commands for machine bell-{machine} wait in the inbox of {journal} already" in full(pull(machine, 3))
    for number in range(2):
        put(journal, pull(2, number))
    assert "8 events for machines wait in the inbox" in full(pull(4, 0))
    for number in range(3):
        put(journal, cancel("j/a", f"r{number}"))
    assert "3 commands for task j/a wait" in full(cancel("j/a", "r3"))
    put(journal, cancel("j/b", "r4"))
    async with opened(journal) as runtime:
        await runtime.caught_up()
    put(journal, pull(0, 4))
    assert len(taken(journal)) == 8 + 2


async def test_of_many_events_for_an_absent_machine_one_is_tried_at_a_start(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 10)
    await with_bells(journal, 2)
    rings(journal, 2, 50)
    perform, tried = wiring.perform, list[str]()

    async def performing(runtime: RuntimeServices, row: InboxRow) -> None:
        tried.append(row.target)
        await perform(runtime, row)

    monkeypatch.setattr(wiring, "perform", performing)
    monkeypatch.delitem(globals(), "BELL")
    async with opened(journal) as runtime:
        await runtime.caught_up()
        assert (sorted(tried), runtime.metrics().events_left) == (["bell-0", "bell-1"], 100)


async def test_what_was_cancelled_before_it_began_keeps_nobody_from_leaving(journal: Path) -> None:
    await with_bells(journal, 1)
    with anyio.fail_after(300):
        async with opened(journal) as runtime:
            asked: list[Any] = []
            runtime._services.inbox._start = asked.append  # the inbox's tasks never begin
            put(journal, cancel("j/a", "r1"))
            notify(journal)
            await until(lambda: asked)
            runtime._services.inbox._look_again()
            assert len(asked) == 2


async def test_a_line_that_never_ends_keeps_no_keys_of_what_has_been_done(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takers, "IN_HAND", 10)
    await with_bells(journal, 1)
    rings(journal, 1, 100)
    perform, kept = wiring.perform, list[int]()

    async def performing(runtime: RuntimeServices, row: InboxRow) -> None:
        kept.append(len(runtime.inbox._target_of))
        await perform(runtime, row)

    monkeypatch.setattr(wiring, "perform", performing)
    async with opened(journal) as runtime:
        await runtime.caught_up()
        assert (len(kept), max(kept) <= 10) == (100, True)
        assert not runtime._services.inbox._target_of
