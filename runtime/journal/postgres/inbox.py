"""The inbox of a journal in PostgreSQL: stores commands and answers, and notifies the nodes.

Rules
-----
- The owner of a command's target runs the command. If the target has no owner and no node left it behind (an ended or
  unknown entity, a tool), the first node to claim the command runs it. A dead node's entities are taken over before.
- A claim holds until the command is answered, or its node is fenced.
- A notification carries no essential data. A node that misses it looks after a while.
"""
# ruff: noqa: S608 - statements are put together from names in this module only; values are bound

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from ....actors.spec.digits import whole
from ...dispatch.threads import at_once
from ...errors import JournalError
from .. import contract
from ..contract import InboxRow
from ..decoding import INBOX, LONGEST_COMMAND, UNREADABLE
from .address import Address, parse
from .opening import connect, driver, opened
from .rows import plain

if TYPE_CHECKING:
    from .opening import Connection
    from .went_back import AcknowledgedState

LOOK_EVERY = 1.0
LOOK_ANYWAY = 5.0
"""Seconds between two looks without a connection for notifications, and with one."""
LAST_RETRY = 15.0
"""Seconds between two attempts to reconnect: doubled each time from LOOK_EVERY, up to this."""

_EVENT = "coalesce(about LIKE 'machine:%%' OR about LIKE '\"machine:%%', false)"  # names of unusual form are in quotes
_PUT = f"""
WITH waiting AS (
  SELECT (SELECT count(*) FROM (
      SELECT FROM inbox_rows WHERE answer IS NULL AND about = %(about)s LIMIT %(one)s) AS these) AS for_one,
    (SELECT count(*) FROM (
      SELECT FROM inbox_rows WHERE answer IS NULL AND {_EVENT} = %(event)s LIMIT %(all)s) AS these) AS in_all),
done AS (
  INSERT INTO inbox_rows (command, about) SELECT %(command)s::text, %(about)s::text FROM waiting
  WHERE for_one < %(one)s AND in_all < %(all)s RETURNING key)"""
_KEY = "(SELECT key FROM done), (SELECT count(pg_notify(%(channel)s, 'inbox')) FROM done), for_one, in_all"
_SEND = f"{_PUT} SELECT {_KEY} FROM waiting"
_SEND_AS = f"""{_PUT},
acted AS (UPDATE acts SET number = number + 1 WHERE node = %(me)s RETURNING number)
SELECT {_KEY}, (SELECT number FROM acted) FROM waiting
"""
_LIVING = "SELECT name FROM nodes WHERE NOT fenced AND seen_at + lease >= clock_timestamp() ORDER BY name"
_ANY = "SELECT EXISTS (SELECT FROM inbox_rows WHERE answer IS NULL)"
# An array, since PostgreSQL may run the query of an IN again for each row, which takes more rows than its limit.
_CLAIM = """
UPDATE inbox_rows SET taken_by = %(me)s WHERE key = ANY (ARRAY(
  SELECT row.key FROM inbox_rows AS row
  LEFT JOIN nodes AS taker ON taker.node = row.taken_by
  LEFT JOIN names ON names.name = row.about
  LEFT JOIN job_records AS job ON job.key = names.key AND job.living
  LEFT JOIN machine_records AS machine ON machine.key = names.key AND machine.living
  LEFT JOIN nodes AS named ON 'node:' || named.name = row.about AND NOT named.fenced
  WHERE row.answer IS NULL AND (row.taken_by IS NULL OR taker.fenced)
    AND coalesce(job.node, machine.node, named.node, %(me)s) = %(me)s
    AND EXISTS (SELECT FROM nodes WHERE node = %(me)s AND NOT fenced)
    AND {only}
  ORDER BY row.key LIMIT %(room)s
  FOR UPDATE OF row SKIP LOCKED))
"""
_MINE = """
SELECT key, command FROM inbox_rows
WHERE answer IS NULL AND taken_by = %(me)s AND octet_length(command) <= %(longest)s AND {only} ORDER BY key
"""


def about(row: InboxRow) -> str | None:
    """The entity whose owner has to run a command."""
    match row.kind:
        case "job" | "machine":
            return plain(f"{row.kind}:{row.target}")
        case "task":
            return plain(f"job:{row.target.rpartition('/')[0]}")
        case _:  # a node's own entities carry its name
            _, at, node = row.target.rpartition("@")
            return plain(f"node:{node.partition('#')[0]}") if at else None


def send(connection: Connection, row: InboxRow, channel: str) -> int:
    """Put a command into the inbox, and notify. Returns its number there. Raises InboxFull."""
    return _put(connection.execute(_SEND.encode(), _sent(row, channel)).fetchone(), row)


def send_as(connection: Connection, node: AcknowledgedState, row: InboxRow, channel: str) -> int:
    """`send` for a node, which may find that it was fenced: then nobody would answer the command."""
    done = connection.execute(_SEND_AS.encode(), {**_sent(row, channel), "me": node.node}).fetchone()
    assert done is not None  # noqa: S101 - the statement always counts waiting rows
    node.acted(done[4])
    return _put(done, row)


def _sent(row: InboxRow, channel: str) -> dict[str, Any]:  # Any: text, numbers
    return {
        "command": msgspec.json.encode(row).decode(), "about": about(row), "event": row.kind == "machine",
        "channel": channel, "one": contract.WAITING_FOR_ONE, "all": contract.WAITING_IN_ALL,
    }  # fmt: skip


