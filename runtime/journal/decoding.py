"""Decodes records and transitions from their JSON, for every kind of journal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from types import GenericAlias
from typing import Any, cast

import msgspec
from msgspec.structs import astuple

from ...actors.messages.notices import NoticeRecord
from ...actors.records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    RequestRecord,
    WorkerRecord,
    WorkstreamRecord,
)
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from .batch import TransitionRow
from .contract import InboxRow

LONGEST_COMMAND = 1_000_000
"""Maximum bytes of a command in the inbox: a longer one is skipped unread."""
LONG = 100_000
"""Bytes from which a chunk is decoded row by row: decoding it at once would block all other threads meanwhile."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that decoding raises."""

JOB = msgspec.json.Decoder(JobRecord)
WORKSTREAM = msgspec.json.Decoder(WorkstreamRecord)
TASK = msgspec.json.Decoder(TaskRecord)
APPROVAL = msgspec.json.Decoder(ApprovalRecord)
ATTEMPT = msgspec.json.Decoder(AttemptRecord)
WORKER = msgspec.json.Decoder(WorkerRecord)
BREAKER = msgspec.json.Decoder(BreakerRecord)
OUTBOX = msgspec.json.Decoder(OutboxRow)
REQUEST = msgspec.json.Decoder(RequestRecord)
INBOX = msgspec.json.Decoder(InboxRow)
NOTICE = msgspec.json.Decoder(NoticeRecord)


class _Machines:
    """Decodes records of machines. In older ones a due time may be null: an infinity, which JSON cannot express."""

    def __init__(self) -> None:
        self._plain = msgspec.json.Decoder(MachineRecord)

    def decode(self, text: bytes | str) -> MachineRecord:
        try:
            return self._plain.decode(text)
        except msgspec.ValidationError:
            record = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            due = msgspec.json.decode(record.get("due", b"{}"), type=dict[str, float | None])
            record["due"] = msgspec.Raw(msgspec.json.encode({event: at for event, at in due.items() if at is not None}))
            endless = {event: math.inf for event, at in due.items() if at is None}
            found = self._plain.decode(msgspec.json.encode(record))
            return msgspec.structs.replace(found, due={**found.due, **endless})


MACHINE = cast("msgspec.json.Decoder[MachineRecord]", _Machines())
_CHUNK: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(GenericAlias(list, TransitionRow))
_ROW: msgspec.json.Decoder[Any] = msgspec.json.Decoder(TransitionRow)
_ROWS = msgspec.json.Decoder(list[msgspec.Raw])


def transitions_of(text: bytes | str) -> list[Transitioned]:
    """The transitions of a chunk. Raises the errors in `UNREADABLE`."""
    rows = _CHUNK.decode(text) if len(text) < LONG else (_ROW.decode(row) for row in _ROWS.decode(text))
    return [Transitioned(*astuple(row)) for row in rows]


def ordered(chunks: Iterable[tuple[int, list[Transitioned]]]) -> Iterator[Transitioned]:
    """The transitions of chunks in order.

    Chunks come by their first number, and overlap with others of the same commit: a row is yielded when no later chunk
    can hold an earlier one.
    """
    waiting: list[Transitioned] = []
    for first, chunk in chunks:
        ready = [row for row in waiting if row.seq < first]
        if ready:
            yield from ready
            waiting = waiting[len(ready) :]
        waiting += chunk
        waiting.sort(key=_seq)
    yield from waiting


def _seq(row: Transitioned) -> int:
    return row.seq
