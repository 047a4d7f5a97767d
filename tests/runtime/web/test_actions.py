"""Actions over HTTP: their answers, their keys, and the refusals of wrong requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import httpx
import msgspec
import pytest
from tests.runtime.web.conftest import client_of

from callboard import Approval, MachineActor, Runtime, Task, Worker, Workstream
from callboard.machines import Machine, State, Transition
from callboard.runtime.commands.verbs import VERBS
from callboard.runtime.web.http.problems import Problem
from callboard.runtime.web.write.actions import ACTIONS, FIRED, Say
from callboard.runtime.web.write.idempotency import key_of

pytestmark = pytest.mark.anyio
HELD = Workstream("flow", tasks=[Task("held", command=["true"], hold=Approval(people=2)), Task("b", command=["true"])])
FLEET = Worker("w", engine="loop", lifecycle="fleet")
WORKER = "/api/workers/w"
IDS = count()


class At(NamedTuple):
    """Where a job of one test is, and its task that waits for people."""

    id: str

    @property
    def job(self) -> str:
        return f"/api/jobs/{self.id}"

    @property
    def hold(self) -> str:
        return f"{self.job}/tasks/held"

    @property
    def key(self) -> str:
        return f"k-{self.id}"


@pytest.fixture(scope="module")
async def runtime() -> AsyncIterator[Runtime]:
    """A runtime without workers; to make a board takes a fifth of a second, so that all share one."""
    async with Runtime(workers=(), drain_deadline=0.0) as opened:
        yield opened


@pytest.fixture(scope="module")
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its board."""
    async with client_of(runtime) as opened:
        yield opened


@pytest.fixture
async def at(runtime: Runtime) -> At:
    """A job that waits for people."""
    job = f"j{next(IDS)}"
    await runtime.submit(HELD, id=job)
    return At(job)


def tail(runtime: Runtime, job_id: str) -> tuple[int, list[Any]]:
    """The number of the journal's last entry, and the numbers of a job's transitions."""
    journal = runtime.journal
    return journal.tail, [row.seq for row in journal.reader.transitions(job_id=job_id)]


def test_each_row_of_the_table_says_what_its_verb_takes() -> None:
    for action in ACTIONS:
        verb = VERBS[action.verb]
        fields = {field.name for field in msgspec.structs.fields(action.takes)} - {"request_id"}
        more = {"by", "task"} if (action.kind, action.word) in {("job", "retry"), ("job", "skip")} else {"by"}
        assert fields - more <= verb.arguments, action
        assert action.kind in verb.messages or action.word == "skip"


async def test_the_answer_is_the_entity_as_the_command_left_it(client: httpx.AsyncClient, at: At) -> None:
    first = await client.post(f"{at.hold}/approve", json={"by": "ana", "reason": "looks good"})
    assert (first.status_code, first.json()) == (
        200, {"kind": "task", "id": f"{at.id}@1/held", "state": "held", "status": "held", "phase": "held"},
    )  # fmt: skip
    second = await client.post(f"{at.hold}/approve", json={"by": "bo"})
    assert second.json()["state"] == "queued"
    paused = await client.post(f"{at.job}/cancel")
    assert paused.json() == {
        "kind": "job", "id": at.id, "state": "cancelled", "status": "cancelled", "phase": "cancelled",
        "workstream": "cancelled",
    }  # fmt: skip


async def test_the_same_request_gets_the_same_bytes_also_after_a_restart(tmp_path: Path) -> None:
    at = At("j")
    asked = [
        (f"{WORKER}/start", {"by": "ana", "request_id": "s"}),
        ("/api/supervisor/workers/w/pause", {"reason": "a while", "request_id": "p"}),
        (f"{at.hold}/approve", {"by": "ana", "request_id": "a"}),
        (f"{at.job}/cancel", {"reason": "no", "force": True, "request_id": "c"}),
        (f"{at.job}/resume", {"request_id": "r"}),
    ]
    async with Runtime(tmp_path / "state.db", workers=(), drain_deadline=0.0) as runtime, client_of(runtime) as client:
        await runtime.submit(HELD, id=at.id)
        await runtime.start_worker(FLEET)
        answers = [await client.post(path, json=body) for path, body in asked]
        assert [answer.status_code for answer in answers] == [200] * len(asked)
        assert answers[1].json() == {
            "kind": "worker",
            "id": "w",
            "state": "PAUSED",
            "status": "PAUSED",
            "phase": "paused",
        }
        again = [await client.post(path, json=body) for path, body in asked]
        before = tail(runtime, at.id)
    async with Runtime(tmp_path / "state.db", workers=(), drain_deadline=0.0) as runtime, client_of(runtime) as client:
        later = [
            await client.post(path, json=body, headers={"Idempotency-Key": f'"{body["request_id"]}"'})
            for path, body in asked
        ]
        assert [one.content for one in answers] == [one.content for one in again] == [one.content for one in later]
        assert tail(runtime, at.id)[1][: len(before[1])] == before[1]
        other = await client.post(f"{WORKER}/pause", json={"request_id": "p"})
        assert (other.status_code, other.json()["type"]) == (422, "/problems/request-id-reused")
        assert (await client.post(f"{WORKER}/pause")).status_code == 404


