"""The journal's tables in PostgreSQL, its versions, and the one call that makes a commit.

Rules
-----
- Everything lies in one schema, which is the only one in the search path of our connections.
- Records are JSON in columns of type text, written and read whole: they come back exactly, with all that JSON can
  escape and PostgreSQL's own types refuse. Real columns exist only for searches.
- Search keys that are texts from outside are written in the form that `plain` makes (`rows.py`).
- `node` is the owner of a row: the number of that node's session in `nodes`. The writer owns a new row, and a row that
  lives again. Other updates keep the owner, except for workers and breakers: the node that writes them owns them.
  (An attempt belongs to the node that claimed it, and goes with its job.)
- One commit is one call of `commit_batch`. It takes a lock on the node's row that fencing waits for, and fails with
  `LEASE_LOST` if the node was fenced. `commits` stores the last entry of each node, so that a batch which is sent
  again, since its acknowledgement was lost, does nothing the second time. A call also names the entry before it, and
  fails with `WENT_BACK` if that is not the last one: no commit goes into a database that lacks an earlier one.
- Transitions are kept in chunks: those of one owner in one commit are one row (`runtime/journal/sqlite/schema.py` says
  why).
- What running bodies show is in tables that are not logged (`live.py`), and is written outside of commits.
- A released migration is never edited; a new one is added.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

from ..contract import NOTICES_KEPT
from ..sqlite.schema import ANSWERS_KEPT
from ..views.dialect import Postgres
from ..views.documents import document_views, fleet_tables, guarded_states, guarded_trail, trails_with_ends
from ..views.views import (
    DESCRIBED,
    MEASURED,
    RECORDED,
    ROUNDED,
    machines_view,
    messages_view,
    notices_view,
    steps_view,
    tools_view,
    views,
    views_of,
)
from .live import LIVE_TABLES, TEXT_TABLES
from .tables import INBOX, NODES

LEASE_LOST = "CB001"
"""The SQLSTATE of a commit by a fenced node."""
WENT_BACK = "CB002"
"""The SQLSTATE of a commit to a database that lacks an earlier commit of the node."""

_RECORDS = """
CREATE FUNCTION as_json(record text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  IF strpos(record, '\\u') = 0 THEN
    RETURN record::jsonb;
  END IF;
  -- NULs and lone surrogates, which JSON can escape but text cannot hold, become replacement characters
  RETURN regexp_replace(regexp_replace(record, '(?<!\\\\)((\\\\\\\\)*)\\\\u0000', '\\1\\\\ufffd', 'g'),
    '(?<!\\\\)((\\\\\\\\)*)\\\\u[dD][89a-fA-F][0-9a-fA-F]{2}', '\\1\\\\ufffd', 'g')::jsonb;
END $$;

CREATE TABLE commits (
  node bigint PRIMARY KEY,
  entry bigint NOT NULL                   -- the last entry that the node has committed
) WITH (fillfactor = 20);

CREATE TABLE names (
  name text COLLATE "C" PRIMARY KEY,      -- "kind:id" of every entity
  key bigint NOT NULL DEFAULT 0,          -- 0 while the name is only reserved
  node bigint,                            -- the node that reserved the name, or adopted the ended entity,
  adopted bigint                          -- and the run after which it was adopted
);

CREATE TABLE job_records (
  key bigint PRIMARY KEY, state text NOT NULL, living boolean NOT NULL, node bigint, record text NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX living_jobs ON job_records (node) WHERE living;
CREATE TABLE workstream_records (key bigint PRIMARY KEY, job bigint NOT NULL, record text NOT NULL)
  WITH (fillfactor = 50);
CREATE INDEX workstreams_of_job ON workstream_records (job);
CREATE TABLE specs (workstream bigint PRIMARY KEY, spec text NOT NULL);   -- also the definitions of machines
CREATE TABLE task_records (key bigint PRIMARY KEY, record text NOT NULL)  -- a workstream's tasks have a range of keys
  WITH (fillfactor = 50);
CREATE TABLE approval_records (key bigint PRIMARY KEY, workstream bigint NOT NULL, record text NOT NULL);
CREATE INDEX approvals_of_workstream ON approval_records (workstream);
CREATE TABLE attempt_records (            -- the attempts of a task, and of a workstream, have a range of keys
  task bigint NOT NULL, key bigint NOT NULL, living boolean NOT NULL, node bigint, record text NOT NULL,
  PRIMARY KEY (task, key)
);
CREATE INDEX living_attempts ON attempt_records (node) WHERE living;
CREATE TABLE worker_records (
  key bigint PRIMARY KEY, name text COLLATE "C" NOT NULL, run bigint NOT NULL, living boolean NOT NULL, node bigint,
  record text NOT NULL
) WITH (fillfactor = 20);
CREATE INDEX incarnations ON worker_records (name, run);
CREATE INDEX workers_of_node ON worker_records (node);
CREATE TABLE breaker_records (key bigint PRIMARY KEY, node bigint, record text NOT NULL);
CREATE TABLE machine_records (key bigint PRIMARY KEY, living boolean NOT NULL, node bigint, record text NOT NULL)
  WITH (fillfactor = 50);
CREATE INDEX living_machines ON machine_records (node) WHERE living;
CREATE TABLE outbox_rows (key bigint PRIMARY KEY, node bigint, record text NOT NULL);
CREATE INDEX outbox_of_node ON outbox_rows (node);

CREATE TABLE request_records (
  request_id text COLLATE "C" PRIMARY KEY, key bigint NOT NULL, expires_at double precision NOT NULL,
  owner bigint NOT NULL, record text NOT NULL
);
CREATE INDEX oldest_requests ON request_records (expires_at);
CREATE TABLE transition_chunks (
  seq bigint PRIMARY KEY,   -- the number of its first transition
  base bigint NOT NULL,     -- the first number of its commit: a chunk that begins before holds no larger number
  node bigint NOT NULL,     -- the node that committed it
  owner text COLLATE "C" NOT NULL,  -- the id of a job or worker, or "machine:" or "breaker:" with a name
  transitions text NOT NULL -- JSON: an array of arrays, the columns of state_transitions up to metadata
);
CREATE INDEX chunks_of_owner ON transition_chunks (owner, seq);
DO $$ BEGIN                 -- takes a third of the time; servers before 14, or built without lz4, do not have it
  EXECUTE 'ALTER TABLE transition_chunks ALTER transitions SET COMPRESSION lz4';
EXCEPTION WHEN feature_not_supported OR syntax_error THEN NULL;
END $$;
"""


def _lines(text: str) -> str:
    return f"string_to_array({text}, E'\\n')"


def _write(table: str, columns: dict[str, str], changed: str, *, owned: bool = False, key: str = "") -> str:
    """The SQL that writes rows, given as parallel arrays.

    columns: each with its array; changed: those that are updated if the key exists (the first column by default);
    owned: whether a row has an owner.
    """
    names, arrays = ", ".join(columns), ", ".join(columns.values())
    more, values = (", node", ", this_node") if owned else ("", "")
    sets = [f"{column} = excluded.{column}" for column in changed.split()]
    if owned and "living" in columns and "node" not in changed:  # the writer owns a row that lives again
        sets.append(f"node = CASE WHEN {table}.living THEN {table}.node ELSE excluded.node END")
    return (
        f"INSERT INTO {table} ({names}{more}) SELECT {names}{values} FROM unnest({arrays}) AS new ({names})"
        f"\n      ON CONFLICT ({key or next(iter(columns))}) DO UPDATE SET {', '.join(sets)};"
    )


_Groups = dict[tuple[tuple[str, str], ...], str]
"""Parameters of `commit_batch` after node and entry, with types; and the SQL that runs if a group's first is given."""
_FIRST_GROUPS: _Groups = {
    (("chunk_seqs", "bigint[]"), ("chunk_bases", "bigint[]"), ("chunk_owners", "text"), ("chunks", "text")): (
        "INSERT INTO transition_chunks (seq, base, node, owner, transitions)"
        "\n      SELECT new.seq, new.base, this_node, new.owner, new.rows"
        f"\n      FROM unnest(chunk_seqs, chunk_bases, {_lines('chunk_owners')}, {_lines('chunks')})"
        " AS new (seq, base, owner, rows);"
    ),
    (("named_keys", "bigint[]"), ("named", "text")): _write(
        "names", {"name": _lines("named"), "key": "named_keys"}, "key"
    ),
    (("spec_keys", "bigint[]"), ("spec_lines", "text")): _write(
        "specs", {"workstream": "spec_keys", "spec": _lines("spec_lines")}, "spec"
    ),
    (("job_keys", "bigint[]"), ("job_states", "text"), ("job_living", "boolean[]"), ("jobs", "text")): _write(
        "job_records",
        {"key": "job_keys", "state": _lines("job_states"), "living": "job_living", "record": _lines("jobs")},
        "state living record", owned=True,
    ),
    (("run_keys", "bigint[]"), ("run_jobs", "bigint[]"), ("runs", "text")): _write(
        "workstream_records", {"key": "run_keys", "job": "run_jobs", "record": _lines("runs")}, "record"
    ),
    (("task_keys", "bigint[]"), ("tasks", "text")): _write(
        "task_records", {"key": "task_keys", "record": _lines("tasks")}, "record"
    ),
    (("approval_keys", "bigint[]"), ("approval_runs", "bigint[]"), ("approvals", "text")): _write(
        "approval_records",
        {"key": "approval_keys", "workstream": "approval_runs", "record": _lines("approvals")}, "record",
    ),
    (
        ("attempt_keys", "bigint[]"), ("attempt_tasks", "bigint[]"), ("attempt_living", "boolean[]"),
        ("attempts", "text"),
    ): _write(
        "attempt_records",
        {"key": "attempt_keys", "task": "attempt_tasks", "living": "attempt_living", "record": _lines("attempts")},
        "living record", owned=True, key="task, key",
    ),
    (
        ("worker_keys", "bigint[]"), ("worker_names", "text"), ("worker_runs", "bigint[]"),
        ("worker_living", "boolean[]"), ("workers", "text"),
    ): _write(
        "worker_records",
        {
            "key": "worker_keys", "name": _lines("worker_names"), "run": "worker_runs", "living": "worker_living",
            "record": _lines("workers"),
        },
        "living node record", owned=True,
    ),
    (("breaker_keys", "bigint[]"), ("breakers", "text")): _write(
        "breaker_records", {"key": "breaker_keys", "record": _lines("breakers")}, "node record", owned=True,
    ),
    (("machine_keys", "bigint[]"), ("machine_living", "boolean[]"), ("machines", "text")): _write(
        "machine_records",
        {"key": "machine_keys", "living": "machine_living", "record": _lines("machines")},
        "living record", owned=True,
    ),
    (("outbox_done", "bigint[]"),): "DELETE FROM outbox_rows WHERE key = ANY (outbox_done);",
    (("outbox_keys", "bigint[]"), ("outbox", "text")): _write(
        "outbox_rows", {"key": "outbox_keys", "record": _lines("outbox")}, "record", owned=True,
    ),
    (
        ("request_ids", "text"), ("request_keys", "bigint[]"), ("request_ends", "double precision[]"),
        ("request_owners", "bigint[]"), ("requests", "text"),
    ): _write(
        "request_records",
        {
            "request_id": _lines("request_ids"), "key": "request_keys", "expires_at": "request_ends",
            "owner": "request_owners", "record": _lines("requests"),
        },
        "key expires_at owner record",
    ),
    (("answer_rows", "bigint[]"), ("answer_times", "double precision[]"), ("answers", "text")): (
        "UPDATE inbox_rows SET answer = new.answer, answered_at = new.at"
        f"\n      FROM unnest(answer_rows, answer_times, {_lines('answers')}) AS new (row, at, answer)"
        "\n      WHERE key = new.row AND inbox_rows.answer IS NULL;"
    ),
    (("pruned_at", "double precision"),): f"""DELETE FROM request_records WHERE request_id IN (
        SELECT request_id FROM request_records AS old WHERE expires_at <= pruned_at
          AND NOT EXISTS (SELECT 1 FROM job_records WHERE job_records.key = old.owner AND living)
          AND NOT EXISTS (SELECT 1 FROM worker_records WHERE worker_records.key = old.owner AND living)
          AND NOT EXISTS (SELECT 1 FROM machine_records WHERE machine_records.key = old.owner AND living)
          FOR UPDATE SKIP LOCKED);
      DELETE FROM inbox_rows WHERE key IN (
        SELECT key FROM inbox_rows WHERE answer IS NOT NULL AND answered_at <= pruned_at - {ANSWERS_KEPT}
          FOR UPDATE SKIP LOCKED);""",
}  # fmt: skip
_GROUPS_WITH_NOTICES: _Groups = {
    **_FIRST_GROUPS,
    (("notice_keys", "bigint[]"), ("notice_times", "double precision[]"), ("notices", "text")): (
        _write(
            "notice_records",
            {"key": "notice_keys", "at": "notice_times", "record": _lines("notices")}, "at record",
        )
        + f"""
      DELETE FROM notice_records WHERE key IN (
        SELECT key FROM notice_records WHERE (at, key) <= (
          SELECT at, key FROM notice_records ORDER BY at DESC, key DESC LIMIT 1 OFFSET {NOTICES_KEPT}
        ) FOR UPDATE SKIP LOCKED);"""
    ),
}  # fmt: skip
_GROUPS_WITH_STEPS: _Groups = {
    **_GROUPS_WITH_NOTICES,
    (("step_keys", "bigint[]"), ("step_flows", "bigint[]"), ("steps", "text")): _write(
        "step_records", {"flow": "step_flows", "key": "step_keys", "record": _lines("steps")}, "record", key="flow, key"
    ),
}
_GROUPS_WITH_MESSAGES: _Groups = {
    **_GROUPS_WITH_STEPS,
    (
        ("message_keys", "bigint[]"), ("message_jobs", "bigint[]"), ("message_unread", "boolean[]"),
        ("messages", "text"),
    ): _write(
        "message_records",
        {"key": "message_keys", "job": "message_jobs", "unread": "message_unread", "record": _lines("messages")},
        "unread record",
    ),
}  # fmt: skip
_GROUPS: _Groups = {
    # Before the rows of the next round, which may be in the same batch.
    (("flows_over", "bigint[]"),): "DELETE FROM step_records WHERE flow = ANY (flows_over);",
    (("rounds_over", "bigint[]"),): "DELETE FROM attempt_records WHERE task = ANY (rounds_over);",
    **_GROUPS_WITH_MESSAGES,
}
PARTS = tuple(name for group in _GROUPS for name, _ in group)
"""Parameters of `commit_batch` besides node and entry, in order. NULL if there is no data for one."""


def _commit(groups: _Groups, beside: str, first: str) -> str:
    """The function `commit_batch`. groups: its parameters to write; beside: other parameters after the entry; first:
    the SQL by which it begins an entry.
    """
    return (
        f"CREATE FUNCTION commit_batch(this_node bigint, this_entry bigint,{beside}\n  "
        + ",\n  ".join(f"{name} {kind}" for group in groups for name, kind in group)
        + f"""
) RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF this_entry IS NOT NULL THEN   -- otherwise this call continues a batch of the same transaction
    PERFORM 1 FROM nodes WHERE node = this_node AND NOT fenced FOR KEY SHARE;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'node % was fenced', this_node USING ERRCODE = '{LEASE_LOST}';
    END IF;{first}
  END IF;"""
        + "".join(f"\n  IF {group[0][0]} IS NOT NULL THEN\n    {sql}\n  END IF;" for group, sql in groups.items())
        + "\n  RETURN true;\nEND $$;\n"
    )


_COMMIT = _commit(
    _FIRST_GROUPS,
    "",
    """
    INSERT INTO commits VALUES (this_node, this_entry)
      ON CONFLICT (node) DO UPDATE SET entry = excluded.entry WHERE commits.entry < excluded.entry;
    IF NOT FOUND THEN
      RETURN false;   -- the entry was committed before, and its acknowledgement was lost
    END IF;""",
)
_AFTER = f"""
    UPDATE commits SET entry = this_entry WHERE node = this_node AND entry = entry_before;
    IF NOT FOUND THEN
      IF EXISTS (SELECT FROM commits WHERE node = this_node AND entry >= this_entry) THEN
        RETURN false;   -- the entry was committed before, and its acknowledgement was lost
      END IF;
      RAISE EXCEPTION 'entry % of node % is not here any more', entry_before, this_node
        USING ERRCODE = '{WENT_BACK}';
    END IF;"""
_COMMIT_AFTER = _commit(_FIRST_GROUPS, " entry_before bigint,", _AFTER)

COMMIT = f"SELECT commit_batch({', '.join(f'${n}' for n in range(1, len(PARTS) + 4))})"
"""The statement of a commit."""

# Functions that the documents' printed queries use from SQLite.
_PRINTED = """
CREATE FUNCTION datetime(at text, VARIADIC shifts text[] DEFAULT '{}') RETURNS text LANGUAGE sql STABLE AS $$
  SELECT to_char(CASE at WHEN 'now' THEN now() AT TIME ZONE 'UTC' ELSE at::timestamp END
    + coalesce((SELECT sum(shift::interval) FROM unnest(shifts) AS shift), '0'::interval), 'YYYY-MM-DD HH24:MI:SS')
$$;
CREATE FUNCTION json_extract(json text, path text) RETURNS text LANGUAGE sql IMMUTABLE STRICT AS $$
  SELECT as_json(json) #>> string_to_array(ltrim(path, '$.'), '.')
$$;
"""

_NAMED = """
ALTER TABLE callboard  -- a random id for the journal, by which its processes and files are recognised
  ADD COLUMN id text NOT NULL DEFAULT md5(random()::text || clock_timestamp()::text);
"""

# The acknowledged changes of a node are compared with the present state (`went_back.py`).
_COMPARED = (
    """
ALTER TABLE nodes ADD COLUMN session text NOT NULL DEFAULT md5(random()::text || clock_timestamp()::text);
CREATE TABLE acts (
  node bigint PRIMARY KEY,
  number bigint NOT NULL                  -- the number of the node's changes besides its commits
) WITH (fillfactor = 20);
DROP FUNCTION commit_batch;
"""
    + _COMMIT_AFTER
)

# The nodes that may take the jobs that a draining node gives back (`taking.py`).
_HANDED = """
ALTER TABLE nodes
  ADD COLUMN leaving boolean NOT NULL DEFAULT false,  -- whether it drains, and takes no more jobs,
  ADD COLUMN leaving_since timestamptz,   -- since this time
  ADD COLUMN favours bigint[],            -- the nodes that may take its jobs before other nodes,
  ADD COLUMN favours_until timestamptz;   -- until this time
"""

# A number that is no time made the whole view fail.
_SHOWN = machines_view(Postgres()).replace("CREATE", "CREATE OR REPLACE", 1)  # keeps the granted rights

# The documents' trails showed transitions out of terminal states if an entity had a further run.
_ENDED = trails_with_ends(Postgres()).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")

# Adds the resources that attempts used: new columns come after the existing ones.
_MEASURED = (views_of(Postgres(), MEASURED) + guarded_states(Postgres())).replace(
    "CREATE VIEW", "CREATE OR REPLACE VIEW"
)

# Adds the tool of each attempt, and results of acceptance tests, also after the existing columns.
_RECORDED = (views_of(Postgres(), RECORDED) + tools_view(Postgres()) + guarded_states(Postgres())).replace(
    "CREATE VIEW", "CREATE OR REPLACE VIEW"
)

# Notices, which no transition shows, were emitted at once, and could not be looked up afterwards.
_NOTICES = (
    """
CREATE TABLE notice_records (key bigint PRIMARY KEY, at double precision NOT NULL, record text NOT NULL)
  WITH (fillfactor = 50);
CREATE INDEX newest_notices ON notice_records (at, key);
DROP FUNCTION commit_batch;
"""
    + _commit(_GROUPS_WITH_NOTICES, " entry_before bigint,", _AFTER)
    + notices_view(Postgres())
)

# Adds descriptions of jobs, and metadata that the application attaches to its workers, after the existing columns.
_DESCRIBED = (views_of(Postgres(), DESCRIBED) + fleet_tables(Postgres())).replace(
    "CREATE VIEW", "CREATE OR REPLACE VIEW"
)

# A task that parks after an unmet acceptance test has failed before that.
_PARKED = guarded_trail(Postgres()).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")

# The steps that bodies of tasks have taken. They have no owner: a node reads them when it runs the body.
_STEPS = (
    """
CREATE TABLE step_records (flow bigint NOT NULL, key bigint NOT NULL, record text NOT NULL, PRIMARY KEY (flow, key));
DROP FUNCTION commit_batch;
"""
    + _commit(_GROUPS_WITH_STEPS, " entry_before bigint,", _AFTER)
    + steps_view(Postgres())
)

# The messages to jobs and their tasks. They have no owner: the node that runs the job is the only one to write them.
_MESSAGES = (
    """
CREATE TABLE message_records (
  key bigint PRIMARY KEY, job bigint NOT NULL, unread boolean NOT NULL, record text NOT NULL
);
CREATE INDEX messages_of_job ON message_records (job);
CREATE INDEX unread_messages ON message_records (job) WHERE unread;
DROP FUNCTION commit_batch;
"""
    + _commit(_GROUPS_WITH_MESSAGES, " entry_before bigint,", _AFTER)
    + messages_view(Postgres())
)

# A body that begins anew leaves no history: the steps and attempts of the round that has ended are deleted.
_ROUNDS = (
    "DROP FUNCTION commit_batch;\n"
    + _commit(_GROUPS, " entry_before bigint,", _AFTER)
    + (views_of(Postgres(), ROUNDED) + guarded_states(Postgres())).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
)

# What running bodies show to other nodes and to commands.
_LIVE = LIVE_TABLES
_LIVE_TEXT = TEXT_TABLES

# Adds the arguments of steps, after the existing columns.
_ARGUED = steps_view(Postgres()).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")

# A step that its body has cancelled does not wait any more.
_CANCELLED = steps_view(Postgres()).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")

# A step does not wait any more once its task has ended.
_OVER = steps_view(Postgres()).replace("CREATE VIEW", "CREATE OR REPLACE VIEW")

MIGRATIONS = (
    NODES + INBOX + _RECORDS + _COMMIT + _PRINTED + views(Postgres()) + document_views(Postgres()),
    _NAMED,
    _COMPARED,
    _HANDED,
    _SHOWN,
    _ENDED,
    _MEASURED,
    _RECORDED,
    _NOTICES,
    _DESCRIBED,
    _PARKED,
    _STEPS,
    _MESSAGES,
    _ROUNDS,
    _LIVE,
    _LIVE_TEXT,
    _ARGUED,
    _CANCELLED,
    _OVER,
)
"""The migrations from version n to n + 1."""
