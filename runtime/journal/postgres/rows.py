"""The rows of one commit in PostgreSQL, as the parameters of the single call that writes them.

Rules
-----
- The rows of a table are one text, a line each: PostgreSQL parses it faster than any other format. Records are JSON,
  which has no line breaks.
- No text can stop the journal: text that PostgreSQL would refuse (no UTF-8, NULs) is replaced. JSON written by the
  library contains no such text.
- Search keys come from outside, and may hold anything: they are written, and queried, in the form that `plain` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from msgspec.structs import astuple

from ....actors.records.entities import (
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
from ....actors.records.message import MessageRecord
from ....actors.records.step import StepRecord
from ....actors.records.task import AttemptRecord, TaskRecord
from ....actors.records.transition import Transitioned
from ..batch import CHUNK, Batch, FinalState, by_owner, encode_readable, lines_of
from ..cluster import EPOCH
from .schema import PARTS

PART = 64 * 1024 * 1024
"""Approximate maximum bytes in one call. PostgreSQL takes 1 GB; a larger batch is several, in one transaction."""
GROUP = 5_000
"""Maximum rows of one kind in a call of a larger batch."""

Parameters = list[bytes | None]


def plain(text: str) -> str:
    """The form of an outside text for searches: the text itself, or JSON if it is empty or not all printable."""
    return text if text and text.isprintable() else encode_readable(text).decode()


def parts_of(batch: Batch, node: int, before: int) -> list[Parameters]:
    """The parameters of the calls that write a batch of that node. before: the last entry that it has committed."""
    return _Encoding(node, batch.number, before).run(batch.final_state(), batch.transitions)


def _numbers(values: Iterable[object]) -> bytes:
    return f"{{{','.join(map(str, values))}}}".encode()


def _flags(values: Iterable[bool]) -> bytes:
    return f"{{{','.join('t' if value else 'f' for value in values)}}}".encode()


def _texts(values: Iterable[str]) -> bytes:
    return "\n".join(map(plain, values)).encode()


def _lines(lines: Sequence[bytes]) -> bytes:
    text = b"\n".join(lines)
    if text.count(b"\n") != len(lines) - 1:  # between tokens of JSON from outside: a blank means the same
        text = b"\n".join(line.replace(b"\n", b" ") for line in lines)
    return text


# The columns of each kind of record beside its key and its text: the parameter, and how it is made from the records.
_Make = Callable[[Sequence[Any]], bytes]
_KINDS: dict[type[AnyRecord], tuple[str, str, dict[str, _Make]]] = {
    JobRecord: (
        "job_keys",
        "jobs",
        {
            "job_states": lambda jobs: _texts(str(job.state) for job in jobs),
            "job_living": lambda jobs: _flags(job.finished_at is None for job in jobs),
        },
    ),
    WorkstreamRecord: ("run_keys", "runs", {"run_jobs": lambda runs: _numbers([run.job for run in runs])}),
    TaskRecord: ("task_keys", "tasks", {}),
    ApprovalRecord: (
        "approval_keys",
        "approvals",
        {"approval_runs": lambda records: _numbers([record.workstream for record in records])},
    ),
    AttemptRecord: (
        "attempt_keys",
        "attempts",
        {
            "attempt_tasks": lambda attempts: _numbers([attempt.task for attempt in attempts]),
            "attempt_living": lambda attempts: _flags(attempt.ended_at is None for attempt in attempts),
        },
    ),
    StepRecord: ("step_keys", "steps", {"step_flows": lambda steps: _numbers([step.flow for step in steps])}),
    MessageRecord: (
        "message_keys",
        "messages",
        {
            "message_jobs": lambda messages: _numbers([message.job for message in messages]),
            "message_unread": lambda messages: _flags(message.received_at is None for message in messages),
        },
    ),
    WorkerRecord: (
        "worker_keys",
        "workers",
        {
            "worker_names": lambda workers: _texts(worker.name for worker in workers),
            "worker_runs": lambda workers: _numbers([worker.run for worker in workers]),
            "worker_living": lambda workers: _flags(worker.finished_at is None for worker in workers),
        },
    ),
    BreakerRecord: ("breaker_keys", "breakers", {}),
    MachineRecord: (
        "machine_keys",
        "machines",
        {"machine_living": lambda machines: _flags(machine.finished_at is None for machine in machines)},
    ),
    OutboxRow: ("outbox_keys", "outbox", {}),
    RequestRecord: (
        "request_keys",
        "requests",
        {
            "request_ids": lambda requests: _texts(request.request_id for request in requests),
            "request_ends": lambda requests: _numbers([request.expires_at for request in requests]),
            "request_owners": lambda requests: _numbers([request.owner for request in requests]),
        },
    ),
}


class _Encoding:
    """One encoding of the state that a batch leaves."""

    def __init__(self, node: int, entry: int, before: int) -> None:
        self.parts: list[Parameters] = []
        self.before = str(before).encode()
        self.node = node
        self.entry: int | None = entry
        self.values: dict[str, bytes] = {}
        self.size = 0

    def run(self, left: FinalState, transitions: Sequence[Transitioned]) -> list[Parameters]:
        created = self.add_transitions(transitions)
        names = {plain(name): key for name, key in left.names(created)}
        self.add({"named_keys": _numbers, "named": _plain_lines}, list(names.values()), list(names))
        self.add({"spec_keys": _numbers, "spec_lines": _lines}, list(left.specs), list(left.specs.values()))
        if left.rounds_over:  # in the first call
            self.values["flows_over"] = _numbers(list(left.flows_over))
            self.values["rounds_over"] = _numbers(list(left.rounds_over))
        if left.outbox_done:
            self.values["outbox_done"] = _numbers(left.outbox_done)
        requests = cast("dict[int, RequestRecord]", left.records[RequestRecord])
        left.records[RequestRecord] = {record.key: record for record in _by_id(requests.values())}
        for kind, records in left.records.items():
            if records:
                self.add_records(kind, list(records.values()))
        rows, answers, times = zip(*left.answers, strict=True) if left.answers else ((), (), ())
        texts = [answer.encode("utf-8", "replace") for answer in answers]
        self.add({"answer_rows": _numbers, "answer_times": _numbers, "answers": _lines}, rows, times, texts)
        if left.notices:
            notices = list(left.notices.values())
            self.add(
                {"notice_keys": _numbers, "notice_times": _numbers, "notices": _lines},
                list(left.notices), [notice.at for notice in notices], lines_of(notices),
            )  # fmt: skip
        if left.pruned_at:
            self.values["pruned_at"] = str(left.pruned_at).encode()
        self.close()
        return self.parts

    def add_transitions(self, transitions: Sequence[Transitioned]) -> set[str]:
        """Add transitions in chunks by owner, none across epochs. Returns the ids of the entities that they created."""
        created: set[str] = set()
        for rows in _by_epoch(transitions):
            owners, more = by_owner(rows)
            created |= more
            chunks = [
                (chunk[0].seq, owner, encode_readable(list(map(astuple, chunk))))
                for owner, mine in owners.items()
                for chunk in (mine[first : first + CHUNK] for first in range(0, len(mine), CHUNK))
            ]
            seqs, names, texts = zip(*chunks, strict=True)
            made: dict[str, _Make] = {
                "chunk_seqs": _numbers, "chunk_bases": _numbers, "chunk_owners": _texts, "chunks": _lines,
            }  # fmt: skip
            self.add(made, seqs, [rows[0].seq] * len(seqs), names, texts)
        return created

    def add_records(self, kind: type[AnyRecord], records: list[AnyRecord]) -> None:
        keys, texts, columns = _KINDS[kind]
        made: dict[str, _Make] = {keys: _numbers, texts: _lines, **columns}
        self.add(made, [record.key for record in records], lines_of(records), *[records] * len(columns))

    def add(self, made: dict[str, _Make], *columns: Sequence[Any]) -> None:
        """Add rows to the parameters with these names, each made from its column; in several calls if they are many."""
        count, at_once = len(columns[0]), GROUP
        if next(iter(made)) not in self.values and self.size + sum(map(_size, columns)) <= PART:
            at_once = max(count, 1)
        for first in range(0, count, at_once):
            if next(iter(made)) in self.values or self.size >= PART:
                self.close()
            for (name, make), column in zip(made.items(), columns, strict=True):
                self.values[name] = value = make(column[first : first + at_once])
                self.size += len(value)

    def close(self) -> None:
        """Finish a call."""
        entry = None if self.entry is None else str(self.entry).encode()
        self.parts.append(
            [str(self.node).encode(), entry, self.before, *(_clean(self.values.get(name)) for name in PARTS)]
        )
        self.entry = None
        self.values, self.size = {}, 0


def _plain_lines(names: Sequence[str]) -> bytes:
    return "\n".join(names).encode()


def _size(column: Sequence[Any]) -> int:
    return sum(map(len, column)) if column and isinstance(column[0], bytes) else 0


def _by_id(requests: Iterable[RequestRecord]) -> Iterable[RequestRecord]:
    """The last request of each id."""
    return {plain(request.request_id): request for request in requests}.values()


def _by_epoch(transitions: Sequence[Transitioned]) -> Iterable[Sequence[Transitioned]]:
    """Split the transitions by epoch. They are of one epoch, unless a node has begun a new one meanwhile."""
    first = 0
    while first < len(transitions):
        epoch = transitions[first].seq // EPOCH
        last = len(transitions)
        if transitions[-1].seq // EPOCH != epoch:
            last = next(n for n in range(first, last) if transitions[n].seq // EPOCH != epoch)
        yield transitions[first:last]
        first = last


def _clean(value: bytes | None) -> bytes | None:
    """Replace text that PostgreSQL cannot store."""
    if value is None:
        return None
    try:
        value.decode()
    except UnicodeDecodeError:
        value = value.decode("utf-8", "replace").encode()
    return value.replace(b"\0", "\ufffd".encode()) if b"\0" in value else value
