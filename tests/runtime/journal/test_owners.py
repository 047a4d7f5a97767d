"""A file has one owner, whatever happened to its lock; and a file that replaces it is not written."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import anyio
import pytest
from tests.programs import killed_after

from callboard import Runtime, Task, Workstream
from callboard.errors import LeaseLost, RuntimeClosed
from callboard.runtime.commands.client import put
from callboard.runtime.errors import JournalError, JournalLocked, JournalUnwritable
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.location import owner_of
from callboard.runtime.journal.sqlite import lock
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.reader import SqliteReader

from .samples import Loop, entry, job, step, task, workstream

ROOT = Path(__file__).parents[3]
CHILD = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
OTHER = """
import sys
from tests.runtime.journal.samples import Loop
from callboard.runtime.journal.sqlite.journal import SqliteJournal
journal = SqliteJournal(sys.argv[1])
Loop().open(journal)
print("open", flush=True)
for line in sys.stdin:
    assert journal.shut(30)
    print("left", flush=True)
"""
CALLED = Workstream("called", tasks=[Task("only", command=["true"])])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


class Other:
    """An owner in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def leave(self) -> None:
        """The process closes the journal in order, and continues to run."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        self.says("left")

    def says(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"


@contextmanager
def owned(path: Path) -> Iterator[Other]:
    words = [sys.executable, "-c", OTHER, str(path)]
    started = subprocess.Popen(words, env=CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with killed_after(started) as process:
        other = Other(process)
        other.says("open")
        yield other


def lose_lock(path: Path) -> None:
    """Lose the lock, as on a file system without locks, or by a cleaner on a machine that cannot see the owner."""
    path.with_name(f"{path.name}.lock").unlink()
    lock._owned.clear()


def test_a_new_command_of_a_killed_owner_is_waited_for_until_it_has_closed_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its fork and its `exec` it has the handle of the lock. Here this process has it."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    file = path.with_name(f"{path.name}.lock")
    held: list[int] = []
    pauses = 0

    def hold() -> None:
        nonlocal pauses
        pauses = 0
        file.write_text(f"{gone.pid}\n")
        held.append(os.open(file, os.O_RDWR))
        lock._take(held[-1])

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            os.close(held.pop())

    monkeypatch.setattr(time, "sleep", pause)
    monkeypatch.setattr(lock, "_EXEC", 240.0)
    hold()
    assert lock.owner_of(path) is None
    hold()
    lock.Lock(path).release()
    hold()
    monkeypatch.setattr(lock, "_EXEC", 0.0)  # it does not end that soon
    assert lock.owner_of(path) == f"process {gone.pid}"
    with pytest.raises(JournalLocked, match=f"in use by process {gone.pid}"):
        lock.Lock(path)
    os.close(held.pop())


def backup(path: Path) -> Path:
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(copy)) as then:
        now.backup(then)
    return copy


def jobs_in(path: Path) -> list[str]:
    with closing(SqliteReader(path)) as reader:
        return sorted(found.id for found in reader.jobs())


def fold(path: Path) -> None:
    """As the owner does at times."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 0


# -- who owns it


def test_a_removed_lock_file_lets_nobody_in(path: Path) -> None:
    with owned(path) as other:
        path.with_name("state.db.lock").unlink()
        for _ in range(2):  # the lock file that the first try made changes nothing
            with pytest.raises(JournalLocked, match=f"in use by process {other.process.pid}, although its lock"):
                Loop().open(SqliteJournal(path))
            assert owner_of(path) == f"process {other.process.pid}"
    assert owner_of(path) is None
    journal = SqliteJournal(path)
    Loop().open(journal)
    assert journal.shut(30)


def test_a_process_that_has_left_it_keeps_nobody_out(path: Path) -> None:
    with owned(path) as other:
        other.leave()
        assert owner_of(path) is None
        journal = SqliteJournal(path)
        Loop().open(journal)
        assert journal.shut(30)


def test_a_copy_of_a_journal_that_runs_is_nobody_s(path: Path) -> None:
    with owned(path):
        copy = backup(path)
        assert owner_of(copy) is None
        journal = SqliteJournal(copy)
        Loop().open(journal)
        assert journal.shut(30)


def test_a_file_system_without_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(handle: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock, "_take", take)
    with pytest.raises(JournalUnwritable, match=r"Where a file system has no locks, nothing keeps two runtimes"):
        Loop().open(SqliteJournal(path))
    assert not path.exists()


@pytest.mark.parametrize("folds", [False, True])
def test_who_lost_the_file_commits_nothing_more(path: Path, folds: bool) -> None:
    first, of_first = SqliteJournal(path), Loop()
    of_first.open(first)
    first.append(entry(job(1)))
    of_first.until_durable(first)
    lose_lock(path)
    second, of_second = SqliteJournal(path), Loop()
    assert [found.key for found in of_second.open(second).jobs] == [1]
    if folds:
        fold(path)
    first.append(entry(job(2), seq=2))
    first.flush()
    while first.health.ok:
        of_first.calls.get(timeout=600)()
    assert first.health.lost
    assert "another runtime has taken it over" in str(first.health.reason)
    assert not first.shut(0.1)
    second.append(entry(job(3), seq=2))
    of_second.until_durable(second)
    assert second.shut(30)
    assert jobs_in(path) == ["job-1", "job-3"]


