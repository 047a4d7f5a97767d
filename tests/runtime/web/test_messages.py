"""Messages over HTTP: as a webhook posts them, and as the client sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx
import pytest
from tests.runtime.flows.helpers import result
from tests.runtime.web.conftest import client_of

from callboard import JobHandle, Runtime, Task, TaskContext, Worker, Workstream
from callboard.runtime.handles.base import LARGEST_MESSAGE
from callboard.runtime.web.write.actions import LARGEST_BODY

pytestmark = pytest.mark.anyio
IDS = count()


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime(workers=[Worker("w", engine="loop")], drain_deadline=0.0) as opened:

        @opened.task(name="body")
        async def body(task: TaskContext) -> list[Any]:
            return [await task.receive("payment") for _ in range(task.args["most"])]

        yield opened


@pytest.fixture(scope="module")
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(runtime) as opened:
        yield opened


async def submitted(runtime: Runtime, most: int) -> JobHandle:
    task = Task("t", run="body", args={"most": most})
    return await runtime.submit(Workstream("flow", tasks=[task]), id=f"m{next(IDS)}")


async def test_a_webhooks_body_is_the_value_json_or_text(runtime: Runtime, client: httpx.AsyncClient) -> None:
    job = await submitted(runtime, 5)
    path = f"/api/jobs/{job.id}/messages/payment"
    for body, kind in (
        (b'{"cents": 1200}', "application/json"), (b"paid=yes&by=ana", "application/x-www-form-urlencoded"), (b"", ""),
        ("caf\u00e9".encode("latin-1"), "text/plain; charset=latin-1"),
    ):  # fmt: skip
        answer = await client.post(path, content=body, headers={"Content-Type": kind} if kind else {})
        assert (answer.status_code, answer.json()["kind"], answer.json()["id"]) == (200, "job", job.id)
    answer = await client.post(f"/api/jobs/{job.id}/tasks/t/messages/payment", content=b"[1]")
    assert (answer.status_code, answer.json()["kind"]) == (200, "task")
    assert await result(job) == [{"cents": 1200}, "paid=yes&by=ana", None, "caf\u00e9", [1]]


async def test_a_webhooks_sender_is_checked_and_an_empty_name_is_not_replaced(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    job = await submitted(runtime, 1)
    path = f"/api/jobs/{job.id}/messages/payment"
    for by in ("", " ", "n" * 201):
        answer = await client.post(path, params={"by": by}, content=b"1")
        assert (answer.status_code, "`by` is the name of the author" in answer.text) == (422, True), answer.text
    assert (await client.post(path, params={"by": "bank"}, content=b"2")).status_code == 200
    assert await result(job) == [2]


async def test_a_webhook_that_is_delivered_twice_is_one_message(runtime: Runtime, client: httpx.AsyncClient) -> None:
    job = await submitted(runtime, 2)
    path, key = f"/api/jobs/{job.id}/messages/payment", {"Idempotency-Key": f'"evt-{job.id}"'}
    for _ in range(2):
        assert (await client.post(path, content=b"1", headers=key)).status_code == 200
    other = await client.post(path, content=b"2", headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "/problems/request-id-reused")
    await client.post(path, content=b"2", params={"by": "ana", "request_id": "r" + job.id})
    assert await result(job) == [1, 2]
    assert [one.by for one in runtime.journal.reader.messages(job.id)] == ["operator", "ana"]
    assert (await client.post(path, content=b"1", headers=key)).status_code == 200  # delivered again after the end
    ended = await client.post(path, content=b"3")
    assert (ended.status_code, ended.json()["state"]) == (409, "completed")


async def test_what_can_be_no_message_is_refused(runtime: Runtime, client: httpx.AsyncClient) -> None:
    job = await submitted(runtime, 1)
    for kind in ("text/plain", "text/plain; charset=odd", "application/octet-stream"):
        answer = await client.post(
            f"/api/jobs/{job.id}/messages/payment", content=b"caf\xe9", headers={"Content-Type": kind}
        )
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/specification")
        assert "neither JSON nor text" in answer.json()["detail"]
    path = f"/api/jobs/{job.id}"
    for header in ({"Origin": "http://localhost"}, {"Sec-Fetch-Site": "none"}):  # a form of a page
        form = {"Content-Type": "application/x-www-form-urlencoded", **header}
        assert (await client.post(f"{path}/messages/payment", content=b"a=1", headers=form)).status_code in {403, 415}
    assert (await client.post("/api/jobs/nobody/messages/payment", content=b"1")).status_code == 404
    assert (await client.post(f"{path}/tasks/nobody/messages/payment", content=b"1")).status_code == 404
    assert (await client.post(f"{path}/messages/{'n' * 201}", content=b"1")).status_code == 422
    assert (await client.post(f"{path}/send", json={"name": "payment", "reason": "x"})).status_code == 422
    assert (await client.post(f"{path}/send", json={"name": "payment", "value": {"a": [1]}})).status_code == 200
    assert await result(job) == [{"a": [1]}]


async def test_the_largest_message_is_the_same_in_whatever_way_it_comes(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    job = await submitted(runtime, 4)
    path, kind = f"/api/jobs/{job.id}", {"Content-Type": "application/json"}
    for more, status in (("", 200), ("x", 413)):
        text = "\u00e9" * (LARGEST_MESSAGE // 2 - 1) + more  # as JSON in UTF-8: two bytes each, and quotation marks
        written = json.dumps(text, indent=4)  # an escape of six bytes for each
        sent = json.dumps({"name": "payment", "value": text}, indent=4)
        for answer in (
            await client.post(f"{path}/send", content=sent, headers=kind),
            await client.post(f"{path}/messages/payment", content=written, headers=kind),
            await client.post(f"{path}/messages/payment", content=text.encode()),
        ):
            assert answer.status_code == status, answer.text
            if status == 413:
                assert answer.json()["type"] == "/problems/too-large"
                assert (
                    "has 1,048,577 bytes as JSON without spaces, and 1,048,576 are the most" in answer.json()["detail"]
                )
    for way in ("messages/payment", "send"):
        answer = await client.post(f"{path}/{way}", content=b"1" * (LARGEST_BODY + 1), headers=kind)
        assert (answer.status_code, answer.json()["type"]) == (413, "/problems/too-large")
        assert "larger than 8,388,608 bytes" in answer.json()["detail"]
    await job.send("payment", 1)
    assert [len(str(one)) for one in await result(job)] == [LARGEST_MESSAGE // 2 - 1] * 3 + [1]


async def test_too_many_unread_messages_are_a_429(
    runtime: Runtime, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.actors.kernel.mailbox.MOST_UNREAD", 0)
    job = await submitted(runtime, 1)
    answer = await client.post(f"/api/jobs/{job.id}/messages/other", content=b"1")
    assert (answer.status_code, answer.json()["type"]) == (429, "/problems/too-many-messages")
    await job.cancel()


async def test_a_header_that_the_specification_names_makes_a_repeated_delivery_one_message(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    tasks: list[Task[Any]] = [Task("a", receive="push"), Task("b", receive="push", depends_on=["a"])]
    stream = Workstream("flow", tasks=tasks, request_id_headers=["X-Event-Id", "X-GitHub-Delivery"])
    one, two = [await runtime.submit(stream, id=f"m{next(IDS)}") for _ in range(2)]
    for job in (one, two):  # the same event may go to several jobs
        path = f"/api/jobs/{job.id}/messages/push"
        for _ in range(2):
            answer = await client.post(path, content=b"1", headers={"x-github-delivery": "17"})
            assert answer.status_code == 200
        other = await client.post(path, content=b"2", headers={"X-GITHUB-DELIVERY": "17"})
        assert (other.status_code, other.json()["type"]) == (422, "/problems/request-id-reused")
        assert "The delivery '17' (X-GitHub-Delivery) was another message 'push' before" in other.json()["detail"]
        assert len(runtime.journal.reader.messages(job.id)) == 1
        second = {"X-Event-Id": "17", "X-GitHub-Delivery": "17"}  # the first that is named counts
        assert (await client.post(path, content=b"2", headers=second)).status_code == 200
        assert (await job.wait()).results == {"a": 1, "b": 2}
        assert (await client.post(path, content=b"1", headers={"X-GitHub-Delivery": "17"})).status_code == 200
        assert (await client.post(path, content=b"1", headers={"X-GitHub-Delivery": "18"})).status_code == 409


async def test_a_key_of_the_request_itself_comes_before_a_named_header(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    tasks: list[Task[Any]] = [Task("never", receive="never")]
    stream = Workstream("flow", tasks=tasks, request_id_headers=["X-Event-Id"])
    job = await runtime.submit(stream, id=f"m{next(IDS)}")
    path, event = f"/api/jobs/{job.id}/messages/push", {"X-Event-Id": "1"}
    for number in range(2):
        keyed = {**event, "Idempotency-Key": f'"{job.id}-{number}"'}
        assert (await client.post(path, content=b"1", headers=keyed)).status_code == 200
        given = {"request_id": f"{job.id}-r{number}"}
        assert (await client.post(path, content=b"1", headers=event, params=given)).status_code == 200
    for _ in range(2):
        assert (await client.post(f"/api/jobs/{job.id}/messages/two", content=b"1", headers=event)).status_code == 200
        task = f"/api/jobs/{job.id}/tasks/never/messages/push"
        assert (await client.post(task, content=b"1", headers=event)).status_code == 200
        assert (await client.post(path, content=b"1")).status_code == 200  # without it each is a message of its own
    assert len(runtime.journal.reader.messages(job.id)) == 4 + 2 + 2
    for headers in ([("X-Event-Id", "1"), ("x-event-id", "2")], [("X-Event-Id", " ")], [("X-Event-Id", "a\tb")]):
        wrong = await client.post(path, content=b"1", headers=headers)
        assert (wrong.status_code, wrong.json()["type"]) == (400, "/problems/bad-request")
        assert "X-Event-Id" in wrong.json()["detail"]
    assert (await client.post("/api/jobs/nobody/messages/push", content=b"1", headers=event)).status_code == 404
    await job.cancel()


async def test_a_task_that_only_receives_says_so(runtime: Runtime, client: httpx.AsyncClient) -> None:
    job = await runtime.submit(Workstream("flow", tasks=[Task("paid", receive="payment")]), id=f"m{next(IDS)}")
    answer = (await client.get(f"/api/jobs/{job.id}/tasks/paid")).json()
    assert (answer["receive"], answer["command"]) == ("payment", False)
    await job.send("payment", 1)
    await job.wait()


async def test_what_waits_unread_is_listed_in_parts(runtime: Runtime, client: httpx.AsyncClient) -> None:
    task = Task("t", run="body", args={"most": 1})
    job = await runtime.submit(Workstream("flow", tasks=[task]), id=f"m{next(IDS)}")
    path = f"/api/jobs/{job.id}/messages"
    assert (await client.get(path)).json() == {"items": [], "next": None}
    await job.send("payment", 1)
    await job.wait()
    other = await runtime.submit(Workstream("flow", tasks=[Task("n", receive="never")]), id=f"m{next(IDS)}")
    path = f"/api/jobs/{other.id}/messages"
    for value in (None, {"cents": [1]}):
        await client.post(
            f"/api/jobs/{other.id}/send", json={"name": "a"} if value is None else {"name": "a", "value": value}
        )
    await other.send("b", "to a task", task="n", by="ana")
    answer = (await client.get(path)).json()
    assert [(one["name"], one["task"], one["value"], one["by"]) for one in answer["items"]] == [
        ("a", None, None, "operator"), ("a", None, {"cents": [1]}, "operator"), ("b", "n", "to a task", "ana")
    ]  # fmt: skip
    assert answer["next"] is None
    assert [one.sent_at for one in await other.messages()] == [one["sent_at"] for one in answer["items"]]
    for _ in range(3):
        await other.send("large", "x" * 700_000)
    seen, cursor = [], None
    while True:
        given = {"limit": "2"} if cursor is None else {"limit": "2", "cursor": cursor}
        page = (await client.get(path, params=given)).json()
        seen.append([one["name"] for one in page["items"]])
        if (cursor := page["next"]) is None:
            break
    assert seen == [["a", "a"], ["b", "large"], ["large", "large"]]
    page = (await client.get(path)).json()  # a part ends early after 1 MB of values
    assert [one["name"] for one in page["items"]] == ["a", "a", "b", "large", "large"]
    assert [one["name"] for one in (await client.get(path, params={"cursor": page["next"]})).json()["items"]] == [
        "large"
    ]
    assert (await client.get("/api/jobs/nobody/messages")).status_code == 404
    await other.cancel()
    ended = await other.wait()
    assert ended.state == "cancelled"
    again = Workstream("again", tasks=[Task("n", receive="never")])
    anew = await runtime.submit(again, id=other.id, existing="replace_ended")
    assert (await client.get(path)).json() == {"items": [], "next": None}
    await anew.send("never")
    await anew.wait()
