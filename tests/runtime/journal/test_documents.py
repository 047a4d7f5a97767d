"""The queries that documents 000 and 003 print, unchanged, on the views of a real runtime's journal."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import anyio
import pytest

from callboard import Lifecycle, Machine, Runtime, State, Task, TaskContext, Tool, Transition, Worker, Workstream
from callboard.actors.spec.model import Breaker, Check, Condition, Retry
from callboard.errors import Permanent
from callboard.machines import TASK
from callboard.machines.lifecycles import LIFECYCLES, fleet, guarded, pipeline
from callboard.runtime.journal import open_journal
from callboard.runtime.journal.location import is_address
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.opening import connect
from callboard.runtime.journal.views import documents

from .samples import Loop, entry, job, message, raw, step, task, workstream

pytestmark = pytest.mark.anyio
AT_ONCE = Retry(max_attempts=2, base_delay=0, max_delay=0)

STUCK = "SELECT * FROM workstreams WHERE state = 'S_RUNNING' AND updated_at < datetime('now', '-1 hour');"
STEPS = """
  SELECT step_id, state, updated_at
  FROM steps
  WHERE ws_id = 'WS-001'
  ORDER BY step_id;
"""
INCONSISTENT = """
  SELECT w.ws_id, w.state AS ws_state, s.step_id, s.state AS step_state
  FROM workstreams w
  JOIN steps s ON w.ws_id = s.ws_id
  WHERE w.state = 'S_SUCCESS'
    AND s.state != 'S_SUCCESS';
"""
HISTORY = """
SELECT
    from_state,
    to_state,
    transitioned_at,
    json_extract(metadata, '$.reason') AS reason
FROM state_transitions
WHERE ws_id = 'WS-001'
ORDER BY transitioned_at;
"""


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough: the tests are about the file."""
    return "asyncio"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def journal(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "state.db")
    monkeypatch.chdir(tmp_path)  # where the output of commands goes
    return str(request.getfixturevalue("emptied"))


def connected(journal: str) -> Any:  # a connection of either driver
    if not is_address(journal):
        return sqlite3.connect(journal, isolation_level=None)
    return connect(parse(journal), "test")


def asked(journal: str, printed: str, prefix: str = "pipeline") -> list[tuple[Any, ...]]:
    """The answer to a query as it is printed, on the views of that document."""
    with closing(connected(journal)) as connection:
        sql = re.sub(r"\b(FROM|JOIN) (\w+)", rf"\1 {prefix}_\2", printed)
        return list(connection.execute(sql).fetchall())


async def works() -> int:
    return 1


async def fails_at_first(task: TaskContext) -> int:
    if task.workstream_id.endswith("@1"):
        raise ValueError("not yet")
    return 2


async def fails_once(task: TaskContext) -> int:
    if task.attempt == 1:
        raise ValueError("not yet")
    return 3


async def looks(task: TaskContext) -> dict[str, Any]:
    """Return the answers of the queries while this runs."""
    journal = task.args["journal"]
    later = STUCK.replace("'now', '-1 hour'", "'now', '+2 hours', '-1 hour'")
    return {
        "now": asked(journal, STUCK),
        "in_two_hours": asked(journal, later)[0][:2],
        "step": asked(journal, STEPS)[0][:2],
    }


def never() -> bool:
    return False


async def run(journal: str, workstream: Workstream, job_id: str = "WS-001") -> str:
    async with Runtime(journal) as runtime:
        job = await runtime.submit(workstream, id=job_id)
        return str((await job.wait()).state)


async def test_the_history_that_document_000_prints_is_told_of_a_workstream_that_is_tried_again(journal: str) -> None:
    tasks = [Task("s1", run=works), Task("s2", run=fails_at_first, depends_on=["s1"])]
    assert await run(journal, Workstream("steps", tasks=tasks, retry=AT_ONCE)) == "completed"
    rows = asked(journal, HISTORY)
    assert [(before, after) for before, after, *_ in rows] == [
        ("S_PENDING", "S_RUNNING"),
        ("S_RUNNING", "S_FAILED"),
        ("S_FAILED", "S_RETRYING"),
        ("S_RETRYING", "S_RUNNING"),
        ("S_RUNNING", "S_SUCCESS"),
    ]
    assert "s2" in rows[1][3]
    assert rows[2][3] == "retry attempt 1"
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", at) for _, _, at, _ in rows)
    machine = pipeline.WORKSTREAM_PAIRS
    assert all(
        machine.is_valid_transition(pipeline.WorkstreamState(before), pipeline.WorkstreamState(after))
        for before, after, *_ in rows
    )
    assert asked(journal, "SELECT ws_id, state, retry_count FROM workstreams") == [("WS-001", "S_SUCCESS", 1)]


