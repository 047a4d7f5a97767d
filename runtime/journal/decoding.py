"""Decodes records and transitions from their JSON, for every kind of journal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Generic, TypeVar

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
from ...actors.records.message import MessageRecord
from ...actors.records.step import StepRecord
from ...actors.records.task import AttemptRecord, TaskRecord
from ...actors.records.transition import Transitioned
from .contract import InboxRow

LONGEST_COMMAND = 2_000_000
"""Maximum bytes of a command in the inbox: a longer one is skipped unread."""
LONG = 100_000
"""Bytes from which a chunk is decoded row by row: decoding it at once would block all other threads meanwhile."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors that decoding raises."""

T = TypeVar("T")


class Decoder(Generic[T]):
    """Decodes the JSON of one type. Its msgspec decoder is made when it is first needed: each takes 0.2 ms to make."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    @cached_property
    def decode(self) -> Callable[[bytes | str], T]:
        """Decode a text. Raises the errors in `UNREADABLE`."""
        decode: Callable[[bytes | str], T] = msgspec.json.Decoder(self._kind).decode
        return decode


class _TransitionRow(Transitioned, frozen=True, array_like=True, gc=False):
    """A transition in its stored form: its values in order. Later versions may append fields with defaults."""


JOB: Decoder[JobRecord] = Decoder(JobRecord)
WORKSTREAM: Decoder[WorkstreamRecord] = Decoder(WorkstreamRecord)
TASK: Decoder[TaskRecord] = Decoder(TaskRecord)
APPROVAL: Decoder[ApprovalRecord] = Decoder(ApprovalRecord)
ATTEMPT: Decoder[AttemptRecord] = Decoder(AttemptRecord)
STEP: Decoder[StepRecord] = Decoder(StepRecord)
MESSAGE: Decoder[MessageRecord] = Decoder(MessageRecord)
WORKER: Decoder[WorkerRecord] = Decoder(WorkerRecord)
BREAKER: Decoder[BreakerRecord] = Decoder(BreakerRecord)
OUTBOX: Decoder[OutboxRow] = Decoder(OutboxRow)
REQUEST: Decoder[RequestRecord] = Decoder(RequestRecord)
INBOX: Decoder[InboxRow] = Decoder(InboxRow)
NOTICE: Decoder[NoticeRecord] = Decoder(NoticeRecord)
_MACHINE: Decoder[MachineRecord] = Decoder(MachineRecord)
_CHUNK: Decoder[list[_TransitionRow]] = Decoder(list[_TransitionRow])
_ROW: Decoder[_TransitionRow] = Decoder(_TransitionRow)
_ROWS: Decoder[list[msgspec.Raw]] = Decoder(list[msgspec.Raw])


class _Machines(Decoder[MachineRecord]):
    """Decodes records of machines. In older ones a due time may be null: an infinity, which JSON cannot express."""

    @cached_property
    def decode(self) -> Callable[[bytes | str], MachineRecord]:
        return _machine


def _machine(text: bytes | str) -> MachineRecord:
    try:
        return _MACHINE.decode(text)
    except msgspec.ValidationError:
        record = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        due = msgspec.json.decode(record.get("due", b"{}"), type=dict[str, float | None])
        record["due"] = msgspec.Raw(msgspec.json.encode({event: at for event, at in due.items() if at is not None}))
        endless = {event: math.inf for event, at in due.items() if at is None}
        found = _MACHINE.decode(msgspec.json.encode(record))
        return msgspec.structs.replace(found, due={**found.due, **endless})


MACHINE = _Machines(MachineRecord)


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
