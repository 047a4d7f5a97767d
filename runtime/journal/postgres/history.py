"""The transitions that one node commits, out of the shared history: the source for its log of transitions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ....actors.records.transition import Transitioned
from ..decoding import ordered
from .reader import PostgresReader


class NodeHistory:
    """The transitions of the node with that number, whose first one is numbered above `begun`.

    If `after` lies before `begun`, it continues with the transitions of the node that committed that number: one log
    covers several nodes, one after the other.
    """

    def __init__(self, reader: PostgresReader, node: int, begun: int) -> None:
        self._reader = reader
        self._node = node
        self.begun = begun

    def transitions(self, *, after: int = 0, limit: int | None = None) -> Iterator[Transitioned]:
        """Transitions numbered above `after`, in order."""
        after = after or self.begun
        chunks = self._reader.chunks(after, by_node=self._node)
        return islice((row for row in ordered(chunks) if row.seq > after), limit)

    def archived_numbers(self) -> list[tuple[int, int]]:
        """None: transitions stay in the database."""
        return []
