"""A PostgreSQL for tests: one private server for all tests, started for the first test that needs it.

| fixture | what it is |
| --- | --- |
| `postgres` | the address of a schema for this test only, which does not exist yet |
| `emptied` | the address of an existing, empty journal; the tests of a module use it one after the other |
| `postgres_server` | the server, for tests that stop it, or create roles and schemas |

Without PostgreSQL or psycopg these tests are skipped; with CALLBOARD_POSTGRES=required they fail. Each
test with one of these fixtures gets the marker `postgres`; a test that uses `getfixturevalue` sets the marker
itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from itertools import count

import pytest

from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.opening import connect, prepare
from callboard.runtime.testing.postgres import NoPostgres, PrivateServer

_numbers = count(1)
_EMPTY = """
DO $$ DECLARE named text; BEGIN
  FOR named IN SELECT relname FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relname <> 'callboard'
  LOOP EXECUTE format('DELETE FROM %I', named); END LOOP;
END $$
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PrivateServer]:
    """The private server of the tests."""
    if importlib.util.find_spec("psycopg") is None:
        _unavailable("psycopg is not installed (the extra `postgres`)")
    try:
        server = PrivateServer()
    except NoPostgres as error:
        _unavailable(str(error))
    with server:
        yield server


def _unavailable(why: str) -> None:
    if os.environ.get("CALLBOARD_POSTGRES") == "required":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def postgres(postgres_server: PrivateServer) -> Iterator[str]:
    """The address of a schema that does not exist yet, and is removed after the test."""
    with _schema(postgres_server) as address:
        yield address


@pytest.fixture(scope="module")
def postgres_of_module(postgres_server: PrivateServer) -> Iterator[str]:
    with _schema(postgres_server) as address:
        yield address


@pytest.fixture
def emptied(postgres_of_module: str) -> str:
    """The address of an empty journal, which is faster than a new one."""
    address = parse(postgres_of_module)
    prepare(address)
    with connect(address, "test") as connection:
        connection.execute(_EMPTY)
    return postgres_of_module


@contextlib.contextmanager
def _schema(server: PrivateServer) -> Iterator[str]:
    import psycopg

    schema = f"test_{next(_numbers)}"
    yield server.address(schema)
    with psycopg.connect(server.address(), autocommit=True) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
