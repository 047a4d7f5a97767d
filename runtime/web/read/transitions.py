"""Transitions over HTTP: the journal, page by page.

Rules
-----
- They come in the order of their numbers. `next` is the `after` of the following page. A page may be empty if the
  wanted transitions are rare: for one page at most `LOOKED_AT` are searched.
- With `before`, they come backwards: `next` is the `before` of the following, older page. Journals can only be read
  forwards, so pieces before that number are read, each twice as long as the last one.
"""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from typing import Annotated, TypeAlias

from litestar import get
from litestar.params import QueryParameter

from ....actors.records.transition import Transitioned
from ...observation.filters import KINDS, UNJOURNALED
from ..http.context import Board, JobPath, TheBoard, job_id_of
from ..http.problems import FoundWrong, unfit
from ..http.queries import LARGEST
from .lists import Limit
from .shapes import TransitionPage

LOOKED_AT = 20_000
PIECE = 1_000
"""Numbers in the first piece that is read backwards."""
After: TypeAlias = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="Only those with a larger number.")]
Before: TypeAlias = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=LARGEST, description="Only transitions with a smaller number, the newest first; 0: the newest of all."
    ),
]
_Job: TypeAlias = Annotated[str | None, QueryParameter(description="Only those of this job and everything in it.")]
_Entity: TypeAlias = Annotated[str | None, QueryParameter(description="Only transitions of the entity with this id.")]
_KINDS = tuple(kind for kind in KINDS if kind not in UNJOURNALED)
_Kind: TypeAlias = Annotated[
    str | None, QueryParameter(description=f"Only transitions of this kind of entity: {', '.join(_KINDS)}.")
]


@get("/api/transitions", operation_id="list_transitions")
async def list_transitions(
    board: TheBoard,
    job: _Job = None,
    entity: _Entity = None,
    kind: _Kind = None,
    after: After = 0,
    before: Before = None,
    limit: Limit = 100,
) -> TransitionPage:
    """All transitions, oldest first; with `before` the newest first."""
    return await _page(board, job, entity, kind, after, before, limit)


@get("/api/jobs/{job:str}/transitions", operation_id="list_job_transitions")
async def list_job_transitions(
    board: TheBoard,
    job: JobPath,
    entity: _Entity = None,
    kind: _Kind = None,
    after: After = 0,
    before: Before = None,
    limit: Limit = 100,
) -> TransitionPage:
    """The transitions of a job and everything in it, oldest first; with `before` the newest first."""
    record = await board.job(job_id_of(job))
    return await _page(board, record.id, entity, kind, after, before, limit)


async def _page(
    board: Board, job: str | None, entity: str | None, kind: str | None, after: int, before: int | None, limit: int
) -> TransitionPage:
    if kind is not None and kind not in _KINDS:
        raise unfit([FoundWrong("kind", f"{kind[:60]!r} is no kind; there are: {', '.join(_KINDS)}")])
    page: TransitionPage
    if before is None:
        page = await board.services.read(_read, board, job, entity, kind, after, limit)
    else:
        newest = board.services.hub.told + 1
        upto = min(before or newest, newest)
        page = await board.services.read(_read_back, board, job, entity, kind, after, upto, limit)
    return page


def _read(
    board: Board, job: str | None, entity: str | None, kind: str | None, after: int, limit: int
) -> TransitionPage:
    found: list[Transitioned] = []
    rows = board.services.journal.reader.transitions(job_id=job, entity_id=entity, after=after)
    for looked, row in enumerate(rows, 1):
        if kind in {None, row.kind}:
            found.append(row)
        if len(found) == limit or looked == LOOKED_AT:
            return TransitionPage(found, row.seq)
    return TransitionPage(found)


def _read_back(
    board: Board, job: str | None, entity: str | None, kind: str | None, after: int, before: int, limit: int
) -> TransitionPage:
    found: list[Transitioned] = []
    end, length, looked = before, PIECE, 0
    while end > after + 1 and len(found) < limit and looked < LOOKED_AT:
        begin = max(after, end - 1 - length)
        rows = board.services.journal.reader.transitions(job_id=job, entity_id=entity, after=begin)
        piece = list(takewhile(partial(_is_before, end), rows))
        found += [row for row in reversed(piece) if kind in {None, row.kind}]
        looked += len(piece)
        end, length = begin + 1, 2 * length
    if len(found) > limit:
        return TransitionPage(found[:limit], found[limit - 1].seq)
    return TransitionPage(found, end if end > after + 1 else None)


def _is_before(end: int, row: Transitioned) -> bool:
    return row.seq < end


HANDLERS = [list_transitions, list_job_transitions]
