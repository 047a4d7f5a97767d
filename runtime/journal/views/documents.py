"""Views of the journal under the names in the published documents, so that the queries printed there run on it.

Rules
-----
- `pipeline_...` are the tables of document 000, `guarded_...` those of document 003 (DESIGN 5.17), `fleet_...` those
  of document 002. Columns have the documents' names; columns that the documents do not have come last.
- States are shown in the document's words, by their phases (`_STEPS` and the other tables), whatever their names in the
  entity's lifecycle. An entity that runs by the document's own lifecycle has those words already, and keeps them. A
  state for which the document has no word keeps the word of its lifecycle.
- An entity's present state is shown by the phase of its actor (it may wait for a retry inside another state), its trail
  by the phases of the states that were journaled.
- One row of ours may be no row of theirs (`pending -> queued` is S_PENDING in both): a row is shown if the word
  changes, and begins with the word before it. So each trail is continuous within a run.
- One row of ours may be two rows of theirs: a task of 003 fails before it is retried or parked, and validates before it
  completes. A step for which 003 has no arrow (a task that waits too long in the queue fails; a drain gives a try back)
  is shown as it was: without it, the trail would end at the wrong state.
- A step has the document's meaning: a task of a job's present run, by its name. Its workstream has the job's id in all
  runs, and a further run is a retry: S_FAILED -> S_RETRYING -> S_RUNNING.
- No row leaves a state that is terminal in the document. A further run after such an end (S_ABANDONED, and a job in
  002's FAILED) begins a new trail, with its first row after that.
- All times are in SQLite's format (`2025-11-22 20:00:00`, UTC, with milliseconds), so that they compare with
  `datetime('now', '-1 hour')`.
"""
# ruff: noqa: S608 - statements are put together from names in this file only; there are no values

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .dialect import Dialect

# The document's word for each phase.
_STEPS = {
    "S_PENDING": ("pending", "held", "waiting", "queued"),
    "S_RUNNING": ("running", "timed_out", "validating", "recovering", "cancelling"),
    "S_SUCCESS": ("completed",),
    "S_FAILED": ("failed", "deciding", "circuit_open"),
    "S_RETRYING": ("retrying", "half_open"),
}
_WORKSTREAMS = {
    "S_PENDING": ("planned", "ready", "held", "waiting"),
    "S_RUNNING": ("executing", "paused", "validating", "cancelling"),
    "S_SUCCESS": ("completed",),
    "S_FAILED": ("failed", "deciding"),
    "S_RETRYING": ("retrying",),
    "S_ABANDONED": ("cancelled",),
}
_TASKS = {
    "PENDING": ("pending", "held", "waiting", "queued"),
    "IN_PROGRESS": ("running", "recovering", "cancelling"),
    "VALIDATING": ("validating",),
    "COMPLETED": ("completed",),
    "FAILED": ("failed", "deciding"),
    "RETRYING": ("retrying",),
    "CIRCUIT_OPEN": ("circuit_open",),
    "HALF_OPEN": ("half_open",),
    "TIMEOUT": ("timed_out",),
    "SKIPPED": ("skipped",),
    "CANCELLED": ("cancelled",),
}
_BETWEEN = {
    ("IN_PROGRESS", "RETRYING"): "FAILED",
    ("IN_PROGRESS", "CIRCUIT_OPEN"): "FAILED",
    ("TIMEOUT", "CIRCUIT_OPEN"): "FAILED",
    ("IN_PROGRESS", "COMPLETED"): "VALIDATING",
    ("VALIDATING", "CIRCUIT_OPEN"): "FAILED",
}
"""The states that 003 has between two states of a task that are one step here."""
_WORKERS = {
    "IDLE": ("initializing", "idle"),
    "RUNNING": ("busy", "draining", "unresponsive"),
    "PAUSED": ("paused",),
    "COMPLETED": ("shutdown",),
    "FAILED": ("failed",),
    "TERMINATED": ("terminated",),
}
_JOBS = {
    "SUBMITTED": ("submitted",),
    "PENDING": ("pending",),
    "RUNNING": ("running", "cancelling"),
    "COMPLETED": ("completed",),
    "FAILED": ("failed",),
    "CANCELED": ("cancelled",),
}
_ENDED_WORKSTREAM = ("S_SUCCESS", "S_ABANDONED")
_ENDED_JOB = ("COMPLETED", "FAILED", "CANCELED")
"""The terminal states of 000's workstream, and of 002's job."""
WORKSPACE = "workspace:"
"""The prefix of the capability that names the workspace (of 002) to which a worker belongs."""
_CIRCUITS = {"CLOSED": ("closed",), "OPEN": ("open",), "HALF_OPEN": ("half_open",)}


