"""Fences silent or dead nodes, and takes what they have left.

Rules
-----
- There are two transactions. The first fences: it locks the rows of those nodes so that no commit and no heartbeat can
  run at the same time. A node that is just committing or renewing its lease lives, so it is skipped and checked later.
- A node fences for silence only after it has itself renewed its lease for a whole lease without a pause: else the
  silence may be the server's, or its own.
- A node is alone only if there is no other node that it may not fence: a silent node may still live, since this node
  itself may have been asleep. So jobs that this node has left to others stay theirs.
- The share of a node's remains is stored with them once, before any node takes from them: a node that asks again first
  does not get more. Entities that are given back are shared out anew, among the other nodes.
- The second transaction takes: this node's share of the job trees (a job with all that its tasks have submitted stays
  whole), of machines, and what is left of the outbox. Rows that another node is taking at this moment are skipped.
- Jobs that a draining node gives back are first offered to nodes less than half as old as it, as of when its drain
  began: they stay the longest, since the older ones are about to be replaced. If there are none, or they do not take
  the jobs in time, all nodes may take them.
- A node that steps aside counts in no share.
- Jobs given back are assigned to the row of an ended node, in one transaction. That row is locked before the jobs are
  moved, and also before a check whether such a node still owes anything: so the check never runs in between.
- The epoch is given last: so it is above every number of the former owners.
- The result of a take-over is recorded before the commit: if the answer to the commit is lost, the node can ask
  whether the commit succeeded.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import LeaseLost
from .place import Place

if TYPE_CHECKING:
    from .opening import Connection

FAVOURED = 2.0
"""Seconds in which only much younger nodes may take what a node gave back."""
_PLACES = (
    "SELECT node, kernel, pid, process_started FROM nodes WHERE NOT fenced AND node <> %(me)s AND kernel = %(kernel)s"
)
# When another node may be fenced for its silence. Until then it may live: the silence may be this node's own.
_DUE = "greatest(other.seen_at + other.lease, me.awake_at + greatest(me.lease, other.lease))"
_FENCE = f"""
WITH me AS (
  SELECT node, name, lease, awake_at FROM nodes
  WHERE node = %(me)s AND NOT fenced AND seen_at + lease / 2 > clock_timestamp()
), silent AS (
  SELECT other.node FROM nodes AS other, me
  WHERE NOT other.fenced AND other.node <> me.node AND (
    other.node = ANY (%(dead)s) OR {_DUE} < clock_timestamp())
  FOR UPDATE OF other SKIP LOCKED
), done AS (
  UPDATE nodes SET fenced = true, ended_as = 'fenced', ended_at = clock_timestamp(), ended_by = me.name
  FROM me WHERE nodes.node IN (SELECT node FROM silent) RETURNING nodes.node
)
SELECT array_agg(node), pg_notify(%(channel)s, 'nodes') FROM done HAVING count(*) > 0
"""
_GONE = """
SELECT array_agg(node) FROM nodes WHERE fenced AND owes AND share IS NOT NULL
  AND (favours IS NULL OR %(me)s = ANY (favours) OR favours_until < clock_timestamp())
"""
_UNSHARED = "SELECT array_agg(node) FROM nodes WHERE fenced AND owes AND share IS NULL"
_LIVING = """
SELECT count(*) FROM nodes
WHERE NOT fenced AND (node = %(me)s OR NOT leaving AND seen_at + lease >= clock_timestamp())
"""
_IN_COMPANY = f"""
SELECT count(*) FROM nodes AS other, nodes AS me WHERE me.node = %(me)s AND other.node <> me.node
  AND NOT other.fenced AND NOT other.leaving AND {_DUE} >= clock_timestamp()
"""
# Only a job that a task has submitted has a parent in its record. In JSON, these quotes can only be those of a key.
_IS_CHILD = """strpos(record, '"parent":') > 0"""
_ROOT = f"""(NOT {_IS_CHILD} OR NOT EXISTS (
    SELECT FROM job_records AS parent
    WHERE parent.key = CASE WHEN {_IS_CHILD.replace("record", "job_records.record")}
        THEN (as_json(job_records.record)->>'parent')::bigint END
      AND parent.living AND parent.node = ANY (%(gone)s)))"""
_ORPHANED = "living AND node = ANY (%(gone)s)"
_SHARE = f"""
UPDATE nodes SET
  share = (SELECT ceil(count(*) / %(living)s::numeric) FROM job_records
    WHERE living AND job_records.node = nodes.node AND {_ROOT}),
  machine_share = (SELECT ceil(count(*) / %(living)s::numeric) FROM machine_records
    WHERE living AND machine_records.node = nodes.node)
