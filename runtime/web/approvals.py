"""What waits for people, over HTTP."""

from __future__ import annotations

from litestar import get

from .context import JobPath, TheBoard, job_id_of
from .lists import Cursor, Limit, page_of
from .shapes import ApprovalView, Page, approval_view


@get("/api/approvals", operation_id="list_approvals")
async def list_approvals(board: TheBoard, limit: Limit = 100, cursor: Cursor = None) -> Page[ApprovalView]:
    """What waits for people now, of all jobs: for whom, and until when. What waits longest comes first."""
    found = await board.shown(board.runtime.approvals)
    pending = sorted(found or [], key=lambda one: (one.since, one.entity_id))
    return page_of(pending, limit, cursor, approval_view)


@get("/api/jobs/{job:str}/approvals", operation_id="list_job_approvals")
async def list_job_approvals(
    board: TheBoard, job: JobPath, limit: Limit = 100, cursor: Cursor = None
) -> Page[ApprovalView]:
    """What of a job waits for people now."""
    record = await board.job(job_id_of(job))
    found = await board.shown(board.runtime.approvals)
    return page_of([one for one in found or [] if one.job_id == record.id], limit, cursor, approval_view)


HANDLERS = [list_approvals, list_job_approvals]
