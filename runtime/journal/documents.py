"""Views of the journal by the names that the published documents use, so that the queries printed there run on it.

Rules
-----
- `pipeline_...` are the tables of document 000, `guarded_...` those of document 003 (DESIGN 5.17), `fleet_...` the
  audit trails of document 002. Columns have the documents' names; what they do not have follows theirs.
- States are shown in the document's words, by what they mean: by their phases (`_STEPS` and the other tables), whatever
  the lifecycle that an entity runs by calls them. One that runs by the document's own has those words already, and
  keeps them. What the document has no word for keeps the word of its lifecycle.
- What an entity is now is said by the phase that its actor is in (it may wait for a retry inside another state), its
  trail by the phases of the states that were journaled.
- One row of ours may be none of theirs (`pending -> queued` is S_PENDING in both): a row is shown where the word
  changes, and begins with the word before it. So each trail hangs together.
- One row of ours may be two of theirs: 003's task has failed before it is decided that it is tried again or parked, and
  validates before it completes. What 003 has no arrow for (a task that waits too long in the queue fails; a drain
  gives a try back) is shown as it was: left out, the trail would end where the task is not.
- A step is what the document means by it: a task of a job's present run, by its name. Its workstream has the job's id
  through all runs, and a further run is a retry: S_FAILED -> S_RETRYING -> S_RUNNING.
- Times are as SQLite writes them (`2025-11-22 20:00:00`, UTC, with milliseconds), so that they compare with
  `datetime('now', '-1 hour')`.
"""
# ruff: noqa: S608 - statements are put together from names in this file only; there are no values

from __future__ import annotations

from collections.abc import Mapping

# What the document calls each phase.
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
}
"""What 003 has between two states of a task that are one step here."""
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
_CIRCUITS = {"CLOSED": ("closed",), "OPEN": ("open",), "HALF_OPEN": ("half_open",)}


def _word(phase: str, shown: str, words: Mapping[str, tuple[str, ...]]) -> str:
    """The document's word for a state, by its phase; `shown` is what its lifecycle calls it."""
    cases = (f"WHEN '{own}' THEN '{word}'" for word, owns in words.items() for own in owns)
    kept = ", ".join(f"'{word}'" for word in words)
    return f"CASE WHEN {shown} IN ({kept}) THEN {shown} ELSE CASE {phase} {' '.join(cases)} ELSE {shown} END END"


def _at(number: str) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', {number}, 'unixepoch')"


def _get(field: str, table: str = "t") -> str:
    return f"json_extract({table}.record, '$.{field}')"


def _shown(table: str = "t", field: str = "state") -> str:
    """The state of a record, as its lifecycle calls it."""
    published = _get(f"published.{'previous' if field == 'previous_state' else field}", table)
    return f"coalesce({published}, {_get(field, table)})"


def _now(words: Mapping[str, tuple[str, ...]], table: str = "t", field: str = "state") -> str:
    """The document's word for the state of a record."""
    return _word(_get(field, table), _shown(table, field), words)


def _row(place: int) -> str:
    """A column of a transition, by its place in `TRANSITION_FIELDS`."""
    return f"json_extract(one.value, '$[{place}]')"


_SEQ, _KIND, _ENTITY, _FROM, _TO, _WHEN, _REASON, _RUN, _METADATA = map(_row, (0, 1, 2, 4, 5, 8, 9, 12, 15))
# The phases of the states, which what runs by another lifecycle has behind the columns (`PublishedTransition`).
_FROM_PHASE = f"coalesce(json_extract(one.value, '$[16][0]'), {_FROM})"
_TO_PHASE = f"coalesce(json_extract({_METADATA}, '$.ended_as'), json_extract(one.value, '$[16][1]'), {_TO})"
_CHUNKS = "transition_chunks AS c, json_each(c.transitions) AS one"
_REASONED = f"json_set(coalesce({_METADATA}, '{{}}'), '$.reason', {_REASON})"
# The job's present run, and its tasks: they are a range of keys.
_PRESENT = (
    f"job_records AS j JOIN workstream_records AS w ON w.job = j.key AND {_get('id', 'w')} = {_get('workstream', 'j')}"
)


