"""The promises of the file journal alone: one owner, clear refusals, no loss, no double write, no starving."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.programs import killed_after

from callboard import Runtime
from callboard.actors.records.entities import JobRecord, OutboxRow
from callboard.actors.records.loaded import Loaded
from callboard.actors.records.task import Produced, Trouble
from callboard.runtime.cli.migrate import migrate
from callboard.runtime.commands.client import put
from callboard.runtime.errors import (
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalMissing,
    JournalTooNew,
    JournalUnwritable,
)
from callboard.runtime.journal import open_journal
from callboard.runtime.journal.contract import Entry, InboxRow
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.medium import SqliteMedium
from callboard.runtime.journal.sqlite.migrations import fresh, migrations
from callboard.runtime.journal.sqlite.opening import connect_writer
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.journal.sqlite.schema import FIRST_COLUMNS, VERSION
from callboard.runtime.journal.views.dialect import Sqlite
from callboard.runtime.journal.views.views import steps_view

from .samples import Loop, attempt, entry, job, message, moved, raw, step, task, worker, workstream

SOURCE = Path(__file__).parents[3]
CHILD = {**os.environ, "PYTHONPATH": f"{SOURCE / 'src'}{os.pathsep}{SOURCE}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@contextmanager
def opened(path: Path, **how: object) -> Iterator[tuple[SqliteJournal, Loop]]:
    journal, loop = SqliteJournal(path, **how), Loop()  # type: ignore[arg-type]
    loop.open(journal)
    try:
        yield journal, loop
    finally:
        assert journal.shut(30)


def written(path: Path, seq: int = 1) -> Path:
    """A journal with one job, left in good order."""
    with opened(path) as (journal, _):
        journal.append(entry(job(1), seq=seq))
    return path


def jobs_in(path: Path) -> list[JobRecord]:
    """The living jobs that the next owner gets."""
    journal = SqliteJournal(path)
    loaded = Loop().open(journal)
    assert journal.shut(30)
    return loaded.jobs


def read_all(path: Path) -> None:
    with closing(SqliteReader(path)) as reader:
        reader.load()
        reader.job("job-1")
        list(reader.transitions())


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder. (SQLite may leave an empty log and its index after mere reading.)"""
    index = [one for one in folder.iterdir() if one.name.endswith("-shm")]
    return {one.name: data for one in folder.iterdir() if one not in index and (data := one.read_bytes())}


# -- which journal a target means


def test_a_target_names_a_journal(path: Path) -> None:
    assert isinstance(open_journal(None), MemoryJournal)
    assert isinstance(open_journal(path), SqliteJournal)
    assert isinstance(open_journal(str(path)), SqliteJournal)
    assert not path.exists()


def test_it_must_be_open_to_be_written_or_asked(path: Path) -> None:
    journal = SqliteJournal(path)
    journal.append(entry(job(1)))
    with pytest.raises(JournalError, match="not open"):
        journal.flush()
    with pytest.raises(JournalError, match="not open"):
        journal.reader.jobs()
    with opened(written(path)) as (journal, loop), pytest.raises(JournalError, match="already opened"):
        loop.open(journal)


# -- one owner


def test_a_second_runtime_in_this_process_is_refused(path: Path) -> None:
    with opened(path) as (journal, loop):
        with pytest.raises(JournalLocked, match=f"in this process .process {os.getpid()}"):
            Loop().open(SqliteJournal(path))
        link = path.with_name("link.db")
        link.symlink_to(path)
        with pytest.raises(JournalLocked):
            Loop().open(SqliteJournal(link))
        journal.append(entry(job(1)))
        loop.until_durable(journal)
    assert jobs_in(path) == [job(1)]


