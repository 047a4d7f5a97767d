"""Transitions over HTTP: the journal, page by page.

Rules
-----
- They are told in the order of their numbers. `next` is the `after` of the part that follows; a part may be empty where
  what is looked for is rare: at most `LOOKED_AT` are looked through for one.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from litestar import get
from litestar.params import QueryParameter

from ...actors.transitions import Transitioned
from .context import Board, JobPath, TheBoard, job_id_of
from .lists import LARGEST, Limit
from .shapes import TransitionPage

LOOKED_AT = 20_000
After: TypeAlias = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="Only those with a greater number.")]
_Job: TypeAlias = Annotated[str | None, QueryParameter(description="Only those of this job and all that is in it.")]
_Entity: TypeAlias = Annotated[str | None, QueryParameter(description="Only those of the entity of this id.")]
_Kind: TypeAlias = Annotated[str | None, QueryParameter(description="Only those of this kind of entity.")]


@get("/api/transitions", operation_id="list_transitions")
async def list_transitions(
    board: TheBoard, job: _Job = None, entity: _Entity = None, kind: _Kind = None, after: After = 0, limit: Limit = 100
) -> TransitionPage:
    """What has happened, oldest first."""
    page: TransitionPage = await board.runtime.read(_read, board, job, entity, kind, after, limit)
    return page


@get("/api/jobs/{job:str}/transitions", operation_id="list_job_transitions")
async def list_job_transitions(
    board: TheBoard, job: JobPath, entity: _Entity = None, kind: _Kind = None, after: After = 0, limit: Limit = 100
) -> TransitionPage:
    """What has happened to a job and all that is in it, oldest first."""
    record = await board.job(job_id_of(job))
    page: TransitionPage = await board.runtime.read(_read, board, record.id, entity, kind, after, limit)
    return page


def _read(
    board: Board, job: str | None, entity: str | None, kind: str | None, after: int, limit: int
) -> TransitionPage:
    found: list[Transitioned] = []
    rows = board.runtime.journal.transitions(job_id=job, entity_id=entity, after=after)
    for looked, row in enumerate(rows, 1):
        if kind in {None, row.kind}:
            found.append(row)
        if len(found) == limit or looked == LOOKED_AT:
            return TransitionPage(found, row.seq)
    return TransitionPage(found)


HANDLERS = [list_transitions, list_job_transitions]
