"""Detects that the server is to stop, since no server tells an application in time.

An ASGI server sends `lifespan.shutdown` only after its connections have ended. A request that never ends, as a stream,
or that waits for something that does not come, as a command while the journal cannot be written, would block the
server's stop for ever: uvicorn waits without a limit by default.

Rules
-----
- The program's signal handlers are only looked at, never set.
- Two signs are uvicorn's: its server has the handler of SIGTERM or SIGINT and is told to exit; or a connection that was
  to be kept alive is to be closed after the present answer. The third sign works for any server in this process: it no
  longer listens on the address to which the request came.
- It looks for the signs only while requests are running.
- Then streams are ended. A request that is not answered within `PATIENCE` seconds gets the answer that the server
  stops, also if it waits for a database that does not answer.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from ...dispatch.detached import start_detached
from .listening import ListeningSockets, address_of

EVERY = 0.25
"""Seconds between two looks."""
PATIENCE = 3.0
"""Seconds that running requests have after the sign."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def told_to_stop() -> bool:
    """Whether this process's server was told to exit, as far as that is visible."""
    return any(getattr(_owner(signal.getsignal(number)), "should_exit", False) is True for number in _SIGNALS)


def _owner(handler: Any) -> object:  # a program's handler may be anything
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__self__", None)


class RunningRequest:
    """One running request. scope: its cancel scope. address: where it came to, if known."""

    __slots__ = ("_connection", "address", "scope")

    def __init__(self, asked: Any, receive: Any) -> None:
        self.scope = anyio.CancelScope()
        self.address = address_of(asked)
        connection = getattr(receive, "__self__", None)
        self._connection: object = connection if getattr(connection, "keep_alive", None) is True else None

    @property
    def is_last(self) -> bool:
        """Whether its connection, which was to be kept alive, is to be closed after it."""
        return self._connection is not None and getattr(self._connection, "keep_alive", None) is False


class RunningRequests:
    """All running requests. end: ends those that have no end of their own."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._running: set[RunningRequest] = set()
        self._looking = False
        self._listening = ListeningSockets()

    def enter(self, asked: Any, receive: Any) -> RunningRequest:
        """Add a request, to be answered in its scope. asked, receive: the server's ASGI arguments."""
        request = RunningRequest(asked, receive)
        self._listening.closed(request.address)  # remember the socket while it is open
        self._running.add(request)
        if not self._looking:
            self._looking = True
            start_detached(self._look, "callboard board")
        return request

    def leave(self, request: RunningRequest) -> None:
        """Remove a request that was answered."""
        self._running.discard(request)

    async def _look(self) -> None:
        try:
            while self._running:
                await anyio.sleep(EVERY)
                if ending := self._ending():
                    self._end_soon(ending)
        except anyio.get_cancelled_exc_class():
            pass  # the event loop ends
        finally:
            self._looking = False

    def _ending(self) -> list[RunningRequest]:
        if told_to_stop():
            return list(self._running)
        closed = {
            address for address in {request.address for request in self._running} if self._listening.closed(address)
        }
        return [request for request in self._running if request.is_last or request.address in closed]

    def _end_soon(self, ending: list[RunningRequest]) -> None:
        self._end()
        until = anyio.current_time() + PATIENCE
        for request in ending:
            request.scope.deadline = min(request.scope.deadline, until)