async def test_the_steps_of_a_workstream_are_its_present_tasks(journal: str) -> None:
    tasks = [
        Task("s1", run=works),
        Task("s2", run=fails_once, retry=AT_ONCE, depends_on=["s1"]),
        Task("s3", run=fails_at_first, after=["s2"]),
    ]
    assert await run(journal, Workstream("steps", tasks=tasks)) == "failed"
    assert [row[:2] for row in asked(journal, STEPS)] == [("s1", "S_SUCCESS"), ("s2", "S_SUCCESS"), ("s3", "S_FAILED")]
    assert asked(journal, "SELECT step_id, retry_count FROM steps ORDER BY step_id") == [
        ("s1", 0),
        ("s2", 1),
        ("s3", 0),
    ]
    async with Runtime(journal) as runtime:
        again = await (await runtime.job("WS-001")).retry()
        assert again is not None
        await (await runtime.job("WS-001")).wait()
    assert [row[:2] for row in asked(journal, STEPS)] == [("s1", "S_SUCCESS"), ("s2", "S_SUCCESS"), ("s3", "S_SUCCESS")]


async def test_what_runs_for_over_an_hour_is_found_by_the_printed_query(journal: str) -> None:
    async with Runtime(journal) as runtime:
        task = Task("s1", run=looks, args={"journal": journal})
        job = await runtime.submit(Workstream("long", tasks=[task]), id="WS-001")
        seen = (await job.wait()).results["s1"]
    assert seen == {"now": [], "in_two_hours": ["WS-001", "S_RUNNING"], "step": ["s1", "S_RUNNING"]}


async def test_a_workstream_that_did_without_a_step_is_no_inconsistency_unless_the_step_failed(journal: str) -> None:
    tasks = [Task("s1", run=works), Task("s2", run=fails_at_first, optional=True)]
    assert await run(journal, Workstream("one", tasks=tasks[:1])) == "completed"
    assert asked(journal, INCONSISTENT) == []
    assert await run(journal, Workstream("two", tasks=tasks), "WS-002") == "completed"
    assert asked(journal, INCONSISTENT) == [("WS-002", "S_SUCCESS", "s2", "S_FAILED")]
    unmet = [Task("s1", run=works), Task("s2", run=works, condition=Condition(run=never))]
    assert await run(journal, Workstream("three", tasks=unmet), "WS-003") == "completed"
    assert asked(journal, INCONSISTENT)[1:] == [("WS-003", "S_SUCCESS", "s2", "skipped")]


async def test_a_breaker_is_shown_with_the_settings_of_document_000(journal: str) -> None:
    tools = {"aider": Tool(breaker=Breaker(failure_threshold=1))}
    await run(journal, Workstream("edit", tasks=[Task("s1", run=fails_once, tool="aider")], tools=tools))
    rows = asked(
        journal,
        "SELECT tool_id, state, failure_threshold, cooldown_seconds, success_threshold FROM circuit_breakers",
    )
    assert rows == [("aider", "OPEN", 1, 60, 1)]


