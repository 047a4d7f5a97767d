"""A PostgreSQL for tests: one private server for all of them, started by the first that asks for it.

| fixture | what it is |
| --- | --- |
| `postgres` | the address of a schema of the test's own, which nobody has made yet |
| `postgres_server` | the server, for tests that stop it, or make roles and schemas |

Where there is no PostgreSQL, or no psycopg, these tests are skipped; with CALLBOARD_POSTGRES=required they fail. Each
test that asks for one of the fixtures has the marker `postgres`; one that asks later, by `getfixturevalue`, says so
itself.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from itertools import count

import pytest

from callboard.runtime.testing.postgres import NoPostgres, PrivateServer

_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PrivateServer]:
    """A server of these tests' own."""
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
    """The address of a schema that is not there yet, and is removed after the test."""
    import psycopg

    schema = f"test_{next(_numbers)}"
    yield postgres_server.address(schema)
    with psycopg.connect(postgres_server.address(), autocommit=True) as connection:
        connection.execute("SET lock_timeout = '10s'")
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
