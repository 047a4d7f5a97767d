"""One breaker of a tool for all nodes: what a node says of its own, and what it makes of what the others have said.

Rules
-----
- The nodes have one row for each tool (`ToolState`). Who changes it counts its generation on, and only one can do so
  from the same generation: that is how they agree. Each has a breaker of its own, which follows the row.
- What has opened or closed on a node is written into the row. Where another node was faster: one that has opened
  follows it if it is open as well, and else says so after it; one that has closed follows it.
- When the cooldown is over, whoever has a task that waits for the tool may write that it tries it (`half_open`, with
  its name): the first one does, and no other as long as that node lives. One that has no such task any more writes that
  the tool is open, and that others may try it now.
"""

from __future__ import annotations

import msgspec

from ...actors.messages.inputs import ToolHeard
from ...actors.records.entities import BreakerRecord
from ...machines import BreakerState
from ..journal.cluster import ToolState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Seen(msgspec.Struct, frozen=True):
    """A breaker of this node, as it is at a moment."""

    record: BreakerRecord
    could_try: bool  # it has a task that waits, which would try the tool
    tries: bool  # it was told that nobody else does


def to_say(seen: Seen, row: ToolState | None, me: str, now: float, *, gone: bool) -> ToolState | None:
    """What the node `me` is to write next, if anything. gone: the row's home is no node any more."""
    record = seen.record
    if record.agreed is None:
        return _news(record, row, me)
    if row is None or row.generation > record.agreed:
        return None  # it has to hear that first
    if row.state == OPEN:
        due = (
            row.due_at if record.due_at is None else min(row.due_at or now, record.due_at)
        )  # where a clock was set back
        free = due is None or due <= now
    else:
        free = row.state == HALF_OPEN and (gone or (row.home == me and not seen.tries))
    if free and seen.could_try:
        return _next(row, HALF_OPEN, me, None, row.reason)
    if free and row.state == HALF_OPEN and row.home == me:
        return _next(row, OPEN, me, now, row.reason)
    return None


def _news(record: BreakerRecord, row: ToolState | None, me: str) -> ToolState | None:
    if record.state == OPEN:
        why = record.reason or _failures(record)
        before = row or ToolState(record.name, CLOSED, me, 0)
        return _next(before, OPEN, me, record.due_at, f"opened on {me}: {why}")
    if record.state == CLOSED and row is not None and row.state != CLOSED:
        return _next(row, CLOSED, me, None, f"closed on {me}: {record.reason or 'it works again'}")
    return None


def _failures(record: BreakerRecord) -> str:
    if record.previous_state == HALF_OPEN:
        return "it still fails"
    return f"{record.failures} failure{'s' * (record.failures != 1)}"


def _next(row: ToolState, state: str, me: str, due_at: float | None, reason: str | None) -> ToolState:
    return ToolState(row.tool, str(state), me, row.generation + 1, due_at, reason)


def to_hear(seen: Seen | None, tool: str, row: ToolState | None, me: str, said: ToolState | None) -> ToolHeard | None:
    """What the breaker of this node is to be told. said: what this node has just written, or has tried to."""
    if seen is None:
        return None if row is None or row.state == CLOSED else _heard(row, me, said)
    record = seen.record
    if record.agreed is None:
        if row is None:
            return ToolHeard(tool, CLOSED, 0, answers=record.seq) if record.state == CLOSED else None
        late = said is not None and said.state == record.state == CLOSED
        follows = record.state == row.state or late
        return msgspec.structs.replace(_heard(row, me, said), answers=record.seq) if follows else None
    if row is None or row.generation <= record.agreed or (row.state == record.state == CLOSED):
        return None
    return _heard(row, me, said)


def _heard(row: ToolState, me: str, said: ToolState | None) -> ToolHeard:
    tries = row.state == HALF_OPEN and row.home == me and row == said  # and not in a life before
    return ToolHeard(row.tool, row.state, row.generation, row.due_at, row.reason, tries)