def _trail(  # noqa: PLR0917 - what a view is made of
    name: str, kind: str, columns: Mapping[str, str], owner: str, word: str,
    between: Mapping[tuple[str, str], str] | None = None,
) -> str:  # fmt: skip
    """A view of one kind's transitions: those at which the word changes, in two steps where one is in `between`."""
    inside = {
        "n": _SEQ, "owner": owner, "word": word, "at": _at(_WHEN), "reason": _REASON, "run": _RUN,
        "metadata": _REASONED, "created": f"{_FROM} IS NULL",
    }  # fmt: skip
    shown = ", ".join(f"{value} AS {column}" for column, value in inside.items())
    told = ",\n  ".join(f"{value} AS {column}" for column, value in columns.items())
    source = (
        "(\n    SELECT *, lag(word) OVER"
        f" (PARTITION BY owner ORDER BY n) AS before FROM (SELECT {shown} FROM {_CHUNKS} WHERE {_KIND} = '{kind}')"
        "\n  )"
    )
    if between:
        cases = " ".join(
            f"WHEN before = '{one}' AND word = '{other}' THEN '{middle}'" for (one, other), middle in between.items()
        )
        steps = "(SELECT 1 AS step UNION ALL SELECT 2)"
        source = (
            "(\n    SELECT 2 * n + step - 2 AS n, owner, at, reason, run, metadata, created,"
            " CASE step WHEN 2 THEN coalesce(middle, before) ELSE before END AS before,"
            " CASE step WHEN 2 THEN word ELSE middle END AS word"
            f"\n    FROM (SELECT *, CASE {cases} END AS middle FROM {source}), {steps}\n  )"
        )
    return f"CREATE VIEW {name} AS SELECT {told}\n  FROM {source}\n  WHERE before <> word;\n"


def _view(name: str, columns: Mapping[str, str], source: str) -> str:
    told = ",\n  ".join(f"{value} AS {column}" for column, value in columns.items())
    return f"CREATE VIEW {name} AS SELECT\n  {told}\n  FROM {source};\n"


def _waits_to_retry(state: str, before: str, word: str, otherwise: str) -> str:
    """What is queued for a further attempt is still about to retry."""
    return f"CASE WHEN {state} = 'queued' AND {before} = 'retrying' THEN '{word}' ELSE {otherwise} END"


def _about_to(word: str, words: Mapping[str, tuple[str, ...]]) -> str:
    return _waits_to_retry(_get("state"), _get("previous_state"), word, _now(words))


_STEP_STATE = (
    f"CASE WHEN {_get('state')} = 'skipped' AND {_get('standing')} = 'good' THEN 'S_SUCCESS' ELSE "
    f"{_about_to('S_RETRYING', _STEPS)} END"
)
_TASK_STATE = _about_to("RETRYING", _TASKS)
_FAILED = f"coalesce({_get('failed_attempts')}, 0)"
# A further run begins where the one before had ended: it is about to be tried again.
_RUN_STATE = "CASE WHEN {run} > 1 AND ({word}) = 'S_PENDING' THEN 'S_RETRYING' ELSE {word} END"

