"""How many connections and streams the descriptors of this process allow.

Rules
-----
- Half of them is left to the journal and to commands: who connects, however often, can take no more than the rest.
- The limit is raised by programs of our own only (`raised`): an application's is its own.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource

CONNECTIONS = 5_000
"""Connections at a time, at most."""
STREAMS = 2_000
"""Streams at a time, at most."""
BACKLOG = 2_048
"""Connections that wait to be taken, at most: so many are taken at once."""
WANTED = 10_240
"""Descriptors with which all of that is possible. (Commands inherit the limit, and some close all there could be.)"""


def raised() -> None:
    """Raise the soft limit of descriptors to the hard one, or to what is wanted."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < WANTED:  # infinity is less than 0 here and there
        resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED if hard < 0 else max(soft, min(hard, WANTED)), hard))


def connections() -> int:
    """How many connections there may be at a time."""
    return min(CONNECTIONS, _descriptors() // 2)


def streams() -> int:
    """How many streams there may be at a time: others are to be answered beside them."""
    return min(STREAMS, _descriptors() * 2 // 5)


def backlog() -> int:
    """How many connections may wait to be taken."""
    return min(BACKLOG, max(8, _descriptors() // 8))


def _descriptors() -> int:
    if sys.platform == "win32":
        return WANTED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft < 0 else soft
