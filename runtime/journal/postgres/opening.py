"""The journal's database: how it is connected to, created and migrated, or refused with a plain error.

Rules
-----
- Every connection has our schema as its only search path, and timeouts for everything that can hang (`limits.py`). They
  are set for its session, so it must keep its session: a pooler that shares sessions is refused before (`pooled.py`).
- A schema is ours if it has a table `callboard` with its version. A schema with other content is not changed.
- All migrations of one call run in one transaction, under an advisory lock: of two simultaneous calls, the second finds
  nothing to do. A journal in use by nodes is not migrated: a node joins under the same lock.
- An error says what was tried, and what to do. No text has a password in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import JournalCorrupt, JournalError, JournalLocked, JournalMissing, JournalTooNew, JournalUnwritable
from ...extras import missing
from .address import Address
from .limits import OF_SERVER
from .pooled import refuse_shared

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]  # Any: columns of all types

MIGRATION_LOCK_TIMEOUT = 60.0
"""Seconds that a migration waits for a lock."""
# Nothing is set if the server's process is not the one that the connection was made to: then it is a pooler's.
_SET_UP = """
SELECT process, CASE WHEN process = %s OR %s THEN
  set_config('search_path', %s, false) || set_config('statement_timeout', %s, false)
  || set_config('lock_timeout', %s, false) || set_config('idle_in_transaction_session_timeout', %s, false)
  || set_config('client_min_messages', 'warning', false) IS NOT NULL END
FROM pg_backend_pid() AS process
"""
HOLD_STILL = "SELECT pg_advisory_xact_lock_shared(hashtextextended('callboard ' || %s, 0))"
"""Keeps the journal's version as it is until the transaction ends. Takes the schema's name."""
_ALONE = "SELECT pg_advisory_xact_lock(hashtextextended('callboard ' || %s, 0))"
_FOUND = """
SELECT has_schema_privilege(oid, 'USAGE'),
  EXISTS (SELECT FROM pg_class WHERE relnamespace = pg_namespace.oid),
  EXISTS (SELECT FROM pg_class WHERE relnamespace = pg_namespace.oid AND relname = 'callboard' AND relkind = 'r')
FROM pg_namespace WHERE nspname = %s
"""
_FENCE_SILENT = """
UPDATE nodes SET fenced = true, ended_as = 'fenced', ended_at = clock_timestamp(), ended_by = 'callboard migrate'
WHERE NOT fenced AND seen_at + lease < clock_timestamp()
"""
"""Fences killed nodes: no node of this version can run to fence them before the tables are migrated."""
_NAMES = "SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM nodes WHERE NOT fenced"


def driver() -> Any:  # Any: the module, which is missing without the extra
    """The module `psycopg`. Raises JournalError if it is not installed."""
    try:
        import psycopg  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise JournalError(missing("A journal in PostgreSQL", "postgres")) from error
    return psycopg


def connect(
    address: Address,
    purpose: str,
    *,
    statement_timeout: float | None = None,
    lock_timeout: float | None = None,
    writes: bool = True,
) -> Connection:
    """Connect; each statement is its own transaction unless one is begun. Timeouts are seconds, 0 for none; by default
    those of the address, else of its limits.

    purpose: shown by the server (`application_name`). writes: of several hosts, use only one that accepts writes.
    Raises JournalError.
    """
    psycopg, limits = driver(), address.limits
    with refusing(address):
        given = psycopg.conninfo.conninfo_to_dict(address.url)
        usual: dict[str, Any] = {**limits.of_client, "application_name": f"callboard {purpose}"}  # Any: texts, numbers
        if writes and names_several(address):
            usual["target_session_attrs"] = "read-write"
        connect = partial(psycopg.connect, **(usual | given), autocommit=True)
        connection: Connection = connect()
        try:
            said = dict(address.said)
            asked = (
                limits.statement if statement_timeout is None else statement_timeout,
                limits.lock if lock_timeout is None else lock_timeout,
                limits.idle,
            )
            values = [f"{round(limit * 1000)}" for limit in asked]
            if statement_timeout != 0:  # 0: the statement may take as long as it needs, whatever the address says
                values = [said.get(name, value) for name, value in zip(OF_SERVER, values, strict=True)]
            _set_up(address, connection, values, connect)
        except BaseException:
            connection.close()
            raise
        return connection


def _set_up(address: Address, connection: Connection, limits: list[str], another: Callable[[], Connection]) -> None:
    backend = connection.info.backend_pid
    row = connection.execute(_SET_UP, [backend, False, address.schema, *limits]).fetchone()
    if row is not None and row[0] != backend:
        refuse_shared(address, connection, another)
        connection.execute(_SET_UP, [backend, True, address.schema, *limits])


def names_several(address: Address) -> bool:
    """Whether the address, or PostgreSQL's variables, name several hosts."""
    given: Mapping[str, str | None] = driver().conninfo.conninfo_to_dict(address.url)
    host = given.get("hostaddr") or given.get("host") or os.environ.get("PGHOSTADDR") or os.environ.get("PGHOST") or ""
    return "," in host


