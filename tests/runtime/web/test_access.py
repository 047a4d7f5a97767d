"""Access to the board, and the headers of its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callboard import Runtime
from callboard.runtime.web.http.access import VARIABLE, tokens_from, tokens_from_file
from callboard.runtime.web.http.serve import CannotServe, listening
from callboard.web import Token, board

from .conftest import URL, client_of

pytestmark = pytest.mark.anyio

TOKENS = [
    Token("reader", "reader-0123456789", ["read"]),
    Token("ops", "operator-0123456789", ["read", "operate"]),
    Token("ana", "approver-0123456789", ["read", "approve"]),
]


def bearer(name: str) -> dict[str, str]:
    (secret,) = [token.secret for token in TOKENS if token.name == name]
    return {"Authorization": f"Bearer {secret}"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def guarded(runtime: Runtime, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a board that has tokens."""
    async with client_of(runtime, tokens=TOKENS, clock=clock) as client:
        yield client


def type_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"]


async def test_nothing_but_the_page_and_whether_it_lives_is_told_without_a_token(guarded: httpx.AsyncClient) -> None:
    for path in ("/", "/main.js", "/health/live", "/health/ready"):
        assert (await guarded.get(path)).status_code == 200, path
    for path in (
        "/api/jobs",
        "/api/health",
        "/metrics",
        "/api/openapi.json",
        "/api/events",
        "/api/jobs/x/tasks/y/output",
    ):
        answer = await guarded.get(path)
        assert type_of(answer) == (401, "/problems/unauthorized"), path
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_who_asks_is_told_who_they_are_and_what_they_may(runtime: Runtime, guarded: httpx.AsyncClient) -> None:
    told = (await guarded.get("/api/me", headers=bearer("ana"))).json()
    assert told == {"name": "ana", "scopes": ["approve", "read"], "commands": False}
    assert type_of(await guarded.get("/api/me")) == (401, "/problems/unauthorized")
    async with client_of(runtime, commands=True) as client:
        told = (await client.get("/api/me")).json()
    assert told == {"name": None, "scopes": ["approve", "operate", "read"], "commands": True}


async def test_a_token_may_what_its_scopes_say(guarded: httpx.AsyncClient) -> None:
    assert (await guarded.get("/api/jobs", headers=bearer("reader"))).status_code == 200
    for name, path, code in (
        ("reader", "/api/jobs/none/cancel", 403), ("ops", "/api/jobs/none/cancel", 404),
        ("ops", "/api/jobs/none/approve", 403), ("ana", "/api/jobs/none/approve", 404),
        ("ana", "/api/jobs/none/cancel", 403), ("reader", "/api/jobs", 403), ("ops", "/api/jobs", 422),
    ):  # fmt: skip
        answer = await guarded.post(path, headers=bearer(name), json={})
        assert answer.status_code == code, (name, path, answer.text)


async def test_a_token_acts_as_its_name_and_as_nobody_else(guarded: httpx.AsyncClient) -> None:
    body = {"task_description": "x", "by": "bob"}
    assert type_of(await guarded.post("/api/jobs", headers=bearer("ops"), json=body)) == (403, "/problems/forbidden")


async def test_after_many_wrong_tokens_an_address_waits_but_for_who_has_the_right_one(
    guarded: httpx.AsyncClient, clock: Clock
) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    for _ in range(10):
        assert (await guarded.get("/api/jobs", headers=wrong)).status_code == 401
    answer = await guarded.get("/api/jobs", headers=wrong)
    assert type_of(answer) == (429, "/problems/too-many")
    assert 0 < int(answer.headers["retry-after"]) <= 61
    assert (await guarded.get("/api/jobs", headers=bearer("ops"))).status_code == 200
    clock.now = 61.0
    assert (await guarded.get("/api/jobs", headers=wrong)).status_code == 401