async def test_a_key_with_another_payload_or_target_is_refused_and_changes_nothing(
    runtime: Runtime, client: httpx.AsyncClient, at: At
) -> None:
    assert (await client.post(f"{at.hold}/approve", json={"by": "ana", "request_id": at.key})).status_code == 200
    before = tail(runtime, at.id)
    for path, body in (
        (f"{at.hold}/approve", {"by": "bo", "request_id": at.key}),
        (f"{at.hold}/approve", {"by": "ana", "reason": "other", "request_id": at.key}),
        (f"{at.hold}/reject", {"by": "ana", "request_id": at.key}),
        (f"{at.job}/tasks/b/cancel", {"by": "ana", "request_id": at.key}),
    ):
        answer = await client.post(path, json=body)
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/request-id-reused")
    assert tail(runtime, at.id) == before


async def test_the_header_and_the_body_say_the_same_key_or_are_refused(client: httpx.AsyncClient, at: At) -> None:
    async def post(key: str, body: dict[str, Any]) -> httpx.Response:
        return await client.post(f"{at.hold}/approve", json={"by": "ana", **body}, headers={"Idempotency-Key": key})

    assert (await post(f'"{at.key}"', {"request_id": at.key})).status_code == 200
    assert (await post(at.key, {})).status_code == 200  # without quotes it is the same key
    differs = await post(f'"{at.key}"', {"request_id": "l"})
    assert (differs.status_code, differs.json()["findings"][0]["where"]) == (422, "request_id")
    for key in ('"k', 'k"', '""', '"a";b', "a, b", "a b", '"a\\b"', f'"{"x" * 201}"', '"\t"'):
        malformed = await post(key, {})
        assert (malformed.status_code, malformed.json()["type"]) == (400, "/problems/bad-request"), key
    twice = await client.post(f"{at.hold}/approve", headers=[("Idempotency-Key", '"a"'), ("Idempotency-Key", '"b"')])
    assert twice.status_code == 400


def test_quoted_keys_are_read_as_structured_strings() -> None:
    assert key_of(['"a \\"b\\" \\\\c"'], None) == 'a "b" \\c'
    assert key_of(["8e03978e-40d5-43dd-bc93-6894a57f9324"], None) == "8e03978e-40d5-43dd-bc93-6894a57f9324"
    assert key_of([], "k") == key_of(['"k"'], "k") == key_of(["k"], None) == "k"
    assert key_of([], None) is None
    with pytest.raises(Problem):
        key_of(['"\xe9"'], None)


async def test_a_second_one_is_told_that_the_first_is_on_its_way(
    runtime: Runtime, client: httpx.AsyncClient, at: At
) -> None:
    async with client_of(runtime) as another_board:
        answers: list[int] = []

        async def approve(asked: httpx.AsyncClient) -> None:
            answer = await asked.post(f"{at.hold}/approve", json={"by": "ana", "request_id": at.key})
            answers.append(answer.status_code)
            if answer.status_code == 409:
                assert answer.json()["type"] == "/problems/in-flight"
                assert answer.headers["retry-after"] == "1"

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(approve, client)
                group.start_soon(approve, another_board)
        assert answers.count(200) >= 1
        assert set(answers) <= {200, 409}
        assert 409 in answers
    decisions = (await runtime.job(at.id)).task("held").record.decisions
    assert [decision.by for decision in decisions] == ["ana"]


