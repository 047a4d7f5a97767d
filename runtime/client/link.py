"""Requests to a server, which are repeated until the server answers.

Rules
-----
- A request without an answer (no connection, a broken connection, status 429 or 503, a command with the same key that
  is still in flight) is repeated until `patience` is over. Tenacity draws the pause, and `Retry-After` may make it
  longer.
- Every try of a command has the same key, so the command takes effect once, however often it is sent.
- A token is sent in its header and nowhere else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import httpx
import msgspec

from ...actors.spec.digits import whole
from ...actors.times import wait_of
from ..commands.idempotency import made_key
from .server_errors import ServerUnreachable, error_of

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two tries: the pause doubles each time, up to the longest."""
_AGAIN = frozenset({429, 502, 503, 504})
_IN_FLIGHT = b"/in-flight"
_sleep = anyio.sleep  # tests replace this


class NoAnswerYet(Exception):  # noqa: N818 - what to do
    """The request has no answer yet. cause: the error to raise after `patience`; after: the server's `Retry-After`."""

    def __init__(self, cause: Exception, after: float = 0.0) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.after = after


def place(*steps: str) -> str:
    """The path of a resource. In the id of a child job each "/" is written ":"."""
    return "/".join(quote(step.replace("/", ":"), safe="") for step in steps)


class Link:
    """The connection to one server.

    timeout: the limit of one try, in seconds. patience: seconds after which a request is given up; None: never.
    transport: replaces the network.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        timeout: float,
        patience: float | None,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        self.url = checked(url)
        self.timeout = timeout
        self.patience = patience
        headers = {"Accept": "application/json", "User-Agent": "callboard"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self.client = httpx.AsyncClient(
            base_url=f"{self.url}/api/", headers=headers, transport=transport,
            timeout=httpx.Timeout(timeout, connect=min(timeout, 5.0)),
            verify=self.url.startswith("https:"),  # without TLS it needs no certificates, whose reading is slow
        )  # fmt: skip

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """Get the resource at a path, decoded. Raises the error of the server's answer, ServerUnreachable."""
        return msgspec.json.decode((await self.ask("GET", path, params=params)).content)

    async def pages(self, path: str, *, next_by: str = "cursor", **params: Any) -> AsyncGenerator[dict[str, Any]]:
        """All items of a list, page by page. next_by: the parameter that requests the next page."""
        while True:
            page = await self.get(path, params)
            for item in page["items"]:
                yield item
            if page["next"] is None:
                return
            params[next_by] = page["next"]

    async def post(self, path: str, said: Mapping[str, Any], request_id: str | None) -> Any:
        """Send a command once, without the values that are None. Returns the answer. Raises the errors of `get`."""
        fields = {name: value for name, value in said.items() if value is not None}
        fields["request_id"] = made_key() if request_id is None else request_id
        content = msgspec.json.encode(fields)
        answer = await self.ask("POST", path, content=content, headers={"Content-Type": "application/json"})
        return msgspec.json.decode(answer.content)

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request, and read the whole answer. Raises the errors of `get`."""

        async def once() -> httpx.Response:
            return await _sent(self.client, self.client.build_request(method, path, **request))

        return await self._until_answered(once)

    @asynccontextmanager
    async def opened(
        self, path: str, params: Mapping[str, Any], headers: Mapping[str, str], silence: float
    ) -> AsyncGenerator[httpx.Response]:
        """Open a stream. silence: seconds without any data after which the stream counts as cut off."""
        timeout = httpx.Timeout(self.timeout, connect=min(self.timeout, 5.0), read=silence)

        async def once() -> httpx.Response:
            request = self.client.build_request("GET", path, params=params, headers=headers, timeout=timeout)
            return await _sent(self.client, request, stream=True)

        response = await self._until_answered(once)
        try:
            yield response
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _until_answered(self, once: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        try:
            async for attempt in self._retrying():
                with attempt:
                    return await once()
        except NoAnswerYet as given_up:
            raise given_up.cause from None
        raise AssertionError("tenacity ends by an answer or an error")

    def _retrying(self) -> AsyncRetrying:
        from tenacity import (  # noqa: PLC0415 - heavy
            AsyncRetrying,
            retry_if_exception_type,
            stop_before_delay,
            stop_never,
            wait_random_exponential,
        )

        drawn = wait_random_exponential(multiplier=2 * FIRST_PAUSE, max=LONGEST_PAUSE)

        def pause(state: RetryCallState) -> float:
            error = None if state.outcome is None else state.outcome.exception()
            return max(drawn(state), error.after if isinstance(error, NoAnswerYet) else 0.0)

        return AsyncRetrying(
            sleep=_sleep, wait=pause, retry=retry_if_exception_type(NoAnswerYet), reraise=True,
            stop=stop_never if self.patience is None else stop_before_delay(self.patience),
        )  # fmt: skip

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()


async def _sent(client: httpx.AsyncClient, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
    """The successful answer. Raises NoAnswerYet, and the error of the server's answer."""
    try:
        response = await client.send(request, stream=stream)
        if response.is_success:
            return response
        body = await response.aread()
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        raise NoAnswerYet(ServerUnreachable(f"no answer from {request.url.copy_with(query=None)}: {reason}")) from error
    await response.aclose()
    refused = error_of(response.status_code, body)
    in_flight = response.status_code == 409 and _IN_FLIGHT in body[:200]
    if response.status_code in _AGAIN or in_flight:
        raise NoAnswerYet(refused, _seconds(response.headers.get("Retry-After")))
    raise refused


def _seconds(text: str | None) -> float:
    """The seconds of a `Retry-After`. A date gives 0: the drawn pause applies then."""
    try:
        return wait_of(whole(text) or 0, "Retry-After")
    except ValueError:  # no server means a hundred years
        return 0.0


def checked(url: str) -> str:
    """The checked address of a server. Raises ValueError for an invalid address."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"{url!r:.200} is no address of a server: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(f"{url!r:.200} is no address of a server: it begins with http:// or https://")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError("the address of a server has no name, password, query or fragment; give its token as `token`")
    return str(parsed).rstrip("/")
