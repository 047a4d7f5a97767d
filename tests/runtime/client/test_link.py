"""The requests of the client: repeated until answered, under the same key, for the given time; and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from callboard.actors.records.base import Decision
from callboard.actors.spec.schema import Finding
from callboard.client import AccessRefused, Client, ServerError, ServerUnreachable
from callboard.errors import (
    CircuitOpen,
    DecisionConflict,
    DecisionRefused,
    GuardRejected,
    InvalidTransitionError,
    JobExists,
    JournalUnwritable,
    RequestIdReused,
    RuntimeClosed,
    SpecificationError,
)
from callboard.runtime.client import link
from callboard.runtime.client.server_errors import error_of
from callboard.runtime.web.http.problems import problem_of

pytestmark = pytest.mark.anyio

HEALTH = {"status": "ok", "reason": None, "since": None}
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made: none is waited for."""
    made: list[float] = []

    async def sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(link, "_sleep", sleep)
    return made


def answering(*answers: httpx.Response | Exception) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """A server that gives these answers, one after another; it is healthy when it is entered."""
    asked: list[httpx.Request] = []
    left: Iterator[httpx.Response | Exception] = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/api/health"):
            return httpx.Response(200, json=HEALTH)
        asked.append(request)
        told = next(left)
        if isinstance(told, Exception):
            raise told
        return told

    return httpx.MockTransport(answer), asked


def problem(status: int, word: str, **more: Any) -> httpx.Response:
    body = {"type": f"/problems/{word}", "title": "", "status": status, "detail": f"a {word}", **more}
    return httpx.Response(status, content=json.dumps(body), headers={"Content-Type": "application/problem+json"})


async def test_a_command_that_was_not_answered_is_sent_again_under_its_key(pauses: list[float]) -> None:
    done = {"kind": "worker", "id": "w#1", "state": "paused"}
    transport, asked = answering(
        httpx.ConnectError("refused"), httpx.ReadError("cut off"), httpx.Response(503), problem(409, "in-flight"),
        problem(429, "too-many"), httpx.Response(200, json=done), httpx.Response(200, json={}),
    )  # fmt: skip
    async with Client("http://board", transport=transport) as runtime:
        await runtime._core.act("workers/w/pause", {"reason": "lunch", "by": None}, None)
    told = [json.loads(request.content) for request in asked]
    assert len(told) == 6
    assert told[0] == {"reason": "lunch", "request_id": told[0]["request_id"]}
    assert all(one == told[0] for one in told)
    assert told[0]["request_id"].startswith("auto-")
    assert len(pauses) == 5
    assert all(pause <= link.LONGEST_PAUSE for pause in pauses)


async def test_it_waits_as_long_as_the_server_asks_for(pauses: list[float]) -> None:
    transport, _ = answering(httpx.Response(503, headers={"Retry-After": "7"}), httpx.Response(200, json=HEALTH))
    async with Client("http://board", transport=transport) as runtime:
        await runtime._core.act("x", {}, "key")
    assert pauses == [7.0]


async def test_patience_ends() -> None:
    transport, asked = answering(*[httpx.ConnectError("refused")] * 3)
    async with Client("http://board", transport=transport, patience=0) as runtime:
        with pytest.raises(ServerUnreachable, match="no answer from http://board/api/x: refused"):
            await runtime._core.act("x", {}, None)
    assert len(asked) == 1


async def test_a_refusal_is_not_asked_for_again() -> None:
    transport, asked = answering(problem(404, "not-found"))
    async with Client("http://board", transport=transport) as runtime:
        with pytest.raises(LookupError, match="a not-found"):
            await runtime.job("j")
    assert len(asked) == 1


