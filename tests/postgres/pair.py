"""A primary and its streaming standby, each on its own loopback port, for tests of failover.

Rules
-----
- `pg_basebackup` makes the standby from the primary. Once cut off, it receives nothing; promoted then, it
  lacks the later commits of the primary, like an asynchronous standby that was behind.
- Addresses name both servers with their ports, since either server may be the primary.
"""

from __future__ import annotations

import subprocess
import time
from itertools import count
from pathlib import Path

import psycopg
from tests.ports import free_port

from callboard.runtime.testing import postgres
from callboard.runtime.testing.postgres import SUPERUSER, PrivateServer

_SCHEMAS = count(1)
_HBA = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"
PATIENCE = 60.0


class Pair:
    """Both servers, from creation until `close`. synchronous: a commit is acknowledged once both have it."""

    def __init__(self, *, synchronous: bool) -> None:
        self.ports = free_port(), free_port()
        self._primary = PrivateServer(fsync=False)
        self._standby = self._primary.folder / "standby"
        try:
            data = self._primary.folder / "data"
            with (data / "postgresql.conf").open("a") as file:
                file.write(f"listen_addresses = '127.0.0.1'\nport = {self.ports[0]}\nwal_level = replica\n")
            with (data / "pg_hba.conf").open("a") as file:
                file.write(_HBA)
            self._primary.stop("fast")
            self._primary.start()
            self._run("pg_basebackup", "-D", self._standby, "-R", "-X", "stream", "-c", "fast", "-h", "127.0.0.1",
                      "-p", str(self.ports[0]), "-U", SUPERUSER)  # fmt: skip
            with (self._standby / "postgresql.conf").open("a") as file:
                file.write(f"port = {self.ports[1]}\n")
            self._control("start", "-w", "-t", "60", "-l", self._primary.folder / "standby.log")
            if synchronous:
                self.sql(0, "ALTER SYSTEM SET synchronous_standby_names = '*'")
                self.sql(0, "SELECT pg_reload_conf()")
            self._until(0, "SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'"
                           f" AND sync_state {'=' if synchronous else '<>'} 'sync'")  # fmt: skip
        except BaseException:
            self.close()
            raise

    def address(self, *, database: str = SUPERUSER, password: str = "", more: str = "") -> str:
        """The address of a new journal that names both servers."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        who = SUPERUSER + (f":{password}" if password else "")
        return f"postgresql://{who}@{hosts}/{database}?schema=pair_{next(_SCHEMAS)}{more}"

    def cut(self) -> None:
        """Cut the standby off. Returns once it has all commits of the primary so far."""
        self._until(1, f"SELECT pg_last_wal_replay_lsn() >= '{self.sql(0, 'SELECT pg_current_wal_lsn()')}'")
        self.sql(1, "ALTER SYSTEM SET primary_conninfo = ''")
        self.sql(1, "SELECT pg_reload_conf()")
        self._until(0, "SELECT count(*) = 0 FROM pg_stat_replication")

    def fail_over(self) -> None:
        """Crash the primary, and promote the standby."""
        self._primary.stop("immediate")
        self._control("promote", "-w", "-t", "60")

    def sql(self, server: int, statement: str) -> object:
        """Run a query on the first or the second server; returns the first value."""
        address = f"postgresql://{SUPERUSER}@127.0.0.1:{self.ports[server]}/{SUPERUSER}"
        with psycopg.connect(address, autocommit=True, connect_timeout=60) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return None if row is None else row[0]

    def close(self) -> None:
        """Stop and remove both servers."""
        if (self._standby / "postmaster.pid").exists():
            self._control("stop", "-w", "-t", "60", "-m", "immediate")
        self._primary.close()

    def _until(self, server: int, question: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not self.sql(server, question):
            assert time.monotonic() < limit, question
            time.sleep(0.02)

    def _control(self, *arguments: str | Path) -> None:
        self._run("pg_ctl", "-s", "-D", self._standby, *arguments)

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [postgres.programs() / program, *arguments], cwd=self._primary.folder, check=True, timeout=600,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            **postgres._somebody(),  # type: ignore[call-overload]
        )  # fmt: skip
