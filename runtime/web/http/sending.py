"""How what a handler gives is sent: encoded once, with the two headers that it needs.

Rules
-----
- Where a handler gives a Struct, this sends it. Where it gives a Response (another status, a header, no JSON), the
  framework does.
- There are no cookies, and nothing is called afterwards: no handler of the board does that.
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


class Told(Response[Any]):
    """The answer made of what a handler gives."""

    def __init__(self, content: Any, *, media_type: Any = None, status_code: int | None = None, **more: Any) -> None:
        if media_type is not None and media_type != JSON:
            super().__init__(content, media_type=media_type, status_code=status_code, **more)
            return
        self.content = content
        self.status_code = status_code
        self.media_type = JSON

    def to_asgi_response(self, app: Any, request: Any, **more: Any) -> ASGIResponse:
        """What the framework calls to send it."""
        if self.media_type != JSON:
            framework: Any = super()  # whose types are not known in full
            sent: ASGIResponse = framework.to_asgi_response(app, request, **more)
            return sent
        return _Sent(self.status_code or 200, _encode(self.content))


class _Sent(ASGIResponse):
    def __init__(self, status: int, body: bytes) -> None:
        self.status_code = status
        self.body = body

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:  # noqa: ARG002
        """Send it."""
        length = (b"content-length", b"%d" % len(self.body))
        await send({"type": "http.response.start", "status": self.status_code, "headers": [_TYPE, length]})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})