_PIPELINE = (
    _view(
        "pipeline_workstreams",
        {
            "ws_id": _get("id", "j"),
            "state": _RUN_STATE.format(run=f"coalesce({_get('run', 'w')}, 1)", word=_now(_WORKSTREAMS, "w")),
            "updated_at": _at(_get("updated_at", "w")),
            "created_at": _at(_get("created_at", "j")),
            "retry_count": f"coalesce({_get('run', 'w')}, 1) - 1",
            "name": _get("name", "w"),
        },
        _PRESENT,
    )
    + _view(
        "pipeline_steps",
        {
            "step_id": _get("name"),
            "ws_id": _get("id", "j"),
            "state": _STEP_STATE,
            "updated_at": _at(_get("updated_at")),
            "retry_count": f"max(0, CASE WHEN {_get('state')} = 'failed' OR {_get('parked')} = 'exhausted'"
            f" THEN {_FAILED} - 1 ELSE {_FAILED} END)",
            "exit_code": _get("produced.exit_code"),
            "last_error": _get("trouble.error"),
        },
        f"{_PRESENT} JOIN task_records AS t ON t.key >= {_get('first_task', 'w')}"
        f" AND t.key < {_get('first_task', 'w')} + {_get('task_count', 'w')}",
    )
    + _trail(
        "pipeline_state_transitions",
        "workstream",
        {
            "transition_id": "n",
            "ws_id": "owner",
            "from_state": "before",
            "to_state": "word",
            "transitioned_at": "at",
            "metadata": "CASE WHEN created THEN json_set(metadata, '$.reason', 'retry attempt ' || (run - 1))"
            " ELSE metadata END",
        },
        "c.owner",  # the job's id
        _RUN_STATE.format(run=_RUN, word=_word(_TO_PHASE, _TO, _WORKSTREAMS)),
    )
    + _view(
        "pipeline_circuit_breakers",
        {
            "tool_id": _get("name"),
            "state": _now(_CIRCUITS),
            "updated_at": _at(_get("updated_at")),
            "failure_count": f"coalesce({_get('failures')}, 0)",
            "failure_threshold": f"coalesce({_get('failure_threshold')}, 5)",
            "cooldown_seconds": f"coalesce({_get('cooldown')}, 60.0)",
            "success_threshold": f"coalesce({_get('success_threshold')}, 1)",
        },
        "breaker_records AS t",
    )
)
_ENDED_AS = f"CASE {_get('state')} WHEN '{{state}}' THEN {_at(_get('finished_at'))} END"
_GUARDED = _view(
    "guarded_task_states",
    {
        "task_id": _get("id"),
        "workstream_id": _get("workstream_id"),
        "state": _TASK_STATE,
        "previous_state": f"nullif({_now(_TASKS, field='previous_state')}, {_TASK_STATE})",
        "attempt_count": f"coalesce({_get('attempt')}, 0)",
        "created_at": _at(_get("created_at")),
        "started_at": _at(_get("started_at")),
        "completed_at": _ENDED_AS.format(state="completed"),
        "failed_at": _ENDED_AS.format(state="failed"),
        "last_error": _get("trouble.error"),
        "error_count": f"coalesce({_get('trouble.count')}, 0)",
        "circuit_state": f"upper(coalesce({_get('circuit_state')}, 'closed'))",
        "execution_duration_ms": _get("execution_ms"),
        "validation_duration_ms": _get("validation_ms"),
        "total_duration_ms": f"CAST(round(({_get('finished_at')} - {_get('created_at')}) * 1000) AS INTEGER)",
        "output_size_bytes": _get("produced.size"),
        "exit_code": _get("produced.exit_code"),
    },
    "task_records AS t",
) + _trail(
    "guarded_state_transitions",
    "task",
    {
        "id": "n", "task_id": "owner", "from_state": "before", "to_state": "word", "timestamp": "at",
        "reason": "reason", "metadata": "metadata",
    },
    _ENTITY,
    _waits_to_retry(_TO_PHASE, _FROM_PHASE, "RETRYING", _word(_TO_PHASE, _TO, _TASKS)),
    _BETWEEN,
)  # fmt: skip
_FLEET = "".join(
    _trail(
        f"fleet_{kind}_state_transitions",
        kind,
        {
            "id": "n", f"{kind}_id": "owner", "from_state": "before", "to_state": "word", "reason": "reason",
            "timestamp": "at",
        },
        _ENTITY,
        _word(_TO_PHASE, _TO, words),
    )
    for kind, words in (("worker", _WORKERS), ("job", _JOBS))
)  # fmt: skip

DOCUMENT_VIEWS = _PIPELINE + _GUARDED + _FLEET
"""Makes the views."""
