"""Detects that a server has stopped listening: servers close their socket first when they stop.

Rules
-----
- The sockets of this process are only looked at.
- For a new address all descriptors are searched; later only the one that was found, until it is closed.
- If none is found at first (the server listens in another process, or a test has none), nothing is reported.
- An address is the ASGI `server`: a host and a port, or the path of a socket and None. A server that listens on a
  Unix socket and does not name it (hypercorn) gets the Unix socket on which this process listens.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Address: TypeAlias = int | str
"""A port, or the path of a Unix socket; `UNSAID` for any Unix socket."""
UNSAID = ""
Found: TypeAlias = tuple[int, int]
"""A descriptor and its inode: descriptor numbers are used again."""
KEPT = 16
"""Addresses that are remembered."""
_DESCRIPTORS = Path("/dev/fd")


def address_of(scope: Any) -> Address | None:  # Any: a value of the ASGI server
    """Return the address to which a request came, if the server names it."""
    match scope.get("server"):
        case (_, int() as port) | [_, int() as port]:
            return port
        case (str() as path, None) | [str() as path, None]:
            return path
        case None:
            return UNSAID
        case _:
            return None


class ListeningSockets:
    """Keeps the listening sockets of this process. look: finds an address's socket."""

    def __init__(self, look: Callable[[Address], Found | None] | None = None) -> None:
        self._look = look or find
        self._known: dict[Address, Found | None] = {}

    def closed(self, address: Address | None) -> bool:
        """Whether this process has listened on an address, and does not any more."""
        if address is None:
            return False
        if address not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            self._known[address] = self._look(address)
        bound = self._known[address]
        if bound is None or _inode(bound[0]) == bound[1]:
            return False
        again = self._look(address)
        if again is not None:  # another server has begun to listen there
            self._known[address] = again
        return again is None


def find(address: Address) -> Found | None:
    """Find the listening socket of an address in this process."""
    try:
        numbers = [int(one.name) for one in _DESCRIPTORS.iterdir()]
    except OSError:  # the system has no such folder, or no descriptor is left
        return None
    for number in numbers:
        inode = _inode(number)
        if inode is not None and _listens(number, address):
            return number, inode
    return None


def _inode(number: int) -> int | None:
    """Return a descriptor's inode if it is a socket."""
    try:
        found = os.fstat(number)
    except OSError:  # the socket is closed
        return None
    return found.st_ino if stat.S_ISSOCK(found.st_mode) else None


def _listens(number: int, address: Address) -> bool:
    try:
        one = socket.socket(fileno=number)
    except OSError:
        return False
    try:
        if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        if address == UNSAID:
            return one.family == getattr(socket, "AF_UNIX", None)
        name: tuple[object, ...] | str | bytes = one.getsockname()
    except OSError:
        return False
    finally:
        one.detach()  # the server owns it, so it stays open
    return (name[1] if isinstance(name, tuple) else name) == address