@pytest.mark.anyio
async def test_a_runtime_whose_file_was_taken_over_stops_what_it_runs(path: Path) -> None:
    began, stopped = anyio.Event(), anyio.Event()

    async def body() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    async def quick() -> None:
        pass

    with anyio.fail_after(300):
        first = Runtime(path)
        first.task(body)
        with pytest.raises(RuntimeClosed) as raised:
            async with first:
                told = first.events(kind="runtime")
                long = await first.submit(Workstream("long", tasks=[Task("body", run=body)]), id="long")
                await began.wait()
                lose_lock(path)
                second = Runtime(path)
                second.task(quick)
                async with second:
                    await (await second.submit(Workstream("q", tasks=[Task("quick", run=quick)]), id="quick")).wait()
                    with pytest.raises(RuntimeClosed):
                        await first.submit(CALLED, id="late")
                    await stopped.wait()
                    assert not first.health.ok
                    with suppress(RuntimeClosed):
                        assert "lease_lost" in [event.event async for event in told]
                    with pytest.raises(RuntimeClosed, match="another runtime has taken it over"):
                        await long.wait()
                    await second.job("long")
        assert isinstance(raised.value.__cause__, LeaseLost)
    with closing(SqliteReader(path)) as reader:
        assert {found.id for found in reader.jobs()} == {"long", "quick"}
        assert examine(reader).found == []


# -- what is copied over it


@pytest.mark.anyio
@pytest.mark.parametrize("idle", [False, True])
async def test_an_older_copy_over_the_content_of_a_running_journal_is_noticed(path: Path, idle: bool) -> None:
    with anyio.fail_after(300):
        with suppress(RuntimeClosed):
            async with Runtime(path) as runtime:
                await (await runtime.submit(CALLED, id="kept")).wait()
                copy = backup(path)
                await (await runtime.submit(CALLED, id="gone")).wait()
                fold(path)
                await (await runtime.submit(CALLED, id="gone-too")).wait()
                shutil.copyfile(copy, path)
                if not idle:
                    with pytest.raises(RuntimeClosed, match="it was overwritten while it was in use"):
                        await runtime.submit(CALLED, id="refused")
                    assert not runtime.health.ok
        assert jobs_in(path) == ["kept"]
        async with Runtime(path) as runtime:
            await (await runtime.submit(CALLED, id="next")).wait()
    with closing(SqliteReader(path)) as reader:
        assert examine(reader).found == []


def test_what_others_fold_into_the_file_is_no_harm(path: Path) -> None:
    journal, loop = SqliteJournal(path), Loop()
    loop.open(journal)
    for number in range(1, 6):
        journal.append(entry(job(number), seq=number))
        loop.until_durable(journal)
        fold(path)
    assert journal.health.ok
    assert journal.shut(30)


def test_a_file_that_names_an_owner_before_as_its_log_was_not_folded_is_no_other_file(path: Path) -> None:
    journal = SqliteJournal(path)
    Loop().open(journal)
    assert journal.shut(30)
    with closing(SqliteReader(path)):  # it keeps the file open: nobody folds the log when an owner leaves
        for number in (1, 2):
            journal, loop = SqliteJournal(path), Loop()
            loop.open(journal)
            os.utime(path)  # as if the file had been written: the owner compares it with what it knows
            journal.append(entry(job(number), seq=number))
            loop.until_durable(journal)
            assert journal.shut(30)
    assert jobs_in(path) == ["job-1", "job-2"]


def test_what_others_fold_in_part_while_somebody_reads_is_no_damage(path: Path) -> None:
    """SQLite leaves out the pages that were written since: so the file may end before the page that it says it has."""

    def is_short() -> bool:
        with path.open("rb") as file:
            header = file.read(100)
        return path.stat().st_size < int.from_bytes(header[28:32], "big") * int.from_bytes(header[16:18], "big")

    loop, journal = Loop(), SqliteJournal(path)
    loop.open(journal)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer, closing(sqlite3.connect(path)) as reader:
        reader.isolation_level = None
        for _ in range(50):
            number = writer.execute("INSERT INTO inbox_rows (command) VALUES (?)", ["x" * 3_000]).lastrowid
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM inbox_rows").fetchone()
            writer.execute("UPDATE inbox_rows SET command = ? WHERE key = ?", ["y" * 3_000, number])
            writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
            if is_short():
                break
            reader.execute("COMMIT")
        assert is_short()
        journal.append(entry(job(1)))
        loop.until_durable(journal)
        assert is_short()
    assert (journal.health.ok, journal.shut(30)) == (True, True)


def test_clients_fold_nothing_into_the_file_while_it_is_owned(path: Path) -> None:
    journal, loop = SqliteJournal(path), Loop()
    loop.open(journal)
    journal.append(entry(job(1)))
    loop.until_durable(journal)
    before = path.stat()
    for number in range(3):
        put(path, InboxRow("cancel", "job", "job-1", f"r{number}", {"reason": "x" * 3_000_000}))
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)
    assert journal.shut(30)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_log_of_an_older_journal_is_noticed_by_the_commit_itself(path: Path, steps: int) -> None:
    """The whole older journal is put back: SQLite sees it, and the commit checks its last entry."""
    journal, loop = SqliteJournal(path), Loop()
    loop.open(journal)
    journal.append(entry(job(1)))
    loop.until_durable(journal)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET entry = entry - 1")
        connection.commit()
    taken = [step(9 + number, task(3, workstream(2, 1, 1))) for number in range(steps)]
    journal.append(entry(*taken) if taken else entry(job(2), seq=2))
    journal.flush()
    while journal.health.ok:
        loop.calls.get(timeout=600)()
    assert "an older copy of it" in str(journal.health.reason)
    assert not journal.shut(0.1)
    assert jobs_in(path) == ["job-1"]


def test_errors_of_opening_leave_it_to_the_next(path: Path) -> None:
    with owned(path) as other:
        path.with_name("state.db.lock").unlink()
        with pytest.raises(JournalError):
            Loop().open(SqliteJournal(path))
        other.leave()
        journal = SqliteJournal(path)
        Loop().open(journal)
        assert journal.shut(30)
