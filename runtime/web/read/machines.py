"""The application's machines over HTTP: the handlers that read them."""

from __future__ import annotations

from litestar import get

from ....actors.records.entities import MachineRecord
from ..http.context import Board, MachinePath, TheBoard
from ..http.problems import not_found
from .allowed import actions_of
from .lists import Cursor, Limit, Named, Newer, Older, States, page_of, wanted_of
from .shapes import MachineView, Page, machine_view

_MOST = 10_000
"""The most machines that are listed: the newest."""


@get("/api/machines", operation_id="list_machines")
async def list_machines(
    board: TheBoard,
    limit: Limit = 100,
    cursor: Cursor = None,
    states: States = None,
    name: Named = None,
    older_than: Older = None,
    newer_than: Newer = None,
) -> Page[MachineView]:
    """The machines, newest first, also those that have ended."""
    wanted = wanted_of("machine", None, states, name, older_than, newer_than)  # machines may have any states
    found: list[MachineRecord] = await board.services.read(_read, board)
    page = page_of([one for one in found if wanted.holds(one)], limit, cursor, lambda one: one)
    return Page([await _view(board, one) for one in page.items], page.next)


def _read(board: Board) -> list[MachineRecord]:
    return board.services.journal.reader.machines(limit=_MOST)


@get("/api/machines/{machine:str}", operation_id="get_machine")
async def get_machine(board: TheBoard, machine: MachinePath) -> MachineView:
    """One machine."""
    record: MachineRecord | None = await board.services.read(board.services.journal.reader.machine, machine)
    if record is None:
        raise not_found("machine", machine)
    return await _view(board, record)


async def _view(board: Board, record: MachineRecord) -> MachineView:
    ref = await board.services.machine_ref(record.name)  # keep a reference, so that `actions_of` finds it in memory
    return machine_view(record, events=sorted(map(str, ref.events)), actions=actions_of(board.services, record))


HANDLERS = [list_machines, get_machine]
