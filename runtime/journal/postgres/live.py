"""What running bodies show, in tables that are not logged: for other nodes, and for commands.

Rules
-----
- The tables are UNLOGGED: a write to them makes no WAL, and waits for no disk. A crash of the server, and a failover,
  empty them; a standby cannot read them. So to a reader, an error means "nothing is known".
- A row counts while its node is not fenced, and a progress only while the node's lease has not run out. A node removes
  its rows; those of a node that was fenced are removed by `sweep`.
- A growing text is stored in rows of up to `PIECE` characters: the last row is written anew until it is full.
- A listener notifies the nodes, with the keys of the tasks. It repeats the notification, which holds for a while: so a
  lost notification is replaced by the next one, and a listener that has ended is forgotten.
- A progress has the fencing token of its attempt: a reader compares it with that of the task's record.
"""
# ruff: noqa: S608 - statements are put together from names in this module only; values are bound

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from ...calling import Progress
from ..live import LiveProgress, LiveText, TextPlace

if TYPE_CHECKING:
    from .opening import Connection

LIVE_TABLES = """
CREATE UNLOGGED TABLE live_progress (     -- what running bodies have said of their progress
  task bigint PRIMARY KEY, node bigint NOT NULL, token bigint NOT NULL, progress text NOT NULL
) WITH (fillfactor = 20);
"""
TEXT_TABLES = """
CREATE UNLOGGED TABLE live_text (         -- what running bodies emit, while another process listens
  task bigint NOT NULL, token bigint NOT NULL,
  place bigint NOT NULL,                  -- the characters of the attempt before these,
  size integer NOT NULL,                  -- and the number of these
  over boolean NOT NULL,                  -- whether the attempt is over
  node bigint NOT NULL,
  part text NOT NULL,                     -- JSON: a string
  PRIMARY KEY (task, token, place)
) WITH (fillfactor = 50);
"""
MOST_NAMED = 350
"""Keys in one notification, which holds 8,000 bytes at most."""
PROGRESSES = 20_000
"""Tasks whose progress a command reads."""
ROWS = 1_000
"""Rows of text that are read at once."""
_PROGRESS = msgspec.json.Decoder(Progress)
_NOT_FENCED = "EXISTS (SELECT FROM nodes WHERE node = %(me)s AND NOT fenced)"
_WRITE = f"""
INSERT INTO live_progress (task, node, token, progress)
SELECT new.task, %(me)s, new.token, new.progress
FROM unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(progress)s::text[]) AS new (task, token, progress)
WHERE {_NOT_FENCED}
ON CONFLICT (task) DO UPDATE SET node = excluded.node, token = excluded.token, progress = excluded.progress
  WHERE live_progress.token <= excluded.token
"""
_OVER = "DELETE FROM live_progress WHERE task = ANY (%(over)s::bigint[]) AND node = %(me)s"
_READ = """
SELECT task, token, progress FROM live_progress JOIN nodes USING (node)
WHERE task = ANY (%s::bigint[]) AND NOT nodes.fenced AND nodes.seen_at + nodes.lease >= clock_timestamp()
"""
_READ_ALL = """
SELECT task, token, progress FROM live_progress JOIN nodes USING (node)
WHERE NOT nodes.fenced AND nodes.seen_at + nodes.lease >= clock_timestamp() LIMIT %s
"""
_WRITE_TEXT = f"""
INSERT INTO live_text (task, token, place, size, over, node, part)
SELECT new.task, new.token, new.place, new.size, new.over, %(me)s, new.part
FROM unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(places)s::bigint[], %(sizes)s::integer[], %(overs)s::boolean[],
  %(parts)s::text[]) AS new (task, token, place, size, over, part)
WHERE {_NOT_FENCED}
ON CONFLICT (task, token, place) DO UPDATE SET size = excluded.size, over = excluded.over, part = excluded.part
"""
_CUT = """
DELETE FROM live_text USING unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(places)s::bigint[])
  AS cut (task, token, place)
WHERE live_text.task = cut.task AND live_text.token = cut.token AND live_text.place + live_text.size <= cut.place
"""
_READ_TEXT = """
SELECT row.task, row.token, row.place, row.part, row.over
FROM unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(places)s::bigint[]) AS wanted (task, token, place)
  JOIN live_text AS row ON row.task = wanted.task AND (row.token > wanted.token
    OR row.token = wanted.token AND (row.place + row.size > wanted.place OR row.over))
  JOIN nodes ON nodes.node = row.node
WHERE NOT nodes.fenced ORDER BY row.task, row.token, row.place LIMIT %(rows)s
"""
_LISTEN = "SELECT pg_notify(%(channel)s, 'listen ' || %(named)s)"
_TABLES = ("live_progress", "live_text")


