"""Whether the server that answers requests has been told to stop: nobody tells an application that in time.

An ASGI server says `lifespan.shutdown` once its connections are over. What is answered without an end, as a stream, or
waits for something that never comes, as a command while the journal cannot be written, would hold up for ever what it
waits for: uvicorn, unless it is told otherwise, waits without a limit.

Rules
-----
- Nothing is taken from the program: its handlers of signals are looked at, and never set.
- Two signs are uvicorn's: the server that has its handler at SIGTERM or SIGINT and is told to exit, and a connection
  that is not to be kept after the present answer, and was to be before. The third one is any server's that listens in
  this process: it does not listen any more where the request has come to.
- It is looked for only while requests are under way.
- Streams are ended then. What is not answered within `PATIENCE` seconds is answered that the server stops, also where
  it waits for a database that answers nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from ...dispatch.detached import start_detached
from .listening import Listening, address_of

EVERY = 0.25
"""Seconds between two looks."""
PATIENCE = 3.0
"""Seconds that requests have from then on."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def told_to_stop() -> bool:
    """Whether the server of this process, if it is one that can be asked, has been told to exit."""
    return any(getattr(_owner(signal.getsignal(number)), "should_exit", False) is True for number in _SIGNALS)


def _owner(handler: Any) -> object:  # whatever a program has for a handler
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__self__", None)


class Going:
    """One request under way. scope: what it is answered in. address: where it has come to, if that is known."""

    __slots__ = ("_connection", "address", "scope")

    def __init__(self, asked: Any, receive: Any) -> None:
        self.scope = anyio.CancelScope()
        self.address = address_of(asked)
        connection = getattr(receive, "__self__", None)
        self._connection: object = connection if getattr(connection, "keep_alive", None) is True else None

    @property
    def is_last(self) -> bool:
        """Whether its connection, which was to be kept, is to be closed after it."""
        return self._connection is not None and getattr(self._connection, "keep_alive", None) is False


class Underway:
    """All requests under way. end: ends those that have no end of their own."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self._going: set[Going] = set()
        self._looking = False
        self._listening = Listening()

    def enter(self, asked: Any, receive: Any) -> Going:
        """Have one more, to be answered in its scope. asked, receive: what the server says of it, and is asked by."""
        going = Going(asked, receive)
        self._listening.closed(going.address)  # so that it is known as long as it is there
        self._going.add(going)
        if not self._looking:
            self._looking = True
            start_detached(self._look, "callboard board")
        return going

    def leave(self, going: Going) -> None:
        """It was answered."""
        self._going.discard(going)

    async def _look(self) -> None:
        try:
            while self._going:
                await anyio.sleep(EVERY)
                if ending := self._ending():
                    self._end_soon(ending)
        except anyio.get_cancelled_exc_class():
            pass  # the event loop ends
        finally:
            self._looking = False

    def _ending(self) -> list[Going]:
        if told_to_stop():
            return list(self._going)
        closed = {address for address in {going.address for going in self._going} if self._listening.closed(address)}
        return [going for going in self._going if going.is_last or going.address in closed]

    def _end_soon(self, ending: list[Going]) -> None:
        self._end()
        until = anyio.current_time() + PATIENCE
        for going in ending:
            going.scope.deadline = min(going.scope.deadline, until)