def test_a_runtime_in_another_process_is_named_and_its_death_frees_the_file(path: Path) -> None:
    code = f"""
import sys
from tests.runtime.journal.samples import Loop
from callboard.runtime.journal.sqlite.journal import SqliteJournal
Loop().open(SqliteJournal({str(path)!r}))
print("ready", flush=True)
sys.stdin.read()
"""
    with killed_after(
        subprocess.Popen([sys.executable, "-c", code], env=CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        with pytest.raises(JournalLocked, match=f"process {owner.pid}.*Stop that runtime"):
            Loop().open(SqliteJournal(path))
        owner.kill()
    written(path)


def test_a_failed_open_leaves_no_lock(path: Path) -> None:
    written(path)
    with closing(sqlite3.connect(path)) as raw_file:
        raw_file.execute("BEGIN EXCLUSIVE")
        with pytest.raises(JournalLocked, match="Another program"):
            Loop().open(SqliteJournal(path))
    written(path, seq=2)


def test_a_start_opens_the_file_as_seldom_as_it_can(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection that asks a table reads all tables and views first: about a hundredth of a start."""
    modes: list[str] = []

    def noted(name: str, **options: Any) -> sqlite3.Connection:
        connection = plain(name, **options)
        modes.append(name.rsplit("=", maxsplit=1)[-1])
        return connection

    plain = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", noted)
    made = ["rwc", "ro", "rw", "ro"]  # made and claimed, the reader, the writer, and one that asks no table
    with opened(path):
        assert modes == made
    modes.clear()
    with opened(path):
        assert modes == ["ro", *made]  # it is checked first


# -- refusals: plain words, and nothing touched


def test_a_file_with_a_record_that_cannot_be_read_is_refused_and_not_touched(path: Path) -> None:
    whole = written(path).read_bytes()
    path.write_bytes(whole.replace(b'"id":"', b'"id"!"'))
    assert path.read_bytes() != whole
    before = content(path.parent)
    with pytest.raises(JournalCorrupt, match="not touched"):
        Loop().open(SqliteJournal(path))
    assert content(path.parent) == before


def test_what_another_owner_commits_while_a_start_reads_is_read_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path)
    read: list[int] = []

    def load(reader: SqliteReader) -> Loaded:
        loaded = plain(reader)
        if not read:
            with closing(sqlite3.connect(path)) as other:
                other.execute("UPDATE meta SET entry = entry + 1, last_key = 4711")
                other.commit()
        read.append(loaded.last_key)
        return loaded

    plain = SqliteReader.load
    monkeypatch.setattr(SqliteReader, "load", load)
    journal = SqliteJournal(path)
    assert Loop().open(journal).last_key == 4711
    assert journal.shut(30)
    assert len(read) == 2


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"nothing like a database " * 400, id="no database"),
        pytest.param(lambda data: data[: len(data) // 3], id="truncated"),
        pytest.param(lambda data: data[:100] + b"\xff" * 2_000 + data[2_100:], id="first page"),
        pytest.param(lambda data: data[:8_192] + b"\x55" * 4_096 + data[12_288:], id="a page in the middle"),
        pytest.param(lambda data: b"x", id="one byte"),
    ],
)
def test_a_damaged_file_is_refused_and_not_touched(path: Path, damage: Callable[[bytes], bytes]) -> None:
    path.write_bytes(damage(written(path).read_bytes()))
    before = content(path.parent)
    with pytest.raises(JournalCorrupt, match="not touched"):
        Loop().open(SqliteJournal(path))
    with pytest.raises(JournalCorrupt, match="not touched"):
        read_all(path)
    assert content(path.parent) == before


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_another_applications_database_is_refused_and_not_touched(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("CREATE TABLE people (name TEXT)")
        other.commit()
    before = path.read_bytes()
    for refused in (lambda: Loop().open(SqliteJournal(path)), lambda: SqliteReader(path)):
        with pytest.raises(JournalCorrupt, match="another application"):
            refused()
    assert path.read_bytes() == before


def of_version_1(path: Path, *changes: str) -> None:
    """A journal with one job, as it was before it had an id."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(migrations()[0])
        connection.executescript(f"PRAGMA application_id = {0x43616C6C}; PRAGMA user_version = 1;")
        text = msgspec.json.encode(job(1)).decode()
        connection.execute("INSERT INTO job_records VALUES (1, 'running', 1, ?)", (text,))
        connection.execute("INSERT INTO names VALUES ('job:job-1', 1)")
        connection.execute("UPDATE meta SET last_key = 1")
        connection.commit()
        for change in changes:
            connection.execute(change)
        connection.commit()
        connection.execute("PRAGMA journal_mode = WAL")


def test_a_file_of_the_first_version_is_migrated_and_named(path: Path) -> None:
    of_version_1(path)
    with closing(SqliteReader(path)) as reader:  # which changes nothing
        assert reader.job("job-1") == job(1)
        assert reader.notices() == []  # of which it has no table
        assert reader.steps(3) == []
    row = InboxRow("cancel", "job", "job-1", "r1")
    with pytest.raises(JournalError, match=r"written by an older Callboard. Open it once with this one"):
        put(path, row)
    with opened(path) as (journal, _):
        first = journal.identity
        assert re.fullmatch("[0-9a-f]{32}", first.id)
        assert journal.reader.job("job-1") == job(1)
    with opened(path) as (journal, _):
        assert journal.identity == first
    with opened(path.with_name("other.db")) as (journal, _):
        assert journal.identity.id != first.id


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ("DROP TABLE archived_numbers", "archived_numbers.first"),
        ("DROP TABLE machine_records", "machine_records.key"),
        ("ALTER TABLE meta DROP COLUMN log", "meta.log"),
    ],
)
def test_a_file_from_before_the_tables_were_settled_is_older_and_not_damaged(
    path: Path, change: str, lacks: str
) -> None:
    of_version_1(path, change)
    before = content(path.parent)
    asked: list[Callable[[], object]] = [
        lambda: SqliteReader(path),
        lambda: Loop().open(SqliteJournal(path)),
        lambda: put(path, InboxRow("cancel", "job", "job-1", "r1")),
        lambda: migrate(journal=str(path)),
    ]
    for one in asked:
        with pytest.raises(JournalError, match=rf"by an older Callboard.*it lacks {lacks}.*It is not damaged") as told:
            one()
        assert not isinstance(told.value, JournalCorrupt)
    assert {name: data for name, data in content(path.parent).items() if not name.endswith(".lock")} == before


def test_the_tables_of_the_first_version_are_those_that_it_makes() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(migrations()[0])
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        made = {
            name: " ".join(column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,)))
            for (name,) in tables
        }
    assert made == FIRST_COLUMNS


