"""How states and times are written for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ...actors.records.base import Record
from ...actors.records.entities import JobRecord, WorkstreamRecord
from ...actors.records.task import TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.spec.times import untold

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
"""By state; the other states have none."""
_WAITING = frozenset({"pending", "held", "waiting", "queued", "retrying", "circuit_open", "half_open", "recovering"})
ENDED = frozenset({"completed", "failed", "cancelled", "skipped"})
_UNTIL_THEN = frozenset({"held", "waiting", "retrying"})
"""What ends at its due time, and is told with it."""
_DUE = {"held": "expires_at", "waiting": "wait_until"}
"""Where the transition into a state says when it ends."""


def took(seconds: float) -> str:
    """A span of time: "0.4 s", "12 s", "3 m 05 s", "2 h 05 m"."""
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
    """A moment of the user's day: "12:03:04"."""
    return _local(at, "%H:%M:%S")


def moment(at: float) -> str:
    """A moment with its date, in the user's time: "2026-11-28 12:03:04"."""
    return _local(at, "%Y-%m-%d %H:%M:%S")


def when(at: float, now: float) -> str:
    """A moment near or far: "12:03:04", and with its date where that is not today's."""
    return clock(at) if _local(at, "%Y-%m-%d") == _local(now, "%Y-%m-%d") else moment(at)


def due(at: float, now: float | None = None) -> str:
    """When something is due, with the name of the user's zone: "2026-11-28 12:03:04 CET"; with `now` as `when`."""
    told, zone = moment(at) if now is None else when(at, now), _local(at, "%Z")
    return told if zone == told else f"{told} {zone}".rstrip()


def awaited(record: Record, told: str | None) -> str:
    """What is told of an entity, after until when, where it waits for a time: "until 2026-11-28 12:03:04 CET; ...".

    Its reason holds no time: whoever reads it may be in another zone.
    """
    if record.due_at is None or record.state not in _UNTIL_THEN:
        return told or ""
    return "; ".join(filter(None, (f"until {due(record.due_at)}", told)))


def until(event: Transitioned) -> str:
    """Until when an entity waits that began to: "until 2026-11-28 12:03:04 CET". Of others, and where its reason says
    it, as those of older journals do, "".
    """
    told = str((event.metadata or {}).get(_DUE.get(event.phase, ""), ""))
    try:
        at = datetime.fromisoformat(told).timestamp()
    except (ValueError, OverflowError):
        return ""
    return "" if told in (event.reason or "") else f"until {due(at)}"


def state(task: TaskRecord) -> str:
    """The state of a task for people: that of its lifecycle, and how it ended where that has no word for it."""
    return f"{task.shown} ({task.state})" if _is_told_otherwise(task) else str(task.shown)


def counted(task: TaskRecord) -> str:
    """What a task counts as: its state, or how it ended where its lifecycle has no word for that."""
    return str(task.state if _is_told_otherwise(task) else task.shown)


def _is_told_otherwise(task: TaskRecord) -> bool:
    """Whether its lifecycle shows something else than how it ended: a skipped one as cancelled, a cancelled one as
    pending.
    """
    shown = str(task.shown).lower()
    if task.state not in ENDED or shown == task.state:
        return False
    return shown in ENDED or task.state in {"cancelled", "skipped"}


def used(metadata: Mapping[str, Any]) -> str:
    """What an attempt used, as the transition at its end tells it: "1.2 s of CPU, 31.2 MB of memory"; else ""."""
    cpu, peak = metadata.get("cpu_seconds"), metadata.get("peak_memory_bytes")
    told = [] if cpu is None else [f"{took(cpu)} of CPU"]
    return ", ".join(told if peak is None else [*told, f"{peak / 1e6:.1f} MB of memory"])


def left_behind(metadata: Mapping[str, Any]) -> str:
    """What an attempt left behind, as the transition at its end tells it: "left behind 4711, 4712"; else ""."""
    numbers = metadata.get("left_behind") or ()
    return f"left behind {', '.join(map(str, numbers))}" if numbers else ""


def deciders(event: Transitioned) -> list[str]:
    """Who decided a transition, where its reason does not say so; and what was decided before, for which its lifecycle
    has no row: "by ana", "approve by ana (tests are green)".
    """
    metadata: Mapping[str, Any] = {} if event.kind == "machine" else event.metadata or {}  # a machine's is its users'
    by = metadata.get("by")
    told = [f"by {by}"] if by and f"by {by}" not in (event.reason or "") else []
    for one in metadata.get("decided", ()):
        whose = f" of {one['entity_id']}" if "entity_id" in one else ""
        by = f" by {one['by']}" if one.get("by") else ""
        why = f" ({one['reason']})" if one.get("reason") else ""
        ended = f": {one['ended_as']}" if one.get("ended_as") else ""
        told.append(f"{one['event']}{whose}{by}{why}{ended}")
    if more := metadata.get("decided_more"):
        told.append(f"and {more} more that no row tells")
    return told


def _local(at: float, form: str) -> str:
    """In the user's zone. A number that is no time, as an old journal may hold, is told as that."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime(form)
    except (ValueError, OverflowError, OSError):
        return untold(at)


def duration(record: TaskRecord | JobRecord | WorkstreamRecord, now: float) -> float | None:
    """How long an entity has run, or ran, in seconds; None if it never started, or waits for another start."""
    if record.started_at is None or (record.finished_at is None and record.state in _WAITING):
        return None
    return (record.finished_at or now) - record.started_at


def phase(record: Record) -> dict[str, str]:
    """For JSON: what its state means, where it runs by another lifecycle than the runtime's own."""
    return {} if record.published is None else {"phase": record.state, "lifecycle": record.published.lifecycle}


def attempts(task: TaskRecord) -> str:
    """The number of the present attempt, where there was more than one or may be."""
    return f"attempt {tried(task)}" if task.attempt and task.most_attempts > 1 else ""


def tried(task: TaskRecord) -> str:
    """The number of the present attempt, which one would be the last, and how many do not count: `2/4 (1 lost)`."""
    if not task.attempt:
        return ""
    more = [f"{many} {what}" for many, what in ((task.lost_attempts, "lost"), (task.deferrals, "put off")) if many]
    return f"{task.attempt}/{task.most_attempts}" + (f" ({', '.join(more)})" if more else "")


def brief(error: str | None) -> str:
    """An error without the end of the output that it repeats, as one line."""
    return one_line((error or "").partition("; last output: ")[0], 500)


def one_line(text: str, width: int = 200) -> str:
    """A text as one printable line of at most `width` characters."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if len(line) <= width else line[: width - 1] + "…"
