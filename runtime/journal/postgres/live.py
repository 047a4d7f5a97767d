"""What running bodies show, in tables that are not logged: for other nodes, and for commands.

Rules
-----
- The tables are UNLOGGED: a write of theirs is no WAL, and waits for no disk. A crash of the server, and a failover,
  empty them; a standby cannot read them. So whoever reads them takes an error as "nothing is known".
- A row counts while its node is not fenced. A node removes its rows; those of a node that was fenced are removed by
  `sweep`.
- A progress has the fencing token of its attempt: a reader compares it with that of the task's record.
"""
# ruff: noqa: S608 - statements are put together from names in this module only; values are bound

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ...calling import Progress
from ..live import LiveProgress

if TYPE_CHECKING:
    from .opening import Connection

LIVE_TABLES = """
CREATE UNLOGGED TABLE live_progress (     -- what running bodies have said of their progress
  task bigint PRIMARY KEY, node bigint NOT NULL, token bigint NOT NULL, progress text NOT NULL
) WITH (fillfactor = 20);
"""
_PROGRESS = msgspec.json.Decoder(Progress)
_NOT_FENCED = "EXISTS (SELECT FROM nodes WHERE node = %(me)s AND NOT fenced)"
_WRITE = f"""
INSERT INTO live_progress (task, node, token, progress)
SELECT new.task, %(me)s, new.token, new.progress
FROM unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(told)s::text[]) AS new (task, token, progress)
WHERE {_NOT_FENCED}
ON CONFLICT (task) DO UPDATE SET node = excluded.node, token = excluded.token, progress = excluded.progress
  WHERE live_progress.token <= excluded.token
"""
_OVER = "DELETE FROM live_progress WHERE task = ANY (%(over)s::bigint[]) AND node = %(me)s"
_READ = """
SELECT task, token, progress FROM live_progress JOIN nodes USING (node)
WHERE task = ANY (%s::bigint[]) AND NOT nodes.fenced
"""
_SWEEP = "DELETE FROM live_progress WHERE NOT EXISTS (SELECT FROM nodes WHERE node = live_progress.node AND NOT fenced)"
_HIDE = "DELETE FROM live_progress WHERE node = %(me)s"


def write_progress(connection: Connection, me: int, told: Sequence[LiveProgress], over: Sequence[int]) -> None:
    """Write the progress of a node's bodies, and remove that of tasks whose attempts are over."""
    if told:
        values = {
            "me": me, "tasks": [one.key for one in told], "tokens": [one.token for one in told],
            "told": [msgspec.json.encode(one.progress).decode() for one in told],
        }  # fmt: skip
        connection.execute(_WRITE.encode(), values)
    if over:
        connection.execute(_OVER, {"me": me, "over": list(over)})


def read_progress(connection: Connection, tasks: Sequence[int]) -> dict[int, tuple[int, Progress]]:
    """The progress of these tasks, as far as nodes have written it, each with the token of its attempt."""
    told: dict[int, tuple[int, Progress]] = {}
    for task, token, progress in connection.execute(_READ, [list(tasks)]):
        with suppress(msgspec.MsgspecError):  # of another version
            told[task] = token, _PROGRESS.decode(progress)
    return told


def sweep(connection: Connection) -> None:
    """Remove what fenced nodes have left."""
    connection.execute(_SWEEP)


def hide(connection: Connection, me: int) -> None:
    """Remove all that a node shows."""
    connection.execute(_HIDE, {"me": me})
