"""Free ports for servers that cannot report the port that the system chose."""

from __future__ import annotations

import random
import socket

# Below the ports that systems choose, since the system could give such a port to another test before it is used. Above
# the ports of Ray's workers (10,002 to 19,999).
FIRST, LAST = 20_000, 32_000


def free_port() -> int:
    """A port of this machine on which no server listens, and which the system never chooses."""
    for port in random.SystemRandom().sample(range(FIRST, LAST), 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"100 ports between {FIRST} and {LAST} are taken")