def test_a_new_file_has_what_all_migrations_make() -> None:
    def made(*scripts: str) -> set[tuple[str, ...]]:
        with closing(sqlite3.connect(":memory:")) as connection:
            for script in scripts:
                connection.executescript(script)
            return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))

    assert made(fresh()) == made(*migrations())
    assert len(migrations()) == VERSION


def test_a_newer_file_is_refused_and_not_touched(path: Path) -> None:
    with closing(sqlite3.connect(written(path))) as raw_file:
        raw_file.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = content(path.parent)
    for refused in (lambda: Loop().open(SqliteJournal(path)), lambda: SqliteReader(path)):
        with pytest.raises(JournalTooNew, match=r"newer Callboard.*upgrade"):
            refused()
    assert content(path.parent) == before


def test_a_record_that_cannot_be_read_is_named(path: Path) -> None:
    with closing(sqlite3.connect(written(path))) as raw_file:
        raw_file.execute("UPDATE job_records SET record = '{\"key\": 1}'")
        raw_file.commit()
    with pytest.raises(JournalCorrupt, match="cannot be read"):
        Loop().open(SqliteJournal(path))


def test_places_where_no_journal_can_be(tmp_path: Path) -> None:
    with pytest.raises(JournalUnwritable, match=r"no folder.*Make it first"):
        Loop().open(SqliteJournal(tmp_path / "missing" / "state.db"))
    with pytest.raises(JournalUnwritable, match="is a folder"):
        Loop().open(SqliteJournal(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_a_journal_leaves_nothing_behind(tmp_path: Path) -> None:
    places = {
        "loop": "a link that leads to itself",
        "twin": "names .hard links",
        "folder": "is a folder",
        "inside/x.db": "no folder",
        "pipe": "a device, a pipe",
        "n" * 256: "too long for a path",
        "m" * 248: "too long for a path",
        "log.db": "log.db-wal, which it needs beside it, is a folder",
        "rollback.db": "rollback.db-journal, which it needs beside it, is a link",
        "locked.db": "locked.db.lock, which it needs beside it, is a folder",
    }
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "twin").hardlink_to(tmp_path / "file")
    for name in ("folder", "log.db-wal", "locked.db.lock"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "rollback.db-journal").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    for name, why in places.items():
        with pytest.raises(JournalUnwritable, match=why):
            Loop().open(SqliteJournal(tmp_path / name))
        assert sorted(tmp_path.rglob("*")) == before, name
    with pytest.raises(JournalUnwritable, match="is a folder"):
        Loop().open(SqliteJournal("/"))
    with pytest.raises(JournalUnwritable, match="too long"):
        SqliteReader(tmp_path / ("n" * 256))
    for take in (SqliteJournal, SqliteReader):
        with pytest.raises(JournalMissing, match="NUL"):
            take("a\0b")


def test_a_file_of_something_else_is_no_lock(tmp_path: Path) -> None:
    """A journal may be called `poetry`, beside a `poetry.lock`."""
    beside = tmp_path / "poetry.lock"
    for text in (b"# This file was made by Poetry", b"12 34\n", b"7" * 40):
        beside.write_bytes(text)
        with pytest.raises(JournalUnwritable, match="file of something else"):
            Loop().open(SqliteJournal(tmp_path / "poetry"))
        assert beside.read_bytes() == text
    beside.write_bytes(b"123456\n")  # of an owner that was killed
    with opened(tmp_path / "poetry"):
        assert beside.read_bytes() == b"%d\n" % os.getpid()


def test_a_read_only_file_or_folder_is_refused_for_writing_but_can_be_read() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        path = written(folder / "state.db")
        code = f"""
import os
import tempfile
import urllib.parse  # which pathlib would import too late
from pathlib import Path
from callboard.runtime.journal.sqlite.backup import back_up
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.errors import JournalUnwritable
from tests.runtime.journal.samples import Loop
if os.geteuid() == 0:
    os.setuid(65534)  # root may write anything
reader = SqliteReader({str(path)!r})
print([job.id for job in reader.jobs()])
reader.close()
with tempfile.TemporaryDirectory() as elsewhere:
    back_up(Path({str(path)!r}), Path(elsewhere) / "copy.db")
    print([job.id for job in SqliteReader(Path(elsewhere) / "copy.db").jobs()])
for name in ("state.db", "new.db"):
    try:
        Loop().open(SqliteJournal(Path({str(folder)!r}) / name))
    except JournalUnwritable as error:
        print("read-only to this user" in str(error))
"""
        before = content(folder)
        path.chmod(0o444)
        folder.chmod(0o555)
        try:
            done = subprocess.run([sys.executable, "-c", code], env=CHILD, capture_output=True, text=True, check=False)
        finally:
            folder.chmod(0o755)
        assert done.stdout.split("\n") == ["['job-1']", "['job-1']", "True", "True", ""], done.stderr
        assert content(folder) == before


def test_readers_say_what_is_missing(path: Path) -> None:
    with pytest.raises(JournalMissing, match="no journal"):
        SqliteReader(path)
    assert not path.exists()
    path.touch()
    with pytest.raises(JournalMissing, match="empty"):
        SqliteReader(path)


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch()
    written(path)


# -- readers beside a writer


def test_a_long_chunk_is_read_row_by_row_and_as_a_short_one_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as (journal, _):
        for seq in range(1, 50):
            journal.append(entry(job(1, seq=seq), seq=seq))
    with closing(SqliteReader(path)) as reader:
        at_once = list(reader.transitions())
        monkeypatch.setattr("callboard.runtime.journal.decoding.LONG", 0)
        assert list(reader.transitions()) == at_once
        assert len(at_once) == 49


def test_a_reader_sees_what_is_committed_while_a_runtime_writes(path: Path) -> None:
    with opened(path) as (journal, loop):
        journal.append(entry(job(1), seq=1))
        loop.until_durable(journal)
        reader = SqliteReader(path)
        assert reader.job("job-1") == job(1)
        rows = reader.transitions()
        assert next(rows).seq == 1
        for seq in range(2, 500):
            journal.append(entry(job(1, seq=seq), seq=seq))
            loop.until_durable(journal)
        assert reader.job("job-1") == job(1, seq=499)
        assert len(list(reader.transitions())) == 499
        reader.close()


def test_the_columns_of_an_attempt_say_what_its_record_says(path: Path) -> None:
    one = task(3, workstream(2, 1, 1), id='ws-2/"task":9')
    with opened(path) as (journal, loop):
        journal.append(entry(attempt(4, one), attempt(5, one), attempt(6, one, error='"task":8,"ended_at":2.0')))
        loop.until_durable(journal)
        journal.append(entry(attempt(5, one, ended_at=2.0), attempt(7, one, ended_at=0.0), attempt(2**62, one)))
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT key, task, living, typeof(task) FROM attempt_records ORDER BY key").fetchall()
    assert rows == [(key, 3, living, "integer") for key, living in ((4, 1), (5, 0), (6, 1), (7, 0), (2**62, 1))]


def test_a_commit_of_one_step_alone_is_kept_as_all_others_are(path: Path) -> None:
    ws = workstream(2, 1, 1)
    began = step(9, task(3, ws), ended_at=None, due_at=8.0)
    ended = step(9, task(3, ws), error="\ud800 \n\0", ended_at=5.0)
    with opened(path) as (journal, loop):
        for one in (entry(job(1), ws, task(3, ws), seq=1), entry(began), entry(step(8, task(3, ws))), entry(ended)):
            journal.append(one)
            loop.until_durable(journal)
        assert journal.reader.steps(3) == [step(8, task(3, ws)), msgspec.structs.replace(ended, error="? \n\0")]
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT key, flow, typeof(flow), typeof(record) FROM step_records ORDER BY key").fetchall()
        assert rows == [(8, 3, "integer", "text"), (9, 3, "integer", "text")]
    journal, loop = SqliteJournal(path), Loop()
    loaded = loop.open(journal)
    assert (loaded.last_key, loaded.last_seq) == (9, 3)
    assert journal.shut(30)


def test_a_file_of_the_version_before_steps_gets_their_table_and_its_view(path: Path) -> None:
    before = migrations()[: next(n for n, sql in enumerate(migrations()) if "step_records" in sql)]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(before))
        connection.executescript(f"PRAGMA application_id = {0x43616C6C}; PRAGMA user_version = {len(before)};")
        connection.execute("PRAGMA journal_mode = WAL")
    ws = workstream(2, 1, 1)
    with opened(path) as (journal, loop):
        journal.append(entry(job(1), ws, task(3, ws), step(4, task(3, ws))))
        loop.until_durable(journal)
        assert journal.reader.steps(3) == [step(4, task(3, ws))]
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT key, flow, typeof(flow) FROM step_records").fetchall() == [(4, 3, "integer")]
        assert file.execute("SELECT job_id, label FROM task_steps").fetchall() == [("job-1", "ask")]


