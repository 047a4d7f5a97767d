"""Attacks on the board: nothing is changed, nothing is disclosed, and nothing breaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx
import msgspec
import pytest
from tests.runtime.web.conftest import URL

from callboard import Approval, MachineActor, Runtime, Task, Tool, Worker, Workstream
from callboard.machines.lifecycles.fleet import JOB as FLEET_JOB
from callboard.runtime.web.write.actions import ACTIONS
from callboard.web import Token, board

pytestmark = pytest.mark.anyio
ANA, BO, READER = "a" * 16, "b" * 16, "r" * 16
OPERATOR, APPROVER = "o" * 16, "p" * 16
TOKENS = (
    Token("ana", ANA, ("operate", "approve")),
    Token("bo", BO, ("operate", "approve")),
    Token("reader", READER, ("read",)),
    Token("operator", OPERATOR, ("operate",)),
    Token("approver", APPROVER, ("approve",)),
)
IDS = count()


async def noop() -> None:
    """A body."""


@pytest.fixture(scope="module")
async def all_three() -> AsyncIterator[tuple[Runtime, Any, httpx.AsyncClient]]:
    """A runtime, its board with tokens, and a client of that, which all tests share."""
    async with Runtime(workers=(), drain_deadline=0.0) as runtime:
        runtime.task(noop)
        app = board(runtime, tokens=TOKENS)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=URL) as client:
            yield runtime, app, client


@pytest.fixture
async def paths(all_three: tuple[Runtime, Any, httpx.AsyncClient]) -> dict[str, str]:
    """Where one of each is, of this test."""
    runtime, n = all_three[0], next(IDS)
    held = Task("held", command=["true"], hold=Approval(people=3), tool=f"t{n}")
    await runtime.submit(Workstream("flow", tasks=[held], tools={f"t{n}": Tool()}), id=f"j{n}")
    await runtime.start_worker(Worker(f"w{n}", engine="loop"))
    await runtime.spawn(MachineActor(FLEET_JOB), name=f"m{n}").fire("validate")
    return {
        "job": f"/api/jobs/j{n}", "task": f"/api/jobs/j{n}/tasks/held", "worker": f"/api/workers/w{n}",
        "breaker": f"/api/breakers/t{n}", "machine": f"/api/machines/m{n}", "id": f"j{n}",
    }  # fmt: skip


def shows(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


async def raw(app: Any, path: str, *, method: str = "POST", raw_path: bytes | None = None, **headers: str) -> Any:
    """The answer to a request that no client would send: (status, body)."""
    told: list[Any] = []
    sent = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "query_string": b"", "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8470),
        "headers": [(b"host", b"127.0.0.1:8470"), *sent], "raw_path": path.encode() if raw_path is None else raw_path,
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    await app(scope, receive, send)
    return told[0]["status"], b"".join(message.get("body", b"") for message in told[1:])


async def test_each_action_needs_its_scope_and_no_other_will_do(
    all_three: tuple[Runtime, Any, httpx.AsyncClient],
    paths: dict[str, str],
) -> None:
    runtime, _, client = all_three
    before = runtime.journal.tail
    others = [("/api/jobs", "operate"), ("/api/workers", "operate")]
    for path, needed in [*((f"{paths[one.kind]}/{one.word}", one.scope) for one in ACTIONS), *others]:
        for secret, has in ((READER, "read"), (OPERATOR, "operate"), (APPROVER, "approve")):
            if has != needed:
                answer = await client.post(path, headers=shows(secret), json={})
                assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), (path, has)
        assert (await client.post(path, json={})).status_code == 401
        assert (await client.post(f"{path}/", json={})).status_code == 401
        assert (await client.post(path, json={}, headers={"Authorization": f"Basic {ANA}"})).status_code in {401, 429}
        assert (await client.get(path, headers=shows(OPERATOR))).status_code in {403, 404, 405}
    assert runtime.journal.tail == before


async def test_an_event_needs_the_scope_of_the_word_that_it_is(
    all_three: tuple[Runtime, Any, httpx.AsyncClient],
    paths: dict[str, str],
) -> None:
    runtime, _, client = all_three
    before = runtime.journal.tail
    words = [
        ("task", "approve", "approve"), ("task", "reject", "approve"), ("task", "cancel", "operate"),
        ("job", "approve", "approve"), ("job", "pause", "operate"), ("worker", "terminate", "operate"),
        ("breaker", "trip", "operate"),
    ]  # fmt: skip
    for kind, event, needed in words:
        for secret, has in ((READER, "read"), (OPERATOR, "operate"), (APPROVER, "approve")):
            if has != needed:
                answer = await client.post(f"{paths[kind]}/fire", headers=shows(secret), json={"event": event})
                assert (answer.status_code, answer.json()["type"]) == (403, "/problems/forbidden"), answer.text
                assert f"needs the scope '{needed}'" in answer.json()["detail"]
        assert (await client.post(f"{paths[kind]}/fire", json={"event": event})).status_code == 401
    # a job is no machine: its events are not judged like those of an application's machine
    name = paths["id"]
    answer = await client.post(f"/api/machines/{name}/fire", headers=shows(OPERATOR), json={"event": "approve"})
    assert answer.status_code == 404
    assert runtime.journal.tail == before
    answer = await client.post(f"{paths['task']}/fire", headers=shows(APPROVER), json={"event": "approve", "by": "ana"})
    assert answer.status_code == 403  # only as themselves
    answer = await client.post(f"{paths['task']}/fire", headers=shows(APPROVER), json={"event": "approve"})
    assert (answer.status_code, answer.json()["state"]) == (200, "held")
    job = await runtime.job(name)
    assert [one.by for one in job.task("held").record.decisions] == ["approver"]


async def test_nobody_acts_as_somebody_else(
    all_three: tuple[Runtime, Any, httpx.AsyncClient], paths: dict[str, str]
) -> None:
    runtime, _, client = all_three
    before = runtime.journal.tail
    for by in ("bo", "Ana", "ana ", "ANA", "an\u0430", "operator"):
        answer = await client.post(f"{paths['task']}/approve", headers=shows(ANA), json={"by": by})
        assert answer.status_code == 403, by
        made = await client.post("/api/jobs", headers=shows(ANA), json={"by": by, "workstream": {"tasks": []}})
        assert made.status_code in {403, 422}
    fired = await client.post(
        f"{paths['machine']}/fire", headers=shows(ANA), json={"event": "allocate_resources", "metadata": {"by": "bo"}}
    )
    assert (fired.status_code, fired.json()["findings"][0]["where"]) == (422, "metadata")
    assert runtime.journal.tail == before
    names = {"X-Forwarded-User": "bo", "Remote-User": "bo", "By": "bo", "X-By": "bo"}
    beside = await client.post(f"{paths['task']}/approve?by=bo", headers=shows(ANA), json={})
    assert (beside.status_code, beside.json()["findings"][0]["where"]) == (422, "by")
    answer = await client.post(f"{paths['task']}/approve", headers={**shows(ANA), **names}, json={"by": None})
    assert answer.status_code == 200
    assert [one.by for one in (await runtime.job(paths["id"])).task("held").record.decisions] == ["ana"]
    twice = await client.post(
        f"{paths['job']}/cancel", headers={**shows(ANA), "Content-Type": "application/json"},
        content=b'{"by": "ana", "by": "bo"}',
    )  # fmt: skip
    assert twice.status_code == 403


async def test_who_submits_with_a_token_cannot_approve_that(
    all_three: tuple[Runtime, Any, httpx.AsyncClient],
    paths: dict[str, str],
) -> None:
    _, _, client = all_three
    tasks = [{"name": "t", "run": "noop", "hold": {"people": 1}}]
    made = await client.post("/api/jobs", headers=shows(ANA), json={"workstream": {"tasks": tasks}})
    path = f"/api/jobs/{made.json()['id']}/tasks/t/approve"
    mine = await client.post(path, headers=shows(ANA))
    assert (mine.status_code, "self-approval is off" in mine.json()["detail"]) == (409, True)
    assert (await client.post(path, headers=shows(BO))).status_code == 200


async def test_the_key_of_another_tells_and_does_nothing(
    all_three: tuple[Runtime, Any, httpx.AsyncClient], paths: dict[str, str]
) -> None:
    runtime, _, client = all_three
    key = {"Idempotency-Key": '"secret-key"'}
    asked: list[tuple[str, dict[str, Any]]] = [
        (f"{paths['task']}/approve", {"reason": "mine"}),
        (f"{paths['breaker']}/trip", {"cooldown": 7}),
        (f"{paths['machine']}/fire", {"event": "allocate_resources"}),
        (f"{paths['worker']}/shut_down", {}),
        ("/api/workers", {"name": "x", "engine": "loop"}),
    ]
    for number, (path, body) in enumerate(asked):
        own = {"Idempotency-Key": f'"key-{number}"'}
        first = await client.post(path, headers={**shows(ANA), **own}, json=body)
        assert first.status_code in {200, 201}, first.text
        before = runtime.journal.tail
        stolen = await client.post(path, headers={**shows(BO), **own}, json=body)
        assert (stolen.status_code, stolen.json()["type"]) == (422, "/problems/request-id-reused")
        assert "ana" not in stolen.text
        assert "mine" not in stolen.text
        read = await client.post(path, headers={**shows(READER), **own}, json=body)
        assert read.status_code == 403
        assert runtime.journal.tail == before
        again = await client.post(path, headers={**shows(ANA), **own}, json=body)
        assert again.content == first.content
    for body in ({"workspace_id": "ws"}, {"workspace_id": "ws2"}):
        two = [await client.post("/api/workers", headers={**shows(who), **key}, json=body) for who in (ANA, BO)]
        if body["workspace_id"] == "ws":
            assert two[0].json()["id"] != two[1].json()["id"] if two[1].status_code == 201 else True
    work = {"workstream": {"tasks": [{"name": "t", "run": "noop"}]}}
    jobs = [await client.post("/api/jobs", headers={**shows(who), **key}, json=work) for who in (ANA, BO)]
    assert [job.status_code for job in jobs] == [422, 422]  # it is the key of a worker
    own = {"Idempotency-Key": '"key-of-a-job"'}
    jobs = [await client.post("/api/jobs", headers={**shows(who), **own}, json=work) for who in (ANA, BO, ANA)]
    assert [job.status_code for job in jobs] == [201, 422, 200]
    assert jobs[0].json()["id"] == jobs[2].json()["id"]
    assert jobs[0].json()["id"] not in jobs[1].text
    assert "ana" not in jobs[1].text


async def test_no_way_of_writing_a_path_leads_to_something_else(
    all_three: tuple[Runtime, Any, httpx.AsyncClient],
) -> None:
    runtime, app, client = all_three
    held = Task("held", command=["true"], hold=Approval())
    await runtime.submit(Workstream("w", tasks=[held]), id="j")
    await runtime.start_worker(Worker("w", engine="loop"))
    before = runtime.journal.tail
    auth = f"Bearer {ANA}"
    for path in (
        "/api/jobs/../workers/w/terminate", "/api/jobs/./cancel", "/api/jobs/j/tasks/../cancel", "/api/jobs/j;x/cancel",
        "/api/jobs/:/cancel", "/api/jobs/j:/cancel", "/api/jobs/j::held/cancel", "/api/jobs/j:held/cancel",
        "/api/jobs/j/tasks/held:x/cancel", "/api/jobs/j@1/cancel", "/api/jobs/J/cancel", "/api/jobs/ j/cancel",
        "/api/jobs/j\x00/cancel", "/api/jobs/j\n/cancel", "/api/jobs/\uff4a/cancel", "/api/jobs/j\u200b/cancel",
        "/api/workers/w#1/pause/x", "/api/workers/W/terminate", "/api/jobs/\udc80/cancel", "/API/jobs/j/cancel",
        "/api/jobs/%6a/cancel", "/api/breakers/../trip", "\\api\\jobs\\j\\cancel", "/api/jobs/j/Cancel",
    ):  # fmt: skip
        encoded = path.encode("utf-8", "surrogateescape")
        status, body = await raw(app, path, raw_path=encoded, authorization=auth)
        assert status in {404, 405}, (path, status, body)
        assert msgspec.json.decode(body)["status"] == status
    for path, raw_path in (
        ("/api/jobs/j/tasks/held/cancel", b"/api/jobs/j%2Ftasks%2fheld/cancel"),
        ("/api/jobs/j/cancel", b"/api/jobs%2Fj/cancel"),
        ("/api/workers/w/terminate", b"/api/%2fworkers/w/terminate"),
        ("/api/jobs/j/cancel", b"/api/jobs/j%5Ccancel"),
    ):
        status, body = await raw(app, path, raw_path=raw_path, authorization=auth)
        assert (status, msgspec.json.decode(body)["type"]) == (404, "/problems/not-found"), raw_path
    assert runtime.journal.tail == before
    odd = [Task(name, command=["true"], hold=Approval(), optional=True) for name in ("50%2F50", "ä b#c;d&e+f")]
    await runtime.submit(Workstream("odd", tasks=odd), id="odd")
    for name in ("50%252F50", "%C3%A4%20b%23c%3Bd%26e%2Bf"):
        answer = await client.post(f"/api/jobs/odd/tasks/{name}/cancel", headers=shows(ANA))
        assert answer.status_code == 200, name


async def test_headers_that_are_none_are_refused_and_break_nothing(
    all_three: tuple[Runtime, Any, httpx.AsyncClient],
    paths: dict[str, str],
) -> None:
    runtime, app, client = all_three
    before = runtime.journal.tail
    for origin in (
        "http://[",
        "null",
        "http://evil",
        "http://127.0.0.1:8470@evil",
        "http://evil#127.0.0.1:8470",
        "\xff",
    ):
        status, _ = await raw(app, f"{paths['job']}/cancel", origin=origin, authorization=f"Bearer {ANA}")
        assert status == 403, origin
    for shown in (
        "",
        "Bearer",
        "Bearer ",
        f"Bearer  {ANA}x",
        f"Token {ANA}",
        "Bearer \xff\xfe",
        f"Bearer {ANA.upper()}",
    ):
        status, _ = await raw(app, f"{paths['job']}/cancel", authorization=shown)
        assert status in {401, 429}, shown
    status, _ = await raw(app, f"{paths['job']}/cancel", method="DELETE", authorization=f"Bearer {ANA}")
    assert status == 405
    assert runtime.journal.tail == before
    for _ in range(12):
        await client.post(f"{paths['job']}/pause", headers=shows("w" * 16))
    locked = await client.post(f"{paths['job']}/pause", headers=shows("w" * 16))
    assert locked.status_code == 429
    mine = await client.post(f"{paths['task']}/approve", headers=shows(ANA))
    assert mine.status_code == 200  # a client with the right token is not locked out by others


async def test_two_headers_of_one_name_do_not_say_two_things(
    all_three: tuple[Runtime, Any, httpx.AsyncClient],
    paths: dict[str, str],
) -> None:
    _, _, client = all_three
    for pair in ([READER, ANA], [ANA, READER]):
        headers = [("Authorization", f"Bearer {secret}") for secret in pair]
        answer = await client.post(f"{paths['job']}/cancel", headers=headers)
        assert answer.status_code in {400, 401, 403}, pair


async def test_what_is_nested_too_deep_or_means_too_much_is_refused(
    all_three: tuple[Runtime, Any, httpx.AsyncClient],
    paths: dict[str, str],
) -> None:
    runtime, _, client = all_three
    before = runtime.journal.tail
    headers = {**shows(ANA), "Content-Type": "application/json"}
    for depth in (150, 300, 500, 700, 850, 950, 100_000):
        nested = b"[" * depth + b"]" * depth
        for body in (
            b'{"workstream": {"tasks": %b}}' % nested,
            b'{"workstream": {"tasks": [{"name": "a", "run": "noop", "args": {"x": %b}}]}}' % nested,
            b'{"event": "allocate_resources", "metadata": {"x": %b}}' % nested,
        ):
            path = f"{paths['machine']}/fire" if b"metadata" in body else "/api/jobs"
            answer = await client.post(path, content=body, headers=headers)
            assert answer.status_code in {400, 422}, (depth, answer.text)
    assert runtime.journal.tail == before
