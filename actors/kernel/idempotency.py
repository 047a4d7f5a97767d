"""Idempotency keys: the record that is kept of a command with a `request_id`.

Rules (DESIGN section 8, "Idempotency")
-----
- The key and the command's changes commit together: the record is made at the end of the command's turn, and is part of
  that turn.
- The kept answer is the state in which the command left its entity, after all messages of the turn were handled.
- A refused command journals nothing, so no key is kept: the same command is checked again, against the state it then
  finds.
- A key is kept as long as the command's job, worker or machine lives. Breakers never end: a key of a command to a
  breaker is kept for its own time (`Request.keep`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..messages.commands import Reply
from ..messages.inputs import Message
from ..records.entities import Acknowledged, RequestRecord
from ..records.transition import Transitioned
from .transaction import Answer

if TYPE_CHECKING:
    from .entity import Entity


SUBMIT = "submit"
"""The operation that submits a job. Its key is bound to the workstream, too."""


class PersistKey(Message, frozen=True):
    """Persist the key of the command that this turn ran. It is the turn's last message."""

    reply: Reply
    value: Any  # the answer to the caller in this process


class _KeyWriter:
    """Receives `PersistKey` at the end of the turn: sends it again while other messages are still queued."""

    __slots__ = ("_entity",)

    def __init__(self, entity: Entity[Any]) -> None:
        self._entity = entity

    def receive(self, message: Message) -> None:
        assert isinstance(message, PersistKey)  # noqa: S101 - no other message is sent to it
        entity = self._entity
        kernel, record, request = entity.kernel, entity.record, message.reply.request
        if kernel.turn.queue:
            kernel.send(self, message)
            return
        assert request is not None  # noqa: S101 - `PersistKey` is sent only for such commands
        job = kernel.jobs.get(record.id) if record.kind == "job" else None
        inner = "" if job is None or job.stream is None else str(job.stream.record.state)
        value = message.value
        fired = value if isinstance(value, Transitioned) else None
        shown = "" if record.published is None else record.shown
        left = Acknowledged(record.kind, record.id, str(record.state), inner, fired, shown)
        message.reply.kept = msgspec.json.encode(left)
        kernel.turn.extra.append(
            RequestRecord(
                key=kernel.number(), request_id=request.id, operation=request.operation,
                fingerprint=request.fingerprint, at=kernel.at, expires_at=kernel.at + request.keep,
                owner=_owner(entity), row=request.row, answer=msgspec.Raw(message.reply.kept),
                spec=record.stream if request.operation == SUBMIT else 0,
            )
        )  # fmt: skip
        kernel.effect(Answer(message.reply, value))


def keep_request(entity: Entity[Any], reply: Reply, value: object) -> None:
    """Keep the key of a command to `entity` that this turn carries out, and answer it."""
    entity.kernel.send(_KeyWriter(entity), PersistKey(reply, value))


def _owner(entity: Entity[Any]) -> int:
    """The key of the entity that keeps the idempotency key alive while it lives; 0 for none."""
    job = entity.kernel.jobs.get(entity.context()[0] or "")
    if job is not None:
        return job.record.key
    return int(entity.record.key) if entity.record.kind in {"worker", "machine"} else 0
