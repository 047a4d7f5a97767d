"""Jobs and workers that are created over HTTP: by specifications, and by document 002."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from tests.runtime.web.conftest import client_of

from callboard import Runtime, TaskContext, Worker, Workstream

pytestmark = pytest.mark.anyio
LOOP = Worker("loop", engine="loop", capacity=100)


async def task_description(task: TaskContext) -> Any:
    """The function of a described job; if the description asks for it, it waits until it is cancelled."""
    if task.args["task_description"] == "wait":
        await anyio.sleep_forever()
    return task.args


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime with a function for described jobs; all tests share it, and its board."""
    async with Runtime(workers=(LOOP,), drain_deadline=0.0) as opened:
        opened.task(task_description)
        yield opened


@pytest.fixture(scope="module")
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its board."""
    async with client_of(runtime) as opened:
        yield opened


async def test_pause_running_worker(client: httpx.AsyncClient) -> None:
    """The document's own test."""
    response = await client.post("/api/workers", json={"workspace_id": "ws_test"})
    worker_id = response.json()["id"]
    assert (response.status_code, response.json()["status"]) == (201, "IDLE")
    assert response.headers["location"] == f"workers/{worker_id}"
    too_early = await client.post(f"/api/supervisor/workers/{worker_id}/pause")
    assert too_early.status_code == 409  # "cannot pause worker that hasn't started"
    await client.post(f"/api/workers/{worker_id}/start")
    response = await client.post(f"/api/supervisor/workers/{worker_id}/pause", json={"reason": "Test pause"})
    assert response.status_code == 200
    assert response.json()["status"] == "PAUSED"


async def test_idempotent_pause(runtime: Runtime, client: httpx.AsyncClient) -> None:
    """The document's own test."""
    await runtime.start_worker(Worker("w_test123", engine="loop", lifecycle="fleet"))
    await runtime.worker("w_test123").start()
    answers = [
        await client.post("/api/supervisor/workers/w_test123/pause", json={"request_id": "req_abc123"})
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].content == answers[1].content