async def test_a_conflict_says_the_state_what_is_allowed_and_what_it_takes(
    runtime: Runtime, client: httpx.AsyncClient, at: At
) -> None:
    await client.post(f"{at.hold}/approve", json={"by": "ana"})
    before = tail(runtime, at.id)
    again = await client.post(f"{at.hold}/approve", json={"by": "ana"})
    content = again.json()
    assert again.status_code == 409
    assert again.headers["content-type"] == "application/problem+json"
    assert (content["machine"], content["state"], content["event"]) == ("task", "held", "approve")
    assert content["allowed"] == ["approve", "cancel", "expire", "reject"]
    assert content["commands"] == ["approve", "cancel", "cancel_force", "reject"]
    assert (content["decision"]["verdict"], content["decision"]["by"]) == ("approved", "ana")
    assert content["detail"].endswith("was approved by ana. It is held until the others have approved.")
    assert content["decision"]["at"] > 0  # when, as data: words of it are made where they are read
    assert tail(runtime, at.id) == before


async def test_what_is_not_there_is_told_with_what_there_is(
    runtime: Runtime, client: httpx.AsyncClient, at: At
) -> None:
    before = tail(runtime, at.id)
    for path, told in (
        ("/api/jobs/none/cancel", "there is no job 'none'"),
        (f"{at.job}/tasks/none/cancel", "it has: held, b"),
        ("/api/workers/none/pause", "there is no worker 'none'; there are: none"),
        ("/api/breakers/none/trip", "there are breakers of: none"),
    ):
        answer = await client.post(path)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
        assert told in answer.json()["detail"]
    fired = await client.post("/api/machines/none/fire", json={"event": "x"})
    assert fired.status_code == 404
    skipped = await client.post(f"{at.job}/skip", json={"task": "none"})
    assert (skipped.status_code, "it has: held, b" in skipped.json()["detail"]) == (404, True)
    assert tail(runtime, at.id) == before


async def test_all_that_is_wrong_is_told_at_once(runtime: Runtime, client: httpx.AsyncClient, at: At) -> None:
    before = tail(runtime, at.id)
    answer = await client.post(
        f"{at.job}/cancel", json={"force": "yes", "by": " ", "reason": "x" * 10_001, "request_id": "\x07", "nope": 1}
    )
    content = answer.json()
    assert (answer.status_code, content["type"]) == (422, "/problems/specification")
    assert {finding["where"] for finding in content["findings"]} == {"force", "by", "reason", "request_id", "nope"}
    assert tail(runtime, at.id) == before


