"""A connection that is made anew after it was lost.

Rules
-----
- One thread uses it at a time; others wait.
- A question that was interrupted is asked once more on the new connection. So it must be safe to ask it twice.
- A read-only session counts as broken: the next one may be with the primary.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...errors import JournalError
from .address import Address
from .opening import connect, driver, is_lost, refusing

if TYPE_CHECKING:
    from .opening import Connection

T = TypeVar("T")
_READ_ONLY = "25006"


class Link:
    """A connection to a journal's database for one purpose, from its first use until `close`."""

    def __init__(self, address: Address, purpose: str, connect: Callable[[Address, str], Connection] = connect) -> None:
        self._address = address
        self._purpose = purpose
        self._connect = connect
        self._one_at_a_time = threading.Lock()
        self._connection: Connection | None = None
        self._changing = threading.Lock()  # held only briefly
        self._closed = threading.Event()
        self.made = 0  # number of connections made so far

    def ask(self, question: Callable[[Connection], T]) -> T:
        """Ask a question on the connection. Raises JournalError."""
        with self._one_at_a_time, refusing(self._address):
            if self._connection is not None:
                try:
                    return question(self._connection)
                except driver().Error as error:
                    if not (is_lost(error) or error.sqlstate == _READ_ONLY):
                        raise
                    self._drop()
            if self._closed.is_set():
                raise JournalError(f"{self._address} is not open any more.")
            self._connection = self._connect(self._address, self._purpose)
            self.made += 1
            if self._closed.is_set():  # the connection was closed or cut meanwhile
                self._drop()
                raise JournalError(f"{self._address} is not open any more.")
            try:
                return question(self._connection)
            except driver().Error as error:
                if is_lost(error) or error.sqlstate == _READ_ONLY:
                    self._drop()
                raise

    def close(self) -> None:
        """Close the connection."""
        with self._one_at_a_time:
            self._closed.set()
            self._drop()

    def cut(self) -> None:
        """Stop answering; threads that wait for an answer get an error. Does not block; from any thread."""
        self._closed.set()
        with self._changing:
            if self._connection is not None:
                with contextlib.suppress(Exception):
                    _shut(self._connection.fileno())

    def _drop(self) -> None:
        with self._changing:
            if self._connection is not None:
                with contextlib.suppress(Exception):
                    self._connection.close()
                self._connection = None


def _shut(number: int) -> None:
    """Shut a socket, so that a thread that reads from it returns."""
    with contextlib.closing(socket.socket(fileno=os.dup(number))) as other:
        other.shutdown(socket.SHUT_RDWR)