def refuse_standby(connection: Connection, address: Address) -> None:
    """Raises JournalUnwritable if that is no primary: it cannot be written, and may be behind."""
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    if row and row[0]:
        raise JournalUnwritable(
            f"Cannot use {address}: it is a standby, which is read-only. Wait for the primary, or use its address."
        )


@contextlib.contextmanager
def opened(address: Address, purpose: str) -> Generator[Connection, None, None]:
    """A connection to a journal of this program's version, for the duration of the block. Raises JournalError."""
    with contextlib.closing(connect(address, purpose)) as connection, refusing(address):
        check_version(connection, address)
        yield connection


def version_of(connection: Connection, address: Address) -> int:
    """The version of the journal, 0 if there is none yet. Raises JournalError."""
    with refusing(address):
        found = connection.execute(_FOUND, [address.schema]).fetchone()
        if found is None:
            return 0
        usable, anything, ours = found
        if not usable:
            raise JournalUnwritable(
                f"This role may not use the schema of {address}. Let its owner grant that (docs/postgres.md)."
            )
        if not ours:
            if not anything:
                return 0
            raise JournalCorrupt(
                f"The schema of {address} holds something else than a journal. It was not touched: use another schema."
            )
        row = connection.execute("SELECT version FROM callboard").fetchone()
        if row is None:
            raise JournalCorrupt(f"{address} has lost its version. It was not touched: restore it from a copy.")
        return int(row[0])


def check_version(connection: Connection, address: Address) -> None:
    """Check the journal's version. Raises JournalMissing, JournalTooNew, JournalError for an older one."""
    ours, version = len(_migrations()), version_of(connection, address)
    if version == ours:
        return
    if version == 0:
        raise JournalMissing(f"There is no journal in {address} yet. Make it: `callboard migrate` with that address.")
    if version > ours:
        raise _too_new(address, version, ours)
    raise JournalError(
        f"{address} was written by an older Callboard (its version is {version}, this one's is {ours}). Stop all that "
        "use it, then run `callboard migrate` with that address."
    )


def prepare(address: Address) -> None:
    """Create or migrate the journal if needed. Raises JournalError."""
    with contextlib.closing(connect(address, "open")) as connection:
        version = version_of(connection, address)
    if version != len(_migrations()):
        migrate(address)


def migrate(address: Address, migrations: Sequence[str] = ()) -> tuple[int, int]:
    """Migrate the journal to this program's version. Returns the version before, and now. Raises JournalError.

    migrations: replace this program's own, for tests.
    """
    steps = migrations or _migrations()
    with (
        contextlib.closing(
            connect(address, "migrate", statement_timeout=0, lock_timeout=MIGRATION_LOCK_TIMEOUT)
        ) as connection,
        refusing(address),
        connection.transaction(),
    ):
        connection.execute(_ALONE, [address.schema])
        version = version_of(connection, address)
        if version > len(steps):
            raise _too_new(address, version, len(steps))
        if version == len(steps):
            return version, version
        if version:
            connection.execute(_FENCE_SILENT)
            names = connection.execute(_NAMES).fetchone()
            if names and names[0]:
                raise JournalLocked(f"{address} is in use by {names[0]}. Stop them, then migrate it.")
        else:
            if connection.execute(_FOUND, [address.schema]).fetchone() is None:  # CREATE would need a right
                connection.execute(f'CREATE SCHEMA "{address.schema}"'.encode())
            connection.execute("CREATE TABLE callboard (version integer NOT NULL)")
            connection.execute("INSERT INTO callboard VALUES (0)")
        for step in steps[version:]:
            connection.execute(step.encode())
        connection.execute("UPDATE callboard SET version = %s", [len(steps)])
    return version, len(steps)


def _migrations() -> Sequence[str]:
    from .schema import MIGRATIONS  # noqa: PLC0415 - it is built from other modules here

    return MIGRATIONS


def _too_new(address: Address, version: int, known: int) -> JournalTooNew:
    return JournalTooNew(
        f"{address} was written by a newer Callboard (its version is {version}, this one knows {known}). Nothing was "
        "changed: upgrade Callboard, or use another schema."
    )


@contextlib.contextmanager
def refusing(address: Address) -> Generator[None, None, None]:
    """Turn PostgreSQL's errors about `address` into JournalErrors with plain texts."""
    psycopg = driver()
    try:
        yield
    except psycopg.Error as error:
        raise refusal(address, error) from error


