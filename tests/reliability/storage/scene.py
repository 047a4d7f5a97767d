"""A running workstream whose storage fails and recovers, and small disks for such tests.

The workstream is a chain of three: `first` runs until the test lets it end, so that its result comes during the fault.
Checked for each fault: health and a notice report it, no task starts before its cause is durable, acknowledged changes
are in the journal afterwards, and the runtime continues by itself when the fault has ended.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from callboard import Notice, Runtime, Task, TaskContext, Workstream
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.handles.jobs import JobHandle
from callboard.runtime.journal.jsonl import log_line
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.opening import connect_writer
from callboard.runtime.journal.sqlite.reader import SqliteReader

LIMIT = 60
"""Seconds within which each step happens on any machine."""
TRY_EVERY = 0.02
"""Seconds between two tries of a batch: shorter than in a program."""

ran: list[str] = []
gates: dict[str, anyio.Event] = {}


async def step(task: TaskContext) -> str:
    """The body of all tasks: `first` waits."""
    ran.append(task.task)
    if task.task == "first":
        gates["started"].set()
        await gates["go on"].wait()
    return f"result of {task.task}"


CHAIN = Workstream(
    "chain",
    tasks=[
        Task("first", run=step),
        Task("second", run=step, depends_on=["first"]),
        Task("third", run=step, depends_on=["second"]),
    ],
)
RESULTS = {name: f"result of {name}" for name in ("first", "second", "third")}

Connect = Callable[[Path], sqlite3.Connection]


class FaultyRuntime:
    """A runtime on the journal at `path`, with its notices."""

    def __init__(self, path: Path, connect: Connect = connect_writer) -> None:
        self.path = path
        self.patient = False  # whether a batch is tried again only when the fault has ended
        self.ended = threading.Event()
        self.journal = SqliteJournal(path, connect=connect, pause=self._pause)
        self.told: list[Notice] = []
        self.runtime: Runtime
        self.job: JobHandle

    def _pause(self, delay: float) -> None:
        self.ended.wait(LIMIT if self.patient else TRY_EVERY)

    @contextlib.asynccontextmanager
    async def running(self, **settings: Any) -> AsyncGenerator[Runtime]:
        """The runtime, in which `first` runs."""
        ran.clear()
        gates["started"], gates["go on"] = anyio.Event(), anyio.Event()
        with anyio.fail_after(LIMIT):
            async with Runtime(self.journal, **settings) as self.runtime:
                events = self.runtime.events(kind="runtime")
                async with anyio.create_task_group() as listening:
                    listening.start_soon(self._listen, events)
                    self.job = await self.runtime.submit(CHAIN, id="job")
                    await gates["started"].wait()
                    yield self.runtime
                    listening.cancel_scope.cancel()

    async def _listen(self, events: Any) -> None:
        async for event in events:
            self.told.append(event)

    async def broken(self, *words: str) -> str:
        """Let `first` end during the fault; wait until the journal's health has these words. Returns its reason."""
        gates["go on"].set()
        while not (reason := self.runtime.health.reason) or not all(word in reason for word in words):
            await anyio.sleep(TRY_EVERY)
        assert ran == ["first"]  # the next task is not started before the result is durable
        while not any(notice.event == "journal_unwritable" for notice in self.told):
            await anyio.sleep(TRY_EVERY)
        told = next(notice for notice in self.told if notice.event == "journal_unwritable")
        assert told.severity == "error"
        assert "Nothing is lost; it is tried again" in told.text
        return reason

    async def mended(self) -> None:
        """Check that the workstream continues after the fault, and that nothing is missing."""
        self.ended.set()
        outcome = await self.job.wait()
        assert outcome.results == RESULTS
        assert ran == ["first", "second", "third"]
        while not any(notice.event == "journal_writable" for notice in self.told):
            await anyio.sleep(TRY_EVERY)
        assert self.runtime.health.ok

    def check(self) -> None:
        """Check the journal's file after the runtime was left."""
        reader = SqliteReader(self.path)
        try:
            lines = [msgspec.json.encode(log_line(event)) + b"\n" for event in reader.transitions()]
            job = reader.job("job")
            assert job is not None
            assert job.state == "completed"
        finally:
            reader.close()
        assert audit_lines(lines) == []


@contextlib.contextmanager
def small_disk(folder: Path, size: str, *more: str) -> Generator[Path]:
    """Make a real file system of that size. Skips the test if this user may mount none."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *more)), "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk to its last byte. Returns the file to be removed."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (65_536, 4_096, 512, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return ballast


class Shim:
    """A connection of the writer that fails with an error of SQLite, or waits, for as long as the test says.

    pages: how many the file may have at most (0: no limit). forgetful: whether it reads every page anew.
    """

    def __init__(self) -> None:
        self.code = 0
        self.pages = 0
        self.forgetful = False
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def connect(self, path: Path) -> sqlite3.Connection:
        """Open it, as the writer does."""
        self.hinder()
        return _Shimmed(connect_writer(path), self)  # type: ignore[return-value]

    def hinder(self) -> None:
        """Prepare the fault of the next statement."""
        if self.gate is not None:
            self.entered.set()
            self.gate.wait(LIMIT)
        if self.code:
            error = sqlite3.OperationalError("as the system would say it")
            error.sqlite_errorcode = self.code
            raise error


class _Shimmed:
    def __init__(self, real: sqlite3.Connection, shim: Shim) -> None:
        self._real = real
        self._shim = shim

    def execute(self, sql: str, *values: Any) -> Any:
        self._shim.hinder()
        if self._shim.pages:
            self._real.execute(f"PRAGMA max_page_count = {self._shim.pages}")
        if self._shim.forgetful:
            self._real.execute("PRAGMA shrink_memory")
        return self._real.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
