"""The journal in a PostgreSQL database: for several nodes, on as many machines, that share jobs and machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....actors.loading import Loaded
from ..cluster import EPOCH, LeaseLost
from ..contract import JournalError
from ..writer import Medium
from ..written import WrittenJournal
from .address import Address, parse
from .history import NodeHistory
from .medium import PostgresMedium, connect_writer
from .opening import connect, prepare, refusing
from .reader import Part, PostgresReader

if TYPE_CHECKING:
    from .opening import Connection


class PostgresJournal(WrittenJournal[PostgresReader]):
    """The journal at an address.

    connect, pause and clock are for tests: how the writer connects, how it waits between two tries of a batch, and
    monotonic seconds.
    """

    shared = None
    cluster = None

    def __init__(
        self,
        address: Address | str,
        *,
        connect: Callable[[Address], Connection] = connect_writer,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = parse(address) if isinstance(address, str) else address
        super().__init__(str(self.address), self.address.schema, pause=pause, clock=clock)
        self._connect = connect
        self._own: NodeHistory | None = None

    @property
    def lost(self) -> LeaseLost | None:
        """Why this node cannot write any more, once others have taken over what it ran."""
        return None if self._writer is None else self._writer.lost

    @property
    def begun(self) -> int:
        """The number above which those of this session's transitions begin. Raises as `own` does."""
        return self.own.begun

    @property
    def own(self) -> NodeHistory:
        """What this node commits. Raises JournalError when the journal is not open."""
        if self._own is None:
            raise JournalError(f"{self.address} is not open.")
        return self._own

    def bell(self) -> None:
        """None yet."""

    def _begin(self) -> tuple[PostgresReader, Loaded, Medium]:
        prepare(self.address)
        reader = PostgresReader(self.address)
        try:
            node, part = self._take()
            loaded = reader.load(part)
        except BaseException:
            reader.close()
            raise
        loaded.last_key = loaded.last_seq = node * EPOCH
        self._own = NodeHistory(reader, node, loaded.last_seq)
        return reader, loaded, PostgresMedium(self.address, node, connect=self._connect)

    def _take(self) -> tuple[int, Part]:
        """Fence the node before, and take all that it had."""
        with connect(self.address, "node") as connection, refusing(self.address), connection.transaction():

            def keys(sql: str) -> list[int]:
                return [row[0] for row in connection.execute(sql.encode())]

            before = keys("UPDATE nodes SET fenced = true RETURNING node")
            node = max(before, default=0) + 1
            connection.execute("INSERT INTO nodes (node) VALUES (%s)", [node])
            part = Part(
                jobs=keys("SELECT key FROM job_records WHERE living"),
                machines=keys("SELECT key FROM machine_records WHERE living"),
                outbox=keys("SELECT key FROM outbox_rows"),
                nodes=before,
            )
        return node, part
