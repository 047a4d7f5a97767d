"""The content of one commit, as the parameters of the single statement that writes it.

Rules:
- Only the last record of each entity in the batch is written; of each outbox row, only its last state.
- All text lies in one block of bytes, with each row's place beside it, so that SQLite parses small numbers only.
- No content of an entry can stop the journal: the loop refuses what cannot be stored (`check`), and if something passes
  that check, its unreadable part is replaced when it is written.
- Encoding runs in the writer thread: a record is immutable, and an entry is never changed after `append`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any, cast

import msgspec
from msgspec.structs import astuple

from ...actors.messages.notices import NoticeRecord
from ...actors.records.base import Record
from ...actors.records.entities import (
    AnyRecord,
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
from ...actors.user_code import plain, written
from .contract import Entry
from .sqlite.schema import BATCH_COLUMNS, STEPS_COLUMNS

CHUNK = 256
"""Maximum number of transitions in one row: a reader decodes the whole row to find one of them."""
PART = 64 * 1024 * 1024
"""Bytes of text in one statement. SQLite takes 1 GB at most; a larger batch is several, in one transaction."""

GROUP = 10_000
"""Records that are encoded before the size is checked."""

Parameters = tuple[Any, ...]  # of one batch: integers, bytes, text, None
COLUMNS: dict[type[AnyRecord], str] = {
    JobRecord: "job",
    WorkstreamRecord: "workstream",
    TaskRecord: "task",
    ApprovalRecord: "approval",
    AttemptRecord: "attempt",
    StepRecord: "step",
    MessageRecord: "message",
    WorkerRecord: "worker",
    BreakerRecord: "breaker",
    MachineRecord: "machine",
    OutboxRow: "outbox",
    RequestRecord: "request",
}

encode = msgspec.json.Encoder(enc_hook=written).encode
encode_lines = msgspec.json.Encoder(enc_hook=written).encode_lines

_OURS = frozenset({"create", "assign", "start", "succeed", "release"})
"""Frequent events whose metadata holds no text from outside: only checked ids and numbers."""


def check(entry: Entry) -> None:
    """Refuse an entry with a text or value that cannot be written. Raises ValueError, which names the entity."""
    for row in entry.transitions:
        if row.reason is not None or (row.metadata and row.event not in _OURS):
            try:
                encode((row.reason, row.metadata))
            except (ValueError, TypeError, RecursionError) as error:
                raise ValueError(f"A transition of {row.kind} {row.entity_id} cannot be written: {error}") from error


class Batch:
    """The entries of one commit. `number` is the number of the last entry in this session."""

    def __init__(self, number: int, entries: Sequence[Entry]) -> None:
        self.number = number
        self.transitions: list[Transitioned] = []
        for entry in entries:
            self.transitions += entry.transitions
        self._entries = entries

    @property
    def only_step(self) -> StepRecord | None:
        """The step which is all that the batch holds; None if it holds anything else."""
        if len(self._entries) != 1 or self.transitions:
            return None
        entry = self._entries[0]
        if len(entry.records) != 1 or (
            entry.specs or entry.outbox_done or entry.answers or entry.pruned_at or entry.tidy or entry.rounds
            or entry.notices
        ):  # fmt: skip
            return None
        (record,) = entry.records
        return record if isinstance(record, StepRecord) else None

    def final_state(self) -> FinalState:
        """The state after the batch, which has to be written."""
        return FinalState(self._entries)


class FinalState:
    """The state after a batch: the last record of each entity, by kind and key, and the rows of other tables."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.records: dict[type[AnyRecord], dict[int, AnyRecord]] = {kind: {} for kind in COLUMNS}
        self.specs: dict[int, bytes] = {}
        self.outbox_done: list[int] = []
        self.answers: list[tuple[int, str, float]] = []  # row, answer, at
        self.notices: dict[int, NoticeRecord] = {}
        self.flows_over: dict[int, int] = {}  # of ended rounds: the flow, and the last number of the round
        self.rounds_over: dict[int, int] = {}  # the same by task
        self.pruned_at = 0.0
        self.tidy = False
        records = self.records
        outbox = records[OutboxRow]
        for entry in entries:
            for record in entry.records:
                records[type(record)][record.key] = record
            if entry.specs:
                self.specs.update(entry.specs)
            if entry.answers or entry.pruned_at:
                self.answers += [(answer.row, answer.answer, answer.at) for answer in entry.answers]
                self.pruned_at = max(self.pruned_at, entry.pruned_at)
            if entry.tidy:
                self.tidy = True
            for over in entry.rounds:
                self.rounds_over[over.task] = over.last
                if over.flow:
                    self.flows_over[over.flow] = over.last
            for notice in entry.notices:
                self.notices[notice.key] = notice
            for key in entry.outbox_done:
                outbox.pop(key, None)
                self.outbox_done.append(key)
        for request in cast("dict[int, RequestRecord]", records[RequestRecord]).values():
            self.pruned_at = max(self.pruned_at, request.at)
            if request.row:
                self.answers.append((request.row, bytes(request.answer).decode(), request.at))
        if self.rounds_over:
            self._drop_ended_rounds()

    def _drop_ended_rounds(self) -> None:
        """Drop the steps and attempts of rounds that have ended within the batch."""
        steps = cast("dict[int, StepRecord]", self.records[StepRecord])
        flows, tasks = self.flows_over, self.rounds_over
        self.records[StepRecord] = {key: row for key, row in steps.items() if key > flows.get(row.flow, 0)}
        attempts = cast("dict[int, AttemptRecord]", self.records[AttemptRecord])
        self.records[AttemptRecord] = {key: row for key, row in attempts.items() if key > tasks.get(row.task, 0)}

    def names(self, created: set[str]) -> Iterator[tuple[str, int]]:
        """The names of the created entities: "kind:id", and the key."""
        for kind, column in COLUMNS.items():
            if created and column not in _UNNAMED:
                for key, record in cast("dict[int, Record]", self.records[kind]).items():
                    if record.id in created:
                        yield f"{column}:{record.id}", key


