"""What is read of jobs and tasks over HTTP."""

from __future__ import annotations

import httpx
import pytest

from callboard import Approval, Runtime, Task, Workstream

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


TWO = Workstream("two", tasks=[Task("one", run=one), Task("held", run=one, depends_on=["one"], hold=Approval())])


async def test_a_job_and_its_tasks_are_shown(runtime: Runtime, client: httpx.AsyncClient) -> None:
    job = await runtime.submit(TWO, id="j")
    async for _ in job.events(task="held", to_state="held", notices=False):
        break
    told = (await client.get("/api/jobs/j")).raise_for_status().json()
    assert (told["state"], told["counts"], told["total"]) == ("running", {"completed": 1, "held": 1}, 2)
    tasks = (await client.get("/api/jobs/j/tasks")).raise_for_status().json()["items"]
    assert [(task["name"], task["state"]) for task in tasks] == [("one", "completed"), ("held", "held")]
    task = (await client.get("/api/jobs/j/tasks/one")).raise_for_status().json()
    assert (task["result"], task["attempt"]) == (1, 1)
    assert [one["id"] for one in (await client.get("/api/jobs")).json()["items"]] == ["j"]


async def test_what_is_not_there_is_a_problem(client: httpx.AsyncClient) -> None:
    for path in ("/api/jobs/none", "/api/jobs/none/tasks", "/api/jobs/none/tasks/t", "/nothing"):
        answer = await client.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/not-found"


async def test_the_page_and_its_health_are_there(client: httpx.AsyncClient) -> None:
    assert "Callboard" in (await client.get("/")).text
    assert (await client.get("/api/health")).json()["status"] == "ok"