WHERE node IN (SELECT node FROM nodes WHERE node = ANY (%(gone)s) AND share IS NULL ORDER BY node FOR UPDATE)
"""
# At least one, so that nothing stays for ever, whatever the shares are. An array, since PostgreSQL may run the query of
# an IN again for each row, where it skips the rows that this statement has taken: it would take all.
_ROOTS = f"""
UPDATE job_records SET node = %(me)s WHERE key = ANY (ARRAY(
  SELECT key FROM job_records WHERE {_ORPHANED} AND {_ROOT} AND key <> ALL (%(left)s::bigint[]) ORDER BY key
  LIMIT (SELECT greatest(1, sum(share)) FROM nodes WHERE node = ANY (%(gone)s)) FOR UPDATE SKIP LOCKED))
RETURNING key
"""
_CHILDREN = f"""
UPDATE job_records SET node = %(me)s
WHERE {_ORPHANED} AND {_IS_CHILD} AND (as_json(record)->>'parent')::bigint = ANY (%(parents)s) RETURNING key
"""
_MACHINES = f"""
UPDATE machine_records SET node = %(me)s WHERE key = ANY (ARRAY(
  SELECT key FROM machine_records WHERE {_ORPHANED} ORDER BY key
  LIMIT (SELECT greatest(1, sum(machine_share)) FROM nodes WHERE node = ANY (%(gone)s)) FOR UPDATE SKIP LOCKED))
RETURNING key
"""
# Callbacks of a machine go to the node that takes the machine.
_OUTBOX = f"""
UPDATE outbox_rows SET node = %(me)s WHERE key IN (
  SELECT key FROM outbox_rows AS row WHERE node = ANY (%(gone)s) AND (strpos(record, '"callback":') = 0 OR NOT EXISTS (
    SELECT FROM machine_records AS machine
    WHERE {_ORPHANED} AND as_json(machine.record)->>'id' = as_json(row.record)->>'owner'))
  FOR UPDATE SKIP LOCKED)
RETURNING key
"""
_BURY = """
UPDATE nodes SET buried_by = %(me)s WHERE node IN (
  SELECT node FROM nodes WHERE node = ANY (%(gone)s)
    AND (buried_by IS NULL OR EXISTS (SELECT FROM nodes AS other WHERE other.node = nodes.buried_by AND other.fenced))
  FOR UPDATE SKIP LOCKED)
RETURNING node
"""
_BURIED_BY_THEM = """
WITH RECURSIVE buried AS (
  SELECT unnest(%(nodes)s::bigint[]) AS node
  UNION SELECT nodes.node FROM nodes JOIN buried ON nodes.buried_by = buried.node
) SELECT array_agg(node ORDER BY node) FROM buried WHERE node <> %(me)s
"""
_OWES_NOTHING = """
  EXISTS (SELECT FROM nodes AS other WHERE other.node = nodes.buried_by AND NOT other.fenced)
  AND NOT EXISTS (SELECT FROM job_records WHERE living AND job_records.node = nodes.node)
  AND NOT EXISTS (SELECT FROM machine_records WHERE living AND machine_records.node = nodes.node)
  AND NOT EXISTS (SELECT FROM outbox_rows WHERE outbox_rows.node = nodes.node)
"""
_EMPTY = f"SELECT node FROM nodes WHERE node = ANY (%(gone)s) AND {_OWES_NOTHING} FOR UPDATE SKIP LOCKED"
_SETTLED = f"UPDATE nodes SET owes = false WHERE node = ANY (%(empty)s) AND {_OWES_NOTHING}"
_HEIR = "SELECT node FROM nodes WHERE fenced ORDER BY ended_at DESC, node DESC LIMIT 1 FOR UPDATE"
# A new row, fenced from its creation, for jobs that are given back when no ended node has a row.
_BE_GONE = """
INSERT INTO nodes (name, epoch, fenced, ended_as, ended_at, lease, place, kernel, pid, process_started)
SELECT name, epoch, true, 'left', clock_timestamp(), lease, place, '', pid, process_started FROM nodes
WHERE node = %(me)s RETURNING node
"""
_FAVOURED = """
SELECT coalesce(array_agg(other.node), '{}') FROM nodes AS me, nodes AS other
WHERE me.node = %(me)s AND other.node <> me.node AND NOT other.fenced AND NOT other.leaving
  AND other.seen_at + other.lease >= clock_timestamp()
  AND other.started_at > me.started_at + (coalesce(me.leaving_since, clock_timestamp()) - me.started_at) / 2
