"""Circuit breakers over HTTP: the handlers that read them."""

from __future__ import annotations

from litestar import get
from msgspec.structs import replace

from ....actors.records.entities import BreakerRecord
from ....actors.workers.tool_limits import RUNTIME
from ...handles.breakers import BreakerHandle
from ..http.context import Board, TheBoard, ToolPath
from ..http.problems import not_found
from .allowed import actions_of
from .lists import Cursor, Limit, page_of
from .shapes import BreakerView, Page, breaker_view


@get("/api/breakers", operation_id="list_breakers")
async def list_breakers(board: TheBoard, limit: Limit = 100, cursor: Cursor = None) -> Page[BreakerView]:
    """The breakers of all tools that a workstream has used, or the runtime has.

    If nodes share the journal, the breakers of tools that only other nodes have used come last.
    """
    views = await board.shown(lambda: [_view(board, one) for one in board.services.breakers()]) or []
    views += await _elsewhere(board, {view.tool for view in views})
    return page_of(views, limit, cursor, lambda view: view)


@get("/api/breakers/{tool:str}", operation_id="get_breaker")
async def get_breaker(board: TheBoard, tool: ToolPath) -> BreakerView:
    """The breaker of one tool."""
    try:
        handle = await board.services.breaker_of(tool)
    except LookupError:
        raise not_found("breaker", tool) from None
    view = await board.shown(lambda: _view(board, handle))
    if view is None:
        raise not_found("breaker", tool)
    return view


async def _elsewhere(board: Board, here: set[str]) -> list[BreakerView]:
    """Read the breakers of tools that only other nodes know.

    Each has its last change, and the strictest limit that a node sets.
    """
    services = board.services
    if services.node is None:
        return []
    found: dict[str, list[BreakerRecord]] = {}
    for record in await services.read(services.journal.reader.breakers):
        if record.name not in here:
            found.setdefault(record.name, []).append(record)
    views: list[BreakerView] = []
    for records in found.values():
        last = max(records, key=lambda record: record.updated_at or record.created_at)
        limits = [(record.limit[0], _said_by(record)) for record in records]
        most, by = min(((number, by) for number, by in limits if number is not None), default=(None, None))
        shown = replace(last, over_all=most, over_all_by=by)
        due = max(0.0, (last.due_at or 0.0) - services.now())
        views.append(breaker_view(shown, retry_in=due, parked=0, actions=actions_of(services, last)))
    return views


def _said_by(record: BreakerRecord) -> str:
    """Name what sets the limit of another node's breaker."""
    by = record.limit[1] or ""
    return f"the runtime of {record.id.removeprefix(f'{record.name}@')}" if by == RUNTIME else by


def _view(board: Board, handle: BreakerHandle) -> BreakerView:
    record = handle.record
    return breaker_view(
        record, retry_in=handle.retry_in, parked=handle.parked, actions=actions_of(board.services, record)
    )


HANDLERS = [list_breakers, get_breaker]