def document_views(sql: Dialect) -> str:
    """The SQL that makes the views."""
    return _Views(sql).all()


def trails_with_ends(sql: Dialect) -> str:
    """The SQL of the views that, in older journals, showed transitions out of terminal states."""
    views = _Views(sql)
    return views.pipeline_trail() + views.fleet_trail("job", _JOBS, _ENDED_JOB)


def guarded_states(sql: Dialect) -> str:
    """The SQL of the view of 003's tasks, which has fewer columns in older journals."""
    return _Views(sql).guarded_states()


def guarded_trail(sql: Dialect) -> str:
    """The SQL of the view of 003's transitions: in older journals it has no failure between a test and its end."""
    return _Views(sql).guarded_trail()


def fleet_tables(sql: Dialect) -> str:
    """The SQL of the views of 002's workers and jobs, which older journals lack."""
    return _Views(sql).fleet_tables()


def _word(phase: str, shown: str, words: Mapping[str, tuple[str, ...]]) -> str:
    """The document's word for a state, by its phase; `shown` is the name in its lifecycle."""
    cases = (f"WHEN '{own}' THEN '{word}'" for word, owns in words.items() for own in owns)
    kept = ", ".join(f"'{word}'" for word in words)
    return f"CASE WHEN {shown} IN ({kept}) THEN {shown} ELSE CASE {phase} {' '.join(cases)} ELSE {shown} END END"


def _view(name: str, columns: Mapping[str, str], source: str) -> str:
    columns_as = ",\n  ".join(f"{value} AS {column}" for column, value in columns.items())
    return f"CREATE VIEW {name} AS SELECT\n  {columns_as}\n  FROM {source};\n"


def _waits_to_retry(state: str, before: str, word: str, otherwise: str) -> str:
    """Show a task that is queued for a further attempt with `word`: it is about to retry."""
    return f"CASE WHEN {state} = 'queued' AND {before} = 'retrying' THEN '{word}' ELSE {otherwise} END"


def _retried(run: str, word: str) -> str:
    """Show `word` at the beginning of a further run: it begins at the end of the run before, and is a retry."""
    return f"CASE WHEN {run} > 1 AND ({word}) = 'S_PENDING' THEN 'S_RETRYING' ELSE {word} END"


