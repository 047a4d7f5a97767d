"""Ports for servers that cannot say which one the system has given them."""

from __future__ import annotations

import random
import socket

# Below those that systems give away: one of these might be given to another test before it is used. Above those that
# Ray's workers take (10,002 to 19,999).
FIRST, LAST = 20_000, 32_000


def free_port() -> int:
    """A port of this machine at which nobody listens, and which nobody is given who asks for any one."""
    for port in random.SystemRandom().sample(range(FIRST, LAST), 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"100 ports between {FIRST} and {LAST} are taken")
