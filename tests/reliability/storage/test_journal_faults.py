"""Faults of the journal's disk, file or neighbours under a running workstream: the reports, and that nothing is
lost.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from tests.reliability.storage.scene import FaultyRuntime, Shim, fill, gates, small_disk

from callboard import Actor, Runtime, Task, Workstream
from callboard.runtime.commands.client import put
from callboard.runtime.errors import JournalCorrupt, JournalError, JournalUnwritable
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.jsonl import LogConflict
from callboard.runtime.journal.sqlite.reader import SqliteReader

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]
CANCEL = InboxRow("cancel", "job", "job", "r1")


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: all of this happens in the writer's thread."""
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def beside(path: Path, *endings: str) -> list[Path]:
    """Files of a journal, by what their names end with after its own."""
    return [path.with_name(path.name + ending) for ending in endings]


async def quick() -> str:
    return "done"


QUICK = Workstream("quick", tasks=[Task("only", run=quick)])


class Echo(Actor):
    """Answers, to show that the event loop still runs."""

    def receive(self, message: object, ctx: object) -> object:
        return message


# -- the disk ----------------------------------------------------------------------------------------------------------


async def test_a_full_disk_and_space_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        scene = FaultyRuntime(disk / "state.db")
        async with scene.running(outputs=tmp_path / "outputs") as runtime:
            ballast = fill(disk)
            await scene.broken("the disk is full")
            with pytest.raises(JournalUnwritable, match=r"the disk is full\. Make room, then try again"):
                for _ in range(1_000):  # the rest of the last page may still have room
                    put(scene.path, CANCEL)
            with closing(SqliteReader(scene.path)) as reader:  # looking needs no room
                job = reader.job("job")
                assert job is not None
                assert job.state == "running"
            with anyio.move_on_after(0.05) as waited:
                await runtime.submit(QUICK, id="other")
            assert waited.cancelled_caught  # nothing new is taken
            ballast.unlink()
            await scene.mended()
        scene.check()


async def test_a_file_that_may_not_grow_and_then_may(path: Path) -> None:
    shim = Shim()
    scene = FaultyRuntime(path, shim.connect)
    async with scene.running():
        shim.pages = 1
        big = Workstream("big", tasks=[Task(f"t{number}", run=quick) for number in range(300)])
        async with anyio.create_task_group() as group:
            group.start_soon(scene.runtime.submit, big)
            await scene.broken("the disk is full")
            shim.pages = 1_000_000
            scene.ended.set()
        await scene.mended()
    scene.check()


TELLS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file has become read-only",  # as a file system that was mounted anew
    sqlite3.SQLITE_IOERR | 3 << 8: "the disk fails",
    sqlite3.SQLITE_PERM: "this user may not write the file any more",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
}


@pytest.mark.parametrize(("code", "words"), TELLS.items(), ids=lambda value: str(value).replace(" ", "-"))
async def test_an_error_of_the_disk_and_its_end(path: Path, code: int, words: str) -> None:
    shim = Shim()
    scene = FaultyRuntime(path, shim.connect)
    async with scene.running():
        shim.code = code
        assert str(path) in await scene.broken(words)
        shim.code = 0
        await scene.mended()
    scene.check()


async def test_a_disk_that_takes_minutes_for_a_write_is_told_of_and_stops_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.journal.writer.SLOW", 0.2)
    monkeypatch.setattr("callboard.runtime.journal.writer.GO_ON", 0.05)
    monkeypatch.setattr("callboard.runtime.host.SLOW_COMMIT", 0.05)
    shim = Shim()
    scene = FaultyRuntime(path, shim.connect)
    async with scene.running() as runtime:
        echo = runtime.spawn(Echo, name="echo")
        shim.gate = threading.Event()
        await scene.broken("the disk has not answered for")
        assert await echo.ask("hello", timeout=60) == "hello"
        shim.gate.set()
        await scene.mended()
    scene.check()


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of this process's user, who is not root meanwhile, since root may do everything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if sys.platform == "win32":
            pytest.skip("permissions are of Unix")
        if os.geteuid():
            yield folder
            return
        os.chown(folder, 65_534, 65_534)
        os.setresuid(65_534, 65_534, 0)
        try:
            yield folder
        finally:
            os.setresuid(0, 0, 0)


