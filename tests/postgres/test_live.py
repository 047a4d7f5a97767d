"""The progress and text of bodies on one node, in the unlogged tables of a PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.waiting import until
from typer.main import get_command

from callboard import Progress, Runtime, Task, TaskContext, Worker, Workstream
from callboard.runtime.cli import stream as streams
from callboard.runtime.cli.app import app
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.errors import JournalError, LeaseLost
from callboard.runtime.journal.live import EVERYTHING, LiveProgress, LiveText, TextPlace
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.live import read_all_progress, sweep
from callboard.runtime.journal.postgres.opening import connect
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.testing.postgres import PrivateServer

from .nodes_help import PostgresNodes

WORKERS = (Worker("loop", engine="loop", capacity=10),)
FENCE = "UPDATE nodes SET fenced = true, ended_as = 'fenced', ended_at = clock_timestamp() WHERE node = %s"


@pytest.fixture
def anyio_backend() -> Any:
    """One loop: the others run the same, with a database in memory (tests/runtime/cluster/test_live.py)."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
def nodes(emptied: str) -> Iterator[PostgresNodes]:
    with contextlib.closing(PostgresNodes(emptied)) as cluster:
        yield cluster


def test_progress_counts_until_it_is_over_or_its_node_is_fenced_and_a_crash_of_the_server_loses_it(
    nodes: PostgresNodes, postgres_server: PrivateServer
) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    first, second = LiveProgress("j@1/x", 11, 7, Progress(1, 2, "\x00 é")), LiveProgress("j@1/y", 12, 8, Progress(3))
    on = a.write_progress([first, second], [])
    assert b.read_progress([11, 12, 13]) == {11: (7, first.progress), 12: (8, second.progress)}
    b.write_progress([second._replace(token=6)], [])  # of an attempt before that one
    b.write_progress([], [11])  # of another node
    assert b.read_progress([11, 12]) == {11: (7, first.progress), 12: (8, second.progress)}
    b.write_progress([first._replace(token=9)], [])  # it runs there now
    assert a.write_progress([], [11, 12]) == on
    assert a.read_progress([11, 12]) == {11: (9, first.progress)}

    assert nodes.one("SELECT relpersistence FROM pg_class WHERE oid = 'live_progress'::regclass") == "u"
    postgres_server.stop("immediate")
    with pytest.raises(JournalError):
        a.write_progress([first], [])
    postgres_server.start()
    assert b.read_progress([11]) == {}
    assert a.write_progress([second], []) != on
    nodes.sql.close()
    nodes.sql = connect(nodes.address, "test")
    nodes.run(FENCE, a.node)
    assert b.read_progress([12]) == {}
    with pytest.raises(LeaseLost):
        a.renew(0)
    sweep(nodes.sql)
    assert nodes.one("SELECT count(*) FROM live_progress") == 0
    b.write_progress([second], [])
    assert b.read_progress([12]) == read_all_progress(nodes.sql) == {12: (8, second.progress)}
    nodes.run(
        "UPDATE nodes SET seen_at = seen_at - 2 * lease WHERE node = %s", b.node
    )  # it is dead, and not fenced yet
    assert b.read_progress([12]) == read_all_progress(nodes.sql) == {}
    b.hide()
    assert nodes.one("SELECT count(*) FROM live_progress") == 0


