"""The address of a journal in PostgreSQL: its parts, and that no text shows its password."""

from __future__ import annotations

import pytest

from callboard.runtime.errors import JournalMissing
from callboard.runtime.journal.location import is_address
from callboard.runtime.journal.postgres.address import parse


@pytest.mark.parametrize(
    ("text", "url", "schema", "shown"),
    [
        ("postgresql://", "postgresql://", "callboard", "postgresql://?schema=callboard"),
        ("postgres://db/app", "postgres://db/app", "callboard", "postgresql://db/app?schema=callboard"),
        (
            "postgresql://ana:s%40cret@db:5433/app?schema=jobs&sslmode=require",
            "postgresql://ana:s%40cret@db:5433/app?sslmode=require",
            "jobs",
            "postgresql://ana@db:5433/app?sslmode=require&schema=jobs",
        ),
        (
            "postgresql://a,b:5433/app?user=ana&password=geheim&sslpassword=auch",
            "postgresql://a,b:5433/app?user=ana&password=geheim&sslpassword=auch",
            "callboard",
            "postgresql://a,b:5433/app?user=ana&schema=callboard",
        ),
        (
            "postgresql://ana@/app?host=%2Frun%2Fpg&schema=x",
            "postgresql://ana@/app?host=%2Frun%2Fpg",
            "x",
            "postgresql://ana@/app?host=/run/pg&schema=x",
        ),
    ],
)
def test_the_schema_is_taken_out_and_what_people_see_has_no_password(
    text: str, url: str, schema: str, shown: str
) -> None:
    address = parse(text)
    assert (address.url, address.schema, address.shown) == (url, schema, shown)
    assert str(address) == repr(address) == f"{address}" == shown
    assert address.channel == f"callboard_{schema}"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://ana:se/cret@db/app",
        "postgresql://ana:se@cret@db/app",
        "postgresql://ana:secret#@db/app",
        "file.db",
    ],
)
def test_an_address_that_cannot_be_read_is_not_repeated(text: str) -> None:
    with pytest.raises(JournalMissing, match="Cannot read the address of a database") as refused:
        parse(text)
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize(
    "schema", ["", "pg_catalog", "information_schema", "Jobs", "a-b", "1st", "x" * 49, 'a"b', "%C3%A4"]
)
def test_a_schema_that_cannot_be_one_is_refused(schema: str) -> None:
    with pytest.raises(JournalMissing, match="cannot be the schema of a journal"):
        parse(f"postgresql://db/app?schema={schema}")


def test_a_path_is_no_address() -> None:
    assert is_address("postgresql://db/app")
    assert is_address("postgres://")
    assert not is_address("postgresql.db")
    assert not is_address(None)
