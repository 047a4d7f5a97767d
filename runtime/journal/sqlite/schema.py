"""The journal's version, and the one statement that makes a commit.

Rules:
- Records are JSON text, written and read whole. Real columns exist only for searches; everything that people want to
  read is in views (`runtime/journal/views/views.py`), so that it costs nothing at a write. (A generated column would be
  computed at every insert.)
- Transitions are kept in chunks: those of one owner (a job with all that is in it, a worker, a breaker) in one commit
  are one row. Thousands of transitions cost as much as one row, and a job's history is one range of an index. The view
  `state_transitions` shows each transition as a row.
- One commit is one statement: an INSERT into a view (`batch`, `steps` or `step`), whose triggers write the tables.
  So the writer releases the interpreter once per commit, and SQLite works meanwhile.
- It fails (`SQLITE_CONSTRAINT_NOTNULL`) if the file has another owner, or does not end with the entry before: the lock
  alone does not fence an owner.
- How the tables are made and changed is in `migrations.py`.
"""
# ruff: noqa: S608 - statements are put together from names in this package only; values are bound

from __future__ import annotations

from ..contract import NOTICES_KEPT

ANSWERS_KEPT = 3600
"""Seconds that an answer stays in the inbox, for the process that waits for it."""


INCARNATIONS_KEPT = 2
"""Records that are kept of each worker that has ended and was started again since."""
WORKERS_KEPT = 1_000
BREAKERS_KEPT = 1_000
"""Records of workers that an operator has ended, and of closed breakers without failures: the newest are kept."""

FIRST_COLUMNS = {
    "approval_records": "key workstream record", "archived_jobs": "id state archived_at file",
    "archived_numbers": "first last", "attempt_records": "key task living record", "breaker_records": "key record",
    "inbox_rows": "key command answer answered_at", "job_records": "key state living record",
    "machine_records": "key living record", "meta": "one session owner entry last_key last_seq log",
    "names": "name key", "outbox_rows": "key record",
    "request_records": "key request_id expires_at owner record", "specs": "workstream spec",
    "task_records": "key record", "transition_chunks": "seq base owner transitions",
    "worker_records": "key name run living record", "workstream_records": "key job record",
}  # fmt: skip
"""The tables of version 1. Before its release, other tables had the same number: some of these are missing there."""

VERSION = 15
"""The version that this program makes and knows."""


# For each kind of record, `batch` has a column with a JSON object {key: place}: offset << 32 | length, in `data`.
_SLICE = "CAST(substr(new.data, (value >> 32) + 1, value & 4294967295) AS TEXT)"
_LIVING = "json_extract(record, '$.finished_at') IS NULL"


def _get(field: str, default: str) -> str:
    return f"coalesce(json_extract(record, '$.{field}'), {default})"


def _records(column: str) -> str:
    return f"(SELECT key, {_SLICE} AS record FROM json_each(new.{column}))"


def _cut(field: str) -> str:
    """A number, cut out of a record's text: to parse the JSON takes a fifth of the time of a commit.

    No text may come before the field: it could hold the same characters.
    """
    return f"""CAST(substr(record, instr(record, '"{field}":') + {len(field) + 3}, 20) AS INTEGER)"""


def _attempts(column: str, living: int) -> str:
    return f"""
  INSERT INTO attempt_records SELECT key, {_cut("task")}, {living}, record FROM {_records(column)} WHERE true
    ON CONFLICT (key) DO UPDATE SET living = excluded.living, record = excluded.record;"""


