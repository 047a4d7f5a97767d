"""The JSONL log: its lines, the repair of cut ends and gaps, and that it never stops a journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.runtime.journal.samples import Loop, job, moved, task, workstream

from callboard.machines import TransitionEvent
from callboard.runtime.errors import JournalUnwritable
from callboard.runtime.journal.contract import Entry, Journal
from callboard.runtime.journal.jsonl import JsonlLog, LogConflict
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.runtime import Runtime


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[JsonlLog]:
    log = JsonlLog(path)
    yield log
    log.close()


def journal_of(last: int) -> MemoryJournal:
    journal = MemoryJournal()
    Loop().open(journal)
    add(journal, 1, last)
    return journal


def add(journal: Journal, first: int, last: int) -> None:
    for seq in range(first, last + 1):
        journal.append(Entry([moved(seq, job(1))], []))


def seqs(path: Path) -> list[int]:
    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [msgspec.json.decode(line, type=TransitionEvent).seq for line in data.splitlines()]


def test_a_line_holds_the_event_schema(path: Path, log: JsonlLog) -> None:
    journal = MemoryJournal()
    Loop().open(journal, log.write)
    log.open(journal)
    row = moved(
        1, task(3, workstream(2, 1, 1)), "validation_passed", from_state="validating", at=1_700_000_000.2504,
        severity="info", reason="ok", attempt=2, worker_id="w", metadata={"duration_seconds": 45}, workstream_id="ws-2",
    )  # fmt: skip
    journal.append(Entry([row], []))
    log.close()
    assert msgspec.json.decode(path.read_bytes()) == {
        "seq": 1, "timestamp": "2023-11-14T22:13:20.250Z", "event_type": "task_state_transition", "severity": "info",
        "entity_id": "ws-2/t3", "entity_seq": 1, "from_state": "validating", "to_state": "queued",
        "trigger": "validation_passed", "reason": "ok", "job_id": "job-1", "workstream_id": "ws-2", "run": 1,
        "attempt": 2, "worker_id": "w", "metadata": {"duration_seconds": 45},
    }  # fmt: skip


def test_it_follows_the_commits_of_a_file_journal(path: Path, log: JsonlLog) -> None:
    for first in (1, 101):
        journal, loop = SqliteJournal(path.with_name("state.db")), Loop()
        loop.open(journal, log.write)
        assert log.open(journal.own) == 0
        for seq in range(first, first + 100):
            add(journal, seq, seq)
            if seq % 9 == 0:
                loop.until_durable(journal)
        assert journal.shut(30)
    assert seqs(path) == list(range(1, 201))
    assert (log.missed, log.trouble) == (0, None)


@pytest.mark.parametrize("kept", [0, 1, 3, 10])
@pytest.mark.parametrize(
    "torn", [b"", b"{", b'{"seq":', b'{"seq":4,"entity_id":"job-1","to_state":"x"}', b"\0" * 70_000, b"\0\n\0"]
)
def test_a_torn_end_is_cut_and_gaps_are_filled(path: Path, log: JsonlLog, kept: int, torn: bytes) -> None:
    journal = journal_of(10)
    log.open(journal)
    log.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:kept]) + torn)
    assert log.open(journal) == 10 - kept
    assert path.read_bytes() == b"".join(lines)


def test_long_lines_are_found_from_the_end(path: Path, log: JsonlLog) -> None:
    journal = MemoryJournal()
    Loop().open(journal)
    for seq in (1, 2, 3):
        journal.append(Entry([moved(seq, job(1), metadata={"text": "é" * 100_000})], []))
    assert log.open(journal) == 3
    path.write_bytes(path.read_bytes()[:-5])
    assert log.open(journal) == 1
    assert seqs(path) == [1, 2, 3]


def test_the_log_of_another_journal_is_refused_and_not_touched(path: Path, log: JsonlLog) -> None:
    log.open(journal_of(10))
    before = path.read_bytes()
    other = MemoryJournal()
    Loop().open(other)
    for seq in range(1, 21):
        other.append(Entry([moved(seq, job(2))], []))
    for journal in (journal_of(5), other):
        with pytest.raises(LogConflict, match="belongs to another journal"):
            log.open(journal)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        b"# Readme\n",
        b"\n\n# begins with empty lines\n\n",
        b"\0\0zeros\n",
        b"\x7fELF",
        b'{"a": 1}\n{"b": 2}\n',
        b"x" * 200_000,
    ],
)
def test_a_file_that_is_no_log_is_refused_and_not_touched(path: Path, log: JsonlLog, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(LogConflict, match="no log of transitions"):
        log.open(journal_of(3))
    assert path.read_bytes() == text


@pytest.mark.parametrize("place", ["nodir/log.jsonl", ".", "/dev/null", "/proc/no.jsonl"])
def test_a_place_where_no_log_can_be_is_refused_and_nothing_made(path: Path, place: str) -> None:
    with pytest.raises(JournalUnwritable, match="Cannot write the log"):
        JsonlLog(path.parent / place).open(journal_of(1))
    assert list(path.parent.iterdir()) == []


def test_a_runtime_refuses_such_a_place_before_it_opens_its_journal(path: Path) -> None:
    async def enter() -> None:
        async with Runtime(path.with_name("state.db"), jsonl=path.parent / "nodir" / "log.jsonl"):
            raise AssertionError("it was entered")

    with pytest.raises(JournalUnwritable, match="there is no folder"):
        anyio.run(enter)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        *(
            (f"state.db{suffix}", "a file of the journal")
            for suffix in ("", "-wal", "-shm", "-journal", ".lock", ".sock")
        ),
        ("loop", "a link that leads to itself"),
        ("n" * 256, "too long"),
    ],
)
def test_a_runtime_refuses_a_log_in_a_file_of_its_journal_or_behind_a_loop(path: Path, place: str, why: str) -> None:
    async def enter() -> None:
        async with Runtime(path.with_name("state.db"), jsonl=path.with_name(place)):
            raise AssertionError("it was entered")

    loop = path.with_name("loop")
    loop.symlink_to("loop")
    with pytest.raises(JournalUnwritable, match=why):
        anyio.run(enter)
    assert list(path.parent.iterdir()) == [loop]


def test_a_log_that_cannot_be_written_is_counted_said_once_and_filled_in_later(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = path.with_name("later")
    folder.mkdir()
    log = JsonlLog(folder / "log.jsonl")
    journal = MemoryJournal()
    Loop().open(journal, log.write)
    assert log.open(journal) == 0
    log.path.unlink()
    folder.rmdir()
    log.close()
    add(journal, 1, 3)
    assert log.missed == 3
    assert "cannot write the log" in str(log.trouble)
    assert caplog.text.count("log_unwritable") == 1
    folder.mkdir()
    add(journal, 4, 5)
    assert seqs(log.path) == [1, 2, 3, 4, 5]
    assert (log.missed, log.trouble) == (0, None)
    log.close()


def test_a_write_that_breaks_off_leaves_no_torn_line(path: Path, log: JsonlLog) -> None:
    class Full:
        """A file on a disk that fills up in the middle of a line."""

        def __init__(self, file: object) -> None:
            self.file = file

        def write(self, data: memoryview) -> int:
            self.file.write(data[:20])  # type: ignore[attr-defined]
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            self.file.close()  # type: ignore[attr-defined]

    journal = MemoryJournal()
    Loop().open(journal, log.write)
    log.open(journal)
    add(journal, 1, 2)
    log._file = Full(log._file)  # type: ignore[assignment]
    add(journal, 3, 4)
    assert log.trouble is None  # the second of them was written, and the first filled in
    assert seqs(path) == [1, 2, 3, 4]
    log.close()