async def test_the_tables_of_document_003_have_its_columns_and_its_words(journal: str) -> None:
    tasks = [Task("build", run=fails_once, retry=AT_ONCE, tool="compiler", checks=[Check(run=works)])]
    assert await run(journal, Workstream("guard", tasks=tasks)) == "completed"
    with closing(connected(journal)) as connection:
        cursor = connection.execute("SELECT * FROM guarded_task_states")
        assert [column[0] for column in cursor.description] == [
            "task_id", "workstream_id", "state", "previous_state", "attempt_count", "created_at", "started_at",
            "completed_at", "failed_at", "last_error", "error_count", "circuit_state", "execution_duration_ms",
            "validation_duration_ms", "total_duration_ms", "output_size_bytes", "exit_code",
            "cpu_seconds", "peak_memory_bytes", "tool_invocation_count", "test_results",
        ]  # fmt: skip
        row = cursor.fetchone()
        assert row[:5] == ("WS-001@1/build", "WS-001@1", "COMPLETED", "VALIDATING", 2)
        assert row[10:12] == (1, "CLOSED")
        assert row[9].startswith("ValueError: not yet")
        assert row[19] == 2
        (test,) = json.loads(row[20])
        assert (test["check"], test["passed"]) == (f"{__name__}:works", True)
        query = "SELECT tool, invocations, succeeded, failed, running FROM tool_invocations"
        assert connection.execute(query).fetchall() == [("compiler", 2, 1, 1, 0)]
        cursor = connection.execute("SELECT * FROM guarded_state_transitions ORDER BY id")
        assert [column[0] for column in cursor.description] == [
            "id", "task_id", "from_state", "to_state", "timestamp", "reason", "metadata",
        ]  # fmt: skip
        rows = cursor.fetchall()
    assert [row[2:4] for row in rows] == [
        ("PENDING", "IN_PROGRESS"),
        ("IN_PROGRESS", "FAILED"),
        ("FAILED", "RETRYING"),
        ("RETRYING", "IN_PROGRESS"),
        ("IN_PROGRESS", "VALIDATING"),
        ("VALIDATING", "COMPLETED"),
    ]
    assert len({row[0] for row in rows}) == len(rows)
    assert rows[1][5] == rows[2][5]
    assert rows[1][5].startswith("ValueError: not yet")


@pytest.mark.parametrize("lifecycle", ["own", "execution", "orchestration", "pipeline", "guarded"])
async def test_the_trail_of_a_task_is_one_of_document_003_by_whatever_it_runs(journal: str, lifecycle: str) -> None:
    tasks = [
        Task("again", run=fails_once, retry=AT_ONCE),
        Task("parks", run=fails_at_first, on_exhausted="park"),
        Task("never", run=works, depends_on=["parks"]),
    ]
    async with Runtime(journal, lifecycle=None if lifecycle == "own" else lifecycle) as runtime:
        job = await runtime.submit(Workstream("guard", tasks=tasks), id="WS-001")
        with anyio.fail_after(300):
            while not (job.task("parks").record.parked and job.task("again").record.state == "completed"):
                await runtime._services.host.moved()
        await job.cancel()
        await job.wait()
    rows = asked(journal, "SELECT task_id, from_state, to_state FROM state_transitions ORDER BY id", "guarded")
    known = {(str(row.source), str(row.target)) for row in guarded.TASK.transitions}
    assert {row[1:] for row in rows} - known == set()
    states: dict[str, str] = {}
    for task_id, before, after in rows:  # each begins where the one before ended
        assert states.setdefault(task_id, "PENDING") == before
        states[task_id] = after
    told = dict(asked(journal, "SELECT task_id, state FROM task_states", "guarded"))
    if lifecycle == "pipeline":  # it has no row for a cancel of a failed task: none is reported
        assert (states.pop("WS-001@1/parks"), told.pop("WS-001@1/parks")) == ("FAILED", "CANCELLED")
    assert states == {task: state for task, state in told.items() if task in states}


async def refuses() -> bool:
    return False


async def test_a_task_that_parks_by_its_test_has_failed_before_that(journal: str) -> None:
    task = Task("build", run=works, checks=[Check(run=refuses)], on_exhausted="park")
    async with Runtime(journal) as runtime:
        job = await runtime.submit(Workstream("guard", tasks=[task]), id="WS-001")
        async for _ in job.events(task="build", to_state="circuit_open", notices=False):
            break
        await job.cancel(reason="enough")
        await job.wait()
    rows = asked(journal, "SELECT from_state, to_state FROM state_transitions ORDER BY id", "guarded")
    assert rows[-4:-1] == [("IN_PROGRESS", "VALIDATING"), ("VALIDATING", "FAILED"), ("FAILED", "CIRCUIT_OPEN")]