class _Views:
    """The views in one dialect."""

    def __init__(self, sql: Dialect) -> None:
        self.sql = sql
        # Columns of a transition, by their places in `TRANSITION_FIELDS`.
        self.kind, self.entity, self.before, self.after, self.reason = map(sql.column, (1, 2, 4, 5, 9))
        self.run = sql.count(12)
        # The phases of its states: for another lifecycle they follow after the columns (`PublishedTransition`).
        self.from_phase = f"coalesce({sql.column(16, 0)}, {self.before})"
        self.to_phase = f"coalesce({sql.column(15, 'ended_as')}, {sql.column(16, 1)}, {self.after})"
        # The job's present run, and its tasks, which are a range of keys.
        self.present = (
            "job_records AS j JOIN workstream_records AS w"
            f" ON w.job = j.key AND {self.get('id', 'w')} = {self.get('workstream', 'j')}"
        )

    def get(self, field: str, table: str = "t") -> str:
        return self.sql.text(field, table)

    def whole(self, field: str, default: int | None = None, table: str = "t") -> str:
        value = self.sql.whole(field, table)
        return value if default is None else f"coalesce({value}, {default})"

    def at(self, field: str, table: str = "t") -> str:
        return self.sql.at(self.sql.real(field, table), iso=False)

    def shown(self, table: str = "t", field: str = "state") -> str:
        """The state of a record, as named in its lifecycle."""
        published = self.get(f"published.{'previous' if field == 'previous_state' else field}", table)
        return f"coalesce({published}, {self.get(field, table)})"

    def now(self, words: Mapping[str, tuple[str, ...]], table: str = "t", field: str = "state") -> str:
        """The document's word for the state of a record."""
        return _word(self.get(field, table), self.shown(table, field), words)

    def about_to(self, word: str, words: Mapping[str, tuple[str, ...]]) -> str:
        return _waits_to_retry(self.get("state"), self.get("previous_state"), word, self.now(words))

    def trail(  # noqa: PLR0917 - what a view is made of
        self, name: str, kind: str, columns: Mapping[str, str], owner: str, word: str,
        between: Mapping[tuple[str, str], str] | None = None, ended: Iterable[str] = (),
    ) -> str:  # fmt: skip
        """A view of one kind's transitions: those at which the word changes, as two rows for words in `between`.

        ended: the words that no row leaves.
        """
        inside = {
            "n": self.sql.count(0), "owner": owner, "word": word, "at": self.sql.moment(8, iso=False),
            "reason": self.reason, "run": self.run, "metadata": self.sql.reasoned(self.sql.column(15), self.reason),
            "created": f"{self.before} IS NULL",
        }  # fmt: skip
        shown = ", ".join(f"{value} AS {column}" for column, value in inside.items())
        columns_as = ",\n  ".join(f"{value} AS {column}" for column, value in columns.items())
        source = (
            "(\n    SELECT *, lag(word) OVER (PARTITION BY owner ORDER BY n) AS before"
            f" FROM (SELECT {shown} FROM {self.sql.chunks} WHERE {self.kind} = '{kind}') AS said\n  ) AS trail"
        )
        if between:
            cases = " ".join(
                f"WHEN before = '{one}' AND word = '{other}' THEN '{middle}'"
                for (one, other), middle in between.items()
            )
            steps = "(SELECT 1 AS step UNION ALL SELECT 2) AS steps"
            source = (
                "(\n    SELECT 2 * n + step - 2 AS n, owner, at, reason, run, metadata, created,"
                " CASE step WHEN 2 THEN coalesce(middle, before) ELSE before END AS before,"
                " CASE step WHEN 2 THEN word ELSE middle END AS word"
                f"\n    FROM (SELECT *, CASE {cases} END AS middle FROM {source}) AS parted, {steps}\n  ) AS stepped"
            )
        begins = "".join(f" AND before <> '{word}'" for word in ended)
        return f"CREATE VIEW {name} AS SELECT {columns_as}\n  FROM {source}\n  WHERE before <> word{begins};\n"

    def all(self) -> str:
        return self.pipeline() + self.guarded() + self.fleet()

    def pipeline(self) -> str:
        get, whole, at = self.get, self.whole, self.at
        failed = whole("failed_attempts", 0)
        run = whole("run", 1, "w")
        return (
            _view(
                "pipeline_workstreams",
                {
                    "ws_id": get("id", "j"),
                    "state": _retried(run, self.now(_WORKSTREAMS, "w")),
                    "updated_at": at("updated_at", "w"),
                    "created_at": at("created_at", "j"),
                    "retry_count": f"{run} - 1",
                    "name": get("name", "w"),
                },
                self.present,
            )
            + _view(
                "pipeline_steps",
                {
                    "step_id": get("name"),
                    "ws_id": get("id", "j"),
                    "state": f"CASE WHEN {get('state')} = 'skipped' AND {get('standing')} = 'good' THEN 'S_SUCCESS'"
                    f" ELSE {self.about_to('S_RETRYING', _STEPS)} END",
                    "updated_at": at("updated_at"),
                    "retry_count": f"{self.sql.greatest}(0, CASE WHEN {get('state')} = 'failed'"
                    f" OR {get('parked')} = 'exhausted' THEN {failed} - 1 ELSE {failed} END)",
                    "exit_code": whole("produced.exit_code"),
                    "last_error": get("trouble.error"),
                },
                f"{self.present} JOIN task_records AS t ON t.key >= {whole('first_task', table='w')}"
                f" AND t.key < {whole('first_task', table='w')} + {whole('task_count', table='w')}",
            )
            + self.pipeline_trail()
            + _view(
                "pipeline_circuit_breakers",
                {
                    "tool_id": get("name"),
                    "state": self.now(_CIRCUITS),
                    "updated_at": at("updated_at"),
                    "failure_count": whole("failures", 0),
                    "failure_threshold": whole("failure_threshold", 5),
                    "cooldown_seconds": f"coalesce({self.sql.real('cooldown', 't')}, 60.0)",
                    "success_threshold": whole("success_threshold", 1),
                },
                "breaker_records AS t",
            )
        )

    def pipeline_trail(self) -> str:
        return self.trail(
            "pipeline_state_transitions",
            "workstream",
            {
                "transition_id": "n",
                "ws_id": "owner",
                "from_state": "before",
                "to_state": "word",
                "transitioned_at": "at",
                "metadata": f"CASE WHEN created THEN {self.sql.reasoned('metadata', _ATTEMPT)} ELSE metadata END",
            },
            "c.owner",  # the job's id
            _retried(self.run, _word(self.to_phase, self.after, _WORKSTREAMS)),
            ended=_ENDED_WORKSTREAM,
        )

    def guarded(self) -> str:
        return self.guarded_states() + self.guarded_trail()

    def guarded_states(self) -> str:
        get, whole, at, real = self.get, self.whole, self.at, self.sql.real
        state = self.about_to("RETRYING", _TASKS)
        return _view(
            "guarded_task_states",
            {
                "task_id": get("id"),
                "workstream_id": get("workstream_id"),
                "state": state,
                "previous_state": f"nullif({self.now(_TASKS, field='previous_state')}, {state})",
                "attempt_count": whole("attempt", 0),
                "created_at": at("created_at"),
                "started_at": at("started_at"),
                "completed_at": f"CASE {get('state')} WHEN 'completed' THEN {at('finished_at')} END",
                "failed_at": f"CASE {get('state')} WHEN 'failed' THEN {at('finished_at')} END",
                "last_error": get("trouble.error"),
                "error_count": whole("trouble.count", 0),
                "circuit_state": f"upper(coalesce({get('circuit_state')}, 'closed'))",
                "execution_duration_ms": whole("execution_ms"),
                "validation_duration_ms": whole("validation_ms"),
                "total_duration_ms": f"CAST(round(({real('finished_at', 't')} - {real('created_at', 't')}) * 1000)"
                " AS BIGINT)",
                "output_size_bytes": whole("produced.size"),
                "exit_code": whole("produced.exit_code"),
                "cpu_seconds": real("produced.cpu_seconds", "t"),
                "peak_memory_bytes": whole("produced.peak_memory_bytes"),
                "tool_invocation_count": "(SELECT count(*) FROM attempt_records AS a WHERE a.task = t.key"
                f" AND {get('tool', 'a')} IS NOT NULL)",
                "test_results": get("test_results"),
            },
            "task_records AS t",
        )

    def guarded_trail(self) -> str:
        return self.trail(
            "guarded_state_transitions",
            "task",
            {
                "id": "n", "task_id": "owner", "from_state": "before", "to_state": "word", "timestamp": "at",
                "reason": "reason", "metadata": "metadata",
            },
            self.entity,
            _waits_to_retry(
                self.to_phase, self.from_phase, "RETRYING", _word(self.to_phase, self.after, _TASKS)
            ),
            _BETWEEN,
        )  # fmt: skip

    def fleet(self) -> str:
        trails = self.fleet_trail("worker", _WORKERS) + self.fleet_trail("job", _JOBS, _ENDED_JOB)
        return trails + self.fleet_tables()

    def fleet_tables(self) -> str:
        get, at = self.get, self.at
        workspace = (
            f"(SELECT substr(value, {len(WORKSPACE) + 1}) FROM {self.sql.texts('capabilities', 't')}"
            f" WHERE substr(value, 1, {len(WORKSPACE)}) = '{WORKSPACE}' LIMIT 1)"
        )
        return _view(
            "fleet_workers",
            {
                "id": get("id"),
                "workspace_id": workspace,
                "status": self.now(_WORKERS),
                "created_at": at("created_at"),
                "updated_at": at("updated_at"),
                "metadata": get("metadata"),
            },
            "worker_records AS t",
        ) + _view(
            "fleet_jobs",
            {
                "id": get("id"),
                "parent_job_id": get("parent_id"),
                "depth": self.whole("depth", 0),
                "status": self.now(_JOBS),
                "worker_count": self.whole("worker_count", 0),
                "created_at": at("created_at"),
                "started_at": at("started_at"),
                "completed_at": at("finished_at"),
                "task_description": f"coalesce({get('description')}, {get('name')})",
            },
            "job_records AS t",
        )

    def fleet_trail(self, kind: str, words: Mapping[str, tuple[str, ...]], ended: Iterable[str] = ()) -> str:
        return self.trail(
            f"fleet_{kind}_state_transitions",
            kind,
            {
                "id": "n", f"{kind}_id": "owner", "from_state": "before", "to_state": "word", "reason": "reason",
                "timestamp": "at",
            },
            self.entity,
            _word(self.to_phase, self.after, words),
            ended=ended,
        )  # fmt: skip


_ATTEMPT = "'retry attempt ' || (run - 1)"