def by_owner(transitions: Sequence[Transitioned]) -> tuple[dict[str, list[Transitioned]], set[str]]:
    """The transitions of each owner (`contract.belongs_to`), and the ids of the entities that they created."""
    created: set[str] = set()
    owners: defaultdict[str, list[Transitioned]] = defaultdict(list)
    for row in transitions:
        owner = row.job_id
        if owner is None or row.kind in _SHARED:  # contract.belongs_to, inlined
            owner = row.entity_id if row.kind not in _PREFIXED else f"{row.kind}:{row.entity_id}"
        owners[owner].append(row)
        if row.from_state is None:
            created.add(row.entity_id)
    return owners, created


def parts_of(batch: Batch, owner: int, previous: int, number: int) -> list[Parameters]:
    """The parameters of the statements that write a batch to SQLite. number: that of its last entry in the file.

    owner: the owner that the file must have. previous: the number of the entry that the file must end with before.
    """
    if (step := batch.only_step) is not None:  # a chain of steps waits for each of its commits
        return [(owner, previous, number, step.key, step.flow, encode_readable(step).decode())]  # STEP_COLUMNS
    return _Encoding(owner, previous, number).run(batch.final_state(), batch.transitions)


class _Encoding:
    """One run over the entries of a batch."""

    def __init__(self, owner: int, previous: int, number: int) -> None:
        self.owner = owner
        self.previous = previous
        self.number = number
        self.parts: list[Parameters] = []
        self.last_key = 0
        self.last_seq = 0
        self.clear()

    def clear(self) -> None:
        self.data: list[bytes] = []
        self.size = 0
        self.chunks: list[tuple[int, int, str, int, int]] = []
        self.names: dict[str, int] = {}
        self.places: dict[str, dict[int, int]] = {}
        self.outbox_done: list[int] = []
        self.answers: list[tuple[int, str, float]] = []
        self.pruned_at = 0.0
        self.tidy = False
        self.flows_over: dict[int, int] = {}
        self.rounds_over: dict[int, int] = {}

    def run(self, left: FinalState, transitions: list[Transitioned]) -> list[Parameters]:
        self.outbox_done, self.answers = left.outbox_done, left.answers
        self.pruned_at, self.tidy = left.pruned_at, left.tidy
        self.flows_over, self.rounds_over = left.flows_over, left.rounds_over
        self.last_key = max(self.outbox_done, default=0)
        created = self.add_transitions(transitions)
        self.names = dict(left.names(created))
        if left.specs:
            self.last_key = max(self.last_key, *left.specs)
        self.add("specs", list(left.specs), list(left.specs.values()))
        for column, records in (*_columns(left), ("notices", left.notices)):
            if records:
                self.last_key = max(self.last_key, *records)
                self.add_records(column, list(records), list(records.values()))
        self.close()
        return self.parts

    def add_transitions(self, transitions: list[Transitioned]) -> set[str]:
        """Encode transitions in chunks by owner. Returns the ids of the entities that they created."""
        owners, created = by_owner(transitions)
        if transitions:
            base, self.last_seq = transitions[0].seq, transitions[-1].seq
            for owner, rows in owners.items():
                for first in range(0, len(rows), CHUNK):
                    chunk = rows[first : first + CHUNK]
                    text = encode_readable(list(map(astuple, chunk)))
                    self.chunks.append((chunk[0].seq, base, owner, self.size, len(text)))
                    self.put(text)
        return created

    def add(self, column: str, keys: Sequence[int], lines: list[bytes]) -> None:
        """Add the text of each key's row to its column."""
        for first in range(0, len(keys), GROUP):
            group = lines[first : first + GROUP]
            places = self.places.setdefault(column, {})
            place = self.size
            for key, line in zip(keys[first:], group, strict=False):
                size = len(line)
                places[key] = place << 32 | size
                place += size
            self.put(b"".join(group))

    def add_records(self, column: str, keys: list[int], records: list[AnyRecord] | list[NoticeRecord]) -> None:
        """Add the text of each key's record to its column, as one piece with a line for each."""
        for first in range(0, len(keys), GROUP):
            group, text = keys[first : first + GROUP], _text_of(records[first : first + GROUP])
            sizes = list(map(len, BytesIO(text)))  # of its lines, which Python cuts faster so than by `split`
            if len(sizes) == len(group):
                places = self.places.setdefault(column, {})
                starts = accumulate(sizes, initial=self.size)
                for key, start, size in zip(group, starts, sizes, strict=False):
                    places[key] = start << 32 | size - 1  # without its line break
                self.put(text)
            else:  # something cannot be encoded, or a Raw holds a line break
                self.add(column, group, list(map(encode_readable, records[first : first + GROUP])))

    def put(self, text: bytes) -> None:
        self.data.append(text)
        self.size += len(text)
        if self.size >= PART:
            self.close()

    def close(self) -> None:
        """End a part."""
        values: dict[str, Any] = {column: encode_readable(places).decode() for column, places in self.places.items()}
        values["owner"], values["previous"] = self.owner, self.previous
        values["entry"], values["last_key"], values["last_seq"] = self.number, self.last_key, self.last_seq
        values["data"] = b"".join(self.data)
        lists = (
            ("chunks", self.chunks),
            ("names", self.names),
            ("outbox_done", self.outbox_done),
            ("answers", self.answers),
            ("flows_over", self.flows_over),
            ("rounds_over", self.rounds_over),
        )
        if self.pruned_at:
            values["pruned_at"] = self.pruned_at
        if self.tidy:
            values["tidy"] = 1
        for column, value in lists:
            if value:
                values[column] = encode_readable(value).decode()
        columns = STEPS_COLUMNS if len(values) == len(STEPS_COLUMNS) and "step" in values else BATCH_COLUMNS
        self.parts.append(tuple(map(values.get, columns)))
        self.previous = self.number  # for the next part, which is in the same transaction
        self.clear()


