"""The connection of a request: passed to the stream of events, which makes a reader cheap, and limited.

Rules
-----
- Bytes written to it directly stand between two parts that the server writes, in the server's own framing.
- A request has `ARRIVAL` seconds to arrive, headers and body, however slowly it comes: then its connection is closed.
- Above the limit of connections, the server answers requests with 503; above a still higher limit, connections are
  closed before anything is read from them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .stream import CONNECTION

ARRIVAL = 30.0
"""Seconds within which a request has to arrive."""
_COMING = frozenset({h11.IDLE, h11.SEND_BODY})
"""The client's states while a request has not arrived in full."""
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 10\r\ncontent-length: 0\r\n\r\n"


class ConnectionProtocol(H11Protocol):
    """Passes the connection to the application, as an extension of ASGI."""

    _late: asyncio.TimerHandle | None = None  # set while a request is arriving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Accept the connection, or close it if there are too many."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency * 11 // 10:
            transport.write(_TOO_MANY)
            transport.close()
            return
        app: Any = self.app  # Any: uvicorn's type for an ASGI application

        async def with_connection(scope: Any, receive: Any, send: Any) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), CONNECTION: transport}
            await app(scope, receive, send)

        self.app = with_connection
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Receive bytes of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Continue with bytes that arrived meanwhile."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:  # else the server waits for the next request, by its own timeout
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer: the connection is closed."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Limit the time within which the rest of a request arrives."""
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
        cycle: Any = self.cycle  # None before the first request, which uvicorn's type leaves out
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_TOO_SLOW)
        self.transport.close()
