"""Journals that commit 5c07c26 made go on: with every lifecycle, machines, and functions by path and by name."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.older import shop

from callboard import Fire, Runtime
from callboard.runtime.journal.consistency import examine
from callboard.runtime.journal.sqlite.journal import SqliteReader
from callboard.runtime.testing.postgres import PrivateServer

pytestmark = pytest.mark.anyio
HERE = Path(__file__).parent


@pytest.fixture
def sqlite(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "callboard.db"
    path.write_bytes(gzip.decompress((HERE / f"{request.param}.sqlite.gz").read_bytes()))
    return path


@pytest.fixture
def database(postgres_server: PrivateServer) -> Iterator[str]:
    import psycopg

    with psycopg.connect(postgres_server.address(), autocommit=True) as connection:
        connection.execute(gzip.decompress((HERE / "postgres.sql.gz").read_bytes()))
        yield postgres_server.address("older")
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA older CASCADE")


async def goes_on(address: str | Path, lifecycle: str | None) -> None:
    """Check that all begun work ends by the rules of this version, and that no ended work is done again."""
    runtime = Runtime(address, lifecycle=lifecycle)
    runtime.task(shop.plane)
    with anyio.fail_after(300):
        async with runtime:
            for name in shop.LIFECYCLED:
                outcome = await (await runtime.job(f"job-{name or 'own'}")).wait()
                assert outcome.ok, (name, outcome.error)
                assert outcome.results == {
                    "begin": 1, "named": "smooth", "thread": "done", "go_on": 2, "path": 1,
                    "command": {"exit_code": 0, "output": ""},
                }  # fmt: skip
                attempts = {task: record.attempt for task, record in outcome.tasks.items()}
                assert attempts == {"begin": 1, "named": 1, "thread": 1, "go_on": 2, "command": 1, "path": 1}
            front = await runtime.spawn(shop.door(), name="front")
            assert (front.state, front.facts.times) == ("shut", 1)
            assert (await front.ask(Fire("lock"))).to_state == "locked"
            run = await runtime.spawn(shop.execution(), name="run-7")
            assert run.state == "queued"
            assert (await run.ask(Fire("START"))).to_state == "running"


@pytest.mark.parametrize(("sqlite", "lifecycle"), [("own", None), ("fleet", "fleet")], indirect=["sqlite"])
async def test_a_file_goes_on(sqlite: Path, lifecycle: str | None) -> None:
    await goes_on(sqlite, lifecycle)
    reader = SqliteReader(sqlite)
    try:
        assert examine(reader).found == []
    finally:
        reader.close()


@pytest.mark.parametrize("sqlite", ["own"], indirect=True)
def test_a_file_is_read_before_it_is_brought_up_to_date(sqlite: Path) -> None:
    reader = SqliteReader(sqlite)
    try:
        assert {job.id for job in reader.jobs()} == {f"job-{name or 'own'}" for name in shop.LIFECYCLED}
    finally:
        reader.close()


async def test_a_database_goes_on(database: str) -> None:
    await goes_on(database, None)