_SHARED = frozenset({"worker", "breaker"})
_PREFIXED = frozenset({"machine", "breaker"})
_UNNAMED = frozenset({"attempt", "step", "message", "outbox", "request"})


def _columns(left: FinalState) -> Iterator[tuple[str, dict[int, Any]]]:  # Any: records of the column's kind
    """The columns and their records. Attempts that have ended have a column of their own."""
    for kind, records in left.records.items():
        if kind is not AttemptRecord:
            yield COLUMNS[kind], records
    attempts = cast("dict[int, AttemptRecord]", left.records[AttemptRecord])
    ended = {key: attempt for key, attempt in attempts.items() if attempt.ended_at is not None}
    yield "ended_attempt", ended
    yield "attempt", {key: attempt for key, attempt in attempts.items() if key not in ended}


def lines_of(records: Sequence[AnyRecord | NoticeRecord]) -> list[bytes]:
    """The text of each record."""
    lines = _text_of(records).split(b"\n")
    if len(lines) != len(records) + 1:  # something cannot be encoded, or a Raw holds a line break
        return [encode_readable(record) for record in records]
    return lines[:-1]


def _text_of(records: Sequence[AnyRecord | NoticeRecord]) -> bytes:
    """A line for each record; empty if one cannot be encoded. It takes half the time of a call for each record."""
    try:
        return encode_lines(records)
    except (ValueError, TypeError):
        return b""


def encode_readable(value: object) -> bytes:
    """Encode a value as JSON; text that UTF-8 cannot encode is replaced."""
    try:
        return encode(value)
    except (ValueError, TypeError):
        return encode(_readable(value))


def _readable(value: Any) -> Any:  # Any: a record can hold any value
    """A copy in which all text can be encoded as UTF-8, and no class of the application remains."""
    value = plain(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in _any(value).items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in _any(value)]
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
        return type(value)(**{field: _readable(getattr(value, field)) for field in fields})
    return value


def _any(value: Any) -> Any:
    return value
