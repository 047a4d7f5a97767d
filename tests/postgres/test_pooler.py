"""Poolers between a runtime and its database: one that changes a client's session is refused before any setting is
made, and one that keeps it works.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest
from tests.ports import free_port
from typer.main import get_command

from callboard import Runtime, Task, Workstream
from callboard.runtime.cli.app import app
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.errors import JournalUnwritable
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.postgres import opening
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.inbox import put, who_runs
from callboard.runtime.journal.postgres.opening import connect, migrate, prepare
from callboard.runtime.journal.postgres.pooled import refuse_shared
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.testing import postgres as private
from callboard.runtime.testing.postgres import SUPERUSER, PrivateServer

COMMAND = get_command(app)
PATIENCE = 60.0
SHARED = "a pooler that shares each session of the server among several clients"
_SETTINGS = """
[databases]
* = host={folder}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = {mode}
default_pool_size = {size}
logfile = {log}
"""
_LEFT = "SELECT current_setting('search_path'), current_setting('default_transaction_read_only')"
_UNTOUCHED = ('"$user", public', "off")


class Pooler:
    """PgBouncer before a server."""

    def __init__(self, server: PrivateServer, folder: Path, mode: str, size: int = 20) -> None:
        self.port = free_port()
        folder.mkdir(exist_ok=True)
        settings, users = folder / "pgbouncer.ini", folder / "users"
        users.write_text(f'"{SUPERUSER}" ""\n')
        settings.write_text(
            _SETTINGS.format(
                folder=server.folder, port=self.port, users=users, mode=mode, size=size, log=folder / "log"
            )
        )
        owner = private._somebody()
        for path in (folder, settings, users) if owner else ():
            os.chown(path, owner["user"], owner["group"])
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        self._process = subprocess.Popen(
            [program, "-q", settings], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, **owner,
        )  # fmt: skip

    def address(self, schema: str = "") -> str:
        more = f"?schema={schema}" if schema else ""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/postgres{more}"

    def wait(self) -> None:
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.address(), connect_timeout=60).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None
                assert time.monotonic() < limit
                time.sleep(0.02)
            else:
                return

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)


@pytest.fixture
def pooled(postgres_server: PrivateServer) -> Iterator[Callable[..., Pooler]]:
    """Makes a pooler of that mode."""
    if shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        pytest.skip("pgbouncer is not installed")
    made: list[Pooler] = []

    def make(mode: str, size: int = 20) -> Pooler:
        made.append(Pooler(postgres_server, postgres_server.folder / f"pooler-{time.monotonic_ns()}", mode, size))
        made[-1].wait()
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pool_whose_sessions_change_hands_is_refused_and_left_as_it_was(
    pooled: Callable[..., Pooler], postgres: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate(parse(postgres))
    pooler = pooled(mode)
    schema = parse(postgres).schema
    address = pooler.address(schema)
    asks: list[Callable[[], Any]] = [
        lambda: prepare(parse(address)),
        lambda: PostgresReader(address),
        lambda: put(address, InboxRow("cancel", "job", "x", "1")),
        lambda: who_runs(address),
        lambda: migrate(parse(address)),
        lambda: anyio.run(_open, address),
    ]
    with psycopg.connect(pooler.address(), autocommit=True, prepare_threshold=None) as theirs:  # another program's
        assert theirs.execute(_LEFT).fetchone() == _UNTOUCHED
        for ask in asks:
            with pytest.raises(JournalUnwritable, match=SHARED):
                ask()
        for verb in ("status", "nodes", "migrate", "resume"):
            assert run_command(lambda verb=verb: COMMAND([verb, "--journal", address], prog_name="callboard")) == 2  # type: ignore[misc]
            assert "pool_mode = session" in capsys.readouterr().err
        for _ in range(20):
            with psycopg.connect(pooler.address(), autocommit=True, prepare_threshold=None) as another:
                assert another.execute(_LEFT).fetchone() == _UNTOUCHED
            assert theirs.execute(_LEFT).fetchone() == _UNTOUCHED


async def _open(address: str) -> None:
    async with Runtime(address):
        pass


async def body() -> int:
    return 1


def test_a_pool_of_whole_sessions_works_and_gets_them_back_as_they_were(
    pooled: Callable[..., Pooler], postgres: str
) -> None:
    pooler = pooled("session")

    async def run() -> None:
        async with Runtime(pooler.address(parse(postgres).schema), node="web-1") as runtime:
            job = await runtime.submit(Workstream("release", tasks=[Task("build", run=body)]), id="r")
            assert (await job.wait()).results == {"build": 1}

    anyio.run(run)
    for _ in range(8):
        with psycopg.connect(pooler.address(), autocommit=True) as another:
            assert another.execute(_LEFT).fetchone() == _UNTOUCHED


def test_a_pool_that_has_no_session_left_is_told_of_in_time(pooled: Callable[..., Pooler], postgres: str) -> None:
    pooler = pooled("session", size=1)
    with pytest.raises(JournalUnwritable, match="gave no session within 3 s"):
        connect(parse(pooler.address(parse(postgres).schema)), "test")


def test_without_a_pooler_what_is_asked_before_it_is_known_sets_nothing(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both connections of the check are one connection here, as if a pooler gave them the same session."""
    address = parse(postgres)
    migrate(address)
    real = psycopg.connect(address.url, autocommit=True)

    class Given:
        """A connection to a pooler."""

        info = type("Info", (), {"backend_pid": 1})

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def close(self) -> None:
            """The session stays with the pooler."""

    with contextlib.closing(real):
        monkeypatch.setattr(psycopg, "connect", lambda **_: Given())
        with pytest.raises(JournalUnwritable, match=SHARED):
            opening.connect(address, "test")
        real.execute("ROLLBACK")
        assert real.execute(_LEFT).fetchone() == _UNTOUCHED
        assert real.execute("SELECT current_setting('lock_timeout')").fetchone() == ("0",)


def test_two_sessions_of_ones_own_pass(postgres: str) -> None:
    address = parse(postgres)
    with connect(address, "test") as connection:
        refuse_shared(address, connection, lambda: connect(address, "other"))