"""
_UNCLAIM = """
UPDATE inbox_rows SET taken_by = NULL FROM names
WHERE inbox_rows.answer IS NULL AND taken_by = %(me)s AND names.name = inbox_rows.about AND names.key = ANY (%(jobs)s)
"""
_GIVE = """
UPDATE job_records SET node = %(heir)s WHERE key = ANY (%(jobs)s) AND living AND node = %(me)s RETURNING key
"""
_GIVE_CHILDREN = f"""
UPDATE job_records SET node = %(heir)s
WHERE living AND node = %(me)s AND {_IS_CHILD} AND (as_json(record)->>'parent')::bigint = ANY (%(parents)s)
RETURNING key
"""
_GIVEN = """
WITH done AS (
  UPDATE nodes SET owes = true, share = NULL, machine_share = NULL, favours = nullif(%(favoured)s::bigint[], '{}'),
    favours_until = clock_timestamp() + make_interval(secs => %(favoured_for)s)
  WHERE node = %(heir)s RETURNING node
) SELECT pg_notify(%(channel)s, 'given ' || array_to_string(%(favoured)s::bigint[], ' ')) FROM done
"""
_RISE = """
UPDATE nodes SET epoch = new.epoch, taken = new.epoch FROM (SELECT nextval('epochs') AS epoch) AS new
WHERE node = %(me)s AND NOT fenced RETURNING new.epoch
"""
_CHECK = "SELECT FROM nodes WHERE node = %(me)s AND NOT fenced FOR KEY SHARE"


class TakeoverResult(msgspec.Struct):
    """The result of a take-over: keys, numbers of nodes whose workers are to be ended, and the epoch that it began."""

    jobs: list[int] = []
    machines: list[int] = []
    outbox: list[int] = []
    nodes: list[int] = []
    epoch: int = 0

    def __bool__(self) -> bool:
        return bool(self.jobs or self.machines or self.outbox or self.nodes)


def fence(connection: Connection, me: int, channel: str, dead: Iterable[int]) -> list[int]:
    """Fence silent nodes, and the nodes that are known to be dead. Returns their numbers."""
    row = connection.execute(_FENCE, {"me": me, "dead": list(dead), "channel": channel}).fetchone()
    return [] if row is None else row[0]


def share_out(connection: Connection, me: int) -> None:
    """Store the shares of what has no owner, if they are not stored yet."""
    values: dict[str, Any] = {"me": me}  # Any: numbers, and lists of them
    if (gone := _one(connection, _UNSHARED, values)) and (living := _one(connection, _LIVING, values)):
        # If no node is alive, this one is fenced, too: its next call of `take` reports that.
        connection.execute(_SHARE, values | {"gone": gone, "living": living})


def neighbours(connection: Connection, me: int, place: Place) -> dict[int, Place]:
    """The nodes on this machine that are not fenced."""
    rows = connection.execute(_PLACES, {"me": me, "kernel": place.kernel})
    return {node: Place(place.host, kernel, pid, started) for node, kernel, pid, started in rows}


def take(connection: Connection, me: int, left: Iterable[int] = ()) -> TakeoverResult:
    """Take this node's share of what has no owner, in a transaction that the caller has begun. Raises LeaseLost.

    left: jobs that it leaves to others, as long as there are any.
    """
    values: dict[str, Any] = {"me": me}  # Any: numbers, and lists of them
    taken = TakeoverResult()
    if connection.execute(_CHECK, values).fetchone() is None:
        raise LeaseLost
    if not (gone := _one(connection, _GONE, values)):
        return taken
    values |= {"gone": gone, "left": list(left) if _one(connection, _IN_COMPANY, values) else []}
    found = taken.jobs = _column(connection, _ROOTS, values)
    while found:
        found = _column(connection, _CHILDREN, values | {"parents": found})
        taken.jobs += found
    taken.machines = _column(connection, _MACHINES, values)
    taken.outbox = _column(connection, _OUTBOX, values)
    if buried := _column(connection, _BURY, values):
        taken.nodes = _one(connection, _BURIED_BY_THEM, {"nodes": buried, "me": me}) or []
    if empty := _column(connection, _EMPTY, values):
        connection.execute(_SETTLED, {"empty": empty})
    if taken:
        taken.epoch = _one(connection, _RISE, values)
        if not taken.epoch:
            raise LeaseLost
    return taken


def give_back(connection: Connection, me: int, jobs: Iterable[int], channel: str) -> list[int]:
    """Release the ownership of these jobs and their children, in a transaction that the caller has begun, and notify.

    Returns those that this node owned. Raises LeaseLost.
    """
    values: dict[str, Any] = {"me": me, "jobs": list(jobs)}  # Any: numbers, and lists of them
    if connection.execute(_CHECK, values).fetchone() is None:
        raise LeaseLost
    values["heir"] = heir = _one(connection, _HEIR, values) or _one(connection, _BE_GONE, values)
    found = given = _column(connection, _GIVE, values)
    while found:
        found = _column(connection, _GIVE_CHILDREN, values | {"parents": found})
        given = given + found
    if given:
        connection.execute(_UNCLAIM, values | {"jobs": given})
        favoured = _one(connection, _FAVOURED, values)
        notified = {"channel": channel, "favoured": favoured, "favoured_for": FAVOURED}
        connection.execute(_GIVEN, values | notified)
        others = len(favoured) or max(1, _one(connection, _LIVING, values) - 1)
        connection.execute(_SHARE, {"gone": [heir], "living": others})
    return given


def _one(connection: Connection, sql: Any, values: dict[str, Any]) -> Any:  # Any: what the only column holds
    row = connection.execute(sql, values).fetchone()
    return row and row[0]


def _column(connection: Connection, sql: Any, values: dict[str, Any]) -> list[int]:  # Any: as above
    return [row[0] for row in connection.execute(sql, values)]
