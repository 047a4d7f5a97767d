"""Limits of connections and streams, by the descriptors of this process.

Rules
-----
- Half of the descriptors is kept for the journal and for commands: connections can never use more than the other half.
- Only our own programs raise the limit (`raised`): an application sets its own.
"""

from __future__ import annotations

import sys

if sys.platform != "win32":
    import resource

CONNECTIONS = 5_000
"""The most connections at a time."""
STREAMS = 2_000
"""The most streams at a time."""
BACKLOG = 2_048
"""The most connections that wait to be accepted: that many are accepted at once."""
WANTED = 10_240
"""Enough descriptors for all limits. (Commands inherit the limit, and some close every possible one.)"""


def raised() -> None:
    """Raise the soft limit of descriptors to `WANTED`, if the hard limit allows it."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < WANTED:  # on some systems infinity is below 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (WANTED if hard < 0 else max(soft, min(hard, WANTED)), hard))


def connections() -> int:
    """Return how many connections are allowed at a time."""
    return min(CONNECTIONS, _descriptors() // 2)


def streams() -> int:
    """Return how many streams are allowed at a time, with room for other requests."""
    return min(STREAMS, _descriptors() * 2 // 5)


def backlog() -> int:
    """Return how many connections may wait to be accepted."""
    return min(BACKLOG, max(8, _descriptors() // 8))


def _descriptors() -> int:
    if sys.platform == "win32":
        return WANTED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft < 0 else soft
