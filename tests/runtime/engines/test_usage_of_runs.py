"""The use of attempts, in every place that shows it."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from tests.runtime.engines.process_bodies import BURNT

from callboard import Check, Retry, Runtime, Task, Transitioned, Workstream
from callboard.runtime.journal.sqlite.schema import VERSION

pytestmark = pytest.mark.anyio

BURNS = [sys.executable, "-S", "-c", f"import time\nwhile time.process_time() < {BURNT}: pass"]
BURNS_AND_FAILS = [*BURNS[:-1], f"{BURNS[-1]}\nraise SystemExit(3)"]
ONCE_MORE = Retry(max_attempts=2, base_delay=0)


def works() -> int:
    return 1


async def async_one() -> int:
    return 1


async def test_what_attempts_used_is_told_everywhere(tmp_path: Path) -> None:
    tasks = [
        Task("burns", command=BURNS),
        Task("fails", command=BURNS_AND_FAILS, retry=ONCE_MORE, optional=True),
        Task("away", run="tests.runtime.engines.process_bodies:burns", engine="process"),
        Task("thread", run=works),
        Task("loop", run=async_one),
    ]
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db") as runtime:
            job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
            outcome = await job.wait()
            attempts = {name: await job.attempts(name) for name in outcome.tasks}
            told = await history(runtime)
            metrics = runtime.metrics()
    for name in ("burns", "fails", "away"):
        for attempt in attempts[name]:
            assert attempt.cpu_seconds is not None, name
            assert attempt.cpu_seconds >= BURNT, name
        assert outcome.tasks[name].cpu_seconds == attempts[name][-1].cpu_seconds
        assert outcome.tasks[name].peak_memory_bytes == attempts[name][-1].peak_memory_bytes
        ends = [event.metadata or {} for event in told if event.entity_id == f"j@1/{name}" and event.attempt]
        ends = [end for end in ends if "cpu_seconds" in end]
        assert [end["cpu_seconds"] for end in ends] == [
            pytest.approx(one.cpu_seconds, abs=1e-6) for one in attempts[name]
        ], name
    assert len(attempts["fails"]) == 2
    for name in ("thread", "loop"):
        (attempt,) = attempts[name]
        assert (attempt.cpu_seconds, attempt.peak_memory_bytes) == (None, None)
        assert outcome.tasks[name].produced is None
    spent = sum(attempt.cpu_seconds or 0.0 for name in ("burns", "fails") for attempt in attempts[name])
    assert metrics.cpu_seconds["command"] == pytest.approx(spent)
    assert metrics.cpu_seconds["process"] == pytest.approx(attempts["away"][0].cpu_seconds)
    assert set(metrics.cpu_seconds) == {"command", "process"}
    if sys.platform == "linux":
        assert attempts["away"][0].peak_memory_bytes == metrics.peak_memory_bytes["process"] > 1_000_000
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        rows = connection.execute("SELECT task_id, attempt, cpu_seconds, peak_memory_bytes FROM attempts").fetchall()
        kept = [one for ones in attempts.values() for one in ones]
        expected = [(one.task_id, one.attempt, one.cpu_seconds, one.peak_memory_bytes) for one in kept]
        assert sorted(rows, key=str) == sorted(expected, key=str)
        for view in ("tasks", "guarded_task_states"):
            rows = connection.execute(f"SELECT task_id, cpu_seconds, peak_memory_bytes FROM {view}").fetchall()
            assert dict(zip([row[0] for row in rows], [row[1:] for row in rows], strict=True)) == {
                f"j@1/{name}": (ones[-1].cpu_seconds, ones[-1].peak_memory_bytes) for name, ones in attempts.items()
            }, view


async def history(runtime: Runtime) -> list[Transitioned]:
    told: list[Transitioned] = await runtime._services.read(lambda: [*runtime.journal.reader.transitions(job_id="j")])
    return told


async def test_what_checks_used_is_counted_but_is_no_attempts(tmp_path: Path) -> None:
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "state.db") as runtime:
            checked = Task("one", run=works, checks=[Check(command=BURNS)])
            job = await runtime.submit(Workstream("w", tasks=[checked]), id="j")
            outcome = await job.wait()
            assert outcome.tasks["one"].cpu_seconds is None
            assert runtime.metrics().cpu_seconds["command"] >= BURNT


async def test_an_older_journal_gets_the_columns_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with Runtime(path) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("one", command=["true"])]), id="j")
        await job.wait()
    views = ("attempts", "tasks", "guarded_task_states")
    with closing(sqlite3.connect(path)) as connection:
        for view in ("tool_invocations", "fleet_workers", "fleet_jobs"):
            connection.execute(f"DROP VIEW {view}")
        for view in (*views, "workstreams", "jobs", "workers"):
            connection.execute(f"DROP VIEW {view}")
            connection.execute(f"CREATE VIEW {view} AS SELECT 'older' AS task_id")
        connection.execute("PRAGMA user_version = 4")
    async with Runtime(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        for view in views:
            ((cpu, memory),) = connection.execute(f"SELECT cpu_seconds, peak_memory_bytes FROM {view}")
            assert cpu is not None, view
            assert memory is None or memory > 0, view
        assert connection.execute("SELECT count(*) FROM tool_invocations").fetchone() == (0,)
        assert connection.execute("SELECT test_results FROM workstreams").fetchone() == (None,)
        assert connection.execute("SELECT description FROM jobs").fetchone() == (None,)
        assert connection.execute("SELECT status, task_description FROM fleet_jobs").fetchall() == [("COMPLETED", "w")]
        assert connection.execute("SELECT DISTINCT metadata FROM fleet_workers").fetchall() == [(None,)]


async def test_tools_and_acceptance_tests_are_counted_and_kept(tmp_path: Path) -> None:
    made = tmp_path / "made.txt"
    made.write_text("x")
    tasks = [
        Task("one", run=works, tool="compiler", checks=[Check(file=str(made)), Check(command=["true"])]),
        Task("two", run=async_one, tool="compiler", optional=True, checks=[Check(command=["false"])]),
        Task("three", run=works),
    ]
    final = [Check(run=works)]
    path = tmp_path / "state.db"
    with anyio.fail_after(300):
        async with Runtime(path) as runtime:
            job = await runtime.submit(Workstream("w", tasks=tasks, checks=final), id="j")
            outcome = await job.wait()
            metrics = runtime.metrics()
    assert metrics.tool_invocations == {"compiler": 2}
    assert (metrics.tests_passed, metrics.tests_failed) == (3, 1)
    one, two = outcome.tasks["one"].test_results, outcome.tasks["two"].test_results
    assert [(test.check, test.passed, test.exit_code) for test in one] == [
        (f"file {made}", True, None),
        ("true", True, 0),
    ]
    assert [(test.check, test.passed, test.exit_code) for test in two] == [("false", False, 1)]
    assert two[0].error == outcome.tasks["two"].last_error
    with closing(sqlite3.connect(path)) as connection:
        ((tool, *numbers),) = connection.execute(
            "SELECT tool, invocations, succeeded, failed, running FROM tool_invocations"
        )
        assert (tool, *numbers) == ("compiler", 2, 2, 0, 0)
        rows = connection.execute("SELECT task_id, tool_invocation_count, test_results FROM guarded_task_states")
        told = {name: (count, json.loads(tests or "[]")) for name, count, tests in rows}
        assert told["j@1/one"][0] == told["j@1/two"][0] == 1
        assert told["j@1/three"] == (0, [])
        assert [test["passed"] for test in told["j@1/one"][1]] == [True, True]
        assert [test["passed"] for test in told["j@1/two"][1]] == [False]
        ((tests,),) = connection.execute("SELECT test_results FROM workstreams")
        assert [(test["check"], test["passed"]) for test in json.loads(tests)] == [(f"{__name__}:works", True)]
        assert {row[0] for row in connection.execute("SELECT tool FROM attempts")} == {"compiler", None}
