"""A tool's breaker, on which all nodes agree: what each writes and applies.

Rules
-----
- The nodes share one row for each tool (`ToolState`). A node that changes it raises its generation, and only one node
  can do so from one generation: so they agree. Each node has a breaker of its own, which follows the row.
- A breaker that opened or closed on a node is written into the row. If another node was faster, an opened breaker
  follows a row that is open, and otherwise writes after it; a closed breaker follows the row.
- After the cooldown, a node with a task that waits for the tool may write that it tries the tool (`half_open`, with its
  name): the first one does, and no other one while that node is alive. A trying node that has no such task any more
  writes that the tool is open, and that other nodes may try it now.
"""

from __future__ import annotations

import msgspec

from ...actors.messages.inputs import ToolHeard
from ...actors.records.entities import BreakerRecord
from ...machines import BreakerState
from ..journal.cluster import ToolState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class BreakerSnapshot(msgspec.Struct, frozen=True):
    """The state of this node's breaker at one moment."""

    record: BreakerRecord
    could_try: bool  # whether a waiting task would try the tool
    tries: bool  # whether this node alone tries the tool


def to_say(seen: BreakerSnapshot, row: ToolState | None, me: str, now: float, *, gone: bool) -> ToolState | None:
    """Decide what the node `me` writes next; None for nothing. gone: the row's home is not a node any more."""
    record = seen.record
    if record.agreed is None:
        return _news(record, row, me)
    if row is None or row.generation > record.agreed:
        return None  # the node must apply the newer row first
    if row.state == OPEN:
        due = (
            row.due_at if record.due_at is None else min(row.due_at or now, record.due_at)
        )  # a clock may have been set back
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


def to_hear(
    seen: BreakerSnapshot | None, tool: str, row: ToolState | None, me: str, said: ToolState | None
) -> ToolHeard | None:
    """Make the message to this node's breaker, or None. said: the row that this node has tried to write."""
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
    tries = row.state == HALF_OPEN and row.home == me and row == said  # and not written by this node before a restart
    return ToolHeard(row.tool, row.state, row.generation, row.due_at, row.reason, tries)
