"""The statements of `nodes.py`: questions about nodes and about what they own.

Rules
-----
- Each is correct under READ COMMITTED, even after waiting for a lock: PostgreSQL rechecks the present version of a row
  that it changes; from other rows a statement relies only on facts that never change back.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

from ....actors.workers.queues import NO_LIMIT
from ..cluster import EPOCH
from ..sqlite.schema import BREAKERS_KEPT, WORKERS_KEPT

JOIN = """
WITH joined AS (
  INSERT INTO nodes (name, epoch, lease, place, kernel, pid, process_started)
  VALUES (%(name)s, nextval('epochs'), make_interval(secs => %(lease)s), %(place)s, %(kernel)s, %(pid)s, %(started)s)
  ON CONFLICT (name) WHERE NOT fenced DO NOTHING RETURNING node, epoch, session
), no_commits AS (
  INSERT INTO commits SELECT node, 0 FROM joined ON CONFLICT (node) DO UPDATE SET entry = 0
), no_acts AS (
  INSERT INTO acts SELECT node, 0 FROM joined ON CONFLICT (node) DO UPDATE SET number = 0
) SELECT node, epoch, session FROM joined
"""
HOLDER = """
SELECT node, place, kernel, pid, process_started, seen_at, extract(epoch FROM lease)::double precision
FROM nodes WHERE name = %(name)s AND NOT fenced
"""
REPLACE = """
UPDATE nodes SET fenced = true, ended_as = 'fenced', ended_at = clock_timestamp(), ended_by = name
WHERE node = (SELECT node FROM nodes WHERE node = %(node)s AND NOT fenced AND seen_at = %(seen)s FOR UPDATE)
"""
BEAT = f"""
UPDATE nodes SET seen_at = clock_timestamp(),
  awake_at = CASE WHEN %(anew)s OR seen_at + lease / 2 < clock_timestamp() THEN clock_timestamp() ELSE awake_at END,
  epoch = CASE WHEN %(last)s >= epoch * {EPOCH} + {EPOCH // 2} THEN nextval('epochs') ELSE epoch END
WHERE node = %(me)s AND session = %(session)s AND NOT fenced RETURNING awake_at, epoch,
  coalesce((SELECT entry FROM commits WHERE commits.node = nodes.node), 0),
  coalesce((SELECT number FROM acts WHERE acts.node = nodes.node), 0)
"""
PULSE = """
WITH gone AS (SELECT coalesce(array_agg(node), '{}') AS nodes FROM nodes WHERE fenced AND owes),
others AS (
  SELECT seen_at + lease >= clock_timestamp() AS heard, leaving, greatest(
    seen_at + lease, %(awake)s + greatest(lease, make_interval(secs => %(lease)s))) AS due
  FROM nodes WHERE NOT fenced AND node <> %(me)s AND node <> ALL (%(dead)s)
)
SELECT 1 + (SELECT count(*) FROM others WHERE heard AND NOT leaving),
  (SELECT greatest(cardinality(nodes),
    (SELECT count(*) FROM job_records WHERE living AND node = ANY (nodes))
    + (SELECT count(*) FROM machine_records WHERE living AND node = ANY (nodes))) FROM gone),
  (SELECT extract(epoch FROM min(greatest(due - clock_timestamp(), '0')))::double precision FROM others),
  (SELECT count(*) FROM others WHERE NOT heard AND NOT leaving AND due >= clock_timestamp())
"""
NODES = """
SELECT DISTINCT ON (name) name, epoch,
  CASE WHEN fenced THEN ended_as WHEN seen_at + lease < clock_timestamp() THEN 'silent' ELSE 'living' END, place,
  extract(epoch FROM started_at)::double precision, extract(epoch FROM seen_at)::double precision,
  (SELECT count(*) FROM job_records WHERE living AND job_records.node = nodes.node)
FROM nodes ORDER BY name, fenced, node DESC
"""
ACTED = """acted AS (
  UPDATE acts SET number = number + 1 WHERE node = %(me)s AND EXISTS (SELECT FROM done) RETURNING number
)"""
"""Counts an act, in the same statement as the act itself, which is called `done`."""
_ME = "me AS (SELECT node FROM nodes WHERE node = %(me)s AND NOT fenced FOR KEY SHARE)"
RESERVE = f"""
WITH {_ME}, done AS (
  INSERT INTO names (name, key, node) SELECT %(name)s, 0, node FROM me ON CONFLICT (name) DO UPDATE
    SET node = excluded.node WHERE names.key = 0 AND (names.node = excluded.node
      OR EXISTS (SELECT FROM nodes AS other WHERE other.node = names.node AND other.fenced))
  RETURNING names.xmin::text::bigint AS reservation
), {ACTED} SELECT (SELECT count(*) FROM me), (SELECT reservation FROM done), (SELECT number FROM acted)
"""
"""Each reservation of a name makes a new version of its row, whose number identifies the reservation: a release that
arrives late, on a lost connection, must not remove a later reservation."""
RELEASE = f"""
WITH {_ME}, done AS (
  DELETE FROM names USING me WHERE names.name = %(name)s AND names.key = 0 AND names.node = me.node
    AND names.xmin::text::bigint = %(reservation)s
  RETURNING 1
), {ACTED} SELECT (SELECT count(*) FROM me), (SELECT number FROM acted)
"""
OWNER = {
    kind: f"""
SELECT nodes.name FROM names JOIN {kind}_records AS record USING (key) JOIN nodes ON nodes.node = record.node
WHERE names.name = %(name)s AND record.living AND NOT nodes.fenced
"""
    for kind in ("job", "machine")
}
# A name's row records which node adopted its entity, and after which run. There is no adoption for a command that has
# already taken effect: a node that sees the end of the command's run also sees its key, which was committed with it.
ADOPT = {
    kind: f"""
WITH me AS (SELECT node FROM nodes WHERE node = %(me)s AND NOT fenced FOR NO KEY UPDATE), ended AS (
  SELECT key, record.node, (as_json(record.record)->>'run')::bigint AS run
  FROM names JOIN {kind}_records AS record USING (key) WHERE names.name = %(name)s AND NOT record.living
), won AS (
  UPDATE names SET node = me.node, adopted = coalesce(ended.run, 1) FROM me, ended
  WHERE names.name = %(name)s AND (names.adopted IS DISTINCT FROM coalesce(ended.run, 1) OR names.node = me.node
    OR EXISTS (SELECT FROM nodes AS other WHERE other.node = names.node AND other.fenced))
    AND NOT EXISTS (SELECT FROM request_records WHERE request_id = %(request)s AND expires_at > %(now)s)
  RETURNING ended.key, ended.node AS before
), done AS (
  UPDATE {kind}_records AS record SET node = %(me)s FROM won WHERE record.key = won.key AND NOT record.living
  RETURNING won.before
), risen AS (
  UPDATE nodes SET epoch = nextval('epochs') FROM done
  WHERE nodes.node = %(me)s AND done.before IS DISTINCT FROM %(me)s RETURNING epoch
), {ACTED}
SELECT (SELECT count(*) FROM me), (SELECT count(*) FROM done), (SELECT epoch FROM risen), (SELECT number FROM acted)
"""
    for kind in ("job", "machine")
}
LEAVE = """
WITH done AS (
  UPDATE nodes SET fenced = true, ended_as = 'left', ended_at = clock_timestamp()
  WHERE node = %(me)s AND session = %(session)s AND NOT fenced RETURNING node
) SELECT pg_notify(%(channel)s, 'nodes') FROM done
"""
STEP_ASIDE = """
WITH done AS (
  UPDATE nodes SET leaving = true, leaving_since = clock_timestamp()
  WHERE node = %(me)s AND NOT fenced AND NOT leaving
) SELECT count(*) FROM nodes
WHERE NOT fenced AND NOT leaving AND node <> %(me)s AND seen_at + lease >= clock_timestamp()
"""
TAKEN = "SELECT taken FROM nodes WHERE node = %(me)s"
FATE = "SELECT ended_by, extract(epoch FROM ended_at - seen_at) FROM nodes WHERE node = %(me)s"
# In JSON text, these quotes can only be those of a key.
SAYS = f"""strpos(claim.claim, '"limit":{NO_LIMIT}') = 0"""
"""Whether a claim on a tool states a limit."""
_OLD = "node FROM nodes WHERE fenced AND NOT owes AND ended_at < clock_timestamp() - interval '1 day'"
_INCARNATIONS_KEPT = 20  # of each worker, over all nodes with a worker of that name
# A node's breaker records are of use only to the next node of its name.
_BREAKERS_OF_NOBODY = f"""
DELETE FROM breaker_records WHERE node IN (SELECT {_OLD}) AND NOT EXISTS (
  SELECT FROM nodes AS old JOIN nodes AS next USING (name) WHERE old.node = breaker_records.node AND NOT next.fenced)"""
_QUIET_BREAKERS = f"""
DELETE FROM breaker_records WHERE as_json(record)->>'state' = 'closed'
  AND coalesce((as_json(record)->>'failures')::bigint, 0) = 0 AND key IN (
    SELECT key FROM (
      SELECT key, row_number() OVER (PARTITION BY node ORDER BY key DESC) AS place FROM breaker_records
    ) AS of_node WHERE place > {BREAKERS_KEPT})"""
# The limit that a node stated counts on after its end, but only the last one stated by nodes of its name.
_CLAIMS_OF_NOBODY = f"""
DELETE FROM tool_claims AS claim USING nodes WHERE nodes.node = claim.node AND nodes.fenced AND (NOT {SAYS} OR EXISTS (
  SELECT FROM tool_claims AS later JOIN nodes AS next ON next.node = later.node
  WHERE later.tool = claim.tool AND next.name = nodes.name AND next.node > nodes.node))"""
# Nodes that have a breaker of a tool follow the tool's state, so its generation must not restart. Without any breaker,
# the state informs later nodes: until its cooldown is over, and for a day after.
_STATES_OF_NOBODY = """
DELETE FROM tool_states WHERE tool IN (
  SELECT tool FROM tool_states
  WHERE (as_json(state)->>'state' = 'closed'
      OR coalesce((as_json(state)->>'due_at')::double precision, 0)
        < extract(epoch FROM clock_timestamp() - interval '1 day'))
    AND tool NOT IN (SELECT as_json(record)->>'name' FROM breaker_records)
  FOR UPDATE SKIP LOCKED)"""
PRUNE = (
    f"""
DELETE FROM worker_records WHERE key IN (
  SELECT key FROM worker_records AS old WHERE NOT living
    AND run <= (SELECT max(run) FROM worker_records AS last WHERE last.name = old.name) - {_INCARNATIONS_KEPT}
  FOR UPDATE SKIP LOCKED)""",
    f"""
DELETE FROM worker_records WHERE key IN (
  SELECT key FROM worker_records WHERE NOT living AND coalesce((as_json(record)->>'retired')::boolean, false)
    AND key NOT IN (SELECT key FROM worker_records ORDER BY key DESC LIMIT {WORKERS_KEPT})
    AND key <> (SELECT key FROM worker_records ORDER BY run DESC, key DESC LIMIT 1)
  FOR UPDATE SKIP LOCKED)""",
    _QUIET_BREAKERS,
    _BREAKERS_OF_NOBODY,
    f"DELETE FROM names WHERE key = 0 AND node IN (SELECT {_OLD})",
    f"DELETE FROM tool_claims WHERE node IN (SELECT {_OLD})",
    _CLAIMS_OF_NOBODY,
    _STATES_OF_NOBODY,
    f"UPDATE inbox_rows SET taken_by = NULL WHERE answer IS NULL AND taken_by IN (SELECT {_OLD})",
    f"DELETE FROM commits WHERE node IN (SELECT {_OLD})",
    f"DELETE FROM acts WHERE node IN (SELECT {_OLD})",
    f"""
DELETE FROM nodes WHERE node IN (
  SELECT {_OLD} AND NOT EXISTS (SELECT FROM breaker_records WHERE breaker_records.node = nodes.node)
  FOR UPDATE SKIP LOCKED)""",
)
