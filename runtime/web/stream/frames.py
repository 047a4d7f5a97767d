"""The stream of events on the wire: Server-Sent Events, each encoded once for all readers.

| event | id | data |
| --- | --- | --- |
| transition | its number, `seq` | the transition: the fields of `Transitioned` |
 notice | none: notices have no number | the notice: the fields of `Notice`, its error as text |
 gap | none | text: what is missing; count: how many transitions, numbers: theirs, from first to last; notices |
 closing | none | text: why the stream ends. A client that reconnects with the last id misses nothing |
 (none) | a number | no data: all transitions up to this number were sent, or did not match the filters |

The first lines are `retry:` and the number after which the stream begins. A comment line is sent when there are no
events. An `id:` without data is no event, but sets the last id (by the standard of Server-Sent Events): so a client of
a stream with few events reconnects at its present position, not at its last event.

Rules
-----
- Data is JSON on one line: no text can end an event, or begin another one.
- An event has the same bytes, whether it is live or from the journal.
- No content of an event can stop a stream: characters that UTF-8 cannot encode are replaced.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import astuple

from ....actors.messages.notices import Notice
from ....actors.records.transition import Transitioned
from ....actors.user_code import called, message_of
from ....machines.keywords import number_of
from ...journal.batch import encode_readable
from ...observation.filters import Event

RETRY = 2_000
"""Milliseconds after which a disconnected client should reconnect: sent to the client as `retry:`."""

_MOST_RANGES = 5  # at most so many ranges of numbers are written in the text
_FIELDS = len(msgspec.structs.fields(Transitioned))


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Events that a reader will not be sent, in words and in numbers."""

    text: str
    count: int = 0  # transitions
    numbers: list[tuple[int, int]] = []  # the transitions' numbers: from first to last
    notices: int = 0


class Closing(msgspec.Struct, frozen=True):
    """Why the stream ends."""

    text: str


def beginning(after: int) -> bytes:
    """The first lines: the following events are numbered above `after`."""
    return b"retry: %d\nid: %d\n\n" % (RETRY, after)


def position(seq: int) -> bytes:
    """Return the frame for: all transitions up to this number were sent."""
    return b"id: %d\n\n" % seq


def heartbeat(seq: int) -> bytes:
    """Return the frame for: the stream is open, and all transitions up to this number were sent."""
    return b": heartbeat\nid: %d\n\n" % seq


def gap(one: Gap) -> bytes:
    """Encode a gap: events that are missing."""
    return b"event: gap\ndata: %b\n\n" % encode_readable(one)


def closing(text: str) -> bytes:
    """Encode the last event."""
    return b"event: closing\ndata: %b\n\n" % encode_readable(Closing(text))


def frame(event: Event) -> bytes:
    """Encode a transition or a notice."""
    if isinstance(event, Notice):
        return b"event: notice\ndata: %b\n\n" % _notice(event)
    if type(event) is not Transitioned:  # the journal keeps only the fields of Transitioned
        event = Transitioned(*astuple(event)[:_FIELDS])
    return b"event: transition\nid: %d\ndata: %b\n\n" % (event.seq, encode_readable(event))


def missing(numbers: list[tuple[int, int]]) -> Gap:
    """A gap for transitions that the journal does not hold any more."""
    count = sum(last - first + 1 for first, last in numbers)
    ranges = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in numbers[:_MOST_RANGES])
    more = f" and {len(numbers) - _MOST_RANGES} more ranges" if len(numbers) > _MOST_RANGES else ""
    text = (
        f"{number_of(count, 'transition is', 'transitions are')} not in this journal any more, numbered "
        f"{ranges}{more}: archived, or older than what it keeps. It is not known which of them match the filter"
    )
    return Gap(text=text, count=count, numbers=numbers)


def _notice(notice: Notice) -> bytes:
    fields: dict[str, Any] = {name: getattr(notice, name) for name in notice.__struct_fields__}
    try:
        fields["error"] = None if notice.error is None else message_of(notice.error, 2_000)
        return called(encode_readable, fields)
    except Exception:  # facts and errors come from user code, and reading them may raise anything
        return encode_readable({**fields, "facts": {}, "error": None})
