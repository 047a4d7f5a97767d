"""The processes of scale.py: it starts nodes, gives them work, kills them, and reads the output of their bodies.

Rules
-----
- Each node is a process (`scale_node.py`). All nodes begin a round at the same time; the measured time is from the
  first beginning to the last end.
- A body is a duplicate if it began although the database has a result of its task from another attempt, or if it began
  twice under one token. A body that was killed and began again under a new token is no duplicate: it had no result.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import psycopg
from scale_node import Order, Round

from callboard.actors.records.task import AttemptRecord

SCRIPT = Path(__file__).parent / "scale_node.py"


class Written(NamedTuple):
    """A line of a relay's log."""

    task: str
    token: int
    node: str
    at: float
    word: str


class Node:
    """The process of a node."""

    def __init__(self, order: Order) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.tell(msgspec.json.encode(order).decode())
        self.order = order

    def tell(self, line: str) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def told(self) -> bytes:
        """Its next line. Raises RuntimeError if it ends instead."""
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{self.order.name} ended ({self.process.wait()})")
        return line.encode()

    def kill(self) -> float:
        """Kill it. Returns the time (UTC epoch seconds)."""
        at = time.time()
        self.process.kill()
        self.process.wait()
        return at


@contextlib.contextmanager
def nodes(orders: Sequence[Order]) -> Iterator[list[Node]]:
    """Nodes that are all ready, started one after the other. They end with the block."""
    started: list[Node] = []
    try:
        for order in orders:
            started.append(Node(order))
            started[-1].told()
        yield started
    finally:
        for node in started:
            if node.process.stdin is not None:
                node.process.stdin.close()
        for node in started:
            try:
                node.process.wait(30)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
            if node.process.stdout is not None:
                node.process.stdout.close()


def together(fleet: Sequence[Node], tasks: int) -> tuple[float, float]:
    """Let each node run so many tasks. Returns the seconds of all, and their processor seconds."""
    for node in fleet:
        node.tell(str(tasks))
    rounds = [msgspec.json.decode(node.told(), type=Round) for node in fleet]
    spent = max(one.ended for one in rounds) - min(one.began for one in rounds)
    return spent, sum(one.processor for one in rounds)


def written(log: Path) -> list[Written]:
    """The lines that the bodies have written."""
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [Written(task, int(token), node, float(at), word) for task, token, node, at, word in lines]


def duplicates(address: str, lines: Sequence[Written]) -> int:
    """The number of bodies that began although they must not."""
    with psycopg.connect(address) as connection:
        rows = connection.execute("SELECT record FROM callboard.attempt_records").fetchall()
    attempts = [msgspec.json.decode(record, type=AttemptRecord) for (record,) in rows]
    result = {one.task_id.rpartition("/")[2]: one.key for one in attempts if one.end == "succeeded"}
    begun = Counter((line.task, line.token) for line in lines if line.word == "start")
    twice = sum(times - 1 for times in begun.values())
    return twice + sum(token > result.get(task, token) for task, token in begun)
