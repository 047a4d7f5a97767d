"""The cost of the journal: no-op tasks through the SQLite writer, compared with direct writes to the same disk.

    python benchmarks/journal.py            # all figures
    python benchmarks/journal.py --tasks 2000

The load is the runtime's: for each task 7 transitions, 3 records of the task and 2 of its attempt, in 3 entries, each
of which waits until the entry before is durable. The loop is a queue in this process, so that only the journal is
measured. Lower bound: two rows for each task, written directly, with one commit for all tasks in flight.
"""

from __future__ import annotations

import argparse
import queue
import sqlite3
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from callboard.actors.records.entities import JobRecord, WorkerRecord, WorkstreamRecord
from callboard.actors.records.task import AttemptRecord, TaskRecord
from callboard.actors.records.transition import Transitioned
from callboard.runtime.journal.contract import Entry
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.sqlite.journal import SqliteJournal

AT = 1_700_000_000.25
JOB, RUN = "job-01J8ZQ4TWXYZ", "release-01J8ZQ4TWXYZ"


def load(tasks: int) -> tuple[Entry, list[list[Entry]]]:
    """The entry of a new job, and the three entries of each of its tasks."""
    first = 10
    job = JobRecord(key=1, id=JOB, name="release", state="running", created_at=AT)
    run = WorkstreamRecord(
        key=2, id=RUN, name="release", state="executing", job=1, job_id=JOB, first_task=first, task_count=tasks,
        created_at=AT,
    )  # fmt: skip
    worker = WorkerRecord(key=3, id="loop-1", name="loop", state="idle", engine="loop", capacity=100, created_at=AT)
    seq = 0

    def row(  # noqa: PLR0917 - a row of a table
        kind: str, entity: str, number: int, source: str | None, target: str, event: str
    ) -> Transitioned:
        nonlocal seq
        seq += 1
        return Transitioned(
            seq, kind, entity, number, source, target, event, "info", AT + seq * 0.001, None,
            JOB, None if kind == "worker" else RUN, 1, 1, "loop-1",
        )  # fmt: skip

    births = [row("job", JOB, 1, None, "running", "create"), row("worker", "loop-1", 1, None, "idle", "create")]
    made = Entry(births, [job, run, worker], [(2, b"{}")])
    entries: list[list[Entry]] = []
    for index in range(tasks):
        name = f"t{index:06d}"
        entity = f"{RUN}/{name}"
        task = TaskRecord(
            key=first + index, id=entity, name=name, state="queued", previous_state="pending", seq=2, epoch=2,
            workstream=2, workstream_id=RUN, job_id=JOB, index=index, ready=True, place=index,
            created_at=AT, updated_at=AT, queued_at=AT, first_queued_at=AT,
        )  # fmt: skip
        running = msgspec.structs.replace(
            task, state="running", seq=3, attempt=1, token=first + tasks + index, worker=3, worker_id="loop-1",
            started_at=AT, due_at=AT + 300,
        )  # fmt: skip
        ended = msgspec.structs.replace(
            running, state="completed", seq=5, finished_at=AT, ended_at=AT, standing="good", execution_ms=0,
            result=msgspec.Raw(b"null"), due_at=None,
        )  # fmt: skip
        claim = AttemptRecord(
            key=running.token, task=task.key, task_id=entity, attempt=1, worker_id="loop-1", claimed_at=AT
        )
        result = msgspec.structs.replace(claim, ended_at=AT, end="succeeded", duration_ms=0)
        entries.append([
            Entry([row("task", entity, 1, None, "pending", "create"),
                   row("task", entity, 2, "pending", "queued", "enqueue")], [task]),
            Entry([row("worker", "loop-1", 2, "busy", "busy", "assign"),
                   row("task", entity, 3, "queued", "running", "start")], [running, claim, worker]),
            Entry([row("task", entity, 4, "running", "validating", "succeed"),
                   row("task", entity, 5, "validating", "completed", "validation_passed"),
                   row("worker", "loop-1", 3, "busy", "idle", "release")], [ended, result, worker]),
        ])  # fmt: skip
    return made, entries


