"""The record of one message to a job, or to one of its tasks (DESIGN section 10).

A message is unread until a body receives it. The receive and the step that keeps its value are one commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from .task import decoded


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message, as it was sent. It is written again when it is received."""

    kind: ClassVar[str] = "message"

    key: int  # the order in which messages were sent
    job: int  # key of the job
    job_id: str
    first: int = 1  # the job's first run: a job that replaces an ended one gets none of its messages
    name: str
    task: str | None = None  # the name of the only task that may receive it; None: the first task that asks
    raw_value: msgspec.Raw = msgspec.field(name="value")  # as JSON
    sent_at: float  # UTC epoch seconds
    by: str | None = None  # the person who sent the message, if known
    received_at: float | None = None  # None: it is unread
    received_by: str | None = None  # the id of the task that received it
    step: int | None = None  # key of the step that keeps its value

    @property
    def state(self) -> str:
        """The state of the message: unread or received."""
        return "unread" if self.received_at is None else "received"

    @property
    def value(self) -> Any:
        """The value that was sent, decoded at each call."""
        return decoded(self.raw_value)


def to_present(messages: Iterable[MessageRecord], first: int) -> list[MessageRecord]:
    """Those messages that are not to an earlier job of the same id. first: the number of the job's first run."""
    return [message for message in messages if message.first == first]
