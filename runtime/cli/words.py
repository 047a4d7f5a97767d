"""Texts for states, times and other facts, for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from ...actors.records.base import Record
from ...actors.records.entities import BreakerRecord, JobRecord, WorkstreamRecord
from ...actors.records.step import HOLDS, StepRecord
from ...actors.records.task import TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.times import untold
from ..calling import Progress

COLOURS = {
    "completed": "green",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "magenta",
    "cancelling": "magenta",
    "retrying": "yellow",
    "circuit_open": "yellow",
    "recovering": "yellow",
    "running": "cyan",
    "validating": "cyan",
    "executing": "cyan",
}
"""Colours by state; other states have none."""
_WAITING = frozenset({"pending", "held", "waiting", "queued", "retrying", "circuit_open", "half_open", "recovering"})
ENDED = frozenset({"completed", "failed", "cancelled", "skipped"})
_UNTIL_THEN = frozenset({"held", "waiting", "retrying"})
"""States that end at their due time, which is shown."""
_CANCELLED = frozenset({"cancelling", "cancelled"})
_HELD_UP = frozenset({"held", "waiting", "circuit_open"}) | _CANCELLED
"""States whose reason says what a task waits for or ended by, whatever went wrong in an attempt before."""
_DUE = {"held": "expires_at", "waiting": "wait_until"}
"""The field of a transition into a state that has its due time."""


def took(seconds: float) -> str:
    """Write a duration: "0.4 s", "12 s", "3 m 05 s", "2 h 05 m"."""
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def clock(at: float) -> str:
    """Write a time of day, in the user's zone: "12:03:04"."""
    return _local(at, "%H:%M:%S")


def moment(at: float) -> str:
    """Write a time with its date, in the user's zone: "2026-11-28 12:03:04"."""
    return _local(at, "%Y-%m-%d %H:%M:%S")


def when(at: float, now: float) -> str:
    """Write a time of day, with the date if it is not today: "12:03:04"."""
    return clock(at) if _local(at, "%Y-%m-%d") == _local(now, "%Y-%m-%d") else moment(at)


def due(at: float, now: float | None = None) -> str:
    """Write a due time with its time zone: "2026-11-28 12:03:04 CET"; with `now` as `when` does."""
    text, zone = moment(at) if now is None else when(at, now), _local(at, "%Z")
    return text if zone == text else f"{text} {zone}".rstrip()


def awaited(record: Record, told: str | None) -> str:
    """Add the due time of a waiting entity to a text: "until 2026-11-28 12:03:04 CET; ...".

    The entity's reason holds no time, since its reader may be in another zone.
    """
    if record.due_at is None or record.state not in _UNTIL_THEN:
        return told or ""
    return "; ".join(filter(None, (f"until {due(record.due_at)}", told)))


def until(event: Transitioned) -> str:
    """Write until when an entity waits that began to: "until 2026-11-28 12:03:04 CET".

    Empty for other transitions, and if the reason has the time, as in older journals.
    """
    due_at = str((event.metadata or {}).get(_DUE.get(event.phase, ""), ""))
    try:
        at = datetime.fromisoformat(due_at).timestamp()
    except (ValueError, OverflowError):
        return ""
    return "" if due_at in (event.reason or "") else f"until {due(at)}"


def explained(task: TaskRecord) -> str:
    """Why a task is in its state: what it waits for, its last error, or its reason.

    A task that was cancelled has the reason given to the cancel. The error of its stopped body would only repeat that
    the task was cancelled.
    """
    stopped = task.state in _CANCELLED and task.error_type == "cancelled"
    error = None if task.state == "completed" or (stopped and task.reason) else task.last_error
    if error and task.reason and task.state in _HELD_UP and error != task.reason:
        return brief(f"{task.reason}; last error: {error}")
    return brief(error or task.reason)


def state(task: TaskRecord) -> str:
    """Write a task's state in its lifecycle's words, with its end if they differ."""
    return f"{task.shown} ({task.state})" if _is_told_otherwise(task) else str(task.shown)


def counted(task: TaskRecord) -> str:
    """Return the state that a task is counted under: its lifecycle's, or its real end."""
    return str(task.state if _is_told_otherwise(task) else task.shown)


def _is_told_otherwise(task: TaskRecord) -> bool:
    """Whether its lifecycle shows another end, as a skipped task as cancelled."""
    shown = str(task.shown).lower()
    if task.state not in ENDED or shown == task.state:
        return False
    return shown in ENDED or task.state in {"cancelled", "skipped"}


def used(metadata: Mapping[str, Any]) -> str:
    """Write what an attempt used: "1.2 s of CPU, 31.2 MB of memory"; or ""."""
    cpu, peak = metadata.get("cpu_seconds"), metadata.get("peak_memory_bytes")
    parts = [] if cpu is None else [f"{took(cpu)} of CPU"]
    return ", ".join(parts if peak is None else [*parts, f"{peak / 1e6:.1f} MB of memory"])


def left_behind(metadata: Mapping[str, Any]) -> str:
    """Write the processes that an attempt left behind: "left behind 4711, 4712"; or ""."""
    numbers = metadata.get("left_behind") or ()
    return f"left behind {', '.join(map(str, numbers))}" if numbers else ""


