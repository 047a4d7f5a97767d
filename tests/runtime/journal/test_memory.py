"""The promises of the memory journal alone: entries are durable at once, and history is bounded."""

from __future__ import annotations

from callboard.runtime.journal.contract import Entry
from callboard.runtime.journal.memory import ENDED_WORKERS, MemoryJournal

from .samples import Loop, attempt, entry, job, moved, step, task, worker, workstream


def opened(**bounds: int) -> tuple[MemoryJournal, Loop]:
    journal, loop = MemoryJournal(**bounds), Loop()
    loop.open(journal)
    return journal, loop


def run_job(journal: MemoryJournal, key: int, tasks: int = 1) -> None:
    ws = workstream(key + 1, key, tasks)
    made = [task(key + 2 + n, ws) for n in range(tasks)]
    journal.append(entry(job(key), ws, *made, specs=[(ws.key, b"{}")]))
    journal.append(entry(*(attempt(key + 500 + one.key, one, ended_at=1.0) for one in made)))
    journal.append(entry(*(step(key + 700 + one.key, one) for one in made)))
    journal.append(entry(job(key, state="completed", finished_at=1.0)))


def test_an_entry_is_durable_at_once() -> None:
    journal, loop = opened()
    journal.append(entry(job(1)))
    assert (journal.durable, loop.told) == (1, 0)
    journal.flush()
    journal.flush()
    assert loop.told == 1


def test_on_durable_may_append_and_flush() -> None:
    journal = MemoryJournal()
    told: list[int] = []

    def on_durable() -> None:
        told.append(journal.durable)
        if journal.tail < 3:
            journal.append(entry(job(1)))
            journal.flush()

    journal.open(on_durable=on_durable, call_threadsafe=lambda call: None)
    journal.append(entry(job(1)))
    journal.flush()
    assert told == [1, 2, 3]


def test_history_is_bounded() -> None:
    journal, _ = opened(history=10)
    for seq in range(1, 101):
        journal.append(Entry([moved(seq, job(1))], []))
    assert [row.seq for row in journal.transitions()] == list(range(91, 101))


def test_what_ended_jobs_left_is_dropped_oldest_first() -> None:
    journal, _ = opened(ended_jobs=2)
    journal.append(entry(job(1)))
    for key in (1_000, 2_000, 3_000):
        run_job(journal, key)
    assert [one.key for one in journal.jobs()] == [3_000, 2_000, 1]
    assert journal.job("job-1000") is None
    assert (journal.workstreams("job-1000"), journal.tasks(1_001), journal.spec(1_001)) == ([], [], None)
    assert journal.attempts("ws-1001/t1002") == []
    assert len(journal.attempts("ws-2001/t2002")) == 1
    assert (journal.steps(1_002), len(journal.steps(2_002))) == ([], 1)
    assert Loop().open(journal).last_key == 3_000 + 700 + 3_002


def test_large_ended_jobs_are_dropped_sooner_but_never_the_last_one() -> None:
    journal, _ = opened(ended_tasks=10)
    run_job(journal, 1_000, tasks=6)
    run_job(journal, 2_000, tasks=6)
    assert [one.key for one in journal.jobs()] == [2_000]
    run_job(journal, 3_000, tasks=60)
    assert [one.key for one in journal.jobs()] == [3_000]


def test_ended_incarnations_are_dropped_but_their_numbers_kept() -> None:
    journal, _ = opened()
    for run in range(1, ENDED_WORKERS + 11):
        journal.append(entry(worker(run, run=run, state="shutdown", finished_at=1.0)))
    assert len(journal.workers()) == ENDED_WORKERS
    assert Loop().open(journal).incarnations == {"loop": ENDED_WORKERS + 10}
