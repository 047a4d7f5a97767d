"""A full disk: no task is claimed, results are kept, health has the reason; with room, the work continues."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard.actors.spec.model import Task, Workstream
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.journal.jsonl import log_line
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.opening import connect_writer
from callboard.runtime.lifespan.closing import CLOSING, REST
from callboard.runtime.runtime import Runtime

pytestmark = pytest.mark.anyio


class Disk:
    """A disk that a test fills and clears. While it is full every statement of the writer fails as SQLite does."""

    def __init__(self) -> None:
        self.full = False
        self.failed = threading.Event()
        self.room = threading.Event()

    def connect(self, path: Path) -> Any:
        return Connection(self, connect_writer(path))

    def pause(self, delay: float) -> None:
        self.failed.set()
        self.room.wait(600)

    def clear(self) -> None:
        self.full = False
        self.room.set()


class Connection:
    """A connection to a file on that disk."""

    def __init__(self, disk: Disk, real: sqlite3.Connection) -> None:
        self._disk = disk
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, *args: Any) -> Any:
        if self._disk.full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._real.execute(*args)


ran: list[str] = []
release: dict[str, anyio.Event] = {}


async def waits(task: TaskContext) -> str:
    ran.append(task.task)
    release["started"].set()
    await release["go on"].wait()
    return "result"


async def quick(task: TaskContext) -> str:
    ran.append(task.task)
    return "done"


async def test_a_full_disk_holds_everything_and_loses_nothing(tmp_path: Path) -> None:
    ran.clear()
    release["started"], release["go on"] = anyio.Event(), anyio.Event()
    disk = Disk()
    journal = SqliteJournal(tmp_path / "state.db", connect=disk.connect, pause=disk.pause)
    async with Runtime(journal) as runtime:
        job = await runtime.submit(
            Workstream("w", tasks=[Task("first", run=waits), Task("second", run=quick, depends_on=["first"])])
        )
        await release["started"].wait()
        disk.full = True
        release["go on"].set()
        await anyio.to_thread.run_sync(disk.failed.wait, 30)
        assert not runtime.health.ok
        assert "disk is full" in str(runtime.health.reason)
        with anyio.move_on_after(0.05):  # commands from outside wait at the gate
            await runtime.submit(Workstream("other", tasks=[Task("third", run=quick)]))
        assert ran == ["first"]  # the next task is not started before the result is durable
        disk.clear()
        outcome = await job.wait()
        assert outcome.results == {"first": "result", "second": "done"}
        assert runtime.health.ok
        lines = (msgspec.json.encode(log_line(event)) + b"\n" for event in journal.reader.transitions())
        assert list(audit_lines(lines)) == []
    assert ran == ["first", "second"]


async def test_leaving_while_the_disk_is_full_ends_in_time_and_the_next_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.lifespan.closing.CLOSING", 0.2)
    ran.clear()
    release["started"], release["go on"] = anyio.Event(), anyio.Event()
    disk = Disk()
    journal = SqliteJournal(tmp_path / "state.db", connect=disk.connect, pause=lambda _: disk.failed.set())
    with anyio.fail_after(300):
        async with Runtime(journal, drain_deadline=0.1) as runtime:
            job = await runtime.submit(
                Workstream("w", tasks=[Task("first", run=waits), Task("second", run=quick)]), id="j"
            )
            await release["started"].wait()
            disk.full = True
    release["started"] = anyio.Event()
    release["go on"].set()
    async with Runtime(tmp_path / "state.db") as runtime:
        (job,) = runtime.recovered
        outcome = await job.wait()
    assert outcome.results == {"first": "result", "second": "done"}


def deaf() -> None:
    ran.append("deaf")
    let_go.wait(600)


async def stubborn() -> None:
    ran.append("stubborn")
    while not let_go.is_set():
        try:
            await anyio.sleep(99)
        except BaseException:
            continue


let_go = threading.Event()
BUSY = 60.0
"""Seconds that a busy machine may take in addition."""


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("stay", [False, True], ids=["what runs goes", "what runs stays"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_leaving_while_the_disk_is_full_takes_its_deadline_and_a_named_rest(
    tmp_path: Path, stay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All other limits are ten minutes.
    others = ["draining.LONGEST_GRACE", "opening.LONGEST_STOP", *([] if stay else ["closing.CLOSING"])]
    for name in others:
        monkeypatch.setattr(f"callboard.runtime.lifespan.{name}", 600.0)
    ran.clear()
    let_go.clear()
    release["started"], release["go on"] = anyio.Event(), anyio.Event()
    disk, deadline = Disk(), 0.5
    journal = SqliteJournal(tmp_path / "state.db", connect=disk.connect, pause=lambda _: disk.room.wait(0.05))
    ignores = ["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"]
    staying: list[dict[str, Any]] = [{"run": deaf}, {"run": stubborn}, {"command": ignores}]
    more = [Task(f"stays {n}", kill_grace="10m", **one) for n, one in enumerate(staying)] if stay else []
    try:
        async with Runtime(journal, drain_deadline=deadline) as runtime:
            await runtime.submit(Workstream("w", tasks=[Task("first", run=waits), *more]))
            await release["started"].wait()
            disk.full = True
            began = anyio.current_time()
        took = anyio.current_time() - began
    finally:
        let_go.set()
        disk.clear()
    engines = CLOSING + 4  # of three, each waits for a second for what was forced to end
    assert took < deadline + REST + engines * stay + BUSY
