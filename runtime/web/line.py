"""The connection of a request, for the stream of events: a server that gives it saves it most of what a reader costs.

Rules
-----
- What is written to it directly stands between two parts that the server writes, in the server's own framing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .stream import LINE


class LineProtocol(H11Protocol):
    """Gives the application the connection, as an extension of ASGI."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin."""
        super().connection_made(transport)
        app: Any = self.app  # whatever an ASGI application is to uvicorn

        async def with_line(scope: Any, receive: Any, send: Any) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), LINE: transport}
            await app(scope, receive, send)

        self.app = with_line
