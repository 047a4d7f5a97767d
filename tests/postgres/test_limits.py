"""The time limits of database operations, which depend on the lease, and the reports when they are exceeded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from tests.ports import free_port
from tests.waiting import until, wait_until

from callboard import Runtime, Task, Tool, Workstream
from callboard.errors import LeaseLost, RuntimeClosed
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.errors import JournalError, JournalLocked, JournalMissing, JournalUnwritable
from callboard.runtime.journal.postgres.address import parse
from callboard.runtime.journal.postgres.limits import limits_of
from callboard.runtime.journal.postgres.medium import connect_writer
from callboard.runtime.journal.postgres.opening import connect, migrate, refusal
from callboard.runtime.journal.postgres.reader import PostgresReader
from callboard.runtime.lifespan.closing import REST
from callboard.runtime.testing.postgres import PrivateServer

from .pair import Pair

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
ON_BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
PATIENCE = 60.0
LEASE = 3.0
BUSY = 60.0
"""Seconds that a busy machine may take in addition."""
COMMAND = (sys.executable, "-c", "import sys; from callboard.runtime.cli import main; sys.exit(main())")


@contextmanager
def locked(address: str, *tables: str) -> Iterator[None]:
    """Lock these tables while the block runs."""
    with closing(connect(parse(address), "test")) as connection, connection.transaction():
        connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE {', '.join(tables)}")
        yield


def settings(connection: psycopg.Connection[Any]) -> dict[str, float]:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    sql = "SELECT name, setting::float / 1000 FROM pg_settings WHERE name = ANY (%s)"
    return dict(connection.execute(sql, [[*names]]).fetchall())


@pytest.mark.parametrize("lease", [1.0, 3.0, 15.0, 60.0])
def test_every_limit_of_a_node_is_a_fraction_of_its_lease(postgres: str, lease: float) -> None:
    limits = limits_of(lease)
    client = limits.of_client
    assert client["tcp_user_timeout"] < lease * 1000
    assert client["connect_timeout"] <= max(2, lease / 2)  # PostgreSQL's client takes no less than 2 s
    assert client["keepalives_idle"] + client["keepalives_interval"] * client["keepalives_count"] <= max(3, lease)
    address = parse(postgres).within(lease)
    migrate(address)
    with closing(connect(address, "test")) as connection:
        assert all(0 < limit < lease for limit in settings(connection).values())
    with closing(connect_writer(address)) as connection:
        assert settings(connection)["lock_timeout"] < lease
        assert settings(connection)["idle_in_transaction_session_timeout"] < lease


def test_an_address_may_say_other_limits(postgres: str) -> None:
    address = f"{postgres}&lock_timeout=1500ms&statement_timeout=7s&idle_in_transaction_session_timeout=9s"
    migrate(parse(address))
    wanted = {"lock_timeout": 1.5, "statement_timeout": 7.0, "idle_in_transaction_session_timeout": 9.0}
    for made in (connect(parse(address), "test"), connect_writer(parse(address))):
        with closing(made) as connection:
            assert settings(connection) == wanted
    reader = PostgresReader(address)
    assert reader.link.ask(settings) == wanted
    reader.close()
    assert "lock_timeout=1500ms" in str(parse(address))
    with pytest.raises(JournalMissing, match="does not understand a setting that the address says"):
        connect(parse(f"{postgres}&lock_timeout=soon"), "test")


@pytest.fixture
def other_limits_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set all other limits to ten minutes, so that only the tested one can end a wait."""
    for name in ("journal.postgres.limits.READ", "journal.postgres.limits.COMMIT", "lifespan.closing.CLOSING"):
        monkeypatch.setattr(f"callboard.runtime.{name}", 600.0)


@ON_BOTH
@pytest.mark.usefixtures("other_limits_are_long")
async def test_health_follows_the_lease(postgres: str) -> None:
    async with Runtime(postgres, node="a", lease=LEASE) as runtime:
        assert runtime.health.ok
        # A write that waits for the lock would be the reason as long as the lock is held.
        await until(lambda: runtime.journal.durable == runtime.journal.tail)
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with locked(postgres, "nodes"):
                held.set()
                over.wait(PATIENCE)

        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, hold)
            await until(held.is_set)
            began = time.monotonic()
            await until(lambda: "has not renewed its lease" in str(runtime.health.reason))
            assert time.monotonic() - began < LEASE + BUSY
            reason, since = str(runtime.health.reason), runtime.health.since
            assert "node 'a' has not renewed its lease of 3 s for" in reason
            assert since is not None
            assert 0 < time.time() - since < LEASE + BUSY
            await until(lambda: "others may have taken over" in str(runtime.health.reason))
            over.set()
            await until(lambda: runtime.health.ok)