async def test_what_is_no_json_or_not_said_to_be_is_refused(client: httpx.AsyncClient, at: At) -> None:
    for body in (b"{", b"\xff", b"nan", b"[" * 100_000, b'{"by": "\\ud800"}', b'{"force": tru'):
        answer = await client.post(f"{at.job}/cancel", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["type"]) == (400, "/problems/bad-request"), body[:20]
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": kind} if kind else {}
        answer = await client.post(f"{at.job}/cancel", content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["type"]) == (415, "/problems/media-type")
    for body in (b"[]", b"3", b'"x"', b"true"):
        answer = await client.post(f"{at.job}/cancel", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
    last = await client.post(
        f"{at.job}/cancel", content=b" null ", headers={"Content-Type": "application/json; charset=utf-8"}
    )
    assert last.status_code == 200


BAD: tuple[Any, ...] = (
    True, 0, -1, 1.5, 1e308, 10**18, "", " ", "\x00", "\x1b[2J", "a\nb", "\u202e", "é" * 300, "x" * 20_000,
    [[]], {"a": 1}, {"by": "ana"}, "../../etc", "<script>", "a/b", "a:b", "%2F", "#",
)  # fmt: skip


async def test_no_value_of_any_argument_is_more_than_a_refusal(
    runtime: Runtime, client: httpx.AsyncClient, at: At
) -> None:
    names = {"job": at.id, "task": f"{at.id}/tasks/held", "worker": "none", "breaker": "none", "machine": "none"}
    before = tail(runtime, at.id)
    for action in (*ACTIONS, *FIRED):
        base = f"/api/{'job' if action.kind == 'task' else action.kind}s/{names[action.kind]}/{action.word}"
        common = {*Say.__struct_fields__} if action.word in {"cancel", "start"} else set[str]()
        for field in common | ({*action.takes.__struct_fields__} - {*Say.__struct_fields__}):
            for value in BAD:
                bad = field in {"approval", "task", "event", "metadata", "facts"} or not _fits(field, value)
                if bad:
                    body = {"task": "none", "event": "x"} if action.word in {"skip", "fire"} else {}
                    answer = await client.post(base, json={**body, field: value})
                    assert 400 <= answer.status_code < 500, (action, field, value, answer.text)
                    assert len(answer.json()["detail"]) < 1_000
                    assert answer.json()["detail"].isprintable(), answer.json()["detail"]
    assert tail(runtime, at.id) == before


def _fits(field: str, value: object) -> bool:
    """Whether a value is one that the field takes."""
    if field in {"name", "value"}:  # of a message: any JSON, under a name
        name = isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable() and value == value.strip()
        return field == "value" or (name and "/" not in str(value))
    if field == "force":
        return value is True
    if not isinstance(value, str):
        if field == "cooldown" and value == 0:
            return False
        return field in {"deadline", "cooldown"} and isinstance(value, int | float) and 0 <= value < 1e9
    if field == "reason":
        return len(value) <= 10_000
    return field in {"by", "request_id"} and 0 < len(value) <= 200 and value.isprintable()


async def test_what_is_done_and_what_is_read_have_one_id(runtime: Runtime, client: httpx.AsyncClient, at: At) -> None:
    made = (await client.post("/api/workers", json={"workspace_id": "ws"})).json()
    states = [State("shut", bounded_by="a test"), State("open", terminal=True)]
    runtime.spawn(MachineActor(Machine("door", "shut", states, [Transition("shut", "pull", "open")])), name="front")
    await runtime.submit(Workstream("drilling", tasks=[Task("t", command=["true"], tool="drill")]), id=f"drill-{at.id}")
    for path, word, said in (
        (f"/api/workers/{made['id']}", "start", {}),
        (f"/api/supervisor/workers/{made['id']}", "pause", {}),
        ("/api/breakers/drill", "trip", {}),
        ("/api/machines/front", "fire", {"event": "pull"}),
        (at.hold, "approve", {"by": "ana"}),
        (at.job, "cancel", {}),
    ):
        done = (await client.post(f"{path}/{word}", json=said)).json()
        read = (await client.get(path.replace("supervisor/", ""))).json()
        assert done["id"] == read["id"], path
    assert done["kind"] == "job"
    assert (await client.get(f"/api/workers/{made['id']}")).json()["id"] == made["id"]


async def test_a_worker_is_acted_on_by_the_id_of_its_incarnation_too() -> None:
    async with Runtime(workers=[Worker("w", engine="loop")]) as runtime, client_of(runtime) as client:
        shown = (await client.get(WORKER)).json()
        assert (shown["id"], shown["entity_id"]) == ("w", "w#1")
        response = await client.post("/api/workers/w%231/shut_down", json={})
        assert (response.status_code, response.json()["id"]) == (200, "w")
        assert (await client.get(WORKER)).json()["phase"] == "shutdown"


async def test_what_was_refused_is_judged_anew_under_its_key(tmp_path: Path) -> None:
    resume = {"reason": "on", "request_id": "k"}
    async with Runtime(tmp_path / "state.db", workers=(), drain_deadline=0.0) as runtime, client_of(runtime) as client:
        await runtime.submit(HELD, id="j")
        before = tail(runtime, "j")
        for _ in range(2):
            refused = await client.post("/api/jobs/j/resume", json=resume)
            assert (refused.status_code, refused.json()["type"]) == (409, "/problems/invalid-transition")
        assert tail(runtime, "j") == before
        assert (await client.post("/api/jobs/j/pause", json={"request_id": "p"})).status_code == 200
    async with Runtime(tmp_path / "state.db", workers=(), drain_deadline=0.0) as runtime, client_of(runtime) as client:
        done = await client.post("/api/jobs/j/resume", json=resume)
        assert (done.status_code, done.json()["workstream"]) == (200, "ready")
        again = await client.post("/api/jobs/j/resume", json=resume)
        assert (again.status_code, again.content) == (200, done.content)  # and would be refused, were it another one
        assert (await client.post("/api/jobs/j/resume", json={"request_id": "l"})).status_code == 409
        other = await client.post("/api/jobs/j/pause", json={"request_id": "l"})  # which a refusal has bound to nothing
        assert other.status_code == 200


async def test_a_command_without_a_key_is_none_of_those_that_came_with_one() -> None:
    async with Runtime(workers=()) as runtime, client_of(runtime) as client:
        await runtime.submit(HELD, id="j")
        for word in ("pause", "resume", "pause"):
            assert (await client.post(f"/api/jobs/j/{word}", json={})).status_code == 200
        assert (await client.post("/api/workers", json={"workspace_id": "x"})).status_code == 201
        metrics = runtime.metrics()
        assert (metrics.requests, metrics.request_hits, metrics.request_hit_rate) == (0, 0, None)
        for _ in range(2):
            await client.post("/api/workers", json={"workspace_id": "y", "request_id": "k"})
        metrics = runtime.metrics()
        assert (metrics.requests, metrics.request_hits, metrics.request_hit_rate) == (2, 1, 0.5)
