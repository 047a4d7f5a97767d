"""The connection of a request: given to the stream of events, which saves most of what a reader costs, and limited.

Rules
-----
- What is written to it directly stands between two parts that the server writes, in the server's own framing.
- A request has `ARRIVAL` seconds to arrive, headers and body, however slowly it comes: then its connection is closed.
- Where there are too many connections, requests are answered 503 (the server does that); where there are still more,
  they are closed before anything is read of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .stream import LINE

ARRIVAL = 30.0
"""Seconds that a request has to arrive in."""
_COMING = frozenset({h11.IDLE, h11.SEND_BODY})
"""What the client is at while a request has not arrived in full."""
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 10\r\ncontent-length: 0\r\n\r\n"


class LineProtocol(H11Protocol):
    """Gives the application the connection, as an extension of ASGI."""

    _late: asyncio.TimerHandle | None = None  # while a request is to arrive

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency * 11 // 10:
            transport.write(_TOO_MANY)
            transport.close()
            return
        app: Any = self.app  # whatever an ASGI application is to uvicorn

        async def with_line(scope: Any, receive: Any, send: Any) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), LINE: transport}
            await app(scope, receive, send)

        self.app = with_line
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what comes."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with what came meanwhile."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # else it waits for the next request, and no longer than it may
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Limit the time in which the rest of a request comes."""
        if self.conn.their_state not in _COMING or self.transport.is_closing():
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(ARRIVAL, self._close_late)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close_late(self) -> None:
        self._late = None
        cycle: Any = self.cycle  # None before the first request, which uvicorn's type does not say
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_TOO_SLOW)
        self.transport.close()