def test_text_is_read_from_a_place_on_and_removed_up_to_one(nodes: PostgresNodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    rows = [LiveText(11, 7, 0, "one \x00"), LiveText(11, 7, 5, "two é"), LiveText(12, 8, 0, "\U0001f43b")]
    a.write_text(rows, [])
    everywhere = [TextPlace(11, 7, 0), TextPlace(12, 3, 9), TextPlace(13, 1, 0)]
    assert b.read_text(everywhere) == rows
    assert b.read_text([TextPlace(11, 7, 5)]) == [rows[1]]
    assert b.read_text([TextPlace(11, 7, 10), TextPlace(11, 8, 0)]) == []
    grown, over = LiveText(11, 7, 5, "two é and more"), LiveText(12, 8, 1, "", over=True)
    a.write_text([grown, over], [TextPlace(11, 7, 5)])
    assert b.read_text(everywhere) == [grown, rows[2], over]
    assert b.read_text([TextPlace(12, 8, 1)]) == [over]  # the end each time
    nodes.run("UPDATE live_text SET part = '7' WHERE task = %s", 11)  # of another version
    assert b.read_text(everywhere) == [rows[2], over]
    a.write_text([], [TextPlace(11, 7, EVERYTHING), TextPlace(12, 7, EVERYTHING)])
    assert b.read_text(everywhere) == [rows[2], over]
    with contextlib.closing(connect(nodes.address, "test")) as listener:
        listener.execute(f'LISTEN "{nodes.address.channel}"'.encode())
        keys = [(1 << 62) + number for number in range(400)]
        b.listen(keys)
        told = [notice.payload.split() for notice in listener.notifies(timeout=600, stop_after=2)]
    assert [word for words in told for word in words if word != "listen"] == [str(key) for key in keys]
    nodes.run(FENCE, a.node)
    assert b.read_text(everywhere) == []
    sweep(nodes.sql)
    assert nodes.one("SELECT count(*) FROM live_text") == 0


began: list[TaskContext] = []
on: anyio.Event


async def shows(task: TaskContext) -> None:
    began.append(task)
    task.progress(1, 4, f"reading with {task.secrets['key']}")
    task.emit(f"with {task.secrets['key']}: ")
    for number in range(1, 10_000):
        task.emit(f"{number} ")
        if number == 5_000:
            await on.wait()


def told_by(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run the command line in this process; returns its output."""
    assert run_command(lambda: get_command(app)(list(args), prog_name="callboard")) == 0
    return capsys.readouterr().out


def rows_of_text(address: str) -> int:
    """The rows of text in the database."""
    with contextlib.closing(connect(parse(address), "test")) as connection:
        found = connection.execute("SELECT count(*) FROM live_text").fetchone()
        return int(found[0]) if found else 0


@pytest.mark.anyio
async def test_what_a_body_shows_is_seen_from_another_node_and_from_the_command_line(
    emptied: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    listens: list[int] = []
    listen = PostgresReader.listen

    def listening(reader: PostgresReader, task: int) -> None:
        listen(reader, task)
        listens.append(task)

    monkeypatch.setattr(PostgresReader, "listen", listening)
    global on  # noqa: PLW0603 - the body is found by its import path
    on = anyio.Event()
    began.clear()
    more: Any = {"lease": 30, "workers": WORKERS, "drain_deadline": 0}
    key = {"key": "hunter2hunter2"}
    async with Runtime(emptied, node="b", **more) as b, Runtime(emptied, node="a", secrets=key.get, **more) as a:
        job = await a.submit(Workstream("w", tasks=[Task("x", run=shows, secrets=["key"])]), id="j")
        await until(lambda: began)
        far = await b.job("j")
        await until(lambda: far.task("x").progress is not None)
        said = far.task("x").progress
        assert said is not None
        assert (said.done, said.of) == (1, 4)
        assert "hunter" not in said.text
        for command in (["status", "j"], ["status", "j/x"], ["top", "--once"]):
            told = await anyio.to_thread.run_sync(partial(told_by, capsys, *command, "-j", emptied))
            assert "1 of 4 (25 %), reading with" in told
            assert "hunter" not in told
        assert rows_of_text(emptied) == 0  # there is no listener
        stream = far.task("x").stream()
        text = str(await anext(stream))
        async with anyio.create_task_group() as group:

            async def command() -> None:
                told = partial(told_by, capsys, "stream", "j/x", "-j", emptied)
                printed.append(await anyio.to_thread.run_sync(told))

            group.start_soon(command)
            await until(lambda: listens)
            on.set()
            text += "".join([str(part) async for part in stream])
        assert printed == [f"{text}\n"]
        assert "hunter" not in text
        assert text.partition(": ")[2] == "".join(f"{number} " for number in range(1, 10_000))
        assert (await far.wait()).ok
        assert (await job.wait()).ok
        assert far.task("x").progress is None
        await a.submit(Workstream("w", tasks=[Task("x", receive="never")]), id="k")
    monkeypatch.setattr(streams, "parts_of", lambda *_: iter(()))
    command_line = ["stream", "k/x", "-j", emptied]
    assert run_command(lambda: get_command(app)(command_line, prog_name="callboard")) == 0
    assert "No node runs job k now: its text comes once one does.\n" in capsys.readouterr().err
