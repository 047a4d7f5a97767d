"""The gate: checks every request before its handler, and completes every answer.

Rules
-----
- Without tokens, only requests from this machine with its own names are answered: a foreign page whose name was made to
  lead here (DNS rebinding) sends another `Host`.
- A browser's request from a foreign page sends another `Origin`, and is refused. No answer allows one.
- HEAD is answered as GET without the body, and `Allow` names both; a stream, which has no end, does not allow HEAD.
- A request with a body must declare JSON, but for a message that no browser sends (a webhook's). The handlers set the
  largest size.
- Every answer has headers that stop browsers from guessing types, framing the page, and loading from elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

import msgspec

from .access import Tokens, came_as
from .context import Board, asked_of
from .problems import MEDIA_TYPE, Problem
from .stopping import RunningRequests

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (b"content-security-policy", CSP.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
_HEADERS_NOT_KEPT = (*_HEADERS, (b"cache-control", b"no-store"))
_READ = frozenset(
    {b"host", b"origin", b"sec-fetch-site", b"authorization", b"content-length", b"content-type", b"transfer-encoding"}
)
"""The headers that the gate uses: each may occur once."""
_JSON = re.compile(r'application/json\s*(;\s*charset="?utf-?8"?\s*)?;?', re.IGNORECASE)
_MESSAGE = re.compile(r"/api/jobs/[^/]+(/tasks/[^/]+)?/messages/[^/]+\Z")
"""The paths that take a body of any type, as a webhook's is, unless a browser sends it."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s/\\?#@:\[\]]+)(:[0-9]{0,5})?", re.IGNORECASE)
_SLASH = re.compile(rb"%2f|%5c", re.IGNORECASE)
_ENDLESS = "/api/events"
_BODIES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


_STOPS = Problem(
    503, "closed",
    "the server is stopping, and could not answer in time. The command may still take effect: repeat it with the same "
    "key, and it is not carried out twice",
    headers={"Retry-After": "10"},
)  # fmt: skip


class RequestGate:
    """Passes requests for `board` to `app`. hosts: the names of this board, beside this machine's own.

    stop: for the server: ends the streams, which have no end of their own.
    """

    def __init__(self, app: Application, board: Board, tokens: Tokens, hosts: Iterable[str]) -> None:
        self._app = app
        self._board = board
        self.stop = board.streams.close
        self._running = RunningRequests(board.streams.end)
        self._tokens = tokens
        self._named = frozenset(host.lower() for host in hosts)
        self._hosts = LOCAL | self._named

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Handle one request, or another message of an ASGI server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                sent = [_with_head(scope, *header) for header in message.get("headers", ())]
                kept = any(name == b"cache-control" for name, _ in sent)
                message = {**message, "headers": [*sent, *(_HEADERS if kept else _HEADERS_NOT_KEPT)]}
            await send(message)

        self._board.services.check_here("a board")
        running = self._running.enter(scope, receive)
        try:
            with running.scope:
                await self._answer(scope, receive, answer)
        finally:
            self._running.leave(running)
        if running.scope.cancelled_caught and not begun:
            await _refuse(_STOPS, scope, answer)

    async def _answer(self, scope: Any, receive: Receive, answer: Send) -> None:
        try:
            inner = {**scope, "path": _path(scope), "root_path": ""}
            self._let_in(inner)
            asked_of(inner, self._board, scope.get("root_path", "").rstrip("/"))
        except Problem as problem:
            await _refuse(problem, scope, answer)
            return
        if scope["method"] == "HEAD" and inner["path"] != _ENDLESS:
            await self._app({**inner, "method": "GET"}, receive, partial(_without_body, answer))
            return
        await self._app(inner, receive, answer)

    def _let_in(self, scope: Any) -> None:
        """Raise the Problem of a request that is refused here."""
        self._check_path(scope)
        headers = _single(scope["headers"])
        host = headers.get(b"host", "")
        address = scope["client"][0] if scope.get("client") else ""
        self._check_host(host, address)
        self._check_origin(headers.get(b"origin"), host)
        if scope["method"] in _BODIES and headers.get(b"sec-fetch-site", "none").endswith("-site"):
            self._check_origin(headers.get(b"origin", ""), host)  # a browser that hides the page's origin
        came_as(scope, self._tokens.caller(headers.get(b"authorization"), address))
        if scope["method"] in _BODIES and headers.get(b"content-length", "1" * (b"transfer-encoding" in headers)) > "0":
            kind = headers.get(b"content-type", "")
            webhook = _MESSAGE.search(scope["path"]) and not headers.keys() & {b"origin", b"sec-fetch-site"}
            if not webhook and not _JSON.fullmatch(kind.strip()):
                raise Problem(
                    415, "media-type",
                    f"the body must be application/json, in UTF-8, not {kind or 'without a type'!r:.80}",
                )  # fmt: skip

    def _check_path(self, scope: Any) -> None:
        """Refuse an encoded slash: proxies before us, which check paths, would not see it."""
        raw: bytes = scope.get("raw_path") or b""
        if (b"%" in raw and _SLASH.search(raw)) or "\\" in scope["path"]:
            raise Problem(404, "not-found", "no name contains a slash or backslash, so this path does not exist")

    def _check_host(self, host: str, address: str) -> None:
        if not self._tokens and address and not _is_local(address):
            raise Problem(403, "forbidden", "without tokens, only requests from this machine are answered")
        if self._tokens and not self._named:
            return  # a foreign page cannot send a token
        if (name := _name(host)) not in self._hosts and not _is_local(name):
            raise Problem(421, "host", f"{name!r:.80} is not a host name of this board: its operator can add it")

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None:
            return
        _, _, netloc = origin.partition("://")
        if netloc.lower() != host.lower() and _name(netloc) not in self._named:
            raise Problem(403, "origin", "requests from pages of other origins are not answered")


def _with_head(scope: Any, name: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Add HEAD to an `Allow` header with GET: only this gate handles that method."""
    if name.lower() != b"allow" or b"GET" not in value or _path(scope) == _ENDLESS:
        return name, value
    return name, value.replace(b"GET", b"GET, HEAD")


async def _without_body(send: Send, message: Message) -> None:
    await send({**message, "body": b""} if message["type"] == "http.response.body" else message)


def _single(sent: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Return the headers that the gate uses. Raises Problem if one occurs twice."""
    headers: dict[bytes, str] = {}
    for name, value in sent:
        if name not in _READ:
            continue
        if name in headers:
            raise Problem(400, "bad-request", f"the header {name.decode('latin-1')} occurs more than once")
        headers[name] = value.decode("latin-1")
    return headers


def _path(scope: Any) -> str:
    """Return the path below the mount point, even if the server keeps that."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return path or "/"


@lru_cache(maxsize=256)
def _name(host: str) -> str:
    """Return the name in a Host header, without its port; "" if it is invalid."""
    found = _HOST.fullmatch(host)
    return found[1].strip("[]").lower() if found else ""


def is_local(names: Collection[str]) -> bool:
    """Whether these names all mean this machine."""
    return all(name in LOCAL or _is_local(name) for name in names)


@lru_cache(maxsize=1024)
def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


async def _refuse(problem: Problem, scope: Any, send: Send) -> None:
    body = msgspec.json.encode(problem.details(scope["path"]))
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
