"""The history of workers and breakers is moved out of the journal too: otherwise it would grow without a limit."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.reliability.kills.verdict import checked

from callboard import Runtime, Task, Tool, Worker, Workstream
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.cli.archive import archive
from callboard.runtime.journal.archive import move, move_shared
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


def flow() -> Workstream:
    return Workstream("w", tasks=[Task("a", run=one, tool="press"), Task("b", run=one)], tools={"press": Tool()})


def runtime_in(folder: Path) -> Runtime:
    workers = [Worker("loop", engine="loop", capacity=2)]
    return Runtime(folder / "state.db", jsonl=folder / "log.jsonl", workers=workers)


async def run(runtime: Runtime, *names: str) -> None:
    for name in names:
        await (await runtime.submit(flow(), id=name)).wait()


def logged(runtime: Runtime) -> None:
    """Write all durable transitions to the log, which may not have the latest yet."""
    assert runtime._life.wiring.log is not None
    runtime._life.wiring.log.catch_up()


def owners(folder: Path) -> set[str]:
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        return {row[0] for row in connection.execute("SELECT DISTINCT owner FROM transition_chunks")}


async def test_archiving_while_a_runtime_goes_on_leaves_nothing_of_what_was_before(tmp_path: Path) -> None:
    async with runtime_in(tmp_path) as runtime:
        await run(runtime, "press", "x")  # a job may be called as a tool is
        assert owners(tmp_path) == {"press", "x", "loop#1", "breaker:press"}
        logged(runtime)
        archive(older_than="0s", journal=tmp_path / "state.db")
        assert owners(tmp_path) == set()
        with closing(SqliteReader(tmp_path / "state.db")) as reader:
            numbers = reader.archived_numbers()
            assert numbers == [(1, numbers[0][1])]  # they have grown together
        await run(runtime, "y")
        assert list(checked(tmp_path)) == []
    async with runtime_in(tmp_path) as runtime:
        await run(runtime, "z")
    archive(older_than="0s", journal=tmp_path / "state.db")
    assert owners(tmp_path) == set()
    assert list(checked(tmp_path)) == []
    with (tmp_path / "log.jsonl").open("rb") as log:
        assert list(audit_lines(log)) == []
    files = sorted((tmp_path / "state.db.archive").iterdir())
    assert [file.name.split("-")[0] for file in files] == [
        "+shared",
        "+shared",
        *(f"{x}.jsonl" for x in ("press", "x", "y", "z")),
    ]
    for file in files:
        with file.open("rb") as lines:
            assert list(audit_lines(lines)) == []


async def test_only_what_is_older_is_moved(tmp_path: Path) -> None:
    async with runtime_in(tmp_path) as runtime:
        await run(runtime, "x")
        with closing(SqliteReader(tmp_path / "state.db")) as reader:
            assert list(move_shared(tmp_path / "state.db", reader, tmp_path, time.time() - 60, time.time())) == []
            assert reader.archived_numbers() == []


async def test_what_a_log_has_not_got_stays(tmp_path: Path) -> None:
    async with runtime_in(tmp_path) as runtime:
        await run(runtime, "x")
    whole = (tmp_path / "log.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    worker = [number for number, line in enumerate(lines) if b'"loop#1"' in line]
    with closing(SqliteReader(tmp_path / "state.db")) as reader:
        (tmp_path / "log.jsonl").write_bytes(b"".join(lines[: worker[-1]]))
        list(move_shared(tmp_path / "state.db", reader, tmp_path, time.time(), time.time()))
        assert reader.archived_numbers()[-1][1] <= worker[-1]
    async with runtime_in(tmp_path):
        pass
    assert (tmp_path / "log.jsonl").read_bytes().startswith(whole)


async def test_a_job_that_runs_again_meanwhile_is_not_taken_out(tmp_path: Path) -> None:
    async with runtime_in(tmp_path) as runtime:
        await run(runtime, "x")
        with closing(SqliteReader(tmp_path / "state.db")) as reader:
            before = reader.job("x")
            assert before is not None
            job = await (await runtime.job("x")).task("b").retry()
            assert list(move(tmp_path / "state.db", reader, [before], tmp_path, time.time())) == []
            await job.wait()
    assert list(checked(tmp_path)) == []