async def waits() -> None:
    await anyio.sleep_forever()


DEADLINE = 0.5
"""Seconds: the drain deadline."""


@ON_BOTH
@pytest.mark.usefixtures("other_limits_are_long")
async def test_leaving_with_a_full_database_takes_its_deadline_and_a_named_rest(postgres: str) -> None:
    migrate(parse(postgres))
    async with Runtime(postgres, node="a", lease=LEASE, drain_deadline=DEADLINE) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=waits)]))
        await until(lambda: job.state == "running")
        with closing(connect(parse(postgres), "test")) as connection:
            connection.execute(
                "CREATE FUNCTION full_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION"
                " 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$"
            )
            for table in ("commits", "nodes", "acts"):
                connection.execute(
                    f"CREATE TRIGGER full_up BEFORE UPDATE OR INSERT ON {table} FOR EACH ROW"
                    " EXECUTE FUNCTION full_up()".encode()
                )
        await until(lambda: not runtime.health.ok)
        reason = str(runtime.health.reason)
        began = time.monotonic()
    assert "its disk is full. Make room" in reason or "has not renewed its lease" in reason
    assert time.monotonic() - began < DEADLINE + REST + BUSY


@contextmanager
def still(server: PrivateServer) -> Iterator[None]:
    """Stop all processes of a server while the block runs: it receives queries, and never answers."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    pids = [server.pid, *map(int, children)]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@ON_BOTH
@pytest.mark.usefixtures("other_limits_are_long")
@pytest.mark.parametrize("lease", [3.0, 600.0])
async def test_leaving_with_a_database_that_does_not_answer_takes_no_longer(
    postgres_server: PrivateServer,  # skips the test without a server
    lease: float,
) -> None:
    with PrivateServer(fsync=False) as server, ExitStack() as until_left:
        migrate(parse(server.address()))
        async with Runtime(server.address(), node="a", lease=lease, drain_deadline=DEADLINE) as runtime:
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=waits)]))
            await until(lambda: job.state == "running")
            until_left.enter_context(still(server))
            began = time.monotonic()
        took = time.monotonic() - began
    assert took < DEADLINE + REST + BUSY


@ON_BOTH
@pytest.mark.usefixtures("other_limits_are_long")
async def test_leaving_while_somebody_holds_the_nodes_locked_takes_no_longer(postgres: str) -> None:
    migrate(parse(postgres))
    with ExitStack() as until_left:
        async with Runtime(postgres, node="a", lease=600.0, drain_deadline=DEADLINE) as runtime:
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=waits)]))
            await until(lambda: job.state == "running")
            until_left.enter_context(locked(postgres, "nodes"))
            began = time.monotonic()
        assert time.monotonic() - began < DEADLINE + REST + BUSY


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ('FATAL:  sorry, too many clients already', JournalUnwritable, "no connection left"),
        ('FATAL:  too many connections for role "app"', JournalUnwritable, "no connection left"),
        ('FATAL:  remaining connection slots are reserved', JournalUnwritable, "no connection left"),
        ('FATAL:  no more connections allowed (max_client_conn)', JournalUnwritable, "no connection left"),
        ('FATAL:  the database system is starting up', JournalUnwritable, "takes no connections just now"),
        ('FATAL:  the database system is shutting down', JournalUnwritable, "takes no connections just now"),
        ('FATAL:  terminating connection due to administrator command', JournalUnwritable, "no connections just now"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.7"', JournalUnwritable, "pg_hba.conf"),
        ('FATAL:  pg_hba.conf rejects connection for host', JournalUnwritable, "pg_hba.conf"),
        ('FATAL:  password authentication failed for user "a"', JournalUnwritable, "the role or its password is wrong"),
        ('FATAL:  Peer authentication failed for user "a"', JournalUnwritable, "the role or its password is wrong"),
        ('FATAL:  permission denied for database "app"', JournalUnwritable, "may not enter the database"),
        ('FATAL:  role "app" is not permitted to log in', JournalUnwritable, "may not log in"),
        ('FATAL:  database "app" does not exist', JournalMissing, "there is no such database"),
        ('FATAL:  could not write init file: No space left on device', JournalUnwritable, "its disk is full"),
        ('connection failed: Connection refused', JournalUnwritable, "nothing answers"),
        ('failed to resolve host \'db\': Name or service not known', JournalUnwritable, "host is not found"),
        ('connection timeout expired', JournalUnwritable, "does not answer in time"),
        ('FATAL:  something that is new', JournalUnwritable, "it refuses the connection"),
    ],
)  # fmt: skip
def test_a_refused_connection_says_what_the_server_said_and_the_way_out(
    said: str, kind: type[JournalError], words: str
) -> None:
    told = refusal(parse("postgresql://a:geheim@db/app"), psycopg.OperationalError(said))
    assert isinstance(told, kind)
    assert words in str(told)
    assert " ".join(said.split()) in str(told)
    assert "geheim" not in str(told)


def test_what_real_servers_refuse(postgres_server: PrivateServer) -> None:
    server = postgres_server
    with psycopg.connect(server.address(), autocommit=True) as connection:
        connection.execute("CREATE ROLE one LOGIN CONNECTION LIMIT 0")
        connection.execute("CREATE DATABASE closed CONNECTION LIMIT 0")
        connection.execute("CREATE ROLE nobody NOLOGIN")
    try:
        for address, words in {
            server.address(user="one"): "no connection left",
            server.address(user="one", database="closed"): "no connection left",
            server.address(user="nobody"): "may not log in",
        }.items():
            with pytest.raises(JournalUnwritable, match=words):
                connect(parse(address), "test")
    finally:
        with psycopg.connect(server.address(), autocommit=True) as connection:
            connection.execute("DROP ROLE one, nobody")
            connection.execute("DROP DATABASE closed")


def test_a_wait_for_a_lock_is_no_damage(postgres: str) -> None:
    migrate(parse(postgres))
    with (
        locked(postgres, "nodes"),
        closing(connect(parse(postgres).within(1), "test")) as connection,
        pytest.raises(psycopg.errors.LockNotAvailable) as told,
    ):
        connection.execute("SELECT * FROM nodes")
    assert isinstance(refusal(parse(postgres), told.value), JournalLocked)


def test_trouble_with_the_journal_is_told_as_that_however_it_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    fenced = RuntimeClosed("the runtime has closed, since it was fenced")
    fenced.__cause__ = LeaseLost("node 'a' was fenced")
    for error, code in (
        (ExceptionGroup("two", [JournalLocked("it is locked"), ExceptionGroup("one", [fenced])]), 1),
        (ExceptionGroup("two", [JournalLocked("it is locked"), JournalUnwritable("it is full")]), 2),
        (LeaseLost("node 'a' was fenced"), 1),
        (ExceptionGroup("two", [JournalLocked("it is locked"), ZeroDivisionError("ours")]), 3),
    ):

        def fail(error: Exception = error) -> None:
            raise error

        assert run_command(fail) == code
        assert ("fault of Callboard" in capsys.readouterr().err) is (code == 3)


def _ready(port: int) -> int:
    try:
        return int(urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=600).status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_neither_a_lock_nor_a_fencing_is_a_mistake_of_callboard(postgres: str, tmp_path: Path) -> None:
    migrate(parse(postgres))
    port = free_port()
    command = [*COMMAND, "serve", "--journal", postgres, "--port", str(port)]
    with (tmp_path / "told").open("w") as told:
        process = subprocess.Popen(
            [*command, "--lease", f"{LEASE:g}s", "--drain-deadline", "1s"], stdin=subprocess.DEVNULL, stdout=told,
            stderr=subprocess.STDOUT, cwd=tmp_path,
        )  # fmt: skip
        try:
            wait_until(lambda: _ready(port) == 200)
            with locked(postgres, "nodes"):
                wait_until(lambda: _ready(port) == 503)
            wait_until(lambda: _ready(port) == 200)
            with closing(connect(parse(postgres), "test")) as connection:
                connection.execute(
                    "UPDATE nodes SET fenced = true, ended_as = 'fenced', ended_at = now(), ended_by = 'web-2'"
                )
            assert process.wait(PATIENCE) == 1
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    text = (tmp_path / "told").read_text()
    assert "another session holds what it needs locked" in text
    assert "was fenced by 'web-2'" in text
    for word in ("mistake", "report", "internal error", "Traceback"):
        assert word not in text, text


def test_every_command_takes_an_address_of_several_hosts_and_shows_no_password(
    postgres_server: PrivateServer,  # skips the test without a server
    tmp_path: Path,
) -> None:
    pair = Pair(synchronous=True)
    try:
        address = pair.address(password="geheim", more="&target_session_attrs=read-write")
        port = free_port()
        spec = tmp_path / "one.toml"
        spec.write_text('name = "one"\n[[tasks]]\nname = "held"\ncommand = ["true"]\n[tasks.hold]\npeople = 1\n')

        def callboard(*arguments: str, code: int = 0) -> str:
            done = subprocess.run(
                [*COMMAND, *arguments, "--journal", address], cwd=tmp_path,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE,
            )  # fmt: skip
            assert done.returncode == code, done.stdout + done.stderr
            assert "geheim" not in done.stdout + done.stderr
            return done.stdout + done.stderr

        assert str(pair.ports[1]) in callboard("migrate")
        serving = subprocess.Popen(
            [*COMMAND, "serve", "--run", str(spec), "--journal", address,
             "--port", str(port), "--node", "web-1", "--lease", "5s"],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            wait_until(lambda: _ready(port) == 200)
            pair.fail_over()
            wait_until(lambda: _ready(port) == 200)
            assert "web-1" in callboard("nodes")
            assert "one" in callboard("status")
            job = callboard("status", "--json").split('"id":"')[1].split('"')[0]
            callboard("approve", job, "held", "--by", "ana")
            assert "completed" in callboard("history", job)
            serving.terminate()
            told = serving.communicate(timeout=PATIENCE)[0]
        finally:
            serving.kill()
            serving.wait()
        assert "geheim" not in told
        callboard("resume")
        assert "left" in callboard("nodes")
    finally:
        pair.close()


async def ends() -> str:
    return "it has"


@ON_BOTH
@pytest.mark.usefixtures("other_limits_are_long")
async def test_a_limit_of_a_caller_ends_a_call_that_waits_for_the_database(postgres: str) -> None:
    tools = {"db": Tool(max_parallel=1)}
    async with (
        Runtime(postgres, node="a", lease=600, drain_deadline=0, tools=tools) as a,
        Runtime(postgres, node="b", lease=600, drain_deadline=0) as b,
    ):
        await a.submit(Workstream("w", tasks=[Task("a", run=waits, tool="db")]), id="living")
        ended = await b.submit(Workstream("w", tasks=[Task("a", run=ends)]), id="ended")
        await ended.wait()
        elsewhere = await b.job("living")
        again = Workstream("w", tasks=[Task("a", run=ends)])
        calls: list[Callable[[], Awaitable[object]]] = [
            b.nodes,
            lambda: b.job("living"),
            lambda: b.submit(again, id="new"),
            lambda: b.submit(again, id="ended", existing="replace_ended"),
            elsewhere.wait,
            lambda: b._services.breaker_of("db"),
            lambda: elsewhere.cancel(force=True, request_id="key"),  # which was put into the inbox all the same
        ]
        tables = "nodes", "names", "job_records", "inbox_rows", "breaker_records", "tool_claims"
        for call in calls:
            with locked(postgres, *tables):
                began = time.monotonic()
                with anyio.move_on_after(0.1) as scope:
                    await call()
                took = time.monotonic() - began
            assert scope.cancelled_caught
            assert took < BUSY
        with anyio.fail_after(PATIENCE):
            assert (await (await b.submit(again, id="new")).wait()).ok
            assert (await (await b.submit(again, id="ended", existing="replace_ended")).wait()).ok
            await elsewhere.cancel(force=True, request_id="key")
            assert (await elsewhere.wait()).state == "cancelled"
