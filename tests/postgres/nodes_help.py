"""Several nodes on one schema, for tests: their commits, and leases that end without waiting."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import psycopg
from tests.runtime.journal.samples import moved

from callboard.actors.records.entities import AnyRecord
from callboard.runtime.journal.batch import Batch
from callboard.runtime.journal.contract import Entry
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.medium import PostgresMedium, connect_writer
from callboard.runtime.journal.postgres.nodes import PostgresCluster
from callboard.runtime.journal.postgres.opening import connect, prepare
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.journal.postgres.rows import parts_of

T = TypeVar("T")

_WAITING = """
SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE NOT granted AND application_name LIKE 'callboard%%'
"""


class PostgresNodes:
    """Nodes on the schema of an address, and a connection that may read and change everything."""

    def __init__(self, address: str) -> None:
        told = parse(address)  # a busy machine may take more than the usual 3 s for a new connection
        self.address = msgspec.structs.replace(
            told, url=f"{told.url}{'&' if '?' in told.url else '?'}connect_timeout=60"
        )
        prepare(self.address)
        self.sql = connect(self.address, "test")
        self.reader = PostgresReader(self.address)
        self.made: list[PostgresCluster] = []
        self._entries: dict[int, int] = {}
        self._threads = ThreadPoolExecutor(16)

    def node(self, name: str | None = None, **settings: Any) -> PostgresCluster:
        """Add a node with a long lease that seems to be a day old: so no pause of a busy machine makes another node
        fence it, or take it for a younger one.
        """
        more = {"is_dead": lambda _: False, "lease": 600.0, **settings}
        node = PostgresCluster(self.address, self.reader.load, self.reader.progress, name=name, **more)
        self.run("UPDATE nodes SET started_at = started_at - interval '1 day' WHERE node = %s", node.node)
        self.made.append(node)
        return node

    def batch(self, node: PostgresCluster, *records: AnyRecord) -> Batch:
        """Make a batch of these records, as one turn of a node."""
        entry = self._entries[node.node] = self._entries.get(node.node, 0) + 1
        rows = [
            moved(node.epoch * (1 << 28) + entry * 100 + n, one) for n, one in enumerate(records) if hasattr(one, "seq")
        ]
        return Batch(entry, [Entry(rows, list(records))])

    def commit(self, node: PostgresCluster, *records: AnyRecord) -> None:
        with self.medium(node) as medium:
            medium.commit(self.batch(node, *records), lambda: None)

    @contextlib.contextmanager
    def medium(self, node: PostgresCluster) -> Iterator[PostgresMedium]:
        """The medium to which a node commits."""
        medium = PostgresMedium(self.address, node.known)
        medium.open()
        with contextlib.closing(medium):
            yield medium

    @contextlib.contextmanager
    def committing(self, node: PostgresCluster, *records: AnyRecord) -> Iterator[None]:
        """Begin a commit of a node, which stays open until the block ends."""
        with contextlib.closing(connect_writer(self.address)) as connection:
            connection.pgconn.exec_(b"BEGIN")
            batch = self.batch(node, *records)
            for part in parts_of(batch, node.node, node.known.entry):
                result = connection.pgconn.exec_prepared(b"commit", part)  # type: ignore[arg-type]
                assert not result.error_message, result.error_message
            yield
            connection.pgconn.exec_(b"COMMIT")
            node.known.committed(batch.number)

    @contextlib.contextmanager
    def holding(self, sql: str, *values: object) -> Iterator[psycopg.Connection[Any]]:
        """Begin a transaction with this statement; it is committed with the block, or rolled back by an exception."""
        with contextlib.closing(connect(self.address, "holder")) as connection, connection.transaction():
            connection.execute(sql.encode(), values)
            yield connection

    def silence(self, *nodes: PostgresCluster, seconds: float = 3600) -> None:
        """Set the leases of these nodes as if they had not been renewed for so long."""
        for node in nodes:
            self.run(
                "UPDATE nodes SET seen_at = seen_at - make_interval(secs => %s) WHERE node = %s", seconds, node.node
            )

    def watch(self, *nodes: PostgresCluster) -> None:
        """Set these nodes as awake for a long time, with leases just renewed."""
        for node in nodes:
            node.renew(0)
            self.run("UPDATE nodes SET awake_at = awake_at - interval '1 day' WHERE node = %s", node.node)

    def run(self, sql: str, *values: object) -> Any:
        cursor = self.sql.execute(sql.encode(), values)
        return cursor.fetchall() if cursor.description else None

    def one(self, sql: str, *values: object) -> Any:
        return self.run(sql, *values)[0][0]

    def later(self, do: Callable[..., T], *values: Any) -> Future[T]:
        """Call a function in another thread."""
        return self._threads.submit(do, *values)

    def blocked(self, future: Future[Any]) -> Future[Any]:
        """Return when the begun call waits for another one's lock. A test holds only one at a time."""
        limit = time.monotonic() + 60
        while not self.one(_WAITING):
            assert not future.done(), "it did not wait"
            assert time.monotonic() < limit
            threading.Event().wait(0.002)
        return future

    def close(self) -> None:
        self._threads.shutdown()
        for node in self.made:
            node.close()
        self.reader.close()
        self.sql.close()