_WRITES = {
    "chunks": """
  INSERT INTO transition_chunks
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
      CAST(substr(new.data, json_extract(value, '$[3]') + 1, json_extract(value, '$[4]')) AS TEXT)
    FROM json_each(new.chunks);""",
    "names": """
  INSERT OR REPLACE INTO names SELECT key, value FROM json_each(new.names);""",
    "specs": f"""
  INSERT OR REPLACE INTO specs SELECT key, {_SLICE} FROM json_each(new.specs);""",
    "job": f"""
  INSERT OR REPLACE INTO job_records
    SELECT key, json_extract(record, '$.state'), {_LIVING}, record FROM {_records("job")};""",
    "workstream": f"""
  INSERT OR REPLACE INTO workstream_records
    SELECT key, json_extract(record, '$.job'), record FROM {_records("workstream")};""",
    "task": f"""
  INSERT OR REPLACE INTO task_records SELECT key, record FROM {_records("task")};""",
    "approval": f"""
  INSERT OR REPLACE INTO approval_records
    SELECT key, json_extract(record, '$.workstream'), record FROM {_records("approval")};""",
    "attempt": _attempts("attempt", living=1),
    "ended_attempt": _attempts("ended_attempt", living=0),
    "step": f"""
  INSERT INTO step_records SELECT key, {_cut("flow")}, record FROM {_records("step")} WHERE true
    ON CONFLICT (key) DO UPDATE SET record = excluded.record;""",
    "message": f"""
  INSERT INTO message_records
    SELECT key, {_cut("job")}, json_extract(record, '$.received_at') IS NULL, record FROM {_records("message")}
    WHERE true ON CONFLICT (key) DO UPDATE SET unread = excluded.unread, record = excluded.record;""",
    # The rows of the next round, which may be in the same batch, have greater keys.
    "flows_over": """
  DELETE FROM step_records WHERE key IN (
    SELECT old.key FROM json_each(new.flows_over) AS over
      CROSS JOIN step_records AS old ON old.flow = CAST(over.key AS INTEGER) AND old.key <= over.value);""",
    "rounds_over": """
  DELETE FROM attempt_records WHERE key IN (
    SELECT old.key FROM json_each(new.rounds_over) AS over
      CROSS JOIN attempt_records AS old ON old.task = CAST(over.key AS INTEGER) AND old.key <= over.value);""",
    "worker": f"""
  INSERT INTO worker_records
    SELECT key, json_extract(record, '$.name'), {_get("run", "1")}, {_LIVING}, record
    FROM {_records("worker")} WHERE true
    ON CONFLICT (key) DO UPDATE SET living = excluded.living, record = excluded.record;""",
    "breaker": f"""
  INSERT OR REPLACE INTO breaker_records SELECT key, record FROM {_records("breaker")};""",
    "machine": f"""
  INSERT OR REPLACE INTO machine_records SELECT key, {_LIVING}, record FROM {_records("machine")};""",
    "outbox": f"""
  DELETE FROM outbox_rows WHERE key IN (SELECT value FROM json_each(new.outbox_done));
  INSERT OR REPLACE INTO outbox_rows SELECT key, record FROM {_records("outbox")};""",
    "request": f"""
  INSERT OR REPLACE INTO request_records
    SELECT key, json_extract(record, '$.request_id'), json_extract(record, '$.expires_at'), {_get("owner", "0")}, record
    FROM {_records("request")};""",
    "notices": f"""
  INSERT OR REPLACE INTO notice_records SELECT key, json_extract(record, '$.at'), record FROM {_records("notices")};
  DELETE FROM notice_records WHERE (at, key) <=
    (SELECT at, key FROM notice_records ORDER BY at DESC, key DESC LIMIT 1 OFFSET {NOTICES_KEPT});""",
    "answers": """
  UPDATE inbox_rows SET
    answer = (SELECT json_extract(value, '$[1]') FROM json_each(new.answers)
      WHERE json_extract(value, '$[0]') = inbox_rows.key),
    answered_at = (SELECT json_extract(value, '$[2]') FROM json_each(new.answers)
      WHERE json_extract(value, '$[0]') = inbox_rows.key)
    WHERE answer IS NULL AND key IN (SELECT json_extract(value, '$[0]') FROM json_each(new.answers));""",
    "tidy": f"""
  DELETE FROM worker_records WHERE NOT living AND run <=
    (SELECT max(run) FROM worker_records AS last WHERE last.name = worker_records.name) - {INCARNATIONS_KEPT};
  DELETE FROM worker_records WHERE NOT living AND {_get("retired", "0")}
    AND key NOT IN (SELECT key FROM worker_records ORDER BY key DESC LIMIT {WORKERS_KEPT})
    AND key <> (SELECT key FROM worker_records ORDER BY run DESC, key DESC LIMIT 1);
  DELETE FROM breaker_records WHERE json_extract(record, '$.state') = 'closed' AND {_get("failures", "0")} = 0
    AND key NOT IN (
      SELECT key FROM breaker_records ORDER BY json_extract(record, '$.updated_at') DESC LIMIT {BREAKERS_KEPT}
    );""",
    "pruned_at": f"""
  DELETE FROM request_records WHERE expires_at <= new.pruned_at
    AND NOT EXISTS (SELECT 1 FROM job_records WHERE job_records.key = request_records.owner AND living)
    AND NOT EXISTS (SELECT 1 FROM worker_records WHERE worker_records.key = request_records.owner AND living)
    AND NOT EXISTS (SELECT 1 FROM machine_records WHERE machine_records.key = request_records.owner AND living);
  DELETE FROM inbox_rows WHERE answer IS NOT NULL AND answered_at <= new.pruned_at - {ANSWERS_KEPT};""",
}
_ASKED_BY = {"outbox": "coalesce(new.outbox, new.outbox_done)"}  # one trigger: it deletes, then inserts
_HEAD = ("owner", "previous", "entry", "last_key", "last_seq", "data")
BATCH_COLUMNS = (*_HEAD, "outbox_done", *_WRITES)
STEPS_COLUMNS = (*_HEAD, "step")
"""The columns of a commit that holds nothing but steps: nine of ten commits of flows are such."""
STEP_COLUMNS = ("owner", "previous", "entry", "key", "flow", "record")
"""The columns of a commit that holds nothing but one step, as those of a chain of steps do."""


