"""The views of a journal that people read: a row per entity, attempt, command and transition, under plain names."""
# ruff: noqa: S608 - statements are put together from names in this package only; there are no values

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from ....actors.records.transition import Transitioned
from .dialect import Dialect

TRANSITION_FIELDS = (
    "seq", "kind", "entity_id", "entity_seq", "from_state", "to_state", "event", "severity", "at", "reason",
    "job_id", "workstream_id", "run", "attempt", "worker_id", "metadata",
)  # fmt: skip
if Transitioned.__struct_fields__ != TRANSITION_FIELDS:
    raise ImportError("the columns of state_transitions are not the fields of Transitioned")
_NUMBERS = frozenset({"seq", "entity_seq", "run", "attempt"})


def views(sql: Dialect) -> str:
    """The SQL that makes all of them."""
    return _Views(sql).all()


def machines_view(sql: Dialect) -> str:
    """The SQL of the view of machines: in journals of older versions, their due times may be any number."""
    return views_of(sql, ["machines"])


MEASURED = ("attempts", "tasks")
"""The views with resources used by attempts: older journals have them without these columns."""


RECORDED = ("attempts", "tasks", "workstreams")
"""The views with tools and acceptance tests: older journals have them without these columns."""


DESCRIBED = ("jobs", "workers")
"""The views with descriptions and metadata: older journals have them without these columns."""


ROUNDED = ("tasks",)
"""The views with rounds of flows: older journals have them without this column."""


def tools_view(sql: Dialect) -> str:
    """The SQL of the view of tools' invocations, which older journals lack."""
    return _Views(sql).tool_invocations()


def views_of(sql: Dialect, names: Iterable[str]) -> str:
    """The SQL of the views with these names."""
    return _Views(sql).some(names)


def notices_view(sql: Dialect) -> str:
    """The SQL of the view of notices, which was added later than the others."""
    made = _Views(sql)
    return made.of("notices", "notice_records", made.notice)


def steps_view(sql: Dialect) -> str:
    """The SQL of the view of steps, which was added later than the others."""
    return _Views(sql).task_steps()


def messages_view(sql: Dialect) -> str:
    """The SQL of the view of messages, which was added later than the others."""
    made = _Views(sql)
    return made.of("task_messages", "message_records", made.message)