def test_a_file_of_the_version_before_shows_the_arguments_of_its_steps(path: Path) -> None:
    ws = workstream(2, 1, 1)
    with opened(path) as (journal, loop):
        journal.append(entry(job(1), ws, task(3, ws), step(4, task(3, ws), raw_given=raw([[1], {}]))))
        loop.until_durable(journal)
    older = steps_view(Sqlite()).replace("AS arguments", "AS something")
    before = next(n for n, sql in enumerate(migrations()) if sql.startswith("\nDROP VIEW task_steps"))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"DROP VIEW task_steps; {older} PRAGMA user_version = {before};")
    with opened(path), closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT label, arguments FROM task_steps").fetchall() == [("ask", "[[1],{}]")]


def test_a_file_of_the_version_before_messages_gets_their_table_and_its_view(path: Path) -> None:
    before = migrations()[: next(n for n, sql in enumerate(migrations()) if "message_records" in sql)]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(before))
        connection.executescript(f"PRAGMA application_id = {0x43616C6C}; PRAGMA user_version = {len(before)};")
        connection.execute("PRAGMA journal_mode = WAL")
    with opened(path) as (journal, loop):
        journal.append(entry(job(1), message(4), message(5, received_at=6.0)))
        loop.until_durable(journal)
        assert [one.key for one in journal.reader.messages("job-1", unread=True)] == []  # the job has no name yet
    with closing(sqlite3.connect(path)) as file:
        rows = file.execute("SELECT key, job, typeof(job), unread FROM message_records").fetchall()
        assert rows == [(4, 1, "integer", 1), (5, 1, "integer", 0)]
        assert file.execute("SELECT job_id, name, state FROM task_messages").fetchall() == [
            ("job-1", "paid", "unread"), ("job-1", "paid", "received"),
        ]  # fmt: skip