def test_what_document_003_has_no_arrow_for_is_what_is_told_of() -> None:
    words = {own: word for word, owns in documents._TASKS.items() for own in owns}
    known = {(str(row.source), str(row.target)) for row in guarded.TASK.transitions} | documents._BETWEEN.keys()
    steps = {(words[row.source], words[row.target]) for row in TASK.transitions}
    assert {(before, after) for before, after in steps if before != after} - known == {
        ("PENDING", "FAILED"),  # its condition broke, or it waited too long in the queue
        ("PENDING", "CIRCUIT_OPEN"),  # its tool's breaker is open
        ("IN_PROGRESS", "PENDING"),  # a drain gave the try back
        ("VALIDATING", "IN_PROGRESS"),  # its hooks run since it was cancelled
        ("RETRYING", "PENDING"),  # shown as RETRYING
        ("RETRYING", "FAILED"), ("CIRCUIT_OPEN", "FAILED"), ("HALF_OPEN", "FAILED"),  # its total limit
        ("TIMEOUT", "CANCELLED"), ("VALIDATING", "CANCELLED"), ("RETRYING", "CANCELLED"), ("HALF_OPEN", "CANCELLED"),
    }  # fmt: skip


async def fails_for_good() -> None:
    raise Permanent("no")


@pytest.mark.parametrize("lifecycle", ["own", "pipeline", "fleet", "orchestration"])
async def test_no_trail_leaves_what_is_terminal_in_its_document_after_a_further_run(
    journal: str, lifecycle: str
) -> None:
    async with Runtime(journal, lifecycle=lifecycle) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("t", run=fails_for_good)]), id="WS-001")
        await job.wait()
        await (await job.retry()).wait()
    trails = (
        ("pipeline", "state_transitions", {"S_SUCCESS", "S_ABANDONED"}),
        ("fleet", "job_state_transitions", {"COMPLETED", "FAILED", "CANCELED"}),
    )
    for prefix, view, terminal in trails:
        rows = asked(journal, f"SELECT from_state, to_state FROM {view}", prefix)
        assert not {before for before, _ in rows} & terminal
        assert len([after for _, after in rows if after in terminal | {"S_FAILED"}]) >= 2  # both runs are reported


async def test_an_older_journal_gets_the_trails_when_it_is_opened(tmp_path: Path) -> None:
    journal = str(tmp_path / "state.db")
    await run(journal, Workstream("one", tasks=[Task("s1", run=works)]))
    views = ("pipeline_state_transitions", "fleet_job_state_transitions")
    with closing(connected(journal)) as connection:
        for view in views:
            connection.execute(f"DROP VIEW {view}")
            connection.execute(f"CREATE VIEW {view} AS SELECT 'older' AS from_state")
        connection.execute("PRAGMA user_version = 3")
    async with Runtime(journal):
        pass
    with closing(connected(journal)) as connection:
        for view in views:
            assert ("older",) not in connection.execute(f"SELECT from_state FROM {view}").fetchall()


def test_messages_are_shown_with_their_job_and_what_became_of_them(journal: str) -> None:
    kept, loop = open_journal(journal), Loop()
    loop.open(kept)
    received = {"received_at": 1_700_000_001.5, "received_by": "ws-2/t3"}
    kept.append(
        entry(
            job(1),
            message(10, sent_at=1_700_000_000.0, by="ana", **received),
            message(11, task="t", raw_value=raw("x")),
        )
    )
    assert kept.shut(30)
    columns = "job_id, task, name, state, value, sent_by, received_at, received_by"
    with closing(connected(journal)) as connection:
        assert connection.execute(f"SELECT {columns} FROM task_messages ORDER BY key").fetchall() == [
            ("job-1", None, "paid", "received", ANY, "ana", "2023-11-14T22:13:21.500Z", "ws-2/t3"),
            ("job-1", "t", "paid", "unread", '"x"', None, None, None),
        ]


