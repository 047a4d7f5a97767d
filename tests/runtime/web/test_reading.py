"""Reading over HTTP: jobs, tasks and all else, living and ended, in memory and in a file."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from callboard import Approval, Clause, Hook, JobHandle, MachineActor, Runtime, Task, TaskContext, Workstream, step
from callboard.machines import JOB
from callboard.web import Token

from .conftest import client_of

pytestmark = pytest.mark.anyio

SPEC = Workstream(
    "Release",
    tasks=[
        Task("build", command="printf 0123456789; false || true", shell=True, tool="compiler"),
        Task("test", command="true", shell=True, depends_on=["build"], optional=True),
        Task("deploy", command="true", shell=True, depends_on=["test"], after=["build"], hold=Approval(people=2)),
    ],
)


async def until_held(job: JobHandle) -> None:
    async for _ in job.events(task="deploy", to_state="held", notices=False):
        break


@pytest.fixture(params=["memory", "file"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Runtime, httpx.AsyncClient]]:
    """A runtime with a job that is held and one that was cancelled, and a client of its board."""
    path = None if request.param == "memory" else tmp_path / "state.db"
    async with Runtime(path, drain_deadline=0.0) as runtime, client_of(runtime) as client:
        for name in ("old", "new"):
            await until_held(await runtime.submit(SPEC, id=name, by="ana"))
        old = await runtime.job("old")
        await old.cancel("no more")
        await old.wait()
        yield runtime, client


async def get(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(path)).raise_for_status().json()


Opened = tuple[Runtime, httpx.AsyncClient]


async def test_jobs_are_shown_as_they_are(opened: Opened) -> None:
    _, client = opened
    new, old = (await get(client, "/api/jobs"))["items"]
    assert (old["id"], old["state"], old["reason"], old["counts"]) == (
        "old", "cancelled", "no more", {"completed": 2, "cancelled": 1},
    )  # fmt: skip
    assert (new["name"], new["status"], new["phase"], new["total"], new["by"]) == (
        "Release",
        "running",
        "running",
        3,
        "ana",
    )
    assert (new["workstream_state"], new["waits_until"]) == ("executing", None)
    assert {"cancel", "pause"} <= {*new["actions"]}
    assert await get(client, "/api/jobs/old") == old
    (run,) = (await get(client, "/api/jobs/old/workstreams"))["items"]
    assert (run["id"], run["state"], run["task_count"]) == ("old@1", "cancelled", 3)


@pytest.mark.parametrize(
    ("settings", "state", "seconds"),
    [({"hold": Approval(expires="1h")}, "held", 3600.0), ({"wait": "2h"}, "waiting", 7200.0)],
    ids=["held", "waiting"],
)
async def test_a_job_says_until_when_its_workstream_waits(settings: Any, state: str, seconds: float) -> None:
    async with Runtime(drain_deadline=0.0) as runtime, client_of(runtime) as client:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", command="true", shell=True)], **settings), id="w")
        async for event in job.events(kind="workstream", to_state=state, notices=False):
            at = event.at
            break
        (listed,) = (await get(client, "/api/jobs"))["items"]
        assert (listed["workstream_state"], listed["waits_until"]) == (state, pytest.approx(at + seconds))
        assert (await get(client, "/api/jobs/w"))["waits_until"] == listed["waits_until"]


async def test_lists_have_parts_and_filters(opened: Opened) -> None:
    _, client = opened
    first = await get(client, "/api/jobs?limit=1")
    second = await get(client, f"/api/jobs?limit=1&cursor={first['next']}")
    assert [one["id"] for one in first["items"] + second["items"]] == ["new", "old"]
    assert second["next"] is None
    made = first["items"][0]["created_at"]
    for asked, ids in {
        "state=running": ["new"], "state=running&state=cancelled": ["new", "old"], "name=RELEASE": ["new", "old"],
        "name=other": [], f"older_than={made}": ["old"], f"newer_than={made}": [], "state=pending": [],
    }.items():  # fmt: skip
        assert [one["id"] for one in (await get(client, f"/api/jobs?{asked}"))["items"]] == ids, asked
    tasks = await get(client, "/api/jobs/new/tasks?limit=2&state=completed&state=held")
    assert [one["name"] for one in tasks["items"]] == ["build", "test"]
    tasks = await get(client, f"/api/jobs/new/tasks?cursor={tasks['next']}")
    assert [one["name"] for one in tasks["items"]] == ["deploy"]
    assert [one["name"] for one in (await get(client, "/api/jobs/old/tasks?run=1&name=EST"))["items"]] == ["test"]
    for asked in ("limit=0", "limit=501", "cursor=no", "older_than=x", "cursor=" + "9" * 200):
        refused = await client.get(f"/api/jobs?{asked}")
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/specification"), asked
        assert refused.json()["findings"], asked
    assert (await client.get("/api/jobs/old/tasks?run=2")).status_code == 404


@pytest.mark.parametrize("job", ["old", "new"])
async def test_a_task_is_shown_with_what_its_specification_says(opened: Opened, job: str) -> None:
    _, client = opened
    build = await get(client, f"/api/jobs/{job}/tasks/build")
    assert (build["state"], build["attempt"], build["exit_code"], build["tool"]) == ("completed", 1, 0, "compiler")
    assert build["command"]
    deploy = await get(client, f"/api/jobs/{job}/tasks/deploy")
    assert (deploy["depends_on"], deploy["after"], deploy["optional"]) == (["test"], ["build"], False)
    (attempt,) = (await get(client, f"/api/jobs/{job}/tasks/build/attempts"))["items"]
    assert (attempt["end"], attempt["exit_code"], attempt["output_size"]) == ("succeeded", 0, 10)


@step
async def line(number: int, size: int) -> str:
    if number == 3:
        raise ValueError("no line 3")
    return "x" * size


async def lines(task: TaskContext) -> None:
    for number in range(1, task.args.get("count", 5) + 1):
        with suppress(ValueError):
            await line(number, task.args["size"])


async def test_the_steps_of_a_task_are_listed_in_pages(opened: Opened) -> None:
    runtime, client = opened
    flow = Workstream(
        "w",
        tasks=[
            Task("a", run=lines, args={"size": 1}),
            Task("large", run=lines, args={"size": 600_000}),
            Task("many", run=lines, args={"size": 1, "count": 260}),
        ],
    )
    await (await runtime.submit(flow, id="flow")).wait()
    path = "/api/jobs/flow/tasks/a/steps"
    assert (await get(client, "/api/jobs/flow/tasks/a"))["flow"]
    assert not (await get(client, "/api/jobs/new/tasks/build"))["flow"]
    assert await get(client, "/api/jobs/new/tasks/build/steps") == {"items": [], "next": None}
    steps = (await get(client, path))["items"]
    assert [one["label"] for one in steps] == ["line", "line#2", "line#3", "line#4", "line#5"]
    third = steps[2]
    assert [one["state"] for one in steps] == [*["completed"] * 2, "failed", *["completed"] * 2]
    assert (steps[0]["result"], steps[0]["error"], steps[0]["tries"], steps[0]["attempt"]) == ("x", None, 1, 1)
    assert (third["result"], third["error"], third["error_type"]) == (None, "no line 3", "builtins:ValueError")
    assert "in line" in third["traceback"]
    assert third["ended_at"] >= third["began_at"]
    assert third["duration_ms"] >= 0
    for newest_first in (False, True):
        found, cursor = [], ""
        while cursor is not None:
            page = await get(
                client, f"{path}?limit=2&newest_first={str(newest_first).lower()}{cursor and f'&cursor={cursor}'}"
            )
            found.append([one["number"] for one in page["items"]])
            cursor = page["next"]
        assert found == ([[5, 4], [3, 2], [1]] if newest_first else [[1, 2], [3, 4], [5]])
    page = await get(client, "/api/jobs/flow/tasks/large/steps")  # it ends after 1 MB of results
    assert [one["number"] for one in page["items"]] == [1, 2]
    page = await get(client, f"/api/jobs/flow/tasks/large/steps?cursor={page['next']}")
    assert [one["number"] for one in page["items"]] == [3, 4, 5]
    assert page["next"] is None
    many = [one["number"] for one in (await get(client, "/api/jobs/flow/tasks/many/steps?limit=250"))["items"]]
    assert many == list(range(1, 251))
    for asked in ("limit=0", "limit=10001", "cursor=no", "newest_first=perhaps"):
        assert (await client.get(f"{path}?{asked}")).status_code == 422, asked
    assert (await client.get("/api/jobs/flow/tasks/none/steps")).status_code == 404


async def test_a_run_is_told_compactly(opened: Opened) -> None:
    _, client = opened
    for job, last in (("old", "cancelled"), ("new", "held")):
        graph = await get(client, f"/api/jobs/{job}/graph")
        assert (graph["names"], graph["layers"]) == (["build", "test", "deploy"], [0, 1, 2])
        assert graph["states"] == graph["phases"] == ["completed", "completed", last]
        assert (graph["depends_on"], graph["after"]) == ([[], [0], [1]], [[], [], [0]])
        for _ in range(2):
            answer = await get(client, f"/api/jobs/{job}/timeline")
        bars = {row["task"]: [bar["phase"] for bar in row["bars"]] for row in answer["rows"]}
        assert bars == {0: ["queued", "running", "validating"], 1: ["queued", "running", "validating"], 2: ["held"]}
        (bar,) = answer["rows"][2]["bars"]
        assert (bar["to"] is None) is (job == "new")
        assert [row["task"] for row in (await get(client, f"/api/jobs/{job}/timeline?offset=1&limit=1"))["rows"]] == [1]


async def test_output_is_told_whole_and_in_parts(opened: Opened) -> None:
    _, client = opened
    path = "/api/jobs/new/tasks/build/output"
    whole = await client.get(path)
    assert (whole.status_code, whole.text, whole.headers["x-output-size"]) == (200, "0123456789", "10")
    assert whole.headers["content-type"].startswith("text/plain")
    assert whole.headers["x-content-type-options"] == "nosniff"
    for asked, told, place in (
        ("bytes=0-3", "0123", "bytes 0-3/10"), ("bytes=7-", "789", "bytes 7-9/10"), ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=5-99", "56789", "bytes 5-9/10"),
    ):  # fmt: skip
        part = await client.get(path, headers={"Range": asked})
        assert (part.status_code, part.text, part.headers["content-range"]) == (206, told, place)
    for asked in ("bytes=10-", "bytes=-0", "bytes=99999999999999999999-"):
        beyond = await client.get(path, headers={"Range": asked})
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")
    for asked in ("lines=1-2", "bytes=3-1", "bytes=0-1,3-4", "bytes=-"):
        assert (await client.get(path, headers={"Range": asked})).status_code == 200
    same = {"If-None-Match": whole.headers["etag"]}
    assert (await client.get(path, headers=same)).status_code == 304
    other = {"Range": "bytes=0-3", "If-Range": '"other"'}
    assert (await client.get(path, headers=other)).status_code == 200
    assert (await client.get("/api/jobs/new/tasks/build/attempts/1/output")).text == "0123456789"
    assert (await client.get("/api/jobs/new/tasks/build/attempts/2/output")).status_code == 404
    assert (await client.get("/api/jobs/new/tasks/deploy/output")).status_code == 404
    nothing = await client.get("/api/jobs/new/tasks/test/output", headers={"Range": "bytes=-100"})
    assert (nothing.status_code, nothing.text, nothing.headers["x-output-size"]) == (200, "", "0")


async def test_what_waits_for_people_is_listed(opened: Opened) -> None:
    _, client = opened
    (one,) = (await get(client, "/api/approvals"))["items"]
    assert (one["job_id"], one["task"], one["name"], one["submitted_by"]) == ("new", "deploy", "deploy", "ana")
    assert (one["missing"], one["anybody"], one["job_name"]) == (["2 people"], True, "Release")
    assert (one["yours"], one["why_not"], one["actions"]) == (None, None, ["approve", "reject"])
    assert (await get(client, "/api/jobs/new/approvals"))["items"] == [one]
    assert (await get(client, "/api/jobs/old/approvals"))["items"] == []


async def test_what_waits_for_who_asks_comes_first_and_else_it_is_said_why_it_does_not(runtime: Runtime) -> None:
    names = ("ana", "bo", "cy")
    secrets = {name: f"{name}-0123456789abcdef" for name in names}
    tokens = [Token(name, secrets[name], ["read", "approve"]) for name in names]
    tokens.append(Token("ops", "ops-0123456789abcdef", ["read", "operate"]))
    secrets["ops"] = "ops-0123456789abcdef"
    for name, hold in {
        "named": Approval(clauses=[Clause(person="bo"), Clause(person="cy")]),
        "two": Approval(people=2), "team": Approval(clauses=[Clause(team="crew", people=1, members="json:dumps")]),
        "self": Approval(self_approval=True),
    }.items():  # fmt: skip
        spec = Workstream(name, tasks=[Task("deploy", command=["true"], hold=hold)])
        await until_held(await runtime.submit(spec, id=name, by="ana"))
    bo = await runtime.job("named")
    await bo.task("deploy").approve(by="Bo", reason="looks well")

    async with client_of(runtime, tokens=tokens) as client:

        async def seen_by(name: str) -> list[dict[str, Any]]:
            answer = await client.get("/api/approvals", headers={"Authorization": f"Bearer {secrets[name]}"})
            return list(answer.raise_for_status().json()["items"])

        ana, bo_, cy, ops = [await seen_by(name) for name in ("ana", "bo", "cy", "ops")]
    assert [(one["job_id"], one["yours"], one["why_not"]) for one in ana] == [
        ("self", True, None),
        ("named", False, "you submitted it, and self-approval is off"),
        ("two", False, "you submitted it, and self-approval is off"),
        ("team", False, "you submitted it, and self-approval is off"),
    ]
    assert [one["job_id"] for one in bo_] == ["two", "team", "self", "named"]
    assert (bo_[3]["yours"], bo_[3]["why_not"]) == (False, "you have approved it")
    assert [one["yours"] for one in cy] == [True] * 4
    assert {one["why_not"] for one in ops} == {"your token may not decide"}
    (told,) = bo_[3]["decisions"]
    assert (told["by"], told["reason"], bo_[3]["people"]) == ("Bo", "looks well", ["cy"])


async def test_workers_breakers_and_machines_are_shown(opened: Opened) -> None:
    runtime, client = opened
    runtime.spawn(MachineActor(JOB), name="mine")
    await runtime.machine("mine").fire("validate")
    workers = (await get(client, "/api/workers"))["items"]
    assert {one["name"] for one in workers} >= {"loop", "commands"}
    assert [one["name"] for one in (await get(client, "/api/workers?name=LOO"))["items"]] == ["loop"]
    loop = await get(client, "/api/workers/loop")
    assert (loop["engine"], loop["capacity"], loop["state"]) == ("loop", 100, "idle")
    assert (loop["id"], loop["entity_id"]) == ("loop", "loop#1")
    again = await get(client, "/api/workers/loop%231")
    assert again == {**loop, "last_seen": again["last_seen"]}
    (breaker,) = (await get(client, "/api/breakers"))["items"]
    assert (breaker["tool"], breaker["state"], breaker["actions"]) == ("compiler", "closed", ["reset", "trip"])
    assert (await get(client, "/api/breakers/compiler"))["id"] == breaker["id"] == breaker["entity_id"] == "compiler"
    (machine,) = (await get(client, "/api/machines"))["items"]
    assert (machine["name"], machine["state"], machine["actions"]) == ("mine", "pending", ["fire"])
    assert "allocate" in (await get(client, "/api/machines/mine"))["events"]


async def test_transitions_come_in_parts_without_a_gap(opened: Opened) -> None:
    _, client = opened
    seen: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await get(client, f"/api/transitions?limit=7&after={after}")
        seen += [one["seq"] for one in page["items"]]
        after = page["next"]
    assert seen == list(range(1, len(seen) + 1))
    (held,) = [
        one for one in (await get(client, "/api/jobs/new/transitions?kind=task"))["items"] if one["to_state"] == "held"
    ]
    assert (held["entity_id"], held["job_id"]) == ("new@1/deploy", "new")
    rows = (await get(client, "/api/transitions?entity=new@1/deploy"))["items"]
    assert [one["to_state"] for one in rows] == ["pending", "held"]


async def test_transitions_come_backwards_too_in_parts_without_a_gap(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = opened
    monkeypatch.setattr("callboard.runtime.web.read.transitions.PIECE", 2)
    for query in ("", "&job=new", "&entity=new@1/deploy", "&kind=workstream", "&after=9"):
        forwards = [one["seq"] for one in (await get(client, f"/api/transitions?limit=500{query}"))["items"]]
        assert forwards
        seen: list[int] = []
        before: int | None = 0
        while before is not None:
            page = await get(client, f"/api/transitions?limit=3&before={before}{query}")
            seen += [one["seq"] for one in page["items"]]
            before = page["next"]
        assert seen == forwards[::-1]
    newest = await get(client, "/api/jobs/new/transitions?before=0&limit=1")
    assert newest["items"][0] == (await get(client, "/api/jobs/new/transitions"))["items"][-1]


async def test_what_is_not_there_is_a_problem(client: httpx.AsyncClient) -> None:
    for path in (
        "/nothing", "/api/nothing", "/api/jobs/none", "/api/jobs/none/tasks", "/api/jobs/none/tasks/t",
        "/api/jobs/none/graph", "/api/jobs/none/timeline", "/api/jobs/none/approvals", "/api/jobs/none/transitions",
        "/api/jobs/none/workstreams", "/api/jobs/none/tasks/t/attempts", "/api/jobs/none/tasks/t/output",
        "/api/jobs/none/tasks/t/steps",
        "/api/workers/none", "/api/breakers/none", "/api/machines/none", "/api/jobs/a:b:c",
    ):  # fmt: skip
        answer = await client.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "/problems/not-found"
        assert answer.json()["instance"] == path


async def test_health_and_metrics_are_told(client: httpx.AsyncClient) -> None:
    answer = await get(client, "/api/health")
    assert (answer["status"], answer["accepting"], answer["reason"]) == ("ok", True, None)
    for path in ("/health/live", "/health/ready"):
        assert await get(client, path) == {"status": "ok"}
    metrics = {one["name"]: one for one in (await get(client, "/api/metrics"))["items"]}
    assert metrics["transitions"]["kind"] == "counter"
    prometheus = await client.get("/metrics")
    assert "callboard_workers{" in prometheus.text
    assert prometheus.headers["content-type"].startswith("text/plain")


async def test_what_is_owed_is_told(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "state.db", drain_deadline=0.0) as runtime, client_of(runtime) as client:
        waits = Hook(command=["sleep", "60"], timeout="10m")
        spec = Workstream("w", tasks=[Task("a", command=["true"], on_completed=[waits])])
        assert (await (await runtime.submit(spec, id="j1")).wait()).ok
        await runtime._services.settled(60)
        (one,) = (await get(client, "/api/owed"))["items"]
        assert one.pop("since") <= runtime._services.now()
        assert one.pop("id") > 0
        assert one == {
            "kind": "hook", "owner": "j1@1/a", "event": "on_completed", "runs": "sleep 60", "job_id": "j1", "tries": 0,
        }  # fmt: skip


async def test_what_went_wrong_that_no_transition_tells_is_told(runtime: Runtime, client: httpx.AsyncClient) -> None:
    notice = runtime._services.host.notice
    notice("only_said", "info", "nothing is wrong")
    for number in range(3):
        told = ValueError("no such channel")
        notice(
            "actor_failed", "error", f"echo failed, {number}", kind="actor", entity_id="echo", raised=told,
            message="str", traceback="Traceback:\n  <b>",
        )  # fmt: skip
    notice("odd", "warning", "something is", kind="job", entity_id="j1", job_id="j1")
    await runtime._services.settled(60)
    page = await get(client, "/api/notices?limit=1")
    (odd,) = page["items"]
    assert (odd["event"], odd["severity"], odd["job_id"]) == ("odd", "warning", "j1")
    assert (odd["count"], odd["error"]) == (1, None)
    (failed,) = (await get(client, f"/api/notices?limit=1&cursor={page['next']}"))["items"]
    assert failed.pop("at") >= failed.pop("first_at")
    assert failed.pop("id") > 0
    assert failed.pop("count") in {1, 3}  # a second later at the latest it is 3
    assert failed.pop("text").startswith("echo failed")
    assert failed == {
        "event": "actor_failed", "severity": "error", "kind": "actor", "entity_id": "echo", "job_id": None,
        "error": "ValueError", "message": "str", "traceback": "Traceback:\n  <b>", "others": False, "node": None,
    }  # fmt: skip
    assert len((await get(client, "/api/notices"))["items"]) == 2
    assert [one["event"] for one in (await get(client, "/api/notices?about=j1"))["items"]] == ["odd"]
    assert (await get(client, f"/api/notices?since={runtime._services.now() + 60}"))["items"] == []
    assert (await client.get("/api/notices?since=never")).status_code == 422


async def test_nothing_is_read_or_done_while_the_runtime_is_not_open() -> None:
    runtime = Runtime(drain_deadline=0.0)
    async with client_of(runtime) as client:
        paths: dict[str, Any] = (await get(client, "/api/openapi.json"))["paths"]
        reads = [re.sub("{.*?}", "1", path) for path, methods in paths.items() if "get" in methods]
        assert len(reads) > 30

        async def closed(why: str) -> None:
            for method, path in [("POST", "/api/jobs/1/cancel"), *(("GET", path) for path in reads)]:
                answer = await client.request(method, path)
                content = answer.json()
                assert (answer.status_code, content["type"]) == (503, "/problems/closed"), (path, content)
                assert why in content["detail"]
                assert answer.headers["retry-after"] == "5"

        await closed("the runtime is not open")
        async with runtime:
            await get(client, "/api/jobs")
        await closed("the runtime was closed")