def write_progress(connection: Connection, me: int, progress: Sequence[LiveProgress], over: Sequence[int]) -> None:
    """Write the progress of a node's bodies, and remove that of tasks whose attempts are over."""
    if progress:
        values = {
            "me": me, "tasks": [one.key for one in progress], "tokens": [one.token for one in progress],
            "progress": [msgspec.json.encode(one.progress).decode() for one in progress],
        }  # fmt: skip
        connection.execute(_WRITE.encode(), values)
    if over:
        connection.execute(_OVER, {"me": me, "over": list(over)})


def read_progress(connection: Connection, tasks: Sequence[int]) -> dict[int, tuple[int, Progress]]:
    """The progress of these tasks, as far as nodes have written it, each with the token of its attempt."""
    return _newest(connection.execute(_READ, [list(tasks)]))


def read_all_progress(connection: Connection) -> dict[int, tuple[int, Progress]]:
    """The progress of all tasks, as far as nodes have written it, each with the token of its attempt."""
    return _newest(connection.execute(_READ_ALL, [PROGRESSES]))


def _newest(rows: Iterable[tuple[Any, ...]]) -> dict[int, tuple[int, Progress]]:  # Any: columns of several types
    newest: dict[int, tuple[int, Progress]] = {}
    for task, token, progress in rows:
        with suppress(msgspec.MsgspecError):  # of another version
            newest[task] = token, _PROGRESS.decode(progress)
    return newest


def write_text(connection: Connection, me: int, parts: Sequence[LiveText], cuts: Sequence[TextPlace]) -> None:
    """Write text of a node's bodies, and remove the rows before these places."""
    if parts:
        values = {
            "me": me, **_places(parts), "sizes": [len(one.text) for one in parts],
            "overs": [one.over for one in parts], "parts": [msgspec.json.encode(one.text).decode() for one in parts],
        }  # fmt: skip
        connection.execute(_WRITE_TEXT.encode(), values)
    if cuts:
        connection.execute(_CUT, _places(cuts))


def read_text(connection: Connection, after: Sequence[TextPlace]) -> list[LiveText]:
    """The text after these places, and that of later attempts of these tasks, in its order."""
    rows = connection.execute(_READ_TEXT, {**_places(after), "rows": ROWS})
    found: list[LiveText] = []
    for task, token, place, part, over in rows:
        with suppress(msgspec.MsgspecError):  # of another version
            found.append(LiveText(task, token, place, msgspec.json.decode(part, type=str), over))
    return found


def _places(of: Sequence[LiveText] | Sequence[TextPlace]) -> dict[str, list[int]]:
    return {
        "tasks": [one.task for one in of], "tokens": [one.token for one in of], "places": [one.place for one in of],
    }  # fmt: skip


def listen(connection: Connection, tasks: Sequence[int], channel: str) -> None:
    """Notify the nodes that there are listeners to the text of these tasks."""
    for first in range(0, len(tasks), MOST_NAMED):
        named = " ".join(map(str, tasks[first : first + MOST_NAMED]))
        connection.execute(_LISTEN, {"channel": channel, "named": named})


def sweep(connection: Connection) -> None:
    """Remove the rows that fenced nodes have left."""
    for table in _TABLES:
        sql = f"DELETE FROM {table} AS row WHERE NOT EXISTS (SELECT FROM nodes WHERE node = row.node AND NOT fenced)"
        connection.execute(sql.encode())


def hide(connection: Connection, me: int) -> None:
    """Remove all rows of a node."""
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE node = %(me)s".encode(), {"me": me})
