"""Whether a server still listens where a request has come to: all of them close that first when they are told to stop.

Rules
-----
- The sockets of this process are looked at, and nothing is done to them.
- All are looked through once for an address; afterwards only the one that was found, until that is closed.
- Where none is found at first (a server that listens in another process, or a test without one), nothing is said.
- An address is what ASGI calls `server`: a host and a port, or the path of a socket and None. A server that listens at
  a Unix socket and does not say so (hypercorn) has the one at which this process listens.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

Address: TypeAlias = int | str
"""A port, or the path of a Unix socket; `UNSAID` for whichever Unix socket there is."""
UNSAID = ""
Found: TypeAlias = tuple[int, int]
"""A descriptor, and the inode that it stands for: numbers of descriptors are used again."""
KEPT = 16
"""Addresses that are kept in mind."""
_DESCRIPTORS = Path("/dev/fd")


def address_of(scope: Any) -> Address | None:  # Any: what an ASGI server says
    """Where the request has come to, if the server says so."""
    match scope.get("server"):
        case (_, int() as port) | [_, int() as port]:
            return port
        case (str() as path, None) | [str() as path, None]:
            return path
        case None:
            return UNSAID
        case _:
            return None


class Listening:
    """Knows the listening sockets of this process. look: finds the one of an address."""

    def __init__(self, look: Callable[[Address], Found | None] | None = None) -> None:
        self._look = look or find
        self._known: dict[Address, Found | None] = {}

    def closed(self, address: Address | None) -> bool:
        """Whether this process has listened at an address, and does not any more."""
        if address is None:
            return False
        if address not in self._known:
            if len(self._known) == KEPT:
                self._known.clear()
            self._known[address] = self._look(address)
        known = self._known[address]
        if known is None or _inode(known[0]) == known[1]:
            return False
        again = self._look(address)
        if again is not None:  # another server began there
            self._known[address] = again
        return again is None


def find(address: Address) -> Found | None:
    """The listening socket of an address, if this process has one."""
    try:
        numbers = [int(one.name) for one in _DESCRIPTORS.iterdir()]
    except OSError:  # a system without such a folder, or no descriptor left
        return None
    for number in numbers:
        inode = _inode(number)
        if inode is not None and _listens(number, address):
            return number, inode
    return None


def _inode(number: int) -> int | None:
    """What a descriptor stands for, if that is a socket."""
    try:
        found = os.fstat(number)
    except OSError:  # it is closed
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
        one.detach()  # it is the server's, and stays open
    return (name[1] if isinstance(name, tuple) else name) == address
