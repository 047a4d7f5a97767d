"""Sends what handlers return: encoded once, with the two headers that it needs.

Rules
-----
- A Struct that a handler returns is sent here. A Response (another status, a header, no JSON) is sent by the framework.
- There are no cookies, and no background tasks: no handler of the board uses them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import Response
from litestar.response.base import ASGIResponse

JSON = "application/json"
_TYPE = (b"content-type", JSON.encode())
_encode = msgspec.json.Encoder().encode


class HandlerResponse(Response[Any]):
    """The answer with what a handler returns."""

    def __init__(self, content: Any, *, media_type: Any = None, status_code: int | None = None, **more: Any) -> None:
        if media_type is not None and media_type != JSON:
            super().__init__(content, media_type=media_type, status_code=status_code, **more)
            return
        self.content = content
        self.status_code = status_code
        self.media_type = JSON

    def to_asgi_response(self, app: Any, request: Any, **more: Any) -> ASGIResponse:
        """Make the response that the framework sends."""
        if self.media_type != JSON:
            framework: Any = super()  # type checkers do not know its types fully
            sent: ASGIResponse = framework.to_asgi_response(app, request, **more)
            return sent
        return _EncodedResponse(self.status_code or 200, _encode(self.content))


class _EncodedResponse(ASGIResponse):
    def __init__(self, status: int, body: bytes) -> None:
        self.status_code = status
        self.body = body

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:  # noqa: ARG002
        """Send the response."""
        length = (b"content-length", b"%d" % len(self.body))
        await send({"type": "http.response.start", "status": self.status_code, "headers": [_TYPE, length]})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})
