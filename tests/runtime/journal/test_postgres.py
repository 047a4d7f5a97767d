"""The journal in PostgreSQL: failed and unacknowledged commits, fenced nodes, and the texts that it can hold."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.programs import killed_after
from tests.waiting import wait_until

from callboard.actors.records.entities import RequestRecord
from callboard.actors.records.task import Produced, Trouble
from callboard.runtime.errors import JournalError, JournalUnwritable, LeaseLost
from callboard.runtime.journal.cluster import EPOCH
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.contract import Entry, InboxAnswer
from callboard.runtime.journal.jsonl import JsonlLog
from callboard.runtime.journal.postgres.address import Address, parse
from callboard.runtime.journal.postgres.journal import PostgresJournal
from callboard.runtime.journal.postgres.medium import connect_writer
from callboard.runtime.journal.postgres.opening import connect
from callboard.runtime.journal.postgres.reader import LoadScope, PostgresReader
from callboard.runtime.testing.postgres import PrivateServer

from .samples import Loop, attempt, entry, job, moved, raw, step, task, worker, workstream
from .test_contract import machine, told
from .test_sqlite import CHILD

pytestmark = pytest.mark.postgres


@contextmanager
def opened(address: str, **how: Any) -> Iterator[tuple[PostgresJournal, Loop]]:
    journal, loop = PostgresJournal(address, **how), Loop()
    loop.open(journal)
    try:
        yield journal, loop
    finally:
        journal.shut(30)


def sql(address: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Ask the database behind the journal's back."""
    with closing(connect(parse(address), "behind")) as connection:
        cursor = connection.execute(statement.encode(), values)
        return [] if cursor.description is None else cursor.fetchall()


def end_sessions(address: str, purpose: str) -> int:
    return len(
        sql(
            address,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
            f"callboard {purpose}",
        )
    )


def until_degraded(journal: PostgresJournal, loop: Loop, word: str) -> None:
    journal.flush()
    while word not in str(journal.health.reason):
        loop.calls.get(timeout=600)()


# -- commits that fail


class Lossy:
    """A session whose acknowledgements are lost: `lost` of them, and the connection with each."""

    def __init__(self, real: Any, line: Line) -> None:
        self._real = real
        self._line = line

    @property
    def pgconn(self) -> Lossy:
        return Lossy(self._real.pgconn, self._line)

    def exec_prepared(self, *arguments: Any) -> Any:
        done = self._real.exec_prepared(*arguments)
        if self._line.in_transaction or not self._line.lost:
            return done
        return self._lose()

    def exec_(self, command: bytes) -> Any:
        done = self._real.exec_(command)
        self._line.in_transaction = command == b"BEGIN"
        return self._lose() if command == b"COMMIT" and self._line.lost else done

    def _lose(self) -> Any:
        self._line.lost -= 1
        self._real.finish()
        return self._real.exec_(b"SELECT 1")  # libpq's error for a missing connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Line:
    def __init__(self, lost: int) -> None:
        self.lost = lost
        self.in_transaction = False

    def connect(self, address: Address) -> Any:
        return Lossy(connect_writer(address), self)