_BY_STATE: dict[str, tuple[type[JournalError], str]] = {
    "22023": (JournalMissing, "it does not understand a setting that the address says. Check each part of it"),
    "42501": (JournalUnwritable, "this role may not do that. Let the owner of the schema grant it (docs/postgres.md)"),
    "42P01": (JournalMissing, "there is no journal. Make it: `callboard migrate` with that address"),
    "25006": (JournalUnwritable, "it is read-only, as a standby is. Use the address of the primary"),
    "53100": (JournalUnwritable, "its disk is full. Make room"),
    "53200": (JournalUnwritable, "it has no memory left. Give it more, or end other programs"),
    "53300": (JournalUnwritable, "it has no connection left. Raise max_connections, or close unused connections"),
    "55P03": (JournalLocked, "another session holds what it needs locked. Let it finish, then try again"),
    "57014": (JournalLocked, "it took too long. Try again"),
    "58030": (JournalUnwritable, "it cannot read or write its files. Check its disk"),
    "40001": (JournalError, "it conflicted with another transaction. Try again"),
    "40P01": (JournalError, "it conflicted with another transaction. Try again"),
}
"""Explanations of server errors, with what to do, by SQLSTATE."""
_NO_ROOM = (
    JournalUnwritable,
    "it has no connection left for this. Raise the limit (max_connections, the role's, ...), or close unused ones",
)
_NO_ENTRY = (
    JournalUnwritable,
    "it does not let this role, machine and database in. Add a line for them to its pg_hba.conf",
)
_NOT_NOW = (JournalUnwritable, "it takes no connections just now. Wait until it has started, and try again")
_FULL = (JournalUnwritable, "its disk is full. Make room")
_NO_NAME = (JournalUnwritable, "its host is not found. Check the name in the address")
_SILENT = (JournalUnwritable, "it does not answer in time. Check that it runs, the address, and the network")
_BY_WORDS: dict[str, tuple[type[JournalError], str]] = {
    "too many clients": _NO_ROOM,
    "too many connections": _NO_ROOM,
    "remaining connection slots": _NO_ROOM,
    "no more connections allowed": _NO_ROOM,
    "pg_hba.conf": _NO_ENTRY,
    "the database system is ": _NOT_NOW,  # starting up, shutting down, in recovery mode, not yet accepting connections
    "FATAL: terminating connection due to administrator command": _NOT_NOW,  # the server is stopping
    "FATAL: terminating connection because of crash": _NOT_NOW,
    "No space left on device": _FULL,
    "no password supplied": (JournalUnwritable, "it wants a password. Give it in the address or in PGPASSFILE"),
    "authentication failed": (JournalUnwritable, "the role or its password is wrong. Check both"),
    "permission denied for database": (
        JournalUnwritable,
        "this role may not enter the database. Let its owner grant CONNECT",
    ),
    "FATAL: role ": (JournalUnwritable, "the role does not exist, or may not log in. Check the address"),
    "FATAL: database ": (
        JournalMissing,
        "there is no such database, or this role may not enter it. Make it (`createdb`)",
    ),
    "read-only": (JournalUnwritable, "none of its servers can be written. Wait for the primary"),
    "certificate": (JournalUnwritable, "its certificate, or ours, is not accepted. Check sslmode and the certificates"),
    "not support SSL": (JournalUnwritable, "it speaks no TLS. Set it up there, or give another sslmode"),
    "resolve host": _NO_NAME,
    "translate host name": _NO_NAME,
    "Connection refused": (
        JournalUnwritable,
        "it cannot be reached: nothing answers. Start it, or correct the address",
    ),
    "timeout expired": _SILENT,
    "FATAL:": (JournalUnwritable, "it refuses the connection. Its message says why"),
}
"""Explanations of refused connections: there is no code then, only a text, in English unless configured otherwise.
The first match counts."""
_DAMAGED = ("42", "XX", "0A")
"""Classes of SQLSTATE that a journal's statements cannot meet, unless the journal is foreign or damaged."""


def refusal(address: Address, error: psycopg.Error) -> JournalError:
    """Make the error that explains an error of PostgreSQL: its meaning, and what to do."""
    message = ": ".join(filter(None, (error.diag.message_primary, error.diag.message_detail)))
    said = " ".join((message or str(error)).split())  # without the position in our functions
    if isinstance(error, driver().ProgrammingError) and error.sqlstate is None:  # the text repeats the unreadable input
        return JournalMissing(
            f"Cannot use {address}: PostgreSQL does not understand the address. Check each part of it."
        )
    state = error.sqlstate or ""
    kind, advice = _BY_STATE.get(state, (None, ""))
    if kind is None and is_lost(error):
        kind, advice = next(
            (message for words, message in _BY_WORDS.items() if words in said),
            (JournalUnwritable, "it cannot be reached. Check that it runs, and the address"),
        )
    if kind is None and state and not state.startswith(_DAMAGED):
        kind, advice = JournalUnwritable, "it refuses the request. Its message says why"
    if kind is None:
        return JournalCorrupt(f"{address} is damaged, or is no journal ({said}). Nothing was changed: keep it.")
    return kind(f"Cannot use {address}: {advice} ({said}).")


def is_lost(error: psycopg.Error) -> bool:
    """Whether the error means that the connection is lost, rather than that a statement was refused."""
    psycopg = driver()
    state = error.sqlstate
    if state is None:  # an error of the client itself, which may also be about invalid input
        return (
            isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or type(error) is psycopg.DatabaseError
        )
    return state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P05", "25P03"}