async def test_a_permission_that_is_lost_stops_the_next_start_and_not_this_one(unprivileged: Path) -> None:
    """A process keeps the right to an open file: so the runtime goes on, also past an error of the disk."""
    shim = Shim()
    scene = FaultyRuntime(unprivileged / "state.db", shim.connect)
    async with scene.running():
        scene.path.chmod(0o400)
        unprivileged.chmod(0o500)
        shim.code = sqlite3.SQLITE_IOERR
        await scene.broken("the disk fails")
        shim.code = 0
        await scene.mended()
    scene.check()
    for tried, words in ((0o500, "the folder .* is read-only to this user"), (0o700, "the file is read-only")):
        unprivileged.chmod(tried)
        with pytest.raises(JournalUnwritable, match=words):
            async with Runtime(scene.path):
                pass


# -- the neighbours ----------------------------------------------------------------------------------------------------

HOLDER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
connection.execute("ROLLBACK")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="stopping is of Unix")
async def test_another_program_is_stopped_while_it_holds_the_file_locked(path: Path) -> None:
    scene = FaultyRuntime(path)
    async with scene.running():
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        with holder, holder.stdout:
            try:
                assert holder.stdout.readline() == b"held\n"
                await scene.broken("another program holds the file locked")
                with pytest.raises(JournalError, match=r"Another program holds .* locked"):
                    put(path, CANCEL)
            finally:
                holder.send_signal(signal.SIGCONT)
            await scene.mended()
    scene.check()


# -- damage ------------------------------------------------------------------------------------------------------------


def spoil(path: Path) -> Callable[[], None]:
    """Overwrite all pages but the first, and those in the log. Returns the function that restores them."""
    kept = [(file, file.read_bytes()) for file in beside(path, "", "-wal")]

    def write(content: Callable[[bytes], bytes]) -> None:
        for file, data in kept:
            with file.open("r+b") as handle:
                handle.write(content(data))

    write(lambda data: data[:4096] + b"\xa5" * (len(data) - 4096))
    return lambda: write(lambda data: data)


async def test_pages_that_are_damaged_under_it(path: Path) -> None:
    shim = Shim()
    scene = FaultyRuntime(path, shim.connect)
    async with scene.running() as runtime:
        put_back = spoil(path)
        shim.forgetful = True
        await scene.broken("the file is damaged: stop this runtime, keep the file, and restore it from a copy")
        with pytest.raises(JournalCorrupt, match="is damaged"):
            await runtime.job("another")
        assert runtime.metrics()  # work that needs no file goes on
        put_back()
        await scene.mended()
    scene.check()