def test_a_record_with_a_line_break_in_its_result_is_kept_among_others(path: Path) -> None:
    ws = workstream(2, 1, 3)
    kept = [task(3, ws), task(4, ws, raw_result=msgspec.Raw(b'{"a":\n[1,\n2]}')), task(5, ws, raw_result=raw("a\nb"))]
    with opened(path) as (journal, _):
        journal.append(entry(job(1), ws, *kept))
    with closing(SqliteReader(path)) as reader:
        assert [(one.key, one.result) for one in reader.tasks(2)] == [(3, None), (4, {"a": [1, 2]}), (5, "a\nb")]


def test_readable_views(path: Path) -> None:
    ws = workstream(2, 1, 1)
    done = task(
        3, ws, state="completed", previous_state="validating", created_at=1_700_000_000.0, execution_ms=1500,
        started_at=1_700_000_001.0, finished_at=1_700_000_002.5, attempt=2,
        produced=Produced(exit_code=0, path="/out", size=10),
        trouble=Trouble(error="no", type="E", category="transient", count=3, repeats=1),
    )  # fmt: skip
    with opened(path) as (journal, _):
        row = moved(1, done, "validation_passed", from_state="validating", metadata={"n": 1}, reason="ok")
        journal.append(Entry([row], [job(1), ws, done, attempt(4, done), worker(5)]))
    with closing(sqlite3.connect(path)) as raw_file:
        raw_file.row_factory = sqlite3.Row
        shown = dict(raw_file.execute("SELECT * FROM tasks WHERE task_id = ?", (done.id,)).fetchone())
        told = dict(raw_file.execute("SELECT * FROM state_transitions").fetchone())
        for view in ("jobs", "workstreams", "workers", "breakers", "attempts", "outbox"):
            raw_file.execute(f"SELECT * FROM {view}").fetchall()
    expected = {
        "state": "completed", "previous_state": "validating", "attempt_count": 2, "error_count": 3,
        "last_error": "no", "error_type": "E", "error_category": "transient", "output_path": "/out",
        "created_at": "2023-11-14T22:13:20.000Z", "completed_at": "2023-11-14T22:13:22.500Z", "failed_at": None,
        "circuit_state": "closed", "execution_duration_ms": 1500, "total_duration_ms": 2500, "exit_code": 0,
        "output_size_bytes": 10, "workstream_id": "ws-2",
    }  # fmt: skip
    assert {name: shown[name] for name in expected} == expected
    assert (told["entity_id"], told["from_state"], told["to_state"]) == (done.id, "validating", "completed")
    assert (told["timestamp"], told["metadata"], told["reason"]) == (row.timestamp, '{"n":1}', "ok")


def test_many_threads_may_ask_one_reader(path: Path) -> None:
    with opened(path) as (journal, _):
        journal.append(Entry([moved(seq, job(seq % 5 + 1)) for seq in range(1, 501)], []))
    reader = SqliteReader(path)
    answers: list[object] = []

    def ask() -> None:
        for after in range(200):
            try:
                answers.append([row.seq for row in reader.transitions(after=after)] == list(range(after + 1, 501)))
            except JournalError as error:
                answers.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert answers == [True] * 800


def test_long_histories_come_in_pages_and_in_order(path: Path) -> None:
    with opened(path) as (journal, loop):
        seq = 0
        for number in range(40):
            rows = []
            for _ in range(400):
                seq += 1
                rows.append(moved(seq, worker(1) if seq % 3 else job(number + 2)))
            journal.append(Entry(rows, []))
            if number % 3 == 0:
                loop.until_durable(journal)
        loop.until_durable(journal)
        assert [row.seq for row in journal.reader.transitions()] == list(range(1, seq + 1))
        assert [row.seq for row in journal.reader.transitions(after=4_321)] == list(range(4_322, seq + 1))
        assert [row.seq for row in journal.reader.transitions(entity_id="job-4")] == [
            one for one in range(801, 1_201) if one % 3 == 0
        ]
        assert next(journal.reader.transitions(after=15_000, limit=1)).seq == 15_001
        assert list(journal.reader.transitions(after=seq)) == []