def _meta(last_key: str, last_seq: str) -> str:
    """The SQL that notes the end of a commit. It fails if the owner or the last entry differs: `entry` is not NULL."""
    return f"""
  UPDATE meta SET entry = CASE WHEN owner = new.owner AND entry = new.previous THEN new.entry END,
    last_key = max(last_key, {last_key}), last_seq = {last_seq};"""


def _view_of(name: str, columns: tuple[str, ...]) -> str:
    return f"CREATE TEMP VIEW {name} AS SELECT {', '.join(f'NULL AS {column}' for column in columns)};\n"


def _view(name: str, columns: tuple[str, ...]) -> str:
    """The SQL that makes a view for one connection, whose triggers write these columns, and `meta`."""
    writes = "\n".join(
        f"CREATE TEMP TRIGGER {name}_{column} INSTEAD OF INSERT ON {name}"
        f" WHEN {_ASKED_BY.get(column, f'new.{column}')} IS NOT NULL BEGIN {sql}\nEND;"
        for column, sql in _WRITES.items()
        if column in columns
    )
    return f"""{_view_of(name, columns)}{writes}
CREATE TEMP TRIGGER {name}_meta INSTEAD OF INSERT ON {name} BEGIN{_meta("new.last_key", "max(last_seq, new.last_seq)")}
END;
"""


_STEP = f"""{_view_of("step", STEP_COLUMNS)}
CREATE TEMP TRIGGER step_written INSTEAD OF INSERT ON step BEGIN
  INSERT INTO step_records VALUES (new.key, new.flow, new.record)
    ON CONFLICT (key) DO UPDATE SET record = excluded.record;{_meta("new.key", "last_seq")}
END;
"""
BATCH = _view("batch", BATCH_COLUMNS) + _view("steps", STEPS_COLUMNS) + _STEP
"""The SQL that makes the views of commits. A trigger that has nothing to write costs SQLite time as well."""


def _insert(view: str, columns: tuple[str, ...]) -> str:
    return f"INSERT INTO {view} VALUES ({', '.join('?' * len(columns))})"


INSERTS = {
    len(BATCH_COLUMNS): _insert("batch", BATCH_COLUMNS),
    len(STEPS_COLUMNS): _insert("steps", STEPS_COLUMNS),
    len(STEP_COLUMNS): _insert("step", STEP_COLUMNS),
}
"""The statement that writes a commit, by the number of its columns."""
