"""The statements that make a new journal's tables and views, and those that change older ones: the versions of a file.

A released migration is never edited; a new one is added, and `VERSION` in `schema.py` rises. A start with a file of the
present version imports nothing of this.
"""

from __future__ import annotations

from ..views.dialect import Sqlite
from ..views.documents import document_views, fleet_tables, guarded_states, guarded_trail, trails_with_ends
from ..views.views import (
    DESCRIBED,
    MEASURED,
    RECORDED,
    ROUNDED,
    messages_view,
    notices_view,
    steps_view,
    tools_view,
    views,
    views_of,
)

_META = """
CREATE TABLE meta (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  session INTEGER NOT NULL,   -- the number of openings by an owner
  owner INTEGER NOT NULL,     -- a random number of its present or last owner: another file with this number is a copy
  entry INTEGER NOT NULL,     -- the number of the last committed entry, over all sessions
  last_key INTEGER NOT NULL,  -- the highest key or token ever written
  last_seq INTEGER NOT NULL,  -- the highest transition number ever written
  log BLOB                    -- the path of its last JSONL log; relative if the log is in the journal's folder
);
INSERT INTO meta VALUES (1, 0, 0, 0, 0, 0, NULL);
"""

_TABLES = """
CREATE TABLE names (name TEXT PRIMARY KEY, key INTEGER NOT NULL) WITHOUT ROWID;  -- "kind:id" of every entity

CREATE TABLE job_records (key INTEGER PRIMARY KEY, state TEXT NOT NULL, living INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX living_jobs ON job_records (key) WHERE living;
CREATE INDEX jobs_to_archive ON job_records (key) WHERE NOT living AND json_extract(record, '$.archive');
CREATE TABLE workstream_records (key INTEGER PRIMARY KEY, job INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX workstreams_of_job ON workstream_records (job);
CREATE TABLE specs (workstream INTEGER PRIMARY KEY, spec TEXT NOT NULL);  -- also the definitions of machines
CREATE TABLE task_records (key INTEGER PRIMARY KEY, record TEXT NOT NULL);  -- a workstream's tasks have a range of keys
CREATE TABLE approval_records (key INTEGER PRIMARY KEY, workstream INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX approvals_of_workstream ON approval_records (workstream);
CREATE TABLE attempt_records (
  key INTEGER PRIMARY KEY, task INTEGER NOT NULL, living INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX attempts_of_task ON attempt_records (task);
CREATE INDEX living_attempts ON attempt_records (key) WHERE living;
CREATE TABLE worker_records (
  key INTEGER PRIMARY KEY, name TEXT NOT NULL, run INTEGER NOT NULL, living INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX incarnations ON worker_records (name, run);
CREATE TABLE breaker_records (key INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE machine_records (key INTEGER PRIMARY KEY, living INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX living_machines ON machine_records (key) WHERE living;
CREATE TABLE outbox_rows (key INTEGER PRIMARY KEY, record TEXT NOT NULL);

CREATE TABLE request_records (
  key INTEGER PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, expires_at REAL NOT NULL, owner INTEGER NOT NULL,
  record TEXT NOT NULL
);
CREATE INDEX oldest_requests ON request_records (expires_at);
CREATE TABLE inbox_rows (     -- commands that other processes insert; the owner answers
  key INTEGER PRIMARY KEY AUTOINCREMENT, command TEXT NOT NULL, answer TEXT, answered_at REAL
);
CREATE INDEX unanswered ON inbox_rows (key) WHERE answer IS NULL;
CREATE INDEX oldest_answers ON inbox_rows (answered_at) WHERE answer IS NOT NULL;

CREATE TABLE archived_jobs (  -- the jobs that were moved out, so that their ids are not used again
  id TEXT PRIMARY KEY, state TEXT NOT NULL, archived_at REAL NOT NULL, file TEXT NOT NULL
);
CREATE TABLE archived_numbers (first INTEGER PRIMARY KEY, last INTEGER NOT NULL);  -- of moved transitions: no gaps

CREATE TABLE transition_chunks (
  seq INTEGER PRIMARY KEY,    -- the number of its first transition
  base INTEGER NOT NULL,      -- the first number of its commit: a chunk that begins before holds no larger number
  owner TEXT NOT NULL,        -- the id of a job or worker, or "machine:" or "breaker:" with a name
  transitions TEXT NOT NULL   -- JSON: an array of arrays, the columns of state_transitions up to metadata
);
CREATE INDEX chunks_of_owner ON transition_chunks (owner);

"""

_NAMED = """
ALTER TABLE meta ADD COLUMN id TEXT NOT NULL DEFAULT '';  -- random; its processes and files are recognised by it
UPDATE meta SET id = lower(hex(randomblob(16)));
"""

