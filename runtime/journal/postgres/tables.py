"""The tables by which several nodes share a journal in PostgreSQL.

Rules
-----
- A row of `nodes` is one session of a node: a runtime from its opening to its end. Its number, `node`, marks the rows
  that it owns; a node that restarts gets another row. `fenced` is set for a node that may not write any more: it was
  fenced, or has left. It is set under a lock that each commit takes as well, and never reset.
- The entities of a fenced node have no owner, and stay unchanged until a node takes them. `owes` says that some may be
  left. `share` and `machine_share` are the parts that one node takes of them at once. They are computed when the
  remains are first looked at, from their amount and the living nodes, NULL until then; and anew when something was
  given back.
- A statement treats a node as ended only if its row in `nodes` says so, never because the row is missing: the row might
  be newer than what the statement sees. So references to a node are removed before its row is.
"""

from __future__ import annotations

from ..cluster import EPOCH

NODES = f"""
CREATE SEQUENCE epochs;                   -- the numbers of epoch n begin at n * {EPOCH}
CREATE TABLE nodes (
  node bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL,
  epoch bigint NOT NULL,                  -- its present epoch
  taken bigint NOT NULL DEFAULT 0,        -- the epoch that began with its last take
  fenced boolean NOT NULL DEFAULT false,  -- whether it may no longer write
  ended_as text,                          -- fenced | left
  ended_at timestamptz,
  ended_by text,                          -- the name of the node that fenced it
  owes boolean NOT NULL DEFAULT true,     -- whether it may own rows that no node has taken yet
  share bigint,                           -- the number of its jobs, without child jobs, and
  machine_share bigint,                   -- the number of its machines that one node takes at once
  buried_by bigint,                       -- the node that ends its workers
  lease interval NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),   -- the time of the last renewal of its lease
  awake_at timestamptz NOT NULL DEFAULT clock_timestamp(),  -- the time since which it renews it without a pause
  place text NOT NULL,                    -- its computer and process, for people,
  kernel text NOT NULL,                   -- and for nodes on the same computer: its kernel and process namespace,
  pid bigint NOT NULL,                    -- its process id,
  process_started bigint NOT NULL         -- and the start of the process in clock ticks
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX living_nodes ON nodes (name) WHERE NOT fenced;
CREATE INDEX ended_nodes ON nodes (node) WHERE fenced AND owes;

CREATE TABLE tool_states (                -- the breakers that all nodes share
  tool text COLLATE "C" PRIMARY KEY, generation bigint NOT NULL, state text NOT NULL
);
CREATE TABLE tool_claims (                -- each node's wanted and granted part of a tool's limit
  tool text COLLATE "C" NOT NULL, node bigint NOT NULL, claim text NOT NULL, PRIMARY KEY (tool, node)
) WITH (fillfactor = 20);
"""
INBOX = """
CREATE TABLE inbox_rows (                 -- commands that other processes insert; a node takes and answers each
  key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  command text NOT NULL,                  -- JSON
  about text COLLATE "C",                 -- the target, whose node executes it: "job:ID", "machine:NAME" or "node:NAME"
  taken_by bigint,                        -- the node that executes it
  answer text,                            -- JSON
  answered_at double precision
);
CREATE INDEX unanswered ON inbox_rows (key) WHERE answer IS NULL;
CREATE INDEX oldest_answers ON inbox_rows (answered_at) WHERE answer IS NOT NULL;
"""