# -- commits


class Gate:
    """A connection whose commits wait for the test, and fail if the test wants it."""

    def __init__(self) -> None:
        self.open = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.errors: list[Exception] = []  # raised by the next commits, before they reach the file
        self.late: list[Exception] = []  # raised by the next commits, after they were written
        self.delays: list[float] = []

    def connect(self, path: Path) -> sqlite3.Connection:
        return Gated(connect_writer(path), self)  # type: ignore[return-value]


class Gated:
    def __init__(self, real: sqlite3.Connection, gate: Gate) -> None:
        self._real = real
        self._gate = gate

    def execute(self, sql: str, *values: object) -> object:
        if not sql.startswith("INSERT INTO batch"):
            return self._real.execute(sql, *values)  # type: ignore[arg-type]
        self._gate.entered.release()
        self._gate.open.acquire()
        if self._gate.errors:
            raise self._gate.errors.pop(0)
        done = self._real.execute(sql, *values)  # type: ignore[arg-type]
        if self._gate.late:
            raise self._gate.late.pop(0)
        return done

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_what_was_flushed_while_the_writer_was_busy_is_one_commit(path: Path, gate: Gate) -> None:
    with opened(path, connect=gate.connect) as (journal, loop):
        journal.append(entry(job(1), seq=1))
        journal.flush()
        gate.entered.acquire()
        for seq in range(2, 102):
            journal.append(entry(job(1, seq=seq), seq=seq))
            journal.flush()
        journal.append(entry(job(1, seq=102), seq=102))  # not flushed: not part of it
        assert (journal.durable, journal.backlog) == (0, 102)
        gate.open.release()
        gate.open.release()
        gate.entered.acquire()
        loop.until_durable(journal, 101)
        assert (journal.durable, journal.commits, journal.backlog) == (101, 2, 1)
        gate.open.release()
        loop.until_durable(journal)
        assert journal.commits == 3


def test_the_loop_is_asked_once_until_it_has_looked(path: Path) -> None:
    with opened(path) as (journal, loop):
        for seq in range(1, 50):
            journal.append(entry(job(1, seq=seq), seq=seq))
            journal.flush()
            while journal.durable < seq:
                journal.lend()
        assert loop.calls.qsize() == 1


def test_lend_waits_for_the_writer_only_when_a_batch_is_old(path: Path, gate: Gate) -> None:
    now = 100.0
    journal = SqliteJournal(path, connect=gate.connect, clock=lambda: now)
    Loop().open(journal)
    assert journal.lend() is None
    journal.append(entry(job(1), seq=1))
    journal.flush()
    gate.entered.acquire()
    assert journal.lend() == pytest.approx(0.002)
    now += 0.0015
    assert journal.lend() == pytest.approx(0.0005)
    now += 0.0085
    assert journal.lend() == pytest.approx(0.005)  # it waited in vain, and will ask more seldom
    gate.open.release()
    while journal.lend() is not None:
        pass
    assert journal.durable == 1
    assert journal.shut(30)


def test_lend_waits_until_sqlite_has_the_batch(path: Path, gate: Gate) -> None:
    journal = SqliteJournal(path, connect=gate.connect, clock=lambda: 100.0)
    Loop().open(journal)
    journal.append(entry(job(1), seq=1))
    journal.flush()
    assert journal.lend() == pytest.approx(0.002)  # young as it is
    assert gate.entered.acquire(timeout=600)
    gate.open.release()
    while journal.lend() is not None:
        pass
    assert journal.shut(30)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY])
def test_a_batch_that_cannot_be_written_is_tried_again_whole_until_it_can(path: Path, gate: Gate, code: int) -> None:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    gate.errors = [error] * 8
    with opened(path, connect=gate.connect, pause=gate.delays.append) as (journal, loop):
        journal.append(entry(job(1), seq=1))
        gate.open.release()
        journal.flush()
        loop.calls.get(timeout=600)()
        health = journal.health
        assert (health.ok, journal.durable, loop.told) == (False, 0, 1)
        assert str(path) in str(health.reason)
        assert health.since is not None
        assert journal.lend() is not None  # does not wait for a writer that waits
        for _ in range(8):
            gate.open.release()
        loop.until_durable(journal)
        assert (journal.health.ok, journal.durable) == (True, 1)
        assert gate.delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
        assert len(list(journal.reader.transitions())) == 1


def test_a_commit_whose_acknowledgement_was_lost_is_not_written_twice(path: Path, gate: Gate) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    gate.late = [error]
    with opened(path, connect=gate.connect, pause=gate.delays.append) as (journal, loop):
        hook = OutboxRow(key=7, owner="ws-2", event="on_failed", body=raw({}), context=raw({}))
        journal.append(entry(job(1), hook, seq=1))
        gate.open.release()
        loop.until_durable(journal)
        assert journal.durable == 1
        assert gate.delays == [0.1]
        assert [row.seq for row in journal.reader.transitions()] == [1]
        gate.open.release()
        journal.append(entry(seq=0, outbox_done=[7]))
        loop.until_durable(journal)