def deciders(event: Transitioned) -> list[str]:
    """Name the people who decided: "by ana", "approve by ana (tests are green)".

    A name that the reason contains is left out.

    Includes earlier decisions for which the lifecycle has no row.
    """
    metadata: Mapping[str, Any] = {} if event.kind == "machine" else event.metadata or {}  # a machine's is its users'
    by = metadata.get("by")
    parts = [f"by {by}"] if by and f"by {by}" not in (event.reason or "") else []
    for one in metadata.get("decided", ()):
        whose = f" of {one['entity_id']}" if "entity_id" in one else ""
        by = f" by {one['by']}" if one.get("by") else ""
        why = f" ({one['reason']})" if one.get("reason") else ""
        ended = f": {one['ended_as']}" if one.get("ended_as") else ""
        parts.append(f"{one['event']}{whose}{by}{why}{ended}")
    if more := metadata.get("decided_more"):
        parts.append(f"and {more} more without a row of their own")
    return parts


def _local(at: float, form: str) -> str:
    """Format a time in the user's zone. An invalid one, from an old journal, is written as a number."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(form)
    except (ValueError, OverflowError, OSError):
        return untold(at)


def duration(record: TaskRecord | JobRecord | WorkstreamRecord, now: float) -> float | None:
    """Return an entity's seconds of running; None if it never started, or waits for another start."""
    if record.started_at is None or (record.finished_at is None and record.state in _WAITING):
        return None
    return (record.finished_at or now) - record.started_at


def phase(record: Record) -> dict[str, str]:
    """Return a state's meaning for JSON, if its lifecycle is not the runtime's own."""
    return {} if record.published is None else {"phase": record.state, "lifecycle": record.published.lifecycle}


def attempts(task: TaskRecord) -> str:
    """Write the number of the present attempt, if several are possible."""
    return f"attempt {tried(task)}" if task.attempt and (task.most_attempts > 1 or task.rounds) else ""


def tried(task: TaskRecord) -> str:
    """Write the attempt's number, the largest number, uncounted attempts and the round: `2/4 (1 lost, round 3)`."""
    if not task.attempt:
        return ""
    more = [f"{many} {what}" for many, what in ((task.lost_attempts, "lost"), (task.deferrals, "put off")) if many]
    if task.rounds:
        more.append(f"round {task.rounds + 1}")
    return f"{task.attempt}/{task.most_attempts}" + (f" ({', '.join(more)})" if more else "")


def step(record: StepRecord, breakers: Mapping[str, BreakerRecord] = MappingProxyType({})) -> str:
    """Write what a step waits for, until when, and its error: "until 2026-11-28 12:03:04 CET; ValueError: ...".

    breakers: by the names of their tools, for a step that waits for a tool.
    """
    what = "" if record.awaits is None else f"for message {record.awaits!r}"
    if record.waits_for_tool is not None:
        what = f"for {tool(record.waits_for_tool, breakers)}"
    elif record.waits_for_worker is not None:
        what = f"for a worker of {record.waits_for_worker}"
        if record.unroutable is not None:
            what += f": {record.unroutable}"
    elif record.ended_at is None and record.worker_use == HOLDS:
        what = f"runs on worker {record.worker_id}"
    elif record.ended_at is None and record.tool_use == HOLDS:
        what = f"runs with tool {record.tool!r}"
    until = f"until {due(record.due_at)}" if record.ended_at is None and record.due_at is not None else ""
    if record.state == "cancelled" and until:
        until = f"it would have waited {until}"
    return "; ".join(filter(None, (" ".join(filter(None, (what, until))), brief(record.error))))


def tool(name: str, breakers: Mapping[str, BreakerRecord]) -> str:
    """Write which tool a step waits for, and whether for its breaker: "tool 'x', whose breaker is open (until ...)"."""
    breaker = breakers.get(name)
    if breaker is None or breaker.state == "closed":
        at = None if breaker is None else breaker.not_before
        return f"tool {name!r}" + ("" if at is None else f", which rests until {due(at)}")
    until = f" (until {due(breaker.due_at)})" if breaker.state == "open" and breaker.due_at is not None else ""
    return f"tool {name!r}, whose breaker is {str(breaker.state).replace('_', ' ')}{until}"


_BAR = 10
"""Characters of a bar."""


def bar(told: Progress) -> str:
    """Draw a progress of a known whole: "[###-------]"; or ""."""
    if not told.of:
        return ""
    full = int(min(max(told.done / told.of, 0.0), 1.0) * _BAR)
    return f"[{'#' * full}{'-' * (_BAR - full)}]"


def progress(told: Progress | None) -> str:
    """Write the progress of a running body: "[###-------] 3 of 10 (30 %), reading"; or ""."""
    if told is None:
        return ""
    from ..observation.live import in_words  # noqa: PLC0415 - heavy

    return one_line(" ".join(filter(None, (bar(told), in_words(told)))))


def brief(error: str | None) -> str:
    """Write an error as one line, without the output at its end."""
    return one_line((error or "").partition("; last output: ")[0], 500)


def one_line(text: str, width: int = 200) -> str:
    """Make one printable line of at most `width` characters."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
