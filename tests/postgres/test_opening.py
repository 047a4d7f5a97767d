"""The creation and migration of the journal's database, and the refusals."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import psycopg
import pytest
from tests.programs import killed_after
from tests.runtime.journal.samples import Loop, entry, job, message, step, task, workstream

from callboard.runtime.errors import (
    JournalCorrupt,
    JournalError,
    JournalLocked,
    JournalMissing,
    JournalTooNew,
    JournalUnwritable,
)
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.journal import PostgresJournal
from callboard.runtime.journal.postgres.opening import check_version, connect, migrate, prepare, refusing
from callboard.runtime.journal.postgres.schema import MIGRATIONS
from callboard.runtime.journal.views.dialect import Postgres
from callboard.runtime.journal.views.documents import guarded_states
from callboard.runtime.journal.views.views import steps_view, views_of
from callboard.runtime.testing.postgres import PrivateServer

from .nodes_help import PostgresNodes

FIRST = """
CREATE TABLE nodes (
  name text, fenced boolean, lease interval NOT NULL DEFAULT interval '1h',
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp(), ended_as text, ended_at timestamptz, ended_by text
)
"""
SECOND = "CREATE TABLE more (one integer)"


@contextlib.contextmanager
def superuser(server: PrivateServer, database: str = "postgres") -> Iterator[psycopg.Connection]:
    with psycopg.connect(server.address(database=database), autocommit=True) as connection:
        yield connection


def version(address: str) -> object:
    with connect(parse(address), "test") as connection:
        row = connection.execute("SELECT version FROM callboard").fetchone()
        return row and row[0]


def test_a_journal_is_made_once_however_many_come_at_once(postgres: str) -> None:
    versions: list[tuple[int, int]] = []
    threads = [threading.Thread(target=lambda: versions.append(migrate(parse(postgres)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = len(MIGRATIONS)
    assert sorted(versions) == [(0, now), *[(now, now)] * 3]
    prepare(parse(postgres))
    with connect(parse(postgres), "test") as connection:
        check_version(connection, parse(postgres))


def test_what_fails_in_a_migration_leaves_the_version_before(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, [FIRST])
    with pytest.raises(JournalError):
        migrate(address, [FIRST, SECOND, "CREATE TABLE broken ("])
    assert version(postgres) == 1
    assert migrate(address, [FIRST, SECOND]) == (1, 2)


def test_a_journal_that_nodes_use_is_not_migrated(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, [FIRST])
    with connect(address, "test") as connection:
        connection.execute("INSERT INTO nodes VALUES ('web-2', false), ('web-1', false), ('web-0', true)")
        with pytest.raises(JournalLocked, match=r"in use by web-1, web-2\. Stop them, then migrate it"):
            migrate(address, [FIRST, SECOND])
        connection.execute("UPDATE nodes SET fenced = true")
    assert migrate(address, [FIRST, SECOND]) == (1, 2)


def test_nodes_that_were_killed_are_fenced_by_a_migration(postgres: str) -> None:
    """No node of the new version can run before to fence them, and no node of the old version has to run."""
    address = parse(postgres)
    migrate(address, [FIRST])
    with connect(address, "test") as connection:
        connection.execute(
            "INSERT INTO nodes VALUES ('web-1', false, interval '1s', clock_timestamp() - interval '2s')"
        )
    assert migrate(address, [FIRST, SECOND]) == (1, 2)
    with connect(address, "test") as connection:
        told = connection.execute(
            "SELECT fenced, ended_as, ended_by, ended_at <= clock_timestamp() FROM nodes"
        ).fetchone()
    assert told == (True, "fenced", "callboard migrate", True)


def test_a_journal_of_the_first_version_goes_on(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, MIGRATIONS[:1])
    with connect(address, "test") as connection:
        connection.execute(
            "INSERT INTO nodes (name, epoch, fenced, lease, place, kernel, pid, process_started)"
            " VALUES ('web-1', nextval('epochs'), true, interval '1s', 'there', '', 1, 1)"
        )
        connection.execute("INSERT INTO commits VALUES (1, 7)")
    prepare(address)
    assert version(postgres) == len(MIGRATIONS)
    cluster = PostgresNodes(postgres)
    node = cluster.node("web-1")
    cluster.commit(node, job(1))
    assert node.renew(0).living == 1
    assert [one.key for one in cluster.reader.jobs()] == [1]
    cluster.close()


def test_a_newer_journal_is_refused_and_left_alone(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, [*[FIRST], *["SELECT 1"] * len(MIGRATIONS)])
    for use in (migrate, prepare):
        with pytest.raises(JournalTooNew, match="upgrade Callboard"):
            use(address)
    assert version(postgres) == len(MIGRATIONS) + 1


@pytest.mark.parametrize("due", ["1e18", "-1e18", "1.7e12", "null"])
def test_a_due_time_that_is_none_spoils_no_view(postgres: str, due: str) -> None:
    migrate(parse(postgres))
    record = f'{{"id": "run-7", "name": "run-7", "state": "open", "created_at": 1, "updated_at": 1, "due_at": {due}}}'
    with connect(parse(postgres), "test") as connection:
        connection.execute("INSERT INTO machine_records (key, living, record) VALUES (1, true, %s)", [record])
        rows = connection.execute("SELECT id, due_at, created_at FROM machines").fetchall()
    assert rows == [("run-7", None, "1970-01-01T00:00:01.000Z")]


def test_an_older_or_missing_journal_is_not_read(postgres: str) -> None:
    address = parse(postgres)
    with connect(address, "test") as connection:
        with pytest.raises(JournalMissing, match="callboard migrate"):
            check_version(connection, address)
        migrate(address, [FIRST])
        connection.execute("UPDATE callboard SET version = -1")
        with pytest.raises(JournalError, match="older Callboard"):
            check_version(connection, address)


def test_a_schema_of_something_else_is_refused_and_left_alone(postgres: str, postgres_server: PrivateServer) -> None:
    address = parse(postgres)
    with superuser(postgres_server) as connection:
        connection.execute(f"CREATE SCHEMA {address.schema} CREATE TABLE theirs (one integer)")
        with pytest.raises(JournalCorrupt, match="holds something else than a journal"):
            prepare(address)
        connection.execute(f"DROP TABLE {address.schema}.theirs")
    prepare(address)


def test_what_is_not_there_is_told_apart(postgres_server: PrivateServer, tmp_path: object) -> None:
    server = postgres_server
    with superuser(server) as connection:
        connection.execute("DROP ROLE IF EXISTS passworded, ana")
        connection.execute("CREATE ROLE passworded")
        connection.execute("CREATE ROLE ana LOGIN PASSWORD 'geheim' IN ROLE passworded")
    refused = {
        server.address(database="nowhere"): (JournalMissing, "there is no such database"),
        server.address(user="nobody"): (JournalUnwritable, "the role does not exist"),
        server.address(user="ana", password="falsch"): (JournalUnwritable, "the role or its password is wrong"),
        server.address(user="ana"): (JournalUnwritable, "it wants a password"),
        f"postgresql:///x?host={tmp_path}": (JournalUnwritable, "it cannot be reached"),
        server.address() + "&nonsense=geheim": (JournalMissing, "does not understand the address"),
        server.address(user="ana", password="geheim"): (JournalUnwritable, "this role may not do that"),
    }
    for address, (kind, words) in refused.items():
        with pytest.raises(kind, match=words) as told:
            migrate(parse(address))
        assert "geheim" not in str(told.value)
        assert "falsch" not in str(told.value)


def test_of_several_hosts_the_one_that_can_be_written_is_taken(postgres: str, tmp_path: Path) -> None:
    first = f"postgresql://postgres@/postgres?host={tmp_path},{parse_qs(postgres.partition('?')[2])['host'][0]}"
    address = parse(f"{first}&schema={parse(postgres).schema}")
    migrate(address, [FIRST])
    with connect(parse(postgres), "test") as connection:
        connection.execute("ALTER ROLE postgres SET default_transaction_read_only = on")
        try:
            with pytest.raises(JournalUnwritable, match="none of its servers can be written"):
                migrate(address, [FIRST])
        finally:
            connection.execute("ALTER ROLE postgres RESET default_transaction_read_only")


def test_a_standby_is_told_of(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, [FIRST])
    with connect(address, "test") as connection:
        connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(JournalUnwritable, match="read-only, as a standby is"), refusing(address):
            connection.execute("DELETE FROM nodes")


def test_a_server_that_went_away_is_told_of(postgres: str, postgres_server: PrivateServer) -> None:
    address = parse(postgres)
    with connect(address, "test") as connection:
        with superuser(postgres_server) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        with pytest.raises(JournalUnwritable, match="it cannot be reached"), refusing(address):
            connection.execute("SELECT 1")
        assert connection.closed


@pytest.mark.parametrize("given", ["</dev/null", "<&-"])
def test_the_private_server_runs_in_the_background_until_it_is_told_to_stop(given: str) -> None:
    words = ["sh", "-c", f'exec "$0" -m callboard.runtime.testing.postgres {given}', sys.executable]
    with killed_after(subprocess.Popen(words, stdout=subprocess.PIPE, text=True)) as server:
        assert server.stdout is not None
        address, _, _ = server.stdout.readline().partition("&schema=")
        try:
            with psycopg.connect(address) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        finally:
            server.terminate()
        assert server.wait(600) == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)


ADDED = {
    "attempts": "cpu_seconds",
    "tasks": "cpu_seconds",
    "guarded_task_states": "cpu_seconds",
    "workstreams": "test_results",
    "jobs": "description",
    "workers": "metadata",
}
"""The first column that each view of the sixth version lacks."""


def test_an_older_journal_gets_the_views_and_their_columns_of_today(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, MIGRATIONS[:6])
    made = views_of(Postgres(), [view for view in ADDED if view != "guarded_task_states"]) + guarded_states(Postgres())
    older = re.sub(rf",\n  [^\n]* AS ({'|'.join(ADDED.values())})\b.*?(?=\n  FROM)", "", made, flags=re.DOTALL)
    with connect(address, "test") as connection:
        for view in (*ADDED, "tool_invocations", "fleet_workers", "fleet_jobs"):
            connection.execute(f"DROP VIEW {view}")
        connection.execute(older)
        connection.execute("GRANT SELECT ON tasks TO PUBLIC")
        for view, column in ADDED.items():
            assert column not in columns(connection, view)
    prepare(address)
    with connect(address, "test") as connection:
        for view, column in ADDED.items():
            assert column in columns(connection, view)
        assert "invocations" in columns(connection, "tool_invocations")
        assert "task_description" in columns(connection, "fleet_jobs")
        assert "workspace_id" in columns(connection, "fleet_workers")
        granted = "SELECT has_table_privilege('public', 'tasks', 'SELECT')"
        assert connection.execute(granted).fetchone() == (True,)


def test_a_journal_of_the_version_before_steps_gets_them_and_one_way_to_commit(postgres: str) -> None:
    address, ws = parse(postgres), workstream(2, 1, 1)
    migrate(address, MIGRATIONS[: next(n for n, sql in enumerate(MIGRATIONS) if "step_records" in sql)])
    prepare(address)
    journal, loop = PostgresJournal(postgres, node="n"), Loop()
    loop.open(journal)
    journal.append(entry(job(1), ws, task(3, ws), step(4, task(3, ws)), seq=1))
    loop.until_durable(journal)
    assert journal.reader.steps(3) == [step(4, task(3, ws))]
    assert journal.shut(30)
    with connect(address, "test") as connection:
        ways = "SELECT count(*) FROM pg_proc WHERE proname = 'commit_batch'"
        here = "AND pronamespace = current_schema::regnamespace"
        assert connection.execute(f"{ways} {here}").fetchone() == (1,)
        assert connection.execute("SELECT job_id, label FROM task_steps").fetchall() == [("job-1", "ask")]


def test_a_journal_of_the_version_before_shows_the_arguments_of_steps_and_keeps_rights(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, MIGRATIONS[: next(n for n, sql in enumerate(MIGRATIONS) if "REPLACE VIEW task_steps" in sql)])
    older = re.sub(r",\n  [^\n]* AS arguments", "", steps_view(Postgres()))
    with connect(address, "test") as connection:
        connection.execute("DROP VIEW task_steps")
        connection.execute(older)
        connection.execute("GRANT SELECT ON task_steps TO PUBLIC")
        assert "arguments" not in columns(connection, "task_steps")
    prepare(address)
    with connect(address, "test") as connection:
        assert columns(connection, "task_steps")[-1] == "arguments"
        granted = "SELECT has_table_privilege('public', 'task_steps', 'SELECT')"
        assert connection.execute(granted).fetchone() == (True,)


def test_a_journal_of_the_version_before_messages_gets_them_and_one_way_to_commit(postgres: str) -> None:
    address = parse(postgres)
    migrate(address, MIGRATIONS[: next(n for n, sql in enumerate(MIGRATIONS) if "message_records" in sql)])
    prepare(address)
    journal, loop = PostgresJournal(postgres, node="n"), Loop()
    loop.open(journal)
    journal.append(entry(job(1), message(4), message(5, received_at=6.0)))
    loop.until_durable(journal)
    assert journal.shut(30)
    with connect(address, "test") as connection:
        ways = "SELECT count(*) FROM pg_proc WHERE proname = 'commit_batch'"
        here = "AND pronamespace = current_schema::regnamespace"
        assert connection.execute(f"{ways} {here}").fetchone() == (1,)
        assert connection.execute("SELECT job_id, state FROM task_messages ORDER BY key").fetchall() == [
            ("job-1", "unread"), ("job-1", "received"),
        ]  # fmt: skip


def columns(connection: psycopg.Connection, view: str) -> list[str]:
    return [column.name for column in connection.execute(f"SELECT * FROM {view}").description or ()]