async def test_names_are_quoted_and_a_token_is_in_its_header_only() -> None:
    transport, asked = answering(problem(404, "not-found"))
    async with Client("http://board/prefix/", token="s3cret", transport=transport) as runtime:
        with pytest.raises(LookupError):
            await runtime.job("parent/task/child ü?")
    assert asked[0].url.raw_path == b"/prefix/api/jobs/parent%3Atask%3Achild%20%C3%BC%3F"
    assert asked[0].headers["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in str(asked[0].url)
    assert "s3cret" not in repr(runtime)


async def test_who_is_not_let_in_is_told_at_once() -> None:
    transport = httpx.MockTransport(lambda _: problem(401, "unauthorized"))
    with pytest.raises(AccessRefused, match="a unauthorized"):
        async with Client("http://board", transport=transport):
            pass


async def test_what_no_client_expects_is_told_as_it_is() -> None:
    transport, _ = answering(httpx.Response(500, text="oops"))
    async with Client("http://board", transport=transport) as runtime:
        with pytest.raises(ServerError, match="the server answered 500: oops") as raised:
            await runtime.job("j")
    assert raised.value.status == 500


@pytest.mark.parametrize("url", ["ftp://board", "board", "http://", "http://me:pw@board", "http://board?x=1"])
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="address of a server"):
        Client(url)


@pytest.mark.parametrize(("status", "ok"), [("ok", True), ("draining", True), ("degraded", False)])
async def test_health_is_that_of_the_journal_also_while_the_runtime_drains(status: str, ok: bool) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={**HEALTH, "status": status}))
    async with Client("http://board", transport=transport) as runtime:
        assert (await runtime.health()).ok == ok


async def test_a_client_is_used_inside_of_its_block() -> None:
    runtime = Client("http://board")
    with pytest.raises(RuntimeError, match="is not open"):
        runtime.events()
    with pytest.raises(ValueError, match="is not a duration"):
        Client("http://board", timeout="soon")


DECIDED = Decision(verdict="approved", at=1.0, by="ana", met=(0,))
ERRORS = [
    InvalidTransitionError("task", "running", "approve", frozenset({"cancel_force", "complete"}), "wait"),
    InvalidTransitionError("task", "cancelled", "cancel_graceful", frozenset()),
    GuardRejected("worker", "idle", "pause", frozenset({"pause", "fail"}), ("told as running",)),
    DecisionRefused("task", "held", "approve", frozenset({"approve"}), "eve submitted it"),
    DecisionRefused("task", "held", "approve", frozenset({"approve"}), "the hold has expired", 2.0),
    DecisionConflict("task", "held", "approve", frozenset({"approve"}), "it was approved", DECIDED),
    CircuitOpen("circuit_open", frozenset({"cancel_force"}), "compiler", 12.5),
    SpecificationError([Finding("tasks[0].run", "there is none", "run", 3), Finding("", "no")], "workstream 'w'"),
    JobExists("there is a job 'j' already"),
    RequestIdReused("given before"),
    LookupError("there is no job 'j'"),
    RuntimeClosed("it closed"),
    JournalUnwritable("the disk is full"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_there_is_the_same_here(error: Exception) -> None:
    if type(error) in {InvalidTransitionError, GuardRejected}:
        error.subject = "it"  # type: ignore[attr-defined]
    told = problem_of(error)
    body = httpx.Response(200, json=json_of(told)).content
    made = error_of(told.status, body)
    assert type(made) is type(error)
    assert str(made) == str(error)
    assert made.args == error.args or isinstance(error, LookupError)
    assert vars(made) == vars(error)


def json_of(told: Any) -> Any:
    return json.loads(msgspec.json.encode(told.details("/api/x")))


def test_what_is_no_problem_is_told_by_its_status() -> None:
    assert isinstance(error_of(503, b"<html>"), ServerUnreachable)
    assert isinstance(error_of(403, b""), AccessRefused)
    assert isinstance(error_of(302, b""), ServerError)


async def test_where_there_is_no_board_it_is_said_when_it_is_entered() -> None:
    for answer in (httpx.Response(404, json={"type": "/problems/not-found"}), httpx.Response(200, text="<html>")):
        client = Client("http://there/nope", transport=httpx.MockTransport(lambda _, answer=answer: answer))
        with pytest.raises(ServerError, match="there is no board at http://there/nope: is that its address, with the"):
            await client.__aenter__()
