"""Idempotency keys: what is kept of a command that was given a `request_id`.

Rules (DESIGN section 8, "Idempotency")
-----
- The key and the effect commit together: the record is made at the end of the command's turn, and is part of it.
- What it keeps as the answer is the state in which the command left its entity, once nothing of the turn is left to do.
- A refusal journals nothing, so nothing is kept of it: the same command is judged again, by the state of that time.
- It is kept for the life of the job, worker or machine that it was about, and of the breakers, which never end, for its
  time.
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
"""The operation that a job is submitted by. What a key of it is bound to is the workstream as well."""


class Keep(Message, frozen=True):
    """Keep the key of the command that this turn ran, as the last thing of the turn."""

    reply: Reply
    value: Any  # the answer to the caller in this process


class _Keeper:
    """Stands at the end of the turn's queue, and steps back as long as others are behind it."""

    __slots__ = ("_entity",)

    def __init__(self, entity: Entity[Any]) -> None:
        self._entity = entity

    def receive(self, message: Message) -> None:
        assert isinstance(message, Keep)  # noqa: S101 - it is sent nothing else
        entity = self._entity
        kernel, record, request = entity.kernel, entity.record, message.reply.request
        if kernel.turn.queue:
            kernel.send(self, message)
            return
        assert request is not None  # noqa: S101 - that is why it was sent
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
    """Keep the key of a command about `entity` that is taking effect in this turn, and answer it."""
    entity.kernel.send(_Keeper(entity), Keep(reply, value))


def _owner(entity: Entity[Any]) -> int:
    """The key of what has to live for its keys to be kept beyond their time."""
    job = entity.kernel.jobs.get(entity.context()[0] or "")
    if job is not None:
        return job.record.key
    return int(entity.record.key) if entity.record.kind in {"worker", "machine"} else 0