def test_steps_are_shown_with_their_job_and_what_became_of_them(journal: str) -> None:
    ws = workstream(2, 1, 2)
    first, later, over = task(3, ws), task(4, ws), task(5, ws, state="completed", finished_at=9.0)
    times = {"began_at": 1_700_000_000.0, "ended_at": 1_700_000_001.5}
    steps = [
        step(10, first, raw_result=raw("yes"), raw_given=raw([["é"], {"n": 1}]), tries=2, worker_id="loop-1", **times),
        step(11, first, number=2, attempt=2, error="no\0", error_type="app.Refused", traceback="\ud800", **times),
        step(12, first, "wait", began_at=1_700_000_000.0, ended_at=None, due_at=1_700_000_060.0, error_type="old"),
        step(13, first, dropped=True),
        step(14, first, "last", task=4, task_id=later.id, raw_result=raw({"a": [True, None]})),
        step(15, over, "left", ended_at=None),
    ]
    kept, loop = open_journal(journal), Loop()
    loop.open(kept)
    kept.append(entry(job(1), ws, first, later, over, *steps))
    assert kept.shut(30)
    columns = "job_id, task_id, name, number, label, state, attempt, tries, duration_ms, worker_id, result, error_type"
    with closing(connected(journal)) as connection:
        assert connection.execute(f"SELECT {columns} FROM task_steps ORDER BY key").fetchall() == [
            ("job-1", "ws-2/t3", "ask", 1, "ask", "completed", 1, 2, 1500, "loop-1", '"yes"', None),
            ("job-1", "ws-2/t3", "ask", 2, "ask#2", "failed", 2, 1, 1500, None, None, "app.Refused"),
            ("job-1", "ws-2/t3", "wait", 1, "wait", "waiting", 1, 1, None, None, None, "old"),
            ("job-1", "ws-2/t4", "last", 1, "last", "completed", 1, 1, 1000, None, ANY, None),
            ("job-1", "ws-2/t5", "left", 1, "left", "cancelled", 1, 1, None, None, None, None),
        ]
        (result,) = connection.execute("SELECT result FROM task_steps WHERE name = 'last'").fetchone()
        assert json.loads(result) == {"a": [True, None]}
        shown = "SELECT began_at, ended_at, due_at FROM task_steps WHERE key IN (10, 12) ORDER BY key"
        assert connection.execute(shown).fetchall() == [
            ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:21.500Z", None),
            ("2023-11-14T22:13:20.000Z", None, "2023-11-14T22:14:20.000Z"),
        ]
        assert len(connection.execute("SELECT error, traceback FROM task_steps").fetchall()) == 5
        given = [row[0] for row in connection.execute("SELECT arguments FROM task_steps ORDER BY key").fetchall()]
        assert (json.loads(given[0]), given[1:]) == ([["é"], {"n": 1}], [None] * 4)


async def test_workers_and_jobs_have_the_audit_trails_of_document_002(journal: str) -> None:
    await run(journal, Workstream("one", tasks=[Task("s1", run=works)]))
    query = "SELECT job_id, from_state, to_state FROM job_state_transitions ORDER BY id"
    assert asked(journal, query, "fleet") == [
        ("WS-001", "SUBMITTED", "PENDING"),
        ("WS-001", "PENDING", "RUNNING"),
        ("WS-001", "RUNNING", "COMPLETED"),
    ]
    pairs = asked(journal, "SELECT from_state, to_state FROM worker_state_transitions ORDER BY id", "fleet")
    assert ("IDLE", "RUNNING") in pairs
    assert {state for pair in pairs for state in pair} <= {str(state) for state in fleet.WorkerState}


async def test_the_tables_of_document_002_have_its_columns(journal: str) -> None:
    pool = Worker("pool", engine="loop", capabilities=["gpu", "workspace:ws-7"], metadata={"owner": "ops", "rack": 3})
    description = "Ship what has been reviewed."
    async with Runtime(journal, workers=[pool]) as runtime:
        job = await runtime.submit(
            Workstream("one", description=description, worker_count=1, tasks=[Task("s1", run=works)]), id="WS-001"
        )
        await job.wait()
        other = await runtime.submit(Workstream("two", tasks=[Task("s1", run=works)]), id="WS-002")
        await other.wait()
        assert job.record.description == description
    with closing(connected(journal)) as connection:
        cursor = connection.execute("SELECT * FROM fleet_workers")
        assert [column[0] for column in cursor.description] == [
            "id", "workspace_id", "status", "created_at", "updated_at", "metadata",
        ]  # fmt: skip
        (row,) = cursor.fetchall()
        assert row[0].startswith("pool")
        assert row[1:3] == ("ws-7", "COMPLETED")
        assert json.loads(row[5]) == {"owner": "ops", "rack": 3}
        cursor = connection.execute("SELECT * FROM fleet_jobs ORDER BY id")
        assert [column[0] for column in cursor.description] == [
            "id", "parent_job_id", "depth", "status", "worker_count", "created_at", "started_at", "completed_at",
            "task_description",
        ]  # fmt: skip
        first, second = cursor.fetchall()
        assert (first[:5], first[8]) == (("WS-001", None, 0, "COMPLETED", 1), description)
        assert first[5] <= first[6] <= first[7]
        assert (second[0], second[8]) == ("WS-002", "two")
        assert connection.execute("SELECT description FROM jobs ORDER BY id").fetchall() == [(description,), (None,)]
        ((kept,),) = connection.execute("SELECT metadata FROM workers")
        assert json.loads(kept) == {"owner": "ops", "rack": 3}


