"""The contract of every journal, checked for each of them (callboard/runtime/journal/contract.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from callboard.actors.messages.notices import NoticeRecord
from callboard.actors.records.base import Record
from callboard.actors.records.entities import (
    AnyRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    WorkstreamRecord,
)
from callboard.actors.records.loaded import Loaded
from callboard.actors.records.step import PUBLISH, StepRecord
from callboard.actors.records.task import EndedRound, Process, Produced, TaskRecord, Trouble
from callboard.actors.records.transition import Transitioned
from callboard.actors.spec.model import Allowed
from callboard.runtime.errors import JournalError
from callboard.runtime.journal.cluster import EPOCH
from callboard.runtime.journal.contract import NOTICES_KEPT, Entry, Journal
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.postgres.journal import PostgresJournal
from callboard.runtime.journal.sqlite.journal import SqliteJournal

from .samples import Loop, attempt, entry, job, message, moved, raw, step, task, worker, workstream


class Bench:
    """A journal with its loop. `again()` is a restart: it is closed, and opened again on the kept data."""

    def __init__(self, make: Callable[[], Journal]) -> None:
        self._make = make
        self.loop = Loop()
        self.journal = make()
        self.loaded = self.loop.open(self.journal)

    def write(self, *entries: Entry) -> None:
        for one in entries:
            self.journal.append(one)
        self.loop.until_durable(self.journal)

    def again(self, after_commit: Callable[[Sequence[Transitioned]], None] | None = None) -> Loaded:
        assert self.journal.shut(30)
        self.journal = self._make()
        self.loop = Loop()
        return self.loop.open(self.journal, after_commit)


POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


def maker(kind: str, request: pytest.FixtureRequest) -> Callable[[], Journal]:
    if kind == "memory":
        kept = MemoryJournal()
        return lambda: kept
    if kind == "postgres":
        address = request.getfixturevalue("emptied")
        return lambda: PostgresJournal(address, node="n")
    path = request.getfixturevalue("tmp_path") / "state.db"
    return lambda: SqliteJournal(path)


@pytest.fixture(params=["memory", "sqlite", POSTGRES])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(maker(request.param, request))
    yield bench
    bench.journal.shut(30)


def numbered(loaded: Loaded, last_key: int, last_seq: int) -> Loaded:
    """Return `loaded` with these last numbers. It must continue from there, or from an epoch above them."""
    if loaded.last_key >= EPOCH:
        assert loaded.last_key == loaded.last_seq
        assert loaded.last_key % EPOCH == 0
        return msgspec.structs.replace(loaded, last_key=last_key, last_seq=last_seq)
    return loaded


def test_a_new_journal_holds_nothing(bench: Bench) -> None:
    assert numbered(bench.loaded, 0, 0) == Loaded()
    assert (bench.journal.tail, bench.journal.durable, bench.journal.backlog) == (0, 0, 0)
    assert bench.journal.health.ok
    assert bench.journal.lend() is None


def test_append_numbers_entries_and_tells_from_flush_only(bench: Bench) -> None:
    assert bench.journal.append(entry(job(1), seq=1)) == 1
    assert bench.journal.append(entry(job(1), seq=2)) == 2
    assert bench.loop.told == 0
    bench.loop.until_durable(bench.journal)
    assert bench.journal.durable == bench.journal.tail == 2
    assert bench.journal.backlog == 0
    told = bench.loop.told
    assert told >= 1
    bench.journal.flush()
    bench.loop.until_durable(bench.journal)
    assert bench.loop.told == told


def test_the_living_come_back_and_the_ended_do_not(bench: Bench) -> None:
    ws = workstream(2, 1, 2)
    ended = workstream(11, 10, 1, state="completed", finished_at=9.0)
    tasks = [task(3, ws, state="completed", finished_at=8.0, raw_result=raw([1])), task(4, ws, state="running")]
    claim = attempt(5, tasks[1])
    idle, gone = worker(6, run=2), worker(7, run=1, state="shutdown", finished_at=2.0)
    of_node = "" if bench.journal.cluster is None else f"@{bench.journal.cluster.name}"  # whose breaker it is
    breaker = BreakerRecord(key=8, id=f"cc{of_node}", name="cc", state="open", created_at=1.0, cooldown=0.1)
    hook = OutboxRow(key=9, owner="ws-11", event="on_completed", body=raw({"run": "a:b"}), context=raw({}))
    bench.write(
        entry(job(1, stream=2), ws, *tasks, seq=1, specs=[(2, b'{"name":"release"}')]),
        entry(claim, attempt(50, tasks[0], ended_at=2.0, end="succeeded"), idle, gone, breaker, hook),
        entry(job(10, state="completed", finished_at=9.0), ended, task(12, ended), specs=[(11, b"{}")]),
    )
    loaded = numbered(bench.again(), 50, 4)
    assert loaded == Loaded(
        jobs=[job(1, stream=2)], workstreams=[ws], specs={2: b'{"name":"release"}'}, tasks=tasks, workers=[idle],
        breakers=[breaker], attempts=[claim], outbox=[hook], last_key=50, last_seq=4,
        incarnations={"loop": 2},
    )  # fmt: skip


def test_only_the_living_run_of_a_living_job_is_loaded(bench: Bench) -> None:
    first = workstream(2, 1, 1, state="failed", finished_at=5.0)
    second = workstream(4, 1, 1, run=2)
    bench.write(entry(job(1), first, task(3, first), second, task(5, second), seq=1))
    loaded = bench.again()
    assert (loaded.workstreams, loaded.tasks) == ([second], [task(5, second)])
    assert bench.journal.reader.workstreams("job-1") == [first, second]


def test_the_highest_key_outlives_its_outbox_row(bench: Bench) -> None:
    hook = OutboxRow(key=77, owner="ws-2", event="on_failed", body=raw({}), context=raw({}))
    bench.write(entry(job(1), hook), entry(outbox_done=[77]))
    loaded = numbered(bench.again(), 77, 0)
    assert (loaded.outbox, loaded.last_key) == ([], 77)


def test_an_outbox_row_done_in_a_later_batch_is_gone(bench: Bench) -> None:
    hook = OutboxRow(key=7, owner="ws-2", event="on_failed", body=raw({}), context=raw({}))
    bench.write(entry(job(1), hook))
    bench.write(entry(outbox_done=[7]))
    assert bench.again().outbox == []


def test_a_worker_that_ends_is_living_no_longer(bench: Bench) -> None:
    bench.write(entry(worker(6, run=2)))
    bench.write(entry(worker(6, run=2, state="shutdown", finished_at=2.0)))
    loaded = bench.again()
    assert (loaded.workers, loaded.incarnations, loaded.paused) == ([], {"loop": 2}, {})


def test_an_operators_pause_outlives_the_incarnation_and_no_older_one_counts(bench: Bench) -> None:
    bench.write(entry(worker(5, run=1, state="shutdown", finished_at=1.0, paused=True, pause_reason="before")))
    bench.write(entry(worker(6, run=2, state="shutdown", finished_at=2.0, paused=True, pause_reason="maintenance")))
    assert bench.again().paused == {"loop": "maintenance"}
    bench.write(entry(worker(7, run=3)))
    assert bench.again().paused == {}


def test_an_outbox_row_written_and_done_in_one_batch_is_gone(bench: Bench) -> None:
    hook = OutboxRow(key=7, owner="ws-2", event="on_failed", body=raw({}), context=raw({}))
    bench.write(entry(hook), entry(outbox_done=[7]), entry(hook, outbox_done=[]), entry(outbox_done=[7]))
    assert bench.again().outbox == []


def test_every_field_comes_back_exactly(bench: Bench) -> None:
    ws = workstream(2, 1, 1, deadline_at=0.1 + 0.2, error='a "quoted"\n\\ line, é, 漢, \U0001f600, \x00')
    whole = task(
        3, ws, raw_result=raw({"a": [None, 1.5, "é"], "b": 2**63 - 1}), raw_details=raw(None),
        produced=Produced(exit_code=-9), trouble=Trouble(error="", count=2**62),
        process=Process(1, 2**63 - 1), allowed=Allowed(max_losses=0),
        due_at=5e-324, queued_at=1.7976931348623157e308, unmet=2**62, optional=True, circuit_state="open",
    )  # fmt: skip
    tries = attempt(4, whole, process_started=2**63 - 1, error="", ended_at=1e-9, end="lost", duration_ms=0)
    row = moved(
        2**53 + 1, whole, reason="because 'x'", metadata={"n": 1, "f": 0.1, "l": [None, True], "t": "漢\x00"},
        workstream_id=ws.id, run=3, attempt=2, worker_id="loop-1", from_state="running",
    )  # fmt: skip
    bench.write(Entry([moved(1, whole), row], [job(1, fingerprint="f"), ws, whole, tries]))
    loaded = numbered(bench.again(), 4, 2**53 + 1)
    assert (loaded.workstreams, loaded.tasks, loaded.last_seq) == ([ws], [whole], 2**53 + 1)
    assert bench.journal.reader.attempts(whole.id) == [tries]
    assert list(bench.journal.reader.transitions(after=1)) == [row]


def test_the_steps_of_a_flow_come_in_the_order_of_their_first_ends_without_dropped_ones(bench: Bench) -> None:
    ws = workstream(2, 1, 2)
    one, other = task(3, ws), task(4, ws)
    waits = step(12, one, "wait", ended_at=None, due_at=9.0)
    failed = step(
        11, one, number=2, function="app:ask", attempt=3, round=1, tries=2, worker_id="loop-1", error="no",
        category="transient", error_type="app.Refused", raw_arguments=raw(["no", 7]), traceback="Traceback:\n  ...",
    )  # fmt: skip
    bench.write(entry(job(1), ws, one, other, failed), entry(waits, step(10, one), step(20, other)))
    assert bench.journal.reader.steps(3) == [step(10, one), failed, waits]
    again = step(11, one, number=2, tries=3, raw_result=raw("yes"))
    bench.write(entry(waits, step(30, one)), entry(again, msgspec.structs.replace(waits, ended_at=9.0)))
    bench.write(entry(step(10, one, dropped=True), step(21, other, task=3, task_id=one.id)))
    for _ in range(2):
        reader = bench.journal.reader
        assert reader.steps(3) == [again, msgspec.structs.replace(waits, ended_at=9.0), step(30, one)]
        assert reader.steps(4) == [step(20, other), step(21, other, task=3, task_id=one.id)]
        assert reader.steps(5) == []
        assert reader.flows() == [3, 4]
        pages = [reader.page_of_steps(3, 2, at, newest_first=False) for at in (None, 11, 12, 30)]
        assert [[one.key for one in page] for page in pages] == [[11, 12], [12, 30], [30], []]
        pages = [reader.page_of_steps(3, 2, at, newest_first=True) for at in (None, 12, 11)]
        assert [[one.key for one in page] for page in pages] == [[30, 12], [11], []]
        loaded = numbered(bench.again(), 30, 0)
        assert loaded.last_key == 30  # no key of a step is given again


def test_messages_come_in_the_order_of_their_keys_and_unread_ones_of_living_jobs_are_loaded(bench: Bench) -> None:
    ws = workstream(2, 1, 1)
    sent, ended = message(11, raw_value=raw({"x": ["\n", None]})), message(20, job=6, job_id="job-6")
    other = message(12, task="t", name='"job":9,', by="ana")
    bench.write(
        entry(job(1), ws, task(3, ws), other, seq=1),
        entry(sent),
        entry(job(6, state="failed", finished_at=3.0), ended, seq=4),
    )
    received = msgspec.structs.replace(sent, received_at=9.0, received_by="ws-2/t3", step=30)
    for _ in range(2):
        reader = bench.journal.reader
        assert reader.messages("job-1") == reader.messages("job-1", unread=True) == [sent, other]
        assert (reader.messages("job-6"), reader.messages("nobody")) == ([ended], [])
        pages = [reader.messages("job-1", unread=True, beyond=at, limit=1) for at in (0, 11, 12)]
        assert pages == [[sent], [other], []]
        assert bench.again().messages == [sent, other]
    bench.write(entry(received))
    for _ in range(2):
        assert bench.journal.reader.messages("job-1") == [received, other]
        assert bench.journal.reader.messages("job-1", unread=True) == [other]
        loaded = numbered(bench.again(), 20, 0)
        assert (loaded.messages, loaded.last_key) == ([other], 20)


def test_the_publications_of_a_flow_are_its_steps_of_that_name_oldest_first(bench: Bench) -> None:
    ws = workstream(2, 1, 2)
    one, other = task(3, ws), task(4, ws)
    late, early = step(12, one, f"{PUBLISH}b"), step(11, one, f"{PUBLISH}a")
    gone, elsewhere = step(13, one, f"{PUBLISH}a", number=2, dropped=True), step(20, other, f"{PUBLISH}a")
    bench.write(entry(job(1), ws, one, other, step(10, one, "task.published"), late), entry(early, gone, elsewhere))
    for _ in range(2):
        assert bench.journal.reader.publications(3) == [early, late]
        assert bench.journal.reader.publications(4) == [elsewhere]
        assert bench.journal.reader.publications(5) == []
        bench.again()


def test_the_steps_and_attempts_of_a_round_that_has_ended_leave_with_the_commit(bench: Bench) -> None:
    ws = workstream(2, 1, 2)
    one, other = task(3, ws), task(4, ws)
    bench.write(
        entry(job(1), ws, one, other, step(10, one), step(11, other), attempt(5, one), attempt(6, other), seq=1)
    )
    bench.write(entry(step(12, one)))
    bench.write(  # in one batch: the rest of the first round, the second round, and the third
        entry(step(13, one)),
        entry(one, attempt(15, one), rounds=[EndedRound(one.key, one.key, 14)]),
        entry(step(16, one)),
        entry(one, attempt(18, one), rounds=[EndedRound(one.key, one.key, 17)]),
        entry(step(19, one)),
    )
    for _ in range(2):
        reader = bench.journal.reader
        assert reader.steps(one.key) == [step(19, one)]
        assert reader.steps(other.key) == [step(11, other)]
        assert reader.attempts(one.id) == [attempt(18, one)]
        assert reader.attempts(other.id) == [attempt(6, other)]
        bench.again()
    bench.write(entry(one, rounds=[EndedRound(0, one.key, 20)]))  # its attempts stay
    assert bench.journal.reader.steps(one.key) == []
    assert bench.journal.reader.attempts(one.id) == [attempt(18, one)]


def test_no_text_of_a_step_stops_the_journal_or_moves_the_step_to_another_flow(bench: Bench) -> None:
    one = task(3, workstream(2, 1, 1), id='ws-2/"flow":9,"key":9')
    odd = step(
        10, one, '\0"flow":8,', error="\ud800!\0", error_type="\udfff", traceback="\udcff\n",
        raw_result=msgspec.Raw(b'{"flow":\n7}'), raw_arguments=raw("\0\n"),
    )  # fmt: skip
    bench.write(entry(step(9, one), odd, step(2**52, one)), entry(step(11, one)))
    assert bench.journal.health.ok
    for _ in range(2):
        first, kept, *more = bench.journal.reader.steps(3)
        assert [first, *more] == [step(9, one), step(11, one), step(2**52, one)]
        assert (kept.name, kept.result, kept.task_id) == (odd.name, {"flow": 7}, one.id)
        assert kept.error in {odd.error, "?!\0"}  # in memory it is as it was
        assert bench.journal.reader.page_of_steps(3, 9, None, newest_first=False) == [first, kept, *more]
        assert [bench.journal.reader.steps(flow) for flow in (7, 8, 9)] == [[], [], []]
        bench.again()


def test_readers_answer_from_what_is_durable(bench: Bench) -> None:
    ws = workstream(2, 1, 1)
    bench.write(
        entry(job(1), ws, task(3, ws), specs=[(2, b"{}")], seq=1),
        entry(task(3, ws, state="running"), attempt(4, task(3, ws))),
        entry(attempt(4, task(3, ws), ended_at=9.0, end="failed"), attempt(5, task(3, ws), attempt=2)),
        entry(job(6, state="failed", finished_at=3.0), worker(7), worker(8, run=2), seq=4),
    )
    journal = bench.journal
    assert journal.reader.job("job-1") == job(1)
    assert journal.reader.job("nobody") is None
    assert [one.key for one in journal.reader.jobs()] == [6, 1]
    assert [one.key for one in journal.reader.jobs(states=["running", "pending"])] == [1]
    assert [one.key for one in journal.reader.jobs(limit=1)] == [6]
    assert journal.reader.workstreams("job-1") == [ws]
    assert journal.reader.workstreams("nobody") == []
    assert journal.reader.tasks(2) == [task(3, ws, state="running")]
    assert journal.reader.tasks(99) == []
    assert journal.reader.spec(2) == b"{}"
    assert journal.reader.spec(99) is None
    assert [(one.key, one.end) for one in journal.reader.attempts("ws-2/t3")] == [(4, "failed"), (5, None)]
    assert journal.reader.attempts("nobody") == []
    assert [one.key for one in journal.reader.workers()] == [7, 8]
    assert journal.reader.breakers() == []


def test_transitions_in_order_of_one_entity_or_of_a_whole_job(bench: Bench) -> None:
    one, two = workstream(2, 1, 1), workstream(12, 11, 1)
    mine, other = task(3, one), task(13, two)
    bench.write(
        Entry([moved(1, job(1)), moved(2, one), moved(3, mine)], [job(1), one, mine]),
        Entry([moved(4, job(11)), moved(5, two), moved(6, other)], [job(11), two, other]),
        Entry([moved(7, worker(20), job_id="job-1"), moved(8, mine)], [worker(20)]),
        Entry([moved(9, worker(20), job_id="job-11"), moved(10, mine)], [worker(20)]),
    )

    def seqs(found: Iterator[Transitioned]) -> list[int]:
        return [row.seq for row in found]

    transitions = bench.journal.reader.transitions
    assert seqs(transitions()) == list(range(1, 11))
    assert seqs(transitions(after=6)) == [7, 8, 9, 10]
    assert seqs(transitions(after=6, limit=2)) == [7, 8]
    assert seqs(transitions(limit=0)) == []
    assert seqs(transitions(entity_id=mine.id)) == [3, 8, 10]
    assert seqs(transitions(entity_id=mine.id, after=3, limit=1)) == [8]
    assert seqs(transitions(job_id="job-1")) == [1, 2, 3, 8, 10]
    assert seqs(transitions(job_id="job-11")) == [4, 5, 6]
    assert seqs(transitions(entity_id="loop-20")) == [7, 9]
    assert seqs(transitions(entity_id="job-11")) == [4]
    assert seqs(transitions(entity_id="nobody")) == []


def test_after_commit_sees_each_transition_once_in_order(bench: Bench) -> None:
    seen: list[int] = []
    bench.again(after_commit=lambda rows: seen.extend(row.seq for row in rows))
    for seq in range(1, 201):
        bench.journal.append(Entry([moved(seq, job(1))], [job(1, seq=seq)]))
        if seq % 7 == 0:
            bench.loop.until_durable(bench.journal)
    assert bench.journal.shut(30)
    assert seen == list(range(1, 201))


def test_the_last_record_of_an_entity_wins_within_and_across_batches(bench: Bench) -> None:
    ws = workstream(2, 1, 1)
    bench.write(entry(job(1), ws, task(3, ws)), entry(task(3, ws, seq=2)), entry(task(3, ws, seq=3, name="é")))
    bench.write(entry(task(3, ws, seq=4)))
    assert bench.again().tasks == [task(3, ws, seq=4)]


def test_a_thousand_tasks_in_one_turn(bench: Bench) -> None:
    ws = workstream(2, 1, 1_000)
    tasks: list[TaskRecord] = [task(key, ws) for key in range(3, 1_003)]
    bench.write(entry(job(1), ws, *tasks, seq=1))
    loaded = numbered(bench.again(), 1_002, 1_002)
    assert loaded.tasks == tasks
    assert (loaded.last_seq, loaded.last_key) == (1_002, 1_002)
    assert math.isfinite(loaded.tasks[0].created_at)


class Story:
    """Turns of jobs that begin, go on and end at random."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.seq = self.key = 0
        self.jobs: list[JobRecord] = []
        self.runs: list[WorkstreamRecord] = []
        self.steps: list[StepRecord] = []

    def turn(self) -> Entry:
        records = [record for _ in range(self.random.randrange(1, 6)) for record in self.step()]
        rows: list[Transitioned] = []
        for record in records:
            if isinstance(record, Record):
                self.seq += 1
                rows.append(moved(self.seq, record))
        return Entry(rows, records)

    def step(self) -> list[AnyRecord]:
        random, chance = self.random, self.random.random()
        self.key += 1
        if chance < 0.1 or not self.jobs:
            self.jobs.append(job(self.key))
            return [self.jobs[-1]]
        if chance < 0.25 or not self.runs:
            self.runs.append(workstream(self.key, random.choice(self.jobs).key, 4))
            self.key += 4
            return [self.runs[-1]]
        if chance < 0.35:
            ended = random.choice([*self.jobs, *self.runs])
            return [msgspec.structs.replace(ended, state="completed", finished_at=self.seq / 3)]
        if chance < 0.45:
            return [worker(self.key, name=random.choice("ab"), run=self.key, finished_at=random.choice([None, 1.5]))]
        run = random.choice(self.runs)
        one = task(run.first_task + random.randrange(4), run, updated_at=self.seq / 7)
        self.key += 1
        self.steps.append(step(self.key, one))
        again = msgspec.structs.replace(random.choice(self.steps), tries=self.seq, dropped=random.random() < 0.3)
        return [one, attempt(self.key - 1, one, ended_at=random.choice([None, 0.5])), self.steps[-1], again]