def test_numbers_go_on_over_sessions_so_that_an_old_batch_is_never_taken_for_a_new_one(path: Path, gate: Gate) -> None:
    with opened(path) as (journal, _):
        for seq in range(1, 10):
            journal.append(entry(job(1, seq=seq), seq=seq))
    error = sqlite3.OperationalError("disk I/O error")
    gate.errors = [error]
    with opened(path, connect=gate.connect, pause=gate.delays.append) as (journal, loop):
        journal.append(entry(job(1, seq=10), seq=10))
        gate.open.release()
        gate.open.release()
        loop.until_durable(journal)
        assert [row.seq for row in journal.reader.transitions()] == list(range(1, 11))


def test_a_file_that_was_replaced_is_not_written(path: Path, gate: Gate) -> None:
    gate.errors = [sqlite3.OperationalError("disk I/O error")]
    journal, loop = SqliteJournal(path, connect=gate.connect, pause=gate.delays.append), Loop()
    loop.open(journal)
    other = written(path.with_name("other.db"))
    for name in (path, path.with_name("state.db-wal"), path.with_name("state.db-shm")):
        name.unlink()
    other.rename(path)
    before = content(path.parent)
    journal.append(entry(job(2), seq=2))
    gate.open.release()
    journal.flush()
    loop.calls.get(timeout=600)()
    while "another file" not in str(journal.health.reason):
        loop.calls.get(timeout=600)()
    assert not journal.shut(0.05)
    assert content(path.parent)["state.db"] == before["state.db"]


def test_a_full_disk_degrades_and_recovers_by_itself(path: Path) -> None:
    """A real one, as SQLite sees it: the file may not grow beyond its pages until there is room."""
    room = threading.Event()
    paused = threading.Event()

    def connect(path: Path) -> sqlite3.Connection:
        connection = connect_writer(path)
        if not room.is_set():
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        return connection

    def pause(delay: float) -> None:
        paused.set()
        room.wait(600)

    with opened(path, connect=connect, pause=pause) as (journal, loop):
        ws = workstream(2, 1, 500)
        journal.append(entry(job(1), ws, *(task(key, ws) for key in range(3, 503)), seq=1))
        journal.flush()
        paused.wait(600)
        assert "disk is full" in str(journal.health.reason)
        assert journal.durable == 0
        assert journal.reader.jobs() == []
        room.set()
        loop.until_durable(journal)
        assert journal.health.ok
        assert len(journal.reader.tasks(2)) == 500


def test_shut_gives_up_after_its_deadline_and_says_so(path: Path, gate: Gate) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    gate.errors = [error] * 10_000
    for _ in range(10_000):
        gate.open.release()
    journal, loop = SqliteJournal(path, connect=gate.connect), Loop()
    loop.open(journal)
    journal.append(entry(job(1), seq=1))
    assert not journal.shut(0.1)
    assert jobs_in(path) == []


def test_what_cannot_be_written_is_refused_on_the_loop(path: Path) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with opened(path) as (journal, loop):
        for bad in ({"reason": "\ud800"}, {"metadata": {"a": "\udfff"}}, {"metadata": {"a": deep}}):
            with pytest.raises(ValueError, match="transition of job job-1 cannot be written"):
                journal.append(Entry([moved(1, job(1), event="approve", **bad)], []))
        assert journal.tail == 0
        loop.until_durable(journal)


def test_what_slipped_through_does_not_stop_the_journal(path: Path) -> None:
    ws = workstream(2, 1, 1)
    odd = task(
        3,
        ws,
        trouble=Trouble(error="\ud800!"),
        produced=Produced(path="/tmp/\udcff"),
        raw_result=msgspec.Raw(b'{"a":\n1}'),
    )
    with opened(path) as (journal, loop):
        journal.append(entry(job(1), ws, odd, worker(9, name="\ud800"), seq=1))
        loop.until_durable(journal)
        [kept] = journal.reader.tasks(2)
        assert (kept.last_error, kept.output_path, kept.result) == ("?!", "/tmp/?", odd.result)


def test_an_observer_that_raises_does_not_stop_the_journal(path: Path) -> None:
    journal, loop = SqliteJournal(path), Loop()
    loop.open(journal, after_commit=lambda rows: 1 / 0)
    for seq in (1, 2):
        journal.append(entry(job(1, seq=seq), seq=seq))
        loop.until_durable(journal)
    assert journal.shut(30)


def test_a_loop_that_is_gone_does_not_stop_the_journal(path: Path) -> None:
    def closed(call: object) -> None:
        raise RuntimeError("Event loop is closed")

    journal = SqliteJournal(path)
    journal.open(on_durable=lambda: None, call_threadsafe=closed)
    journal.append(entry(job(1), seq=1))
    assert journal.shut(30)