@pytest.mark.parametrize("part", [1 << 26, 500])
def test_a_batch_whose_acknowledgement_was_lost_is_written_once(
    emptied: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.runtime.journal.postgres.rows.PART", part)
    monkeypatch.setattr("callboard.runtime.journal.postgres.rows.GROUP", 3)
    line = Line(lost=2)
    ws = workstream(2, 1, 20)
    tasks = [task(key, ws) for key in range(3, 23)]
    with opened(emptied, connect=line.connect, pause=lambda _: None) as (journal, loop):
        for seq in (1, 31, 61):
            journal.append(entry(job(1, seq=seq), ws, *tasks, seq=seq, specs=[(2, b"{}")]))
            loop.until_durable(journal)
        assert (line.lost, journal.commits, journal.durable) == (0, 3, 3)
        assert journal.health.ok
        assert journal.reader.tasks(2) == tasks
        rows = [row.seq for row in journal.reader.transitions()]
        assert rows == [*range(1, 23), *range(31, 53), *range(61, 83)]


def test_a_session_that_is_ended_at_the_server_is_made_anew(emptied: str) -> None:
    with opened(emptied, pause=lambda _: None) as (journal, loop):
        for seq in range(1, 40):
            journal.append(entry(job(1, seq=seq), seq=seq))
            if seq % 10 == 0:
                end_sessions(emptied, "writer")
                end_sessions(emptied, "reader")
            loop.until_durable(journal)
            assert [one.seq for one in journal.reader.jobs()] == [seq]
        assert [row.seq for row in journal.reader.transitions()] == list(range(1, 40))


def test_a_server_that_is_stopped_is_waited_for(emptied: str, postgres_server: PrivateServer) -> None:
    delays: list[float] = []
    up = threading.Event()

    def pause(delay: float) -> None:
        delays.append(delay)
        if len(delays) >= 3:
            up.wait(600)

    address = emptied.replace("postgresql://postgres@", "postgresql://postgres:se%2Fcret@")
    with opened(address, pause=pause) as (journal, loop):
        journal.append(entry(job(1), seq=1))
        loop.until_durable(journal)
        postgres_server.stop("immediate")
        try:
            journal.append(entry(job(1, seq=2), seq=2))
            until_degraded(journal, loop, "cannot be reached")
            assert not journal.health.ok
            assert "cret" not in str(journal.health.reason)
            with pytest.raises(JournalError, match="cannot be reached") as refusal:
                journal.reader.jobs()
            assert "cret" not in str(refusal.value)
        finally:
            postgres_server.start()
        up.set()
        loop.until_durable(journal)
        assert journal.health.ok
        assert [row.seq for row in journal.reader.transitions()] == [1, 2]
        assert delays[:3] == [0.1, 0.2, 0.4]


@pytest.mark.parametrize(
    ("code", "words"), [("53100", "its disk is full. Make room"), ("XX001", "is damaged"), ("42501", "may not do that")]
)
def test_what_the_server_refuses_is_said_and_tried_again_whole(emptied: str, code: str, words: str) -> None:
    mended = threading.Event()
    with opened(emptied, pause=lambda _: mended.wait(600)) as (journal, loop):
        sql(
            emptied,
            f"""CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'it says so' USING ERRCODE = '{code}'; END $$;
            CREATE TRIGGER refusing BEFORE INSERT ON attempt_records EXECUTE FUNCTION refuse()""",
        )
        ws = workstream(2, 1, 1)
        journal.append(entry(job(1), ws, task(3, ws), attempt(4, task(3, ws)), seq=1))
        until_degraded(journal, loop, words)
        assert str(journal.health.reason).startswith(f"cannot write {parse(emptied)}: ")
        assert journal.reader.jobs() == []
        sql(emptied, "DROP TRIGGER refusing ON attempt_records")
        mended.set()
        loop.until_durable(journal)
        assert journal.health.ok
        assert [one.key for one in journal.reader.attempts("ws-2/t3")] == [4]


def test_a_database_that_becomes_read_only_is_waited_for(emptied: str) -> None:
    mended = threading.Event()
    with opened(emptied, pause=lambda _: mended.wait(0.05)) as (journal, loop):
        sql(emptied, "ALTER DATABASE postgres SET default_transaction_read_only = on")
        try:
            end_sessions(emptied, "writer")
            journal.append(entry(job(1), seq=1))
            until_degraded(journal, loop, "it is read-only")
        finally:
            with closing(connect(parse(emptied), "behind")) as connection:
                connection.execute("SET default_transaction_read_only = off")
                connection.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        mended.set()
        loop.until_durable(journal)
        assert [one.key for one in journal.reader.jobs()] == [1]


def test_shut_gives_up_after_its_deadline_and_says_so(emptied: str) -> None:
    gone = False

    def only_once(address: Address) -> Any:
        if gone:
            raise JournalUnwritable("it is gone")
        return connect_writer(address)

    with opened(emptied, connect=only_once, pause=lambda _: None) as (journal, _):
        gone = True
        end_sessions(emptied, "writer")
        journal.append(entry(job(1), seq=1))
        assert not journal.shut(0.1)
        assert journal.health.reason == f"cannot write {parse(emptied)}: it is gone"


# -- fences


def test_a_node_that_was_fenced_cannot_write_and_is_told_so(emptied: str) -> None:
    journal, loop = PostgresJournal(emptied, pause=lambda _: None), Loop()
    loop.open(journal)
    journal.append(entry(job(1), seq=1))
    loop.until_durable(journal)
    sql(emptied, "UPDATE nodes SET fenced = true")
    journal.append(entry(job(1, seq=2), seq=2))
    until_degraded(journal, loop, "others have taken over what it ran")
    assert isinstance(journal.lost, LeaseLost)
    journal.append(entry(job(1, seq=3), seq=3))
    journal.flush()
    assert not journal.shut(30)
    with closing(PostgresReader(emptied)) as reader:
        assert [one.seq for one in reader.jobs()] == [1]


def test_who_fences_waits_for_a_commit_under_way_and_a_commit_for_who_fences(emptied: str) -> None:
    """The lock that both take, whichever comes first."""
    journal, loop = PostgresJournal(emptied, pause=lambda _: None), Loop()
    loop.open(journal)
    with closing(connect(parse(emptied), "fences")) as connection, connection.transaction():
        connection.execute("SELECT node FROM nodes WHERE NOT fenced FOR UPDATE")
        journal.append(entry(job(1), seq=1))
        journal.flush()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        wait_until(lambda: sql(emptied, waiting, "callboard writer")[0][0], "a commit that waits for the lock")
        connection.execute("UPDATE nodes SET fenced = true")
    until_degraded(journal, loop, "others have taken over")
    assert not journal.shut(30)
    assert sql(emptied, "SELECT count(*) FROM job_records") == [(0,)]


def test_nothing_that_was_durable_is_lost_by_a_kill_and_the_next_has_it_at_once(emptied: str) -> None:
    code = f"""
from tests.runtime.journal.samples import Loop, job, moved
from callboard.runtime.journal.contract import Entry
from callboard.runtime.journal.postgres.journal import PostgresJournal
journal, loop = PostgresJournal({emptied!r}), Loop()
loop.open(journal)
seq = journal.begun
while True:
    for _ in range(20):
        seq += 1
        journal.append(Entry([moved(seq, job(seq))], [job(seq)]))
    loop.until_durable(journal, journal.tail - 10)
    print(journal.durable, flush=True)
"""
    last, kept = 0, 0
    for _ in range(2):
        program = subprocess.Popen([sys.executable, "-c", code], env=CHILD, stdout=subprocess.PIPE)
        with killed_after(program) as child:
            assert child.stdout is not None
            for line in child.stdout:
                last = int(line)
                if last > 200:
                    child.send_signal(signal.SIGKILL)
                    break
            rest = child.stdout.read().split(b"\n")
            last = max([last, *(int(line) for line in rest[:-1])])
        journal = PostgresJournal(emptied)
        loaded = Loop().open(journal)
        rows = [row.seq for row in journal.reader.transitions()]
        assert len(rows) - kept >= last
        assert [one.key for one in loaded.jobs] == rows
        assert rows[kept:] == list(range(rows[kept], rows[kept] + len(rows) - kept))
        kept = len(rows)
        assert journal.shut(30)


# -- what it holds


def request(key: int, request_id: str = "r", *, expires_at: float = 9e9, owner: int = 0) -> RequestRecord:
    return RequestRecord(
        key=key, request_id=request_id, operation="o", fingerprint="f", at=1.0, expires_at=expires_at, owner=owner,
        answer=raw({}),
    )  # fmt: skip


def test_nothing_that_a_text_can_hold_stops_the_journal(emptied: str) -> None:
    ws = workstream(2, 1, 1)
    result = raw({"a": "\0\n\\u0000"})
    odd = task(3, ws, trouble=Trouble(error="\ud800!\0"), produced=Produced(path="/tmp/\udcff"), raw_result=result)
    broken = task(4, ws, raw_result=msgspec.Raw(b'{"a":\n"\xff"}'))
    names = ["\0", "", "a\nb", "{", "é\u2028", "\ud800", "\udfff"]
    with opened(emptied) as (journal, loop):
        journal.append(entry(job(1), ws, odd, worker(9, name="\0\ud800"), seq=1))
        for key, name in enumerate(names, 20):
            journal.append(Entry([told(key, name)], [machine(key, name)], specs=[(3, b'{"machine":\n"m"}')]))
            journal.append(Entry([], [request(key + 100, name)], answers=[InboxAnswer(1, '"\n\0\ud800"', 1.0)]))
        journal.append(entry(broken))
        loop.until_durable(journal)
        assert journal.health.ok
        kept = journal.reader.task(odd.id)
        assert kept is not None
        assert (kept.last_error, kept.output_path, kept.result) == ("?!\0", "/tmp/?", odd.result)
        assert [one.name for one in journal.reader.workers()] == ["\0?"]
        for name in names[:-2]:  # the last two are written as one
            found, request_found = journal.reader.machine(name), journal.reader.request(name)
            assert found is not None
            assert request_found is not None
            assert (found.name, request_found.request_id) == (name, name)
            assert [row.entity_id for row in journal.reader.transitions(entity_id=name)] == [name]
        assert journal.reader.spec(3) == b'{"machine": "m"}'
        assert sql(emptied, "SELECT last_error FROM tasks WHERE id = %s", odd.id) == [("?!\ufffd",)]
        assert len(sql(emptied, "SELECT * FROM machines")) == len(names)


def test_the_last_request_of_an_id_is_kept(emptied: str) -> None:
    with opened(emptied) as (journal, loop):
        journal.append(entry(request(1), request(2)))
        journal.append(entry(request(3)))
        loop.until_durable(journal)
        journal.append(entry(job(7), request(4, expires_at=5.0, owner=7)))
        loop.until_durable(journal)
        journal.append(Entry([], [], pruned_at=6.0))
        loop.until_durable(journal)
        kept = journal.reader.request("r")
        assert kept is not None
        assert kept.key == 4  # its owner has not ended
        journal.append(entry(job(7, state="completed", finished_at=5.5)))
        journal.append(Entry([], [], pruned_at=7.0))
        loop.until_durable(journal)
        assert journal.reader.request("r") is None


def test_answers_stand_in_the_inbox_until_they_are_pruned(emptied: str) -> None:
    command = '{"verb":"cancel","kind":"job","target":"a","request_id":"r"}'
    with opened(emptied) as (journal, loop):
        put = "INSERT INTO inbox_rows (command) VALUES (%s) RETURNING key"
        one, two, _ = (sql(emptied, put, text)[0][0] for text in (command, command, "no command"))
        journal.append(Entry([], [], answers=[InboxAnswer(one, '{"ok":true}', 10.0)]))
        journal.append(Entry([], [], answers=[InboxAnswer(one, '{"ok":false}', 11.0)]))
        loop.until_durable(journal)
        reader = journal.reader
        assert [row.row for row in reader.inbox()] == [two]
        assert reader.answer(one) == b'{"ok":true}'
        assert [answer for _, answer in reader.sent("r")] == [b'{"ok":true}', None]
        assert reader.answer(two) is reader.answer(two + 99) is None
        journal.append(Entry([], [], pruned_at=10.0 + 3601))
        loop.until_durable(journal)
        assert reader.answer(one) is None


def test_the_history_of_a_job_rises_over_epochs_and_none_of_it_is_missed(emptied: str) -> None:
    """Also where others have committed in between, and a batch goes over the beginning of an epoch."""

    def rows(*seqs: int, of: int = 1) -> list[Any]:
        return [moved(seq, job(of)) for seq in seqs]

    first, between, second = EPOCH * 70, EPOCH * 71, EPOCH * 72
    with opened(emptied) as (journal, loop):
        journal.append(Entry(rows(first + 1, first + 2), [job(1)]))
        journal.append(Entry(rows(first + 3, second + 1, second + 2), [job(1)]))
        loop.until_durable(journal)
        journal.append(Entry(rows(between + 1, between + 2, of=5), [job(5)]))
        journal.append(Entry(rows(second + 3), [job(1)]))
        loop.until_durable(journal)
        mine = [first + 1, first + 2, first + 3, second + 1, second + 2, second + 3]
        every = sorted([*mine, between + 1, between + 2])
        for after in (0, *every):
            assert [row.seq for row in journal.reader.transitions(after=after)] == [seq for seq in every if seq > after]
            told = [row.seq for row in journal.reader.transitions(job_id="job-1", after=after)]
            assert told == [seq for seq in mine if seq > after]


def test_many_pages_of_history_are_read_in_order(emptied: str) -> None:
    with opened(emptied) as (journal, loop):
        seq = 0
        for _ in range(40):
            rows = []
            for of in (1, 2, 3):
                rows += [moved(seq + n, job(of)) for n in range(1, 4)]
                seq += 3
            journal.append(Entry(rows, []))
            loop.until_durable(journal)
        assert [row.seq for row in journal.reader.transitions()] == list(range(1, seq + 1))
        assert len(list(journal.reader.transitions(job_id="job-2"))) == 120


# -- what is asked


def test_questions_are_asked_from_several_threads_at_once(emptied: str) -> None:
    with opened(emptied) as (journal, loop):
        ws = workstream(2, 1, 20)
        journal.append(entry(job(1), ws, *(task(key, ws) for key in range(3, 23)), seq=1))
        loop.until_durable(journal)
        told: list[tuple[int, int]] = []

        def ask() -> None:
            told.extend((len(journal.reader.tasks(2)), len(list(journal.reader.transitions()))) for _ in range(20))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
        assert told == [(20, 22)] * 80


def test_a_reader_changes_nothing_and_makes_nothing(postgres: str) -> None:
    with pytest.raises(JournalError, match="There is no journal"):
        PostgresReader(postgres)
    with opened(postgres):
        reader = PostgresReader(postgres)
    with pytest.raises(JournalError, match="read-only"):
        reader._rows("DELETE FROM job_records")
    reader.close()
    with pytest.raises(JournalError, match="not open any more"):
        reader.jobs()


def test_a_part_of_it_is_loaded_with_all_that_belongs_to_it(emptied: str) -> None:
    one, two = workstream(2, 1, 1), workstream(12, 11, 1)
    over = workstream(22, 21, 1, state="completed", finished_at=2.0)
    claims = [attempt(4, task(3, one)), attempt(14, task(13, two)), attempt(24, task(23, over))]
    gone = worker(10, state="shutdown", finished_at=1.0)
    done = job(21, state="completed", finished_at=2.0)
    with opened(emptied) as (journal, loop):
        journal.append(entry(job(1, stream=2), one, task(3, one), claims[0], seq=1, specs=[(2, b"{}")]))
        journal.append(entry(job(11, stream=12), two, task(13, two), claims[1], seq=11, specs=[(12, b"{}")]))
        journal.append(entry(done, over, task(23, over), claims[2], worker(9), gone, seq=21))
        loop.until_durable(journal)
        [(me,)] = sql(emptied, "SELECT max(node) FROM nodes")
        loaded = journal.reader.load(LoadScope(jobs=[11]))
        assert (loaded.jobs, loaded.workstreams, loaded.tasks) == ([job(11, stream=12)], [two], [task(13, two)])
        assert (loaded.attempts, loaded.workers, loaded.specs) == ([claims[1]], [], {12: b"{}"})
        loaded = journal.reader.load(LoadScope(jobs=[1, 21], nodes=[me]))
        assert [record.key for record in loaded.jobs] == [1]
        assert sorted(record.key for record in loaded.attempts) == [4, 24]  # that of job 11 goes with it
        assert loaded.workers == [worker(9)]
        everything = journal.reader.load()
        assert [record.key for record in everything.jobs] == [1, 11]
        assert [record.key for record in everything.attempts] == [4, 14, 24]


def test_a_node_that_takes_over_reads_the_steps_of_the_other_and_goes_on_after_them(emptied: str) -> None:
    one = task(3, workstream(2, 1, 1))
    waits = step(5, one, "wait", ended_at=None, due_at=9.0)
    with opened(emptied, node="a") as (journal, loop):
        journal.append(entry(job(1), step(4, one), waits))
        loop.until_durable(journal)
    woken = msgspec.structs.replace(waits, ended_at=9.0)
    with opened(emptied, node="b") as (journal, loop):
        assert journal.reader.steps(3) == [step(4, one), waits]
        journal.append(entry(woken, step(6, one)))
        loop.until_durable(journal)
        assert journal.reader.steps(3) == [step(4, one), woken, step(6, one)]


def test_a_log_is_filled_in_with_what_its_node_has_committed(emptied: str, tmp_path: Path) -> None:
    """And after a restart, with what the log did not get of the node before; never with what others do."""
    path = tmp_path / "log.jsonl"

    def logged() -> list[int]:
        return [msgspec.json.decode(line)["seq"] for line in path.read_bytes().splitlines()]

    def rows(first: int, count: int) -> Entry:
        return Entry([moved(first + n, job(1)) for n in range(count)], [])

    with opened(emptied) as (journal, loop):
        begun = journal.begun
        journal.append(rows(begun + 1, 4))
        loop.until_durable(journal)
        log = JsonlLog(path)
        assert log.open(journal.own) == 4
        journal.append(rows(begun + 5, 2))
        loop.until_durable(journal)
        log.close()
    foreign = begun + EPOCH * 1000
    sql(emptied, "INSERT INTO transition_chunks SELECT %s, %s, -1, owner, transitions FROM transition_chunks LIMIT 1",
        foreign, foreign)  # fmt: skip
    with opened(emptied) as (journal, loop):
        mine = journal.begun + EPOCH * 2000
        journal.append(rows(mine, 3))
        loop.until_durable(journal)
        log = JsonlLog(path)
        assert log.open(journal.own) == 5
        log.close()
    assert logged() == [*range(begun + 1, begun + 7), *range(mine, mine + 3)]


def test_a_journal_of_several_sessions_is_consistent(emptied: str) -> None:
    with opened(emptied) as (journal, loop):
        for begun in (0, 5 * EPOCH):
            record = job(begun + 1, id=f"j{begun}", state="submitted")
            journal.append(Entry([moved(begun + 1, record, "create", entity_seq=1)], [record]))
        loop.until_durable(journal)
        assert {finding.kind for finding in examine(journal.reader).found} == set()