def _put(done: Any, row: InboxRow) -> int:  # Any: a row is a tuple of what columns hold
    key, _, for_one, in_all = done[:4]
    contract.refuse_full("the journal", row, for_one, in_all)
    return int(key)


def answer(connection: Connection, row: int) -> bytes | None:
    """The answer to a row of the inbox, as JSON; None if there is none yet."""
    found = connection.execute("SELECT answer FROM inbox_rows WHERE key = %s", [row]).fetchone()
    return None if found is None or found[0] is None else found[0].encode()


def claimed(connection: Connection, me: int, *, events: bool | None = None, limit: int | None = None) -> list[InboxRow]:
    """The commands that this node has to run, oldest first: those that it has claimed, now or before.

    events and limit: as in the journal's contract. No more are claimed than fit the limit.
    """
    any_there = connection.execute(_ANY).fetchone()
    if not any_there or not any_there[0]:
        return []
    only = {None: "true", True: _EVENT, False: f"NOT {_EVENT}"}[events]
    rows = [] if limit is None else _mine(connection, me, only)
    if limit is None or len(rows) < limit:
        room = None if limit is None else limit - len(rows)
        connection.execute(_CLAIM.replace("{only}", only).encode(), {"me": me, "room": room})
        rows = _mine(connection, me, only)
    return rows[:limit]


def _mine(connection: Connection, me: int, only: str) -> list[InboxRow]:
    rows: list[InboxRow] = []
    sql = _MINE.replace("{only}", only).encode()
    for number, text in connection.execute(sql, {"me": me, "longest": LONGEST_COMMAND}):
        with contextlib.suppress(*UNREADABLE):
            rows.append(msgspec.structs.replace(INBOX.decode(text), row=number))
    return rows


def put(address: str, row: InboxRow) -> int:
    """For a process that is no node: put a command into the inbox of a journal, and notify. Raises JournalError."""
    with opened(parse(address), "client") as connection:
        return send(connection, row, parse(address).channel)


def who_runs(address: str) -> str | None:
    """The nodes that run the commands in a journal's inbox, in words; None if there are none. Raises JournalError."""
    with opened(parse(address), "client") as connection:
        names = [row[0] for row in connection.execute(_LIVING)]
    return f"node{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else None


class PostgresNotifier:
    """Listens for notifications from its creation until `close`; while it cannot listen, its owner looks each second.

    given: called with the nodes that may at once take jobs that another node gave back. listened: called with the keys
    of tasks to whose text another process listens: that is no reason to look into the inbox.

    It uses its own connection, and connects and reconnects in a thread.
    """

    def __init__(
        self,
        address: Address,
        connect: Callable[[Address, str], Connection] = connect,
        clock: Callable[[], float] = time.monotonic,
        given: Callable[[Sequence[int]], object] = lambda _: None,
        listened: Callable[[Sequence[int]], object] = lambda _: None,
    ) -> None:
        self._address = address
        self._given = given
        self._listened = listened
        self._connect = connect
        self._clock = clock
        self._changing = threading.Lock()
        self._connection: Connection | None = None
        self._connecting = threading.Lock()
        self._closed = False
        self._again_at = 0.0
        self._delay = LOOK_EVERY

    @property
    def works(self) -> bool:
        """Whether the connection can receive a notification."""
        return self._connection is not None

    async def wait(self) -> None:
        """Wait for a notification, or until it is time to look without one."""
        if self._connection is not None:
            with anyio.move_on_after(LOOK_ANYWAY):
                try:
                    await self._notified(self._connection)
                except (driver().Error, OSError):
                    self._drop()
        elif await self._made():  # a notification, or jobs given back, may have been missed before
            self._given([])
        else:
            await anyio.sleep(LOOK_EVERY)

    async def _made(self) -> bool:
        """Whether there is a connection now. Waits for a new one, unless an attempt is running or it is too soon."""
        if self._connecting.locked() or self._clock() < self._again_at:
            return False
        await at_once(self._listen, abandon=True)
        return self.works

    async def _notified(self, connection: Connection) -> None:
        while True:
            connection.pgconn.consume_input()
            news = False
            while (notice := connection.pgconn.notifies()) is not None:
                word, *named = notice.extra.decode(errors="replace").split() or [""]
                numbers = [number for name in named if (number := whole(name)) is not None]
                if word == "listen":
                    self._listened(numbers)
                    continue
                news = True
                if word == "given":
                    self._given(numbers)
            if news:
                return
            await anyio.wait_readable(connection.fileno())

    def _listen(self) -> None:
        """Connect; blocks. When it has connected, the notifier may be closed, or its caller may have been cancelled."""
        if self._connecting.acquire(blocking=False):
            try:
                self._connect_anew()
            finally:
                self._connecting.release()

    def _connect_anew(self) -> None:
        made = None
        try:
            made = self._connect(self._address, "notify")
            made.execute(f'LISTEN "{self._address.channel}"'.encode())
        except (JournalError, driver().Error):
            if made is not None:
                made.close()
                made = None
        with self._changing:
            if made is None:
                self._again_at, self._delay = self._clock() + self._delay, min(self._delay * 2, LAST_RETRY)
            elif self._closed:
                made.close()
            else:
                self._connection, self._delay = made, LOOK_EVERY

    def _drop(self) -> None:
        with self._changing:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def close(self) -> None:
        """Close the notifier and its connection."""
        self._closed = True
        self._drop()
