"""Circuit breakers over HTTP: reading them."""

from __future__ import annotations

from litestar import get

from ..breakers import BreakerHandle
from .allowed import actions_of
from .context import Board, TheBoard, ToolPath
from .lists import Cursor, Limit, page_of
from .problems import not_found
from .shapes import BreakerView, Page, breaker_view


@get("/api/breakers", operation_id="list_breakers")
async def list_breakers(board: TheBoard, limit: Limit = 100, cursor: Cursor = None) -> Page[BreakerView]:
    """The breakers of all tools that any workstream has used, or that the runtime was given."""
    views = await board.shown(lambda: [_view(board, one) for one in board.runtime.breakers()])
    return page_of(views or [], limit, cursor, lambda view: view)


@get("/api/breakers/{tool:str}", operation_id="get_breaker")
async def get_breaker(board: TheBoard, tool: ToolPath) -> BreakerView:
    """The breaker of one tool."""
    try:
        handle = await board.runtime.breaker_of(tool)
    except LookupError:
        raise not_found("breaker", tool) from None
    view = await board.shown(lambda: _view(board, handle))
    if view is None:
        raise not_found("breaker", tool)
    return view


def _view(board: Board, handle: BreakerHandle) -> BreakerView:
    record = handle.record
    return breaker_view(
        record, retry_in=handle.retry_in, parked=handle.parked, actions=actions_of(board.runtime, record)
    )


HANDLERS = [list_breakers, get_breaker]
