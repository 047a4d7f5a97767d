"""The benchmarks' use of a PostgreSQL server: new databases, and the processor time of the server.

Rules
-----
- Each part of a benchmark has a new database, which is dropped after it, so that no part uses another part's tables.
- `fsync` and `synchronous_commit` are not changed, and the table shows their values.
- The server's processor time is that of all its processes. It is read only if the server is on this machine.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg
from orchestration import Row

_numbers = itertools.count()


class Spent(NamedTuple):
    """The use of a server so far: commits, bytes of its log, seconds of its processor (0 for a server elsewhere)."""

    commits: int
    log: int
    processor: float

    def since(self, before: Spent) -> Spent:
        """The use from then on."""
        return Spent(self.commits - before.commits, self.log - before.log, self.processor - before.processor)


@contextmanager
def fresh(address: str) -> Iterator[str]:
    """The address of a new database on the server of `address`. Its user must be allowed to create databases."""
    name = f"callboard_benchmark_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield urlunsplit(urlsplit(address)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def postgres_rows(address: str) -> Iterator[Callable[[list[Row]], None]]:
    """Rows into a new table, each list with one statement: the counterpart of `sqlite_rows`."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE TABLE rows (number bigserial PRIMARY KEY, task text, state text)")
        insert = "INSERT INTO rows (task, state) SELECT * FROM unnest(%s::text[], %s::text[])"

        def put(rows: list[Row]) -> None:
            connection.execute(insert, [[task for task, _ in rows], [state for _, state in rows]])

        yield put


def about(address: str) -> str:
    """The server, and the settings that make its commits safe."""
    with psycopg.connect(address) as connection:
        said = [_one(connection, f"SHOW {name}") for name in ("server_version", "fsync", "synchronous_commit")]
    return f"PostgreSQL {said[0]}, fsync {said[1]}, synchronous_commit {said[2]}"


def spent(address: str) -> Spent:
    """The use of the server so far; commits are those of that database only."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        commits = _one(connection, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        log = _one(connection, "SELECT pg_current_wal_lsn() - '0/0'")
        place = Path(_one(connection, "SHOW data_directory"))
    return Spent(int(commits), int(log), _processor(place))


def _one(connection: psycopg.Connection, query: str) -> str:
    row = connection.execute(query).fetchone()
    if row is None:
        raise RuntimeError(f"the server says nothing to {query}")
    return str(row[0])


def _processor(place: Path) -> float:
    """Processor seconds of the server's processes in that folder, with those that have ended."""
    try:
        postmaster = int((place / "postmaster.pid").read_text().split()[0])
    except OSError:
        return 0.0
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                told = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(entry.name) == postmaster:
                ticks += sum(map(int, told[11:15]))  # utime, stime, and those of ended child processes
            elif int(told[1]) == postmaster:
                ticks += sum(map(int, told[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")