def everything(journal: Journal, story: Story) -> list[object]:
    """Return a journal's answers to every question about a story."""
    reader = journal.reader
    found: list[object] = [list(reader.transitions())]
    for one in story.jobs:
        found += [reader.job(one.id), reader.workstreams(one.id), list(reader.transitions(job_id=one.id))]
        found.append(list(reader.transitions(entity_id=one.id)))
    for run in story.runs:
        found.append(reader.tasks(run.key))
        for each in reader.tasks(run.key):
            found.append(reader.attempts(each.id))
            found.append(reader.steps(each.key))
            found.append(list(reader.transitions(entity_id=each.id, after=story.seq // 2)))
    return found


@pytest.mark.parametrize("other", ["sqlite", POSTGRES])
@pytest.mark.parametrize("seed", range(5))
def test_all_journals_hold_the_same(seed: int, other: str, request: pytest.FixtureRequest) -> None:
    """Whatever is written, in whatever batches, and however often they are opened again."""
    random = Random(seed)
    story = Story(random)
    benches = [Bench(maker(kind, request)) for kind in ("memory", other)]
    for _ in range(120):
        turn = story.turn()
        flushed, restarted = random.random() < 0.2, random.random() < 0.05
        for bench in benches:
            bench.journal.append(turn)
            if flushed:
                bench.loop.until_durable(bench.journal)
        if restarted:
            restart(benches)
    restart(benches)
    mine, theirs = (everything(bench.journal, story) for bench in benches)
    assert mine == theirs
    for bench in benches:
        bench.journal.shut(30)


def restart(benches: list[Bench]) -> None:
    first, second = (sorted_by_key(bench.again()) for bench in benches)
    assert first == numbered(second, first.last_key, first.last_seq)


def sorted_by_key(loaded: Loaded) -> Loaded:
    """No journal promises an order of the living."""
    for found in (loaded.jobs, loaded.workstreams, loaded.tasks, loaded.workers, loaded.attempts):
        found.sort(key=lambda record: record.key)
    return loaded


def test_shut_writes_what_was_never_flushed(bench: Bench) -> None:
    bench.journal.append(entry(job(1), seq=1))
    assert bench.again().jobs == [job(1)]


def test_a_job_that_is_run_again_lives_again_with_its_last_run(bench: Bench) -> None:
    first = workstream(2, 1, 1, state="failed", finished_at=2.0)
    second = workstream(4, 1, 1, run=2)
    failed = task(3, first, state="failed", finished_at=2.0)
    bench.write(
        entry(job(1, stream=2, state="failed", finished_at=2.0), first, failed, seq=1, specs=[(2, b"{}")]),
        entry(job(1, stream=4, run=2, runs=2), second, task(5, second), specs=[(4, b"{}")]),
    )
    loaded = bench.again()
    assert [(record.key, record.run) for record in loaded.jobs] == [(1, 2)]
    assert (loaded.workstreams, loaded.specs) == ([second], {4: b"{}"})
    assert [record.key for record in loaded.tasks] == [5]
    assert [run.key for run in bench.journal.reader.workstreams("job-1")] == [2, 4]
    assert [record.key for record in bench.journal.reader.tasks(2)] == [3]


def test_a_job_that_has_not_begun_lives_and_has_its_specification(bench: Bench) -> None:
    bench.write(entry(job(1, stream=2, state="pending"), seq=1, specs=[(2, b"{}")]))
    loaded = bench.again()
    assert (len(loaded.jobs), loaded.workstreams, loaded.specs) == (1, [], {2: b"{}"})


def test_the_children_of_a_job(bench: Bench) -> None:
    child = job(2, parent_id="job-1", parent=1)
    bench.write(
        entry(
            job(1), msgspec.structs.replace(child, id="job-1/t/x"), job(3),
            msgspec.structs.replace(child, key=4, id="job-1/t/x/t/y", parent_id="job-1/t/x"), seq=1,
        )
    )  # fmt: skip
    assert [record.id for record in bench.journal.reader.children("job-1")] == ["job-1/t/x"]
    assert [record.id for record in bench.journal.reader.children("job-1/t/x")] == ["job-1/t/x/t/y"]


def machine(key: int, name: str, *, ended: bool = False, **more: Any) -> MachineRecord:
    return MachineRecord(
        key=key, id=name, name=name, state="done" if ended else "new", created_at=1.0, machine="m", definitions=(3,),
        finished_at=2.0 if ended else None, facts=msgspec.Raw(b'{"n":1}'), **more,
    )  # fmt: skip


def told(seq: int, name: str, kind: str = "machine", job_id: str | None = None) -> Transitioned:
    return Transitioned(seq, kind, name, 1, None, "new", "create", "info", 1.0, job_id=job_id)


def test_machines_that_have_not_ended_come_back_with_what_they_run_by(bench: Bench) -> None:
    bench.write(
        Entry([told(1, "a")], [machine(4, "a", due={"go": 9.0}, due_at=9.0)], specs=[(3, b'{"machine":"m"}')]),
        Entry([told(2, "b")], [machine(5, "b", ended=True)]),
        Entry([], [], specs=[(6, b'{"machine":"n"}')]),
    )
    loaded = numbered(bench.again(), 6, 2)
    (record,) = loaded.machines
    assert (record.name, record.due, bytes(record.facts or b"")) == ("a", {"go": 9.0}, b'{"n":1}')
    assert loaded.specs == {3: b'{"machine":"m"}'}
    assert loaded.last_key == 6  # each row beside the specifications has a key of its own
    assert [one.name for one in bench.journal.reader.machines()] == ["b", "a"]
    assert [one.name for one in bench.journal.reader.machines(living=True)] == ["a"]
    assert [one.name for one in bench.journal.reader.machines(limit=1)] == ["b"]
    ended = bench.journal.reader.machine("b")
    assert ended is not None
    assert ended.state == "done"
    assert bench.journal.reader.machine("c") is None


def test_a_machine_and_a_job_of_one_name_have_a_history_each(bench: Bench) -> None:
    bench.write(
        Entry([told(1, "x", "job", "x")], [job(4, id="x")]),
        Entry([told(2, "x")], [machine(5, "x")]),
    )
    assert [row.kind for row in bench.journal.reader.transitions(job_id="x")] == ["job"]
    assert {row.kind for row in bench.journal.reader.transitions(entity_id="x")} == {"job", "machine"}


def notice(key: int, at: float, **more: Any) -> NoticeRecord:
    return NoticeRecord(**{
        "key": key, "event": "actor_failed", "severity": "error", "kind": "actor", "text": f"no. {key}",
        "first_at": at, "at": at, **more,
    })  # fmt: skip


def test_notices_come_back_exactly_those_told_of_last_first(bench: Bench) -> None:
    first = notice(
        1, 5.5, entity_id="echo", text="a \ud800 \x00 \n text", error="ValueError", message="str", others=True,
        traceback='Traceback:\n  "x"', node="n", severity="critical",
    )  # fmt: skip
    second, third = notice(2, 7.0, entity_id="j@1/a", job_id="j"), notice(3, 6.0, entity_id="echo")
    bench.write(entry(notices=[first]), entry(job(9), notices=[second]), entry(notices=[third]))
    again = msgspec.structs.replace(first, count=12, at=8.0)
    bench.write(entry(notices=[msgspec.structs.replace(first, count=7, at=7.5)]), entry(notices=[again]))
    loaded = numbered(bench.again(), 9, 0)
    assert loaded.last_key == 9
    found = bench.journal.reader.notices()
    assert [one.key for one in found] == [1, 2, 3]
    assert msgspec.structs.replace(found[0], text="") == msgspec.structs.replace(again, text="")
    assert found[1:] == [second, third]
    assert [one.key for one in bench.journal.reader.notices(since=7.0)] == [1, 2]
    assert [one.key for one in bench.journal.reader.notices(about="echo")] == [1, 3]
    assert [one.key for one in bench.journal.reader.notices(about="j")] == [2]
    assert [one.key for one in bench.journal.reader.notices(first=1, limit=1)] == [2]


def test_a_notice_s_key_is_given_to_nothing_else(bench: Bench) -> None:
    bench.write(entry(notices=[notice(77, 1.0)]))
    assert numbered(bench.again(), 77, 0).last_key == 77


def test_only_so_many_notices_are_kept(bench: Bench) -> None:
    bench.write(entry(notices=[notice(key, float(key)) for key in range(1, NOTICES_KEPT + 1)]))
    bench.write(entry(notices=[notice(NOTICES_KEPT + key, float(NOTICES_KEPT + key)) for key in range(1, 4)]))
    left = [one.key for one in bench.journal.reader.notices(limit=2 * NOTICES_KEPT)]
    assert (len(left), left[0], left[-1]) == (NOTICES_KEPT, NOTICES_KEPT + 3, 4)


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
def test_a_reader_that_is_left_over_when_its_journal_is_shut_says_so(kind: str, request: pytest.FixtureRequest) -> None:
    bench = Bench(maker(kind, request))
    bench.write(entry(job(1), seq=1))
    reader = bench.journal.reader
    ask = reader.job
    assert bench.journal.shut(30)
    for late in (ask, bench.journal.reader.job, reader.workstreams):
        with pytest.raises(JournalError, match="is not open any more"):
            late("job-1")


@pytest.mark.parametrize("kind", ["sqlite", POSTGRES])
def test_what_older_programs_ask_the_journal_itself_its_reader_answers(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bench = Bench(maker(kind, request))
    bench.write(entry(job(1), seq=1))
    with pytest.warns(DeprecationWarning, match=r"journal\.reader\.job"):
        assert bench.journal.job("job-1") == job(1)  # type: ignore[attr-defined]
    for unknown in ("jbo", "_rows", "load"):
        with pytest.raises(AttributeError, match=unknown):
            getattr(bench.journal, unknown)
    assert bench.journal.shut(30)
