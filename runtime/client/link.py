"""Requests to a server, asked again until they are answered.

Rules
-----
- What is not answered (no connection, one that broke, status 429 or 503, a command under the same key that is still in
  flight) is asked again, after a pause that tenacity draws and `Retry-After` may make longer, until `patience` is over.
- A command goes out with the same key each time, so it is done once, however often it was sent.
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
from ...actors.spec.times import wait_of
from ..commands.idempotency import made_key
from .trouble import ServerUnreachable, error_of

if TYPE_CHECKING:
    from tenacity import AsyncRetrying, RetryCallState

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two tries: twice as many each time, up to the longest."""
_AGAIN = frozenset({429, 502, 503, 504})
_IN_FLIGHT = b"/in-flight"
_sleep = anyio.sleep  # tests have another one here


class Again(Exception):  # noqa: N818 - what to do
    """Not answered yet. `cause` is what to raise when patience is over; after: seconds that the server asks for."""

    def __init__(self, cause: Exception, after: float = 0.0) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.after = after


def place(*steps: str) -> str:
    """The path of a resource. In the id of a child job each "/" is written ":"."""
    return "/".join(quote(step.replace("/", ":"), safe="") for step in steps)


class Link:
    """The way to one server.

    timeout: seconds that one try may take. patience: seconds after which it is given up; None: never. transport: in
    place of the network.
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
            verify=self.url.startswith("https:"),  # else nothing is to be verified, and to prepare for it takes long
        )  # fmt: skip

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """What stands there, decoded. Raises what the server says, ServerUnreachable."""
        return msgspec.json.decode((await self.ask("GET", path, params=params)).content)

    async def pages(self, path: str, *, next_by: str = "cursor", **params: Any) -> AsyncGenerator[dict[str, Any]]:
        """All items of a list, page by page. next_by: the parameter that asks for the page that follows."""
        while True:
            page = await self.get(path, params)
            for item in page["items"]:
                yield item
            if page["next"] is None:
                return
            params[next_by] = page["next"]

    async def post(self, path: str, said: Mapping[str, Any], request_id: str | None) -> Any:
        """Give a command, once. What is None is not said. Returns the answer. Raises as `get`."""
        told = {name: value for name, value in said.items() if value is not None}
        told["request_id"] = made_key() if request_id is None else request_id
        content = msgspec.json.encode(told)
        answer = await self.ask("POST", path, content=content, headers={"Content-Type": "application/json"})
        return msgspec.json.decode(answer.content)

    async def ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        """The answer to a request, read whole. Raises as `get`."""

        async def once() -> httpx.Response:
            return await _sent(self.client, self.client.build_request(method, path, **request))

        return await self._until_answered(once)

    @asynccontextmanager
    async def opened(
        self, path: str, params: Mapping[str, Any], headers: Mapping[str, str], silence: float
    ) -> AsyncGenerator[httpx.Response]:
        """A stream, once it is open. silence: seconds without a sign of life after which it counts as cut off."""
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
        except Again as given_up:
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
            return max(drawn(state), error.after if isinstance(error, Again) else 0.0)

        return AsyncRetrying(
            sleep=_sleep, wait=pause, retry=retry_if_exception_type(Again), reraise=True,
            stop=stop_never if self.patience is None else stop_before_delay(self.patience),
        )  # fmt: skip

    async def close(self) -> None:
        """Let go of the connections."""
        await self.client.aclose()


async def _sent(client: httpx.AsyncClient, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
    """The answer, if it is a success. Raises Again, and what the server says."""
    try:
        response = await client.send(request, stream=stream)
        if response.is_success:
            return response
        body = await response.aread()
    except httpx.TransportError as error:
        told = str(error) or type(error).__name__
        raise Again(ServerUnreachable(f"no answer from {request.url.copy_with(query=None)}: {told}")) from error
    await response.aclose()
    refused = error_of(response.status_code, body)
    in_flight = response.status_code == 409 and _IN_FLIGHT in body[:200]
    if response.status_code in _AGAIN or in_flight:
        raise Again(refused, _seconds(response.headers.get("Retry-After")))
    raise refused


def _seconds(text: str | None) -> float:
    """What `Retry-After` asks for, in seconds. A date is not waited for: the pause is drawn then."""
    try:
        return wait_of(whole(text) or 0, "Retry-After")
    except ValueError:  # no server means a hundred years
        return 0.0


def checked(url: str) -> str:
    """The address of a server. Raises ValueError for what can be none."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"{url!r:.200} is no address of a server: {error}") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ValueError(f"{url!r:.200} is no address of a server: it begins with http:// or https://")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError("the address of a server has no name, password, query or fragment; give its token as `token`")
    return str(parsed).rstrip("/")
