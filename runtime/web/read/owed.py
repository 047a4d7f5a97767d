"""Owed hooks over HTTP: hooks of ended entities, alerts and machines' callbacks, still to run."""

from __future__ import annotations

from litestar import get

from ...handles.owed import Owed, owed_of
from ..http.context import TheBoard
from .lists import Cursor, Limit, page_of
from .shapes import Page


@get("/api/owed", operation_id="list_owed")
async def list_owed(board: TheBoard, limit: Limit = 100, cursor: Cursor = None) -> Page[Owed]:
    """The owed hooks, oldest first, also those that wait for a program with their function."""
    return page_of(await board.services.read(board.services.journal.reader.outbox), limit, cursor, owed_of)


HANDLERS = [list_owed]
