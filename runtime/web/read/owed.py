"""What is owed, over HTTP: hooks of what has ended, alerts and callbacks of machines that are still to run."""

from __future__ import annotations

from litestar import get

from ...handles.owed import Owed, owed_of
from ..http.context import TheBoard
from .lists import Cursor, Limit, page_of
from .shapes import Page


@get("/api/owed", operation_id="list_owed")
async def list_owed(board: TheBoard, limit: Limit = 100, cursor: Cursor = None) -> Page[Owed]:
    """What is still to run of them, oldest first: what runs now, and what waits for a program that has its function."""
    return page_of(await board.services.read(board.services.journal.reader.outbox), limit, cursor, owed_of)


HANDLERS = [list_owed]
