"""Workers over HTTP: the handlers that read them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from litestar import get
from litestar.params import PathParameter

from ...handles.workers import WorkerHandle
from ..http.context import Board, TheBoard
from ..http.problems import not_found
from .allowed import actions_of
from .lists import Cursor, Limit, Named, States, page_of, wanted_of
from .shapes import Page, WorkerView, worker_view

WorkerPath: TypeAlias = Annotated[str, PathParameter(description="A worker's name, or the id of its last incarnation.")]


@get("/api/workers", operation_id="list_workers")
async def list_workers(
    board: TheBoard, limit: Limit = 100, cursor: Cursor = None, states: States = None, name: Named = None
) -> Page[WorkerView]:
    """All workers, in the order of their first start, also those that have ended."""
    wanted = wanted_of("worker", board.states("worker"), states, name)
    views = await board.shown(
        lambda: [_view(board, one) for one in board.runtime.workers() if wanted.holds(one.record)]
    )
    return page_of(views or [], limit, cursor, lambda view: view)


@get("/api/workers/{worker:str}", operation_id="get_worker")
async def get_worker(board: TheBoard, worker: WorkerPath) -> WorkerView:
    """One worker: its last incarnation."""
    view = await board.shown(lambda: _view(board, worker_of(board, worker)))
    if view is None:
        raise not_found("worker", worker)
    return view


def worker_of(board: Board, name: str) -> WorkerHandle:
    """Find the worker with that name, or whose last incarnation has that id. Raises Problem."""
    found = _found(board, name)
    if found is None:
        raise not_found("worker", name)
    return found


def name_of(board: Board, text: str) -> str:
    """Find a worker's name. An unknown text is returned unchanged: the worker may have existed before a restart."""
    found = _found(board, text)
    return text if found is None else found.name


def _found(board: Board, text: str) -> WorkerHandle | None:
    return next((one for one in board.runtime.workers() if text in {one.name, one.record.id}), None)


def _view(board: Board, handle: WorkerHandle) -> WorkerView:
    record = handle.record
    return worker_view(record, last_seen=handle.last_seen, actions=actions_of(board.services, record))


HANDLERS = [list_workers, get_worker]