def own_words() -> list[Lifecycle]:
    """A lifecycle of an application, none of whose words is in any document."""
    phases = {
        "task": ("pending", "running", "validating", "retrying", "completed", "failed"),
        "workstream": ("planned", "executing", "completed", "failed"),
        "job": ("submitted", "pending", "running", "completed", "failed"),
        "worker": ("initializing", "idle", "busy", "shutdown", "failed"),
    }
    ends = {"completed", "failed", "shutdown"}
    return [
        Lifecycle(
            "words",
            kind,  # type: ignore[arg-type]
            Machine(
                f"words.{kind}",
                f"my_{known[0]}",
                states=[State(f"my_{one}", one, one in ends, None if one in ends else "it") for one in known],
                transitions=[
                    Transition(f"my_{one}", f"{one}_to_{other}", f"my_{other}")
                    for one in known
                    for other in known
                    if one not in ends and other != one
                ],
            ),
            {},
        )
        for kind, known in phases.items()
    ]


WORDS = {
    "pipeline_workstreams": ("state", pipeline.WorkstreamState),
    "pipeline_steps": ("state", pipeline.StepState),
    "pipeline_state_transitions": ("to_state", pipeline.WorkstreamState),
    "guarded_task_states": ("state", guarded.TaskState),
    "guarded_state_transitions": ("to_state", guarded.TaskState),
    "fleet_job_state_transitions": ("to_state", fleet.JobState),
    "fleet_worker_state_transitions": ("to_state", fleet.WorkerState),
}


@pytest.mark.parametrize("lifecycle", ["own", *LIFECYCLES, "words"])
async def test_every_view_says_the_document_s_words_whatever_the_entities_run_by(journal: str, lifecycle: str) -> None:
    tasks = [Task("s1", run=works), Task("s2", run=fails_once, retry=AT_ONCE, depends_on=["s1"])]
    default = None if lifecycle == "own" else lifecycle
    async with Runtime(journal, lifecycle=default, lifecycles=own_words()) as runtime:
        job = await runtime.submit(Workstream("w", tasks=tasks), id="WS-001")
        assert (await job.wait()).ok
    with closing(connected(journal)) as connection:
        for view, (column, words) in WORDS.items():
            said = {row[0] for row in connection.execute(f"SELECT {column} FROM {view}")}
            assert said, view
            assert said <= {str(word) for word in words}, view
    assert asked(journal, INCONSISTENT) == []
    assert asked(journal, "SELECT DISTINCT state, retry_count FROM workstreams") == [("S_SUCCESS", 0)]
    assert asked(journal, "SELECT state, error_count FROM task_states ORDER BY task_id", "guarded") == [
        ("COMPLETED", 0),
        ("COMPLETED", 1),
    ]
    job_states = asked(journal, "SELECT from_state, to_state FROM job_state_transitions ORDER BY id", "fleet")
    assert job_states == [("SUBMITTED", "PENDING"), ("PENDING", "RUNNING"), ("RUNNING", "COMPLETED")]


@pytest.mark.parametrize(
    ("view", "states"),
    [
        ("pipeline_steps", pipeline.StepState),
        ("pipeline_workstreams", pipeline.WorkstreamState),
        ("guarded_task_states", guarded.TaskState),
    ],
)
async def test_an_entity_that_runs_by_the_document_s_lifecycle_keeps_its_words(
    journal: str, view: str, states: type[StrEnum]
) -> None:
    await run(journal, Workstream("one", tasks=[Task("s1", run=works)]))
    table = "workstream_records" if view == "pipeline_workstreams" else "task_records"
    with closing(connected(journal)) as connection:
        for state in states:
            published = f'{{"lifecycle":"it","state":"{state}"}}'
            changed = f"json_set(record, '$.published', json('{published}'))"
            if is_address(journal):
                changed = f"(as_json(record) || jsonb_build_object('published', '{published}'::jsonb))::text"
            connection.execute(f"UPDATE {table} SET record = {changed}")
            assert connection.execute(f"SELECT state FROM {view}").fetchone() == (str(state),)
