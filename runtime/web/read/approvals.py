"""Holds and approvals over HTTP, and whether the caller can decide them."""

from __future__ import annotations

from litestar import get

from ...handles.approvals import PendingApproval
from ..http.access import Caller, TheCaller
from ..http.context import Board, JobPath, TheBoard, job_id_of
from .lists import Cursor, Limit, page_of
from .shapes import ApprovalView, Page, approval_view


@get("/api/approvals", operation_id="list_approvals")
async def list_approvals(
    board: TheBoard, caller: TheCaller, limit: Limit = 100, cursor: Cursor = None
) -> Page[ApprovalView]:
    """The holds and approvals that wait for people now, in all jobs: for whom, and until when.

    Those that the caller can decide come first, and among these the ones that have waited longest.
    """
    pending = sorted(
        await _pending(board), key=lambda one: (_why_not(one, caller) is not None, one.since, one.entity_id)
    )
    return page_of(pending, limit, cursor, lambda one: _view(one, caller))


@get("/api/jobs/{job:str}/approvals", operation_id="list_job_approvals")
async def list_job_approvals(
    board: TheBoard, caller: TheCaller, job: JobPath, limit: Limit = 100, cursor: Cursor = None
) -> Page[ApprovalView]:
    """The holds and approvals of a job that wait for people now."""
    record = await board.job(job_id_of(job))
    pending = [one for one in await _pending(board) if one.job_id == record.id]
    return page_of(pending, limit, cursor, lambda one: _view(one, caller))


async def _pending(board: Board) -> list[PendingApproval]:
    """Find the holds and approvals that wait for people, in the jobs of all nodes."""
    here = await board.shown(board.runtime.approvals)
    return [*(here or []), *await board.services.jobs.approvals_elsewhere()]


def _view(one: PendingApproval, caller: Caller) -> ApprovalView:
    why_not = _why_not(one, caller)
    return approval_view(one, yours=None if caller.name is None else why_not is None, why_not=why_not)


def _why_not(one: PendingApproval, caller: Caller) -> str | None:
    if caller.name is None:
        return None
    return one.not_for(caller.name) if "approve" in caller.scopes else "your token may not decide"


HANDLERS = [list_approvals, list_job_approvals]
