"""Notices over HTTP: what went wrong that no transition tells, as the journal keeps it."""

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
    QueryParameter(description="Only those about the entity of this id, as an actor's name, or in the job of this id."),
]
_Since: TypeAlias = Annotated[float, QueryParameter(description="Only those told of since then (UTC epoch seconds).")]


class NoticeView(msgspec.Struct, frozen=True, kw_only=True):
    """A notice above info, and those like it that came soon after: `count` in all, the first at `first_at`, the last,
    whose text and traceback these are, at `at` (UTC epoch seconds). Those of one event about one entity with one type
    of error are alike.

    error: the type of what was raised; message: that of what an actor was handling; others: whether they are about
    several entities; node: which of several has told it.
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
    """The notices that are kept, those told of last first."""
    first, reader = place_of(cursor) or 0, board.services.journal.reader
    found: list[NoticeRecord] = await board.services.read(
        partial(reader.notices, about=about, since=since, first=first, limit=limit + 1)
    )
    return Page([_view(one) for one in found[:limit]], cursor_of(first + limit) if len(found) > limit else None)


def _view(record: NoticeRecord) -> NoticeView:
    told = msgspec.structs.asdict(record)
    return NoticeView(id=told.pop("key"), **told)


HANDLERS = [list_notices]