async def test_a_worker_of_a_workspace_is_made_once_for_a_key_and_serves_its_workspace(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    body = {"workspace_id": "ws", "reason": "more", "by": "ana", "request_id": "w"}
    first, again = [await client.post("/api/workers", json=body) for _ in range(2)]
    assert (first.status_code, first.content) == (again.status_code, again.content) == (201, again.content)
    record = runtime.worker(first.json()["id"]).record
    assert (record.capabilities, record.capacity, record.run) == (["workspace:ws"], 1, 1)
    (born,) = [row for row in runtime.journal.reader.transitions(entity_id=record.id) if row.event == "create"]
    assert born.metadata is not None
    assert (born.metadata["reason"], born.metadata["by"]) == ("more", "ana")
    other = await client.post("/api/workers", json={**body, "workspace_id": "other"})
    assert (other.status_code, other.json()["type"]) == (422, "/problems/request-id-reused")


async def test_a_worker_is_found_with_its_metadata_in_each_incarnation(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    metadata = {"owner": "ops", "tags": ["a", {"b": None}]}
    made = await client.post("/api/workers", json={"name": "known", "engine": "loop", "metadata": metadata})
    assert made.status_code == 201
    assert (await client.get("/api/workers/known")).json()["metadata"] == metadata
    await runtime.worker("known").terminate()
    await runtime.worker("known").start()
    shown = (await client.get("/api/workers/known")).json()
    assert (shown["run"], shown["metadata"]) == (2, metadata)
    large = await client.post("/api/workers", json={"name": "l", "engine": "loop", "metadata": {"x": "y" * 20_000}})
    assert large.status_code == 422
    assert [finding["where"] for finding in large.json()["findings"]] == ["metadata"]


async def test_a_worker_of_a_specification_is_checked_whole(runtime: Runtime, client: httpx.AsyncClient) -> None:
    made = await client.post("/api/workers", json={"name": "two", "engine": "loop", "capacity": 2})
    assert (made.json()["id"], made.json()["status"], runtime.worker("two").record.capacity) == ("two", "idle", 2)
    lives = await client.post("/api/workers", json={"name": "two", "engine": "loop", "capacity": 2})
    assert (lives.status_code, lives.json()["state"]) == (409, "idle")
    for body, places in (
        ({}, {"name", "engine"}),
        ({"name": "a/b", "engine": "loop", "capacity": 0}, {"name", "capacity"}),
        ({"name": "a", "engine": "loopy"}, {"engine"}),
        ({"name": "a", "engine": "loop", "lifecycle": "os:path"}, {"lifecycle"}),
        ({"workspace_id": " "}, {"workspace_id"}),
    ):
        answer = await client.post("/api/workers", json=body)
        assert answer.status_code == 422
        assert {finding["where"] for finding in answer.json()["findings"]} == places


async def test_a_described_job_runs_by_fleet_and_has_children(runtime: Runtime, client: httpx.AsyncClient) -> None:
    body = {"task_description": "wait", "worker_count": 2, "depth": 0, "request_id": "k"}
    made = await client.post("/api/jobs", json=body)
    parent = made.json()["id"]
    assert (made.status_code, made.json()["status"], made.json()["lifecycle"]) == (201, "RUNNING", "fleet")
    assert made.json()["description"] == "wait"
    again = await client.post("/api/jobs", json=body)
    assert (again.status_code, again.json()["id"]) == (200, parent)
    other = await client.post("/api/jobs", json={**body, "task_description": "else"})
    assert (other.status_code, other.json()["type"]) == (422, "/problems/request-id-reused")

    async for _ in (await runtime.job(parent)).events(task="task", to_state="running", notices=False):
        break
    deeper = {"task_description": "a part", "parent_job_id": parent, "request_id": "c"}
    assert (await client.post("/api/jobs", json={**deeper, "depth": 3})).status_code == 422
    child = await client.post("/api/jobs", json={**deeper, "depth": 1})
    assert (child.status_code, child.json()["depth"], child.json()["parent_id"]) == (201, 1, parent)
    await (await runtime.job(child.json()["id"])).wait()
    shown = (await client.get("/api/" + child.headers["location"])).json()
    assert (shown["id"], shown["status"]) == (child.json()["id"], "COMPLETED")
    assert (await client.get(f"/api/jobs/{parent}")).json()["children"] == [shown["id"]]

    await client.post(f"/api/jobs/{parent}/cancel")
    await (await runtime.job(parent)).wait()
    assert (await client.get(f"/api/jobs/{parent}")).json()["status"] == "CANCELED"
    late = await client.post("/api/jobs", json=deeper)
    assert (late.status_code, late.json()["id"]) == (200, shown["id"])  # the same again is the same, also then
    others = (({"task_description": "else"}, "description is different"), ({"worker_count": 2}, "is 2 now"))
    for said, differs in others:
        changed = await client.post("/api/jobs", json={**deeper, **said})
        assert changed.status_code == 422
        assert differs in changed.json()["detail"]
    another = await client.post("/api/jobs", json={**deeper, "request_id": "d"})
    assert another.status_code == 409


async def test_what_cannot_be_described_is_told_whole_and_journals_nothing(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    before = runtime.journal.tail
    for body, places in (
        ({"task_description": " ", "worker_count": 11, "depth": 6}, {"task_description", "worker_count", "depth"}),
        ({"task_description": "x", "depth": 1}, {"depth"}),
        ({}, {"workstream"}),
        ({"task_description": "x", "workstream": {}}, {"workstream"}),
        ({"workstream": {}, "depth": 0}, {"depth"}),
        ({"task_description": 3, "worker_count": "2", "nope": 1}, {"task_description", "worker_count", "nope"}),
        ({"task_description": "x", "id": "../../x"}, {"id"}),
    ):
        answer = await client.post("/api/jobs", json=body)
        assert answer.status_code == 422, body
        assert {finding["where"] for finding in answer.json()["findings"]} == places
    assert (await client.post("/api/jobs", json={"task_description": "x", "parent_job_id": "none"})).status_code == 404
    assert runtime.journal.tail == before
    async with Runtime(workers=()) as unable, client_of(unable) as asking:
        answer = await asking.post("/api/jobs", json={"task_description": "x"})
        assert "must register one named 'task_description'" in answer.json()["detail"]


NAMED = {"tasks": [{"name": "a", "run": "task_description", "args": {"task_description": "x", "command": "data"}}]}


async def test_a_workstream_is_submitted_as_its_file_would_be(runtime: Runtime, client: httpx.AsyncClient) -> None:
    made = await client.post("/api/jobs", json={"workstream": NAMED, "id": "mine", "by": "ana"})
    assert (made.status_code, made.headers["location"], made.json()["by"]) == (201, "jobs/mine", "ana")
    outcome = await (await runtime.job("mine")).wait()
    assert outcome.results == {"a": {"task_description": "x", "command": "data"}}
    again = await client.post("/api/jobs", json={"workstream": NAMED, "id": "mine"})
    assert (again.status_code, again.json()["state"]) == (200, "completed")
    other = await client.post("/api/jobs", json={"workstream": {**NAMED, "max_parallel": 2}, "id": "mine"})
    assert (other.status_code, other.json()["type"]) == (409, "/problems/job-exists")
    assert "max_parallel was not set and is 2 now" in other.json()["detail"]


async def test_a_workstream_may_be_set_in_the_words_of_the_documents_as_in_a_file(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    words = {
        "task_lifecycle": {"default_timeout": 300, "max_attempts": 5, "jitter_percentage": 25},
        "tool_profiles": [{"tool_id": "compiler", "failure_threshold": 4, "cooldown_seconds": 7}],
    }
    made = await client.post("/api/jobs", json={"workstream": {**NAMED, **words}, "id": "words"})
    assert made.status_code == 201
    outcome = await (await runtime.job("words")).wait()
    assert outcome.state == "completed"
    tasks = [{**NAMED["tasks"][0], "name": name} for name in ("command", "run")]
    dag = {"depends_on": {"command": [], "run": ["command"]}}  # names of tasks, and no commands
    made = await client.post("/api/jobs", json={"workstream": {"tasks": tasks, "dag": dag}, "id": "dag"})
    assert made.status_code == 201
    kept = (await client.get("/api/jobs/dag/tasks/run")).json()
    assert kept["depends_on"] == ["command"]
    (task,) = (await client.get("/api/jobs/words/tasks")).json()["items"]
    assert task["max_attempts"] == 5
    encoded = runtime.journal.reader.spec(runtime.journal.reader.workstreams("words")[0].key)
    assert encoded is not None
    kept = msgspec.json.decode(encoded, type=Workstream)
    assert kept.defaults.retry is not None
    assert (kept.defaults.timeout, kept.defaults.retry.jitter) == (300, 0.25)
    assert kept.tools["compiler"].breaker is not None
    assert (kept.tools["compiler"].breaker.failure_threshold, kept.tools["compiler"].breaker.cooldown) == (4, 7)


async def test_what_is_wrong_in_the_words_of_the_documents_is_told_in_them(client: httpx.AsyncClient) -> None:
    wrong = {
        **NAMED,
        "defaults": {"timeout": 5},
        "task_lifecycle": {"default_timeout": 300, "max_attempts": 0, "jitter_percentage": 101, "nope": 1},
        "tool_profiles": [{"tool_id": "a", "failure_threshold": 0}, {"tool_id": "a"}],
    }
    answer = await client.post("/api/jobs", json={"workstream": wrong})
    assert answer.status_code == 422
    assert {finding["where"] for finding in answer.json()["findings"]} == {
        f"workstream.{place}"
        for place in (
            "task_lifecycle.default_timeout", "task_lifecycle.max_attempts", "task_lifecycle.jitter_percentage",
            "task_lifecycle.nope", "tool_profiles[0].failure_threshold", "tool_profiles[1].tool_id",
        )
    }  # fmt: skip


OF_THIS_MACHINE: list[tuple[dict[str, Any], str]] = [
    ({"tasks": [{"name": "a", "command": ["true"]}]}, "tasks[0].command"),
    ({"tasks": [{"name": "a", "run": "os:getcwd"}]}, "tasks[0].run"),
    ({"tasks": [{"name": "a", "run": "test.<locals>.body#1"}]}, "tasks[0].run"),
    ({**NAMED, "folder": "/srv"}, "folder"),
    ({**NAMED, "cwd": "/srv"}, "cwd"),
    ({**NAMED, "lifecycle": "os:path"}, "lifecycle"),
    ({**NAMED, "checks": [{"imports": "antigravity"}]}, "checks[0].imports"),
    ({**NAMED, "checks": [{"file": "/etc/shadow"}]}, "checks[0].file"),
    ({**NAMED, "on_failed": [{"command": "id", "shell": True}]}, "on_failed[0].command"),
    ({**NAMED, "alerts": [{"run": "os:abort"}]}, "alerts[0].run"),
    ({**NAMED, "defaults": {"retry": {"wait": "os:nice"}}}, "defaults.retry.wait"),
    ({**NAMED, "tools": {"args": {"retry": {"wait": "os:nice"}}}}, "tools.args.retry.wait"),
    ({**NAMED, "hold": {"clauses": [{"people": 1, "team": "t", "members": "os:x"}]}}, "hold.clauses[0].members"),
    ({"tasks": [{**NAMED["tasks"][0], "condition": {"command": "true"}}]}, "tasks[0].condition.command"),
]


async def test_nothing_of_this_machine_is_named_unless_commands_may_be(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    before = runtime.journal.tail
    for workstream, place in OF_THIS_MACHINE:
        answer = await client.post("/api/jobs", json={"workstream": workstream})
        assert answer.status_code == 422, place
        assert f"workstream.{place}" in {finding["where"] for finding in answer.json()["findings"]}
    assert runtime.journal.tail == before


async def test_commands_are_taken_where_the_operator_says_so(tmp_path: Path) -> None:
    async with (
        Runtime(workers=(LOOP, Worker("c", engine="command", capacity=1)), outputs=tmp_path) as runtime,
        client_of(runtime, commands=True) as client,
    ):
        tasks = [{"name": "a", "command": ["true"]}, {"name": "b", "run": "os:getcwdb", "engine": "thread", "nope": 1}]
        wrong = await client.post("/api/jobs", json={"workstream": {"tasks": tasks}})
        assert [finding["where"] for finding in wrong.json()["findings"]] == ["workstream.tasks[1].nope"]
        made = await client.post("/api/jobs", json={"workstream": {"tasks": tasks[:1]}})
        assert made.status_code == 201
        assert (await (await runtime.job(made.json()["id"])).wait()).state == "completed"


async def test_what_becomes_of_a_job_that_has_the_id_is_said_with_it(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    def work(text: str) -> dict[str, Any]:
        return {"tasks": [{"name": "a", "run": "task_description", "args": {"task_description": text}}]}

    async def post(text: str, **said: Any) -> httpx.Response:
        return await client.post("/api/jobs", json={"workstream": work(text), "id": "again", **said})

    assert (await post("wait", existing="refuse", request_id="made")).status_code == 201
    same = await post("wait", existing="refuse", request_id="made")
    assert (same.status_code, same.json()["id"]) == (200, "again")
    for existing, why in (
        ("refuse", "only a new one was to be submitted"),
        ("replace_ended", "has not ended (running now)"),
    ):
        refused = await post("x", existing=existing)
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/job-exists")
        assert why in refused.json()["detail"]
    await client.post("/api/jobs/again/cancel")
    await (await runtime.job("again")).wait()
    replaced = await post("x", existing="replace_ended", request_id="replaced")
    assert (replaced.status_code, replaced.json()["runs"], replaced.json()["first"]) == (201, 2, 2)
    await (await runtime.job("again")).wait()
    again = await post("x", existing="replace_ended", request_id="replaced")
    assert (again.status_code, again.json()["state"], again.json()["runs"]) == (200, "completed", 2)
    runs = (await client.get("/api/jobs/again/workstreams")).json()["items"]
    assert [(run["id"], run["state"]) for run in runs] == [("again@1", "cancelled"), ("again@2", "completed")]
    for said, place in (
        ({"existing": "replace"}, "existing"),
        ({"existing": "refuse", "id": None}, "existing"),
        ({"existing": "refuse", "workstream": None, "task_description": "x", "parent_job_id": "again"}, "existing"),
    ):
        wrong = await client.post("/api/jobs", json={"workstream": work("x"), "id": "again", **said})
        assert (wrong.status_code, [one["where"] for one in wrong.json()["findings"]]) == (422, [place])


async def test_the_key_that_something_was_made_under_is_a_key_nowhere_else(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    described = {"task_description": "wait", "request_id": "of a job"}
    parent = (await client.post("/api/jobs", json=described)).json()["id"]
    async for _ in (await runtime.job(parent)).events(task="task", to_state="running", notices=False):
        break
    child = {"task_description": "a part", "parent_job_id": parent, "request_id": "of a child"}
    assert (await client.post("/api/jobs", json=child)).status_code == 201
    worker = {"name": "keyed", "engine": "loop", "request_id": "of a worker"}
    assert (await client.post("/api/workers", json=worker)).status_code == 201
    before = runtime.journal.reader.request("of a job"), runtime.journal.reader.request("of a child")
    for key in ("of a job", "of a child", "of a worker"):
        others: list[tuple[str, dict[str, Any]]] = [
            ("/api/jobs", {"workstream": NAMED, "id": "other"}),
            ("/api/jobs", {"task_description": "else"}),
            ("/api/jobs", {"task_description": "else", "parent_job_id": parent, "id": "other"}),
            ("/api/workers", {"name": "other", "engine": "loop"}),
            (f"/api/jobs/{parent}/cancel", {}),
            ("/api/workers/loop/terminate", {}),
        ]
        for path, body in others:
            answer = await client.post(path, json={**body, "request_id": key})
            assert (answer.status_code, answer.json()["type"]) == (422, "/problems/request-id-reused"), (
                key,
                path,
                body,
            )
    assert (runtime.journal.reader.request("of a job"), runtime.journal.reader.request("of a child")) == before
    await client.post(f"/api/jobs/{parent}/cancel")
    await (await runtime.job(parent)).wait()
