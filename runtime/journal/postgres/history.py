"""What one node commits, out of the history that all share: what its log of transitions is filled in from."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ....actors.records.transition import Transitioned
from ..decoding import ordered
from .reader import PostgresReader


class NodeHistory:
    """The transitions of the node with that number, whose first one is numbered above `begun`.

    Asked for what comes after an earlier one, it goes on with those of the node that committed that: a log is one of
    several nodes, one after the other.
    """

    def __init__(self, reader: PostgresReader, node: int, begun: int) -> None:
        self._reader = reader
        self._node = node
        self.begun = begun

    def transitions(self, *, after: int = 0, limit: int | None = None) -> Iterator[Transitioned]:
        """Those numbered above `after`, in order."""
        after = after or self.begun
        chunks = self._reader.chunks(after, by_node=self._node)
        return islice((row for row in ordered(chunks) if row.seq > after), limit)

    def archived_numbers(self) -> list[tuple[int, int]]:
        """None: transitions stay in the database."""
        return []