def test_a_batch_too_large_for_one_statement_is_still_one_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.journal.batch.PART", 1_000)
    monkeypatch.setattr("callboard.runtime.journal.batch.GROUP", 7)
    ws = workstream(2, 1, 100)
    tasks = [task(key, ws) for key in range(3, 103)]
    with opened(path) as (journal, loop):
        journal.append(entry(job(1), ws, *tasks, seq=1, specs=[(2, b"{}")]))
        loop.until_durable(journal)
        assert journal.commits == 1
        assert journal.reader.tasks(2) == tasks
        assert len(list(journal.reader.transitions(job_id="job-1"))) == 102


# -- kill -9


@pytest.mark.parametrize("made", [b"", None])
def test_an_empty_file_is_made_a_journal(path: Path, made: bytes | None) -> None:
    if made is not None:
        path.write_bytes(made)
    assert jobs_in(written(path)) == [job(1)]


def test_a_reader_of_an_empty_file_says_that_nothing_is_in_it(path: Path) -> None:
    path.touch()
    with pytest.raises(JournalMissing, match="is empty"):
        SqliteReader(path)
    assert path.stat().st_size == 0


DIE = """
import os, resource, signal, sys
from tests.runtime.journal.samples import Loop
from callboard.runtime.journal.sqlite import opening
from callboard.runtime.journal.sqlite.journal import SqliteJournal
connect = opening.connect
def make(path, how, limit):
    if how == "bytes":  # the system kills it in the middle of a commit, when a file grows beyond so many bytes
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    else:  # killed after so many steps of SQLite's
        left = [limit]
        def step():
            left[0] -= 1
            if not left[0]:
                signal.raise_signal(signal.SIGKILL)
        def watched(path, mode):
            connection = connect(path, mode)
            connection.set_progress_handler(step, 1)
            return connection
        opening.connect = watched
    Loop().open(SqliteJournal(path))
for case in sys.argv[2:]:
    child = os.fork()
    if not child:
        how, limit = case.split("-")
        make(f"{sys.argv[1]}/{case}.db", how, int(limit))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_kill_while_the_file_is_made_leaves_what_the_next_owner_makes_whole(tmp_path: Path) -> None:
    cases = [f"bytes-{pages * 4096}" for pages in (0, 1, 2, 7, 20)]
    cases += [f"steps-{count}" for count in (1, 50, 400, 1500, 2000, 2400, 3000)]
    killed = subprocess.run(
        [sys.executable, "-c", DIE, str(tmp_path), *cases], env=CHILD, stdout=subprocess.PIPE, text=True, check=True
    )
    codes = [-signal.SIGXFSZ] * 5 + [-signal.SIGKILL] * 7
    assert killed.stdout.split() == [str(int(code)) for code in codes]
    for case in cases:
        path = tmp_path / f"{case}.db"
        try:
            with closing(SqliteReader(path)) as reader:
                assert reader.jobs() == []
        except JournalMissing:
            pass  # it raises that there is nothing yet
        assert jobs_in(written(path)) == [job(1)], case


def test_nothing_that_was_durable_is_lost_by_a_kill(path: Path) -> None:
    code = f"""
from tests.runtime.journal.samples import Loop, entry, job, message, moved
from callboard.runtime.journal.contract import Entry
from callboard.runtime.journal.sqlite.journal import SqliteJournal
journal, loop = SqliteJournal({str(path)!r}), Loop()
loop.open(journal)
seq = 0
while True:
    for _ in range(20):
        seq += 1
        journal.append(Entry([moved(seq, job(seq))], [job(seq)]))
    loop.until_durable(journal, journal.tail - 10)
    print(journal.durable, flush=True)
"""
    last = 0
    for _ in range(4):
        path.unlink(missing_ok=True)
        program = subprocess.Popen([sys.executable, "-c", code], env=CHILD, stdout=subprocess.PIPE)
        with killed_after(program) as child:
            assert child.stdout is not None
            for line in child.stdout:
                last = int(line)
                if last > 400:
                    child.send_signal(signal.SIGKILL)
                    break
            rest = child.stdout.read().split(b"\n")
            last = max([last, *(int(line) for line in rest[:-1])])
        with opened(path) as (journal, _):
            kept = [row.seq for row in journal.reader.transitions()]
            assert kept == list(range(1, len(kept) + 1))
            assert len(kept) >= last
            assert [one.key for one in journal.reader.jobs(limit=10**9)] == kept[::-1]
        for name in ("state.db-wal", "state.db-shm"):
            assert not path.with_name(name).exists()


@pytest.mark.anyio
async def test_the_file_is_free_when_its_runtime_has_been_left_however_slow_the_disk_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = SqliteMedium.close

    def slowly(medium: SqliteMedium) -> None:
        time.sleep(0.5)  # the disk: longer than the writer has once its limit is over
        close(medium)

    monkeypatch.setattr(SqliteMedium, "close", slowly)
    for _ in range(2):
        async with Runtime(tmp_path / "state.db", drain_deadline=0):
            pass