async def test_it_answers_to_its_own_names_only(runtime: Runtime, client: httpx.AsyncClient) -> None:
    for host in ("localhost", "127.0.0.1:8470", "[::1]:8470", "LOCALHOST:1"):
        assert (await client.get("/health/live", headers={"Host": host})).status_code == 200, host
    for host in (
        "evil.example", "127.0.0.1.evil.example", "localhost.", "", "[", "evil.example:8470", "127.0.0.1:8470.evil.com",
        "evil@127.0.0.1", "127.0.0.1/evil", "127.0.0.1:8470:8470", "[::1].evil.com", "localhost:99999999",
    ):  # fmt: skip
        assert type_of(await client.get("/api/jobs", headers={"Host": host})) == (421, "/problems/host"), host
    async with client_of(runtime, tokens=TOKENS, hosts=["board.example"]) as named:
        asked = {**bearer("reader"), "Host": "board.example"}
        assert (await named.get("/api/jobs", headers=asked)).status_code == 200
        assert (await named.get("/api/jobs", headers={**asked, "Host": "evil.example"})).status_code == 421


async def test_without_tokens_other_machines_are_not_answered(runtime: Runtime) -> None:
    for address, code in (("10.0.0.7", 403), ("127.0.0.9", 200), ("::1", 200), ("::ffff:10.0.0.7", 403)):
        transport = httpx.ASGITransport(app=board(runtime), client=(address, 1234))
        async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
            assert (await client.get("/api/jobs")).status_code == code, address


async def test_pages_of_other_origins_are_refused(client: httpx.AsyncClient) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1:8470.evil.example"):
        for method in ("GET", "POST", "OPTIONS"):
            answer = await client.request(method, "/api/jobs", headers={"Origin": origin})
            assert type_of(answer) == (403, "/problems/origin"), (origin, method)
            assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await client.get("/api/jobs", headers={"Origin": URL})).status_code == 200


async def test_every_answer_carries_strict_headers(client: httpx.AsyncClient) -> None:
    for path in ("/", "/api/jobs", "/api/jobs/none", "/none"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "cache-control" in headers
    assert (await client.get("/api/jobs")).headers["cache-control"] == "no-store"


async def test_bodies_are_json_and_not_too_large(client: httpx.AsyncClient) -> None:
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
    ):
        answer = await client.post("/api/jobs", content=b"{}", headers={"Content-Type": kind})
        assert type_of(answer) == (415, "/problems/media-type"), kind
    answer = await client.post("/api/jobs", content=b"{", headers={"Content-Type": "application/json"})
    assert type_of(answer) == (400, "/problems/bad-request")
    large = b'{"reason": "' + b"x" * 1_000_000 + b'"}'
    kind = {"Content-Type": "application/json; charset=utf-8"}
    assert type_of(await client.post("/api/jobs/none/cancel", content=large, headers=kind)) == (
        413,
        "/problems/too-large",
    )

    async def streamed() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield large[:500_000]

    answer = await client.post("/api/jobs/none/cancel", content=streamed(), headers=kind)
    assert type_of(answer) == (413, "/problems/too-large")


async def test_what_is_not_done_to_a_path_is_a_405(client: httpx.AsyncClient) -> None:
    answer = await client.delete("/api/jobs/none")
    assert type_of(answer) == (405, "/problems/method-not-allowed")


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/api/jobs", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/api/workers", {"GET", "HEAD", "POST", "OPTIONS"}),
        ("/api/jobs/none", {"GET", "HEAD", "OPTIONS"}),
        ("/api/jobs/none/cancel", {"POST", "OPTIONS"}),
        ("/api/events", {"GET", "OPTIONS"}),
        ("/", {"GET", "HEAD", "OPTIONS"}),
    ],
)
async def test_allow_names_all_that_is_done_to_a_path(client: httpx.AsyncClient, path: str, methods: set[str]) -> None:
    for method, code in (("OPTIONS", 204), ("DELETE", 405)):
        answer = await client.request(method, path)
        assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (code, methods), method
    for method in ("GET", "HEAD", "POST"):
        if method not in methods:
            assert (await client.request(method, path)).status_code == 405


