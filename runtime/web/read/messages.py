"""Messages to jobs over HTTP: the handler that lists those that no body has received yet.

A message is sent to a path of its own (`web/write/messages.py`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from litestar import get

from ..http.context import Board, JobPath, TheBoard, job_id_of
from .lists import Cursor, LargeLimit, cursor_of, place_of
from .shapes import MessageView, Page, message_view

if TYPE_CHECKING:
    from ....actors.records.entities import JobRecord

_VALUES = 1_000_000
"""Bytes of messages' values after which a page ends before its limit."""
_AT_ONCE = 51
"""Messages that are read at a time: each may have a large value."""


@get("/api/jobs/{job:str}/messages", operation_id="list_messages")
async def list_messages(
    board: TheBoard, job: JobPath, limit: LargeLimit = 100, cursor: Cursor = None
) -> Page[MessageView]:
    """The messages to a job and its tasks that no body has received yet, oldest first.

    A page ends early after 1 MB of values.
    """
    record = await board.job(job_id_of(job))
    made: Page[MessageView] = await board.services.read(partial(_page, board, record, limit, place_of(cursor) or 0))
    return made


def _page(board: Board, job: JobRecord, limit: int, place: int) -> Page[MessageView]:
    """Read a page. place: the key of the last message of the page before."""
    reader, most = board.services.journal.reader, min(limit + 1, _AT_ONCE)
    shown: list[MessageView] = []
    size = 0
    while True:
        messages = reader.messages(job.id, unread=True, beyond=place, limit=most)
        for one in messages:
            if one.first == job.first:  # else it was sent to an earlier job of this id
                if len(shown) == limit or size >= _VALUES:
                    return Page(shown, cursor_of(place))
                shown.append(message_view(one))
                size += len(bytes(one.raw_value))
            place = one.key
        if len(messages) < most:
            return Page(shown)


HANDLERS = [list_messages]
