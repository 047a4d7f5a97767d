"""One line of the transition log: its fields and their form.

Rules: one JSON object a line (JSONL), UTF-8, ended by a newline. Lines stand in the order in which the
transitions were committed, numbered by `seq` without a gap. The entity's creation is a line like any other,
with no `from_state`. Unknown fields are ignored, so that a newer writer can be read.

Where several nodes share a journal, each numbers its lines without a gap within an epoch of its own, which begins at a
multiple of `EPOCH`. Of each job, and of each other entity, numbers rise.

A log of another program may have exactly the eight fields of document 001's event schema: `BriefEvent`. It is read, and
never written.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from ..rows import Severity

CREATE: Final = "create"  # the trigger of an entity's first line; no machine has a row for it

EPOCH: Final = 1 << 28
"""Numbers in an epoch of a node. The first of epoch n is n * EPOCH + 1; a page's script can count up to 2 ** 53."""

_SUFFIX: Final = "_state_transition"

Text = Annotated[str, msgspec.Meta(min_length=1)]
Number = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]  # the numbers that a journal can hold
Timestamp = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$")]
EventType = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z_]*_state_transition$")]


class TransitionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One transition, as it is logged and emitted to observers."""

    seq: Number  # the number of the transition in the whole log
    timestamp: Timestamp  # ISO 8601, UTC, with milliseconds and a Z
    event_type: EventType  # the entity's kind, and "_state_transition"
    severity: Severity
    entity_id: Text
    entity_seq: Number  # its number among those of the entity: 1 is the creation
    from_state: str | None = None  # None for the creation
    to_state: Text
    trigger: Text  # the event that was fired
    reason: str | None = None
    job_id: str | None = None
    workstream_id: str | None = None
    run: Number = 1  # the number of a task's or workstream's run, or of a worker's incarnation
    attempt: int | None = None
    worker_id: str | None = None
    metadata: dict[str, Any] = {}  # JSON values; which keys depends on the entity's kind and on the event

    @property
    def kind(self) -> str:
        """The entity's kind: "task", "workstream", "worker", "job", "breaker", or an application's own."""
        return self.event_type.removesuffix(_SUFFIX)


class BriefEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One transition with the fields of document 001's event schema, and no others: it has no numbers and no owner."""

    timestamp: Timestamp
    event_type: EventType
    severity: Severity
    entity_id: Text
    from_state: str | None
    to_state: Text
    trigger: Text
    metadata: dict[str, Any]

    def numbered(self, seq: int, entity_seq: int) -> TransitionEvent:
        """Return the transition with the numbers that its log does not hold."""
        return TransitionEvent(seq=seq, entity_seq=entity_seq, **msgspec.structs.asdict(self))


def event_type(kind: str) -> str:
    """Return the `event_type` of the transitions of entities of this kind."""
    return kind + _SUFFIX