class _Views:
    """The views in one dialect. In each view, the source has the name of its table."""

    def __init__(self, sql: Dialect) -> None:
        self.sql = sql
        self.table = ""

    def get(self, field: str, default: str | None = None) -> str:
        return _or(self.sql.text(field, self.table), default)

    def whole(self, field: str, default: int | None = None) -> str:
        return _or(self.sql.whole(field, self.table), default)

    def time(self, field: str) -> str:
        return self.sql.at(self.sql.real(field, self.table), iso=True)

    def all(self) -> str:
        return self.some(self.sources()) + self.tool_invocations() + self.transitions()

    def some(self, names: Iterable[str]) -> str:
        sources = self.sources()
        return "".join(self.of(name, *sources[name]) for name in names)

    def sources(self) -> dict[str, tuple[str, Callable[[], dict[str, str]]]]:
        return {
            "jobs": ("job_records", self.job),
            "workstreams": ("workstream_records", self.workstream),
            "tasks": ("task_records", self.task),
            "approvals": ("approval_records", self.approval),
            "workers": ("worker_records", self.worker),
            "breakers": ("breaker_records", self.breaker),
            "machines": ("machine_records", self.machine),
            "attempts": ("attempt_records", self.attempt),
            "idempotency_keys": ("request_records", self.request),
            "inbox": ("inbox_rows", self.inbox),
            "outbox": ("outbox_rows", self.outbox),
        }

    def of(self, name: str, table: str, columns: Callable[[], dict[str, str]], where: str = "") -> str:
        self.table = table
        shown = ",\n  ".join(f"{value} AS {column}" for column, value in columns().items())
        return f"CREATE VIEW {name} AS SELECT key,\n  {shown}\n  FROM {table}{where};\n"

    def entity(self) -> dict[str, str]:
        get = self.get
        return {
            "id": get("id"),
            "name": get("name"),
            "state": get("published.state", get("state")),
            "previous_state": f"CASE WHEN {get('published')} IS NULL THEN {get('previous_state')}"
            f" ELSE {get('published.previous')} END",
            "run": self.whole("run", 1),
            "reason": get("reason"),
            "created_at": self.time("created_at"),
            "updated_at": self.time("updated_at"),
            "started_at": self.time("started_at"),
            "finished_at": self.time("finished_at"),
        }

    def job(self) -> dict[str, str]:
        return {
            **self.entity(),
            "workstream_id": self.get("workstream"),
            "error": self.get("error"),
            "parent_job_id": self.get("parent_id"),
            "depth": self.whole("depth", 0),
            "worker_count": self.whole("worker_count", 0),
            "runs": self.whole("runs", 1),
            "description": self.get("description"),
        }

    def workstream(self) -> dict[str, str]:
        return {
            **self.entity(),
            "job_id": self.get("job_id"),
            "task_count": self.whole("task_count"),
            "error": self.get("error"),
            "test_results": self.get("test_results"),
        }

    def task(self) -> dict[str, str]:
        get, whole, sql = self.get, self.whole, self.sql
        took = f"({sql.real('finished_at', self.table)} - {sql.real('created_at', self.table)}) * 1000"
        return {
            "task_id": get("id"),
            **self.entity(),
            "workstream_id": get("workstream_id"),
            "job_id": get("job_id"),
            "attempt_count": whole("attempt", 0),
            "failed_attempts": whole("failed_attempts", 0),
            "lost_attempts": whole("lost_attempts", 0),
            "completed_at": f"CASE {get('state')} WHEN 'completed' THEN {self.time('finished_at')} END",
            "failed_at": f"CASE {get('state')} WHEN 'failed' THEN {self.time('finished_at')} END",
            "last_error": get("trouble.error"),
            "error_type": get("trouble.type"),
            "error_category": get("trouble.category"),
            "error_count": whole("trouble.count", 0),
            "circuit_state": get("circuit_state", "'closed'"),
            "execution_duration_ms": whole("execution_ms"),
            "validation_duration_ms": whole("validation_ms"),
            "total_duration_ms": f"CAST(round({took}) AS BIGINT)",
            "output_size_bytes": whole("produced.size"),
            "output_path": get("produced.path"),
            "exit_code": whole("produced.exit_code"),
            "worker_id": get("worker_id"),
            "result": get("result"),
            "cpu_seconds": sql.real("produced.cpu_seconds", self.table),
            "peak_memory_bytes": whole("produced.peak_memory_bytes"),
            "test_results": get("test_results"),
            "round": f"{whole('anew.rounds', 0)} + 1",
        }

    def approval(self) -> dict[str, str]:
        return {
            **self.entity(),
            "task_id": self.get("task_id"),
            "workstream_id": self.get("workstream_id"),
            "job_id": self.get("job_id"),
            "expires_at": self.time("hold_until"),
            "decisions": self.get("decisions", "'[]'"),
        }

    def worker(self) -> dict[str, str]:
        return {
            **self.entity(),
            "engine": self.get("engine"),
            "capacity": self.whole("capacity"),
            "assigned": self.whole("assigned", 0),
            "metadata": self.get("metadata"),
        }

    def breaker(self) -> dict[str, str]:
        return {**self.entity(), "failures": self.whole("failures", 0), "generation": self.whole("generation", 0)}

    def machine(self) -> dict[str, str]:
        return {
            **self.entity(),
            "machine": self.get("machine"),
            "facts": self.get("facts"),
            "due_at": self.time("due_at"),
        }

    def attempt(self) -> dict[str, str]:
        return {
            "task_id": self.get("task_id"),
            "attempt": self.whole("attempt"),
            "worker_id": self.get("worker_id"),
            "claimed_at": self.time("claimed_at"),
            "ended_at": self.time("ended_at"),
            "outcome": self.get("end"),
            "error": self.get("error"),
            "exit_code": self.whole("exit_code"),
            "duration_ms": self.whole("duration_ms"),
            "output_size_bytes": self.whole("output_size"),
            "output_path": self.get("output_path"),
            "pid": self.whole("pid"),
            "cpu_seconds": self.sql.real("cpu_seconds", self.table),
            "peak_memory_bytes": self.whole("peak_memory_bytes"),
            "tool": self.get("tool"),
        }

    def request(self) -> dict[str, str]:
        return {
            "request_id": "request_id",
            "operation": self.get("operation"),
            "fingerprint": self.get("fingerprint"),
            "answer": self.get("answer"),
            "created_at": self.time("at"),
            "expires_at": self.sql.at("expires_at", iso=True),
        }

    def inbox(self) -> dict[str, str]:
        return {
            "verb": self.sql.json("command", "verb"),
            "target": self.sql.json("command", "target"),
            "request_id": self.sql.json("command", "request_id"),
            "sent_at": self.sql.at(self.sql.number(self.sql.json("command", "sent_at")), iso=True),
            "answer": "answer",
            "answered_at": self.sql.at("answered_at", iso=True),
        }

    def outbox(self) -> dict[str, str]:
        return {"owner": self.get("owner"), "event": self.get("event"), "tries": self.whole("tries", 0)}

    def tool_invocations(self) -> str:
        """Count the attempts that began with each tool, and their results, as far as the journal has them."""
        self.table = "attempt_records"
        tool, end, sql = self.get("tool"), self.get("end"), self.sql
        began, ended = (sql.real(field, self.table) for field in ("claimed_at", "ended_at"))
        columns = {
            "tool": tool,
            "invocations": "count(*)",
            "succeeded": f"count(CASE {end} WHEN 'succeeded' THEN 1 END)",
            "failed": f"count(CASE WHEN {end} IN ('failed', 'timed_out') THEN 1 END)",
            "running": f"count(CASE WHEN {end} IS NULL THEN 1 END)",
            "duration_ms": f"sum({self.whole('duration_ms')})",
            "cpu_seconds": f"sum({sql.real('cpu_seconds', self.table)})",
            "first_at": sql.at(f"min({began})", iso=True),
            "last_at": sql.at(f"max({began})", iso=True),
            "last_ended_at": sql.at(f"max({ended})", iso=True),
        }
        shown = ",\n  ".join(f"{value} AS {column}" for column, value in columns.items())
        where = f"WHERE {tool} IS NOT NULL GROUP BY {tool}"
        return f"CREATE VIEW tool_invocations AS SELECT\n  {shown}\n  FROM {self.table} {where};\n"

    def task_steps(self) -> str:
        """Steps, without those that a later run has dropped. Their job is that of the task in which the flow began."""
        dropped = self.sql.text("dropped", "step_records")
        return self.of("task_steps", "step_records", self.step, f" WHERE {dropped} IS NULL")  # stored if true

    def _goes_on(self) -> str:
        """Whether the task of a step has not ended: that in which it ran last, or that of the job's present run."""
        sql = self.sql
        task, first, job = (partial(sql.text, table=name) for name in ("task_records", "first", "job"))
        living = f"SELECT 1 FROM task_records WHERE {task('finished_at')} IS NULL AND task_records.key"
        here = f"{living} = {sql.whole('task', self.table)}"
        present = (
            f"{living} = (SELECT later.key FROM task_records AS first"
            f" JOIN names AS owner ON owner.name = 'job:' || {first('job_id')}"
            " JOIN job_records AS job ON job.key = owner.key"
            f" JOIN names AS later ON later.name = 'task:' || {job('workstream')} || '/' || {first('name')}"
            f" WHERE first.key = {self.table}.flow)"
        )
        return f"(EXISTS ({here}) OR EXISTS ({present}))"

    def step(self) -> dict[str, str]:
        get, sql = self.get, self.sql
        number, ended = self.whole("number", 1), sql.real("ended_at", self.table)
        cancelled = sql.real("cancelled_at", self.table)
        done = f"CASE WHEN {get('error_type')} IS NULL THEN 'completed' ELSE 'failed' END"
        took = f"({ended} - {sql.real('began_at', self.table)}) * 1000"
        job = sql.text("job_id", "task_records")
        return {
            "job_id": f"(SELECT {job} FROM task_records WHERE task_records.key = {self.table}.flow)",
            "task_id": get("task_id"),
            "name": get("name"),
            "number": number,
            "label": f"{get('name')} || CASE {number} WHEN 1 THEN '' ELSE '#' || {number} END",
            "state": f"CASE WHEN {ended} IS NOT NULL THEN {done} WHEN {cancelled} IS NULL AND {self._goes_on()}"
            " THEN 'waiting' ELSE 'cancelled' END",
            "attempt": self.whole("attempt", 1),
            "tries": self.whole("tries", 1),
            "began_at": self.time("began_at"),
            "ended_at": self.time("ended_at"),
            "duration_ms": f"CAST(round({took}) AS BIGINT)",
            "due_at": self.time("due_at"),
            "worker_id": get("worker_id"),
            "result": sql.raw("result", self.table),
            "error": get("error"),
            "error_type": get("error_type"),
            "traceback": get("traceback"),
            "arguments": sql.raw("given", self.table),
        }

    def message(self) -> dict[str, str]:
        get, received = self.get, self.sql.real("received_at", self.table)
        return {
            "job_id": get("job_id"),
            "task": get("task"),
            "name": get("name"),
            "state": f"CASE WHEN {received} IS NULL THEN 'unread' ELSE 'received' END",
            "value": self.sql.raw("value", self.table),
            "sent_at": self.time("sent_at"),
            "sent_by": get("by"),
            "received_at": self.time("received_at"),
            "received_by": get("received_by"),
        }

    def notice(self) -> dict[str, str]:
        get = self.get
        return {
            "event": get("event"),
            "severity": get("severity"),
            "kind": get("kind"),
            "entity_id": get("entity_id"),
            "job_id": get("job_id"),
            "text": get("text"),
            "error": get("error"),
            "message": get("message"),
            "traceback": get("traceback"),
            "count": self.whole("count", 1),
            "first_at": self.time("first_at"),
            "at": self.time("at"),
            "node": get("node"),
        }

    def transitions(self) -> str:
        columns = {
            field: self.sql.count(place) if field in _NUMBERS else self.sql.column(place)
            for place, field in enumerate(TRANSITION_FIELDS)
        }
        place = TRANSITION_FIELDS.index("at")
        columns |= {"at": self.sql.number(columns["at"]), "timestamp": self.sql.moment(place, iso=True)}
        shown = ",\n  ".join(f"{value} AS {field}" for field, value in columns.items())
        return f"CREATE VIEW state_transitions AS SELECT\n  {shown}\n  FROM {self.sql.chunks};\n"


def _or(value: str, default: object) -> str:
    return value if default is None else f"coalesce({value}, {default})"