async def test_it_is_mounted_at_any_prefix(runtime: Runtime) -> None:
    app = board(runtime)
    for cut in (True, False):  # servers and frameworks do either

        async def mounted(scope: Any, receive: Any, send: Any, cut: bool = cut) -> None:
            path = scope["path"].removeprefix("/ops") if cut else scope["path"]
            await app({**scope, "path": path, "root_path": "/ops"}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=mounted), base_url=URL) as client:
            assert (await client.get("/ops/api/jobs")).json()["items"] == []
            assert "Callboard" in (await client.get("/ops/")).text
            assert (await client.get("/ops/api/openapi.json")).json()["servers"] == [{"url": "/ops"}]


async def test_any_address_of_this_machine_is_a_name_of_the_board(client: httpx.AsyncClient) -> None:
    for host in ("127.0.0.2:8470", "127.1.2.3", "[::1]:9"):  # no page elsewhere has such a name
        assert (await client.get("/api/health", headers={"Host": host})).status_code == 200, host
    assert (await client.get("/api/openapi.json")).json()["servers"] == [{"url": "/"}]


def test_tokens_come_from_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text('[[tokens]]\nname = "ana"\nsecret = "0123456789abcdef"\nscopes = ["read", "approve"]\n')
    file.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        tokens_from_file(file)
    file.chmod(0o600)
    assert tokens_from_file(file) == [Token("ana", "0123456789abcdef", ["read", "approve"])]
    for text in (
        "", "tokens = 1", "[[tokens]]\nname = 'a'", "[[tokens]]\nname='a'\nsecret='short'", "x",
        "[[tokens]]\nname='a'\nsecret='0123456789abcdef'\nscopes=['all']",
        2 * "[[tokens]]\nname='a'\nsecret='0123456789abcdef'\n",
    ):  # fmt: skip
        file.write_text(text)
        with pytest.raises(ValueError, match="tokens") as refused:
            tokens_from_file(file)
        assert "0123456789abcdef" not in str(refused.value)
        assert "all" not in text or "token 'a' has 'all'; the scopes are: approve, operate, read" in str(refused.value)


def test_tokens_come_from_the_environment() -> None:
    assert tokens_from({}) == []
    tokens = '[{"name": "ana", "secret": "0123456789abcdef"}]'
    assert tokens_from({VARIABLE: tokens}) == [Token("ana", "0123456789abcdef")]
    with pytest.raises(ValueError, match=VARIABLE):
        tokens_from({VARIABLE: "0123456789abcdef"})


def test_a_token_does_not_show_its_secret() -> None:
    assert "0123456789" not in repr(TOKENS)


def test_another_address_is_not_listened_at_without_tokens() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1"):
        with pytest.raises(CannotServe, match="Give it tokens"):
            listening(host, 0)
    with listening("127.0.0.1", 0) as first, pytest.raises(CannotServe, match="cannot listen"):
        listening("127.0.0.1", first.getsockname()[1])


async def test_head_is_answered_as_get_is_without_what_that_tells(client: httpx.AsyncClient) -> None:
    for path in ("/", "/api/jobs", "/health/live", "/api/openapi.json"):
        response = await client.get(path)
        head = await client.head(path)
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == response.headers["content-type"]
    assert (await client.head("/api/jobs/none")).status_code == 404
    assert (await client.head("/api/jobs/none/cancel")).status_code == 405
    assert (await client.head("/api/events")).status_code == 405


async def test_what_is_sent_is_json_in_utf_8(client: httpx.AsyncClient) -> None:
    for kind, status in {
        "application/json": 404, "Application/JSON; Charset=UTF-8": 404, 'application/json;charset="utf-8"': 404,
        "application/json; charset=utf-16": 415, "application/jsonp": 415, "text/plain; x=application/json": 415,
    }.items():  # fmt: skip
        answer = await client.post("/api/jobs/none/cancel", content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == status, kind


async def test_a_browser_that_hides_which_page_it_is_changes_nothing(client: httpx.AsyncClient) -> None:
    path = "/api/jobs/none/cancel"
    for site, status in {"cross-site": 403, "same-site": 403, "same-origin": 404, "none": 404}.items():
        assert (await client.post(path, headers={"Sec-Fetch-Site": site})).status_code == status, site
    assert (await client.get("/", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 200  # follows a link
