"""The journal in a PostgreSQL database: for several nodes, on as many machines, that share jobs and machines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....actors.records.loaded import Loaded
from ....actors.times import seconds
from ...errors import JournalError, LeaseLost
from ..cluster import EPOCH, LEASE
from ..contract import Identity, InboxRow
from ..writer import Medium
from ..written import WrittenJournal
from .address import Address, parse
from .history import NodeHistory
from .inbox import PostgresNotifier
from .medium import PostgresMedium, connect_writer
from .nodes import PostgresCluster
from .opening import prepare
from .reader import LoadScope, PostgresReader

if TYPE_CHECKING:
    from .opening import Connection


class PostgresJournal(WrittenJournal[PostgresReader]):
    """The journal at an address, opened as a node.

    node: the node's name, None for a name made from this machine and process. lease: seconds. connect, pause and clock
    are for tests: how the writer connects, how it waits between two tries of a batch, and monotonic seconds.
    """

    shared = None

    def __init__(
        self,
        address: Address | str,
        *,
        node: str | None = None,
        lease: float = LEASE,
        connect: Callable[[Address], Connection] = connect_writer,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = (parse(address) if isinstance(address, str) else address).within(lease)
        super().__init__(str(self.address), self.address.schema, pause=pause, clock=clock)
        self._node = node
        self._lease = seconds(lease)
        self._connect = connect
        self._cluster: PostgresCluster | None = None
        self._own: NodeHistory | None = None

    @property
    def cluster(self) -> PostgresCluster | None:
        """This node's membership among the nodes, once the journal is open."""
        return self._cluster

    @property
    def lost(self) -> LeaseLost | None:
        """Why this node cannot write any more, if others have taken over what it ran."""
        return None if self._writer is None else self._writer.lost

    @property
    def begun(self) -> int:
        """The number above which this session's transitions begin. Raises as `own` does."""
        return self.own.begun

    @property
    def own(self) -> NodeHistory:
        """The transitions that this node commits. Raises JournalError if the journal is not open."""
        if self._own is None:
            raise JournalError(f"{self.address} is not open.")
        return self._own

    def again(self) -> PostgresReader:
        """A reader with its own connection, which works also after `shut`. Raises JournalError."""
        return PostgresReader(self.address, anywhere=False)

    def notifier(self) -> PostgresNotifier:
        """A notifier of new rows in the inbox, and changes among the nodes."""
        cluster = self._cluster
        if cluster is None:
            return PostgresNotifier(self.address)
        return PostgresNotifier(self.address, given=cluster.call, listened=cluster.hear)

    def inbox(self, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
        """The commands that this node has to run, oldest first, as in the contract."""
        return [] if self._cluster is None else self._cluster.inbox(events=events, limit=limit)

    def _begin(self) -> tuple[PostgresReader, Loaded, Medium]:
        prepare(self.address)
        reader = PostgresReader(self.address, anywhere=False)
        try:
            self._identity = Identity(reader.id(), self.address.place)
            cluster = self._cluster = PostgresCluster(
                self.address, reader.load, reader.progress, name=self._node, lease=self._lease
            )
            cluster.others.append(reader.link)
            loaded = cluster.take() or reader.load(LoadScope())
            mine = {one.name: one for one in reader.breakers() if one.id == f"{one.name}@{cluster.name}"}
            loaded.breakers = [*mine.values()]  # the breakers of this node's name, even if other nodes took the rest
        except BaseException:
            self._give_up()
            reader.close()
            raise
        loaded.last_key = loaded.last_seq = cluster.epoch * EPOCH
        self._own = NodeHistory(reader, cluster.node, loaded.last_seq)
        return reader, loaded, PostgresMedium(self.address, cluster.known, connect=self._connect)

    def _give_up(self) -> None:
        if self._cluster is not None:
            with contextlib.suppress(JournalError):  # other nodes notice it when its lease has run out
                self._cluster.leave()
            self._cluster.close()
