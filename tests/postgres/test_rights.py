"""The rights that roles need in a database: those of docs/postgres.md suffice, and no others are granted."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import anyio
import psycopg
import pytest
from typer.main import get_command

from callboard import Approval, Runtime, Task, Workstream
from callboard.runtime.cli.app import app
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.errors import JournalMissing, JournalUnwritable
from callboard.runtime.journal.contract import InboxRow
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.inbox import put, who_runs
from callboard.runtime.journal.postgres.nodes import nodes_of
from callboard.runtime.journal.postgres.opening import connect, migrate, prepare, refusing
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.testing.postgres import SUPERUSER, PrivateServer

PAGE = Path(__file__).parents[2] / "docs" / "postgres.md"
COMMAND = get_command(app)
ROLES = ("owner", "app", "reader", "client")


class Database:
    """A new database, with a role for each that the page describes."""

    def __init__(self, server: PrivateServer) -> None:
        self.server = server

    def address(self, role: str) -> str:
        return self.server.address("callboard", user=role, database="rights")

    def run(self, role: str, sql: str) -> None:
        with psycopg.connect(self.server.address(user=role, database="rights"), autocommit=True) as connection:
            connection.execute(sql.encode())

    def grant(self, role: str) -> None:
        """Grant a role the rights that the page names."""
        blocks = re.findall(r"^```(?:sql|text)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines() if f" TO {role};" in line]
        assert lines, f"the page grants {role} nothing"
        for line in lines:
            self.run("owner" if "DATABASE" not in line else SUPERUSER, line.replace("DATABASE app", "DATABASE rights"))


@pytest.fixture(scope="module")
def database(postgres_server: PrivateServer) -> Iterator[Database]:
    with psycopg.connect(postgres_server.address(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE rights")
        for role in ROLES:
            connection.execute(f"CREATE ROLE {role} LOGIN")
    database = Database(postgres_server)
    database.grant("owner")
    migrate(parse(database.address("owner")))
    for role in ROLES[1:]:
        database.grant(role)
    yield database
    with psycopg.connect(postgres_server.address(), autocommit=True) as connection:
        connection.execute("DROP DATABASE rights WITH (FORCE)")
        for role in ROLES:
            connection.execute(f"DROP ROLE {role}")


async def body() -> int:
    return 1


def test_a_runtime_needs_no_right_to_change_tables(database: Database) -> None:
    async def run() -> None:
        async with Runtime(database.address("app"), node="web-1") as runtime:
            job = await runtime.submit(Workstream("release", tasks=[Task("build", run=body)]))
            assert (await job.wait()).results == {"build": 1}

    anyio.run(run)
    for sql in (
        "CREATE TABLE callboard.theirs (one integer)",
        "DROP TABLE callboard.names",
        "TRUNCATE callboard.names",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            database.run("app", sql)


def test_who_reads_can_write_nothing(database: Database) -> None:
    reader = PostgresReader(database.address("reader"))
    reader.jobs()
    reader.close()
    assert who_runs(database.address("reader")) is None
    nodes_of(database.address("reader"))
    with pytest.raises(JournalUnwritable, match="this role may not do that"):
        put(database.address("reader"), InboxRow("cancel", "job", "x", "1"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        database.run("reader", "DELETE FROM callboard.job_records")


def test_who_commands_can_put_commands_and_nothing_else(database: Database) -> None:
    number = put(database.address("client"), InboxRow("cancel", "job", "x", "1"))
    reader = PostgresReader(database.address("client"))
    assert reader.answer(number) is None
    reader.close()
    for sql in ("UPDATE callboard.inbox_rows SET answer = ''", "DELETE FROM callboard.inbox_rows"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            database.run("client", sql)


def test_who_commands_can_cancel_what_nobody_runs(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    async def submit() -> None:
        async with Runtime(database.address("app")) as runtime:
            await runtime.submit(Workstream("w", tasks=[Task("a", run=body, hold=Approval())]), id="held")

    anyio.run(submit)
    command = ["cancel", "held", "--journal", database.address("client")]
    assert run_command(lambda: COMMAND(command, prog_name="callboard")) == 4
    assert "It will take effect at the next start" in capsys.readouterr().err

    async def go_on() -> None:
        async with Runtime(database.address("app")) as runtime:
            assert (await (await runtime.job("held")).wait()).state == "cancelled"

    anyio.run(go_on)


def test_who_may_make_no_tables_is_told_what_to_do(database: Database) -> None:
    for role in ("app", "reader"):
        address = database.server.address("another", user=role, database="rights")
        with pytest.raises(JournalUnwritable, match="this role may not do that"):
            prepare(parse(address))
        with pytest.raises(JournalMissing, match="callboard migrate"):
            PostgresReader(address)


def test_who_has_no_right_to_the_schema_is_told(database: Database) -> None:
    database.run(SUPERUSER, "CREATE ROLE nobody_special LOGIN")
    try:
        address = database.server.address("callboard", user="nobody_special", database="rights")
        with pytest.raises(JournalUnwritable, match="may not use the schema"):
            prepare(parse(address))
        with (
            contextlib.closing(connect(parse(address), "test")) as connection,
            pytest.raises(JournalMissing),
            refusing(parse(address)),
        ):
            connection.execute("SELECT * FROM nodes")
    finally:
        database.run(SUPERUSER, "DROP ROLE nobody_special")
