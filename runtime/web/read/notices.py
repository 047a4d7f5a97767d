"""Kept notices over HTTP: problems that no transition reports."""

from __future__ import annotations

from functools import partial
from typing import Annotated, TypeAlias

import msgspec
from litestar import get
from litestar.params import QueryParameter

from ....actors.messages.notices import NoticeRecord
from ..http.context import TheBoard
from .lists import Cursor, Limit, cursor_of, place_of
from .shapes import Page

_About: TypeAlias = Annotated[
    str | None,
    QueryParameter(description="Only notices about the entity or job with this id, or the actor with this name."),
]
_Since: TypeAlias = Annotated[float, QueryParameter(description="Only notices since this time (UTC epoch seconds).")]


class NoticeView(msgspec.Struct, frozen=True, kw_only=True):
    """A warning or error, together with equal notices that came soon after.

    count: how many in all, the first at `first_at`, the last, with this text and traceback, at `at` (UTC epoch
    seconds). Notices are equal if their event, entity and type of error are. error: the type of the exception; message:
    the type of the message that an actor was handling; others: whether they are about several entities; node: the node
    that emitted them, if there are several.
    """

    id: int
    event: str
    severity: str
    kind: str
    entity_id: str | None
    job_id: str | None
    text: str
    error: str | None
    message: str | None
    traceback: str | None
    first_at: float
    at: float
    count: int
    others: bool
    node: str | None


@get("/api/notices", operation_id="list_notices")
async def list_notices(
    board: TheBoard, limit: Limit = 100, cursor: Cursor = None, about: _About = None, since: _Since = 0.0
) -> Page[NoticeView]:
    """The kept notices, the latest first."""
    first, reader = place_of(cursor) or 0, board.services.journal.reader
    found: list[NoticeRecord] = await board.services.read(
        partial(reader.notices, about=about, since=since, first=first, limit=limit + 1)
    )
    return Page([_view(one) for one in found[:limit]], cursor_of(first + limit) if len(found) > limit else None)


def _view(record: NoticeRecord) -> NoticeView:
    fields = msgspec.structs.asdict(record)
    return NoticeView(id=fields.pop("key"), **fields)


HANDLERS = [list_notices]