def drive(
    journal: SqliteJournal | MemoryJournal,
    made: Entry,
    tasks: list[list[Entry]],
    *,
    window: int = 1_000,
    busy: float = 0.0,
    lend: bool = True,
) -> None:
    """Run the tasks, `window` at a time, each entry after the one before. `busy`: seconds of one slice of computing."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    journal.open(on_durable=lambda: None, call_threadsafe=calls.put)
    journal.append(made)
    waiting: deque[tuple[int, list[Entry], int]] = deque()
    fresh = iter(tasks)
    free = window
    left = len(tasks)
    while left:
        while waiting and waiting[0][0] <= journal.durable:
            _, entries, step = waiting.popleft()
            if step == len(entries):
                left -= 1
                free += 1
            else:
                waiting.append((journal.append(entries[step]), entries, step + 1))
        while free and (first := next(fresh, None)) is not None:
            free -= 1
            waiting.append((journal.append(first[0]), first, 1))
        journal.flush()
        if busy:
            until = time.perf_counter() + busy
            while time.perf_counter() < until:
                pass
            if lend:
                journal.lend()
        elif left and waiting and waiting[0][0] > journal.durable:
            calls.get()()
        while not calls.empty():
            calls.get()()
    journal.shut(30)


def floor(path: Path, tasks: int, window: int) -> float:
    """Tasks a second, with two rows each and `window` tasks in a commit, in this thread."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE tasks (key INTEGER PRIMARY KEY, state TEXT, record TEXT)")
    connection.execute("CREATE TABLE transitions (seq INTEGER PRIMARY KEY, entity TEXT, state TEXT)")
    start = time.perf_counter()
    for first in range(0, tasks, window):
        keys = range(first, min(first + window, tasks))
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO tasks VALUES (?, 'completed', '{}')", [(key,) for key in keys])
        connection.executemany(
            "INSERT INTO transitions VALUES (?, ?, 'completed')", [(key, f"t{key:06d}") for key in keys]
        )
        connection.execute("COMMIT")
    took = time.perf_counter() - start
    connection.close()
    return tasks / took


class Spinner:
    """A thread that only computes."""

    def __enter__(self) -> None:
        self.on = True
        self.thread = threading.Thread(target=self.spin)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.on = False
        self.thread.join()

    def spin(self) -> None:
        while self.on:
            sum(range(200))


def measure(name: str, journal: SqliteJournal | MemoryJournal, tasks: int, **how: float) -> float:
    """Print one line, and return the tasks a second."""
    made, entries = load(tasks)
    cpu, own, start = time.process_time(), time.thread_time(), time.perf_counter()
    drive(journal, made, entries, **how)  # type: ignore[arg-type]
    took, own, cpu = time.perf_counter() - start, time.thread_time() - own, time.process_time() - cpu
    commits = getattr(journal, "commits", 0)
    print(
        f"{name:44} {tasks / took:9,.0f} tasks/s {took / tasks * 1e6:8.1f} us a task; CPU us a task: "
        f"loop {own / tasks * 1e6:5.1f}, writer {(cpu - own) / tasks * 1e6:6.1f}; {commits} commits"
    )
    return tasks / took


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=None, help="where the files are written (default: a new one)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        number = 0

        def new() -> Path:
            nonlocal number
            number += 1
            return Path(folder) / f"{number}.db"

        tasks = chosen.tasks
        wide = floor(new(), tasks, 1_000)
        print(f"{'floor: two rows a task, 1,000 a commit':44} {wide:9,.0f} tasks/s")
        chain = floor(new(), 500, 1)
        print(f"{'floor: two rows a task, 1 a commit':44} {chain:9,.0f} tasks/s {1e3 / chain:8.2f} ms a commit")
        measure("memory", MemoryJournal(), tasks)
        rate = measure("sqlite, 1,000 in flight", SqliteJournal(new()), tasks)
        print(f"{'':44} {wide / rate:9.1f} times the floor")
        measure("sqlite, 100 in flight", SqliteJournal(new()), tasks, window=100)
        measure("sqlite, 1 in flight (3 commits a task)", SqliteJournal(new()), 300, window=1)
        measure("sqlite, loop busy in 1 ms slices", SqliteJournal(new()), tasks // 4, busy=0.001)
        measure("sqlite, the same without lending", SqliteJournal(new()), tasks // 20, busy=0.001, lend=False)
        with Spinner():
            measure("sqlite, beside a CPU-bound thread", SqliteJournal(new()), tasks // 4)
        big = new()
        measure("sqlite, 5 times as many tasks", SqliteJournal(big), tasks * 5)
        print(f"{'size of that file':44} {big.stat().st_size / tasks / 5:9,.0f} bytes a task")


if __name__ == "__main__":
    main()
