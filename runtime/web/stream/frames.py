"""What the stream of events looks like on the wire: Server-Sent Events, each encoded once for all who read it.

| event | id | data |
| --- | --- | --- |
| transition | its number, `seq` | the transition: the fields of `Transitioned` |
| notice | none: nothing keeps notices | the notice: the fields of `Notice`, its error as text |
| gap | none | text: what is missing; count: how many transitions, numbers: theirs, from first to last; notices |
| closing | none | text: why the stream ends. Whoever comes back with the last id misses nothing |
| (none) | a number | no data: all up to this number was told, or did not meet the filters |

The first lines are `retry:` and the number that the stream begins after. A comment line comes when nothing else does.
An `id:` without data is no event, but counts as the last id (as the standard of Server-Sent Events has it): so whoever
reads a stream that tells little comes back to where it was, and not to its last event.

Rules
-----
- Data is JSON on one line: no text can end an event, or begin another one.
- Live or from the journal, an event is the same bytes.
- Nothing that an event holds can stop a stream: what UTF-8 cannot write is replaced.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import astuple

from ....actors.messages.notices import Notice
from ....actors.records.transition import Transitioned
from ....actors.user_code import called, said
from ...journal.batch import encode_readable
from ...observation.filters import Event

RETRY = 2_000
"""Milliseconds after which a client comes back that was cut off, as it is told."""

_SAID = 5  # ranges of numbers, in words
_FIELDS = len(msgspec.structs.fields(Transitioned))


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader will not be told, in words and in numbers."""

    text: str
    count: int = 0  # transitions
    numbers: list[tuple[int, int]] = []  # theirs: from first to last
    notices: int = 0


class Closing(msgspec.Struct, frozen=True):
    """Why the stream ends."""

    text: str


def beginning(after: int) -> bytes:
    """The first lines: what comes is numbered above `after`."""
    return b"retry: %d\nid: %d\n\n" % (RETRY, after)


def position(seq: int) -> bytes:
    """All up to this number is told."""
    return b"id: %d\n\n" % seq


def heartbeat(seq: int) -> bytes:
    """The stream lives; all up to this number is told."""
    return b": heartbeat\nid: %d\n\n" % seq


def gap(one: Gap) -> bytes:
    """Say what is missing."""
    return b"event: gap\ndata: %b\n\n" % encode_readable(one)


def closing(text: str) -> bytes:
    """The last event."""
    return b"event: closing\ndata: %b\n\n" % encode_readable(Closing(text))


def frame(event: Event) -> bytes:
    """A transition or a notice."""
    if isinstance(event, Notice):
        return b"event: notice\ndata: %b\n\n" % _notice(event)
    if type(event) is not Transitioned:  # the journal keeps no more of it than this
        event = Transitioned(*astuple(event)[:_FIELDS])
    return b"event: transition\nid: %d\ndata: %b\n\n" % (event.seq, encode_readable(event))


def missing(numbers: list[tuple[int, int]]) -> Gap:
    """Transitions that the journal does not hold any more."""
    count = sum(last - first + 1 for first, last in numbers)
    said = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in numbers[:_SAID])
    more = f" and {len(numbers) - _SAID} more ranges" if len(numbers) > _SAID else ""
    text = (
        f"{count} transitions are not in this journal any more, those numbered {said}{more}: they were archived, or "
        "are older than what it keeps. What of them this stream wanted, it cannot tell"
    )
    return Gap(text=text, count=count, numbers=numbers)


def _notice(notice: Notice) -> bytes:
    told: dict[str, Any] = {name: getattr(notice, name) for name in notice.__struct_fields__}
    try:
        told["error"] = None if notice.error is None else said(notice.error, 2_000)
        return called(encode_readable, told)
    except Exception:  # facts and errors are anybody's, and may be unreadable in any way
        return encode_readable({**told, "facts": {}, "error": None})