_HELD = """
ALTER TABLE meta ADD COLUMN holder TEXT NOT NULL DEFAULT '';  -- the owning process and its file (`identity.py`)
"""

_NOTICE_TABLE = """
CREATE TABLE IF NOT EXISTS notice_records (key INTEGER PRIMARY KEY, at REAL NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS newest_notices ON notice_records (at, key);
"""

_STEP_TABLE = """
CREATE TABLE IF NOT EXISTS step_records (key INTEGER PRIMARY KEY, flow INTEGER NOT NULL, record TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS steps_of_flow ON step_records (flow);
"""

_MESSAGE_TABLE = """
CREATE TABLE IF NOT EXISTS message_records (
  key INTEGER PRIMARY KEY, job INTEGER NOT NULL, unread INTEGER NOT NULL, record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS messages_of_job ON message_records (job);
CREATE INDEX IF NOT EXISTS unread_messages ON message_records (job) WHERE unread;
"""


def migrations() -> tuple[str, ...]:
    """The migrations from version n to n + 1. Made when a file needs them: as constants they would stay in memory."""
    sql = Sqlite()
    # The documents' trails showed transitions out of terminal states if an entity had a further run.
    ended = f"""
DROP VIEW pipeline_state_transitions;
DROP VIEW fleet_job_state_transitions;
{trails_with_ends(sql)}"""
    # Adds the resources that attempts used.
    measured = f"""
DROP VIEW guarded_task_states;
{"".join(f"DROP VIEW {name};" for name in MEASURED)}
{views_of(sql, MEASURED)}{guarded_states(sql)}"""
    # Adds the tool of each attempt, and results of acceptance tests.
    recorded = f"""
DROP VIEW guarded_task_states;
DROP VIEW IF EXISTS tool_invocations;
{"".join(f"DROP VIEW {name};" for name in RECORDED)}
{views_of(sql, RECORDED)}{tools_view(sql)}{guarded_states(sql)}"""
    # Notices, which no transition shows, were emitted at once, and could not be looked up afterwards.
    notices = f"""{_NOTICE_TABLE}
DROP VIEW IF EXISTS notices;
{notices_view(sql)}"""
    # Adds descriptions of jobs, and metadata that the application attaches to its workers.
    described = f"""
DROP VIEW IF EXISTS fleet_workers;
DROP VIEW IF EXISTS fleet_jobs;
{"".join(f"DROP VIEW {name};" for name in DESCRIBED)}
{views_of(sql, DESCRIBED)}{fleet_tables(sql)}"""
    # A task that parks after an unmet acceptance test has failed before that.
    parked = f"""
DROP VIEW guarded_state_transitions;
{guarded_trail(sql)}"""
    # The steps that bodies of tasks have taken. They lie in the order of their keys: ordered by flow, a commit with a
    # step of each of many flows would write a page for each.
    stepped = f"""{_STEP_TABLE}
DROP VIEW IF EXISTS task_steps;
{steps_view(sql)}"""
    # The messages to jobs and their tasks, received or not.
    sent = f"""{_MESSAGE_TABLE}
DROP VIEW IF EXISTS task_messages;
{messages_view(sql)}"""
    # A body that begins anew has a further round.
    rounded = f"""
DROP VIEW guarded_task_states;
{"".join(f"DROP VIEW {name};" for name in ROUNDED)}
{views_of(sql, ROUNDED)}{guarded_states(sql)}"""
    # Shows the arguments of steps.
    argued = f"""
DROP VIEW task_steps;
{steps_view(sql)}"""
    # A step that its body has cancelled does not wait any more.
    cancelled = f"""
DROP VIEW task_steps;
{steps_view(sql)}"""
    # A step does not wait any more once its task has ended.
    over = f"""
DROP VIEW task_steps;
{steps_view(sql)}"""
    first = _META + _TABLES + views(sql) + document_views(sql)
    return (
        first, _NAMED, _HELD, ended, measured, recorded, notices, described, parked, stepped, sent, rounded, argued,
        cancelled, over,
    )  # fmt: skip


def fresh() -> str:
    """The statements that make a new file of `VERSION`, equal to the result of all migrations of an empty file.

    They would make most views several times, and SQLite reads all tables and views again whenever a table gets a
    column: `meta` gets its further ones first.
    """
    sql = Sqlite()
    tables = _META + _NAMED + _HELD + _TABLES + _NOTICE_TABLE + _STEP_TABLE + _MESSAGE_TABLE
    made = views(sql) + document_views(sql) + notices_view(sql) + steps_view(sql) + messages_view(sql)
    return tables + made