def test_damage_anywhere_is_refused_in_plain_words_or_read_as_far_as_it_is_whole(path: Path) -> None:
    """One run of bytes after another is overwritten in a journal at rest."""

    async def make() -> None:
        async with Runtime(path) as runtime:
            await (await runtime.submit(QUICK, id="job")).wait()

    async def enter() -> None:
        async with Runtime(path):
            pass

    anyio.run(make)
    whole = path.read_bytes()
    refusals: list[str] = []
    for place in range(0, len(whole), len(whole) // 25):
        for file in beside(path, "-wal", "-shm"):
            file.unlink(missing_ok=True)
        path.write_bytes(whole[:place] + b"\xa5" * 64 + whole[place + 64 :])
        before = path.read_bytes()
        try:
            anyio.run(enter)
        except JournalError as error:
            refusals.append(str(error) if path.read_bytes() == before else "the file was changed")
    assert len(refusals) >= 5
    assert all(str(path) in text for text in refusals)


# -- the file's name ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endings", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids=",".join)
async def test_a_log_or_an_index_that_is_removed_is_mended(path: Path, endings: list[str]) -> None:
    scene = FaultyRuntime(path)
    scene.patient = True
    async with scene.running() as runtime:
        before = await (await runtime.submit(QUICK, id="before")).wait()
        assert before.state == "completed"
        for file in beside(path, *endings):
            file.unlink()
        await scene.broken("was removed or replaced while it was in use")
        await scene.mended()
        again = await runtime.job("before")
        assert again.state == "completed"
        with closing(SqliteReader(path)) as reader:  # a new reader sees all of it
            assert {job.id for job in reader.jobs()} == {"job", "before"}
    scene.check()


@pytest.mark.parametrize("endings", [[""], ["", "-wal", "-shm"]], ids=["alone", "with-its-log"])
async def test_a_journal_that_is_removed_is_kept_beside_and_goes_on_under_its_name(
    path: Path, endings: list[str]
) -> None:
    scene = FaultyRuntime(path)
    async with scene.running() as runtime:
        await (await runtime.submit(QUICK, id="before")).wait()
        for file in beside(path, *endings):
            file.unlink()
        reason = await scene.broken("it was removed or moved away while it was in use. Put it back", "state.db.saved")
        assert reason.endswith("or rename state.db.saved, which holds all of it")
        (saved,) = beside(path, ".saved")
        saved.rename(path)
        await scene.mended()
        assert (await runtime.job("before")).state == "completed"
    scene.check()


async def test_a_journal_that_is_moved_away_and_back(path: Path) -> None:
    scene = FaultyRuntime(path)
    async with scene.running():
        path.rename(path.with_name("elsewhere"))
        await scene.broken("it was removed or moved away while it was in use. Put it back")
        path.with_name("elsewhere").rename(path)
        await scene.mended()
    scene.check()


async def test_a_removed_journal_is_kept_beside_also_when_its_runtime_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.lifespan.closing.CLOSING", 0.2)
    scene = FaultyRuntime(path)
    async with scene.running(drain_deadline=0.2):
        path.unlink()
        await scene.broken("state.db.saved")
    for file in beside(path, "-wal", "-shm"):
        file.unlink(missing_ok=True)
    path.with_name("state.db.saved").rename(path)
    async with Runtime(path) as runtime:
        (job,) = runtime.recovered
        assert (await job.wait()).state == "completed"


async def test_another_journal_in_its_place_is_not_written(path: Path) -> None:
    other = path.with_name("other.db")
    async with Runtime(other) as runtime:
        await (await runtime.submit(CHAIN_OF_OTHERS, id="other")).wait()
    scene = FaultyRuntime(path)
    async with scene.running():
        os.link(path, path.with_name("kept"))
        content = other.read_bytes()
        other.replace(path)
        await scene.broken("another file is in its place")
        assert path.read_bytes() == content
        path.with_name("kept").replace(path)
        await scene.mended()
    scene.check()


async def test_an_older_copy_in_its_place_is_refused_since_it_lacks_what_was_acknowledged(path: Path) -> None:
    scene = FaultyRuntime(path)
    async with scene.running() as runtime:
        copy = path.with_name("copy")
        with closing(sqlite3.connect(path)) as now, closing(sqlite3.connect(copy)) as then:
            now.backup(then)
        await (await runtime.submit(QUICK, id="acknowledged")).wait()
        os.link(path, path.with_name("kept"))
        copy.replace(path)
        await scene.broken("another file is in its place, an older copy of it")
        path.with_name("kept").replace(path)
        await scene.mended()
        assert (await runtime.job("acknowledged")).state == "completed"
    scene.check()


async def test_a_log_that_is_lost_while_nobody_runs_it_is_noticed_by_the_log_of_transitions(path: Path) -> None:
    """The journal cannot show transitions that were only in a lost -wal; the JSONL beside it shows them."""
    log = path.with_name("log.jsonl")
    scene = FaultyRuntime(path)
    async with scene.running(jsonl=log):
        folder = path.with_name("copies")
        folder.mkdir()
        for file in (path, log):
            shutil.copy(file, folder)
        gates["go on"].set()
    with pytest.raises(LogConflict, match="which this journal does not have"):
        async with Runtime(folder / "state.db", jsonl=folder / "log.jsonl"):
            pass


CHAIN_OF_OTHERS = Workstream("others", tasks=[Task(f"o{number}", run=quick) for number in range(3)])
